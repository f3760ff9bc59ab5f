"""A guard around the steps of a run: no raw gradients beside the noisy ones, and a loop that uses every release it pays for."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_pre_hook

from dperm.torch.parameters.flat_parameters import FlatParameters
from dperm.torch.tensors.nested import local

_WATCHED = 2  # steps within which a loop that trains nothing is noticed


class LoopGuard:
    """Looks at every step of an optimiser that holds private parameters.

    Gradients of whatever else it holds are cleared first: they would be raw. In a loop of the caller's own, a noisy gradient that
    was cleared is put back, and steps that are never taken stop the run within two steps. Nothing is refunded then: the loop has
    seen what was released, and whether it stopped because of that cannot be known.
    """

    def __init__(self, flat: FlatParameters, own_loop: bool) -> None:
        self._flat = flat
        self._watched = _WATCHED if own_loop else 0
        self._gradient: Tensor | None = None  # a copy, as long as it is not known that the loop leaves gradients alone
        self._before: Tensor | None = None
        self._clears = False
        self._stepped = self._idle = 0

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        hook = register_optimizer_step_pre_hook(self._look)
        try:
            yield
        finally:
            hook.remove()

    def gives(self, gradient: Tensor) -> None:
        """Before a step is handed out."""
        self._stepped = 0
        self._gradient = gradient.clone() if self._watched or self._clears else None
        if self._watched:
            self._before = self._flat.buffer.clone()

    def takes_back(self) -> None:
        """When the next step is asked for. RuntimeError where nothing was done with the last ones."""
        if not self._watched or self._before is None:
            return
        self._watched -= 1
        if self._flat.everywhere(self._stepped == 0 and torch.equal(self._before, self._flat.buffer)):
            self._idle += 1
        self._before = None
        if self._idle == _WATCHED:
            raise RuntimeError(
                f"The parameters did not move in {_WATCHED} private steps, and no optimizer stepped: call optimizer.step() in "
                "each. The run stops; the charge stands."
            )

    def _look(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        private = set(self._flat.parameters)
        held = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        if private.isdisjoint(held):
            return
        self._stepped += 1
        for parameter in held:
            if parameter not in private:
                parameter.grad = None
        if self._gradient is not None and self._cleared():
            if not self._clears:
                warnings.warn(_CLEARED, stacklevel=3)  # the line with step()
                self._clears = True
            self._flat.assign(self._gradient)

    def _cleared(self) -> bool:
        gradients = [parameter.grad for parameter in self._flat.parameters]
        left = [local(gradient) for gradient in gradients if gradient is not None]
        return self._flat.size > 0 and not any(bool((gradient != 0).any()) for gradient in left)


_CLEARED = (
    "The noisy gradient was cleared before optimizer.step(). It is put back, here and in later steps: leave "
    "optimizer.zero_grad() out of a private loop, each step writes .grad anew."
)
