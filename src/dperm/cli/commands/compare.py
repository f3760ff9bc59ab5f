"""Compare private mechanisms with each other and with no privacy."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dperm._files import rescue
from dperm.cli.printing import progress, say, say_json, warn
from dperm.cli.shared import (
    Delta,
    Indices,
    JsonFlag,
    Relation,
    dataset_of,
    keep,
    refuse_same,
    reserved,
    stated_indices,
    told_kept,
    told_to_holder,
    uninterrupted,
)

if TYPE_CHECKING:
    from dperm.data import Schema
    from dperm.report import StudyResult
    from dperm.report.kept import KeptResults

_BUNDLED = ("breast_cancer", "digits")


def compare(
    sources: Annotated[list[str] | None, typer.Argument(help="Files or named data sets [default: breast_cancer digits].")] = None,
    target: Annotated[str | None, typer.Option(help="Target column, for a file.")] = None,
    schema: Annotated[
        Path | None, typer.Option(help="Public schema, for a file; otherwise one is proposed from the data.")
    ] = None,
    epsilons: Annotated[str, typer.Option(help="Comma-separated ε.")] = "0.1,0.3,1,3,10",
    delta: Delta = 1e-5,
    mechanisms: Annotated[
        str | None,
        typer.Option(
            help="By commas [default: output, objective-kifer, objective-sharp, gradient-full, gradient-poisson]; others are "
            "bolt-on, coordinate, frank-wolfe, frank-wolfe-l2, greedy-coordinate, individual, last-iterate, lssgd, m-ngp, "
            "m-ngp-published, pidp-sgd-published, tgp, and for numbers preconditioned."
        ),
    ] = None,
    curves: Annotated[
        int | None,
        typer.Option(help="Knots of the curve that each number gets, 0 for straight lines [default: as in `dperm train`]."),
    ] = None,
    relation: Relation = "add_or_remove_one",
    repeats: Annotated[int, typer.Option(help="Repeats, on paired random splits.")] = 10,
    data_norm: Annotated[float, typer.Option(help="Public bound on a row's L2 norm.")] = 1.0,
    attack: Annotated[bool, typer.Option("--audit", help="Also attack each mechanism, at the ε nearest 1.")] = False,
    jobs: Annotated[int | None, typer.Option(help="Processes [default: all cores].")] = None,
    seed: Annotated[int | None, typer.Option(help="Fix all randomness, for tests: nothing is private then.")] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="Report to write.")] = Path("report.html"),
    indices: Indices = None,
    as_json: JsonFlag = False,
) -> None:
    """Compare private mechanisms with each other and with no privacy; write a self-contained report. Until it is written, results
    are kept beside it as they come (report.results.jsonl): the same command goes on from there, and pays for none of them again.

    \b
    Examples:
      dperm compare
      dperm compare people.csv --target income --repeats 20
      dperm compare people.csv --target income --audit
    """
    from dperm.audit import overall
    from dperm.data.schema.schema import usual_knots
    from dperm.report import Study, run_study
    from dperm.report.audits import audit_study
    from dperm.report.candidates import USUAL
    from dperm.report.kept import KeptResults
    from dperm.report.page import comparison_page
    from dperm.report.summary import result_table, results_json

    try:
        values = tuple(sorted({float(value) for value in epsilons.split(",") if value.strip()}))
    except ValueError:
        raise ValueError(f"Expected --epsilons to be numbers separated by commas, got {epsilons!r}.") from None
    chosen = USUAL if mechanisms is None else tuple(dict.fromkeys(key.strip() for key in mechanisms.split(",")))
    results_file = output.with_suffix(".results.jsonl")
    refuse_same(*(sources or ()), schema, output, results_file)
    study = Study(
        epsilons=values, delta=delta, mechanisms=chosen, repeats=repeats, data_norm=data_norm, relation=relation, seed=seed
    )
    page = reserved(output, private=True, paid_for=True)
    jobs = jobs or os.cpu_count() or 1
    results: list[StudyResult] = []

    def knots(found: Schema) -> int:
        if curves is not None:
            return curves
        return found.curves or usual_knots(found, 1.0, delta)  # as where the number of records is private, at any ε

    loaded = [
        (source, *dataset_of(source, target, schema, knots, stated_indices(indices))) for source in sources or _BUNDLED
    ]  # all, before any charge
    for source, _, used in loaded:
        if used is None and curves:
            raise ValueError(f"Expected a table with columns for --curves, got {source}, whose features have no ranges.")
    with _kept(KeptResults(results_file.absolute())) as kept:
        for source, dataset, used in loaded:
            if used is not None and used.proposed:
                warn(f"No schema for {source}: ranges, categories and labels were read off the data, which is not private.")
            if dataset.survey is not None and not as_json:
                told_to_holder(dataset, data_norm)
            title = f"{dataset.name}: {repeats} repeats of {len(chosen)} mechanisms at {len(values)} ε"
            with progress(title, not as_json) as step:
                results.append(run_study(dataset, study, jobs, step, kept))
            if not as_json:
                result_table(results[-1])
                for note in results[-1].notes:
                    if " is left out. " in note:
                        say(note)
        audits: list[Any] = []
        for result in results if attack else []:
            with progress(f"{result.dataset}: attacking", not as_json) as step:
                audits.append(audit_study(result, step))
            for key, outcomes in audits[-1] if not as_json else ():
                say(" ".join([f"{key}: {overall(outcomes)}. {outcomes[1]}", *outcomes[0].limits()]))
        with uninterrupted():
            older = keep(page, comparison_page(results, audits))
            kept.remove()
    if as_json:
        say_json(results_json(results))
    else:
        say(f"Report written to {output}. It is for the data holder only: it says which parts are private.{told_kept(older)}")


@contextmanager
def _kept(results: KeptResults) -> Iterator[KeptResults]:
    """Keep results until the report is written. Where it is not written, a message says where they are."""
    from dperm.report.kept import ResultsNotKeptError

    before = results.count
    if before:
        warn(f"{before:,} results of a comparison that did not end are in {results.path}: what this one needs is not paid again.")
    try:
        yield results
    except ResultsNotKeptError as error:
        where = rescue(results.path.name, error.text)
        if where is None:
            say_json(error.text)  # a line each
        found = "was printed instead" if where is None else f"is in {where}"
        raise OSError(
            f"{error} What was found was paid for, and is not lost: all of it {found}. Make room, move it to {results.path} and "
            "run the same command again: it goes on from there, and pays for none of it twice."
        ) from error
    except BaseException:
        if count := results.count:
            warn(f"{count:,} results are kept in {results.path}: the same command goes on from there, and pays for none twice.")
        raise
    finally:
        results.close()


def register(app: typer.Typer) -> None:
    app.command()(compare)
