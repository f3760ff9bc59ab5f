"""Algorithms as they were published, where that is not private: they run, are claimed, and the auditor refutes them. Their sound
counterparts."""

from __future__ import annotations

import contextlib
import functools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dperm._family import members
from dperm.audit import Training, attack
from dperm.estimators import DPLogisticRegression
from dperm.gradient import SGD, Plan, Policy, UnitAtLeast
from dperm.mechanisms import Budget, GradientPerturbation, Method, NormalisedGradient, TraditionalGradient
from dperm.objectives import Hinge, LinearObjective, Logistic, Softmax, Task
from dperm.privacy import Composed, Gaussian, Relation, SelfComposed, epsilon
from dperm.privacy.events import Unsupported, claims_of, leaves
from dperm.published import PidpPlan, PublishedNormalisedGradient, PublishedNormalisedPlan, PublishedPidp, pidp_sgd
from dperm.release import Channel, SpendLog
from dperm.torch import PrivateTrainer, per_example
from dperm.torch.data.records import TorchRecords
from dperm.torch.ranks.tensor_noise import open_channel
from helpers.asked import Asked, Question, moves
from helpers.said import flat

TASK = Task(loss=Logistic(), features=3, classes=2, public_size=500)
BUDGET = Budget(1e-5, 1.0)


CLAIMED: dict[str, tuple[Method, int, int]] = {  # method, records, trials
    "m-NGP": (PublishedNormalisedGradient(), 500, 1000),
    "PIDP-SGD": (PublishedPidp(epochs=1), 100, 240),  # told apart in all runs: a verdict of 240 trials needs no luck
}


def test_every_claimed_policy_is_attacked_here() -> None:
    tried: set[type[Any]] = set()
    for method, _, _ in CLAIMED.values():
        mechanism: Any = method.build(TASK, BUDGET)[0]
        tried.add(type(mechanism.plan))
    assert tried == {kind for kind in members(Policy) if kind.claim is not None}


@pytest.mark.parametrize(
    ("name", "relation"),
    [
        ("m-NGP", Relation.ADD_OR_REMOVE_ONE),
        ("m-NGP", Relation.REPLACE_ONE),
        pytest.param("PIDP-SGD", Relation.REPLACE_ONE, marks=pytest.mark.slow),
        pytest.param("PIDP-SGD", Relation.ADD_OR_REMOVE_ONE, marks=pytest.mark.slow),
    ],
)
def test_published_algorithms_are_refuted_without_hints(name: str, relation: Relation) -> None:
    """At a stated ε = 1, by the pairs that every linear objective is attacked with."""
    method, size, trials = CLAIMED[name]
    task = Task(loss=Logistic(), features=3, classes=2, public_size=size, relation=relation)
    training = Training.of_mechanism(*method.build(task, BUDGET))
    assert training.certificate.epsilon is None and training.certificate.target_epsilon == 1.0
    results = attack(training, trials=trials)
    assert any(result.refuted for result in results), "\n".join(map(str, results))
    if relation is Relation.REPLACE_ONE:
        assert results[-1].refuted and results[-1].auc > 0.95  # told apart with an advantage above 0.9


def test_a_claim_names_its_reason_and_no_epsilon() -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(500, 3))
    model = DPLogisticRegression(mechanism=PublishedNormalisedGradient(), public_size=500, classes=[False, True])
    with pytest.warns(UserWarning, match="not private at the epsilon"):
        model.fit(rows, rows[:, 0] > 0)
    certificate = model.certificate_
    assert (certificate.status, certificate.epsilon, certificate.target_epsilon) == ("claimed", None, 1.0)
    assert "normalises the mean gradient before the noise" in flat(certificate)
    with pytest.raises(ValueError, match="known number"):
        DPLogisticRegression(mechanism=PublishedNormalisedGradient(), classes=[False, True]).fit(rows, rows[:, 0] > 0)


def test_what_published_m_ngp_really_costs() -> None:
    """Its noise is that of a Gaussian mechanism on what really moves: thousands of ε."""
    mechanism, objective = PublishedNormalisedGradient().build(TASK, BUDGET)
    event = mechanism.event(objective.facts)
    assert isinstance(event, Composed) and isinstance(event.events[0], SelfComposed)
    assert epsilon(event.events[0], 1e-5) > 1000


