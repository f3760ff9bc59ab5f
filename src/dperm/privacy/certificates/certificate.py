"""The certificate: what was spent, on what assumptions, checked how. JSON both ways, a plain statement, the δ(ε) curve."""

from __future__ import annotations

import enum
import functools
import json
import math
import platform
import textwrap
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from importlib import metadata
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from dperm import _validate as check
from dperm._json import bounded_table, foreign, on_one_line
from dperm._remind import weakness
from dperm._rounding import upward
from dperm.privacy.accountants.accounting import best_epsilon
from dperm.privacy.accountants.accounting import delta as event_delta
from dperm.privacy.accountants.risk import AttackView, Risk, attack_view
from dperm.privacy.adaptive.ex_post import ExPost
from dperm.privacy.certificates import assumptions as statements
from dperm.privacy.certificates.assumptions import Assumption, Provenance
from dperm.privacy.certificates.html import certificate_html
from dperm.privacy.certificates.signing import digest_of
from dperm.privacy.events import (
    Composed,
    Disjoint,
    Event,
    Relation,
    accounting_cost,
    claims_of,
    event_from_dict,
    leaves,
    relation_of,
)

Status = Literal["certified", "claimed", "not private"]

#: Bumped when a field changes its meaning.
_FORMAT = 4

#: The largest `accounting_cost` of a certificate that is read without a limit of one's own: about a second's work.
_LARGEST_COST = 50.0
_MOST_EVENTS = 2000  # that such a certificate's event is composed of, at whatever depth

_COLUMNS, _INDENT = 100, "    "  # of a certificate that is printed

_CURVE_TOLERANCE = 1e-3  # a curve has many points; a coarser grid only moves the bound up

_RELATION_TEXT = {
    Relation.ADD_OR_REMOVE_ONE: "one person's record is added or removed",
    Relation.REPLACE_ONE: "one person's record is replaced by any other",
}
_PERSONS_TEXT = {
    Relation.ADD_OR_REMOVE_ONE: "one person is added or removed with all their rows",
    Relation.REPLACE_ONE: "one person is replaced by any other with all their rows",
}
_CLIENTS_TEXT = {
    Relation.ADD_OR_REMOVE_ONE: "one client is added or removed with all its records",
    Relation.REPLACE_ONE: "one client is replaced by any other with all its records",
}

#: Where nobody says how the noise is made.
_UNSTATED = Provenance("not stated", "Nothing is stated of how noise is drawn and added.")


def _arithmetic(provenance: Provenance) -> tuple[Assumption, ...]:
    checked = "docs/noise.md says how it is tested; how long a draw takes is not hidden"
    return (Assumption(provenance.arithmetic, "library", checked, "arithmetic"),) if provenance.arithmetic else ()


