"""The card of one model, for the people who sign: who is protected, how strongly, on what assumptions, how good the model is,
what was spent and is left, what an attacker could do, and how to check all that."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, cast

from dperm._rounding import downward, upward
from dperm._validate import positive
from dperm.audit import AuditResult, overall
from dperm.privacy import Certificate, Composed, Event, Relation
from dperm.privacy.events import relation_of
from dperm.report.figures import curve_figure, profile_figure, risk_figure
from dperm.report.model_scores import ModelScores
from dperm.report.page import rendered

if TYPE_CHECKING:
    from dperm.data import Schema
    from dperm.data.schema.columns import Column
    from dperm.release import SpendLog
    from dperm.release.ledger import Account, Charge

_APART = 300.0  # seconds between a certificate and its charge, at most
_RATES = (0.01, 0.1)  # of people who are accused wrongly
_STRONG, _WEAK = 1.0, 10.0  # ε: up to the one it is called strong, above the other weak
_ROUNDING = 1e-6  # relative: an ε that was asked for as 1 and accounted for as a little less or more is 1
_MOST_NAMES = 40  # of a column's categories

#: Words of the card, for readers who do not know them.
GLOSSARY = {
    "ε (epsilon)": "How much one person's data can change what is published. At ε = 0 they change nothing; up to about 1 is "
    "called strong, above 10 weak. The picture of the attack says what it means here.",
    "δ (delta)": "The chance that the bound by ε does not hold. It should be far below one in the number of people.",
    "Record, person": "What is protected: one row of the table, or all rows of one person. The card says which.",
    "Neighbours": "Two tables that differ in one record, or one person. Privacy means that what is published hardly tells which "
    "of two neighbours it was made of.",
    "Mechanism": "The method that trains and adds noise.",
    "Certified": "ε was computed by this program from what the mechanism ran, by the theorem and the accounting that are named. "
    "Anybody can compute it again from the model's file, by the command dperm account. No authority has issued it.",
    "Claimed": "The mechanism states an ε that this program cannot prove.",
    "Charge, spend log": "Each release of a data set is written down before it is made. What several releases cost together is "
    "computed from these entries.",
    "Audit": "Attacks on the running program. They can show that it spends more than it says; they cannot show that it does not.",
}


@dataclass(frozen=True)
class Spent:
    """What all releases charged under one label cost together, by a spend log; `budget`: how much may be spent, if stated.
    `unknown`: why that is not known, where some of them cannot be added up; ε is infinite then. `unnamed`: further charges of the
    log that name no data set. `account`: the data set's budget in the log, which refuses what exceeds it."""

    label: str
    epsilon: float
    delta: float
    charges: int
    budget: float | None = None
    unknown: str = ""
    unnamed: int = 0
    account: Account | None = None

    @property
    def left(self) -> float | None:
        """Of the budget: at least, for what is spent together costs less than its sum. None where no budget is stated, or what
        was spent is not known."""
        return None if self.budget is None or self.unknown else max(0.0, self.budget - self.epsilon)

    @property
    def told_apart(self) -> str:
        """By what the log tells data sets apart."""
        more = "" if not self.unnamed else f"; {self.unnamed:,} more in this log name no data set"
        return f"the same records under another name are not counted{more}"

    @property
    def exceeded(self) -> float:
        """By how much more was spent than the budget; 0 where it was not."""
        return 0.0 if self.budget is None else max(0.0, self.epsilon - self.budget)

    @classmethod
    def of(cls, log: SpendLog, label: str, certificate: Certificate, budget: float | None = None) -> Spent | None:
        """None where the log holds no charge of this certificate under this label: of its event, made when it was issued."""
        everything = log.charges()
        charges = [charge for charge in everything if charge.label == label]
        if not _charged(certificate, charges):
            return None
        unknown = _not_added_up(certificate, charges)
        total = math.inf
        if not unknown:
            total = log.total(certificate.delta, label, persons=certificate.of_persons)[certificate.relation]
        unnamed = sum(not charge.label for charge in everything) if label else 0
        return cls(label, total, certificate.delta, len(charges), budget, unknown, unnamed, log.account(label))

    @property
    def held(self) -> str:
        """The data set's budget in the log, in a sentence; "" where it has none."""
        if self.account is None:
            return ""
        budget, left = self.account.budget, downward(100 * self.account.left, 3)
        more = "".join([f", of {budget.owner}" if budget.owner else "", f", until {budget.expires}" if budget.expires else ""])
        return (
            f"ε = {budget.epsilon:g} at δ = {budget.delta:g}{more}: {left} % of it is left, by its own rule, and the log refuses "
            "what exceeds it"
        )


