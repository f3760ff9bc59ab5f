"""Attacks on what a charge covers: everything that asks for more, or for something else, than was paid for is refused."""

from __future__ import annotations

import contextlib
import copy
import math
import pickle
import threading
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
    first.allow(HIDDEN, first=0)
    first.reserve(HIDDEN.releases, HIDDEN.releases)
    first.release(QUERY, HiddenNoise(1.0, 2.0))
    first.release(QUERY, LastIterateNoise(1.0, 2.0))
    again = Channel.open(0, log=log)
    again.resume(charge, whole)
    with pytest.raises(UnpaidReleaseError, match="iterates are hidden"):
        again.reopen(HIDDEN, 0)


def test_of_parts_whose_steps_have_the_same_numbers_one_is_open(tmp_path: Path) -> None:
    """By whomever, whatever the log holds: a copy of the run may have paid for them, too."""
    log, part = SpendLog(tmp_path / "log.db"), SelfComposed(Gaussian(9.0), 3)
    channels = [Channel.open(log=log) for _ in range(2)]
    charge = channels[0].charge(FilteredRdp(8.0, 2.0), "test", continuable=True)
    channels[0].allow(part, first=0)
    channels[1].resume(charge, FilteredRdp(8.0, 2.0))
    channels[1].allow(part, first=2)
    for channel, begins in zip(channels, (0, 2), strict=True):
        for first in (0, 2):
            with pytest.raises(UnpaidReleaseError, match="open already"):
                channel.reopen(part, first)
        channel.reserve(1, 9, done=begins)
        channel.release(QUERY, GaussianNoise(1.0, 9.0))
        with pytest.raises(UnpaidReleaseError, match="call reserve first"):
            channel.release(QUERY, GaussianNoise(1.0, 9.0))
    channels[1].allow(part, first=5)  # later steps
    for first, other in ((1, part), (0, SelfComposed(Gaussian(9.0), 2))):
        with pytest.raises(UnpaidReleaseError, match="holds no part"):
            channels[1].reopen(other, first)


def test_a_part_without_steps_is_not_opened_again(tmp_path: Path) -> None:
    log, whole, part = SpendLog(tmp_path / "log.db"), FilteredRdp(8.0, 2.0), Gaussian(9.0)
    first = Channel.open(log=log)
    charge = first.charge(whole, "test", continuable=True)
    first.allow(part)
    first.release(QUERY, GaussianNoise(1.0, 9.0))
    again = Channel.open(log=log)
    again.resume(charge, whole)
    with pytest.raises(UnpaidReleaseError, match="holds no part"):
        again.reopen(part, 0)
    nowhere: Any = None
    for channel in (first, again):
        with pytest.raises(TypeError, match="first"):
            channel.reopen(part, nowhere)
        with pytest.raises(UnpaidReleaseError):
            channel.release(QUERY, GaussianNoise(1.0, 9.0))


@pytest.mark.parametrize("asked", [(0.9, 2), (1, 1.5), (1, 2, 0.5), (math.nan, 2), (1, math.nan), (-1, 2), (1, 2, -1)])
def test_steps_are_whole(asked: tuple[Any, ...], tmp_path: Path) -> None:
    """Nine tenths of the first step were reserved again and again, and together were many."""
    channel = Channel.open(log=SpendLog(tmp_path / "log.db"))
    channel.charge(SelfComposed(Gaussian(9.0), 2), "test", continuable=True)
    for _ in range(3):
        with pytest.raises(ValueError, match=r"steps|limit|done"):
            channel.reserve(*asked)
    with pytest.raises(UnpaidReleaseError):
        channel.release(QUERY, GaussianNoise(1.0, 9.0))


CLAIMS = {
    Gaussian(2.0): Paid("gaussian", 2.0),
    PureDP(0.5): Paid("pure", 0.5),
    PoissonSampled(0.25, Gaussian(3.0)): Paid("gaussian", 3.0, 0.25),
    ExponentialMechanism(0.5): Paid("choice", 0.5),
}


