"""Strategies made for the optimiser and the schedule that run, bands chosen by rule, and AdamW without what noise adds."""

from __future__ import annotations

import copy
import functools
import itertools
import math
import pickle
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from dperm import gradient as linear
from dperm.gradient import CyclicPoisson, Plan, Poisson, UnitAtLeast
from dperm.gradient.correlation import Toeplitz, Workload
from dperm.gradient.correlation.banded_toeplitz import BandedToeplitz
from dperm.gradient.recipes import dp_sgd
from dperm.release.sizing import CountFirst
from dperm.torch import AdamBC, Callback, PrivateTrainer
from dperm.torch.training.settings import FitOptions
from helpers.oracle import cross_entropy

SIZE, EPOCHS, BATCH = 200, 3, 20


class WithoutProof(Toeplitz):
    """A strategy of a stranger's, who says that a run with it may not go on."""

    size: float

    def __init__(self, size: float = 0.5) -> None:
        object.__setattr__(self, "size", size)

    def coefficients(self, steps: int) -> Any:
        return np.array([1.0, self.size, -self.size])

    def restarts(self, steps: int) -> bool:
        return False


STEPS = EPOCHS * SIZE // BATCH


def data() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(SIZE, 4, generator=generator)
    return inputs, (inputs[:, 0] > 0).long()


def trainer(make: Callable[[Any], torch.optim.Optimizer], plan: Any = dp_sgd, **settings: Any) -> PrivateTrainer:
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    usual: dict[str, Any] = {
        "epsilon": 4.0, "delta": 1e-5, "epochs": EPOCHS, "expected_batch_size": BATCH, "clipping_norm": 1.0, "public_size": SIZE
    }  # fmt: skip
    chosen = {name: value for name, value in (usual | settings).items() if value is not None}
    return PrivateTrainer(model, cross_entropy, make(model.parameters()), plan, **chosen)


def fitted(made: PrivateTrainer, **options: Any) -> Plan:
    made.fit(data(), progress=False, **options)
    assert isinstance(made.plan, Plan)
    return made.plan


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, 0.1, momentum=0.7, weight_decay=0.2)


BANDED = functools.partial(dp_sgd, correlation="banded", bands=4)


# Workloads


@pytest.mark.parametrize(
    ("make", "workload"),
    [
        (sgd, Workload(momentum=0.7, weight_decay=0.1 * 0.2)),
        (functools.partial(torch.optim.SGD, lr=0.1), Workload()),
        (functools.partial(torch.optim.Adam, lr=0.1, betas=(0.8, 0.99)), Workload(momentum=0.8)),
        (functools.partial(AdamBC, lr=0.1, weight_decay=0.5), Workload(momentum=0.9, weight_decay=0.05)),
    ],
)
def test_strategies_are_made_for_the_optimiser_that_runs(make: Any, workload: Workload) -> None:
    ran = fitted(trainer(make, BANDED))
    assert ran.strategy == BandedToeplitz(4, workload)
    assert repr(ran.strategy) in str(ran.describe())


def test_they_are_in_a_loop_of_the_callers_own() -> None:
    made = trainer(sgd, BANDED)
    for _ in made.steps(data()):
        assert made.optimizer is not None
        made.optimizer.step()
    assert isinstance(made.plan, Plan) and made.plan.strategy == BandedToeplitz(4, Workload(momentum=0.7, weight_decay=0.1 * 0.2))


SCHEDULES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "cosine, by step": (lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, STEPS), "step"),
    "halved, by epoch": (lambda optimizer: lr_scheduler.StepLR(optimizer, 1, 0.5), "epoch"),
    "one cycle": (lambda optimizer: lr_scheduler.OneCycleLR(optimizer, 0.3, total_steps=STEPS - 5), "step"),
    "in sequence": (
        lambda optimizer: lr_scheduler.SequentialLR(
            optimizer, [lr_scheduler.LinearLR(optimizer, 0.1, 1.0, 8), lr_scheduler.ExponentialLR(optimizer, 0.9)], [8]
        ),
        "step",
    ),
    "a function": (lambda optimizer: lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step)), "step"),
}


