"""Other libraries beside dperm on public tables: DP-EBM, diffprivlib, and scikit-learn without privacy, each as its documentation
asks, with the same public ranges and categories.

diffprivlib 0.6.6 does not import beside scikit-learn 1.9: `DIFFPRIVLIB_PYTHON` names an interpreter that has it with an older one
(1.5.2 was measured). It is run once for each split, with arrays through files.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from dperm.data import Dataset, Schema

_MISSING = "(missing)"

_DIFFPRIVLIB = """
import json, sys, time, warnings
import numpy as np
from diffprivlib.models import LinearRegression, LogisticRegression
warnings.simplefilter("ignore")
folder, epsilons, norm, ends = sys.argv[1], json.loads(sys.argv[2]), float(sys.argv[3]), json.loads(sys.argv[4])
given = np.load(folder + "/given.npz")
train, targets, test = given["train"], given["targets"], given["test"]
for place, epsilon in enumerate(epsilons):
    started = time.perf_counter()
    if ends:
        bounds = (np.zeros(train.shape[1]), np.ones(train.shape[1]))
        model = LinearRegression(epsilon=epsilon, bounds_X=bounds, bounds_y=tuple(ends)).fit(train, targets)
        answers = model.predict(test)
    else:
        answers = LogisticRegression(epsilon=epsilon, data_norm=norm).fit(train, targets).predict_proba(test)
    np.savez(f"{folder}/{place}.npz", answers=answers, seconds=time.perf_counter() - started)
"""


def raw_columns(frame: pd.DataFrame, schema: Schema) -> tuple[pd.DataFrame, dict[int, tuple[float, float]], list[str]]:
    """Columns as DP-EBM takes them, with public bounds by place and with kinds: dates as years, gaps of numbers as the middle of
    the range, gaps of categories as a category."""
    columns: dict[str, Any] = {}
    bounds: dict[int, tuple[float, float]] = {}
    kinds: list[str] = []
    for place, column in enumerate(schema.feature_columns):
        given = frame[column.source]
        if column.type == "category":
            texts = given.where(given.notna(), _MISSING).astype(str)
            columns[column.name] = texts.map(lambda text, read=column.read: str(read.get(text, text)))
            kinds.append("nominal")
            continue
        if column.type == "date":
            ends = tuple(pd.Timestamp(str(end)).year + 0.0 for end in column.range or ())
            dates = pd.to_datetime(given)
            numbers = dates.dt.year + (dates.dt.month - 1) / 12
        else:
            ends, numbers = column.ends, pd.to_numeric(given, errors="coerce")
        low, high = ends
        columns[column.name] = numbers.fillna((low + high) / 2).astype(float).clip(low, high)
        bounds[place] = (low, high)
        kinds.append("continuous")
    return pd.DataFrame(columns), bounds, kinds


def dp_ebm(
    raw: tuple[pd.DataFrame, dict[int, tuple[float, float]], list[str]],
    dataset: Dataset,
    parts: tuple[Any, Any],
    epsilon: float,
    delta: float,
) -> Any:
    """Probabilities (n, 2), or predictions (n,) in the target's units, of held-out rows. More than two classes it has not."""
    from interpret.privacy import DPExplainableBoostingClassifier, DPExplainableBoostingRegressor

    rows, bounds, kinds = raw
    train, test = parts
    settings: dict[str, Any] = {
        "feature_names": list(rows.columns), "feature_types": kinds, "epsilon": epsilon, "delta": delta, "privacy_bounds": bounds,
        "n_jobs": 1,
    }  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if dataset.classes:
            model = DPExplainableBoostingClassifier(**settings).fit(rows.iloc[train], dataset.targets[train])
            found = model.predict_proba(rows.iloc[test])
            return found[:, [list(model.classes_).index(label) for label in sorted(dataset.classes)]]
        assert dataset.target_range is not None
        low, high = dataset.target_range
        model = DPExplainableBoostingRegressor(**settings, privacy_target_min=low, privacy_target_max=high)
        return model.fit(rows.iloc[train], np.clip(dataset.targets[train], low, high)).predict(rows.iloc[test])


def diffprivlib(straight: Dataset, parts: tuple[Any, Any], norm: float, epsilons: tuple[float, ...]) -> list[tuple[Any, float]]:
    """Answers and seconds at each ε, with pure privacy: logistic regression, or linear regression by the functional mechanism."""
    train, test = parts
    rows = np.asarray(straight.features, dtype=float)
    ends = None if straight.target_range is None else [float(end) for end in straight.target_range]
    with tempfile.TemporaryDirectory() as folder:
        targets = straight.targets if ends else np.searchsorted(sorted(straight.classes), straight.targets)
        np.savez(f"{folder}/given.npz", train=rows[train], test=rows[test], targets=np.asarray(targets)[train])
        asked = [os.environ["DIFFPRIVLIB_PYTHON"], "-c", _DIFFPRIVLIB, folder, json.dumps(epsilons), str(norm), json.dumps(ends)]
        kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        subprocess.run(asked, check=True, env=kept)
        found = [np.load(Path(folder) / f"{place}.npz") for place in range(len(epsilons))]
        return [(each["answers"], float(each["seconds"])) for each in found]


def without_privacy(kind: str, straight: Dataset, parts: tuple[Any, Any]) -> Any:
    """Answers of scikit-learn's linear model or histogram gradient boosting, with their own settings."""
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
    from sklearn.linear_model import LinearRegression, LogisticRegression

    train, test = parts
    rows = np.asarray(straight.features, dtype=float)
    if not straight.classes:
        model = LinearRegression() if kind == "linear" else HistGradientBoostingRegressor(random_state=0)
        return model.fit(rows[train], straight.targets[train]).predict(rows[test])
    model = LogisticRegression(max_iter=1000) if kind == "linear" else HistGradientBoostingClassifier(random_state=0)
    return model.fit(rows[train], straight.targets[train]).predict_proba(rows[test])
