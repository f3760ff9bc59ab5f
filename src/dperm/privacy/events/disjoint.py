"""Parallel composition: mechanisms on parts of the records, where a unit of privacy lies in one part alone."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from dperm.privacy.events.event import Event, Paid, Relation, leaves, relation_of, sub_event
from dperm.privacy.events.guarantees import ApproximateDP, PureDP, Unsupported
from dperm.privacy.events.hidden import HiddenIterates, RandomStop
from dperm.privacy.events.noise import BoundedSquaresGaussian, Gaussian, Laplace
from dperm.privacy.events.sampled import SampledWithoutReplacement

#: How many compositions an accountant goes through one by one; beyond, it takes the largest profile of a `Disjoint` first.
MOST_ALTERNATIVES = 256
_EACH_WAY = 0.02  # of accounting, whatever was met
_MOST_BY_UNLIKE = 5.0  # of a leaf's cost, that grows where it is composed with unlike ones: the rest is its own, once
_MOST_MOVED = 32  # unlike events of a move: there are as many compositions as pairs of them


@dataclass(frozen=True)
class Disjoint(Event):
    """`parts[i]` on the records of part i, for every i, each allowed to see the results of the others (McSherry 2009, Theorem 4).

    A unit of privacy, a record or a person with all rows, lies in at most one part, which is a function of that unit's own
    record. The list of parts is public: mechanisms run on empty parts too.

    Add/remove: the unit by which data sets differ is in the records of one mechanism, so that δ(ε) is the largest of the parts',
    at each ε by itself; with releases from all records it is the largest of their compositions with one part.

    Replace-one: the unit may leave a part and join another. Then `moved[i]` is what part i costs where a unit joins or leaves it,
    under add/remove: the largest of each `parts[i]` and of the compositions of `moved[i]` with `moved[j]` for i ≠ j. ValueError
    for parts that have no such event, because they need a number of records that is the same: samples of fixed size, hidden
    iterates.
    """

    parts: tuple[Event, ...]
    moved: tuple[Event, ...] = ()

    def __post_init__(self) -> None:
        for name in ("parts", "moved"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
            for number, event in enumerate(getattr(self, name)):
                sub_event(f"{name}[{number}]", event)
                if any(isinstance(leaf, Disjoint | Side) for leaf in leaves(event)):
                    raise ValueError(f"Expected {name} that are not split any further: list all parts at once.")
        if not any(leaves(event) for event in self.parts):
            raise ValueError("Expected at least one part that releases something.")
        if self.relation is Relation.ADD_OR_REMOVE_ONE:
            if self.moved:
                raise ValueError("Expected no `moved` under add/remove, where a unit is in one part or in none.")
            return
        if len(self.moved) != len(self.parts):
            raise ValueError(
                f"Expected `moved` with an add/remove event for each of {len(self.parts)} parts under replace-one, where a unit "
                f"may leave a part and join another, got {len(self.moved)}. A part whose number of records is public has none."
            )
        if len(set(self.moved)) > _MOST_MOVED:
            raise ValueError(f"Expected at most {_MOST_MOVED} unlike events in `moved`, got {len(set(self.moved))}.")
        for event in self.moved:
            if relation_of(event) not in (Relation.ADD_OR_REMOVE_ONE, None):
                raise ValueError(f"Expected `moved` under add/remove, got {event}.")
        for part, event in zip(self.parts, self.moved, strict=True):
            fixed = [leaf for leaf in leaves(part) if isinstance(leaf, SampledWithoutReplacement | HiddenIterates | RandomStop)]
            if fixed:
                raise ValueError(
                    f"Expected parts whose number of records may change, got {fixed[0]}, which needs it to be public."
                )
            if leaves(part) and not leaves(event):
                raise ValueError(f"Expected an event for a unit that joins or leaves the part of {part}, got an empty one.")

    @property
    def relation(self) -> Relation:
        relations = {relation_of(event) for event in self.parts} - {None}
        if len(relations) > 1:
            raise ValueError("Expected all parts to share one relation, got add/remove and replace-one mixed.")
        found = relations.pop()
        assert found is not None
        return found

    @property
    def options(self) -> list[Counter[Event]]:
        """The leaves that the unit by which data sets differ may have met, unlike ones alone: a part's, or a move's."""
        found = [leaves(part) for part in self.parts]
        times = Counter(self.moved)
        sides = {event: (_side(event, joins=False), _side(event, joins=True)) for event in times}
        for left, joined in itertools.product(times, times):
            if left is not joined or times[left] > 1:
                found.append(_added((sides[left][0], sides[joined][1])))
        if len(self.moved) == 1:  # out of the only part, or into it
            found += sides[self.moved[0]]
        return [Counter(dict(items)) for items in dict.fromkeys(frozenset(option.items()) for option in found)]

    @property
    def astray(self) -> float:
        return max(sum(count * leaf.astray for leaf, count in option.items()) for option in self.options)

    @property
    def accounting_cost(self) -> float:
        return sum(_EACH_WAY + _work(option) for option in self.options)


@dataclass(frozen=True)
class Side(Event):
    """What a unit costs that under replace-one leaves the records of `event`, or `joins` them: one direction of an add/remove
    event. Accountants make it of a `Disjoint`; it is nothing by itself."""

    internal: ClassVar[bool] = True

    event: Event
    joins: bool

    relation: ClassVar[Relation] = Relation.REPLACE_ONE

    @property
    def pays_for(self) -> Paid | None:
        return self.event.pays_for

    @property
    def releases(self) -> int:
        return self.event.releases

    @property
    def astray(self) -> float:
        return self.event.astray

    @property
    def accounting_cost(self) -> float:
        return self.event.accounting_cost


def _side(event: Event, *, joins: bool) -> Counter[Event]:
    """The leaves of an add/remove event where a unit joins, or leaves. What costs the same in both directions, whatever
    neighbours are called, stays what it is: accountants know how it composes."""
    total: Counter[Event] = Counter()
    for leaf, count in leaves(event).items():
        both = isinstance(leaf, Gaussian | BoundedSquaresGaussian | Laplace | PureDP | ApproximateDP)
        total[replace(leaf, relation=Relation.REPLACE_ONE) if both else Side(leaf, joins)] += count
    return total


def alternatives(event: Event) -> Iterator[Counter[Event]]:
    """The leaves of `event` that the unit by which data sets differ may have met, in every way in which parts of each `Disjoint`
    may have been its own: δ(ε) is the largest over these. Without such leaves: those of `event`, once.

    Where one split is used several times the unit may have been in another part each time. The first split that is used once is
    always gone through; others that would make more than `MOST_ALTERNATIVES` stay as they are: a leaf, for accountants to bound
    by its largest profile.
    """
    whole: Counter[Event] = Counter()
    choices: list[list[Counter[Event]]] = []
    left = float(MOST_ALTERNATIVES)
    for leaf, count in leaves(event).items():
        ways = _ways(leaf, count)
        if isinstance(leaf, Disjoint) and (ways <= left or (count == 1 and not choices)):
            left = max(left / ways, 1.0)
            choices.append(list(_choices(leaf.options, count)))
        else:
            whole[leaf] += count
    for met in itertools.product(*choices):
        yield _added((whole, *met))


def _ways(leaf: Event, count: int) -> float:
    """In how many ways a unit may lie in parts of a leaf that is used `count` times."""
    if not isinstance(leaf, Disjoint) or len(options := leaf.options) == 1:
        return 1.0
    several = min(count, MOST_ALTERNATIVES)  # as many ways already
    return float(math.comb(len(options) + several - 1, several))


def _choices(options: list[Counter[Event]], count: int) -> Iterator[Counter[Event]]:
    if len(options) == 1:
        yield Counter({leaf: count * times for leaf, times in options[0].items()})
        return
    for met in itertools.combinations_with_replacement(options, count):
        yield _added(met)


def _added(counters: Iterable[Counter[Event]]) -> Counter[Event]:
    total: Counter[Event] = Counter()
    for counter in counters:
        total.update(counter)
    return total


def accounting_cost(event: Event) -> float:
    """How much work `event` is for an accountant: `Event.accounting_cost` over its unlike leaves, times what many copies of each
    add, as often as it goes through them."""
    counts = leaves(event)
    split = {leaf: count for leaf, count in counts.items() if isinstance(leaf, Disjoint)}
    ways = math.prod(_ways(leaf, count) for leaf, count in split.items())
    ways = ways if sum(split.values()) == 1 else min(ways, float(MOST_ALTERNATIVES))
    rest = _work({leaf: count for leaf, count in counts.items() if leaf not in split})
    again = ways if sum(split.values()) > 1 else 1.0
    return rest * ways + again * sum(leaf.accounting_cost for leaf in split)


def _work(counts: Mapping[Event, int]) -> float:
    """Losses of many copies are composed in groups, then groups of groups, on more and more points: measured. Unlike parts are
    all transformed on as many points as their composition needs: with many copies of each that is far more than one needs."""
    work = sum(leaf.accounting_cost * (1 + 1.2 * max(0.0, math.log10(count) - 3)) for leaf, count in counts.items())
    composed = [(min(leaf.accounting_cost, _MOST_BY_UNLIKE), count) for leaf, count in counts.items() if leaf.accounting_cost]
    if len(composed) <= 2:
        return work
    copies = math.log10(sum(count for _, count in composed) / len(composed)) / 2
    return work + 3 * (1 - 2 / len(composed)) * min(copies, 1.0) * sum(cost for cost, _ in composed)


def released_leaves(event: Event) -> Counter[Event]:
    """The leaves of all that runs: as `leaves`, with those of every part in the place of a `Disjoint`."""
    total: Counter[Event] = Counter()
    for leaf, count in leaves(event).items():
        for part in leaf.parts if isinstance(leaf, Disjoint) else (leaf,):
            total.update({inner: count * times for inner, times in leaves(part).items()})
    return total


def claims_of(event: Event) -> list[str]:
    """What is claimed of the parts of an event that no accountant bounds; empty where all of it is accounted for."""
    return [leaf.claim for leaf in released_leaves(event) if isinstance(leaf, Unsupported)]