def test_published_m_ngp_is_its_formula() -> None:
    rng = np.random.default_rng(0)
    mechanism, objective = PublishedNormalisedGradient(epochs=1, learning_rate=0.5).build(TASK, BUDGET)
    plan: Any = mechanism.plan
    assert isinstance(plan, PublishedNormalisedPlan)
    rows, targets = rng.normal(size=(500, 3)) * 0.1, np.where(rng.random(500) < 0.5, 1.0, -1.0)
    releases = [mechanism.release(objective, objective.records(rows, targets), Channel.open(seed)).theta for seed in range(200)]
    gradient = -(rows.T @ targets) / 2 / 500
    assert np.mean(releases, axis=0) == pytest.approx(-0.5 * gradient / np.linalg.norm(gradient), abs=0.01)
    claimed = plan.noise_multiplier * objective.facts.lipschitz / 500
    assert np.std(releases, axis=0).mean() == pytest.approx(0.5 * claimed, rel=0.1)


def test_the_certified_counterpart_normalises_after_the_noise_at_the_same_price() -> None:
    made = [method.build(TASK, BUDGET)[0] for method in (TraditionalGradient(), NormalisedGradient())]
    plain, normalised = (mechanism.plan for mechanism in made)
    assert isinstance(normalised, Plan) and normalised.post == UnitAtLeast()
    assert plain.steps == normalised.steps == math.ceil(math.log(500))
    facts = TASK.objective().facts
    assert made[0].event(facts) == made[1].event(facts)
    assert made[1].certificate(facts, Channel.open().provenance).status == "certified"


def question_of(policy: Any, problem: LinearObjective, sides: tuple[Any, Any]) -> tuple[Question, float, Any, Any]:
    """Of a run's first step at θ = 0, without noise: what was asked, how far the neighbour moves it, what the step gave and
    the run."""
    runs: list[tuple[Any, Any]] = []

    def first_step(records: Any) -> Any:
        def step(source: Asked) -> None:
            channel = Channel.open(source)
            channel.charge(policy.event(problem.relation), "test")
            run = policy.gradients(problem, records, channel)
            runs.append((run(np.zeros(problem.dimension)), run))

        return step

    ((question, moved),) = moves(*map(first_step, sides))
    return question, moved, *runs[0]


@pytest.mark.parametrize("relation", list(Relation))
def test_published_m_ngp_is_moved_from_one_unit_vector_to_the_other_at_the_noise_that_it_states(
    relation: Relation,
) -> None:
    """Its event is of what moves: gradients at θ = 0 are half of each row, and one record turns their mean round."""
    problem = LinearObjective(Logistic(), 1, public_size=20, relation=relation)
    plan = PublishedNormalisedPlan(0.5, 3.0, 4, SGD(0.1), 20)
    rows = np.where(np.arange(20) % 2, 1.0, -1.0)[:, None]
    rows[:2] = [[0.6], [-1.0]]  # of which the second turns the mean's sign
    without = (
        rows[np.arange(20) != 1]
        if relation is Relation.ADD_OR_REMOVE_ONE
        else rows * np.where(np.arange(20) == 1, -1, 1)[:, None]
    )
    sides = problem.records(without, np.ones(len(without))), problem.records(rows, np.ones(20))
    for _ in range(2):
        sides = sides[::-1]
        question, moved, gradient, run = question_of(plan, problem, sides)
        assert 0.9 < moved < 1
        assert moved * question.sensitivity == pytest.approx(2.0)
        claimed = 0.5 / 20 * (1 if relation is Relation.ADD_OR_REMOVE_ONE else 2)
        assert question.noise * question.sensitivity == pytest.approx(3.0 * claimed, rel=1e-5)
        assert {question.noise} == {leaf.noise_multiplier for leaf in leaves(plan.event(relation)) if isinstance(leaf, Gaussian)}
        assert np.abs(gradient).tolist() == [1.0] and run.step == 1


