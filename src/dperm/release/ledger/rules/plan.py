"""Releases that were fixed beforehand, each so many times."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from dperm import _validate as check
from dperm._rounding import upward
from dperm.privacy.accountants.accounting import epsilon as epsilon_of
from dperm.privacy.events import (
    Composed,
    Event,
    Relation,
    SelfComposed,
    UnsupportedEventError,
    event_from_dict,
    leaves,
    relation_of,
)
from dperm.release.ledger.rules.rule import Amounts, Rule


@dataclass(frozen=True)
class Plan(Rule):
    """Takes the `releases` that were planned, each as often as its number says, in any order, and no others.

    Which comes next may follow from what was released: each release is a randomised image of its own dominating pair of
    distributions, whatever it is asked after, so that all of them are an image of the pairs drawn beforehand, side by side. So
    their ε is that of the plan composed exactly, `planned`, also where some are never asked (Zhu, Dong, Wang 2022, Theorem 10).
    What only has Rényi divergences adds these up, in any order, too.
    """

    fixed_beforehand = True

    planned: float
    releases: tuple[tuple[Event, int], ...]

    @classmethod
    def of(
        cls,
        epsilon: float,
        delta: float,
        releases: Iterable[tuple[Event, int]],
        *,
        relation: Relation | str = Relation.ADD_OR_REMOVE_ONE,
    ) -> Plan:
        """Events of whole fits, as their certificates state them, and how often each may be charged. ValueError for a plan that
        costs more than ε at δ, or that is about other neighbours."""
        check.positive("epsilon", epsilon)
        check.fraction("delta", delta)
        relation = Relation(relation)
        counts: dict[str, tuple[Event, int]] = {}
        for event, count in releases:
            count = check.integer("how often", count)
            if relation_of(event) is not relation:
                raise ValueError(f"Expected planned releases by {relation}, got one by {relation_of(event)}: {event}.")
            key = _key(event)
            counts[key] = (event, count + (counts[key][1] if key in counts else 0))
        if not counts:
            raise ValueError("Expected a plan of at least one release.")
        try:
            cost = _composed(tuple(counts.values()), delta)
        except UnsupportedEventError as error:
            raise ValueError(f"Expected planned releases that compose: {error}") from None
        if not cost <= epsilon:
            raise ValueError(f"The planned releases cost ε = {upward(cost)} at δ = {delta:g}, more than {epsilon:g}.")
        return cls(float(epsilon), float(delta), relation, cost, tuple(counts.values()))

    @property
    def name(self) -> str:
        total = sum(count for _, count in self.releases)
        return f"plan of {total:,} release{'s' if total > 1 else ''}"

    @property
    def limits(self) -> Amounts:
        return {_key(event): float(count) for event, count in self.releases}

    def cost(self, event: Event) -> Amounts:
        key = _key(event)
        if key not in self.limits:
            raise ValueError(f"no release like it was planned: {event}")
        return {key: 1.0}

    def epsilon_of(self, spent: Amounts) -> float:
        made = tuple((event, number) for event, _ in self.releases if (number := round(spent.get(_key(event), 0.0))))
        return _composed(made, self.delta) if made else 0.0

    def share(self, amounts: Amounts, spent: Amounts | None = None) -> float:
        """Of all planned releases, how many these are."""
        return sum(amounts.values()) / sum(count for _, count in self.releases)

    def told_spent(self, spent: Amounts) -> str:
        made = round(sum(spent.values()))
        return f"{made:,} of {sum(count for _, count in self.releases):,} releases" if made else ""

    def told(self, kind: str, amount: float) -> str:
        return f"{amount:.0f} of a planned release"

    def to_dict(self) -> dict[str, Any]:
        planned = [{"event": event.to_dict(), "times": count} for event, count in self.releases]
        return {**super().to_dict(), "releases": planned}

    @classmethod
    def read(cls, data: Mapping[str, Any]) -> Rule:
        releases = tuple((event_from_dict(each["event"]), int(each["times"])) for each in data["releases"])
        return super().read({**data, "releases": releases})


@functools.lru_cache(maxsize=4096)
def _key(event: Event) -> str:
    """What tells one release from another: its parts and how many there are of each, however they were put together."""
    parts = sorted((json.dumps(leaf.to_dict(), sort_keys=True), count) for leaf, count in leaves(event).items())
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


@functools.lru_cache(maxsize=256)
def _composed(releases: tuple[tuple[Event, int], ...], delta: float) -> float:
    return epsilon_of(Composed(tuple(SelfComposed(event, count) for event, count in releases)), delta)
