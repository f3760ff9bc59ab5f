"""Compare private mechanisms with each other and with no privacy."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dperm._files import rescue
from dperm.cli.files import keep, refuse_same, reserved, told_kept, uninterrupted
from dperm.cli.options import SOURCE, Delta, Indices, JsonFlag, Relation
from dperm.cli.printing import progress, say, say_json, warn
from dperm.cli.tables import dataset_of, stated_indices, told_to_holder

if TYPE_CHECKING:
    from dperm.data import Dataset, Schema
    from dperm.report import Study, StudyResult
    from dperm.report.kept import KeptResults

_BUNDLED = ("breast_cancer", "digits")


@dataclass(frozen=True, kw_only=True)
class CompareOptions:
    sources: Annotated[list[str] | None, typer.Argument(help=f"Of each, records: {SOURCE} [default: breast_cancer digits].")] = (
        None
    )
    target: Annotated[str | None, typer.Option(help="Target column, for a file.")] = None
    schema: Annotated[Path | None, typer.Option(help="Public schema, for a file; otherwise one is proposed from the data.")] = (
        None
    )
    epsilons: Annotated[str, typer.Option(help="Comma-separated ε.")] = "0.1,0.3,1,3,10"
    delta: Delta = 1e-5
    mechanisms: Annotated[
        str | None,
        typer.Option(
            help="By commas [default: output, objective-kifer, objective-sharp, gradient-full, gradient-poisson]; others are "
            "bolt-on, coordinate, frank-wolfe, frank-wolfe-l2, greedy-coordinate, individual, last-iterate, lssgd, m-ngp, "
            "m-ngp-published, pidp-sgd-published, tgp, and for numbers preconditioned."
        ),
    ] = None
    curves: Annotated[
        int | None,
        typer.Option(help="Knots of the curve that each number gets, 0 for straight lines [default: as in `dperm train`]."),
    ] = None
    relation: Relation = "add_or_remove_one"
    repeats: Annotated[int, typer.Option(help="Repeats, on paired random splits.")] = 10
    data_norm: Annotated[float, typer.Option(help="Public bound on a row's L2 norm.")] = 1.0
    attack: Annotated[bool, typer.Option("--audit", help="Also attack each mechanism, at the ε nearest 1.")] = False
    jobs: Annotated[int | None, typer.Option(help="Processes [default: all cores].")] = None
    seed: Annotated[int | None, typer.Option(help="Fix all randomness, for tests: nothing is private then.")] = None
    output: Annotated[Path, typer.Option("--output", "-o", help="Report to write.")] = Path("report.html")
    indices: Indices = None
    as_json: JsonFlag = False


def compare(asked: CompareOptions) -> None:
    """Compare private mechanisms with each other and with no privacy; write a self-contained report. Until it is written, results
    are kept beside it as they come (report.results.jsonl): the same command goes on from there, and pays for none of them again.

    \b
    Examples:
      dperm compare
      dperm compare people.csv --target income --repeats 20
      dperm compare people.csv --target income --audit
    """
    from dperm.report import Study
    from dperm.report.candidates import USUAL
    from dperm.report.kept import KeptResults
    from dperm.report.page import comparison_page
    from dperm.report.summary import results_json

    try:
        values = tuple(sorted({float(value) for value in asked.epsilons.split(",") if value.strip()}))
    except ValueError:
        raise ValueError(f"Expected --epsilons to be numbers separated by commas, got {asked.epsilons!r}.") from None
    chosen = USUAL if asked.mechanisms is None else tuple(dict.fromkeys(key.strip() for key in asked.mechanisms.split(",")))
    results_file = asked.output.with_suffix(".results.jsonl")
    refuse_same(*(asked.sources or ()), asked.schema, asked.output, results_file)
    study = Study(
        epsilons=values,
        delta=asked.delta,
        mechanisms=chosen,
        repeats=asked.repeats,
        data_norm=asked.data_norm,
        relation=asked.relation,
        seed=asked.seed,
    )
    page = reserved(asked.output, private=True, paid_for=True)
    loaded = _loaded(asked)  # all, before any charge
    with _kept(KeptResults(results_file.absolute())) as kept:
        results = [_compared(asked, study, *each, kept) for each in loaded]
        audits = [_audited(asked, result) for result in results if asked.attack]
        with uninterrupted():
            older = keep(page, comparison_page(results, audits))
            kept.remove()
    if asked.as_json:
        say_json(results_json(results))
    else:
        private = "It is for the data holder only: it says which parts are private."
        say(f"Report written to {asked.output}. {private}{told_kept(older)}")


def _loaded(asked: CompareOptions) -> list[tuple[str, Dataset, Schema | None]]:
    """Each source with its data and its schema."""
    from dperm.data.schema.schema import usual_knots

    def knots(found: Schema) -> int:
        if asked.curves is not None:
            return asked.curves
        return found.curves or usual_knots(found, 1.0, asked.delta)  # as where the number of records is private, at any ε

    indices = stated_indices(asked.indices)
    loaded = [(source, *dataset_of(source, asked.target, asked.schema, knots, indices)) for source in asked.sources or _BUNDLED]
    for source, _, used in loaded:
        if used is None and asked.curves:
            raise ValueError(f"Expected a table with columns for --curves, got {source}, whose features have no ranges.")
    return loaded


def _compared(
    asked: CompareOptions, study: Study, source: str, dataset: Dataset, used: Schema | None, kept: KeptResults
) -> StudyResult:
    """The study on one data set, and what is said of it."""
    from dperm.report import run_study
    from dperm.report.summary import result_table

    if used is not None and used.proposed:
        warn(f"No schema for {source}: ranges, categories and labels were read off the data, which is not private.")
    if dataset.survey is not None and not asked.as_json:
        told_to_holder(dataset, asked.data_norm)
    title = f"{dataset.name}: {study.repeats} repeats of {len(study.mechanisms)} mechanisms at {len(study.epsilons)} ε"
    with progress(title, not asked.as_json) as step:
        result = run_study(dataset, study, asked.jobs or os.cpu_count() or 1, step, kept)
    if not asked.as_json:
        result_table(result)
        for note in result.notes:
            if " is left out. " in note:
                say(note)
    return result


def _audited(asked: CompareOptions, result: StudyResult) -> Any:
    """Attacks on each mechanism of a result, and what is said of them."""
    from dperm.audit import overall
    from dperm.report.audits import audit_study

    with progress(f"{result.dataset}: attacking", not asked.as_json) as step:
        audits = audit_study(result, step)
    for key, outcomes in audits if not asked.as_json else ():
        say(" ".join([f"{key}: {overall(outcomes)}. {outcomes[1]}", *outcomes[0].limits()]))
    return audits


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