def _charged(certificate: Certificate, charges: Sequence[Charge]) -> bool:
    """Whether the log holds what the certificate states. Events of other data may be equal: the time tells."""
    events, event = [charge.event for charge in charges], certificate.event
    if event not in events:
        return _made_of(event, events)
    issued = datetime.fromisoformat(certificate.created)
    times = [datetime.fromisoformat(charge.time) for charge in charges if charge.event == event]
    return any(abs((time - issued).total_seconds()) <= _APART for time in times)


def _made_of(event: Event, events: Sequence[Event]) -> bool:
    """Whether all parts of an event are among others: of a schema that was found and of the training, or of several releases."""
    if event in events:
        return True
    return isinstance(event, Composed) and bool(event.events) and all(_made_of(part, events) for part in event.events)


def _not_added_up(certificate: Certificate, charges: Sequence[Charge]) -> str:
    """Why a sum over these would say too little; "" where it would not."""
    if certificate.epsilon is None:
        return "this model is only claimed to be private"
    if not all(charge.certified for charge in charges):
        return "some of these are only claimed to be private"
    if not all(charge.private for charge in charges):
        return "some of these were made with a fixed seed, which protects nobody"
    if any(charge.persons != certificate.of_persons for charge in charges):
        return "some of these protect persons with all their rows, others single records"
    if any(relation_of(charge.event) is not certificate.relation for charge in charges):
        return "some of these protect a record that is added or removed, others one that is replaced"
    return ""


@dataclass(frozen=True)
class ModelFile:
    """The file of the model: its name, its SHA-256, and what its digital signature is worth.

    Attributes
    ----------
    name, sha256 : str
        By which a reader finds the file that the card describes.
    signed : str
        The public key by which the signature was verified; "" where none was.
    unverified : bool
        Whether the file carries a signature that was not verified.
    """

    name: str
    sha256: str
    signed: str = ""
    unverified: bool = False


@dataclass(frozen=True)
class Release:
    """One of several models of a table that grew: its mechanism, what it cost alone, in words, and the day of its release."""

    mechanism: str
    cost: str
    day: str

    @classmethod
    def all_of(cls, noted: object) -> tuple[Release, ...]:
        """From what a model's file notes of releases; none where it notes nothing that can be read."""
        if not isinstance(noted, list):
            return ()
        found: list[Release] = []
        for each in cast("list[Any]", noted):
            try:
                cost = "claimed" if each["epsilon"] is None else f"ε = {upward(positive('epsilon', each['epsilon']))} alone"
                found.append(cls(str(each["mechanism"]), cost, str(each["created"])[:10]))
            except (KeyError, OverflowError, TypeError, ValueError):  # changed by hand
                return ()
        return tuple(found)

    def __str__(self) -> str:
        return f"{self.mechanism}, {self.cost}, of {self.day}"


