"""Draw what a model says of each column."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from dperm.cli.command_files import JsonFlag
from dperm.cli.files import refitted, reserved
from dperm.cli.printing import say, say_json
from dperm.jobs.files import SavedModel, refuse_same
from dperm.jobs.options import VerifyKey


@dataclass(frozen=True, kw_only=True)
class EffectsOptions:
    model: Annotated[Path, typer.Argument(help="A model of a table, written by `dperm train`.")]
    records: Annotated[Path | None, "The table it was trained on: bands are drawn, and the page is PRIVATE."] = None
    refits: Annotated[int, "With --records: models that are trained to see how they differ."] = 100
    label: Annotated[str | None, "Of more than two classes: for which."] = None
    output: Annotated[Path | None, "Page to write [default: effects.html; with --records private-effects.html]."] = None
    verify_key: VerifyKey = None
    as_json: JsonFlag = False


def effects(asked: EffectsOptions) -> None:
    """Draw what a model says of each column: a curve or bars. Made from the model alone: it costs no privacy. With --records it
    trains models like it on draws from these, and is for the data holder alone.

    \b
    Example:
      dperm effects model.json -o effects.html
      dperm effects model.json --records people.csv -o private-effects.html
    """
    from dperm.report import effects as report

    output = asked.output or Path("effects.html" if asked.records is None else "private-effects.html")
    refuse_same(asked.model, output, asked.records)
    page = reserved(output, private=asked.records is not None)
    saved = SavedModel.at(asked.model, asked.verify_key)
    fitted, schema = saved.fitted, saved.schema
    if schema is None:
        raise ValueError(f"Expected a model of a table with a schema, got {asked.model}, whose features have no names.")
    known = list(getattr(fitted, "classes_", ()))
    if asked.label is None and len(known) > 2 and len(getattr(fitted, "coef_", ())) > 1:
        raise ValueError(f"Expected --label, one of {', '.join(map(str, known[:8]))}: each class has effects of its own.")
    again = refitted(saved, asked.records, asked.refits, shown=not asked.as_json)
    constant = (saved.extra.get("fit_by") or {}).get("column")
    found = report.effects(fitted, schema, asked.label, again, constant=constant)
    page.write(report.effects_page(fitted, schema, asked.label, again, constant=constant))
    if asked.as_json:
        columns = [
            {
                "column": each.column,
                "places": list(each.places),
                "heights": each.heights.tolist(),
                "missing": each.missing,
                "noise": None if each.noise is None else each.noise.tolist(),
            }
            for each in found
        ]
        say_json({"curves": schema.curves, "private": again is not None, "columns": columns})
        return
    say("How much each column can do, from its lowest to its highest place:")
    for each in sorted(found, key=lambda effect: -effect.spread)[:10]:
        say(f"  {each.spread:7.2f}  {each.column}")
    if again is not None:
        say(f"PRIVATE, for the data holder only: {output} shows how much of the model is chance on these records.")
    say(f"Page written to {output}.")
