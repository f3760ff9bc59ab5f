"""Importance sampling on networks: through the trainer, with its optimisers, batches, checkpoints and neighbours."""

from __future__ import annotations

import functools
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from dperm._random import Randomness
from dperm.audit import Training, network_pairs, replay, white_box
from dperm.audit.recording import Forced, Recorder
from dperm.gradient import SGD, AdaptiveNorm, ImportancePlan
from dperm.gradient.recipes import dpis
from dperm.privacy import BudgetExceeded, FilteredRdp, Gaussian, PoissonSampled, Relation, SelfComposed
from dperm.privacy.accountants.privacy_filters import excess
from dperm.privacy.events import leaves
from dperm.release import Channel, SpendLog
from dperm.torch import Callback, ModuleObjective, PrivateTrainer, TemperedSigmoid, TorchRecords
from dperm.torch.ranks.tensor_noise import TorchSource
from dperm.torch.training import checkpoint
from helpers.ledgers import without_parts
from helpers.oracle import cross_entropy
from helpers.told import Told

pytestmark = pytest.mark.filterwarnings("ignore:.*were reserved before an interruption")  # how many depends on the clock

N, D = 200, 5


def data(n: int = N) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, D, generator=generator)
    return x, (x[:, 0] > 0).long()


def net(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(D, 6), TemperedSigmoid(), nn.Linear(6, 2))


SETTINGS: dict[str, Any] = {
    "epsilon": 3.0, "delta": 1e-4, "epochs": 3, "expected_batch_size": 20, "clipping_norm": 0.5, "public_size": N, "plan": dpis,
}  # fmt: skip


def trainer(model: nn.Module | None = None, optimizer: Any = None, **changes: Any) -> PrivateTrainer:
    model = model or net()
    made = (optimizer or functools.partial(torch.optim.SGD, lr=0.5))(model.parameters())
    return Told(model, cross_entropy, made, **({"random_state": 0} | SETTINGS | changes))


make_trainer = trainer

PLANS = {"profile": dpis, "renyi": functools.partial(dpis, filter="renyi")}


@pytest.mark.parametrize("plan", PLANS, ids=PLANS)
def test_the_certificate_is_what_the_run_was_held_to_and_is_logged_first(plan: str) -> None:
    run = trainer(plan=PLANS[plan], random_state=None).fit(data())
    assert isinstance(run.plan, ImportancePlan)
    assert run.certificate.event == run.plan.event(Relation.ADD_OR_REMOVE_ONE) and run.certificate.status == "certified"
    assert 2.999 < run.certificate.epsilon <= 3.0
    assert run.certificate.mechanism.endswith("(importance sampling)")
    assert [charge.event for charge in SpendLog.current().charges()] == [run.certificate.event]
    assert [epoch["epoch"] for epoch in run.trace] == [0, 1, 2]
    assert all(0 < epoch["rate"] <= 0.8 for epoch in run.trace)
    spent = [record["epsilon"] for record in run.history]
    if plan == "renyi":  # what was spent so far depends on releases: the filter vouches for its budget alone
        assert set(spent) == {run.certificate.epsilon}
    else:  # places are fixed: what two of three hold is known
        assert spent[0] < 0.7 * spent[2] and spent[0] < spent[1] < spent[2] == pytest.approx(run.certificate.epsilon, rel=1e-2)


@pytest.mark.parametrize(
    "optimizer",
    [
        pytest.param(functools.partial(torch.optim.SGD, lr=0.3, momentum=0.9), marks=pytest.mark.slow),
        pytest.param(functools.partial(torch.optim.Adam, lr=0.02), marks=pytest.mark.slow),
        functools.partial(torch.optim.AdamW, lr=0.02),
    ],
    ids=["momentum", "Adam", "AdamW"],
)
def test_it_learns_with_optimisers_schedules_and_averages(optimizer: Any) -> None:
    x, y = data(3000)
    model = net()
    made = optimizer(model.parameters())
    schedule = torch.optim.lr_scheduler.StepLR(made, 3, 0.5)
    plan = functools.partial(dpis, adaptive=AdaptiveNorm(ceiling=2.0))
    settings = SETTINGS | {"plan": plan, "public_size": 3000, "expected_batch_size": 100, "epochs": 8}
    run = PrivateTrainer(model, cross_entropy, made, **settings).fit((x, y), (x, y), scheduler=schedule, ema_decay=0.9)
    assert run.history[-1]["validation_accuracy"] > 0.9
    assert {epoch["clipping_norm"] for epoch in run.trace} != {0.5}