@dataclass(frozen=True)
class Card:
    """What stands on it. `purpose` "": nobody stated it; the page has a line for it. `columns`: of each feature its name, and its
    range or categories, as the schema states them. `kind`: what sort of model it is, in words."""

    certificate: Certificate
    title: str
    data_set: str = ""
    purpose: str = ""
    person: str = ""
    features: tuple[str, ...] = ()
    target: str = ""
    spent: Spent | None = None
    audits: Sequence[AuditResult] = field(default=())
    kind: str = ""
    columns: tuple[tuple[str, str], ...] = ()
    target_values: str = ""
    values_from: str = ""  # how the columns' values became known, in a sentence
    scores: ModelScores | None = None
    file: ModelFile | None = None
    releases: tuple[Release, ...] = ()  # of the same table, where the certificate is that of several; the last one is this model

    @property
    def made_by(self) -> str:
        """The mechanism of the model itself, and that others were released before it."""
        if len(self.releases) < 2:
            return self.certificate.mechanism
        before = len(self.releases) - 1
        others = "an earlier model" if before == 1 else f"{before} earlier models"
        return f"{self.releases[-1].mechanism}, released after {others} of the same table"

    @classmethod
    def of(cls, certificate: Certificate, title: str, schema: Schema | None = None, **stated: Any) -> Card:
        """With what a model's schema says; `stated` fields that are not empty stand above it."""
        known: dict[str, Any] = {"person": _person(certificate, schema)}
        if schema is not None:
            known |= {
                "data_set": ". ".join(part.rstrip(".") for part in (schema.title or schema.name, schema.source) if part),
                "features": tuple(column.name for column in schema.feature_columns),
                "target": schema.target,
                "columns": tuple((column.name, _values_of(column)) for column in schema.feature_columns),
                "target_values": _target_values(schema),
                "values_from": _values_from(schema),
            }
        return cls(certificate, title, **(known | {name: value for name, value in stated.items() if value}))

    @property
    def strength(self) -> str:
        """How strong ε is called, in a word: "strong", "moderate" or "weak". "": there is no ε that protects."""
        epsilon = self.certificate.epsilon
        if epsilon is None or self.certificate.status != "certified":
            return ""
        if self.certificate.weakness:
            return "weak"
        return "strong" if epsilon <= _STRONG * (1 + _ROUNDING) else "moderate" if epsilon <= _WEAK * (1 + _ROUNDING) else "weak"

    @property
    def neighbours(self) -> str:
        """Two tables that cannot be told apart, in words."""
        who = self.certificate.protected
        added = self.certificate.relation is Relation.ADD_OR_REMOVE_ONE
        return f"{who} {'is added or removed' if added else 'is replaced by any other'}"

    @property
    def attack(self) -> dict[str, Any] | None:
        """The most that any attack finds out of one person, in people of 100; None where nothing is certified."""
        if self.certificate.epsilon is None or self.certificate.status != "certified":
            return None
        view = self.certificate.attack_view(_RATES)
        return {
            "accused_wrongly": [100 * rate for rate in view.false_positive_rates],
            "found_at_most": [_up(100 * rate) for rate in view.true_positive_rates],
            "right_at_most": _up(50 * (1 + view.advantage)),
            "advantage": 100 * view.advantage,
        }

    @property
    def states(self) -> list[str]:
        """What those who sign state: the assumptions of the model, and of its scores, that the program could not check."""
        released = [self.certificate, *([] if self.scores is None else [self.scores.certificate])]
        texts = [item.text for each in released for item in each.assumptions if item.responsible == "caller"]
        return list(dict.fromkeys(texts))

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready: all that the page says."""
        spent = self.spent and {
            **vars(self.spent),
            "left": self.spent.left,
            "exceeded": self.spent.exceeded,
            "account": self.spent.account and self.spent.account.to_dict(),
        }
        return {
            "title": self.title,
            "data_set": self.data_set,
            "purpose": self.purpose,
            "person": self.person,
            "features": list(self.features),
            "target": self.target,
            "neighbours": self.neighbours,
            "spent": spent and {name: _finite(value) for name, value in spent.items()},
            "file": self.file and vars(self.file),
            "kind": self.kind,
            "columns": [list(each) for each in self.columns],
            "target_values": self.target_values,
            "values_from": self.values_from,
            "strength": self.strength,
            "releases": [vars(each) for each in self.releases],
            "scores": self.scores and self.scores.to_dict(),
            "attack": self.attack,
            "audits": {"verdict": overall(self.audits), "results": [item.to_dict() for item in self.audits]}
            if self.audits
            else None,
            "signer_states": self.states,
            "glossary": GLOSSARY,
            "certificate": json.loads(self.certificate.to_json()),
        }


def _up(people: float) -> float:
    """To a tenth, and never down: it is a bound."""
    return math.ceil(10 * people - 1e-9) / 10


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _person(certificate: Certificate, schema: Schema | None) -> str:
    if not certificate.of_persons:
        return "One row of the table. Where somebody has several rows, each is protected by itself, and they together less."
    rows = certificate.public_facts.get("max_rows_per_unit")
    unit = f", told apart by the column “{schema.unit}”" if schema is not None and schema.unit else ""
    used = f"; at most {rows} of them are used" if isinstance(rows, int) and rows else ""
    return f"One person with all their rows{unit}{used}."


def _values_of(column: Column) -> str:
    """What values a column has, as the schema states them: "0 to 120", "yes, no"."""
    if column.range is not None:
        low, high = (f"{end:,g}" if isinstance(end, float | int) else end for end in column.range)
        return f"{low} to {high}"
    more = len(column.categories) - _MOST_NAMES
    shown = ", ".join(column.categories[:_MOST_NAMES]) + (f" and {more:,} more" if more > 0 else "")
    return shown + ("; others together" if column.other else "")


def _values_from(schema: Schema) -> str:
    """How ranges, categories and labels became known, in a sentence."""
    if schema.proposed:
        return "They were read off the data, without a charge: the guarantee takes them as known."
    if schema.found is not None:
        return "They were found on the data by a private search, which was charged."
    return "The schema states that they were known without the data."


def _target_values(schema: Schema) -> str:
    """What the target may be, as the schema states it."""
    if schema.classes:
        more = len(schema.classes) - _MOST_NAMES
        return ", ".join(schema.classes[:_MOST_NAMES]) + (f" and {more:,} more" if more > 0 else "")
    return "" if schema.target_range is None else "{:,g} to {:,g}".format(*schema.target_range)


def card_page(card: Card) -> str:
    """One page for the people who sign. In print the statements and the signatures stand on one sheet, and the certificate, the
    columns and the numbers of the audit in appendices."""
    attack = card.attack
    return rendered(
        "card.html",
        card=card,
        certificate=card.certificate,
        attack=attack,
        glossary=GLOSSARY,
        risk_svg=risk_figure(card.certificate, attack["found_at_most"][0]) if attack else None,
        profile_svg=profile_figure(card.certificate) if attack else None,
        audits=[(result, curve_figure(result) if result.curve else None) for result in card.audits],
        verdict=overall(card.audits),
    )
