"""Budgets of data sets, made from options and files, and heads of the spend log, which show later whether an entry is gone."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from dperm._files import replace_own
from dperm.jobs.files import certificate_at, event_of, json_table, read, search_of
from dperm.jobs.options import Delta, JobOptions, Relation, stated_relation

if TYPE_CHECKING:
    from dperm.privacy.events import Event
    from dperm.release.ledger import Account, Rule


@dataclass(frozen=True, kw_only=True)
class BudgetingOptions(JobOptions):
    """What all releases of a data set may cost together, and who may change that."""

    label: Annotated[str, "The data set's name, as certificates and charges have it."]
    epsilon: Annotated[float, "ε for all releases together."]
    delta: Delta = 1e-6
    relation: Relation = "add_or_remove_one"
    persons: Annotated[bool | None, "It protects persons with all their rows, or records [default: records]."] = None
    owner: Annotated[str | None, "Whom to ask when it is spent."] = None
    expires: Annotated[str | None, 'The last day, 2027-12-31; "" for none.'] = None
    alert: Annotated[float | None, "Share of the budget at which the charge that reaches it warns [default: 0.8]."] = None
    rule: Annotated[Literal["renyi", "gdp"] | None, "How releases add up [default: renyi]."] = None
    order: Annotated[float | None, "Of the Rényi filter [default: the one that suits Gaussian noise]."] = None
    mass: Annotated[float | None, "Part of δ for releases that set some aside [default: half]."] = None
    plan: Annotated[list[Path] | None, "Releases that are planned, and no others: a model, an event, or a list. Repeatable."] = (
        None
    )
    sign_key: Annotated[Path | None, "Private key that signs it (see `dperm keygen`): only its owner can change it later."] = None
    owner_key: Annotated[Path | None, "Public key whose owner can change it later [default: the one that signs]."] = None


def create_budget(asked: BudgetingOptions) -> Account:
    """Give a data set a budget in the spend log, or another one, which keeps the owner, the last day, the share for warnings and
    whom it protects, unless they are stated; returns what was charged under its name before, too."""
    from dperm.privacy.certificates.signing import SigningKey, public_key
    from dperm.release import SpendLog
    from dperm.release.ledger import Budget

    made = _rule(asked)
    names = ("persons", "owner", "expires", "alert")
    given: dict[str, Any] = {name: value for name in names if (value := getattr(asked, name)) is not None}
    key = None if asked.sign_key is None else SigningKey(asked.sign_key)
    owner_of = "" if asked.owner_key is None else public_key(asked.owner_key)
    log = SpendLog.current()
    before = log.account(asked.label)
    budget = Budget(asked.label, made, **given) if before is None else replace(before.budget, rule=made, **given)
    return log.create_budget(budget, key=key, owner_key=owner_of)


def _rule(asked: BudgetingOptions) -> Rule:
    from dperm import _validate as check
    from dperm.release.ledger import GdpFilter, Plan, RenyiFilter

    if asked.rule is not None:
        check.choice("--filter", asked.rule, ("renyi", "gdp"))
    settings: dict[str, Any] = {"relation": stated_relation(asked.relation), "order": asked.order, "mass": asked.mass}
    stated = {setting: value for setting, value in settings.items() if value is not None}
    if asked.plan and ("mass" in stated or "order" in stated or asked.rule is not None):
        raise ValueError("Expected no --filter, --mass and --order with --plan: planned releases are composed exactly.")
    if asked.plan:
        return Plan.of(asked.epsilon, asked.delta, [release for path in asked.plan for release in _releases(path)], **stated)
    if asked.rule != "gdp":
        return RenyiFilter.of(asked.epsilon, asked.delta, **stated)
    if "order" in stated:
        raise ValueError("Expected no --order with --filter gdp.")
    return GdpFilter.of(asked.epsilon, asked.delta, **stated)


def _releases(path: Path) -> list[tuple[Event, Any]]:
    """Planned by a file: the event of a model or certificate, an event, or a list of tables of "event" and "times"."""
    try:
        found = _planned(path)
        if isinstance(found, dict) and (certificate := certificate_at(path)) is not None:
            return [(event, 1) for event in _charged_apart(certificate.event, search_of(found.get("extra") or {}))]
        tables = found if isinstance(found, list) else [{"event": found}]
        if unknown := sorted({name for table in tables for name in table} - {"event", "times"}):
            raise ValueError(f"unknown: {unknown}")
        return [(event_of(table["event"]), table.get("times", 1)) for table in tables]
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(
            f'Expected {path} to be a model, a certificate, an event, or a list such as [{{"times": 12, "event": …}}] ({error}).'
        ) from None


def _planned(path: Path) -> Any:
    """The value that a file of planned releases holds, read within limits unless it is a model: models hold texts of any kind,
    and as many numbers as they have."""
    from dperm._json import bounded_value

    text = read(path)
    try:
        return bounded_value(text)
    except ValueError:
        if '"certificate"' in text and "certificate" in (model := json_table(path)):
            return model
        raise


def _charged_apart(event: Event, search: Event | None) -> list[Event]:
    """Of a model by a schema that was found privately the search and the training, which are two charges; else the event."""
    from dperm.privacy.events import Composed

    if not isinstance(event, Composed) or event.events[0] != search:
        return [event]
    return [event.events[0], Composed(event.events[1:])]


def write_head(output: Path, sign_key: Path | None = None) -> dict[str, Any]:
    """Write how many entries the spend log has, and the hash that all of them lead to; returns that. ValueError for a log of
    which something is changed or gone."""
    from dperm.privacy.certificates.signing import digest_of, sign
    from dperm.release import SpendLog

    with replace_own(output) as file:
        log = SpendLog.current()
        found = log.head()
        log.verify(found)
        signature = {} if sign_key is None else {"signature": sign(digest_of(found), sign_key)}
        file.write(json.dumps({**found, **signature}, indent=2))
    return found


def head_at(path: Path, verify_key: Path | None = None) -> dict[str, Any]:
    """A head that was written before. ValueError for anything else, and for one that the owner of the public key did not sign."""
    from dperm.privacy.certificates.signing import check_signature, digest_of

    stated = json_table(path)
    if not {"count", "chain"} <= set(stated):
        raise ValueError(f"Expected {path} to be a head, as `dperm budget head` writes it.")
    if verify_key is not None:
        if "signature" not in stated:
            raise ValueError("Expected a signed head with --verify-key.")
        body = {name: value for name, value in stated.items() if name != "signature"}
        check_signature(digest_of(body), str(stated["signature"]), verify_key)
    return stated
