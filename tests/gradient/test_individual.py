"""Individual accounting: what records spend, what it costs, and attacks on both."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from dperm.audit import Pair, Training, replay, white_box
from dperm.gradient import SGD, IndividualPlan
from dperm.gradient.individual_accounting import IndividualGradients
from dperm.gradient.recipes import full_batch_descent, individual_descent
from dperm.mechanisms import Budget, GradientPerturbation
from dperm.objectives import LinearObjective, Logistic
from dperm.privacy import (
    BoundedSquaresGaussian,
    Composed,
    Gaussian,
    Relation,
    SelfComposed,
    affordable_steps,
    calibrate,
    epsilon,
    individual_epsilons,
)
from dperm.privacy.accountants.pld import pld_epsilon_and_doubt
from dperm.privacy.accountants.rdp import rdp
from dperm.release import Channel, GaussianNoise, Noise, SpendLog
from dperm.release.grid import Grid
from dperm.torch import PrivateTrainer
from helpers.asked import Asked, moves
from helpers.oracle import cross_entropy

N, STEPS = 60, 12
PLAN = IndividualPlan(0.5, 3.0, STEPS, 3.5, SGD(0.5), N)


def objective(relation: str = "add_or_remove_one", **settings: Any) -> LinearObjective:
    return LinearObjective(Logistic(), 4, public_size=N, relation=relation, intercept_scale=0.5, **settings)


def data(seed: int = 0, size: int = N) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(size, 4)) * rng.uniform(0.01, 1, size=(size, 1)), np.where(rng.random(size) < 0.5, 1.0, -1.0)


def started(plan: IndividualPlan, problem: LinearObjective, records: Any, seed: int = 1) -> IndividualGradients:
    channel = Channel.open(seed)
    channel.charge(plan.event(problem.relation), "test")
    made = plan.gradients(problem, records, channel)
    assert isinstance(made, IndividualGradients)
    return made


# What it costs


def test_the_event_is_one_gaussian() -> None:
    event = BoundedSquaresGaussian(3.0, 100, 4.0)
    assert event.whole == Gaussian(1.5)
    assert epsilon(event, 1e-5) == pytest.approx(epsilon(Gaussian(1.5), 1e-5), rel=1e-9)
    assert pld_epsilon_and_doubt(event, 1e-5, 1e-3)[0] == pytest.approx(epsilon(Gaussian(1.5), 1e-5), rel=1e-2)
    assert rdp(event, np.array([2.0, 8.0])) == pytest.approx(rdp(SelfComposed(Gaussian(3.0), 4), np.array([2.0, 8.0])))
    together = Composed((event, SelfComposed(Gaussian(3.0), 5)))
    assert epsilon(together, 1e-5) == pytest.approx(epsilon(SelfComposed(Gaussian(3.0), 9), 1e-5), rel=1e-9)
    with pytest.raises(ValueError, match="at most steps"):
        BoundedSquaresGaussian(3.0, 4, 4.5)


def test_a_part_of_a_run_costs_no_more_than_its_steps() -> None:
    add = Relation.ADD_OR_REMOVE_ONE
    assert PLAN.event(add) == BoundedSquaresGaussian(3.0, 12, 3.5)
    assert PLAN.event(add, 0, 2) == BoundedSquaresGaussian(3.0, 2, 2.0)
    assert PLAN.event(add, 4) == BoundedSquaresGaussian(3.0, 8, 3.5)
    assert PLAN.event(add, 11) == PLAN.event(add, 6, 7) == BoundedSquaresGaussian(3.0, 1, 1.0)
    assert PLAN.event(add, 5, 5) == PLAN.event(add, 6, 5) == Composed(())


def test_the_channel_is_open_for_all_steps_and_no_more() -> None:
    problem = objective()
    gradients = started(PLAN, problem, problem.records(*data()))
    assert [str(charge.event) for charge in SpendLog.current().charges()] == [str(PLAN.event(problem.relation))]
    for _ in range(STEPS):
        gradients(np.zeros(5))
    with pytest.raises((RuntimeError, StopIteration)):
        gradients(np.zeros(5))
    with pytest.raises(RuntimeError, match="not paid for"):
        gradients.channel.release(np.zeros(5), GaussianNoise(0.5, 3.0))


def test_the_gaussian_filter_affords_more_than_the_renyi_filter() -> None:
    for target, delta in ((0.1, 1e-6), (1.0, 1e-5), (8.0, 1e-5)):
        gaussian = affordable_steps(10.0, target, delta)
        assert epsilon(SelfComposed(Gaussian(10.0 / np.sqrt(gaussian)), 1), delta) == pytest.approx(target, rel=1e-6)
        assert 0.5 * gaussian < affordable_steps(10.0, target, delta, filter="renyi") < gaussian
    with pytest.raises(ValueError, match="filter"):
        affordable_steps(10.0, 1.0, 1e-5, filter="zcdp")  # not one of them


def test_epsilons_of_records() -> None:
    found = individual_epsilons(np.array([0.0, 1.0, 4.0]), 2.0, 1e-5)
    assert found[0] == 0
    assert found[2] == pytest.approx(epsilon(Gaussian(1.0), 1e-5), rel=1e-6)
    assert 1.0 <= found[1] / epsilon(Gaussian(2.0), 1e-5) < 1.01
    assert (individual_epsilons(np.zeros(3), 2.0, 1e-5) == 0).all()
    for wrong in (np.nan, -1.0, np.inf):
        with pytest.raises(ValueError, match="finite and not negative"):
            individual_epsilons(np.array([wrong]), 2.0, 1e-5)


# What runs


@pytest.mark.parametrize("relation", ["add_or_remove_one", "replace_one"])
def test_with_all_steps_affordable_it_is_full_batch_descent_number_by_number(relation: str) -> None:
    problem = objective(relation)
    common: dict[str, Any] = {
        "noise_multiplier": 2.0,
        "public_size": N,
        "steps": STEPS,
        "clipping_norm": 0.05,
        "update": SGD(0.5),
    }
    ran = []
    for plan in (individual_descent(full_steps=STEPS, **common), full_batch_descent(**common)):
        release = GradientPerturbation(budget=Budget(1e-5), plan=plan).release(problem, problem.records(*data()), Channel.open(3))
        ran.append((release.theta, release.certificate.epsilon))
    assert ran[0][0] == pytest.approx(ran[1][0], abs=1e-15)
    assert ran[0][1] == pytest.approx(ran[1][1], rel=1e-12)


def test_records_spend_what_their_gradients_cost_and_are_then_silent() -> None:
    """Rows of the largest norm pulled both ways: gradients of 1/2, all of C, while θ stays at 0."""
    problem = LinearObjective(Logistic(), 1, public_size=4)
    rows, targets = np.array([[1.0], [1.0], [0.1], [0.0]]), np.array([1.0, -1.0, 1.0, 1.0])
    gradients = started(replace(PLAN, clipping_norm=0.5, full_steps=3.5), problem, problem.records(rows, targets))
    spent = []
    for _ in range(6):
        gradients(np.zeros(1))
        spent.append(gradients.spent_by_record.copy())
    long = np.array([step[0] for step in spent])
    assert long[:3] == pytest.approx([1, 2, 3], abs=1e-5)
    assert long[3] == pytest.approx(3.5, rel=1e-4)
    assert long[5] <= 3.5
    assert spent[5][1] == spent[5][0]  # the other one was as long
    assert spent[5][2] == pytest.approx(6 * 0.1**2, rel=1e-2)
    assert spent[5][3] < 1e-6
    assert len(gradients.private()["spent_by_record"]) == 4


@pytest.mark.parametrize("norm", [1e-7, 1e-4, 1e-3, 0.03, 0.15, 0.5, 1.0])
def test_a_record_spends_the_square_of_what_it_moves_however_little_that_is(norm: float) -> None:
    """Two runs, with the record and without it, are answered alike: the distance between their queries is all that it moves."""
    problem = LinearObjective(Logistic(), 4, public_size=N)
    rows, targets = data()
    rows[0] = [norm, 0.0, 0.0, 0.0]
    spent: list[float] = []

    def run(first: int) -> Any:
        def descend(source: Asked) -> None:
            channel = Channel.open(source)
            channel.charge(PLAN.event(problem.relation), "test")
            gradients: Any = PLAN.gradients(problem, problem.records(rows[first:], targets[first:]), channel)
            theta = np.zeros(4)
            for _ in range(STEPS):
                theta = theta - 0.01 * gradients(theta)
            spent.append(float(gradients.spent_by_record[0]))

        return descend

    squares = [moved**2 for _, moved in moves(run(0), run(1))]
    assert len(squares) == STEPS
    length = math.sqrt(sum(squares))
    assert length <= math.sqrt(spent[0]) * (1 + 1e-9)
    assert math.sqrt(spent[0]) <= 1.0001 * length + 2e-6 * math.sqrt(STEPS)  # what a step adds for rounding
    assert spent[0] > 0


@dataclass
class Rounds(Asked):
    """Notes queries as they are released: rounded to the grid."""

    def noisy(self, query: Any, noise: Noise) -> Any:
        return super().noisy(np.rint(np.asarray(query) / noise.step) * noise.step, noise)


@pytest.mark.parametrize("moved", [[9.5, 0.0, 0.0, 0.0], [5.5, -5.5, 5.5, 5.5], [40.2, 0.0, 30.2, 0.0]], ids=str)
def test_a_record_spends_what_rounding_to_the_grid_makes_of_its_gradients(moved: list[float]) -> None:
    """Gradients of a few steps of the grid, `moved`: each number of the rounded query moves by a whole number of steps, up or
    down by what the other records say. Whatever that is, the record pays for it."""
    problem = LinearObjective(Logistic(), 4, public_size=N)
    step = Grid.of(PLAN.clipping_norm, PLAN.noise_multiplier * PLAN.clipping_norm, 4).step
    ratios = []
    for seed in range(25):
        rows, targets = data(seed)
        rows[0] = -2 * step * targets[0] * np.array(moved)  # slopes are 1/2 at θ = 0
        queries, spent = [], 0.0
        for first in (1, 0):
            source = Rounds()
            channel = Channel.open(source)
            channel.charge(PLAN.event(problem.relation), "test")
            gradients: Any = PLAN.gradients(problem, problem.records(rows[first:], targets[first:]), channel)
            gradients(np.zeros(4))
            queries.append(source.questions[0])
            spent = float(gradients.spent_by_record[0])
        length = float(np.linalg.norm(queries[1].query - queries[0].query)) / queries[0].sensitivity
        assert length <= math.sqrt(spent)
        ratios.append(length / (float(np.linalg.norm(moved)) * step / queries[0].sensitivity))
    assert max(ratios) > 1.002  # some of them are rounded apart


@pytest.mark.parametrize("relation", ["add_or_remove_one", "replace_one"])
def test_no_record_overspends_whatever_it_does(relation: str) -> None:
    """Adversarial θ: every step far out in another direction, where gradients are as long as they can be, or tiny."""
    problem, rng = objective(relation), np.random.default_rng(0)
    gradients = started(PLAN, problem, problem.records(*data()))
    before = gradients.spent_by_record.copy()
    for step in range(STEPS):
        gradients(rng.normal(size=5) * 10.0 ** (step % 5))
        assert (gradients.spent_by_record >= before).all() and (gradients.spent_by_record <= PLAN.full_steps).all()
        before = gradients.spent_by_record.copy()
    assert gradients.spent_by_record.max() > PLAN.full_steps * 0.99


@pytest.mark.fast_cases("0.3-replace_one", "3.5-add_or_remove_one")
@pytest.mark.parametrize("relation", ["add_or_remove_one", "replace_one"])
@pytest.mark.parametrize("full", [0.3, 1.0, 3.5, 12.0])
def test_replay_holds_it_to_its_steps_and_its_budgets(relation: str, full: float) -> None:
    mechanism = GradientPerturbation(budget=Budget(1e-5), plan=replace(PLAN, full_steps=full))
    found = replay(Training.of_mechanism(mechanism, objective(relation)))
    assert found.verdict == "consistent", str(found)


class Forgetful(IndividualGradients):
    """Planted: forgets what records have spent."""

    def __call__(self, theta: Any) -> Any:
        self.spent_by_record[:] = 0
        return super().__call__(theta)


class ByMean(IndividualGradients):
    """Planted: charges each record the batch's mean, as if others' gradients were its own."""

    def _affordable(self, at_theta: Any, spent: Any) -> Any:
        mine = spent.copy()
        total = super()._affordable(at_theta, mine)
        spent += (mine - spent).mean()
        return total


class Linear(IndividualGradients):
    """Planted: charges lengths where squares are due, in a budget that is stated in squares: less than is spent where C is not
    reached is fine, but what is left is read as a length, too."""

    def _affordable(self, at_theta: Any, spent: Any) -> Any:
        mine = spent.copy()
        total = super()._affordable(at_theta, mine)
        spent += (mine - spent) ** 2
        return total


@pytest.mark.fast_cases("Linear")
@pytest.mark.parametrize("defect", [Forgetful, ByMean, Linear])
def test_planted_defects_are_refuted(defect: type[IndividualGradients]) -> None:
    planted = type("Planted", (IndividualPlan,), {"run": defect})(**vars(replace(PLAN, clipping_norm=1.0)))
    found = replay(Training.of_mechanism(GradientPerturbation(budget=Budget(1e-5), plan=planted), objective()))
    assert found.refuted and "individual budget" in found.details["kinds"], str(found)


def test_the_white_box_audit_runs_it() -> None:
    problem = objective()
    found = white_box(PLAN, problem, problem.records(*data()), delta=1e-5, canaries=40)
    assert found.verdict == "consistent", str(found)


def test_a_record_more_changes_nobody_elses_account() -> None:
    """Given the same θ: accounts are each record's own."""
    problem, (rows, targets) = objective(), data()
    pair = Pair.adding("one", (rows, targets), np.ones(4), 1.0)
    accounts = []
    for side in (pair.first, pair.second):
        gradients = started(PLAN, problem, problem.records(*side))
        for step in range(5):
            gradients(np.full(5, 0.3 * step))
        accounts.append(gradients.spent_by_record)
    assert np.array_equal(accounts[0], accounts[1][:-1])


