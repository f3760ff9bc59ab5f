"""What records drew in a run, so that autograd can run each record by itself with the same numbers; and the scripts in examples/
as modules."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from dperm.torch.engine.randomness import Draws, draws_by_name


def example(name: str) -> Any:
    path = Path(__file__).resolve().parents[2] / "examples" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"example_{name}", path)
    assert spec is not None and spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Recorded(Draws):
    """Draws as in a run, which are remembered: tensors (b, …), in the order of the model's calls."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self.numbers: list[Tensor] = []

    def made(self, *args: Any, **kwargs: Any) -> Any:
        self.numbers.append(super().made(*args, **kwargs))
        return self.numbers[-1]


class Again(TorchFunctionMode):
    """What draws gets these numbers, one call after the other."""

    def __init__(self, numbers: list[Tensor]) -> None:
        super().__init__()
        self.waiting = list(numbers)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not draws_by_name(func.__name__) or func is torch.nn.functional.dropout:  # which has a chance of zero here
            return func(*args, **(kwargs or {}))
        numbers = self.waiting.pop(0)
        return args[0].copy_(numbers) if func.__name__.endswith("_") else numbers
