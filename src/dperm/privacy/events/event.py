"""What every event is, and what all of them are asked."""

from __future__ import annotations

import dataclasses
import enum
import functools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, cast

from dperm._family import members, ours

#: Numbers of events lie between this and its inverse: their squares must be doubles.
LARGEST_NUMBER = 1e60

#: How often an event may happen in all, so that its costs are doubles.
LARGEST_COUNT = 10**60

#: How deep events may nest: what is asked of them, their texts and their tables go as deep, within Python's limit on recursion.
DEEPEST = 100


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
    which its records are drawn, and how: the key of a `dperm.release.draws.Draw`, empty where all of them are. Of hidden steps
    the "last" one of a run leaves."""

    kind: Literal["gaussian", "pure", "objective", "threshold", "choice", "hidden", "last"]
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

    #: whether accountants alone make it: no file holds one
    internal: ClassVar[bool] = False

    #: by which other names files know it that were written before it had this one: charges of then are charges still
    former_names: ClassVar[tuple[str, ...]] = ()

    #: The release of the channel that this event is charged for.
    pays_for: ClassVar[Paid | None] = None
    #: How many such releases it is charged for.
    releases: ClassVar[int] = 1
    #: Chance that what runs is not what is accounted for, on any data set: it adds (1 + e^ε) times this to δ.
    astray: ClassVar[float] = 0.0
    #: Relative difference within which a number of two events is the same number, computed on two machines.
    alike_within: ClassVar[float] = 1e-6
    #: How much work this event is for an accountant, in units of a Poisson-sampled Gaussian of a thousand steps, a fiftieth of
    #: a second: an estimate from its numbers alone, for readers of events that somebody else wrote.
    accounting_cost: ClassVar[float] = 1.0

    @property
    def whole(self) -> Event:
        """The event that is no more private, which accountants take in its place; itself, where they know its distributions."""
        return self

    @functools.cached_property
    def depth(self) -> int:
        """How many events stand within each other, at most: 1 where none stands in this one."""
        return 1 + max([inner.depth for value in vars(self).values() for inner in _events_in(value)], default=0)

    def sequence(self) -> Iterable[tuple[Event, int]]:
        """The events that happen one after another, each with how often in a row, where this one stands for them; else itself."""
        return ((self, 1),)

    def counts(self) -> Counter[Event]:
        """See `leaves`."""
        total: Counter[Event] = Counter()
        for event, times in self.sequence():
            for leaf, count in ((self, 1),) if event is self else leaves(event).items():
                total[leaf] += count * times
        return total

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready description; `event_from_dict` inverts it without loss."""
        fields = {f.name: _plain(getattr(self, f.name)) for f in dataclasses.fields(self)}
        return {"type": type(self).__name__, **fields}


def alike(one: Any, other: Any, within: float = 0.0) -> bool:
    """Whether two events, or two of their values, are the same but for what computing them on another machine changes: searches
    end elsewhere."""
    if type(one) is not type(other):
        return False
    if isinstance(one, Event):
        names = [field.name for field in dataclasses.fields(one)]
        return all(alike(getattr(one, name), getattr(other, name), one.alike_within) for name in names)
    if isinstance(one, tuple):
        values, others = cast("tuple[Any, ...]", one), cast("tuple[Any, ...]", other)
        return len(values) == len(others) and all(alike(a, b, within) for a, b in zip(values, others, strict=True))
    return math.isclose(one, other, rel_tol=within) if isinstance(one, float) else one == other


def event_from_dict(data: Any) -> Event:
    """Inverse of `Event.to_dict`. Raises ValueError for anything else: another kind, and other fields or values than it has."""
    kinds = [kind for kind in members(Event) if kind is not Event and not kind.internal]
    return _event(data, 1, {name: kind for kind in kinds for name in (kind.__name__, *kind.former_names)})


def _event(data: Any, depth: int, kinds: Mapping[str, type[Event]]) -> Event:
    if depth > DEEPEST:
        raise ValueError(f"Expected events nested at most {DEEPEST} deep.")
    name = data.get("type") if isinstance(data, dict) else data
    if not isinstance(name, str) or not isinstance(data, dict) or name not in kinds:
        raise ValueError(f"Expected an event named one of {', '.join(sorted(kinds))}, got {_short(name)}.")
    given: dict[str, Any] = {key: value for key, value in data.items() if key != "type"}
    fields = {field.name: field for field in dataclasses.fields(kinds[name])}
    if unknown := given.keys() - fields.keys():
        raise ValueError(f"Expected {name} with {', '.join(fields)}, got {_short(min(unknown))} as well.")
    needed = {key for key, field in fields.items() if field.default is dataclasses.MISSING}
    if missing := needed - given.keys():
        raise ValueError(f"Expected {name} with {', '.join(fields)}; {min(missing)} is missing.")
    try:
        return kinds[name](**{key: _value(value, depth + 1, kinds) for key, value in given.items()})
    except ValueError:
        raise
    except Exception as error:  # of a value's type or size
        raise ValueError(f"Expected other values of {name}: {str(error) or type(error).__name__}.") from error


