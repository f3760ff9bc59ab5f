"""Policies of noisy descent: each is fixed beforehand, is the only source of its cost, and is run by one loop, `descend_by`."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

import numpy as np

from dperm._family import states
from dperm._progress import watched
from dperm.gradient.bounding import Bounding
from dperm.gradient.query import PerExampleGradient, Query
from dperm.gradient.update import Update
from dperm.objectives.constraints import project_l2_ball
from dperm.objectives.parts import PartedRecords, total_of
from dperm.objectives.per_example import Objective, Pass
from dperm.objectives.sums import RunningSum
from dperm.privacy.events import Event, Relation, alike, chosen_on_the_way, claims_of, steps_of
from dperm.release import GaussianNoise
from dperm.release.channel import Channel

P = TypeVar("P", bound="Policy", covariant=True)


class BatchSource(Protocol):
    """Records as a run sees them."""

    def __len__(self) -> int: ...

    def stream(self, draws: Iterable[Any]) -> Iterator[Iterable[Any]]:
        """For each draw (sorted indices, or None for every record) its records, in batches that fit memory."""
        ...


class Policy(ABC):
    """An algorithm with its settings: immutable, knows no records. `event` says what a run costs, `run` is how it runs.

    A new algorithm is a frozen dataclass that derives from this, with the seven names below as fields or properties and the
    abstract method, beside its `Gradients`. What else is here suits a policy whose noise is fixed beforehand.
    """

    kind: str  # how records are drawn, in words
    paper: str  # where the algorithm is published
    update: Update
    steps: int
    public_size: int | None  # the number of records as publicly known; None until `sized`
    rate: float  # expected share of the records whose gradients make a step: steps × rate are the expected passes
    expected_batch_size: float

    run: ClassVar[type[Gradients[Any]]]

    #: What a policy holds itself to that plans its noise on the way; None where its noise is fixed, and can be calibrated.
    budgeted: ClassVar[Event | None] = None
    #: Whether many trainings can run at once, θ (m, p): no run has a state of its own.
    vectorises: ClassVar[bool] = False
    #: The length that every record's gradient is cut at, whatever was released; None where that changes or is not so.
    longest: ClassVar[float | None] = None

    @abstractmethod
    def event(self, relation: Relation, start: int = 0, stop: int | None = None) -> Event:
        """What the whole run costs under `relation`, or its steps from `start` up to, not including, `stop`; in the order of the
        steps, by which an interrupted run goes on. Where its charge is not at hand, the steps that are left are charged anew."""

    def describe(self) -> dict[str, Any]:
        """The settings as JSON-ready values, for certificates and reports: all fields, by name. What overrides this adds to
        them, and leaves out nothing that changes what is charged."""
        mine: Any = self  # a dataclass
        values = {field.name: getattr(self, field.name) for field in fields(mine)}
        plain = {name: value if isinstance(value, str | int | float | None) else repr(value) for name, value in values.items()}
        return {"policy": type(self).__name__, **plain}

    def gradients(
        self,
        objective: Objective,
        records: BatchSource,
        channel: Channel,
        *,
        first: int = 0,
        observe: Callable[[Pass], None] | None = None,
    ) -> Gradients[Self]:
        """A run from step `first` on; the channel was charged for the event. `observe` is handed every pass: not private."""
        return self.run(self, objective, records, channel, first=first, observe=observe)

    @property
    def noise_multipliers(self) -> tuple[float, float] | None:
        """Noise standard deviation ÷ sensitivity in the first and in the last step; None where it is chosen during the run, or
        steps release several things."""
        return None

    # The number of records

    def sized(self, channel: Channel, records: int) -> Self:
        """Itself, once the number of records is known: released through the channel where it is not."""
        return self

    def with_released_size(self, size: int) -> Self:
        """Itself after the number of records was released as `size`; as it is, where the number was known."""
        return self

    # Charges

    #: what is wrong with an algorithm as it was published, in a sentence: it is run, and only claimed. Its event says so, too, by
    #: an `Unsupported` part. None: it is certified
    claim: ClassVar[str | None] = None

    def refuse_uncharged_claim(self, event: Event) -> None:
        """TypeError where this is only claimed, and what it is charged would be certified."""
        if self.claim and not claims_of(event):
            raise TypeError(
                f"{type(self).__name__} says that it is not private at the epsilon that it states, but not in its event, which "
                "would be certified: add Unsupported(claim, relation) to what it is composed of."
            )

    #: what a run remembers of earlier steps and one that goes on after an interruption makes anew, in words
    made_anew: ClassVar[str | None] = None

    #: whether the noise in each number of a step's gradient is known, and the same for all: what some updates need
    tells_noise: bool = False

    def refuse_update(self) -> None:
        """ValueError where the update must know the noise, and nobody can tell it."""
        if self.update.needs_noise and not self.tells_noise:
            raise ValueError(
                f"Expected an update that need not know the noise ({type(self.update).__name__} subtracts its variance): with "
                "this plan it is not the same in all numbers of a gradient."
            )

    #: whether steps compare gradients at two θ, which objectives of networks do not have
    anchored: bool = False

    #: whether what a record does depends on its place among the others, beside its draws, which are alike for all
    ordered: bool = False

    #: whether what is proved of a record holds of a person, whose loss is the mean of several rows'
    grouped: bool = False

    #: whether rows of persons are drawn and bounded each by itself, and not averaged
    by_rows: bool = False

    #: whether a local model is trained on the rows of a person
    trains_on_rows: bool = False

    #: whether a vector of all numbers is held for each record of a batch
    holds_vectors: bool = False

    #: whether its run takes everything that it knows of records from `bounded_sum`, and draws them by number alone: parts of a
    #: sum may then be computed by many processes
    by_parts: bool = False

    #: whether a run may go on when other parameters are trained: what a step releases is charged whatever its length, and the run
    #: keeps nothing for each number of it
    resizes: bool = False

    @property
    def by_ranks(self) -> bool:
        """Whether parts of its sums may be computed by the ranks of a run. Each keeps its own records throughout, unless the plan
        also runs by parts: then each gets a part of every draw, but for rows of persons."""
        return self.by_parts

    #: whether its run treats every number of a sum by itself, but for the lengths that records' gradients are cut at: numbers of
    #: one gradient may then lie in different processes, which add their noise
    by_shards: bool = False

    @property
    def needs_size(self) -> bool:
        """Whether plans are made for a stated number of records only, not for one that was released with noise: those that some
        numbers are refused by, for a refusal after the charge would tell of the number."""
        return type(self).refuse_size is not Policy.refuse_size

    @property
    def continues(self) -> bool:
        """Whether a run that was interrupted may go on. Others are refused where they would reserve their steps, and begin with
        their first step alone."""
        return True

    def refuse_interruption(self, done: int) -> None:
        """ValueError for a run that would go on after `done` steps of it, and may not."""
        if done and not self.continues:
            raise ValueError(f"Expected a run without interruptions of this policy, which is {self.kind}: no other is proved.")

    def refuse(self, objective: Any) -> None:
        """ValueError, before any charge, for an objective that this cannot train."""
        return

    def refuse_size(self, records: int) -> None:
        """ValueError, before any charge, for a number of records that this cannot draw from."""
        return

    # Audits

    @property
    def released_kinds(self) -> frozenset[str]:
        """What audits call its releases: every one of these kinds is replayed."""
        return frozenset({PerExampleGradient.what})


def pays_for(policy: Policy, event: Event, relation: Relation, first: int) -> bool:
    """Whether `event` is what a policy charges for its steps from `first` on, as this or another machine computes it. Policies do
    not say it themselves."""
    return alike(event, policy.event(relation, first))


def paid_from(policy: Policy, relation: Relation, done: int) -> int:
    """The number of the first step that the event from `done` on pays for: that from which steps are charged together with step
    `done`."""
    whole, rest = policy.event(relation), policy.event(relation, done)
    return done if chosen_on_the_way(rest) else steps_of(whole) - steps_of(rest)


def runs_by_parts(policy: Policy) -> bool:
    """Whether it says so itself: what was said of the class that a stranger's derives from does not hold of theirs."""
    return policy.by_parts and states(type(policy), "by_parts")


