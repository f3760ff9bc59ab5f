"""Attacks on what a charge covers: everything that asks for more, or for something else, than was paid for is refused."""

from __future__ import annotations

import copy
import math
import pickle
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dperm._family import members
from dperm._random import Randomness
from dperm.audit.recording import Forced, Recorder
from dperm.gradient import Poisson
from dperm.gradient.sampling import BallsAndBins
from dperm.privacy import (
    AboveThreshold,
    Composed,
    Event,
    ExponentialMechanism,
    FilteredRdp,
    Gaussian,
    HiddenIterates,
    ObjectivePerturbationEvent,
    PoissonSampled,
    PureDP,
    SelfComposed,
    rdp_budget,
)
from dperm.privacy.events import Paid
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
from dperm.release.allowance import Allowance

QUERY = np.array([1.0, 2.0])
HIDDEN = HiddenIterates(2.0, 1, 2, 0.9, 1.0, 1e-9)
QUADRATIC = ObjectivePerturbationEvent(3.0, 1.0, 0.25, 7.0)
ASKED = AboveThreshold(3.0, queries=1)

#: a release of each kind, and what pays for it
KINDS: dict[type[Noise], tuple[Noise, Event]] = {
    GaussianNoise: (GaussianNoise(1.0, 2.0), Gaussian(2.0)),
    CountNoise: (CountNoise(1.0, 2.0), Gaussian(2.0)),
    PureNoise: (PureNoise(1.0, 0.5), PureDP(0.5)),
    FallingNoise: (FallingNoise(1.0, (0.25, 0.5)), PureDP(0.5)),
    ExponentialChoice: (ExponentialChoice(1.0, 0.5), ExponentialMechanism(0.5)),
    ThresholdNoise: (ThresholdNoise(1.0, ASKED.rate), ASKED),
    HiddenNoise: (HiddenNoise(1.0, 2.0), HIDDEN),
    LastIterateNoise: (LastIterateNoise(1.0, 2.0), HIDDEN),
    ObjectiveNoise: (ObjectiveNoise.of(QUADRATIC), QUADRATIC),
}
EVENTS = list(dict.fromkeys(event for _, event in KINDS.values()))


def charged(event: Event, **settings: Any) -> Channel:
    channel = Channel.open(0)
    channel.charge(event, "test", **settings)
    return channel


def test_every_kind_of_release_is_attacked_here() -> None:
    assert set(members(Noise)) == set(KINDS)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_kind_of_release_is_paid_by_its_own_event_alone(kind: type[Noise]) -> None:
    noise, own = KINDS[kind]
    for event in EVENTS:
        if event == own:
            charged(event).release(QUERY, noise)
        else:
            with pytest.raises(UnpaidReleaseError):
                charged(event).release(QUERY, noise)
    with pytest.raises(UnpaidReleaseError):
        Channel.open(0).release(QUERY, noise)  # nothing was charged


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_noise_that_was_spent_is_spent_whoever_holds_it(kind: type[Noise]) -> None:
    noise, event = KINDS[kind]
    channel, released = charged(event), 0
    for held in [noise, copy.copy(noise), replace(noise, what="another"), pickle.loads(pickle.dumps(noise)), noise] * 2:
        try:
            channel.release(QUERY, held)
            released += 1
        except UnpaidReleaseError:
            continue
    expected = {LastIterateNoise: 1, HiddenNoise: HIDDEN.releases, ThresholdNoise: ASKED.releases}
    assert released == expected.get(kind, 1)


@dataclass(frozen=True)
class Quiet(GaussianNoise):
    """A stranger's: it claims what was charged, and adds nothing."""

    def answer(self, query: Any, shape: tuple[int, ...], stream: Any) -> Any:
        return query


@dataclass(frozen=True)
class Cheap(GaussianNoise):
    """A stranger's: it claims nothing."""

    @property
    def claims(self) -> tuple[Any, ...]:
        return ()


@pytest.mark.parametrize("kind", [Quiet, Cheap])
def test_a_stranger_s_kind_of_release_is_refused(kind: type[GaussianNoise]) -> None:
    channel = charged(Gaussian(2.0))
    with pytest.raises(TypeError, match="noise of dperm's own"):
        channel.release(QUERY, kind(1.0, 2.0))
    channel.release(QUERY, GaussianNoise(1.0, 2.0))


@pytest.mark.parametrize(
    "changed",
    [
        lambda noise: replace(noise, noise_multiplier=2.1),
        lambda noise: replace(noise, noise_multiplier=float("nan")),
        lambda noise: replace(noise, sampling_rate=0.5),
        lambda noise: replace(noise, sampling_rate=1.5),
        lambda noise: replace(noise, sampling_rate=float("nan")),
    ],
)
def test_another_noise_or_rate_than_was_charged_is_refused_and_takes_nothing(changed: Callable[[Any], Noise]) -> None:
    channel = charged(Gaussian(2.0))
    channel.draw(Poisson(0.25), 10, 1)
    with pytest.raises((UnpaidReleaseError, ValueError)):
        channel.release(QUERY, changed(GaussianNoise(1.0, 2.0)))
    channel.release(QUERY, GaussianNoise(1.0, 2.0))


