"""Mechanisms as data: frozen descriptions from which any accountant can compute. No code, no records.

Every event states the neighbouring relation it was built for. `noise_multiplier` is the standard deviation of the
noise ÷ the L2 sensitivity under that relation (clipping at C with noise S: S/C under add/remove, S/(2C) under
replace-one).
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import itertools
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

from dperm import _validate as check
from dperm._family import members, ours
from dperm.privacy.last_iterate import hidden_shift

__all__ = [
    "AboveThreshold",
    "ApproximateDP",
    "Composed",
    "Event",
    "ExponentialMechanism",
    "FilteredRdp",
    "Gaussian",
    "HiddenIterates",
    "IndividualGaussian",
    "Laplace",
    "ObjectivePerturbationEvent",
    "Paid",
    "PoissonSampled",
    "PrivacyProfile",
    "PureDP",
    "RandomAllocation",
    "RandomStop",
    "Relation",
    "RowsSampled",
    "SampledWithoutReplacement",
    "SelfComposed",
    "TruncatedPoisson",
    "Unsupported",
    "UnsupportedEventError",
    "chosen_on_the_way",
    "event_from_dict",
    "leaves",
    "relation_of",
]


#: Numbers of events lie between this and its inverse: their squares must be doubles.
LARGEST_NUMBER = 1e60

#: The largest ε of a `PrivacyProfile`: e^ε must be a double.
LARGEST_LOSS = 600.0


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


def _plain(value: Any) -> Any:
    if isinstance(value, Event):
        return value.to_dict()
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value.value if isinstance(value, Relation) else value


@dataclass(frozen=True)
class Gaussian(Event):
    """Gaussian noise on a query."""

    noise_multiplier: float
    relation: Relation = Relation.ADD_OR_REMOVE_ONE

    def __post_init__(self) -> None:
        _plain_number(self, "noise_multiplier", check.positive)
        _relation(self)

    @property
    def pays_for(self) -> Paid:
        return Paid("gaussian", self.noise_multiplier)


@dataclass(frozen=True)
class IndividualGaussian(Event):
    """`steps` releases with Gaussian noise of sums in which each record's own vectors stay within a budget: their squared
    lengths, in units of the largest that one may have, add up to no more than `full_steps`, whatever was released before.

    No more than one Gaussian of noise_multiplier/√full_steps: the individual filter of Gaussian differential privacy (Koskela,
    Tobaben, Honkela 2023, Theorem 3.1; Smith & Thakurta 2022). Replace-one: two records' vectors, in units of twice the
    largest, add up to no more by the triangle inequality.
    """

    noise_multiplier: float
    steps: int
    full_steps: float
    relation: Relation = Relation.ADD_OR_REMOVE_ONE

    def __post_init__(self) -> None:
        _plain_number(self, "noise_multiplier", check.positive)
        object.__setattr__(self, "steps", check.integer("steps", self.steps))
        _plain_number(self, "full_steps", check.positive)
        if self.full_steps > self.steps:
            raise ValueError(f"Expected full_steps of at most steps = {self.steps}, got {self.full_steps!r}.")
        _relation(self)

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
            _plain_number(self, name, check.positive)
        _plain_number(self, "contraction", functools.partial(check.fraction, one=True))
        for name in ("batches", "passes"):
            object.__setattr__(self, name, check.integer(name, getattr(self, name)))
        _relation(self)
        if self.relation is not Relation.REPLACE_ONE:
            raise ValueError("Expected relation='replace_one' for hidden iterates: another record moves all others' places.")

    @property
    def pays_for(self) -> Paid:
        return Paid("hidden", self.noise_multiplier)

    @property
    def releases(self) -> int:
        return self.batches * self.passes

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
            _plain_number(self, name, check.positive)
        _plain_number(self, "contraction", functools.partial(check.fraction, one=True))
        object.__setattr__(self, "steps", check.integer("steps", self.steps))
        _relation(self)
        if self.relation is not Relation.REPLACE_ONE:
            raise ValueError("Expected relation='replace_one' for hidden iterates: another record moves all others' places.")

    @property
    def pays_for(self) -> Paid:
        return Paid("hidden", self.noise_multiplier)

    @property
    def releases(self) -> int:
        return self.steps


@dataclass(frozen=True)
class Laplace(Event):
    """Laplace noise on a scalar query; the scale is noise_multiplier·sensitivity/√2 (the standard deviation rules)."""

    noise_multiplier: float
    relation: Relation = Relation.ADD_OR_REMOVE_ONE

    def __post_init__(self) -> None:
        _plain_number(self, "noise_multiplier", check.positive)
        _relation(self)


@dataclass(frozen=True)
class PureDP(Event):
    """Any ε-differentially private mechanism; randomised response is its worst case (Kairouz, Oh, Viswanath 2015)."""

    epsilon: float
    relation: Relation = Relation.ADD_OR_REMOVE_ONE

    def __post_init__(self) -> None:
        _plain_number(self, "epsilon", check.positive)
        _relation(self)

    @property
    def pays_for(self) -> Paid:
        return Paid("pure", self.epsilon)


@dataclass(frozen=True)
class AboveThreshold(PureDP):
    """Up to `queries` questions whether a query, chosen by the earlier answers, is above a threshold, until one is: ε-private in
    all (Dwork & Roth 2014, Algorithm 1). Threshold and queries have Laplace noise of one scale, 3·sensitivity/ε: a third of ε
    shifts the threshold by one sensitivity, the rest shifts the query that is above it by two."""

    queries: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "queries", check.integer("queries", self.queries))

    @property
    def rate(self) -> float:
        """Of each noise: density ∝ exp(−rate·|b|/sensitivity)."""
        return self.epsilon / 3

    @property
    def pays_for(self) -> Paid:
        return Paid("threshold", self.rate)

    @property
    def releases(self) -> int:
        return self.queries + 1


@dataclass(frozen=True)
class ApproximateDP(Event):
    """Any (ε, δ)-differentially private mechanism. The event of a part chosen after an earlier release, when every
    possible choice was held to this one (ε, δ): its worst case composes whatever the choice depended on."""

    epsilon: float
    delta: float
    relation: Relation = Relation.ADD_OR_REMOVE_ONE

    def __post_init__(self) -> None:
        _plain_number(self, "epsilon", check.positive)
        _plain_number(self, "delta", check.fraction)
        _relation(self)


@dataclass(frozen=True)
class ExponentialMechanism(Event):
    """A mechanism whose log-probability ratios span a range of at most ε (Dong, Durfee, Rogers 2020)."""

    epsilon: float
    relation: Relation = Relation.ADD_OR_REMOVE_ONE

    def __post_init__(self) -> None:
        _plain_number(self, "epsilon", check.positive)
        _relation(self)

    @property
    def pays_for(self) -> Paid:
        return Paid("choice", self.epsilon)


@dataclass(frozen=True)
class PoissonSampled(Event):
    """`event` on a sample that holds each record independently with probability `rate`."""

    rate: float
    event: Event

    def __post_init__(self) -> None:
        _plain_number(self, "rate", functools.partial(check.fraction, one=True))
        _sub_event("event", self.event)

    @property
    def relation(self) -> Relation | None:
        return relation_of(self.event)

    @property
    def pays_for(self) -> Paid | None:
        inner = self.event.pays_for
        if inner is None or inner.kind != "gaussian" or inner.rate < 1.0:
            return None
        return inner._replace(rate=self.rate, draw="poisson")

    def parts(self) -> Counter[Event]:
        return leaves(self.event) if self.rate == 1.0 else super().parts()


@dataclass(frozen=True)
class RowsSampled(Event):
    """A Gaussian on a sum over rows, each in it independently with probability `rate`; a person has at most `rows`.

    The noise of `event` is in units of what all rows of a person together can move. Add/remove.
    """

    rate: float
    event: Gaussian
    rows: int

    def __post_init__(self) -> None:
        _plain_number(self, "rate", check.fraction)
        _gaussian(self.event, Relation.ADD_OR_REMOVE_ONE, "sampling of rows")
        object.__setattr__(self, "rows", check.integer("rows", self.rows))

    @property
    def relation(self) -> Relation:
        return self.event.relation

    @property
    def pays_for(self) -> Paid | None:
        return self.event.pays_for._replace(rate=self.rate, draw="rows")


@dataclass(frozen=True)
class TruncatedPoisson(Event):
    """A Gaussian on a Poisson sample at `rate`, of which `capacity` records chosen uniformly are kept where there are more.

    No data set has more than `largest` records. With a chance of at most P(Binomial(largest, rate) > capacity) this is not
    the Gaussian on the whole sample, which is what is accounted for.
    """

    rate: float
    event: Gaussian
    capacity: int
    largest: int

    def __post_init__(self) -> None:
        _plain_number(self, "rate", check.fraction)
        _gaussian(self.event, None, "truncated Poisson sampling")
        for name in ("capacity", "largest"):
            object.__setattr__(self, name, check.integer(name, getattr(self, name)))

    @property
    def relation(self) -> Relation:
        return self.event.relation

    @property
    def pays_for(self) -> Paid:
        return Paid("gaussian", self.event.noise_multiplier, self.rate, "truncated")

    @property
    def astray(self) -> float:
        return self.overflow(self.rate, self.capacity, self.largest)

    @staticmethod
    def overflow(rate: float, capacity: int, largest: int) -> float:
        """Upper bound on P(Binomial(largest, rate) > capacity) (Chernoff)."""
        if capacity >= largest:
            return 0.0
        more, mean = capacity + 1, largest * rate
        if more <= mean:
            return 1.0
        exponent = more * math.log(more / mean)
        if more < largest:
            exponent += (largest - more) * math.log1p((mean - more) / (largest * (1 - rate)))
        return min(1.0, math.exp(-exponent) * (1 + 1e-6) + 1e-300)


@dataclass(frozen=True)
class SampledWithoutReplacement(Event):
    """A Gaussian on a sample of fixed size, `rate` of a public number of records, drawn uniformly. Replace-one."""

    rate: float
    event: Gaussian

    def __post_init__(self) -> None:
        _plain_number(self, "rate", check.fraction)
        _gaussian(self.event, Relation.REPLACE_ONE, "sampling without replacement")

    @property
    def relation(self) -> Relation:
        return self.event.relation

    @property
    def pays_for(self) -> Paid:
        return Paid("gaussian", self.event.noise_multiplier, self.rate, "fixed")


@dataclass(frozen=True)
class RandomAllocation(Event):
    """`steps` Gaussians, each record in one of them, which is drawn uniformly and by itself (balls and bins). Add/remove.

    See `dperm.privacy.allocation`.
    """

    steps: int
    event: Gaussian

    def __post_init__(self) -> None:
        object.__setattr__(self, "steps", check.integer("steps", self.steps, minimum=2))
        _gaussian(self.event, Relation.ADD_OR_REMOVE_ONE, "random allocation")

    @property
    def relation(self) -> Relation:
        return self.event.relation

    @property
    def pays_for(self) -> Paid:
        return Paid("gaussian", self.event.noise_multiplier, 1 / self.steps, "allocated")

    @property
    def releases(self) -> int:
        return self.steps


@dataclass(frozen=True)
class FilteredRdp(Event):
    """Releases chosen one after another, each by what the earlier ones gave, for as long as their Rényi divergences at `order`
    sum to no more than `rdp_budget`: a privacy filter (Feldman & Zrnic 2021, Theorem 4.3). See `dperm.privacy.filters`."""

    on_the_way = True

    order: float
    rdp_budget: float
    relation: Relation = Relation.ADD_OR_REMOVE_ONE

    def __post_init__(self) -> None:
        if not 1 < self.order < math.inf:
            raise ValueError(f"Expected order > 1, got {self.order!r}.")
        _plain_number(self, "order", check.positive)
        _plain_number(self, "rdp_budget", check.positive)
        _relation(self)


@dataclass(frozen=True, repr=False)
class PrivacyProfile(Event):
    """Any mechanism that is (epsilons[j], deltas[j])-differentially private for every j.

    The event of a part chosen after earlier releases, when every possible choice was held to all of these: `ApproximateDP` with
    many points, which lose next to nothing where one point loses much. ε rises from point to point, δ does not.
    """

    on_the_way = True

    epsilons: tuple[float, ...]
    deltas: tuple[float, ...]
    relation: Relation = Relation.ADD_OR_REMOVE_ONE

    def __post_init__(self) -> None:
        for name in ("epsilons", "deltas"):
            object.__setattr__(self, name, tuple(float(value) for value in getattr(self, name)))
        if not self.epsilons or len(self.epsilons) != len(self.deltas):
            raise ValueError(f"Expected as many deltas as epsilons, got {len(self.deltas)} and {len(self.epsilons)}.")
        check.non_negative("epsilons", self.epsilons[0])
        for value in self.deltas:
            check.fraction("deltas", value, one=True)
        rising = all(low < high for low, high in itertools.pairwise(self.epsilons)) and self.epsilons[-1] <= LARGEST_LOSS
        falling = all(high >= low for high, low in itertools.pairwise(self.deltas))
        if not (rising and falling):
            raise ValueError(f"Expected epsilons of at most {LARGEST_LOSS:g} that rise, and deltas that do not.")
        _relation(self)

    def __repr__(self) -> str:
        points = f"({self.epsilons[0]:.4g}, {self.deltas[0]:.4g}) to ({self.epsilons[-1]:.4g}, {self.deltas[-1]:.4g})"
        return f"PrivacyProfile({len(self.epsilons)} points (ε, δ) from {points}, {self.relation})"


@dataclass(frozen=True)
class Composed(Event):
    """All of `events`, in any order, each allowed to see the results of the others."""

    events: tuple[Event, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "events", tuple(self.events))
        for number, event in enumerate(self.events):
            _sub_event(f"events[{number}]", event)
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
        _sub_event("event", self.event)
        object.__setattr__(self, "count", check.integer("count", self.count))

    def parts(self) -> Counter[Event]:
        return Counter({leaf: count * self.count for leaf, count in leaves(self.event).items()})


#: Losses whose slope and curvature are tied, so that the sharp bound of docs/objective-perturbation.md holds. The value
#: is smoothness ÷ lipschitz², where the loss fixes it, or None where the loss has a free width.
SHARP_LOSSES: dict[str, float | None] = {"logistic": 0.25, "smoothed_hinge": None, "huber": None}


@dataclass(frozen=True)
class ObjectivePerturbationEvent(Event):
    """argmin of Σ ℓ_i(θ) + (strong_convexity/2)·‖θ‖² + bᵀθ with b ~ N(0, noise_std²·I), ℓ convex and of rank-one Hessian.

    `lipschitz` bounds one record's gradient, `smoothness` its curvature, both on all of ℝ^d; `strong_convexity` is
    the whole quadratic term. `loss` names a loss whose slope and curvature are tied (see SHARP_LOSSES): sharp bounds then apply.
    With `many`, ℓ_i is a mean of any number of such losses, those of one person. Raises ValueError where `smoothness`
    contradicts `loss`.
    """

    noise_std: float
    lipschitz: float
    smoothness: float
    strong_convexity: float
    relation: Relation = Relation.ADD_OR_REMOVE_ONE
    loss: str | None = None
    many: bool = False

    def __post_init__(self) -> None:
        for name in ("noise_std", "lipschitz", "smoothness", "strong_convexity"):
            _plain_number(self, name, check.positive)
        _relation(self)
        if self.loss is None:
            return
        check.choice("loss", self.loss, SHARP_LOSSES)
        ratio = SHARP_LOSSES[self.loss]
        if ratio is not None and abs(self.smoothness / self.lipschitz**2 - ratio) > 1e-9 * ratio:
            raise ValueError(
                f"Expected smoothness = {ratio:g}·lipschitz² = {ratio * self.lipschitz**2:g} for loss={self.loss!r}, "
                f"got {self.smoothness!r}."
            )

    @property
    def pays_for(self) -> Paid:
        return Paid("objective", self.noise_std / self.lipschitz)


@dataclass(frozen=True)
class Unsupported(Event):
    """A mechanism that no accountant here bounds; `claim` repeats what its authors publish."""

    claim: str
    relation: Relation = Relation.ADD_OR_REMOVE_ONE


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


def _relation(event: Event) -> None:
    object.__setattr__(event, "relation", Relation(getattr(event, "relation", None)))


def _plain_number(event: Event, name: str, admit: Callable[[str, Any], float]) -> None:
    """A checked number as Python's own: others do not go into JSON, and are not equal to what comes out of it."""
    number = float(admit(name, getattr(event, name)))
    if not 1 / LARGEST_NUMBER <= number <= LARGEST_NUMBER:
        raise ValueError(f"Expected {name} between {1 / LARGEST_NUMBER:g} and {LARGEST_NUMBER:g}, got {number!r}.")
    object.__setattr__(event, name, number)


def _gaussian(value: Any, relation: Relation | None, what: str) -> None:
    if type(value) is not Gaussian:
        raise TypeError(f"Expected a Gaussian under {what}, got {value!r}.")
    if relation is not None and value.relation is not relation:
        raise ValueError(f"Expected relation={relation.value!r} for {what}, got {value.relation.value!r}.")


def _sub_event(name: str, value: Any) -> None:
    if not isinstance(value, Event):
        raise TypeError(f"Expected {name} to be an Event, got {value!r}.")
    _ours(value)


def _ours(event: Event) -> None:
    """What accountants read off an event, and what a channel lets out for it, is one thing for dperm's own types alone."""
    if not ours(type(event)):
        raise TypeError(f"Expected an event of dperm's own, got {type(event).__module__}.{type(event).__qualname__}.")