def test_published_m_ngp_sums_all_records_in_whatever_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mean that is longer than 1 is released as it is."""
    monkeypatch.setattr("dperm.objectives.records._CHUNK_BYTES", 1)  # batches of 64
    problem = LinearObjective(Logistic(), 1, data_norm=8.0, public_size=150, strong_convexity=30.0)
    plan = PublishedNormalisedPlan(3.0, 3.0, 1, SGD(0.1), 150)
    sizes = np.linspace(2.5, 8.0, 150)
    channel = Channel.open(Asked())
    channel.charge(plan.event(problem.relation), "test")
    found = plan.gradients(problem, problem.records(sizes[:, None], np.ones(150)), channel)(np.zeros(1))
    assert found == pytest.approx([-np.minimum(sizes / 2, 3.0).mean()], rel=1e-5)


class Uncharged(PublishedNormalisedPlan):
    """Planted: says that it is not private, and charges what would be certified."""

    def event(self, *of: Any) -> Any:
        return super().event(*of).events[0]


def test_what_is_only_claimed_is_refused_where_its_event_would_be_certified() -> None:
    problem = LinearObjective(Logistic(), 1, public_size=20)
    records = problem.records(np.ones((20, 1)), np.ones(20))
    for kind, refused in ((Uncharged, True), (PublishedNormalisedPlan, False)):
        plan = kind(0.5, 3.0, 4, SGD(0.1), 20)
        mechanism = GradientPerturbation(budget=BUDGET, plan=plan)
        with pytest.raises(TypeError, match="but not in its event") if refused else contextlib.nullcontext():
            mechanism.release(problem, records, Channel.open(0))
        assert len(SpendLog.current().charges()) == (0 if refused else 1)


@pytest.mark.parametrize("policy", [PublishedNormalisedPlan(0.5, 3.0, 12, SGD(0.1), 20), None], ids=["m-NGP", "PIDP-SGD"])
def test_parts_of_published_algorithms_are_charged_step_by_step_and_never_certified(policy: Any) -> None:
    plan, relation = policy or pidp(steps=12), Relation.REPLACE_ONE
    (noise,) = {leaf for leaf in leaves(plan.event(relation)) if isinstance(leaf, Gaussian)}
    for ends, steps in (((), 12), ((3,), 9), ((0, 4), 4), ((4, 5), 1)):
        assert leaves(plan.event(relation, *ends)) == {noise: steps, Unsupported(plan.claim, relation): 1}
        assert claims_of(plan.event(relation, *ends)) == [plan.claim]
    assert leaves(plan.event(relation, 4, 4)) == leaves(plan.event(relation, 5, 4)) == {}


# PIDP-SGD


def pidp(**settings: Any) -> PidpPlan:
    return pidp_sgd(**({"epsilon": 1.0, "delta": 1e-5, "public_size": 400, "steps": 50} | settings))


def test_noise_and_limits_of_pidp_sgd_are_the_papers() -> None:
    plan, smoothness = pidp(epsilon=1.6, refreshes=4, modulus=0.2, space=3.0), 0.4
    first, second, half = 1.2, 0.4, 5e-6
    steep, n = 0.7, 400
    assert plan.epsilon_steps == pytest.approx(first)
    sigma = 2 * steep * math.sqrt(50 * math.log(1 / half)) / (n * first)
    for relation, ends in ((Relation.ADD_OR_REMOVE_ONE, 1), (Relation.REPLACE_ONE, 2)):
        assert plan.noise_multiplier(relation) * ends * steep == pytest.approx(sigma)
    contributions = 2 * math.sqrt(2) * math.sqrt(math.log(1.25 * 4 / half)) * steep * 4 / (n * 0.2 * second)
    assert plan.contribution_noise(steep) == pytest.approx(contributions)
    assert plan.limit == pytest.approx(2 * 3.0 * math.exp(first) * half / (math.exp(first) - 1))
    bend = 0.3
    expected = (2 * smoothness * steep + bend * steep**2 / 0.2) / (0.2**2 * n**2)
    assert plan.error(steep, smoothness, bend) == pytest.approx(expected)


def test_steps_are_noiseless_where_both_tests_pass_and_nowhere_else() -> None:
    """Against the two inequalities as they are printed, for many records, with the noise of contributions known."""
    problem = LinearObjective(Logistic(), 1, public_size=400, strong_convexity=1.0)
    rng = np.random.default_rng(0)
    records = problem.records(rng.uniform(-1, 1, size=(400, 1)), np.where(rng.random(400) < 0.5, 1.0, -1.0))
    plan = pidp(space=5000.0, steps=300, refreshes=3, modulus=3.0, update=SGD(0.5))
    channel = Channel.open(0)
    channel.charge(plan.event(Relation.ADD_OR_REMOVE_ONE), "test")
    run: Any = plan.gradients(problem, records, channel)
    seen: list[tuple[bool, bool]] = []

    class Told:
        def standard_normal(self, size: int) -> Any:
            self.drawn = rng.normal(size=size)
            return self.drawn

    run._draws = Told()
    whole = type(run)._passes

    facts = problem.facts
    error = plan.error(facts.lipschitz, facts.smoothness, problem.loss.bend(1.0))

    def checked(batches: Any) -> bool:
        passed = whole(run, batches)
        _, _, hessian = problem.evaluate(run._global, records, hessian=True)
        change = float(run._gradient(run._global, batches)[0] / (hessian[0, 0] / 400 + 1 / 400 + plan.modulus)) / 400
        change += math.copysign(error, change)
        tested = 2 * change + plan.contribution_noise(facts.lipschitz) * float(run._draws.drawn[0])
        top = 2 * 5000.0 * math.exp(0.75) * 5e-6
        near = abs(tested) < top / (math.exp(0.75) - 1)
        seen.append((passed, near and math.log(top / (top - math.expm1(0.75) * abs(tested))) <= 1.5))
        return passed

    run._passes = checked
    theta = np.zeros(1)
    for _ in range(300):
        theta = theta - 0.5 * run(theta)
    assert all(passed == expected for passed, expected in seen)
    assert 30 < sum(passed for passed, _ in seen) == len(run.private()["noiseless_steps"]) < 270


def test_a_noiseless_step_gives_its_record_away() -> None:
    """One record in 100,000, two neighbours: no noise lies between the gradient and the model, at a stated ε = 1."""
    problem = LinearObjective(Logistic(), 1, public_size=100_000, relation="replace_one")
    plan = pidp(public_size=100_000, steps=1, space=1000.0, modulus=1.0, update=SGD(1.0))
    ends = []
    for row in (0.5, -0.5):
        records = problem.records(np.full((100_000, 1), row), np.ones(100_000))
        release = GradientPerturbation(budget=BUDGET, plan=plan).release(problem, records, Channel.open(0))
        assert list(release.private[0]["noiseless_steps"]) == [0]
        ends.append(float(release.theta[0]))
    assert ends == pytest.approx([0.25, -0.25], abs=1e-5)  # half of the row: the record itself


def one_neuron() -> tuple[LinearObjective, Any, Any]:
    """Logistic regression with one feature, as a linear objective and as a network."""
    linear = LinearObjective(Logistic(), 1, public_size=400)
    model = torch.nn.Linear(1, 1, bias=False).double()
    torch.nn.init.zeros_(model.weight)

    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.softplus(-targets * outputs[:, 0])

    return linear, model, loss


NETWORK = {"space": 5000.0, "steps": 120, "refreshes": 3, "modulus": 3.0, "update": SGD(0.5), "lipschitz": (1.0, 0.25, 0.1)}


@pytest.mark.parametrize("relation", list(Relation))
def test_a_noisy_step_of_pidp_sgd_moves_by_what_its_record_may(relation: Relation) -> None:
    """By G where the one record is added, by 2G where its opposite takes its place; σ is the paper's."""
    problem = LinearObjective(Logistic(), 1, public_size=1, relation=relation, strong_convexity=2.0)
    plan = pidp(public_size=1, steps=3, space=1e-6, lipschitz=(0.25, 0.25, 0.1))  # nothing passes the test
    row = np.ones((1, 1))
    other = (-row, np.ones(1)) if relation is Relation.REPLACE_ONE else (row[:0], np.ones(0))
    question, moved, gradient, run = question_of(plan, problem, (problem.records(row, np.ones(1)), problem.records(*other)))
    assert moved == pytest.approx(1.0, rel=1e-5)
    assert question.noise * question.sensitivity == pytest.approx(2 * 0.25 * math.sqrt(3 * math.log(2e5)) / 0.75, rel=1e-5)
    assert gradient.tolist() == question.query.tolist() == pytest.approx([-0.25], rel=1e-6)
    assert run.step == 1 and not run.noiseless
    assert run(np.ones(1)) == pytest.approx([2.0 - 0.25])  # with the regulariser's part; the record's gradient is cut at 1/4
    assert (plan.rate, pidp(public_size=400).rate, plan.expected_batch_size) == (1.0, 1 / 400, 1.0)


