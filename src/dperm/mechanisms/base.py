"""What every mechanism is: an event computed from public facts, and a release that is charged before it is made."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from dperm import _validate as check
from dperm._family import is_third_party, ours, states
from dperm._types import Array
from dperm.mechanisms.extremes import Extreme, every_place, some_places
from dperm.objectives import LinearObjective, PartedRecords, PublicFacts, Records
from dperm.privacy import Assumption, Certificate, Event, Provenance
from dperm.privacy.certificates import assumptions as statements
from dperm.release import Channel
from dperm.release.grid import admit_noise


@dataclass(frozen=True)
class Budget:
    """The δ a certificate is issued at, and the ε the mechanism was calibrated for (None: set by hand)."""

    delta: float
    epsilon: float | None = None

    def __post_init__(self) -> None:
        check.plain_numbers(self, ("delta", "epsilon"))


@dataclass(frozen=True)
class Release:
    """Parameters, shape (p,) or one row a class (K, p); the certificate; a trace of public numbers.

    `private` is for the data holder alone, one entry a model: it is made from records, without noise.
    """

    theta: Array
    certificate: Certificate
    trace: Mapping[str, Any] = field(default_factory=dict[str, Any])
    private: Sequence[Mapping[str, Any]] = field(default=(), repr=False)


@dataclass(frozen=True)
class Stage:
    """A part of a release: which mechanism ran on what, and which of the run's releases was its first."""

    mechanism: Mechanism
    objective: LinearObjective
    records: Records
    first_release: int