class Rates(Callback):
    """The learning rate of each step."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer, self.seen = optimizer, list[float]()

    def on_step(self, step: Any) -> None:
        self.seen.append(float(self.optimizer.param_groups[0]["lr"]))


@pytest.mark.filterwarnings("ignore:The epoch parameter in")
@pytest.mark.parametrize(("schedule", "interval"), SCHEDULES.values(), ids=SCHEDULES)
def test_strategies_are_made_for_the_schedule_that_runs(schedule: Any, interval: str) -> None:
    made = trainer(sgd, BANDED)
    assert made.optimizer is not None
    rates = Rates(made.optimizer)
    ran = fitted(made, scheduler=schedule(made.optimizer), scheduler_interval=interval, callbacks=[rates])
    assert isinstance(ran.strategy, BandedToeplitz)
    assert ran.strategy.workload.learning_rates == pytest.approx(rates.seen)
    assert len(set(rates.seen)) > 2


def test_a_rehearsed_schedule_is_left_as_it_was() -> None:
    optimizer = sgd([nn.Parameter(torch.zeros(2))])
    scheduler = SCHEDULES["in sequence"][0](optimizer)
    before = copy.deepcopy((optimizer.state_dict(), scheduler.state_dict()["last_epoch"]))
    assert len(FitOptions(scheduler=scheduler, scheduler_interval="step").learning_rates(optimizer, 20, 0.1)) == 20
    assert (optimizer.state_dict(), scheduler.state_dict()["last_epoch"]) == before


class Unattached:
    """A schedule that names its optimiser otherwise, and takes its rates from an iterator."""

    def __init__(self, held: torch.optim.Optimizer) -> None:
        self.held, self.last_epoch, self.steps = held, 0, itertools.count(1)
        self.step()

    def step(self) -> None:
        for group in self.held.param_groups:
            group["lr"] = 0.1 / next(self.steps)


class Locked(Unattached):
    def __init__(self, held: torch.optim.Optimizer) -> None:
        self.lock = threading.Lock()
        super().__init__(held)


def with_tensor(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, torch.tensor(0.1), momentum=0.7)


def by_iterator(optimizer: Any) -> Any:
    steps = itertools.count(1)
    return lr_scheduler.LambdaLR(optimizer, lambda step: 1 / next(steps))


@pytest.mark.fast_cases("stated-a function that uses up an iterator", "released-not to be copied")
@pytest.mark.parametrize(
    ("make", "schedule"),
    [
        (with_tensor, lambda optimizer: lr_scheduler.ExponentialLR(optimizer, 0.9)),
        (sgd, by_iterator),
        (sgd, Unattached),
        (sgd, Locked),
    ],
    ids=["a tensor as rate", "a function that uses up an iterator", "no attribute optimizer", "not to be copied"],
)
@pytest.mark.parametrize("size", [SIZE, None], ids=["stated", "released"])
def test_a_rehearsal_changes_nothing_of_the_run(make: Any, schedule: Any, size: int | None) -> None:
    seen: list[list[float]] = []
    for plan in (dp_sgd, BANDED):
        made = trainer(make, plan, public_size=size, expected_batch_size=BATCH)
        assert made.optimizer is not None
        scheduler, rates = schedule(made.optimizer), Rates(made.optimizer)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            made.fit(data(), progress=False, scheduler=scheduler, scheduler_interval="step", callbacks=[rates])
        assert any("cannot be copied" in str(each.message) for each in told) == (schedule is Locked and plan is BANDED)
        seen.append(rates.seen[:20])
    assert seen[0] == pytest.approx(seen[1]) and seen[0][0] == pytest.approx(0.1)


def test_a_run_does_not_go_on_with_a_strategy_for_another_optimiser(tmp_path: Path) -> None:
    class Stop(Callback):
        def on_step(self, step: Any) -> None:
            if step.number == 10:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trainer(sgd, BANDED, checkpoint=tmp_path).fit(data(), progress=False, checkpoint_every=2, callbacks=[Stop()])
    with pytest.raises(ValueError, match="correlation differ"):
        trainer(functools.partial(torch.optim.SGD, lr=0.1), BANDED, checkpoint=tmp_path).fit(data(), progress=False, resume=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer(sgd, BANDED, checkpoint=tmp_path).fit(data(), progress=False, resume=True)


# Bands by rule


def test_bands_are_chosen_for_the_epsilon_of_the_run() -> None:
    by_rule = functools.partial(dp_sgd, correlation="banded")
    chosen = fitted(trainer(sgd, by_rule, epsilon=8.0))
    assert isinstance(chosen.sampler, CyclicPoisson) and chosen.sampler.groups == chosen.strategy.bands(STEPS) > 1
    few = trainer(sgd, by_rule, epsilon=0.05)
    assert fitted(few).sampler == Poisson(BATCH / SIZE)
    plain = trainer(sgd, epsilon=0.05)
    fitted(plain)
    assert few.certificate is not None and plain.certificate is not None
    assert few.certificate.event == plain.certificate.event


def test_bands_are_chosen_for_the_optimiser_that_runs() -> None:
    """Weight decay forgets what a step moved: few bands help then, and 32, which momentum alone would want, harm."""
    decayed = functools.partial(torch.optim.SGD, lr=1.0, weight_decay=0.05)
    settings: dict[str, Any] = {"public_size": 20_000, "expected_batch_size": 500, "epochs": 10}
    bands: list[int] = []
    for make in (decayed, functools.partial(torch.optim.SGD, lr=1.0, momentum=0.9)):
        made = trainer(make, functools.partial(dp_sgd, correlation="banded"), **settings)
        facts = made.planned().public_facts
        bands.append(int(str(facts["sampler"]).partition("groups=")[2].rstrip(")")))
    assert 1 < bands[0] < bands[1] / 2


def test_bands_are_chosen_for_a_number_of_records_that_is_released(recwarn: Any) -> None:
    made = trainer(sgd, functools.partial(dp_sgd, correlation="banded"), epsilon=8.0, public_size=None)
    assert fitted(made).strategy.kept(STEPS) > 0
    assert made.certificate is not None and (made.certificate.epsilon or math.inf) <= 8


@pytest.mark.fast_cases("plan0", "plan1")
@pytest.mark.parametrize(
    "plan", [BANDED, functools.partial(dp_sgd, sampling="fixed_order"), functools.partial(dp_sgd, sampling="balls_and_bins")]
)
def test_no_released_number_of_records_is_too_small_for_a_plan(plan: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was charged runs, whatever number came out."""
    monkeypatch.setattr(CountFirst, "release", lambda self, channel, records: 1)
    made = trainer(functools.partial(torch.optim.SGD, lr=0.1), plan, public_size=None, expected_batch_size=60)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ran = fitted(made)
    assert ran.public_size is not None and 60 < ran.public_size < 300