def may_resize(policy: Policy) -> bool:
    """Whether its runs may go on with other trained parameters; a class that overrides a method has to state it itself."""
    return policy.resizes and states(type(policy), "resizes")


@dataclass(frozen=True)
class BoundedSum:
    """A sum (p,) of records' bounded vectors, private until it is released: a record moves it by at most `sensitivity`, in L2.
    `what` names it in audits."""

    value: Any
    sensitivity: float
    what: str


class Gradients(ABC, Generic[P]):
    """One run of a policy: each call draws records, sums their bounded gradients and releases the sum.

    The channel must have been charged for the policy's event. Everything returned is a release or made from releases; the
    regulariser's step is added after the noise, before post-processing. The realised number of records is used to draw, never to
    scale.
    `step` counts steps done or passed over. What is not abstract here suits a run whose state is its step.

    A run may end at any step, and another begin there with its step as `first`, and `restore` what `public` and `private` were:
    it asks what this one would have asked, but for what the policy's `made_anew` says.
    """

    def __init__(
        self,
        policy: P,
        objective: Objective,
        records: BatchSource,
        channel: Channel,
        *,
        first: int = 0,
        observe: Callable[[Pass], None] | None = None,
    ) -> None:
        if policy.public_size is None:
            raise ValueError("Expected a plan that knows the number of records: call sized(channel, len(records)) first.")
        if isinstance(records, PartedRecords) and (observe is not None or not runs_by_parts(policy)):
            raise TypeError("Expected records in memory for an observer, and for a policy that keeps something of each record.")
        policy.refuse_interruption(first)
        self.policy, self.step = policy, first
        self.objective, self.records, self.channel = objective, records, channel
        self.observe = observe
        self.relation = objective.facts.relation
        self._shrink = objective.strong_convexity / policy.public_size
        self.start()

    def start(self) -> None:
        """Set up what the run keeps beside its step."""

    @abstractmethod
    def __call__(self, theta: Any) -> Any:
        """The next step's gradient (p,) at θ, after post-processing, per record of the expected batch."""

    def bounded_sum(
        self,
        theta: Any,
        batches: Iterable[Any],
        bounding: Bounding,
        query: Query,
        noise_multiplier: float,
        state: dict[str, float] | None = None,
        slots: int = 1,
    ) -> BoundedSum:
        """Σ of the batches' bounded vectors at θ, rounded as noise of this multiplier needs it. Up to `slots` vectors are of one
        record. `state` is the bounding's; None: as a run begins."""
        given = self.objective, theta, bounding, query, bounding.init() if state is None else state, self.observe
        total = total_of(batches, functools.partial(_bounded_part, *given), RunningSum.joined) or RunningSum()
        sensitivity = slots * bounding.sensitivity(self.relation)
        value = total.query(sensitivity, noise_multiplier, self.channel.source.length)
        return BoundedSum(self.channel.summed(bounding.empty(theta) if value is None else value), sensitivity, query.what)

    def released_sum(
        self,
        theta: Any,
        batches: Iterable[Any],
        bounding: Bounding,
        query: Query,
        noise_multiplier: float,
        rate: float,
        state: dict[str, float] | None = None,
        slots: int = 1,
    ) -> Any:
        """The same with noise, once it has left: what `bounding.read` reads. `rate` is that of the draw."""
        return self.released(
            self.bounded_sum(theta, batches, bounding, query, noise_multiplier, state, slots), noise_multiplier, rate
        )

    def released(self, total: BoundedSum, noise_multiplier: float, rate: float) -> Any:
        """A sum with noise, once it has left. `rate` is that of the draw."""
        return self.channel.release(total.value, GaussianNoise(total.sensitivity, noise_multiplier, rate, what=total.what))

    @property
    def noise_deviation(self) -> float | None:
        """The standard deviation of the noise in each number of the gradient that was returned last: public. None where it is not
        known, or not the same for all."""
        return None

    def regularised(self, gradient: Any, theta: Any) -> Any:
        """With the regulariser's step, Λθ/public_size."""
        return gradient + self._shrink * theta if self._shrink else gradient

    def skip(self, steps: int) -> None:
        """Pass over steps that are paid for but will not run; more than asked for, where the rest cannot run without them."""
        self.step += steps

    def spent(self, relation: Relation, start: int) -> Event | None:
        """What the steps from `start` up to now cost; None for nothing."""
        return self.policy.event(relation, start, self.step) if self.step > start else None

    @property
    def clipping_norm(self) -> float:
        """The norm that gradients are cut at now; 0 where they are not cut."""
        return self.policy.longest or 0.0

    def public(self) -> dict[str, Any]:
        """JSON-ready state made from releases: for a checkpoint, or for anyone."""
        return {}

    def trace(self) -> list[dict[str, Any]]:
        """What was chosen on the way, by epoch: made from releases, so that anyone may see it."""
        return []

    def summary(self) -> dict[str, Any]:
        """What is public about the run beside its number of steps."""
        return {"epochs": chosen} if (chosen := self.trace()) else {}

    def private(self) -> dict[str, Any]:
        """State made from records, for a checkpoint and for nobody else: flat arrays by name."""
        return {}

    def restore(self, public: Mapping[str, Any], private: Mapping[str, Any]) -> None:
        """Go on from a checkpoint's state. ValueError where there is some that this run has no use for."""
        if public or private:
            raise ValueError(f"The checkpoint holds state that this run does not have: {', '.join([*public, *private])}.")


