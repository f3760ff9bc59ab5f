"""What audits find and how long they take: prints the tables of results/audit.md.

python benchmarks/audit.py
"""

from __future__ import annotations

import platform
import sys
import time
import warnings
from importlib import metadata

import numpy as np
import torch
from torch import nn

from dperm.audit import Training, attack, compare_scores, one_run_gradients, white_box
from dperm.gradient import SGD, Clip, Constant, Plan, Poisson
from dperm.mechanisms import GradientPerturbation, ObjectivePerturbation, OutputPerturbation
from dperm.mechanisms.tuning import gradient_plan
from dperm.objectives import LinearObjective, Logistic
from dperm.privacy import Gaussian, Relation, calibrate
from dperm.privacy.accountants.gaussian import gaussian_mu
from dperm.torch import ModuleObjective, TorchRecords

DELTA = 1e-5


def gaussian() -> None:
    rng = np.random.default_rng(0)
    print(
        "| Gaussian mechanism, true ε | trials a world | estimate: median, 5–95 % | proven: median, 5–95 % | seconds an audit |"
    )
    print("| --- | --- | --- | --- | --- |")
    for true in (1.0, 4.0):
        mu = gaussian_mu(true, DELTA)
        for trials in (10_000, 100_000):
            estimates, proven = [], []
            start = time.perf_counter()
            for _ in range(100):
                scores = rng.normal(size=trials), rng.normal(size=trials) + mu
                result = compare_scores(*scores, claim=Gaussian(1 / mu), delta=DELTA)
                assert not result.refuted
                estimates.append(result.estimate.epsilon)
                proven.append(result.epsilon_lower)
            seconds = (time.perf_counter() - start) / 100
            print(f"| {true:g} | {trials:,} | {_spread(estimates)} | {_spread(proven)} | {seconds:.2f} |")


def _spread(values: list[float]) -> str:
    low, middle, high = np.quantile(values, [0.05, 0.5, 0.95])
    return f"{middle:.2f}, {low:.2f}–{high:.2f}"


def network() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 8, 2, padding=3), nn.ReLU(), nn.MaxPool2d(2, 1), nn.Conv2d(16, 32, 4, 2), nn.ReLU(),
        nn.MaxPool2d(2, 1), nn.Flatten(), nn.Linear(32 * 16, 32), nn.ReLU(), nn.Linear(32, 10),
    )  # fmt: skip
    module = ModuleObjective(model, nn.CrossEntropyLoss(reduction="none"))
    records = TorchRecords((torch.randn(1000, 1, 28, 28), torch.randint(0, 10, (1000,))))
    print("\n| CNN of 26,010 parameters, certified ε | white box: estimate, 95 % | proven | one run: proven | seconds, both |")
    print("| --- | --- | --- | --- | --- |")
    for target in (1.0, 4.0):
        noise = calibrate(lambda x: _plan(x).event(Relation.ADD_OR_REMOVE_ONE), target, DELTA)
        start = time.perf_counter()
        whole = white_box(_plan(noise), module, records, delta=DELTA, canaries=1000)
        once = one_run_gradients(_plan(noise), module, records, delta=DELTA, canaries=1000)
        seconds = time.perf_counter() - start
        estimate = whole.estimate
        print(
            f"| {target:g} | {estimate.epsilon:.2f}, {estimate.low:.2f}–{estimate.high:.2f} | {whole.epsilon_lower:.2f} | "
            f"{once.epsilon_lower:.2f} | {seconds:.1f} |"
        )


def _plan(noise: float) -> Plan:
    return Plan(Poisson(0.1), Clip(1.0), Constant(noise), SGD(0.1), 100, 1000)


def linear() -> None:
    print("\n| linear model, 20 features, n = 10,000 | ε | movement ÷ sensitivity | proven | estimate, 95 % | seconds |")
    print("| --- | --- | --- | --- | --- | --- |")
    objective = LinearObjective(Logistic(), 20, intercept_scale=0.5, public_size=10_000)
    facts = objective.facts
    for epsilon in (1.0, 4.0):
        for mechanism in (
            OutputPerturbation.calibrate(facts, epsilon, DELTA),
            ObjectivePerturbation.calibrate(facts, epsilon, DELTA),
            GradientPerturbation.calibrate(gradient_plan(facts, epsilon, DELTA, sampling="full"), facts, epsilon, DELTA),
            GradientPerturbation.calibrate(gradient_plan(facts, epsilon, DELTA), facts, epsilon, DELTA),
        ):
            start = time.perf_counter()
            replayed, game = attack(Training.of_mechanism(mechanism, objective))
            seconds = time.perf_counter() - start
            estimate = game.estimate
            print(
                f"| {mechanism.name} | {epsilon:g} | {replayed.details['largest_movement']:.3f} | {game.epsilon_lower:.2f} | "
                f"{estimate.epsilon:.2f}, {estimate.low:.2f}–{estimate.high:.2f} | {seconds:.1f} |"
            )


def main() -> None:
    names = ("dperm", "numpy", "scipy", "torch")
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in names)
    print(f"{platform.machine()}, {torch.get_num_threads()} threads, Python {sys.version.split()[0]}, {versions}\n")
    warnings.simplefilter("ignore")
    gaussian()
    network()
    linear()


if __name__ == "__main__":
    main()
