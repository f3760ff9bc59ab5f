"""Greedy private coordinate descent: each step moves the coordinate that matters most (Mangold and others 2023).

The coordinate is chosen by the exponential mechanism among what a proximal step would do to each, and moved by its noisy
gradient: noise grows with the logarithm of the number of coordinates, and no scales need to be known. Where few features matter.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dperm import _validate as check
from dperm._progress import watched
from dperm._types import Array
from dperm.mechanisms.base import Budget, Mechanism
from dperm.mechanisms.entrywise import entry_limit, entrywise_gradient, entrywise_moved
from dperm.mechanisms.extremes import Extreme, against_others_alike, pulled_along
from dperm.mechanisms.method import Method, one_for_each
from dperm.mechanisms.noisy_size import NoisySize
from dperm.objectives import LinearObjective, PublicFacts, Records
from dperm.privacy import Composed, Event, ExponentialMechanism, Gaussian, PureDP, SelfComposed, calibrate
from dperm.privacy.accountants.gaussian import gaussian_mu
from dperm.release import Channel, ExponentialChoice, GaussianNoise

_REACH = 2.0**28  # scores, in sensitivities: their rounding is far below one
_ROUNDED = 1 + 2.0**-20  # what it may add to a sensitivity
_FEWEST, _MOST = 10, 500  # steps of the rule
_PULLING = 1000  # records that an audit puts beside another one
_UNKNOWN = 50  # where the number of records is private


@dataclass(frozen=True, kw_only=True)
class GreedyDescent(Mechanism):
    """`steps` times: the coordinate that a proximal step would move furthest, and its step, θ_j ← prox(θ_j − g_j/(n·M)), g_j the
    noisy sum of records' ∂_jℓ. Penalties are those beside the *mean* loss: l1·‖θ‖₁ without the intercept,
    (l2/2)·‖θ‖²; `box` holds |θ_j| ≤ box.

    A proximal map moves no further than what it is given: a record moves every score by at most the bound on its gradient's
    entries, see `entry_limit`. Half of each step's budget goes to the choice: ε₀ = 2/noise_multiplier.
    """

    steps: check.Count
    noise_multiplier: check.Scale
    public_size: check.Count
    entry_bound: check.Scale | None = None
    l1: check.ScaleOrZero = 0.0
    l2: check.ScaleOrZero = 0.0
    box: check.Scale | None = None

    @property
    def name(self) -> str:
        return f"greedy coordinate descent ({self.steps} steps)"

    @property
    def paper(self) -> str:
        return "Mangold, Bellet, Salmon, Tommasi 2023; choices by the exponential mechanism: Dong, Durfee, Rogers 2020"

    @property
    def choice_epsilon(self) -> float:
        """ε₀ of a choice, as concentrated as a release of noise_multiplier: ε₀²/8 = 1/(2σ²)."""
        return 2 / self.noise_multiplier

    def event(self, facts: PublicFacts) -> Event:
        if not facts.smoothness < math.inf:
            raise ValueError("Expected a smooth loss for coordinate descent, whose steps are 1/β.")
        if not facts.lipschitz < math.inf:
            raise ValueError("Expected a loss of bounded slope for greedy coordinates; give the squared loss a radius.")
        return Composed(
            (
                SelfComposed(ExponentialMechanism(self.choice_epsilon, facts.relation), self.steps),
                SelfComposed(Gaussian(self.noise_multiplier, facts.relation), self.steps),
            )
        )

    def refuse(self, objective: LinearObjective, records: int) -> None:
        if objective.outputs > 1:
            raise ValueError(f"Expected a loss of one output for coordinate descent, got {objective.loss.name}.")
        if objective.strong_convexity:
            raise ValueError("Expected the quadratic penalty as the mechanism's l2, not the objective's.")
        entry_limit(objective, self.entry_bound)
        super().refuse(objective, records)

    def train(self, objective: LinearObjective, records: Records, channel: Channel) -> tuple[Array, dict[str, Any]]:
        limit = entry_limit(objective, self.entry_bound)
        moved, n = entrywise_moved(objective, limit), float(self.public_size)
        entry = max(min(self.entry_bound or math.inf, objective.row_norm), objective.intercept_scale)
        curvature = n * (objective.curvature * entry**2 + self.l2)  # of a coordinate
        penalties = np.full(objective.dimension, n * self.l1)
        penalties[objective.features :] = 0.0
        edge = math.inf if self.box is None else curvature * self.box
        theta = np.zeros(objective.dimension)
        for _ in watched(range(self.steps), "Training", self.steps):
            gradient = entrywise_gradient(objective, records, theta, limit, self.noise_multiplier)
            place = (curvature - n * self.l2) * theta
            scores, sensitivity = _scores(place, gradient, curvature * theta, penalties, edge, moved)
            chosen = channel.release(scores, ExponentialChoice(sensitivity, self.choice_epsilon, what="choice of a coordinate"))
            noise = GaussianNoise(moved, self.noise_multiplier, what="slope of a coordinate")
            noisy = float(channel.release(gradient[[chosen]], noise)[0])
            wanted = float(place[chosen]) - noisy
            wanted = math.copysign(max(abs(wanted) - float(penalties[chosen]), 0.0), wanted)
            theta[chosen] = min(max(wanted, -edge), edge) / curvature
        return theta, {"steps": self.steps, "non_zero": int(np.count_nonzero(theta))}

    released_kinds = frozenset({"choice of a coordinate", "slope of a coordinate"})
    curved = False

    def extremes(self, objective: LinearObjective) -> list[Extreme]:
        return [*against_others_alike(objective), *pulled_along(objective, _PULLING, beside=_PULLING // 100)]

    def settings(self) -> Mapping[str, Any]:
        return {
            "steps": self.steps,
            "entry_bound": self.entry_bound,
            "l1": self.l1,
            "l2": self.l2,
            "box": self.box,
        }


def _scores(place: Array, gradient: Array, theta: Array, penalties: Array, edge: float, moved: float) -> tuple[Array, float]:
    """(p,): how far a proximal step moves each coordinate, all in units of the gradient: 1-Lipschitz in each entry of it; and how
    far one record moves a score, which moves an entry of the gradient by `moved`.

    Numbers beyond `_REACH` times that are cut, for all data sets alike, so that rounding is bounded.
    """
    reach = _REACH * moved
    before, place, gradient = (np.clip(each, -reach, reach) for each in (theta, place, gradient))
    wanted = place - gradient
    wanted = np.sign(wanted) * np.maximum(np.abs(wanted) - penalties, 0.0)
    return np.abs(np.clip(wanted, -edge, edge) - before), moved * _ROUNDED


@dataclass(frozen=True, kw_only=True, repr=False)
class GreedyCoordinate(Method):
    """Greedy coordinate descent, with penalties beside the mean loss: `l1`·‖θ‖₁ and (`l2`/2)·‖θ‖², and |θ_j| ≤ `box`.

    For many features of which few matter. `entry_bound`: a public bound on every feature's size, as for `FrankWolfe`. `steps`
    left open follow from the number of records and the budget, between 10 and 500; they are 50 where that number is private.
    """

    steps: check.Count | None = None
    entry_bound: check.Scale | None = None
    l1: check.ScaleOrZero = 0.0
    l2: check.ScaleOrZero = 0.0
    box: check.Scale | None = None

    key = "greedy-coordinate"
    title = "Greedy coordinate descent"
    needs_size = True

    def at(self, facts: PublicFacts, budget: Budget, models: int, noise: float) -> Mechanism:
        assert facts.public_size is not None
        steps = self.steps or self._rule(facts, check.positive("epsilon", budget.epsilon), budget.delta)
        part = self.made(GreedyDescent, budget, steps=steps, noise_multiplier=noise, public_size=facts.public_size)
        return one_for_each(part, models)

    def _rule(self, facts: PublicFacts, epsilon: float, delta: float) -> int:
        """(nμ/(4 ln 2p))^⅔: noise of a choice among so many grows with the root of the steps."""
        assert facts.public_size is not None
        signal = facts.public_size * gaussian_mu(epsilon, delta) / (4 * math.log(2 * facts.dimension))
        return int(min(max(signal ** (2 / 3), _FEWEST), _MOST))

    def calibrated(self, facts: PublicFacts, budget: Budget, models: int, beside: PureDP | None = None) -> Mechanism:
        """`beside`: what else is paid from the same budget."""
        others = () if beside is None else (beside,)
        noise = calibrate(
            lambda noise: Composed((*others, self.at(facts, budget, models, noise).event(facts))),
            check.positive("epsilon", budget.epsilon),
            budget.delta,
        )
        return self.at(facts, budget, models, noise)

    def size_released(self, facts: PublicFacts, budget: Budget, models: int) -> Mechanism:
        method = self if self.steps else replace(self, steps=_UNKNOWN)  # so that the size changes nothing of what it costs
        return NoisySize.known(
            lambda facts, count: method.calibrated(facts, budget, models, beside=count),
            facts,
            budget,
            label="greedy coordinate descent",
        )