def _value(value: Any, depth: int, kinds: Mapping[str, type[Event]]) -> Any:
    if isinstance(value, dict):
        return _event(value, depth, kinds)
    if isinstance(value, list):
        return tuple(_event(item, depth, kinds) if isinstance(item, dict) else item for item in value)
    return value


def _short(value: Any) -> str:
    text = repr(value) if isinstance(value, str | int | float | None) else f"a {type(value).__name__}"
    return text if len(text) <= 80 else f"{text[:77]}..."


def leaves(event: Event) -> Counter[Event]:
    """The events that compose to `event`, with their counts: the one place where counts are multiplied out."""
    _ours(event)
    return event.counts()


def steps_of(event: Event) -> int:
    """How many releases an event pays for that are steps of a run: all but linear terms and the parts of a split."""
    return sum(
        count * leaf.releases for leaf, count in leaves(event).items() if leaf.pays_for and leaf.pays_for.kind != "objective"
    )


def paid_steps(event: Event, start: int, stop: int) -> Counter[Paid]:
    """What pays for the steps of an event from number `start` up to, not including, `stop`, in the order in which it names them.
    Numbers that it has no step of, below 0 among them, are paid by nothing."""
    paid: Counter[Paid] = Counter()
    for leaf, steps, _ in _steps_between(event, start, stop):
        paid[leaf] += steps
    return paid


def begun_periods(event: Event, start: int, stop: int) -> Counter[Paid]:
    """How many periods, of steps that are drawn and charged together, begin with these steps, by what pays for them."""
    begun: Counter[Paid] = Counter()
    for leaf, _, periods in _steps_between(event, start, stop):
        begun[leaf] += periods
    return begun


def _steps_between(event: Event, start: int, stop: int) -> Iterator[tuple[Paid, int, int]]:
    """What pays for some of these steps, for how many of them, and how many periods begin among those."""
    offset = 0
    for part, times in event.sequence():
        size = steps_of(part)
        first, last = max(start - offset, 0), min(stop - offset, size * times)  # of this part's own steps
        offset += size * times
        if first >= last:
            continue
        if part is event:
            assert part.pays_for is not None
            yield part.pays_for, last - first, int(first == 0 and part.releases > 1)
            continue
        begun, ended = -(-first // size), last // size  # the whole rounds of the part lie between
        if begun > ended:
            yield from _steps_between(part, first - ended * size, last - ended * size)
            continue
        yield from _steps_between(part, first - (begun - 1) * size, size)
        for leaf, count in leaves(part).items() if ended > begun else ():
            if leaf.pays_for is not None and leaf.pays_for.kind != "objective":
                rounds = count * (ended - begun)
                yield leaf.pays_for, rounds * leaf.releases, rounds if leaf.releases > 1 else 0
        yield from _steps_between(part, 0, last - ended * size)


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
    given = getattr(event, "relation", None)
    if not isinstance(given, str):
        raise ValueError(f"Expected relation to be one of {', '.join(map(repr, map(str, Relation)))}, got {_short(given)}.")
    object.__setattr__(event, "relation", Relation(given))


def plain_number(event: Event, name: str, admit: Callable[[str, Any], float]) -> None:
    """A checked number as Python's own: others do not go into JSON, and are not equal to what comes out of it."""
    number = float(admit(name, getattr(event, name)))
    if not 1 / LARGEST_NUMBER <= number <= LARGEST_NUMBER:
        raise ValueError(f"Expected {name} between {1 / LARGEST_NUMBER:g} and {LARGEST_NUMBER:g}, got {number!r}.")
    object.__setattr__(event, name, number)


def sub_event(name: str, value: Any) -> None:
    """TypeError unless `value` is one of dperm's events; ValueError where it nests too deep to stand within another."""
    if not isinstance(value, Event):
        raise TypeError(f"Expected {name} to be an Event, got {value!r}.")
    _ours(value)
    if value.depth >= DEEPEST:
        raise ValueError(f"Expected events nested at most {DEEPEST} deep: compose several at once.")


def _events_in(value: Any) -> Iterable[Event]:
    if isinstance(value, Event):
        return (value,)
    return (item for item in value if isinstance(item, Event)) if isinstance(value, tuple) else ()


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
