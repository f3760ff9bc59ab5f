"""Directions in which no row of known values has a component, and all of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from dperm.data import Dataset, Schema
from dperm.data.schema.constant_sums import constant_sums

RNG = np.random.default_rng(0)
SIZE = 400


def schema(**changes: Any) -> Schema:
    columns: list[dict[str, Any]] = [
        {"name": "age", "type": "number", "range": [0, 100]},
        {"name": "job", "type": "category", "categories": ["a", "b", "c"], "other": True},
        {"name": "city", "type": "category", "categories": ["x", "y"], "unknown": changes.pop("unknown", "error")},
        {"name": "ill", "type": "label"},
    ]
    return Schema.from_dict({"name": "people", "target": "ill", "classes": ["no", "yes"], "columns": columns} | changes)


def table() -> pd.DataFrame:
    jobs = RNG.choice(["a", "b", "c", "z", None], SIZE, p=[0.4, 0.3, 0.1, 0.1, 0.1])
    return pd.DataFrame(
        {
            "age": np.where(RNG.random(SIZE) < 0.1, np.nan, RNG.uniform(0, 100, SIZE)),
            "job": jobs,
            "city": RNG.choice(["x", "y", None], SIZE, p=[0.5, 0.4, 0.1]),
            "ill": RNG.choice(["no", "yes"], SIZE),
        }
    )


@pytest.mark.parametrize("missing", ["separate", "middle", "drop"])
@pytest.mark.parametrize("unknown", ["error", "ignore"])
@pytest.mark.parametrize("scale", [0.5, 0.0])
@pytest.mark.parametrize(("curves", "pairs"), [(0, []), (5, []), (5, [["job", "city"], ["age", "city"]])])
def test_they_are_the_directions_without_rows(missing: str, curves: int, unknown: str, scale: float, pairs: list[Any]) -> None:
    made = schema(missing=missing, curves=curves, unknown=unknown, pairs=pairs)
    frame = table()
    if missing == "middle":
        frame = frame.dropna()
    features = np.asarray(Dataset.of(frame, made).features, dtype=np.float64)
    rows = np.column_stack([features, np.full(len(features), scale)]) if scale else features
    never = constant_sums(made, scale)
    assert never.shape[1] == rows.shape[1]
    assert np.abs(rows @ never.T).max(initial=0.0) < 1e-6
    free = rows.shape[1] - np.linalg.matrix_rank(rows, tol=1e-4)
    found = np.linalg.matrix_rank(never) if len(never) else 0
    assert found <= free
    if not pairs:  # of pairs some products never occur in so few rows
        assert found == free
