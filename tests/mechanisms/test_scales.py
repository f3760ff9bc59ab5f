"""Items 11 and 12: whatever unit rows are measured in, the same noise is found, and nothing overflows."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

from dperm.estimators import DPLinearSVC, DPLogisticRegression, DPQuantileRegressor, DPRidge
from dperm.mechanisms import Objective, ObjectivePerturbation, Output, minimiser
from dperm.objectives import LinearObjective, Logistic, RegularisedSum, Squared

SCALES = [1e-28, 1e-12, 1e10, 1e21, 1e28]


@pytest.mark.fast_cases(
    "DPLogisticRegression-sharp-replace_one",
    "DPLogisticRegression-generic-add_or_remove_one",
    "DPLinearSVC-sharp-add_or_remove_one",
    "DPQuantileRegressor-generic-add_or_remove_one",
)
@pytest.mark.parametrize("relation", ["add_or_remove_one", "replace_one"])
@pytest.mark.parametrize("calibration", ["sharp", "generic"])
@pytest.mark.parametrize("kind", [DPLogisticRegression, DPLinearSVC, DPQuantileRegressor])
def test_calibration_knows_no_scale(kind: Any, calibration: Any, relation: str) -> None:
    def at(scale: float) -> tuple[ObjectivePerturbation, float]:
        given: Any = {"quantile": 0.5} if kind is DPQuantileRegressor else {"classes": [0, 1]}
        method = Objective(calibration=calibration)
        model = kind(data_norm=scale, mechanism=method, relation=relation, fit_intercept=False, **given)
        mechanism, objective = model.mechanism_for(3)
        assert isinstance(mechanism, ObjectivePerturbation)
        return mechanism, objective.facts.lipschitz

    usual, steep = at(1.0)
    for scale in SCALES:
        mechanism, slope = at(scale)
        assert mechanism.noise_std / slope == pytest.approx(usual.noise_std / steep, rel=1e-4)
        assert mechanism.strong_convexity / scale**2 == pytest.approx(usual.strong_convexity, rel=1e-4)
        assert mechanism.output_multiplier == pytest.approx(usual.output_multiplier, rel=1e-9)


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("loss", [Logistic(), Squared(1.0)], ids=repr)
def test_hessians_of_single_precision_are_those_of_double_whatever_the_scale(loss: Any, scale: float) -> None:
    rng = np.random.default_rng(0)
    rows, targets = rng.normal(size=(50, 3)), rng.choice([-1.0, 1.0], 50)
    single, double = (
        LinearObjective(loss, 3, data_norm=scale, intercept_scale=scale, strong_convexity=modulus * scale**2)
        for modulus in (1.0, 1e-6)
    )
    theta = rng.normal(size=4) / scale
    with warnings.catch_warnings(), np.errstate(all="raise", under="ignore"):
        warnings.simplefilter("error")
        found, exact = (
            np.asarray(RegularisedSum(each, each.records(rows * scale, targets)).evaluate(theta, True)[2]) / scale**2
            - each.strong_convexity / scale**2 * np.eye(4)
            for each in (single, double)
        )
    assert np.linalg.norm(found - exact) <= 1e-5 * np.linalg.norm(exact)
    assert not np.array_equal(found, exact)  # of single precision, the one


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("longest", [1e-3, 1.0, 1e3])
def test_no_fit_warns_because_of_a_record(scale: float, longest: float) -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(20, 3)) * scale
    rows[0] *= longest
    targets = (rows[:, 0] > 0).astype(int)
    targets[:2] = 0, 1
    output = Output(strong_convexity=2 * scale**2)
    for model in (
        DPLogisticRegression(data_norm=scale, classes=[0, 1], mechanism=output),
        DPLogisticRegression(data_norm=scale, classes=[0, 1], mechanism=Objective()),
        DPLinearSVC(data_norm=scale, classes=[0, 1], mechanism=output),
        DPRidge(data_norm=scale, mechanism=output, radius=1 / scale),
    ):
        with warnings.catch_warnings(), np.errstate(all="raise", under="ignore"):
            warnings.simplefilter("error")
            model.fit(rows, targets)


def test_a_long_row_costs_no_time() -> None:
    """Counted: evaluations, with one row as long as the bound and without."""
    rng = np.random.default_rng(0)
    rows, targets = rng.normal(size=(300, 3)), rng.choice([-1.0, 1.0], 300)
    bound = 1e21
    rows[0] = bound
    objective = LinearObjective(Logistic(), 3, data_norm=bound, strong_convexity=2 * bound**2)
    tolerance = minimiser.certain_tolerance(objective.facts, objective.strong_convexity)
    for some in (slice(None), slice(1, None)):
        solution = minimiser.solve(objective, objective.records(rows[some], targets[some]), 0.0, tolerance)
        assert solution.evaluations <= 10
