"""The page for whoever signs."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dperm.cli.files import reserved
from dperm.cli.options import JsonFlag
from dperm.cli.printing import say, say_json, say_lines
from dperm.jobs.files import certificate_at, json_table, read, refuse_same
from dperm.jobs.options import VerifyKey

if TYPE_CHECKING:
    from dperm.audit import AuditResult
    from dperm.privacy import Certificate
    from dperm.report.card import Spent


@dataclass(frozen=True, kw_only=True)
class CardOptions:
    model: Annotated[Path, typer.Argument(help="A model or certificate file.")]
    audit_file: Annotated[Path | None, typer.Option("--audit", help="What `dperm audit` found, to show beside it.")] = None
    data_set: Annotated[str, typer.Option(help="What the data are, and whose [default: as the model's schema says].")] = ""
    purpose: Annotated[str, typer.Option(help="What the model is for [default: a line to write on].")] = ""
    budget: Annotated[float | None, typer.Option(help="The ε that may be spent on this data set: how much of it is left.")] = None
    output: Annotated[Path, typer.Option("--output", "-o", help="Page to write.")] = Path("card.html")
    verify_key: VerifyKey = None
    as_json: JsonFlag = False


def card(asked: CardOptions) -> None:
    """The page for whoever signs: what it is of, what was spent and is left, on what assumptions, what an attacker could do.
    What was spent is told by the spend log of this machine, where the model's charge is in it. --json: the same as JSON.

    \b
    Examples:
      dperm card model.json -o card.html
      dperm card model.json --audit audit.json --purpose "Triage in ward 3" --budget 3
    """
    from dperm._validate import positive
    from dperm.audit import results_from_json
    from dperm.data import Schema
    from dperm.release import SpendLog
    from dperm.report.card import Card, Spent, card_page

    refuse_same(asked.model, asked.audit_file, asked.output)
    page = reserved(asked.output)
    certificate = certificate_at(asked.model, asked.verify_key)
    if certificate is None:
        raise ValueError(f"Expected {asked.model} to hold a model or a certificate.")
    attacks = [] if asked.audit_file is None else results_from_json(read(asked.audit_file))
    if any(not _speaks_of(item, certificate) for item in attacks):
        raise ValueError(f"{asked.audit_file} is about another claim than {asked.model}.")
    if asked.budget is not None:
        positive("--budget", asked.budget)
    saved = json_table(asked.model)
    extra, settings = saved.get("extra"), saved.get("settings")
    given = extra.get("schema") if isinstance(extra, dict) else None
    label = settings.get("label", "") if isinstance(settings, dict) else ""
    spent = Spent.of(SpendLog.current(), label, certificate, asked.budget) if label else None
    if asked.budget is not None and spent is None:
        raise ValueError(
            "Expected a model whose charge is in the spend log (DPERM_SPEND_LOG) with --budget: what is spent is not known."
        )
    found = Card.of(
        certificate,
        asked.model.stem,
        Schema.from_dict(given) if isinstance(given, dict) else None,
        data_set=asked.data_set,
        purpose=asked.purpose,
        spent=spent,
        signed="" if asked.verify_key is None else f"the key {asked.verify_key.name}",
        audits=attacks,
    )
    page.write(card_page(found))
    if asked.as_json:
        say_json(json.dumps(found.to_dict(), indent=2, ensure_ascii=False, allow_nan=False))
        return
    say_lines(str(certificate))
    if spent is not None:
        _tell_spent(spent)
    say(f"Page written to {asked.output}.")


def _speaks_of(result: AuditResult, certificate: Certificate) -> bool:
    """Whether an audit's claim is this certificate's."""
    same = result.claimed_epsilon == certificate.epsilon and result.delta == certificate.delta
    return same or result.claimed_epsilon is None


def _tell_spent(spent: Spent) -> None:
    from dperm._rounding import downward, upward

    if spent.unknown:
        say(f"What was spent on this data set by {spent.charges} releases is not known: {spent.unknown}.")
    else:
        left = "" if spent.left is None else f" Left of {spent.budget:g}: {downward(spent.left)}."
        left += f" It is EXCEEDED by {upward(spent.exceeded)}." if spent.exceeded else ""
        say(f"Spent on this data set, all {spent.charges} charged together: epsilon = {upward(spent.epsilon)}.{left}")
        if spent.held:
            say(f"Budget of the data set: {spent.held}.")
        say(f"Charged under {spent.label!r}: {spent.told_apart}.")
