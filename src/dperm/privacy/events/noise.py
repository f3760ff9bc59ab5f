"""Noise added to the answer of a query."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from dperm import _validate as check
from dperm.privacy.events.event import Event, Paid, Relation, own_relation, plain_number


@dataclass(frozen=True)
class Gaussian(Event):
    """Gaussian noise on a query."""

    noise_multiplier: float
    relation: Relation = Relation.ADD_OR_REMOVE_ONE

    accounting_cost = 0.0

    def __post_init__(self) -> None:
        plain_number(self, "noise_multiplier", check.positive)
        own_relation(self)

    @property
    def pays_for(self) -> Paid:
        return Paid("gaussian", self.noise_multiplier)


@dataclass(frozen=True)
class BoundedSquaresGaussian(Event):
    """`steps` releases with Gaussian noise of sums in which each record's own vectors stay within a budget: their squared
    lengths, in units of the largest that one may have, add up to no more than `full_steps`, whatever was released before.

    No more than one Gaussian of noise_multiplier/√full_steps: the individual filter of Gaussian differential privacy (Koskela,
    Tobaben, Honkela 2023, Theorem 3.1; Smith & Thakurta 2022). Replace-one: two records' vectors, in units of twice the
    largest, add up to no more by the triangle inequality.
    """

    former_names = ("IndividualGaussian",)

    noise_multiplier: float
    steps: int
    full_steps: float
    relation: Relation = Relation.ADD_OR_REMOVE_ONE

    def __post_init__(self) -> None:
        plain_number(self, "noise_multiplier", check.positive)
        object.__setattr__(self, "steps", check.integer("steps", self.steps))
        plain_number(self, "full_steps", check.positive)
        if self.full_steps > self.steps:
            raise ValueError(f"Expected full_steps of at most steps = {self.steps}, got {self.full_steps!r}.")
        own_relation(self)

    @property
    def pays_for(self) -> Paid:
        return Paid("gaussian", self.noise_multiplier)

    @property
    def releases(self) -> int:
        return self.steps

    @property
    def whole(self) -> Gaussian:
        """The Gaussian that is no more private."""
        return Gaussian(self.noise_multiplier / math.sqrt(self.full_steps), self.relation)


@dataclass(frozen=True)
class Laplace(Event):
    """Laplace noise on a scalar query; the scale is noise_multiplier·sensitivity/√2 (the standard deviation rules)."""

    noise_multiplier: float
    relation: Relation = Relation.ADD_OR_REMOVE_ONE

    def __post_init__(self) -> None:
        plain_number(self, "noise_multiplier", check.positive)
        own_relation(self)


def gaussian_within(value: Any, relation: Relation | None, what: str) -> None:
    """Raise unless `value` is a Gaussian, of this relation where one is asked for; `what` says for what."""
    if type(value) is not Gaussian:
        raise TypeError(f"Expected a Gaussian under {what}, got {value!r}.")
    if relation is not None and value.relation is not relation:
        raise ValueError(f"Expected relation={relation.value!r} for {what}, got {value.relation.value!r}.")
