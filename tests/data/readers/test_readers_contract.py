"""What holds of every reader of files: a new one in `data/readers/` is found here, and a test says what it lacks."""

from __future__ import annotations

import gzip
import importlib
import pkgutil
import sys
import types
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import openpyxl
import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import feather, parquet
from sklearn.datasets import dump_svmlight_file

from dperm.data import Column, DataError, Dataset, ReadTable, Schema, read_dataset, read_table, readers
from dperm.data.columnar import ColumnarReader, StoredTable
from dperm.data.file_reader import ArrayReader, FileReader, TableReader, all_readers, reader_of, readers_in
from dperm.data.schema.schema_file import ENTRY_OPTIONS, TEXT_OPTIONS
from dperm.jobs.options import ARRAYS, TABLES

ROOT = Path(__file__).resolve().parents[3]
MODULES = [module.name for module in pkgutil.iter_modules(readers.__path__)]
FRAME = pd.DataFrame({"age": [20, 30, 60, 70] * 5, "height": [1.5, 1.7, 1.8, 1.6] * 5, "paid": ["no", "yes"] * 10})
X, Y = FRAME[["age", "height"]].to_numpy(), np.array([0.0, 1.0] * 10)
#: A schema of a table like this one, with a category that is a usual word for a missing value.
COUNTRIES = Schema(
    "people",
    "paid",
    (Column("age", "number", (0, 100)), Column("land", "category", categories=("DE", "NA")), Column("paid", "label")),
    ("no", "yes"),
)
WITH_COUNTRIES = FRAME.drop(columns="height").assign(land=["NA", "DE", "NA", "NA"] * 5, age=[-9, 30, 60, 70] * 5)
STATED = {"separator": ";", "encoding": "utf-8", "decimal": ",", "header": True, "skip_lines": 0, "missing": -9, "strip": True}
STATED |= {"line_breaks": False, "of_nobody": 1}


def workbook(frame: pd.DataFrame, path: Path) -> None:
    book = openpyxl.Workbook()
    for row in [list(frame.columns), *frame.to_numpy().tolist()]:
        book.worksheets[0].append(row)
    book.save(path)


#: By its title, what writes a small file of each kind: a table, or arrays X and Y.
WRITERS: dict[str, Callable[[pd.DataFrame, Path], Any]] = {
    "Arrow": lambda frame, path: feather.write_feather(pa.Table.from_pandas(frame), str(path)),
    "CSV": lambda frame, path: frame.to_csv(path, index=False),
    "Excel": workbook,
    "NumPy archive": lambda _, path: np.savez(path, X=X, y=Y),
    "NumPy array": lambda _, path: np.save(path, np.column_stack([X, Y])),
    "Parquet": lambda frame, path: parquet.write_table(pa.Table.from_pandas(frame), path),
    "libsvm": lambda _, path: dump_svmlight_file(X, Y, str(path), zero_based=False),
}


@pytest.fixture(params=all_readers(), ids=lambda reader: reader.title)
def reader(request: pytest.FixtureRequest) -> FileReader:
    return request.param


def written(reader: FileReader, folder: Path, frame: pd.DataFrame = FRAME) -> Path:
    assert reader.title in WRITERS, f"Add what writes a small file of {reader.title!r} to WRITERS in {Path(__file__).name}."
    path = folder / f"people{reader.endings[0]}"
    WRITERS[reader.title](frame, path)
    return path


def read(reader: FileReader, path: Path) -> ReadTable | Dataset:
    return read_table(path) if isinstance(reader, TableReader) else read_dataset(path)[0]


def is_text(whole: bytes) -> bool:
    return whole.isascii() and b"\x00" not in whole


def refused(reader: FileReader, path: Path, match: str | None = None) -> None:
    with pytest.raises(DataError, match=match) as error:
        read(reader, path)
    assert str(path) in str(error.value) and len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize("name", MODULES)
def test_every_file_has_a_reader(name: str) -> None:
    own = readers_in(importlib.import_module(f"{readers.__name__}.{name}"))
    assert own and {type(reader) for reader in own} <= {type(reader) for reader in all_readers()}


TOP = "from dperm.data.columnar import ColumnarReader\nfrom dperm.data.file_reader import FileReader, TableReader\n"
WHOLE = "class Trial({base}):\n    {stated}\n    def {read}(self, path, options): ...\n"


