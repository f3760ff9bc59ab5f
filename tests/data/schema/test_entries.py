"""Numbers as people write them: with signs of money, percents and thousands, each by itself."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pytest

from dperm.data.schema.columns import Column, Encoding
from dperm.data.schema.entries import as_numbers


@pytest.mark.parametrize(
    ("entry", "point", "comma"),
    [
        ("$1,234.50", 1234.5, None),
        ("1.234,50 €", None, 1234.5),
        ("-$5", -5, -5),
        ("$-5", -5, -5),
        ("7.12%", 7.12, None),
        ("7,12 %", None, 7.12),
        (" 12 ", 12, 12),
        ("1,234", 1234, 1.234),
        ("1.234", 1.234, 1234),
        ("1,23", None, 1.23),
        ("12,345,678.9", 12345678.9, None),
        ("0,123", None, 0.123),
        ("1e5", 1e5, 1e5),
        ("($191.90)", -191.9, None),
        ("(5)", -5, -5),
        ("(-5)", None, None),
        ("()", None, None),
        ("%", None, None),
        ("5$5", None, None),
        ("--5", None, None),
        ("5%%", None, None),
        ("", None, None),
        ("> 5", None, None),
        ("1,234,5", None, None),
    ],
)
def test_a_number_is_read_by_itself(entry: str, point: float | None, comma: float | None) -> None:
    for decimal, meant in ((".", point), (",", comma)):
        for others in ([], ["word"], ["1", "2.5", "$3"], [None, "7"]):
            found = as_numbers(pd.Series([*others, entry], dtype="object"), decimal)[-1]
            assert np.isnan(found) if meant is None else found == meant


@pytest.mark.parametrize("other", [pd.Timestamp("2020-01-01"), 1 + 0j, object(), b"5", True, None, "abc", 10**400, np.float32(2)])
def test_what_is_no_number_changes_no_other(other: Any) -> None:
    for entry, meant in (("5", 5.0), ("$1,234", 1234.0), (7, 7.0), (2.5, 2.5), (Decimal("1.5"), 1.5), ("abc", np.nan)):
        found = as_numbers(pd.Series([other, entry], dtype="object"))[1]
        assert np.isnan(found) if np.isnan(meant) else found == meant


def test_entries_are_read_as_something_else_whatever_their_column_holds() -> None:
    column = Column("x", "number", (0, 100), read={"99": None, "7": 50})
    for values in ([99, 7, 20], ["99", "7", "20"], [99.0, 7.0, 20.0], [99, "7", 20.0], [99.0, 7.0, None]):
        encoded = column.encode(pd.Series(values), Encoding(separate=True))
        assert encoded[:2].tolist() == [[0, 1], [0.5, 0]]


def test_long_entries_take_no_time() -> None:
    assert np.isnan(as_numbers(pd.Series(["1" * 100_000 + "x", "$" + "1," * 50_000]))).all()
