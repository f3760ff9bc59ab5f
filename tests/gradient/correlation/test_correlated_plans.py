"""Plans whose noise is correlated cost what their records move all releases together, and are refuted where they move more."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dperm.audit import AuditResult, Training, replay, white_box
from dperm.audit.inclusions import DrawsTested
from dperm.audit.recording import Forced, Recorder
from dperm.gradient import (
    AdaptiveClip,
    BallsAndBins,
    Clip,
    CyclicPoisson,
    ExponentialDecay,
    FixedOrder,
    FullBatch,
    Plan,
    Poisson,
    Reshuffled,
)
from dperm.gradient.correlation import Independent, Once, Periodic, Strategy
from dperm.gradient.correlation.banded_toeplitz import BandedToeplitz
from dperm.gradient.correlation.buffered import Buffered
from dperm.gradient.correlation.given_matrix import GivenMatrix
from dperm.gradient.correlation.strategy import Last
from dperm.gradient.recipes import dp_sgd
from dperm.mechanisms import Budget, GradientPerturbation
from dperm.mechanisms.one_vs_rest import OneVsRest
from dperm.objectives import LinearObjective, Logistic
from dperm.privacy import BoundedSquaresGaussian, Gaussian, PoissonSampled, Relation, SelfComposed, epsilon
from dperm.privacy.events import CyclicSampled, leaves
from dperm.release import Channel, SpendLog, UnpaidReleaseError
from dperm.release.grid import Grid
from helpers.catalogue.common import ADD, DELTA, REPLACE, objective, plan

GROUPS = 4
SIGNED = GivenMatrix.of(np.eye(20) - 0.5 * np.eye(20, k=-1))


def correlated(sampler: Any = None, strategy: Strategy | None = None, noise: float = 2.0, **changes: Any) -> Plan:
    sampler, strategy = sampler or CyclicPoisson(0.6, GROUPS), strategy or BandedToeplitz(GROUPS)
    # a clipping norm that gradients exceed throughout
    return plan(noise, **({"sampler": sampler, "correlation": strategy, "bounding": Clip(0.3)} | changes))


def replayed(made: Plan, relation: Relation = ADD) -> AuditResult:
    mechanism = GradientPerturbation(budget=Budget(DELTA), plan=made)
    return replay(Training.of_mechanism(mechanism, objective(relation=relation)), both_ways=False)


# Charges


def test_cyclic_groups_cost_as_many_poisson_samples_as_a_group_has_turns() -> None:
    made = correlated(steps=22)
    event = made.event(ADD)
    assert event == SelfComposed(CyclicSampled(0.6, Gaussian(2.0), GROUPS), 6)
    assert sum(count * leaf.releases for leaf, count in leaves(event).items()) >= made.steps
    assert epsilon(event, DELTA) == epsilon(SelfComposed(PoissonSampled(0.6, Gaussian(2.0)), 6), DELTA)
    assert made.expected_batch_size == pytest.approx(0.6 / GROUPS * made.public_size)
    assert made.kind == "cyclic Poisson, correlated noise" and "banded matrix" in made.paper
    with pytest.raises(ValueError, match="add_or_remove_one"):
        made.event(REPLACE)


def test_a_fixed_order_costs_one_gaussian_whatever_the_strategy() -> None:
    for strategy in (BandedToeplitz(5), Buffered(2, 5)):
        event = correlated(FixedOrder(5), strategy).event(ADD)
        assert event == BoundedSquaresGaussian(2.0, 20, 1.0) and epsilon(event, DELTA) == epsilon(Gaussian(2.0), DELTA)
    alone = correlated(FixedOrder(5), Independent()).event(ADD)
    assert alone == BoundedSquaresGaussian(2.0, 20, 4.0)  # four epochs
    begun = correlated(FixedOrder(5), Independent(), steps=22).event(REPLACE)
    assert begun == BoundedSquaresGaussian(2.0, 22, 5.0, REPLACE)  # a record may be in the epoch that is begun
    assert correlated(FixedOrder(5), Independent()).event(ADD, 3, 6) == BoundedSquaresGaussian(2.0, 3, 2.0)  # of two epochs
    assert correlated(FixedOrder(2), Independent()).event(ADD, 7, 12) == BoundedSquaresGaussian(2.0, 5, 3.0)


@pytest.mark.parametrize("size", [1, 5, 10_000])
@pytest.mark.parametrize("noise", [0.3, 50.0])
@pytest.mark.parametrize("strategy", [BandedToeplitz(4), Buffered(2, 4), SIGNED], ids=repr)
def test_what_rounding_adds_is_charged_and_little(strategy: Strategy, noise: float, size: int) -> None:
    made = correlated(FixedOrder(4), strategy, noise)
    exact = math.sqrt(strategy.squared_sensitivity(Periodic(4), 20))
    assert exact < made.joint_sensitivity(1.0, noise, size) < exact * 1.01


def test_what_is_asked_before_the_charge_is_what_the_run_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[float, ...]] = []
    usual = Plan.joint_sensitivity
    monkeypatch.setattr(Plan, "joint_sensitivity", lambda self, *given: asked.append(given) or usual(self, *given))
    for relation in (ADD, Relation.REPLACE_ONE):
        problem = LinearObjective(Logistic(), 4, data_norm=1.0, public_size=60, relation=relation)
        made = correlated(FixedOrder(4), BandedToeplitz(4))
        made.refuse(problem)
        channel = Channel.open(0)
        channel.charge(made.event(relation), "test")
        made.gradients(problem, problem.records(np.zeros((60, 4)), np.ones(60)), channel)(np.zeros(4))
    assert asked[0] == asked[1] != asked[2] == asked[3]


@pytest.mark.parametrize(("noise", "size", "refused"), [(1e3, 10**6, False), (1e4, 10**6, True), (1e7, 4001, True)])
def test_noise_that_would_be_cut_as_it_is_kept_is_refused_before_it_is_charged(noise: float, size: int, refused: bool) -> None:
    """Beyond, a run keeps less noise than it releases, takes back too little of it, and tells updates of more than there is."""
    made = correlated(FixedOrder(4), BandedToeplitz(4), noise)
    problem = LinearObjective(Logistic(), size, data_norm=1.0, public_size=100)
    if refused:
        with pytest.raises(ValueError, match="Expected less noise"):
            made.refuse(problem)
        return
    made.refuse(problem)
    moved = made.joint_sensitivity(1.0, noise, size)
    assert 2.0**40 * Grid.of(moved, noise * moved, size).step > 16 * noise * moved


def test_what_is_kept_is_cut_where_rounding_is_no_longer_charged() -> None:
    told: list[float] = []

    class Told(BandedToeplitz):
        def memory(self, steps: int, limit: float, first: int = 0) -> Any:
            told.append(limit)
            return super().memory(steps, limit, first)

    made, problem = correlated(strategy=Told(GROUPS)), objective()
    channel = Channel.open(0)
    channel.charge(made.event(ADD), "test")
    made.gradients(problem, problem.records(np.zeros((60, 3)), np.ones(60)), channel)(np.zeros(4))
    moved = made.joint_sensitivity(0.3, 2.0, 4)
    assert told == [2.0**40 * Grid.of(moved, 2.0 * moved, 4).step]


def test_a_strategy_that_keeps_nothing_is_the_plan_without_one() -> None:
    assert correlated(Poisson(0.3), BandedToeplitz(1)).event(ADD) == plan(2.0).event(ADD)
    assert correlated(Poisson(0.3), BandedToeplitz(1)).kind == plan(2.0).kind == "Poisson"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sampler": Poisson(0.3)}, "sampling=cyclic_poisson, fixed_order, reshuffled or full batches"),
        ({"sampler": BallsAndBins(4)}, "cyclic_poisson"),
        ({"strategy": BandedToeplitz(5)}, "at most 4 bands"),
        ({"strategy": Buffered(2, 4)}, "at most 4 bands"),
        ({"bounding": AdaptiveClip(0.5, 0.5)}, "one clipping norm"),
        ({"noise_schedule": ExponentialDecay(2.0, 0.1, 4)}, "one noise level"),
        ({"strategy": GivenMatrix.of(np.eye(5) - 0.5 * np.eye(5, k=-1))}, "strategy for 20 steps"),
    ],
)
def test_what_nothing_is_proved_of_is_refused(changes: dict[str, Any], message: str) -> None:
    changes = dict(changes)
    schedule = {"noise": changes.pop("noise_schedule")} if "noise_schedule" in changes else {}
    strategy, sampler = changes.pop("strategy", BandedToeplitz(4)), changes.pop("sampler", CyclicPoisson(0.6, GROUPS))
    with pytest.raises(ValueError, match=message):
        plan(2.0, sampler=sampler, correlation=strategy, **changes, **schedule)


# Draws


def test_records_keep_their_groups_and_take_turns() -> None:
    steps, records = 400, 60
    places = np.full(records, -1)
    hits = np.zeros(records)
    for step, included in enumerate(CyclicPoisson(0.25, 3).indices(np.random.default_rng(1), records, steps)):
        assert np.array_equal(included, np.sort(included))
        assert np.all((places[included] == -1) | (places[included] == step % 3))
        places[included] = step % 3
        hits[included] += 1
    turns = steps // 3
    assert np.all(np.abs(hits - 0.25 * turns) < 6 * math.sqrt(turns * 0.25 * 0.75))
    assert set(np.bincount(places, minlength=3) > 8) == {True}
    once = list(FixedOrder(4).indices(np.random.default_rng(1), records, 8))
    assert all(np.array_equal(a, b) for a, b in zip(once[:4], once[4:], strict=True))
    assert np.array_equal(np.sort(np.concatenate(once[:4])), np.arange(records))


@pytest.mark.parametrize("sampler", [CyclicPoisson(0.4, 3), FixedOrder(3), BallsAndBins(3), Reshuffled(5, 3), Reshuffled(4, 1)])
def test_the_chance_of_a_record_given_its_draws_before_is_as_stated(sampler: Any) -> None:
    """Over many records: of those with one chance, the share that is in the draw; audits bet on it."""
    records, last = 60_000, np.full(60_000, -1)
    for step, included in enumerate(sampler.indices(np.random.default_rng(2), records, 4 * sampler.period)):
        assert abs(len(included) - records * sampler.share) <= 6 * math.sqrt(records * sampler.share)
        chances = sampler.chances(step, last)
        for chance in np.unique(chances):
            alike, found = int((chances == chance).sum()), int((chances[included] == chance).sum())
            assert abs(found - alike * chance) <= 6 * math.sqrt(alike * chance * (1 - chance)) + 1e-9
        last[included] = step


# Replay


@pytest.mark.parametrize(
    ("made", "relation"),
    [
        (correlated(), ADD),
        pytest.param(correlated(FixedOrder(5), BandedToeplitz(5)), ADD, marks=pytest.mark.slow),
        pytest.param(correlated(FixedOrder(5), BandedToeplitz(8)), REPLACE, marks=pytest.mark.slow),
        (correlated(FixedOrder(5), Buffered(2, 5)), REPLACE),
        (correlated(FixedOrder(5), SIGNED), ADD),
        pytest.param(correlated(FullBatch(), BandedToeplitz(3), steps=8), ADD, marks=pytest.mark.slow),
        (correlated(FullBatch(), BandedToeplitz(3), steps=8), REPLACE),
    ],
    ids=lambda value: value.kind + repr(value.correlation)[:30] if isinstance(value, Plan) else str(value),
)
def test_replay_finds_records_that_move_all_that_is_charged_and_no_more(made: Plan, relation: Relation) -> None:
    result = replayed(made, relation)
    assert result.verdict == "consistent", str(result)
    assert set(result.details["movement"]) == {"sum of gradients together"}
    assert 0.9 < result.details["largest_movement"] <= 1 + 1e-6


@pytest.mark.fast_cases("full batch, correlated noise")
@pytest.mark.parametrize(
    "made",
    [correlated(steps=12), correlated(FixedOrder(5), BandedToeplitz(4), steps=18), correlated(FullBatch(), steps=8)],
    ids=lambda made: made.kind,
)
def test_each_model_of_several_moves_what_is_charged_for_it(made: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    """One run for each class, one after the other: rounds begin anew, and so does what a record may move."""

    def several() -> AuditResult:
        mechanism = GradientPerturbation(budget=Budget(DELTA), plan=made)
        return replay(Training.of_mechanism(OneVsRest.of(mechanism, 3), objective()), both_ways=False)

    result = several()
    assert result.verdict == "consistent", str(result)
    assert 0.9 < result.details["largest_movement"] <= 1 + 1e-6
    whole = Plan.joint_sensitivity
    monkeypatch.setattr(Plan, "joint_sensitivity", lambda *given: 0.8 * whole(*given))
    assert several().refuted


def test_one_participation_charged_for_several_epochs_is_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    def once(self: Plan, each: float, noise_multiplier: float, size: int) -> float:
        return 1.0001 * each * math.sqrt(self.correlation.squared_sensitivity(Once(), self.steps))

    monkeypatch.setattr(Plan, "joint_sensitivity", once)
    result = replayed(correlated(FixedOrder(5), BandedToeplitz(5)))
    assert result.refuted and any("together" in finding for finding in result.findings)


def test_a_column_that_is_not_charged_is_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sensitivity of one step's sum, though a record moves the steps that take it back."""
    monkeypatch.setattr(Plan, "joint_sensitivity", lambda self, each, noise_multiplier, size: 1.0001 * each)
    for made in (correlated(), correlated(FixedOrder(5), BandedToeplitz(5))):
        assert replayed(made).refuted


