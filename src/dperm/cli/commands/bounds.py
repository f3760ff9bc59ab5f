"""Print what is proved of excess risk, and hold it against what is measured."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from dperm.cli.printing import say, say_json
from dperm.cli.shared import Delta, JsonFlag, Relation, dataset_of, refuse_same, reserved


def bounds(
    source: Annotated[
        str | None, typer.Argument(help="A file or a named data set, of two classes, to measure on; none: the bounds alone.")
    ] = None,
    target: Annotated[str | None, typer.Option(help="Target column.")] = None,
    schema: Annotated[Path | None, typer.Option(help="Public schema of the table (see `dperm data propose`).")] = None,
    epsilon: Annotated[float, typer.Option(help="The ε at which bounds are evaluated.")] = 1.0,
    delta: Delta = 1e-5,
    size: Annotated[int | None, typer.Option(help="Without a data set: the number of records.")] = None,
    dimension: Annotated[int | None, typer.Option(help="Without a data set: the number of parameters.")] = None,
    lipschitz: Annotated[float | None, typer.Option(help="Bound on a record's gradient, G.")] = None,
    smoothness: Annotated[float | None, typer.Option(help="Bound on the mean loss's curvature, L.")] = None,
    strong_convexity: Annotated[float | None, typer.Option(help="μ of the mean loss.")] = None,
    radius: Annotated[float | None, typer.Option(help="Bound on the length of the parameters, R.")] = None,
    penalty: Annotated[float, typer.Option(help="With a data set: λ of the penalty (λ/2)‖θ‖² on the mean loss.")] = 1e-3,
    low: Annotated[float, typer.Option(help="With a data set: the least ε that is measured.")] = 0.1,
    draws: Annotated[int, typer.Option(help="Draws of the noise that are averaged over.")] = 20,
    seed: Annotated[int | None, typer.Option(help="Of the noise and the sub-samples, to see the same again.")] = None,
    relation: Relation = "add_or_remove_one",
    data_norm: Annotated[float, typer.Option(help="Public bound on a row's L2 norm; longer rows are scaled down.")] = 1.0,
    output: Annotated[Path, typer.Option("--output", "-o", help="Page to write.")] = Path("bounds.html"),
    as_json: JsonFlag = False,
) -> None:
    """Print what papers prove of the excess risk, and measure it. PRIVATE with a data set: for the data holder only.

    \b
    Examples:
      dperm bounds --size 50000 --dimension 100 --epsilon 1 --lipschitz 1 --strong-convexity 0.001
      dperm bounds adult -o adult-bounds.html
    """
    from dperm.report.summary import bound_table
    from dperm.utility import Problem

    if source is None:
        if size is None or dimension is None:
            raise ValueError("Expected a data set to measure on, or --size and --dimension.")
        problem, slopes = Problem(
            size=size, dimension=dimension, epsilon=epsilon, delta=delta,
            lipschitz=lipschitz, smoothness=smoothness, strong_convexity=strong_convexity, radius=radius,
        ), None  # fmt: skip
    else:
        import numpy as np

        from dperm.objectives import Logistic, Task
        from dperm.report.bounds import bounds_page
        from dperm.utility import measured_excess

        stated = {"--size": size, "--dimension": dimension, "--lipschitz": lipschitz, "--smoothness": smoothness}
        stated |= {"--strong-convexity": strong_convexity, "--radius": radius}
        if both := [name for name, value in stated.items() if value is not None]:
            raise ValueError(f"Expected no {' and '.join(both)} beside a data set, whose own are measured; --penalty sets λ.")
        refuse_same(source, schema, output)
        page = reserved(output, private=True)
        dataset, _ = dataset_of(source, target, schema)
        dataset.refuse_persons("dperm bounds")
        if len(dataset.classes or ()) != 2:
            raise ValueError("Expected a target of two classes.")
        task = Task(
            loss=Logistic(),
            features=dataset.features.shape[1],
            classes=2,
            data_norm=data_norm,
            intercept_scale=0.5 * data_norm,
            relation=relation,  # type: ignore[arg-type]
            public_size=len(dataset.targets),
        )
        objective = task.objective()
        numbers = np.searchsorted(np.asarray(sorted(dataset.classes)), dataset.targets)
        records = objective.records(dataset.features, task.targets(numbers))
        try:
            measured = measured_excess(
                objective, records, penalty=penalty, epsilon=epsilon, delta=delta, draws=draws, random_state=seed,
                low=min(low, epsilon), high=max(10.0, epsilon),
            )  # fmt: skip
        except ValueError as error:
            raise ValueError(
                f"{error} Raise --penalty, or --low, the least ε that is measured ({min(low, epsilon):g})."
            ) from None
        problem, slopes = measured.problem, measured.slopes
        page.write(bounds_page(measured, dataset.title or dataset.name))
    from dperm.report.bounds import bound_rows

    rows = bound_rows(problem)
    if as_json:
        stated = [
            {"name": row.bound.name, "source": row.bound.source, "value": row.value, "constants": row.bound.exact} for row in rows
        ]
        say_json(
            json.dumps(
                {
                    "for_data_holder_only": source is not None,
                    "problem": asdict(problem),
                    "bounds": stated,
                    "measured_slopes": slopes,
                }
            )
        )
        return
    bound_table(rows, problem)
    if source is not None:
        assert slopes is not None
        say(f"Measured: slope {slopes[0]:.2f} in the number of records, {slopes[1]:.2f} in ε.")
        say(f"PRIVATE, for the data holder only. Page written to {output}.")


def register(app: typer.Typer) -> None:
    app.command()(bounds)
