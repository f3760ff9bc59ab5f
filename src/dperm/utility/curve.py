"""Objective perturbation between two ε: how much noise and how much regulariser each of them asks for, as smooth functions."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.polynomial import Chebyshev
from numpy.typing import ArrayLike

from dperm import _validate as check
from dperm._types import Array
from dperm.mechanisms import Objective, ObjectivePerturbation
from dperm.mechanisms.objective import Calibration
from dperm.mechanisms.tuning import TYPICAL_NORM
from dperm.objectives import PublicFacts
from dperm.privacy import ObjectivePerturbationEvent
from dperm.privacy.accountants import root_finding
from dperm.privacy.accountants.gaussian import gaussian_mu
from dperm.privacy.accountants.objective_perturbation import delta

_DEGREES = (16, 32, 64, 128)
_SMOOTH = 1e-7  # of the largest coefficient: where a series counts as complete
_SECOND_NOISE = -0.5 * math.log1p(-1 / 900)  # in ln σ: the second noise takes 1/30² of the budget
_NEAR, _HOPELESS = 0.01, 20.0  # ln of σ over the floor: half a first bracket, and where no noise is enough
_ROUND = 8  # the corner between the rule's two regimes is rounded by a norm of this order


@dataclass(frozen=True)
class EpsilonCurve:
    """σ(ε), the noise of the linear term, and Λ(ε), the regulariser, for `low` ≤ ε ≤ `high` at one δ: as smooth functions.

    `strong_convexity` is Λ for every ε; under "kifer" 2β/ε is added to it, as published. None: the library's public rule, which
    chooses Λ on a grid, made smooth by what it chooses in the middle. `mechanism(ε)` is the mechanism that all this is of.

    ValueError where some ε between the two cannot be reached with this Λ by any noise.
    """

    facts: PublicFacts
    delta: float
    low: float
    high: float
    calibration: Calibration = "sharp"
    strong_convexity: float | None = None

    def __post_init__(self) -> None:
        check.fraction("delta", self.delta)
        check.positive("low", self.low)
        if not check.positive("high", self.high) > self.low:
            raise ValueError(f"Expected high above low = {self.low:g}, got {self.high!r}.")
        if self.strong_convexity is not None:
            check.positive("strong_convexity", self.strong_convexity)
        self.noise_std([self.low])  # refused here

    # What they are

    def noise_std(self, epsilons: ArrayLike) -> Array:
        """σ (k,)."""
        return np.exp(self._logarithms[0](np.log(self.admit(epsilons))))

    def modulus(self, epsilons: ArrayLike) -> Array:
        """Λ (k,), all of it."""
        return np.exp(self._logarithms[1](np.log(self.admit(epsilons))))

    def slopes(self, epsilons: ArrayLike) -> tuple[Array, Array]:
        """dσ/dε and dΛ/dε (k,)."""
        at = self.admit(epsilons)
        noise, modulus = self._logarithms
        logs = np.log(at)
        return self.noise_std(at) * noise.deriv()(logs) / at, self.modulus(at) * modulus.deriv()(logs) / at

    def mechanism(self, epsilon: float) -> ObjectivePerturbation:
        """What to train with for this ε: calibrated anew, at the curve's Λ."""
        (modulus,) = self.modulus([epsilon])
        return ObjectivePerturbation.calibrate(
            self.facts, epsilon, self.delta, calibration=self.calibration, strong_convexity=float(modulus)
        )

    def method(self, epsilon: float) -> Objective:
        """The same as `mechanism=` of an estimator."""
        return Objective(calibration=self.calibration, strong_convexity=float(self.modulus([epsilon])[0]))

    def admit(self, epsilons: ArrayLike) -> Array:
        """Values of ε (k,), in any order. ValueError for those that are not numbers between low and high."""
        at = np.atleast_1d(np.asarray(epsilons, dtype=np.float64))
        if at.ndim != 1 or not len(at):
            raise ValueError(f"Expected one or several values of epsilon, got shape {np.shape(epsilons)}.")
        inside = (at >= self.low * (1 - 1e-12)) & (at <= self.high * (1 + 1e-12))
        if not inside.all():
            raise ValueError(f"Expected epsilon between {self.low:g} and {self.high:g}, got {at[~inside][0]:g}.")
        return np.clip(at, self.low, self.high)

    # How they are found

    @functools.cached_property
    def _logarithms(self) -> tuple[Chebyshev, Chebyshev]:
        """ln σ and ln Λ as series in ln ε."""
        domain = [math.log(self.low), math.log(self.high)]
        modulus = self._modulus_by_rule
        values, above = np.zeros((0, 2)), 0.0  # ln of σ and Λ; how far σ is above the floor, which is much the same at the next ε
        for degree in _DEGREES:
            nodes = np.exp(np.polynomial.chebyshev.chebpts2(degree + 1) * (domain[1] - domain[0]) / 2 + sum(domain) / 2)
            known, values = values, np.empty((degree + 1, 2))
            for number, epsilon in enumerate(nodes):
                if len(known) and number % 2 == 0:  # the points of before are every second one
                    values[number] = known[number // 2]
                    continue
                each = modulus(float(epsilon))
                above = self._above_floor(float(epsilon), each, above)
                values[number] = math.log(self._floor(float(epsilon))) + above, math.log(each)
            series = _interpolated(values[:, 0], domain), _interpolated(values[:, 1], domain)
            if all(_complete(each) for each in series):
                return series
        raise ValueError(
            f"Noise and regulariser change too fast between epsilon = {self.low:g} and {self.high:g}: near the least "
            "strong_convexity that an epsilon needs, any is. Ask for a smaller range, or a larger strong_convexity."
        )

    @functools.cached_property
    def _modulus_by_rule(self) -> Callable[[float], float]:
        facts, given = self.facts, self.strong_convexity
        if self.calibration == "kifer" and given is not None:
            return lambda epsilon: given + 2 * facts.smoothness / epsilon
        if given is not None:
            return lambda epsilon: given

        def centre(epsilon: float) -> float:
            """Where the rule starts: the least Λ, or noise against the length of a good θ."""
            least = 2 * facts.smoothness / epsilon
            balance = self._floor(epsilon) * math.sqrt(facts.dimension) * facts.data_norm / TYPICAL_NORM
            return least * (1 + (balance / least) ** _ROUND) ** (1 / _ROUND)

        middle = math.sqrt(self.low * self.high)
        ruled = ObjectivePerturbation.calibrate(facts, middle, self.delta, calibration=self.calibration)
        factor = max(1.0, ruled.strong_convexity / centre(middle))
        return lambda epsilon: factor * centre(epsilon)

    def _floor(self, epsilon: float) -> float:
        """σ where the regulariser is large: the Gaussian mechanism's, or Kifer's, which does not depend on it."""
        if self.calibration == "kifer":
            return self.facts.lipschitz * math.sqrt(8 * math.log(2 / self.delta) + 4 * epsilon) / epsilon
        return self.facts.lipschitz / gaussian_mu(epsilon, self.delta)

    def _above_floor(self, epsilon: float, modulus: float, near: float) -> float:
        """ln(σ/floor) of the least σ for which the exact profile at ε is δ: `calibrate` without its margins, and so smooth in ε.
        `near` is a guess."""
        if self.calibration == "kifer":
            return 0.0
        facts, floor = self.facts, self._floor(epsilon)

        def excess(above: float) -> float:
            event = ObjectivePerturbationEvent(
                floor * math.exp(above), facts.lipschitz, facts.smoothness, modulus, facts.relation,
                loss=None if self.calibration == "generic" else facts.loss,
            )  # fmt: skip
            return math.log(max(delta(event, epsilon), 1e-300)) - math.log(self.delta)

        width = _NEAR
        low, high = near - width, near + width
        while excess(high) > 0:
            low, high, width = high, high + 2 * width, 2 * width
            if high > _HOPELESS:
                raise ValueError(
                    f"Expected a larger strong_convexity than {modulus:g}: no noise reaches epsilon = {epsilon:g} with it."
                )
        while excess(low) < 0:
            low, high, width = low - 2 * width, low, 2 * width
        return root_finding.root(excess, low, high, xtol=1e-12, rtol=1e-13) + _SECOND_NOISE


def _interpolated(values: Array, domain: list[float]) -> Chebyshev:
    """The series through values at Chebyshev points of the second kind, in their order."""
    degree = len(values) - 1
    points: Any = np.polynomial.chebyshev.chebpts2(degree + 1)
    coefficients = np.polynomial.chebyshev.chebfit(points, values, degree)
    return Chebyshev(coefficients, domain=domain)


def _complete(series: Chebyshev) -> bool:
    sizes = np.abs(series.coef)
    return bool(sizes[-2:].max() <= _SMOOTH * max(1.0, sizes.max()))