@pytest.mark.parametrize(
    ("base", "stated", "read", "said"),
    [
        ("object", "title, endings = 'Trial', ('.trial',)", "read", "expected a class below TableReader, ColumnarReader or"),
        ("TableReader", "title, endings = 'Trial', ('.trial',)", "raed", "expected Trial to have read"),
        ("TableReader", "endings = ('.trial',)", "read", "expected Trial to have title"),
        ("TableReader", "title = 'Trial'", "read", "expected Trial to have endings"),
        ("TableReader", "pass", "reads", "expected Trial to have read and title and endings"),
        ("FileReader", "title, endings = 'Trial', ('.trial',)", "read", "to have a base that is TableReader"),
        ("ColumnarReader", "title, endings = 'Trial', ('.trial',)", "whole", "to have types and unpacked_bytes and arrow_format"),
    ],
)
def test_a_file_without_a_reader_is_one_sentence_that_names_it(
    base: str, stated: str, read: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = types.ModuleType(f"{readers.__name__}.trial")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(TOP + WHOLE.format(base=base, stated=stated, read=read), vars(module))
    with pytest.raises(TypeError, match=said) as error:
        readers_in(module)
    assert str(error.value).startswith("data/readers/trial.py: ") and len(str(error.value).splitlines()) == 1


def test_every_reader_is_tried_here_and_named_in_the_help_of_commands() -> None:
    titles = {reader.title for reader in all_readers()}
    assert len(titles) == len(all_readers())
    assert set(WRITERS) == titles, "Add what writes a small file of a new kind to WRITERS, by its title."
    assert set(TABLES) == {reader.title for reader in all_readers() if isinstance(reader, TableReader)}, "TABLES, jobs/options.py"
    assert set(ARRAYS) == {reader.title for reader in all_readers() if isinstance(reader, ArrayReader)}, "ARRAYS, jobs/options.py"


def test_every_reader_is_documented_and_alone_with_its_endings(reader: FileReader) -> None:
    text = (ROOT / "docs" / "schemas.md").read_text(encoding="utf-8")
    missing = [ending for ending in (*reader.endings, *reader.unreadable) if f"`{ending}`" not in text]
    assert not missing, f"Name the endings {missing} of {reader.title} in docs/schemas.md, each in backquotes."
    for other in all_readers():
        assert other is reader or not set(other.endings) & set(reader.endings), f"{other.title} has an ending of {reader.title}."
    assert isinstance(reader.endings, tuple)
    assert all(ending.startswith(".") and ending == ending.lower() for ending in (*reader.endings, *reader.unreadable))
    assert type(reader).__doc__, "Say what its files are in a docstring."
    assert isinstance(reader, ArrayReader) or set(getattr(reader, "options", ())) <= set(TEXT_OPTIONS)


def test_every_reader_opens_its_files_by_their_endings_and_by_what_is_in_them(reader: FileReader, tmp_path: Path) -> None:
    path = written(reader, tmp_path)
    assert reader_of(path) is reader
    if isinstance(reader, TableReader):
        table = read_table(path)
        frame = table.frame
        assert list(frame.columns) == list(FRAME.columns) and frame["paid"].tolist() == FRAME["paid"].tolist()
        np.testing.assert_allclose(frame["height"].astype(float), FRAME["height"])
        finds_out = bool(set(reader.options) - set(ENTRY_OPTIONS))
        assert bool(table.written) == finds_out, (
            "Say in ReadTable.written what it found out of what is not stated, and only that."
        )
    else:
        assert isinstance(reader, ArrayReader), "Derive it from TableReader or ArrayReader."
        dataset, schema = read_dataset(path)
        features: Any = dataset.features
        rows = features if isinstance(features, np.ndarray) else features.toarray()
        np.testing.assert_allclose(rows, X)
        assert schema is None and dataset.targets.tolist() == Y.astype(int).astype(str).tolist()
    if reader.magic or reader.first_line or reader.any_text:
        assert reader_of(path.rename(tmp_path / "people.unknown")) is reader
    else:
        assert not any(path.read_bytes().startswith(other.magic) for other in all_readers())


@pytest.mark.parametrize("limits", ["columns=1,features=1", "cells=1"])
def test_every_reader_refuses_what_is_beyond_the_limits(
    limits: str, reader: FileReader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(reader, tmp_path)
    monkeypatch.setenv("DPERM_LIMITS", limits)
    if limits == "cells=1" and reader.memory_mapped:
        read(reader, path)
    else:
        refused(reader, path, r"the limit is 1\..*DPERM_LIMITS")


def test_every_reader_refuses_what_is_none_of_its_files_with_one_line(reader: FileReader, tmp_path: Path) -> None:
    path = written(reader, tmp_path)
    whole = path.read_bytes()
    none = [b"\x00", whole[: len(whole) // 2] + b"\x00" * 8, whole[:8], bytes(range(256)) * 9]
    within = [whole[:-4] + b"\x00" + whole[-4:]] if is_text(whole) else []  # a binary file may have one there
    for content in [*none, *within]:
        path.write_bytes(content)
        refused(reader, path)


def test_every_reader_takes_a_file_cut_short_for_what_is_left_or_refuses_it_with_one_line(
    reader: FileReader, tmp_path: Path
) -> None:
    """A text does not say how long it is; what says so is refused."""
    path = written(reader, tmp_path)
    whole = path.read_bytes()
    for end in range(1, len(whole), max(1, len(whole) // 15)):
        path.write_bytes(whole[:end])
        if not is_text(whole):
            refused(reader, path)
            continue
        try:
            found = read(reader, path)
        except DataError as error:
            assert len(str(error).splitlines()) == 1
        else:
            assert len(found.frame if isinstance(found, ReadTable) else found) <= len(FRAME)


def test_every_reader_that_decompresses_its_files_refuses_those_that_unpack_to_too_much(
    reader: FileReader, tmp_path: Path
) -> None:
    """Archives of other kinds have bombs of their own: `test_sizes_of_files.py`."""
    path = written(reader, tmp_path)
    whole = path.read_bytes()
    path.write_bytes(gzip.compress(whole))
    try:
        read(reader, path)
    except DataError as error:
        assert len(str(error).splitlines()) == 1
        return
    path.write_bytes(gzip.compress(whole + whole.splitlines(keepends=True)[-1] * (40_000_000 // len(whole.splitlines()[-1]))))
    refused(reader, path, "DPERM_LIMITS=unpacking")


def test_every_reader_of_tables_keeps_categories_that_are_like_missing_values(reader: FileReader, tmp_path: Path) -> None:
    if not isinstance(reader, TableReader):
        return
    frame = read_table(written(reader, tmp_path, WITH_COUNTRIES), COUNTRIES).frame
    assert frame["land"].tolist() == WITH_COUNTRIES["land"].tolist(), (
        "Take TableOptions.marks(column) for missing, and no others."
    )


@pytest.mark.parametrize("name", STATED)
def test_every_reader_of_tables_follows_what_is_stated_or_refuses_it(name: str, reader: FileReader, tmp_path: Path) -> None:
    if not isinstance(reader, TableReader):
        return
    path = written(reader, tmp_path, WITH_COUNTRIES)
    if name not in reader.options:
        with pytest.raises(DataError, match=f"'{name}' is stated, and {reader.title} files are not read by that") as error:
            read_table(path, written={name: STATED[name]})
        assert len(str(error.value).splitlines()) == 1
        if name in ENTRY_OPTIONS:
            with pytest.raises(DataError, match=f"'{name}' is stated"):
                read_dataset(path, None, replace(COUNTRIES, extra={name: STATED[name]}))
    elif name == "missing":
        table = read_table(path, replace(COUNTRIES, missing="drop", extra={name: STATED[name]}))
        assert table.frame["age"].isna().tolist() == (WITH_COUNTRIES["age"] == -9).tolist()
        assert read_table(path, written={name: STATED[name]}).format[name] == STATED[name]


def test_what_is_read_in_parts_is_what_is_read_as_a_whole(reader: FileReader, tmp_path: Path) -> None:
    path = written(reader, tmp_path)
    if not isinstance(reader, ColumnarReader):
        with pytest.raises(DataError, match="to read in parts"):
            StoredTable(path)
        return
    parts = list(StoredTable(path).frames(most=7))
    assert len(parts) > 1 or len(parts[0]) == len(FRAME)
    pd.testing.assert_frame_equal(pd.concat(parts, ignore_index=True), read_table(path).frame, check_dtype=False)
    if reader.in_folders:
        folder = tmp_path / "folder"
        folder.mkdir()
        path.rename(folder / path.name)
        assert StoredTable(folder).rows == len(FRAME)


def test_endings_of_unreadable_files_say_what_to_do(tmp_path: Path) -> None:
    for ending, advice in {end: say for reader in all_readers() for end, say in reader.unreadable.items()}.items():
        (tmp_path / f"t{ending}").write_bytes(b"\xd0\xcf\x11\xe0")
        with pytest.raises(DataError, match=advice):
            read_table(tmp_path / f"t{ending}")
