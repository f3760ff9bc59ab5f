"""How far one record, or one person, moves the counts that scores are released from, where it moves them as far as it can."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dperm.estimators import DPLogisticRegression, DPSearch
from dperm.estimators.records import HeldOut
from dperm.privacy import Gaussian, PureDP, Relation
from dperm.release import SpendLog
from dperm.report.released import release_class_scores, release_number_scores
from helpers.asked import Asked, Question, moves

ADD, REPLACE = "add_or_remove_one", "replace_one"
TRUTH = np.array([0, 1, 2, 0, 1, 2, 1])
ANSWERS = np.array([0, 1, 1, 2, 1, 2, 0])


def only(found: list[tuple[Question, float]]) -> float:
    """The movement of the one release, whose noise is what its charge says."""
    ((question, moved),) = found
    event = SpendLog.current().charges()[-1].event
    assert isinstance(event, Gaussian) and question.noise == pytest.approx(event.noise_multiplier, rel=1e-12)
    return moved


def classes(truth: Any, answers: Any, relation: str, **changes: Any) -> Any:
    def run(source: Asked) -> None:
        release_class_scores(
            truth, answers, None, ["a", "b", "c"], epsilon=1.0, relation=relation, random_state=source, **changes
        )

    return run


@pytest.mark.parametrize("grouped", [False, True])
def test_item_8_a_record_moves_counts_of_classes_by_the_sensitivity(grouped: bool) -> None:
    groups = {"group_names": ["x", "y"], "groups": np.arange(7) % 2} if grouped else {}
    fewer = {**groups, "groups": groups["groups"][1:]} if grouped else {}
    here, without = classes(TRUTH, ANSWERS, ADD, **groups), classes(TRUTH[1:], ANSWERS[1:], ADD, **fewer)
    assert 0.999999 < only(moves(here, without)) <= 1
    other = np.where(np.arange(7) == 0, 2, TRUTH), np.where(np.arange(7) == 0, 1, ANSWERS)
    assert 0.999999 < only(moves(classes(TRUTH, ANSWERS, REPLACE, **groups), classes(*other, REPLACE, **groups))) <= 1


def test_item_8_a_person_moves_them_by_no_more_however_many_rows_there_are() -> None:
    whose = np.array([0, 0, 0, 1, 1, 1, 2])
    alike = np.where(whose == 0, 1, TRUTH), np.where(whose == 0, 1, ANSWERS)  # all rows in one cell: as much as one record
    kept = whose > 0
    here = classes(*alike, ADD, persons=whose)
    assert 0.999999 < only(moves(here, classes(alike[0][kept], alike[1][kept], ADD, persons=whose[kept]))) <= 1
    other = np.where(whose == 0, 2, TRUTH), np.where(whose == 0, 0, ANSWERS)
    assert 0.999999 < only(moves(classes(*alike, REPLACE, persons=whose), classes(*other, REPLACE, persons=whose))) <= 1


@pytest.mark.parametrize("persons", [False, True])
def test_item_8_a_record_moves_sums_of_numbers_by_the_sensitivity(persons: bool) -> None:
    """At the top of the range with an answer at its bottom, all five sums of a record are 1. Others count as its ends."""
    truth, answers = np.array([1e9, 4.0, 5.0, 6.0]), np.array([-1e9, 4.5, 5.5, 2.0])
    for relation in (ADD, REPLACE):

        def run(keep: Any, relation: str = relation) -> Any:
            def released(source: Asked) -> None:
                whose = {"persons": np.arange(4)[keep]} if persons else {}
                release_number_scores(
                    truth[keep], answers[keep], (2.0, 8.0), epsilon=1.0, relation=relation, random_state=source, **whose
                )

            return released

        assert 0.999999 < only(moves(run(slice(None)), run(slice(1, None)))) <= 1


def test_item_8_sums_of_numbers_by_hand() -> None:
    """Of places in the range and distances in its units."""
    source = Asked()
    truth, answers = np.array([2.0, 5.0, 8.0]), np.array([3.5, 5.0, -9.0])
    release_number_scores(truth, answers, (2.0, 8.0), epsilon=1.0, random_state=source)
    (question,) = source.questions
    off, place = np.array([0.25, 0.0, 1.0]), np.array([0.0, 0.5, 1.0])
    assert question.query == pytest.approx([3, off.sum(), (off**2).sum(), place.sum(), (place**2).sum()], abs=1e-6)


class Says:
    """A model that gives each row its first number."""

    def predict(self, rows: Any) -> Any:
        return rows[:, 0].astype(int)


@pytest.mark.parametrize("relation", [ADD, REPLACE])
def test_item_8_a_held_out_record_moves_the_score_of_a_try_by_the_sensitivity(relation: str) -> None:
    search = DPSearch(
        DPLogisticRegression(classes=[0, 1], relation=relation), {"mechanism": ["output", "objective"]}, epsilon=1.0
    )
    rows, labels = np.array([[1.0], [0.0], [1.0], [1.0]]), np.array([1, 0, 0, 1])

    def run(rows: Any, labels: Any) -> Any:
        def score(source: Any) -> None:
            search._score(Says(), HeldOut(rows, labels), 0.25, source, SpendLog.current())

        return score

    other = (rows[1:], labels[1:]) if relation == ADD else (rows, np.array([0, 0, 0, 1]))
    ((question, moved),) = moves(run(rows, labels), run(*other))
    assert 0.999999 < moved <= 1 and question.query.tolist() == [3.0]
    event = SpendLog.current().charges()[-1].event
    assert event == PureDP(0.25, Relation(relation)) and question.noise == pytest.approx(4.0)
