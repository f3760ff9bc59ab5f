"""Schemas found privately: what is found, what that costs, and what one record can do to it."""

from __future__ import annotations

import functools
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
from typer.testing import CliRunner

from dperm.audit import Pair, Training, replay
from dperm.cli import application
from dperm.data import DataError, Dataset, Schema, SchemaError, find
from dperm.data.dataset import refuse_search_under, search_certificate
from dperm.data.schema.privacy_units import row_units
from dperm.data.schema_search import private_search as module
from dperm.data.schema_search.counting import GRID, ColumnCounts, added, counted, values_added, values_counted
from dperm.estimators import DPLogisticRegression, TableEncoder, model_from_json
from dperm.privacy import Certificate, Provenance, Relation, epsilon
from dperm.release import Noise, SpendLog
from helpers.asked import smaller
from helpers.halving import is_found, places_in
from helpers.said import flat

RNG = np.random.default_rng(0)
COUNT = 4000
AGES = RNG.integers(18, 91, COUNT)
FRAME = pandas.DataFrame(
    {
        "age": AGES,
        "income": np.where(RNG.random(COUNT) < 0.7, 0, np.round(RNG.lognormal(9, 1, COUNT))),
        "loss": -RNG.exponential(50, COUNT).round(2),
        "ward": RNG.choice(["A", "B", "C"], COUNT, p=[0.5, 0.49, 0.01]),
        "postcode": [f"0{number}" for number in RNG.integers(10, 13, COUNT)],
        "note": [f"seen on day {number}" for number in range(COUNT)],
        "empty": np.nan,
        "sick": RNG.integers(0, 2, COUNT),
    }
)


def columns(schema: Schema) -> dict[str, Any]:
    return {column.name: column for column in schema.columns}


@pytest.mark.parametrize("relation", ["add_or_remove_one", "replace_one"])
def test_what_is_found_is_charged_and_fits(relation: str) -> None:
    schema = find(FRAME, "sick", 2.0, relation=relation, name="people")
    found = columns(schema)
    assert found["age"].type == "number"
    assert 15 <= found["age"].range[0] <= 20
    assert 80 <= found["age"].range[1] <= 100
    assert found["income"].range[0] == 0 and 10_000 <= found["income"].range[1] <= 200_000
    assert -400 <= found["loss"].range[0] <= -100 and -10 <= found["loss"].range[1] <= 0
    assert {"A", "B"} <= set(found["ward"].categories) and found["ward"].other
    assert set(found["postcode"].categories) == {"010", "011", "012"}  # codes are no numbers
    assert found["note"].type == found["empty"].type == "ignore"
    assert schema.classes == ("0", "1") and not schema.proposed
    refuse_search_under(schema, relation, 1e-5)
    certificate = search_certificate(schema)
    assert certificate is not None
    assert certificate.status == "certified"
    assert 1.9 < float(certificate.epsilon or 0) <= 2.0
    (charge,) = SpendLog.current().charges()
    assert charge.event == certificate.event and charge.label == "people"
    assert Schema.from_dict(json.loads(schema.to_json())) == schema
    dataset = Dataset.of(FRAME, schema)
    assert len(dataset) == COUNT and np.linalg.norm(dataset.features, axis=1).max() <= math.sqrt(len(schema.columns))
    rare = dataset.features[:, schema.features.index("ward=(other)")]
    assert rare.sum() == (FRAME.ward == "C").sum() or "C" in found["ward"].categories


def test_targets_that_are_numbers_and_labels_that_are_stated() -> None:
    assert find(FRAME, "income", 2.0).target_range is not None
    assert find(FRAME, "ward", 2.0, classes=["A", "B", "C"]).classes == ("A", "B", "C")
    assert find(FRAME, "ward", 2.0).classes[:2] == ("A", "B")


def test_little_budget_finds_little_and_says_so() -> None:
    small = FRAME.iloc[:30]
    with pytest.raises(SchemaError, match=r"(hardly anything|common enough)"):
        find(small, "sick", 0.01)
    assert len(SpendLog.current().charges()) == 1  # it was looked at
    much = columns(find(FRAME, "sick", 8.0))
    assert set(much["ward"].categories) == {"A", "B", "C"}


