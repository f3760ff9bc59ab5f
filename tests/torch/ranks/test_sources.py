"""Noise for tensors, alone and on several ranks: what is handed on, what comes back, and what a device's short tails refuse."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import pytest
import torch
from scipy.stats import norm
from torch import Tensor

from dperm._random import Randomness
from dperm.gradient import BallsAndBins
from dperm.privacy import Composed, Event, FilteredRdp, Gaussian, ObjectivePerturbationEvent, PoissonSampled, PureDP, SelfComposed
from dperm.release import (
    ExponentialChoice,
    FallingNoise,
    GaussianNoise,
    Noise,
    ObjectiveNoise,
    PureNoise,
    SystemSource,
    ThresholdNoise,
)
from dperm.release.source import in_earnest
from dperm.torch.ranks import Ranks, RankSource, ShardSource
from dperm.torch.ranks.shard_noise import Lengthened
from dperm.torch.ranks.tensor_noise import TorchSource, admit_tails

T = TypeVar("T")
SIZE = 4000


class Answers(SystemSource):
    """Notes what it is asked, and answers a tensor of `said` in the query's memory, or an array of them."""

    def __init__(self, randomness: Randomness, said: float = 3.0) -> None:
        super().__init__(randomness)
        self.said, self.asked = said, list[tuple[Any, ...]]()

    def noisy(self, query: Any, noise: Noise) -> Any:
        self.asked.append((query.tolist(), noise))
        if noise.kind == "choice":
            return 2
        return query.fill_(self.said) if isinstance(query, Tensor) else np.full(np.shape(query), self.said)


@in_earnest
class Believed(Answers):
    """The same, of which it is believed that its noise is private."""


@dataclass(frozen=True)
class Of(Ranks):
    """Rank `rank` of two, the other of which is played: it has the sums `theirs`, and tells `said`."""

    size: int = 2
    theirs: float = 10.0
    said: float = 7.0
    done: list[str] = field(default_factory=list)

    def first(self, work: Callable[[], T]) -> T:
        self.done.append("first")
        return super().first(work) if self.size == 1 else work()

    def total(self, part: Tensor) -> Tensor:
        return part + self.theirs

    def by_parts(self, values: Tensor, work: Callable[[Tensor], Tensor]) -> Tensor:
        half = len(values) // 2
        mine = work(values[:half].clone())
        return torch.cat([mine, torch.full_like(values[half:], self.said)])

    def told(self, values: Tensor) -> Tensor:
        return values if self.rank == 0 else torch.full_like(values, self.said)


@dataclass(frozen=True)
class Halves:
    """Shards of vectors of four numbers, of which this rank has the first two."""

    whole: int = 4

    def spread(self, rows: Tensor) -> Tensor:
        return torch.cat([rows, torch.zeros(self.whole - len(rows))])

    def gathered(self, whole: Tensor) -> Tensor:
        return whole[:2]


def private() -> Randomness:
    return Randomness.from_system()


def seeded() -> Randomness:
    return Randomness.fixed(0)


def test_every_rank_adds_private_noise_to_its_part_of_a_tensor_alone() -> None:
    own = Believed(private())
    noisy = RankSource(own, Of(0), np.random.default_rng(0)).noisy(torch.zeros(6), GaussianNoise(0.5, 4.0, step=0.25))
    assert own.asked == [([0.0] * 3, GaussianNoise(0.5, 4.0, step=0.25))]
    assert noisy.tolist() == [3.0] * 3 + [7.0] * 3


@pytest.mark.parametrize("own", [Believed(seeded()), Answers(private())], ids=["seeded", "a stranger's"])
def test_noise_that_is_not_private_is_rank_0_s_of_the_whole_tensor(own: Answers) -> None:
    own.asked.clear()
    noisy = RankSource(own, Of(0), np.random.default_rng(0)).noisy(torch.zeros(6), GaussianNoise(0.5, 4.0, step=0.25))
    assert noisy.tolist() == [3.0] * 6
    assert own.asked == [([0.0] * 6, GaussianNoise(0.5, 4.0, step=0.25))]
    assert (
        RankSource(own, Of(1), np.random.default_rng(0)).noisy(torch.zeros(6), GaussianNoise(0.5, 4.0, step=0.25)).tolist()
        == [7.0] * 6
    )
    assert len(own.asked) == 1  # rank 1 adds none


