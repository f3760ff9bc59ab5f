"""Whether the first step moved what it should: every tensor that is trained, and no other."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor, nn

from dperm.torch.flat import FlatParameters

__all__ = ["FirstStep"]


class FirstStep:
    """Remembers a model's parameters before a private step; `check` looks at what became of them.

    Adapters fail silently where a tensor is trained by nobody, or where an optimiser moves one that has no private gradient.
    """

    def __init__(self, model: nn.Module, flat: FlatParameters) -> None:
        self._flat, self._before = flat, flat.buffer.clone()
        trained = set(flat.parameters)
        self._others = {name: parameter for name, parameter in model.named_parameters() if parameter not in trained}
        self._seen = {name: _digest(parameter) for name, parameter in self._others.items()}

    def check(self) -> bool:
        """Whether a step was taken. RuntimeError where it moved a tensor that is not trained, a warning where one that is trained
        stayed."""
        if changed := [name for name, parameter in self._others.items() if _digest(parameter) != self._seen[name]]:
            raise RuntimeError(
                f"The first private step changed {', '.join(changed[:5])}, which is not trained privately: only parameters with "
                "requires_grad have noisy gradients. The run stops; the charge stands."
            )
        pairs = zip(self._flat.names, self._flat.parts(self._before), self._flat.parts(self._flat.buffer), strict=True)
        stayed = [name for name, before, now in pairs if torch.equal(before, now)]
        if len(stayed) == len(self._flat.names):
            return False  # a schedule that starts at 0, or a loop that takes every other step
        if stayed:
            warnings.warn(
                f"The first private step did not move {', '.join(stayed[:5])}"
                + (f" and {len(stayed) - 5} more" if len(stayed) > 5 else "")
                + ": noise is spent on what nobody trains. Give it a learning rate, or freeze it by requires_grad_(False).",
                stacklevel=5,
            )
        return True


def _digest(tensor: Tensor) -> tuple[str, str]:
    """Two numbers that change where the tensor does; as texts, so that what is no number equals itself."""
    values = tensor.detach()
    if not values.is_floating_point():  # quantised
        return str(values.sum().item()), ""
    return str(values.sum(dtype=torch.float64).item()), str(torch.linalg.vector_norm(values, dtype=torch.float64).item())