@dataclass(frozen=True)
class Certificate:
    """What one release cost. Build it with `issue`; `epsilon` is None for a claimed mechanism.

    `epsilon` is the tightest bound we can prove for `event` at `delta`, never above `target_epsilon`. Status
    "not private" marks a fixed seed: `epsilon` then says what the event would cost with fresh noise. All texts are put on one
    line: none can pass for another line of the statement.
    """

    mechanism: str
    status: Status
    event: Event
    delta: float
    relation: Relation
    epsilon: float | None
    accountant: str
    target_epsilon: float | None = None
    claim: str | None = None
    paper: str = ""
    assumptions: tuple[Assumption, ...] = ()
    public_facts: Mapping[str, Any] = field(default_factory=dict[str, Any])
    not_charged: tuple[str, ...] = ()
    seeded: str = ""
    ex_post: ExPost | None = None
    versions: Mapping[str, str] = field(default_factory=dict[str, str])
    created: str = ""

    def __post_init__(self) -> None:
        for name in _TEXTS:
            object.__setattr__(self, name, on_one_line(getattr(self, name)))
        if self.claim is not None:
            object.__setattr__(self, "claim", on_one_line(self.claim))
        object.__setattr__(self, "not_charged", tuple(map(on_one_line, self.not_charged)))
        for name in ("public_facts", "versions"):
            object.__setattr__(self, name, _json_ready(getattr(self, name)))

    @classmethod
    def issue(
        cls,
        *,
        mechanism: str,
        event: Event,
        delta: float,
        target_epsilon: float | None = None,
        paper: str = "",
        assumptions: Sequence[Assumption] = (),
        public_facts: Mapping[str, Any] | None = None,
        not_charged: Sequence[str] = (),
        provenance: Provenance = _UNSTATED,
    ) -> Certificate:
        """Account for `event` and date the result. An event with an `Unsupported` part is only claimed. ValueError for one that
        costs more than `target_epsilon`."""
        claims = claims_of(event)
        relation = relation_of(event)
        if relation is None:
            raise ValueError("Expected an event with at least one part, got an empty composition.")
        delta = float(check.fraction("delta", delta, zero=True))
        value, accountant = (None, "none") if claims else best_epsilon(event, delta)
        if value is not None and target_epsilon is not None and value > target_epsilon * (1 + _ABOVE_TARGET):
            raise ValueError(
                f"Expected an event within epsilon = {target_epsilon:g} at delta = {delta:g}, got one of {value:.6g}."
            )
        status: Status = "not private" if not provenance.private else "claimed" if claims else "certified"
        return cls(
            mechanism=mechanism,
            status=status,
            event=event,
            delta=delta,
            relation=relation,
            epsilon=value,
            accountant=accountant,
            target_epsilon=None if target_epsilon is None else float(target_epsilon),
            claim="; ".join(claims) or None,
            paper=paper,
            assumptions=(*assumptions, *_arithmetic(provenance)),
            public_facts=public_facts or {},
            not_charged=tuple(not_charged),
            seeded=provenance.seeded,
            versions=dict(_versions()),
            created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        )

    @classmethod
    def of_all(
        cls, certificates: Sequence[Certificate], delta: float | None = None, target_epsilon: float | None = None
    ) -> Certificate:
        """One certificate for several releases from the same records, in the order in which they were made.

        ε is that of their composition at `delta` (None: the last one's); assumptions and facts are those of all of them.
        ValueError where some are of records, others of persons.
        """
        if not certificates:
            raise ValueError("Expected at least one certificate, got none.")
        last = certificates[-1]
        if len({certificate.of_persons for certificate in certificates}) > 1:
            raise ValueError("Expected certificates that protect the same: some are of records, others of persons with all rows.")
        assumptions = dict.fromkeys(item for certificate in certificates for item in certificate.assumptions)
        unpaid = dict.fromkeys(text for certificate in certificates for text in certificate.not_charged)
        combined = cls.issue(
            mechanism=", then ".join(certificate.mechanism for certificate in certificates),
            event=Composed(tuple(certificate.event for certificate in certificates)),
            delta=last.delta if delta is None else delta,
            target_epsilon=target_epsilon,
            paper="; ".join(dict.fromkeys(certificate.paper for certificate in certificates if certificate.paper)),
            assumptions=list(assumptions),
            public_facts=_by_name(certificates),
            not_charged=tuple(unpaid),
            provenance=Provenance(
                "; ".join(dict.fromkeys(certificate.seeded for certificate in certificates)),
                "",  # each says so itself
                all(certificate.private for certificate in certificates),
            ),
        )
        claims = [certificate.claim for certificate in certificates if certificate.claim]
        return combined.only_claimed("; ".join(claims)) if claims else combined

    @classmethod
    def of_disjoint(
        cls,
        certificates: Sequence[Certificate],
        *,
        moved: Sequence[Event] = (),
        delta: float | None = None,
        target_epsilon: float | None = None,
    ) -> Certificate:
        """One certificate for releases from parts of the records, which somebody else split: see `Disjoint`, also for `moved`.

        That each record, or person, was in the data of one of them alone is an assumption of the caller's, and stated as one:
        dperm did not split the records. ε is that at `delta` (None: the largest of theirs). Other releases from the same records,
        such as preprocessing over all parts, are composed with it by `of_all`. ValueError where some are of records, others of
        persons, or of different neighbours, and for parts that need a public number of records under replace-one.
        """
        if not certificates:
            raise ValueError("Expected at least one certificate, got none.")
        # names, facts and assumptions as of a composition; its ε is not
        composed = cls.of_all(certificates, max(certificate.delta for certificate in certificates))
        split = cls.issue(
            mechanism="on disjoint parts: " + ", ".join(dict.fromkeys(each.mechanism for each in certificates)),
            event=Disjoint(tuple(certificate.event for certificate in certificates), tuple(moved)),
            delta=composed.delta if delta is None else delta,
            target_epsilon=target_epsilon,
            paper=composed.paper,
            assumptions=[statements.disjoint_releases(len(certificates), composed.of_persons), *composed.assumptions],
            public_facts=composed.public_facts,
            not_charged=composed.not_charged,
            provenance=Provenance(composed.seeded, "", composed.private),
        )
        return split.only_claimed(composed.claim) if composed.claim else split

    @property
    def of_persons(self) -> bool:
        """Whether neighbours differ in all rows of a person, not in one record."""
        return _name_persons(self.public_facts)

    @property
    def neighbours(self) -> str:
        """What neighbouring data sets differ in, in words: "one person's record is added or removed"."""
        if _name_clients(self.public_facts):
            return _CLIENTS_TEXT[self.relation]
        return (_PERSONS_TEXT if self.of_persons else _RELATION_TEXT)[self.relation]

    @property
    def protected(self) -> str:
        """What neighbouring data sets differ by: one record, one person with all their rows, or one client with all its
        records."""
        if _name_clients(self.public_facts):
            return "one client with all its records"
        return "one person with all their rows" if self.of_persons else "one record"

    @property
    def private(self) -> bool:
        """Whether the release is protected at all: False for a fixed seed."""
        return self.status != "not private"

    def with_assumptions(self, *more: Assumption) -> Certificate:
        """A copy that states further assumptions first."""
        return replace(self, assumptions=(*more, *self.assumptions))

    def asked_for(self, risk: Risk) -> Certificate:
        """A copy that says which risk the budget was stated as."""
        return replace(self, public_facts={**self.public_facts, "risk": str(risk)})

    def settled(self, facts: Mapping[str, Any], *assumed: Assumption) -> Certificate:
        """A copy that also states what was given back to a budget, in `facts`, of which "settled" is a sentence. Event and ε stay
        those of the whole charge: the reason to stop may have been what was released."""
        return replace(self, public_facts={**self.public_facts, **facts}, assumptions=(*assumed, *self.assumptions))

    def stopped(self, statement: ExPost) -> Certificate:
        """A copy that also states what the run cost where it stopped."""
        return replace(self, ex_post=statement)

    def checked_otherwise(self, key: str, checked: str) -> Certificate:
        """A copy in which the assumptions of this key were checked in another way."""
        assumptions = tuple(replace(item, checked=checked) if item.key == key else item for item in self.assumptions)
        return replace(self, assumptions=assumptions)

    def restated(self, *instead: Assumption) -> Certificate:
        """A copy in which these stand in the places of the assumptions of their keys. It adds none."""
        by_key = {item.key: item for item in instead}
        return replace(self, assumptions=tuple(by_key.get(item.key, item) for item in self.assumptions))

    def not_charging(self, *more: str) -> Certificate:
        """A copy that names more of what is not charged."""
        return replace(self, not_charged=tuple(dict.fromkeys((*self.not_charged, *more))))

    def only_claimed(self, reason: str) -> Certificate:
        """A copy without a number, for a run whose premises are known to fail; `reason` completes "claimed, because". One with
        a fixed seed stays not private."""
        if self.epsilon is None:
            return self
        claim = f"({self.epsilon:.4g}, {self.delta:.2g})-private only if it were not so that {reason}"
        status: Status = "claimed" if self.private else self.status
        return replace(self, status=status, claim=claim, epsilon=None, accountant="none", ex_post=None)

    def verify(self) -> None:
        """Account for the event again. Raises ValueError where what is stated does not follow from the event."""
        if relation_of(self.event) is not self.relation:
            raise ValueError(f"The certificate states the relation {self.relation}, but its event has {relation_of(self.event)}.")
        if (self.epsilon is None) != (self.status == "claimed" or bool(self.claim)) or (self.epsilon is None and not self.claim):
            raise ValueError(
                f"The certificate's status {self.status!r} does not fit its epsilon {self.epsilon!r} and claim {self.claim!r}."
            )
        if not 0 <= self.delta < 1:  # also where it is not a number
            raise ValueError(f"The certificate states delta = {self.delta!r}.")
        if self.epsilon is None:
            return
        if not 0 <= self.epsilon < math.inf:
            raise ValueError(f"The certificate states epsilon = {self.epsilon!r}, which promises nothing.")
        if self.target_epsilon is not None and not self.epsilon <= self.target_epsilon * (1 + _ABOVE_TARGET):
            raise ValueError(
                f"The certificate states epsilon = {self.epsilon:.6g}, above its own target epsilon {self.target_epsilon:g}."
            )
        if self.ex_post is not None:
            self._verify_stop(self.ex_post)
        again = best_epsilon(self.event, self.delta)[0]
        if not again <= self.epsilon * (1 + 1e-6):
            raise ValueError(f"The certificate states epsilon = {self.epsilon:.6g}, but its event costs {again:.6g}.")

    def _verify_stop(self, stated: ExPost) -> None:
        """ValueError where an ex-post statement is of another path than was charged, or does not keep its δ."""
        releases = stated.event(self.relation)
        if leaves(self.event) != leaves(releases) or stated.delta != self.delta:
            raise ValueError("The certificate's ex-post statement is of another run than its event.")
        stated.verify()

    @property
    def weakness(self) -> str:
        """What to say of an ε or δ that keeps little from anybody; nothing of others."""
        return "" if self.epsilon is None else weakness(self.epsilon, self.delta)

    @property
    def digest(self) -> str:
        """SHA-256 of everything that is stated: another where one word of it is another."""
        return digest_of(self._stated())

    def curve(
        self, epsilons: Sequence[float] | NDArray[np.float64] | None = None
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The profile δ(ε): arrays of ε ≥ 0 and of upper bounds on δ. ValueError for a claimed mechanism."""
        if self.epsilon is None:
            raise ValueError(f"A claimed mechanism has no profile: {self.claim}")
        grid = np.linspace(0, 1.5 * max(self.epsilon, 0.1), 31) if epsilons is None else np.asarray(epsilons, dtype=float)
        return grid, np.array([event_delta(self.event, float(value), _CURVE_TOLERANCE) for value in grid])

    def attack_view(self, false_positive_rates: Sequence[float] = (0.001, 0.01, 0.1)) -> AttackView:
        """Best advantage, and best true-positive rate at given false-positive rates, of any attack."""
        return attack_view(*self.curve(), false_positive_rates)

    def _stated(self) -> dict[str, Any]:
        data = {"format": _FORMAT, **vars(self)}
        data["event"] = self.event.to_dict()
        data["assumptions"] = [vars(assumption) for assumption in self.assumptions]
        data["not_charged"] = list(self.not_charged)
        data["ex_post"] = self.ex_post and self.ex_post.to_dict()
        return data

    def to_json(self, indent: int | None = 2) -> str:
        """All fields as JSON, and their digest; `from_json` inverts it without loss. A claimed mechanism's epsilon is null."""
        stated = self._stated()
        return json.dumps({**stated, "digest": digest_of(stated)}, indent=indent, ensure_ascii=False, allow_nan=False)

    @classmethod
    def from_json(cls, text: str, *, largest_cost: float = _LARGEST_COST) -> Certificate:
        """The certificate that `to_json` wrote; it may come from anybody.

        ValueError for another format, a missing or further field, one of another type or out of range, texts of several lines,
        a certificate that was changed since it was made, and an event that is more work for an accountant than `largest_cost`
        (in units of one Poisson-sampled Gaussian): nothing is computed before that is known. Whether the numbers are true,
        `verify` finds.
        """
        with foreign("Not a dperm certificate"):
            data = bounded_table(text)
            if data.get("format") != _FORMAT:
                raise ValueError(f"expected certificate format {_FORMAT}, got {data.get('format')!r}")
            if data.pop("digest", None) != digest_of(data):
                raise ValueError("it was changed after it was issued: its digest is another")
            del data["format"]
            return _read(data, largest_cost)

    def __str__(self) -> str:
        """All that is stated, for a terminal: the guarantee first, lines of about 100 columns, and each statement's further
        lines indented. No text within can begin a line that is not indented."""
        unpaid = (f"Not charged: {item}" for item in self.not_charged)
        return _wrapped([*self._claim(), *map(_told, self.assumptions), *unpaid])

    def to_html(self) -> str:
        """A piece of HTML for a notebook: the guarantee, and folded below it all that it rests on."""
        return certificate_html(self._claim(), self.assumptions, self.not_charged)

    _repr_html_ = to_html

    def brief(self) -> str:
        """What it states, what the caller must answer for, and how much else there is to read, for a terminal as `str()`."""
        mine = [item for item in self.assumptions if item.responsible == "caller"]
        rest = len(self.assumptions) - len(mine)
        proved = f"{rest} assumptions that dperm proves, enforces or tests, and " if rest else ""
        return _wrapped([*self._claim(), *map(_told, mine), f"Not shown: {proved}what is not charged. The card has all of it."])

    def _claim(self) -> list[str]:
        who = self.neighbours
        lines: list[str] = []
        if self.status == "not private":
            lines.append("NOT PRIVATE: the seed was fixed by the caller; whoever knows it can remove the noise.")
        if self.epsilon is None:
            lines.append(f"{self.mechanism}: claimed, not certified. {self.claim}")
        else:
            word = "would be" if self.status == "not private" else "is"
            cost = f"({upward(self.epsilon)}, {upward(self.delta, 2)})"
            lines.append(f"{self.mechanism} {word} {cost}-differentially private when {who}.")
            if self.weakness:
                lines.append(f"WEAK: {self.weakness}")
            if self.target_epsilon is not None and self.epsilon < 0.999 * self.target_epsilon:
                least = upward(self.epsilon)
                lines.append(f"Target epsilon {self.target_epsilon:g}; {least} is the tightest bound we can prove.")
        if "risk" in self.public_facts:
            lines.append(f"Asked for: {self.public_facts['risk']}.")
        if "settled" in self.public_facts:
            kept = "What this release cost alone is still its whole charge: what was released may have been the reason to stop."
            lines.append(f"Settled: {self.public_facts['settled']}. {kept}")
        if self.ex_post is not None:
            lines.append(str(self.ex_post))
        lines.append(f"Accountant: {self.accountant}. Issued {self.created} by dperm {self.versions.get('dperm', '?')}.")
        return lines


#: Fields that hold one text each.
_TEXTS = ("mechanism", "accountant", "paper", "seeded", "created")

#: How far, relatively, ε may lie above its target: both were rounded.
_ABOVE_TARGET = 1e-9


def _read(data: dict[str, Any], largest_cost: float) -> Certificate:
    """A certificate of a table's values, each of the type and range that its field has. TypeError or ValueError for others."""
    names = [each.name for each in fields(Certificate)]
    if odd := sorted(data.keys() ^ set(names)):
        raise ValueError(f"expected the fields {', '.join(names)}; {odd[0]!r} is {'unknown' if odd[0] in data else 'missing'}")
    for name in _TEXTS:
        _of_type(data, name, str)
    _of_type(data, "claim", str, type(None))
    for name in ("public_facts", "versions"):
        _of_type(data, name, dict)
    for name in ("assumptions", "not_charged"):
        _of_type(data, name, list)
    if not all(isinstance(item, str) for item in (*data["not_charged"], *data["versions"].values())):
        raise ValueError("expected not_charged as a list of texts, and versions as texts")
    _refuse_rows(data["public_facts"])
    if (count := _tables(data["event"])) > _MOST_EVENTS:
        raise ValueError(f"its event is composed of {count:,} events; {_MOST_EVENTS:,} is the limit")
    event = event_from_dict(data["event"])
    if not (cost := accounting_cost(event)) <= largest_cost:
        raise ValueError(
            f"its event is {cost:,.4g} times as much work for an accountant as one sampled Gaussian, and {largest_cost:,.4g} is "
            "the limit: largest_cost=... of Certificate.from_json raises it"
        )
    return Certificate(
        **{name: data[name] for name in (*_TEXTS, "claim", "public_facts", "versions")},
        status=check.choice("status", data["status"], get_args(Status)),  # type: ignore[arg-type]
        event=event,
        delta=float(check.fraction("delta", data["delta"], zero=True)),
        relation=Relation(check.choice("relation", data["relation"], list(Relation))),
        epsilon=None if data["epsilon"] is None else float(check.non_negative("epsilon", data["epsilon"])),
        target_epsilon=None
        if data["target_epsilon"] is None
        else float(check.positive("target_epsilon", data["target_epsilon"])),
        assumptions=tuple(_assumption(item) for item in data["assumptions"]),
        not_charged=tuple(data["not_charged"]),
        ex_post=None if data["ex_post"] is None else ExPost(**_of_type(data, "ex_post", dict)),
    )


def _tables(data: Any) -> int:
    """How many tables stand in a value, itself included."""
    waiting, count = [data], 0
    while waiting:
        value = waiting.pop()
        count += isinstance(value, dict)
        waiting += value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return count


def _of_type(data: Mapping[str, Any], name: str, *kinds: type) -> Any:
    if not isinstance(data[name], kinds):
        wanted = {str: "text", dict: "a table", list: "a list", type(None): "null"}
        raise ValueError(f"expected {name} to be {' or '.join(wanted[kind] for kind in kinds)}, got {data[name]!r}")
    return data[name]


def _assumption(item: Any) -> Assumption:
    if not isinstance(item, dict):
        raise ValueError(f"expected each assumption as a table, got {item!r}")
    return Assumption(**item)


def _refuse_rows(facts: Mapping[str, Any]) -> None:
    """ValueError where these facts, or those of a part of a composition, state `max_rows_per_unit` as neither number nor word."""
    rows = facts.get("max_rows_per_unit")
    if isinstance(rows, bool) or not isinstance(rows, int | str | None):
        raise ValueError(f"expected max_rows_per_unit to be a number or a word, got {rows!r}")
    for part in facts.values():
        if isinstance(part, dict):
            _refuse_rows(part)


def _by_name(certificates: Sequence[Certificate]) -> dict[str, Any]:
    """The facts of each, by mechanism; of several by one mechanism the later ones are numbered."""
    facts: dict[str, Any] = {}
    seen: Counter[str] = Counter()
    for certificate in certificates:
        name = certificate.mechanism
        seen[name] += 1
        facts[name if seen[name] == 1 else f"{name} ({seen[name]})"] = dict(certificate.public_facts)
    return facts


def _name_persons(facts: Mapping[str, Any]) -> bool:
    """Whether these facts, or those of any part of a composition, are of persons with several rows."""
    return bool(facts.get("max_rows_per_unit")) or any(
        _name_persons(part) for part in facts.values() if isinstance(part, Mapping)
    )


def _name_clients(facts: Mapping[str, Any]) -> bool:
    """Whether all persons that these facts, or those of parts of a composition, name are clients that train on their records."""
    if facts.get("max_rows_per_unit"):
        return facts.get("units") == statements.CLIENTS
    parts = [part for part in facts.values() if isinstance(part, Mapping) and _name_persons(part)]
    return bool(parts) and all(map(_name_clients, parts))


def _wrapped(statements: Sequence[str]) -> str:
    """Each statement from the margin on, its further lines indented; words stay whole."""
    settings: dict[str, Any] = {"subsequent_indent": _INDENT, "break_long_words": False, "break_on_hyphens": False}
    return "\n".join(line for each in statements for line in textwrap.wrap(each.strip(), _COLUMNS, **settings))


def _told(assumption: Assumption) -> str:
    return f"Assumes ({assumption.responsible}): {assumption.text} [{assumption.checked}]"


def _json_ready(value: Any) -> Any:
    """Numbers, texts, lists and tables of Python's own, whatever they came as. TypeError for what is none of these."""
    if isinstance(value, Mapping):
        return {on_one_line(str(key)): _json_ready(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_json_ready(item) for item in value]
    if isinstance(value, (np.generic, np.ndarray)):
        return _json_ready(value.tolist())
    if isinstance(value, enum.Enum):
        return _json_ready(value.value)
    if isinstance(value, str):
        return on_one_line(value)
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    raise TypeError(f"Expected public facts of numbers, texts, lists and tables, got {value!r}.")


@functools.cache
def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for name in ("dperm", "numpy", "scipy"):
        versions[name] = metadata.version(name)
    return versions
