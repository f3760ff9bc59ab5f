"""Private mechanisms beside each other and beside no privacy, from options to a report."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from dperm._files import Reserved, rescue, write_new
from dperm.jobs.files import dataset_of, keep, refuse_same, uninterrupted
from dperm.jobs.models import ModelOptions, usual_model
from dperm.jobs.options import SOURCE, Delta, Indices, JobOptions, Relation, stated_indices

if TYPE_CHECKING:
    from dperm.audit import AuditResult
    from dperm.data import Dataset, Schema
    from dperm.report import Study, StudyResult
    from dperm.report.kept import KeptResults

_BUNDLED = ("breast_cancer", "digits")
_TRIALS = 2000  # of an attack


@dataclass(frozen=True, kw_only=True)
class ComparisonOptions(JobOptions):
    """Which mechanisms are compared on which records, and the report."""

    sources: Annotated[list[str] | None, f"Of each, records: {SOURCE} [default: breast_cancer digits]."] = None
    target: Annotated[str | None, "Target column, for a file."] = None
    schema: Annotated[Path | None, "Public schema, for a file; otherwise one is proposed from the data."] = None
    epsilons: Annotated[str, "Comma-separated ε."] = "0.1,0.3,1,3,10"
    delta: Delta = 1e-5
    mechanisms: Annotated[
        str | None,
        "By commas [default: auto, which is what `dperm train` runs, output, objective-kifer, objective-sharp, gradient-full, "
        "gradient-poisson]; others are bolt-on, coordinate, correlated, frank-wolfe, frank-wolfe-l2, greedy-coordinate, "
        "individual, last-iterate, lssgd, m-ngp, m-ngp-published, pidp-sgd-published, tgp, and for numbers preconditioned.",
    ] = None
    curves: Annotated[int | None, "Knots of the curve that each number gets; 0: a line [default: as in `dperm train`]."] = None
    relation: Relation = "add_or_remove_one"
    repeats: Annotated[int, "Repeats, on paired random splits."] = 10
    data_norm: Annotated[float, "Public bound on a row's L2 norm."] = 1.0
    boosting: Annotated[bool, "Gradient boosting without privacy beside them, where the table is not too large."] = True
    attack: Annotated[bool, "Also attack each mechanism, at the ε nearest 1."] = False
    jobs: Annotated[int | None, "Processes [default: all cores]."] = None
    seed: Annotated[int | None, "Fix all randomness, for tests: nothing is private then."] = None
    output: Annotated[Path, "Report to write."] = Path("report.html")
    indices: Indices = None


def compare(asked: ComparisonOptions) -> list[StudyResult]:
    """Compare private mechanisms with each other and with no privacy; write a self-contained report, for the data holder only.
    Until it is written, results are kept beside it: the same options go on from there, and pay for none of them again."""
    with prepared_comparison(asked) as job:
        results = [job.compared(dataset) for dataset, _ in job.tables.values()]
        job.write(results, [attacked(result) for result in results if asked.attack])
    return results


@dataclass(frozen=True)
class Comparison:
    """A comparison that is ready: all records are read, `page` is reserved, and nothing is charged. `tables` are by their
    sources; `kept` holds the results that are there already."""

    asked: ComparisonOptions
    study: Study
    tables: dict[str, tuple[Dataset, Schema | None]]
    page: Reserved
    kept: KeptResults

    def compared(self, dataset: Dataset, progress: Any = None) -> StudyResult:
        """The study on one data set; each result is charged, and kept as it comes."""
        from dperm.report import run_study

        target = next((used.target for table, used in self.tables.values() if table is dataset and used is not None), "")
        jobs = self.asked.jobs or os.cpu_count() or 1
        default = partial(usual_estimator, self.study)
        return run_study(dataset, self.study, jobs, progress, self.kept, default=default, target=target)

    def write(
        self, results: Sequence[StudyResult], audits: Sequence[Any], print_instead: Callable[[str], bool] = lambda _: False
    ) -> Path | None:
        """Write the report, beside which no results are kept any more; returns where what stood there is kept."""
        from dperm.report.page import comparison_page

        with uninterrupted():
            older = keep(self.page, comparison_page(results, audits), print_instead)
            self.kept.remove()
        return older


def usual_estimator(study: Study, dataset: Dataset, epsilon: float) -> Any:
    """The estimator that `dperm train` fits to these records where nothing is chosen, within the study's budget. A study brings
    numbers to [−1, 1] itself; such a model of counts brings them there inside, which is the same."""
    model = usual_model(labels=bool(dataset.classes), ordered=dataset.ordered)
    if dataset.target_range is not None:
        dataset = replace(dataset, target_range=dataset.target_range.centred)
    asked = ModelOptions(epsilon=epsilon, delta=study.delta, model=model, relation=study.relation, data_norm=study.data_norm)
    return asked.kind_for(None).estimator(dataset, asked)


def attacked(result: StudyResult, progress: Callable[[int, int, str], None] | None = None) -> list[tuple[str, list[AuditResult]]]:
    """(mechanism, results) of attacks at the study's ε nearest to 1, on made-up records: nothing is charged."""
    from dperm.audit import Training, attack
    from dperm.report.candidates import CANDIDATES

    epsilon, keys = min(result.study.epsilons, key=lambda value: abs(value - 1)), result.keys
    audits: list[tuple[str, list[AuditResult]]] = []
    for number, key in enumerate(keys):
        candidate = CANDIDATES[key]
        if progress is not None:
            progress(number, len(keys), f"Attacking {candidate.title}")
        mechanism, objective = result.mechanisms[key, epsilon]
        audits.append((key, attack(Training.of_mechanism(mechanism, objective), trials=_TRIALS)))
    return audits


