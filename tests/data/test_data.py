"""Schemas, readers and the registry."""

from __future__ import annotations

import gzip
import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import dump_svmlight_file

from dperm import data
from dperm.data import Column, DataError, Dataset, Schema, SchemaError, propose, read_dataset, read_table
from dperm.data.schema.encoder import SchemaEncoder
from dperm.data.schema.row_faults import row_faults
from dperm.data.sets.named_sets import _description  # the file list behind the names

PEOPLE = pd.DataFrame(
    {
        "age": [17, 40, 90, 65],
        "job": ["nurse", "baker", "nurse", "baker"],
        "id": list("abcd"),
        "income": ["low", "high", "low", "high"],
    }
)
SCHEMA = Schema(
    "people",
    "income",
    (
        Column("age", "number", (0, 80)),
        Column("job", "category", categories=("baker", "nurse", "pilot")),
        Column("id", "ignore"),
        Column("income", "label"),
    ),
    classes=("low", "high"),
)


def test_encoding_uses_public_ranges_and_categories() -> None:
    features, targets = SchemaEncoder(SCHEMA, PEOPLE).encode()
    assert SCHEMA.features == ["age", "job=baker", "job=nurse", "job=pilot"]
    assert np.allclose(features[:, 0], [17 / 80, 0.5, 1.0, 65 / 80])  # 90 is clipped
    assert features[:, 1:].tolist() == [[0, 1, 0], [1, 0, 0], [0, 1, 0], [1, 0, 0]]
    assert targets.tolist() == ["low", "high", "low", "high"]


def test_schema_json_both_ways(tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    path.write_text(SCHEMA.to_json())
    assert Schema.load(path) == SCHEMA
    regression = Schema(
        "r", "y", (Column("x", "number", (0, 1)), Column("y", "label")), target_range=(0.0, 9.0), missing="middle"
    )
    path.write_text(regression.to_json())
    assert Schema.load(path) == regression


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"age": [17, None, 90, 65]}, "no missing values, got 1 records.*'age'"),
        ({"age": [17, "old", 90, 65]}, "numbers in column 'age', got 'old'"),
        ({"age": [17, np.inf, 90, 65]}, "finite numbers in column 'age'"),
        ({"job": ["nurse", "spy", "nurse", "baker"]}, "'job' to hold one of its 3 categories, got 'spy'"),
        ({"income": ["low", "high", "none", "high"]}, r"labels \['low', 'high'\] in 'income', got \['none'\]"),
    ],
)
def test_a_table_that_does_not_fit_is_told_where(change: dict[str, Any], message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        SchemaEncoder(SCHEMA, PEOPLE.assign(**change)).encode()


def test_a_missing_column_is_named() -> None:
    with pytest.raises(SchemaError, match=r"columns \['job'\]"):
        SchemaEncoder(SCHEMA, PEOPLE.drop(columns="job")).encode()


def test_missing_values_are_treated_record_by_record() -> None:
    from dataclasses import replace

    holes = PEOPLE.assign(age=[17, None, 90, 65], job=["nurse", "baker", None, "baker"])
    dropped, _ = SchemaEncoder(replace(SCHEMA, missing="drop"), holes).encode()
    assert len(dropped) == 2
    middle, _ = SchemaEncoder(replace(SCHEMA, missing="middle"), holes).encode()
    assert middle[1, 0] == 0.5
    assert middle[2, 1:].tolist() == [0, 0, 0]
    assert np.array_equal(middle[[0, 3]], dropped)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Column("a", "number"), "range"),
        (lambda: Column("a", "number", (1, 1)), "low < high"),
        (lambda: Column("a", "number", (0, np.inf)), "finite range"),
        (lambda: Column("a", "colour"), "colour"),
        (lambda: Column("a", "category", categories=("x", "x")), "distinct"),
        (
            lambda: Schema("s", "b", (Column("a", "number", (0, 1)), Column("a", "ignore"), Column("b", "label")), ("x", "y")),
            "more than once",
        ),
        (lambda: Schema("s", "b", (Column("a", "number", (0, 1)),), ("x", "y")), "type label"),
        (lambda: Schema("s", "b", (Column("a", "number", (0, 1)), Column("b", "label"))), "classes"),
        (lambda: Schema("s", "b", (Column("a", "number", (0, 1)), Column("b", "label")), ("x",)), "two distinct classes"),
        (lambda: Schema("s", "b", (Column("b", "label"),), ("x", "y")), "feature column"),
        (lambda: Schema.from_dict({"name": "s"}), "needs name, target"),
    ],
)
def test_inconsistent_schemas_are_refused(make: object, message: str) -> None:
    with pytest.raises((SchemaError, ValueError), match=message):
        make()


