"""Whether a private bag is better than one model with the whole budget, on Adult and Bank Marketing.

Writes benchmarks/results/bags.md. `DPERM_DATA=… python benchmarks/bags.py`
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from dperm import data
from dperm.estimators import DPBagging, DPLogisticRegression
from dperm.release.selection import set_aside

RESULT = Path(__file__).parent / "results" / "bags.md"
SPLITS = 5
BAGS: dict[str, dict[str, Any]] = {
    "3 members, rate 0.8": {"members": 3, "rate": 0.8},
    "5 members, rate 0.5": {"members": 5, "rate": 0.5},
    "5 members, rate 1": {"members": 5, "rate": 1.0},
}


def scores(name: str, epsilon: float) -> dict[str, list[float]]:
    """Accuracies on a fifth of the records, by what is trained on the others."""
    records = data.load(name, data.schema_of(name).with_curves(9))
    found: dict[str, list[float]] = {"one model": [], **{bag: [] for bag in BAGS}}
    for split in range(SPLITS):
        order = np.random.default_rng(split).permutation(len(records))
        train, test = np.split(order, [len(order) * 4 // 5])
        model = DPLogisticRegression(classes=list(records.classes), public_size=len(train), epsilon=epsilon)
        makes = {"one model": model, **{bag: DPBagging(model, epsilon=epsilon, **settings) for bag, settings in BAGS.items()}}
        for what, made in makes.items():
            made.fit(records.features[train], records.targets[train])
            found[what].append(made.score(records.features[test], records.targets[test]))
    return found


def lines() -> Iterator[str]:
    yield "# A private bag, beside one model with the whole budget\n"
    yield (
        f"Accuracy in % on a fifth of the records, mean over {SPLITS} splits and its standard error; `DPLogisticRegression` by "
        "its default, numbers as curves of 9 knots, δ = 1e-5, n public. `DPERM_DATA=… python benchmarks/bags.py`\n"
    )
    yield "| data set | ε | one model | " + " | ".join(BAGS) + " |\n| --- | --- | --- |" + " --- |" * len(BAGS)
    for name in ("adult", "bank"):
        for epsilon in (0.1, 1.0):
            found = scores(name, epsilon).values()
            cells = [f"{100 * np.mean(each):.1f} ± {100 * np.std(each, ddof=1) / SPLITS**0.5:.1f}" for each in found]
            print(name, epsilon, cells, flush=True)
            yield f"| {name} | {epsilon:g} | " + " | ".join(cells) + " |"


if __name__ == "__main__":
    with warnings.catch_warnings(), set_aside():
        warnings.simplefilter("ignore")
        RESULT.write_text("\n".join(lines()) + "\n", encoding="utf-8")