@pytest.mark.parametrize("seed", range(20))
def test_whoever_asks_in_whatever_order_each_step_pays_for_what_the_event_names_at_its_number(seed: int) -> None:
    """Claims, and grants of numbers, of chance, by three processes of one run: together they release of each kind no more than
    the event names at the numbers that they were granted; and each of them that, if it asks for long enough."""
    rng = np.random.default_rng(seed)
    names = list(CLAIMS)

    def nested(depth: int) -> tuple[Event, list[Event]]:
        """An event of chance, and what it names, one after another."""
        if not depth:
            event = names[int(rng.integers(len(names)))]
            return event, [event]
        parts = [nested(int(rng.integers(depth))) for _ in range(rng.integers(1, 4))]
        times = int(rng.integers(1, 4))
        return SelfComposed(Composed(tuple(event for event, _ in parts)), times), [
            leaf for _, all in parts for leaf in all
        ] * times

    event, order = nested(3)
    runs = [Allowance() for _ in range(3)]
    for run, again in zip(runs, (False, True, True), strict=True):
        run.open(event, continuable=True, again=again)
        run.draws(Poisson(0.25))
    taken, granted = [Counter[Paid]() for _ in runs], [Counter[Paid]() for _ in runs]
    number = 0
    while number < len(order):
        who = int(rng.integers(len(runs)))
        steps = int(rng.integers(1, 6))
        runs[who].grant(number, min(steps, len(order) - number))
        granted[who].update(CLAIMS[leaf] for leaf in order[number : number + steps])
        number += steps
        for _ in range(200):
            who, claim = int(rng.integers(len(runs))), list(CLAIMS.values())[int(rng.integers(len(CLAIMS)))]
            try:
                runs[who].take(claim)
                taken[who][claim] += 1
            except UnpaidReleaseError:
                assert taken[who][claim] == granted[who][claim]
        assert taken == granted


def test_a_run_that_goes_on_releases_no_kind_again_for_a_step_of_another(tmp_path: Path) -> None:
    """Steps were counted, whatever they released: the first kind could leave twice."""
    log, event = SpendLog(tmp_path / "log.db"), Composed((SelfComposed(Gaussian(2.0), 3), SelfComposed(Gaussian(9.0), 3)))
    first = Channel.open(log=log)
    charge = first.charge(event, "test", continuable=True)
    first.reserve(3, 6)
    for _ in range(3):
        first.release(QUERY, GaussianNoise(1.0, 2.0))
    again = Channel.open(log=log)
    again.resume(charge, event)
    again.reserve(3, 6)
    with pytest.raises(UnpaidReleaseError, match="names at the numbers"):
        again.release(QUERY, GaussianNoise(1.0, 2.0))
    for _ in range(3):
        again.release(QUERY, GaussianNoise(1.0, 9.0))


def test_of_two_charges_at_once_one_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both were written, and steps of the one were reserved under the name of the other: what was charged could leave again."""
    log, written = SpendLog(tmp_path / "log.db"), SpendLog.charge
    both = threading.Barrier(2)

    def slowly(self: SpendLog, event: Event, **said: Any) -> str:
        charge_id = written(self, event, **said)
        with contextlib.suppress(threading.BrokenBarrierError):
            both.wait(0.5)
        return charge_id

    monkeypatch.setattr(SpendLog, "charge", slowly)
    channel, refused = Channel.open(log=log), list[UnpaidReleaseError]()

    def charge(noise: float) -> None:
        try:
            channel.charge(SelfComposed(Gaussian(noise), 2), "test", continuable=True)
        except UnpaidReleaseError as error:
            refused.append(error)

    threads = [threading.Thread(target=charge, args=(noise,)) for noise in (2.0, 50.0)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (charged,) = log.charges()
    assert (charged.id, charged.event) == (channel.charge_id, channel.event) and len(refused) == 1


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


def test_a_part_with_steps_is_released_by_steps_whoever_opened_it() -> None:
    """Whatever this process released before of a part of the same noise, which has no steps."""
    part, asked, allowance = Gaussian(5.0), Paid("gaussian", 5.0), Allowance()
    allowance.open(rdp_budget(1.0, 1e-5))
    allowance.cover_part(part)
    allowance.take(asked)
    for step, again in enumerate((False, True)):
        allowance.cover_part(part, step, again=again)
        with pytest.raises(UnpaidReleaseError, match="call reserve first"):
            allowance.take(asked)
        allowance.grant(step, 1)
        allowance.take(asked)
    with pytest.raises(UnpaidReleaseError, match="open already"):
        allowance.cover_part(part, 1, again=True)
    allowance.grant(2, 1)
    with pytest.raises(UnpaidReleaseError, match="not paid for"):
        allowance.take(asked)
