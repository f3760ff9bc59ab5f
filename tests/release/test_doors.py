"""Each door of a channel: what it hands to the source, that it lets out what the source made, and how often."""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dperm._random import Randomness
from dperm.gradient import BallsAndBins, FixedSize, Poisson
from dperm.privacy import (
    AboveThreshold,
    Composed,
    Disjoint,
    Event,
    ExponentialMechanism,
    FilteredRdp,
    Gaussian,
    HiddenIterates,
    ObjectivePerturbationEvent,
    PoissonSampled,
    PureDP,
    Relation,
    SelfComposed,
)
from dperm.privacy.events import steps_of
from dperm.release import (
    Channel,
    CountNoise,
    ExponentialChoice,
    FallingNoise,
    GaussianNoise,
    HiddenNoise,
    LastIterateNoise,
    Noise,
    ObjectiveNoise,
    PureNoise,
    SpendLog,
    SystemSource,
    ThresholdNoise,
    UnpaidReleaseError,
)
from dperm.release.threshold import ThresholdTest

SIZE = 4
QUERY = np.arange(1.0, SIZE + 1)


class Listens(SystemSource):
    """Notes what it is asked, and answers the same things each time."""

    def __init__(self) -> None:
        super().__init__(Randomness.fixed(0))
        self.asked: list[tuple[str, float, Any, float]] = []  # kind, sensitivity, noise, step
        self.answer = np.full(SIZE, 0.3)

    def noisy(self, query: Any, noise: Noise) -> Any:
        self.asked.append((type(noise).__name__, noise.sensitivity, noise.path or noise.level, noise.step))
        return 2 if noise.kind == "choice" else self.answer


HIDDEN = HiddenIterates(2.0, 3, 1, 0.9, 1.0, 1e-9)
QUADRATIC = ObjectivePerturbationEvent(3.0, 1.0, 0.25, 7.0)
ASKED = AboveThreshold(3.0, queries=5)

#: of each door: what pays for it, the call with a sensitivity, and the noise that the source must be told, in units of it
DOORS: dict[str, tuple[Event, Callable[[Channel, float], Any], Any]] = {
    "gaussian": (Gaussian(2.0), lambda channel, s: channel.release(QUERY, GaussianNoise(s, 2.0)), 2.0),
    "unveiled": (HIDDEN, lambda channel, s: channel.release(QUERY, LastIterateNoise(s, 2.0)), 2.0),
    "pure": (PureDP(0.5), lambda channel, s: channel.release(QUERY, PureNoise(s, 0.5)), 0.5),
    "falling": (PureDP(0.5), lambda channel, s: channel.release(QUERY, FallingNoise(s, (0.125, 0.5))), (0.125, 0.5)),
    "undisclosed": (ASKED, lambda channel, s: channel.release(QUERY, ThresholdNoise(s, ASKED.rate)), ASKED.rate),
    "choose": (ExponentialMechanism(0.5), lambda channel, s: np.array(channel.release(QUERY, ExponentialChoice(s, 0.5))), 0.5),
}  # fmt: skip


def opened(event: Event) -> tuple[Channel, Listens]:
    source = Listens()
    channel = Channel.open(source)
    channel.charge(event, "test")
    return channel, source


@pytest.mark.parametrize("sensitivity", [1e-6, 0.37, 1.0, 1e6])
@pytest.mark.parametrize("door", DOORS)
def test_a_door_hands_on_the_rounded_query_s_sensitivity_and_lets_out_what_the_source_made(door: str, sensitivity: float) -> None:
    """Two queries that are Δ apart are Δ + 2·step·√p apart once each is rounded to a double and to the grid."""
    event, ask, noise = DOORS[door]
    channel, source = opened(event)
    released = ask(channel, sensitivity)
    ((_, told, said, step),) = source.asked
    assert released is source.answer or released == 2
    numbers = 1 if door == "choose" else SIZE
    assert sensitivity + 2 * step * math.sqrt(numbers) == pytest.approx(told, rel=1e-15)
    assert told <= sensitivity * (1 + 2.0**-12)
    assert said == (noise * told if door in ("gaussian", "unveiled") else noise)


