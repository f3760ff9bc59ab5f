"""Every mechanism is replayed over adversarial neighbours; planted defects must be found."""

from __future__ import annotations

import itertools
import time
import uuid
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from dperm._random import Randomness
from dperm.audit import AuditResult, Pair, Training, replay
from dperm.audit.noise import NoiseSeen, noise_findings
from dperm.audit.recording import Recorder, Recording, ReleaseRecord
from dperm.estimators import DPLogisticRegression
from dperm.gradient import (
    SGD,
    Adam,
    BallsAndBins,
    Clip,
    Constant,
    ExponentialDecay,
    FixedSize,
    FullBatch,
    Normalise,
    Plan,
    Poisson,
    PoissonRows,
    PoissonUpTo,
)
from dperm.mechanisms import (
    Budget,
    GradientPerturbation,
    Mechanism,
    ObjectivePerturbation,
    OneVsRest,
    OutputPerturbation,
)
from dperm.objectives import Huber, LinearObjective, Logistic, SmoothedHinge, Softmax, Squared
from dperm.privacy import (
    ApproximateDP,
    BudgetExceeded,
    Certificate,
    Composed,
    Event,
    Gaussian,
    Provenance,
    PureDP,
    Relation,
    SelfComposed,
)
from dperm.release import Channel, FallingNoise, GaussianNoise, Noise, SpendLog, SystemSource
from helpers.asked import smaller, weaker
from helpers.catalogue.published import noisy_sizes

D = 4
BUDGET = Budget(1e-5)  # noise is set by hand
ADD, REPLACE = Relation.ADD_OR_REMOVE_ONE, Relation.REPLACE_ONE


def linear(loss: Any, **changes: Any) -> LinearObjective:
    return LinearObjective(loss, D, data_norm=2.0, public_size=40, **changes)


def plan(**changes: Any) -> Plan:
    parts: dict[str, Any] = {
        "sampler": Poisson(0.3),
        "bounding": Clip(0.5),
        "noise": Constant(1.0),
        "update": SGD(0.5, 0.9),
        "steps": 12,
        "public_size": 40,
    }
    return Plan(**(parts | changes))


def gradient(**changes: Any) -> GradientPerturbation:
    return GradientPerturbation(budget=BUDGET, plan=plan(**changes))


OBJECTIVE = ObjectivePerturbation(budget=BUDGET, noise_std=4.0, strong_convexity=1.0)
OUTPUT = OutputPerturbation(budget=BUDGET, noise_multiplier=4.0, strong_convexity=20.0)

#: (mechanism, objective) for both relations where both apply.
CASES: list[tuple[Mechanism, LinearObjective]] = []
for relation in (ADD, REPLACE):
    for s0 in (0.0, 1.0):
        settings: dict[str, Any] = {"relation": relation, "intercept_scale": s0}
        for loss in (Logistic(), Huber(0.3), SmoothedHinge(0.3)):
            CASES += [(OBJECTIVE, linear(loss, **settings)), (OUTPUT, linear(loss, **settings))]
        CASES += [
            (replace(OUTPUT, noise_multiplier=None, pure_epsilon=1.0), linear(Logistic(), **settings)),
            (OUTPUT, linear(Squared(1.0, 3.0), radius=3.0, **settings)),
            (OUTPUT, linear(Logistic(), radius=0.5, **settings)),
            (gradient(), linear(Logistic(), **settings)),
            (gradient(sampler=FullBatch()), linear(Logistic(), strong_convexity=2.0, **settings)),
            (gradient(update=Adam(0.1)), linear(Huber(0.3), **settings)),
            (gradient(noise=ExponentialDecay(2.0, 0.2, 5)), linear(SmoothedHinge(0.3), **settings)),
            (gradient(bounding=Normalise(0.1)), linear(Logistic(), **settings)),
            (gradient(bounding=Clip(1.0)), linear(Squared(1.0, 3.0), radius=3.0, **settings)),
            (gradient(bounding=Clip(0.7)), linear(Softmax(3), **settings)),
        ]

_RNG = np.random.default_rng(5)
ROWS = _RNG.normal(size=(40, D)) * 3
SIGNS = np.where(_RNG.random(40) < 0.5, 1.0, -1.0)


def replayed(mechanism: Mechanism, objective: LinearObjective) -> AuditResult:
    return replay(Training.of_mechanism(mechanism, objective))


@pytest.mark.slow  # the catalogue's are replayed always
@pytest.mark.parametrize(
    ("mechanism", "objective"),
    CASES,
    ids=[f"{m.name}-{o.loss.name}-{o.relation}-{o.intercept_scale:g}-{i}" for i, (m, o) in enumerate(CASES)],
)
def test_no_query_moves_more_than_charged(mechanism: Mechanism, objective: LinearObjective) -> None:
    result = replayed(mechanism, objective)
    assert result.verdict == "consistent", str(result)
    assert 0.02 < result.details["largest_movement"] <= 1 + 1e-7  # the neighbours do move it: the test could fail


@pytest.mark.parametrize("part", [OUTPUT, OBJECTIVE])
def test_one_vs_rest_replays_class_by_class(part: Mechanism) -> None:
    assert replayed(OneVsRest.of(part, 3), linear(Logistic())).verdict == "consistent"


