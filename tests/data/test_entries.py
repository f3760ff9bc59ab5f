"""Numbers as people write them: with signs of money, percents and thousands, each by itself."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from dperm.data.entries import as_numbers


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
