"""Optimised strategies beside those of other libraries: the same error? Writes results/correlated_peers.md.

    pip install jax-privacy opake[dpftrl] && python benchmarks/correlated_peers.py

Error: root of the mean square of SGD without momentum. Banded strategies: over all iterates, records take part once. Buffered
strategies: of the last iterate (the largest error, which Opake minimises), records take part every 50 steps.
"""

from __future__ import annotations

import functools
import platform
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import jax
import numpy as np
from jax_privacy.matrix_factorization import toeplitz
from opake.dpftrl.noise import band_mf_strategy, blt_strategy
from opake.exceptions import OperationError

from dperm.gradient.correlation import Once, Participation, Periodic, Toeplitz, Workload, predicted_error
from dperm.gradient.correlation.banded_toeplitz import BandedToeplitz
from dperm.gradient.correlation.buffered import Buffered

RESULTS = Path(__file__).parent / "results" / "correlated_peers.md"
ALL, LAST, PERIOD = Workload(of="all"), Workload(of="last"), 50


class Theirs(Toeplitz):
    """Coefficients that another library found, divided by the first."""

    def __init__(self, values: object) -> None:
        numbers = np.asarray(values, dtype=np.float64)
        object.__setattr__(self, "values", numbers / numbers[0])

    def coefficients(self, steps: int) -> np.ndarray:
        return np.array(vars(self)["values"])


def row(
    name: str, steps: int, participation: Participation, workload: Workload, mine: Toeplitz, peers: list[Callable[[], object]]
) -> str:
    """Seconds to find each strategy, and dperm's error ÷ each peer's."""
    began = time.perf_counter()
    mine.coefficients(steps)
    seconds, ratios = [time.perf_counter() - began], list[str]()
    error = predicted_error(mine, participation, workload, steps)
    for find in peers:
        began = time.perf_counter()
        try:
            theirs = Theirs(find())
            ratios.append(f"{error / predicted_error(theirs, participation, workload, steps):.6f}")
        except OperationError:
            ratios.append("its search fails")
        seconds.append(time.perf_counter() - began)
    cells = [name, *ratios, *(f"{each:.2f}" for each in seconds)]
    print(cells, flush=True)
    return f"| {' | '.join(cells)} |"


def banded() -> list[str]:
    lines = ["| steps, bands | ÷ JAX-Privacy | ÷ Opake | dperm, s | JAX-Privacy, s | Opake, s |", "| --- |" + " --- |" * 5]
    for steps in (500, 2_000, 10_000):
        for bands in (4, 16, 64):
            peers: list[Callable[[], object]] = [
                lambda steps=steps, bands=bands: toeplitz.optimize_banded_toeplitz(steps, bands)[:bands],
                lambda steps=steps, bands=bands: band_mf_strategy(bands=bands).coefficients(n_steps=steps),
            ]
            lines.append(row(f"{steps:,}, {bands}", steps, Once(), ALL, BandedToeplitz(bands, ALL), peers))
    return lines


def buffered() -> list[str]:
    lines = ["| steps, buffers | ÷ Opake | dperm, s | Opake, s |", "| --- | --- | --- | --- |"]
    for steps in (500, 2_000):
        for buffers in (1, 2, 3):
            peer = functools.partial(blt_strategy(max_buffers=buffers).coefficients, n_steps=steps, min_sep=PERIOD)
            mine = Buffered(buffers, PERIOD, LAST)
            lines.append(row(f"{steps:,}, at most {buffers}", steps, Periodic(PERIOD), LAST, mine, [peer]))
    return lines


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    names = {"jax-privacy": "JAX-Privacy", "jax": "JAX", "opake": "Opake"}
    versions = ", ".join(f"{said} {version(name)}" for name, said in names.items())
    lines = [
        "# Strategies beside those of other libraries", "",
        "`python benchmarks/correlated_peers.py`: error of dperm's strategy ÷ error of the peer's, and seconds to find each "
        "(JAX-Privacy's with compilation).", "",
        "## Banded Toeplitz, all iterates, records that take part once", "", *banded(), "",
        f"## Buffered (BLT), the last iterate, records that take part every {PERIOD} steps", "", *buffered(), "",
        f"Python {platform.python_version()}, {versions}, {platform.machine()}.",
    ]  # fmt: skip
    RESULTS.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