@pytest.mark.parametrize("size", [SIZE, None], ids=["stated", "released"])
@pytest.mark.parametrize(
    ("make", "plan", "folder", "message"),
    [
        (AdamBC, functools.partial(dp_sgd, post=UnitAtLeast()), False, "subtracts its variance"),
        (sgd, functools.partial(dp_sgd, correlation=WithoutProof(), sampling="fixed_order"), True, "no checkpoint folder"),
        (
            sgd,
            functools.partial(dp_sgd, correlation=WithoutProof(1e12), sampling="fixed_order"),
            False,
            "less noise or fewer bands",
        ),
    ],
)
def test_what_cannot_run_is_refused_before_it_is_charged(
    make: Any, plan: Any, folder: bool, message: str, size: int | None, tmp_path: Path
) -> None:
    made = trainer(make, plan, public_size=size, checkpoint=tmp_path if folder else None)
    with pytest.raises(ValueError, match=message):
        made.fit(data(), progress=False)
    assert made.certificate is None or made.plan is None


def test_bands_must_be_stated_where_the_noise_is() -> None:
    with pytest.raises(ValueError, match="Expected bands with correlation='banded'"):
        trainer(sgd, functools.partial(dp_sgd, correlation="banded"), epsilon=None, noise_multiplier=1.0).planned()
    with pytest.raises(ValueError, match="target beside the recipe"):
        trainer(sgd, functools.partial(dp_sgd, target=(1.0, 1e-5)))


# AdamW without what noise adds


