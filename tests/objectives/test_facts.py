"""Constants of a loss that doubles cannot work with are refused before anything is charged."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dperm.estimators import DPLinearSVC, DPRidge
from dperm.objectives import Huber, LinearObjective
from dperm.release import SpendLog


def test_extreme_radii_and_widths_are_refused_before_the_charge() -> None:
    """Found by five thousand combinations: a sensitivity of 1e301, and a condition number that is infinite, failed after it."""
    rows, targets = np.ones((30, 1)), np.tile([-1.0, 1.0], 15)
    with pytest.raises(ValueError, match="radius between 1e-100 and 1e100"):
        DPRidge(radius=1e300, mechanism="output", delta=0.0, epsilon=50.0, public_size=30).fit(rows, targets)
    with pytest.raises(ValueError, match="the loss's smoothness between"):
        DPLinearSVC(half_width=5e-324, mechanism="output", data_norm=1e-25, relation="replace_one").fit(rows, targets)
    assert SpendLog.current().charges() == []


def test_infinite_constants_stay_what_they_are() -> None:
    assert LinearObjective(Huber(0.5), 2).facts.smoothness < math.inf
    with pytest.raises(ValueError, match="smoothness"):
        _ = LinearObjective(Huber(1e-200), 2).facts
