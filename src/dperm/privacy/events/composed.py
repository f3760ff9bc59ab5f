"""Several events, one after another."""

from __future__ import annotations

import functools
from collections import Counter
from dataclasses import dataclass

from dperm import _validate as check
from dperm.privacy.events.event import LARGEST_COUNT, Event, leaves, relation_of, sub_event

__all__ = [
    "Composed",
    "SelfComposed",
]


@dataclass(frozen=True)
class Composed(Event):
    """All of `events`, in any order, each allowed to see the results of the others."""

    events: tuple[Event, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "events", tuple(self.events))
        relation_of(self)

    def counts(self) -> Counter[Event]:
        return Counter(self._leaves)  # a copy: counters can be changed

    @functools.cached_property
    def _leaves(self) -> Counter[Event]:
        """Counted once, and an object that is there many times is looked at once: a log composes thousands of events, and a long
        run of equal steps is often one object repeated."""
        objects = dict(zip(map(id, self.events), self.events, strict=True))
        repeats = Counter(map(id, self.events)) if len(objects) > 1 else dict.fromkeys(objects, len(self.events))
        for kind in set(map(type, objects.values())):
            number = next(number for number, event in enumerate(self.events) if type(event) is kind)
            sub_event(f"events[{number}]", self.events[number])
        total: Counter[Event] = Counter()
        for key, event in objects.items():
            for leaf, count in leaves(event).items():
                total[leaf] += count * repeats[key]
        return total


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

    def counts(self) -> Counter[Event]:
        return Counter({leaf: count * self.count for leaf, count in leaves(self.event).items()})
