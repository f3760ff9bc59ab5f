"""What an audit found: numbers for a machine, a sentence for a person, a picture."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, cast, get_args

from dperm import _validate as check
from dperm._json import bounded_value, foreign, on_one_line
from dperm.audit.statistics import Estimate

Verdict = Literal["refuted", "consistent", "not tested"]

#: A sound claim is refuted with a chance of at most 1e-6 by all tests of an audit together: half of that by its game, and less
#: than 1e-7 by the tests of noise and draws (1e-9 for each kind).
VERDICT_CONFIDENCE = 1 - 5e-7

REPLAY, MEMBERSHIP, WHITE_BOX = "replay", "membership inference", "the white-box audit"

#: Where a query moves by no more than this of its sensitivity, half of the sensitivity would not have been noticed.
HALF = 0.5
_SEEN = 0.9  # of the stated noise: where less is not noticed before it is below this, that is said

_FORMAT = 1
_SHOWN = 5  # findings in a sentence


@dataclass(frozen=True)
class AuditResult:
    """One attack on one mechanism.

    `epsilon_lower` is proven: any mechanism that is (ε, `delta`)-private with a smaller ε does this with probability at
    most 1 − `confidence`. `estimate` is not proven. The verdict is reached at `verdict_confidence` against the whole
    claimed profile: "consistent" means that this attack did not refute it, never that it is true. "not tested": no claim
    was given, or the attack does not yield one. `findings` say in words what refutes; `curve` holds (false-positive rate,
    true-positive rate) pairs.
    """

    attack: str
    mechanism: str
    verdict: Verdict
    delta: float
    claimed_epsilon: float | None = None
    epsilon_lower: float | None = None
    confidence: float = 0.95
    verdict_confidence: float = VERDICT_CONFIDENCE
    estimate: Estimate | None = None
    trials: int = 0
    findings: tuple[str, ...] = ()
    auc: float | None = None
    rates: tuple[tuple[float, float, float], ...] = ()
    """(false-positive rate, true-positive rate, its upper confidence bound)"""
    curve: tuple[tuple[float, float], ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def __post_init__(self) -> None:
        for name in ("attack", "mechanism"):
            object.__setattr__(self, name, on_one_line(getattr(self, name)))
        object.__setattr__(self, "findings", tuple(map(on_one_line, self.findings)))

    @property
    def refuted(self) -> bool:
        return self.verdict == "refuted"

    @property
    def unseen(self) -> Mapping[str, float]:
        """Kinds of release whose queries moved by no more than half of their sensitivity, and by how much of it: had half of that
        sensitivity been charged, this replay would not have noticed."""
        return self.details.get("unseen", {})

    def limits(self) -> list[str]:
        """What the attack could not have seen, one sentence each; nothing where the claim is refuted."""
        if self.refuted or self.attack != REPLAY:
            return []
        lines: list[str] = []
        if self.unseen:
            kinds = ", ".join(f"{kind} ({most:.2g})" for kind, most in self.unseen.items())
            lines.append(
                "This audit could not have seen half of the sensitivity of these kinds of release, which no pair of neighbours "
                f"moved by more than half of what is charged: {kinds}."
            )
        faint = {kind: share for kind, share in self.details.get("noise", {}).items() if share < _SEEN}
        if faint:
            kinds = ", ".join(f"{kind} ({share:.2g})" for kind, share in faint.items())
            lines.append(f"Too little noise would have been seen only below this share of what is stated: {kinds}.")
        if hidden := self.details.get("hidden", {}):
            kinds = ", ".join(f"{kind} ({count})" for kind, count in hidden.items())
            lines.append(f"Noise was not tested where the grid of a release is too wide to see it: {kinds}.")
        if compared := self.details.get("compared", {}):
            kinds = ", ".join(f"{kind} ({count})" for kind, count in compared.items())
            lines.append(f"Whether noise is used that does not leave, only what it decides, was not tested: {kinds}.")
        rates: Mapping[str, float | None] = self.details.get("rates", {})
        if loose := {rule: factor for rule, factor in rates.items() if factor is None or factor > 1 / _SEEN}:
            rules = ", ".join(f"{rule} ({'at no rate' if f is None else f'{f:.2g} times'})" for rule, f in loose.items())
            lines.append(f"Draws at a higher rate than is charged would have been seen only from this multiple on: {rules}.")
        if tossed := self.details.get("tossed", 0):
            lines.append(f"Whether drawn records stay as often as their importance says was not tested: {tossed} coins.")
        if unlike := self.details.get("unlike", ()):
            lines.append(f"Draws were too few to see whether each run makes draws of its own: {', '.join(unlike)}.")
        return lines

    def __str__(self) -> str:
        """Plain sentences."""
        return " ".join(self.sentences())

    def sentences(self) -> list[str]:
        """The result in words, one fact a sentence."""
        return [*self._verdict(), *self._replayed(), *self.limits(), *self._proven(), *self._estimated()]

    @property
    def _percent(self) -> str:
        return f"{100 * self.confidence:g} %"

    def _verdict(self) -> list[str]:
        claim = "" if self.claimed_epsilon is None else f"ε = {self.claimed_epsilon:.4g} at δ = {self.delta:.2g}"
        if self.refuted:
            what = f"The claim of {claim} is REFUTED" if claim else "The claim is REFUTED"
            more = len(self.findings) - _SHOWN
            return [
                f"{what} by {self.attack}: {'; '.join(self.findings[:_SHOWN])}.",
                *([f"{more} more findings like these."] if more > 0 else []),
            ]
        if self.verdict == "consistent":
            within = ", within the limits below" if self.unseen else ""
            return [f"{_capital(self.attack)} did not refute {claim or 'the claim'}{within}."]
        if self.attack == MEMBERSHIP:
            return ["What a simple attacker achieves who holds records and the model; it does not test the claim."]
        return [f"{_capital(self.attack)} was given no claim to test."]

    def _replayed(self) -> list[str]:
        lines: list[str] = []
        if self.attack == REPLAY and (movement := self.details.get("largest_movement")) is not None:
            lines.append(f"Over {self.trials} runs on neighbours a query moved by at most {movement:.4g} times its sensitivity.")
            by_kind = self.details.get("movement", {})
            if len(by_kind) > 1:
                shown = {kind: "without bound" if most is None else f"{most:.3g}" for kind, most in by_kind.items()}
                lines.append("By kind: " + ", ".join(f"{kind} {most}" for kind, most in shown.items()) + ".")
        if self.attack == REPLAY and (records := self.details.get("records")):
            few, many = records
            size = f"{few}" if few == many else f"{few} to {many}"
            stored = " and ".join(self.details.get("storage", ()))
            lines.append(
                f"It was played on data sets of {size} records, stored as {stored}; other sizes and ways of storing were not."
            )
            if leaves := self.details.get("leaves"):
                lines.append(f"All queries were compared. Of the outputs, only these were compared: {', '.join(leaves)}.")
        return lines

    def _proven(self) -> list[str]:
        if self.epsilon_lower is None:
            return []
        counted = f"{self.trials:,} trials"
        if "guesses" in self.details:
            counted = f"{self.details['correct']} of {self.details['guesses']} guesses right, {self.trials:,} canaries"
        tail = f" ({self._percent} confidence, {counted})"
        if not self.epsilon_lower > 0:
            return [f"It proves nothing about ε{tail}: a bound of 0."]
        lines = [f"It proves that no ε below {self.epsilon_lower:.3g} would be true{tail}."]
        if self.claimed_epsilon is not None and self.epsilon_lower > self.claimed_epsilon and not self.refuted:
            lines.append(
                f"That is more than is claimed; a verdict asks for {100 * self.verdict_confidence:.8g} %: try more runs."
            )
        return lines

    def _estimated(self) -> list[str]:
        lines: list[str] = []
        if self.estimate is not None:
            low, high = self.estimate.low, self.estimate.high
            interval = f"{low:.3g} or more" if high is None else f"{low:.3g} to {high:.3g}"
            shown = f"{self.estimate.epsilon:.3g} ({self._percent} interval {interval}, {self.estimate.method})"
            lines.append(f"Estimated ε, not proven: {shown}.")
        if self.auc is not None and self.attack == MEMBERSHIP:
            lines.append(
                f"Shown one member and one other, the attack names the member {100 * self.auc:.1f} times in 100; guessing: 50."
            )
            for rate, recall, bound in self.rates:
                lines.append(
                    f"Accusing {100 * rate:g} % of others wrongly, it finds {100 * recall:.2g} % of members "
                    f"(at most {100 * bound:.2g} %, {self._percent} confidence)."
                )
            lines.append("These numbers come from private records: for the data holder only.")
        return lines

    def corrected(self, audits: int) -> float:
        """The confidence at which each of `audits` must be read so that all hold together (Bonferroni)."""
        return 1 - (1 - self.confidence) / audits

    def to_json(self, indent: int | None = 2) -> str:
        """All fields; `from_json` inverts it."""
        return json.dumps(self.to_dict(), indent=indent, ensure_ascii=False, allow_nan=False)

    def to_dict(self) -> dict[str, Any]:
        return {"format": _FORMAT, **asdict(self)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> AuditResult:
        """Raises ValueError for another format, a missing or further field, and a value of another type or range."""
        with foreign("Not an audit result"):
            return _read(data)

    @classmethod
    def from_json(cls, text: str) -> AuditResult:
        """The result that `to_json` wrote; it may come from anybody. ValueError as of `from_dict`, and for text that is longer or
        nests deeper than results are, or that stands on several lines."""
        with foreign("Not an audit result"):
            return _read(bounded_value(text))


def _read(data: Any) -> AuditResult:
    """A result of a table's values, each of the type and range that its field has. TypeError or ValueError for others."""
    if not isinstance(data, Mapping):
        raise ValueError("expected a table")
    names = ["format", *(each.name for each in fields(AuditResult))]
    if odd := sorted(data.keys() ^ set(names)):
        raise ValueError(f"expected the fields {', '.join(names)}; {odd[0]!r} is {'unknown' if odd[0] in data else 'missing'}")
    if data["format"] != _FORMAT:
        raise ValueError(f"expected format {_FORMAT}, got {data['format']!r}")
    estimate = data["estimate"]
    return AuditResult(
        attack=_text("attack", data["attack"]),
        mechanism=_text("mechanism", data["mechanism"]),
        verdict=cast(Verdict, check.choice("verdict", data["verdict"], get_args(Verdict))),
        delta=float(check.fraction("delta", data["delta"], zero=True)),
        claimed_epsilon=_number_or_none("claimed_epsilon", data["claimed_epsilon"]),
        epsilon_lower=_number_or_none("epsilon_lower", data["epsilon_lower"]),
        confidence=float(check.fraction("confidence", data["confidence"], zero=True, one=True)),
        verdict_confidence=float(check.fraction("verdict_confidence", data["verdict_confidence"], zero=True, one=True)),
        estimate=None if estimate is None else _estimate(estimate),
        trials=check.integer("trials", data["trials"], minimum=0),
        findings=tuple(_text("a finding", item) for item in _list("findings", data["findings"])),
        auc=None if data["auc"] is None else float(check.fraction("auc", data["auc"], zero=True, one=True)),
        rates=tuple(cast(tuple[float, float, float], _shares("rates", item, 3)) for item in _list("rates", data["rates"])),
        curve=tuple(cast(tuple[float, float], _shares("curve", item, 2)) for item in _list("curve", data["curve"])),
        details=_details(data["details"]),
    )


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"expected {name} to be text, got {value!r:.80}")
    return value