def test_a_proposal_says_that_it_looked() -> None:
    frame = PEOPLE.assign(height=[1.61, 1.7, 1.93, 1.75], note=["a"] * 4)
    schema = propose(frame, "income", least_units=1)
    assert schema.proposed
    assert "looking at the data" in schema.source
    kinds = {column.name: column for column in schema.columns}
    assert kinds["age"].range[0] <= 17 and kinds["age"].range[1] >= 90
    assert kinds["height"].range[0] <= 1.61 and kinds["height"].range[1] >= 1.93
    assert kinds["note"].type == "ignore"
    assert kinds["job"].categories == ("baker", "nurse")
    assert schema.classes == ("high", "low")
    assert propose(frame, "height").target_range is not None
    SchemaEncoder(schema, frame).encode()
    with pytest.raises(SchemaError, match="got 'wage'"):
        propose(frame, "wage")


@pytest.mark.parametrize("ending", ["csv", "tsv", "csv.gz", "parquet", "feather"])
def test_every_table_format_reads_the_same(ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"people.{ending}"
    if ending == "parquet":
        PEOPLE.to_parquet(path)
    elif ending == "feather":
        PEOPLE.to_feather(path)
    else:
        PEOPLE.to_csv(path, index=False, sep="\t" if ending == "tsv" else ",")
    dataset, schema = read_dataset(path, schema=SCHEMA)
    assert schema is SCHEMA
    assert np.array_equal(dataset.features, SchemaEncoder(SCHEMA, PEOPLE).encode()[0])
    with pytest.raises(SchemaError, match="at least two labels in 'income' that 10 rows or more hold"):
        read_dataset(path, target="income")  # of so few rows nothing is proposed
    proposed, schema = read_dataset(path, schema=propose(read_table(path), "income", least_units=1))
    assert schema is not None and schema.proposed
    assert len(proposed) == 4


def test_array_formats(tmp_path: Path) -> None:
    rows, labels = np.random.default_rng(0).normal(size=(50, 3)), np.arange(50) % 2
    np.save(tmp_path / "a.npy", np.column_stack([rows, labels]))
    np.savez(tmp_path / "a.npz", X=rows, y=labels)
    dump_svmlight_file(rows, labels, str(tmp_path / "a.libsvm"))
    for name in ("a.npy", "a.npz", "a.libsvm"):
        dataset, schema = read_dataset(tmp_path / name)
        assert schema is None
        features = dataset.features.toarray() if hasattr(dataset.features, "toarray") else np.asarray(dataset.features)
        assert np.allclose(features, rows)
        assert dataset.classes == ("0", "1")
    assert isinstance(read_dataset(tmp_path / "a.npy")[0].features, np.memmap)
    with pytest.raises(DataError, match="first or the last"):
        read_dataset(tmp_path / "a.npy", target="1")
    np.savez(tmp_path / "b.npz", Z=rows)
    with pytest.raises(DataError, match="Cannot read"):
        read_dataset(tmp_path / "b.npz")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("none.csv", None, "No file"),
        ("empty.csv", b"", "is empty"),
        ("header.csv", b"a,b\n", "no records"),
        ("table.xls", b"x", "save it as"),
        ("broken.parquet", b"not parquet", "Cannot read"),
        ("broken.csv.gz", b"not gzip", "Cannot read"),
        ("binary.csv", b"\xff\xfe\x00\x01,\xff", "Cannot read|no records"),
    ],
)
def test_unusable_files_get_one_clear_line(name: str, content: bytes | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        read_table(path)
    assert "\n" not in str(caught.value)


def test_a_huge_file_is_refused_before_it_fills_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "huge.csv"
    path.write_text("a,b\n1,2\n" * 100)
    monkeypatch.setattr("dperm.data.file_reader.free_memory", lambda: 100.0)
    with pytest.raises(DataError, match="too much for"):
        read_table(path)


@pytest.mark.parametrize("name", ["breast_cancer", "digits", "iris"])
def test_bundled_sets(name: str) -> None:
    dataset = data.load(name)
    assert dataset.features.shape[1] == data.schema_of(name).dimension == _description(name)["dimension"]
    assert dataset.features.min() >= 0
    assert dataset.features.max() <= 1
    assert set(dataset.targets) == set(dataset.classes)


@pytest.mark.parametrize(
    ("name", "records", "dimension"),
    [
        ("adult", 45_222, 105),
        ("bank", 41_188, 65),
        pytest.param("kddcup99", 494_021, 122, marks=pytest.mark.slow),
        ("breast_cancer_original", 683, 9),
        ("creditcard_balanced", 984, 29),
    ],
)
def test_real_sets(name: str, records: int, dimension: int, data_folder: Path) -> None:
    dataset = data.load(name)
    assert dataset.features.shape == (records, dimension)
    assert _description(name)["dimension"] == dimension
    assert dataset.features.min() >= 0 and dataset.features.max() <= 1
    assert set(dataset.targets) == set(dataset.classes)


def test_other_files_than_the_published_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "adult").mkdir()
    with gzip.open(tmp_path / "adult" / "adult.data.gz", "wt") as handle:
        handle.write("39, Private\n")
    monkeypatch.setenv("DPERM_DATA", str(tmp_path))
    with pytest.raises(DataError, match="is not the file that 'adult' needs"):
        data.load("adult")


