"""The page for whoever signs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dperm.cli.shared import JsonFlag, VerifyKey, certificate_at, read, say, speaks_of

__all__ = ["register"]


def card(
    model: Annotated[Path, typer.Argument(help="A model or certificate file.")],
    audit_file: Annotated[Path | None, typer.Option("--audit", help="What `dperm audit` found, to show beside it.")] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="Page to write.")] = Path("card.html"),
    verify_key: VerifyKey = None,
    as_json: JsonFlag = False,
) -> None:
    """The page for whoever signs: what was spent, on what assumptions, what an attacker could do.

    \b
    Examples:
      dperm card model.json -o card.html
      dperm card model.json --audit audit.json
    """
    from dperm.audit import results_from_json
    from dperm.report import write_atomically
    from dperm.report.page import card_page

    certificate = certificate_at(model, verify_key)
    if certificate is None:
        raise ValueError(f"Expected {model} to hold a model or a certificate.")
    attacks = [] if audit_file is None else results_from_json(read(audit_file))
    if any(not speaks_of(item, certificate) for item in attacks):
        raise ValueError(f"{audit_file} is about another claim than {model}.")
    page = card_page(certificate, f"{model.stem}: {certificate.mechanism}", attacks)
    write_atomically(output, page)
    if as_json:
        say(certificate.to_json())
    else:
        say(str(certificate))
        say(f"Page written to {output}.")


def register(app: typer.Typer) -> None:
    app.command()(card)
