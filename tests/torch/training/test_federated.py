"""Training of networks in rounds: local updates of clients, what one client can do to others, and planted defects."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from dperm.audit import Pair, Training, replay
from dperm.audit.recording import Recorder
from dperm.gradient import AdaptiveClip, Bounding, Clip, LocalUpdate, NoisyGradients, Plan
from dperm.gradient.recipes import dp_fedavg
from dperm.objectives import PrivacyUnit
from dperm.privacy import Certificate, Gaussian, PoissonSampled, Relation, SelfComposed, calibrate
from dperm.release import SpendLog
from dperm.torch import ModuleObjective, PrivateTrainer
from dperm.torch.data.units import MeanLoss, OfPersons, PersonRecords
from dperm.torch.engine import gradient_pass
from dperm.torch.engine.isolated import Evaluation, IsolatedEngine
from dperm.torch.engine.layer_taps import Tape
from dperm.torch.engine.local_training import LocalUpdates
from dperm.torch.engine.randomness import Draws
from helpers.halving import is_found, places_of

CROSS_ENTROPY = nn.CrossEntropyLoss(reduction="none")
RNG = np.random.default_rng(0)
CLIENTS, MOST = 30, 6
GROUPS = np.repeat(np.arange(CLIENTS), RNG.integers(1, 9, CLIENTS))
INPUTS = torch.from_numpy(RNG.normal(size=(len(GROUPS), 5)).astype(np.float32))
TARGETS = (INPUTS[:, 0] > 0).long()


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 2))


class Stateful(nn.Module):
    """Drops, counts what it saw in a buffer and in a list, and lets what it counted into later outputs."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.out = nn.Linear(5, 8), nn.Linear(8, 2)
        self.register_buffer("seen", torch.zeros(8))
        self.lengths: list[float] = []

    def forward(self, x: Tensor) -> Tensor:
        hidden = nn.functional.dropout(torch.tanh(self.first(x)), 0.5, self.training)
        outputs = self.out(hidden + 0.1 * self.seen + 0.01 * sum(self.lengths))
        with torch.no_grad():
            self.seen += hidden.sum(0)
            self.lengths.append(float(x.norm()))
        return outputs


RECIPE = partial(dp_fedavg, rounds=6, expected_cohort=10, local_steps=3, local_learning_rate=0.5, clipping_norm=0.3)


def trainer(model: nn.Module | None = None, plan: Any = RECIPE, **changes: Any) -> PrivateTrainer:
    model = model or network()
    settings: dict[str, Any] = {"noise_multiplier": 1.0, "delta": 1e-5, "public_size": CLIENTS, "max_rows_per_unit": MOST}
    return PrivateTrainer(model, CROSS_ENTROPY, torch.optim.SGD(model.parameters(), lr=1.0), plan, **(settings | changes))


def objective_of(model: nn.Module, rows: int = MOST) -> ModuleObjective:
    return ModuleObjective(OfPersons(model), MeanLoss(CROSS_ENTROPY), unit=PrivacyUnit(rows))


def by_hand(model: nn.Module, rows: Any, local: LocalUpdate) -> Tensor:
    """θ − θ' of one client, by an optimiser of torch's on a copy of the model."""
    mine = copy.deepcopy(model)
    optimizer = torch.optim.SGD(mine.parameters(), lr=local.learning_rate, momentum=local.momentum)
    for _ in range(local.local_steps):
        optimizer.zero_grad()
        CROSS_ENTROPY(mine(INPUTS[rows]), TARGETS[rows]).mean().backward()
        optimizer.step()
    pairs = zip(model.parameters(), mine.parameters(), strict=True)
    return torch.cat([(before - after).detach().flatten() for before, after in pairs])


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_each_client_s_vector_is_what_torch_s_own_descent_moves(momentum: float) -> None:
    model, local = network(), LocalUpdate(3, 0.5, momentum=momentum)
    records = PersonRecords((INPUTS, TARGETS), GROUPS, most=8)
    objective = objective_of(model, 8)
    before = objective.theta.clone()
    (batch,) = records.batches()
    found = local.at(objective, objective.theta, batch)
    assert torch.equal(objective.theta, before)
    for client in range(CLIENTS):
        expected = by_hand(model, client == GROUPS, local)
        alone = found.weighted_sum(torch.eye(CLIENTS)[client])
        assert torch.allclose(alone, expected, atol=2e-6)
        assert float(found.norms[client]) == pytest.approx(float(expected.norm()), rel=1e-4)


