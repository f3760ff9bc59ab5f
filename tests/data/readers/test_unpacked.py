"""Item 15: what stored columns take once they are unpacked, against what Arrow takes for them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import feather, parquet

from dperm.data.columnar import entry_bytes
from dperm.data.readers.arrow import arrow_bytes
from dperm.data.readers.parquet import parquet_bytes
from dperm.data.untrusted_files import CELL

SIZE = 5_000


def a_table() -> pa.Table:
    rng = np.random.default_rng(0)
    return pa.table(
        {
            "words": [f"{'long' * (number % 40)} {number % 300}" for number in range(SIZE)],
            "gaps": pa.array([None if number % 3 else f"k{number}" for number in range(SIZE)], pa.large_string()),
            "known": pa.array([f"k{number % 7}" for number in range(SIZE)]).dictionary_encode(),
            "numbers": rng.random(SIZE),
            "whole": pa.array([None if number % 5 else number for number in range(SIZE)]),
            "lists": [[1, 2]] * SIZE,
            "truths": [number % 2 == 0 for number in range(SIZE)],
        }
    )


@pytest.mark.parametrize("compression", ["zstd", "lz4", "uncompressed"])
def test_arrow_files_state_what_they_unpack_to(compression: str, tmp_path: Path) -> None:
    path = tmp_path / "t.arrow"
    feather.write_feather(a_table(), path, compression=compression, chunksize=1_700)
    with pa.ipc.open_file(path) as reader:
        batches = [reader.get_batch(place) for place in range(reader.num_record_batches)]
    taken = sum(batch.get_total_buffer_size() for batch in batches)  # counts a dictionary with each batch
    assert len(batches) == 3 and 0.99 * taken <= arrow_bytes(path) <= taken
    if compression != "uncompressed":
        assert path.stat().st_size < 0.7 * arrow_bytes(path)


def test_texts_of_parquet_files_are_counted_as_often_as_rows_have_them(tmp_path: Path) -> None:
    path, table = tmp_path / "t.parquet", a_table().drop_columns("lists")
    parquet.write_table(table, path, row_group_size=1_700)
    texts = sum(len(word or "") for name in ("words", "gaps") for word in table[name].to_pylist())
    texts += sum(len(word) for word in table["known"].to_pylist())
    whole = parquet_bytes(path, table.column_names, enough=0)
    stored = parquet_bytes(path, [], enough=0)
    assert texts - len("k0") * SIZE <= whole - stored <= texts  # a column that is read as a dictionary stays one
    assert parquet_bytes(path, table.column_names, enough=1e9) == stored  # looked at as far as is needed
    parquet.write_table(table.select(["words"]), path, use_dictionary=False)
    stored = sum(parquet.ParquetFile(path).metadata.row_group(place).total_byte_size for place in range(1))
    assert parquet_bytes(path, ["words"], enough=0) == stored >= sum(map(len, table["words"].to_pylist()))


def test_texts_that_are_stored_as_differences_are_read_where_there_may_be_too_many(tmp_path: Path) -> None:
    path, words = tmp_path / "t.parquet", sorted(f"{'long' * 40}{number}" for number in range(SIZE))
    options = {"use_dictionary": False, "column_encoding": {"words": "DELTA_BYTE_ARRAY"}}
    parquet.write_table(pa.table({"words": words}), path, row_group_size=1_700, **options)
    whole, stored = parquet_bytes(path, ["words"], enough=1_000_000), parquet_bytes(path, [], enough=0)
    assert whole - stored == sum(map(len, words)) > 10 * stored
    assert parquet_bytes(path, ["words"], enough=1e12) == stored


def test_entries_of_lists_are_counted_one_by_one(tmp_path: Path) -> None:
    path, lists = tmp_path / "t.parquet", [[f"long{number % 7}"] * (number % 5) for number in range(SIZE)]
    parquet.write_table(pa.table({"lists": lists}), path, row_group_size=1_700)
    entries, stored = sum(map(len, lists)), parquet_bytes(path, [], enough=0)
    leaves = sum(max(1, len(entry)) for entry in lists)  # a list of none has a place, too
    assert parquet_bytes(path, ["lists"], enough=1e9) == stored + CELL * leaves + len("long0") * entries
    table = pa.table({"lists": lists, "pairs": [{"a": "x", "b": [1, 2]}] * SIZE, "words": ["word"] * SIZE})
    assert entry_bytes(table) == CELL * (entries + 2 * SIZE)
    known = pa.table({"known": pa.array(["word"] * SIZE).dictionary_encode()}).slice(3)
    assert entry_bytes(known) == entry_bytes(known.to_batches()[0]) == len("word") * (SIZE - 3)


@pytest.mark.parametrize("cut", [0, 10, 100, 1_000])
def test_what_is_no_arrow_file_ends(cut: int, tmp_path: Path) -> None:
    path = tmp_path / "t.arrow"
    feather.write_feather(a_table().slice(0, 50), path, compression="zstd")
    data = bytearray(path.read_bytes())
    rng = np.random.default_rng(cut)
    for _ in range(200):
        broken = bytearray(data)
        for place in rng.integers(len(data) - 2_000 - cut, len(data), 3):
            broken[place] = rng.integers(256)
        path.write_bytes(broken)
        try:
            assert arrow_bytes(path) >= 0
        except Exception as error:  # of any kind: see `parsing`
            assert not isinstance(error, MemoryError | RecursionError)
