"""What the sixth review found, each as it was found."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from numpy.typing import NDArray
from pyarrow import feather, parquet
from sklearn.compose import TransformedTargetRegressor
from sklearn.ensemble import StackingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from dperm.data import Dataset, Schema, SchemaError, confirmed, read_dataset
from dperm.data.moments import moments
from dperm.data.proposing import propose
from dperm.data.schema import Column
from dperm.data.survey import Survey
from dperm.estimators import DPLogisticRegression, DPRidge, DPSearch
from dperm.objectives import LinearObjective, Logistic
from dperm.privacy import Certificate, Relation
from dperm.release import SpendLog
from dperm.report.card import Card
from dperm.report.refits import Refits
from dperm.report.released import release_class_scores
from helpers.commands import dperm

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
    assert "indices of features, 1-3, were read off the data" in " ".join(dperm(*train).stdout.split())
    assert "claimed" in dperm(*train).stdout
    assert "is (1, 1e-05)-differentially private" in dperm(*train, "--indices", "1-5").stdout
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


def grouped(**settings: Any) -> Certificate:
    groups = np.repeat(np.arange(15), 4)
    return DPLogisticRegression(classes=["no", "yes"], person_rows=4, **settings).fit(X, Y, groups=groups).certificate_


def test_persons_stay_persons_however_deep_certificates_are_composed() -> None:
    one = Certificate.of_all([grouped(), grouped(mechanism="output")])
    twice = Certificate.of_all([grouped(), grouped()])
    first, second = twice.public_facts
    assert second == f"{first} (2)"
    both = Certificate.of_all([one, Certificate.of_all([grouped(), grouped()])])
    assert both.of_persons and "person" in Card(both, "t").neighbours
    alone = DPLogisticRegression(classes=["no", "yes"]).fit(X, Y).certificate_
    for composed in (one, both):
        with pytest.raises(ValueError, match="some are of records"):
            Certificate.of_all([composed, alone])


def test_a_seed_is_told_of_what_is_only_claimed_too() -> None:
    certificate = DPLogisticRegression(classes=["no", "yes"], random_state=0).fit(X, Y).certificate_
    claimed = certificate.only_claimed("ranges were read off the data")
    claimed.verify()
    assert claimed.status == "not private" and not claimed.private and "NOT PRIVATE" in str(claimed)
    assert not Certificate.of_all([claimed, claimed]).private
    assert Certificate.from_json(claimed.to_json()) == claimed


def test_what_was_only_claimed_is_not_added_up(tmp_path: Path) -> None:
    people = tmp_path / "people.csv"
    pd.DataFrame({"age": X[:, 0] * 100, "paid": Y}).to_csv(people, index=False)
    dperm("train", people, "--target", "paid", "--accept-proposed", "--epsilon", "3", "-o", tmp_path / "a.json")
    assert SpendLog.current().charges()[0].claimed
    assert SpendLog.current().total(1e-5) == {Relation.ADD_OR_REMOVE_ONE: np.inf}
    dperm("data", "propose", people, "--target", "paid", "-o", tmp_path / "s.json")
    dperm("data", "confirm", tmp_path / "s.json")
    model = tmp_path / "b.json"
    dperm("train", people, "--schema", tmp_path / "s.json", "-o", model)
    assert [bool(charge.claimed) for charge in SpendLog.current().charges()] == [True, False]
    card = json.loads(dperm("card", model, "--budget", "5", "--json", "-o", tmp_path / "card.html").stdout)
    assert "only claimed" in card["spent"]["unknown"] and card["spent"]["epsilon"] is None
    assert "1 of the 2 charged" in dperm("account", "--log").stdout


def test_claims_of_the_caller_s_own_are_marked() -> None:
    frame = pd.DataFrame({"age": X[:, 0] * 100, "paid": Y})
    data = Dataset.of(frame, propose(frame, "paid"))
    with data.charging():
        DPLogisticRegression(classes=["no", "yes"]).fit(data.features, data.targets)
    DPLogisticRegression(classes=["no", "yes"]).fit(data.features, data.targets)
    charges = SpendLog.current().charges()
    assert ["read off the data" in charge.claimed for charge in charges] == [True, False]


def test_fits_of_a_progress_and_of_a_scoring_are_charged() -> None:
    def another(*_: Any) -> float:
        DPLogisticRegression(classes=["no", "yes"]).fit(X, Y)
        return 0.5

    model = DPLogisticRegression(classes=["no", "yes"]).fit(X, Y)
    Refits.of(model, Dataset("t", X, Y, ("u", "v"), ("no", "yes"), None), 3, progress=lambda done, count: print(another()))
    assert len(SpendLog.current().charges()) == 1 + 3
    found = DPSearch(model, {"data_norm": [1.0, 2.0]}, epsilon=1.0, how="each once", scoring=another).fit(X, Y, held_out=(X, Y))
    assert found.how_ == "each once"
    assert len(SpendLog.current().charges()) == 4 + 1 + 2


def test_what_else_learns_around_an_estimator_is_warned_of() -> None:
    scaled = TransformedTargetRegressor(DPRidge(), transformer=StandardScaler())
    with pytest.warns(UserWarning, match="StandardScaler"):
        scaled.fit(X, X[:, 0])
    stacked = StackingClassifier([("one", DPLogisticRegression(classes=[0, 1]))], LogisticRegression(), cv=2)
    with pytest.warns(UserWarning, match="StackingClassifier"):
        stacked.fit(X, Y)


def test_a_search_states_the_weights_of_classes() -> None:
    estimator = DPLogisticRegression(classes=["no", "yes"], class_weight={"no": 1.0, "yes": 2.0})
    found = DPSearch(estimator, {"data_norm": [1.0, 2.0]}, epsilon=1.0).fit(X, Y, held_out=(X, Y))
    assert any(item.key == "class weights" for item in found.certificate_.assumptions)


def test_no_range_of_an_array_s_targets_bounds_what_is_released(tmp_path: Path) -> None:
    for name in ("a", "b"):
        np.savez(tmp_path / f"{name}.npz", X=X, y=X[:, 0] * 7.3)
    model = tmp_path / "m.json"
    dperm("train", tmp_path / "a.npz", "--model", "ridge", "-o", model)
    charges = len(SpendLog.current().charges())
    evaluate = ("evaluate", model, tmp_path / "b.npz", "--test-data", "released", "--epsilon", "1", "-o", tmp_path / "s.json")
    assert "public range" in dperm(*evaluate, expect=1).stderr
    assert len(SpendLog.current().charges()) == charges


def test_floats_tell_no_large_numbers_apart_whatever_they_come_in() -> None:
    ids = np.repeat(2**53 + np.arange(15), 4).astype(float)
    model = DPLogisticRegression(classes=["no", "yes"], person_rows=8)
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


def test_persons_of_released_scores_are_told_apart_as_elsewhere() -> None:
    truth = np.zeros(1000, dtype=np.intp)
    settings: dict[str, Any] = {"epsilon": 8.0, "delta": 1e-6, "random_state": 0, "label": ""}
    one = release_class_scores(truth, truth, None, ["a", "b"], persons=np.array([1] * 999 + ["1"], dtype=object), **settings)
    other = release_class_scores(truth[:999], truth[:999], None, ["a", "b"], persons=np.ones(999, dtype=int), **settings)
    assert abs(one.whole.records - other.whole.records) <= 1 and one.whole.records < 50


def test_moments_read_the_same_beside_a_text() -> None:
    stamps = pd.Series(pd.date_range("2024-01-31 10:20:30.123456789", periods=3, tz="Europe/Berlin"))
    alone = moments(stamps, "%d.%m.%Y")
    beside = moments(pd.Series([*stamps, "unknown", None], dtype=object), "%d.%m.%Y")
    assert beside[:3].tolist() == alone.tolist() and beside[3:].isna().all()
    days = moments(pd.Series([stamps[0].date(), "02.02.2024", np.datetime64("2024-02-03"), pd.NaT], dtype=object), "%d.%m.%Y")
    assert days.dt.day.tolist()[:3] == [31, 2, 3] and days.isna()[3]


def test_no_bound_is_printed_below_itself() -> None:
    assert "ε = 16.6758 " in dperm("account", "--noise", "0.33333").stdout


# What a newcomer's trial found


def understood(values: Any, name: str = "x") -> Column:
    values = list(values)
    labels = ["a", "b"] * (len(values) // 2)
    return propose(pd.DataFrame({name: values, "other": labels, "y": labels}), "y").columns[0]


def test_texts_of_few_rows_are_no_categories() -> None:
    column = understood(["north"] * 700 + ["south"] * 295 + ["10115"] * 3 + ["10117"] * 2)
    assert column.categories == ("north", "south") and column.other
    assert "2 in less than 10 rows each are no category of their own" in column.note
    assert understood([f"zip{number // 3}" for number in range(3000)]).type == "ignore"
    assert understood(["a", "b"] * 10).categories == ("a", "b")  # of small tables


def test_codes_within_the_range_are_asked_about() -> None:
    amounts = np.random.default_rng(0).uniform(200, 3000, 940).round(2).tolist()
    assert "does 999 stand for a missing value?" in understood([*amounts, *[999] * 60]).note
    assert "999" not in understood([*amounts, *[999] * 2, *[1200] * 58]).note
    assert "does 9 stand for a missing value?" in understood([0, 1] * 90 + [9] * 20).note
    assert "stand for" not in understood(list(range(10)) * 20).note


def test_times_of_day_are_hours() -> None:
    for times in (["09:30", "23:59", "00:00", "12:15"] * 50, ["09:30:10", "23:59:00", "01:00:00", "12:15:09"] * 50):
        column = understood(times)
        assert (column.type, column.parts, column.note) == ("date", ("hour",), "times of day")
    frame = pd.DataFrame({"at": ["06:00", "18:00"] * 100, "y": ["a", "b"] * 100})
    features = Dataset.of(frame, propose(frame, "y")).features
    assert len(features) == 200 and np.isfinite(features).all() and np.ptp(features, axis=0).max() >= 0.5


def test_what_a_proposal_asks_is_answered_before_it_is_public() -> None:
    frame = pd.DataFrame({"case_id": np.repeat(np.arange(100) + 7000, 3), "dose": [1, 2, 999] * 100, "y": ["a", "b", "a"] * 100})
    draft = propose(frame, "y")
    for question in ("does it tell persons apart?", "does 999 stand for a missing value?"):
        with pytest.raises(SchemaError, match=question.replace("?", r"\?")):
            confirmed(draft)
    assert not confirmed(draft, answered=True).proposed
    labels = pd.DataFrame({"x": np.arange(300) % 7, "y": ["yes", "no"] * 148 + ["Q", "Q", "?", "?"]})
    assert "is 'Q', in few rows, a label of its own?" in propose(labels, "y").columns[1].note


def test_a_table_is_fitted_with_all_that_belongs_to_it() -> None:
    frame = pd.DataFrame({"who": np.arange(60) // 3, "x": X[:, 0], "y": Y})
    draft = propose(frame, "y", unit="who")
    data = Dataset.of(frame, confirmed(draft))
    model = data.fit(DPLogisticRegression(classes=["no", "yes"], person_rows=data.person_rows))
    assert model.certificate_.of_persons and model.certificate_.status == "certified"
    with pytest.raises(ValueError, match="person_rows"):
        data.fit(DPLogisticRegression(classes=["no", "yes"]))
    claimed = Dataset.of(frame, propose(frame, "y")).fit(DPLogisticRegression(classes=["no", "yes"]))
    assert claimed.certificate_.status == "claimed" and SpendLog.current().charges()[-1].claimed


def test_dates_outside_their_range_are_counted() -> None:
    columns = (Column("day", "date", ("2020-01-01", "2021-01-01"), parts=("year",)), Column("y", "label"))
    frame = pd.DataFrame({"day": ["2020-05-01", "2031-05-01", "2019-12-31", None], "y": ["a", "b", "a", "b"]})
    assert Survey.of(frame, Schema("t", "y", columns, ("a", "b"), missing="separate")).outside == {"day": 2}


def test_a_score_that_noise_may_leave_undefined_is_hidden() -> None:
    truth = np.zeros(400, dtype=np.intp)
    truth[:3] = 1
    likely = np.linspace(0, 1, 400)
    found = release_class_scores(
        truth, (likely > 0.5).astype(np.intp), likely, ["no", "yes"], epsilon=1.5, random_state=0,
        groups=truth, group_names=["a", "b"],
    )  # fmt: skip
    for scores, widths in ((found.whole, found.widths), *((found.parts[name], found.part_widths[name]) for name in "ab")):
        shown = {**scores.scores, **{f"recall of {name}": value for name, value in scores.recalls.items()}}
        assert all(np.isfinite(widths[name]) for name, value in shown.items() if np.isfinite(value))
    assert np.isnan(found.whole.scores["AUC"]) and np.isfinite(found.whole.scores["accuracy"])


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
