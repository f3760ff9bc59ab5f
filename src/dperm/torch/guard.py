"""What must hold around a run's steps, whoever calls them: secret masks, no raw gradients beside the noisy ones, and a loop that
uses what was paid for."""

from __future__ import annotations

import contextlib
import os
import random
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_pre_hook

from dperm.torch.flat import FlatParameters
from dperm.torch.structure import local

__all__ = ["LoopGuard", "fresh_masks", "fresh_seed", "global_states", "kept_states", "secret_masks", "seed_all"]

_WATCHED = 2  # steps within which a loop that trains nothing is noticed


def _with_generators(device: torch.device) -> list[int]:
    """The CUDA devices whose generators a model on this device draws from."""
    if device.type != "cuda":
        return []
    return [torch.cuda.current_device() if str(device) == "cuda" else device.index]


@contextlib.contextmanager
def kept_states(device: torch.device) -> Iterator[None]:
    """The global generators, of torch, NumPy and Python, are at the end of the block as they were before it."""
    python, numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(_with_generators(device)):
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)


def global_states(device: torch.device) -> tuple[bytes, ...]:
    """What the global generators will draw from now on."""
    states = [torch.get_rng_state()] + ([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])
    numpy = np.random.get_state(legacy=False)["state"]
    return (
        *(state.numpy().tobytes() for state in states),
        repr(random.getstate()).encode(),
        repr(numpy["pos"]).encode() + numpy["key"].tobytes(),
    )


def seed_all(seed: int, torchs: int | None = None) -> None:
    """Start the global generators of Python, NumPy and torch from a seed; torch's from `torchs` where it is given."""
    whole = seed if torchs is None else torchs
    torch.default_generator.manual_seed(whole)  # a hundredth of the time of torch.manual_seed, which looks for devices
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(whole)
    random.seed(seed)
    np.random.seed(seed % 2**32)


@contextlib.contextmanager
def secret_masks(device: torch.device) -> Iterator[None]:
    """Within the block the global generators start from seeds of the operating system.

    Dropout masks and augmentations are drawn from them. By a seed that somebody knows, one more record at the front would shift
    everybody's masks: a query would move by more than one record's part.
    """
    with kept_states(device):
        _seed_torch(device)
        random.seed(os.urandom(64))
        np.random.seed(np.frombuffer(os.urandom(64), dtype=np.uint32))
        yield


@contextlib.contextmanager
def fresh_masks(device: torch.device) -> Iterator[None]:
    """Within the block torch draws from a fresh seed of the operating system, whatever a data set or a loop made of its state."""
    with torch.random.fork_rng(_with_generators(device)):
        _seed_torch(device)
        yield


def _seed_torch(device: torch.device) -> None:
    """With a fresh seed. `torch.manual_seed` remembers a stack for each device that could still be started, at every call."""
    seed = torch.default_generator.manual_seed if device.type == "cpu" else torch.manual_seed
    seed(fresh_seed())


def fresh_seed() -> int:
    return int.from_bytes(os.urandom(8), "little") >> 1


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
