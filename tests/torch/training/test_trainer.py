"""Private training: what is charged, what is drawn, what a person sees, and that neighbours move no query by more."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from dperm._random import Randomness
from dperm.audit.recording import Forced, Recorder, Recording
from dperm.gradient import SGD, Adam, AdaptiveClip, Clip, Constant, Normalise, PerLayer, Plan, Poisson
from dperm.gradient.recipes import dp_sgd, full_batch_descent
from dperm.privacy import Composed, Gaussian, PoissonSampled, Relation, SelfComposed
from dperm.privacy.events import leaves
from dperm.release import Channel, GaussianNoise, SpendLog
from dperm.torch import Callback, ModuleObjective, PrivateStep, PrivateTrainer, TensorBoard, TorchRecords
from dperm.torch.ranks.tensor_noise import TorchSource
from dperm.torch.training.preflight import fitting_batch_size
from helpers.oracle import cross_entropy
from helpers.told import Told

N, D = 60, 5


def data(n: int = N) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, D, generator=generator)
    return x, (x[:, 0] > 0).long()


def net(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(D, 6), nn.Tanh(), nn.Linear(6, 2))


SETTINGS: dict[str, Any] = {"epochs": 3, "expected_batch_size": 15, "clipping_norm": 1.0, "public_size": N, "delta": 1e-3}


def trainer(model: nn.Module | None = None, *, learning_rate: float = 0.5, **changes: Any) -> PrivateTrainer:
    model = model or net()
    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate)
    return Told(model, cross_entropy, optimizer, **({"epsilon": 3.0, "random_state": 0} | SETTINGS | changes))


def counted(event: Any) -> int:
    return sum(count for leaf, count in leaves(event).items() if isinstance(leaf, (Gaussian, PoissonSampled)))


# What is charged


@pytest.mark.parametrize("stated", [{}, {"epochs": 2.0}, {"expected_batch_size": 30.0, "clipping_norm": 0.3}])
def test_what_is_left_out_is_by_a_public_rule(stated: dict[str, float]) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    run = PrivateTrainer(model, cross_entropy, optimizer, epsilon=3.0, delta=1e-5, public_size=N, random_state=0, **stated)
    run.fit(data())
    rate = stated.get("expected_batch_size", min(256.0, N / 4)) / N
    assert isinstance(run.plan, Plan) and run.plan.sampler.rate == pytest.approx(rate)
    assert run.plan.steps == math.ceil(stated.get("epochs", 20.0) / rate)
    assert run.plan.bounding == Clip(stated.get("clipping_norm", 1.0))
    assert run.certificate is not None and run.certificate.epsilon == pytest.approx(3.0, rel=1e-3)


def test_the_certificate_is_that_of_the_plan_and_is_logged_first() -> None:
    run = trainer(random_state=None).fit(data())
    assert run.certificate is not None and run.plan is not None
    assert run.certificate.event == run.plan.event(Relation.ADD_OR_REMOVE_ONE)
    assert 2.99 < run.certificate.epsilon <= 3.0 and run.certificate.status == "certified"
    charges = SpendLog.current().charges()
    assert [charge.event for charge in charges] == [run.certificate.event]
    assert isinstance(run.certificate.event, SelfComposed) and run.certificate.event.count == 12
    run.certificate.verify()


def test_a_fixed_seed_is_not_private_and_repeats() -> None:
    first, second = trainer().fit(data()), trainer().fit(data())
    assert first.certificate.status == "not private"
    assert torch.equal(first.objective.theta, second.objective.theta)
    fresh = [trainer(random_state=None).fit(data()).objective.theta for _ in range(2)]
    assert not torch.equal(fresh[0], fresh[1])


@pytest.mark.slow
def test_an_unstated_size_is_released_with_noise_and_charged() -> None:
    run = trainer(public_size=None, random_state=None).fit(data())
    assert isinstance(run.certificate.event, Composed)
    assert run.certificate.epsilon <= 3.0 + 1e-9
    assert run.plan.public_size != 0
    assert run.certificate.public_facts["sampler"] == repr(run.plan.sampler)
    run.certificate.verify()
    assert "The number" not in str([item.text for item in run.certificate.assumptions])


def test_replace_one_has_a_public_size() -> None:
    run = trainer(public_size=None, relation="replace_one").fit(data())
    assert run.plan.public_size == N and run.certificate.relation is Relation.REPLACE_ONE


def test_nothing_is_charged_when_the_checks_fail() -> None:
    class Mixing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(D, 2)

        def forward(self, x: Tensor) -> Tensor:
            out = self.layer(x)
            return out - out.mean(0)

    x, y = data()
    nothing = x.clone()
    nothing[N - 1] = torch.nan
    for bad, model in (((x, y), Mixing()), ((nothing, y), net()), ((x, y[:5]), net()), ((x, y.float()), net())):
        with pytest.raises((ValueError, RuntimeError)):
            trainer(model).fit(bad)
    assert SpendLog.current().charges() == []


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"epsilon": None}, "exactly one of epsilon and noise_multiplier"),
        ({"noise_multiplier": 1.0}, "exactly one of epsilon and noise_multiplier"),
        ({"delta": 1.5}, "delta"),
        ({"clipping_norm": -1.0}, "clipping_norm > 0"),
        ({"plan": lambda noise, size: None}, "inside the plan"),
        ({"plan": full_batch_descent}, "settings of full_batch_descent, got 'epochs'. They are steps, "),
        ({"plan": partial(dp_sgd, decai=0.1)}, "settings of dp_sgd, got 'decai' .*'decay'"),
    ],
)
def test_settings_that_make_no_sense(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        trainer(**changes)


def test_data_that_cannot_be_drawn_from() -> None:
    class Stream(torch.utils.data.IterableDataset[Any]):
        def __iter__(self) -> Any:
            return iter([])

    class Endless(torch.utils.data.Dataset[Any]):
        def __getitem__(self, index: int) -> Any:
            return index

    for bad in (Stream(), Endless(), 7):
        with pytest.raises(TypeError, match="by index"):
            trainer().fit(bad)
    with pytest.raises(ValueError, match="at least one record"):
        trainer().fit((torch.zeros(0, D), torch.zeros(0)))


def test_optimisers_that_cannot_be_used() -> None:
    model = net()
    with pytest.raises(ValueError, match="LBFGS evaluates the loss again"):
        PrivateTrainer(model, cross_entropy, torch.optim.LBFGS(model.parameters()), epsilon=1.0, **SETTINGS)
    with pytest.raises(ValueError, match=r"misses 2\.weight"):
        PrivateTrainer(model, cross_entropy, torch.optim.SGD(model[0].parameters()), epsilon=1.0, **SETTINGS)
    with pytest.raises(TypeError, match="learning-rate scheduler, got 'cosine'"):
        trainer().fit(data(), scheduler="cosine")
    with pytest.raises(ValueError, match="scheduler_interval"):
        trainer().fit(data(), scheduler_interval="day")
    assert SpendLog.current().charges() == []


# What is drawn


class Items(torch.utils.data.Dataset[Any]):
    def __init__(self) -> None:
        self.x, self.y = data()
        self.asked: list[int] = []

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        self.asked.append(index)
        return self.x[index], self.y[index]


def test_tensors_datasets_and_workers_give_the_same_run() -> None:
    expected = trainer().fit(data()).objective.theta
    assert torch.allclose(trainer().fit(Items()).objective.theta, expected, atol=1e-6)
    assert torch.allclose(trainer(num_workers=1).fit(Items()).objective.theta, expected, atol=1e-6)
    x, y = data()
    assert torch.allclose(trainer().fit((x.numpy(), y.numpy())).objective.theta, expected, atol=1e-6)
    assert torch.allclose(trainer().fit(torch.utils.data.TensorDataset(x, y)).objective.theta, expected, atol=1e-6)


@pytest.mark.fast_cases("4", "100")
@pytest.mark.parametrize("size", [1, 4, 100])
def test_physical_batches_do_not_change_the_run(size: int) -> None:
    """One noise per logical batch, whatever fits memory."""
    expected = trainer().fit(data()).objective.theta
    assert torch.allclose(trainer(physical_batch_size=size).fit(data()).objective.theta, expected, atol=1e-5)


def test_empty_batches_are_ordinary() -> None:
    run = trainer(epochs=0.5, expected_batch_size=0.5).fit(data())
    assert run.plan.steps == 60
    assert bool(torch.isfinite(run.objective.theta).all())


def test_records_at_once_keep_activations_small_and_weights_do_not_count() -> None:
    """On a CPU no activation exceeds 16 MiB; a large frozen weight, or a kernel with its channels last, is no activation."""

    def chosen(model: nn.Module, inputs: Tensor) -> int:
        objective = ModuleObjective(model, cross_entropy)
        assert objective.theta.device.type == "cpu"
        return fitting_batch_size(objective, inputs, torch.zeros(len(inputs), dtype=torch.long))

    assert chosen(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)), torch.randn(5, 3)) == 4096
    wide = nn.Sequential(nn.Linear(3, 10_000), nn.Tanh(), nn.Linear(10_000, 2))
    assert chosen(wide, torch.randn(5, 3)) == (16 << 20) // 40_000
    frozen = nn.Sequential(nn.Linear(3, 2000), nn.Linear(2000, 2000), nn.Linear(2000, 2))
    frozen[1].requires_grad_(False)
    assert chosen(frozen, torch.randn(5, 3)) > 1000
    deep = nn.Sequential(nn.Linear(3, 1024), nn.Linear(1024, 1024), nn.Linear(1024, 2))
    narrow = ModuleObjective(deep, cross_entropy, autocast=torch.bfloat16)  # saves copies of its weights
    assert fitting_batch_size(narrow, torch.randn(5, 3), torch.zeros(5, dtype=torch.long)) == 4096
    kernels = nn.Sequential(nn.Conv2d(64, 64, 5, padding=2), nn.Conv2d(64, 64, 5), nn.Flatten(), nn.Linear(64, 2))
    plain = chosen(kernels, torch.randn(5, 64, 5, 5))
    assert chosen(kernels.to(memory_format=torch.channels_last), torch.randn(5, 64, 5, 5)) == plain > 1000


def test_draws_are_poisson_and_cover_physical_batches_in_order() -> None:
    records = TorchRecords((torch.arange(10.0), torch.arange(10)), physical_batch_size=3)
    draws = [np.array([0, 2, 3, 7, 9]), np.array([], dtype=np.intp), None]
    found = [[batch[1].tolist() for batch in batches] for batches in records.stream(draws)]
    assert found == [[[0, 2, 3], [7, 9]], [], [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9]]]


def network_objective(relation: Relation = Relation.ADD_OR_REMOVE_ONE) -> ModuleObjective:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Unflatten(1, (1, D)), nn.Conv1d(1, 3, 2), nn.Tanh(), nn.Flatten(), nn.Linear(12, 2)).double()
    return ModuleObjective(model, cross_entropy, relation=relation, public_size=N)


BOUNDINGS = [Clip(0.3), Normalise(0.1), PerLayer(0.3), AdaptiveClip(0.3, count_weight=0.2)]


@pytest.mark.fast_cases(
    "1.0-sgd-Clip",
    "nan-adam-Clip",
    "10000.0-adam-PerLayer",
    "nan-sgd-PerLayer",
    "10000.0-sgd-Normalise",
    "1.0-adam-Normalise",
    "10000.0-sgd-AdaptiveClip",
    "nan-adam-AdaptiveClip",
)
@pytest.mark.parametrize("bounding", BOUNDINGS, ids=lambda bounding: type(bounding).__name__)
@pytest.mark.parametrize("update", [SGD(0.5, 0.9), Adam(0.1)], ids=["sgd", "adam"])
@pytest.mark.parametrize("extreme", [1.0, 1e4, float("nan")])
def test_neighbours_move_no_query_by_more_than_is_charged(bounding: Any, update: Any, extreme: float) -> None:
    """Replay: the run on D with an extreme record added, forced by the releases and draws of the run on D."""
    from dperm.gradient import descend

    plan = Plan(Poisson(0.3), bounding, Constant(1.0), update, 8, N)
    x, y = data()
    extra = torch.full((1, D), extreme, dtype=torch.float64)
    more = torch.cat([x.double(), extra]), torch.cat([y, torch.tensor([1])])

    def run(source: Any, records: Any) -> Recording:
        objective = network_objective()
        channel = Channel(source)
        channel.charge(plan.event(Relation.ADD_OR_REMOVE_ONE), "replay")
        objective.prepare(*TorchRecords(records).sample(8))
        descend(plan, objective, TorchRecords(records, physical_batch_size=7), channel, objective.theta.clone())
        return source.recording

    reference = run(Recorder(TorchSource(Randomness.fixed(0), torch.device("cpu"))), (x.double(), y))
    assert len(reference.releases) == 8
    forced = run(Forced(reference, np.arange(N), np.array([N])), more)
    ratios = [
        float(np.linalg.norm(a.query - b.query)) / a.sensitivity for a, b in zip(reference.releases, forced.releases, strict=True)
    ]
    assert max(ratios) <= 1 + 1e-9
    if extreme == 1e4:
        assert max(ratios) > 0.5  # the bound is felt
    assert all(np.isfinite(release.query).all() for release in forced.releases)


def test_noise_has_the_charged_size() -> None:
    """With records that have no gradient, what is released is noise alone."""
    source = Recorder(TorchSource(Randomness.from_system(), torch.device("cpu")))
    for dtype in (torch.float32, torch.float64):
        query = torch.zeros(200_001, dtype=dtype)
        noise = source.noisy(query.clone(), GaussianNoise(1.0, 0.7, step=2.0**-30))
        assert noise.dtype == dtype
        assert abs(float(noise.std()) - 0.7) < 0.01
        assert abs(float(noise.mean())) < 0.01
        assert not torch.equal(noise, source.noisy(query.clone(), GaussianNoise(1.0, 0.7, step=2.0**-30)))
        kurtosis = float((noise.double() / 0.7).pow(4).mean())
        assert abs(kurtosis - 3.0) < 0.1
        halves = noise[:65_536].double().view(2, -1)
        assert abs(float((halves[0] * halves[1]).mean())) < 0.02  # what a block's cosines and sines share is their radius
    assert source.recording.releases[0].query.max() == 0.0
    odd = torch.zeros(7)
    assert bool((source.noisy(odd, GaussianNoise(1.0, 1.0, step=2.0**-30)) != 0).all())


# Recipes


def test_every_recipe_runs_and_is_charged_as_its_plan_says() -> None:
    common: dict[str, Any] = {"expected_batch_size": 15, "epochs": 2, "average_from": None}
    recipes: dict[str, Any] = {
        "flat": lambda noise, size: dp_sgd(noise_multiplier=noise, public_size=size, clipping_norm=1.0, **common),
        "per layer": lambda noise, size: dp_sgd(noise_multiplier=noise, public_size=size, bounding=PerLayer(1.0), **common),
        "automatic": lambda noise, size: dp_sgd(noise_multiplier=noise, public_size=size, bounding=Normalise(), **common),
        "adaptive": lambda noise, size: dp_sgd(noise_multiplier=noise, public_size=size, bounding=AdaptiveClip(1.0), **common),
        "decay": lambda noise, size: dp_sgd(noise_multiplier=noise, public_size=size, clipping_norm=1.0, decay=0.1, **common),
        "full": lambda noise, size: full_batch_descent(
            noise_multiplier=noise, public_size=size, steps=5, clipping_norm=1.0, average_from=None
        ),
    }
    plain = {"delta": 1e-3, "public_size": N, "random_state": 0, "epsilon": 3.0}
    for name, plan in recipes.items():
        model = net()
        run = PrivateTrainer(model, cross_entropy, torch.optim.Adam(model.parameters()), plan=plan, **plain).fit(data())
        assert run.certificate.event == run.plan.event(Relation.ADD_OR_REMOVE_ONE), name
        assert 2.9 < run.certificate.epsilon <= 3.0, name
        assert counted(run.certificate.event) == run.plan.steps, name


def test_recipes_as_they_are_and_bound() -> None:
    expected = trainer().fit(data())
    model = net()
    settings = {"epochs": 3, "expected_batch_size": 15, "clipping_norm": 1.0}
    common: dict[str, Any] = {"epsilon": 3.0, "delta": 1e-3, "public_size": N, "random_state": 0}
    named = PrivateTrainer(model, cross_entropy, torch.optim.SGD(model.parameters(), lr=0.5), dp_sgd, **settings, **common)
    assert torch.equal(named.fit(data()).objective.theta, expected.objective.theta)
    model = net()
    bound = partial(dp_sgd, **settings)
    again = PrivateTrainer(model, cross_entropy, torch.optim.SGD(model.parameters(), lr=0.5), bound, **common)
    assert torch.equal(again.fit(data()).objective.theta, expected.objective.theta)
    averaging = partial(dp_sgd, **settings, average_from=0.5)
    model = net()
    run = PrivateTrainer(model, cross_entropy, torch.optim.SGD(model.parameters(), lr=0.5), averaging, **common).fit(data())
    assert run.certificate.public_facts["update"].startswith("Averaged(update=SGD(lr=0.5")
    assert not torch.equal(run.objective.theta, expected.objective.theta)


def test_adaptive_clipping_follows_the_quantile() -> None:
    x, y = data(2000)
    model = net()
    plan = dp_sgd(
        noise_multiplier=0.5, public_size=2000, expected_batch_size=500, epochs=20, average_from=None,
        bounding=AdaptiveClip(50.0, quantile=0.5), update=SGD(1e-6),
    )  # fmt: skip
    run = PrivateTrainer(model, cross_entropy, delta=1e-4, plan=plan, random_state=0).fit((x, y))
    norms = ModuleObjective(model, cross_entropy).evaluate(x, y).norms
    assert run._session.run is not None
    found = run._session.run.gradients.bounding_state["clipping_norm"]
    assert 0.7 * float(norms.median()) < found < 1.4 * float(norms.median())


def test_it_learns() -> None:
    x, y = data(2000)
    run = trainer(epochs=10, expected_batch_size=200, public_size=2000, epsilon=2.0, delta=1e-4).fit((x, y), data(500))
    assert run.history[-1]["validation_accuracy"] > 0.93


def test_a_delta_that_protects_nobody_is_warned_of() -> None:
    with pytest.warns(UserWarning, match="whole record"):
        trainer(delta=0.1, epsilon=5.0).fit(data())


def test_averages_and_updates_without_a_torch_optimiser() -> None:
    plain = trainer().fit(data()).objective.theta
    averaged = trainer().fit(data(), ema_decay=0.5).objective.theta
    assert not torch.equal(plain, averaged)
    model = net()
    plan = partial(_sgd_plan, update=SGD(0.5))
    own = PrivateTrainer(model, cross_entropy, epsilon=3.0, delta=1e-3, public_size=N, plan=plan, random_state=0).fit(data())
    assert torch.allclose(own.objective.theta, plain, atol=1e-6)


def _sgd_plan(noise: float, size: int, update: Any) -> Plan:
    return dp_sgd(
        noise_multiplier=noise,
        public_size=size,
        expected_batch_size=15,
        epochs=3,
        clipping_norm=1.0,
        average_from=None,
        update=update,
    )


@pytest.mark.filterwarnings("ignore:public_size = 7")
def test_a_plan_with_its_noise_is_taken_as_it_is() -> None:
    plan = _sgd_plan(1.3, N, SGD(0.5))
    run = PrivateTrainer(net(), cross_entropy, delta=1e-3, plan=plan, random_state=0).fit(data())
    assert run.plan == plan and run.certificate.target_epsilon is None
    with pytest.raises(ValueError, match="has its noise already"):
        PrivateTrainer(net(), cross_entropy, epsilon=1.0, delta=1e-3, plan=plan)
    with pytest.raises(ValueError, match="public_size=7"):
        PrivateTrainer(net(), cross_entropy, delta=1e-3, plan=plan, public_size=7, random_state=0).fit(data())


def test_a_trainer_runs_once() -> None:
    run = trainer().fit(data())
    with pytest.raises(ValueError, match="runs once"):
        run.fit(data())
    assert len(SpendLog.current().charges()) == 1


def test_a_batch_with_more_rows_than_records_is_refused() -> None:
    def views(items: list[Any]) -> tuple[Tensor, Tensor]:
        return torch.stack([x for x, _ in items for _ in range(4)]), torch.stack([y for _, y in items for _ in range(4)])

    with pytest.raises(ValueError, match="counts more than once"):
        trainer(collate_fn=views).fit(Items())
    assert SpendLog.current().charges() == []


def test_a_list_of_two_pairs_is_two_records() -> None:
    x, y = data()
    assert len(TorchRecords([(x[0], y[0]), (x[1], y[1])])) == 2 and len(TorchRecords([x, y])) == N


def test_the_certificate_names_the_update_that_ran_and_a_wrong_size_is_refused() -> None:
    assert trainer().fit(data()).certificate.public_facts["update"].startswith("SGD(lr=0.5")
    with pytest.raises(ValueError, match="public_size=60"):
        trainer(relation="replace_one", public_size=99).fit(data())


def test_epsilon_so_far_counts_the_noisy_size() -> None:
    run = trainer(public_size=None).fit(data())
    assert run.history[0]["epsilon"] > 0.15  # the size alone costs 0.05·3


def test_adaptive_clipping_does_not_vanish_with_the_gradients() -> None:
    bounding = AdaptiveClip(1.0, learning_rate=1.0)
    state = bounding.init()
    for _ in range(200):
        bounding.read(torch.tensor([0.0, 0.1 * 100]), state, 100.0)
    assert state["clipping_norm"] == 1e-6


# What people do wrong


def test_a_backward_pass_during_a_run_is_an_error() -> None:
    x, y = data()
    mine = trainer()
    with pytest.raises(RuntimeError, match="without noise"):
        for _ in mine.steps((x, y)):
            cross_entropy(mine.model(x), y).mean().backward()
    mine.model.zero_grad()
    cross_entropy(mine.model(x), y).mean().backward()  # afterwards the model is the caller's again


def test_a_loop_of_your_own_updates_by_itself() -> None:
    own = trainer()
    step = next(own.steps(data(), show_private=True))
    assert step.batch_loss is not None
    assert own.certificate.public_facts["update"] == "in the caller's own loop"


def test_plans_that_cannot_work_fail_before_the_charge() -> None:
    model = net()
    plans: list[Any] = [
        lambda noise, size: dp_sgd(noise_multiplier=noise, public_size=size, expected_batch_size=15, epochs=2),
        lambda noise, size: dp_sgd(noise_multiplier=noise, public_size=60, expected_batch_size=15, epochs=2, clipping_norm=1.0),
        lambda noise, size: dp_sgd(noise_multiplier=1.0, public_size=size, expected_batch_size=15, epochs=2, clipping_norm=1.0),
    ]
    for plan in plans:
        with pytest.raises(ValueError, match="Expected"):
            PrivateTrainer(model, cross_entropy, epsilon=1.0, delta=1e-3, plan=plan, random_state=0).fit(data())
    assert SpendLog.current().charges() == []


@pytest.mark.parametrize(
    ("dataset", "reason"),
    [
        ((data()[0].double(), data()[1]), "inputs torch.float64, targets torch.int64, model torch.float32"),
        ((data()[0], data()[1] + 1), "does not run on the first records"),
        ((data()[0], data()[1].int()), "targets torch.int32"),
    ],
)
def test_data_that_the_model_does_not_take(dataset: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        trainer().fit(dataset)
    assert SpendLog.current().charges() == []


def test_validation_is_tried_first_and_scores_the_model_that_is_left(tmp_path: Path) -> None:
    x, y = data()
    wrong: list[Any] = [{"mean": lambda o, t: (o.argmax(1) == t).float().mean()}, {"bad": lambda o, t: 1 / 0}]
    for metrics in wrong:
        with pytest.raises((ValueError, ZeroDivisionError)):
            trainer().fit((x, y), (x, y), metrics=metrics)
    with pytest.raises(ValueError, match="loss does not run on the records to validate on"):
        trainer().fit((x, y), (x, y + 5))
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError):
        trainer(checkpoint=tmp_path / "file").fit((x, y))
    with pytest.raises(TypeError, match="Callback"):
        trainer().fit((x, y), callbacks=[Callback])
    with pytest.raises(TypeError, match="torch optimizer"):
        PrivateTrainer(net(), cross_entropy, torch.optim.SGD, epsilon=1.0, **SETTINGS)
    assert SpendLog.current().charges() == []
    run = trainer().fit((x, y), (x, y), ema_decay=0.9)
    with torch.no_grad():
        left = float(cross_entropy(run.model(x), y).mean())
    assert abs(run.history[-1]["validation_loss"] - left) < 1e-6


def test_reminders() -> None:
    model = nn.Sequential(nn.Linear(D, 4), nn.Dropout(0.5), nn.Linear(4, 2)).eval()
    with pytest.warns(UserWarning, match="eval mode"):
        trainer(model).fit(data())
    with pytest.warns(UserWarning, match=r"public_size = 600, but there are 60 records: batches will be 0\.1 times"):
        trainer(public_size=600, delta=1e-4).fit(data())


def test_dicts_of_arrays_and_data_loaders() -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(D, 2)

        def forward(self, rows: Tensor) -> Tensor:
            return self.layer(rows)

    x, y = data()
    assert trainer(Named()).fit(({"rows": x.numpy()}, y.numpy())).plan is not None
    with pytest.raises(TypeError, match=r"from_loader\(loader\)"):
        trainer().fit(torch.utils.data.DataLoader(Endless()))


class Endless(torch.utils.data.IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter([])


# What a person sees


class Notes(Callback):
    def __init__(self) -> None:
        self.steps: list[PrivateStep] = []
        self.epochs: list[Any] = []
        self.ended = 0

    def on_step(self, step: PrivateStep) -> None:
        self.steps.append(step)

    def on_epoch(self, record: Any) -> None:
        self.epochs.append(dict(record))

    def on_end(self, certificate: Any) -> None:
        self.ended += 1


def test_callbacks_history_and_what_is_not_private() -> None:
    notes, open_notes = Notes(), Notes()
    run = trainer().fit(data(), data(20), callbacks=[notes])
    trainer().fit(data(), callbacks=[open_notes], show_private=True)
    assert [step.number for step in notes.steps] == list(range(1, 13)) and notes.ended == 1
    assert notes.epochs == run.history and [record["step"] for record in run.history] == [4, 8, 12]
    spent = [record["epsilon"] for record in run.history]
    assert spent == sorted(spent) and abs(spent[-1] - run.certificate.epsilon) < 1e-3
    assert set(run.history[0]) == {"epoch", "step", "epsilon", "validation_loss", "validation_accuracy"}
    assert all(step.batch_loss is None and step.batch_clipped is None for step in notes.steps)
    assert all(step.batch_loss is not None and 0 <= step.batch_clipped <= 1 for step in open_notes.steps)


def test_schedulers_and_a_loop_of_your_own() -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    run = PrivateTrainer(model, cross_entropy, optimizer, epsilon=3.0, random_state=0, **SETTINGS)
    run.fit(data(), scheduler=schedule)
    assert optimizer.param_groups[0]["lr"] == 0.5**4
    mine = trainer(net())
    assert mine.optimizer is not None
    numbers: list[int] = []
    for step in mine.steps(data()):
        numbers.append(step.number)
        assert all(parameter.grad is not None for parameter in mine.model.parameters())
        mine.optimizer.step()
    assert numbers == list(range(1, 13)) and step.total == 12
    assert torch.allclose(mine.objective.theta, trainer().fit(data()).objective.theta)


def test_the_progress_bar_says_what_is_not_private(capfd: pytest.CaptureFixture[str]) -> None:
    trainer().fit(data(), data(20), progress=True, show_private=True)
    shown = capfd.readouterr().err
    for part in ("step 12/12", "ε 3.00", "not private", "loss 0.", "accuracy"):
        assert part in shown, part


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard(tmp_path: Path) -> None:
    trainer().fit(data(), data(20), callbacks=[TensorBoard(tmp_path)], show_private=True)
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert {"epsilon", "validation_accuracy", "not private/loss"} <= set(events.Tags()["scalars"])
    assert len(events.Scalars("epsilon")) == 3


def test_freezing_and_unfreezing_between_batches() -> None:
    model = net()
    objective = ModuleObjective(model, cross_entropy)
    x, y = data()
    whole = objective.evaluate(x, y).norms
    model[0].requires_grad_(False)
    assert bool((objective.evaluate(x, y).norms < whole).all())
    model[0].requires_grad_(True)
    assert torch.equal(objective.evaluate(x, y).norms, whole)


def test_a_parameter_named_p_is_no_dropout() -> None:
    class Powered(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.p = nn.Parameter(torch.ones(D, 2))

        def forward(self, x: Tensor) -> Tensor:
            return x @ self.p

    model = Powered().eval()
    assert trainer(model, epochs=1).fit(data()).certificate is not None


def test_a_tensor_without_one_row_per_record_is_refused() -> None:
    x, y = data()
    with pytest.raises(ValueError, match="one row per record in every tensor"):
        TorchRecords(((x, torch.ones(3, D)), y))


def test_a_trainer_does_not_start_again_after_its_charge() -> None:
    run = trainer()
    steps = run.steps(data())
    next(steps)
    steps.close()
    with pytest.raises(ValueError, match="runs once"):
        run.fit(data())


# The first step


def test_a_tensor_that_nobody_trains_is_told_of() -> None:
    model = net()
    groups = [{"params": model[0].parameters(), "lr": 0.0}, {"params": model[2].parameters(), "lr": 0.1}]
    run = PrivateTrainer(model, cross_entropy, torch.optim.SGD(groups), epsilon=3.0, random_state=0, **SETTINGS)
    with pytest.warns(UserWarning, match=r"10 private steps did not move 0\.weight, 0\.bias: noise is spent"):
        run.fit(data())


def test_a_frozen_tensor_that_moves_is_told_of() -> None:
    model = net()
    model[0].requires_grad_(False)

    class Careless(Callback):
        def on_step(self, step: PrivateStep) -> None:
            model[0].bias.data += 1e-4

    run = PrivateTrainer(
        model, cross_entropy, torch.optim.SGD(model[2].parameters(), lr=0.1), epsilon=3.0, random_state=0, **SETTINGS
    )
    with pytest.warns(UserWarning, match=r"changed 0\.bias, not trained privately"):
        run.fit(data(), callbacks=[Careless()])


def test_a_schedule_that_starts_at_nothing_is_no_fault(recwarn: pytest.WarningsRecorder) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    warmed = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: step / 10)
    PrivateTrainer(model, cross_entropy, optimizer, epsilon=3.0, random_state=0, **SETTINGS).fit(
        data(), scheduler=warmed, scheduler_interval="step"
    )
    assert not [warning for warning in recwarn if "did not move" in str(warning.message)]