@pytest.mark.slow  # the catalogue's are replayed always
def test_noisy_size_replays_with_its_count() -> None:
    objective = LinearObjective(Logistic(), D, data_norm=2.0)
    for name, mechanism, _ in noisy_sizes(objective):
        result = replay(Training.of_mechanism(mechanism, objective), both_ways=False)
        assert result.verdict == "consistent", f"{name}: {result}"
        assert 0.99 < result.details["largest_movement"] <= 1 + 1e-7


def test_a_noisy_size_that_is_not_charged_is_refused() -> None:
    """A size with a tenth of the noise that was charged, and steps with half the noise that the profile holds."""
    objective = LinearObjective(Logistic(), D, data_norm=2.0)
    _, mechanism, _ = next(item for item in noisy_sizes(objective) if "poisson" in item[0])

    def halved(made: Any) -> Any:
        return replace(made, plan=replace(made.plan, noise=Constant(made.plan.noise.noise_multiplier / 2)))

    for spoilt in (
        replace(mechanism, first=replace(mechanism.first, count=PureDP(10 * mechanism.first.count.epsilon))),
        replace(mechanism, make=lambda facts: halved(mechanism.make(facts))),
    ):
        with pytest.raises(BudgetExceeded):
            replayed(spoilt, objective)


def test_a_result_says_what_was_replayed() -> None:
    result = replayed(OUTPUT, linear(Logistic()))
    assert str(result).startswith("Replay did not refute ε = ")
    assert AuditResult.from_json(result.to_json()) == result
    assert result.trials == 2 * len(result.details["pairs"]) > 20


def test_neighbours_of_one_s_own() -> None:
    training = Training.of_mechanism(gradient(), linear(Logistic()))
    assert not replay(training, [Pair.adding("one more", (ROWS, SIGNS), ROWS[-1], -SIGNS[-1])]).refuted
    with pytest.raises(ValueError, match="about neighbours under add_or_remove_one"):
        replay(training, [Pair.replacing("the other label", (ROWS, SIGNS), ROWS[-1], -SIGNS[-1])])
    with pytest.raises(ValueError, match="at least one pair"):
        replay(training, [])


# --- planted defects -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class HalfSensitivity(Clip):
    """Claims half of what it lets through."""

    def sensitivity(self, relation: Relation) -> float:
        return super().sensitivity(relation) / 2


@dataclass(frozen=True)
class AddRemoveOnly(Clip):
    """Forgets that a replaced record moves twice."""

    def sensitivity(self, relation: Relation) -> float:
        return self.bound


@dataclass(frozen=True, kw_only=True)
class DividedByBatch(OutputPerturbation):
    """The sensitivity 'divided by n', as some libraries do."""

    def sensitivity(self, facts: Any) -> float:
        return super().sensitivity(facts) / 40


@dataclass(frozen=True, kw_only=True)
class Unregularised(OutputPerturbation):
    """Trains with less strong convexity than its sensitivity assumes."""

    def train(self, objective: LinearObjective, records: Any, channel: Any) -> Any:
        weaker = replace(self, strong_convexity=self.strong_convexity / 50)
        release = channel.release
        channel.release = lambda query, noise: release(query, smaller(noise, 1 / 50))
        return OutputPerturbation.train(weaker, objective, records, channel)


@dataclass(frozen=True, kw_only=True)
class EarlyStopped(ObjectivePerturbation):
    """Charges for a tolerance that the solver was not asked to reach."""

    def train(self, objective: LinearObjective, records: Any, channel: Any) -> Any:
        sloppy = replace(self, tolerance=1e-1)
        release = channel.release

        def shrunk(query: Any, noise: Noise) -> Any:
            return release(query, smaller(noise, 1.0 if noise.kind == "objective" else 1e-7))

        channel.release = shrunk
        return ObjectivePerturbation.train(sloppy, objective, records, channel)


class Leaking(OutputPerturbation):
    """Adds the mean of the rows to its answer, without noise."""

    def train(self, objective: LinearObjective, records: Any, channel: Any) -> Any:
        theta, trace = super().train(objective, records, channel)
        return theta + 1e-4 * records.rows.shape[0], trace


class Quiet(OutputPerturbation):
    """Half the noise that it says."""

    def train(self, objective: LinearObjective, records: Any, channel: Any) -> Any:
        source = channel.source.source if isinstance(channel.source, Recorder) else None
        if source is not None:
            plain: Any = source.noisy
            source.noisy = lambda query, noise: plain(query, weaker(noise, 0.5))
        return super().train(objective, records, channel)


