"""Whatever is asked of the estimators: no ε above what was asked for, and nothing fails after it was paid for."""

from __future__ import annotations

import math
import traceback
import warnings
from dataclasses import dataclass, fields
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from sklearn.base import is_classifier

from dperm.estimators import DPLogisticRegression, DPPoissonRegressor, DPRidge
from dperm.mechanisms import (
    BoltOn,
    Coordinate,
    FrankWolfe,
    FrankWolfeBall,
    Gradient,
    GreedyCoordinate,
    LastIterate,
    Objective,
    Output,
)
from dperm.privacy.certificates.certificate import Certificate
from dperm.release import SpendLog, spend_log
from helpers.estimators import linear_estimators, made, parameters

KINDS = [DPLogisticRegression, *linear_estimators()]
REGRESSIONS = [kind for kind in KINDS if not is_classifier(made(kind))]

#: mostly what people give; now and then what nobody should
PLAIN: dict[str, list[Any]] = {
    "epsilon": [0.1, 1.0, 1, 3.0, 10.0, np.float32(1.0), np.int64(2), 0.01, 50.0],
    "delta": [1e-5, 1e-6, 1e-9, 1e-3, 0.0, 0],
    "mechanism": ["auto", "objective", "output", "gradient"],
    "penalty": [None, None, None, "l1", "l2", "elasticnet"],
    "data_norm": [1.0, 2, 1e-3, 1e3, np.float32(0.5), 1e-12, 1e-25, 1e25],
    "relation": ["add_or_remove_one", "replace_one"],
    "classes": [None, [0, 1], [-1, 1], ["a", "b"], [0, 1, 2], np.array([0.0, 1.0])],
    "public_size": [None, None, 5, 100, 1000],
    "fit_intercept": [True, False],
    "intercept_scale": [None, 0.5, 1, 1e-3],
    "label": ["", "a label"],
    "half_width": [0.5, 0.1, 1],
    "radius": [5.0, 1, 0.1, 100.0],
    "target_bound": [1.0, 0.1, 10],
    "steps": [None, 1, 7],
    "entry_bound": [None, 0.5, 1e6],
    "alpha": [0.0, 1e-3, 1.0],
    "l1_ratio": [0.0, 0.5, 1.0],
    "epochs": [None, 1, 5],
    "quantile": [0.5, 0.9, 0.01],
}  # fmt: skip
#: settings of methods, by name
SETTINGS: dict[str, list[Any]] = {
    "calibration": ["sharp", "generic", "kifer"],
    "sampling": ["poisson", "importance", "full", "balls_and_bins", "truncated_poisson", "fixed_size"],
    "strong_convexity": [None, 1e-3, 1.0, 10, 100.0],
    "margin": [None, 0.0, 2.0, 5, 1e3],
    "roughness": [0.0, 0, None, 1.0],
    "expected_batch_size": [None, 5.5, 20, 100],
    "epochs": [None, 1, 2.5, 5],
    "clipping_norm": [None, 1e-3, 0.1, 1.0, 10.0],
    "learning_rate": [None, 0.1, 1.0, 100.0],
    "radius": [5.0, 0.1, 1],
    "steps": [None, 1, 7],
    "batch_size": [None, 1, 5, 30],
    "random_stop": [False, False, True],
    "l1": [0.0, 1e-3, 1],
    "l2": [0.0, 1e-3, 1],
    "box": [None, 0.1, 5],
    "entry_bound": [None, None, 0.1, 1, 1e-3, 1e6],
}
METHODS = [Objective, Output, Gradient, Gradient, BoltOn, FrankWolfe, FrankWolfeBall, LastIterate, Coordinate, GreedyCoordinate]
ODD: list[Any] = [
    None, -1, 0, 0.0, -0.0, 1e-300, 5e-324, 1e300, 1e-30, 1e30, math.inf, -math.inf, math.nan, True, False, "1", "auto", "", b"x",
    2 + 0j,
    Decimal("1.0"), np.float16(1), np.array(1.0), np.array([1.0]), [1.0], {}, object(), 10**30, 1e-6, 0.999999, 1, 1e9, 0.5,
]  # fmt: skip


