"""Standard errors: what they estimate, how often intervals hold, and when they are refused."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.special import expit
from sklearn.linear_model import LinearRegression

from dperm.estimators import DPLogisticRegression, DPRidge, model_from_json, model_to_json
from dperm.inference import (
    Interval,
    ReleasedDerivatives,
    coefficient_intervals,
    contrast_intervals,
    estimable,
    release_derivatives,
)
from dperm.mechanisms import Gradient, Objective, Output
from dperm.privacy import epsilon
from dperm.release import SpendLog

WEIGHTS = np.array([2.0, -1.0, 0.0])
HUGE = 1e7  # an ε at which noise is next to nothing


def classified(size: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    rows = rng.uniform(-1, 1, (size, 3)) / 2
    return rows, (rng.random(size) < expit(rows @ WEIGHTS + 0.5)).astype(int)


def amounts(size: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    rows = rng.uniform(-1, 1, (size, 3)) / 2
    return rows, 10 * rows @ WEIGHTS + 50 + rng.normal(0, 4, size)


def logistic(size: int, **changes: Any) -> DPLogisticRegression:
    return DPLogisticRegression(**{"epsilon": 1.0, "mechanism": Objective(margin=0.0), "public_size": size} | changes)


def ridge(size: int, **changes: Any) -> DPRidge:
    return DPRidge(**{"epsilon": 1.0, "public_size": size, "target_range": (0, 100)} | changes)


def held(found: list[Interval], truth: Any) -> list[bool]:
    return [each.low <= value <= each.high for each, value in zip(found, truth, strict=True)]


@pytest.mark.filterwarnings("ignore")
def test_without_noise_they_are_those_of_least_squares() -> None:
    rows, targets = amounts(4000)
    model = ridge(4000, epsilon=1.0).fit(rows, targets)
    released = release_derivatives(model, rows, targets, epsilon=HUGE, delta=0.5)
    found = coefficient_intervals(model, released, names=["a", "b", "c"])
    plain = LinearRegression().fit(rows, targets)
    design = np.column_stack([rows, np.ones(len(rows))])
    variance = np.square(targets - plain.predict(rows)).mean() * np.linalg.inv(design.T @ design)
    assert [each.name for each in found] == ["a", "b", "c", "intercept"]
    assert [each.estimate for each in found] == pytest.approx([*plain.coef_, plain.intercept_], abs=1e-3)
    assert [each.standard_error for each in found] == pytest.approx(np.sqrt(np.diag(variance)), rel=5e-3)


@pytest.mark.filterwarnings("ignore")
def test_without_noise_robust_ones_are_those_of_the_sandwich() -> None:
    rows, targets = amounts(4000)
    targets = 50 + (targets - 50) * (1 + 2 * np.abs(rows[:, 0]))
    model = ridge(4000).fit(rows, targets)
    released = release_derivatives(model, rows, targets, epsilon=HUGE, delta=0.5, spread="robust")
    found = coefficient_intervals(model, released)
    design = np.column_stack([rows, np.ones(len(rows))])
    residuals = targets - model.predict(rows)
    bread = np.linalg.inv(design.T @ design)
    sandwich = bread @ (design.T * residuals**2) @ design @ bread
    assert [each.standard_error for each in found] == pytest.approx(np.sqrt(np.diag(sandwich)), rel=5e-3)


@pytest.mark.parametrize("make", ["logistic", "ridge"])
@pytest.mark.parametrize("spread", ["model", "robust"])
def test_intervals_hold_as_often_as_they_say(make: str, spread: str) -> None:
    """Of 40 trainings each: a tenth fewer than said is found, and `benchmarks/standard_errors.py` has ten thousand."""
    found: list[list[bool]] = []
    for seed in range(40):
        rows, targets = (classified if make == "logistic" else amounts)(4000, seed)
        model = (logistic if make == "logistic" else ridge)(4000).fit(rows, targets)
        released = release_derivatives(model, rows, targets, epsilon=20.0, spread=spread)
        truth = [*WEIGHTS, 0.5] if make == "logistic" else [*(10 * WEIGHTS), 50.0]
        found.append(held(coefficient_intervals(model, released, level=0.9), truth))
    assert 0.8 < np.mean(found) < 0.98


def test_the_noise_of_privacy_is_in_them() -> None:
    rows, targets = classified(4000)
    errors: list[float] = []
    for budget in (8.0, 0.4):
        model = logistic(4000, epsilon=budget).fit(rows, targets)
        errors.append(coefficient_intervals(model, release_derivatives(model, rows, targets, epsilon=4.0))[0].standard_error)
    assert errors[1] > 1.3 * errors[0]


def test_what_they_cost_is_charged_once_and_certified() -> None:
    rows, targets = amounts(3000)
    model = ridge(3000, label="clinic").fit(rows, targets)
    released = release_derivatives(model, rows, targets, epsilon=0.7)
    first, second = SpendLog.current().charges()
    assert second.label == first.label == "clinic"
    assert second.event == released.certificate.event
    assert 0.699 < epsilon(second.event, 1e-5) <= 0.7
    assert released.certificate.epsilon == pytest.approx(epsilon(second.event, 1e-5))
    assert "parameters are public" in {each.key for each in released.certificate.assumptions}
    coefficient_intervals(model, released)
    assert len(SpendLog.current().charges()) == 2


def test_a_model_and_derivatives_that_were_saved_give_the_same() -> None:
    rows, targets = amounts(3000)
    model = ridge(3000).fit(rows, targets)
    released = release_derivatives(model, rows, targets, epsilon=4.0, spread="robust")
    again, _ = model_from_json(model_to_json(model))
    read = ReleasedDerivatives.from_dict(json.loads(json.dumps(released.to_dict())))
    assert coefficient_intervals(again, read) == coefficient_intervals(model, released)
    assert read.certificate.to_json() == released.certificate.to_json()
    for broken in ({}, released.to_dict() | {"hessian": [[1.0]]}, released.to_dict() | {"spread": "all"}):
        with pytest.raises(ValueError, match="Expected released derivatives"):
            ReleasedDerivatives.from_dict(broken)


def test_differences_are_told_where_levels_always_add_up_to_the_same() -> None:
    rng = np.random.default_rng(0)
    level = rng.integers(3, size=6000)
    rows = np.eye(3)[level] / 2
    targets = np.array([40.0, 50.0, 60.0])[level] + rng.normal(0, 4, 6000)
    model = ridge(6000).fit(rows, targets)
    released = release_derivatives(model, rows, targets, epsilon=4.0)
    with pytest.raises(ValueError, match="too large beside it"):
        coefficient_intervals(model, released)
    scale = model.objective_.intercept_scale
    never = np.array([[2.0, 2.0, 2.0, -1 / scale]])  # 2·(row's sum) − the constant is 0 for every row
    found = contrast_intervals(model, released, [[-0.5, 0.5, 0, 0], [-0.5, 0, 0.5, 0]], ["b", "c"], level=0.9999, never=never)
    assert held(found, [10.0, 20.0]) == [True, True]
    with pytest.raises(ValueError, match="only differences"):
        contrast_intervals(model, released, [[0.5, 0, 0, 0]], ["a"], never=never)


def test_refusals_are_made_before_a_charge() -> None:
    rows, targets = classified(400)
    model = logistic(400).fit(rows, targets)
    charged = len(SpendLog.current().charges())
    with pytest.raises(ValueError, match="spread"):
        release_derivatives(model, rows, targets, epsilon=1.0, spread="all")
    with pytest.raises(ValueError, match="3 columns"):
        release_derivatives(model, rows[:, :2], targets, epsilon=1.0)
    with pytest.raises(ValueError, match="labels"):
        release_derivatives(model, rows, targets + 1, epsilon=1.0)
    with pytest.raises(ValueError, match="no row longer"):
        release_derivatives(model, 3 * rows, targets, epsilon=1.0)
    margin = logistic(400, mechanism="objective").fit(rows, targets)
    with pytest.raises(ValueError, match="without margin"):
        release_derivatives(margin, rows, targets, epsilon=1.0)
    three = logistic(400, mechanism=Gradient()).fit(rows, np.arange(400) % 3)
    with pytest.raises(ValueError, match="3 classes"):
        release_derivatives(three, rows, targets, epsilon=1.0)
    descent = logistic(400, mechanism=Gradient()).fit(rows, targets)
    with pytest.raises(ValueError, match="no known law"):
        release_derivatives(descent, rows, targets, epsilon=1.0, spread="noise")
    with pytest.warns(UserWarning, match="are clipped to it"):
        wages = ridge(400, target_range=(45, 55)).fit(*amounts(400))
    with pytest.raises(ValueError, match="outside, which are clipped"):
        release_derivatives(wages, *amounts(400), epsilon=1.0)
    assert len(SpendLog.current().charges()) == charged + 4  # the four fits


def test_what_is_too_noisy_has_no_standard_errors() -> None:
    rows, targets = classified(300)
    model = logistic(300).fit(rows, targets)
    with pytest.raises(ValueError, match="the noise of the release hides such features"):
        coefficient_intervals(model, release_derivatives(model, rows, targets, epsilon=0.1))
    released = release_derivatives(model, rows, targets, epsilon=HUGE, delta=0.5, spread="noise")
    with pytest.raises(ValueError, match="only the noise"):
        coefficient_intervals(model, released)
    other = logistic(300).fit(rows, targets)
    with pytest.raises(ValueError, match="of another model"):
        coefficient_intervals(other, replace(released, spread="model"))


def test_a_level_that_few_records_have_hides_no_other() -> None:
    """It lies between what the release does not show and what standard errors ask for; truth is in the others' intervals."""
    found: list[list[bool]] = []
    rng = np.random.default_rng(0)
    for _ in range(30):
        job, sex = rng.choice(3, 8000, p=[0.55, 0.435, 0.015]), rng.choice(2, 8000)
        rows = np.hstack([np.eye(3)[job], np.eye(2)[sex]]) / np.sqrt(2)
        chance = expit(np.array([0.0, 0.8, -3.0])[job] + 0.3 * sex - 0.4)
        targets = (rng.random(8000) < chance).astype(int)
        model = logistic(8000).fit(rows, targets)
        released = release_derivatives(model, rows, targets, epsilon=1.0)
        constant = -1 / np.sqrt(2) / model.objective_.intercept_scale
        never = np.array([[1.0, 1, 1, 0, 0, constant], [0.0, 0, 0, 1, 1, constant]])
        contrasts = np.array([[-1.0, 1, 0, 0, 0, 0], [0.0, 0, 0, -1, 1, 0], [-1.0, 0, 1, 0, 0, 0]]) / np.sqrt(2)
        assert estimable(model, released, contrasts, never=never).tolist() == [True, True, False]
        told = contrast_intervals(model, released, contrasts[:2], ["nurse", "man"], never=never, level=0.9)
        found.append(held(told, [0.8, 0.3]))
        with pytest.raises(ValueError, match="the noise of the release hides"):
            contrast_intervals(model, released, contrasts[2:], ["judge"], never=never)
    assert np.mean(found) > 0.75