@contextmanager
def prepared_comparison(asked: ComparisonOptions, print_instead: Callable[[str], bool] = lambda _: False) -> Iterator[Comparison]:
    """Read all records and reserve the report, before any charge. OSError where a result that was paid for finds no room, with
    where all of them are."""
    from dperm.report import Study
    from dperm.report.candidates import DEFAULT, USUAL
    from dperm.report.kept import KeptResults, ResultsNotKeptError

    try:
        values = tuple(sorted({float(value) for value in asked.epsilons.split(",") if value.strip()}))
    except ValueError:
        raise ValueError(f"Expected --epsilons to be numbers separated by commas, got {asked.epsilons!r}.") from None
    chosen = (
        (DEFAULT, *USUAL)
        if asked.mechanisms is None
        else tuple(dict.fromkeys(key.strip() for key in asked.mechanisms.split(",")))
    )
    results_file = asked.output.with_suffix(".results.jsonl")
    refuse_same(*(asked.sources or ()), asked.schema, asked.output, results_file)
    alike = {name: getattr(asked, name) for name in ("delta", "repeats", "data_norm", "relation", "seed", "boosting")}
    study = Study(epsilons=values, mechanisms=chosen, **alike)
    with write_new(asked.output, private=True) as page:
        tables = _tables(asked)
        with closing(KeptResults(results_file.absolute())) as kept:
            try:
                yield Comparison(asked, study, tables, page, kept)
            except ResultsNotKeptError as error:
                where = rescue(kept.path.name, error.text)
                if where is not None:
                    found = f"is in {where}"
                else:
                    found = "was printed instead" if print_instead(error.text) else "is the text of this error's cause"
                raise OSError(
                    f"{error} What was found was paid for, and is not lost: all of it {found}. Make room, move it to {kept.path} "
                    "and run the same command again: it goes on from there, and pays for none of it twice."
                ) from error


def _tables(asked: ComparisonOptions) -> dict[str, tuple[Dataset, Schema | None]]:
    """Each source with its data and its schema."""
    from dperm.data.schema.schema import usual_knots

    def knots(found: Schema) -> int:
        if asked.curves is not None:
            return asked.curves
        return found.curves or usual_knots(found, 1.0, asked.delta)  # as where the number of records is private, at any ε

    indices = stated_indices(asked.indices)
    loaded = {
        source: dataset_of(source, asked.target, asked.schema, curves=knots, indices=indices)
        for source in asked.sources or _BUNDLED
    }
    for source, (_, used) in loaded.items():
        if used is None and asked.curves:
            raise ValueError(f"Expected a table with columns for --curves, got {source}, whose features have no ranges.")
    return loaded
