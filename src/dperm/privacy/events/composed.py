"""Several events, one after another."""

from __future__ import annotations

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
        for number, event in enumerate(self.events):
            sub_event(f"events[{number}]", event)
        relation_of(self)

    def parts(self) -> Counter[Event]:
        total: Counter[Event] = Counter()
        for event in self.events:  # in place: logs compose thousands
            total.update(leaves(event))
        return total


@dataclass(frozen=True)
class SelfComposed(Event):
    """`event`, `count` times."""

    event: Event
    count: int

    def __post_init__(self) -> None:
        sub_event("event", self.event)
        object.__setattr__(self, "count", check.integer("count", self.count))
        most = max(self.parts().values(), default=0)
        if most > LARGEST_COUNT:
            raise ValueError(f"Expected an event to happen at most {LARGEST_COUNT:.0e} times in all, got {most:.0e}.")

    def parts(self) -> Counter[Event]:
        return Counter({leaf: count * self.count for leaf, count in leaves(self.event).items()})