def recorded(size: int, source: Any) -> Recorder:
    torch.manual_seed(0)
    model = net().double()
    x, y = data()
    run = PrivateTrainer(
        model,
        cross_entropy,
        torch.optim.SGD(model.parameters(), lr=0.5),
        physical_batch_size=size,
        random_state=source,
        **SETTINGS,
    )
    run.fit((x.double(), y))
    return source


@pytest.mark.fast_cases("64")
@pytest.mark.parametrize("size", [1, 7, 64])
def test_physical_batches_change_nothing(size: int) -> None:
    whole = recorded(1000, Recorder(TorchSource(Randomness.fixed(1), torch.device("cpu"))))
    nobody = np.array([], dtype=np.intp)
    parts = recorded(size, Forced(whole.recording, np.arange(N, dtype=np.intp), nobody))
    for a, b in zip(whole.recording.releases, parts.recording.releases, strict=True):
        assert np.allclose(a.query, b.query, rtol=1e-9, atol=1e-9)
        assert (a.sensitivity, a.noise) == (b.sensitivity, b.noise)
    assert len(whole.recording.releases) == 3 * (1 + 10)


class Pairs(Dataset):
    """A map-style data set, one record at a time."""

    def __init__(self) -> None:
        self.x, self.y = data()

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.x[index], self.y[index]


@pytest.mark.fast_cases("2")
@pytest.mark.parametrize("workers", [0, 2])
def test_data_sets_and_workers_that_read_ahead(workers: int) -> None:
    run = trainer(random_state=None).fit(data())
    listener = Recorder()
    ahead = trainer(num_workers=workers, physical_batch_size=16, random_state=listener).fit(Pairs())
    assert ahead.certificate.event == run.certificate.event
    assert torch.isfinite(ahead.objective.theta).all()
    recording = listener.recording
    accepted = [len(recording.thinned.get((draw, 1), ())) for draw in range(30)]
    assert len(recording.inclusions) == 30 and 10 < np.mean(accepted) < 30
    # each step's sum is of those that its own draw accepted: no sum is longer than their number
    steps = [release for release in recording.releases if release.query.size > 1]
    assert all(np.linalg.norm(step.query) <= count + 1e-4 for step, count in zip(steps, accepted, strict=True))


@pytest.mark.slow
def test_a_loop_of_ones_own() -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    run = PrivateTrainer(model, cross_entropy, optimizer, random_state=0, **SETTINGS)
    assert run.epsilon_spent == 0.0
    spent: list[float] = []
    for step in run.steps(data()):
        assert step.gradient.shape == (sum(p.numel() for p in model.parameters()),)
        optimizer.step()
        if step.number % 10 == 1:
            spent.append(run.epsilon_spent)
    assert 0 < spent[0] < spent[1] < spent[2] == run.certificate.epsilon  # epochs are paid when they begin
    assert step.number == step.total == 30
    assert torch.equal(run.objective.theta, trainer(random_state=0).fit(data()).objective.theta)


def test_a_private_size_is_one_of_the_releases() -> None:
    run = trainer(public_size=None).fit(data())
    assert run.certificate.epsilon <= 3.0 and run.certificate.event == run.plan.budget
    assert run.certificate.public_facts["releases"][0].startswith("N once")
    assert run.plan.public_size != 0 and run.plan.steps == 3 * round(run.plan.public_size / 20)


@pytest.mark.parametrize("public_size", [pytest.param(N, marks=pytest.mark.slow), None])
def test_replay_on_neighbours(public_size: int | None) -> None:
    def make(source: Any) -> PrivateTrainer:
        settings = SETTINGS | {
            "plan": functools.partial(dpis, adaptive=AdaptiveNorm(), norm_noise=20.0),
            "public_size": public_size,
            "epochs": 2,
        }
        model = net().double()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        return PrivateTrainer(model, cross_entropy, optimizer, random_state=source, **settings)

    x, y = data()
    found = network_pairs((x.double(), y), Relation.ADD_OR_REMOVE_ONE, 2)
    pairs = [pair for pair in found if "not a number" not in pair.name]  # the trainer refuses those it sees beforehand
    if public_size is None:  # each neighbour's number of records is calibrated for
        pairs = pairs[:2]
    result = replay(Training.of_trainer(make, (x.double(), y), pairs), pairs, both_ways=public_size is not None)
    assert result.verdict == "consistent", str(result)
    assert 0.9 < result.details["largest_movement"] <= 1 + 1e-6