def _list(name: str, value: Any) -> Sequence[Any]:
    if not isinstance(value, (list, tuple)):
        raise ValueError(f"expected {name} to be a list, got {value!r:.80}")
    return value


def _number_or_none(name: str, value: Any) -> float | None:
    return None if value is None else float(check.non_negative(name, value))


def _estimate(value: Any) -> Estimate:
    if not isinstance(value, Mapping) or set(value) != {each.name for each in fields(Estimate)}:
        raise ValueError(f"expected an estimate as a table of epsilon, low, high and method, got {value!r:.80}")
    low, high = (_number_or_none(f"the estimate's {name}", value[name]) for name in ("low", "high"))
    if low is None:
        raise ValueError("expected the estimate's low to be a number")
    epsilon = float(check.non_negative("the estimate's epsilon", value["epsilon"]))
    return Estimate(epsilon, low, high, _text("the estimate's method", value["method"]))


def _shares(name: str, value: Any, length: int) -> tuple[float, ...]:
    if len(_list(f"an entry of {name}", value)) != length:
        raise ValueError(f"expected {name} of {length} numbers each, got {value!r:.80}")
    return tuple(float(check.fraction(name, share, zero=True, one=True)) for share in value)


def _details(value: Any) -> Mapping[str, Any]:
    """A table; what the sentences tell of it are numbers."""
    if not isinstance(value, Mapping):
        raise ValueError(f"expected details to be a table, got {value!r:.80}")
    movement = value.get("movement", {})
    if not isinstance(movement, Mapping):
        raise ValueError(f"expected the movement by kind to be a table, got {movement!r:.80}")
    for name, number in {**movement, "largest_movement": value.get("largest_movement")}.items():
        _number_or_none(f"the movement {name!r}", number)
    for name in ("unseen", "noise", "hidden", "compared"):
        table = value.get(name, {})
        if not isinstance(table, Mapping):
            raise ValueError(f"expected {name!r} by kind to be a table, got {table!r:.80}")
        for kind, number in table.items():
            check.non_negative(f"{name} of {kind!r}", number)
    rates = value.get("rates", {})
    if not isinstance(rates, Mapping):
        raise ValueError(f"expected 'rates' by rule to be a table, got {rates!r:.80}")
    for rule, number in rates.items():
        _number_or_none(f"rates of {rule!r}", number)
    check.integer("tossed", value.get("tossed", 0), minimum=0)
    for name in ("unlike", "storage", "leaves"):
        for item in _list(name, value.get(name, ())):
            _text(f"an entry of {name}", item)
    records = _list("records", value.get("records", ()))
    if len(records) not in (0, 2):
        raise ValueError(f"expected records as a least and a largest number, got {records!r:.80}")
    for number in records:
        check.integer("a number of records", number, minimum=0)
    if "guesses" in value:
        for name in ("guesses", "correct"):
            check.integer(name, value.get(name), minimum=0)
    return value


