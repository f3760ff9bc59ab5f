"""Scores that may be published: what one record or person can move, what they say, and what they cost."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from dperm.audit import Pair, Training, replay
from dperm.audit.pairs import of_persons
from dperm.privacy import Certificate, Gaussian, Provenance, Relation, calibrate, epsilon
from dperm.release import SpendLog
from dperm.report import released
from dperm.report.judging import judge_classes, judge_numbers
from dperm.report.released import ReleasedScores, release_class_scores, release_number_scores
from helpers.commands import dperm
from helpers.halving import is_found, places_in

RNG = np.random.default_rng(0)
N = 5000
LIKELY = RNG.random(N)
TRUTH = (RNG.random(N) < LIKELY).astype(int)
ANSWERS = (LIKELY > 0.5).astype(int)
CLASSES = ["no", "yes"]


def scored(**changes: Any) -> ReleasedScores:
    given: dict[str, Any] = {"epsilon": 1.0, "relation": "add_or_remove_one"} | changes
    return release_class_scores(TRUTH, ANSWERS, LIKELY, CLASSES, **given)


@pytest.mark.filterwarnings("ignore:epsilon")
def test_without_noise_they_are_the_exact_ones() -> None:
    found = scored(epsilon=1e7)
    exact = judge_classes(TRUTH, ANSWERS, np.column_stack([1 - LIKELY, LIKELY]), [0, 1])
    assert found.whole.records == N
    for name in ("accuracy", "balanced accuracy", "most frequent class"):
        assert found.whole.scores[name] == pytest.approx(exact.scores[name], abs=1e-3)
    assert found.whole.scores["AUC"] == pytest.approx(exact.scores["AUC"], abs=3e-3)  # of twenty bins
    assert list(found.whole.recalls.values()) == pytest.approx(list(exact.recalls.values()), abs=1e-3)
    truth, answers = RNG.uniform(10, 50, N), RNG.uniform(10, 50, N)
    answers = 0.8 * truth + 0.2 * answers
    numbers = release_number_scores(truth, answers, (10, 50), epsilon=1e7).whole
    for name in ("R²", "mean absolute error", "root mean squared error"):
        assert numbers.scores[name] == pytest.approx(judge_numbers(truth, answers).scores[name], rel=1e-3)


def test_intervals_hold_as_often_as_they_say() -> None:
    exact = judge_classes(TRUTH, ANSWERS, np.column_stack([1 - LIKELY, LIKELY]), [0, 1]).scores["accuracy"]
    runs = [scored(epsilon=0.3, random_state=seed) for seed in range(60)]
    held = sum(abs(run.whole.scores["accuracy"] - exact) <= run.widths["accuracy"] for run in runs)
    assert 53 <= held <= 59
    assert np.std([run.whole.scores["accuracy"] for run in runs]) > 0


def test_each_costs_its_epsilon_once() -> None:
    found = scored(epsilon=0.7, label="tests", groups=TRUTH, group_names=["a", "b"])
    assert found.certificate.epsilon == pytest.approx(0.7, rel=1e-4) and found.certificate.status == "certified"
    assert epsilon(found.certificate.event, 1e-5) == found.certificate.epsilon
    (charge,) = SpendLog.current().charges("tests")
    assert charge.event == found.certificate.event and not charge.persons
    assert set(found.parts) == {"a", "b"} and abs(found.parts["a"].records - (TRUTH == 0).sum()) < 300
    persons = scored(persons=np.arange(N) // 5, label="tests")
    assert persons.certificate.of_persons and SpendLog.current().charges("tests")[1].persons


@pytest.mark.fast_cases("three classes-True-add_or_remove_one")
@pytest.mark.parametrize("relation", ["add_or_remove_one", "replace_one"])
@pytest.mark.parametrize("persons", [False, True])
@pytest.mark.parametrize("what", ["two classes", "three classes", "groups", "numbers"])
def test_no_neighbour_moves_more_than_is_charged(what: str, persons: bool, relation: str) -> None:
    result = replay(training(what, relation, persons))
    assert result.verdict == "consistent", result
    assert 0.4 < result.details["largest_movement"] <= 1 + 1e-6


def training(what: str, relation: str, persons: bool) -> Training:
    noise = calibrate(lambda noise: Gaussian(noise, Relation(relation)), 1.0, 1e-5)
    event = Gaussian(noise, Relation(relation))
    certificate = Certificate.issue(mechanism="scores", event=event, delta=1e-5, provenance=Provenance.audit())

    def run(data: Any, source: Any) -> Any:
        rows, whose = np.asarray(data[0], dtype=float), None
        if persons:  # (n, rows, 2), padded with rows that are not finite
            there = np.isfinite(rows).all(axis=2)
            whose = np.nonzero(there)[0]
            rows = rows[there]
        first, second = rows.T
        given: dict[str, Any] = {"epsilon": 1.0, "relation": relation, "persons": whose, "random_state": source}
        if what in ("numbers", "groups of numbers"):
            apart = {} if what == "numbers" else {"groups": (first > second).astype(int), "group_names": ["a", "b"]}
            found = release_number_scores(first, second, (-1.0, 1.0), **apart, **given)
        else:
            truth, answers = (first > 0).astype(int), (second > 0).astype(int)
            if what == "three classes":
                truth, answers = truth + (first > 0.5), answers + (second > 0.5)
            if what == "groups":
                given |= {"groups": (first > second).astype(int), "group_names": ["a", "b"]}
            likely = (second + 1) / 2 if what == "two classes" else None
            found = release_class_scores(truth, answers, likely, ["a", "b", "c"][: 3 if what == "three classes" else 2], **given)
        return {"records": found.whole.records}

    rows = np.random.default_rng(1).uniform(-1, 1, size=(40, 2))
    data = (rows, np.zeros(40))
    far = [np.array([1.0, -1.0]), np.array([-1.0, 1.0])]
    pairs = [Pair.neighbour(Relation(relation), f"row {place}", data, row, 0.0) for place, row in enumerate(far)]
    if persons:
        pairs = [of_persons(pair, 3, alike=alike) for pair in pairs for alike in (True, False)]
    return Training("scores", certificate, run, replay_pairs=pairs, candidate_pairs=pairs)


@pytest.mark.parametrize("relation", ["add_or_remove_one", "replace_one"])
@pytest.mark.parametrize("what", ["two classes", "three classes", "groups", "numbers", "groups of numbers"])
def test_half_of_the_sensitivity_is_refuted(what: str, relation: str) -> None:
    (place,) = places_in("report/released.py")
    assert is_found(training(what, relation, persons=False), place)


def test_persons_of_many_rows_counted_by_rows_are_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    right = released._counted
    monkeypatch.setattr(released, "_counted", lambda cells, size, persons: right(cells, size, None))
    assert replay(training("three classes", "add_or_remove_one", True)).verdict == "refuted"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epsilon": 0.0}, "epsilon > 0"),
        ({"delta": 1.0}, "delta"),
        ({"groups": np.full(N, 2), "group_names": ["a", "b"]}, "groups from 0 to 1"),
        ({"persons": np.zeros(3)}, "groups, one a row"),
        ({"relation": "other"}, "other"),
    ],
)
def test_what_does_not_fit_is_refused_uncharged(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        scored(**changes)
    with pytest.raises(ValueError, match="truth as numbers of classes"):
        release_class_scores(np.array(["a"]), ANSWERS[:1], None, CLASSES, epsilon=1.0)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="finite targets"):
        release_number_scores(np.array([np.nan]), np.array([1.0]), (0, 1), epsilon=1.0)
    assert not SpendLog.current().charges()


def test_few_records_are_hidden_and_said_to_be() -> None:
    found = release_class_scores(np.array([0, 1]), np.array([0, 1]), np.array([0.1, 0.9]), CLASSES, epsilon=0.01)
    scores = {**found.whole.scores, **found.whole.recalls}
    assert all(math.isnan(value) or 0 <= value <= 1 for value in scores.values())
    assert any(math.isnan(width) for width in found.widths.values())


def test_the_command(tmp_path: Path) -> None:
    table, schema, model, scores = (tmp_path / name for name in ("t.csv", "t.schema.json", "m.json", "s.json"))
    frame = pd.DataFrame(
        {"age": RNG.integers(18, 90, 2000), "ward": RNG.choice(list("abc"), 2000), "cost": RNG.uniform(0, 9, 2000)}
    )
    frame.assign(ill=np.where(frame["age"] > 60, "yes", "no")).to_csv(table, index=False)
    dperm("data", "propose", table, "--target", "ill", "-o", schema)
    dperm("data", "confirm", schema)
    dperm("train", table, "--schema", schema, "--epsilon", 5, "-o", model)
    released = ("evaluate", model, table, "--test-data", "released", "-o", scores)
    told = dperm(*released, "--epsilon", 2, "--by", "ward").stdout
    assert "these numbers may be published" in told
    assert "±" in told
    assert "ward = (other or missing): " in told
    saved = json.loads(scores.read_text())
    assert Certificate.from_json(json.dumps(saved["certificate"])).epsilon == pytest.approx(2, rel=1e-3)
    assert saved["scores"]["accuracy"] > 0.8
    assert abs(saved["records"] - 2000) < 150
    assert set(saved["by"]) >= {"a", "b", "c"}
    assert len(SpendLog.current().charges("t")) == 2
    before = scores.read_text()
    assert "is kept as" in dperm(*released, "--epsilon", 2).stdout
    assert (tmp_path / "s.1.json").read_text() == before != scores.read_text()
    for wrong, message in (
        ((), "Expected --epsilon with --test-data released"),
        (("--epsilon", 2, "--by", "age"), "one of the schema's categories ['ward']"),
        (("--epsilon", -1), "epsilon > 0"),
    ):
        assert message in dperm(*released, *wrong, expect=1).stderr
    assert "and only there" in dperm("evaluate", model, table, "--test-data", "public", "--epsilon", 1, expect=1).stderr
    assert len(SpendLog.current().charges()) == 3 and not (tmp_path / "s.2.json").exists()  # nor is a copy left
    dperm("data", "propose", table, "--target", "cost", "-o", schema)
    dperm("data", "confirm", schema)
    dperm("train", table, "--schema", schema, "--model", "ridge", "--epsilon", 5, "-o", model)
    assert "mean absolute error" in dperm(*released, "--epsilon", 2).stdout
    assert "ward = b: R²" in dperm(*released, "--epsilon", 2, "--by", "ward").stdout
