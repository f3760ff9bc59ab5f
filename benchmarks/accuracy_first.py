"""What a target accuracy takes: accuracy first against doubling ε with fresh noise, on Adult and KDD Cup 99.

Writes benchmarks/results/accuracy_first.md. Both release one minimiser, of the same regulariser, and look at the same public
held-out records. Doubling is charged by the plain sum of its ε, and by what its Gaussians compose to (as a filter would have it).
"""

from __future__ import annotations

import math
import platform
import statistics
from pathlib import Path
from typing import Any

import numpy as np

from dperm import data
from dperm.mechanisms import AccuracyFirst, Budget, LookAtOthers
from dperm.mechanisms.minimiser import solve
from dperm.objectives import Logistic, Task
from dperm.privacy import Gaussian, calibrate, stopping_epsilons
from dperm.privacy.accountants.gaussian import gaussian_epsilon
from dperm.release import Channel, GaussianNoise
from dperm.release.selection import set_aside

RUNS, MOST, DELTA, LARGEST = 50, 40_000, 1e-5, 16.0
TARGETS = {"adult": (0.78, 0.80, 0.81, 0.82), "kddcup99": (0.90, 0.95, 0.97, 0.98)}
DOUBLING_FROM = 0.05
RESULTS = Path(__file__).parent / "results" / "accuracy_first.md"


def table(name: str) -> tuple[Any, Any, Any, Any]:
    """Rows of norm up to 1 and targets ±1, to train on and held out."""
    dataset = data.load(name)
    order = np.random.default_rng(0).permutation(len(dataset.targets))[: MOST + 10_000]
    rows = dataset.features[order]
    rows = rows / np.sqrt((rows**2).sum(axis=1).max())
    signs = np.where(dataset.targets[order] == dataset.classes[1], 1.0, -1.0)
    return rows[10_000:], signs[10_000:], rows[:10_000], signs[:10_000]


def doubling(theta: Any, sensitivity: float, reached: Any) -> tuple[float, float, float]:
    """(ε that holds for a stop chosen on the way, ε of the composition, sum of ε) where it stops; inf above `LARGEST`."""
    start = DOUBLING_FROM * 2 ** np.random.default_rng().random()  # no target lies well or badly on its grid
    levels = [start * 2**k for k in range(math.ceil(math.log2(LARGEST / DOUBLING_FROM)) + 1)]
    noises = [calibrate(Gaussian, level, DELTA) for level in levels]
    signals = np.sqrt(np.cumsum([noise**-2 for noise in noises]))
    for place, noise in enumerate(noises):
        if reached(theta + noise * sensitivity * np.random.default_rng().normal(size=len(theta))):
            # every ε at its share of δ: what a sum of ε is stated for
            spent = [gaussian_epsilon(each, DELTA / len(levels)) for each in noises[: place + 1]]
            alone = gaussian_epsilon(1 / float(signals[place]), DELTA)
            return stopping_epsilons(tuple(signals), DELTA)[place], alone, sum(spent)
    return math.inf, math.inf, math.inf


def main() -> None:
    lines = [
        "# What a target accuracy takes",
        "",
        f"ε at δ = {DELTA:g}, medians of {RUNS} runs: where accuracy first stopped, ex post, 40 stops to {LARGEST:g}; and where",
        "doubling from 0.05 to 0.1 did: ex post as well; by what its Gaussians compose to at that stop, as a filter counts,",
        "which takes no account of when it stopped; and by the plain sum. Ratios are of accuracy first to these.",
        "",
        "| data | accuracy | accuracy first | doubling, ex post | ratio | composed | ratio | summed | ratio |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, targets in TARGETS.items():
        rows, signs, others, their = table(name)
        task = Task(loss=Logistic(), features=rows.shape[1], classes=2, public_size=len(rows), intercept_scale=0.5)
        for target in targets:
            method = AccuracyFirst(accuracy=target, held_out=(others, their), span=200.0)
            mechanism: Any
            mechanism, problem = method.build(task, Budget(DELTA, LARGEST))
            records = problem.records(rows, signs)
            steep = problem.with_strong_convexity(mechanism.strong_convexity)
            theta = solve(steep, records, 0.0, mechanism.residual(steep.facts)).theta
            sensitivity = mechanism.sensitivity(steep.facts)
            looks: LookAtOthers = mechanism.stopping
            reached = looks.test(problem, records, Channel.open(), None)
            multipliers = mechanism.statement(1).multipliers
            first: list[float] = []
            others_spent: list[tuple[float, float, float]] = []
            for _ in range(RUNS):
                total = np.zeros(len(theta))
                level = math.inf
                with set_aside():
                    channel = Channel.open()
                    channel.charge(mechanism.event(steep.facts), "path")
                    for stop, noise in enumerate(multipliers):
                        total += channel.release(theta, GaussianNoise(sensitivity, float(noise))) / noise**2
                        if reached(total / mechanism.signals[stop] ** 2):
                            level = mechanism.levels[stop]
                            break
                first.append(level)
                others_spent.append(doubling(theta, sensitivity, reached))
            least = statistics.median(first)
            compared = [statistics.median(values) for values in zip(*others_spent, strict=True)]
            cells = " | ".join(f"{value:.3f} | {least / value:.2f}" for value in compared)
            lines.append(f"| {name} | {target} | {least:.3f} | {cells} |")
            print(lines[-1], flush=True)
    RESULTS.write_text(
        "\n".join([*lines, "", f"{platform.machine()}, Python {platform.python_version()}, NumPy {np.__version__}.", ""])
    )


if __name__ == "__main__":
    main()
