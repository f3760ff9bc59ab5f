"""The page for whoever signs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from dperm.cli.printing import say, say_json, say_lines
from dperm.cli.shared import JsonFlag, VerifyKey, certificate_at, json_table, read, refuse_same, reserved, speaks_of


def card(
    model: Annotated[Path, typer.Argument(help="A model or certificate file.")],
    audit_file: Annotated[Path | None, typer.Option("--audit", help="What `dperm audit` found, to show beside it.")] = None,
    data_set: Annotated[str, typer.Option(help="What the data are, and whose [default: as the model's schema says].")] = "",
    purpose: Annotated[str, typer.Option(help="What the model is for [default: a line to write on].")] = "",
    budget: Annotated[
        float | None, typer.Option(help="The ε that may be spent on this data set: how much of it is left.")
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="Page to write.")] = Path("card.html"),
    verify_key: VerifyKey = None,
    as_json: JsonFlag = False,
) -> None:
    """The page for whoever signs: what it is of, what was spent and is left, on what assumptions, what an attacker could do.
    What was spent is told by the spend log of this machine, where the model's charge is in it. --json: the same as JSON.

    \b
    Examples:
      dperm card model.json -o card.html
      dperm card model.json --audit audit.json --purpose "Triage in ward 3" --budget 3
    """
    from dperm._rounding import downward, upward
    from dperm._validate import positive
    from dperm.audit import results_from_json
    from dperm.data import Schema
    from dperm.release import SpendLog
    from dperm.report.card import Card, Spent, card_page

    refuse_same(model, audit_file, output)
    page = reserved(output)
    certificate = certificate_at(model, verify_key)
    if certificate is None:
        raise ValueError(f"Expected {model} to hold a model or a certificate.")
    attacks = [] if audit_file is None else results_from_json(read(audit_file))
    if any(not speaks_of(item, certificate) for item in attacks):
        raise ValueError(f"{audit_file} is about another claim than {model}.")
    if budget is not None:
        positive("--budget", budget)
    saved = json_table(model)
    extra, settings = saved.get("extra"), saved.get("settings")
    given = extra.get("schema") if isinstance(extra, dict) else None
    label = settings.get("label", "") if isinstance(settings, dict) else ""
    spent = Spent.of(SpendLog.current(), label, certificate, budget) if label else None
    if budget is not None and spent is None:
        raise ValueError(
            "Expected a model whose charge is in the spend log (DPERM_SPEND_LOG) with --budget: what is spent is not known."
        )
    found = Card.of(
        certificate,
        model.stem,
        Schema.from_dict(given) if isinstance(given, dict) else None,
        data_set=data_set,
        purpose=purpose,
        spent=spent,
        signed="" if verify_key is None else f"the key {verify_key.name}",
        audits=attacks,
    )
    page.write(card_page(found))
    if as_json:
        say_json(json.dumps(found.to_dict(), indent=2, ensure_ascii=False, allow_nan=False))
        return
    say_lines(str(certificate))
    if spent is not None:
        if spent.unknown:
            say(f"What was spent on this data set by {spent.charges} releases is not known: {spent.unknown}.")
        else:
            left = "" if spent.left is None else f" Left of {spent.budget:g}: {downward(spent.left)}."
            left += f" It is EXCEEDED by {upward(spent.exceeded)}." if spent.exceeded else ""
            say(f"Spent on this data set, all {spent.charges} charged together: epsilon = {upward(spent.epsilon)}.{left}")
            if spent.held:
                say(f"Budget of the data set: {spent.held}.")
            say(f"Charged under {spent.label!r}: {spent.told_apart}.")
    say(f"Page written to {output}.")


def register(app: typer.Typer) -> None:
    app.command()(card)
