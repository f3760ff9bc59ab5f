"""Item 15: small files that would take all memory are refused before they do, and limits that a user can raise say so."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import openpyxl
import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import feather, parquet

from dperm.data import DataError, Schema, SchemaError, propose, read_dataset, read_table
from dperm.data.file_reader import all_readers, reader_of
from dperm.data.schema.encoder import SchemaEncoder
from dperm.data.untrusted_files import Limits, TooLargeError

ZEROS = b"a,b,y\n" + b"0,0,0\n" * 6_000_000  # 36 MB


def libsvm(path: Path) -> Path:
    path = path / "t.libsvm"
    path.write_text("1 450000000:1\n0 1:1\n")
    return path


def sparse_workbook(path: Path) -> Path:
    """Cells in two corners: as a table it has 48 million."""
    book = openpyxl.Workbook(write_only=True)
    sheet = book.create_sheet()
    sheet.append([None] * 2_999 + ["y"])
    for number in range(16_000):
        sheet.append([number])
    book.save(path / "t.xlsx")
    return path / "t.xlsx"


def far_workbook(path: Path) -> Path:
    book = openpyxl.Workbook()
    assert book.active is not None
    book.active["XFD1048576"] = 1
    book.save(path / "t.xlsx")
    return path / "t.xlsx"


def changed_workbook(path: Path, member: str, change: Callable[[bytes], bytes]) -> Path:
    made = io.BytesIO()
    book = openpyxl.Workbook()
    assert book.active is not None
    for number in range(30):
        book.active.append([number, "y"])
    book.save(made)
    with zipfile.ZipFile(made) as source, zipfile.ZipFile(path / "t.xlsx", "w", zipfile.ZIP_DEFLATED) as target:
        for name in source.namelist():
            data = source.read(name)
            target.writestr(name, change(data) if name.endswith(member) else data)
    return path / "t.xlsx"


def long_row(path: Path) -> Path:
    return changed_workbook(path, "sheet1.xml", lambda data: data.replace(b"</row>", b"<c/>" * 10_000_000 + b"</row>", 1))


def long_comment(path: Path) -> Path:
    return changed_workbook(path, "theme1.xml", lambda data: data + b"<!--" + b"a" * 50_000_000 + b"-->")


def distant_row(path: Path) -> Path:
    return changed_workbook(
        path, "sheet1.xml", lambda data: data.replace(b'r="30"', b'r="99999999999"').replace(b'"A30"', b'"A99999999999"')
    )


def in_zip(path: Path) -> Path:
    with zipfile.ZipFile(path / "t.csv.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("t.csv", ZEROS)
    return path / "t.csv.zip"


def in_gzip(path: Path) -> Path:
    (path / "t.csv.gz").write_bytes(gzip.compress(ZEROS, 6))
    return path / "t.csv.gz"


def in_bzip2(path: Path) -> Path:
    (path / "t.csv.bz2").write_bytes(bz2.compress(ZEROS, 1))
    return path / "t.csv.bz2"


def in_xz(path: Path) -> Path:
    (path / "t.csv.xz").write_bytes(lzma.compress(ZEROS, preset=0))
    return path / "t.csv.xz"


def compressed_libsvm(path: Path) -> Path:
    (path / "t.libsvm").write_bytes(gzip.compress(b"1 1:1\n" * 6_000_000))
    return path / "t.libsvm"


def wide_text(path: Path) -> Path:
    (path / "t.csv").write_text(",".join(f"c{place}" for place in range(100_000)) + ",y\n" + "1," * 100_000 + "1\n")
    return path / "t.csv"


def repeated_parquet(path: Path) -> Path:
    column = pa.array(np.zeros(20_000_000, dtype=np.int8))
    parquet.write_table(pa.table({"a": column, "y": column}), path / "t.parquet")
    return path / "t.parquet"


def long_texts(path: Path) -> Path:
    """Plain pages of one text, which are compressed."""
    column = pa.array(["x" * 1_000_000] * 400)
    parquet.write_table(pa.table({"a": column, "y": column}), path / "t.parquet", compression="zstd", use_dictionary=False)
    return path / "t.parquet"


def repeated_texts(path: Path) -> Path:
    """A dictionary of one text, that all rows have."""
    parquet.write_table(pa.table({"a": ["x" * 1_000_000] * 400, "y": ["a", "b"] * 200}), path / "t.parquet")
    return path / "t.parquet"


def compressed_arrow(path: Path) -> Path:
    table = pa.table({"a": ["x" * 1_000_000] * 400, "y": ["a", "b"] * 200})
    feather.write_feather(table, path / "t.arrow", compression="zstd")
    return path / "t.arrow"


def zero_arrays(path: Path) -> Path:
    np.savez_compressed(path / "t.npz", X=np.zeros((3_000_000, 10), dtype=np.int8), y=np.zeros(3_000_000, dtype=np.int8))
    return path / "t.npz"


def repeated_in_lists(path: Path) -> Path:
    """A dictionary of one text, that all entries of lists have."""
    lists = pa.ListArray.from_arrays(pa.array(range(401), pa.int32()), pa.array(["x" * 900_000] * 400))
    table = pa.table({"a": lists, "y": ["a", "b"] * 200})
    parquet.write_table(table, path / "t.parquet", compression="zstd", store_schema=False)
    return path / "t.parquet"


def long_list(path: Path) -> Path:
    """A list of many zeros in one row."""
    lists = pa.LargeListArray.from_arrays(pa.array([0] + [20_000_000] * 10, pa.int64()), pa.array(np.zeros(20_000_000)))
    parquet.write_table(pa.table({"a": lists, "y": ["a", "b"] * 5}), path / "t.parquet", compression="zstd")
    return path / "t.parquet"


def repeated_bytes(path: Path) -> Path:
    """A dictionary of one entry of a fixed size."""
    table = pa.table({"a": pa.array([b"x" * 900_000] * 400, pa.binary(900_000)), "y": ["a", "b"] * 200})
    parquet.write_table(table, path / "t.parquet", compression="zstd")
    return path / "t.parquet"


def differences(path: Path) -> Path:
    """Texts that do not differ from the one before."""
    table = pa.table({"a": ["x" * 1_000_000] * 400, "y": ["a", "b"] * 200})
    parquet.write_table(table, path / "t.parquet", use_dictionary=False, column_encoding={"a": "DELTA_BYTE_ARRAY", "y": "PLAIN"})
    return path / "t.parquet"


def _arrow(path: Path, column: pa.Array) -> Path:
    table = pa.table({"a": column, "y": ["a", "b"] * (len(column) // 2)})
    with pa.OSFile(str(path / "t.arrow"), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    return path / "t.arrow"


def repeated_arrow(path: Path) -> Path:
    return _arrow(path, pa.DictionaryArray.from_arrays(pa.array([0] * 10_000, pa.int8()), pa.array(["x" * 100_000])))


def views(path: Path) -> Path:
    """Many views of one text."""
    view = np.zeros((10_000, 4), np.int32)
    view[:, :2] = 100_000, int.from_bytes(b"xxxx", "little")
    parts = [None, pa.py_buffer(view.tobytes()), pa.py_buffer(b"x" * 100_000)]
    return _arrow(path, pa.Array.from_buffers(pa.string_view(), len(view), parts))


def list_of_nothing(path: Path) -> Path:
    """A list of missing values, which take no bytes."""
    return _arrow(path, pa.LargeListArray.from_arrays(pa.array([0] + [10**9] * 10, pa.int64()), pa.nulls(10**9)))


def lists_of_nothing(path: Path) -> Path:
    return _arrow(path, pa.FixedSizeListArray.from_arrays(pa.nulls(10**8), 10**7))


def long_header(path: Path) -> Path:
    """An array in an archive, that says that its header has a gigabyte."""
    with zipfile.ZipFile(path / "t.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("X.npy", b"\x93NUMPY\x02\x00" + (1 << 30).to_bytes(4, "little") + b" " * (1 << 30))
    return path / "t.npz"


#: By the title of its reader: files that unpack to more than memory holds.
BOMBS: dict[str, list[Callable[[Path], Path]]] = {
    "Arrow": [repeated_arrow, compressed_arrow, views, list_of_nothing, lists_of_nothing],
    "CSV": [in_gzip, in_bzip2, in_xz, in_zip, wide_text],
    "Excel": [sparse_workbook, distant_row, far_workbook, long_row, long_comment],
    "NumPy archive": [zero_arrays, long_header],
    "Parquet": [repeated_parquet, repeated_texts, repeated_in_lists, long_list, repeated_bytes, differences, long_texts],
    "libsvm": [libsvm, compressed_libsvm],
}
_MOST = 450  # MB beside what the libraries take: the least that unpacking is allowed, and room

_CHILD = """
import resource, sys
import openpyxl, pandas, pyarrow.parquet, sklearn.datasets
from dperm.data import DataError, read_dataset
used = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
before = used()
for path in sys.argv[1:]:
    try:
        read_dataset(path, "y" if path.endswith(("csv", "gz", "bz2", "xz", "zip", "parquet", "arrow", "xlsx")) else None)
        print("read", path)
    except DataError as error:
        print(used() - before, error)