def test_sums_in_the_place_of_the_noise_are_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    """C⁻¹ applied to the sums before the noise: each step takes back what records gave to earlier ones."""

    keep_noise = Last.keep

    def keep(self: Last, released: Any) -> None:
        keep_noise(self, 4.0 * self._noise[self._place])  # less the sum itself

    monkeypatch.setattr(Last, "keep", keep)
    assert replayed(correlated(FixedOrder(5), BandedToeplitz(5))).refuted


def twice(self: Any, generator: np.random.Generator, records: int, steps: int) -> Iterator[Any]:
    """A record takes part twice within the steps that take it back."""
    for step, included in enumerate(honest(self, generator, records, steps)):
        yield np.union1d(included, np.arange(min(records, 1))) if step % self.groups < 2 else included


def changing(self: Any, generator: np.random.Generator, records: int, steps: int) -> Iterator[Any]:
    """Groups drawn anew in each round."""
    for start in range(0, steps, self.groups):
        yield from honest(self, generator, records, min(self.groups, steps - start))


def outside(self: Any, generator: np.random.Generator, records: int, steps: int) -> Iterator[Any]:
    """From the second round on a record may take the place of another one, of another group."""
    for step, included in enumerate(honest(self, generator, records, steps)):
        yield np.union1d(included[1:], generator.integers(records, size=1)) if step >= self.groups and len(included) else included


