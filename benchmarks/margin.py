"""What a margin of the logistic loss adds to objective perturbation, on made tables. Writes results/margin.md.

    OMP_NUM_THREADS=1 python benchmarks/margin.py [--jobs 2]

64 tables of 300 to 10,000 records, three draws of the noise each, at four ε: accuracy and log loss on 8,000 others, by margin and
by multiple of the rule's Λ. The margin in `dperm.mechanisms` was chosen by such tables, see docs/margin.md.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import math
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from dperm.mechanisms import ObjectivePerturbation
from dperm.objectives import LinearObjective, Logistic
from dperm.privacy.accountants.gaussian import gaussian_mu
from dperm.release import Channel, spend_log
from dperm.report.page import machine
from made import made_table

RESULTS = Path(__file__).parent / "results" / "margin.md"
EPSILONS, DELTA = (0.1, 0.5, 1.0, 4.0), 1e-5
MARGINS, FACTORS = (0.0, 1.0, 2.0, 3.0), (0.5, 1.0, 2.0)
SHAPES = ((5, 0), (4, 4), (12, 4), (30, 0))  # numbers, categories
SIZES, REPEATS, TEST = (300, 1000, 3000, 10_000), 3, 8000
SIGNALS = (0.0, 5.0, 20.0, 50.0, 120.0, 500.0, math.inf)
Cell = tuple[float, float]


def tables() -> Iterator[tuple[int, int, tuple[int, int]]]:
    yield from ((size, seed, shape) for size in SIZES for seed in range(4) for shape in SHAPES)


@functools.lru_cache(maxsize=256)
def mechanism(features: int, epsilon: float, factor: float) -> ObjectivePerturbation:
    """A margin changes nothing of what noise is needed."""
    facts = LinearObjective(Logistic(), features, intercept_scale=0.5).facts
    rule = ObjectivePerturbation.calibrate(facts, epsilon, DELTA)
    return ObjectivePerturbation.calibrate(facts, epsilon, DELTA, strong_convexity=factor * rule.strong_convexity)


def one_table(what: tuple[int, int, tuple[int, int]]) -> list[tuple[float, dict[Cell, tuple[float, float]]]]:
    """For each ε the signal, and accuracy and log loss of each margin and multiple of Λ."""
    size, seed, (numbers, categories) = what
    strength, shift = (0.5, 1.0, 2.0, 1.0)[seed], (0.0, -1.5, 0.0, -3.0)[seed]
    rows, labels = made_table(size + TEST, numbers, categories, 100 * seed + numbers, strength=strength, shift=shift)
    found: list[tuple[float, dict[Cell, tuple[float, float]]]] = []
    others = labels[size:]
    with tempfile.TemporaryDirectory() as folder, spend_log(Path(folder) / "spend.db"):
        for epsilon in EPSILONS:
            cells: dict[Cell, tuple[float, float]] = {}
            for margin in MARGINS:
                objective = LinearObjective(Logistic(margin), rows.shape[1], intercept_scale=0.5)
                train = objective.records(rows[:size], labels[:size])
                test = list(objective.records(rows[size:], others).batches())
                for factor in FACTORS:
                    scores: list[tuple[float, float]] = []
                    for _ in range(REPEATS):
                        run = mechanism(rows.shape[1], epsilon, factor)
                        theta = run.release(objective, train, Channel.open()).theta
                        t = np.concatenate([objective.predict(theta, batch) for batch in test])
                        right = np.mean((t > 0) == (others > 0))
                        scores.append((100 * float(right), float(objective.loss.judged(t, others).mean())))
                    cells[margin, factor] = tuple(np.mean(scores, axis=0).tolist())
            found.append((size * gaussian_mu(epsilon, DELTA) / math.sqrt(objective.dimension), cells))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=2)
    with ProcessPoolExecutor(parser.parse_args().jobs) as pool:
        found: list[Any] = [cell for cells in pool.map(one_table, tables()) for cell in cells]
    columns = [(margin, factor) for margin in MARGINS for factor in FACTORS]
    names = " | ".join(f"a = {margin:g}, {factor:g}Λ" for margin, factor in columns)
    lines = [f"| signal | tables × ε | {names} |", "|" + " --- |" * (2 + len(columns))]
    for low, high in itertools.pairwise(SIGNALS):
        here = [cells for signal, cells in found if low <= signal < high]
        values = [np.mean([cells[column] for cells in here], axis=0) for column in columns]
        title = f"{low:g} to {high:g}" if high < math.inf else f"from {low:g}"
        lines.append(f"| {title} | {len(here)} | " + " | ".join(f"{a:.1f}, {b:.3f}" for a, b in values) + " |")
    text = (
        "# The margin of the logistic loss\n\n`python benchmarks/margin.py`: accuracy in % and log loss on others, means over "
        "made tables by the signal S = nμ/√d; Λ as multiples of the rule's, the number of records private.\n\n"
    )
    about = "\n".join(f"- {key}: {value}" for key, value in machine().items())
    RESULTS.write_text(text + "\n".join(lines) + "\n\n" + about + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