@pytest.mark.parametrize("others", [1, pytest.param(4, marks=pytest.mark.slow)])
def test_replay_of_a_plan_on_records_that_are_not_numbers(others: int) -> None:
    """And on others, each of which moves all releases by what is charged."""
    objective = ModuleObjective(net().double(), cross_entropy)
    x, y = data()
    plan = dpis(
        epsilon=3.0, delta=1e-4, public_size=N, expected_batch_size=20, epochs=2, clipping_norm=0.5, average_from=None
    )  # fmt: skip
    pairs = network_pairs((x.double(), y), Relation.ADD_OR_REMOVE_ONE, 2)[-1 - others :]
    assert "not a number" in pairs[-1].name
    result = replay(Training.of_plan(plan, objective, TorchRecords, delta=1e-4, pairs=pairs), both_ways=others > 1)
    assert result.verdict == "consistent", str(result)
    assert 0.9 < result.details["largest_movement"] <= 1 + 1e-6


@pytest.mark.slow
def test_the_white_box_audit_of_a_network() -> None:
    torch.manual_seed(0)
    model = net()
    objective = ModuleObjective(model, cross_entropy)
    plan = dpis(
        epsilon=4.0, delta=1e-5, public_size=N * 20, expected_batch_size=150, epochs=15, clipping_norm=0.5, update=SGD(0.1),
        average_from=None,
    )  # fmt: skip
    x, y = data(N * 20)
    result = white_box(plan, objective, TorchRecords((x, y)), delta=1e-5, canaries=500)
    assert result.verdict == "consistent", str(result)
    assert 0.8 * 4 < result.estimate.epsilon < 1.05 * 4


class Stop(Exception):
    """Raised by a callback: a run that ends early."""


class After(Callback):
    def __init__(self, steps: int) -> None:
        self.steps = steps

    def on_step(self, step: Any) -> None:
        if step.number == self.steps:
            raise Stop


@pytest.mark.fast_cases("4-profile", "14-renyi")
@pytest.mark.parametrize("plan", PLANS, ids=PLANS)
@pytest.mark.parametrize("stop", [4, 10, 14])
def test_the_memory_of_norms_is_nowhere_else(tmp_path: Path, stop: int, plan: str) -> None:
    def trainer(**changes: Any) -> PrivateTrainer:
        return make_trainer(plan=PLANS[plan], random_state=None, checkpoint=tmp_path, checkpoint_every=2, **changes)

    with pytest.raises(Stop):
        trainer(callbacks=[After(stop)]).fit(data())
    found = checkpoint.load(checkpoint.latest(tmp_path))
    assert not found["run"]["private state"]
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        run = trainer().fit(data(), resume=True)
    assert run._session.run.step == 30
    assert any("were reserved before an interruption" in str(warning.message) for warning in told) == (run.steps_lost > 0)
    assert 0 <= run.steps_lost <= 15  # reserved in blocks that double while they take less than ten seconds
    assert run.certificate.event == run.plan.event(Relation.ADD_OR_REMOVE_ONE)
    assert [epoch["epoch"] for epoch in run.trace] == [0, 1, 2]
    public = str(run.history) + str(run.trace) + run.certificate.to_json()
    assert "norms'" not in public
    parts = SpendLog.current().parts(SpendLog.current().charges()[0].id)
    assert len([part for part in parts if part.note["what"] == "steps"]) == 3  # no epoch was paid for twice


