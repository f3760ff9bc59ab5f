"""Any torch optimiser as the update of a plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dperm.gradient import Update
from dperm.torch.parameters.flat_parameters import FlatParameters


@dataclass(frozen=True, repr=False)
class TorchOptimizer(Update):
    """`optimizer` steps on the model's own parameters, which are views of the flat θ; noisy gradients arrive in `.grad`.

    Raises ValueError for an optimiser that evaluates losses itself, or that misses trainable parameters.
    """

    optimizer: torch.optim.Optimizer
    flat: FlatParameters

    coordinatewise = True  # an optimiser sees whole parameters, wherever their numbers are

    def __post_init__(self) -> None:
        if isinstance(self.optimizer, torch.optim.LBFGS):
            raise ValueError(f"{type(self.optimizer).__name__} evaluates the loss again within a step: every look costs privacy.")
        held = {parameter for group in self.optimizer.param_groups for parameter in group["params"]}
        missing = [name for name, p in zip(self.flat.names, self.flat.parameters, strict=True) if p not in held]
        if missing:
            raise ValueError(
                f"Expected the optimizer to hold every trainable parameter, but it misses {', '.join(missing[:5])}: add them, or "
                "freeze them with requires_grad_(False), so that no noise is spent on them."
            )

    @property
    def steps_with(self) -> object | None:
        return None if type(self.optimizer).__module__.startswith("torch.optim.") else self.optimizer

    def init(self, theta: Any) -> dict[str, Any]:
        return {}

    def step(self, theta: Tensor, gradient: Tensor, state: Any) -> Tensor:
        self.flat.assign(gradient)
        self.optimizer.step()
        return self.flat.buffer

    def __repr__(self) -> str:
        skipped = ("params", "foreach", "fused", "capturable", "differentiable", "maximize")
        group = {
            name: value for name, value in self.optimizer.param_groups[0].items() if name not in skipped and value is not None
        }
        return f"{type(self.optimizer).__name__}({', '.join(f'{name}={value}' for name, value in group.items())})"