@dataclass
class Asked:
    kind: type
    given: dict[str, Any]
    method: tuple[type, dict[str, Any]] | None
    rows: Any
    targets: Any
    absent: Any

    def __str__(self) -> str:
        shape = getattr(self.rows, "shape", None)
        data = f"{type(self.rows).__name__} {shape}, {self.targets!r}, absent={self.absent!r}"
        return f"{self.kind.__name__}({self.given}, {self.method}).fit({data})"


def asked(rng: np.random.Generator) -> Asked:
    def one(values: list[Any]) -> Any:
        return values[int(rng.integers(len(values)))]

    def some(names: list[str], values: dict[str, list[Any]], most: int) -> dict[str, Any]:
        chosen = rng.choice(names, int(rng.integers(min(most, len(names)) + 1)), replace=False)
        given = {name: one(ODD) if rng.random() < 0.04 else one(values[name]) for name in map(str, chosen)}
        return {name: value for name, value in given.items() if not _long(name, value)}

    kind = one(KINDS)
    given = some([name for name in kind().get_params() if name in PLAIN], PLAIN, 7)
    method: tuple[type, dict[str, Any]] | None = None
    if rng.random() < 0.5:
        chosen = one(METHODS)
        method = chosen, some([field.name for field in fields(chosen)], SETTINGS, 4)
    if "mechanism" not in parameters(kind):
        method = None
    if kind is DPRidge and rng.random() < 0.9:
        if given.get("mechanism") == "objective":
            del given["mechanism"]
        if method is not None and method[0] is Objective:
            method = None
    size, features = one([1, 2, 5, 30, 120]), one([1, 2, 6])
    rows = _rows(rng, size, features, one)
    return Asked(kind, given, method, rows, _targets(rng, size, kind, one), one([0, 0, 0, 0, 0, 0, 3, -1, 1.5, None]))


def _long(name: str, value: Any) -> bool:
    """Whether it asks for millions of steps, which would run for hours and say nothing more."""
    number = isinstance(value, (int, float, Decimal, np.generic, np.ndarray)) and np.ndim(value) == 0
    return number and ((name == "expected_batch_size" and 0 < value <= 1) or (name == "epochs" and 1000 < value < math.inf))


def _rows(rng: np.random.Generator, size: int, features: int, one: Any) -> Any:
    scale = one([1.0, 1.0, 1.0, 1e-300, 1e300, 1e-40, 1e30, 0.0])
    dense = rng.normal(size=(size, features)) * scale
    if rng.random() < 0.2:
        dense[:] = dense[:1]
    spoiled = rng.random()
    if spoiled < 0.05:
        dense[int(rng.integers(size)), 0] = one([math.nan, math.inf, -math.inf, 1e308, 5e-324])
    elif spoiled < 0.3:
        with np.errstate(over="ignore"):
            dense[int(rng.integers(size))] *= one([0.0, 0.0, 1e-30, 1e30])  # one row among others of another length
    kinds: list[tuple[float, Any]] = [
        (6, lambda: dense), (6, lambda: dense.astype(np.float32)), (3, lambda: np.asfortranarray(dense)),
        (2, lambda: dense[::-1]),
        (4, lambda: sp.csr_matrix(dense)), (3, lambda: sp.csc_matrix(dense)), (2, lambda: sp.coo_array(dense)),
        (4, lambda: _twice(dense)), (4, lambda: pd.DataFrame(dense)), (1, lambda: dense.tolist()), (2, lambda: dense > 0),
        (2, lambda: np.rint(np.clip(np.nan_to_num(dense), -9, 9)).astype(int)), (1, lambda: dense.astype(object)),
        (1, lambda: dense.astype(np.longdouble)), (1, lambda: dense.astype(np.float16)),
        (0.3, lambda: dense[0]), (0.3, lambda: dense[:0]), (0.3, lambda: dense.astype(str)),
    ]  # fmt: skip
    often = np.array([share for share, _ in kinds])
    with np.errstate(all="ignore"):
        return kinds[int(rng.choice(len(kinds), p=often / often.sum()))][1]()