PLANTED: list[tuple[str, Callable[[], Mechanism], LinearObjective, str]] = [
    ("half the sensitivity", lambda: gradient(bounding=HalfSensitivity(0.5)), linear(Logistic()), "movement"),
    (
        "replace-one as add/remove",
        lambda: gradient(bounding=AddRemoveOnly(0.5)),
        linear(Logistic(), relation=REPLACE),
        "movement",
    ),
    (
        "divided by n",
        lambda: DividedByBatch(budget=BUDGET, noise_multiplier=4.0, strong_convexity=20.0),
        linear(Logistic()),
        "movement",
    ),
    (
        "less regularised",
        lambda: Unregularised(budget=BUDGET, noise_multiplier=4.0, strong_convexity=20.0),
        linear(Logistic()),
        "movement",
    ),
    ("stopped early", lambda: EarlyStopped(budget=BUDGET, noise_std=4.0, strong_convexity=1.0), linear(Logistic()), "solver"),
    ("a leak", lambda: Leaking(budget=BUDGET, noise_multiplier=4.0, strong_convexity=20.0), linear(Logistic()), "leak"),
    ("half the noise", lambda: Quiet(budget=BUDGET, noise_multiplier=4.0, strong_convexity=20.0), linear(Logistic()), "noise"),
]


@pytest.mark.fast_cases("half the sensitivity", "half the noise", "replace-one as add/remove", "divided by n")
@pytest.mark.parametrize(("name", "make", "objective", "kind"), PLANTED, ids=[name for name, *_ in PLANTED])
def test_planted_defects_are_found(name: str, make: Callable[[], Mechanism], objective: LinearObjective, kind: str) -> None:
    result = replayed(make(), objective)
    assert result.refuted and kind in result.details["kinds"]
    assert "REFUTED by replay" in str(result)


def test_unscaled_rows_are_found() -> None:
    """Rows that keep their length break the norm bound: replay sees it at once."""
    objective = linear(Logistic())
    claimed = LinearObjective(Logistic(), D, data_norm=100.0, public_size=40)  # scales to 100, charges …
    mechanism = OutputPerturbation(budget=BUDGET, noise_multiplier=4.0, strong_convexity=2000.0)

    class Flattered(OutputPerturbation):
        def sensitivity(self, facts: Any) -> float:
            return mechanism.sensitivity(objective.facts)  # … for 2

    flattered = Flattered(budget=BUDGET, noise_multiplier=4.0, strong_convexity=2000.0)
    assert "movement" in replayed(flattered, claimed).details["kinds"]


def test_records_of_another_objective_are_refused_before_any_charge() -> None:
    objective = linear(Logistic())
    for other in (LinearObjective(Logistic(), D, data_norm=50.0), linear(Logistic(), intercept_scale=10.0)):
        with pytest.raises(ValueError, match="made by this objective"):
            OUTPUT.release(objective, other.records(ROWS, SIGNS), Channel.open())
    assert SpendLog.current().charges() == []


@pytest.mark.parametrize(
    ("mechanism", "objective", "targets"),
    [
        (OUTPUT, linear(Logistic()), np.where(SIGNS > 0, 50.0, -1.0)),
        (gradient(), linear(Softmax(3)), np.full(40, 7.0)),
        (gradient(), linear(Softmax(3)), np.full(40, -1.0)),
        (OneVsRest.of(OUTPUT, 3), linear(Logistic()), np.full(40, 3.0)),
    ],
)
def test_impossible_targets_are_refused_before_any_charge(mechanism: Mechanism, objective: LinearObjective, targets: Any) -> None:
    with pytest.raises(ValueError, match="Expected"):
        mechanism.release(objective, objective.records(ROWS, targets), Channel.open())
    assert SpendLog.current().charges() == []


def test_regression_targets_are_clipped() -> None:
    objective = linear(Squared(1.0, 3.0), radius=3.0)
    far, near = np.where(SIGNS > 0, 1e4, -1.0), np.where(SIGNS > 0, 1.0, -1.0)
    thetas = [OUTPUT.release(objective, objective.records(ROWS, targets), Channel.open(0)).theta for targets in (far, near)]
    assert np.allclose(*thetas, atol=1e-6)


@pytest.mark.parametrize("mechanism", [OBJECTIVE, OUTPUT])
def test_a_huge_finite_record_does_not_stop_the_solver(mechanism: Mechanism) -> None:
    """1e39 is a double that single precision cannot hold: an error after the charge would tell neighbours apart."""
    rows = ROWS.copy()
    rows[7, 1] = 1e39
    mechanism.release(linear(Logistic()), linear(Logistic()).records(rows, SIGNS), Channel.open())
    rows[7, 1] = 1e29
    mechanism.release(linear(Logistic()), linear(Logistic()).records(rows, SIGNS), Channel.open())


def test_single_precision_rows_and_an_empty_first_draw() -> None:
    mechanism = gradient(sampler=Poisson(0.001), steps=30)
    objective = linear(Logistic(), intercept_scale=1.0)
    mechanism.release(objective, objective.records(ROWS.astype(np.float32), SIGNS), Channel.open(1))


def test_a_plan_states_its_own_size() -> None:
    certificate = gradient(public_size=77).certificate(linear(Logistic()).facts, Provenance("", ""))
    assert any("number 77 of records" in item.text for item in certificate.assumptions)
    unbounded = LinearObjective(Squared(1.0), D)
    assert '"lipschitz": null' in gradient().certificate(unbounded.facts, Provenance("", "")).to_json()