def learned(results: Sequence[AuditResult]) -> str:
    """What these attacks tell of a claim, in one sentence."""
    if any(result.refuted for result in results):
        return "What was learned: the mechanism gives away more than its certificate states."
    replayed = any(result.attack == REPLAY for result in results)
    found = "all queries stayed within what they were charged for on worst-case neighbours" if replayed else ""
    if unseen := list(dict.fromkeys(kind for result in results for kind in result.unseen)):
        found += f", though none moved more than half of what is charged for {', '.join(unseen)}"
    bounds = [result.epsilon_lower for result in results if result.epsilon_lower is not None]
    if bounds and max(bounds) > 0:
        game = f"an attacker with all other records proved that at least ε = {max(bounds):.2g} is given away"
    elif any(result.attack == WHITE_BOX for result in results):
        game = "canaries inside a training stood out no more than they were charged for"
    elif bounds:
        game = "games from outside could prove nothing, as is usual where noise is large; replay looks inside"
    else:
        game = ""
    return f"What was learned: {'; '.join(part for part in (found, game) if part) or 'nothing of the claim'}."


def overall(results: Sequence[AuditResult]) -> Verdict:
    """Refuted if any is; consistent if any tested the claim and none refuted it."""
    verdicts = {result.verdict for result in results}
    return "refuted" if "refuted" in verdicts else "consistent" if "consistent" in verdicts else "not tested"


def results_to_json(results: Sequence[AuditResult], indent: int | None = 2) -> str:
    return json.dumps([result.to_dict() for result in results], indent=indent, ensure_ascii=False, allow_nan=False)


def results_from_json(text: str) -> list[AuditResult]:
    """The results that `results_to_json` wrote; they may come from anybody. Raises ValueError as `AuditResult.from_json`."""
    try:
        data = bounded_value(text)
    except ValueError as error:
        raise ValueError(f"Not audit results: {error}") from None
    if not isinstance(data, list):
        raise ValueError("Not audit results: expected a list.")
    return [AuditResult.from_dict(item) for item in data]


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def finite(value: float) -> float | None:
    """For JSON: None where there is no number."""
    return value if math.isfinite(value) else None