def test_a_failed_download_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    import pooch

    def fail(*_: Any, **__: Any) -> None:
        raise ConnectionError

    monkeypatch.delenv("DPERM_DATA", raising=False)
    monkeypatch.setattr(pooch, "retrieve", fail)
    with pytest.raises(DataError, match=r"Cannot download 'adult'.*set DPERM_DATA"):
        data.load("adult")
    with pytest.raises(DataError, match="cannot be downloaded"):
        data.load("creditcard_balanced")


def test_a_download_is_checked_by_its_checksum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pooch

    path = tmp_path / "breast-cancer-wisconsin.data"
    path.write_text("1,5,1,1,1,2,1,3,1,1,2\n")
    monkeypatch.delenv("DPERM_DATA", raising=False)
    monkeypatch.setattr(pooch, "retrieve", lambda *_, **__: str(path))
    monkeypatch.setattr(pooch, "os_cache", lambda _: tmp_path / "cache")
    with pytest.raises(DataError, match="is not the published one"):
        data.load("breast_cancer_original")
    entry = json.loads(json.dumps(_description("breast_cancer_original")))
    entry["files"][0]["raw_sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
    monkeypatch.setattr("dperm.data.sets.named_sets._description", lambda _: entry)
    assert len(data.load("breast_cancer_original")) == 1


def test_openml_sets_come_by_number(monkeypatch: pytest.MonkeyPatch) -> None:
    import sklearn.datasets

    columns = [*(f"V{i}" for i in range(1, 29)), "Amount"]
    frame = pd.DataFrame(np.zeros((4, 29)), columns=columns).assign(Class=["0", "1", "0", "1"])
    monkeypatch.setattr(
        sklearn.datasets, "fetch_openml", lambda data_id, **_: type("B", (), {"frame": frame}) if data_id == 1597 else None
    )
    assert data.load("creditcard").features.shape == (4, 29)


def test_unknown_names_list_the_known() -> None:
    with pytest.raises(DataError, match=r"adult.*got 'nope'"):
        data.load("nope")


def test_left_out_records_are_noted(data_folder: Path) -> None:
    dataset: Dataset = data.load("adult")
    assert any("3620 of 48842 records" in note for note in dataset.notes)


@pytest.mark.parametrize(
    ("text", "classes"),
    [
        ("a,y\n1,true\n2,false\n3,true\n", ("false", "true")),
        ("a,y\n1,01\n2,02\n3,01\n", ("01", "02")),
        ("a,y\n1,0\n2,1\n3,\n", ("0", "1")),
    ],
)
def test_a_proposed_schema_fits_its_own_table(text: str, classes: tuple[str, ...], tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(text)
    schema = propose(read_table(path), "y", least_units=1)
    assert schema.classes == classes
    from dataclasses import replace

    dataset, _ = read_dataset(path, schema=replace(schema, missing="middle"))
    assert set(dataset.targets) == set(classes)


def test_codes_stay_texts(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("zip,y\n01234,a\n99999,b\n01234,b\n")
    assert propose(read_table(path), "y", least_units=1).columns[0].categories == ("01234", "99999")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mising": "drop"}, "mising"),
        ({"proposed": "false"}, "proposed to be true or false"),
        ({"classes": [], "target_range": [1, 0]}, "low < high for the target"),
        ({"classes": [], "target_range": ["a", "b"]}, "for the target"),
        ({"classes": [], "target_range": [1]}, "for the target"),
        ({"columns": [{"name": "c", "type": "category", "categories": "fm"}]}, "list of categories"),
        ({"columns": [{"name": "c", "type": "number", "range": [-1.7e308, 1.7e308]}]}, "finite range for column 'c'"),
    ],
)
def test_misspelt_schemas_are_refused(change: dict[str, Any], message: str) -> None:
    entry = {**json.loads(SCHEMA.to_json()), **change}
    with pytest.raises(SchemaError, match=message):
        Schema.from_dict(entry)


def test_rows_of_more_fields_than_the_header_are_refused(tmp_path: Path) -> None:
    """They would be read moved by one column, and nobody would know. A separator at the end of all rows is no field."""
    path = tmp_path / "t.csv"
    path.write_text("a,b,y\n1,2,yes,5\n3,4,no,6\n")
    with pytest.raises(data.DataError, match="line 2 has 4 fields in place of 3"):
        data.read_table(path)
    path.write_text("a,b,y\n1,2,yes,\n3,4,no,\n")
    assert data.read_table(path).frame.to_dict("list") == {"a": ["1", "3"], "b": ["2", "4"], "y": ["yes", "no"]}


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"pairs": None}, "pairs to be a list, got None"),
        ({"classes": "high"}, "classes to be a list, got 'high'"),
        ({"title": [3]}, "title to be text"),
        ({"format": 3}, "format to be an object"),
        ({"name": 5}, "name to be text, got 5"),
        ({"columns": {"a": 1}}, "columns to be a list"),
        ({"columns": [[1]]}, "Expected a column with name"),
        ({"columns": [{"name": 5, "type": "number", "range": [0, 1]}]}, "name to be text, got 5"),
        (
            {"columns": [{"name": "x", "type": "number", "range": "18"}]},
            "range .low, high. of numbers, without quotes, for column 'x'",
        ),
        (
            {"columns": [{"name": "x", "type": "number", "range": [False, True]}]},
            "range .low, high. of numbers, without quotes, for column 'x'",
        ),
        (
            {"columns": [{"name": "x", "type": "number", "range": ["1", "2"]}]},
            "range .low, high. of numbers, without quotes, for column 'x'",
        ),
        ({"columns": [{"name": "x", "type": "category", "categories": [["a"], "b"]}]}, "texts or numbers, got .'a'."),
        ({"columns": [{"name": "x", "type": "category", "categories": ["a", None]}]}, "texts or numbers, got None"),
        ({"columns": [{"name": "x", "type": "number", "rage": [0, 1]}]}, "no entry 'rage' in column 'x': is 'range' meant"),
        ({"columns": [{"name": "x", "type": "number", "zz": 1}]}, "no entry 'zz' in column 'x': it has name, type"),
        ({"mising": "drop"}, "Is 'missing' meant"),
        (
            {"columns": [{"name": "x", "type": "number", "range": [0, 1], "read": {"a": "b"}}]},
            "a finite number, or null, got 'b'",
        ),
        (
            {"columns": [{"name": "x", "type": "number", "range": [0, 1], "read": {"a": True}}]},
            "a finite number, or null, got True",
        ),
        ({"columns": [{"name": "x", "type": "category", "categories": ["a"], "read": {"b": "c"}}]}, "one of its categories"),
        (
            {"columns": [{"name": "x", "type": "date", "range": ["2020-01-01", "2021-01-01"], "read": {"a": "b"}}]},
            "a date of the form ISO 8601",
        ),
        (
            {"columns": [{"name": "x", "type": "date", "range": ["2020-01-01", "2021-01-01"], "format": "DD.MM.YYYY"}]},
            'as strptime has it, such as "%d.%m.%Y"',
        ),
    ],
)
def test_entries_of_other_kinds_are_named(entry: dict[str, Any], message: str) -> None:
    stated: dict[str, Any] = {
        "name": "t",
        "target": "y",
        "columns": [{"name": "x", "type": "number", "range": [0, 1]}, {"name": "y", "type": "label"}],
        "classes": ["a", "b"],
    }
    assert Schema.from_dict(stated).dimension == 1
    if "columns" in entry and isinstance(entry["columns"], list):
        entry = {"columns": [*entry["columns"], stated["columns"][1]]}
    with pytest.raises(SchemaError, match=message):
        Schema.from_dict(stated | entry)


