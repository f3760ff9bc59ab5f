"""A rule: what a release costs a budget, and what all releases together may cost so that (ε, δ) holds."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar

from dperm import _validate as check
from dperm._family import members
from dperm._rounding import upward
from dperm.privacy.events import Event, Relation

#: How much of what: a divergence, a mass set aside, planned releases.
Amounts = Mapping[str, float]

MASS = "mass"
_MASSES = 0.5  # of δ, for what releases set aside
#: Of what is given back: a hair less, so that sums which were rounded do not end below what the releases cost.
HAIR = 1 - 1e-12


@dataclass(frozen=True)
class Rule(ABC):
    """Costs add up, each kind of its own, to at most its limit; then all releases are (ε, δ)-private together, whoever chose them
    after whatever was released before. `relation`: what its neighbours are."""

    epsilon: float
    delta: float
    relation: Relation

    #: whether it holds only where nothing was released before it was made
    fixed_beforehand: ClassVar[bool] = False

    def __post_init__(self) -> None:
        numbers = [value for part in fields(self) if isinstance(value := getattr(self, part.name), float)]
        if not all(0 <= number < math.inf for number in numbers):
            raise ValueError(f"Expected numbers from 0 on, got {self}.")

    @property
    @abstractmethod
    def name(self) -> str:
        """For people: "Rényi filter at order 8"."""

    @property
    @abstractmethod
    def limits(self) -> Amounts:
        """Of each kind of cost."""

    @abstractmethod
    def cost(self, event: Event) -> Amounts:
        """Of a release under this relation. ValueError or UnsupportedEventError where the rule does not take it."""

    def given_back(self, unreleased: Event) -> Amounts:
        """What a charge's cost falls by where these leaves of its event were never released, and the run stopped by what was.

        Only a rule that adds up the cost of each leaf holds then: its sum is bounded whatever stops a run. A cost of all leaves
        together is proved for their whole number, which must not depend on what was released (docs/budgets.md).

        Raises
        ------
        ValueError
            Where the rule does not add up each leaf of the event.
        """
        raise ValueError(
            f"A {self.name} gives nothing back: it was composed exactly, for a number of releases that was fixed beforehand, and "
            "says nothing of a run that stops by what it released. Budgets by a filter do: `dperm budget create` without --plan."
        )

    @abstractmethod
    def epsilon_of(self, spent: Amounts) -> float:
        """The ε of the least budget of this kind, at the same δ, that would have taken what was spent."""

    def share(self, amounts: Amounts, spent: Amounts | None = None) -> float:
        """What share of the budget these amounts are: of the kind that most was taken of, in `spent` or in them."""
        spent = amounts if spent is None else spent
        shares = self._shares(spent)
        if not shares:
            return 0.0
        most = max(shares, key=lambda kind: shares[kind])
        return shares[most] * (amounts.get(most, 0.0) / spent[most])

    def _shares(self, spent: Amounts) -> dict[str, float]:
        """Of each limit, where something was spent of it."""
        limits = self.limits
        return {kind: amount / limits[kind] if limits[kind] else 1.0 for kind, amount in spent.items() if amount}

    def told_spent(self, spent: Amounts) -> str:
        """What share of each limit was spent, for people; "" where nothing was."""
        shares = self._shares(spent).items()
        return ", ".join(f"{kind} {upward(100 * share, 3)} %" for kind, share in shares)

    def told(self, kind: str, amount: float) -> str:
        """An amount of one kind, for people."""
        return f"δ = {amount:.2g}" if kind == MASS else f"{kind} {amount:.4g}"

    def to_dict(self) -> dict[str, Any]:
        return {"type": type(self).__name__, **asdict(self)}

    @classmethod
    def read(cls, data: Mapping[str, Any]) -> Rule:
        body = dict(data)
        return cls(relation=Relation(body.pop("relation")), **body)


def added(first: Amounts, second: Amounts, times: int = 1) -> dict[str, float]:
    """The first, and the second so many times."""
    return {**first, **{kind: first.get(kind, 0.0) + times * amount for kind, amount in second.items()}}


def lessened(spent: Amounts, given_back: Amounts) -> dict[str, float]:
    """What is spent once this was given back: of no kind less than nothing."""
    return {kind: max(0.0, amount - given_back.get(kind, 0.0)) for kind, amount in spent.items()}


def mass_of(delta: float, mass: float | None) -> float:
    """Of δ, for what releases set aside; None: half of it."""
    check.fraction("delta", delta)
    mass = _MASSES * delta if mass is None else check.fraction("mass", mass, zero=True)
    if mass >= delta:
        raise ValueError(f"Expected mass below delta = {delta:g}, got {mass:g}.")
    return mass


def rule_from_dict(data: Mapping[str, Any]) -> Rule:
    """ValueError for a rule that this version does not know."""
    body = dict(data)
    kind = body.pop("type", None)
    for each in members(Rule):
        if each.__name__ == kind:
            return each.read(body)
    raise ValueError(f"This version of dperm knows no budget that adds up by {kind!r}.")