def test_events_are_those_of_the_parts() -> None:
    facts = linear(Logistic()).facts
    event: Event = OUTPUT.event(facts)
    assert event == Gaussian(4.0)
    assert replace(OUTPUT, noise_multiplier=None, pure_epsilon=0.5).event(facts) == PureDP(0.5)


# --- what replay refuses to judge, and what hides well -----------------------------------------------------------------


def training_of(run: Any, event: Event) -> Training:
    return Training("by hand", Certificate.issue(mechanism="by hand", event=event, delta=1e-5), run)


def counting(event: Event, *, charge: Event | None = None, noise: float = 2.0, steps: int = 1, spoil: Any = None) -> Training:
    """A noisy sum of rows, over and over."""

    def run(data: Any, source: Any) -> Any:
        channel = Channel.open(source)
        channel.charge(charge or event, "count")
        rows = np.clip(np.nan_to_num(data[0]), -0.5, 0.5)
        noisy = [channel.release(rows.sum(axis=0), GaussianNoise(1.0, noise)) for _ in range(steps)]
        return spoil(noisy, data) if spoil else {"sums": noisy}

    return training_of(run, event)


ONE_MORE = [Pair.adding("one more", (ROWS[:5], SIGNS[:5]), [0.5, 0.5, 0.5, 0.5], 1.0)]


def test_another_charge_than_the_certificate_s_is_found() -> None:
    assert replay(counting(Gaussian(2.0)), ONE_MORE).verdict == "consistent"
    for stated in (PureDP(0.01), ApproximateDP(0.01, 1e-6), Composed((PureDP(0.01), ApproximateDP(0.01, 1e-6)))):
        result = replay(counting(stated, charge=Gaussian(2.0)), ONE_MORE)
        assert "charge" in result.details["kinds"]


def test_equal_releases_in_one_event_are_counted_together() -> None:
    event = Composed((Gaussian(2.0), Gaussian(50.0), Gaussian(2.0), SelfComposed(Gaussian(2.0), 2)))

    def run(data: Any, source: Any) -> Any:
        channel = Channel.open(source)
        channel.charge(event, "sums")
        return [channel.release(np.zeros(3), GaussianNoise(1.0, noise)) for noise in (2.0, 2.0, 50.0, 2.0, 2.0)]

    assert replay(training_of(run, event), ONE_MORE).verdict == "consistent"


@pytest.mark.parametrize(
    "spoil",
    [
        lambda noisy, data: {"sums": noisy, "seen": f"{len(data[1])} records"},
        lambda noisy, data: {"sums": noisy, str(len(data[1])): 0},
        lambda noisy, data: {"sums": noisy, "table": sp.csr_matrix(data[0].mean(axis=0, keepdims=True))},
        lambda noisy, data: {"sums": noisy, "shape": np.zeros(len(data[1]))},
    ],
    ids=["text", "key", "sparse", "shape"],
)
def test_leaks_in_any_form_are_found(spoil: Any) -> None:
    assert replay(counting(Gaussian(2.0), spoil=spoil), ONE_MORE).details["kinds"] == ["leak"]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda noisy, data: [sums * (1 + 1e-10 * len(data[1])) for sums in noisy],
        lambda noisy, data: [noisy, 1e-13 * len(data[1])],
        lambda noisy, data: [noisy, 10**12 + len(data[1])],
    ],
    ids=["tenth digit", "tiny", "large"],
)
def test_leaks_in_the_last_digits_are_found(spoil: Any) -> None:
    assert replay(counting(Gaussian(2.0), spoil=spoil), ONE_MORE).details["kinds"] == ["leak"]


def test_sums_that_are_rounded_in_another_way_each_time_are_no_leak() -> None:
    order = np.random.default_rng(0)

    def threads(noisy: Any, data: Any) -> Any:
        return [sums * (1 + 2e-16 * order.integers(1, 6, size=D)) for sums in noisy]

    assert replay(counting(SelfComposed(Gaussian(2.0), 20), steps=20, spoil=threads), ONE_MORE).verdict == "consistent"


@pytest.mark.parametrize("error", [ValueError, RuntimeError, KeyError])
@pytest.mark.parametrize("both_ways", [False, True])
@pytest.mark.parametrize("fewer", [False, True])
def test_a_run_that_fails_after_the_charge_on_one_neighbour_is_found(error: Any, both_ways: bool, fewer: bool) -> None:
    def failing_from(count: int) -> Any:
        def spoil(noisy: Any, data: Any) -> Any:
            if len(data[1]) >= count:
                raise error("no convergence")
            return noisy

        return counting(Gaussian(2.0), spoil=spoil)

    pair = ONE_MORE[0].reversed() if fewer else ONE_MORE[0]
    result = replay(failing_from(6), [pair], both_ways=both_ways)
    assert result.details["kinds"] == ["failure"], str(result)
    assert replay(failing_from(7), [pair], both_ways=both_ways).verdict == "consistent"
    with pytest.raises(error, match="no convergence"):
        replay(failing_from(5), [pair], both_ways=both_ways)


