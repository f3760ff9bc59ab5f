"""Squares of the μ of Gaussian privacy, added up."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

from dperm import _validate as check
from dperm.privacy.accountants import root_finding
from dperm.privacy.accountants.budget_costs import GaussianBound, gdp_bounds
from dperm.privacy.accountants.gaussian import gaussian_delta, gaussian_epsilon
from dperm.privacy.events import Event, Gaussian, Relation, leaves
from dperm.release.ledger.rules.rule import HAIR, MASS, Amounts, Rule, mass_of

MU_SQUARED = "mu_squared"


@dataclass(frozen=True)
class GdpFilter(Rule):
    """The μ² of all releases add up to at most `mu_squared` (Smith & Thakurta 2022), and the masses that are set aside
    for it to at most `mass`: see `gdp_bounds`. Nothing is lost for Gaussian noise, and little for noise on samples;
    pure ε-DP costs more than its Rényi divergence.

    With M for the masses, all outputs S of data sets next to each other have P(S) ≤ M + e^ε′·Q(S) ÷ (1 − M) + δ′, where (ε′, δ′)
    is what a Gaussian of √`mu_squared` keeps: P given that nothing set aside was met, times the chance of that, is at most P, and
    Q given so is at most Q ÷ (1 − M).
    """

    mu_squared: float
    mass: float

    @classmethod
    def of(
        cls,
        epsilon: float,
        delta: float,
        *,
        relation: Relation | str = Relation.ADD_OR_REMOVE_ONE,
        mass: float | None = None,
    ) -> GdpFilter:
        """`mass` None: half of δ; with 0 it takes Gaussian noise and pure ε-DP alone. ValueError for what cannot be kept."""
        mass = mass_of(delta, mass)
        left = check.positive("epsilon", epsilon) + math.log1p(-mass)
        if left <= 0:
            raise ValueError(f"Expected a larger epsilon or a smaller mass than {mass:g}.")

        def beyond(log_mu: float) -> float:
            return math.log(gaussian_delta(math.exp(-log_mu), left) / (delta - mass))  # which is never rounded to 0

        least = math.log(1e-12)
        if beyond(least) > 0:
            raise ValueError(f"Expected a larger epsilon or delta than {epsilon:g} and {delta:g}.")
        mu = math.exp(root_finding.root(beyond, least, math.log(math.sqrt(2 * left) + 10), xtol=1e-13))
        while gaussian_epsilon(1 / mu, delta - mass) > left:
            mu *= 1 - 1e-9  # the conversion back must not round above the target
        return cls(float(epsilon), float(delta), Relation(relation), mu**2, mass)

    @property
    def name(self) -> str:
        return "GDP filter"

    @property
    def limits(self) -> Amounts:
        return {MU_SQUARED: self.mu_squared, MASS: self.mass}

    def cost(self, event: Event) -> Amounts:
        """Of the bounds that `gdp_bounds` knows, the one that takes the least share of the budget."""
        costs = [self._of(bound) for bound in _bounds(event, self.mass)]
        return min(costs, key=self.share)

    def given_back(self, unreleased: Event) -> Amounts:
        """The μ² of Gaussian noise on all records, 1 ÷ noise multiplier² each, which `gdp_bounds` adds up one by one. ValueError
        for other leaves: their μ is that of all of them together."""
        counts = leaves(unreleased)
        if others := [type(leaf).__name__ for leaf in counts if not isinstance(leaf, Gaussian)]:
            raise ValueError(
                f"A {self.name} gives nothing back for {others[0]}: its μ was computed for all such steps together, of a number "
                "that was fixed beforehand. Only Gaussian noise on all records has a μ of each step; a Rényi filter has a "
                "divergence of each step of every kind."
            )
        squares = math.fsum(count / leaf.noise_multiplier**2 for leaf, count in counts.items() if isinstance(leaf, Gaussian))
        return {MU_SQUARED: HAIR * squares}

    def epsilon_of(self, spent: Amounts) -> float:
        if not any(spent.values()):
            return 0.0
        squares = spent.get(MU_SQUARED, 0.0)
        return (gaussian_epsilon(squares**-0.5, self.delta - self.mass) if squares else 0.0) - math.log1p(-self.mass)

    def told(self, kind: str, amount: float) -> str:
        return f"a μ of {math.sqrt(amount):.4g}" if kind == MU_SQUARED else super().told(kind, amount)

    def _of(self, bound: GaussianBound) -> Amounts:
        return {MU_SQUARED: bound.mu_squared, MASS: bound.mass}


@functools.lru_cache(maxsize=256)
def _bounds(event: Event, mass: float) -> tuple[GaussianBound, ...]:
    return tuple(gdp_bounds(event, mass))
