"""Answers of a model to the rows of a table, as a table of their own: a line for each row, also where it has no answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dperm import data
from dperm.data.schema.row_faults import clipped_rows, row_faults, rows_of_other_parts

if TYPE_CHECKING:
    import pandas as pd

    from dperm.report.refits import Refits


@dataclass(frozen=True)
class Rows:
    """What a model is asked about: the features of rows that fit its schema.

    Attributes
    ----------
    features : (n, d)
        Of the rows that have an answer.
    count : int
        How many rows the table has; 0 where all have an answer.
    faults, clipped : dict
        By row, from 0: why it has no answer, and which columns were taken at the end of their range.
    copied : DataFrame or None
        Columns that stand beside the answers.
    """

    features: Any
    count: int = 0
    faults: dict[int, str] = field(default_factory=dict[int, str])
    clipped: dict[int, str] = field(default_factory=dict[int, str])
    copied: pd.DataFrame | None = None

    @classmethod
    def of(
        cls,
        source: str,
        extra: dict[str, Any],
        keep: list[str] | None,
        admitted: Callable[[dict[int, str], data.ReadTable, data.Schema], None],
    ) -> Rows:
        """Of a file or named set, for a model with what was saved beside it. `admitted` is told all faults, the table and the
        schema, and raises where that may not be."""
        if not extra.get("schema"):
            return cls._without_columns(data.read_dataset(source, indices=extra.get("indices"))[0].features, keep)
        schema = data.Schema.from_dict(extra["schema"])
        if not Path(source).exists() and source in data.named():
            return cls._without_columns(data.load(source, schema).features, keep)
        table = data.read_table(source, schema)
        frame = table.frame
        if absent := [name for name in keep or () if name not in frame.columns]:
            raise ValueError(f"Expected --keep to name columns of the table, got {absent}.")
        faults = row_faults(schema, table)
        if (part := extra.get("fit_by")) is not None:
            rest = [row for row in range(len(frame)) if row not in faults]
            others = rows_of_other_parts(schema, table.without(faults), part["column"], part["value"])
            faults |= {rest[row]: why for row, why in others.items()}
        admitted(faults, table, schema)
        clipped = {row: names for row, names in clipped_rows(schema, table).items() if row not in faults}
        copied = None if keep is None else frame[keep].reset_index(drop=True)
        return cls(data.SchemaEncoder(schema, table.without(faults)).features()[0], len(frame), faults, clipped, copied)

    @classmethod
    def _without_columns(cls, features: Any, keep: list[str] | None) -> Rows:
        if keep is not None:
            raise ValueError("Expected no --keep: only tables with a schema have columns to copy.")
        return cls(features)


def answered(
    model: Any,
    rows: Rows,
    target_range: data.TargetRange | None,
    again: Refits | None = None,
    level: float = 0.95,
    threshold: float | None = None,
) -> pd.DataFrame:
    """A table of answers, with an interval for each number where models were trained `again` on the training records: PRIVATE.
    Of two classes the later one is the answer from the probability `threshold` on; None: the model's own."""
    import pandas as pd

    restored = np.asarray if target_range is None else target_range.restored
    names = list(model.classes_) if hasattr(model, "predict_proba") else []
    likely = model.predict_proba(rows.features) if names else None
    answers = model.predict(rows.features)
    if threshold is not None:
        refuse_threshold(model)
        answers = np.asarray(model.classes_)[(np.asarray(likely)[:, 1] >= threshold).astype(np.intp)]
    table = pd.DataFrame({"prediction": restored(answers)})
    if names:
        table[[f"probability of {name}" for name in names]] = likely
    if again is not None:
        for side, values in zip(("lowest", "highest"), again.predictions(rows.features, level), strict=True):
            table[[f"PRIVATE {side} of {name}" for name in names] or f"PRIVATE {side}"] = values if names else restored(values)
    if rows.faults:  # one line for every record of the input
        table.index = pd.Index([row for row in range(rows.count) if row not in rows.faults])
        table = table.reindex(range(rows.count))
        table["left blank because"] = pd.Series(rows.faults)
    if rows.clipped:
        table["taken at the end of its range"] = pd.Series(rows.clipped)
    return table if rows.copied is None else pd.concat([rows.copied, table], axis=1)


def refuse_threshold(model: Any) -> None:
    """ValueError for models that have no probability of one of two classes."""
    classes = list(getattr(model, "classes_", ()))
    if len(classes) != 2 or not hasattr(model, "predict_proba"):
        what = f"one of {len(classes)} classes" if classes else "one of numbers"
        what += " without probabilities" if len(classes) == 2 else ""
        raise ValueError(f"Expected a model of two classes with probabilities for --threshold, got {what}.")
