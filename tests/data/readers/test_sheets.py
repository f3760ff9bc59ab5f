"""Item 15: workbooks are read row by row, and give the same texts as pandas reads from them."""

from __future__ import annotations

import datetime
from pathlib import Path

import openpyxl
import pandas as pd

from dperm.data.readers.workbooks import read_sheet


def test_entries_are_the_texts_that_pandas_reads(tmp_path: Path) -> None:
    book = openpyxl.Workbook()
    sheet = book.active
    assert sheet is not None
    sheet.append([f"c{place}" for place in range(12)])
    sheet.append([1, 1.0, 0.1 + 0.2, "a", True, None, "=1/0", datetime.datetime(2020, 1, 2, 3, 4), "#N/A", -5, 1e300, "  b "])
    sheet.append([])
    sheet.append([None, datetime.time(1, 2), datetime.timedelta(hours=30), datetime.date(1999, 12, 31), False, "ü", 2**60, -0.0])
    sheet.append([12345678901234567, "1e5", 1e-7, "", "'x", "a\nb", "007", 3.14159265358979, "NaN"])
    book.create_sheet("other")
    book.save(tmp_path / "t.xlsx")
    theirs = pd.read_excel(tmp_path / "t.xlsx", dtype=str, header=None, na_filter=False, engine="openpyxl").iloc[1:]
    told = read_sheet(tmp_path / "t.xlsx", lambda _: {"nan"})
    assert told.sheet == "sheet 'Sheet', the first of 2"
    ours = told.frame
    assert ours.columns.tolist() == [f"c{place}" for place in range(12)]
    assert (
        ours.astype(object).fillna("missing").to_numpy().tolist() == theirs.astype(object).fillna("missing").to_numpy().tolist()
    )
    missing = read_sheet(tmp_path / "t.xlsx", lambda _: {"", "NaN", "nan"}).frame
    assert missing.isna().to_numpy().tolist() == (theirs.isna() | theirs.isin(["", "NaN"])).to_numpy().tolist()


def test_a_workbook_without_rows_is_no_table(tmp_path: Path) -> None:
    openpyxl.Workbook().save(tmp_path / "t.xlsx")
    assert read_sheet(tmp_path / "t.xlsx", lambda _: set()).frame.empty
