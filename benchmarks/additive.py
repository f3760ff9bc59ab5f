"""The additive model of `dperm train` beside DP-EBM, on the same splits: Adult and Bank Marketing, ε = 0.1 to 4.

`python benchmarks/additive.py [repeats]` needs both data sets (`DPERM_DATA`, or a download) and `interpret-core` (0.7.8 was
measured). DP-EBM gets the public ranges of the schema, finds categories by itself, and has its default settings and the same δ.
Results: results/additive.json.
"""

from __future__ import annotations

import json
import platform
import statistics
import sys
import tempfile
import time
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from interpret.privacy import DPExplainableBoostingClassifier

import dperm
from dperm.data import Dataset, schema_of
from dperm.data.schema.encoder import SchemaEncoder
from dperm.data.schema.schema import Schema
from dperm.data.sets import named_sets as registry
from dperm.release import spend_log
from finding import accuracy

RESULTS = Path(__file__).parent / "results" / "additive.json"
EPSILONS, DELTA = (0.1, 0.5, 1.0, 2.0, 4.0), 1e-5


def table(name: str) -> tuple[pd.DataFrame, Schema]:
    """Records without gaps, and their public schema."""
    schema, entry = schema_of(name), registry._description(name)
    frame = pd.concat([registry._read(item, entry, schema).frame for item in entry["files"]], ignore_index=True)
    frame = frame.loc[SchemaEncoder(schema, frame).usable].reset_index(drop=True)
    return frame, schema


def boosted(frame: pd.DataFrame, schema: Schema, labels: Any, train: Any, epsilon: float) -> float:
    """Accuracy of DP-EBM, in %."""
    columns = schema.feature_columns
    raw = pd.DataFrame(
        {c.name: frame[c.name].astype(float) if c.type == "number" else frame[c.name].astype(str) for c in columns}
    )
    bounds = {place: column.ends for place, column in enumerate(columns) if column.type == "number"}
    kinds = ["continuous" if column.type == "number" else "nominal" for column in columns]
    model = DPExplainableBoostingClassifier(
        feature_names=[column.name for column in columns], feature_types=kinds, epsilon=epsilon, delta=DELTA,
        privacy_bounds=bounds, n_jobs=1,
    )  # fmt: skip
    model.fit(raw[train], labels[train])
    return 100 * float(np.mean(model.predict(raw[~train]) == labels[~train]))


def main(repeats: int) -> None:
    cells: dict[str, Any] = {}
    for name in ("adult", "bank"):
        frame, schema = table(name)
        labels = Dataset.of(frame, schema).targets
        for epsilon in EPSILONS:
            scores: dict[str, list[float]] = {"dperm": [], "DP-EBM": []}
            seconds: dict[str, list[float]] = {"dperm": [], "DP-EBM": []}
            for repeat in range(repeats):
                train = np.random.default_rng(repeat).random(len(frame)) >= 0.2
                for which, run in (
                    ("dperm", partial(accuracy, frame, schema, train, epsilon)),
                    ("DP-EBM", partial(boosted, frame, schema, labels, train, epsilon)),
                ):
                    started = time.perf_counter()
                    with (
                        warnings.catch_warnings(),
                        tempfile.TemporaryDirectory() as folder,
                        spend_log(Path(folder) / "spend.db"),
                    ):
                        warnings.simplefilter("ignore")
                        scores[which].append(run())
                    seconds[which].append(time.perf_counter() - started)
            cells[f"{name}|{epsilon:g}"] = {
                which: {
                    "accuracy": round(statistics.fmean(found), 2),
                    "spread": round(statistics.stdev(found), 2) if len(found) > 1 else None,
                    "seconds": round(statistics.median(seconds[which]), 2),
                }
                for which, found in scores.items()
            }
            print(name, epsilon, cells[f"{name}|{epsilon:g}"], flush=True)
    import interpret

    versions = {"python": platform.python_version(), "interpret-core": interpret.__version__, "dperm": dperm.__version__}
    stated = {"machine": f"{platform.machine()}, 2 cores", "versions": versions, "repeats": repeats, "cells": cells}
    RESULTS.write_text(json.dumps(stated, indent=1) + "\n")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
