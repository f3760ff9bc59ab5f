"""What a penalty on roughness adds to objective perturbation, on made tables. Writes results/roughness.md.

    OMP_NUM_THREADS=1 python benchmarks/roughness.py [--jobs 2]

64 tables of 300 to 10,000 records with curves of 8 knots, three draws of the noise each, at four ε: accuracy and log loss on
8,000 others, by weight of the penalty. The rule in `dperm.mechanisms.tuning` was chosen by such tables, see docs/curves.md.
"""

from __future__ import annotations

import argparse
import itertools
import math
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from dperm.mechanisms import Budget, Objective
from dperm.objectives import Logistic, Task
from dperm.privacy.accountants.gaussian import gaussian_mu
from dperm.release import Channel, spend_log
from dperm.report.page import machine
from made import made_table

RESULTS = Path(__file__).parent / "results" / "roughness.md"
EPSILONS, DELTA = (0.1, 0.5, 1.0, 4.0), 1e-5
WEIGHTS, KNOTS = (0.0, 0.3, 1.0, 3.0), 8
SHAPES = ((5, 0), (4, 4), (12, 4), (30, 0))  # numbers, categories
SIZES, REPEATS, TEST = (300, 1000, 3000, 10_000), 3, 8000
SIGNALS = (0.0, 5.0, 20.0, 50.0, 120.0, 500.0, math.inf)


def tables() -> Iterator[tuple[int, int, tuple[int, int]]]:
    yield from ((size, seed, shape) for size in SIZES for seed in range(4) for shape in SHAPES)


def one_table(what: tuple[int, int, tuple[int, int]]) -> list[tuple[float, dict[float, tuple[float, float]]]]:
    """For each ε the signal, and accuracy and log loss of each weight."""
    size, seed, (numbers, categories) = what
    strength, shift = (0.5, 1.0, 2.0, 1.0)[seed], (0.0, -1.5, 0.0, -3.0)[seed]
    rows, labels = made_table(size + TEST, numbers, categories, 100 * seed + numbers, knots=KNOTS, strength=strength, shift=shift)
    pairs = tuple((KNOTS * curve + knot, KNOTS * curve + knot + 1) for curve in range(numbers) for knot in range(KNOTS - 1))
    task = Task(loss=Logistic(), features=rows.shape[1], classes=2, intercept_scale=0.5, neighbours=pairs)
    found: list[tuple[float, dict[float, tuple[float, float]]]] = []
    others = labels[size:]
    with tempfile.TemporaryDirectory() as folder, spend_log(Path(folder) / "spend.db"):
        for epsilon in EPSILONS:
            cells: dict[float, tuple[float, float]] = {}
            for weight in WEIGHTS:
                run, objective = Objective(roughness=weight).build(task, Budget(DELTA, epsilon))
                train = objective.records(rows[:size], labels[:size])
                test = list(objective.records(rows[size:], others).batches())
                scores: list[tuple[float, float]] = []
                for _ in range(REPEATS):
                    theta = run.release(objective, train, Channel.open()).theta
                    t = np.concatenate([objective.predict(theta, batch) for batch in test])
                    right = np.mean((t > 0) == (others > 0))
                    scores.append((100 * float(right), float(objective.loss.judged(t, others).mean())))
                cells[weight] = tuple(np.mean(scores, axis=0).tolist())
            found.append((size * gaussian_mu(epsilon, DELTA) / math.sqrt(rows.shape[1] + 1), cells))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=2)
    with ProcessPoolExecutor(parser.parse_args().jobs) as pool:
        found: list[Any] = [cell for cells in pool.map(one_table, tables()) for cell in cells]
    names = " | ".join(f"κ = {weight:g}" for weight in WEIGHTS)
    lines = [f"| signal | tables × ε | {names} | 1 against 0 |", "|" + " --- |" * (3 + len(WEIGHTS))]
    for low, high in itertools.pairwise(SIGNALS):
        here = [cells for signal, cells in found if low <= signal < high]
        values = [np.mean([cells[weight] for cells in here], axis=0) for weight in WEIGHTS]
        gains = np.array([cells[1.0][0] - cells[0.0][0] for cells in here])
        gain = f"{gains.mean():+.2f} ± {gains.std() / math.sqrt(len(here)):.2f}"
        title = f"{low:g} to {high:g}" if high < math.inf else f"from {low:g}"
        lines.append(f"| {title} | {len(here)} | " + " | ".join(f"{a:.1f}, {b:.3f}" for a, b in values) + f" | {gain} |")
    text = (
        "# A penalty on roughness\n\n`python benchmarks/roughness.py`: accuracy in % and log loss on others, means over made "
        "tables by the signal S = nμ/√d, and the gain in accuracy with its standard error; κ is its weight beside ‖θ‖².\n\n"
    )
    about = "\n".join(f"- {key}: {value}" for key, value in machine().items())
    RESULTS.write_text(text + "\n".join(lines) + "\n\n" + about + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
