"""Item 14: whatever a file holds, a command answers with one line: no traceback, nothing that takes long, and no charge."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openpyxl
import pyarrow as pa
import pytest
import sklearn.datasets
from pyarrow import feather, parquet

from dperm.cli import main
from dperm.data import DataError, Schema, SchemaError, propose, read_dataset, read_table
from dperm.data.file_reader import all_readers
from dperm.estimators import model_from_json
from dperm.privacy import Certificate
from dperm.privacy.events import event_from_dict
from helpers import malformed
from helpers.commands import dperm
from helpers.malformed import KINDS, answered, failures, whole_files

EACH = 250  # of 21 kinds


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DPERM_SPEND_LOG", str(path / "first.db"))
        whole_files(path)
    yield path


def refuse_failures(folder: Path, kind: str, commands: Iterable[tuple[str, ...]]) -> None:
    """AssertionError where one of these commands does not take a whole file of this kind."""
    for number, command in enumerate(commands):
        malformed.own_log(folder, f"whole-{kind}-{number}")
        code, said, _, trace = answered(malformed.command_line(kind, command, folder, malformed.whole(kind, folder)))
        assert (code, trace) == (0, ""), (kind, command, said)


def test_whole_files_are_read(folder: Path) -> None:
    """What is malformed below is refused for what is wrong in it: the commands take the files that it is made of."""
    for kind, (_, _, commands) in KINDS.items():
        refuse_failures(folder, kind, commands[:1])  # others read them in the same way


@pytest.mark.slow
def test_whole_tables_are_read_by_every_command(folder: Path) -> None:
    refuse_failures(folder, "csv", KINDS["csv"][2])


def test_every_reader_has_a_malformed_kind() -> None:
    lacking = [
        each.title for each in all_readers() if not any(f".{ending}".endswith(each.endings) for ending, _, _ in KINDS.values())
    ]
    assert not lacking, f"Add {lacking} to KINDS of tests/helpers/malformed.py, and what makes a whole file of each."


@pytest.mark.parametrize("kind", KINDS)
def test_some_malformed_files_are_one_line(kind: str, folder: Path) -> None:
    assert list(failures(kind, 100_000, 2, folder)) == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_five_thousand_malformed_files_are_one_line(kind: str, folder: Path) -> None:
    """Each kind in a process of its own, with little memory: a parser in C may take its process along."""
    command = [sys.executable, malformed.__file__, kind, "0", str(EACH), str(folder)]
    where = {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=EACH * 10, env={**os.environ, **where})
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0, done.stderr[-3000:]
    assert told[-1:] == [{"done": EACH}], done.stderr[-3000:]
    assert told[:-1] == []


class OddError(Exception):
    """Something that nobody expects of a parser."""


@pytest.mark.parametrize(
    ("kind", "owner", "name"),
    [
        ("parquet", parquet, "read_table"),
        ("arrow", feather, "read_table"),
        ("xlsx", openpyxl, "load_workbook"),
        ("npy", np, "load"),
        ("npz", "numpy.lib.format", "read_array"),
        ("libsvm", sklearn.datasets, "load_svmlight_file"),
        ("csv", "pyarrow.csv", "read_csv"),
        ("gz", "gzip", "GzipFile.read"),
        ("zip", "zipfile", "ZipFile.open"),
    ],
)
@pytest.mark.parametrize(
    "error", [OddError("a\nb"), MemoryError(), tokenize.TokenError("x", (1, 2)), SystemError(), AssertionError()]
)
def test_whatever_a_library_raises_is_an_error_of_data(
    kind: str, owner: Any, name: str, error: Exception, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(*((f"{owner}.{name}", fail) if isinstance(owner, str) else (owner, name, fail)))
    path = malformed.whole(kind, folder)
    with pytest.raises(DataError, match="Cannot read") as caught:
        read_dataset(path, malformed.TARGET if kind in ("parquet", "arrow", "xlsx", "csv", "gz", "zip") else None)
    assert caught.value.__cause__ is error and len(str(caught.value).splitlines()) == 1


def test_what_dperm_never_raises_on_purpose_is_one_line_and_says_so(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("of a\n\x1bfault")

    monkeypatch.setattr("dperm.data.read_table", fail)
    command = ("data", "propose", malformed.whole("csv", folder), "--target", malformed.TARGET)
    done = dperm(*command, expect=1)
    assert done.stdout == "" and len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("error: ZeroDivisionError: of a") and "a fault of dperm's own" in done.stderr
    monkeypatch.setenv("DPERM_TRACEBACK", "1")
    monkeypatch.setattr(sys, "argv", ["dperm", *map(str, command)])
    with pytest.raises(ZeroDivisionError):
        main()
    capsys.readouterr()


@pytest.mark.parametrize(
    ("X", "y", "match"),
    [
        (np.zeros(5), np.zeros(5), r"expected X as rows and columns of numbers, got an array of shape \(5,\)"),
        (np.float64(1), np.zeros(5), r"shape \(\)"),
        (np.zeros((5, 2)), np.float64(1), "expected y as targets in one column"),
        (np.zeros((5, 2)), np.zeros((5, 1)), "expected y as targets"),
        (np.zeros((5, 2)), np.zeros(4), "Expected 5 targets in .* got 4 in y"),
        (np.zeros(5, dtype=[("a", "f8"), ("b", "f8")]), np.zeros(5), "expected X as rows"),
        (np.zeros((5, 2), dtype=[("a", "f8"), ("b", "f8")]), np.zeros(5), "Expected numbers as features"),
        (np.zeros((5, 2), dtype=complex), np.zeros(5), "complex128"),
        (np.zeros((5, 2), dtype="M8[s]"), np.zeros(5), "datetime64"),
        (np.zeros((5, 2)), np.zeros(5, dtype="M8[s]"), "Expected labels or numbers as targets"),
        (np.zeros((5, 2), dtype="S3"), np.zeros(5), "Expected numbers as features"),
        (np.zeros((5, 2), dtype=object), np.zeros(5), "Expected numbers as features"),
    ],
)
def test_arrays_of_other_shapes_and_types_are_refused(X: Any, y: Any, match: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "t.npz", X=X, y=y)
    with pytest.raises(DataError, match=match):
        read_dataset(tmp_path / "t.npz")
    np.savez(tmp_path / "t.npz", features=X, y=y)
    with pytest.raises(DataError, match="it holds no array X"):
        read_dataset(tmp_path / "t.npz")


@pytest.mark.parametrize("index", ["9" * 20, "9" * 400, "-1", "4294967297", "18446744073709551617"])
def test_an_index_that_no_number_holds_is_refused(index: str, tmp_path: Path) -> None:
    (tmp_path / "t.libsvm").write_text(f"1 1:0.5\n0 {index}:1\n")
    with pytest.raises(DataError, match="Cannot read"):
        read_dataset(tmp_path / "t.libsvm")


def test_a_database_without_its_driver_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    monkeypatch.setenv("DPERM_SPEND_LOG", "postgresql://user@localhost/nowhere")
    done = dperm("budget", "show", expect=1)
    assert len(done.stderr.splitlines()) == 1 and "pip install 'dperm[postgres]'" in done.stderr


def test_tables_of_others_that_a_constructor_stumbles_over_are_value_errors(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also for errors that no constructor of today raises."""

    def fail(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError

    model = malformed.whole("model", folder).read_text()
    schema = json.loads(malformed.whole("schema", folder).read_text())
    event = json.loads(malformed.whole("event", folder).read_text())
    huge = {**schema, "columns": [{**column, "range": [0, 10**400]} for column in schema["columns"][:1]] + schema["columns"][1:]}
    with pytest.raises(SchemaError, match="range"):
        Schema.from_dict(huge)
    with pytest.raises(SchemaError, match="Cannot read the schema"):
        (folder / "deep.json").write_text("[" * 100_000)
        Schema.load(folder / "deep.json")
    monkeypatch.setattr("dperm.data.schema.schema.Schema.__post_init__", fail)
    with pytest.raises(SchemaError, match="ZeroDivisionError"):
        Schema.from_dict(schema)
    monkeypatch.setattr(f"dperm.privacy.events.{event['type']}.__post_init__", fail)
    with pytest.raises(ValueError, match="ZeroDivisionError"):
        event_from_dict(event)
    with pytest.raises(ValueError, match="Not a dperm certificate"):
        Certificate.from_json(json.dumps(json.loads(model)["certificate"]))
    with pytest.raises(ValueError, match="Not a dperm model"):
        model_from_json(model)


def test_a_model_that_memory_does_not_hold_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = malformed.whole("model", folder)
    monkeypatch.setattr("dperm.jobs.files.free_memory", lambda: 15.0 * model.stat().st_size)
    for command in (("card", model), ("predict", model, malformed.whole("csv", folder)), ("budget", "verify", model)):
        assert "that are free" in dperm(*command, expect=1).stderr


@pytest.mark.parametrize("ending", ["parquet", "arrow"])
def test_texts_that_are_no_utf_8_are_refused_as_they_are_read(ending: str, tmp_path: Path) -> None:
    """They failed once they were looked at, somewhere behind the reader."""
    broken = pa.array([b"no", b"y\xff\xfe", b"no"]).view(pa.string())
    path, table = tmp_path / f"t.{ending}", pa.table({"a": [1, 2, 3], "y": broken})
    (parquet.write_table if ending == "parquet" else feather.write_feather)(table, path)
    with pytest.raises(DataError, match=r"Cannot read .*UTF8"):
        read_table(path)


def test_lists_and_tables_as_entries_are_texts(tmp_path: Path) -> None:
    table = pa.table({"a": [[1], [2, 3], None, []] * 10, "b": [{"c": 1}, {"c": 2}] * 20, "y": ["no", "yes"] * 20})
    parquet.write_table(table, tmp_path / "t.parquet")
    schema = propose(read_table(tmp_path / "t.parquet"), "y")
    assert [column.type for column in schema.columns] == ["category", "category", "label"]
    assert set(schema.columns[1].categories) == {"{'c': 1}", "{'c': 2}"}
    distant = pa.table({"a": pa.array([1, 2**58, 3], pa.timestamp("us")), "b": [1, 2, 3], "y": ["no", "yes", "no"]})
    parquet.write_table(distant, tmp_path / "t.parquet")
    assert propose(read_table(tmp_path / "t.parquet"), "y").columns[0].type == "ignore"
