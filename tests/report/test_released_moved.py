"""How far one record, or one person, moves the counts that scores are released from, where it moves them as far as it can."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dperm.estimators import DPLogisticRegression, DPSearch
from dperm.estimators.records import HeldOut
from dperm.privacy import Gaussian, PureDP, Relation
from dperm.privacy.certificates import assumptions as statements
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
def test_a_record_moves_counts_of_classes_by_the_sensitivity(grouped: bool) -> None:
    groups = {"group_names": ["x", "y"], "groups": np.arange(7) % 2} if grouped else {}
    fewer = {**groups, "groups": groups["groups"][1:]} if grouped else {}
    here, without = classes(TRUTH, ANSWERS, ADD, **groups), classes(TRUTH[1:], ANSWERS[1:], ADD, **fewer)
    assert 0.999999 < only(moves(here, without)) <= 1
    other = np.where(np.arange(7) == 0, 2, TRUTH), np.where(np.arange(7) == 0, 1, ANSWERS)
    assert 0.999999 < only(moves(classes(TRUTH, ANSWERS, REPLACE, **groups), classes(*other, REPLACE, **groups))) <= 1


def test_a_person_moves_them_by_no_more_however_many_rows_there_are() -> None:
    whose = np.array([0, 0, 0, 1, 1, 1, 2])
    alike = np.where(whose == 0, 1, TRUTH), np.where(whose == 0, 1, ANSWERS)  # all rows in one cell: as much as one record
    kept = whose > 0
    here = classes(*alike, ADD, persons=whose)
    assert 0.999999 < only(moves(here, classes(alike[0][kept], alike[1][kept], ADD, persons=whose[kept]))) <= 1
    other = np.where(whose == 0, 2, TRUTH), np.where(whose == 0, 0, ANSWERS)
    assert 0.999999 < only(moves(classes(*alike, REPLACE, persons=whose), classes(*other, REPLACE, persons=whose))) <= 1


@pytest.mark.parametrize("persons", [False, True])
def test_a_record_moves_sums_of_numbers_by_the_sensitivity(persons: bool) -> None:
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


@pytest.mark.parametrize("persons", [False, True])
def test_a_record_that_changes_its_group_moves_sums_of_numbers_by_the_root_of_ten(persons: bool) -> None:
    """All five sums of its old group, and of its new one, move by 1; one that is left out moves five."""
    truth, answers, groups = np.array([8.0, 4.0, 5.0, 6.0]), np.array([2.0, 4.5, 5.5, 2.0]), np.array([0, 0, 1, 1])

    def run(keep: Any, where: Any, relation: str) -> Any:
        def released(source: Asked) -> None:
            given: Any = {"groups": where[keep], "group_names": ["a", "b"], "relation": relation, "random_state": source}
            whose = {"persons": np.arange(4)[keep]} if persons else {}
            release_number_scores(truth[keep], answers[keep], (2.0, 8.0), epsilon=1.0, **given, **whose)

        return released

    everyone, elsewhere = slice(None), np.array([1, 0, 1, 1])
    assert 0.999999 < only(moves(run(everyone, groups, REPLACE), run(everyone, elsewhere, REPLACE))) <= 1
    assert 0.999999 < only(moves(run(everyone, groups, ADD), run(slice(1, None), groups, ADD))) <= 1


def test_a_person_in_several_groups_moves_no_more_than_one_in_one() -> None:
    rng = np.random.default_rng(0)
    truth, answers = rng.choice([2.0, 8.0], (2, 40))
    whose, groups = np.repeat([0, 1], 20), rng.integers(0, 3, 40)

    def run(keep: Any, relation: str, **changes: Any) -> Any:
        def released(source: Asked) -> None:
            given: Any = {"truth": truth, "answers": answers, "groups": groups, "persons": whose, **changes}
            kept = {name: each[keep] for name, each in given.items()}
            release_number_scores(
                **kept, target_range=(2.0, 8.0), group_names=["a", "b", "c"], epsilon=1.0, relation=relation, random_state=source
            )

        return released

    everyone = slice(None)
    assert only(moves(run(everyone, ADD), run(whose > 0, ADD))) <= 1
    for _ in range(5):
        other = {"groups": np.where(whose == 0, rng.integers(0, 3, 40), groups), "truth": np.where(whose == 0, 10 - truth, truth)}
        assert only(moves(run(everyone, REPLACE), run(everyone, REPLACE, **other))) <= 1


def test_sums_of_numbers_by_hand() -> None:
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
def test_a_held_out_record_moves_the_score_of_a_try_by_the_sensitivity(relation: str) -> None:
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


# What goes into the sums


def asked(run: Any) -> Question:
    source = Asked()
    run(source)
    (question,) = source.questions
    return question


def test_probabilities_are_binned_within_their_ends_and_on_their_answer_s_side() -> None:
    """Twenty bins of the second class's probability: what is beyond the ends counts as the ends, what is no number as the half,
    and whatever is said, an answer is on its side of the half."""
    likely = np.array([-7.0, 0.0, 0.049, 0.07, 0.5, 0.97, 1.0, 7.0, np.nan, np.inf, -np.inf])
    zero = [0, 0, 0, 1, 9, 9, 9, 9, 9, 9, 0]
    one = [10, 10, 10, 10, 10, 19, 19, 19, 10, 19, 10]
    for answer, columns in ((0, zero), (1, one)):
        answers = np.full(len(likely), answer)
        truth = np.arange(len(likely)) % 2

        def run(source: Asked, answers: Any = answers, truth: Any = truth) -> None:
            release_class_scores(truth, answers, likely, ["a", "b"], epsilon=1.0, random_state=source)

        expected = np.zeros((2, 20))
        np.add.at(expected, (truth, columns), 1.0)
        assert asked(run).query.reshape(2, 20).tolist() == expected.tolist()


def test_two_classes_without_probabilities_have_a_cell_each() -> None:
    truth, answers = np.array([0, 1, 1, 0, 1]), np.array([0, 0, 1, 0, 1])

    def run(source: Asked) -> None:
        release_class_scores(truth, answers, None, ["a", "b"], epsilon=1.0, random_state=source)

    assert asked(run).query.tolist() == [2.0, 0.0, 1.0, 2.0]


def test_classes_and_groups_have_a_cell_each() -> None:
    """Three classes whose probabilities are not asked for; groups that are named, of which one is empty."""
    likely, groups = np.linspace(0, 1, 7), np.array([0, 2, 2, 0, 0, 2, 2])

    def run(source: Asked) -> None:
        release_class_scores(
            TRUTH, ANSWERS, likely, ["a", "b", "c"], epsilon=1.0, groups=groups, group_names=["x", "y", "z"], random_state=source
        )

    expected = np.zeros((3, 3, 3))
    np.add.at(expected, (groups, TRUTH, ANSWERS), 1.0)
    assert asked(run).query.reshape(3, 3, 3).tolist() == expected.tolist()


def numbers(truth: Any, answers: Any, **changes: Any) -> Any:
    def run(source: Asked) -> None:
        release_number_scores(truth, answers, (2.0, 8.0), epsilon=1.0, random_state=source, **changes)

    return run


def test_targets_and_answers_beyond_the_range_count_as_its_ends() -> None:
    truth, answers = np.array([-1e9, 1e9, 5.0, 5.0]), np.array([5.0, 5.0, -1e9, 1e9])
    off, place = np.full(4, 0.5), np.array([0.0, 1.0, 0.5, 0.5])
    expected = [4, off.sum(), (off**2).sum(), place.sum(), (place**2).sum()]
    assert asked(numbers(truth, answers)).query.tolist() == expected
    means = [2, 1.0, 0.5, 1.0, 0.75 / 2 + 0.25 / 2]  # the same rows as two persons'
    whose = np.array([7, 3, 3, 7])
    place = np.array([[0.0, 0.5], [1.0, 0.5]])
    means[4] = float((place**2).mean(axis=1).sum())
    assert asked(numbers(truth, answers, persons=whose)).query.tolist() == means


def test_sums_of_numbers_do_not_depend_on_their_order() -> None:
    """To the last bit: what a record adds is then what it adds alone."""
    rng = np.random.default_rng(0)
    truth, answers, order = rng.uniform(2, 8, 3000), rng.uniform(2, 8, 3000), rng.permutation(3000)
    whole = asked(numbers(truth, answers)).query
    assert np.array_equal(whole, asked(numbers(truth[order], answers[order])).query)
    without = asked(numbers(truth[1:], answers[1:])).query
    assert np.array_equal(whole - without, asked(numbers(truth[:1], answers[:1])).query)


@pytest.mark.parametrize("what", ["classes", "numbers"])
def test_a_person_of_a_million_rows_counts_as_one_at_most(what: str) -> None:
    """Rounding the rows' shares up would add a fortieth of a percent."""
    count = 1_000_003
    whose = np.append(np.zeros(count, dtype=int), 1)
    if what == "classes":
        truth = np.append(np.zeros(count, dtype=int), 1)
        table = asked(classes(truth, truth, ADD, persons=whose)).query
        assert 0.999 < table[0] <= 1.0
    else:
        truth = np.append(np.full(count, 8.0), 2.0)
        table = asked(numbers(truth, np.full(count + 1, 2.0), persons=whose)).query
        assert (table <= [2, 1, 1, 1, 1]).all()
        assert (table > [1.99, 0.99, 0.99, 0.99, 0.99]).all()


