"""Balls and bins as dperm accounts for it, beside two published packages, and beside Poisson sampling at the same rate.

python benchmarks/allocation.py [--write] (dperm alone: a minute; with the packages: ten). The packages are optional:
pip install random-allocation pld-accounting (the former wants NumPy below 2.2).

One record is added or removed, and joins exactly k of t steps in each epoch; noise is in units of what it can move a sum by.
Figures are ε at this δ, the larger of both directions. dperm, random-allocation and Poisson sampling (dperm's, at rate k/t) give
upper bounds; pld-accounting gives an upper and a lower one, refined until they differ by less than 2 % (20 epochs: 10 %).
random-allocation's is the least of its combined and its DCO25 bound in each direction, with Rényi orders from 2 to 60.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import platform
import time
from argparse import ArgumentParser
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import scipy

import dperm
from dperm.privacy import Event, Gaussian, PoissonSampled, RandomAllocation, SelfComposed, calibrate, epsilon
from dperm.privacy.accountants.random_allocation import allocation_ratio

SETTINGS = ((10, 1, 1), (10, 1, 20), (10, 3, 1), (100, 7, 1), (129, 1, 1), (1025, 1, 1))  # t, k, epochs
TARGETS = ((1.0, 1e-5), (4.0, 1e-5), (1.0, 1e-8))
GAPS = {1: 0.02, 20: 0.1}  # of pld-accounting's bounds, relative to ε: halving one takes four times as long
PEERS = {"pld-accounting": "PLD_accounting", "random-allocation": "random_allocation"}
COLUMNS = ("pld-accounting ≤", "pld-accounting ≥", "random-allocation", "Poisson")

Values = dict[str, float]


def allocated(steps: int, selected: int, epochs: int, noise: float) -> Event:
    return SelfComposed(RandomAllocation(steps, Gaussian(noise), selected), epochs)


def ours(steps: int, selected: int, epochs: int, noise: float, delta: float) -> Values:
    allocation_ratio.cache_clear()
    return {"dperm": epsilon(allocated(steps, selected, epochs, noise), delta)}


def poisson(steps: int, selected: int, epochs: int, noise: float, delta: float) -> Values:
    return {"Poisson": epsilon(SelfComposed(PoissonSampled(selected / steps, Gaussian(noise)), steps * epochs), delta)}


def pld_accounting(steps: int, selected: int, epochs: int, noise: float, delta: float, size: float) -> Values:
    """`size`: about what ε is."""
    bounds = import_module("PLD_accounting").gaussian_allocation_epsilon_range(
        delta=delta,
        sigma=noise,
        num_steps=steps,
        num_selected=selected,
        num_epochs=epochs,
        epsilon_accuracy=GAPS[epochs] * size,
    )
    return dict(zip(COLUMNS, map(float, bounds), strict=False))


def random_allocation(steps: int, selected: int, epochs: int, noise: float, delta: float) -> Values:
    package = import_module("random_allocation")
    names = import_module("random_allocation.comparisons.definitions")
    params = package.PrivacyParams(sigma=noise, num_steps=steps, num_selected=selected, num_epochs=epochs, delta=delta)
    config = package.SchemeConfig(allocation_direct_alpha_orders=list(range(2, 61)))
    bounds = (package.methods_dict[names.ALLOCATION_COMBINED].epsilon_calculator, package.allocation_epsilon_RDP_DCO)
    directions = (names.Direction.REMOVE, names.Direction.ADD)
    with contextlib.redirect_stdout(io.StringIO()):  # it prints which orders it would rather have
        return {"random-allocation": max(min(float(bound(params, config, way)) for bound in bounds) for way in directions)}


def timed(function: Callable[..., Values], *arguments: float) -> tuple[Values, str]:
    """What it gives, and seconds of processor time: other work on the machine does not count."""
    started = time.process_time()
    values = function(*arguments)
    seconds = time.process_time() - started
    return values, f"{seconds:.2f}" if seconds < 1 else f"{seconds:.0f}"


def main() -> None:
    options = ArgumentParser(description=__doc__)
    options.add_argument("--write", action="store_true", help="write benchmarks/results/allocation.md")
    write = options.parse_args().write
    there = [name for name, module in PEERS.items() if find_spec(module)]
    lines = [
        f"| t | k | epochs | δ | noise | dperm | {' | '.join(COLUMNS)} | seconds |",
        "| --- |" + " --- |" * 10,
    ]
    beyond: dict[str, list[float]] = {name: [] for name in COLUMNS}  # dperm, in %
    for (steps, selected, epochs), (target, delta) in itertools.product(SETTINGS, TARGETS):
        if (target, delta) == TARGETS[0]:  # the packages compile, and list partitions
            _ = "pld-accounting" in there and pld_accounting(steps, selected, 1, 5.0, delta, 1.0)
            _ = "random-allocation" in there and random_allocation(steps, selected, 1, 5.0, delta)
        found = calibrate(lambda x, n=(steps, selected, epochs): allocated(*n, x), target, delta)
        noise = float(f"{found:.4g}")
        setting = (steps, selected, epochs, noise, delta)
        values, took = timed(ours, *setting)
        found, seconds = values["dperm"], [took]
        for name, function, extra in (
            ("pld-accounting", pld_accounting, (target,)),
            ("random-allocation", random_allocation, ()),
            ("Poisson", poisson, ()),
        ):
            more, took = timed(function, *setting, *extra) if name in [*there, "Poisson"] else ({}, "–")
            values |= more
            seconds.append(took)
        cells = [f"{values[name]:.3f} ({100 * (values[name] / found - 1):+.1f} %)" if name in values else "–" for name in COLUMNS]
        row = (f"{steps:,}", str(selected), str(epochs), f"{delta:g}", f"{noise:g}", f"{found:.3f}", *cells, "; ".join(seconds))
        lines.append(f"| {' | '.join(row)} |")
        print(lines[-1], flush=True)
        for name in values.keys() & beyond.keys():
            beyond[name].append(100 * (values[name] / found - 1))
    summary = [
        f"- {name}: from {min(shares):+.1f} to {max(shares):+.1f} %; above dperm in {sum(share > 0 for share in shares)} "
        f"of {len(shares)} rows."
        for name, shares in beyond.items()
        if shares
    ]
    machine = f"{platform.machine()}, one thread, Python {platform.python_version()}, NumPy {np.__version__}"
    machine += f", SciPy {scipy.__version__}, dperm {dperm.__version__}" + "".join(f", {name} {version(name)}" for name in there)
    notes = [
        "Seconds are processor time, of dperm; pld-accounting (both bounds); random-allocation; Poisson.\n",
        "Against dperm:\n",
    ]
    head = ["# Balls and bins, by three accountants\n", __doc__, f"Machine: {machine}.", *notes]
    if write:
        text = "\n".join([*head, *summary, "", *lines]) + "\n"
        (Path(__file__).parent / "results" / "allocation.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