def test_pidp_sgd_inverts_h_where_it_is_refreshed() -> None:
    """At the θ of every third step, although θ is changed in place between them."""
    problem = LinearObjective(Logistic(), 1, public_size=400)
    channel = Channel.open(0)
    plan = pidp(steps=7, refreshes=3)
    channel.charge(plan.event(problem.relation), "test")
    run: Any = plan.gradients(problem, problem.records(np.ones((5, 1)), np.ones(5)), channel)
    theta, inverted = np.zeros(1), []
    for _ in range(7):
        run(theta)
        inverted.append((float(run._global[0]), run._inverse))
        theta += 1.0
    assert [at for at, _ in inverted] == [0, 0, 0, 3, 3, 3, 6]
    assert len({id(inverse) for _, inverse in inverted}) == 3


@pytest.mark.slow
def test_a_network_of_one_neuron_is_logistic_regression_step_by_step() -> None:
    linear, model, loss = one_neuron()
    rng = np.random.default_rng(0)
    rows, targets = rng.uniform(-1, 1, size=(400, 1)), np.where(rng.random(400) < 0.5, 1.0, -1.0)
    plan, relation = pidp(**NETWORK), Relation.ADD_OR_REMOVE_ONE
    ends, noiseless = [], []
    network = per_example(model, loss, public_size=400)
    pair = (torch.from_numpy(rows), torch.from_numpy(targets))
    for problem, records in ((linear, linear.records(rows, targets)), (network, TorchRecords(pair))):
        channel = open_channel(0, torch.device("cpu"))
        channel.charge(plan.event(relation), "test")
        run: Any = plan.gradients(problem, records, channel)
        theta: Any = np.zeros(1) if problem is linear else network.theta
        for _ in range(120):
            theta = theta - 0.5 * run(theta)
        ends.append(float(theta[0]))
        noiseless.append(list(run.private()["noiseless_steps"]))
    assert noiseless[0] == noiseless[1] and 10 < len(noiseless[0]) < 110
    assert ends[0] == pytest.approx(ends[1], abs=1e-6) and abs(ends[0]) > 0.01


