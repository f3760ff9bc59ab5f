"""Several events, one after another."""

from __future__ import annotations

import functools
import itertools
import operator
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from dperm import _validate as check
from dperm.privacy.events.event import LARGEST_COUNT, Event, leaves, relation_of, sub_event


@dataclass(frozen=True)
class Composed(Event):
    """All of `events`, each allowed to see the results of the others. What they cost together does not depend on their order, in
    which a run that may be continued releases them."""

    events: tuple[Event, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "events", tuple(self.events))
        relation_of(self)

    def sequence(self) -> Iterable[tuple[Event, int]]:
        return ((self.events[0], len(self.events)),) if self._all_one() else zip(self.events, itertools.repeat(1))

    def counts(self) -> Counter[Event]:
        return Counter(self._leaves)  # a copy: counters can be changed

    @functools.cached_property
    def _leaves(self) -> Counter[Event]:
        """Counted once, and equal events are looked at once: a long run of equal steps is often one object repeated."""
        for kind in set(map(type, self.events)):
            number = next(number for number, event in enumerate(self.events) if type(event) is kind)
            sub_event(f"events[{number}]", self.events[number])
        total: Counter[Event] = Counter()
        for event, times in self.sequence() if self._all_one() else Counter(self.events).items():
            sub_event("each of events", event)  # how deep it nests is not said by its kind
            for leaf, count in leaves(event).items():
                total[leaf] += count * times
        return total

    def _all_one(self) -> bool:
        """Whether all are one object: to look for that is many times as fast as to compare them."""
        return bool(self.events) and all(map(operator.is_, self.events, itertools.repeat(self.events[0])))


@dataclass(frozen=True)
class SelfComposed(Event):
    """`event`, `count` times."""

    event: Event
    count: int

    def __post_init__(self) -> None:
        sub_event("event", self.event)
        object.__setattr__(self, "count", check.integer("count", self.count))
        most = max(self.counts().values(), default=0)
        if most > LARGEST_COUNT:
            raise ValueError(f"Expected an event to happen at most {LARGEST_COUNT:.0e} times in all, got {most:.0e}.")

    def sequence(self) -> Iterable[tuple[Event, int]]:
        return ((self.event, self.count),)
