"""No record changes how another is read: indices, missing values, large whole numbers, moments, and entries out of range."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from numpy.typing import NDArray
from pyarrow import feather, parquet

from dperm.data import Dataset, Schema, SchemaError, confirmed, read_dataset
from dperm.data.schema.columns import Column
from dperm.data.schema.entries import as_frame
from dperm.data.schema.moments import moments
from dperm.data.schema_search.proposing import propose
from dperm.data.survey import Survey
from dperm.estimators import DPLogisticRegression
from dperm.objectives import LinearObjective, Logistic
from dperm.release import SpendLog
from helpers.commands import dperm
from helpers.said import flat

X = np.random.default_rng(0).uniform(-0.5, 0.5, (60, 2))
Y = np.array(["no", "yes"])[(X[:, 0] > 0).astype(int)]


def gradient(features: Any) -> NDArray[np.float64]:
    """At 0, with all targets 1."""
    objective = LinearObjective(Logistic(), features=features.shape[1])
    return objective.evaluate(np.zeros(features.shape[1]), objective.records(features, np.ones(features.shape[0])))[1]


def libsvm(path: Path, last: str) -> Path:
    path.write_text("\n".join([*(f"{number % 2} 1:0.9 2:0.1" for number in range(100)), last]) + "\n")
    return path


def test_no_record_of_a_libsvm_file_says_where_the_features_of_others_are(tmp_path: Path) -> None:
    one, other = libsvm(tmp_path / "a.libsvm", "1 3:0.2"), libsvm(tmp_path / "b.libsvm", "1 1:0.2")
    stated = [read_dataset(path, indices=(1, 3))[0] for path in (one, other)]
    assert np.linalg.norm(gradient(stated[0].features) - gradient(stated[1].features)) < 1
    assert stated[0].features.shape == stated[1].features.shape == (101, 3)
    assert not stated[0].read_off
    found = [read_dataset(path)[0] for path in (one, other)]
    assert [each.features.shape[1] for each in found] == [3, 2]
    assert all("indices" in each.read_off for each in found)
    zero = libsvm(tmp_path / "c.libsvm", "1 0:0.2")
    assert read_dataset(zero)[0].indices == (0, 2)
    for path, indices in ((one, (1, 2)), (zero, (1, 3)), (one, (4, 2))):
        with pytest.raises(ValueError, match="expected indices from"):
            read_dataset(path, indices=indices)
    with pytest.raises(ValueError, match="libsvm file with indices"):
        np.savez(tmp_path / "d.npz", X=X, y=Y)
        read_dataset(tmp_path / "d.npz", indices=(1, 2))


def test_the_command_states_indices(tmp_path: Path) -> None:
    path, model = libsvm(tmp_path / "a.libsvm", "1 3:0.2"), tmp_path / "m.json"
    train = ("train", path, "--relation", "replace_one", "-o", model)
    assert "--indices FIRST-LAST" in dperm(*train, expect=1).stderr
    told = dperm(*train, "--accept-proposed").stdout
    assert "indices of features, 1-3, were read off the data" in " ".join(told.split()) and "claimed" in told
    assert "is (1, 1e-05)-differentially private" in flat(dperm(*train, "--indices", "1-5").stdout)
    narrow = libsvm(tmp_path / "b.libsvm", "1 2:0.2")
    dperm("predict", model, narrow, "-o", tmp_path / "p.csv")  # of as many features as the model, whatever it holds
    assert len(pd.read_csv(tmp_path / "p.csv")) == 101
    assert "such as 1-123" in dperm(*train, "--indices", "5", expect=1).stderr


@pytest.mark.parametrize("write", [parquet.write_table, feather.write_feather])
def test_one_missing_value_changes_no_other_record(tmp_path: Path, write: Any) -> None:
    codes, labels = [2**53 + 1] * 50, ["no", "yes"] * 25
    columns = (Column("code", "category", categories=(str(2**53), str(2**53 + 1))), Column("y", "label"))
    schema = Schema("t", "y", columns, ("no", "yes"), missing="separate")
    encoded = []
    for number, gap in enumerate(([], [None])):
        path = tmp_path / f"{number}.{'parquet' if write is parquet.write_table else 'feather'}"
        write(pa.table({"code": pa.array([*codes, *gap], pa.int64()), "y": labels + ["no"] * len(gap)}), path)
        encoded.append(read_dataset(path, schema=schema)[0].features)
    assert np.array_equal(encoded[0], encoded[1][:50])


def test_floats_tell_no_large_numbers_apart_whatever_they_come_in() -> None:
    ids = np.repeat(2**53 + np.arange(15), 4).astype(float)
    model = DPLogisticRegression(classes=["no", "yes"], max_rows_per_unit=8)
    for groups in (ids, ids.tolist(), pd.Series(ids), pd.Series(ids, dtype="Float64"), pd.Series(ids.astype(np.float32))):
        with pytest.raises(ValueError, match="several are one and the same"):
            model.fit(X, Y, groups=groups)
    with pytest.raises(ValueError, match="several are one and the same"):
        model.fit(X, Y, groups=pd.Series([16777217.0, 3.0] * 30, dtype=np.float32))
    model.fit(X, Y, groups=pd.Series([3.0, 4.0] * 30))
    schema = Schema("t", "y", (Column("a", "number", range=(0.0, 1.0)), Column("y", "label"), Column("id", "ignore")),
                    ("no", "yes"), unit="id")  # fmt: skip
    with pytest.raises(SchemaError, match="several are one and the same"):
        Dataset.of(pd.DataFrame({"a": X[:, 0], "y": Y, "id": ids}), schema)


def test_moments_read_the_same_beside_a_text() -> None:
    stamps = pd.Series(pd.date_range("2024-01-31 10:20:30.123456789", periods=3, tz="Europe/Berlin"))
    alone = moments(stamps, "%d.%m.%Y")
    beside = moments(pd.Series([*stamps, "unknown", None], dtype=object), "%d.%m.%Y")
    assert beside[:3].tolist() == alone.tolist() and beside[3:].isna().all()
    days = moments(pd.Series([stamps[0].date(), "02.02.2024", np.datetime64("2024-02-03"), pd.NaT], dtype=object), "%d.%m.%Y")
    assert days.dt.day.tolist()[:3] == [31, 2, 3] and days.isna()[3]


def test_a_table_is_fitted_with_all_that_belongs_to_it() -> None:
    frame = pd.DataFrame({"who": np.arange(60) // 3, "x": X[:, 0], "y": Y})
    draft = propose(frame, "y", unit="who")
    data = Dataset.of(frame, confirmed(draft))
    model = data.fit(DPLogisticRegression(classes=["no", "yes"], max_rows_per_unit=data.unit.max_rows))
    assert model.certificate_.of_persons and model.certificate_.status == "certified"
    with pytest.raises(ValueError, match="max_rows_per_unit"):
        data.fit(DPLogisticRegression(classes=["no", "yes"]))
    claimed = Dataset.of(frame, propose(frame, "y")).fit(DPLogisticRegression(classes=["no", "yes"]))
    assert claimed.certificate_.status == "claimed" and SpendLog.current().charges()[-1].claimed


def test_dates_outside_their_range_are_counted() -> None:
    columns = (Column("day", "date", ("2020-01-01", "2021-01-01"), parts=("year",)), Column("y", "label"))
    frame = pd.DataFrame({"day": ["2020-05-01", "2031-05-01", "2019-12-31", None], "y": ["a", "b", "a", "b"]})
    assert Survey.of(frame, Schema("t", "y", columns, ("a", "b"), missing="separate")).outside == {"day": 2}


def test_answers_say_which_entries_were_clipped(tmp_path: Path) -> None:
    columns = (
        Column("x", "number", (0.0, 1.0)),
        Column("day", "date", ("2020-01-01", "2021-01-01"), parts=("year",)),
        Column("y", "label"),
    )
    schema = Schema("t", "y", columns, ("no", "yes"), missing="middle")
    table, stated, model, answers = (tmp_path / name for name in ("t.csv", "s.json", "m.json", "a.csv"))
    frame = pd.DataFrame({"x": X[:, 0], "day": "2020-05-01", "y": Y})
    frame.to_csv(table, index=False)
    stated.write_text(schema.to_json())
    dperm("train", table, "--schema", stated, "-o", model)
    pd.DataFrame({"x": ["0.5", "a", "7", ""], "day": ["2031-01-01", "2020-02-02", "2019-01-01", ""]}).to_csv(table, index=False)
    dperm("predict", model, table, "--on-error", "skip", "-o", answers)
    said = pd.read_csv(answers)["taken at the end of its range"]
    assert said.fillna("").tolist() == ["day", "", "x, day", ""]


def test_a_missing_number_changes_no_other() -> None:
    """Whole numbers beyond 2⁵³ are ids, and one gap must not round them."""
    large = [2**53 + 1, 2**53 + 3]
    for extra in ([], [None]):
        frame = as_frame(pa.table({"id": pa.array([*large, *extra], type=pa.int64())}))
        assert [int(value) for value in frame["id"][:2]] == large
