"""Tables of other libraries mean what the same pandas frame means."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from dperm.data import Dataset, confirmed, find, propose
from dperm.data.schema.encoder import SchemaEncoder
from dperm.data.schema.entries import as_frame
from dperm.data.schema.row_faults import row_faults
from dperm.data.survey import Survey
from dperm.estimators import DPLogisticRegression, TableEncoder

N = 200
RNG = np.random.default_rng(0)
FRAME = pd.DataFrame(
    {
        "age": np.where(RNG.random(N) < 0.1, np.nan, RNG.integers(18, 90, N)),
        "job": pd.Series(RNG.choice(["clerk", "nurse", "smith"], N)).where(RNG.random(N) > 0.1),
        "since": pd.date_range("2019-03-01", periods=N, freq="D"),
        "married": RNG.random(N) < 0.5,
        "moved": RNG.choice(["no", "yes"], N),
    }
)
TABLES: dict[str, Any] = {
    "polars": lambda: pl.from_pandas(FRAME),
    "polars, categorical": lambda: pl.from_pandas(FRAME).with_columns(pl.col("job").cast(pl.Categorical)),
    "polars, small types": lambda: pl.from_pandas(FRAME).with_columns(pl.col("age").cast(pl.Int8)),
    "arrow": lambda: pa.Table.from_pandas(FRAME, preserve_index=False),
}


@pytest.mark.parametrize("kind", TABLES)
def test_other_tables_are_read_alike(kind: str) -> None:
    table, whole = TABLES[kind](), propose(FRAME, "moved")
    assert propose(table, "moved") == whole
    schema = confirmed(whole)
    features, targets = SchemaEncoder(schema, FRAME).encode()
    again, labels = SchemaEncoder(schema, table).encode()
    assert np.array_equal(again, features) and np.array_equal(labels, targets)
    assert np.array_equal(SchemaEncoder(schema, table).usable, SchemaEncoder(schema, FRAME).usable) and row_faults(
        schema, table
    ) == row_faults(schema, FRAME)
    assert np.array_equal(Dataset.of(table, schema).features, Dataset.of(FRAME, schema).features)
    assert Survey.of(table, schema) == Survey.of(FRAME, schema)


def test_a_table_of_texts_is_searched_and_a_pipeline_takes_one() -> None:
    texts = pl.from_pandas(FRAME).with_columns(pl.all().cast(pl.String))
    found = find(texts, "moved", 8.0, random_state=0)
    same = find(pd.DataFrame({name: texts[name].to_list() for name in texts.columns}), "moved", 8.0, random_state=0)
    assert (found.columns, found.classes) == (same.columns, same.classes) and found.classes == ("no", "yes")
    schema = confirmed(propose(FRAME.drop(columns=["age", "job"]), "moved"))
    table = pl.from_pandas(FRAME)
    encoded = TableEncoder(schema).fit_transform(table)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        model = DPLogisticRegression(random_state=0).fit(encoded, table["moved"])
        assert np.array_equal(model.coef_, DPLogisticRegression(random_state=0).fit(encoded, FRAME["moved"]).coef_)


def test_what_is_no_table_is_refused() -> None:
    assert as_frame(FRAME) is FRAME
    with pytest.raises(TypeError, match="LazyFrame: collect it first"):
        as_frame(pl.from_pandas(FRAME).lazy())
    for other in (np.ones((3, 2)), [1, 2], None):
        with pytest.raises(TypeError, match="Expected a table with named columns"):
            as_frame(other)
