"""Entries as moments, each by itself, by a stated format."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from dperm.data.entries import SchemaError

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["ISO", "decimal_year", "moments"]

ISO = "ISO8601"  # 2024-01-31, 2024-01-31 10:00 …, as pandas calls it
_YEAR = 365.2425 * 86400  # seconds


def moments(values: pd.Series[Any], form: str) -> pd.Series[Any]:
    """Entries as moments, UTC where they name a zone; missing where they are, or are no date of this form."""
    import pandas as pd

    if values.dtype.kind == "M":
        return pd.to_datetime(values, utc=True)
    text = values.astype("object").map(lambda value: value if pd.isna(value) else str(value).strip())
    return pd.to_datetime(text, format=form, errors="coerce", utc=True)


def decimal_year(end: str) -> float:
    """Of a date such as 2024-01-31. SchemaError for anything else."""
    try:
        moment = datetime.fromisoformat(end)
    except (TypeError, ValueError):
        raise SchemaError(f"Expected dates such as 2024-01-31 as a range, got {end!r}.") from None
    start = datetime(moment.year, 1, 1, tzinfo=moment.tzinfo)
    return moment.year + (moment - start).total_seconds() / _YEAR
