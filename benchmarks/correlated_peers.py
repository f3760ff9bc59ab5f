"""Optimised banded Toeplitz strategies beside those of JAX-Privacy: the same error? Writes results/correlated_peers.md.

    pip install jax-privacy && python benchmarks/correlated_peers.py

Error: root of the mean square over all iterates of SGD without momentum, for records that take part once.
"""

from __future__ import annotations

import platform
import time
from importlib.metadata import version
from pathlib import Path

import jax
import numpy as np
from jax_privacy.matrix_factorization import toeplitz

from dperm.gradient.correlation import Once, Toeplitz, Workload, predicted_error
from dperm.gradient.correlation.banded_toeplitz import BandedToeplitz

RESULTS = Path(__file__).parent / "results" / "correlated_peers.md"


class Theirs(Toeplitz):
    """Coefficients that another library found, divided by the first."""

    def __init__(self, values: np.ndarray) -> None:
        object.__setattr__(self, "values", values / values[0])

    def coefficients(self, steps: int) -> np.ndarray:
        return np.array(vars(self)["values"])


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    workload = Workload(of="all")
    lines = [
        "# Strategies beside JAX-Privacy's",
        "",
        "`python benchmarks/correlated_peers.py`: error of dperm's banded Toeplitz strategy ÷ error of JAX-Privacy's, and",
        "seconds to find each (JAX-Privacy's with compilation).",
        "",
        "| steps, bands | error, dperm ÷ JAX-Privacy | dperm, s | JAX-Privacy, s |",
        "| --- | --- | --- | --- |",
    ]
    for steps in (500, 2_000, 10_000):
        for bands in (4, 16, 64):
            began = time.perf_counter()
            mine = BandedToeplitz(bands, workload)
            mine.coefficients(steps)
            found = time.perf_counter()
            theirs = np.asarray(toeplitz.optimize_banded_toeplitz(steps, bands), dtype=np.float64)[:bands]
            ended = time.perf_counter()
            errors = [predicted_error(each, Once(), workload, steps) for each in (mine, Theirs(theirs))]
            lines.append(f"| {steps:,}, {bands} | {errors[0] / errors[1]:.6f} | {found - began:.2f} | {ended - found:.1f} |")
            print(lines[-1], flush=True)
    lines += [
        "",
        f"Python {platform.python_version()}, JAX-Privacy {version('jax-privacy')}, JAX {jax.__version__}, {platform.machine()}.",
    ]
    RESULTS.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
