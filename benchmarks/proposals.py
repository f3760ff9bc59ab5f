"""How large k has to be for linear models: accuracy of importance sampling by k, beside DP-SGD, with the estimators' rules.

    python benchmarks/proposals.py

Where norms grow by more than k between looks, updates are biased. Writes benchmarks/results/proposals.md.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dperm import data
from dperm.estimators import DPLogisticRegression
from dperm.mechanisms import Gradient, GradientPerturbation
from dperm.release import Channel, spend_log
from dperm.report.page import machine

Array = NDArray[np.float64]

EPSILONS = (0.3, 1.0, 3.0)
FACTORS = (2.0, 5.0, 20.0, 100.0)
REPEATS = 10


def data_sets() -> dict[str, tuple[Array, Array]]:
    """(rows, labels ±1): uniform points cut by a plane that misses the origin, and breast cancer."""
    uniform = np.random.default_rng(0).random((2000, 6))
    cancer = data.load("breast_cancer")
    return {
        "uniform, 2,000 in 6 dimensions": (uniform, np.where(uniform[:, 0] + uniform[:, 1] > 1, 1.0, -1.0)),
        "breast_cancer": (np.asarray(cancer.features), np.where(cancer.targets == sorted(cancer.classes)[1], 1.0, -1.0)),
    }


def accuracies(rows: Array, labels: Array, epsilon: float, factor: float | None) -> list[float]:
    """Held-out accuracy in per cent of each repeat; `factor` None is DP-SGD."""
    found: list[float] = []
    for repeat in range(REPEATS):
        held_out = np.random.default_rng([7, repeat]).random(len(rows)) < 0.2
        method = Gradient(sampling="poisson" if factor is None else "importance")
        model = DPLogisticRegression(epsilon=epsilon, mechanism=method, public_size=int((~held_out).sum()))
        mechanism, objective = model.mechanism_for(features=rows.shape[1])
        assert isinstance(mechanism, GradientPerturbation)
        if factor is not None:
            mechanism = replace(mechanism, plan=replace(mechanism.plan, proposal_factor=factor))
        theta = mechanism.release(objective, objective.records(rows[~held_out], labels[~held_out]), Channel.open()).theta
        test = objective.records(rows[held_out], labels[held_out])
        right = [(objective.predict(theta, batch) > 0) == (batch.targets > 0) for batch in test.batches()]
        found.append(100 * float(np.mean(np.concatenate(right))))
    return found


def main() -> None:
    lines = [
        "| data set | ε | DP-SGD | " + " | ".join(f"k = {factor:g}" for factor in FACTORS) + " |",
        "| --- |" + " --- |" * (len(FACTORS) + 2),
    ]
    with tempfile.TemporaryDirectory() as folder, spend_log(Path(folder) / "spend.db"):
        for name, (rows, labels) in data_sets().items():
            for epsilon in EPSILONS:
                cells: list[str] = []
                for factor in (None, *FACTORS):
                    found = accuracies(rows, labels, epsilon, factor)
                    cells.append(f"{np.mean(found):.1f} ± {np.std(found, ddof=1) / len(found) ** 0.5:.1f}")
                lines.append(f"| {name} | {epsilon:g} | " + " | ".join(cells) + " |")
                print(lines[-1], flush=True)
    text = "# How large k has to be for linear models\n\n"
    text += "Held-out accuracy in %, logistic regression by the estimators' rules but for "
    text += (
        f"k; means of {REPEATS} random splits, the same in each column, ± standard errors; δ = 1e-5, public number of records. "
    )
    text += "The norm floor is 0.01·C: k = 100 proposes every record that is drawn, whatever is remembered of it.\n\n"
    about = "\n".join(f"- {key}: {value}" for key, value in machine().items())
    path = Path(__file__).parent / "results" / "proposals.md"
    path.write_text(text + "\n".join(lines) + "\n\n" + about + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