def test_local_batches_are_passes_over_a_client_s_own_rows() -> None:
    """Each row is a direction of its own, and is seen as often as in passes; which come first is drawn anew in each round."""
    rows = torch.eye(6)
    objective = ModuleObjective(
        OfPersons(nn.Linear(6, 1, bias=False)), MeanLoss(lambda outputs, targets: outputs[:, 0]), unit=PrivacyUnit(6)
    )
    (batch,) = PersonRecords((rows.reshape(1, 6, 6).expand(2, 6, 6), torch.zeros(2, 6)), None, most=6).batches()

    def seen(steps: int) -> list[float]:
        found = LocalUpdate(steps, 1.0, batch_size=2).at(objective, objective.theta, batch)
        return (2 * found.weighted_sum(torch.tensor([1.0, 0.0]))).round().tolist()

    assert seen(3) == [1.0] * 6 and seen(6) == [2.0] * 6
    firsts = {tuple(seen(1)) for _ in range(40)}
    assert len(firsts) > 5 and all(sum(first) == 2 for first in firsts)


def test_a_run_is_certified_as_so_many_sampled_gaussians_of_persons() -> None:
    run = trainer(noise_multiplier=None, epsilon=3.0).fit((INPUTS, TARGETS), groups=GROUPS, progress=False)
    certificate = run.certificate
    assert certificate is not None
    certificate.verify()
    noise = calibrate(lambda x: SelfComposed(PoissonSampled(1 / 3, Gaussian(x, Relation.ADD_OR_REMOVE_ONE)), 6), 3.0, 1e-5)
    expected = SelfComposed(PoissonSampled(1 / 3, Gaussian(noise, Relation.ADD_OR_REMOVE_ONE)), 6)
    assert certificate.event == expected and [charge.event for charge in SpendLog.current().charges()] == [expected]
    assert certificate.of_persons
    said = {assumption.key: assumption.text for assumption in certificate.assumptions}
    assert {"trusted server", "secret cohort", "public size"} <= said.keys()
    assert "a local model is trained on them" in said["rows of a person"] and "averaged" not in said["rows of a person"]
    assert "local updates" in certificate.mechanism and "McMahan" in certificate.paper


@pytest.mark.fast_cases("replaced", "one row", "in turns")
@pytest.mark.parametrize(
    ("plan", "more"),
    [
        (RECIPE, {"relation": "replace_one"}),
        (RECIPE, {"public_size": None, "noise_multiplier": None, "epsilon": 3.0}),
        (RECIPE, {"max_rows_per_unit": 1}),
        (partial(RECIPE, sampling="fixed_order"), {}),
        (partial(RECIPE, local_batch_size=2, local_momentum=0.5), {}),
        (partial(RECIPE, clipping_norm=None, bounding=AdaptiveClip(0.3)), {}),
    ],
    ids=["replaced", "private size", "one row", "in turns", "local batches", "adaptive"],
)
def test_runs_of_every_kind_train(plan: Any, more: dict[str, Any]) -> None:
    if "bounding" in plan.keywords:
        plan = partial(plan, clipping_norm=None)
    run = trainer(plan=plan, **more).fit((INPUTS, TARGETS), groups=GROUPS, progress=False)
    assert run.certificate is not None and run.certificate.of_persons
    assert run.plan is not None and run.plan.steps == 6


