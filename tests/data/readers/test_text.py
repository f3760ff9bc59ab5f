"""Texts as people export them: how they are written is found out, and nothing is lost in silence."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import re
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from dperm.data import Column, DataError, Dataset, ReadTable, Schema, SchemaError, find, propose, read_dataset, read_table
from dperm.data.schema.encoder import SchemaEncoder
from dperm.data.schema.entries import numbers
from dperm.data.schema.row_faults import row_faults
from dperm.estimators import DPLogisticRegression

PEOPLE = pd.DataFrame(
    {
        "Name": ["Müller, Jörg", "Özil", 'Anna "die Große"', "Straße\n12", "Zoë"],
        "Einkommen": ["1234.56", "99.5", "7.0", "1000000.25", np.nan],
        "Alter": ["31", "45", "17", "88", "60"],
    }
)


def written(separator: str, *, decimal: str = ".", end: str = "\n") -> str:
    frame = PEOPLE.copy()
    if decimal == ",":
        frame["Einkommen"] = ["1.234,56", "99,5", "7,0", "1.000.000,25", np.nan]
    return frame.to_csv(index=False, sep=separator, lineterminator=end)


def numbers_of(table: ReadTable, column: str) -> list[float | None]:
    found = numbers(table.frame[column], column, decimal=table.decimal or "")
    return [None if np.isnan(value) else float(value) for value in found]


@pytest.mark.parametrize(
    ("separator", "encoding", "decimal", "end"),
    [
        (";", "cp1252", ",", "\r\n"),  # Excel, in German
        (";", "utf-8-sig", ",", "\n"),
        (",", "utf-8", ".", "\r\n"),
        ("\t", "utf-16", ".", "\n"),
        ("\t", "utf-16", ",", "\r\n"),
        ("|", "utf-8", ".", "\n"),
        (",", "utf-32", ".", "\n"),
    ],
)
def test_however_it_is_written_it_reads_the_same(separator: str, encoding: str, decimal: str, end: str, tmp_path: Path) -> None:
    path = tmp_path / "people.csv"
    path.write_bytes(written(separator, decimal=decimal, end=end).encode(encoding))
    table = read_table(path)
    assert table.frame.drop(columns="Einkommen").equals(PEOPLE.drop(columns="Einkommen").astype("str"))
    assert numbers_of(table, "Einkommen") == [1234.56, 99.5, 7.0, 1000000.25, None]
    assert table.written.startswith(encoding) and ("decimal commas" in table.written) == (decimal == ",")


@pytest.mark.parametrize("kind", ["gz", "bz2", "xz", "zip"])
@pytest.mark.parametrize("named", [True, False])
def test_compressed_texts_are_read_whatever_their_name(kind: str, named: bool, tmp_path: Path) -> None:
    path, raw = tmp_path / (f"people.csv.{kind}" if named else "people.dat"), written(",").encode()
    if kind == "zip":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("people.csv", raw)
    else:
        path.write_bytes({"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress}[kind](raw))
    assert len(read_table(path).frame) == 5
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(DataError, match="compressed and broken"):
        read_table(path)
    (tmp_path / f"plain.csv.{kind}").write_bytes(raw)
    with pytest.raises(DataError, match="not compressed, as its name says"):
        read_table(tmp_path / f"plain.csv.{kind}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b,c\n1,2,3\n4,5\n7,8,9\n", "line 3 has 2 fields in place of 3"),
        ("a,b,c\n1,2,3\n4,5,6,7\n7,8,9\n", "line 3 has 4 fields in place of 3"),
        ("\n\na,b,c\n1,2,3\n\n4,5\n", "line 6 has 2 fields"),
        ('a,b,c\n1,"x\ny",3\n4,5\n', "line 4 has 2 fields"),
        ('a,b,c\n1,"x,3\n4,5,6\n7,8,9\n', "a quote in line 2 does not close"),
        ('a,b,c\n0,0,0\n1,"x,3\n4,5,6\n7,8",9\n', "a quote in line 3 closes in line 5, behind what looks like rows"),
        ('a,b,c\n1,"x,3\n4,y",6\n7,8,9\n', "a quote in line 2 closes in line 3, behind what looks like rows"),  # next to it
        ('a,b\n1,"x\n\n2,y\n3,z"\n', "a quote in line 2 closes in line 5, behind"),  # two columns, and a blank line
        ('a,b\n1,"x\n2,y"\n', "a quote in line 2 closes in line 3"),
        ('a\n"x\ny"\nz\n', "a quote in line 2 closes in line 3"),  # one column
        ('a,b\n"1","x" \n', "a quote in line 2 does not close, or closes within a field"),
        ('a,b,c\n1, "x, y",3\n', "there are blanks in front of quotes in line 2"),
        ("a\n1\r2\n", "its lines end in several ways"),
        ('name,size\n"Smith, J","5\nLee,6\nKim,7"\nPark,8\n', "a quote in line 2 closes in line 4"),
        ('a,b,c\n"Smith, J","x,3\n4,y",6\n"Lee, K",x,3\n', "a quote in line 2 closes in line 3"),
        ("\r\n\r\n\r\na,b\r\n1,2,3\r\n", "line 5 has 3 fields"),
        ("1,2\n3,4\n", r"its first line looks like a row, \['1', '2'\]: say whether it has a header"),
        ("x\ty\n1,234\ta\n1,000\tb\n", "it holds '1,234', of three decimals or of thousands: state whether"),
        ("p;q\n1,5;2.1\n2,5;3.1\n", "it holds '1,5' and '2.1': state whether its decimal mark is , or ."),
        ("tags;lat\n1,2;48.137\n3,4;48.138\n", "it holds '1,2' and '48.137': state whether"),
        ("a,b\n1,2,\n3,4,x\n", "line 2 has 3 fields"),
        ("a,b\n1,\x00\n", "no text: it has bytes of value 0"),
    ],
)
def test_rows_that_are_none_are_named_with_their_line(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(text)
    with pytest.raises(DataError, match=message) as caught:
        read_table(path)
    assert "\n" not in str(caught.value)


def test_quotes_within_fields_are_letters(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text('pipe,size\nthin,5"\nwide,7"\nother,9"\n')
    assert read_table(path).frame["size"].tolist() == ['5"', '7"', '9"']


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"separator": ";;"}, "separator of one letter"),
        ({"encoding": "klingon"}, "encoding that Python knows"),
        ({"encoding": "ascii"}, 'it is UTF-8, and "encoding" says ascii'),
        ({"encoding": "utf-16"}, 'it is UTF-8, and "encoding" says utf-16'),
        ({"encoding": "base64"}, "encoding that Python knows"),
        ({"missing": [None]}, "missing to be a text or a number"),
        ({"missing": True}, "missing to be a text or a number"),
        ({"skip_lines": 99}, "it has no line behind the 99"),
        ({"decimal": "'"}, "decimal mark"),
        ({"skip_lines": -1}, "number of lines"),
        ({"skip_lines": True}, "number of lines"),
    ],
)
def test_what_is_stated_wrongly_is_refused(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(written(","), encoding="utf-8")
    with pytest.raises(DataError, match=message):
        read_table(path, written=options)


def test_what_is_stated_is_not_found_out(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(b"Report of 2024\nmade by hand\n" + written(";", decimal=",").encode("cp1252"))
    table = read_table(path, written={"skip_lines": 2, "separator": ";", "encoding": "cp1252", "decimal": ","})
    assert numbers_of(table, "Einkommen")[:2] == [1234.56, 99.5] and table.written == ""
    stated = {"skip_lines": 2, "separator": ";", "encoding": "cp1252", "decimal": ","}
    assert propose(table, "Alter", least_units=1).extra == stated
    told = read_table(path, written={"skip_lines": 2})
    assert told.frame.equals(table.frame) and "decimal commas" in told.written


def test_points_are_no_thousands_unless_decimals_are_commas(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("x;y\n1.234;a\n2.5;b\n")
    assert numbers_of(read_table(path), "x") == [1.234, 2.5]
    path.write_text("crp;y\n< 5,5;a\n12,5;b\nn/a;a\nunknown;b\n7,25;a\n")
    assert read_table(path).decimal == ","
    path.write_text("x;z\n1.234;1,5\n12.345.678;-,5\n-5;+3,25\n;4\n")
    assert numbers_of(read_table(path), "x") == [1234.0, 12345678.0, -5.0, None]
    assert numbers_of(read_table(path), "z") == [1.5, -0.5, 3.25, 4.0]


@pytest.mark.parametrize("odd", ["2.5", "0.123", "10.10.2024", "1.2.3", "1,2,3"])
def test_a_point_that_decimal_commas_do_not_explain_is_no_number(odd: str, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(f"x;z;y\n1,5;1,5;a\n{odd};2,5;b\n2,5;3,5;a\n")
    frame = read_table(path)
    schema = Schema("t", "y", (Column("x", "number", (0, 10)), Column("y", "label")), ("a", "b"))
    with pytest.raises(SchemaError, match=f"Expected numbers in column 'x', got '{re.escape(odd)}'"):
        SchemaEncoder(schema, frame).encode()
    assert list(row_faults(schema, frame)) == [1]
    path.write_text("x;y\n1.5;a\n2.25;b\n")
    with pytest.raises(SchemaError, match=r"got '1.5' in row 1\. This table is read with decimal commas"):
        SchemaEncoder(schema, read_table(path, written={"decimal": ","})).encode()


def test_what_is_no_number_keeps_its_commas(tmp_path: Path) -> None:
    """Ids, lists and categories are texts: only numbers have decimal marks."""
    path = tmp_path / "t.csv"
    path.write_text("code;stage;price;y\n1,2;1.000;1,5;a\n1,2,3;1.000;2,5;b\n7,1;2.500;7,25;a\n1,2;2.500;1,5;b\n")
    table = read_table(path, written={"decimal": ","})
    assert table.decimal == "," and table.frame["code"].tolist() == ["1,2", "1,2,3", "7,1", "1,2"]
    proposed = propose(table, "y", least_units=1)
    kinds = {column.name: column.type for column in proposed.columns}
    assert kinds == {"code": "category", "stage": "number", "price": "number", "y": "label"}
    assert SchemaEncoder(proposed, table).encode()[0][:, proposed.features.index("price")] == pytest.approx(
        [0.0, 1 / 5.8, 1.0, 0.0], abs=0.02
    )
    stated = Schema("t", "y", (Column("stage", "category", categories=("1.000", "2.500")), Column("y", "label")), ("a", "b"))
    assert SchemaEncoder(stated, table).encode()[0].tolist() == [[1, 0], [1, 0], [0, 1], [0, 1]]
    assert read_table(path, written={"decimal": ",", "missing": "1,5"}).frame["price"].isna().tolist() == [
        True,
        False,
        False,
        True,
    ]


def test_libsvm_files_are_known_by_what_they_hold(tmp_path: Path) -> None:
    for name in ("a9a", "a9a.t", "a9a.bz2"):
        raw = b"-1 3:1 11:1 14:1\n+1 5:1 7:1 14:0.5\n-1 1:1\n+1 2:1\n"
        (tmp_path / name).write_bytes(bz2.compress(raw) if name.endswith("bz2") else raw)
        dataset, schema = read_dataset(tmp_path / name)
        assert schema is None
        assert dataset.features.shape == (4, 14)
        assert dataset.classes == ("-1", "1")
    (tmp_path / "b.txt").write_text("a b\n1:2 3\n")
    assert read_table(tmp_path / "b.txt").frame.columns.tolist() == ["a b"]


def test_sheets_are_read(tmp_path: Path) -> None:
    path = tmp_path / "people.xlsx"
    table = PEOPLE.assign(Alter=[31, 45, 17, 88, -999], Einkommen=[1234.56, 99.5, 7.0, 1000000.25, np.nan])
    table.to_excel(path, index=False)
    frame = read_table(path, written={"missing": -999}).frame
    assert frame["Alter"].tolist()[:4] == ["31", "45", "17", "88"] and frame["Alter"].isna().sum() == 1
    assert frame["Einkommen"].astype(float).tolist()[:4] == [1234.56, 99.5, 7.0, 1000000.25] and frame["Einkommen"].isna()[4]
    PEOPLE.set_axis(["a", "b", "a"], axis=1).to_excel(path, index=False)
    twice = read_table(path)
    assert list(twice.frame.columns) == ["a", "b", "a.1"] and twice.sheet == "columns of the same name are called a.1"
    PEOPLE.to_excel(path, index=False, startrow=1)
    with pytest.raises(DataError, match="Column 1 of the first row of"):
        read_table(path)


def test_sheets_say_what_they_need(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "people.xlsx"
    path.write_bytes(b"PK")
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    with pytest.raises(ModuleNotFoundError, match="needs openpyxl"):
        read_table(path)


def test_certificates_say_that_it_was_found_out(tmp_path: Path) -> None:
    columns = (Column("x", "number", (0, 10)), Column("y", "label"))
    schema = Schema("t", "y", columns, ("a", "b"))
    path = tmp_path / "t.csv"
    path.write_text("x;y\n" + "1,5;a\n2,5;b\n" * 50)
    dataset, _ = read_dataset(path, schema=schema)
    assert dataset.written == "utf-8, separated by semicolons, decimal commas" and dataset.features[0, 0] == np.float32(0.15)
    model = DPLogisticRegression(epsilon=1.0, classes=["a", "b"]).fit(dataset.features, dataset.targets)
    certificate = dataset.certified(model.certificate_)
    certificate.verify()
    assert any("separator, encoding and decimal mark" in item for item in certificate.not_charged)
    stated = Schema.from_dict(json.loads(schema.to_json()) | {"format": {"separator": ";", "encoding": "utf-8", "decimal": ","}})
    dataset, _ = read_dataset(path, schema=stated)
    assert dataset.written == "" and dataset.certified(model.certificate_).not_charged == model.certificate_.not_charged
    assert "known without the rows" in dataset.certified(model.certificate_).assumptions[0].text
    proposed = Dataset.of(read_table(path), propose(read_table(path), "y", least_units=1))
    assert "read off the data" in (proposed.certified(model.certificate_).claim or "")
    wrong = Schema.from_dict(json.loads(schema.to_json()) | {"format": {"separator": ";", "decimal": "."}})
    with pytest.raises(SchemaError, match=r"got '1,5' in row 1\. Where decimal marks are commas"):
        read_dataset(path, schema=wrong)
    assert find(read_table(path), "y", 8.0).extra == {"decimal": ","}
    assert isinstance(Dataset.of(read_table(path), schema), Dataset)


@pytest.mark.parametrize(
    ("raw", "columns", "rows"),
    [
        ("a,b\r1,2\r3,4\r", ["a", "b"], [["1", "2"], ["3", "4"]]),  # an old Macintosh
        ("a,b\r1,2,\n3,4,\n5,6,\n", ["a", "b"], [["1", "2"], ["3", "4"], ["5", "6"]]),  # ends of both kinds, and a separator
        ('"a\nx",b\n1,2,\n3,4,\n', ["a\nx", "b"], [["1", "2"], ["3", "4"]]),
        ("Preis, netto;Menge\n1,5;3\n2,5;4\n", ["Preis, netto", "Menge"], [["1,5", "3"], ["2,5", "4"]]),
        ("Alter, Jahre;Größe, cm\n31,5;170,2\n", ["Alter, Jahre", "Größe, cm"], [["31,5", "170,2"]]),
        ("sep=;\n\na;b\n1;2\n", ["a", "b"], [["1", "2"]]),
        (",a,b\n0,1,2\n", ["column_1", "a", "b"], [["0", "1", "2"]]),
        ("BZhash,b\n1,2\n", ["BZhash", "b"], [["1", "2"]]),
        ("a,b\n\\N,None\n", ["a", "b"], [[None, "None"]]),
        ("sep=;\na;b\n1;2\n", ["a", "b"], [["1", "2"]]),  # Excel's own
        ("x;y\n0,5;a\n0.123;c\n", ["x", "y"], [["0,5", "a"], ["0.123", "c"]]),
        ("q;y\nNA ;a\n  ;b\n", ["q", "y"], [[None, "a"], [None, "b"]]),
        ('text,label\n"Good, but\nslow, noisy,\nsad",1\n', ["text", "label"], [["Good, but\nslow, noisy,\nsad", "1"]]),
        ("a,b,\n1,2,\n3,4,\n", ["a", "b"], [["1", "2"], ["3", "4"]]),  # everything ends in a separator
        ('a,b\n1,"x\ny, z",\n3,4,\n', ["a", "b"], [["1", "x\ny, z"], ["3", "4"]]),
        ('a,b\n1,"x",\n3,5",\n', ["a", "b"], [["1", "x"], ["3", '5"']]),
        ("a\n1\n\n2\n\n\n", ["a"], [["1"], [None], ["2"]]),
        ("a\r\n1\r\n2\r\n\r\n", ["a"], [["1"], ["2"]]),
        ('"sep=;"\r\na;b\r\n1;2\r\n', ["a", "b"], [["1", "2"]]),
        ('a,b\n1,"' + "x" * 200_000 + '"\n', ["a", "b"], [["1", "x" * 200_000]]),
        (";".join(f"{'question ' * 40}{i}" for i in range(1000)) + "\n" + ";".join("1" * 1000) + "\n", None, None),
        ("a,b\r" + "1,2\r" * 80_000, ["a", "b"], None),
        (",".join(f"gene_{i:06d}" for i in range(23_000)) + "\n" + ",".join("1" * 23_000) + "\n", None, None),
    ],
    ids=lambda value: str(value)[:24],
)
def test_odd_texts_are_read_whole(raw: str, columns: Any, rows: Any, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(raw.encode())
    frame = read_table(path).frame
    assert columns is None or frame.columns.tolist() == columns
    assert rows is None or frame.astype(object).where(frame.notna(), None).to_numpy().tolist() == rows
    assert len(frame) == (len(rows) if rows else 80_000 if columns else 1)


@pytest.mark.fast_cases("cp1252", "gb18030")
@pytest.mark.parametrize("encoding", ["cp1252", "shift_jis", "gb18030", "cp1251"])
def test_encodings_are_told_by_the_lines_that_need_one(encoding: str, tmp_path: Path) -> None:
    words = {
        "cp1252": ["Müller", "l’été à Paris – 5 €", "Özil"],
        "shift_jis": ["名前", "田中", "鈴木"],
        "gb18030": ["是", "李明", "王伟"],
        "cp1251": ["Анна Иванова", "Ж", "М"],
    }
    path = tmp_path / "t.csv"
    rare = "".join(f"{word};2\n" for word in words[encoding] * 30).encode(encoding)
    path.write_bytes(b"who;b\n" + b"Meier;1\n" * 150_000 + rare)
    if encoding == "cp1252":
        table = read_table(path)
        assert table.frame["who"].tolist()[-3:] == words[encoding] and table.written.startswith(encoding)
        return
    with pytest.raises(DataError, match="it is not UTF-8, and its encoding must be stated"):  # never guessed
        read_table(path)
    table = read_table(path, written={"encoding": encoding})
    assert table.frame["who"].tolist()[-3:] == words[encoding] and propose(table, "b").extra == {
        "encoding": encoding,
        "decimal": ".",
    }


@pytest.mark.parametrize("word", ["Müller", "São Paulo", "25 °C", "3 µg", "5 €", "naïve", "Ærø", "¿qué?", "à", "“so”"])
@pytest.mark.parametrize("times", [1, 3, 60])
def test_western_words_are_western_however_few_they_are(word: str, times: int, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(b"name,b\n" + b"Meier,1\n" * 20 + f"{word},2\n".encode("cp1252") * times)
    table = read_table(path)
    assert table.frame["name"].tolist()[20:] == [word] * times and table.written.startswith("cp1252")


@pytest.mark.parametrize(
    ("word", "encoding"), [("Иванов", "cp1251"), ("Παπάς", "cp1253"), ("名前", "shift_jis"), ("姓名", "gb18030")]
)
def test_few_foreign_words_tell_no_encoding(word: str, encoding: str, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(f"name,b\n{word},1\nMeier,2\n".encode(encoding))
    with pytest.raises(DataError, match="it is not UTF-8, and its encoding must be stated"):
        read_table(path)
    assert read_table(path, written={"encoding": encoding}).frame["name"].tolist() == [word, "Meier"]


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ('a,b\n1,"x\n2,"y\n3,z\n', "a quote in line 2 does not close, or closes within a field"),
        ("a,b\n" + "Müller,1\n" * 50, "line 52 is not UTF-8, as 50 others are"),
        ("a,b\nMüller,1\n", "line 3 is not UTF-8, as 1 others are"),
    ],
)
def test_mistakes_that_would_change_other_rows_are_refused(raw: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(raw.encode() + (b"M\xfcller,2\n" if "UTF" in message else b""))
    with pytest.raises(DataError, match=message):
        read_table(path)


def test_what_is_no_file_or_no_workbook_is_said(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="got the folder"):
        read_table(tmp_path)
    (tmp_path / "b.xlsx").write_text("no workbook")
    with pytest.raises(DataError, match="is no workbook"):
        read_table(tmp_path / "b.xlsx")
    with zipfile.ZipFile(tmp_path / "two.zip", "w") as archive:
        archive.writestr("a.csv", "a,b\n1,2\n")
        archive.writestr("__MACOSX/a.csv", "x")
        archive.writestr("b.csv", "a,b\n1,2\n")
    with pytest.raises(DataError, match="expected one file in the archive, got 2"):
        read_table(tmp_path / "two.zip")
    with pytest.raises(SchemaError, match=r"in a format, got \['seperator'\]"):
        Schema.from_dict({"name": "t", "target": "y", "columns": [], "format": {"seperator": ";"}})


def test_marks_of_missing_values_may_be_several(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("a,b\n1,-999\n?,3\n-,4\n")
    assert read_table(path, written={"missing": ["?", "-"]}).frame["a"].isna().tolist() == [False, True, True]
    assert read_table(path, written={"missing": -999}).frame["b"].isna().tolist() == [True, False, False]
    assert read_table(path, written={"separator": None, "encoding": None, "decimal": None}).written != ""
    path.write_text("a,b\n1,-999\n2,-999.0\n3,-99\n")
    for mark in (-999, -999.0, "-999"):
        assert read_table(path, written={"missing": mark}).frame["b"].isna().tolist() == [True, True, False]
    path.write_text("x;z\n99.000;1,5\n99;2,5\n99,0;3,5\n")
    assert read_table(path, written={"missing": 99, "decimal": ","}).frame["x"].isna().tolist() == [False, True, True]


def test_breaks_in_entries_may_be_stated(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text('id,comment\n1,"well\nand, so"\n2,x\n')  # what would be a second row has no number for an id
    assert read_table(path).frame["comment"].tolist() == ["well\nand, so", "x"]
    path.write_text('who,comment\nAnn,"well\nBob,so"\nCid,x\n')
    with pytest.raises(DataError, match=r'say "line_breaks": true'):
        read_table(path)
    table = read_table(path, written={"line_breaks": True})
    assert table.frame["comment"].tolist() == ["well\nBob,so", "x"] and "1 with line breaks in entries" in table.written
    with pytest.raises(DataError, match="an entry in line 2 holds line breaks"):
        read_table(path, written={"line_breaks": False})


def test_marks_and_statements_of_encodings_may_not_differ(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes("a,b\nMüller,1\n".encode("utf-8-sig"))
    with pytest.raises(DataError, match='begins with the mark of utf-8, and "encoding" says cp1252'):
        read_table(path, written={"encoding": "cp1252"})
    assert read_table(path, written={"encoding": "UTF8"}).frame.columns[0] == "a"
    path.write_bytes("a,b\nMüller,1\n".encode())
    with pytest.raises(DataError, match='it is UTF-8, and "encoding" says cp1252'):
        read_table(path, written={"encoding": "cp1252"})
    path.write_bytes("a,b\nMüller,1\n".encode("utf-16-le"))
    with pytest.raises(DataError, match='state its encoding, "utf-16-le"'):
        read_table(path)
    assert read_table(path, written={"encoding": "utf-16-le"}).frame["a"].tolist() == ["Müller"]


def test_texts_without_a_header_are_named_by_their_schema(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    columns = (Column("x", "number", (0, 10)), Column("y", "label"), Column("z", "number", (0, 10)))
    schema = Schema("t", "y", columns, ("a", "b"), extra={"header": False})
    for raw in ("1,a,3\n", "1,a,3,\n"):
        path.write_text(raw)
        assert read_table(path, schema).frame.iloc[0].to_dict() == {"x": "1", "y": "a", "z": "3"}
    path.write_text("1,3\n2,4\n")  # to be predicted
    assert read_table(path, schema).frame.columns.tolist() == ["x", "z"]
    path.write_text("1,3,5,7\n")
    with pytest.raises(DataError, match="expected 3 columns, as the schema has, got 4"):
        read_table(path, schema)


def test_a_table_that_looks_like_libsvm_is_one_if_it_is_said(tmp_path: Path) -> None:
    path = tmp_path / "times"
    path.write_text("1 2:30\n2 3:45\n")
    assert read_table(path, written={"header": False, "separator": " "}).frame.to_numpy().tolist() == [
        ["1", "2:30"],
        ["2", "3:45"],
    ]
    with pytest.raises(DataError, match="Expected a table, got the array file"):
        read_table(path)
    with pytest.raises(DataError, match="'seperator' is stated"):
        read_table(path, written={"seperator": " "})


def test_what_is_compressed_twice_or_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t.csv.gz"
    path.write_bytes(gzip.compress(gzip.compress(b"a,b\n1,2\n")))
    with pytest.raises(DataError, match="it is compressed twice"):
        read_table(path)
    path.write_bytes(gzip.compress(b"a,b\n" + b"1,2\n" * 10_000_000))
    monkeypatch.setattr("dperm.data.decoding.free_memory", lambda: 1e8)
    with pytest.raises(DataError, match="too much for the free memory"):
        read_table(path)


def test_what_is_a_label_is_not_missing(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("x,c,y\n1,NA,None\nNA,DE,NA\n2,,nan\n")
    columns = (Column("x", "number", (0, 10)), Column("c", "category", categories=("NA", "DE")), Column("y", "label"))
    schema = Schema("t", "y", columns, ("None", "NA", "nan"), missing="separate")
    frame = read_table(path, schema).frame
    assert frame["y"].tolist() == ["None", "NA", "nan"] and frame["c"].isna().tolist() == [False, False, True]
    assert frame["x"].isna().tolist() == [False, True, False]


def test_reviews_of_several_lines_are_read(tmp_path: Path) -> None:
    """Prose has commas and breaks: only lines that fit as rows, numbers where numbers belong, are taken for swallowed ones."""
    rng = np.random.default_rng(0)
    words = ["well", "so, and", "good", "bad, but", "fine"]
    texts = ["\n".join(" ".join(rng.choice(words, 6)) for _ in range(rng.integers(1, 5))) for _ in range(300)]
    for names in (["id", "text"], ["id", "text", "stars"]):
        frame = pd.DataFrame({"id": range(300), "text": texts, "stars": rng.integers(1, 6, 300)})[names]
        frame.to_csv(tmp_path / "t.csv", index=False)
        assert read_table(tmp_path / "t.csv").frame["text"].tolist() == texts