def test_what_cannot_be_used_is_refused_before_a_charge() -> None:
    for arguments, said in (
        ((FRAME, "gone", 1.0), "target 'gone'"),
        ((FRAME[["sick"]], "sick", 1.0), "at least one column"),
        ((FRAME, "sick", -1.0), "epsilon"),
        ((FRAME, "sick", 1.0, 0.0), "delta"),
        ((FRAME, "", 1.0), "target ''"),
        ((FRAME.set_axis(range(8), axis=1), "sick", 1.0), "with names"),
        ((FRAME.set_axis([*"aabcdef", "sick"], axis=1), "sick", 1.0), "each once"),
    ):
        with pytest.raises(ValueError, match=said):
            find(*arguments)
    for wrong in ({"unit": "sick"}, {"classes": ["yes"]}, {"classes": "yes"}):
        with pytest.raises(SchemaError, match=r"(beside it|at least two labels)"):
            find(FRAME, "sick", 1.0, **wrong)  # pyright: ignore[reportArgumentType]
    with pytest.raises(SchemaError, match="unit 'who'"):
        find(FRAME, "sick", 1.0, unit="who")
    with pytest.raises(SchemaError, match="told whose each row is"):
        find(FRAME.assign(who=[None, *range(COUNT - 1)]), "sick", 1.0, unit="who")
    assert not SpendLog.current().charges()


def test_one_row_of_a_person_is_looked_at() -> None:
    """Two persons with a thousand rows each, of another world: nothing of them is found."""
    many = pandas.DataFrame({"age": 5e6, "ward": "Z", "sick": 1, "who": np.repeat(["x", "y"], 1000)})
    frame = pandas.concat([FRAME[["age", "ward", "sick"]].assign(who=np.arange(COUNT).astype(str)), many])
    schema = find(frame, "sick", 4.0, unit="who")
    assert columns(schema)["age"].range[1] <= 100 and "Z" not in columns(schema)["ward"].categories
    assert schema.unit == "who" and "all their rows" in flat(search_certificate(schema))
    with pytest.raises(SchemaError, match="unit that this schema was found by"):
        search_certificate(replace(schema, unit=""))


