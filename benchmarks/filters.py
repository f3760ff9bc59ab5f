"""What it costs in noise that DPIS chooses its noise on the way: by privacy profiles, and by one Rényi order.

python benchmarks/filters.py [--write] (two minutes): noise of the mean gradient, σ_G in units of C/b, in 20 epochs of 60,000
records. "Known" is the exact accountant's, if all epochs were known to have this r = K/(N·C): nothing can do better.
"""

from __future__ import annotations

import argparse
import math
import platform
import time
from pathlib import Path

import numpy as np
import scipy
from scipy.optimize import brentq

from dperm.gradient import ImportancePlan
from dperm.gradient.recipes import dpis
from dperm.privacy import (
    Event,
    FilteredRdp,
    Gaussian,
    PoissonSampled,
    ProfileFilter,
    RdpFilter,
    Relation,
    SelfComposed,
    calibrate,
)

DELTA = 1e-5
SIZE, EPOCHS, BATCH = 60_000, 20, 512
RATIOS = (1.0, 0.5, 0.35, 0.2, 0.1)
EPSILONS = (0.1, 0.5, 1.0, 2.0, 3.0, 4.0, 8.0)


def steps(rate: float, noise: float, count: int) -> Event:
    return SelfComposed(PoissonSampled(rate, Gaussian(noise)), count)


def plan(epsilon: float, **settings: str) -> ImportancePlan:
    return dpis(
        epsilon=epsilon, delta=DELTA, public_size=SIZE, expected_batch_size=BATCH, epochs=EPOCHS, clipping_norm=0.1,
        average_from=None, **settings,
    )  # fmt: skip


def by_one_order(made: ImportancePlan, ratio: float) -> float:
    """With the same share of the filter's budget in each epoch: as if it had been known that r stays."""
    assert isinstance(made.budget, FilteredRdp)
    held = RdpFilter(made.budget)
    left = made.budget.rdp_budget - made.schedule.sums(0) * held.cost(Gaussian(made.sum_noise))

    def beyond(log_noise: float) -> float:
        return math.log(held.cost(steps(made.schedule.least_rate / ratio, math.exp(log_noise), made.steps)) / left)

    return ratio * math.exp(float(brentq(beyond, math.log(0.2), math.log(1e4))))


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--write", action="store_true", help="write benchmarks/results/filters.md")
    write = options.parse_args().write
    lines = [
        "| ε | r | known | profiles | one Rényi order | s to plan; to find an epoch's noise |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for epsilon in EPSILONS:
        started = time.perf_counter()
        profiled = plan(epsilon)
        planned = time.perf_counter() - started
        renyi = plan(epsilon, filter="renyi")
        held = ProfileFilter(profiled.event(Relation.ADD_OR_REMOVE_ONE))
        for ratio in RATIOS:
            rate = profiled.schedule.least_rate / ratio
            known = ratio * calibrate(lambda x, rate=rate, count=profiled.steps: steps(rate, x, count), epsilon, DELTA)
            started = time.perf_counter()
            found = ratio * profiled.noise_multiplier(held, 0, profiled.steps_per_epoch, rate)
            seconds = time.perf_counter() - started
            other = by_one_order(renyi, ratio)
            took = f"{planned:.1f}; {seconds:.2f}" if ratio == RATIOS[0] else f"{seconds:.2f}"
            lines.append(
                f"| {epsilon:g} | {ratio:g} | {known:.4g} | {found:.4g} (+{100 * (found / known - 1):.1f} %) "
                f"| {other:.4g} (+{100 * (other / known - 1):.1f} %) | {took} |"
            )
            print(lines[-1], flush=True)
    machine = f"{platform.machine()}, Python {platform.python_version()}, NumPy {np.__version__}, SciPy {scipy.__version__}"
    if write:
        text = f"# Noise under the filters of DPIS\n\n{__doc__}\nMachine: {machine}.\n\n" + "\n".join(lines) + "\n"
        (Path(__file__).parent / "results" / "filters.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