def test_targets_are_read_as_what_the_schema_knows() -> None:
    def schema(read: dict[str, Any], **what: Any) -> Schema:
        return Schema("t", "y", (Column("x", "number", (0, 1)), Column("y", "label", read=read)), **what)

    with pytest.raises(SchemaError, match="Expected read of 'y' to give one of its labels, got 'ye' for 'yess'"):
        schema({"yess": "ye"}, classes=("no", "yes"))
    with pytest.raises(SchemaError, match="Expected read of 'y' to give a finite number, got 'much' for '>5'"):
        schema({">5": "much"}, target_range=(0, 9))
    assert schema({"yess": "yes", "?": None}, classes=("no", "yes")) and schema({">5": 5.0}, target_range=(0, 9))
    with pytest.raises(SchemaError, match=r"got \['maybe'\]\. Say what these are read as .*\"unknown\": \"ignore\""):
        SchemaEncoder(schema({}, classes=("no", "yes")), pd.DataFrame({"x": [1.0, 0.0], "y": ["yes", "maybe"]})).encode()


def test_a_column_without_one_entry_that_can_be_read_is_refused(tmp_path: Path) -> None:
    columns = (Column("x", "number", (0, 1)), Column("fee", "number", (0, 9), unknown="ignore"), Column("y", "label"))
    schema = Schema("t", "y", columns, ("a", "b"), missing="separate")
    path = tmp_path / "t.csv"
    path.write_text("x,fee,y\n1,THB 5,a\n0,THB 6,b\n,,b\n")
    with pytest.raises(SchemaError, match=r"Expected some numbers in column 'fee', got 'THB 5' and the like alone"):
        read_dataset(path, schema=schema)
    path.write_text("x,fee,y\n1,THB 5,a\n0,6,b\n,,b\n")
    survey = read_dataset(path, schema=schema)[0].survey
    assert survey is not None and survey.unread == {"fee": (1, "THB 5")}
    assert "say something, which is no number or date: fee 1 (such as 'THB 5')" in "".join(survey.lines())


def test_a_column_of_another_name_is_pointed_at() -> None:
    schema = Schema(
        "t", "y", (Column("age", "number", (0, 1)), Column("job", "number", (0, 1)), Column("y", "label")), ("a", "b")
    )
    with pytest.raises(SchemaError, match=r"lacks the columns \['age'\] of the schema. Is its 'Age' the schema's 'age'\? Rename"):
        SchemaEncoder(schema, pd.DataFrame({"Age": [1], "job": [1]})).features()
    with pytest.raises(SchemaError, match=r"lacks the columns \['age', 'job'\] of the schema. It has \['q'\]"):
        row_faults(schema, pd.DataFrame({"q": [1]}))


def test_files_that_hold_no_schema_are_refused(tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text("[1, 2]")
    with pytest.raises(SchemaError, match="to hold an object"):
        Schema.load(tmp_path / "s.json")
