"""The page for whoever signs."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dperm.cli.command_files import JsonFlag
from dperm.cli.printing import say, say_json, say_lines
from dperm.jobs import model_card

if TYPE_CHECKING:
    from dperm.report.card import Spent


@dataclass(frozen=True, kw_only=True)
class CardOptions(model_card.CardOptions):
    model: Annotated[Path, typer.Argument(help="A model or certificate file.")]
    audit_file: Annotated[Path | None, typer.Option("--audit", help="What `dperm audit` found, to show beside it.")] = None
    as_json: JsonFlag = False


def card(asked: CardOptions) -> None:
    """A page for the people who sign: who is protected, how strongly, on what assumptions, how good it is, how to check that.
    What was spent is told by the spend log of this machine, where the model's charge is in it. --json: the same as JSON.

    \b
    Examples:
      dperm card model.json -o card.html
      dperm card model.json --audit audit.json --scores scores.json --purpose "Triage in ward 3" --budget 3
    """
    found = model_card.card(asked)
    if asked.as_json:
        say_json(json.dumps(found.to_dict(), indent=2, ensure_ascii=False, allow_nan=False))
        return
    say_lines(str(found.certificate))
    if found.spent is not None:
        _tell_spent(found.spent)
    say(f"Page written to {asked.output}.")


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
