"""Correlated noise beside DP-SGD with amplification: predicted errors, and linear models in pairs.

    python benchmarks/correlated.py [--repeats 10]          # DPERM_DATA names the folder of the data sets

Both mechanisms have the same batches, epochs, clipping and learning rates, by the same public rules; each repeat trains both on
one random split. Writes benchmarks/results/correlated.md.
"""

from __future__ import annotations

import argparse
import platform
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import numpy as np
from papers.linear import Split, quietly, split, train
from scipy import stats

from dperm.gradient.correlation import Independent, Once, Workload, predicted_error
from dperm.gradient.correlation.banded_toeplitz import BandedToeplitz
from dperm.gradient.correlation.choosing import best_bands
from dperm.mechanisms import CorrelatedGradient, Gradient
from dperm.privacy import Gaussian, PoissonSampled, Relation, SelfComposed, calibrate
from dperm.privacy.events import CyclicSampled
from regression import survey

RESULT = Path(__file__).parent / "results" / "correlated.md"
EPSILONS = (1.0, 2.0, 4.0, 8.0)
DELTA = 1e-5
_MOST_RECORDS = 100_000


def predicted() -> Iterator[str]:
    """Predicted error of the last iterate, as a share of DP-SGD's, at equal ε: momentum 0.9, n = 50,000, batches of 500."""
    share, workload = 0.01, Workload(momentum=0.9)
    widths = (1, 2, 4, 8, 16, 32, 64)
    yield f"| epochs, ε | {' | '.join(f'{width} bands' for width in widths)} | chosen |"
    yield f"| --- |{' --- |' * (len(widths) + 1)}"
    for epochs in (5, 20, 100):
        steps = round(epochs / share)
        for epsilon in (0.25, *EPSILONS):
            errors: list[float] = []
            for width in widths:
                rounds = -(-steps // width)

                def event(noise: float, width: int = width, rounds: int = rounds) -> SelfComposed:
                    if width == 1:
                        return SelfComposed(PoissonSampled(share, Gaussian(noise)), rounds)
                    return SelfComposed(CyclicSampled(width * share, Gaussian(noise), width), rounds)

                strategy = BandedToeplitz(width, workload) if width > 1 else Independent()
                errors.append(calibrate(event, epsilon, DELTA) * predicted_error(strategy, Once(width), workload, steps))
            cells = " | ".join(f"{error / errors[0]:.3f}" for error in errors)
            yield f"| {epochs}, {epsilon:g} | {cells} | {best_bands(steps, share, epsilon, DELTA, workload)} |"


def parts_of(name: str, repeat: int) -> Split:
    """80 to 20 at random, of at most 100,000 records; of ACS income, whether somebody is among the upper half of 20 levels."""
    if name != "acs":
        return split(name, repeat, _MOST_RECORDS)
    rows, targets, *_ = survey(curves=0)
    order = np.random.default_rng([repeat, 17]).permutation(len(rows))[:_MOST_RECORDS]
    cut, numbers = len(order) // 5, (targets > np.median(targets)).astype(np.intp)
    test, train_ = order[:cut], order[cut:]
    return Split((rows[train_], numbers[train_]), (rows[test], numbers[test]), 2)


def paired(name: str, repeats: int) -> Iterator[str]:
    """Accuracy in % on held-out records, at equal epochs, and the gain in pairs of one split each, with its 95 % interval."""
    for epsilon in EPSILONS:
        scores = np.array(
            [
                [
                    quietly(train, parts_of(name, repeat), method, epsilon, Relation.ADD_OR_REMOVE_ONE)["accuracy"]
                    for method in (Gradient(), CorrelatedGradient(), CorrelatedGradient(sampling="fixed_order"))
                ]
                for repeat in range(repeats)
            ]
        )
        gains = scores[:, 1:] - scores[:, :1]
        halves = stats.t.ppf(0.975, repeats - 1) * gains.std(axis=0, ddof=1) / np.sqrt(repeats)
        cells = " | ".join(f"{gain:+.2f} ± {half:.2f}" for gain, half in zip(gains.mean(axis=0), halves, strict=True))
        yield f"| {name}, {epsilon:g} | {' | '.join(f'{each:.2f}' for each in scores.mean(axis=0))} | {cells} |"


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--repeats", type=int, default=10)
    options.add_argument("--only", nargs="*", default=["adult", "bank", "acs", "kddcup99"])
    asked = options.parse_args()
    began = time.perf_counter()
    lines = ["# Correlated noise beside DP-SGD", "", f"`python benchmarks/correlated.py --repeats {asked.repeats}`", ""]
    lines += ["## Predicted", "", (predicted.__doc__ or "").strip(), "", *predicted(), ""]
    lines += ["## Linear models", "", (paired.__doc__ or "").strip(), ""]
    lines += ["| data set, ε | DP-SGD | cyclic groups | fixed order | gain of groups | gain of order |", "| --- |" + " --- |" * 5]
    for name in asked.only:
        lines += paired(name, asked.repeats)
    lines += [
        "",
        f"Python {platform.python_version()}, NumPy {version('numpy')}, SciPy {version('scipy')}, {platform.machine()}; "
        f"{time.perf_counter() - began:.0f} s.",
    ]
    RESULT.write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
