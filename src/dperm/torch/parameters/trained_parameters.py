"""Whether the first steps moved what they should: every tensor that is trained, and no other."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor, nn

from dperm.torch.parameters.flat_parameters import FlatParameters
from dperm.torch.tensors.nested import local

_LOOKED = 10  # steps


class FirstStep:
    """Remembers a model's parameters before the first private step; `seen` looks at what became of them.

    Adapters fail silently where a tensor is trained by nobody, or where somebody moves one that has no private gradient.
    """

    def __init__(self, model: nn.Module, flat: FlatParameters) -> None:
        self._flat, self._before, self._steps = flat, flat.buffer.clone(), 0
        trained = set(flat.parameters)
        self._others = {name: parameter for name, parameter in model.named_parameters() if parameter not in trained}
        self._known = {name: _digest(parameter) for name, parameter in self._others.items()}

    def seen(self) -> bool:
        """After each step, until all is well or has been said. A warning for a tensor that moved and is not trained, after the
        first step, and for tensors that are trained and did not move in ten, counted from the first that moved any."""
        if not self._steps and (changed := [n for n, p in self._others.items() if _digest(p) != self._known[n]]):
            warnings.warn(
                f"The first private step changed {_listed(changed)}, not trained privately: only parameters with requires_grad "
                "have noisy gradients. That is right only where they follow what was released.",
                stacklevel=5,
            )
        if torch.equal(self._before, self._flat.buffer):
            return False  # a schedule may start at 0, a loop may take every other step
        self._steps += 1
        pairs = zip(self._flat.names, self._flat.parts(self._before), self._flat.parts(self._flat.buffer), strict=True)
        stayed = [name for name, before, now in pairs if now.numel() and torch.equal(before, now)]
        if stayed and self._steps < _LOOKED:
            return False  # a group's own schedule may start later
        if stayed:
            warnings.warn(
                f"{_LOOKED} private steps did not move {_listed(stayed)}: noise is spent on what nobody trains. Give it a "
                "learning rate, or freeze it by requires_grad_(False).",
                stacklevel=5,
            )
        return True


def _listed(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _digest(tensor: Tensor) -> tuple[str, str]:
    """Two numbers that change where the tensor does; as texts, so that what is no number equals itself."""
    values = local(tensor.detach())
    if values.dtype not in (torch.float16, torch.bfloat16, torch.float32, torch.float64):  # quantised, or narrower
        return str(values.contiguous().view(-1).view(torch.uint8).sum(dtype=torch.int64).item()), ""
    return str(values.sum(dtype=torch.float64).item()), str(torch.linalg.vector_norm(values, dtype=torch.float64).item())
