"""Training in rounds: the event of a run, and the sums of local updates on linear models beside their definition."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dperm.audit import white_box
from dperm.gradient import SGD, AdaptiveClip, Clip, Constant, LocalUpdate, Plan, Poisson
from dperm.gradient.recipes import dp_fedavg
from dperm.objectives import LinearObjective, Logistic, PrivacyUnit, Softmax
from dperm.privacy import BoundedSquaresGaussian, Gaussian, PoissonSampled, Relation, SelfComposed, calibrate, epsilon

ADD, REPLACE = Relation.ADD_OR_REMOVE_ONE, Relation.REPLACE_ONE
RNG = np.random.default_rng(0)
CLIENTS, MOST = 9, 4
GROUPS = np.repeat(np.arange(CLIENTS), [4, 1, 2, 3, 4, 1, 4, 2, 3])
ROWS = RNG.normal(size=(len(GROUPS), 3)) / 2
SIGNS = np.where(RNG.random(len(GROUPS)) < 0.5, 1.0, -1.0)


def recipe(noise_multiplier: float = 1.0, **changes: Any) -> Plan:
    settings: dict[str, Any] = {
        "public_size": 1000,
        "expected_cohort": 50,
        "rounds": 100,
        "local_steps": 5,
        "local_learning_rate": 0.1,
        "clipping_norm": 0.5,
    }
    return dp_fedavg(noise_multiplier=noise_multiplier, **(settings | changes))


@pytest.mark.parametrize("relation", [ADD, REPLACE])
def test_a_run_costs_what_so_many_poisson_sampled_gaussians_cost(relation: Relation) -> None:
    """Whatever clients do: how many local steps, of which size, with which server optimiser."""
    charged = SelfComposed(PoissonSampled(0.05, Gaussian(1.3, relation)), 100)
    for changes in ({}, {"local_steps": 50, "local_batch_size": 8, "local_momentum": 0.9}, {"update": SGD(0.3, 0.9)}):
        assert recipe(1.3, **changes).event(relation) == charged
    noise = calibrate(lambda x: recipe(x).event(relation), 3.0, 1e-5)
    direct = calibrate(lambda x: SelfComposed(PoissonSampled(0.05, Gaussian(x, relation)), 100), 3.0, 1e-5)
    assert noise == direct
    assert epsilon(recipe(noise).event(relation), 1e-5) == pytest.approx(3.0, rel=1e-3)


def test_groups_that_take_turns_are_charged_without_amplification() -> None:
    """100 rounds of 20 groups: each client takes part in five, whatever anybody knows of its group."""
    plan = recipe(2.0, sampling="fixed_order")
    assert plan.event(ADD) == BoundedSquaresGaussian(2.0, 100, 5.0, ADD)
    assert epsilon(plan.event(ADD), 1e-5) == pytest.approx(epsilon(SelfComposed(Gaussian(2.0, ADD), 5), 1e-5), rel=1e-6)
    assert plan.expected_batch_size == 50


def problem(loss: Any = None, unit: PrivacyUnit | None = None, **changes: Any) -> LinearObjective:
    settings: dict[str, Any] = {"intercept_scale": 0.5, "public_size": CLIENTS, "unit": unit or PrivacyUnit(MOST)}
    return LinearObjective(loss or Logistic(), 3, **(settings | changes))


def moved_by_hand(objective: LinearObjective, theta: Any, rows: Any, signs: Any, local: LocalUpdate) -> Any:
    """θ − θ' of one client, by the objective's own gradients of one row at a time."""
    alone = replace(objective, unit=PrivacyUnit())
    mine, velocity = theta.copy(), 0.0
    for _ in range(local.local_steps):
        (batch,) = alone.records(rows, signs).batches()
        velocity = local.momentum * velocity + alone.plain_gradient(mine, batch) / len(signs)
        mine = mine - local.learning_rate * velocity
    return theta - mine


@pytest.mark.parametrize("loss", [Logistic(), Softmax(3)], ids=["logistic", "softmax"])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_each_client_s_vector_is_its_own_local_descent(loss: Any, momentum: float) -> None:
    objective, local = problem(loss), LocalUpdate(3, 0.7, momentum=momentum)
    theta = RNG.normal(size=objective.dimension)
    targets = SIGNS if loss.outputs == 1 else np.arange(len(SIGNS)) % 3 * 1.0
    (batch,) = objective.records(ROWS, targets, groups=GROUPS).batches()
    found = local.at(objective, theta, batch)
    total = np.zeros(objective.dimension)
    for client in range(CLIENTS):
        mine = client == GROUPS
        expected = moved_by_hand(objective, theta, ROWS[mine], targets[mine], local)
        alone = found.weighted_sum(np.eye(CLIENTS)[client])
        assert alone == pytest.approx(expected, abs=1e-5)
        assert found.norms[client] == pytest.approx(float(np.linalg.norm(expected)), abs=1e-5)
        total += expected * min(1.0, 0.1 / float(np.linalg.norm(expected)))
    assert Clip(0.1).query(found, {}) == pytest.approx(total, abs=1e-5)


def test_what_a_client_adds_is_the_same_to_the_last_digit_whoever_else_is_there() -> None:
    objective, local = problem(), LocalUpdate(4, 3.0)
    theta = RNG.normal(size=objective.dimension)

    def query(clients: list[int]) -> Any:
        mine = np.isin(GROUPS, clients)
        (batch,) = objective.records(ROWS[mine], SIGNS[mine], groups=GROUPS[mine]).batches()
        return Clip(0.2).query(local.at(objective, theta, batch), {})

    everyone = query(list(range(CLIENTS)))
    for client in range(CLIENTS):
        others = query([other for other in range(CLIENTS) if other != client])
        assert np.array_equal(everyone - others, query([client]))


@pytest.mark.parametrize("clients", [[], [3]], ids=["nobody", "one without rows"])
@pytest.mark.parametrize("unit", [PrivacyUnit(), PrivacyUnit(MOST)], ids=["records", "clients"])
def test_a_round_with_nobody_is_ordinary(unit: PrivacyUnit, clients: list[int]) -> None:
    """Found by replay: it raised after the charge."""
    objective = problem(unit=unit)
    rows = ROWS.copy()
    rows[GROUPS == 3] = np.nan
    records = objective.records(rows, SIGNS, groups=GROUPS if unit.several_rows else None)
    for theta in (np.ones(objective.dimension), np.ones((2, objective.dimension))):
        batch = records.take(np.array(clients if unit.several_rows else np.flatnonzero(np.isin(GROUPS, clients)), dtype=np.intp))
        batch.included = None if theta.ndim == 1 else np.ones((2, len(batch.targets)), dtype=bool)
        query = Clip(0.2).query(LocalUpdate(2, 0.5).at(objective, theta, batch), {})
        assert query.shape == theta.shape and not query.any()


@pytest.mark.parametrize("row", [np.full(3, np.nan), np.full(3, np.inf), np.full(3, 1e300)], ids=["nan", "inf", "huge"])
def test_a_client_that_is_not_finite_counts_as_zero(row: Any) -> None:
    objective = problem()
    rows = ROWS.copy()
    rows[GROUPS == 2] = row
    (batch,) = objective.records(rows, SIGNS, groups=GROUPS).batches()
    for rate in (0.5, 1e200):  # which leaves the range of doubles
        found = LocalUpdate(3, rate).at(objective, np.zeros(objective.dimension), batch)
        assert np.isfinite(found.norms).all() and found.norms[2] == 0
        query = Clip(0.2).query(found, {})
        assert np.isfinite(query).all() and float(np.linalg.norm(query)) <= 0.2 * CLIENTS


def test_local_batches_of_linear_models_are_refused_before_a_charge() -> None:
    with pytest.raises(ValueError, match="all rows of a client"):
        Plan(Poisson(0.5), Clip(1.0), Constant(1.0), SGD(1.0), 3, CLIENTS, query=LocalUpdate(2, 0.1, batch_size=2)).refuse(
            problem()
        )


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"clipping_norm": None}, "exactly one of clipping_norm and bounding"),
        ({"bounding": AdaptiveClip(0.1)}, "exactly one of clipping_norm and bounding"),
        ({"local_steps": 0}, "local_steps"),
        ({"local_learning_rate": -1.0}, "learning_rate"),
        ({"local_learning_rate": math.nan}, "learning_rate"),
        ({"local_batch_size": 0}, "batch_size"),
        ({"local_momentum": 1.0}, "momentum"),
        ({"expected_cohort": 0}, "expected_cohort"),
        ({"rounds": 2.5}, "rounds"),
        ({"sampling": "first to answer"}, "sampling"),
        ({"sampling": "rows"}, "clients"),
        ({"sampling": "fixed_order", "expected_cohort": 900}, "expected_cohort of at most 666"),
        ({"sampling": "balls_and_bins", "rounds": 30}, "a multiple of 20"),
    ],
)
def test_settings_without_meaning_are_refused(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        recipe(**changes)


def test_canaries_see_the_noise_that_is_charged() -> None:
    """A client may reply with anything: one whose update lies in coordinates of its own, in every round that it is drawn in."""
    objective = problem(public_size=20, unit=PrivacyUnit(2))
    plan = recipe(1.0, public_size=20, rounds=8, expected_cohort=6)
    rows, labels = np.repeat(ROWS[:20], 2, axis=0), np.repeat(SIGNS[:20], 2)
    records = objective.records(rows, labels, groups=np.repeat(np.arange(20), 2))
    result = white_box(plan, objective, records, delta=1e-5, canaries=2000)
    assert result.verdict == "consistent", str(result)
    ratio, error = (result.details[name] for name in ("signal_to_claimed_signal", "standard_error"))
    assert error < 0.03 and abs(ratio - 1) < 5 * error
