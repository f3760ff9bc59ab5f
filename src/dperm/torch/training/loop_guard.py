"""A guard around the steps of a run: no raw gradients beside the noisy ones, a loop that uses every release it pays for, and
warnings where the first steps did not move what they should: every tensor that is trained, and no other."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from dperm.torch.parameters.flat_parameters import FlatParameters
from dperm.torch.tensors.nested import local

_WATCHED = 2  # steps within which a loop that trains nothing is noticed
_LOOKED = 10  # steps in which each trained tensor is to move


class LoopGuard:
    """Looks at every step of an optimiser that holds private parameters, and at every backward pass that reaches them.

    Gradients of whatever else it holds are cleared first: they would be raw. In a loop of the caller's own, a noisy gradient that
    was cleared is put back, and steps that are never taken stop the run within two steps. Nothing is refunded then: the loop has
    seen what was released, and whether it stopped because of that cannot be known.
    """

    def __init__(self, model: nn.Module, flat: FlatParameters, own_loop: bool) -> None:
        self._flat = flat
        self._watched = _WATCHED if own_loop else 0
        self._gradient: Tensor | None = None  # a copy, as long as it is not known that the loop leaves gradients alone
        self._before: Tensor | None = None
        self._clears = False
        self._stepped = self._idle = 0
        self._first: _FirstSteps | None = _FirstSteps(model, flat)
        self._hooks: dict[nn.Parameter, RemovableHandle] = {}

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        self._hook()
        stepping = register_optimizer_step_pre_hook(self._look)
        try:
            yield
        finally:
            for hook in (stepping, *self._hooks.values()):
                hook.remove()

    def _hook(self) -> None:
        """Look at backward passes that reach the parameters that are trained now."""
        for leaf in self._flat.leaves:
            if leaf not in self._hooks:
                self._hooks[leaf] = leaf.register_post_accumulate_grad_hook(_refuse_backward)

    def gives(self, gradient: Tensor) -> None:
        """Before a step is handed out: the noisy gradient goes where optimisers look for it."""
        self._hook()
        self._flat.assign(gradient)
        self._stepped = 0
        self._gradient = gradient.clone() if self._watched or self._clears else None
        if self._watched:
            self._before = self._flat.buffer.clone()

    def takes_back(self) -> None:
        """When the next step is asked for. RuntimeError where nothing was done with the last ones."""
        self._refuse_idle()
        if self._first is not None and self._first.seen():
            self._first = None

    def _refuse_idle(self) -> None:
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


def _refuse_backward(parameter: Tensor) -> None:
    raise RuntimeError(
        "A backward pass added a gradient without noise to the model during a private run. The noisy gradient is in .grad "
        "already: call optimizer.step() and nothing else. For a loss of public values alone, such as a generator's, call "
        "trainer.public_step(function), which hands the function a copy of the model."
    )


class _FirstSteps:
    """Remembers a model's parameters before the first private step; `seen` looks at what became of them.

    Adapters fail silently where a tensor is trained by nobody, or where somebody moves one that has no private gradient.
    """

    def __init__(self, model: nn.Module, flat: FlatParameters) -> None:
        self._flat, self._before, self._steps = flat, flat.buffer.clone(), 0
        self._trained = list(flat.parameters)
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
        buffer = self._flat.buffer
        if len(self._trained) != len(self._flat.parameters) or set(self._trained) != set(self._flat.parameters):
            return True  # the loop decides what is trained
        if torch.equal(self._before, buffer):
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
