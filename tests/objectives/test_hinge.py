"""Hinges that are not smooth: values, sub-gradients, constants, and who refuses them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dperm.mechanisms import BoltOn, Budget, Gradient, Objective, Output
from dperm.objectives import Hinge, LinearObjective, Loss, QNormHinge, Task
from dperm.objectives.checking import refuse_contradictions
from dperm.privacy import Relation

LOSSES: list[Loss] = [Hinge(), QNormHinge(1.2, 3.0), QNormHinge(1.5, 3.0), QNormHinge(2.0, 3.0)]
names = [str(loss) for loss in LOSSES]


@pytest.mark.parametrize("loss", LOSSES, ids=names)
def test_slopes_and_curvatures_are_those_of_the_values(loss: Loss) -> None:
    t = np.linspace(-4, 4, 161)
    for target in (-1.0, 1.0):
        y, step = np.full(161, target), 1e-6
        away = np.abs(1 - y * t) > 1e-3  # of the joint
        slope = (loss.value(t + step, y) - loss.value(t - step, y)) / (2 * step)
        curvature = (loss.slope(t + step, y) - loss.slope(t - step, y)) / (2 * step)
        assert loss.slope(t, y)[away] == pytest.approx(slope[away], abs=1e-6)
        assert loss.curvature(t, y)[away] == pytest.approx(curvature[away], abs=1e-3)
        assert np.isfinite([loss.value(t, y), loss.slope(t, y), loss.curvature(t, y)]).all()


@pytest.mark.parametrize("loss", LOSSES, ids=names)
def test_constants_hold_and_are_reached(loss: Loss) -> None:
    bound = 1.5
    reach = 10.0 if loss.ball is None else bound * loss.ball
    t = np.linspace(-reach, reach, 2001)
    steepest = max(np.abs(loss.slope(t, np.full(2001, y))).max() for y in (-1.0, 1.0))
    assert bound * steepest == pytest.approx(loss.lipschitz(bound), rel=1e-9)
    refuse_contradictions(loss, bound, loss.ball)


@pytest.mark.parametrize("q", [1.2, 1.5, 1.9, 2.0])
def test_gradients_are_hoelder_with_the_stated_constants(q: float) -> None:
    loss, rng = QNormHinge(q, 3.0), np.random.default_rng(0)
    alpha, constant = loss.holder(1.5)
    assert (alpha, constant) == (q - 1, q * 1.5**q)
    x = 1.5 * np.array([0.6, 0.8])
    first, second = rng.normal(size=(2, 5000, 2)) * 2
    second = first + (second - first) * 10.0 ** rng.uniform(-6, 0, size=(5000, 1))
    y = np.ones(5000)
    moved = np.abs(loss.slope(first @ x, y) - loss.slope(second @ x, y)) * 1.5
    assert (moved <= constant * np.linalg.norm(first - second, axis=1) ** alpha * (1 + 1e-9)).all()


def test_a_ball_is_required_where_slopes_grow_without_bound() -> None:
    with pytest.raises(ValueError, match="ball in which"):
        LinearObjective(QNormHinge(1.5, 3.0), 3)
    with pytest.raises(ValueError, match="above 1"):
        QNormHinge(1.0)
    assert Task(loss=QNormHinge(1.5, 3.0), features=3, classes=2).objective().radius == 3.0


@pytest.mark.parametrize("method", [Output(), Objective(), BoltOn()])
@pytest.mark.parametrize("loss", [Hinge(), QNormHinge(1.5, 3.0)], ids=["hinge", "q-norm hinge"])
def test_mechanisms_that_need_smoothness_refuse(method: Any, loss: Loss) -> None:
    task = Task(loss=loss, features=3, classes=2, public_size=50, relation=Relation.REPLACE_ONE)
    with pytest.raises(ValueError, match=r"smooth|bounded slope"):
        mechanism, problem = method.build(task, Budget(1e-5, 1.0))
        mechanism.event(problem.facts)
    assert Gradient().build(task, Budget(1e-5, 1.0))[0].name
