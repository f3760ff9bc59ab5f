"""What every event is, and what all of them are asked."""

from __future__ import annotations

import dataclasses
import enum
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

from dperm._family import members, ours

__all__ = [
    "LARGEST_NUMBER",
    "Event",
    "Paid",
    "Relation",
    "UnsupportedEventError",
    "chosen_on_the_way",
    "event_from_dict",
    "leaves",
    "own_relation",
    "plain_number",
    "relation_of",
    "sub_event",
]


#: Numbers of events lie between this and its inverse: their squares must be doubles.
LARGEST_NUMBER = 1e60


class Relation(enum.StrEnum):
    """Which data sets are neighbours."""

    ADD_OR_REMOVE_ONE = "add_or_remove_one"
    """One has a record more; the number of records is private."""
    REPLACE_ONE = "replace_one"
    """Same size, one record differs; the number of records is public."""


class UnsupportedEventError(ValueError):
    """An accountant cannot bound an event; the message names the offending sub-event."""


class Paid(NamedTuple):
    """A release as an event pays for it: its kind, its noise in units of the sensitivity (of pure releases ε), the rate at
    which its records are drawn, and how: the key of a `dperm.release.draws.Draw`, empty where all of them are."""

    kind: Literal["gaussian", "pure", "objective", "threshold", "choice", "hidden"]
    noise: float
    rate: float = 1.0
    draw: str = ""


@dataclass(frozen=True)
class Event:
    """Base of all events. Subclasses are final dataclasses whose fields are public numbers, texts or events.

    What is here suits an event by itself that no release of a channel is charged as.
    """

    #: whether it is a promise that parts are held to, whose own events are known only afterwards
    on_the_way: ClassVar[bool] = False

    @property
    def pays_for(self) -> Paid | None:
        """The release of the channel that this event is charged for."""
        return None

    @property
    def releases(self) -> int:
        """How many such releases it is charged for."""
        return 1

    @property
    def astray(self) -> float:
        """Chance that what runs is not what is accounted for, on any data set: it adds (1 + e^ε) times this to δ."""
        return 0.0

    def parts(self) -> Counter[Event]:
        """See `leaves`."""
        return Counter({self: 1})

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready description; `event_from_dict` inverts it without loss."""
        fields = {f.name: _plain(getattr(self, f.name)) for f in dataclasses.fields(self)}
        return {"type": type(self).__name__, **fields}


def event_from_dict(data: dict[str, Any]) -> Event:
    """Inverse of `Event.to_dict`. Raises ValueError for an unknown kind."""
    kinds = {kind.__name__: kind for kind in members(Event) if kind is not Event}
    if data.get("type") not in kinds:
        raise ValueError(f"Expected an event named one of {', '.join(sorted(kinds))}, got {data.get('type')!r}.")
    fields: dict[str, Any] = {}
    for name, value in data.items():
        if isinstance(value, dict):
            value = event_from_dict(value)
        elif isinstance(value, list):
            value = tuple(event_from_dict(item) if isinstance(item, dict) else item for item in value)
        elif name == "relation":
            value = Relation(value)
        if name != "type":
            fields[name] = value
    return kinds[data["type"]](**fields)


def leaves(event: Event) -> Counter[Event]:
    """The events that compose to `event`, with their counts: the one place where counts are multiplied out."""
    _ours(event)
    return event.parts()


def chosen_on_the_way(event: Event) -> bool:
    """Whether `event` is a promise that parts are held to: the releases' own events are then known only afterwards."""
    return any(leaf.on_the_way for leaf in leaves(event))


def relation_of(event: Event) -> Relation | None:
    """The one relation of all parts; None for an empty composition. Raises ValueError where parts disagree."""
    relations = {getattr(leaf, "relation", None) for leaf in leaves(event)}
    if len(relations) > 1:
        raise ValueError("Expected all parts of an event to share one relation, got add/remove and replace-one mixed.")
    return relations.pop() if relations else None


def own_relation(event: Event) -> None:
    """Make the field `relation` a `Relation`, or raise ValueError."""
    object.__setattr__(event, "relation", Relation(getattr(event, "relation", None)))


def plain_number(event: Event, name: str, admit: Callable[[str, Any], float]) -> None:
    """A checked number as Python's own: others do not go into JSON, and are not equal to what comes out of it."""
    number = float(admit(name, getattr(event, name)))
    if not 1 / LARGEST_NUMBER <= number <= LARGEST_NUMBER:
        raise ValueError(f"Expected {name} between {1 / LARGEST_NUMBER:g} and {LARGEST_NUMBER:g}, got {number!r}.")
    object.__setattr__(event, name, number)


def sub_event(name: str, value: Any) -> None:
    """TypeError unless `value` is one of dperm's events."""
    if not isinstance(value, Event):
        raise TypeError(f"Expected {name} to be an Event, got {value!r}.")
    _ours(value)


def _ours(event: Event) -> None:
    """What accountants read off an event, and what a channel lets out for it, is one thing for dperm's own types alone."""
    if not ours(type(event)):
        raise TypeError(f"Expected an event of dperm's own, got {type(event).__module__}.{type(event).__qualname__}.")


def _plain(value: Any) -> Any:
    if isinstance(value, Event):
        return value.to_dict()
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value.value if isinstance(value, Relation) else value