FINE = 2.0**-13

#: of each door: what pays for it, the call, and the noise's spread in units of the sensitivity
GRIDS: dict[str, tuple[Event, Callable[[Channel, float], Any], float]] = {
    "gaussian": (Gaussian(1 / FINE), lambda channel, s: channel.release(QUERY, GaussianNoise(s, 1 / FINE)), 1 / FINE),
    "unveiled": (
        replace(HIDDEN, noise_multiplier=1 / FINE),
        lambda channel, s: channel.release(QUERY, LastIterateNoise(s, 1 / FINE)),
        1 / FINE,
    ),
    "pure": (PureDP(FINE), lambda channel, s: channel.release(QUERY, PureNoise(s, FINE)), SIZE / FINE),
    "falling": (PureDP(FINE), lambda channel, s: channel.release(QUERY, FallingNoise(s, (FINE / 8, FINE))), SIZE / (FINE / 8)),
    "undisclosed": (AboveThreshold(3 * FINE), lambda channel, s: channel.release(QUERY, ThresholdNoise(s, FINE)), SIZE / FINE),
    "choose": (
        ExponentialMechanism(FINE / 8),
        lambda channel, s: channel.release(QUERY, ExponentialChoice(s, FINE / 8)),
        8 / FINE,
    ),
}


@pytest.mark.parametrize("door", GRIDS)
def test_a_door_s_grid_is_that_of_its_noise(door: str) -> None:
    """Which has a standard deviation, p·Δ/ε in p numbers, or of noise that falls that of the least ε: it keeps 34 digits."""
    event, ask, spread = GRIDS[door]
    channel, source = opened(event)
    ask(channel, 3.0)
    ((_, _, _, step),) = source.asked
    assert 2.0**-35 < step / (3.0 * spread) <= 2.0**-34


@pytest.mark.parametrize("rate", [0.25, 0.75])
def test_a_rate_is_claimed_of_draws_at_that_rate_alone(rate: float) -> None:
    channel, _ = opened(SelfComposed(PoissonSampled(rate, Gaussian(2.0)), 2))
    with pytest.raises(UnpaidReleaseError, match="drawn at None"):
        channel.release(QUERY, GaussianNoise(1.0, 2.0, rate))
    for other in (0.2, 0.9, 1.0):
        channel.draw(Poisson(other), 20, 1)
        with pytest.raises(UnpaidReleaseError, match="but records were drawn at"):
            channel.release(QUERY, GaussianNoise(1.0, 2.0, rate))
    channel.draw(FixedSize(round(20 * rate), 20), 20, 1)
    with pytest.raises(UnpaidReleaseError, match="not paid for"):
        channel.release(QUERY, GaussianNoise(1.0, 2.0, rate))  # as often, and drawn in another way
    channel.draw(Poisson(rate), 20, 1)
    channel.release(QUERY, GaussianNoise(1.0, 2.0, rate))
    with pytest.raises(UnpaidReleaseError, match="not paid for"):
        channel.release(QUERY, GaussianNoise(1.0, 2.0))
    channel.release(QUERY, GaussianNoise(1.0, 2.0, rate))


def test_hidden_steps_and_linear_terms_are_handed_on_as_they_are() -> None:
    channel, source = opened(HIDDEN)
    assert channel.release(QUERY, HiddenNoise(0.5, 2.0)) is source.answer
    assert source.asked == [("HiddenNoise", 0.5, 1.0, 0.0)]
    channel, source = opened(QUADRATIC)
    assert channel.release(np.zeros(SIZE), ObjectiveNoise.of(QUADRATIC)) is source.answer
    assert source.asked == [("ObjectiveNoise", 1.0, 3.0, 0.0)]