def test_the_private_trace_is_the_data_holders_alone() -> None:
    problem = objective()
    release = GradientPerturbation(budget=Budget(1e-5), plan=PLAN).release(problem, problem.records(*data()), Channel.open())
    assert release.private[0]["spent_by_record"].shape == (N,)
    assert "spent" not in repr(release) and "spent" not in str(release.trace)


# Interrupted, and on networks


def test_lost_steps_count_in_full_and_accounts_are_kept() -> None:
    problem = objective()
    records = problem.records(*data())
    gradients = started(PLAN, problem, records)
    for _ in range(3):
        gradients(np.zeros(5))
    kept = {name: value.copy() for name, value in gradients.private().items()}
    again = started(PLAN, problem, records)
    again.skip(3)
    again.restore({}, kept)
    assert np.array_equal(again.spent_by_record, gradients.spent_by_record)
    again.skip(2)
    assert again.spent_by_record == pytest.approx(np.minimum(gradients.spent_by_record + 2, 3.5))
    with pytest.raises(ValueError, match="checkpoint is of"):
        again.restore({}, {"spent_by_record": np.zeros(3)})


def trainer(**settings: Any) -> PrivateTrainer:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    plan = settings.pop("plan", None) or functools.partial(individual_descent, steps=STEPS, full_steps=3.0, clipping_norm=0.5)
    chosen: dict[str, Any] = {"epsilon": 2.0, "delta": 1e-5, "plan": plan, "public_size": N}
    return PrivateTrainer(model, cross_entropy, torch.optim.SGD(model.parameters(), lr=0.5), **(chosen | settings))