@pytest.mark.filterwarnings("ignore:overflow")
@pytest.mark.parametrize("both_ways", [False, True])
@pytest.mark.parametrize("where", ["one neighbour", "both", "none", "the first run alone", "before the charge", "other words"])
def test_a_run_that_warns_after_the_charge_on_one_neighbour_is_found(where: str, both_ways: bool) -> None:
    runs: list[int] = []

    def warns(count: int) -> None:
        runs.append(count)
        if (where == "one neighbour" and count == 6) or where == "both" or (where == "the first run alone" and len(runs) == 4):
            warnings.warn("overflow", RuntimeWarning, stacklevel=1)
        if where == "other words":
            warnings.warn(f"overflow of {count}", RuntimeWarning, stacklevel=1)

    def spoil(noisy: Any, data: Any) -> Any:
        warns(len(data[1]))
        return noisy

    sound = counting(Gaussian(2.0), spoil=spoil)

    def early(data: Any, source: Any) -> Any:
        if len(data[1]) == 6:
            warnings.warn("overflow", RuntimeWarning, stacklevel=1)
        return sound.run(data, source)

    training = replace(sound, run=early) if where == "before the charge" else sound
    result = replay(training, ONE_MORE, both_ways=both_ways)
    assert result.details["kinds"] == (["warning"] if where in ("one neighbour", "other words") else []), str(result)


def test_what_cannot_be_compared_is_said() -> None:
    with pytest.raises(ValueError, match="Expected a training to return arrays"):
        replay(counting(Gaussian(2.0), spoil=lambda noisy, data: object()), ONE_MORE)
    with pytest.raises(ValueError, match="made no release"):
        replay(training_of(lambda data, source: np.zeros(2), Gaussian(1.0)), ONE_MORE)
    jitter = np.random.default_rng(0)

    def run(data: Any, source: Any) -> Any:
        channel = Channel.open(source)
        channel.charge(Gaussian(2.0), "random")
        return channel.release(jitter.normal(size=3), GaussianNoise(1.0, 2.0))

    with pytest.raises(ValueError, match="random beyond its source"):
        replay(training_of(run, Gaussian(2.0)), ONE_MORE)
    with pytest.raises(ValueError, match="replayed with its mechanism"):
        replay(replace(Training.of_mechanism(OBJECTIVE, linear(Logistic())), minimisations=None))


@pytest.mark.parametrize("place", [0, 1, 2])
def test_noise_that_depends_on_records_on_the_way_of_a_path_is_found(place: int) -> None:
    def releasing(depends: bool) -> Training:
        def run(data: Any, source: Any) -> Any:
            channel = Channel.open(source)
            channel.charge(PureDP(2.0), "path")
            epsilons = [0.5, 1.0, 1.5, 2.0]
            if depends and len(data[1]) > 5:
                epsilons[place] *= 1.01
            return channel.release(np.zeros(3), FallingNoise(1.0, epsilons))

        return training_of(run, PureDP(2.0))

    assert replay(releasing(False), ONE_MORE).verdict == "consistent"
    result = replay(releasing(True), ONE_MORE)
    assert result.refuted and set(result.details["kinds"]) <= {"sensitivity", "leak"}, str(result)
    assert any("on the way of release 1" in finding or "sensitivity or noise" in finding for finding in result.findings)


class _Quiet(SystemSource):
    """Too little noise in places."""

    def __init__(self, where: Any) -> None:
        super().__init__(Randomness.from_system())
        self.where, self.count = where, 0

    def noisy(self, query: Any, noise: Noise) -> Any:
        added = super().noisy(query, noise) - query
        self.count += 1
        return query + added * self.where(self.count, query)


