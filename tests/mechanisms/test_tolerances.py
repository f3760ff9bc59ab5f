"""How near to the minimiser a solver is certain to come, against what rounding does by the standard model of arithmetic.

The proof is in docs/objective-perturbation.md, "The solver's error": here its parts are put together from how far a gradient and
each vector of the descent may be off, for problems in which one part after another is by far the largest.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dperm.mechanisms import minimiser
from dperm.mechanisms.minimiser import certain_tolerance, chosen_tolerance, solve
from dperm.objectives import LinearObjective, PrivacyUnit, PublicFacts, SmoothedHinge
from dperm.privacy import Relation
from dperm.privacy.accountants.objective_perturbation import LONGER

UNIT = 2.0**-53
FACTS = PublicFacts(
    dimension=1,
    data_norm=1.0,
    lipschitz=1e-30,
    smoothness=1e-30,
    relation=Relation.ADD_OR_REMOVE_ONE,
    size_limit=10**12,
    loss_at_zero=1.0,
    radius=1e-30,
)

#: Facts, the strong convexity, and the noise of the linear term: one part after another is by far the largest.
PROBLEMS: dict[str, tuple[dict[str, Any], float, float]] = {
    "slopes": ({"lipschitz": 2.0}, 1.0, 0.0),
    "slopes of several rows each": ({"lipschitz": 2.0, "unit": PrivacyUnit(100)}, 1.0, 0.0),
    "the loss's own shift": ({"smoothness": 2.0, "loss_at_zero": 50.0, "data_norm": 1e-6}, 1.0, 0.0),
    "a loss that is 0 at 0": ({"smoothness": 2.0, "data_norm": 1e-6, "loss_at_zero": 0.0}, 1.0, 0.0),
    "predictions": ({"smoothness": 2.0, "dimension": 10**6, "radius": 10.0}, 1e-30, 0.0),
    "predictions of few features": ({"smoothness": 2.0, "radius": 10.0, "size_limit": 100}, 1e-30, 0.0),
    "the regulariser": ({"radius": 1e3}, 3.0, 0.0),
    "the regulariser of rough weights": ({"radius": 1e3, "roughness": 100.0}, 3.0, 0.0),
    "one record's curvature and the regulariser's": ({"smoothness": 1.0, "radius": 1.0, "size_limit": 1}, 1.0, 0.0),
    "curvatures far above the regulariser's": ({"smoothness": 1.0, "radius": 400.0, "size_limit": 10**3}, 1e-2, 0.0),
    "the linear term": ({"dimension": 4}, 1e20, 5.0),
    "a linear term of many features": ({"dimension": 10**6}, 1e20, 5.0),
    "as far as the losses at 0 let the minimiser be": ({"radius": None, "loss_at_zero": 50.0, "smoothness": 1e-4}, 1e-3, 0.0),
}


def longest(facts: PublicFacts, modulus: float, noise: float) -> tuple[float, float]:
    """‖b‖, but for a chance that is in δ, and the R of the ball that holds the minimiser: (Λ/2)R² − ‖b‖R is at most what the
    records' losses can fall by."""
    linear = noise * (math.sqrt(facts.dimension) + LONGER) + 2 * facts.lipschitz if noise else 0.0
    assert facts.size_limit is not None and facts.loss_at_zero is not None
    roots = np.roots([modulus / 2, -linear, -facts.size_limit * facts.loss_at_zero])
    return linear, min(float(max(roots.real)), facts.radius or math.inf)


def left(facts: PublicFacts, modulus: float, noise: float) -> float:
    """Λ times how far the descent may end from the minimiser, as the theorem and its remarks on rounding put it together."""
    linear, radius = longest(facts, modulus, noise)
    assert facts.size_limit is not None and facts.loss_at_zero is not None
    rows = facts.size_limit * facts.unit.rows
    steep, curved = facts.lipschitz, facts.smoothness
    penalty = modulus * (1 + facts.roughness)
    # a row's slope, times a row of length B: 24 units of the steepest, and 4 of (a shift, and a prediction) times the curvature
    slope = 24 * steep + 4 * curved / facts.data_norm * (1 + facts.loss_at_zero) + 4 * curved * radius
    # the prediction itself is wrong by 3 units of ‖x‖‖θ‖ and 2⁻⁶⁰ for each parameter; the sum by 8 units of the longest vector
    prediction = curved * (3 + facts.dimension * 2.0**-60 / UNIT) * radius
    record = slope + prediction + 8 * steep
    gradient = rows * record + 8 * (penalty * radius + linear)
    bends = facts.size_limit * curved + penalty
    share = math.sqrt(modulus / bends)  # τ
    length = rows * steep + penalty * radius + linear  # of the longest gradient
    y = 5 * radius
    z = 15 * radius + 3 * length / math.sqrt(modulus * bends)
    x = share * z + (1 + 4 * share) * radius
    steps = 2 * bends * y + modulus * 2 / share * (x / share + z)
    drawn = 2.0**-42 * noise * math.sqrt(facts.dimension)
    return UNIT * (2 * gradient + steps) + drawn


