"""Compare private mechanisms with each other and with no privacy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dperm.cli.command_files import JsonFlag
from dperm.cli.files import told_kept, told_to_holder
from dperm.cli.printing import printed_instead, progress, say, say_json, warn
from dperm.jobs.comparing import ComparisonOptions, attacked, prepared_comparison
from dperm.jobs.options import SOURCE

if TYPE_CHECKING:
    from dperm.jobs.comparing import Comparison
    from dperm.report import StudyResult


@dataclass(frozen=True, kw_only=True)
class CompareOptions(ComparisonOptions):
    sources: Annotated[list[str] | None, typer.Argument(help=f"Of each, records: {SOURCE} [default: breast_cancer digits].")] = (
        None
    )
    attack: Annotated[bool, typer.Option("--audit", help="Also attack each mechanism, at the ε nearest 1.")] = False
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
    from dperm.report.summary import results_json

    with prepared_comparison(asked, printed_instead) as job, _telling_what_is_kept(job):
        results = [_compared(job, source, asked.as_json) for source in job.tables]
        audits = [_attacked(result, asked.as_json) for result in results if asked.attack]
        older = job.write(results, audits, printed_instead)
    if asked.as_json:
        say_json(results_json(results))
    else:
        private = "It is for the data holder only: it says which parts are private."
        say(f"Report written to {asked.output}. {private}{told_kept(older)}")


def _compared(job: Comparison, source: str, as_json: bool) -> StudyResult:
    """The study on one data set, and what is said of it."""
    from dperm.report.summary import result_table

    (dataset, used), study = job.tables[source], job.study
    if used is not None and used.proposed:
        warn(f"No schema for {source}: ranges, categories and labels were read off the data, which is not private.")
    if dataset.survey is not None and not as_json:
        told_to_holder(dataset, study.data_norm)
    title = f"{dataset.name}: {study.repeats} repeats of {len(study.mechanisms)} mechanisms at {len(study.epsilons)} ε"
    with progress(title, not as_json) as step:
        result = job.compared(dataset, step)
    if not as_json:
        result_table(result)
        for note in result.notes:
            if " is left out. " in note:
                say(note)
    return result


def _attacked(result: StudyResult, as_json: bool) -> list[Any]:
    """Attacks on each mechanism of a result, and what is said of them."""
    from dperm.audit import overall

    with progress(f"{result.dataset}: attacking", not as_json) as step:
        audits = attacked(result, step)
    for key, outcomes in audits if not as_json else ():
        say(" ".join([f"{key}: {overall(outcomes)}. {outcomes[1]}", *outcomes[0].limits()]))
    return audits


@contextmanager
def _telling_what_is_kept(job: Comparison) -> Iterator[None]:
    """Say where the results are kept if the report cannot be written."""
    from dperm.report.kept import ResultsNotKeptError

    kept = job.kept
    if before := kept.count:
        warn(f"{before:,} results of a comparison that did not end are in {kept.path}: what this one needs is not paid again.")
    try:
        yield
    except ResultsNotKeptError:
        raise
    except BaseException:
        if count := kept.count:
            warn(f"{count:,} results are kept in {kept.path}: the same command goes on from there, and pays for none twice.")
        raise
