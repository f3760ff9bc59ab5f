"""Tables read in parts become what they are when read as a whole."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars
import pyarrow as pa
import pytest
from pyarrow import feather, parquet

from dperm.data import DataError, Dataset, Schema, columnar, propose, read_dataset, read_stream, streaming
from dperm.data.schema.entries import SchemaError
from dperm.data.survey import Survey
from dperm.estimators import DPLogisticRegression
from helpers.commands import dperm

ROWS = 3000


def table(rows: int = ROWS) -> pd.DataFrame:
    generator = np.random.default_rng(0)
    age = generator.integers(18, 99, rows)
    frame = pd.DataFrame(
        {
            "person": generator.integers(0, rows // 3, rows),
            "age": pd.array(age, dtype="Int64"),
            "blood": generator.choice(["A", "B", "AB", "0"], rows),
            "came": pd.Timestamp("2024-01-01") + pd.to_timedelta(generator.integers(0, 700, rows), unit="D"),
            "dose": generator.gamma(2.0, 3.0, rows),
            "late": np.where(age + generator.normal(0, 20, rows) > 60, "yes", "no"),
        }
    )
    frame.loc[generator.random(rows) < 0.05, "age"] = pd.NA
    frame.loc[generator.random(rows) < 0.05, "dose"] = 1e6
    frame.loc[generator.random(rows) < 0.02, "late"] = None
    frame["late"] = frame["late"].astype(object)
    return frame


def schema_of(frame: pd.DataFrame, **changes: Any) -> Schema:
    return replace(propose(frame, "late", unit="person"), proposed=False, **changes)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine whose memory holds no table, and parts of a few rows."""
    monkeypatch.setattr(columnar, "free_memory", lambda: 0.0)
    for module in (streaming, columnar):
        monkeypatch.setattr(module, "PART", 1)


def written(frame: pd.DataFrame, folder: Path, how: str) -> Path:
    if how == "folder":
        for number in range(3):
            part = frame.iloc[number * 1000 : (number + 1) * 1000]
            (folder / "stays").mkdir(exist_ok=True)
            parquet.write_table(pa.Table.from_pandas(part, preserve_index=False), folder / "stays" / f"{number}.parquet")
        return folder / "stays"
    path = folder / f"stays.{how}"
    held = pa.Table.from_pandas(frame, preserve_index=False)
    if how == "parquet":
        parquet.write_table(held, path, row_group_size=700)
    else:
        feather.write_feather(held, path, chunksize=900)
    return path


def same(one: Dataset, other: Dataset) -> None:
    for field in fields(Dataset):
        mine, theirs = getattr(one, field.name), getattr(other, field.name)
        if isinstance(mine, Survey):
            assert mine == replace(theirs, narrow={})
        elif isinstance(mine, np.ndarray):
            assert np.array_equal(mine, theirs), field.name
        else:
            assert mine == theirs, field.name


@pytest.mark.parametrize("how", ["parquet", "feather", "folder"])
@pytest.mark.parametrize("changes", [{"missing": "drop"}, {"missing": "separate"}, {"missing": "middle", "unit": ""}])
def test_in_parts_it_is_the_same_data_set(how: str, changes: dict[str, Any], tmp_path: Path, small: None) -> None:
    frame = table()
    schema = schema_of(frame, **changes)
    told: list[tuple[int, int]] = []
    found, used = read_dataset(written(frame, tmp_path, how), schema=schema, progress=lambda *now: told.append(now))
    assert isinstance(found.features, np.memmap) and used == schema
    assert told[-1] == (ROWS, ROWS) and len(told) >= 3
    same(found, replace(Dataset.of(frame, schema), survey=Survey.of(frame, schema)))


def test_faults_are_those_of_the_rows(tmp_path: Path, small: None) -> None:
    frame = table()
    schema = schema_of(frame, missing="error")
    with pytest.raises(SchemaError, match=r"Rows 1 to 700: Expected no missing values"):
        read_dataset(written(frame, tmp_path, "parquet"), schema=schema)
    gone = schema_of(frame, missing="drop")
    with pytest.raises(SchemaError, match=r"lacks the columns \['age'\]"):
        read_dataset(written(frame.drop(columns="age"), tmp_path, "parquet"), schema=gone)
    frame["person"] = frame["person"].astype(float).where(frame.index != 2500)
    with pytest.raises(SchemaError, match=f"'person' is missing in 1 of {ROWS}"):
        read_dataset(written(frame, tmp_path, "parquet"), schema=gone)
    with pytest.raises(SchemaError, match="Expected target 'late'"):
        read_dataset(written(table(), tmp_path, "parquet"), "age", schema=gone)
    frame["late"] = None
    with pytest.raises(SchemaError, match="No record is left of 3,000 rows"):
        read_dataset(written(frame, tmp_path, "parquet"), schema=schema_of(table(), missing="drop", unit=""))