@pytest.mark.parametrize("noise", [1e-3, 0.5, 3.0, 1e3, 1e9])
def test_counts_get_all_of_their_noise_on_a_grid_that_holds_them(noise: float) -> None:
    """Steps of which 1 is a multiple, so that rounding moves no count; of 21 binary digits of the noise, or of 1."""
    channel, source = opened(Gaussian(noise))
    assert channel.release(np.arange(4.0), CountNoise(0.5, noise)) is source.answer
    ((kind, sensitivity, std, step),) = source.asked
    assert (kind, sensitivity, std) == ("CountNoise", 0.5, noise * 0.5)
    assert (1 / step).is_integer()
    assert math.frexp(step)[0] == 0.5
    assert std / step >= 2.0**21
    assert step == 1.0 or std / step < 2.0**22


def test_a_threshold_test_compares_what_its_doors_gave() -> None:
    """Both the threshold's noise and the query's are the channel's, of the stated sensitivity; yes from equality on, once."""
    channel, source = opened(ASKED)
    asked = ThresholdTest(channel, ASKED, 0.37)
    source.answer = np.array([np.nextafter(0.3, 0.0)])
    assert not asked.above(100.0)
    source.answer = np.array([0.3])
    assert asked.above(-100.0)
    with pytest.raises(UnpaidReleaseError, match="said yes"):
        asked.above(100.0)
    assert [(kind, rate) for kind, _, rate, _ in source.asked] == [("ThresholdNoise", ASKED.rate)] * 3
    for _, told, _, _ in source.asked:
        assert 0.37 <= told <= 0.37 * (1 + 2.0**-19)


@pytest.mark.parametrize("relative", [0.9e-9, -0.9e-9])
@pytest.mark.parametrize("noise", [1e-3, 2.0, 1e4])
def test_noise_is_the_charged_one_to_nine_digits(noise: float, relative: float) -> None:
    channel, _ = opened(SelfComposed(Gaussian(noise), 2))
    channel.release(QUERY, GaussianNoise(1.0, noise * (1 + relative)))
    with pytest.raises(UnpaidReleaseError, match="not paid for"):
        channel.release(QUERY, GaussianNoise(1.0, noise * (1 + 1.3 * relative)))