def inputs() -> tuple[torch.Tensor, torch.Tensor]:
    rows, targets = data()
    return torch.from_numpy(rows).float(), torch.from_numpy(targets > 0).long()


def test_networks_train_within_the_filters_budget() -> None:
    run = trainer().fit(inputs())
    assert run.certificate is not None and 1.99 < run.certificate.epsilon <= 2.0
    leaf = run.certificate.event
    assert isinstance(leaf, BoundedSquaresGaussian) and (leaf.steps, leaf.full_steps) == (STEPS, 3.0)


def test_networks_with_all_steps_affordable_run_full_batch_descent() -> None:
    common: dict[str, Any] = {"steps": STEPS, "clipping_norm": 0.5}
    mine, plain = (
        trainer(plan=functools.partial(recipe, **common, **more), random_state=0, epsilon=None, noise_multiplier=2.0).fit(
            inputs()
        )
        for recipe, more in ((individual_descent, {"full_steps": STEPS}), (full_batch_descent, {}))
    )
    for a, b in zip(mine.model.parameters(), plain.model.parameters(), strict=True):
        assert torch.allclose(a, b, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_is_left_is_spent_in_single_precision_too(dtype: torch.dtype) -> None:
    run = trainer(plan=functools.partial(individual_descent, steps=STEPS, full_steps=2.5, clipping_norm=1e-3))
    run.model.to(dtype)
    x, y = inputs()
    run.fit((x.to(dtype), y))
    spent = run.private_trace["spent_by_record"]  # gradients are far longer than C: all is spent in three steps
    assert spent.max() <= 2.5 and np.median(spent) > 2.5 * (1 - 1e-4)


def test_a_network_continued_from_a_checkpoint_keeps_its_accounts(tmp_path: Path) -> None:
    run = trainer(checkpoint=tmp_path)
    for step in run.steps(inputs()):
        run.optimizer.step()
        if step.number == 5:
            run.save()
            break
    before = run.private_trace["spent_by_record"].copy()
    again = trainer(checkpoint=tmp_path)
    with pytest.warns(UserWarning, match="paid for and skipped"):
        again.fit(inputs(), resume=True)
    after = again.private_trace["spent_by_record"]
    assert (after >= before).all()
    assert (after <= 3.0).all()
    assert again.certificate.epsilon <= 2.0


@pytest.mark.parametrize("change", ["order", "a target", "an input"])
def test_accounts_are_not_given_to_other_records(tmp_path: Path, change: str) -> None:
    """Continued on shuffled records, those that had spent everything would have got others' accounts, and spent again."""
    x, y = inputs()
    run = trainer(checkpoint=tmp_path)
    for step in run.steps((x, y)):
        run.optimizer.step()
        if step.number == 5:
            run.save()
            break
    order = torch.arange(N)
    if change == "order":
        order[:2] = torch.tensor([1, 0])
    other = x[order].clone(), y[order].clone()
    if change == "a target":
        other[1][3] = 1 - other[1][3]
    if change == "an input":
        other[0][3, 0] += 1e-3
    with pytest.raises(ValueError, match="records of the checkpoint, in the same order"):
        trainer(checkpoint=tmp_path).fit(other, resume=True)


def test_a_loop_of_ones_own_that_ends_leaves_its_trained_model(tmp_path: Path) -> None:
    """The last checkpoint used to be the first."""
    run = trainer(checkpoint=tmp_path)
    for _ in run.steps(inputs()):
        run.optimizer.step()
    again = trainer(checkpoint=tmp_path)
    assert list(again.steps(inputs(), resume=True)) == []
    for a, b in zip(run.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.slow
def test_networks_are_replayed() -> None:
    from dperm.audit import network_pairs

    found = replay(
        Training.of_trainer(
            lambda source: trainer(random_state=source), inputs(), network_pairs(inputs(), Relation.ADD_OR_REMOVE_ONE, 2)
        )
    )
    assert found.verdict == "consistent", str(found)


def test_settings_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match="at most steps"):
        replace(PLAN, full_steps=13.0)
    with pytest.raises(ValueError, match="full_steps"):
        replace(PLAN, full_steps=0.0)
    noise = calibrate(lambda x: replace(PLAN, noise_multiplier=x).event(Relation.ADD_OR_REMOVE_ONE), 1.0, 1e-5)
    assert affordable_steps(noise, 1.0, 1e-5) == pytest.approx(3.5, rel=1e-5)