def test_a_small_disk_and_a_broken_file_are_said(tmp_path: Path, small: None, monkeypatch: pytest.MonkeyPatch) -> None:
    frame = table()
    path, schema = written(frame, tmp_path, "parquet"), schema_of(frame, missing="drop")
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match="Cannot read"):
        read_dataset(path, schema=schema)
    path.write_bytes(whole)
    monkeypatch.setattr(streaming.shutil, "disk_usage", lambda where: type("Usage", (), {"free": 10}))
    with pytest.raises(DataError, match="set DPERM_SCRATCH"):
        read_dataset(path, schema=schema)


def test_one_file_changes_no_other(tmp_path: Path, small: None) -> None:
    """Arrow would cast all files to the first one's types: a person would be several, an entry another."""
    frame = table()
    schema, folder = schema_of(frame, missing="drop"), written(frame, tmp_path, "folder")

    def changed(message: str, **columns: Any) -> None:
        part = frame.iloc[2000:].assign(**columns)
        parquet.write_table(pa.Table.from_pandas(part, preserve_index=False), folder / "2.parquet")
        with pytest.raises(DataError, match=message):
            read_dataset(folder, schema=schema)

    changed("column 'person' to have one type .* int64 in 0.parquet and .*string in 2.parquet", person="7")
    changed("column 'age' to have one type .* int64 in 0.parquet and double in 2.parquet", age=1.5)
    changed("column 'dose' to have one type .* double in 0.parquet and null in 2.parquet", dose=None)
    part = pa.Table.from_pandas(frame.iloc[2000:], preserve_index=False)
    parquet.write_table(part.rename_columns([name.upper() for name in part.column_names]), folder / "2.parquet")
    with pytest.raises(DataError, match=r"in 0\.parquet and none in 2\.parquet"):
        read_dataset(folder, schema=schema)
    parquet.write_table(part.append_column("age", part["age"]), folder / "2.parquet")
    with pytest.raises(DataError, match=r"distinct column names in .*2.parquet, got \['age'\] twice"):
        read_dataset(folder, schema=schema)
    (folder / "2.parquet").rename(folder / "2.pq")
    with pytest.raises(DataError, match=r"Expected Parquet files in the folder .* got '2\.pq'"):
        read_dataset(folder, schema=schema)
    (folder / "2.pq").unlink()
    (folder / "year=2024").mkdir()
    with pytest.raises(DataError, match="further folders, got 'year=2024'"):
        read_dataset(folder, schema=schema)
    (folder / "year=2024").rmdir()
    (folder / "_SUCCESS").touch()
    (folder / "1.parquet").rename(folder / "_1.parquet")
    found, _ = read_dataset(folder, schema=schema)
    assert found.survey is not None and found.survey.rows == 2000


def test_what_the_schema_does_not_know_is_said(tmp_path: Path, small: None) -> None:
    frame = table().assign(extra=1.0)
    found, _ = read_dataset(written(frame, tmp_path, "parquet"), schema=schema_of(table(), missing="drop"))
    assert found.survey is not None and found.survey.unknown == ("extra",)


def test_a_disk_that_fills_up_is_said(tmp_path: Path, small: None, monkeypatch: pytest.MonkeyPatch) -> None:
    frame = table()
    path, schema = written(frame, tmp_path, "parquet"), schema_of(frame, missing="drop")
    monkeypatch.setenv("DPERM_SCRATCH", str(tmp_path / "nowhere"))
    with pytest.raises(DataError, match=r"Cannot keep the encoded table below .*nowhere"):
        read_dataset(path, schema=schema)
    monkeypatch.setenv("DPERM_SCRATCH", str(tmp_path))
    monkeypatch.setattr(streaming, "_kept", lambda values, file: file.write(b"cut short"))
    with pytest.raises(DataError, match="what was written is not all there"):
        read_dataset(path, schema=schema)


