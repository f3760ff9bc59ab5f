"""Certificates and spend logs keep the privacy unit, seeds and claims, however they are composed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from dperm.data import Dataset
from dperm.data.schema_search.proposing import propose
from dperm.estimators import DPLogisticRegression
from dperm.privacy import Certificate, Relation
from dperm.release import SpendLog
from dperm.report.card import Card
from helpers.commands import dperm
from helpers.said import flat

X = np.random.default_rng(0).uniform(-0.5, 0.5, (60, 2))
Y = np.array(["no", "yes"])[(X[:, 0] > 0).astype(int)]


def grouped(**settings: Any) -> Certificate:
    groups = np.repeat(np.arange(15), 4)
    return DPLogisticRegression(classes=["no", "yes"], max_rows_per_unit=4, **settings).fit(X, Y, groups=groups).certificate_


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
    assert claimed.status == "not private"
    assert not claimed.private
    assert "NOT PRIVATE" in flat(claimed)
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
