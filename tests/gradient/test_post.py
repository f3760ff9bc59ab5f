"""Post-processing of noisy gradients: what it does, and that it costs nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from dperm.gradient import Identity, LaplacianSmoothing, Plan, UnitAtLeast
from dperm.gradient.recipes import full_batch_descent
from dperm.objectives import LinearObjective, Logistic
from dperm.privacy import Relation
from dperm.release import Channel


@pytest.mark.parametrize("size", [1, 2, 3, 16, 101])
def test_laplacian_smoothing_solves_its_equations(size: int) -> None:
    """A = I − s·L on a ring, against a dense solve; NumPy, torch, and many at once."""
    gradient, strength = np.random.default_rng(0).normal(size=size), 1.7
    matrix = np.eye(size)
    for row in range(size):
        for other in (row - 1, row + 1):
            matrix[row, row] += strength
            matrix[row, other % size] -= strength
    smooth = LaplacianSmoothing(strength)
    expected = np.linalg.solve(matrix, gradient)
    assert smooth.apply(gradient) == pytest.approx(expected, abs=1e-12)
    assert smooth.apply(np.stack([gradient, 2 * gradient]))[1] == pytest.approx(2 * expected, abs=1e-12)
    assert smooth.apply(torch.from_numpy(gradient)).numpy() == pytest.approx(expected, abs=1e-12)
    single = smooth.apply(torch.from_numpy(gradient).float())
    assert single.dtype == torch.float32 and single.numpy() == pytest.approx(expected, abs=1e-5)
    assert LaplacianSmoothing(0.0).apply(gradient) == pytest.approx(gradient)


def test_short_gradients_are_made_as_long_as_one() -> None:
    lift = UnitAtLeast()
    for vector, expected in (([0.3, 0.4], [0.6, 0.8]), ([3.0, 4.0], [3.0, 4.0]), ([0.0, 0.0], [0.0, 0.0])):
        assert lift.apply(np.array(vector)) == pytest.approx(np.array(expected))
        assert lift.apply(torch.tensor(vector)).numpy() == pytest.approx(np.array(expected))
    assert lift.apply(np.array([[0.3, 0.4], [3.0, 4.0]])) == pytest.approx(np.array([[0.6, 0.8], [3.0, 4.0]]))


def test_post_processing_costs_nothing_and_sees_the_regulariser() -> None:
    o = LinearObjective(Logistic(), 2, public_size=10, strong_convexity=5.0)
    plain: dict[str, Any] = {"noise_multiplier": 2.0, "public_size": 10, "steps": 1, "clipping_norm": 1.0}
    plans = [full_batch_descent(**plain, post=post) for post in (None, Doubled())]
    assert plans[0].event(o.relation) == plans[1].event(o.relation)
    records = o.records(np.eye(2), np.ones(2))
    first, second = (plan.gradients(o, records, paid(plan))(np.array([3.0, -4.0])) for plan in plans)
    assert second == pytest.approx(2 * first)


@dataclass(frozen=True)
class Doubled(Identity):
    def apply(self, gradient: Any) -> Any:
        return 2 * gradient


def paid(plan: Plan) -> Channel:
    channel = Channel.open(0)
    channel.charge(plan.event(Relation.ADD_OR_REMOVE_ONE), "test")
    return channel
