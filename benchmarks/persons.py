"""Persons of ten rows: persons drawn against rows drawn, with objective perturbation and full batches beside them.

`python benchmarks/persons.py` needs the Adult data set (`DPERM_DATA`, or a download). Ten rows each are made a person: at random,
so that a person's rows have nothing in common, or alike (neighbours in the order of the table's first principal component, so
that a person's rows say nearly the same). Results: benchmarks/results/persons.json.
"""

from __future__ import annotations

import json
import platform
import statistics
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

import dperm
from dperm.data import load
from dperm.estimators import DPLogisticRegression, DPMLPClassifier
from dperm.mechanisms import Gradient
from dperm.release import spend_log

RESULTS = Path(__file__).parent / "results" / "persons.json"
ROWS, REPEATS, DELTA = 10, 5, 1e-5
EPSILONS = (1.0, 4.0)


def persons(features: np.ndarray, kind: str, rng: np.random.Generator) -> np.ndarray:
    """(n,) whose each row is, ten each (the last person has what is left)."""
    if kind == "alone":
        return np.arange(len(features))
    order = rng.permutation(len(features))
    if kind == "alike":
        centred = features - features.mean(axis=0)
        axis = np.linalg.svd(centred[rng.choice(len(centred), 5000, replace=False)], full_matrices=False)[2][0]
        order = np.argsort(centred @ axis, kind="stable")
    groups = np.empty(len(features), dtype=int)
    groups[order] = np.arange(len(features)) // ROWS
    return groups


def models(epsilon: float, people: int, most: int) -> dict[str, Any]:
    common: dict[str, Any] = {
        "epsilon": epsilon,
        "delta": DELTA,
        "classes": ["<=50K", ">50K"],
        "public_size": people,
        "max_rows_per_unit": most,
    }
    batch = 512.0  # row gradients in a step, whoever is drawn
    drawn, rows = Gradient(expected_batch_size=max(32.0, batch / most)), Gradient(sampling="rows", expected_batch_size=batch)
    found: dict[str, Any] = {
        "linear, objective": DPLogisticRegression(mechanism="objective", **common),
        "linear, full batches": DPLogisticRegression(mechanism=Gradient(sampling="full"), **common),
        "linear, persons drawn": DPLogisticRegression(mechanism=drawn, **common),
        "network, persons drawn": DPMLPClassifier((16,), mechanism=drawn, **common),
    }
    if most > 1:
        found["linear, rows drawn"] = DPLogisticRegression(mechanism=rows, **common)
        found["network, rows drawn"] = DPMLPClassifier((16,), mechanism=rows, **common)
    return found


def main(folder: str) -> None:
    data = load("adult")
    features, targets = np.asarray(data.features, dtype=np.float32), data.targets
    cells: dict[str, Any] = {}
    for kind in ("alone", "at random", "alike"):
        most = 1 if kind == "alone" else ROWS
        for epsilon in EPSILONS:
            scores: dict[str, list[float]] = {}
            seconds: dict[str, list[float]] = {}
            for repeat in range(REPEATS):
                rng = np.random.default_rng(repeat)
                groups = persons(features, kind, rng)
                people = groups.max() + 1
                held_out = (rng.random(people) < 0.2)[groups]
                for name, model in models(epsilon, int(np.sum(~np.isin(np.arange(people), groups[held_out]))), most).items():
                    started = time.perf_counter()
                    log = spend_log(Path(folder) / "spend.db")
                    with warnings.catch_warnings(), log:
                        warnings.simplefilter("ignore")
                        model.fit(features[~held_out], targets[~held_out], groups=groups[~held_out])
                    seconds.setdefault(name, []).append(time.perf_counter() - started)
                    scores.setdefault(name, []).append(100 * model.score(features[held_out], targets[held_out]))
            for name, found in scores.items():
                cells[f"{kind}|{name}|{epsilon:g}"] = {
                    "accuracy": round(statistics.fmean(found), 2),
                    "spread": round(statistics.stdev(found), 2),
                    "seconds": round(statistics.median(seconds[name]), 2),
                }
                print(f"{kind:10} {name:24} {epsilon:g} {cells[f'{kind}|{name}|{epsilon:g}']}", flush=True)
    versions = {"python": platform.python_version(), "numpy": np.__version__, "dperm": dperm.__version__}
    stated = {"machine": f"{platform.machine()}, 2 cores", "versions": versions, "repeats": REPEATS, "cells": cells}
    RESULTS.write_text(json.dumps(stated, indent=1) + "\n")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(folder)