def test_the_certificate_says_what_the_records_are_assumed_to_be() -> None:
    class Doubled(DPLogisticRegression):
        """A third party's, which could count each record twice."""

    rows, targets = classified(800)
    model = Doubled(epsilon=1.0, mechanism=Objective(margin=0.0), classes=[0, 1], max_sample_weight=2.0)
    weights = np.ones(800)
    model.fit(rows, targets, sample_weight=weights)
    released = release_derivatives(model, rows, targets, epsilon=1.0, spread="robust", sample_weight=weights)
    mine, theirs = ({each.key for each in made.assumptions} for made in (released.certificate, model.certificate_))
    assert {"labels", "record weights"} <= mine & theirs
    assert any("Doubled" in each.text for each in released.certificate.assumptions)


def test_persons_of_several_rows_and_other_records_are_refused_before_a_charge() -> None:
    rows, targets = classified(400)
    groups = np.repeat(np.arange(200), 2)
    model = logistic(200, max_rows_per_unit=2).fit(rows, targets, groups)
    replaced = logistic(400, relation="replace_one").fit(rows, targets)
    charged = len(SpendLog.current().charges())
    with pytest.raises(ValueError, match="one row a person"):
        release_derivatives(model, rows, targets, groups, epsilon=1.0)
    with pytest.raises(ValueError, match="400 records that the model was trained on"):
        release_derivatives(replaced, rows[:200], targets[:200], epsilon=1.0)
    assert len(SpendLog.current().charges()) == charged
    assert release_derivatives(model, rows, targets, groups, epsilon=1.0, spread="noise").hessian.shape == (4, 4)


@pytest.mark.filterwarnings("ignore")
def test_a_model_far_from_where_losses_are_least_has_none() -> None:
    rows, targets = classified(4000)
    model = logistic(4000, mechanism=Output(strong_convexity=2000.0)).fit(rows, targets)
    released = release_derivatives(model, rows, targets, epsilon=HUGE, delta=0.5)
    with pytest.raises(ValueError, match="too far from where the losses are least"):
        coefficient_intervals(model, released)


@pytest.mark.parametrize("spread", ["model", "robust", "noise"])
def test_whatever_is_released_beside_the_hessian_the_price_is_the_one_that_was_asked_for(spread: str) -> None:
    rows, targets = classified(400)
    model = logistic(400).fit(rows, targets)
    released = release_derivatives(model, rows, targets, epsilon=1.5, spread=spread)
    assert released.certificate.epsilon == pytest.approx(1.5, rel=1e-3)