def known_more_often(self: Any, generator: np.random.Generator, records: int, steps: int) -> Iterator[Any]:
    """Once a record was drawn, it is drawn with twice the chance in the turns of its group."""
    groups, seen = generator.integers(self.groups, size=records), np.zeros(records, dtype=bool)
    for step in range(steps):
        rates = np.where(seen, min(1.0, 2 * self.sampling_rate), self.sampling_rate)
        included = np.flatnonzero((groups == step % self.groups) & (generator.random(records) < rates))
        seen[included] = True
        yield included


honest = CyclicPoisson.indices


@pytest.mark.fast_cases("changing")
@pytest.mark.parametrize("draws", [twice, changing, outside])
def test_records_that_do_not_keep_their_group_are_found(draws: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CyclicPoisson, "indices", draws)
    result = replayed(correlated())
    assert result.refuted and any("rule out" in text for text in result.findings)


def test_records_of_a_known_group_that_are_drawn_more_often_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first time that each is drawn says nothing: later turns do."""
    made = correlated(CyclicPoisson(0.3, GROUPS), steps=40)
    assert replayed(made).verdict == "consistent"
    monkeypatch.setattr(CyclicPoisson, "indices", known_more_often)
    result = replayed(made)
    assert result.refuted and result.details["kinds"] == ["draws"], str(result)


def test_groups_that_are_drawn_at_another_rate_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def often(self: Any, generator: np.random.Generator, records: int, steps: int) -> Iterator[Any]:
        yield from honest(CyclicPoisson(min(0.99, 2 * self.sampling_rate), self.groups), generator, records, steps)

    def tested(indices: Any) -> DrawsTested:
        monkeypatch.setattr(CyclicPoisson, "indices", indices)
        runs = []
        for _ in range(2):
            recorder = Recorder()
            channel = Channel.open(recorder)
            channel.charge(SelfComposed(CyclicSampled(0.2, Gaussian(2.0), 3), 4), "test")
            list(channel.draw(CyclicPoisson(0.2, 3), 2000, 12))
            runs.append(recorder.recording.drawn)
        return DrawsTested.of(runs)

    assert tested(honest).findings == () and tested(honest).rates["cyclic"] is not None
    assert tested(often).findings


def often(self: Any, generator: np.random.Generator, records: int, steps: int) -> Iterator[Any]:
    yield from honest(CyclicPoisson(0.9, self.groups), generator, records, steps)


@pytest.mark.parametrize(("draws", "text"), [(honest, ""), (changing, "rule out"), (often, "drawn"), (known_more_often, "drawn")])
def test_canaries_of_a_cyclic_run_take_turns(draws: Any, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CyclicPoisson, "indices", draws)
    rng, problem = np.random.default_rng(0), objective()
    records = problem.records(rng.normal(size=(60, 3)), np.sign(rng.normal(size=60)))
    result = white_box(correlated(steps=22), problem, records, delta=DELTA, canaries=200)
    assert result.verdict == ("refuted" if text else "consistent"), str(result)
    assert text in " ".join(result.findings)


# Noise


def test_the_noise_of_a_run_is_correlated_as_its_strategy_says() -> None:
    """Over many seeds, on records that give nothing: Ĝ = C⁻¹Z."""
    made, problem = correlated(CyclicPoisson(0.1, 3), BandedToeplitz(3), steps=6), LinearObjective(Logistic(), 3, public_size=60)
    records, runs = problem.records(np.zeros((60, 3)), np.ones(60)), []
    seeds = 150
    for seed in range(seeds):
        channel = Channel.open(seed)
        channel.charge(made.event(ADD), "test")
        gradients = made.gradients(problem, records, channel)
        runs.append(np.stack([gradients(np.zeros(3)) for _ in range(6)]))
    noise = np.stack(runs) * made.expected_batch_size / (2.0 * made.joint_sensitivity(0.3, 2.0, 3))
    found = np.einsum("rti,rsi->ts", noise, noise) / (seeds * 3)
    inverse = np.linalg.inv(made.correlation.matrix(6))
    expected = inverse @ inverse.T
    spread = np.sqrt((np.outer(np.diag(expected), np.diag(expected)) + expected**2) / (seeds * 3))
    assert np.all(np.abs(found - expected) < 5.5 * spread)


# Runs that go on


def test_a_run_that_goes_on_begins_a_round_with_nothing_kept(tmp_path: Path) -> None:
    log, made, problem = SpendLog(tmp_path / "log.db"), correlated(steps=16), objective()
    rng = np.random.default_rng(0)
    records = problem.records(rng.normal(size=(60, 3)), np.sign(rng.normal(size=60)))
    first = Channel.open(log=log)
    charge = first.charge(made.event(ADD), "test", continuable=True)
    gradients = made.gradients(problem, records, first)
    for _ in range(6):
        first.reserve(1, 16)
        gradients(np.zeros(4))
    assert gradients.public().keys() == {"strategy"} and gradients.private() == {}  # nothing that is kept is in a checkpoint
    gradients.restore(gradients.public(), {})
    with pytest.raises(ValueError, match="other numbers"):
        gradients.restore({"strategy": BandedToeplitz(3).fingerprint(16)}, {})
    again = Channel.open(log=log)
    again.resume(charge, made.event(ADD))
    start, _ = again.reserve(10, 16)
    going_on = made.gradients(problem, records, again, first=start)
    assert (start, going_on.step) == (6, 8)
    for _ in range(8):
        going_on(np.zeros(4))
    with pytest.raises((UnpaidReleaseError, StopIteration)):
        going_on(np.zeros(4))


def test_a_run_that_passes_over_steps_takes_back_nothing_of_those_before() -> None:
    """Their records have other places from then on: what they gave before would come back at a time that nobody counted."""
    made, problem = correlated(steps=16), LinearObjective(Logistic(), 3, public_size=60)
    recorder = Recorder()
    channel = Channel.open(recorder)
    channel.charge(made.event(ADD), "test")
    gradients = made.gradients(problem, problem.records(np.zeros((60, 3)), np.ones(60)), channel)  # they give nothing
    for _ in range(6):
        gradients(np.zeros(3))
    gradients.skip(1)
    assert gradients.step == 8
    for _ in range(2):
        gradients(np.zeros(3))
    taken_back = [bool(np.any(release.query)) for release in recorder.recording.releases]
    assert taken_back == [False, *[True] * 5, False, True]


def test_a_strategy_whose_blocks_may_move_more_is_not_gone_on_with() -> None:
    made, problem = correlated(FixedOrder(4), SIGNED), objective()
    channel = Channel.open()
    channel.charge(made.event(ADD), "test")
    with pytest.raises(ValueError, match="without interruptions"):
        made.gradients(problem, problem.records(np.zeros((3, 3)), np.ones(3)), channel, first=4)


def test_steps_that_are_passed_over_take_what_is_kept_with_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """A record of the last group is of the first one after them: what it moved before must not add to what it moves then."""
    places = iter([GROUPS - 1, 0] * 2)

    def placed(self: Any, generator: np.random.Generator, records: int, steps: int) -> Iterator[Any]:
        place = next(places)
        return (np.arange(step % GROUPS == place, dtype=np.intp) for step in range(steps))

    monkeypatch.setattr(CyclicPoisson, "indices", placed)
    made, problem = correlated(steps=16), objective()
    recorded: list[Any] = []
    for length in (1.0, 0.0):
        source: Any = Forced(recorded[0], np.arange(1), np.array([], dtype=np.intp)) if recorded else Recorder()
        channel = Channel.open(source)
        channel.charge(made.event(ADD), "test")
        gradients = made.gradients(problem, problem.records(np.array([[length, 0.0, 0.0]]), np.ones(1)), channel)
        for step in range(2 * GROUPS):
            if step == GROUPS:
                gradients.skip(GROUPS)
            gradients(np.zeros(4))
        recorded.append(source.recording)
    squares = [
        float(np.sum(np.square(a.query - b.query))) / a.sensitivity**2
        for a, b in zip(*(run.releases for run in recorded), strict=True)
    ]
    assert squares[GROUPS - 1] > 0.1 and sum(squares) <= 2
    with pytest.raises(ValueError, match="without interruptions"):
        signed = correlated(FixedOrder(4), SIGNED)
        channel = Channel.open()
        channel.charge(signed.event(ADD), "test")
        signed.gradients(problem, problem.records(np.zeros((3, 3)), np.ones(3)), channel).skip(4)


def test_blocks_of_a_strategy_that_goes_on_move_no_more_than_the_whole() -> None:
    rng = np.random.default_rng(3)
    for _ in range(200):
        steps = int(rng.integers(2, 30))
        strategy = BandedToeplitz(int(rng.integers(1, 12)))
        assert strategy.restarts(steps)
        period = int(rng.integers(1, 8))
        whole = strategy.matrix(steps)
        inner = sorted({int(cut) // period * period for cut in rng.integers(1, steps, size=2)} - {0})
        cuts = [0, *inner, steps]  # runs go on where a period begins
        blocks = [whole[: b - a, : b - a] for a, b in itertools.pairwise(cuts)]
        parts = [GivenMatrix.of(block).squared_sensitivity(Periodic(period), len(block)) for block in blocks]
        assert sum(parts) <= strategy.squared_sensitivity(Periodic(period), steps) * (1 + 1e-9)


# Recipes


def test_words_of_a_recipe() -> None:
    common: dict[str, Any] = {
        "noise_multiplier": 1.0, "public_size": 1000, "expected_batch_size": 50, "epochs": 4, "clipping_norm": 1.0
    }  # fmt: skip
    banded = dp_sgd(**common, correlation="banded", bands=4)
    assert banded.sampler == CyclicPoisson(0.2, 4) and banded.steps == 80
    assert banded.expected_batch_size == pytest.approx(50)
    assert dp_sgd(**common, correlation="banded", bands=1) == dp_sgd(**common)
    fixed = dp_sgd(**common, correlation="buffered", bands=2, sampling="fixed_order")
    assert fixed.sampler == FixedOrder(20) and fixed.strategy.kept(80) == 2
    assert dp_sgd(**common, bands=4) == dp_sgd(**common)
    for wrong, message in (
        ({"correlation": "banded", "bands": 4, "sampling": "truncated_poisson"}, "with correlated noise, got truncated Poisson"),
        ({"correlation": "banded"}, "bands"),
        ({"correlation": "banded", "bands": 0}, "bands"),
        ({"correlation": "none", "bands": -1}, "bands"),
        ({"correlation": "all", "bands": 3}, "correlation"),
        ({"correlation": "banded", "bands": 20}, "less than 0.05 of the records"),
        ({"correlation": "buffered", "bands": 3}, "fixed_order"),
        ({"correlation": "inverse_square_root"}, "fixed_order"),
        ({"correlation": "banded", "bands": 3, "sampling": "fixed_size"}, "got fixed size"),
    ):
        with pytest.raises(ValueError, match=message):
            dp_sgd(**common, **wrong)