@pytest.mark.fast_cases("adaptive")
@pytest.mark.parametrize("setting", [{"adaptive": AdaptiveNorm()}, {"pass_every": 2}], ids=["adaptive", "pass_every"])
def test_continued_from_before_the_first_look_an_epoch_looks_first(tmp_path: Path, setting: dict[str, Any]) -> None:
    """Killed in epoch 0 and continued in epoch 1, whose K and K* would be of an empty memory."""
    plan = functools.partial(dpis, norm_noise=8.0, **setting)

    def trainer(**changes: Any) -> PrivateTrainer:
        return make_trainer(plan=plan, random_state=None, checkpoint=tmp_path, checkpoint_every=1000, **changes)

    with pytest.raises(Stop):
        trainer(callbacks=[After(9)]).fit(data())
    run = trainer().fit(data(), resume=True)
    first = run.trace[0]
    assert first["epoch"] == 1
    assert first["ratio"] > 0.4  # not the least there is, 20 of 160
    assert first["clipping_norm"] > 0.2  # of 0.5


def test_a_checkpoint_of_importance_sampling_is_not_continued_by_dp_sgd(tmp_path: Path) -> None:
    with pytest.raises(Stop):
        trainer(checkpoint=tmp_path, callbacks=[After(6)]).fit(data())
    with pytest.raises(ValueError, match="chooses its noise on the way: pass the same plan"):
        trainer(plan=None, checkpoint=tmp_path).fit(data(), resume=True)


def test_reminders_of_an_empty_folder_and_of_another_size(tmp_path: Path) -> None:
    with pytest.raises(Stop), pytest.warns(UserWarning, match="holds no checkpoint: a run starts anew"):
        trainer(checkpoint=tmp_path / "mistyped", callbacks=[After(1)]).fit(data(), resume=True)
    with pytest.raises(Stop), pytest.warns(UserWarning, match=r"steps will be 0\.2 times what is expected"):
        trainer(public_size=1000, callbacks=[After(1)]).fit(data())


def test_records_in_another_order_count_once_where_a_run_goes_on(tmp_path: Path) -> None:
    with pytest.raises(Stop):
        trainer(checkpoint=tmp_path, checkpoint_every=2, callbacks=[After(6)]).fit(data())
    order = torch.randperm(N, generator=torch.Generator().manual_seed(1))
    again = trainer(checkpoint=tmp_path, checkpoint_every=2, callbacks=[After(8)])
    with pytest.raises(Stop):
        again.fit(tuple(part[order] for part in data()), resume=True)
    gradients: Any = again._session.run.gradients
    assert (gradients._seen > 0).all()  # each was looked at where it is now


@pytest.mark.parametrize("plan", PLANS, ids=PLANS)
def test_continued_with_another_log_the_rest_is_paid_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plan: str) -> None:
    def trainer(**changes: Any) -> PrivateTrainer:
        return make_trainer(plan=PLANS[plan], random_state=None, checkpoint=tmp_path / "run", checkpoint_every=2, **changes)

    with pytest.raises(Stop):
        trainer(callbacks=[After(14)]).fit(data())
    monkeypatch.setenv("DPERM_SPEND_LOG", str(tmp_path / "other.db"))
    with pytest.warns(UserWarning, match="the rest of the run is paid for again, and the whole costs epsilon = "):
        run = trainer().fit(data(), resume=True)
    whole, rest = run.certificate.event.events
    assert run.certificate.epsilon > 3.0 and run.certificate.target_epsilon is None
    assert [charge.event for charge in SpendLog.current().charges()] == [rest]
    if plan == "renyi":
        assert isinstance(rest, FilteredRdp) and rest.order == whole.order
        assert rest.rdp_budget == pytest.approx(whole.rdp_budget * 18 / 30)  # public: steps left, not what was spent
    else:  # the epoch in progress has to be paid as a whole
        assert leaves(rest) == {Gaussian(run.plan.sum_noise): 2, run.plan.budget: 2}
    assert len(run.trace) == 3


def test_a_charge_in_another_log_is_not_forgotten_when_killed_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Stop):
        trainer(random_state=None, checkpoint=tmp_path / "run", checkpoint_every=10, callbacks=[After(14)]).fit(data())
    monkeypatch.setenv("DPERM_SPEND_LOG", str(tmp_path / "other.db"))
    with pytest.raises(Stop), pytest.warns(UserWarning, match="paid for again"):
        again = trainer(random_state=None, checkpoint=tmp_path / "run", checkpoint_every=10, callbacks=[After(11)])
        again.fit(data(), resume=True)
    run = trainer(random_state=None, checkpoint=tmp_path / "run", checkpoint_every=10).fit(data(), resume=True)
    charges = SpendLog.current().charges()
    assert len(charges) == 1 and run.certificate.event.events[1:] == (charges[0].event,)