def _twice(dense: np.ndarray) -> Any:
    """Every entry given as two halves."""
    size, features = dense.shape
    columns = np.tile(np.arange(features), (size, 2)).reshape(-1)
    values = np.concatenate([dense / 2, dense / 2], axis=1).reshape(-1)
    return sp.csr_matrix((values, columns, np.arange(0, 2 * size * features + 1, 2 * features)), shape=dense.shape)


def _targets(rng: np.random.Generator, size: int, kind: type, one: Any) -> Any:
    if kind in REGRESSIONS:
        values = rng.normal(size=size) * one([1.0, 1.0, 1e-300, 1e300, 0.0])
        if rng.random() < 0.05:
            values[int(rng.integers(size))] = one([math.nan, math.inf])
        values = np.abs(values) if kind is DPPoissonRegressor and rng.random() < 0.9 else values
        with np.errstate(all="ignore"):
            whole = np.rint(np.clip(np.nan_to_num(values), -5, 5)).astype(int)
            return one([values, values.astype(np.float32), values.tolist(), whole])
    numbers = rng.integers(0, one([2, 2, 2, 3, 1, 4]), size)
    made = one(
        [numbers, numbers, numbers.astype(float), np.where(numbers > 0, 1, -1), np.array(list("abcd"))[numbers], numbers > 0]
    )
    if rng.random() < 0.03:
        made = one([made[:-1], made.astype(object), np.full(size, np.nan), np.array([None] * size, dtype=object), made[:, None]])
    return made


def findings(first: int, count: int, folder: Path) -> list[str]:
    """What is wrong after `count` fits."""
    found: list[str] = []
    done = 0
    for number in range(first, first + count):
        what = asked(np.random.default_rng([15, number]))
        path = folder / f"{number}.db"
        error: BaseException | None = None
        model: Any = None
        with warnings.catch_warnings(), spend_log(path):
            warnings.simplefilter("ignore")
            try:
                given = {**what.given}
                if what.method is not None:
                    given["mechanism"] = what.method[0](**what.method[1])
                model = what.kind(**given)
                model.fit(what.rows, what.targets, absent=what.absent)
            except Exception as caught:
                error = caught
        charges = list(SpendLog(path).charges()) if path.exists() else []
        problem = _problem(what, model, error, charges)
        done += error is None
        if problem:
            found.append(f"{number}: {problem}: {what}")
    assert done > count / 8, f"only {done} of {count} fits went through"
    return found


def _problem(what: Asked, model: Any, error: BaseException | None, charges: list[Any]) -> str | None:
    if error is not None:
        if charges:
            return "failed after the charge: " + "".join(traceback.format_exception(error)[-3:])
        if not isinstance(error, (ValueError, TypeError)) or not str(error):
            return "no plain error: " + "".join(traceback.format_exception(error)[-3:])
        return None
    stated: Certificate = model.certificate_
    epsilon, delta = float(what.given.get("epsilon", 1.0)), float(what.given.get("delta", 1e-5))
    if stated.epsilon is None or not stated.epsilon <= epsilon or not stated.delta <= delta:
        return f"ε = {stated.epsilon}, δ = {stated.delta} where {epsilon} and {delta} were asked for"
    if len(charges) != 1 or charges[0].event != stated.event:
        return f"{len(charges)} charges, or of another event"
    stated.verify()
    if (what.method is None or "learning_rate" not in what.method[1]) and not np.isfinite(
        model.coef_
    ).all():  # large steps diverge
        return "coefficients that are not finite"
    return None


def test_what_is_asked_at_the_front_door(tmp_path: Path) -> None:
    assert findings(0, 30, tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize("part", range(20))
def test_five_thousand_combinations_at_the_front_door(part: int, tmp_path: Path) -> None:
    assert findings(250 * part, 250, tmp_path) == []
