"""Persons with several rows through the front door: estimators, schemas and the command line; and what goes wrong."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
from typer.testing import CliRunner

from dperm.audit import Training, extreme_pairs, replay
from dperm.cli import application
from dperm.data import Schema, SchemaError, read_dataset
from dperm.data.schema.privacy_units import row_units
from dperm.estimators import (
    DPLasso,
    DPLinearSVC,
    DPLogisticRegression,
    DPPoissonRegressor,
    DPRidge,
    DPSearch,
    TableEncoder,
    model_from_json,
    model_to_json,
)
from dperm.gradient import PoissonRows
from dperm.mechanisms import Budget, Gradient, GradientPerturbation, Objective
from dperm.objectives import RECORD, LinearObjective, Logistic, PrivacyUnit, Task
from dperm.privacy import Certificate
from dperm.release import Channel, SpendLog
from dperm.report.card import Card, card_page
from dperm.report.deployment_registry import Deployment, registry_entry
from helpers.catalogue import DELTA, EPSILON
from helpers.estimators import all_estimators, learnable, made, network_estimators, parameters
from helpers.said import flat

RNG = np.random.default_rng(0)
PERSONS = 1500
GROUPS = RNG.permutation(np.repeat([f"p{number}" for number in range(PERSONS)], 1 + RNG.poisson(3, PERSONS)))
ROWS = RNG.normal(size=(len(GROUPS), 4)) / 2
SCORES = ROWS @ np.array([3.0, -2.0, 0.0, 1.0])
LABELS = np.where(SCORES + RNG.normal(size=len(GROUPS)) / 2 > 0, "yes", "no")


def classifier(**more: Any) -> DPLogisticRegression:
    return DPLogisticRegression(
        **{"epsilon": 2.0, "max_rows_per_unit": 6, "classes": ["no", "yes"], "public_size": PERSONS} | more
    )


@pytest.mark.parametrize("relation", ["add_or_remove_one", "replace_one"])
@pytest.mark.parametrize("mechanism", ["auto", "output", "gradient", Gradient(sampling="full"), "lssgd"])
def test_fits_of_persons(mechanism: Any, relation: str) -> None:
    model = classifier(mechanism=mechanism, relation=relation).fit(ROWS, LABELS, groups=GROUPS)
    assert model.score(ROWS, LABELS) > 0.75
    certificate = model.certificate_
    certificate.verify()
    what = "added or removed" if relation == "add_or_remove_one" else "replaced by any other"
    assert f"one person is {what} with all their rows" in flat(certificate)
    assert "at most 6 rows are used" in flat(certificate) and "number 1500 of persons" in flat(certificate)
    assert certificate.status == "certified"
    assert certificate.epsilon is not None
    assert 1.9 < certificate.epsilon <= 2.0
    again, _ = model_from_json(model_to_json(model))
    assert again.certificate_ == certificate and np.array_equal(again.predict(ROWS), model.predict(ROWS))
    assert again.max_rows_per_unit == 6


def test_rows_by_themselves_and_a_private_number_of_persons() -> None:
    rows = classifier(mechanism=Gradient(sampling="rows")).fit(ROWS, LABELS, groups=GROUPS)
    assert rows.score(ROWS, LABELS) > 0.75 and "Poisson, rows" in rows.certificate_.mechanism
    private = classifier(mechanism="output", public_size=None).fit(ROWS, LABELS, groups=GROUPS)
    assert abs(private.trace_["noisy_size"] - PERSONS) < 200
    with pytest.raises(ValueError, match="draw persons"):
        classifier(mechanism=Gradient(sampling="rows"), relation="replace_one").fit(ROWS, LABELS, groups=GROUPS)


@pytest.mark.parametrize("kind", [kind for kind in all_estimators() if "max_rows_per_unit" in parameters(kind)])
def test_every_estimator_that_takes_persons_protects_them(kind: type) -> None:
    rows, targets = learnable(kind, 60)
    model = made(kind, epsilon=2.0, delta=1e-3, max_rows_per_unit=3, public_size=20, classes=[0, 1])
    if kind in network_estimators():
        model.set_params(mechanism=Gradient(sampling="full", epochs=3))  # without a search for its noise
    certificate = model.fit(rows, targets, groups=np.arange(60) // 3).certificate_
    assert certificate.of_persons
    assert certificate.status == "certified"
    assert 0 < certificate.epsilon <= 2.0


def test_regressions_and_other_losses() -> None:
    targets = np.clip(SCORES / 5, -1, 1)
    assert DPRidge(epsilon=2.0, max_rows_per_unit=6).fit(ROWS, targets, groups=GROUPS).score(ROWS, targets) > 0.8
    assert DPLinearSVC(epsilon=2.0, max_rows_per_unit=6).fit(ROWS, LABELS, groups=GROUPS).score(ROWS, LABELS) > 0.75
    counts = RNG.poisson(np.exp(0.5 * ROWS[:, 0]))
    assert DPPoissonRegressor(epsilon=2.0, max_rows_per_unit=6, public_size=PERSONS).fit(ROWS, counts, groups=GROUPS).certificate_
    three = np.digitize(SCORES, [-1, 1])
    for mechanism in ("objective", "gradient"):
        assert classifier(mechanism=mechanism, classes=[0, 1, 2]).fit(ROWS, three, groups=GROUPS).score(ROWS, three) > 0.5


@pytest.mark.parametrize(
    ("mechanism", "name"),
    [
        (Gradient(sampling="importance", epochs=2), "importance"),
        (Gradient(sampling="balls_and_bins", epochs=2), "balls and bins"),
        ("individual", "individual accounting"),
        ("last-iterate", "last iterate"),
        ("frank-wolfe", "Frank–Wolfe"),
        ("coordinate", "coordinate"),
        ("accuracy_first", ""),
        ("bolt-on", ""),
        (Objective(calibration="kifer"), "kifer"),
    ],
)
def test_what_has_no_proof_is_refused_by_name(mechanism: Any, name: str) -> None:
    relation = "replace_one" if mechanism in ("last-iterate", "bolt-on") else "add_or_remove_one"
    with pytest.raises(ValueError, match=r"(one row a person|accuracy|passes)") as refusal:
        classifier(mechanism=mechanism, relation=relation).fit(ROWS, LABELS, groups=GROUPS)
    assert name in str(refusal.value) and not SpendLog.current().charges()
    # with one row each a person is a record, and it runs
    if name in ("importance", "balls and bins"):
        assert classifier(mechanism=mechanism, max_rows_per_unit=1).fit(ROWS, LABELS, groups=GROUPS).certificate_.epsilon


@pytest.mark.parametrize(
    ("settings", "groups", "said"),
    [
        ({}, None, "Expected groups with max_rows_per_unit"),
        ({"max_rows_per_unit": None}, GROUPS, "Expected max_rows_per_unit with groups"),
        ({}, GROUPS[1:], "one a row"),
        ({}, np.where(GROUPS == "p7", None, GROUPS), "are missing"),
        ({}, np.where(GROUPS == "p7", np.nan, 1.0), "are missing"),
        ({}, np.stack([GROUPS, GROUPS], axis=1), "one a row"),
        ({"max_rows_per_unit": 0}, GROUPS, "max_rows_per_unit"),
        ({"max_rows_per_unit": 10**6}, GROUPS, "at most 8,192"),
        ({"max_rows_per_unit": 2.5}, GROUPS, "max_rows_per_unit"),
        ({"relation": "replace_one", "public_size": len(GROUPS)}, GROUPS, f"public_size={PERSONS}, the number of persons"),
    ],
)
def test_groups_that_cannot_be_are_refused_before_a_charge(settings: dict[str, Any], groups: Any, said: str) -> None:
    with pytest.raises((ValueError, TypeError), match=said):
        classifier(**settings).fit(ROWS, LABELS, groups=groups)
    assert not SpendLog.current().charges()


def test_ids_that_would_not_tell_persons_apart_are_refused() -> None:
    large = 2.0**53 + 2 * np.arange(len(GROUPS))
    for groups, said in (
        (large, "floats so large"),
        (np.full(len(GROUPS), np.inf), "floats so large"),
        ("who", "one a row"),
        (3, "one a row"),
    ):
        with pytest.raises(ValueError, match=said):
            classifier().fit(ROWS, LABELS, groups=groups)
    frame = pandas.DataFrame(ROWS, columns=list("abcd"))
    with pytest.raises(ValueError, match="the index of X"):
        classifier().fit(frame, LABELS, groups=pandas.Series(GROUPS).sort_values())
    with pytest.warns(UserWarning, match="one person's"):
        classifier(public_size=None).fit(ROWS, LABELS, groups=np.zeros(len(GROUPS)))
    with pytest.raises(TypeError, match="max_rows_per_unit"):
        classifier(max_rows_per_unit=True).fit(ROWS, LABELS, groups=GROUPS)


def test_every_page_says_what_is_protected(tmp_path: Path) -> None:
    rows = classifier(mechanism=Gradient(sampling="rows")).fit(ROWS, LABELS, groups=GROUPS)
    assert "each is drawn and bounded by itself" in flat(rows.certificate_) and "averaged" not in flat(rows.certificate_)
    records = DPLogisticRegression(classes=["no", "yes"]).fit(ROWS, LABELS)
    page = card_page(Card.of(rows.certificate_, "Stays"))
    assert "one person with all their rows is added or removed" in " ".join(page.split()) and "rows were used" in page
    assert "one record is added or removed" in " ".join(card_page(Card.of(records.certificate_, "Stays")).split())
    deployment = Deployment(name="Stays", curators=("A hospital",), intended_use="planning", region="Europe")
    entry = json.loads(registry_entry(rows.certificate_, deployment))["deployment"]
    assert entry["privacy_loss"]["privacy_unit"] == "user-level"
    # nor are both added up
    log = SpendLog.current()
    assert [charge.persons for charge in log.charges()] == [True, False]
    alone, together = log.total(1e-5), log.total(1e-5, persons=True)
    relation = rows.certificate_.relation
    assert alone[relation] == pytest.approx(records.certificate_.epsilon, rel=1e-6)
    assert together[relation] == pytest.approx(rows.certificate_.epsilon, rel=1e-6)
    said = CliRunner().invoke(application(), ["account", "--log"]).output
    assert "of persons" in said
    with pytest.raises(ValueError, match="protect the same"):
        Certificate.of_all([rows.certificate_, records.certificate_])


def test_estimators_without_persons_say_so() -> None:
    with pytest.raises(ValueError, match="Expected no groups for DPLasso: it has no proof"):
        DPLasso().fit(ROWS, SCORES, groups=GROUPS)


def test_a_column_that_tells_rows_apart_is_no_person() -> None:
    with pytest.warns(UserWarning, match="Every row is a person of its own"):
        classifier(public_size=None).fit(ROWS, LABELS, groups=np.arange(len(GROUPS)))


# What goes wrong


def of_rows(make: Any) -> Training:
    """A training that claims, of persons, what holds of their rows: the planted defect."""
    persons = LinearObjective(Logistic(), 3, intercept_scale=0.5, public_size=60, unit=PrivacyUnit(3))
    alone = replace(persons, unit=RECORD)
    mechanism = make(alone)
    training = Training.of_mechanism(mechanism, alone)

    def run(data: Any, source: Any) -> Any:
        rows, targets = data
        return training.run((np.reshape(rows, (-1, 3)), np.ravel(targets)), source)

    return replace(training, run=run, minimisations=None, many=None, replay_pairs=extreme_pairs(persons))


def test_a_row_level_epsilon_on_persons_is_refuted() -> None:
    def descent(objective: LinearObjective) -> Any:
        task = Task(loss=Logistic(), features=3, intercept_scale=0.5, public_size=60)
        return Gradient(sampling="full", epochs=5).build(task, Budget(DELTA, EPSILON))[0]

    result = replay(of_rows(descent))
    assert result.verdict == "refuted" and "movement" in result.details["kinds"]
    assert result.details["largest_movement"] > 2.0  # more than two rows can: three of a person; how much hangs on the noise


def test_rows_drawn_of_persons_with_more_of_them_are_refused() -> None:
    """A sampler of two rows a person, on persons of three: it would charge for two and draw three."""
    task = Task(loss=Logistic(), features=3, intercept_scale=0.5, public_size=60, unit=PrivacyUnit(3))
    mechanism, objective = Gradient(sampling="rows", expected_batch_size=30, epochs=2).build(task, Budget(DELTA, EPSILON))
    assert isinstance(mechanism, GradientPerturbation)
    plan: Any = mechanism.plan
    fewer = replace(mechanism, plan=replace(plan, sampler=PoissonRows(plan.sampler.sampling_rate, 2)))
    records = objective.records(np.zeros((60, 3, 3)), np.ones((60, 3)))
    with pytest.raises(ValueError, match="Expected max_rows_per_unit=2"):
        fewer.release(objective, records, Channel.open())
    assert not SpendLog.current().charges()


def test_a_search_has_no_proof_for_persons() -> None:
    search = DPSearch(classifier(), {"mechanism": ["objective", "output"]}, epsilon=1.0)
    with pytest.raises(ValueError, match="no proof for persons"):
        search.fit(ROWS, LABELS, held_out=(ROWS[:50], LABELS[:50]))
    assert not SpendLog.current().charges()


def test_a_sampler_that_charges_a_person_as_a_row_is_refuted() -> None:
    """The mixture charged as if one row were all that a person has."""
    task = Task(loss=Logistic(), features=3, intercept_scale=0.5, public_size=60, unit=PrivacyUnit(3))
    mechanism, objective = Gradient(sampling="rows", expected_batch_size=30, epochs=2).build(task, Budget(DELTA, EPSILON))
    assert isinstance(mechanism, GradientPerturbation)
    plan: Any = mechanism.plan

    class AsOne(type(plan.sampler)):  # pyright: ignore[reportGeneralTypeIssues, reportUntypedBaseClass]
        slots = 1
        by_rows = False

        def streamed(self, channel: Any, records: Any, steps: int) -> Any:
            return records.stream_rows(self.draws(channel, len(records), steps))

    cheap = replace(mechanism, plan=replace(plan, sampler=AsOne(plan.sampler.sampling_rate, 3)))
    assert replay(Training.of_mechanism(mechanism, objective)).verdict == "consistent"
    result = replay(Training.of_mechanism(cheap, objective))
    assert result.verdict == "refuted" and result.details["largest_movement"] > 2


# Tables


@pytest.fixture
def table(tmp_path: Path) -> Path:
    frame = pandas.DataFrame({f"x{place}": ROWS[:, place] for place in range(4)})
    frame["who"], frame["outcome"] = GROUPS, LABELS
    frame.loc[frame.who == "p3", "x0"] = np.nan  # nothing of this person is left
    frame.loc[frame.index[:5], "outcome"] = np.nan
    frame.to_csv(tmp_path / "stays.csv", index=False)
    columns: list[dict[str, Any]] = [{"name": f"x{place}", "type": "number", "range": [-3, 3]} for place in range(4)]
    schema = {
        "name": "stays", "target": "outcome", "classes": ["no", "yes"], "unit": "who", "max_rows_per_unit": 5, "missing": "drop",
        "columns": [*columns, {"name": "outcome", "type": "label"}],
    }  # fmt: skip
    (tmp_path / "schema.json").write_text(json.dumps(schema))
    return tmp_path


def test_a_schema_names_its_unit(table: Path) -> None:
    schema = Schema.load(table / "schema.json")
    assert (schema.unit, schema.max_rows_per_unit) == ("who", 5) and Schema.from_dict(json.loads(schema.to_json())) == schema
    dataset, _ = read_dataset(table / "stays.csv", None, schema)
    assert dataset.groups is not None and dataset.unit.max_rows == 5
    assert len(np.unique(dataset.groups)) + dataset.absent == PERSONS and dataset.absent >= 1
    for changes, said in (
        ({"unit": "x0"}, "no feature and no target"),
        ({"unit": 3}, "name of a column"),
        ({"max_rows_per_unit": 0}, "max_rows_per_unit"),
        ({"max_rows_per_unit": 10**6}, "from 1 to 8,192"),
        ({"max_rows_per_unit": "many"}, "whole number"),
        ({"max_rows_per_unit": True}, "whole number"),
    ):
        with pytest.raises(SchemaError, match=said):
            replace(schema, **changes)  # pyright: ignore[reportArgumentType]
    with pytest.raises(SchemaError, match="unit with max_rows_per_unit"):
        Schema.from_dict({**json.loads(schema.to_json()), "unit": ""})
    with pytest.raises(ValueError, match="schema without a unit"):
        TableEncoder(schema).fit(pandas.read_csv(table / "stays.csv"))
    assert (
        f"of {PERSONS - dataset.absent:,} persons" in dataset.described()
        and "beyond 5 of a person are not used" in dataset.described()
    )
    frame = pandas.read_csv(table / "stays.csv")
    with pytest.raises(SchemaError, match="is missing in 2 of"):
        frame.loc[[3, 8], "who"] = None
        row_units(schema, frame)
    with pytest.raises(SchemaError, match="unit's column 'who'"):
        row_units(schema, frame.drop(columns="who"))


def test_the_command_line_trains_and_compares_persons(table: Path) -> None:
    runner, where = CliRunner(), str(table)
    files = [f"{where}/stays.csv", "--schema", f"{where}/schema.json"]
    trained = runner.invoke(application(), ["train", *files, "--relation", "replace_one", "-o", f"{where}/model.json"])
    assert trained.exit_code == 0, trained.output
    said = " ".join(trained.output.split())
    assert "one person is replaced by any other with all their rows" in said and f"number {PERSONS} of persons" in said
    page = f"{where}/report.html"
    arguments = [
        "--repeats",
        "2",
        "--epsilons",
        "1",
        "--jobs",
        "1",
        "--mechanisms",
        "objective-sharp,gradient-full,frank-wolfe",
        "--output",
        page,
    ]
    compared = runner.invoke(application(), ["compare", *files, *arguments])
    assert compared.exit_code == 0, compared.output
    assert "one row a person" in " ".join(compared.output.split())  # Frank and Wolfe's
    for command in (["influence", *files], ["choose-epsilon", *files], ["bounds", *files]):
        refused = runner.invoke(application(), command)
        assert refused.exit_code != 0 and "looks at rows" in str(refused.exception)
