"""Print what is proved of excess risk, and hold it against what is measured."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dperm.cli.command_files import JsonFlag
from dperm.cli.files import reserved
from dperm.cli.printing import say, say_json
from dperm.jobs.files import dataset_of, refuse_same
from dperm.jobs.options import SOURCE, Delta, Relation

if TYPE_CHECKING:
    from dperm.utility import Problem

_STATED = ("size", "dimension", "lipschitz", "smoothness", "strong_convexity", "radius")


@dataclass(frozen=True, kw_only=True)
class BoundsOptions:
    source: Annotated[
        str | None, typer.Argument(help=f"Records of two classes to measure on: {SOURCE}; none: the bounds alone.")
    ] = None
    target: Annotated[str | None, "Target column."] = None
    schema: Annotated[Path | None, "Public schema of the table (see `dperm data propose`)."] = None
    epsilon: Annotated[float, "The ε at which bounds are evaluated."] = 1.0
    delta: Delta = 1e-5
    size: Annotated[int | None, "Without a data set: the number of records."] = None
    dimension: Annotated[int | None, "Without a data set: the number of parameters."] = None
    lipschitz: Annotated[float | None, "Bound on a record's gradient, G."] = None
    smoothness: Annotated[float | None, "Bound on the mean loss's curvature, L."] = None
    strong_convexity: Annotated[float | None, "μ of the mean loss."] = None
    radius: Annotated[float | None, "Bound on the length of the parameters, R."] = None
    penalty: Annotated[float, "With a data set: λ of the penalty (λ/2)‖θ‖² on the mean loss."] = 1e-3
    low: Annotated[float, "With a data set: the least ε that is measured."] = 0.1
    draws: Annotated[int, "Draws of the noise that are averaged over."] = 20
    seed: Annotated[int | None, "Of the noise and the sub-samples, to see the same again."] = None
    relation: Relation = "add_or_remove_one"
    data_norm: Annotated[float, "Public bound on a row's L2 norm; longer rows are scaled down."] = 1.0
    output: Annotated[Path, "Page to write."] = Path("bounds.html")
    as_json: JsonFlag = False


def bounds(asked: BoundsOptions) -> None:
    """Print what papers prove of the excess risk, and measure it. PRIVATE with a data set: for the data holder only.

    \b
    Examples:
      dperm bounds --size 50000 --dimension 100 --epsilon 1 --lipschitz 1 --strong-convexity 0.001
      dperm bounds adult -o adult-bounds.html
    """
    from dperm.report.bounds import bound_rows
    from dperm.report.summary import bound_table

    problem, slopes = (_stated(asked), None) if asked.source is None else _measured(asked, asked.source)
    rows = bound_rows(problem)
    if asked.as_json:
        told = [
            {"name": row.bound.name, "source": row.bound.source, "value": row.value, "constants": row.bound.exact} for row in rows
        ]
        shown = {"for_data_holder_only": asked.source is not None, "problem": asdict(problem), "bounds": told}
        say_json({**shown, "measured_slopes": slopes})
        return
    bound_table(rows, problem)
    if slopes is not None:
        say(f"Measured: slope {slopes[0]:.2f} in the number of records, {slopes[1]:.2f} in ε.")
        say(f"PRIVATE, for the data holder only. Page written to {asked.output}.")


def _stated(asked: BoundsOptions) -> Problem:
    from dperm.utility import Problem as Stated

    if asked.size is None or asked.dimension is None:
        raise ValueError("Expected a data set to measure on, or --size and --dimension.")
    return Stated(epsilon=asked.epsilon, delta=asked.delta, **{name: getattr(asked, name) for name in _STATED})


def _measured(asked: BoundsOptions, source: str) -> tuple[Problem, tuple[float, float]]:
    """The problem that a data set is, and the slopes that were measured on it; draws the page."""
    from dperm.report.bounds import bounds_page, measured_on

    if both := [f"--{name.replace('_', '-')}" for name in _STATED if getattr(asked, name) is not None]:
        raise ValueError(f"Expected no {' and '.join(both)} beside a data set, whose own are measured; --penalty sets λ.")
    refuse_same(source, asked.schema, asked.output)
    page = reserved(asked.output, private=True)
    dataset, _ = dataset_of(source, asked.target, asked.schema)
    dataset.refuse_persons("dperm bounds")
    if len(dataset.classes or ()) != 2:
        raise ValueError("Expected a target of two classes.")
    low = min(asked.low, asked.epsilon)
    try:
        measured = measured_on(
            dataset,
            asked.data_norm,
            asked.relation,
            penalty=asked.penalty,
            epsilon=asked.epsilon,
            delta=asked.delta,
            draws=asked.draws,
            random_state=asked.seed,
            low=low,
            high=max(10.0, asked.epsilon),
        )
    except ValueError as error:
        raise ValueError(f"{error} Raise --penalty, or --low, the least ε that is measured ({low:g}).") from None
    page.write(bounds_page(measured, dataset.title or dataset.name))
    return measured.problem, measured.slopes