def test_a_function_that_makes_an_adaptive_plan_is_refused() -> None:
    def make(noise: float, size: int) -> Any:
        return dpis(
            epsilon=3.0, delta=1e-4, public_size=size, expected_batch_size=20, epochs=3, clipping_norm=0.5, average_from=None
        )  # fmt: skip

    settings = {"plan": make, "epochs": None, "expected_batch_size": None, "clipping_norm": None}
    for size in (N, None):
        with pytest.raises(ValueError, match="got ImportancePlan: pass a recipe"):
            trainer(**settings, public_size=size).fit(data())
    assert SpendLog.current().charges() == []


@pytest.mark.fast_cases("14")
@pytest.mark.parametrize("stop", [4, 14])
def test_places_taken_before_a_log_lost_its_parts_stay_taken(tmp_path: Path, stop: int) -> None:
    with pytest.raises(Stop):
        trainer(random_state=None, checkpoint=tmp_path, checkpoint_every=2, callbacks=[After(stop)]).fit(data())
    without_parts(SpendLog.current())
    before = checkpoint.load(checkpoint.latest(tmp_path))["run"]["gradients"]["spent"]
    again = trainer(random_state=None, checkpoint=tmp_path, checkpoint_every=2)
    with pytest.raises(BudgetExceeded, match="No epoch that was charged is left"):
        again.fit(data(), resume=True)
    log = SpendLog.current()
    charge = log.charges()[0]
    after = log.accounts(charge.id)
    places = list(leaves(charge.event).values())
    for number, account in enumerate(sorted(set(before) | set(after))):
        assert before.get(account, 0) + after.get(account, 0) <= places[number]
    assert sum(before.values()) + sum(after.values()) == 6