def test_a_step_of_the_caller_s_own_is_not_the_grid_s() -> None:
    """A grid as fine as doubles would let the query's low bits out."""
    recorder = Recorder()
    for noise, event in KINDS.values():
        channel = Channel.open(recorder)
        channel.charge(event, "test")
        channel.release(QUERY, replace(noise, step=2.0**-60))
    assert [release.step > 0 for release in recorder.recording.releases].count(False) == 2  # hidden steps and linear terms
    assert all(release.step == 0 or release.step >= 2.0**-45 for release in recorder.recording.releases)


def test_claims_are_taken_together_or_not_at_all() -> None:
    allowance = Allowance()
    allowance.open(Composed((Gaussian(2.0), PureDP(0.5))))
    two = Paid("gaussian", 2.0), Paid("pure", 0.5)
    with pytest.raises(UnpaidReleaseError):
        allowance.take(two[0], Paid("pure", 0.4))
    allowance.take(*two)
    for claim in two:
        with pytest.raises(UnpaidReleaseError):
            allowance.take(claim)


def test_equal_claims_of_one_release_are_as_many() -> None:
    allowance = Allowance()
    allowance.open(Gaussian(2.0))
    twice = Paid("gaussian", 2.0), Paid("gaussian", 2.0)
    with pytest.raises(UnpaidReleaseError, match="2 times"):
        allowance.take(*twice)
    allowance.take(twice[0])
    with pytest.raises(UnpaidReleaseError):
        allowance.take(twice[0])


def test_a_claim_of_endless_noise_is_not_the_same_as_any() -> None:
    allowance = Allowance()
    allowance.open(Composed((Gaussian(2.0), PureDP(0.5))))
    for kind in ("gaussian", "pure"):
        with pytest.raises(UnpaidReleaseError):
            allowance.take(Paid(kind, math.inf))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_query_is_a_vector(kind: type[Noise]) -> None:
    """Noise of density e^{−‖b‖} for each row of a table by itself would be that of a row, and pay for one."""
    noise, event = KINDS[kind]
    channel = charged(event)
    for query in (np.ones((3, 2)), np.ones(())):
        with pytest.raises(ValueError, match=r"Expected a query \(p,\)"):
            channel.release(query, noise)
    channel.release(QUERY, noise)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf, "1", np.array([1.0])])
def test_a_noise_has_positive_numbers(kind: type[Noise], bad: Any) -> None:
    noise, _ = KINDS[kind]
    for name in {"sensitivity", "noise_multiplier", "epsilon"} & set(vars(noise)):
        with pytest.raises((ValueError, TypeError), match="Expected"):
            replace(noise, **{name: bad})


@pytest.mark.parametrize("epsilons", [(0.5, 0.25), (0.25, 9.0, 0.5), (0.25, math.inf), (0.25, math.nan), (0.0, 0.5), ()])
def test_noise_that_falls_falls_to_what_is_paid(epsilons: tuple[float, ...]) -> None:
    """The last row is charged: rows before it must have more noise, and it some."""
    with pytest.raises(ValueError, match="Expected"):
        FallingNoise(1.0, epsilons)


def test_a_draw_that_begins_no_period_that_is_left_takes_no_release() -> None:
    sampler = BallsAndBins(2)
    channel = charged(Composed((sampler.event(Gaussian(1.0), 0, 4), Gaussian(9.0))))
    for _ in range(2):
        channel.draw(sampler, 10, 2)
        channel.release(QUERY, GaussianNoise(1.0, 1.0, 0.5))
    channel.draw(sampler, 10, 2)
    for _ in range(3):
        with pytest.raises(UnpaidReleaseError, match="drawn anew"):
            channel.release(QUERY, GaussianNoise(1.0, 1.0, 0.5))
    channel.release(QUERY, GaussianNoise(1.0, 9.0))


def test_a_run_that_may_be_continued_releases_what_it_reserved_from_its_first_step_on(tmp_path: Path) -> None:
    """A first run that released without reserving left all of it to whoever went on."""
    log, noise = SpendLog(tmp_path / "log.db"), GaussianNoise(1.0, 2.0)
    first = Channel.open(0, log=log)
    charge = first.charge(SelfComposed(Gaussian(2.0), 2), "test", continuable=True)
    with pytest.raises(UnpaidReleaseError, match="call reserve first"):
        first.release(QUERY, noise)
    first.reserve(1, 2)
    first.release(QUERY, noise)
    with pytest.raises(UnpaidReleaseError, match="call reserve first"):
        first.release(QUERY, noise)
    again = Channel.open(0, log=log)
    again.resume(charge, SelfComposed(Gaussian(2.0), 2))
    assert again.reserve(2, 2) == (1, 2)
    again.release(QUERY, noise)
    for channel in (first, again):
        with pytest.raises(UnpaidReleaseError):
            channel.release(QUERY, noise)


