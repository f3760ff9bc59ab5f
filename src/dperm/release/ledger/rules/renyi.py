"""Rényi divergences at one order, added up."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np

from dperm.privacy.accountants.budget_costs import divergence
from dperm.privacy.accountants.privacy_filters import rdp_budget
from dperm.privacy.accountants.rdp import conversion
from dperm.privacy.events import Event, Relation
from dperm.release.ledger.rules.rule import HAIR, MASS, Amounts, Rule, mass_of

DIVERGENCE = "divergence"


@dataclass(frozen=True)
class RenyiFilter(Rule):
    """All releases' Rényi divergences at the `order` that was fixed beforehand add up to at most `divergence`, and the δ of those
    that have one to at most `mass` (Feldman & Zrnic 2021, Theorem 4.3; a union bound). It takes
    every release but those with a Rényi divergence at lower orders alone."""

    order: float
    divergence: float
    mass: float

    @classmethod
    def of(
        cls,
        epsilon: float,
        delta: float,
        *,
        relation: Relation | str = Relation.ADD_OR_REMOVE_ONE,
        order: float | None = None,
        mass: float | None = None,
    ) -> RenyiFilter:
        """`order` None: the one that suits Gaussian noise. `mass` None: half of δ. ValueError for what cannot be kept."""
        mass = mass_of(delta, mass)
        held = rdp_budget(epsilon, delta - mass, order=order, relation=Relation(relation))
        return cls(float(epsilon), float(delta), held.relation, held.order, held.rdp_budget, mass)

    @property
    def name(self) -> str:
        return f"Rényi filter at order {self.order:g}"

    @property
    def limits(self) -> Amounts:
        return {DIVERGENCE: self.divergence, MASS: self.mass}

    def cost(self, event: Event) -> Amounts:
        return _cost(event, self.order, self.epsilon)

    def given_back(self, unreleased: Event) -> Amounts:
        """The divergences, and masses, of these leaves: each leaf has its own, whatever the others are (see `divergence`)."""
        return {kind: HAIR * amount for kind, amount in self.cost(unreleased).items()}

    def epsilon_of(self, spent: Amounts) -> float:
        if not any(spent.values()):
            return 0.0
        return spent.get(DIVERGENCE, 0.0) + float(conversion(np.array([self.order]), self.delta - self.mass)[0])

    def told(self, kind: str, amount: float) -> str:
        return f"a divergence of {amount:.4g} at order {self.order:g}" if kind == DIVERGENCE else super().told(kind, amount)


@functools.lru_cache(maxsize=1024)
def _cost(event: Event, order: float, epsilon: float) -> Amounts:
    found = divergence(event, order)
    return {DIVERGENCE: found.rdp, MASS: found.mass + (1 + math.exp(min(epsilon, 700.0))) * found.astray}