@dataclass(frozen=True, kw_only=True)
class Mechanism(ABC):
    """A private training algorithm with all its noise levels fixed. Frozen; knows no data.

    Subclasses implement `event` (from public facts alone) and `train` (which may release only through the
    channel). `release` is the same for all: charge, train, certify.
    """

    budget: Budget

    def __post_init__(self) -> None:
        check.fields(self)

    #: Number of classes where targets are class numbers though the loss has one output; 0 elsewhere.
    target_classes: ClassVar[int] = 0

    @property
    @abstractmethod
    def name(self) -> str: ...

    @property
    @abstractmethod
    def paper(self) -> str: ...

    @abstractmethod
    def event(self, facts: PublicFacts) -> Event:
        """What a release costs. ValueError where the facts rule the mechanism out."""

    @abstractmethod
    def train(self, objective: LinearObjective, records: Records, channel: Channel) -> tuple[Array, dict[str, Any]]:
        """Parameters and public trace; the channel has been charged for `event(objective.facts)`."""

    @property
    def forewarning(self) -> str:
        """What its public settings say of every model that it gives, for people who are about to pay for one; "": nothing."""
        return ""

    def assumptions(self, facts: PublicFacts) -> Sequence[Assumption]:
        """What this mechanism's guarantee rests on besides the common assumptions."""
        return ()

    def settings(self) -> Mapping[str, Any]:
        """Public settings for the certificate, JSON-ready."""
        return {}

    def inner(self) -> Sequence[Mechanism]:
        """The mechanisms that this one runs; of those that it chooses on the way, one of each kind."""
        return ()

    def strangers(self) -> list[Assumption]:
        """What is assumed of types that dperm did not write: its own, its parts', and those of the mechanisms that it runs."""
        own = [statements.stranger("mechanism", self, "releases what its event states, through the channel")]
        return [*(own if is_third_party(self) else ()), *(each for part in self.inner() for each in part.strangers())]

    #: whether what is proved of a record holds of a person, whose loss is the mean of several rows'
    grouped: ClassVar[bool] = False

    @property
    def averages(self) -> bool:
        """Whether a person's rows are averaged; otherwise each counts by itself."""
        return all(part.averages for part in self.inner())

    @property
    def trains_on_rows(self) -> bool:
        """Whether a local model is trained on a person's rows."""
        return any(part.trains_on_rows for part in self.inner())

    def refuse_groups(self, facts: PublicFacts) -> None:
        """ValueError where records are persons of several rows, and this, or a mechanism that it runs, has no proof for them."""
        if not facts.unit.several_rows:
            return
        if not self.grouped:
            raise ValueError(
                f"Expected one row a person for {self.name}: it has no proof for persons of several rows. Use one of each "
                "(max_rows_per_unit=1), or objective, output or gradient perturbation by Poisson sampling or "
                "full batches."
            )
        for part in self.inner():
            part.refuse_groups(facts)

    #: whether its training takes everything that it knows of records from sums over them, which other processes may compute
    by_parts: ClassVar[bool] = False

    def refuse_parts(self) -> None:
        """ValueError where this, or a mechanism that it runs, cannot train on records that live in parts elsewhere."""
        if not (self.by_parts and states(type(self), "by_parts")):
            raise ValueError(
                f"Expected records in memory for {self.name}. On records in parts run objective or output perturbation, or "
                "gradient perturbation by Poisson sampling or full batches."
            )
        for part in self.inner():
            part.refuse_parts()

    # What audits ask: a mechanism that says nothing is attacked from outside

    #: whether what a record does depends on its place: then nobody may be left out or put elsewhere
    ordered: ClassVar[bool] = False

    #: what audits call its releases, beside those of the mechanisms that it runs: every one of these kinds is replayed
    released_kinds: ClassVar[frozenset[str]] = frozenset()

    #: of its releases, counted from 0, the one of a minimiser; None: none is
    minimiser: ClassVar[int | None] = None
    #: whether a run looks at Hessians, p × p for each training
    curved: ClassVar[bool] = True

    def vectorises(self, objective: LinearObjective) -> bool:
        """Whether many trainings can run at once, with a leading axis."""
        return False

    def residual(self, facts: PublicFacts) -> float:
        """γ: how near to a gradient of zero a minimiser comes, on every data set."""
        raise TypeError(f"{self.name} releases no minimiser.")

    def stages(self, objective: LinearObjective, records: Records, released: Sequence[Array], first: int = 0) -> list[Stage]:
        """The parts of a run on admitted records that made these releases, its own from `first` on."""
        return [Stage(self, objective, records, first)]

    def extremes(self, objective: LinearObjective) -> list[Extreme]:
        """Records on which a sensitivity that this states is nearly reached, beyond those that are extreme for every loss: from
        the proof of the sensitivity. `Training.of_mechanism` replays them."""
        return []

    def places(self, records: int) -> Sequence[int]:
        """Where, among so many, audits put the record in which neighbours differ: a place of each kind that there is.

        The last where no place is like another, as all of dperm's own but the `ordered` ones have it; every place where they
        differ; and some of all where nobody says whether they do.
        """
        if self.ordered:
            return every_place(records)
        if states(type(self), "ordered"):
            return (records - 1,)
        return some_places(records)

    def audited_places(self, records: int) -> Sequence[int]:
        """`places`, where this very type says which they are. What derives from ours elsewhere may order records otherwise: every
        place besides where records are ordered, else some of all."""
        said = self.places(records)
        if any(states(type(self), name) for name in ("places", "ordered")):
            return said
        return sorted({*said, *(every_place(records) if self.ordered else some_places(records))})

    def log_density(self, objective: LinearObjective, records: Records, outputs: Array) -> Array | None:
        """(m,) ln of the density of outputs (m, p) on admitted records; None where it is not known."""
        return None

    def release(self, objective: LinearObjective, records: Records | PartedRecords, channel: Channel) -> Release:
        """Charge the event, train, and certify. Whatever fails after the charge, the charge stands."""
        if not isinstance(channel, Channel):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"Expected a Channel, got {type(channel).__qualname__}: see Channel.open.")
        foreign = _strangers(objective, records)
        admitted = self.admit(objective, records)
        certificate = self.certificate(objective.facts, channel.provenance).with_assumptions(*foreign)
        admit_noise(certificate.event, objective.facts.dimension)
        channel.charge(certificate.event, self.name, persons=certificate.of_persons)
        theta, trace = self.train(objective, admitted, channel)
        return Release(theta, self.closed(certificate, trace), trace, channel.confided)

    def closed(self, certificate: Certificate, trace: Mapping[str, Any]) -> Certificate:
        """The certificate once the run has ended, by its public trace alone: for what is known only then."""
        return certificate

    def admit(self, objective: LinearObjective, records: Records | PartedRecords) -> Any:
        """Records as the objective's constants assume them. ValueError, before any charge, where they are not."""
        self.refuse(objective, len(records))
        if isinstance(records, PartedRecords):
            self.refuse_parts()
        most = self.most_records(objective.facts)
        if most is not None and len(records) > most:
            raise ValueError(
                f"Expected at most {most:,} records, up to which this mechanism's rounding is bounded, got {len(records):,}: "
                "state public_size."
            )
        if records.unit != objective.unit:
            raise ValueError("Expected records made by this objective's `records`: they hold other numbers of rows a person.")
        if records.features != objective.features:
            raise ValueError(f"Expected records with the objective's {objective.features} features, got {records.features}.")
        if (records.data_norm, records.constant) != (objective.data_norm, objective.intercept_scale):
            raise ValueError("Expected records made by this objective's `records`: their norm bound or constant feature differs.")
        if records.weighed and not objective.loss.weighs:
            raise ValueError(
                f"Expected targets (n,), got weights beside them: the {objective.loss.name} loss has none (`Weighted`)."
            )
        return records.admitted(functools.partial(self.admit_targets, objective))

    def refuse(self, objective: LinearObjective, records: int) -> None:
        """ValueError, before any charge, where this, or a mechanism that it runs, cannot train by this objective on so many."""
        for part in self.inner():
            part.refuse(objective, records)

    def most_records(self, facts: PublicFacts) -> int | None:
        """The number of records up to which what is stated holds; None: any number."""
        return None

    def admit_targets(self, objective: LinearObjective, targets: Array) -> Array:
        # of a stranger's loss nobody knows that it counts beyond a byte
        return objective.loss.admit(targets if ours(type(objective.loss)) else targets.astype(np.float64))

    def certificate(self, facts: PublicFacts, provenance: Provenance) -> Certificate:
        """The certificate of a release under `facts`, with noise from there: known before any data are seen. ValueError where
        there is none."""
        self.refuse_groups(facts)
        return Certificate.issue(
            mechanism=self.name,
            event=self.event(facts),
            delta=self.budget.delta,
            target_epsilon=self.budget.epsilon,
            paper=self.paper,
            assumptions=[
                *self.assumptions(facts),
                *dict.fromkeys(self.strangers()),
                *_common_assumptions(facts, self.averages, self.trains_on_rows),
            ],
            public_facts={**facts.to_dict(), **_units(facts, self.trains_on_rows), **self.settings()},
            not_charged=_NOT_CHARGED,
            provenance=provenance,
        )