def test_hidden_steps_of_a_filter_are_not_opened_again(tmp_path: Path) -> None:
    """Their last iterate left twice."""
    log, whole = SpendLog(tmp_path / "log.db"), FilteredRdp(2.0, 100.0, HIDDEN.relation)
    first = Channel.open(0, log=log)
    charge = first.charge(whole, "test", continuable=True)
    first.allow(HIDDEN)
    first.release(QUERY, HiddenNoise(1.0, 2.0))
    first.release(QUERY, LastIterateNoise(1.0, 2.0))
    again = Channel.open(0, log=log)
    again.resume(charge, whole)
    with pytest.raises(UnpaidReleaseError, match="iterates are hidden"):
        again.reopen(HIDDEN)


def test_a_part_that_this_channel_was_allowed_is_not_reopened_by_it(tmp_path: Path) -> None:
    """It is open already: a part that the log holds once is released once, also by one who has steps to spare."""
    log, part = SpendLog(tmp_path / "log.db"), Gaussian(5.0)
    first = Channel.open(log=log)
    charge = first.charge(FilteredRdp(8.0, 2.0), "test", continuable=True)
    first.allow(part)
    with pytest.raises(UnpaidReleaseError, match="not open already"):
        first.reopen(part)
    again = Channel.open(log=log)
    again.resume(charge, FilteredRdp(8.0, 2.0))
    again.allow(part)  # a second one
    again.reopen(part)  # the first one's
    with pytest.raises(UnpaidReleaseError, match="not open already"):
        again.reopen(part)
    again.reserve(5, 9)
    for _ in range(2):
        again.release(QUERY, GaussianNoise(1.0, 5.0))
    with pytest.raises(UnpaidReleaseError, match="not paid for"):
        again.release(QUERY, GaussianNoise(1.0, 5.0))


@pytest.mark.parametrize("seed", range(8))
def test_whatever_is_asked_in_whatever_order_no_more_leaves_than_was_charged(seed: int) -> None:
    """Claims and grants of chance, of a run that goes on: of each kind no more is taken than was charged, and of all of them
    together no more than steps were granted."""
    rng = np.random.default_rng(seed)
    parts = [Gaussian(2.0), PureDP(0.5), PoissonSampled(0.25, Gaussian(3.0)), ExponentialMechanism(0.5)]
    counts = rng.integers(1, 4, size=len(parts)).tolist()
    event = Composed(tuple(SelfComposed(part, count) for part, count in zip(parts, counts, strict=True)))
    allowance = Allowance()
    allowance.open(event, again=True)
    allowance.draws(Poisson(0.25))
    claims = [Paid("gaussian", 2.0), Paid("pure", 0.5), Paid("gaussian", 3.0, 0.25), Paid("choice", 0.5), Paid("gaussian", 3.0)]
    taken, granted = Counter[Paid](), 0
    for _ in range(60):
        if rng.random() < 0.3:
            granted += 1
            allowance.grant(granted, 1)
        claim = claims[int(rng.integers(len(claims)))]
        try:
            allowance.take(claim)
            taken[claim] += 1
        except UnpaidReleaseError:
            pass
        assert taken.total() <= granted
    assert [taken[claim] for claim in claims] == [*counts, 0]


def test_a_channel_has_no_copies() -> None:
    for copied in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="cannot be copied"):
            copied(charged(Gaussian(2.0)))


def test_a_replay_refuses_a_release_of_another_kind_than_was_recorded() -> None:
    recorder = Recorder(SystemSource(Randomness.fixed(0)))
    recorder.noisy(QUERY, GaussianNoise(1.0, 2.0, step=2.0**-20))
    everyone, nobody = np.arange(3), np.array([], dtype=np.intp)
    for noise in (PureNoise(1.0, 2.0), FallingNoise(1.0, (1.0, 2.0)), ExponentialChoice(1.0, 2.0), HiddenNoise(1.0, 2.0)):
        with pytest.raises(UnpaidReleaseError, match="another kind"):
            Forced(recorder.recording, everyone, nobody).noisy(QUERY, noise)


def test_parts_that_the_log_holds_are_opened_as_often_as_it_does_and_by_reserved_steps_alone() -> None:
    """Whatever this process released before of a part of the same noise, which needed no reservation."""
    part, asked, allowance = Gaussian(5.0), Paid("gaussian", 5.0), Allowance()
    allowance.open(rdp_budget(1.0, 1e-5))
    allowance.cover_part(part)
    allowance.take(asked)
    for step in range(2):
        allowance.cover_part_again(part, part, logged=3)
        with pytest.raises(UnpaidReleaseError, match="call reserve first"):
            allowance.take(asked)
        allowance.grant(step, 1)
        allowance.take(asked)
    with pytest.raises(UnpaidReleaseError, match="not open already"):
        allowance.cover_part_again(part, part, logged=3)
    with pytest.raises(UnpaidReleaseError, match="not paid for"):
        allowance.take(asked)