"""


def test_every_reader_that_unpacks_has_bombs() -> None:
    titles = {reader.title for reader in all_readers() if not reader.memory_mapped}
    assert set(BOMBS) == titles, "Add small files of this kind that would take all memory, by the title of their reader."


@pytest.mark.fast_cases("quick")
@pytest.mark.parametrize("kind", ["quick", *BOMBS])
def test_a_bomb_is_refused_before_it_takes_memory(kind: str, tmp_path: Path) -> None:
    paths: list[str] = []
    for write in BOMBS[kind][1:] if kind in BOMBS else [bombs[0] for bombs in BOMBS.values()]:
        folder = tmp_path / write.__name__
        folder.mkdir()
        paths.append(str(write(folder)))
    done = subprocess.run([sys.executable, "-c", _CHILD, *paths], capture_output=True, text=True, check=True)
    told = done.stdout.splitlines()
    assert len(told) == len(paths)
    assert [reader_of(Path(path)).title for path in paths] == (len(paths) * [kind] if kind in BOMBS else list(BOMBS))
    for line in told:
        taken, _, said = line.partition(" ")
        assert taken.isdigit() and int(taken) < _MOST, line
        assert "DPERM_LIMITS=" in said or "no sheet has" in said or "reading array header" in said, line


@pytest.mark.parametrize(
    "column",
    [
        pa.ListViewArray.from_arrays(pa.array([0, 0], pa.int32()), pa.array([2, 2], pa.int32()), pa.array([1, 2])),
        pa.RunEndEncodedArray.from_arrays(pa.array([2], pa.int32()), pa.array(["x"])),
    ],
)
def test_types_whose_entries_overlap_are_refused(column: pa.Array, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="which dperm does not read: write it as"):
        read_table(_arrow(tmp_path, column))


def test_an_archive_that_names_an_array_twice_gives_the_one_that_was_looked_at(tmp_path: Path) -> None:
    """NumPy takes a file X where there is one beside X.npy."""
    np.savez(tmp_path / "t.npz", X=np.eye(4), y=np.arange(4) % 2)
    for other in (b"no array", (tmp_path / "t.npz").read_bytes()):
        with zipfile.ZipFile(tmp_path / "t.npz", "a") as archive, pytest.MonkeyPatch.context() as patch:
            patch.setattr("warnings.warn", lambda *_, **__: None)
            archive.writestr("X", other)
        assert np.array_equal(read_dataset(tmp_path / "t.npz")[0].features, np.eye(4))


def test_limits_are_raised_by_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t.csv"
    path.write_text(",".join(f"c{place}" for place in range(50_001)) + "\n" + ",".join("1" * 50_001) + "\n")
    with pytest.raises(DataError, match=r"it has 50,001 columns, and the limit is 50,000\. .*DPERM_LIMITS=columns=50001"):
        read_table(path)
    path.write_text(",".join(f"c{place}" for place in range(61)) + "\n" + ",".join("1" * 61) + "\n")
    monkeypatch.setenv("DPERM_LIMITS", "columns=60")
    with pytest.raises(DataError, match=r"it has 61 columns, and the limit is 60\. .*DPERM_LIMITS=columns=61"):
        read_table(path)
    monkeypatch.setenv("DPERM_LIMITS", "columns=61")
    assert read_table(path).frame.shape == (1, 61)
    path = tmp_path / "t.libsvm"
    path.write_text("1 1:1\n0 1000001:1\n" * 3)
    for indices in (None, (1, 1_000_001)):
        with pytest.raises(DataError, match="DPERM_LIMITS=features="):
            read_dataset(path, indices=indices)
    monkeypatch.setenv("DPERM_LIMITS", "features=2e6, unpacking=10000")
    assert read_dataset(path)[0].features.shape == (6, 1_000_001)
    assert Limits.current() == Limits(features=2_000_000, unpacking=10_000)


@pytest.mark.parametrize(
    "text", ["columns", "columns=", "columns=0", "columns=-1", "rows=5", "columns=5,columns=6", "cells=1e999"]
)
def test_a_limit_that_is_none_is_refused(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPERM_LIMITS", text)
    with pytest.raises(ValueError, match="Expected DPERM_LIMITS such as"):
        Limits.current()
    (tmp_path / "t.csv").write_text("a,y\n1,2\n")
    with pytest.raises(DataError, match="Expected DPERM_LIMITS such as"):
        read_table(tmp_path / "t.csv")


def test_what_is_free_is_a_limit_and_small_files_have_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dperm.data.untrusted_files.free_memory", lambda: 1e9)
    limits = Limits()
    limits.refuse_memory(2.5e8, stored=1)  # whatever the proportion
    limits.refuse_memory(4.9e8, stored=10**6)
    with pytest.raises(TooLargeError, match="too much for the 1 GB that are free"):
        limits.refuse_memory(5.1e8, stored=10**6)
    with pytest.raises(TooLargeError, match=r"270 times as many; the limit is 200 times.*unpacking=270"):
        Limits(unpacking=200).refuse_memory(2.7e8, stored=10**6)
    with pytest.raises(TooLargeError, match=r"1,001 entries, and the limit is 1,000.*cells=1001"):
        Limits(cells=1000).refuse_cells(1001, stored=10**9)


def test_a_parquet_file_beyond_memory_is_refused_as_a_whole_and_read_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = pa.table({"a": np.arange(1000) % 7, "y": ["no", "yes"] * 500})
    parquet.write_table(table, tmp_path / "t.parquet")
    schema = Schema.from_dict(
        {
            "name": "t", "target": "y", "classes": ["no", "yes"],
            "columns": [{"name": "a", "type": "number", "range": [0, 7]}, {"name": "y", "type": "label"}],
        }
    )  # fmt: skip
    whole = read_dataset(tmp_path / "t.parquet", schema=schema)[0]
    for module in ("untrusted_files", "columnar"):
        monkeypatch.setattr(f"dperm.data.{module}.free_memory", lambda: 17_000.0)
    with pytest.raises(DataError, match="too much for"):
        read_table(tmp_path / "t.parquet")
    monkeypatch.setattr("dperm.data.file_reader.free_memory", lambda: 1e9)
    parts = read_dataset(tmp_path / "t.parquet", schema=schema)[0]
    assert np.array_equal(parts.features, whole.features)


def test_entities_of_xml_are_refused(tmp_path: Path) -> None:
    entities = b'<!DOCTYPE x [<!ENTITY a "yyyyyyyyyy"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;&a;&a;">]>'
    path = changed_workbook(tmp_path, "workbook.xml", lambda data: entities + data)
    with pytest.raises(DataError, match="declares a document type"):
        read_table(path)
    path = changed_workbook(tmp_path, "sheet1.xml", lambda data: (entities + data).decode().encode("utf-16"))
    with pytest.raises(DataError, match="declares a document type"):
        read_table(path)


def test_a_table_of_more_features_than_memory_holds_is_not_encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    frame = pd.DataFrame({"a": np.arange(1000) % 7, "y": ["no", "yes"] * 500})
    schema = propose(frame, "y")
    monkeypatch.setattr("dperm.data.untrusted_files.free_memory", lambda: 2 * 8.0 * 1000 * 12)
    assert SchemaEncoder(schema.with_curves(12), frame).encode()[0].shape == (1000, 12)
    with pytest.raises(SchemaError, match="1,000 rows of 13 features, it would take about"):
        SchemaEncoder(schema.with_curves(13), frame).encode()


def test_a_workbook_of_very_many_files_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "t.xlsx", "w") as archive:
        for number in range(10_001):
            archive.writestr(f"{number}", "")
    with pytest.raises(DataError, match="it is made of 10,001 files"):
        read_table(tmp_path / "t.xlsx")


def test_a_table_as_large_as_its_file_is_read(tmp_path: Path) -> None:
    """Real tables, whose numbers differ, are far from the limits."""
    rng = np.random.default_rng(0)
    rows = "".join(f"{value:.3f},{value > 0}\n" for value in rng.normal(size=20_000))
    (tmp_path / "t.csv.xz").write_bytes(lzma.compress(("a,y\n" + rows).encode()))
    frame = read_table(tmp_path / "t.csv.xz").frame
    assert len(frame) == 20_000 and propose(frame, "y").dimension == 1
    assert 100 * (tmp_path / "t.csv.xz").stat().st_size > len(rows)
