"""Texts as people export them: how they are written is found out, and nothing is lost in silence."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from dperm.data import Column, DataError, Dataset, Schema, SchemaError, find, propose, read_dataset, read_frame
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
    frame = read_frame(path)
    assert frame.replace({np.nan: None}).to_dict() == PEOPLE.replace({np.nan: None}).to_dict()
    assert frame.attrs["written"].startswith(encoding) and ("decimal commas" in frame.attrs["written"]) == (decimal == ",")


@pytest.mark.parametrize("kind", ["gz", "bz2", "xz", "zip"])
@pytest.mark.parametrize("named", [True, False])
def test_compressed_texts_are_read_whatever_their_name(kind: str, named: bool, tmp_path: Path) -> None:
    path, raw = tmp_path / (f"people.csv.{kind}" if named else "people.dat"), written(",").encode()
    if kind == "zip":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("people.csv", raw)
    else:
        path.write_bytes({"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress}[kind](raw))
    assert len(read_frame(path)) == 5
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(DataError, match="compressed and broken"):
        read_frame(path)
    (tmp_path / f"plain.csv.{kind}").write_bytes(raw)
    with pytest.raises(DataError, match="not compressed, as its name says"):
        read_frame(tmp_path / f"plain.csv.{kind}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b,c\n1,2,3\n4,5\n7,8,9\n", "line 3 has 2 fields in place of 3"),
        ("a,b,c\n1,2,3\n4,5,6,7\n7,8,9\n", "line 3 has 4 fields in place of 3"),
        ("\n\na,b,c\n1,2,3\n\n4,5\n", "line 6 has 2 fields"),
        ('a,b,c\n1,"x\ny",3\n4,5\n', "line 4 has 2 fields"),
        ('a,b,c\n1,"x,3\n4,5,6\n7,8,9\n', "a quote in line 2 does not close"),
        ('a,b,c\n0,0,0\n1,"x,3\n4,5,6\n7,8",9\n', "a quote in line 3 closes in line 5, behind what looks like rows"),
        ("a,b,\n1,2,\n3,4,\n", "column 3 of its header has no name"),
        ("a,b\n1,2,\n3,4,x\n", "line 2 has 3 fields"),
        ("a,b,a\n1,2,3\n", "distinct column names"),
        ("a,b\n1,\x00\n", "no text: it has bytes of value 0"),
    ],
)
def test_rows_that_are_none_are_named_with_their_line(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(text)
    with pytest.raises(DataError, match=message) as caught:
        read_frame(path)
    assert "\n" not in str(caught.value)


def test_quotes_within_fields_are_letters(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text('pipe,size\nthin,5"\nwide,7"\nother,9"\n')
    assert read_frame(path)["size"].tolist() == ['5"', '7"', '9"']


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"separator": ";;"}, "separator of one letter"),
        ({"encoding": "klingon"}, "encoding that Python knows"),
        ({"encoding": "ascii"}, "it is not ascii: byte"),
        ({"decimal": "'"}, "decimal mark"),
        ({"skip_lines": -1}, "number of lines"),
        ({"skip_lines": True}, "number of lines"),
    ],
)
def test_what_is_stated_wrongly_is_refused(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(written(","), encoding="utf-8")
    with pytest.raises(DataError, match=message):
        read_frame(path, written=options)


def test_what_is_stated_is_not_found_out(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(b"Report of 2024\nmade by hand\n" + written(";", decimal=",").encode("cp1252"))
    frame = read_frame(path, written={"skip_lines": 2, "separator": ";", "encoding": "cp1252", "decimal": ","})
    assert frame["Einkommen"].tolist()[:2] == ["1234.56", "99.5"] and frame.attrs["written"] == ""
    assert propose(frame, "Alter").extra == {"skip_lines": 2, "separator": ";", "encoding": "cp1252", "decimal": ","}
    told = read_frame(path, written={"skip_lines": 2})
    assert told.equals(frame) and "decimal commas" in told.attrs["written"]


def test_points_are_no_thousands_unless_decimals_are_commas(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("x;y\n1.234;a\n2.5;b\n")
    assert read_frame(path)["x"].tolist() == ["1.234", "2.5"]
    path.write_text("x;y;z\n1.234;a;1,5\n12.345.678;b;-,5\n1.2.3;c;+3,25\n10.10.2024;d;4\n")
    assert read_frame(path)["x"].tolist() == ["1234", "12345678", "1.2.3", "10.10.2024"]
    assert read_frame(path)["z"].tolist() == ["1.5", "-.5", "+3.25", "4"]


def test_libsvm_files_are_known_by_what_they_hold(tmp_path: Path) -> None:
    for name in ("a9a", "a9a.t", "a9a.bz2"):
        raw = b"-1 3:1 11:1 14:1\n+1 5:1 7:1 14:0.5\n-1 1:1\n+1 2:1\n"
        (tmp_path / name).write_bytes(bz2.compress(raw) if name.endswith("bz2") else raw)
        dataset, schema = read_dataset(tmp_path / name)
        assert schema is None and dataset.features.shape == (4, 14) and dataset.classes == ("-1", "1")
    (tmp_path / "b.txt").write_text("a b\n1:2 3\n")
    assert read_frame(tmp_path / "b.txt").columns.tolist() == ["a b"]


def test_sheets_are_read_or_say_what_they_need(tmp_path: Path) -> None:
    path = tmp_path / "people.xlsx"
    try:
        PEOPLE.to_excel(path, index=False)
    except ImportError:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("xl/workbook.xml", "")
        with pytest.raises(DataError, match="needs openpyxl"):
            read_frame(path)
        return
    assert read_frame(path)["Alter"].tolist() == PEOPLE["Alter"].tolist()


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
    assert dataset.written == "" and dataset.certified(model.certificate_) == model.certificate_
    wrong = Schema.from_dict(json.loads(schema.to_json()) | {"format": {"separator": ";", "decimal": "."}})
    with pytest.raises(SchemaError, match=r"got '1,5'\. Where decimal marks are commas"):
        read_dataset(path, schema=wrong)
    assert find(read_frame(path), "y", 8.0).extra == {"decimal": ","}
    assert isinstance(Dataset.of(read_frame(path), schema), Dataset)


@pytest.mark.parametrize(
    ("raw", "columns", "rows"),
    [
        ("a,b\r1,2\r3,4\r", ["a", "b"], [["1", "2"], ["3", "4"]]),  # an old Macintosh
        ("a,b\r1,2,\n3,4,\n5,6,\n", ["a", "b"], [["1", "2"], ["3", "4"], ["5", "6"]]),  # ends of both kinds, and a separator
        ('"a\nx",b\n1,2,\n3,4,\n', ["a\nx", "b"], [["1", "2"], ["3", "4"]]),
        ("Preis, netto;Menge\n1,5;3\n2,5;4\n", ["Preis, netto", "Menge"], [["1.5", "3"], ["2.5", "4"]]),
        ("sep=;\na;b\n1;2\n", ["a", "b"], [["1", "2"]]),  # Excel's own
        ("x\ty\n1,234\ta\n1,000\tb\n", ["x", "y"], [["1,234", "a"], ["1,000", "b"]]),  # thousands, maybe: left as they are
        ("x;y\n0,5;a\n0.123;c\n", ["x", "y"], [["0.5", "a"], ["0.123", "c"]]),
        ("q;y\nNA ;a\n  ;b\n", ["q", "y"], [[None, "a"], [None, "b"]]),
        ('text,label\n"Good, but\nslow, noisy,\nsad",1\n', ["text", "label"], [["Good, but\nslow, noisy,\nsad", "1"]]),
        ("a,b\r" + "1,2\r" * 80_000, ["a", "b"], None),
        (",".join(f"gene_{i:06d}" for i in range(23_000)) + "\n" + ",".join("1" * 23_000) + "\n", None, None),
    ],
    ids=lambda value: str(value)[:24],
)
def test_odd_texts_are_read_whole(raw: str, columns: Any, rows: Any, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(raw.encode())
    frame = read_frame(path)
    assert columns is None or frame.columns.tolist() == columns
    assert rows is None or frame.astype(object).where(frame.notna(), None).to_numpy().tolist() == rows
    assert len(frame) == (len(rows) if rows else 80_000 if columns else 1)


@pytest.mark.parametrize("encoding", ["cp1252", "shift_jis", "gb18030"])
def test_encodings_are_told_by_the_lines_that_need_one(encoding: str, tmp_path: Path) -> None:
    words = {
        "cp1252": ["Müller", "l’été à Paris – 5 €", "Özil"],
        "shift_jis": ["名前", "田中", "鈴木"],
        "gb18030": ["姓名", "李明", "王伟"],
    }
    path = tmp_path / "t.csv"
    path.write_bytes(
        b"name;b\n" + b"Meier;1\n" * 150_000 + "".join(f"{word};2\n" for word in words[encoding] * 3).encode(encoding)
    )
    frame = read_frame(path)
    assert frame["name"].tolist()[-3:] == words[encoding] and frame.attrs["written"].startswith(encoding)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ('a,b\n1,"x\n2,"y\n3,z\n', "a quote in line 2 does not close, or closes within a field"),
        ("a,b\n" + "Müller,1\n" * 50, "line 52 is not UTF-8, as 50 others are"),
    ],
)
def test_mistakes_that_would_change_other_rows_are_refused(raw: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(raw.encode() + (b"M\xfcller,2\n" if "UTF" in message else b""))
    with pytest.raises(DataError, match=message):
        read_frame(path)


def test_what_is_no_file_or_no_workbook_is_said(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="got the folder"):
        read_frame(tmp_path)
    (tmp_path / "b.xlsx").write_text("no workbook")
    with pytest.raises(DataError, match=r"is no workbook|needs openpyxl"):
        read_frame(tmp_path / "b.xlsx")
    with zipfile.ZipFile(tmp_path / "two.zip", "w") as archive:
        archive.writestr("a.csv", "a,b\n1,2\n")
        archive.writestr("__MACOSX/a.csv", "x")
        archive.writestr("b.csv", "a,b\n1,2\n")
    with pytest.raises(DataError, match="expected one file in the archive, got 2"):
        read_frame(tmp_path / "two.zip")
    with pytest.raises(SchemaError, match=r"in a format, got \['seperator'\]"):
        Schema.from_dict({"name": "t", "target": "y", "columns": [], "format": {"seperator": ";"}})


def test_marks_of_missing_values_may_be_several(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("a,b\n1,-999\n?,3\n-,4\n")
    assert read_frame(path, written={"missing": ["?", "-"]})["a"].isna().tolist() == [False, True, True]
    assert read_frame(path, written={"missing": -999})["b"].isna().tolist() == [True, False, False]
    assert read_frame(path, written={"separator": None, "encoding": None, "decimal": None}).attrs["written"] != ""
