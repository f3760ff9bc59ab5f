"""The columns that a column of dates becomes: years, months, weekdays and hours."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dperm.data.schema.columns import Column, Encoding
from dperm.data.schema.entries import SchemaError
from dperm.data.schema.moments import decimal_year, moments

if TYPE_CHECKING:
    import pandas as pd

WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


@dataclass(frozen=True, kw_only=True)
class DatePart(Column):
    """One number, or a day of the week, that dates become: a column of its own, named `admitted month`."""

    date: Column
    part: str

    @property
    def source(self) -> str:
        return self.date.source

    def encode(self, values: pd.Series[Any], encoding: Encoding) -> NDArray[np.float32]:
        """(n, width) of a column of dates. SchemaError, naming column and value, for what is none."""
        import pandas as pd

        values = self.date.entries(values)
        found = moments(values, self.date.form)
        broken = found.isna() & values.notna()
        if broken.any() and not encoding.lenient and self.date.unknown != "ignore":
            raise SchemaError(
                f"Expected dates of the form {self.date.form} in column {self.source!r}, got {str(values[broken].iloc[0])!r}."
            )
        if self.type == "category":
            return super().encode(found.dt.day_of_week.map(dict(enumerate(WEEKDAYS)), na_action="ignore"), encoding)
        return super().encode(pd.Series(_READERS[self.part](found), index=values.index), encoding)


def _years(found: pd.Series[Any]) -> Any:
    """With what part of the year is over."""
    leap = found.dt.is_leap_year.where(found.notna(), False)
    return found.dt.year + (found.dt.day_of_year - 1 + _days(found)) / np.where(leap, 366.0, 365.0)


def _days(found: pd.Series[Any]) -> Any:
    return (found.dt.hour + found.dt.minute / 60) / 24


_READERS: dict[str, Any] = {
    "year": _years,
    "month": lambda found: found.dt.month - 1 + (found.dt.day - 1) / 31,
    "hour": lambda found: 24 * _days(found),
}


def date_parts(column: Column) -> list[Column]:
    """The columns that a column of dates becomes."""
    first, last = (decimal_year(end) for end in column.dates)
    made: dict[str, dict[str, Any]] = {
        "year": {"type": "number", "range": (first, last)},
        "month": {"type": "number", "range": (0.0, 12.0), "scale": "cyclic"},
        "weekday": {"type": "category", "categories": WEEKDAYS},
        "hour": {"type": "number", "range": (0.0, 24.0), "scale": "cyclic"},
    }
    return [DatePart(name=f"{column.name} {part}", date=column, part=part, **made[part]) for part in column.parts]
