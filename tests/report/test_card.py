"""The card for the person who signs: what it says, what it adds up, and the same as JSON."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import numpy as np
import pandas as pd
import pytest

from dperm import data
from dperm._rounding import downward, upward
from dperm.audit import Training, attack
from dperm.data import Dataset, propose
from dperm.estimators import DPLogisticRegression
from dperm.privacy import Certificate, Composed, Event, Gaussian, Provenance, PureDP, Unsupported
from dperm.release import SpendLog
from dperm.report.card import GLOSSARY, Card, Spent, _up, card_page
from helpers.said import flat


@pytest.fixture(scope="module")
def certificate() -> Certificate:
    dataset = data.load("iris")
    model = DPLogisticRegression(mechanism="objective", random_state=0)
    return replace(model.fit(dataset.features, dataset.targets).certificate_, status="certified", seeded="")


def test_it_says_what_an_attacker_could_do(certificate: Certificate) -> None:
    page = card_page(Card.of(certificate, "iris"))
    view = certificate.attack_view((0.01, 0.1))
    for part in ("Certified</strong> means", "It rests on", "Not charged", "Signature", "best possible attack", *GLOSSARY):
        assert part in page
    for rate in view.true_positive_rates:
        assert f"at most {math.ceil(1000 * rate - 1e-9) / 10:.4g} of 100 whose" in page
    found = math.ceil(1000 * view.true_positive_rates[0] - 1e-9) / 10
    assert page.count(f"at most {found:.4g} are found") == 1  # the picture says the number that the text says
    assert page.count(f"at most {found:.4g} of 100 whose") == 2
    assert f"right at most {math.ceil(500 * (1 + view.advantage)) / 10:.4g} times in 100" in page


def test_what_is_not_certified_says_so(certificate: Certificate) -> None:
    claimed = replace(certificate, event=Unsupported("they say so"), epsilon=None, status="claimed", claim="they say so")
    page = card_page(Card.of(claimed, "x"))
    assert "Claimed, not certified" in page and "Claimed</strong> means" in page
    assert "What an attacker could do" not in page and "Certified</strong> means" not in page
    seeded = card_page(Card.of(replace(certificate, status="not private"), "x"))
    assert "What an attacker could do" not in seeded and Card.of(replace(certificate, status="not private"), "x").attack is None
    assert "Not private." in seeded and "Certified</strong> means" not in seeded


def test_attacks_near_guessing_come_with_the_sentence_that_they_are_weak(certificate: Certificate) -> None:
    mechanism, objective = DPLogisticRegression(classes=[0, 1]).mechanism_for(3, 2)
    training = Training.of_mechanism(mechanism, objective)
    few = replace(training, replay_pairs=training.replay_pairs[:2])
    page = card_page(Card.of(certificate, "x", audits=attack(few, trials=50)))
    assert "near 50 does not mean that no privacy was needed" in page and 'data-label="claimed ε"' in page


def test_the_schema_tells_of_what_it_is(certificate: Certificate) -> None:
    frame = pd.DataFrame(
        {"age": np.arange(100) % 60, "ward": ["a", "b"] * 50, "who": np.arange(100) % 50, "ill": ["no", "yes", "no", "no"] * 25}
    )
    schema = replace(propose(frame, "ill", "stays", unit="who"), source="A hospital's stays.")
    card = Card.of(certificate, "x", schema, purpose="Planning beds")
    assert (card.data_set, card.features, card.target) == ("stays. A hospital's stays", ("age", "ward"), "ill")
    page = card_page(card)
    assert "age, ward" in page
    assert "Planning beds" in page
    assert 'class="line"' not in page
    assert 'class="line"' in card_page(Card.of(certificate, "x"))  # to write the purpose on
    dataset = Dataset.of(frame, schema)
    model = DPLogisticRegression(classes=["no", "yes"], max_rows_per_unit=64).fit(
        dataset.features, dataset.targets, groups=dataset.groups
    )
    assert Card.of(model.certificate_, "x", schema).person == (
        "One person with all their rows, told apart by the column “who”; at most 64 of them are used."
    )


def test_what_was_spent_is_added_up_and_what_is_left_is_said() -> None:
    rng = np.random.default_rng(0)
    rows, labels = rng.normal(size=(200, 3)), rng.integers(0, 2, 200)

    def fit(label: str, epsilon: float) -> Certificate:
        return DPLogisticRegression(epsilon=epsilon, classes=[0, 1], label=label).fit(rows, labels).certificate_

    first, _, other = fit("stays", 1.0), fit("stays", 0.5), fit("visits", 2.0)
    log = SpendLog.current()
    spent = Spent.of(log, "stays", first, 3.0)
    assert spent is not None
    assert spent.charges == 2
    assert 1.0 < spent.epsilon < 1.5
    assert spent.left == pytest.approx(3.0 - spent.epsilon)
    page = " ".join(card_page(Card.of(first, "x", spent=spent)).split())
    assert f"ε = {upward(spent.epsilon)} at" in page
    assert f"ε = {downward(spent.left)} of 3" in page
    assert "2 releases together" in page
    over = Spent.of(log, "stays", first, 0.5)
    assert over is not None
    assert over.left == 0
    assert f"exceeded by {upward(over.exceeded)}" in card_page(Card.of(first, "x", spent=over))
    assert Spent.of(log, "stays", other) is None  # it was charged under another name


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"relation": "replace_one"}, "others one that is replaced"),
        ({"max_rows_per_unit": 2}, "others single records"),
        ({"random_state": 0}, "a fixed seed"),
    ],
)
def test_what_cannot_be_added_up_is_not(changes: dict[str, Any], why: str) -> None:
    rng = np.random.default_rng(0)
    rows, labels = rng.normal(size=(200, 3)), rng.integers(0, 2, 200)
    settings: dict[str, Any] = {"classes": [0, 1], "label": "stays"}
    first = DPLogisticRegression(epsilon=1.0, **settings).fit(rows, labels).certificate_
    groups = np.arange(200) // 2 if "max_rows_per_unit" in changes else None
    DPLogisticRegression(epsilon=8.0, **settings, **changes).fit(rows, labels, groups=groups)
    spent = Spent.of(SpendLog.current(), "stays", first, 3.0)
    assert spent is not None
    assert (spent.epsilon, spent.left, spent.charges) == (math.inf, None, 2)
    assert why in spent.unknown
    page = " ".join(card_page(Card.of(first, "x", spent=spent)).split())
    assert "not known, for some of these" in page and "ε = inf" not in page
    claimed = Spent.of(SpendLog.current(), "stays", first.only_claimed("its ranges are not public"), 3.0)
    assert claimed is not None
    assert claimed.left is None
    assert "only claimed" in claimed.unknown


def test_an_equal_event_of_another_time_is_another_run() -> None:
    rng = np.random.default_rng(0)
    model = DPLogisticRegression(classes=[0, 1], label="stays").fit(rng.normal(size=(200, 3)), rng.integers(0, 2, 200))
    other = replace(model.certificate_, created="2001-01-01T00:00:00Z")
    assert Spent.of(SpendLog.current(), "stays", other) is None
    assert Spent.of(SpendLog.current(), "stays", model.certificate_) is not None


def issued(event: Event) -> Certificate:
    return Certificate.issue(mechanism="test", event=event, delta=1e-5, provenance=Provenance.audit())


def test_a_certificate_s_charge_is_within_five_minutes_of_it() -> None:
    log = SpendLog.current()
    log.charge(Gaussian(2.0), mechanism="test", label="stays")
    charged = datetime.fromisoformat(log.charges()[0].time)
    for seconds, there in ((-299, True), (0, True), (299, True), (-302, False), (302, False)):
        certificate = replace(issued(Gaussian(2.0)), created=(charged + timedelta(seconds=seconds)).isoformat())
        assert (Spent.of(log, "stays", certificate) is not None) is there
    assert Spent.of(log, "stays", issued(Gaussian(3.0))) is None


def test_releases_that_compose_to_a_certificate_are_all_in_the_log() -> None:
    log = SpendLog.current()
    for event in (Gaussian(2.0), PureDP(0.5)):
        log.charge(event, mechanism="test", label="stays")
    assert Spent.of(log, "stays", issued(Composed((Gaussian(2.0), PureDP(0.5))))) is not None
    for parts in ((Gaussian(2.0), PureDP(0.25)), (Gaussian(3.0), PureDP(0.25)), (Gaussian(3.0),)):
        assert Spent.of(log, "stays", issued(Composed(parts))) is None


def test_people_are_rounded_up_to_tenths() -> None:
    for people in (*np.random.default_rng(0).uniform(0, 100, 200), 0.1 + 0.2, 99.95, 100.0):
        assert people - 1e-9 <= _up(people) < people + 0.1
        assert 10 * _up(people) == pytest.approx(round(10 * _up(people)), abs=1e-9)
    assert (_up(0.1 + 0.2), _up(12.31), _up(100.0), _up(0.0)) == (0.3, 12.4, 100.0, 0.0)


def test_costs_are_rounded_up_and_what_is_left_down(certificate: Certificate) -> None:
    assert (upward(1.0000272784), upward(1.23411, 3), upward(1.49e-5, 2)) == ("1.001", "1.24", "1.5e-05")
    assert upward(0.99999999999) == "1"
    assert (downward(1.9999727), downward(0.12349), downward(0.0), upward(math.inf)) == ("1.999", "0.1234", "0", "inf")
    costly = replace(certificate, epsilon=certificate.epsilon * 1.0001, delta=1.49e-5)  # pyright: ignore[reportOptionalOperand]
    page = card_page(Card.of(costly, "x", spent=Spent("x", 1.00002728, 1.49e-5, 2, 3.0)))
    assert f"ε = {upward(costly.epsilon)} at δ = 1.5e-05" in page and "ε = 1.001 at δ = 1.5e-05 by 2" in page  # pyright: ignore[reportArgumentType]
    assert "ε = 1.999 of 3" in page and f"({upward(costly.epsilon)}, 1.5e-05)-differentially" in flat(costly)  # pyright: ignore[reportArgumentType]


def test_a_schema_that_was_found_and_the_training_are_both_in_the_log() -> None:
    frame = pd.DataFrame({"x": [str(i % 50) for i in range(3000)], "y": ["no", "yes", "no"] * 1000})
    schema = data.find(frame, "y", 2.0, name="found")
    dataset = Dataset.of(frame, schema)
    model = DPLogisticRegression(classes=list(schema.classes), label="found").fit(dataset.features, dataset.targets)
    certificate = dataset.certified(model.certificate_)
    spent = Spent.of(SpendLog.current(), "found", certificate)
    assert spent is not None
    assert spent.charges == 2
    assert spent.epsilon == pytest.approx(certificate.epsilon)


def test_the_same_as_json(certificate: Certificate) -> None:
    card = Card.of(certificate, "iris", purpose="A test", spent=Spent("iris", math.inf, 1e-5, 2))
    told = json.loads(json.dumps(card.to_dict(), allow_nan=False))
    assert Certificate.from_json(json.dumps(told["certificate"])).epsilon == certificate.epsilon
    assert told["purpose"] == "A test"
    assert told["spent"]["epsilon"] is None
    assert told["spent"]["exceeded"] == 0
    assert told["audits"] is None
    assert told["attack"]["accused_wrongly"] == [1.0, 10.0] and told["glossary"] == GLOSSARY
    assert told["signer_states"] == [item.text for item in certificate.assumptions if item.responsible == "caller"]
