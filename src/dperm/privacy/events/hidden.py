"""Noisy steps of which the last iterate alone is released."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from dperm import _validate as check
from dperm.privacy.events.event import Event, Paid, Relation, own_relation, plain_number
from dperm.privacy.events.noise import Gaussian
from dperm.privacy.last_iterate import hidden_shift


@dataclass(frozen=True)
class HiddenIterates(Event):
    """`passes` over `batches` noisy steps in one public order, of which the last iterate alone is released. Replace-one.

    A record moves the step that uses it, once a pass, by at most 1/`noise_multiplier` standard deviations of each step's noise;
    steps bring iterates together by a factor of `contraction` ≤ 1, within a set of this `diameter`; `rounding` moves every step:
    the last two in units of what a record moves. No more than one Gaussian: see `dperm.privacy.last_iterate`.
    """

    noise_multiplier: float
    batches: int
    passes: int
    contraction: float
    diameter: float
    rounding: float
    relation: Relation = Relation.REPLACE_ONE

    def __post_init__(self) -> None:
        for name in ("noise_multiplier", "diameter", "rounding"):
            plain_number(self, name, check.positive)
        plain_number(self, "contraction", functools.partial(check.fraction, one=True))
        for name in ("batches", "passes"):
            object.__setattr__(self, name, check.integer(name, getattr(self, name)))
        own_relation(self)
        if self.relation is not Relation.REPLACE_ONE:
            raise ValueError("Expected relation='replace_one' for hidden iterates: another record moves all others' places.")

    @property
    def pays_for(self) -> Paid:
        return Paid("hidden", self.noise_multiplier)

    @property
    def releases(self) -> int:
        return self.batches * self.passes

    @property
    def accounting_cost(self) -> float:
        return 1 + self.passes / 2500 + self.passes * (self.batches / 40_000)

    @property
    def whole(self) -> Gaussian:
        """The Gaussian that is no more private."""
        shift = hidden_shift(self.batches, self.passes, self.contraction, self.diameter, self.rounding)
        return Gaussian(self.noise_multiplier / shift, self.relation)


@dataclass(frozen=True)
class RandomStop(Event):
    """One pass of up to `steps` noisy steps in a public order, which stops after a number of them that is drawn uniformly and
    told; of the iterates the last is released. The rest as of `HiddenIterates`. Replace-one.

    The worst place is the first: a record that the run has not come to is not in it.
    """

    noise_multiplier: float
    steps: int
    contraction: float
    rounding: float
    relation: Relation = Relation.REPLACE_ONE

    def __post_init__(self) -> None:
        for name in ("noise_multiplier", "rounding"):
            plain_number(self, name, check.positive)
        plain_number(self, "contraction", functools.partial(check.fraction, one=True))
        object.__setattr__(self, "steps", check.integer("steps", self.steps))
        own_relation(self)
        if self.relation is not Relation.REPLACE_ONE:
            raise ValueError("Expected relation='replace_one' for hidden iterates: another record moves all others' places.")

    @property
    def pays_for(self) -> Paid:
        return Paid("hidden", self.noise_multiplier)

    @property
    def releases(self) -> int:
        return self.steps

    @property
    def accounting_cost(self) -> float:
        return 1 + self.steps / 25_000