@pytest.mark.fast_cases("14-3.0")
@pytest.mark.parametrize("target", [1.3, 1.7, 2.1, 3.0, 6.0])
@pytest.mark.parametrize("stop", [4, 14])
def test_a_log_that_lost_its_parts_spends_nothing_twice(tmp_path: Path, target: float, stop: int) -> None:
    def trainer(**changes: Any) -> PrivateTrainer:
        return make_trainer(epsilon=target, plan=PLANS["renyi"], **changes)

    with pytest.raises(Stop):
        trainer(random_state=None, checkpoint=tmp_path, checkpoint_every=2, callbacks=[After(stop)]).fit(data())
    without_parts(SpendLog.current())
    (before,) = checkpoint.load(checkpoint.latest(tmp_path))["run"]["gradients"]["spent"].values()
    run = trainer(random_state=None, checkpoint=tmp_path, checkpoint_every=2).fit(data(), resume=True)
    log = SpendLog.current()
    assert before + sum(log.accounts(log.charges()[0].id).values()) <= run.plan.budget.rdp_budget


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"noise_multiplier": 1.0, "epsilon": None}, "chooses its noise on the way"),
        ({"relation": "replace_one"}, "DPIS has no other"),
        ({"expected_batch_size": 190}, "at most 80 %"),
        ({"plan": functools.partial(dpis, norm_noise=0.1)}, "cannot pay for K"),
        ({"plan": functools.partial(dpis, norm_noise=0.1, filter="renyi")}, "cannot pay for N and K"),
        ({"epochs": 2.5}, "epochs"),
        (
            {"plan": functools.partial(dpis, proposal_facter=3)},
            "of dpis, got 'proposal_facter' .did you mean 'proposal_factor'",
        ),
        ({"plan": functools.partial(dpis, update=SGD(0.5))}, "the optimizer would be what runs"),
        ({"checkpoint_every": 5}, "Expected a checkpoint folder"),
    ],
)
def test_bad_input_is_refused_before_anything_is_charged(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        trainer(**changes).fit(data())
    assert SpendLog.current().charges() == []


def test_a_ready_plan_is_taken_as_it_is() -> None:
    made = dpis(
        epsilon=3.0, delta=1e-4, public_size=N, expected_batch_size=20, epochs=3, clipping_norm=0.5, update=SGD(0.5),
        average_from=None,
    )  # fmt: skip
    run = PrivateTrainer(net(), cross_entropy, plan=made, delta=1e-4, random_state=0).fit(data())
    assert run.plan == made and run.certificate.target_epsilon is None
    unsized = dpis(epsilon=3.0, delta=1e-4, expected_batch_size=20, epochs=3, clipping_norm=0.5, average_from=None)
    run = PrivateTrainer(net(), cross_entropy, plan=unsized, delta=1e-4, random_state=0).fit(data())
    assert run.plan.public_size is not None and run.certificate.event == unsized.budget


def test_a_channel_of_other_profiles_is_no_way_around() -> None:
    x, y = data()
    objective = ModuleObjective(net(), cross_entropy)
    kept = {"public_size": N, "expected_batch_size": 20, "epochs": 3, "clipping_norm": 0.5, "norm_noise": 30.0}
    plan, other = (dpis(epsilon=target, delta=1e-4, average_from=None, **kept) for target in (3.0, 1.0))
    recorder = Recorder(TorchSource(Randomness.fixed(1), torch.device("cpu")))
    channel = Channel(recorder)
    channel.charge(other.event(Relation.ADD_OR_REMOVE_ONE), "test")
    gradients = plan.gradients(objective, TorchRecords((x, y)), channel)
    for _ in range(plan.steps):
        gradients(objective.theta)
    for epoch in gradients.epochs:
        assert excess(SelfComposed(PoissonSampled(epoch.rate, Gaussian(epoch.noise_multiplier)), 10), other.budget) <= 0


def test_a_channel_of_another_filter_is_no_way_around() -> None:
    """What is left in the filter, not what the plan hopes for, decides the noise."""
    x, y = data()
    objective = ModuleObjective(net(), cross_entropy)
    plan = dpis(
        filter="renyi", epsilon=3.0, delta=1e-4, public_size=N, expected_batch_size=20, epochs=3, clipping_norm=0.5,
        average_from=None,
    )  # fmt: skip
    channel = Channel(TorchSource(Randomness.fixed(1), torch.device("cpu")))
    channel.charge(FilteredRdp(plan.budget.order, plan.budget.rdp_budget / 2), "test")
    gradients = plan.gradients(objective, TorchRecords((x, y)), channel)
    for _ in range(plan.steps):
        gradients(objective.theta)
    assert channel.filter.spent <= plan.budget.rdp_budget / 2


@pytest.mark.fast_cases("200-70")
@pytest.mark.parametrize(("size", "batch"), [(200, 20), (195, 26), (200, 70)])
def test_epochs_are_the_plans(size: int, batch: int) -> None:
    """Schedules, scores and the trace agree on what an epoch is, also where the batch does not divide the records."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.5, total_steps=5)
    settings = SETTINGS | {"public_size": size, "expected_batch_size": batch, "epochs": 4}
    run = PrivateTrainer(model, cross_entropy, optimizer, random_state=0, **settings).fit(data(size), scheduler=schedule)
    assert [record["epoch"] for record in run.history] == [1, 2, 3, 4]
    assert len(run.trace) == 4


@pytest.mark.parametrize(
    ("bound", "text"),
    [
        ({"epsilon": 0.5}, "epsilon beside the recipe"),
        ({"epochs": 20}, "epochs beside the recipe"),
        ({"public_size": 500}, "public_size beside the recipe"),
        ({"earlier": Gaussian(5.0)}, "spent="),
    ],
)
def test_what_is_stated_twice_is_refused(bound: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        trainer(plan=functools.partial(dpis, **bound))


@pytest.mark.parametrize(
    "changes",
    [
        {"plan": "dpis"},
        {"spent": [Gaussian(3.0)]},
        {"plan": functools.partial(dpis, adaptive=True)},
        {"plan": functools.partial(dpis, update="sgd")},
    ],
)
def test_what_is_of_another_kind_is_refused_before_anything_is_charged(changes: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match="Expected"):
        trainer(**changes).fit(data())
    assert SpendLog.current().charges() == []


def test_batches_that_are_large_for_the_records_are_told_before_the_charge() -> None:
    with pytest.warns(UserWarning, match="Batches of 150 are expected, but there are 200 records"):
        trainer(public_size=None, expected_batch_size=150).fit(data())
