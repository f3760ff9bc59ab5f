"""What hiding iterates is worth: on Adult and Bank, and in noise. Writes results/last_iterate.md.

    DPERM_DATA=… python benchmarks/last_iterate.py

Replace-one, δ = 1/n, five paired splits of 80 to 20; all methods by their public rules.
"""

from __future__ import annotations

import math
import platform
import statistics
import time
from pathlib import Path

import numpy as np
from papers.linear import quietly, split, train

from dperm.mechanisms import BoltOn, Gradient, LastIterate, Method, Objective, Output
from dperm.privacy import HiddenIterates, Relation
from dperm.privacy.events.hidden import hidden_shift

RESULTS = Path(__file__).parent / "results" / "last_iterate.md"
EPSILONS, SPLITS = (0.1, 0.5, 1.0, 2.0, 8.0), 5
METHODS: dict[str, Method] = {
    "last iterate": LastIterate(),
    "the same, one pass stopped at random": LastIterate(random_stop=True),
    "Bolt-on": BoltOn(strong_convexity=30.0),
    "output perturbation": Output(),
    "full batches, all iterates released": Gradient(sampling="full"),
    "DP-SGD, Poisson": Gradient(),
    "objective perturbation": Objective(),
}


def main() -> None:
    lines: list[str] = []
    for name in ("adult", "bank"):
        lines += [f"\n{name.capitalize()}, accuracy in % (mean of {SPLITS} splits; seconds of one fit at ε = 1):\n"]
        lines += ["| | " + " | ".join(f"ε = {epsilon:g}" for epsilon in EPSILONS) + " | seconds |", "| --- |" + " --- |" * 6]
        for label, method in METHODS.items():
            shown, seconds = [], math.nan
            for epsilon in EPSILONS:
                found = []
                for repeat in range(SPLITS):
                    started = time.perf_counter()
                    found.append(quietly(train, split(name, repeat), method, epsilon, Relation.REPLACE_ONE)["accuracy"])
                    seconds = time.perf_counter() - started if epsilon == 1.0 else seconds
                shown.append(f"{statistics.fmean(found):.2f}")
            lines.append(f"| {label} | {' | '.join(shown)} | {seconds:.2f} |")
            print(lines[-1], flush=True)
    lines += [
        "\nNoise of a step, in units of what it needs to hide it by itself, that E passes in B batches need where only the last",
        "iterate is released (convex, c = 1; a ball of 20 times what a record moves a step in brackets), and where all are:\n",
        "| E | B = 1 | B = 10 | B = 100 | all released |",
        "| --- | --- | --- | --- | --- |",
    ]
    for passes in (1, 10, 100, 1000):
        shown = [
            f"{hidden_shift(batches, passes, 1.0, 1e12, 1e-12):.2f} ({hidden_shift(batches, passes, 1.0, 20.0, 1e-12):.2f})"
            for batches in (1, 10, 100)
        ]
        lines.append(f"| {passes} | {' | '.join(shown)} | {math.sqrt(passes):.2f} |")
    started = time.perf_counter()
    _ = HiddenIterates(2.0, 1000, 1000, 1.0, 50.0, 1e-9).whole
    lines.append(f"\nA million steps are accounted for in {time.perf_counter() - started:.2f} s.")
    machine = f"{platform.machine()}, Python {platform.python_version()}, NumPy {np.__version__}, one thread"
    RESULTS.write_text("# What hiding iterates is worth\n\n" + machine + "\n" + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