def test_the_mean_update_is_divided_by_the_expected_cohort_whoever_took_part() -> None:
    """All of three clients come where one is expected: three updates are divided by one; and nobody's by one, too."""

    def moved(cohort: float, clients: int) -> Tensor:
        model = network()
        mine = clients > GROUPS
        plan = partial(dp_fedavg, rounds=1, expected_cohort=cohort, local_steps=1, local_learning_rate=1.0, clipping_norm=1e3)
        run = trainer(model, plan, noise_multiplier=1e-9, public_size=3, max_rows_per_unit=8)
        before = run.objective.theta.clone()
        run.fit((INPUTS[mine], TARGETS[mine]), groups=GROUPS[mine], progress=False)
        return before - run.objective.theta

    model, local = network(), LocalUpdate(1, 1.0)
    total = sum(by_hand(model, client == GROUPS, local) for client in range(3))
    assert torch.allclose(moved(3, 3), total / 3, atol=1e-4)
    assert torch.allclose(moved(3, 2), (total - by_hand(model, GROUPS == 2, local)) / 3, atol=1e-4)


class Fails(nn.Module):
    """Fails, or is not finite, where a row says so: never among the first looks at the data."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.inner, self.how = network(), how

    def forward(self, x: Tensor) -> Tensor:
        outputs = self.inner(x)
        if bool((x.detach() > 50).any()):
            if self.how == "raises":
                raise RuntimeError("a client's own trouble")
            return outputs * (math.nan if self.how == "nan" else math.inf)
        return outputs


@pytest.mark.fast_cases("raises", "nan")
@pytest.mark.parametrize("how", ["raises", "nan", "inf", "large"])
@pytest.mark.filterwarnings("ignore:.*one record at a time")
def test_a_client_that_fails_or_is_not_finite_adds_nothing(how: str) -> None:
    inputs = INPUTS.clone()
    inputs[GROUPS == 7] = 100.0 if how != "large" else 3e38
    model = Fails(how)
    objective = objective_of(model)
    records = PersonRecords((inputs, TARGETS), GROUPS, most=MOST)
    objective.engine.charged = True
    (batch,) = records.batches()
    found = LocalUpdate(3, 0.5).at(objective, objective.theta, batch)
    query = Clip(0.3).query(found, {})
    assert torch.isfinite(query).all() and float(found.norms[7]) < 1e-15
    rest = PersonRecords((inputs[GROUPS != 7], TARGETS[GROUPS != 7]), GROUPS[GROUPS != 7], most=MOST)
    (others,) = rest.batches()
    assert torch.allclose(query, Clip(0.3).query(LocalUpdate(3, 0.5).at(objective, objective.theta, others), {}), atol=1e-6)


def test_a_run_that_was_killed_goes_on(tmp_path: Any) -> None:
    first = trainer(checkpoint=tmp_path / "run")
    for step in first.steps((INPUTS, TARGETS), groups=GROUPS):
        first.optimizer.step()  # pyright: ignore[reportOptionalMemberAccess]
        if step.number == 3:
            first.save()
            break
    again = trainer(checkpoint=tmp_path / "run").fit((INPUTS, TARGETS), groups=GROUPS, resume=True, progress=False)
    assert again.history[-1]["step"] == 6 and len(SpendLog.current().charges()) == 1


def test_disjoint_parts_of_the_clients_compose_in_parallel() -> None:
    """A model for each region: clients of one region are in no other."""
    certificates: list[Certificate] = []
    for region in range(2):
        mine = region == GROUPS % 2
        run = trainer(public_size=15, plan=partial(RECIPE, expected_cohort=5, rounds=4 + region))
        run.fit((INPUTS[mine], TARGETS[mine]), groups=GROUPS[mine], progress=False)
        assert run.certificate is not None
        certificates.append(run.certificate)
    both = Certificate.of_disjoint(certificates)
    assert both.epsilon == pytest.approx(max(each.epsilon or 0.0 for each in certificates), rel=1e-6)
    assert both.of_persons


# Neighbours, and planted defects

COUNT, ROWS = 8, 3
DATA = INPUTS[: COUNT * ROWS].reshape(COUNT, ROWS, 5), TARGETS[: COUNT * ROWS].reshape(COUNT, ROWS)
ALIKE = INPUTS[:1].expand(ROWS, 5).clone()
NOT_NUMBERS = Pair.adding("a client whose rows are not numbers", DATA, torch.full((ROWS, 5), torch.nan), DATA[1][3])
HUGE = Pair.adding("a client of huge rows", DATA, 1e4 * ALIKE, 1 - DATA[1][0])
PLAIN = Pair.adding("a client of rows alike", DATA, ALIKE, torch.ones(ROWS, dtype=torch.long))
FIRST = Pair(
    "a client put before all others",
    DATA,
    (torch.cat([ALIKE[None], DATA[0]]), torch.cat([torch.ones(1, ROWS, dtype=torch.long), DATA[1]])),
    np.arange(1, COUNT + 1, dtype=np.intp),
    np.array([0], dtype=np.intp),
)


def replaced() -> Pair:
    """A client whose labels are all exchanged: it pulls the other way."""
    inputs, targets = DATA[0].clone(), DATA[1].clone()
    inputs[-1], targets[-1] = ALIKE, 0
    return Pair.replacing("a client of the other labels", (inputs, targets), ALIKE, torch.ones(ROWS, dtype=torch.long))


PLAN = partial(
    dp_fedavg, rounds=2, expected_cohort=4, local_steps=3, local_learning_rate=0.5, local_batch_size=2, clipping_norm=0.05
)


#: every client in each round, and steps that go far: what passes from one client to others shows in every run
EVERYBODY = partial(PLAN, expected_cohort=COUNT, rounds=4, local_learning_rate=2.0)


def training(make: Callable[[], nn.Module] = network, plan: Any = PLAN, relation: str = "add_or_remove_one") -> Training:
    """A plan on one objective, whose checks before a charge are made once."""
    objective = ModuleObjective(
        OfPersons(make()), MeanLoss(CROSS_ENTROPY), relation=relation, public_size=COUNT, unit=PrivacyUnit(ROWS)
    )
    made = plan(noise_multiplier=1.0, public_size=COUNT)
    return Training.of_plan(made, objective, lambda data: PersonRecords(data, None, most=ROWS), delta=1e-5)


def front_door(make: Callable[[], nn.Module], relation: str) -> Training:
    def made(source: Any) -> PrivateTrainer:
        settings: dict[str, Any] = {"public_size": COUNT, "max_rows_per_unit": ROWS, "physical_batch_size": 16}
        return trainer(make(), PLAN, random_state=source, relation=relation, **settings)

    return Training.of_trainer(made, DATA)


@pytest.mark.fast_cases("network-add_or_remove_one", "stateful-replace_one")
@pytest.mark.parametrize("relation", ["add_or_remove_one", "replace_one"])
@pytest.mark.parametrize("make", [network, Stateful], ids=["network", "stateful"])
@pytest.mark.filterwarnings("ignore:.*one record at a time")
def test_neighbours_move_a_round_by_what_is_charged_and_no_more(make: Callable[[], nn.Module], relation: str) -> None:
    pairs = [replaced()] if relation == "replace_one" else [PLAIN, NOT_NUMBERS, HUGE, FIRST]
    result = replay(training(make, relation=relation), pairs, both_ways=False)
    assert result.verdict == "consistent", str(result)
    assert 0.9 <= result.details["movement"]["sum of local updates"] <= 1 + 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("relation", ["add_or_remove_one", "replace_one"])
@pytest.mark.parametrize("make", [network, Stateful], ids=["network", "stateful"])
@pytest.mark.filterwarnings("ignore:.*one record at a time", "ignore:The model or the loss changes model .Stateful.")
def test_neighbours_of_whole_trainers_move_as_much(make: Callable[[], nn.Module], relation: str) -> None:
    pairs = [replaced()] if relation == "replace_one" else [PLAIN, HUGE, FIRST]
    result = replay(front_door(make, relation), pairs)
    assert result.verdict == "consistent", str(result)
    assert 0.9 <= result.details["movement"]["sum of local updates"] <= 1 + 1e-6


@pytest.mark.slow  # of the same release the catalogue's test does in less time
def test_half_of_the_sensitivity_is_refuted() -> None:
    attacked = replace(training(), replay_pairs=[PLAIN])
    (place,) = places_of(attacked)
    assert is_found(attacked, place)


def refuted(pairs: Sequence[Pair], make: Callable[[], nn.Module] = network, plan: Any = PLAN) -> bool:
    return replay(training(make, plan), pairs, both_ways=False).verdict == "refuted"


def test_a_denominator_of_the_answers_received_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mean over those who came, with the sensitivity of the sum over the expected cohort."""
    sound = Clip.query

    def mean(self: Bounding, at_theta: Any, state: dict[str, float]) -> Any:
        return sound(self, at_theta, state) * (4 / max(1, len(at_theta.norms)))

    monkeypatch.setattr(Clip, "query", mean)
    others = ALIKE.expand(COUNT, ROWS, 5).clone(), torch.zeros(COUNT, ROWS, dtype=torch.long)
    against = Pair.adding("against all others", others, ALIKE, torch.ones(ROWS, dtype=torch.long))
    assert refuted([against], plan=partial(PLAN, rounds=6))


