"""The global random generators of torch, NumPy and Python: kept, or seeded by the operating system or from a given seed."""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch


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


def python_states() -> tuple[Any, Any]:
    """The states of Python's and NumPy's global generators."""
    return random.getstate(), np.random.get_state()


def put_python_states(states: tuple[Any, Any]) -> None:
    """Put back what `python_states` gave."""
    random.setstate(states[0])
    np.random.set_state(states[1])


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


def _seed_torch(device: torch.device) -> None:
    """With a fresh seed. `torch.manual_seed` remembers a stack for each device that could still be started, at every call."""
    seed = torch.default_generator.manual_seed if device.type == "cpu" else torch.manual_seed
    seed(fresh_seed())


def fresh_seed() -> int:
    return int.from_bytes(os.urandom(8), "little") >> 1