def _bounded_part(
    objective: Objective,
    theta: Any,
    bounding: Bounding,
    query: Query,
    state: dict[str, float],
    observe: Callable[[Pass], None] | None,
    batches: Iterable[Any],
) -> RunningSum:
    """Σ of the batches' bounded vectors at θ."""
    total = RunningSum()
    for batch in batches:
        at_theta = query.at(objective, theta, batch)
        if observe is not None:
            observe(at_theta)
        total.add(bounding.query(at_theta, state))
    return total


def descend(
    plan: Policy,
    objective: Objective,
    records: BatchSource,
    channel: Channel,
    theta: Any,
    progress: Callable[[int], None] | None = None,
) -> Any:
    """Run `plan` from `theta` (p,); returns the final parameters. The channel must have been charged for the plan's event."""
    plan = plan.sized(channel, len(records))
    return descend_by(plan, plan.gradients(objective, records, channel), objective, theta, progress)


def descend_by(
    plan: Policy, gradients: Gradients[Policy], objective: Objective, theta: Any, progress: Callable[[int], None] | None = None
) -> Any:
    """`descend` with gradients that the caller started, and may look at afterwards."""
    update, radius = plan.update, objective.radius
    state = update.init(theta)
    for step in watched(range(1, plan.steps + 1), "Training", plan.steps):
        gradient = gradients(theta)
        if update.needs_noise:
            update.told_noise(gradients.noise_deviation, state)
        with np.errstate(over="ignore", invalid="ignore"):  # a step may be as large as it likes: it is of released numbers
            theta = project_l2_ball(update.step(theta, gradient, state), radius)
        if progress is not None:
            progress(step)
    with np.errstate(over="ignore", invalid="ignore"):
        return project_l2_ball(update.result(theta, state), radius)