def test_a_person_is_one_however_the_id_is_written() -> None:
    ids = np.array([f"p{number}" for number in range(COUNT)], dtype=object)
    ids[:40] = [" " * space + "bob" for space in range(40)]
    frame = FRAME[["age", "sick"]].assign(who=ids)
    seen: list[int] = []
    real = module._kinds

    def kinds(columns: Any, *rest: Any) -> Any:
        seen.append(columns["age"].numbers)
        return real(columns, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_kinds", kinds)
        schema = find(frame, "sick", 2.0, unit="who")
    assert seen == [COUNT - 39] and row_units(schema, frame).max() + 1 == COUNT - 39
    with pytest.raises(SchemaError, match="told whose each row is"):
        find(frame.assign(who=np.where(ids == "p77", " ", ids)), "sick", 2.0, unit="who")


def test_entries_that_do_not_fit_stop_nobody() -> None:
    frame = FRAME[["age", "ward", "sick"]].astype(object)
    frame.loc[0, "age"], frame.loc[1, "age"], frame.loc[2, "sick"] = "unknown", np.inf, "perhaps"
    frame.loc[3, "ward"] = "x" * 500
    frame.loc[4:400, "ward"] = "(other)"  # common, and what others are called
    schema = find(frame, "sick", 4.0)
    dataset = Dataset.of(frame, schema)
    assert len(dataset) == COUNT - 1 and np.isfinite(dataset.features).all()
    assert dataset.features[2, schema.features.index("ward=(other)")] == 1  # row 3: the one before has no label
    model = DPLogisticRegression(epsilon=1.0, classes=list(schema.classes)).fit(dataset.features, dataset.targets)
    whole = dataset.certified(model.certificate_)
    assert float(whole.epsilon or 0) > 1.0 and "found privately with the schema" in flat(whole)
    with pytest.raises(ValueError, match="a schema that is public"):
        TableEncoder(schema).fit(frame)
    with pytest.raises(SchemaError, match="Expected a delta above 1e-06"):
        refuse_search_under(schema, "add_or_remove_one", 1e-7)
    with pytest.raises(SchemaError, match="Expected found to be"):
        Schema.from_dict({**json.loads(schema.to_json()), "found": {}})


def test_a_value_that_one_record_has_is_kept_hardly_ever() -> None:
    """Never seen; `test_finding_moves.py` has the chance."""
    frame = FRAME[["age", "sick"]].assign(ward=["only one", *["A"] * (COUNT - 1)])
    assert all("only one" not in columns(find(frame, "sick", 2.0))["ward"].categories for _ in range(20))


def test_ends_are_round_and_in_order() -> None:
    assert len(np.unique(GRID)) == len(GRID)
    assert (np.diff(GRID) > 0).all()
    assert 0.0 in GRID
    assert np.array_equal(GRID, -GRID[::-1])
    for values, low, high in (
        ([3.0] * 1000, 3, 3),
        (np.linspace(-1, 1, 1000), -1, 1),
        (np.full(1000, 1e20), GRID[-1], GRID[-1]),
    ):
        plan = module._Plan(1e-9, 1e-5, Relation.ADD_OR_REMOVE_ONE)

        class Exact:
            def release(self, query: Any, noise: Noise) -> Any:
                return query

        ((found_low, found_high),) = module._ends([ColumnCounts.of(pandas.Series(values), ".")], Exact(), plan)  # pyright: ignore[reportArgumentType]
        assert (found_low, found_high) == (low, high)


def test_counts_add_up_over_parts() -> None:
    names = list(FRAME.columns)
    whole = counted(FRAME, names, ".")
    cuts = [FRAME.iloc[start : start + 900] for start in range(0, COUNT, 900)] + [FRAME.iloc[:0]]
    parts = functools.reduce(added, (counted(part, names, ".") for part in cuts))
    for name in names:
        one, other = whole[name], parts[name]
        assert (one.numbers, one.others, one.missing) == (other.numbers, other.others, other.missing)
        assert np.array_equal(one.below, other.below) and np.array_equal(one.above, other.above)
    for together in (False, True):
        asked = dict.fromkeys(names, together)
        texts = values_counted(FRAME, asked, ".")
        joined = functools.reduce(values_added, (values_counted(part, asked, ".") for part in cuts))
        for name in names:
            assert texts[name].to_dict() == joined[name].to_dict() and list(texts[name].index) == list(joined[name].index)


def test_numbers_that_are_not_whole_are_counted_together() -> None:
    column = pandas.Series(["0.5", "1", "1.0", "a", "0.25", "007.5", "1e-3", "(other)", None, "inf", "-2", "1e300"])
    frame = pandas.DataFrame({"x": column})
    apart, together = (values_counted(frame, {"x": asked}, ".")["x"].to_dict() for asked in (False, True))
    assert together.pop("(other)") == 3
    assert {**together, "0.5": 1, "0.25": 1, "1e-3": 1} == apart
    assert sum(apart.values()) == 10  # neither what is missing nor the word for others
    comma = values_counted(pandas.DataFrame({"x": ["0,5", "1,0", "2"]}), {"x": True}, ",")["x"].to_dict()
    assert comma == {"(other)": 1, "1,0": 1, "2": 1}


def test_a_target_that_is_often_zero_is_no_label() -> None:
    """Amounts: most are 0, many are 100, and the others are anything between."""
    rng = np.random.default_rng(0)
    paid = np.where(rng.random(COUNT) < 0.5, 0.0, np.where(rng.random(COUNT) < 0.3, 100.0, rng.uniform(0, 500, COUNT)))
    schema = find(FRAME[["age", "ward"]].assign(paid=paid), "paid", 4.0)
    assert not schema.classes
    assert schema.target_range is not None
    assert schema.target_range.high >= 400


def test_files_are_read_a_part_at_a_time(tmp_path: Path) -> None:
    frame = FRAME.astype(str).where(FRAME.notna(), None)
    (tmp_path / "people").mkdir()
    for number, start in enumerate(range(0, COUNT, 1500)):
        frame.iloc[start : start + 1500].to_parquet(tmp_path / "people" / f"{number}.parquet")
    frame.to_feather(tmp_path / "people.arrow")
    here = find(frame, "sick", 2.0, name="people", random_state=3)
    seen: list[tuple[int, int]] = []
    for path in (tmp_path / "people", str(tmp_path / "people.arrow")):
        there = find(path, "sick", 2.0, name="people", random_state=3, progress=lambda *told: seen.append(told))
        assert (there.columns, there.classes, there.missing) == (here.columns, here.classes, here.missing)
        assert there.found is not None
        assert here.found is not None
        assert there.found["event"] == here.found["event"]
    assert seen.count((COUNT, COUNT)) == 4
    charges = len(SpendLog.current().charges())
    for path, unit, message in (
        (tmp_path / "people", "note", "several parts"),
        (tmp_path / "none", "", "No file"),
        (tmp_path / "people.csv", "", "No file"),
        (tmp_path, "", "Expected Parquet files in the folder"),
    ):
        with pytest.raises((SchemaError, DataError), match=message):
            find(path, "sick", 2.0, unit=unit)
    frame.to_csv(tmp_path / "people.csv")
    with pytest.raises(DataError, match="to read in parts, got"):
        find(tmp_path / "people.csv", "sick", 2.0)
    frame.iloc[:9].assign(age=9).to_parquet(tmp_path / "people" / "9.parquet")
    with pytest.raises(DataError, match="'age' to have one type in all files"):
        find(tmp_path / "people", "sick", 2.0)
    assert len(SpendLog.current().charges()) == charges


def test_the_command_finds_in_a_folder_of_files(tmp_path: Path) -> None:
    (tmp_path / "people").mkdir()
    for number in range(2):
        FRAME.iloc[number::2].to_parquet(tmp_path / "people" / f"{number}.parquet")
    command = ["data", "propose", str(tmp_path / "people"), "--target", "sick", "--epsilon", "2"]
    refused = CliRunner().invoke(application(), [*command, "--missing", "-9"])
    assert "Expected no missing to be stated" in str(refused.exception) and SpendLog.current().charges() == []
    done = CliRunner().invoke(application(), command)
    assert done.exit_code == 0, done.output
    assert f"people: {COUNT:,} rows of {len(FRAME.columns)} columns, read a part at a time." in " ".join(done.output.split())
    found = Schema.load(tmp_path / "people.schema.json")
    assert found.classes == ("0", "1") and found.found


def test_a_frame_of_dask_gives_the_same_schema() -> None:
    frames = pytest.importorskip("dask.dataframe")
    frame = FRAME.astype(str).where(FRAME.notna(), None)
    here = find(frame, "sick", 2.0, name="people", random_state=3)
    there = find(frames.from_pandas(frame, npartitions=5), "sick", 2.0, name="people", random_state=3)
    assert there.columns == here.columns and there.classes == here.classes == ("0", "1")
    assert here.found is not None
    assert there.found is not None
    assert there.found["event"] == here.found["event"]
    assert "parts" in json.dumps(there.found["assumptions"]) and len(SpendLog.current().charges()) == 2
    with pytest.raises(SchemaError, match="several parts"):
        find(frames.from_pandas(frame, npartitions=5), "sick", 2.0, unit="note")
    with pytest.raises(SchemaError, match="the target 'well'"):
        find(frames.from_pandas(frame, npartitions=5), "well", 2.0)
    assert len(SpendLog.current().charges()) == 2


# What one record can do


def training(relation: str, target: str = "labels") -> Training:
    """On arrays of texts: (n, columns), and a target of labels, or of "amounts", of which those that are not whole are counted
    together."""
    certificate = Certificate.issue(
        mechanism="schema", event=module._planned(1.0, 1e-5, Relation(relation)).event, delta=1e-5, provenance=Provenance.audit()
    )

    def run(data: Any, source: Any) -> Any:
        rows, labels = data
        frame = pandas.DataFrame(np.asarray(rows), columns=["a", "b", "c"]).assign(y=np.asarray(labels))
        try:
            schema = find(frame, "y", 1.0, relation=relation, random_state=source)
        except SchemaError as error:
            return {"said": str(error)}
        return {"found": [f"{column.name} {column.range} {column.categories}" for column in schema.columns]}

    # the first row is read as another kind in every column
    rows = np.array([["word", "7", "word"], *([str(n), "A" if n % 2 else "B", f"{n % 7}.5"] for n in range(1, 300))])
    yes, no, strange = ("yes", "no", "7") if target == "labels" else ("2", "0.25", "no")
    labels = np.array([strange, *(yes if number % 3 else no for number in range(1, 300))])
    others = [(["299", "A", "0.5"], no), (["5", "B", "3.5"], no), (rows[0], strange)]  # of values that others have
    pairs = [
        Pair.neighbour(Relation(relation), f"row {place}", (rows, labels), np.array(row), label)
        for place, (row, label) in enumerate(others)
    ]
    return Training("schema", certificate, run, replay_pairs=pairs, candidate_pairs=pairs)


@pytest.mark.fast_cases("replace_one-amounts", "add_or_remove_one-labels")
@pytest.mark.parametrize("target", ["labels", "amounts"])
@pytest.mark.parametrize("relation", ["add_or_remove_one", "replace_one"])
def test_replay_on_neighbours_of_every_kind_of_target(relation: str, target: str) -> None:
    result = replay(training(relation, target))
    assert result.verdict == "consistent" and 0.4 < result.details["largest_movement"] <= 1 + 1e-6


@pytest.mark.fast_cases("replace_one-labels")
@pytest.mark.parametrize("target", ["labels", "amounts"])
@pytest.mark.parametrize("relation", ["add_or_remove_one", "replace_one"])
def test_half_of_any_sensitivity_is_refuted(relation: str, target: str) -> None:
    """Of kinds, of ends and of values."""
    for place in places_in("data/schema_search/private_search.py"):
        assert is_found(training(relation, target), place), place


def test_noise_for_one_column_is_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts of all columns released with the noise of one of them."""
    right = module._ends

    def wrong(columns: Any, channel: Any, plan: Any) -> Any:
        class Louder:
            def release(self, query: Any, noise: Noise) -> Any:
                return channel.release(query, smaller(noise, 1 / len(query)))

        return right(columns, Louder(), plan)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(module, "_ends", wrong)
    result = replay(training("add_or_remove_one"))
    assert result.verdict == "refuted" and "movement" in result.details["kinds"]


# The command line


def test_the_command_finds_and_models_pay_for_it(tmp_path: Path) -> None:
    runner = CliRunner()
    FRAME.to_csv(tmp_path / "people.csv", index=False)
    table, schema, model = (str(tmp_path / name) for name in ("people.csv", "found.json", "model.json"))
    proposed = runner.invoke(application(), ["data", "propose", table, "--target", "sick", "--epsilon", "0.5", "-o", schema])
    assert proposed.exit_code == 0, proposed.output
    assert "Found privately, at epsilon = 0.5" in " ".join(proposed.output.split())
    trained = runner.invoke(application(), ["train", table, "--schema", schema, "--epsilon", "1", "-o", model])
    assert trained.exit_code == 0, trained.output
    fitted, extra = model_from_json(Path(model).read_text())
    certificate = fitted.certificate_
    assert certificate.status == "certified" and 1.0 < float(certificate.epsilon or 0) < 1.5
    assert "schema from noisy counts" in certificate.mechanism and extra["schema"]["found"]
    charges = [charge.event for charge in SpendLog.current().charges()]
    assert len(charges) == 2 and epsilon(certificate.event, 1e-5) == pytest.approx(certificate.epsilon)
    other = runner.invoke(application(), ["train", table, "--schema", schema, "--relation", "replace_one", "-o", model])
    assert other.exit_code != 0 and "under which this schema was found" in str(other.exception)
    few = [
        "--mechanisms",
        "objective-sharp",
        "--epsilons",
        "1",
        "--repeats",
        "2",
        "--delta",
        "1e-7",
        "--output",
        str(tmp_path / "r.html"),
    ]
    assert "Expected a larger delta" in str(runner.invoke(application(), ["compare", table, "--schema", schema, *few]).exception)
    lower = runner.invoke(application(), ["train", table, "--schema", schema, "--delta", "1e-7", "-o", model])
    assert lower.exit_code != 0 and "Expected a delta above" in str(lower.exception)
    assert len(SpendLog.current().charges()) == 2  # nothing was charged for either
    drawn = runner.invoke(application(), ["effects", model, "-o", str(tmp_path / "effects.html")])
    assert drawn.exit_code == 0, drawn.output
    page, few = (
        str(tmp_path / "report.html"),
        ["--mechanisms", "objective-sharp", "--epsilons", "1", "--repeats", "2", "--jobs", "1"],
    )
    compared = runner.invoke(application(), ["compare", table, "--schema", schema, *few, "--output", page])
    assert compared.exit_code == 0, compared.output
    assert "a schema from noisy counts, then objective" in Path(page).read_text()
    audited = runner.invoke(application(), ["audit", model, "--trials", "50", "-o", str(tmp_path / "audit.json")])
    assert audited.exit_code == 0, audited.output
    stated = ["data", "propose", table, "--target", "sick", "--classes", "0,1", "-o", schema]
    assert runner.invoke(application(), stated).exit_code != 0
    assert runner.invoke(application(), [*stated, "--epsilon", "1"]).exit_code == 0


@pytest.mark.filterwarnings("ignore:The budget of 'people' is spent")
def test_a_plan_of_such_a_model_is_of_its_search_and_its_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = CliRunner()
    FRAME.to_csv(tmp_path / "people.csv", index=False)
    table, schema, model = (str(tmp_path / name) for name in ("people.csv", "found.json", "model.json"))
    search = ["data", "propose", table, "--target", "sick", "--epsilon", "0.5", "-o", schema]
    train = ["train", table, "--schema", schema, "--epsilon", "1", "--public-size", str(COUNT), "-o", model]
    for command in (search, train):
        assert runner.invoke(application(), command).exit_code == 0
    monkeypatch.setenv("DPERM_SPEND_LOG", str(tmp_path / "planned.db"))
    planned = runner.invoke(application(), ["budget", "create", "people", "--epsilon", "2", "--delta", "1e-4", "--plan", model])
    assert planned.exit_code == 0, planned.output
    assert "plan of 2 releases" in " ".join(planned.output.split())
    for command in (search, train):
        done = runner.invoke(application(), command)
        assert done.exit_code == 0, done.exception
    assert "spent: 2 of 2 releases" in " ".join(runner.invoke(application(), ["budget", "show"]).output.split())
    assert runner.invoke(application(), search).exit_code != 0


def test_gaps_are_a_category_of_their_own_where_there_are_some() -> None:
    """Whether values are missing is told by a third noisy count of each column, within the same length."""
    assert find(FRAME[["age", "ward", "sick"]], "sick", 4.0).missing == "middle"
    frame = FRAME[["age", "ward", "sick"]].astype(object)
    frame.loc[frame.index % 3 == 0, "age"] = np.nan
    frame.loc[frame.index % 3 == 1, "ward"] = " "
    schema = find(frame, "sick", 4.0)
    assert schema.missing == "separate" and schema.features[-1].endswith("missing")
    dataset = Dataset.of(frame, schema)
    assert len(dataset) == COUNT and dataset.features[0, schema.features.index("age missing")] > 0
    labels = FRAME[["age", "ward"]].astype(object).assign(sick=np.where(FRAME.index % 2 == 0, None, FRAME["sick"].astype(object)))
    assert find(labels, "sick", 4.0).missing == "middle"  # of labels alone: such records are left out


@pytest.mark.parametrize("replaced", [False, True])
def test_no_record_moves_the_first_counts_by_more_than_is_charged(replaced: bool) -> None:
    entries = [5.0, "5", "a", "A", None, np.nan, "", " ", "007", "x" * 500, "(other)", np.inf, "nan", True]
    columns = {f"c{place}": place for place in range(3)}

    def counts(values: list[Any]) -> np.ndarray:
        read = counted(pandas.DataFrame(dict.fromkeys(columns, pandas.Series(values, dtype=object))), list(columns), ".")
        return np.array([[column.numbers, column.others, column.missing] for column in read.values()])

    before = ["a", 1, None]
    for one in entries:
        more = counts([*before, one]) - counts(before)
        assert np.linalg.norm(more) <= np.sqrt(len(columns)) and (more >= 0).all()
        for other in entries[::4] if replaced else ():
            moved = counts([*before, one]) - counts([*before, other])
            assert np.linalg.norm(moved) <= np.sqrt(2 * len(columns)) * (1 + 1e-12)