@pytest.mark.parametrize("target_range", [(-1e308, 1e308), (0.0, np.inf), (np.nan, 1.0), (5.0, 5.0), (8.0, 2.0)], ids=str)
def test_a_range_whose_width_is_no_number_is_refused(target_range: Any) -> None:
    """Within ±1e308 a single target of 1e308 made all sums NaN, which its neighbour's were not."""
    with pytest.raises(ValueError, match="range"):
        release_number_scores(np.array([1e308, 0.0]), np.zeros(2), target_range, epsilon=1.0)
    assert not SpendLog.current().charges()


# What is said of them


def test_widths_are_those_of_the_noise() -> None:
    """The number of records is a sum of all cells' noise: 95 % of normals are within 1.96 of their deviation."""
    truth, groups = np.arange(900) % 3, np.arange(900) % 2
    for names in (["x", "y"], []):
        given: Any = {"groups": groups, "group_names": names} if names else {}
        found = release_class_scores(truth, truth, None, ["a", "b", "c"], epsilon=1.0, random_state=0, **given)
        event = found.certificate.event
        assert isinstance(event, Gaussian)
        one = 1.96 * event.noise_multiplier * np.sqrt(9)
        assert found.widths["records"] == pytest.approx(one * np.sqrt(max(1, len(names))), rel=0.1)
        assert set(found.part_widths) == set(names)
        for widths in found.part_widths.values():
            assert widths["records"] == pytest.approx(one, rel=0.1)
    found = release_number_scores(np.linspace(2, 8, 50), np.full(50, 4.0), (2.0, 8.0), epsilon=1.0, random_state=0)
    event = found.certificate.event
    assert isinstance(event, Gaussian)
    assert found.widths["records"] == pytest.approx(1.96 * np.sqrt(5) * event.noise_multiplier, rel=0.1)


