"""What a loss states of the rounding of its slopes holds: the tolerance of minimisers rests on it."""

from __future__ import annotations

import numpy as np
import pytest

from dperm.objectives import (
    Huber,
    Logistic,
    Loss,
    PoissonLoss,
    QNormHinge,
    QuantileLoss,
    SmoothedHinge,
    Squared,
)
from helpers.losses import every_loss, smooth

#: one or some of each kind whose minimiser is solved for; the others say nothing that a solver reads
LOSSES = every_loss(
    Logistic(),
    Logistic(margin=2.0),
    Logistic(margin=100.0),
    Huber(0.5),
    Huber(1e-3),
    SmoothedHinge(0.1),
    SmoothedHinge(1e-3),
    Squared(target_bound=1.0, radius=5.0),
    Squared(target_bound=1e6, radius=5.0),
    PoissonLoss(target_bound=10.0, radius=2.0),
    QuantileLoss(0.9, 1.0, 0.1),
    QuantileLoss(0.01, 100.0, 1e-3),
    QNormHinge(2.0, 5.0),  # smooth for q = 2
    of=smooth,
)


def worst(loss: Loss, largest: float) -> tuple[float, float]:
    """The largest rounding error of a slope at |t| ≤ `largest`, against numbers of 64 binary digits, and what is stated of it."""
    rng = np.random.default_rng(0)
    low, high = sorted(loss.targets.extremes)
    y = (
        np.array([low, high])
        if loss.targets.classification
        else np.unique(np.concatenate([[low, high], rng.uniform(low, high, 40)]))
    )
    near = np.add.outer(y, rng.normal(size=40) * 10.0 ** rng.uniform(-8, 1, 40)).ravel()  # where losses bend
    t = np.clip(np.concatenate([near, rng.uniform(-largest, largest, 2000)]), -largest, largest)
    t, y = (each.ravel() for each in np.meshgrid(t, y))
    given = y if not loss.weighs else np.column_stack([y, rng.uniform(size=len(y))])
    found = loss.slope(t, given.copy())
    exact = loss.slope(t.astype(np.longdouble), given.astype(np.longdouble))
    assert exact.dtype == np.longdouble
    stated = loss.slope_error(largest, float(np.abs(found).max()), float(np.abs(loss.curvature(t, given)).max()))
    return float(np.abs(found - exact).max()), stated


@pytest.mark.skipif(np.finfo(np.longdouble).nmant < 63, reason="long doubles have no more digits here")
@pytest.mark.parametrize("largest", [1e-3, 1.0, 30.0])
@pytest.mark.parametrize("loss", LOSSES, ids=repr)
def test_no_slope_is_rounded_by_more_than_its_loss_states(loss: Loss, largest: float) -> None:
    found, stated = worst(loss, largest)
    assert found <= stated, (found, stated)


@pytest.mark.skipif(np.finfo(np.longdouble).nmant < 63, reason="long doubles have no more digits here")
def test_a_loss_that_states_no_rounding_is_found() -> None:
    class Exact(Logistic):
        def slope_error(self, largest: float, steepest: float, curvature: float) -> float:
            return 0.0

    found, stated = worst(Exact(margin=2.0), 30.0)
    assert found > stated
