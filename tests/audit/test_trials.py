"""Trials at once are the trials one by one: same code, same noise, same numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dperm.audit import Training
from dperm.mechanisms.noisy_size import NoisySize
from dperm.solvers import SolverError, minimise_many
from helpers.catalogue import MODULES, catalogue, entries_of
from helpers.trials import Kept, trials_agree


@pytest.mark.slow
@pytest.mark.parametrize("module", MODULES)
def test_trials_of_every_entry_agree(module: str) -> None:
    for _, mechanism, objective in entries_of(module):
        trials_agree(mechanism, objective)


def test_worst_pairs_are_there_where_the_number_of_records_is_released() -> None:
    """Published mechanisms have pairs in which the record in question is alone: then the size is 1, not 0."""
    released = [entry for entry in catalogue() if isinstance(entry[1], NoisySize)]
    assert len(released) > 10
    for name, mechanism, objective in released:
        assert Training.of_mechanism(mechanism, objective).replay_pairs, name


@pytest.mark.slow
def test_nearly_everything_linear_is_vectorised() -> None:
    one_by_one = {entry[0] for entry in catalogue() if Training.of_mechanism(*entry[1:]).many is None}
    adapts = (
        "accuracy first",
        "adaptive",
        "by part, importance",
        "by part, private sizes",
        "coordinate",
        "frank-wolfe",
        "greedy-coordinate",
        "last-iterate",
        "noisy size",
        "persons, preconditioned",
        "persons, private size",
        "preconditioned",
        "recipe dpis",
        "svrg",
    )  # a state or a plan of its own for each run
    assert [name for name in one_by_one if not name.startswith(adapts)] == []
    # K̃ and the rate differ from run to run, so that there is no one draw to share: trials must refuse, not thin wrongly
    with pytest.raises(NotImplementedError, match="no importance sampling"):
        Kept().thin(np.arange(3), np.ones(3), (0, 0))


def test_many_problems_report_what_they_cannot_reach() -> None:
    class Quartic:
        """Σ x⁴/4 + x²/2 + bx, a problem a row."""

        def __init__(self, linear: np.ndarray) -> None:
            self.linear = linear

        def evaluate(self, theta: np.ndarray, hessian: bool) -> Any:
            matrices = (3 * theta**2 + 1)[:, :, None] * np.eye(theta.shape[1])
            values = (theta**4 / 4 + theta**2 / 2 + self.linear * theta).sum(axis=1)
            return values, theta**3 + theta + self.linear, matrices

    linear = np.random.default_rng(0).normal(size=(50, 3)) * 100
    solution = minimise_many(Quartic(linear), np.zeros((50, 3)), 1e-9)
    assert np.abs(solution.theta**3 + solution.theta + linear).max() <= 1e-9 >= solution.residual
    with pytest.raises(ValueError, match="within the ball"):
        minimise_many(Quartic(linear), np.zeros((50, 3)), 1e-9, radius=0.1)
    with pytest.raises(SolverError, match=r"not reached|below rounding"):
        minimise_many(Quartic(linear), np.zeros((50, 3)), 1e-30)