@pytest.mark.parametrize("persons", [False, True])
def test_the_certificate_says_whose_rows_are_protected(persons: bool) -> None:
    whose: Any = {"persons": np.arange(7) // 2} if persons else {}
    for found in (
        release_class_scores(TRUTH, ANSWERS, None, ["a", "b", "c"], epsilon=1.0, **whose),
        release_number_scores(TRUTH * 1.0, ANSWERS * 1.0, (0.0, 2.0), epsilon=1.0, **whose),
    ):
        certificate = found.certificate
        keys = [item.key for item in certificate.assumptions]
        assert certificate.of_persons is persons
        assert SpendLog.current().charges()[-1].persons is persons
        assert ("persons" in keys, "rows of a person" in keys) == (persons, persons)
        assert any("mean" in item.text for item in certificate.assumptions) is persons
        assert (statements.ONE_RECORD in certificate.assumptions) is not persons


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_numbers_and_classes_that_are_none_are_refused_uncharged(bad: float) -> None:
    good, wrong = np.array([3.0, 4.0]), np.array([3.0, bad])
    for truth, answers in ((wrong, good), (good, wrong)):
        with pytest.raises(ValueError, match="finite targets and answers"):
            release_number_scores(truth, answers, (2.0, 8.0), epsilon=1.0)
    with pytest.raises(ValueError, match="got none"):
        release_number_scores(good[:0], good[:0], (2.0, 8.0), epsilon=1.0)
    for truth in (np.array([0, 3]), np.array([-1, 0]), np.array([0.0, 1.0])):
        with pytest.raises(ValueError, match="Expected truth"):
            release_class_scores(truth, np.array([0, 1]), None, ["a", "b", "c"], epsilon=1.0)
    for truth, names in ((np.array([0, 0]), ["a"]), (np.zeros(0, dtype=int), ["a", "b"])):
        with pytest.raises(ValueError, match="some records of at least two classes"):
            release_class_scores(truth, truth, None, names, epsilon=1.0)
    assert not SpendLog.current().charges()
