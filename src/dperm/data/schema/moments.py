"""Entries as moments, each by itself, by a stated format: no entry changes how another is read."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any

import numpy as np

from dperm.data.schema.entries import SchemaError, texts

if TYPE_CHECKING:
    import pandas as pd

ISO = "ISO 8601"  # 2024-01-31, 2024-01-31 10:00 …
QUARTER = "%q"  # of the year, 1 to 4: strptime knows none, and it is taken for its first day
_YEAR = 365.2425 * 86400  # seconds


def moments(values: pd.Series[Any], form: str) -> pd.Series[Any]:
    """Entries as moments to the microsecond, in UTC where they name a zone; missing where they are, or are texts of another
    form. Moments and dates are taken as they are, in a column of their own type or among others."""
    import pandas as pd

    if values.dtype.kind == "M":
        zone = getattr(values.dtype, "tz", None)
        plain = values if zone is None else values.dt.tz_convert("UTC").dt.tz_localize(None)
        return pd.Series(plain.to_numpy().astype("datetime64[us]"), index=values.index)
    made = values.astype("object").map(lambda value: isinstance(value, date | np.datetime64))
    words = texts(values.astype("object").mask(made), ())
    read = {word: _moment(word, form) for word in words.dropna().unique()}
    found = [
        _plain(value) if is_moment else None if pd.isna(word) else read[word]
        for value, is_moment, word in zip(values, made, words, strict=True)
    ]
    return pd.Series(np.array(found, dtype="datetime64[us]"), index=values.index)


def _plain(moment: Any) -> np.datetime64:
    """A date or a moment, in UTC where it names a zone."""
    import pandas as pd

    stamp = pd.Timestamp(moment)
    return (stamp if stamp.tzinfo is None else stamp.tz_convert("UTC").tz_localize(None)).to_datetime64().astype("datetime64[us]")


def _moment(word: Any, form: str) -> datetime | None:
    if not isinstance(word, str):
        return None
    try:
        if QUARTER in form:
            quarter = datetime.strptime(word, form.replace(QUARTER, "%m"))
            return quarter.replace(month=3 * quarter.month - 2) if quarter.month <= 4 else None
        found = datetime.fromisoformat(word) if form == ISO else datetime.strptime(word, form)
        return found if found.tzinfo is None else found.astimezone(UTC).replace(tzinfo=None)
    except (ValueError, OverflowError):
        return None


def decimal_year(end: str) -> float:
    """Of a date such as 2024-01-31. SchemaError for anything else."""
    try:
        moment = datetime.fromisoformat(end)
    except (TypeError, ValueError):
        raise SchemaError(f"Expected dates such as 2024-01-31 as a range, got {end!r}.") from None
    start = datetime(moment.year, 1, 1, tzinfo=moment.tzinfo)
    return moment.year + (moment - start).total_seconds() / _YEAR
