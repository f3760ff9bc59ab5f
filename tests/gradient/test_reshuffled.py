"""Reshuffled epochs: a record's steps are as far apart as is charged, whatever coins fall, and batches mix."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from dperm.audit import AuditResult, Training, replay, white_box
from dperm.estimators import DPLogisticRegression
from dperm.gradient import Clip, FixedOrder, Plan, Reshuffled
from dperm.gradient.correlation import Apart, Independent, Periodic, Strategy
from dperm.gradient.correlation.banded_toeplitz import BandedToeplitz
from dperm.gradient.correlation.buffered import Buffered
from dperm.gradient.correlation.given_matrix import GivenMatrix
from dperm.gradient.recipes import dp_sgd
from dperm.mechanisms import Budget, CorrelatedGradient, GradientPerturbation
from dperm.privacy import BoundedSquaresGaussian
from dperm.release import Channel
from dperm.release.draws import Indices
from helpers.catalogue.common import ADD, DELTA, REPLACE, objective, plan


def made(sampler: Any = None, strategy: Strategy | None = None, **changes: Any) -> Plan:
    parts: dict[str, Any] = {"sampler": sampler or Reshuffled(5, 3), "correlation": strategy or BandedToeplitz(3)}
    return plan(2.0, bounding=Clip(0.3), **parts, **changes)


def replayed(mine: Plan) -> AuditResult:
    return replay(Training.of_mechanism(GradientPerturbation(budget=Budget(DELTA), plan=mine), objective()))


def patterns_of(sampler: Reshuffled, records: int, steps: int, seed: int) -> list[tuple[int, ...]]:
    drawn = list(sampler.indices(np.random.default_rng(seed), records, steps))
    return [tuple(step for step, included in enumerate(drawn) if record in included) for record in range(records)]


# Draws


@pytest.mark.parametrize(("batches", "separation"), [(2, 1), (2, 2), (5, 1), (5, 3), (5, 4), (5, 5), (9, 4)])
def test_a_record_takes_part_as_is_charged_whatever_coins_fall(batches: int, separation: int) -> None:
    sampler = Reshuffled(batches, separation)
    nearest = 2 * batches
    for steps in (batches, 6 * batches, 6 * batches + 1):
        for pattern in patterns_of(sampler, 300, steps, seed=steps):
            assert sampler.participation.admits(pattern)
            assert len({step // batches for step in pattern}) == len(pattern) >= steps // batches
            nearest = min([nearest, *(later - earlier for earlier, later in itertools.pairwise(pattern))])
    assert nearest == separation


@pytest.mark.parametrize("turn", range(8))
@pytest.mark.parametrize(("batches", "separation"), [(2, 1), (5, 3), (5, 5), (9, 4)])
def test_audits_put_records_where_they_may_be_as_near_to_each_other_as_they_may(batches: int, separation: int, turn: int) -> None:
    sampler = Reshuffled(batches, separation)
    pattern = tuple(step for step in range(4 * batches) if sampler.takes_part(step, turn))
    assert sampler.participation.admits(pattern) and len(pattern) == 4
    assert pattern[1] - pattern[0] == separation


def test_batches_mix_and_stay_of_one_expected_size() -> None:
    batches, records = 10, 20_000
    drawn = list(Reshuffled(batches, 5).indices(np.random.default_rng(0), records, 6 * batches))
    assert max(abs(len(included) - records / batches) for included in drawn) < 6 * np.sqrt(records / batches)
    first = drawn[4]
    left = [len(np.intersect1d(first, later)) / len(first) for later in drawn[batches + 4 :: batches]]
    assert left[0] < 0.25 and left[-1] == pytest.approx(0.1, abs=0.03)  # as if drawn anew


@pytest.mark.parametrize("bad", [(5, 0), (5, 6), (1, 1), (5, 2.5)])
def test_numbers_that_make_no_epochs_are_refused(bad: tuple[Any, Any]) -> None:
    with pytest.raises(ValueError, match="Expected"):
        Reshuffled(*bad)


# Charges


def test_strategies_of_no_more_bands_than_steps_between_cost_their_largest_column_for_each_epoch() -> None:
    strategy = BandedToeplitz(3)
    column = float(np.sum(strategy.coefficients(20) ** 2))
    assert strategy.squared_sensitivity(Reshuffled(5, 3).participation, 20) == pytest.approx(4 * column)
    wider = BandedToeplitz(5)
    assert wider.squared_sensitivity(Reshuffled(5, 3).participation, 20) > 1.05 * wider.squared_sensitivity(Periodic(5), 20)
    assert made().event(ADD) == BoundedSquaresGaussian(2.0, 20, 1.0)
    assert made(strategy=Independent()).event(REPLACE, 3, 6) == BoundedSquaresGaussian(2.0, 3, 2.0, REPLACE)


def test_replay_refutes_a_charge_as_if_records_kept_their_places(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = made(strategy=BandedToeplitz(5))
    assert replayed(mine).verdict == "consistent"
    monkeypatch.setattr(Reshuffled, "participation", Periodic(5))
    assert replayed(mine).refuted


def nearer(self: Reshuffled, generator: np.random.Generator, places: Indices) -> Indices:
    return honest(Reshuffled(self.batches, self.separation - 1), generator, places)


def by_rank(self: Reshuffled, generator: np.random.Generator, places: Indices) -> Indices:
    """In the order of the data set, as loaders without shuffling read it."""
    return np.arange(len(places)) * self.batches // len(places)


def by_number(self: Reshuffled, generator: np.random.Generator, places: Indices) -> Indices:
    """Moved by one step for each record that there is, as far as that is admitted."""
    moved = (places + len(places)) % self.batches
    return np.where(moved >= places - self.loose, moved, places)


honest = Reshuffled.next_places


@pytest.mark.fast_cases("by_rank")
@pytest.mark.parametrize("law", [nearer, by_rank, by_number])
def test_places_that_are_drawn_otherwise_are_found(law: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert replayed(made()).verdict == "consistent"
    monkeypatch.setattr(Reshuffled, "next_places", law)
    result = replayed(made())
    assert result.refuted and "draws" in result.details["kinds"], str(result)


def test_the_white_box_tests_places_too(monkeypatch: pytest.MonkeyPatch) -> None:
    mine, problem, rng = made(strategy=Independent()), objective(), np.random.default_rng(0)
    records = problem.records(rng.normal(size=(60, 3)), np.sign(rng.normal(size=60)))
    assert white_box(mine, problem, records, delta=DELTA, canaries=100).verdict == "consistent"
    monkeypatch.setattr(Reshuffled, "next_places", nearer)
    result = white_box(mine, problem, records, delta=DELTA, canaries=100)
    assert result.refuted and any("rule out" in text for text in result.findings)


# Runs that go on


def test_a_record_moves_no_more_where_a_run_goes_on_with_new_places() -> None:
    """By all places in both parts of a run, whichever step it was interrupted in, and random strategies."""
    rng = np.random.default_rng(0)
    for _ in range(60):
        batches = int(rng.integers(2, 5))
        separation, steps = int(rng.integers(1, batches + 1)), batches * int(rng.integers(2, 4)) - int(rng.integers(batches))
        whole = np.zeros((steps, steps))
        for lag, value in enumerate([1.0, *rng.uniform(0, 3, size=int(rng.integers(separation)))]):
            whole += value * np.eye(steps, k=-lag)
        participation = Apart(separation, period=batches)
        assert participation.restarts(separation)
        charged = GivenMatrix.of(whole).squared_sensitivity(participation, steps)
        cut = int(rng.integers(1, steps))
        begins = cut + -cut % batches
        parts = [whole[:cut, :cut], whole[begins:, begins:]]
        assert sum(most_moved(part, participation) for part in parts) <= charged * (1 + 1e-9)


def most_moved(matrix: np.ndarray, participation: Apart) -> float:
    steps, gram = range(len(matrix)), matrix.T @ matrix
    every = itertools.chain.from_iterable(itertools.combinations(steps, count) for count in range(1, len(matrix) + 1))
    return max((float(gram[np.ix_(p, p)].sum()) for p in every if participation.admits(p)), default=0.0)


@pytest.mark.parametrize(
    ("mine", "continues"),
    [
        (made(), True),
        (made(strategy=Independent()), True),
        (made(strategy=BandedToeplitz(4)), False),
        (made(strategy=Buffered(2, 3)), False),
        (made(FixedOrder(5), BandedToeplitz(4)), True),
    ],
)
def test_runs_with_more_bands_than_steps_between_are_not_gone_on_with(mine: Plan, continues: bool) -> None:
    problem = objective()
    channel = Channel.open()
    channel.charge(mine.event(ADD), "test")

    def go_on() -> int:
        return mine.gradients(problem, problem.records(np.zeros((3, 3)), np.ones(3)), channel, first=7).step

    assert mine.continues is continues
    if continues:
        assert go_on() == 10
    else:
        with pytest.raises(ValueError, match="without interruptions"):
            go_on()


# Words


def test_words_of_recipes_and_methods() -> None:
    common: dict[str, Any] = {
        "noise_multiplier": 1.0, "public_size": 1000, "expected_batch_size": 50, "epochs": 4, "clipping_norm": 1.0
    }  # fmt: skip
    mine = dp_sgd(**common, correlation="banded", bands=10, sampling="reshuffled")
    assert (mine.sampler, mine.steps, mine.expected_batch_size) == (Reshuffled(20, 10), 80, 50)
    assert mine.kind == "reshuffled, correlated noise"
    assert dp_sgd(**common, sampling="reshuffled").event(ADD) == dp_sgd(**common, sampling="fixed_order").event(ADD)
    model = DPLogisticRegression(mechanism=CorrelatedGradient(sampling="reshuffled"), public_size=2000, classes=[0, 1])
    chosen: Any = model.mechanism_for(features=5)[0]
    assert isinstance(chosen.plan.sampler, Reshuffled)
    assert chosen.plan.strategy.bands(chosen.plan.steps) == min(64, chosen.plan.sampler.separation) > 1