def test_other_endings_are_read_in_parts_too(tmp_path: Path, small: None) -> None:
    frame = table()
    path = written(frame, tmp_path, "parquet").rename(tmp_path / "stays.pq")
    found, _ = read_dataset(path, schema=schema_of(frame, missing="drop"))
    assert isinstance(found.features, np.memmap)
    with pytest.raises(DataError, match="No file"):
        read_dataset(tmp_path / "no.parquet", schema=schema_of(frame))


def test_the_model_is_the_same(tmp_path: Path, small: None, monkeypatch: pytest.MonkeyPatch) -> None:
    frame = table()
    plan, model = tmp_path / "s.json", tmp_path / "m.json"
    schema = schema_of(frame, missing="drop")
    source = written(frame, tmp_path, "folder")
    monkeypatch.setenv("DPERM_SCRATCH", str(tmp_path))
    one, other = read_dataset(source, schema=schema)[0], Dataset.of(frame, schema)
    first, second = (
        data.fit(DPLogisticRegression(classes=schema.classes, random_state=3, max_rows_per_unit=8)) for data in (one, other)
    )
    assert np.array_equal(first.coef_, second.coef_)
    plan.write_text(schema.to_json())
    told = dperm("train", source, "--schema", plan, "--epsilon", "2", "-o", model).stdout
    assert one.described() in told and "(2, 1e-05)-differentially private" in told
    assert {path.name for path in tmp_path.iterdir()} == {"s.json", "m.json", "stays"}


@pytest.mark.slow
def test_it_keeps_within_its_memory(tmp_path: Path) -> None:
    """Two million rows of 21 columns, 340 MB in single precision: read and trained in a process of its own."""
    generator, columns = np.random.default_rng(0), [f"x{number}" for number in range(20)]
    with parquet.ParquetWriter(tmp_path / "big.parquet", pa.schema([(name, pa.float32()) for name in [*columns, "y"]])) as file:
        for _ in range(20):
            values = generator.random((100_000, 21), dtype=np.float32)
            file.write_table(pa.table(dict(zip([*columns, "y"], values.T, strict=True)), schema=file.schema))
    script = tmp_path / "run.py"
    script.write_text(
        "import sys\n"
        "from dperm.data import Schema, read_dataset\n"
        "from dperm.data import columnar\n"
        "columnar.free_memory = lambda: 0.0\n"
        "columns = [{'name': f'x{n}', 'type': 'number', 'range': [0, 1]} for n in range(20)] + [{'name': 'y', 'type': 'label'}]\n"
        "schema = Schema.from_dict({'name': 'big', 'target': 'y', 'target_range': [0, 1], 'columns': columns})\n"
        "data, _ = read_dataset(sys.argv[1], schema=schema)\n"
        "assert data.features.shape == (2_000_000, 20)\n"
        "status = dict(line.split(':', 1) for line in open('/proc/self/status'))\n"
        "print(status['VmHWM'].split()[0])\n"
    )
    command = [sys.executable, script, tmp_path / "big.parquet"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert int(done.stdout) < 520_000  # kB, of which importing takes 200,000


@pytest.mark.parametrize("of", ["polars", "duckdb", "arrow", "reader"])
def test_what_other_libraries_stream_is_the_same_data_set(of: str, small: None) -> None:
    frame = table()
    schema = schema_of(frame)
    held = pa.Table.from_pandas(frame, preserve_index=False)
    source: Any = held
    if of == "polars":
        source = polars.from_arrow(held).lazy()
    elif of == "duckdb":
        source = duckdb.connect().from_arrow(held)
    elif of == "reader":
        source = held.to_reader(700)
    told: list[int] = []
    found = read_stream(source, schema, told.append)
    assert isinstance(found.features, np.memmap)
    assert told[-1] == ROWS and len(told) >= 3
    whole = replace(Dataset.of(frame, schema), survey=Survey.of(frame, schema))
    if of != "polars":  # which has microseconds where others have nanoseconds: the same dates
        same(found, whole)
    assert np.array_equal(found.features, whole.features) and np.array_equal(found.targets, whole.targets)


def test_what_does_not_stream_is_refused(small: None) -> None:
    frame = table()
    schema = schema_of(frame)
    with pytest.raises(TypeError, match="speaks Arrow"):
        read_stream(frame.to_dict(), schema)
    held = pa.Table.from_pandas(frame, preserve_index=False)
    with pytest.raises(DataError, match="distinct column names"):
        read_stream(pa.Table.from_arrays([held["age"], held["age"]], names=["age", "age"]), schema)
    with pytest.raises(SchemaError, match="late"):
        read_stream(held.drop_columns(["late"]), schema)
