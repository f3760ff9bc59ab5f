"""One cell: train, test, keep the certificate."""

from __future__ import annotations

import functools
import json
import math
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from scipy.optimize import brentq
from torch import Tensor, nn

import dperm
from dperm.gradient import AdaptiveNorm, NoiseSchedule, Normalise, Plan
from dperm.gradient.recipes import dp_sgd, dpis
from dperm.privacy import Certificate, Composed, Event, Gaussian, Relation, calibrate
from dperm.privacy.accountants.rdp import rdp_epsilon
from dperm.release import spend_log
from dperm.torch import PrivateTrainer, private_channel_statistics, scattering_scale
from papers.dpis.cells import RESULTS, Cell, load
from papers.dpis.data import load_split
from papers.dpis.models import make_model

__all__ = ["run_cell"]

DELTA = 1e-5


def run_cell(cell: Cell) -> dict[str, Any]:
    """Accuracy on the test set, in per cent, the certificate, what the run's noise was, and what it took."""
    train, test = load_split(cell.dataset, cell.model == "scattering")
    if cell.records is not None:
        train = (train[0][: cell.records], train[1][: cell.records])
    spent: list[Certificate] = []
    if cell.channel_noise:
        with spend_log(RESULTS.parent / "spend.db"):
            found = private_channel_statistics(
                train[0], noise_multiplier=cell.channel_noise, delta=DELTA, scale=scattering_scale(channels=3),
                public_size=len(train[0]), label="papers/dpis",
            )  # fmt: skip
        train, test = ((found.normalise(inputs), labels) for inputs, labels in (train, test))
        spent.append(found.certificate)
    torch.manual_seed(cell.seed)
    model = make_model(cell.dataset, cell.model)
    seen = 0

    def count(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:  # a hook: what a loss keeps is refused
        nonlocal seen
        seen += len(inputs[0])

    model.register_forward_pre_hook(count)

    def loss_fn(outputs: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.cross_entropy(outputs, targets, reduction="none")

    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if cell.optimizer == "adam":
        optimizer: torch.optim.Optimizer = torch.optim.Adam(parameters, cell.learning_rate)
    else:
        optimizer = torch.optim.SGD(parameters, cell.learning_rate, momentum=0.9)
    size = len(train[0])
    plan = plan_of(cell, size)
    trainer = PrivateTrainer(model, loss_fn, optimizer, plan, delta=DELTA, label="papers/dpis", public_size=size)
    started = time.perf_counter()
    with spend_log(RESULTS.parent / "spend.db"):
        trainer.fit(train)
    seconds = time.perf_counter() - started
    assert trainer.certificate is not None and trainer.plan is not None
    return {
        "accuracy": accuracy(model, test),
        "seconds": seconds,
        "steps": trainer.plan.steps,
        "gradient evaluations": seen,
        "noise": noise_of(trainer),
        "certificate": json.loads(Certificate.of_all([*spent, trainer.certificate], DELTA).to_json()),
        "machine": f"{platform.machine()}, {torch.get_num_threads()} thread(s), torch {torch.__version__}",
        "version": dperm.__version__,
    }


def plan_of(cell: Cell, size: int) -> Any:
    """The plan of a cell: with its noise, where Poisson sampling fixes it beforehand."""
    if cell.sampler == "importance":
        return dpis(
            epsilon=cell.epsilon,
            delta=DELTA,
            expected_batch_size=cell.batch,
            epochs=cell.epochs,
            clipping_norm=cell.clipping_norm,
            public_size=size,
            proposal_factor=cell.k,
            norm_noise=None if cell.norm_noise is None else cell.norm_noise * size,
            filter="renyi" if cell.accounting == "rdp" else "profile",
            worst_case_share=cell.worst_case_share if cell.accounting == "rdp" else None,
            pass_every=cell.pass_every,
            adaptive=AdaptiveNorm(cell.scale, cell.ceiling) if cell.adaptive else None,
            average_from=None,
            earlier=earlier_of(cell),
        )
    bounding: dict[str, Any] = {"clipping_norm": cell.clipping_norm}
    if cell.bounding == "normalise":
        bounding = {"bounding": Normalise(0.01)}
    make = functools.partial(
        dp_sgd,
        public_size=size,
        expected_batch_size=cell.batch,
        epochs=cell.epochs,
        average_from=None,
        decay=cell.decay,
        **bounding,
    )
    if cell.borrowed:
        return replace(make(noise_multiplier=1.0), noise=borrowed_noise(cell))
    return make(noise_multiplier=calibrated(lambda noise: make(noise_multiplier=noise), cell))


def earlier_of(cell: Cell) -> Event | None:
    """What is released before the training."""
    return Gaussian(cell.channel_noise) if cell.channel_noise else None


def calibrated(make: Callable[..., Plan], cell: Cell) -> float:
    """The least noise multiplier under the cell's accounting."""

    def event(noise: float) -> Event:
        run = make(noise).event(Relation.ADD_OR_REMOVE_ONE)
        earlier = earlier_of(cell)
        return run if earlier is None else Composed((earlier, run))

    if cell.accounting == "pld":
        return calibrate(event, cell.epsilon, DELTA)

    def excess(log_noise: float) -> float:
        return math.log(rdp_epsilon(event(math.exp(log_noise)), DELTA) / cell.epsilon)

    found = float(brentq(excess, math.log(0.2), math.log(200.0), xtol=1e-5))
    while excess(found) > 0:
        found += 1e-5
    return math.exp(found)


@dataclass(frozen=True)
class ByEpoch(NoiseSchedule):
    """Noise multipliers of epochs of so many steps, the last for all that are left."""

    each: tuple[float, ...]
    steps_per_epoch: int

    def levels(self, steps: int) -> list[tuple[float, int]]:
        counts = [self.steps_per_epoch] * (len(self.each) - 1)
        return [*zip(self.each[:-1], counts, strict=True), (self.each[-1], steps - sum(counts))]


def borrowed_noise(cell: Cell) -> ByEpoch:
    """σ_G of importance sampling with the same settings and initial weights, by epoch."""
    lender = replace(cell, sampler="importance", borrowed=False)
    found = load(lender)
    if found is None:
        raise SystemExit(f"Train {lender.name!r} first: {cell.name!r} borrows its noise.")
    noise = tuple(epoch["gradient_noise"] for epoch in found["noise"])
    return ByEpoch(noise, found["steps"] // len(noise))


def noise_of(trainer: PrivateTrainer) -> list[dict[str, float]]:
    """By epoch: noise of the mean gradient in units of C (σ_G), and for importance sampling all that is public."""
    if trainer.trace:
        return [dict(epoch) for epoch in trainer.trace]
    assert isinstance(trainer.plan, Plan)
    return [{"gradient_noise": level, "steps": count} for level, count in trainer.plan.noise.levels(trainer.plan.steps)]


@torch.no_grad()
def accuracy(model: nn.Module, test: tuple[Tensor, Tensor]) -> float:
    model.eval()
    right = sum(int((model(x).argmax(1) == y).sum()) for x, y in zip(test[0].split(1000), test[1].split(1000), strict=True))
    return 100 * right / len(test[1])
