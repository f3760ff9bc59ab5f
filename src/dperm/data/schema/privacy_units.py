"""Which privacy unit each row of a table belongs to: the person, or whatever else its unit's column tells apart."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dperm import _validate as check
from dperm.data.schema.entries import SchemaError, as_table, texts
from dperm.data.schema.schema import Schema

if TYPE_CHECKING:
    import pandas as pd


def row_units(schema: Schema, table: Any) -> NDArray[np.intp]:
    """(n,) numbers of the units that rows belong to. SchemaError where a row does not say."""
    frame = as_table(table).frame
    if schema.unit not in frame.columns:
        raise SchemaError(f"Expected the unit's column {schema.unit!r}, but the table has {list(map(str, frame.columns[:12]))} …")
    return numbered_units(schema, frame[schema.unit])


def numbered_units(schema: Schema, ids: pd.Series[Any]) -> NDArray[np.intp]:
    """(n,) numbers of units by what their column holds. SchemaError where a row does not say."""
    number = unit_numbers(ids)
    if unknown := int((number < 0).sum()):
        raise SchemaError(f"Expected to be told whose each row is, but {schema.unit!r} is missing in {unknown} of {len(ids)}.")
    return number


def unit_numbers(ids: pd.Series[Any]) -> NDArray[np.intp]:
    """(n,) numbers of units in the order of their first rows; −1 where nothing says whose a row is."""
    if not check.told_apart(ids.dropna().unique(), ids.dtype):
        raise SchemaError(f"Expected {ids.name!r} as texts or whole numbers: of floats so large, several are one and the same.")
    words = texts(ids, ())
    return words.where(words != "").factorize()[0].astype(np.intp)