def test_a_server_that_does_not_clip_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pass holds the bound whatever the factors are: both have to fail."""
    monkeypatch.setattr(Clip, "factors", lambda self, norms: torch.ones_like(norms))
    assert not refuted([PLAIN])
    held = gradient_pass.TorchPass.weighted_sum
    monkeypatch.setattr(gradient_pass.TorchPass, "weighted_sum", lambda self, factors, bound=None: held(self, factors))
    assert refuted([PLAIN])


def test_parameters_carried_from_one_client_to_the_next_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = LocalUpdates._part

    def going_on(self: LocalUpdates, evaluation: Any, record: Any) -> Any:
        part = sound(self, evaluation, record)
        moved = torch.cat([form.dense()[0].flatten() for form in part.run.forms])
        self._start = self._start - moved
        return part

    far = partial(EVERYBODY, local_learning_rate=5.0)
    assert not refuted([FIRST], plan=far)
    monkeypatch.setattr(LocalUpdates, "_part", going_on)
    assert refuted([FIRST], plan=far)


def test_state_of_the_model_carried_from_one_client_to_the_next_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    attacked = training(Stateful, EVERYBODY)
    attacked.run(DATA, Recorder())  # with its checks before a charge
    sound = IsolatedEngine.evaluate

    def once(self: IsolatedEngine, *args: Any, **settings: Any) -> Any:
        """Put back when all clients of a round have trained, and not between them."""
        kept = self.snapshot()
        try:
            return sound(self, *args, **settings)
        finally:
            kept.restore()

    monkeypatch.setattr(IsolatedEngine, "evaluate", once)
    monkeypatch.setattr(Evaluation, "put_back", lambda self: None)
    assert replay(attacked, [FIRST], both_ways=False).verdict == "refuted"


def test_an_update_that_is_not_a_number_and_counts_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tape, "_drop", lambda self, bad: None)
    assert refuted([NOT_NUMBERS])


def test_randomness_shared_between_clients_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seeds that count the clients of a round: one more client moves those after it to other masks."""
    count: Iterator[int] = iter(())
    started = Draws.next_step

    def next_step(self: Draws) -> None:
        nonlocal count
        count = iter(range(10**9))
        started(self)

    monkeypatch.setattr(Draws, "next_step", next_step)
    monkeypatch.setattr(Draws, "seed_of_record", lambda self, name: next(count))
    assert refuted([FIRST], Stateful, EVERYBODY)


class Unsampled(NoisyGradients):
    """Charged as sampled, and run on all clients in every round."""

    def _go_on_at(self, step: int) -> None:
        super()._go_on_at(step)
        self._batches = (next(self.records.stream([None])) for _ in range(self.policy.steps))


class UnsampledPlan(Plan):
    run = Unsampled


def test_amplification_without_sampling_is_found() -> None:
    def plan(noise_multiplier: float, public_size: int) -> Plan:
        sound = PLAN(noise_multiplier=noise_multiplier, public_size=public_size)
        return UnsampledPlan(**{name: getattr(sound, name) for name in sound.__dataclass_fields__})

    assert refuted([PLAIN], plan=plan)
