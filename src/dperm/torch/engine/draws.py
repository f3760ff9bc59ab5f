"""The randomness of a step: of each record its own, or one for all records of the step.

A draw whose shape is empty, and whatever Python's and NumPy's global generators give, is made once for a step: the same in
every run of the model, from generators that start again in each run, which draws of records never advance. Given these coins
a record changes its own gradient alone. All other draws of torch are made by `torch.vmap` for each record by itself, from a
seed of the operating system: their law does not depend on who else is there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor

from dperm.release import alignment
from dperm.torch.guard import fresh_seed, kept_states, seed_all

__all__ = ["Draws"]

#: parts of the names of torch's functions that draw
_DRAW = (
    "rand",
    "dropout",
    "bernoulli",
    "normal",
    "poisson",
    "multinomial",
    "uniform",
    "exponential",
    "cauchy",
    "geometric",
    "rrelu",
)


class Draws:
    """Seeds of one step. `secret` takes them from the operating system; else they come from torch's global generator, which
    whoever wants to repeat a run can seed."""

    def __init__(self, device: torch.device) -> None:
        self.secret = True
        self.of_step = torch.Generator(device)
        self._device = device
        self._seed: int | None = None
        self._of_records: tuple[int, ...] = ()
        self._states: list[Tensor] = []
        self._noted = False

    def next_step(self) -> None:
        """Draw anew what records of a step share."""
        self._seed = None

    def seed(self) -> int:
        """A new seed."""
        return fresh_seed() if self.secret else int(torch.randint(1 << 62, ()))

    def seed_of_record(self, name: object) -> int:
        """The seed of a record of a replayed run in this step."""
        return alignment.seed_of("record", name, self._seed)

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """The global generators are at the end of the block as they were before it."""
        if self._seed is None:
            replayed = alignment.current()
            self._seed = self.seed() if replayed is None else alignment.seed_of("step", replayed.next_step())
        with kept_states(self._device):
            yield

    def start(self, of_records: int) -> None:
        """Begin a run of the model: records draw from the seed `of_records`, the step from its own."""
        assert self._seed is not None
        seed_all(self._seed, of_records)
        self.of_step.manual_seed(self._seed)
        self._of_records, self._states, self._noted = self._seeds(), self._now(), False

    @property
    def seeded_anew(self) -> bool:
        """Whether somebody else has seeded the generator that records draw from."""
        return self._seeds() != self._of_records

    def note(self, function: str) -> None:
        """A function of this name is called: one that draws may put the generator back afterwards."""
        self._noted = self._noted or any(word in function for word in _DRAW)

    @property
    def drawn(self) -> bool:
        """Whether records may have drawn anything in this run."""
        return self._noted or not all(map(torch.equal, self._states, self._now()))

    def _seeds(self) -> tuple[int, ...]:
        on_cpu = torch.default_generator.initial_seed()
        return (on_cpu, torch.cuda.initial_seed()) if self._device.type == "cuda" else (on_cpu,)

    def _now(self) -> list[Tensor]:
        on_device = [torch.cuda.get_rng_state(self._device)] if self._device.type == "cuda" else []
        return [torch.get_rng_state(), *on_device]
