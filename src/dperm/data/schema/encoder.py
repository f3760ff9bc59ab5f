"""A table becomes features and targets by its schema: each row by itself, from public facts alone."""

from __future__ import annotations

from dataclasses import replace
from difflib import get_close_matches
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dperm.data.schema.column_pairs import Pair
from dperm.data.schema.entries import SchemaError, as_table, numbers, texts
from dperm.data.schema.schema import Schema
from dperm.data.untrusted_files import TooLargeError, refuse_beyond_free

if TYPE_CHECKING:
    import pandas as pd


class SchemaEncoder:
    """A table, of pandas or of any library that speaks Arrow, beside the schema that it is encoded by.

    Attributes
    ----------
    schema : Schema
        The declaration.
    table : ReadTable
        The table, with what is known of how it was read.
    frame : DataFrame
        The table as a frame of pandas, with `n` rows.
    decimal : str
        The decimal mark of its texts: as its file was read, or as the schema's format states.
    encoding : Encoding
        The schema's, for texts with that mark.

    Errors name a column and a value: they are for the data holder alone.
    """

    def __init__(self, schema: Schema, table: Any) -> None:
        self.schema, self.table = schema, as_table(table)
        self.frame = self.table.frame
        self.decimal: str = self.table.decimal or schema.extra.get("decimal", ".")
        self.encoding = replace(schema.encoding, decimal=self.decimal)

    def encode(self) -> tuple[NDArray[np.float32], NDArray[Any]]:
        """Features (usable rows, dimension) in [0, 1] — numbers by their public range or curve, categories one-hot — and targets.

        SchemaError where the table does not fit.
        """
        schema, frame = self.schema, self.frame
        if schema.target not in frame.columns:
            raise SchemaError(
                f"Expected the target column {schema.target!r}, but the table has {list(map(str, frame.columns[:12]))} …"
            )
        unlabelled = ~self.labelled
        if unlabelled.any() and schema.missing == "error":
            raise SchemaError(f"Expected no missing values in the target {schema.target!r}, got {int(unlabelled.sum())}.")
        rest = self if not unlabelled.any() else SchemaEncoder(schema, replace(self.table, frame=frame.loc[~unlabelled]))
        features, kept = rest.features()
        return features, self._targets(schema.label.entries(rest.frame.loc[kept, schema.target]))

    def features(self) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """Features of the kept rows, and which rows (n,) were kept: all, unless the schema's `missing` is "drop". SchemaError
        where the table does not fit."""
        schema = self.schema
        refuse_absent_columns(schema, self.frame)
        gaps = ~self._complete
        if gaps.any() and schema.missing == "error":
            worst = max(self.gaps, key=lambda name: int(self.gaps[name].sum()))
            raise SchemaError(
                f"Expected no missing values, got {int(gaps.sum())} records with some (column {worst!r} has most). "
                'Set "missing" to "drop", "middle" or "separate" in the schema.'
            )
        frame = self.frame.loc[~gaps]
        try:
            refuse_beyond_free(8.0 * len(frame) * schema.dimension)  # the features, and those of a part
        except TooLargeError as error:
            raise SchemaError(
                f"The table cannot be encoded: {len(frame):,} rows of {schema.dimension:,} features, {error}. Fewer knots of "
                "curves, or categories, make fewer features."
            ) from None
        features, at = np.zeros((len(frame), schema.dimension), dtype=np.float32), 0
        for part in schema.parts:
            width = part.width(self.encoding)
            given = frame if isinstance(part, Pair) else frame[part.source]
            features[:, at : at + width] = part.encode(given, self.encoding)
            at += width
        features /= np.float32(schema.divisor)
        return features, ~gaps

    @cached_property
    def labelled(self) -> NDArray[np.bool_]:
        """(n,) rows with a target; where labels were found, with one of those."""
        schema = self.schema
        values = schema.label.entries(self.frame[schema.target])
        if schema.found is None and schema.label.unknown == "error":
            return values.notna().to_numpy()
        if schema.classes:
            return self._as_labels(values).isin(schema.classes).to_numpy()
        return ~np.isnan(numbers(values, schema.target, decimal=self.decimal, lenient=True))

    @property
    def usable(self) -> NDArray[np.bool_]:
        """(n,) rows that `encode` keeps."""
        return self.labelled & self._complete if self.schema.missing == "drop" else self.labelled.copy()

    @cached_property
    def gaps(self) -> dict[str, NDArray[np.bool_]]:
        """By column of features, the rows (n,) that lack its value."""
        return {column.name: column.absent(self.frame[column.source], self.decimal) for column in self.schema.feature_columns}

    @property
    def _complete(self) -> NDArray[np.bool_]:
        """(n,) rows without a gap that the schema does not fill."""
        complete = np.ones(len(self.frame), dtype=np.bool_)
        if self.schema.missing in ("error", "drop"):
            for gap in self.gaps.values():
                complete &= ~gap
        return complete

    def _targets(self, values: pd.Series[Any]) -> NDArray[Any]:
        schema = self.schema
        if schema.target_range is not None:
            return np.clip(numbers(values, schema.target, decimal=self.decimal), *schema.target_range)
        labels = self._as_labels(values)
        unknown = sorted(set(labels.unique()) - set(schema.classes))
        if unknown:
            raise SchemaError(
                f"Expected labels {list(schema.classes)} in {schema.target!r}, got {unknown[:5]}. Say what these are read as "
                '("read"), or leave such records out by "unknown": "ignore".'
            )
        return labels.to_numpy(dtype=str)

    def _as_labels(self, values: pd.Series[Any]) -> pd.Series[Any]:
        schema = self.schema
        labels = texts(values, schema.classes).astype(str)
        if suffix := schema.extra.get("label_suffix", ""):
            labels = labels.str.removesuffix(suffix)
        other = schema.extra.get("other_label")
        return labels.where(labels.isin(schema.classes), other) if other else labels


def refuse_absent_columns(schema: Schema, frame: pd.DataFrame) -> None:
    """SchemaError for a table without one of the columns that features are made of, with the name that may be meant."""
    absent = [name for name in schema.table_columns(features=True) if name not in frame.columns]
    if not absent:
        return
    there = list(map(str, frame.columns))
    more = f" and {len(absent) - 5} more" if len(absent) > 5 else ""
    known = set(schema.table_columns())
    folded = {name.casefold(): name for name in there if name not in known}
    alike = get_close_matches(absent[0].casefold(), folded, 1, 0.75)
    hint = f" Is its {folded[alike[0]]!r} the schema's {absent[0]!r}? Rename one." if alike else ""
    has = f"It has {there[:12]}{' …' if len(there) > 12 else ''}."
    raise SchemaError(f"The table lacks the columns {absent[:5]}{more} of the schema.{hint or ' ' + has}")