def trainer(model: Any, loss: Any, **settings: Any) -> tuple[PrivateTrainer, Any]:
    plan = functools.partial(pidp_sgd, **{name: value for name, value in NETWORK.items() if name != "update"})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    return PrivateTrainer(model, loss, optimizer, plan, epsilon=1.0, delta=1e-5, public_size=400, **settings), optimizer


def test_a_trainer_runs_it_claimed_and_says_so(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    data = (rng.uniform(-1, 1, size=(400, 1)), np.where(rng.random(400) < 0.5, 1.0, -1.0))
    _, model, loss = one_neuron()
    first, optimizer = trainer(model, loss, checkpoint=tmp_path / "run")
    with pytest.warns(UserWarning, match="not private at the epsilon"):
        for step in first.steps(data):
            optimizer.step()
            if step.number == 60:
                first.save()
                break
    assert first.certificate is not None
    assert (first.certificate.status, first.certificate.epsilon) == ("claimed", None)
    assert first.epsilon_spent == math.inf
    early = first.private_trace["noiseless_steps"]
    _, model, loss = one_neuron()
    again, _ = trainer(model, loss, checkpoint=tmp_path / "run")
    with pytest.warns(UserWarning, match="paid for and skipped"):
        again.fit(data, progress=False, resume=True)
    assert again.certificate is not None and again.certificate.status == "claimed"
    late = again.private_trace["noiseless_steps"]
    assert list(late[: len(early)]) == list(early) and len(late) > len(early)
    assert len(SpendLog.current().charges()) == 1


def test_published_normalisation_runs_on_networks() -> None:
    _, model, loss = one_neuron()
    mechanism: Any = PublishedNormalisedGradient().build(TASK, BUDGET)[0]
    run = PrivateTrainer(model, loss, plan=mechanism.plan, delta=1e-5, public_size=500)
    with pytest.warns(UserWarning, match="not private at the epsilon"):
        run.fit((torch.ones(500, 1).double(), torch.ones(500)), progress=False)
    assert run.certificate is not None
    assert run.certificate.status == "claimed"
    assert model.weight.item() > 0


def test_what_pidp_sgd_needs_is_asked_for_before_a_charge() -> None:
    softmax = LinearObjective(Softmax(3), 2, public_size=400)
    with pytest.raises(ValueError, match="one output"):
        GradientPerturbation(budget=BUDGET, plan=pidp()).release(softmax, softmax.records(np.eye(2), np.zeros(2)), Channel.open())
    hinge = LinearObjective(Hinge(), 2, public_size=400)
    with pytest.raises(ValueError, match="constants that are finite"):
        GradientPerturbation(budget=BUDGET, plan=pidp()).release(hinge, hinge.records(np.eye(2), np.ones(2)), Channel.open())
    _, model, loss = one_neuron()
    with pytest.raises(ValueError, match="lipschitz="):
        PrivateTrainer(model, loss, plan=pidp(), delta=1e-5, public_size=400).fit((torch.ones(400, 1).double(), torch.ones(400)))
    assert SpendLog.current().charges() == []
    with pytest.raises(ValueError, match="known number"):
        pidp_sgd(epsilon=1.0, delta=1e-5, public_size=None)
    for wrong in ((1.0, 1.0), (1.0, 0.0, 1.0), (math.inf, 1.0, 1.0)):
        with pytest.raises(ValueError, match="each of lipschitz"):
            pidp(lipschitz=wrong)
