"""Regret of the public rule for Λ: sharp objective perturbation at the rule against the best Λ in hindsight.

    DPERM_DATA=folder python benchmarks/regret.py

Hindsight picks, for each data set and ε, the Λ with the best mean held-out accuracy on the same splits: an advantage
that no private user has. Writes benchmarks/results/regret.md.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from dperm import data
from dperm.mechanisms import ObjectivePerturbation
from dperm.objectives import LinearObjective, Logistic
from dperm.release import Channel, spend_log
from dperm.report.page import machine

EPSILONS = (0.1, 0.5, 1.0, 2.0, 4.0)
FACTORS = (1 / 8, 1 / 4, 1 / 2, 1.0, 2.0, 4.0, 8.0)
REPEATS = 5


def accuracies(dataset: data.Dataset, epsilon: float) -> dict[float, float]:
    """Mean held-out accuracy for each multiple of the rule's Λ that privacy allows."""
    labels = np.where(dataset.targets == sorted(dataset.classes)[1], 1.0, -1.0)
    objective = LinearObjective(Logistic(), dataset.features.shape[1], intercept_scale=0.5)
    rule = ObjectivePerturbation.calibrate(objective.facts, epsilon, 1e-5).strong_convexity
    found: dict[float, list[float]] = {factor: [] for factor in FACTORS}
    for repeat in range(REPEATS):
        held_out = np.random.default_rng([7, repeat]).random(len(dataset)) < 0.2
        fit = objective.records(dataset.features[~held_out], labels[~held_out])
        test = objective.records(dataset.features[held_out], labels[held_out])
        for factor in FACTORS:
            try:
                mechanism = ObjectivePerturbation.calibrate(objective.facts, epsilon, 1e-5, strong_convexity=factor * rule)
            except ValueError:  # the determinant term alone exceeds the budget at so small a Λ
                continue
            theta = mechanism.release(objective, fit, Channel.open()).theta
            right = [np.mean((objective.predict(theta, batch) > 0) == (batch.targets > 0)) for batch in test.batches()]
            weights = [len(batch.targets) for batch in test.batches()]
            found[factor].append(float(np.average(right, weights=weights)))
    return {factor: float(np.mean(values)) for factor, values in found.items() if values}


def main() -> None:
    lines = [
        "| data set | " + " | ".join(f"ε = {epsilon:g}" for epsilon in EPSILONS) + " |",
        "| --- |" + " --- |" * len(EPSILONS),
    ]
    with tempfile.TemporaryDirectory() as folder, spend_log(Path(folder) / "spend.jsonl"):
        for name in ("adult", "bank", "breast_cancer"):
            dataset = data.load(name)
            cells: list[str] = []
            for epsilon in EPSILONS:
                mean = accuracies(dataset, epsilon)
                best = max(mean, key=lambda factor: mean[factor])
                cells.append(f"{100 * mean[1.0]:.2f}, best {100 * mean[best]:.2f} at {best:g}Λ")
            lines.append(f"| {dataset.title} | " + " | ".join(cells) + " |")
            print(lines[-1], flush=True)
    text = "# Regret of the rule for Λ\n\nAccuracy in % at the rule's Λ, and at the best multiple of it in hindsight; "
    text += f"{REPEATS} splits.\n\n"
    about = "\n".join(f"- {key}: {value}" for key, value in machine().items())
    (Path(__file__).parent / "results" / "regret.md").write_text(text + "\n".join(lines) + "\n\n" + about + "\n")


if __name__ == "__main__":
    main()