@pytest.mark.parametrize("shards", [None, Halves()], ids=["whole", "shards"])
def test_arrays_get_the_noise_of_rank_0_as_it_was_asked_for(shards: Halves | None) -> None:
    own, ranks, query = Believed(private()), Of(0), np.array([1.0, 2.0])
    given = own, ranks, np.random.default_rng(0)
    source = RankSource(*given) if shards is None else ShardSource(*given, shards)
    asked: list[Noise] = [
        GaussianNoise(0.5, 4.0, step=0.25),
        PureNoise(0.5, 2.0, step=0.25),
        ThresholdNoise(0.5, 2.0, step=0.25),
        FallingNoise(0.5, (1.0, 2.0), step=0.25),
        ObjectiveNoise.of(ObjectivePerturbationEvent(2.0, 0.5, 1.0, 1.0)),
        ExponentialChoice(0.5, 2.0, step=0.25),
    ]
    released = [source.noisy(query, noise) for noise in asked]
    assert [noisy.tolist() for noisy in released[:-1]] == [[3.0, 3.0]] * 5 and released[-1] == 2
    assert own.asked == [([1.0, 2.0], noise) for noise in asked]
    assert ranks.done == ["first"] * 6


def test_shards_get_private_noise_each_on_its_own_numbers() -> None:
    own = Believed(private())
    source = ShardSource(own, Of(0), np.random.default_rng(0), Halves())
    assert source.noisy(torch.tensor([1.0, 2.0]), GaussianNoise(0.5, 4.0, step=0.25)).tolist() == [3.0, 3.0]
    assert source.noisy(torch.zeros(0), GaussianNoise(0.5, 4.0, step=0.25)).tolist() == []
    assert own.asked == [([1.0, 2.0], GaussianNoise(0.5, 4.0, step=0.25))]  # a rank that has no numbers asks for no noise


def test_shards_with_seeded_noise_get_their_part_of_rank_0_s_of_the_whole() -> None:
    own = Believed(seeded())
    source = ShardSource(own, Of(0), np.random.default_rng(0), Halves())
    assert source.noisy(torch.tensor([1.0, 2.0]), GaussianNoise(0.5, 4.0, step=0.25)).tolist() == [3.0, 3.0]
    assert own.asked == [([11.0, 12.0, 10.0, 10.0], GaussianNoise(0.5, 4.0, step=0.25))]


def test_shards_with_more_numbers_at_the_end_have_those_as_they_are() -> None:
    longer = Lengthened(Halves(), 2)
    assert longer.whole == 6
    assert longer.spread(torch.tensor([1.0, 2.0, 5.0, 6.0])).tolist() == [1.0, 2.0, 0.0, 0.0, 5.0, 6.0]
    assert longer.gathered(torch.arange(6.0)).tolist() == [0.0, 1.0, 4.0, 5.0]


# On one machine


def on_a_device() -> TorchSource:
    """As on a CUDA device, by the generator of the CPU."""
    source = TorchSource(Randomness.fixed(3), torch.device("cpu"))
    source._generator = torch.Generator().manual_seed(5)
    return source


def on_the_cpu() -> TorchSource:
    return TorchSource(Randomness.fixed(3), torch.device("cpu"))