def _strangers(objective: LinearObjective, records: Records | PartedRecords) -> list[Assumption]:
    """What is assumed of types that derive from ours."""
    parts = [("objective", objective), ("rows' type", records)]
    assumed = "holds to the facts that it states, of each record by itself"
    named = [statements.stranger(name, part, assumed) for name, part in parts if is_third_party(part)]
    if isinstance(records, PartedRecords):
        named.append(statements.PARTS)
        if is_third_party(records.engine):
            named.append(statements.foreign_engine(records.engine))
    return named


_NOT_CHARGED = (statements.settings("hyper-parameters", "features", "ranges"), statements.INPUT_CHECKS)


def _units(facts: PublicFacts, trained: bool) -> dict[str, str]:
    """What units are called where a local model is trained on each one's rows."""
    return {"units": statements.CLIENTS} if trained and facts.unit.max_rows is not None else {}


def _common_assumptions(facts: PublicFacts, averaged: bool, trained: bool) -> list[Assumption]:
    most = facts.unit.max_rows
    person = [statements.ONE_RECORD] if most is None else statements.persons(most, averaged, trained)
    assumptions = [*person, statements.row_norm(facts.data_norm)]
    if facts.public_size is not None:
        whom = statements.CLIENTS if trained and most is not None else facts.unit.whom
        assumptions.append(statements.known_size(facts.public_size, whom=whom))
    if facts.foreign_loss is not None:
        assumptions.append(statements.foreign_loss(facts.foreign_loss))
    return assumptions
