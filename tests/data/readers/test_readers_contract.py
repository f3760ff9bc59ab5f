"""What holds of every reader of files: a new one in `data/readers/` is found here, and a test says what it lacks."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import openpyxl
import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import feather, parquet
from sklearn.datasets import dump_svmlight_file

from dperm.cli.commands import train
from dperm.data import DataError, read_dataset, read_frame
from dperm.data.readers.columnar import ColumnarReader, StoredTable
from dperm.data.readers.file_reader import ArrayReader, FileReader, TableReader, all_readers, reader_of

ROOT = Path(__file__).resolve().parents[3]
FRAME = pd.DataFrame({"age": [20, 30, 60, 70] * 5, "height": [1.5, 1.7, 1.8, 1.6] * 5, "paid": ["no", "yes"] * 10})
X, Y = FRAME[["age", "height"]].to_numpy(), np.array([0.0, 1.0] * 10)


def workbook(path: Path) -> None:
    book = openpyxl.Workbook()
    for row in [list(FRAME.columns), *FRAME.to_numpy().tolist()]:
        book.active.append(row)  # type: ignore[union-attr]
    book.save(path)


#: By its title, what writes a small file of each kind: a table FRAME, or arrays X and Y.
WRITERS: dict[str, Callable[[Path], Any]] = {
    "Arrow": lambda path: feather.write_feather(pa.Table.from_pandas(FRAME), str(path)),
    "CSV": lambda path: FRAME.to_csv(path, index=False),
    "Excel": workbook,
    "NumPy archive": lambda path: np.savez(path, X=X, y=Y),
    "NumPy array": lambda path: np.save(path, np.column_stack([X, Y])),
    "Parquet": lambda path: parquet.write_table(pa.Table.from_pandas(FRAME), path),
    "libsvm": lambda path: dump_svmlight_file(X, Y, str(path), zero_based=False),
}


@pytest.fixture(params=all_readers(), ids=lambda reader: reader.title)
def reader(request: pytest.FixtureRequest) -> FileReader:
    return request.param


def written(reader: FileReader, folder: Path, ending: str | None = None) -> Path:
    assert reader.title in WRITERS, f"Add what writes a small file of {reader.title!r} to WRITERS in {Path(__file__).name}."
    path = folder / f"people{reader.endings[0] if ending is None else ending}"
    made = folder / f"made{reader.endings[0]}"
    WRITERS[reader.title](made)
    return made.rename(path)


def test_every_reader_is_documented_and_alone_with_its_endings(reader: FileReader) -> None:
    text = (ROOT / "docs" / "schemas.md").read_text(encoding="utf-8")
    missing = [ending for ending in (*reader.endings, *reader.unreadable) if f"`{ending}`" not in text]
    assert not missing, f"Name the endings {missing} of {reader.title} in docs/schemas.md, each in backquotes."
    helped = inspect.getsource(train)
    assert reader.title.split()[0] in helped or reader.title == "Excel", f"Name {reader.title} in the help of `dperm train`."
    for other in all_readers():
        assert other is reader or not set(other.endings) & set(reader.endings), f"{other.title} has an ending of {reader.title}."
    assert all(ending.startswith(".") and ending == ending.lower() for ending in (*reader.endings, *reader.unreadable))
    assert inspect.getdoc(type(reader)), "Say what its files are in a docstring."


def test_every_reader_opens_its_files_by_their_endings_and_by_what_is_in_them(reader: FileReader, tmp_path: Path) -> None:
    path = written(reader, tmp_path)
    assert reader_of(path) is reader
    if isinstance(reader, TableReader):
        frame = read_frame(path)
        assert list(frame.columns) == list(FRAME.columns) and frame["paid"].tolist() == FRAME["paid"].tolist()
        np.testing.assert_allclose(frame["height"].astype(float), FRAME["height"])
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


def test_every_reader_refuses_what_is_beyond_the_limits(
    reader: FileReader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(reader, tmp_path)
    monkeypatch.setenv("DPERM_LIMITS", "columns=1,features=1")
    with pytest.raises(DataError, match=r"the limit is 1.*DPERM_LIMITS") as refused:
        read_frame(path) if isinstance(reader, TableReader) else read_dataset(path)
    assert str(path) in str(refused.value) and "\n" not in str(refused.value)


def test_every_reader_refuses_what_is_none_of_its_files_with_one_line(reader: FileReader, tmp_path: Path) -> None:
    path = written(reader, tmp_path)
    whole = path.read_bytes()
    for content in (b"\x00", whole[: len(whole) // 2] + b"\x00" * 8, whole[:8], bytes(range(256)) * 9):
        path.write_bytes(content)
        with pytest.raises(DataError) as refused:
            read_frame(path) if isinstance(reader, TableReader) else read_dataset(path)
        assert "\n" not in str(refused.value)


def test_what_is_read_in_parts_is_what_is_read_as_a_whole(reader: FileReader, tmp_path: Path) -> None:
    path = written(reader, tmp_path)
    if not isinstance(reader, ColumnarReader):
        with pytest.raises(DataError, match="to read in parts"):
            StoredTable(path)
        return
    parts = list(StoredTable(path).frames(most=7))
    assert len(parts) > 1 or len(parts[0]) == len(FRAME)
    pd.testing.assert_frame_equal(pd.concat(parts, ignore_index=True), read_frame(path), check_dtype=False)
    if reader.in_folders:
        folder = tmp_path / "folder"
        folder.mkdir()
        path.rename(folder / path.name)
        assert StoredTable(folder).rows == len(FRAME)


def test_endings_of_unreadable_files_say_what_to_do(tmp_path: Path) -> None:
    for ending, advice in {end: say for reader in all_readers() for end, say in reader.unreadable.items()}.items():
        (tmp_path / f"t{ending}").write_bytes(b"\xd0\xcf\x11\xe0")
        with pytest.raises(DataError, match=advice):
            read_frame(tmp_path / f"t{ending}")
