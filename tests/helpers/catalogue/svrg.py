"""DP-SVRG: snapshots of all records, and sampled differences from them."""

from __future__ import annotations

from collections.abc import Iterator

from dperm.gradient import SGD, SvrgPlan
from dperm.mechanisms import GradientPerturbation
from dperm.objectives import Softmax, Squared
from helpers.catalogue.common import ADD, BUDGET, DELTA, EPSILON, REPLACE, SIZE, Entry, objective


def entries() -> Iterator[Entry]:
    for relation in (ADD, REPLACE):
        for loss, radius in ((None, None), (Softmax(2), None), (Squared(1.0, 2.0), 2.0)):
            problem = objective(loss, relation, radius=radius)

            def plan(noise: float) -> SvrgPlan:
                return SvrgPlan(0.3, 3, 5, 0.5, 2 * noise, noise, SGD(0.05), SIZE)

            made = GradientPerturbation.calibrate(plan, problem.facts, EPSILON, DELTA)
            assert made.budget == BUDGET
            yield f"svrg, {problem.loss.name}, {relation}", made, problem
