"""Item 12: texts of others that a spreadsheet would run stand in CSV files as texts; numbers and ids stay what they are."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from dperm.report.spreadsheets import HEADER, for_spreadsheets, quoted
from helpers.commands import dperm

FORMULAS = [
    "=1+1", "\ufeff=1+1", "\ufeff-1+1", '=HYPERLINK("http://evil","x")', "+49 170", "+5", "@SUM(A1)", "\t=1", "\r=1", "\n1", "\t",
    "-1+1", "-cmd|' /C calc'!A0", "- a", "-A1*2", "−2+3", " =1", '"=1"', "＝1+1", "－1+cmd", "+", "=", "-1 -2", "-a b",
]  # fmt: skip
HARMLESS = [
    "", " ", "a", "a=b", "a-1", "1-2", "-12A", "-5", "-5.25", "-1,5", "-1.234,56", "-.5", "-1e-05", "-5 %", "-", "--", "-a_B-9",
    "−12A", "a@b.de", "3+4", "'=1", "€ 5", "x; y", "a\nb", "-12-A",
]  # fmt: skip


@pytest.mark.parametrize("text", FORMULAS)
def test_a_formula_is_quoted(text: str) -> None:
    inner = f"{text[0]}'{text[1:]}" if text in ("\t=1", "\r=1") else text
    assert quoted(text) == f"'{inner}" == quoted(quoted(text))


@pytest.mark.parametrize("text", HARMLESS)
def test_numbers_ids_and_words_are_left_alone(text: str) -> None:
    assert quoted(text) == text


@pytest.mark.parametrize("separator", [";", "\t", "\n", "\r"])
def test_what_another_separator_would_make_a_cell_is_quoted(separator: str) -> None:
    """A spreadsheet that splits at semicolons ends a cell there, whatever the commas and quotation marks of the file are."""
    text = f"all well{separator}=cmd{separator}-5{separator}-5+1"
    assert quoted(text) == f"all well{separator}'=cmd{separator}-5{separator}'-5+1"
    line = pd.DataFrame({"n": [1], "t": [quoted(text)]}).to_csv(index=False, header=False).rstrip("\n")
    cells = [
        cell
        for row in csv.reader(io.StringIO(line, newline=""), delimiter=separator if separator in ";\t" else ";")
        for cell in row
    ]
    assert not any(cell.lstrip('" ').startswith(("=", "+", "@", "-5+")) for cell in cells)


def test_tables_keep_numbers_gaps_and_names() -> None:
    table = pd.DataFrame(
        {
            "=name": ["=1", "a", None, "=1"],
            "id": ["-12A", "-5", "7", ""],
            "n": [-1.5, 2.0, np.nan, -3.0],
            "k": [-1, 2, 3, 4],
            "mixed": [-1, "-x y", None, 2.5],
            "known": pd.Categorical(["@a", "b", "@a", "b"]),
        }
    )
    before = table.copy()
    made, counts = for_spreadsheets(table)
    assert counts == {"=name": 2, "mixed": 1, "known": 2, HEADER: 1}
    assert made.columns.tolist() == ["'=name", "id", "n", "k", "mixed", "known"]
    assert made.iloc[:, 0].fillna("").tolist() == ["'=1", "a", "", "'=1"] and made["known"].tolist() == ["'@a", "b", "'@a", "b"]
    assert made["mixed"].tolist()[:2] == [-1, "'-x y"]
    for name in ("id", "n", "k"):
        pd.testing.assert_series_equal(made[name], before[name])
    pd.testing.assert_frame_equal(table, before)
    again, none = for_spreadsheets(made)
    assert none == {} and again.equals(made)


@pytest.mark.parametrize("kind", ["str", "object"])
def test_what_is_looked_for_at_once_is_what_one_by_one_is_quoted(kind: str) -> None:
    """Texts that a table holds together are looked at another way than one text: each of both lists, and each within another."""
    texts = [
        *FORMULAS,
        *HARMLESS,
        *(f"x{text}" for text in FORMULAS),
        *(f"{text};{text}" for text in FORMULAS + HARMLESS),
        "a\0=b",
    ]
    table = pd.DataFrame(
        {"text": pd.array([*texts, None], dtype=kind), "row": range(len(texts) + 1)}, index=[7] * (len(texts) + 1)
    )
    made, counts = for_spreadsheets(table)
    assert made["text"].tolist()[:-1] == [quoted(text) for text in texts] and pd.isna(made["text"].iloc[-1])
    assert counts == {"text": sum(quoted(text) != text for text in texts)}
    assert made["row"].tolist() == table["row"].tolist() and made.index.tolist() == table.index.tolist()


def test_predictions_hold_no_formula_and_join_with_their_rows(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    size = 60
    table = pd.DataFrame(
        {
            "=x": rng.integers(0, 90, size),
            "case": [f"-{number}A" for number in range(size)],
            "note": rng.choice(["=cmd|' /C calc'!A0", "fine", "-7"], size),
            "y": rng.choice(["@no", "yes"], size),
        }
    )
    table.to_csv(tmp_path / "t.csv", index=False)
    schema, model, out = tmp_path / "s.json", tmp_path / "m.json", tmp_path / "out.csv"
    dperm("data", "propose", tmp_path / "t.csv", "--target", "y", "-o", schema)
    dperm("train", tmp_path / "t.csv", "--schema", schema, "--accept-proposed", "--mechanism", "output", "-o", model)
    command = ("predict", model, tmp_path / "t.csv", "--keep", "case,note,=x", "-o", out)
    done = dperm(*command)
    found = pd.read_csv(out, dtype=str)
    assert found["case"].tolist() == table["case"].tolist()
    assert set(found["prediction"]) <= {"'@no", "yes"} and set(found["note"]) <= {"'=cmd|' /C calc'!A0", "fine", "-7"}
    formulas = int((table["note"].str[0] == "=").sum())
    for said in (f"{formulas} in note", "1 in column names", "--raw-cells"):
        assert said in done.stdout
    assert not any(cell[:1] in "=+@" for row in csv.reader(io.StringIO(out.read_text())) for cell in row if cell)
    told = json.loads(dperm(*command, "--json").stdout)["quoted"]
    assert told["note"] == formulas and told["column names"] == 1
    raw = dperm(*command, "--raw-cells")
    assert "--raw-cells" not in raw.stdout
    pd.testing.assert_series_equal(
        pd.read_csv(out, dtype=str)["note"], table["note"].astype(pd.read_csv(out, dtype=str)["note"].dtype)
    )
