"""Derivatives at public parameters: what is summed, cut and stated of its noise, whatever the records are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dperm.mechanisms import DerivativesRelease
from dperm.objectives import LinearObjective, Logistic, Squared
from dperm.privacy import Composed, Gaussian, Relation
from dperm.release import Channel
from helpers.asked import Asked, Question

ROWS = np.array([[0.6, 0.0], [0.0, 0.8], [0.3, 0.4]])
THETA = np.array([2.0, -1.0, 0.5])


def recorded(objective: LinearObjective, rows: Any, targets: Any, *beside: str) -> tuple[DerivativesRelease, list[Question]]:
    made = DerivativesRelease.calibrate(objective.facts, THETA, 1.0, 1e-5, beside=beside)
    asked = Asked()
    made.release(objective, objective.records(rows, targets), Channel.open(asked))
    return made, asked.questions


def squared(**changes: Any) -> LinearObjective:
    return LinearObjective(Squared(1.0, 5.0), 2, intercept_scale=0.5, radius=5.0, **changes)


@pytest.mark.parametrize("relation", list(Relation))
def test_the_deviations_that_are_stated_are_those_of_the_noise(relation: Relation) -> None:
    for objective, beside in (
        (LinearObjective(Logistic(), 2, intercept_scale=0.5, relation=relation), ("gradient", "products")),
        (squared(relation=relation), ("gradient", "residuals")),
    ):
        made, releases = recorded(objective, ROWS, np.array([1.0, -1.0, 1.0]), *beside)
        stated = made.deviations(objective)
        assert list(stated) == ["hessian", *beside]
        spreads = [release.noise * release.sensitivity for release in releases]
        assert list(stated.values()) == pytest.approx(spreads, rel=1e-4)  # the grid adds a little to a sensitivity


def test_residuals_and_gradients_are_cut_at_twice_the_bound_on_targets() -> None:
    objective, far = squared(), np.array([5.0, 0.0, 0.0])
    made = DerivativesRelease.calibrate(objective.facts, far, 1.0, 1e-5, beside=("gradient", "residuals"))
    for sign in (1.0, -1.0):
        asked = Asked()
        records = objective.records(np.array([[sign * 0.9, 0.0]]), np.array([-sign]))
        made.release(objective, records, Channel.open(asked))
        gradient, residuals = (question.query for question in asked.questions[1:])
        assert gradient[:2] == pytest.approx([2 * 0.9, 0.0], abs=1e-4)  # residual ±5.5, cut to ±2, times the row
        assert residuals == pytest.approx([1.0, 1.0], abs=1e-6)


def test_squares_come_back_in_the_target_s_units() -> None:
    objective = squared()
    made = DerivativesRelease.calibrate(objective.facts, 0 * THETA, 1e6, 0.5, beside=("residuals",))
    rows, targets = np.tile(ROWS, (400, 1)), np.tile([0.5, -1.0, 0.0], 400)
    release = made.release(objective, objective.records(rows, targets), Channel.open())
    number, squares = made.parts(release.theta)["residuals"]
    assert number == pytest.approx(1200, abs=1)
    assert squares == pytest.approx(400 * 1.25, abs=2)


def test_a_table_without_records_is_noise_alone() -> None:
    made, releases = recorded(squared(), np.zeros((0, 2)), np.zeros(0), "gradient", "residuals")
    assert [release.query.tolist() for release in releases] == [[0.0] * 6, [0.0] * 3, [0.0] * 2]
    assert made.beside == ("gradient", "residuals")


def test_the_hessian_alone_is_one_gaussian_and_more_are_composed_to_the_same() -> None:
    objective = LinearObjective(Logistic(), 2, intercept_scale=0.5)
    alone = DerivativesRelease.calibrate(objective.facts, THETA, 1.0, 1e-5).event(objective.facts)
    assert isinstance(alone, Gaussian)
    both = DerivativesRelease.calibrate(objective.facts, THETA, 1.0, 1e-5, beside=("products",)).event(objective.facts)
    assert isinstance(both, Composed)
    precision = sum(part.noise_multiplier**-2 for part in both.events)
    assert precision == pytest.approx(alone.noise_multiplier**-2)