@pytest.mark.parametrize("make", [on_a_device, on_the_cpu])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_tensor_s_noise_has_its_deviation_and_lies_on_the_grid(make: Callable[[], TorchSource], dtype: Any) -> None:
    query = torch.full((SIZE,), 40.1, dtype=dtype)
    step, std = 2.0**-6, 1.5
    noisy = make().noisy(query, GaussianNoise(0.5, std / 0.5, step=step))
    assert noisy.data_ptr() == query.data_ptr() and noisy.dtype == dtype
    off = noisy.double() - round(40.1 / step) * step
    assert torch.equal(off / step, (off / step).round())
    assert float(off.mean()) == pytest.approx(0.0, abs=6 * std / math.sqrt(SIZE))
    assert float(off.square().mean()) == pytest.approx(std**2, rel=6 * math.sqrt(2 / SIZE))


def test_a_device_s_noise_is_its_generator_s() -> None:
    noisy = on_a_device().noisy(torch.zeros(SIZE, dtype=torch.float64), GaussianNoise(0.5, 3.0, step=2.0**-6))
    drawn = torch.randn(SIZE, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    assert torch.equal(noisy, (1.5 * 2.0**6 * drawn).round() / 2.0**6)


class Elsewhere(Tensor):
    """A tensor whose numbers the CPU has a copy of, as of a device's."""

    def cpu(self, *args: Any, **kwargs: Any) -> Tensor:
        return self.as_subclass(Tensor).clone()


@pytest.mark.parametrize("kind", [Tensor, Elsewhere], ids=["here", "elsewhere"])
def test_a_tensor_gets_the_noise_that_an_array_would_get(kind: type[Tensor]) -> None:
    query = torch.zeros(SIZE, dtype=torch.float64).as_subclass(kind)
    noisy = on_the_cpu().noisy(query, GaussianNoise(0.5, 3.0, step=2.0**-6))
    array = on_the_cpu().noisy(np.zeros(SIZE), GaussianNoise(0.5, 3.0, step=2.0**-6))
    assert noisy.tolist() == array.tolist()
    assert np.std(array) == pytest.approx(1.5, rel=0.06)


# Tails that end


def least_delta(event: Event, size: int) -> float:
    """The δ from which on a CUDA device takes the event, by halving."""
    low, high = 1e-40, 1.0
    while high / low > 1 + 1e-6:
        middle = math.sqrt(low * high)
        try:
            admit_tails(event, size, middle, torch.device("cuda"))
            high = middle
        except ValueError:
            low = middle
    return high


EVENTS: list[tuple[Event, float]] = [
    (Gaussian(2.0), 1 / 2.0),
    (SelfComposed(PoissonSampled(0.1, Gaussian(1.5)), 30), 30 / 1.5),
    (Composed((Gaussian(50.0), SelfComposed(Gaussian(4.0), 7), PureDP(1e-3))), 1 / 50 + 7 / 4),
    (BallsAndBins(4).event(Gaussian(2.0), 0, 8), 8 / 2.0),
    (FilteredRdp(8.0, 1.0), 100_000 / 0.5),
]


@pytest.mark.parametrize("size", [1, 10_000])
@pytest.mark.parametrize(("event", "moves"), EVENTS, ids=["one", "sampled", "several", "epochs", "chosen on the way"])
def test_what_short_tails_may_cost_is_a_hundredth_of_delta(event: Event, moves: float, size: int) -> None:
    """Normals that are made of 53 bits end at √(2·53·ln 2). A query whose coordinates each move by `moves`/√size of a deviation
    reaches, at both ends, what its neighbour cannot: the least δ is a hundred times the probability of that, within some percent,
    and no smaller. Noise that is chosen on the way counts as 100,000 steps of half a sensitivity."""
    end = math.sqrt(2 * 53 * math.log(2))
    lost = 2 * size * norm.pdf(end) * moves / math.sqrt(size)
    found = least_delta(event, size)
    assert 0.999 * 100 * lost <= found <= 1.03 * 100 * lost


def test_noise_that_no_device_makes_has_whole_tails() -> None:
    admit_tails(SelfComposed(Gaussian(0.1), 10**6), 10**9, 1e-30, torch.device("cpu"))
    admit_tails(PureDP(5.0), 10**9, 1e-30, torch.device("cuda"))  # made on the CPU