@pytest.mark.parametrize(
    ("where", "text"),
    [
        (lambda count, query: 0.05 if count > 98 else 1.0, "in release 99 has"),
        (lambda count, query: np.where(np.arange(query.size) == 2, 0.0, 1.0), "its noise has 0.8"),
    ],
    ids=["late", "one coordinate"],
)
def test_noise_that_is_missing_in_places_is_found(where: Any, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dperm.release.channel.SystemSource", lambda randomness: _Quiet(where))
    pairs = [Pair.adding(str(number), (ROWS[:5], SIGNS[:5]), ROWS[number], 1.0) for number in range(12)]
    result = replay(counting(SelfComposed(Gaussian(2.0), 100), steps=100), pairs)
    assert result.refuted and any(text in finding for finding in result.findings)


def test_one_coordinate_among_many_without_noise_is_found() -> None:
    rng = np.random.default_rng(0)
    runs: list[NoiseSeen] = []
    for _ in range(200):
        noise = rng.normal(size=50)
        noise[7] = 0.0
        runs.append(NoiseSeen.of(Recording([ReleaseRecord(np.zeros(50), 1.0, 1.0, noise)])))
    assert [finding.text for finding in noise_findings(runs)] == ["coordinate 8 of 50 has less noise than stated"]
    sound = [NoiseSeen.of(Recording([ReleaseRecord(np.zeros(50), 1.0, 1.0, rng.normal(size=50))])) for _ in range(200)]
    assert noise_findings(sound) == []


def test_a_replaced_record_is_drawn_in_every_step() -> None:
    """At a small rate it would hardly ever be seen, and nothing would be compared."""
    few = gradient(sampler=Poisson(0.01), steps=5, bounding=AddRemoveOnly(0.5))
    result = replayed(few, linear(Logistic(), relation=REPLACE))
    assert result.refuted and result.details["largest_movement"] > 1.4


@pytest.mark.parametrize("pair", ["added", "removed"])
def test_a_record_is_drawn_as_often_as_its_rule_allows_and_no_more(pair: str) -> None:
    """A sum over the four steps of an epoch, which sees each record once: a record in every step would refute it falsely."""
    draw, epochs = BallsAndBins(4), 3
    event = Composed((SelfComposed(Gaussian(2.0), epochs), draw.event(Gaussian(5.0), 0, 4 * epochs)))

    def run(data: Any, source: Any) -> Any:
        channel = Channel.open(source)
        channel.charge(event, "epochs")
        rows = np.clip(np.nan_to_num(data[0]), -0.5, 0.5)
        total, told = np.zeros(D), list[Any]()
        for step, drawn in enumerate(draw.draws(channel, len(rows), 4 * epochs)):
            total = total + rows[drawn].sum(axis=0)
            told.append(channel.release(rows[drawn].sum(axis=0), GaussianNoise(1.0, 5.0, draw.rate)))
            if step % 4 == 3:
                told.append(channel.release(total, GaussianNoise(1.0, 2.0, what="epoch")))
                total = np.zeros(D)
        return told

    more = ONE_MORE[0]
    result = replay(training_of(run, event), [more if pair == "added" else more.reversed()], both_ways=False)
    assert result.verdict == "consistent", str(result)
    assert result.details["movement"]["epoch"] == pytest.approx(1, abs=1e-6)
    assert result.details["movement"]["statistic"] == pytest.approx(1, abs=1e-6)


def test_rows_of_a_record_are_forced_together_and_batches_keep_their_size() -> None:
    rows, record = PoissonRows(0.3, 3), np.array([2])
    assert rows.forced(np.array([0, 7, 20]), record, True).tolist() == [0, 6, 7, 8, 20]
    assert BallsAndBins(4).forced(np.array([1, 2]), record, True).tolist() == [1, 2]
    assert BallsAndBins(4).forced(np.array([1, 2]), record, False).tolist() == [1]
    assert [BallsAndBins(4).takes_part(step, 1) for step in (5, 6)] == [True, False]  # another step's of that epoch
    fixed = FixedSize(3, 10)
    for drawn in ([0, 1, 9], [1, 2, 3]):
        forced = fixed.forced(np.array(drawn), record, True)
        assert len(forced) == 3 and 2 in forced
        left_out = fixed.forced(np.array(drawn), record, False)
        assert len(left_out) == 3 and 2 not in left_out
    capped = PoissonUpTo(0.3, capacity=3, largest=10)
    nobody = np.array([], dtype=np.intp)
    assert len(capped.forced(np.array([0, 1, 9]), nobody, True, spare=1)) == 2  # room for one to come
    assert Poisson(0.3).forced(np.array([0, 1, 9]), record, True).tolist() == [0, 1, 2, 9]


def test_single_precision_sums_may_round() -> None:
    import torch

    from dperm.torch import ModuleObjective, TorchRecords

    torch.manual_seed(0)
    rows = torch.ones(20_000, 20) + 1e-3 * torch.randn(20_000, 20)
    data = (rows, torch.zeros(20_000, dtype=torch.int64))
    objective = ModuleObjective(torch.nn.Linear(20, 3), torch.nn.CrossEntropyLoss(reduction="none"))
    pair = Pair.adding("one more", data, torch.ones(20), 0)
    mine = plan(sampler=FullBatch(), steps=2, public_size=20_000)
    result = replay(Training.of_plan(mine, objective, TorchRecords, delta=1e-6, pairs=[pair]))
    assert result.verdict == "consistent", str(result)


def test_records_that_do_not_fit_are_refused() -> None:
    data = (np.zeros((3, 2)), np.array(["a", "b", "a"]))
    assert Pair.adding("longer label", data, [1.0, 2.0], "longer").second[1][-1] == "longer"
    with pytest.raises(ValueError, match="record of shape"):
        Pair.adding("short row", data, [1.0], "a")
    with pytest.raises(ValueError, match="fits into int64"):
        Pair.adding("half", (np.zeros((3, 1), dtype=np.int64), np.zeros(3)), [0.5], 0.0)
    replaced = Pair.replacing("second", data, [1.0, 2.0], "b", index=1)
    assert replaced.relation is REPLACE and replaced.changed.tolist() == [1] == replaced.reversed().changed.tolist()


def test_pairs_that_are_no_neighbours_are_refused() -> None:
    places, nobody = np.arange(40), np.array([], dtype=np.intp)
    longer = (np.vstack([-ROWS, ROWS[:1]]), np.append(SIGNS, 1.0))
    with pytest.raises(ValueError, match="should be the same in both"):
        Pair("mine", (ROWS, SIGNS), longer, places, np.array([40]))
    with pytest.raises(ValueError, match="do not lead from 40 records to 41"):
        Pair("mine", (ROWS, SIGNS), longer, places[:30], np.array([40]))
    with pytest.raises(ValueError, match="one record added, removed or replaced"):
        Pair("mine", (ROWS, SIGNS), (ROWS, SIGNS), places, nobody)
    with pytest.raises(TypeError, match="Expected NumPy arrays or tensors, got csr"):
        Pair.adding("sparse", (sp.csr_array(ROWS), SIGNS), ROWS[0], 1.0)


def test_a_channel_that_refuses_is_a_finding() -> None:
    result = replay(counting(Gaussian(2.0), noise=1.0), ONE_MORE)
    assert result.details["kinds"] == ["unpaid"] and "not paid for" in str(result)


# --- each sampled release and its own draw ----------------------------------------------------------------------------

_STEPS = 8
_POISSON, _OTHER, _ALLOCATED = Poisson(0.1), Poisson(0.3), BallsAndBins(4)


def of_draws(event: Event, batches: Callable[[Channel, int], Any]) -> Training:
    """Noisy sums over the records that `batches(channel, n)` gives with the noise and the rate of each."""

    def run(data: Any, source: Any) -> Any:
        channel = Channel.open(source)
        channel.charge(event, "sampled sums")
        rows = np.clip(np.nan_to_num(data[0]), -0.5, 0.5)
        return [
            channel.release(rows[drawn].sum(axis=0), GaussianNoise(1.0, *paid)) for drawn, *paid in batches(channel, len(rows))
        ]

    return training_of(run, event)


def _in_turn(*rules: Any) -> Callable[[Channel, int], Any]:
    return lambda channel, n: ((drawn, 5.0, rule.rate) for rule in rules for drawn in rule.draws(channel, n, _STEPS))


def _paid(*rules: Any) -> Event:
    return Composed(tuple(rule.event(Gaussian(5.0), 0, _STEPS) for rule in rules))


def _side_by_side(channel: Channel, n: int) -> Any:
    for one, other in zip(_POISSON.draws(channel, n, _STEPS), _POISSON.draws(channel, n, _STEPS), strict=True):
        yield one, 5.0, 0.1
        yield other, 7.0, 0.1


def _drawn_first(rule: Any, made_of: Callable[[list[Any], int], Any], steps: int = _STEPS) -> Callable[[Channel, int], Any]:
    """Draws that are made before the first release; `made_of(draws, i)` is what release i is made of."""

    def batches(channel: Channel, n: int) -> Any:
        draws = [*rule.draws(channel, n, steps)]
        return [(made_of(draws, step), 5.0, rule.rate) for step in range(_STEPS)]

    return batches


def _left_early(channel: Channel, n: int) -> Any:
    for _ in range(2):
        for drawn in [*_POISSON.draws(channel, n, _STEPS)][: _STEPS // 2]:
            yield drawn, 5.0, 0.1


_TWICE = Composed((SelfComposed(_paid(_POISSON), 1), _POISSON.event(Gaussian(7.0), 0, _STEPS)))
_SOUND: dict[str, tuple[Event, Any]] = {
    "Poisson": (_paid(_POISSON), _in_turn(_POISSON)),
    "balls and bins": (_paid(_ALLOCATED), _in_turn(_ALLOCATED)),
    "two rates, in another order than the event": (_paid(_POISSON, _OTHER), _in_turn(_OTHER, _POISSON)),
    "balls and bins, then Poisson": (_paid(_ALLOCATED, _POISSON), _in_turn(_ALLOCATED, _POISSON)),
    "Poisson, then balls and bins": (_paid(_ALLOCATED, _POISSON), _in_turn(_POISSON, _ALLOCATED)),
    "side by side": (_TWICE, _side_by_side),
    "drawn first": (_paid(_POISSON), _drawn_first(_POISSON, lambda draws, step: draws[step])),
    "drawn first, and stopped early": (_paid(_POISSON), _drawn_first(_POISSON, lambda draws, step: draws[step], 3 * _STEPS)),
    "stopped early twice": (_paid(_POISSON), _left_early),
}


@pytest.mark.parametrize("name", _SOUND)
def test_sampled_sums_of_their_own_draws_are_consistent(name: str) -> None:
    event, batches = _SOUND[name]
    result = replay(of_draws(event, batches), ONE_MORE)
    assert result.verdict == "consistent", str(result)
    assert result.details["largest_movement"] == pytest.approx(1, abs=1e-6)


def _everybody(rule: Any) -> Callable[[Channel, int], Any]:
    return lambda channel, n: [(np.arange(n), 5.0, rule.rate) for _ in rule.draws(channel, n, _STEPS)]


def _two_at_once(channel: Channel, n: int) -> Any:
    for one, other in zip(_POISSON.draws(channel, n, _STEPS), _POISSON.draws(channel, n, _STEPS), strict=True):
        yield np.union1d(one, other), 5.0, 0.1


_UNSOUND: dict[str, tuple[Event, Any]] = {
    "all records": (_paid(_POISSON), _everybody(_POISSON)),
    "all records, balls and bins": (_paid(_ALLOCATED), _everybody(_ALLOCATED)),
    "the first draw": (_paid(_POISSON), _drawn_first(_POISSON, lambda draws, step: draws[0])),
    "the first draw, balls and bins": (_paid(_ALLOCATED), _drawn_first(_ALLOCATED, lambda draws, step: draws[0])),
    "the first epoch": (_paid(_ALLOCATED), _drawn_first(_ALLOCATED, lambda draws, step: draws[step % 4])),
    "two neighbouring draws": (_paid(_POISSON), _drawn_first(_POISSON, lambda draws, i: np.union1d(draws[i], draws[i - 1]))),
    "two draws of one call": (
        _paid(_POISSON),
        _drawn_first(_POISSON, lambda draws, i: np.union1d(draws[2 * i], draws[2 * i + 1]), 2 * _STEPS),
    ),
    "two draws of two calls": (_paid(_POISSON), _two_at_once),
}


@pytest.mark.parametrize("name", _UNSOUND)
@pytest.mark.parametrize("pair", [ONE_MORE[0], ONE_MORE[0].reversed()], ids=["added", "removed"])
def test_a_release_of_other_records_than_its_draw_has_is_found(name: str, pair: Pair) -> None:
    event, batches = _UNSOUND[name]
    result = replay(of_draws(event, batches), [pair], both_ways=False)
    assert result.details["kinds"] == ["draws"], str(result)


@pytest.mark.parametrize("rule", [_POISSON, FixedSize(4, 40), PoissonUpTo(0.1, capacity=12, largest=60), _ALLOCATED])
def test_a_plan_whose_batches_are_not_its_draws_is_found(rule: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    relation = REPLACE if isinstance(rule, FixedSize) else ADD
    objective = linear(Logistic(), relation=relation)
    training = Training.of_mechanism(gradient(sampler=rule), objective)
    pair = (Pair.adding if relation is ADD else Pair.replacing)("the other label", (ROWS, SIGNS), ROWS[-1], -SIGNS[-1])
    sound = replay(training, [pair])
    assert sound.verdict == "consistent", str(sound)

    def streamed(self: Any, channel: Channel, records: Any, steps: int) -> Any:
        return records.stream([None for _ in self.draws(channel, len(records), steps)])

    monkeypatch.setattr(type(rule), "streamed", streamed)
    assert replay(training, [pair]).details["kinds"] == ["draws"]


def _identifiers() -> Callable[[Any, Any], Any]:
    return lambda noisy, data: {"sums": noisy, "id": str(uuid.uuid4())}


def _synthetic_rows() -> Callable[[Any, Any], Any]:
    return lambda noisy, data: np.random.default_rng().normal(loc=noisy[0], size=(50, D))


def _seconds() -> Callable[[Any, Any], Any]:
    return lambda noisy, data: [noisy, time.perf_counter()]


def _odd_at_times() -> Callable[[Any, Any], Any]:
    """Seldom enough that the first two runs agree."""
    runs = itertools.count(1)
    return lambda noisy, data: [noisy, next(runs) in (5, 7)]


@pytest.mark.parametrize("spoil", [_identifiers, _synthetic_rows, _seconds, _odd_at_times])
def test_b1_outputs_that_differ_on_equal_data_are_not_called_leaks(spoil: Callable[[], Any]) -> None:
    with pytest.raises(ValueError, match=r"random beyond its source.*another output"):
        replay(counting(Gaussian(2.0), spoil=spoil()), ONE_MORE)


@pytest.mark.parametrize("failing", range(1, 10))
def test_b2_a_failure_that_happens_once_is_no_finding(failing: int) -> None:
    """Whichever run it is that fails: on the first data set, or on the second."""
    runs = itertools.count(1)

    def spoil(noisy: Any, data: Any) -> Any:
        if next(runs) == failing:
            raise OSError("No space left on device")
        return noisy

    result = replay(counting(Gaussian(2.0), spoil=spoil), ONE_MORE)
    assert result.verdict == "consistent", str(result)
    assert next(runs) > failing


def test_a4_results_say_how_many_records_were_played_and_how_they_were_stored() -> None:
    sparse = Pair(
        "a sparse record more",
        (sp.csr_matrix(ROWS[:9]), SIGNS[:9]),
        (sp.csr_matrix(ROWS[:10]), SIGNS[:10]),
        np.arange(9),
        np.array([9]),
    )
    training = Training.of_mechanism(gradient(), linear(Logistic()))
    result = replay(training, [*training.replay_pairs[:1], sparse])
    assert result.details["records"] == [9, 41]
    assert "data sets of 9 to 41 records, stored as dense arrays and sparse matrices" in str(result)
    assert AuditResult.from_json(result.to_json()) == result
    for broken in ({"records": [1]}, {"records": [1, "many"]}, {"storage": [1]}, {"leaves": "all"}):
        with pytest.raises(ValueError, match=r"records|storage|leaves"):
            AuditResult.from_dict(result.to_dict() | {"details": broken})


def test_a5_results_say_which_attributes_of_an_estimator_were_compared() -> None:
    estimator = DPLogisticRegression(classes=[0, 1], mechanism="output", public_size=40)
    data = ROWS, (SIGNS > 0).astype(int)
    training = Training.of_estimator(estimator, data, [Pair.adding("a record more", data, ROWS[0], 1)])
    said = "Of the outputs, only these were compared: coef_, intercept_, trace_, the certificate's public facts."
    assert said in str(replay(training))
