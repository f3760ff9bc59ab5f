"""Schemas found privately against public ones: accuracy on the same records and splits, Adult and Bank Marketing.

`python benchmarks/finding.py [repeats]` needs both data sets (`DPERM_DATA`, or a download). The default objective with curves is
trained at each ε by the public schema (gaps in the middle, as found schemas have them), and by one found anew in each repeat.
Results: benchmarks/results/finding.json.
"""

from __future__ import annotations

import json
import platform
import statistics
import sys
import tempfile
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import dperm
from dperm.data import Dataset, Schema, find, schema_of
from dperm.data.schema.schema import usual_knots
from dperm.data.sets import named_sets as registry
from dperm.estimators import DPLogisticRegression
from dperm.release import spend_log

RESULTS = Path(__file__).parent / "results" / "finding.json"
FOUND, TRAINED, DELTA = (0.1, 1.0), (0.1, 0.5, 1.0, 4.0), 1e-5


def accuracy(frame: pd.DataFrame, schema: Schema, train: Any, epsilon: float) -> float:
    """Of what `dperm train` does with this schema, in %, on the records that are not trained on."""
    data = Dataset.of(frame, schema.with_curves(usual_knots(schema, epsilon, DELTA, None)))
    model = DPLogisticRegression(epsilon=epsilon, delta=DELTA, classes=list(data.classes))
    model.fit(data.features[train], data.targets[train])
    return 100 * model.score(data.features[~train], data.targets[~train])


def main(repeats: int) -> None:
    cells: dict[str, Any] = {}
    for name in ("adult", "bank"):
        public, entry = schema_of(name), registry._description(name)
        frame = pd.concat([registry._read(item, entry, public).frame for item in entry["files"]], ignore_index=True)
        frame[public.target] = public._targets(frame[public.target])
        scores: dict[str, list[float]] = {}
        for repeat in range(repeats):
            train = np.random.default_rng(repeat).random(len(frame)) >= 0.2
            with warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder, spend_log(Path(folder) / "spend.db"):
                warnings.simplefilter("ignore")
                schemas = {"public": replace(public, missing="middle")}
                for epsilon in FOUND:
                    found_one = find(frame[train], public.target, epsilon, DELTA)
                    schemas[f"found at {epsilon:g}"] = replace(found_one, missing="middle")
                for which, schema in schemas.items():
                    for epsilon in TRAINED:
                        scores.setdefault(f"{name}|{which}|{epsilon:g}", []).append(accuracy(frame, schema, train, epsilon))
        for key, found in scores.items():
            cells[key] = {"accuracy": round(statistics.fmean(found), 2), "spread": round(statistics.stdev(found), 2)}
            print(key, cells[key], flush=True)
    versions = {"python": platform.python_version(), "numpy": np.__version__, "dperm": dperm.__version__}
    stated = {"machine": f"{platform.machine()}, 2 cores", "versions": versions, "repeats": repeats, "cells": cells}
    RESULTS.write_text(json.dumps(stated, indent=1) + "\n")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10)
