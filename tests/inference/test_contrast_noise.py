"""Bands for the noise of privacy: at most what a level without records has, and what the noise did where levels are common."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit

from dperm.estimators import DPLogisticRegression
from dperm.inference import ContrastNoise, ParameterNoise, release_derivatives
from dperm.mechanisms import Objective, Output
from dperm.objectives import RegularisedSum
from dperm.solvers import minimise

SIZE = 8000


def levels(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """One-hot rows of a column whose fourth level nobody has, and of one of two levels; and targets."""
    rng = np.random.default_rng(seed)
    first, second = rng.choice(4, SIZE, p=[0.6, 0.3, 0.1, 0.0]), rng.choice(2, SIZE)
    rows = np.hstack([np.eye(4)[first], np.eye(2)[second]]) / np.sqrt(2)
    return rows, (rng.random(SIZE) < expit(2 * rows[:, 0] - 2 * rows[:, 4])).astype(int)


def fitted(rows: np.ndarray, targets: np.ndarray, mechanism: Objective | Output | None = None) -> DPLogisticRegression:
    return DPLogisticRegression(epsilon=1.0, mechanism=mechanism or Objective(margin=0.0), public_size=SIZE).fit(rows, targets)


def never(model: DPLogisticRegression) -> np.ndarray:
    constant = -1 / np.sqrt(2) / model.objective_.intercept_scale
    return np.array([[1.0, 1, 1, 1, 0, 0, constant], [0.0, 0, 0, 0, 1, 1, constant]])


def test_bands_hold_at_common_and_empty_levels() -> None:
    rows, targets = levels()
    first = fitted(rows, targets)
    objective, records, _ = first.records_of(rows, targets)
    strong = objective.with_strong_convexity(first.trace_["strong_convexity"])
    without = minimise(RegularisedSum(strong, records.admitted(objective.loss.admit)), 1e-6).theta
    held: list[np.ndarray] = []
    narrow: list[float] = []
    for _ in range(40):
        model = fitted(rows, targets)
        noise = ContrastNoise.of(
            model, release_derivatives(model, rows, targets, epsilon=1.0, spread="noise"), never=never(model)
        )
        if noise.present[3]:  # noise alone brings it there in 1 of 740
            continue
        assert noise.present.tolist() == [True, True, True, False, True, True, True]
        weights = noise.reference(slice(0, 4))
        assert weights[3] == 0
        assert weights.sum() == pytest.approx(1)
        contrasts = np.zeros((4, 7))
        contrasts[:, :4] = np.eye(4) - weights
        deviations = noise.deviations(contrasts)
        held.append(np.abs(contrasts @ (model.parameters() - without)) <= 1.96 * deviations)
        narrow.append(deviations[0] / deviations[3])
    assert len(held) > 36
    assert np.mean(held) > 0.9
    assert max(narrow) < 0.05  # a common level is known twenty times better than one that nobody has


def test_a_level_without_records_has_what_noise_alone_does() -> None:
    rows, targets = levels()
    model = fitted(rows, targets)
    noise = ContrastNoise.of(model, release_derivatives(model, rows, targets, epsilon=1.0, spread="noise"), never=never(model))
    alone = model.trace_["noise_std"] / model.trace_["strong_convexity"]
    single = np.eye(7)[3]
    assert noise.deviations(single) == pytest.approx([alone], rel=1e-3)
    assert (noise.deviations(np.eye(7)) <= alone * (1 + 1e-6)).all()
    assert noise.reference(slice(3, 4)).tolist() == [1.0]


def test_noise_that_is_added_to_parameters_is_known_of_each() -> None:
    rows, targets = levels()
    model = fitted(rows, targets, Output())
    noise = ContrastNoise.of(model, release_derivatives(model, rows, targets, epsilon=1.0, spread="noise"))
    assert noise.deviations([[1.0, -1.0, 0, 0, 0, 0, 0]]) == pytest.approx([np.sqrt(2) * model.trace_["noise_std"]])
    assert ParameterNoise.of(model) == ParameterNoise(
        0.0, model.trace_["noise_std"], model.certificate_.public_facts["strong_convexity"]
    )
