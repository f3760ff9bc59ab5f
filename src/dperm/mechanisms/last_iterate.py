"""Noisy SGD that releases its last iterate alone: by iteration the steps before it cost little (privacy amplification).

One pass is that of Feldman, Mironov, Talwar, Thakurta 2018, with their random stopping if asked for; many passes are those of
Altschuler & Talwar 2022 and Ye & Shokri 2022, in a fixed order, with the exact Gaussian bound of shifted interpolation (Bok, Su,
Altschuler 2024). Nothing here sees an iterate before the last: no averages, no history, no checkpoints.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dperm import _validate as check
from dperm._types import Array
from dperm.mechanisms.base import Budget, Mechanism
from dperm.mechanisms.extremes import Extreme, pulled_along
from dperm.mechanisms.method import Method, one_for_each
from dperm.mechanisms.tuning import TYPICAL_NORM
from dperm.objectives import LinearObjective, PublicFacts, Records
from dperm.objectives.constraints import project_l2_ball
from dperm.privacy import Event, HiddenIterates, RandomStop, Relation, SelfComposed, calibrate
from dperm.privacy.accountants.gaussian import gaussian_mu
from dperm.release import Channel, HiddenNoise, LastIterateNoise

_UNIT = 2.0**-53
_MOST_PASSES, _RADIUS = 300, 20.0
_FAR = 40.0  # standard deviations that noise never reaches
_OFF = 2.0**-40  # of the noise's standard deviation in a coordinate: how far a normal of doubles is from a real one, and more


@dataclass(frozen=True, kw_only=True)
class LastIterateDescent(Mechanism):
    """θ ← Π(θ − η·(Σ_batch ∇ℓ_i/batch_size + (strong_convexity/n)·θ) + noise), `epochs` times over the records in batches of one
    public order, Π onto ‖θ‖ ≤ radius. Replace-one: their number is public.

    A record moves a step by 2ηL/batch_size =: a; the noise has `noise_multiplier`·a. Steps must not bring iterates apart: losses
    are convex and smooth, nothing is clipped, and η ≤ 2/β, strong_convexity/n in it. `random_stop`: one pass, which stops after a
    number of steps that is drawn uniformly, and public.
    """

    epochs: check.Count
    batch_size: check.Count
    learning_rate: check.Scale
    radius: check.Scale
    noise_multiplier: check.Positive
    strong_convexity: check.ScaleOrZero = 0.0
    random_stop: check.Flag = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.random_stop and self.epochs > 1:
            raise ValueError(f"Expected one pass with random_stop, whose bound is of one, got epochs={self.epochs}.")

    @property
    def name(self) -> str:
        return "last iterate of noisy SGD" + (", stopped at random" if self.random_stop else "")

    @property
    def paper(self) -> str:
        return "Feldman, Mironov, Talwar, Thakurta 2018; Altschuler & Talwar 2022; bound: Bok, Su, Altschuler 2024"

    def batches(self, records: int) -> int:
        return -(-records // self.batch_size)

    def move(self, facts: PublicFacts) -> float:
        """How far a record moves a step that uses it."""
        return 2 * self.learning_rate * facts.lipschitz / self.batch_size

    def contraction(self, facts: PublicFacts, records: int) -> float:
        """The Lipschitz constant of a step. ValueError where it is above 1."""
        modulus = self.strong_convexity / max(1, records)
        smoothness = facts.smoothness + modulus
        if not self.learning_rate <= 2 / smoothness:
            raise ValueError(f"Expected learning_rate of at most 2/β = {2 / smoothness:.6g}, got {self.learning_rate!r}.")
        factor = max(abs(1 - self.learning_rate * modulus), abs(1 - self.learning_rate * smoothness))
        return max(min(1.0, factor * (1 + 2.0**-40)), 1e-6)

    def event(self, facts: PublicFacts) -> Event:
        return self.event_for(facts, self._stated(facts))

    def event_for(self, facts: PublicFacts, records: int) -> Event:
        contraction, move = self.contraction(facts, records), self.move(facts)
        # gradients of doubles, of a θ within the ball; the step, the noise, and the length that a projection divides by
        slopes = facts.smoothness * self.radius * (facts.dimension + 16) + facts.lipschitz * (self.batch_size + 16)
        noise = self.noise_multiplier * move * math.sqrt(facts.dimension)
        steps = self.learning_rate * slopes + self.radius * (facts.dimension / 2 + 16) + _FAR * noise
        off = 4 * _UNIT * steps + _OFF * noise
        rounding = 2 * off / move
        if self.random_stop:
            return RandomStop(self.noise_multiplier, self.batches(records), contraction, rounding, facts.relation)
        return HiddenIterates(
            self.noise_multiplier,
            self.batches(records),
            self.epochs,
            contraction,
            2 * self.radius / move,
            rounding,
            facts.relation,
        )

    def _stated(self, facts: PublicFacts) -> int:
        _refuse_other_neighbours(facts)
        if not facts.smoothness < math.inf or not facts.lipschitz < math.inf:
            raise ValueError("Expected a smooth loss of bounded slope for a last iterate: steps of others bring iterates apart.")
        if facts.public_size is None:
            raise ValueError("Expected public_size for a last iterate: how many steps a pass has is public.")
        return facts.public_size

    def refuse(self, objective: LinearObjective, records: int) -> None:
        stated = self._stated(objective.facts)
        if records != stated:
            raise ValueError(f"Expected {stated} records, as public_size states, got {records}.")
        if objective.outputs > 1:
            raise ValueError(f"Expected a loss of one output for a last iterate, got {objective.loss.name}.")
        if objective.strong_convexity:
            raise ValueError("Expected the quadratic penalty as the mechanism's strong_convexity, not the objective's.")
        if objective.radius is not None and not self.radius <= objective.radius:
            raise ValueError(
                f"Expected radius of at most {objective.radius:g}, within which the loss is bounded, got {self.radius:g}."
            )
        super().refuse(objective, records)

    def train(self, objective: LinearObjective, records: Records, channel: Channel) -> tuple[Array, dict[str, Any]]:
        facts, shrink = objective.facts, self.strong_convexity / max(1, len(records))
        move, theta = self.move(facts), np.zeros(objective.dimension)
        steps = self.epochs * self.batches(len(records))
        if self.random_stop:
            steps = int(channel.source.generator.integers(1, steps + 1))  # public: whoever knows it learns what is charged
        for step, parts in enumerate(records.stream(self._order(len(records), steps)), start=1):
            gradient = shrink * theta
            for batch in parts:
                gradient = gradient + objective.plain_gradient(theta, batch) / self.batch_size
            query = theta - self.learning_rate * gradient
            noise = (LastIterateNoise if step == steps else HiddenNoise)(move, self.noise_multiplier)
            theta = project_l2_ball(channel.release(query, noise), self.radius)
        return theta, {"steps": steps}

    def _order(self, records: int, steps: int) -> Iterator[NDArray[np.intp]]:
        """Batches of one order, the same in every pass: pseudo-random, and public."""
        order = np.random.default_rng(records).permutation(records)
        for step in range(steps):
            start = step % self.batches(records) * self.batch_size
            yield np.sort(order[start : start + self.batch_size])

    ordered = True

    def places(self, records: int) -> Sequence[int]:
        order = np.random.default_rng(records).permutation(records)
        return order[:: self.batch_size].tolist()  # one of each batch

    def extremes(self, objective: LinearObjective) -> list[Extreme]:
        size = self._stated(objective.facts)
        *_, last = self._order(size, self.batches(size))
        return pulled_along(objective, size - 1, [int(last[0])])

    released_kinds = frozenset({"hidden iterate", "last iterate"})
    curved = False

    def settings(self) -> Mapping[str, Any]:
        return {
            "epochs": self.epochs,
            "batch_size": self.batch_size,
            "learning_rate": self.learning_rate,
            "l2_radius": self.radius,
            "step_strong_convexity": self.strong_convexity,
            "random_stop": self.random_stop,
        }


def _refuse_other_neighbours(facts: PublicFacts) -> None:
    if facts.relation is not Relation.REPLACE_ONE:
        raise ValueError("Expected relation='replace_one' for a last iterate: another record moves all others to other batches.")


@dataclass(frozen=True, kw_only=True, repr=False)
class LastIterate(Method):
    """Noisy SGD that releases its last iterate alone, within ‖θ‖ ≤ `radius`, by default 20 or the loss's own. Replace-one.

    Left open: as many passes as batches, E of each, at a learning rate of 1/β; E by a rule of public facts. With `random_stop`
    one pass, in batches of √n.
    """

    epochs: check.Count | None = None
    batch_size: check.Count | None = None
    learning_rate: check.Positive | None = None
    radius: check.Positive | None = None
    strong_convexity: check.Positive | None = None
    random_stop: check.Flag = False

    key = "last-iterate"
    title = "Last iterate"
    needs_size = True

    def size_released(self, facts: PublicFacts, budget: Budget, models: int) -> Mechanism:
        _refuse_other_neighbours(facts)
        return super().size_released(facts, budget, models)

    def calibrated(self, facts: PublicFacts, budget: Budget, models: int) -> Mechanism:
        epsilon = check.positive("epsilon", budget.epsilon)
        if facts.public_size is None:
            raise ValueError("Expected public_size for a last iterate: how many steps a pass has is public.")
        size = facts.public_size
        modulus = self.strong_convexity or 0.0
        rate = self.learning_rate or 1 / (facts.smoothness + modulus / size)
        square = 1 if self.random_stop else self._rule(facts, epsilon, budget.delta, rate)
        batch = self.batch_size or math.ceil(math.sqrt(size) if self.random_stop else size / square)
        if batch > size:
            raise ValueError(f"Expected batch_size of at most public_size = {size}, got {batch}.")
        by_rule = {
            "epochs": square,
            "batch_size": batch,
            "learning_rate": rate,
            "radius": min(_RADIUS, facts.radius or _RADIUS),
        }

        def at(noise: float) -> LastIterateDescent:
            return self.made(LastIterateDescent, budget, noise_multiplier=noise, **by_rule)

        def cost(noise: float) -> Event:
            return SelfComposed(at(noise).event(facts), models)

        return one_for_each(at(calibrate(cost, epsilon, budget.delta)), models)

    def _rule(self, facts: PublicFacts, epsilon: float, delta: float, rate: float) -> int:
        """E: E² steps bring the risk to T²/(2ηE²), T = TYPICAL_NORM/B, and their noise of 2σLηE/n each raises it by
        β/2·(2σLηE²/n)²: the E at which both together are least."""
        assert facts.public_size is not None and facts.smoothness < math.inf
        noise = 2 * math.sqrt(2) / gaussian_mu(epsilon, delta) * facts.lipschitz / facts.public_size
        typical = TYPICAL_NORM / facts.data_norm
        time = (typical**2 / (2 * facts.smoothness * noise**2)) ** (1 / 3)
        return max(1, min(_MOST_PASSES, facts.public_size, round(math.sqrt(time / rate))))
