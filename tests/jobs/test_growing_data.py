"""A table that grows: each release says what all so far cost together, and goes on by the same schema."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from dperm import jobs
from dperm.estimators import model_from_json
from dperm.privacy import Composed, epsilon
from dperm.release import SpendLog
from dperm.report.card import Release
from helpers.commands import dperm

RNG = np.random.default_rng(0)
PEOPLE = pd.DataFrame({"age": RNG.integers(18, 80, 600), "ward": RNG.choice(["a", "b"], 600)})
PEOPLE["ill"] = np.where(PEOPLE["age"] > 50, "yes", "no")


@pytest.fixture
def first(tmp_path: Path) -> jobs.TrainingOptions:
    """A model of the first half of a table, by a confirmed schema."""
    table, schema = tmp_path / "people.csv", tmp_path / "people.schema.json"
    PEOPLE[:300].to_csv(table, index=False)
    dperm("data", "propose", table, "--target", "ill")
    dperm("data", "confirm", schema)
    asked = jobs.TrainingOptions(source=str(table), schema=schema, epsilon=1.0, output=tmp_path / "first.json")
    jobs.train(asked)
    PEOPLE.to_csv(table, index=False)
    return asked


def later(first: jobs.TrainingOptions, **changes: object) -> jobs.TrainingOptions:
    settings = {"schema": None, "append_to": first.output, "output": first.output.with_name("second.json")}
    return replace(first, **(settings | changes))


def test_the_certificate_is_that_of_all_releases_and_the_schema_goes_on(first: jobs.TrainingOptions) -> None:
    second = jobs.train(later(first))
    third = jobs.train(later(first, append_to=first.output.with_name("second.json"), output=first.output.with_name("third.json")))
    one, two, three = SpendLog.current().charges()
    assert one.label == two.label == three.label == "people"
    assert second.certificate.event == Composed((one.event, two.event))
    together = epsilon(Composed((one.event, two.event, three.event)), 1e-5)
    assert third.certificate.epsilon == pytest.approx(together, rel=1e-6)
    assert 1.5 < together < 3.0  # three times ε = 1 is less than 3, composed
    fitted, extra = model_from_json(first.output.with_name("third.json").read_text())
    assert fitted.certificate_ == third.certificate
    assert extra["schema"] == model_from_json(first.output.read_text())[1]["schema"]
    assert second.alone is not None
    assert 0.99 < (second.alone.epsilon or 0.0) <= 1.0
    assert len(extra["releases"]) == 3 and all(0.99 < release["epsilon"] <= 1.0 for release in extra["releases"])
    card = first.output.with_name("card.html")
    dperm("card", first.output.with_name("third.json"), "-o", card)
    page = card.read_text()
    mechanism = extra["releases"][-1]["mechanism"]
    assert f"made by {mechanism}, released after 2 earlier models of the same table." in page
    spent = page.split("Spent on these data")[1].split("</dd>")[0]
    assert spent.count(f"{mechanism}, ε = ") == 3 and "3 of these are models of the table as it grew" in spent


def test_train_says_what_all_cost_and_what_this_one_costs(first: jobs.TrainingOptions) -> None:
    second = first.output.with_name("second.json")
    told = dperm("train", first.source, "--append-to", first.output, "--epsilon", "0.5", "-o", second).stdout
    assert re.search(r"epsilon = 1\.\d+ for this model and those before it; this one alone 0\.5\.", told)


@pytest.mark.parametrize("noted", [None, [1], [{"mechanism": "x"}], [{"mechanism": "x", "epsilon": "y", "created": ""}],
                                   [{"mechanism": "x", "epsilon": float("nan"), "created": ""}]])  # fmt: skip
def test_releases_that_cannot_be_read_are_not_listed(noted: object) -> None:
    assert Release.all_of(noted) == ()


def test_a_search_for_the_schema_counts_once(tmp_path: Path) -> None:
    table, schema = tmp_path / "people.csv", tmp_path / "people.schema.json"
    PEOPLE.to_csv(table, index=False)
    dperm("data", "propose", table, "--target", "ill", "--epsilon", "1")
    asked = jobs.TrainingOptions(source=str(table), schema=schema, epsilon=1.0, output=tmp_path / "first.json")
    jobs.train(asked)
    second = jobs.train(later(asked))
    events = [charge.event for charge in SpendLog.current().charges()]
    assert len(events) == 3
    assert second.certificate.epsilon == pytest.approx(epsilon(Composed(tuple(events)), 1e-5), rel=1e-6)


def test_other_tables_neighbours_and_parts_are_refused_before_the_charge(first: jobs.TrainingOptions, tmp_path: Path) -> None:
    charged = len(SpendLog.current().charges())
    for refused, why in (
        ({"relation": "replace_one"}, "--relation add_or_remove_one"),
        ({"delta": 1e-7}, "--delta of at least 1e-05"),
        ({"fit_by": "ward"}, "no --fit-by"),
    ):
        with pytest.raises(ValueError, match=why):
            jobs.train(later(first, **refused))
    schema = tmp_path / "persons.json"
    schema.write_text(first.schema.read_text().replace('"name": "people"', '"name": "others"'))
    with pytest.raises(ValueError, match="Expected the table 'people'"):
        jobs.train(later(first, schema=schema))
    assert len(SpendLog.current().charges()) == charged
