"""The randomness of a step: of each record its own, or one for all records of the step.

*Of the step* is a draw whose shape is empty, and whatever Python's and NumPy's global generators give: the same in every run of
the model, from generators that start again in each run, which draws of records never advance. Given these coins a record
changes its own gradient alone.

*Of a record* is every other draw of torch. The numbers of the k-th draw on a path through the model are made for all places of a
physical batch at once, from a seed of the batch's secret seed, of k, and of what was read on the path; each record takes those of
its place. So a record draws the same whoever runs beside it, however often the model runs, and records on two paths draw apart.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from dperm.release import alignment
from dperm.torch.tensors.global_randomness import fresh_seed, kept_states, seed_all
from dperm.torch.tensors.nested import map_tensors

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
    "binomial",
    "standard_gamma",
    "dirichlet",
    "gumbel",
    "fractional_max_pool",
)
#: those that take as many random numbers as their input's values ask for
_BY_VALUES = ("poisson", "binomial", "standard_gamma", "dirichlet", "rrelu")


@functools.cache
def draws_by_name(name: str) -> bool:
    """Whether the function of torch with this name draws."""
    return any(word in name for word in _DRAW) and name != "normalize" and not name.endswith(("_loss", "__"))


class Draws:
    """Seeds of one step. `secret` takes them from the operating system; else they come from torch's global generator, which
    whoever wants to repeat a run can seed."""

    def __init__(self, device: torch.device) -> None:
        self.secret = True
        self.of_step = torch.Generator(device)
        self._device = device
        self._seed: int | None = None
        self._of_records = self._elsewhere = 0
        self._count = 0
        #: whether records that ran together have ever drawn
        self.ever = False
        self._started: list[Tensor] = []
        #: torch's global generators with the seeds that a run starts them from: another seed means that somebody seeds them
        self.seeded: list[tuple[torch.Generator, int]] = []

    def next_step(self) -> None:
        """Draw anew what records of a step share."""
        self._seed = None

    def seed(self) -> int:
        """A new seed."""
        return fresh_seed() if self.secret else int(torch.randint(1 << 62, ()))

    def seed_of_record(self, name: object) -> int:
        """The seed of a record of a replayed run in this step."""
        return alignment.seed_of("record", name, self._seed)

    @property
    def of_this_step(self) -> int:
        """The seed of what records of a step share."""
        assert self._seed is not None
        return self._seed

    @contextlib.contextmanager
    def kept(self, step: int | None = None) -> Iterator[None]:
        """The global generators are at the end of the block as they were before it. Records share what comes of the seed `step`
        within it, where one is given."""
        before = self._seed
        if step is not None:
            self._seed = step
        if self._seed is None:
            replayed = alignment.current()
            self._seed = self.seed() if replayed is None else alignment.seed_of("step", replayed.next_step())
        try:
            with kept_states(self._device):
                yield
        finally:
            if step is not None:
                self._seed = before

    def start(self, of_records: int, elsewhere: int | None = None) -> None:
        """Begin a run of the model: records draw from the seed `of_records`, the step from its own, and what draws otherwise from
        `elsewhere`."""
        assert self._seed is not None
        self._of_records, self._elsewhere, self._count = of_records, of_records if elsewhere is None else elsewhere, 0
        seed_all(self._seed, self._elsewhere)
        self.seeded = [(generator, generator.initial_seed()) for generator in self._generators]
        self.of_step.manual_seed(self._seed)
        self._started = self._now()

    def made(self, name: str, path: bytes, places: Tensor, size: int, draw: Callable[..., Any], *given: Tensor) -> Any:
        """The next draw, by the function of this name, of the records at `places` (k,) of a physical batch of `size`, on a path:
        for each `draw` of its numbers in `given` (k, ...)."""
        self._count += 1
        self.ever = True
        before = self._now()
        seed = alignment.seed_of(self._of_records, self._count, path)
        if any(word in name for word in _BY_VALUES):
            rows: list[Tensor] = []
            for place, *mine in zip(places.tolist(), *given, strict=True) if given else ((place,) for place in places.tolist()):
                self._begin(alignment.seed_of(seed, place))
                rows.append(draw(*mine))
            self._put_back(before)
            return torch.stack(rows)
        whole = len(places) == size
        spread = [item.contiguous() if whole else _spread(item, places, size) for item in given]
        self._begin(seed)
        # a first tensor that draws nothing says how many records there are
        made = torch.vmap(lambda _, *mine: draw(*mine), randomness="different")(places.new_zeros(size), *spread)
        self._put_back(before)
        if whole:
            return made
        return map_tensors(lambda item: item[places.to(item.device)], made)

    @property
    def place(self) -> tuple[int, Tensor]:
        """How far the run has come in its draws."""
        return self._count, self.of_step.get_state()

    @place.setter
    def place(self, place: tuple[int, Tensor]) -> None:
        self._count = place[0]
        self.of_step.set_state(place[1])

    @property
    def _generators(self) -> list[torch.Generator]:
        """The global ones of torch that a model on this device draws from."""
        if self._device.type != "cuda":
            return [torch.default_generator]
        with torch.cuda.device(self._device):
            return [torch.default_generator, torch.cuda.default_generators[torch.cuda.current_device()]]

    def _begin(self, seed: int) -> None:
        torch.default_generator.manual_seed(seed)
        if self._device.type == "cuda":
            with torch.cuda.device(self._device):
                torch.cuda.manual_seed(seed)

    def _put_back(self, states: list[Tensor]) -> None:
        torch.set_rng_state(states[0])
        if self._device.type == "cuda":
            torch.cuda.set_rng_state(states[1], self._device)

    @property
    def strayed(self) -> bool:
        """Whether something has drawn that is no draw of a record, nor of the step."""
        return not all(map(torch.equal, self._started, self._now()))

    @property
    def drawn(self) -> bool:
        """Whether records have drawn anything in this run."""
        return self._count > 0 or self.strayed

    def _now(self) -> list[Tensor]:
        on_device = [torch.cuda.get_rng_state(self._device)] if self._device.type == "cuda" else []
        return [torch.get_rng_state(), *on_device]


def _spread(item: Tensor, places: Tensor, size: int) -> Tensor:
    """(size, ...) with the rows of `item` (k, ...) at these places, and copies of the first elsewhere. Gathered, so that nothing
    that the way back needs can be overwritten."""
    rows = torch.zeros(size, dtype=torch.long).index_copy_(0, places, torch.arange(len(places)))
    return item[rows.to(item.device)]