@pytest.mark.parametrize("name", PROBLEMS)
def test_rounding_leaves_a_tenth_of_the_tolerance_to_a_descent_s_last_steps(name: str) -> None:
    changes, modulus, noise = PROBLEMS[name]
    facts = replace(FACTS, **changes)
    needed = left(facts, modulus, noise)
    assert needed > 2e-8 * facts.lipschitz  # the least tolerance is not what is tested here
    drawn = 2.0**-42 * noise * math.sqrt(facts.dimension)
    assert needed - drawn <= 0.9 * (certain_tolerance(facts, modulus, noise) - drawn)
    assert certain_tolerance(facts, modulus, noise) <= 1.4 * needed


def test_a_tolerance_is_no_smaller_than_one_of_fewer_records() -> None:
    """Below what rounding needs it stays where it is: a public share of the largest gradient, which no noise is as small as."""
    facts = replace(FACTS, lipschitz=3.0, smoothness=1.0, loss_at_zero=0.7, radius=None)
    tolerances = [certain_tolerance(replace(facts, size_limit=limit), 1.0) for limit in (1, 10, 10**3, 10**9, 10**12)]
    assert tolerances[0] == tolerances[1] == tolerances[2] > 0
    assert tolerances == sorted(tolerances)
    assert tolerances[2] < 1e-7 * 3.0 < tolerances[3]


@pytest.mark.parametrize("scale", [2.0**-20, 2.0**30])
@pytest.mark.parametrize("noise", [0.0, 4.0])
@pytest.mark.parametrize("limit", [10, 10**12])
def test_the_tolerance_is_a_gradient_s_whatever_rows_are_measured_in(limit: int, noise: float, scale: float) -> None:
    """In units of which `scale` are one, rows and gradients are so many times as long, curvatures the square of that, and θ is as
    much shorter."""
    facts = replace(FACTS, lipschitz=3.0, smoothness=1.0, loss_at_zero=0.7, radius=5.0, roughness=2.0, size_limit=limit)
    other = replace(facts, lipschitz=3.0 * scale, smoothness=scale**2, data_norm=scale, radius=5.0 / scale)
    expected = scale * certain_tolerance(facts, 2.0, noise)
    assert certain_tolerance(other, 2.0 * scale**2, noise * scale) == pytest.approx(expected, rel=1e-12)


def test_a_tolerance_set_by_hand_is_taken_as_it_is_or_refused() -> None:
    least = certain_tolerance(FACTS, 1.0)
    assert chosen_tolerance(None, FACTS, 1.0) == least
    assert chosen_tolerance(least, FACTS, 1.0) == least
    assert chosen_tolerance(3 * least, FACTS, 1.0) == 3 * least
    with pytest.raises(ValueError, match="tolerance >="):
        chosen_tolerance(0.999 * least, FACTS, 1.0)


@pytest.mark.parametrize("features", [2, 50])
def test_the_solver_makes_up_for_what_a_linear_term_of_doubles_is_off(features: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each number of b may be 2⁻⁴² standard deviations from the normal that it stands for, and the minimiser then is as far from
    the real one's as ‖b‖ is, divided by Λ."""
    objective = LinearObjective(SmoothedHinge(0.5), features, strong_convexity=1.0, size_limit=10)
    records = objective.records(np.empty((0, features)), np.empty(0))
    noise = 1e6
    off = 2.0**-42 * noise * math.sqrt(features)
    tolerance = certain_tolerance(objective.facts, 1.0, noise)
    asked: list[float] = []
    approach = minimiser.approach
    monkeypatch.setattr(minimiser, "approach", lambda *given: (asked.append(given[1]), approach(*given))[1])
    solve(objective, records, noise * np.ones(features), tolerance, noise)
    assert off > 0.05 * tolerance
    assert asked == [pytest.approx(tolerance - off, rel=1e-12)]
    asked.clear()
    solve(objective, records, 0.0, tolerance)
    assert asked == [tolerance]
