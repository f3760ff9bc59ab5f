"""Standard errors and confidence intervals of a model's coefficients."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dperm.cli.command_files import JsonFlag
from dperm.cli.files import reserved, told_kept
from dperm.cli.printing import printed_instead, say, say_json
from dperm.jobs.files import SavedModel, keep, refuse_same, uninterrupted
from dperm.jobs.options import SOURCE, Delta, VerifyKey

if TYPE_CHECKING:
    from dperm.report.coefficients import CoefficientTable


@dataclass(frozen=True, kw_only=True)
class IntervalsOptions:
    model: Annotated[Path, typer.Argument(help="A model of a table, written by `dperm train`.")]
    source: Annotated[str, typer.Argument(help=f"The records that it was trained on: {SOURCE}.")]
    epsilon: Annotated[float, "What the intervals may cost, beside what the model cost."]
    delta: Delta = 1e-5
    spread: Annotated[
        str,
        "model: they hold if the model is true; robust: they hold whatever is, and need more records; noise: only what the noise "
        "of the training does, for `dperm effects --noise`.",
    ] = "model"
    clipped: Annotated[
        str, "refuse: numbers outside the schema's ranges are an error; named: intervals are those of clipped records."
    ] = "refuse"
    level: Annotated[float, "Share of such intervals that hold what they estimate."] = 0.95
    output: Annotated[Path, "File to write: the intervals, what was released, and its certificate, as JSON."] = Path(
        "intervals.json"
    )
    verify_key: VerifyKey = None
    as_json: JsonFlag = False


def intervals(asked: IntervalsOptions) -> None:
    """Standard errors and confidence intervals of a model's coefficients, the noise of privacy included, for everybody. The
    Hessian of the losses is released for them, and charged. For a target of labels `dperm effects --noise` draws bands by it.

    \b
    Example:
      dperm train people.csv --schema people.schema.json --curves 0 --data-norm 2 -o model.json
      dperm intervals model.json people.csv --epsilon 0.5
    """
    from dperm import _validate as check
    from dperm._rounding import upward
    from dperm.report.coefficients import as_json, coefficient_table, meaning_of

    check.fraction("--level", asked.level)
    refuse_same(asked.model, asked.source, asked.output)
    file = reserved(asked.output, paid_for=True)
    saved = SavedModel.at(asked.model, asked.verify_key)
    schema = saved.schema
    if schema is None:
        raise ValueError(f"Expected a model of a table with a schema, got {asked.model}, whose features have no names.")
    if saved.extra.get("fit_by"):
        raise ValueError("Expected a model of all records, got one of a part of them.")
    dataset = saved.records(asked.source)
    with uninterrupted():
        found = coefficient_table(
            saved.fitted, dataset, schema,
            epsilon=asked.epsilon, delta=asked.delta, spread=asked.spread, clipped=asked.clipped, level=asked.level,
        )  # fmt: skip
        older = keep(file, as_json(found), printed_instead)
    if asked.as_json:
        say_json(found.to_dict())
        return
    _tell(found, meaning_of(saved.fitted, schema))
    cost = found.released.certificate
    price = f"epsilon = {upward(cost.epsilon or 0.0)} at delta = {upward(cost.delta, 2)}"
    say(f"They cost {price}, charged to {dataset.name!r} beside what the model cost; see {asked.output}.{told_kept(older)}")


def _tell(found: CoefficientTable, meaning: str) -> None:
    """The table, and what it holds for."""
    if found.refused:
        say(f"No intervals: {found.refused}")
        return
    say(meaning)
    width = max((len(f"{each.column}: {each.what}") for each in found.coefficients), default=0)
    say(f"{'':{width}}  {'estimate':>10}  {'std. error':>10}  {100 * found.level:g} % interval")
    hidden: list[str] = []
    for each in found.coefficients:
        name = f"{each.column}: {each.what}"
        if each.interval is None:
            hidden.append(name)
            continue
        known = each.interval
        say(f"{name:{width}}  {known.estimate:>10.4g}  {known.standard_error:>10.3g}  {known.low:.4g} to {known.high:.4g}")
    if hidden:
        more = f" and {len(hidden) - 5} more" if len(hidden) > 5 else ""
        say(f"Hidden by the noise, because few records have them or epsilon is small: {', '.join(hidden[:5])}{more}.")
    holds = "if the model is true" if found.released.spread == "model" else "whether or not the model is true"
    say(f"Both the noise of privacy and the choice of records are in the intervals, which hold {holds}.")
    if found.released.clipped:
        say("Numbers outside their ranges were clipped: these are coefficients of clipped records.")
