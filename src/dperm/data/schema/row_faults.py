"""Rows of a table that its schema does not take as they are, and why: for the data holder alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from dperm.data.schema.encoder import SchemaEncoder, refuse_absent_columns
from dperm.data.schema.schema import Schema


def row_faults(schema: Schema, table: Any) -> dict[int, str]:
    """By row, from 0, why its features would be refused or left out: the first reason, in words. SchemaError where a column is
    not there."""
    encoder = SchemaEncoder(schema, table)
    refuse_absent_columns(schema, encoder.frame)
    found: dict[int, str] = {}
    for column in schema.feature_columns:
        faults = column.faults(encoder.frame[column.source], encoder.encoding)
        if schema.missing in ("error", "drop"):
            rows = np.flatnonzero(encoder.gaps[column.name])
            faults |= {int(row): f"column {column.name!r} is missing" for row in rows}
        found = faults | found
    return dict(sorted(found.items()))


def clipped_rows(schema: Schema, table: Any) -> dict[int, str]:
    """By row, from 0, the columns whose entry is outside its range and taken at the end of it."""
    encoder = SchemaEncoder(schema, table)
    found: dict[int, list[str]] = {}
    for column in schema.feature_columns:
        for row in np.flatnonzero(column.outside(encoder.frame[column.source], encoder.decimal)):
            found.setdefault(int(row), []).append(column.name)
    return {row: ", ".join(names) for row, names in found.items()}


def rows_of_other_parts(schema: Schema, table: Any, name: str, value: str) -> dict[int, str]:
    """By row, from 0, in words: the rows whose category in the column `name` is another than `value`."""
    encoder = SchemaEncoder(schema, table)
    at = schema.columns_of(name)[value] - min(schema.columns_of(name).values())
    column = next(column for column in schema.columns if column.name == name)
    mine = column.encode(encoder.frame[column.source], replace(encoder.encoding, lenient=True))[:, at] > 0
    return {int(row): f"column {name!r} is not {value!r}, which this model is for" for row in np.flatnonzero(~mine)}
