"""Tables with texts and gaps as rows of an estimator: what the error recommends learns nothing from the rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import scipy.sparse as sp
from sklearn.pipeline import make_pipeline

from dperm.data import Column, Schema
from dperm.estimators import DPLogisticRegression, DPRidge, PublicRangeScaler, TableEncoder
from dperm.release import SpendLog

FRAME = pd.DataFrame({"age": [20, 30, 60, 70] * 50, "job": ["a", "b", "b", "a"] * 50, "height": 1.0})
LABELS = np.array(["no", "no", "yes", "yes"] * 50)
COLUMNS = (
    Column("age", "number", (0, 100)),
    Column("job", "category", categories=("a", "b")),
    Column("height", "number", (0, 2)),
    Column("paid", "label"),
)
SCHEMA = Schema("people", "paid", COLUMNS, ("no", "yes"), missing="middle")
MODELS = [DPLogisticRegression(classes=["no", "yes"]), DPRidge(), PublicRangeScaler()]


@pytest.mark.parametrize("model", MODELS, ids=lambda model: type(model).__name__)
@pytest.mark.parametrize(
    ("table", "named"),
    [
        (FRAME, "job"),
        (FRAME.astype({"job": "category"}), "job"),
        (pl.from_pandas(FRAME), "job"),
        (FRAME.to_numpy(), "1"),
        (FRAME.assign(age="old"), "age, job"),
    ],
    ids=["pandas", "categories", "polars", "objects", "two"],
)
def test_texts_name_the_encoder(model: Any, table: Any, named: str) -> None:
    y = np.zeros(len(LABELS)) if isinstance(model, DPRidge) else LABELS
    with pytest.raises(ValueError, match=f"got texts in the columns {named}. .*TableEncoder of dperm.estimators in a Pipeline"):
        model.fit(table, y)
    assert SpendLog.current().charges() == []


@pytest.mark.parametrize("model", MODELS, ids=lambda model: type(model).__name__)
@pytest.mark.parametrize(
    "gaps",
    [
        np.array([[0.5, np.nan]] * 200),
        pd.DataFrame({"a": [0.5, None] * 100, "b": 1.0}),
        pd.DataFrame({"a": pd.array([1, None] * 100, dtype="Int64"), "b": 1.0}),
        sp.csr_array(np.array([[0.5, np.nan]] * 200)),
    ],
    ids=["array", "frame", "missing whole numbers", "sparse"],
)
def test_gaps_are_not_to_be_filled_by_what_was_learnt(model: Any, gaps: Any) -> None:
    if sp.issparse(gaps) and not isinstance(model, DPLogisticRegression | DPRidge):
        pytest.skip("it takes no sparse rows")
    y = np.zeros(len(LABELS)) if isinstance(model, DPRidge) else LABELS
    with pytest.raises(ValueError, match=r"Input X contains NaN\. Fill gaps by values known without the rows") as refused:
        model.fit(gaps, y)
    assert "imputer transformer" not in str(refused.value)
    assert SpendLog.current().charges() == []


def test_rows_to_be_answered_are_explained_too() -> None:
    model = DPRidge(public_size=200).fit(FRAME[["age", "height"]], np.zeros(200))
    with pytest.raises(ValueError, match="Fill gaps by values known"):
        model.predict(FRAME[["age", "height"]].assign(age=np.nan))


def test_the_encoder_in_a_pipeline_takes_texts_and_gaps() -> None:
    frame = FRAME.astype({"age": float})
    frame.loc[3, "age"] = np.nan
    model = make_pipeline(TableEncoder(SCHEMA), DPLogisticRegression(epsilon=3.0, delta=1e-3, classes=["no", "yes"]))
    certificate = model.fit(frame, LABELS)[-1].certificate_
    assert any("(TableEncoder) were known without the rows" in item.text for item in certificate.assumptions)
