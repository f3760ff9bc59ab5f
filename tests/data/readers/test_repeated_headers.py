"""Columns of the same name, and lines that were quoted as a whole."""

from __future__ import annotations

import io
from pathlib import Path

import pandas as pd
import pytest

from dperm.data import DataError, Dataset, propose, read_dataset, read_table
from dperm.data.file_reader import distinct_names


@pytest.mark.parametrize("header", ["a,b,a", "a,a,a", "a,a,a.1", "a.1,a,a,a", "a,a.1,a.1,a", "b,b.2,b,b,b.1", "a,b,c"])
def test_names_that_come_again_are_numbered_as_pandas_does(header: str, tmp_path: Path) -> None:
    names = header.split(",")
    expected = pd.read_csv(io.StringIO(header + "\n" + ",".join("1" * len(names)))).columns.tolist()
    assert distinct_names(names)[0] == expected and len(set(expected)) == len(names)
    (tmp_path / "t.csv").write_text(header + "\n" + ("1," * len(names))[:-1] + "\n")
    table = read_table(tmp_path / "t.csv", written={"separator": ",", "encoding": "utf-8", "decimal": "."})
    assert list(table.frame.columns) == expected
    assert ("columns of the same name are called" in table.written) == (expected != names)


def test_many_names_are_numbered_at_once() -> None:
    names, said = distinct_names(["a"] * 50_000)
    assert names[:3] == ["a", "a.1", "a.2"] and len(set(names)) == 50_000
    assert said.endswith("a.5 and 49,994 more")


def test_a_schema_of_such_a_table_fits_it(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("score,score,y\n" + "".join(f"{i % 50},{i % 40},{'ny'[i % 2]}\n" for i in range(200)))
    table = read_table(tmp_path / "t.csv")
    schema = propose(table, "y")
    assert [column.name for column in schema.columns] == ["score", "score.1", "y"]
    dataset, _ = read_dataset(tmp_path / "t.csv", schema=schema)
    assert dataset.features.shape == (200, 2) and "score.1" in dataset.written
    assert dataset.features.tolist() == Dataset.of(table, schema).features.tolist()


def quoted(line: str) -> str:
    return '"' + line.replace('"', '""') + '"'


LINES = ['"school";"age";note', '"GP";18;"a ""b"""', '"GP";17;x', '"MS";15;"y;z"']


@pytest.mark.parametrize("header", [LINES[0], quoted(LINES[0]), "school;age;note"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_lines_that_are_quoted_as_a_whole_are_read(header: str, end: str, tmp_path: Path) -> None:
    (tmp_path / "plain.csv").write_text("\n".join(LINES) + "\n")
    (tmp_path / "t.csv").write_bytes(end.join([header, *map(quoted, LINES[1:])]).encode() + end.encode())
    table = read_table(tmp_path / "t.csv")
    assert table.frame.equals(read_table(tmp_path / "plain.csv").frame) and table.frame["note"].tolist() == ['a "b"', "x", "y;z"]
    assert table.written.endswith("separated by semicolons, lines quoted as a whole")
    stated = read_table(tmp_path / "t.csv", written={"separator": ";", "encoding": "utf-8", "decimal": "."})
    assert stated.frame.equals(table.frame) and "quoted as a whole" in stated.written


def test_a_column_of_quoted_texts_stays_one(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text('"name"\n"Doe, John"\n"Roe, Jane"\n')
    table = read_table(tmp_path / "t.csv")
    assert table.frame["name"].tolist() == ["Doe, John", "Roe, Jane"] and "whole" not in table.written


def test_some_quoted_lines_are_said_to_be_that(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text('a;b\n1;2\n"3;4"\n5;6\n')
    with pytest.raises(DataError, match="line 3 has 1 fields in place of 2: it is quoted as a whole, and not all lines are"):
        read_table(tmp_path / "t.csv")