def test_no_door_opens_in_another_process_than_the_one_that_paid(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy of a channel that a fork left would let out once more what was paid for once. The source is not even asked."""
    linear: tuple[Event, Callable[[Channel, float], Any], Any] = (
        QUADRATIC, lambda channel, s: channel.release(np.zeros(SIZE), ObjectiveNoise.of(QUADRATIC)), None,
    )  # fmt: skip
    hidden: tuple[Event, Callable[[Channel, float], Any], Any] = (
        HIDDEN,
        lambda channel, s: channel.release(QUERY, HiddenNoise(s, 2.0)),
        None,
    )
    counts: tuple[Event, Callable[[Channel, float], Any], Any] = (
        Gaussian(2.0), lambda channel, s: channel.release(QUERY, CountNoise(s, 2.0)), None,
    )  # fmt: skip
    parted = Disjoint((Gaussian(1.0), Gaussian(2.0)))
    parts: tuple[Event, Callable[[Channel, float], Any], Any] = (
        parted, lambda channel, s: channel.split(parted, [np.arange(2), np.arange(2, 4)]), None,
    )  # fmt: skip
    for event, ask, _ in (*DOORS.values(), linear, hidden, counts, parts):
        channel, source = opened(event)
        with monkeypatch.context() as elsewhere:
            elsewhere.setattr("os.getpid", lambda: -1)
            with pytest.raises(UnpaidReleaseError, match="another process"):
                ask(channel, 1.0)
        assert source.asked == []
        ask(channel, 1.0)  # it is still paid for here


@pytest.mark.parametrize("times", [1, 2, 3])
def test_channels_of_parts_are_opened_as_often_as_they_are_paid_for(times: int) -> None:
    parted = Disjoint((Gaussian(1.0), Gaussian(2.0)))
    channel, source = opened(SelfComposed(parted, times))
    for _ in range(times):
        first, second = channel.split(parted, [np.arange(2), np.arange(2, 4)])
        first.release(QUERY, GaussianNoise(1.0, 1.0))
        second.release(QUERY, GaussianNoise(1.0, 2.0))
    assert len(source.asked) == 2 * times
    with pytest.raises(UnpaidReleaseError, match="not paid for"):
        channel.split(parted, [np.arange(2), np.arange(2, 4)])


# How often


def attempts(channel: Channel) -> dict[str, Callable[[], Any]]:
    """All that may be asked of it below, once each."""

    def sampled(noise: float, draw: Any) -> Callable[[], Any]:
        def release() -> Any:
            channel.draw(draw, 20, 1)
            return channel.release(QUERY, GaussianNoise(1.0, noise, draw.rate))

        return release

    return {
        "gaussian 2": lambda: channel.release(QUERY, GaussianNoise(1.0, 2.0)),
        "gaussian 3": lambda: channel.release(QUERY, CountNoise(1.0, 3.0)),
        "poisson 2": sampled(2.0, Poisson(0.25)),
        "poisson 3": sampled(3.0, Poisson(0.25)),
        "poisson at another rate": sampled(2.0, Poisson(0.5)),
        "of a fixed size": sampled(2.0, FixedSize(5, 20)),
        "pure 0.5": lambda: channel.release(QUERY, PureNoise(1.0, 0.5)),
        "pure 0.25": lambda: channel.release(QUERY, FallingNoise(1.0, (0.125, 0.25))),
        "a choice": lambda: channel.release(QUERY, ExponentialChoice(1.0, 0.5)),
        "a threshold": lambda: channel.release(QUERY, ThresholdNoise(1.0, ASKED.rate)),
        "hidden": lambda: channel.release(QUERY, HiddenNoise(1.0, 2.0)),
        "last": lambda: channel.release(QUERY, LastIterateNoise(1.0, 2.0)),
        "linear": lambda: channel.release(np.zeros(SIZE), ObjectiveNoise.of(QUADRATIC)),
    }


#: parts of a charge, and what each pays for
PARTS: list[tuple[Event, dict[str, int]]] = [
    (Gaussian(2.0), {"gaussian 2": 1}),
    (SelfComposed(Gaussian(2.0), 3), {"gaussian 2": 3}),
    (Gaussian(3.0), {"gaussian 3": 1}),
    (PoissonSampled(0.25, Gaussian(2.0)), {"poisson 2": 1}),
    (SelfComposed(PoissonSampled(0.25, Gaussian(3.0)), 2), {"poisson 3": 2}),
    (PureDP(0.5), {"pure 0.5": 1}),
    (SelfComposed(PureDP(0.25), 2), {"pure 0.25": 2}),
    (ExponentialMechanism(0.5), {"a choice": 1}),
    (ASKED, {"a threshold": 6}),  # the threshold, and five questions
    (QUADRATIC, {"linear": 1}),
    (SelfComposed(QUADRATIC, 2), {"linear": 2}),
]


@pytest.mark.parametrize("seed", range(12))
def test_each_door_opens_as_often_as_it_was_charged_in_any_order(seed: int) -> None:
    """Charges of parts that are drawn, some of them alike; all doors are tried in random order until none of them opens."""
    rng = np.random.default_rng(seed)
    drawn = [PARTS[number] for number in rng.integers(len(PARTS), size=rng.integers(1, 7))]
    channel, _ = opened(Composed(tuple(event for event, _ in drawn)))
    expected = sum((Counter(pays) for _, pays in drawn), Counter[str]())
    doors, opened_doors, shut = attempts(channel), Counter[str](), set[str]()
    while len(shut) < len(doors):
        name = str(rng.choice(sorted(set(doors) - shut)))
        try:
            doors[name]()
            opened_doors[name] += 1
        except UnpaidReleaseError:
            shut.add(name)
    assert opened_doors == expected


def test_hidden_steps_and_the_one_that_is_told_are_counted_together() -> None:
    """Two runs of three steps: the last one of each is told, or hidden like the others."""
    hidden = SelfComposed(HiddenIterates(2.0, 3, 1, 0.9, 1.0, 1e-9), 2)
    for order in ("hhlhhl", "hhhhll", "llhhhh", "hhhhhh", "hhhlhh"):
        channel, _ = opened(hidden)
        doors = attempts(channel)
        for step in order:
            doors["hidden" if step == "h" else "last"]()
        for name in ("hidden", "last"):
            with pytest.raises(UnpaidReleaseError):
                doors[name]()
    channel, _ = opened(hidden)
    for _ in range(2):
        attempts(channel)["last"]()
    with pytest.raises(UnpaidReleaseError, match="but the last one, once"):
        attempts(channel)["last"]()
    for relation in Relation:
        with pytest.raises(UnpaidReleaseError, match="but the last one, once"):
            attempts(opened(Gaussian(2.0, relation))[0])["last"]()


def continued(log: SpendLog, charge: str, event: Event) -> Channel:
    again = Channel.open(log=log)
    again.resume(charge, event)
    return again


BESIDE: list[Event] = [PureDP(0.1), ASKED, Gaussian(9.0), SelfComposed(PoissonSampled(0.25, Gaussian(7.0)), 5)]


@pytest.mark.parametrize("beside", BESIDE, ids=lambda event: type(event).__name__)
def test_a_release_beside_epochs_begins_none_of_them_in_a_run_that_goes_on(beside: Event, tmp_path: Path) -> None:
    """Two epochs of four steps, and something else: once the first epoch was begun, one is left."""
    sampler = BallsAndBins(4)
    log, event = SpendLog(tmp_path / "log.db"), Composed((beside, sampler.event(Gaussian(1.0), 0, 8)))
    first = Channel.open(log=log)
    charge = first.charge(event, "test", continuable=True)
    number, limit = steps_of(beside) + 3, 8 + steps_of(beside)
    first.reserve(number, limit)
    again = continued(log, charge, event)
    assert again.reserve(5, limit) == (number, limit)

    def begin() -> None:
        next(iter(again.draw(sampler, 10, 4)))
        again.release(QUERY, GaussianNoise(1.0, 1.0, 0.25))

    begin()
    with pytest.raises(UnpaidReleaseError, match="drawn anew"):
        begin()


@pytest.mark.parametrize("blocks", [(1,), (2, 1), (3, 5), (4,), (12,)])
def test_an_epoch_is_begun_once_however_copies_of_a_run_share_its_steps(blocks: tuple[int, ...], tmp_path: Path) -> None:
    """Each of them could begin as many as were charged: steps that were drawn, and charged, together were drawn by themselves."""
    sampler = BallsAndBins(4)
    log, event = SpendLog(tmp_path / "log.db"), sampler.event(Gaussian(1.0), 0, 12)
    channels = [Channel.open(log=log)]
    charge = channels[0].charge(event, "test", continuable=True)
    channels += [continued(log, charge, event) for _ in range(2)]
    begun = number = 0
    for turn in range(12):
        channel = channels[(turn + 1) % 3]  # the first run is last
        start, stop = channel.reserve(blocks[turn % len(blocks)], 12)
        for _ in range(stop - start):
            channel.draw(sampler, 10, 4)
            with contextlib.suppress(UnpaidReleaseError):
                channel.release(QUERY, GaussianNoise(1.0, 1.0, 0.25))
                begun += 1
        number = stop
    assert (begun, number) == (3, 12)


def test_an_epoch_is_of_one_noise(tmp_path: Path) -> None:
    """One step of little noise and three of much were drawn together, and then the others: a record was twice in the former."""
    sampler = BallsAndBins(4)
    channel = Channel.open(log=SpendLog(tmp_path / "log.db"))
    channel.charge(Composed((sampler.event(Gaussian(1.0), 0, 4), sampler.event(Gaussian(9.0), 0, 4))), "test")
    channel.draw(sampler, 10, 4)
    channel.release(QUERY, GaussianNoise(1.0, 1.0, 0.25))
    with pytest.raises(UnpaidReleaseError, match="period that records were drawn for"):
        channel.release(QUERY, GaussianNoise(1.0, 9.0, 0.25))
    for _ in range(3):
        channel.release(QUERY, GaussianNoise(1.0, 1.0, 0.25))


@pytest.mark.parametrize("length", [2, 3])
def test_epochs_that_are_reserved_one_by_one_are_all_released_whoever_goes_on(length: int, tmp_path: Path) -> None:
    """Four epochs: two by a first run, of which the second is not ended, and the other two by one that goes on."""
    sampler, limit = BallsAndBins(length), 4 * length
    log, event = SpendLog(tmp_path / "log.db"), sampler.event(Gaussian(1.0), 0, limit)
    first = Channel.open(log=log)
    charge = first.charge(event, "test", continuable=True)

    def epoch(channel: Channel, steps: int = length) -> None:
        draws = iter(channel.draw(sampler, 10, length))
        for _ in range(steps):
            next(draws)
            channel.release(QUERY, GaussianNoise(1.0, 1.0, 1 / length))

    for start, steps in ((0, length), (length, 1)):
        assert first.reserve(steps, limit) == (start, start + steps)
        epoch(first, steps)
    again = continued(log, charge, event)
    for start in (length + 1, 2 * length + 1):
        assert again.reserve(length, limit) == (start, start + length)
        epoch(again)
        with pytest.raises(UnpaidReleaseError, match="reserved"):
            epoch(again, 1)
    assert again.reserve(length, limit) == (3 * length + 1, limit)
    with pytest.raises(UnpaidReleaseError, match="drawn anew"):
        epoch(again)


def test_a_run_that_goes_on_after_more_steps_than_epochs_have_begins_none(tmp_path: Path) -> None:
    """All of them were."""
    sampler = BallsAndBins(4)
    log = SpendLog(tmp_path / "log.db")
    event = Composed((sampler.event(Gaussian(1.0), 0, 8), SelfComposed(Gaussian(9.0), 100)))
    first = Channel.open(log=log)
    charge = first.charge(event, "test", continuable=True)
    first.reserve(60, 108)
    again = continued(log, charge, event)
    again.reserve(20, 108)
    next(iter(again.draw(sampler, 10, 4)))
    with pytest.raises(UnpaidReleaseError, match="not paid for"):
        again.release(QUERY, GaussianNoise(1.0, 1.0, 0.25))
    again.release(QUERY, GaussianNoise(1.0, 9.0))


def test_what_the_log_does_not_hold_is_not_reserved(tmp_path: Path) -> None:
    channel = Channel.open(log=SpendLog(tmp_path / "log.db"))
    channel.charge(SelfComposed(Gaussian(2.0), 9), "test", continuable=True)
    channel.charge_id = "another"
    with pytest.raises(UnpaidReleaseError, match="no longer holds"):
        channel.reserve(1, 9)


def test_a_budget_is_no_part_of_a_budget() -> None:
    channel, _ = opened(FilteredRdp(8.0, 2.0))
    with pytest.raises(UnpaidReleaseError, match="cannot be a budget itself"):
        channel.allow(FilteredRdp(8.0, 0.1))


def test_parts_of_a_split_and_linear_terms_are_not_released_again_by_a_run_that_goes_on(tmp_path: Path) -> None:
    """Nobody knows what of them was released before."""
    log, whole = SpendLog(tmp_path / "log.db"), FilteredRdp(8.0, 2.0)
    split = Disjoint((Gaussian(3.0), Gaussian(5.0)))
    members = [np.arange(3), np.arange(3, 5)]
    first = Channel.open(log=log)
    charge = first.charge(whole, "test", continuable=True)
    first.allow(split)
    assert [door.parts() for door in first.split(split, members)] == [[], []]  # what they are charged is the whole's
    with pytest.raises(UnpaidReleaseError, match="are not paid for"):
        first.split(split, members)
    again = continued(log, charge, whole)
    with pytest.raises(UnpaidReleaseError, match="holds no part"):
        again.reopen(split, 0)
    with pytest.raises(UnpaidReleaseError, match="are not paid for"):
        again.split(split, members)


def test_linear_terms_are_not_drawn_again_by_a_run_that_goes_on(tmp_path: Path) -> None:
    log, event = SpendLog(tmp_path / "log.db"), Composed((QUADRATIC, Gaussian(2.0)))
    first = Channel.open(log=log)
    charge = first.charge(event, "test", continuable=True)
    with pytest.raises(UnpaidReleaseError, match="pays for 1 releases, not for 2"):
        first.reserve(1, 2)  # a linear term is no step
    first.reserve(1, 1)
    again = continued(log, charge, event)
    with pytest.raises(UnpaidReleaseError, match="objective perturbation"):
        again.release(np.zeros(SIZE), ObjectiveNoise.of(QUADRATIC))


# Filters


def test_parts_are_written_where_they_are_kept_and_only_there(tmp_path: Path) -> None:
    for keeps in (False, True):
        log = SpendLog(tmp_path / f"{keeps}.db")
        channel = Channel.open(log=log)
        charge = channel.charge(FilteredRdp(8.0, 2.0), "test", continuable=keeps)
        for _ in range(2):
            channel.allow(Gaussian(5.0))
        for _ in range(2):
            channel.release(QUERY, GaussianNoise(1.0, 5.0))
        assert [part.event for part in log.parts(charge)] == ([Gaussian(5.0)] * 2 if keeps else [])


def test_a_run_that_goes_on_reserves_what_was_paid_before_and_nothing_else(tmp_path: Path) -> None:
    """One part that was taken before, and the same part once more, which is new."""
    log, whole = SpendLog(tmp_path / "log.db"), FilteredRdp(8.0, 2.0)
    first = Channel.open(log=log)
    charge = first.charge(whole, "test", continuable=True)
    first.allow(Gaussian(5.0), first=0)
    again = continued(log, charge, whole)
    again.reopen(Gaussian(5.0), 0)
    with pytest.raises(UnpaidReleaseError, match="call reserve first"):
        again.release(QUERY, GaussianNoise(1.0, 5.0))
    again.reserve(1, 2)
    again.release(QUERY, GaussianNoise(1.0, 5.0))
    again.allow(Gaussian(5.0))
    again.release(QUERY, GaussianNoise(1.0, 5.0))
    assert [(part.event, part.first) for part in log.parts(charge)] == [(Gaussian(5.0), 0), (Gaussian(5.0), None)]


def test_what_is_charged_beside_a_filter_needs_no_part_of_it() -> None:
    channel, _ = opened(Composed((Gaussian(2.0), FilteredRdp(8.0, 2.0))))
    channel.release(QUERY, GaussianNoise(1.0, 2.0))
    with pytest.raises(UnpaidReleaseError, match="not paid for"):
        channel.release(QUERY, GaussianNoise(1.0, 2.0))


def test_a_run_of_no_steps_goes_on_with_none(tmp_path: Path) -> None:
    log, nothing = SpendLog(tmp_path / "log.db"), Composed(())
    first = Channel.open(log=log)
    again = continued(log, first.charge(nothing, "test", continuable=True), nothing)
    assert again.reserve(1, 0) == (0, 0)


# Draws


class Drawn(Poisson):
    """A draw that dperm did not write."""


def test_a_stranger_s_draws_are_none() -> None:
    channel, _ = opened(PoissonSampled(0.25, Gaussian(2.0)))
    with pytest.raises(TypeError, match="a draw of dperm's own, got Drawn"):
        channel.draw(Drawn(0.25), 20, 1)


@pytest.mark.parametrize("draw", [None, FixedSize(5, 20), BallsAndBins(2), BallsAndBins(4), Poisson(0.25)], ids=repr)
def test_poisson_draws_alone_are_thinned(draw: Any) -> None:
    channel = Channel.open()
    channel.charge(Gaussian(2.0), "test")
    indices, keep = np.arange(20), np.ones(20)
    if draw is not None:
        list(channel.draw(draw, 20, 4))
    if isinstance(draw, Poisson):
        assert channel.thin(indices, keep, (0, 0)).tolist() == indices.tolist()
    else:
        with pytest.raises(UnpaidReleaseError, match="Only Poisson draws"):
            channel.thin(indices, keep, (0, 0))