def series(steps: int, size: int = 6) -> torch.Tensor:
    return torch.randn(steps, size, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def followed(
    optimizer: torch.optim.Optimizer, parameter: nn.Parameter, gradients: torch.Tensor, noise: float | None
) -> torch.Tensor:
    for gradient in gradients:
        parameter.grad = gradient.clone()
        if isinstance(optimizer, AdamBC):
            optimizer.noise_deviation = noise
        optimizer.step()
    return parameter.detach().clone()


def test_without_noise_it_is_adamw() -> None:
    """As torch computes it, here and for linear models."""
    ours, theirs = (nn.Parameter(torch.ones(6, dtype=torch.float64)) for _ in range(2))
    settings: dict[str, Any] = {"lr": 0.05, "betas": (0.8, 0.99), "weight_decay": 0.3}
    found = followed(AdamBC([ours], **settings), ours, series(20), 0.0)
    reference = followed(torch.optim.AdamW([theirs], **settings), theirs, series(20), None)
    assert torch.allclose(found, reference, rtol=1e-12)
    update = linear.Adam(0.05, 0.8, 0.99, weight_decay=0.3)
    theta, state = np.ones(6), update.init(np.ones(6))
    for gradient in series(20).numpy():
        theta = update.step(theta, gradient, state)
    assert np.allclose(theta, reference.numpy(), rtol=1e-12)


def test_networks_and_linear_models_move_alike() -> None:
    parameter = nn.Parameter(torch.ones(6, dtype=torch.float64))
    found = followed(AdamBC([parameter], lr=0.05, weight_decay=0.3, floor=0.5), parameter, series(30), 0.7)
    update = linear.AdamBC(0.05, weight_decay=0.3, floor=0.5)
    theta, state = np.ones(6), update.init(np.ones(6))
    for gradient in series(30).numpy():
        update.told_noise(0.7, state)
        theta = update.step(theta, gradient, state)
    assert np.allclose(theta, found.numpy(), rtol=1e-12)


def test_copies_of_an_optimiser_must_be_told_too() -> None:
    parameter = nn.Parameter(torch.ones(3))
    optimizer = AdamBC([parameter])
    optimizer.noise_deviation = 0.5
    parameter.grad = torch.ones(3)
    for copied in (copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))):
        with pytest.raises(ValueError, match="noise is known"):
            copied.step()
    optimizer.noise_deviation = None
    with pytest.raises(ValueError, match="noise is known"):
        optimizer.step()
    assert not optimizer.state  # nothing moved, and nothing was counted


def test_a_step_before_which_no_noise_was_told_is_refused() -> None:
    parameter = nn.Parameter(torch.ones(6, dtype=torch.float64))
    optimizer = AdamBC([parameter])
    followed(optimizer, parameter, series(1), 0.5)
    with pytest.raises(ValueError, match="noise is known"):
        optimizer.step()  # the noise of the step before is not that of this one
    with pytest.raises(ValueError, match="costs privacy"):
        optimizer.step(lambda: 0.0)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="floor"):
        AdamBC([parameter], floor=0.0)


@pytest.mark.parametrize("own_loop", [False, True])
@pytest.mark.parametrize("plan", [dp_sgd, BANDED], ids=["independent", "banded"])
def test_trainers_tell_it_the_noise(own_loop: bool, plan: Any) -> None:
    made = trainer(functools.partial(AdamBC, lr=0.05), plan, epsilon=8.0)
    optimizer, told = made.optimizer, list[float]()
    assert isinstance(optimizer, AdamBC)
    if own_loop:
        for step in made.steps(data()):
            told.append(step.noise_deviation or math.nan)
            optimizer.step()
    else:
        fitted(made, callbacks=[type("Told", (Callback,), {"on_step": lambda self, step: told.append(step.noise_deviation)})()])
    assert len(told) == STEPS and all(noise > 0 for noise in told)
    assert (len(set(told)) == 1) == (plan is dp_sgd)  # correlated noise grows with the steps
    state = next(iter(optimizer.state.values()))
    weights = 0.001 * 0.999 ** np.arange(STEPS)[::-1]
    assert state["noise"] == pytest.approx(float(weights @ np.square(told)))
    assert made.certificate is not None and not [each for each in made.certificate.assumptions if "AdamBC" in each.text]


def test_it_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    class Stop(Callback):
        def on_step(self, step: Any) -> None:
            if step.number == 10:
                raise KeyboardInterrupt

    make = functools.partial(AdamBC, lr=0.05)
    with pytest.raises(KeyboardInterrupt):
        trainer(make, checkpoint=tmp_path).fit(data(), progress=False, checkpoint_every=2, callbacks=[Stop()])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        again = trainer(make, checkpoint=tmp_path)
        fitted(again, resume=True)
    assert again.optimizer is not None
    assert next(iter(again.optimizer.state.values()))["step"] == STEPS - again.steps_lost
