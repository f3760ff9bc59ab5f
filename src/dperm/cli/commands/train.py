"""Train one private model."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from dperm.cli.command_files import JsonFlag, Source
from dperm.cli.files import told_kept, told_to_holder
from dperm.cli.printing import printed_instead, progress, say, say_json, say_lines
from dperm.jobs.training import TrainingOptions, prepared_training

if TYPE_CHECKING:
    from dperm.jobs.training import Trained, Training


@dataclass(frozen=True, kw_only=True)
class TrainOptions(TrainingOptions):
    source: Source
    dry_run: Annotated[bool, "Say what would be read, run and charged, and stop: nothing is spent."] = False
    as_json: JsonFlag = False


def train(asked: TrainOptions) -> None:
    """Train one private model and write it with its certificate.

    All records of the table are trained on. To judge the model by `dperm evaluate`, keep some of them in a file of their own
    before: all rows of a person on the same side, chosen at random (docs/judging.md). `dperm compare` makes such splits itself.

    \b
    Example:
      dperm train people.csv --schema people.schema.json --epsilon 1 --dry-run
      dperm train people.csv --schema people.schema.json --epsilon 1 -o model.json
      dperm train people.csv --schema people.schema.json --advantage 0.1 -o model.json
      dperm train people.csv --schema people.schema.json --fit-by ward -o model.json
    """
    if asked.dry_run and asked.as_json:
        raise ValueError("Expected --dry-run or --json: there is no certificate of what was not run.")
    with ExitStack() as until_written:
        with progress("Reading", not asked.as_json) as bar:
            job = until_written.enter_context(prepared_training(asked, bar))
        if not asked.as_json:
            told_to_holder(job.dataset, job.kind.row_norm(asked), asked.delta, asked.public_size)
            for sentence in (job.model_chosen(), job.order()):
                if sentence:
                    say(sentence)
            if warning := job.forewarning():
                say(warning)
            elif few := job.expected():
                say(f"For the data holder alone: {few}")
        if asked.dry_run:
            _tell_foreseen(job)
            return
        if job.kind.notice and not asked.as_json:
            say_lines(job.kind.notice)
        trained = job.run(printed_instead)
    if asked.as_json:
        say_json(trained.certificate.to_json())
    else:
        _tell(trained)


def _tell(trained: Trained) -> None:
    from dperm._rounding import upward

    asked, used = trained.job.asked, trained.job.schema
    if trained.answers_alike:
        say("Warning, for the data holder alone: it gives the same answer for all of the first records that it was trained on.")
        say_lines("A larger epsilon, more records, or fewer columns would help; nothing more can be got from this one.\n")
    if asked.private_report is not None:
        say(f"PRIVATE, for the data holder only: {asked.private_report}.")
    say_lines(trained.certificate.brief())
    if trained.alone is not None and trained.alone.epsilon is not None and trained.certificate.epsilon is not None:
        both, one = upward(trained.certificate.epsilon), upward(trained.alone.epsilon)
        say(f"epsilon = {both} for this model and those before it; this one alone {one}.")
    if used is not None and used.curves and trained.job.kind.drawn:
        say(f"Each number has a curve of {used.curves} knots: see them by `dperm effects {next(iter(trained.files))}`.")
    if used is not None and used.pairs and not used.curves:
        say("Its numbers have straight lines, and pairs of columns are left out with curves: --curves says how many knots.")
    for file, older in trained.files.items():
        say(f"Model written to {file}.{told_kept(older)}")


def _tell_foreseen(job: Training) -> None:
    from dperm._rounding import downward

    (charge, log), delta = job.foreseen(), job.asked.delta
    budget = job.asked.budget()
    spent = f"ε = {budget:g}" if isinstance(budget, float | int) else f"the ε of {budget}"
    say("Dry run: nothing was trained, charged or written.")
    say(f'It would run {charge.mechanism}, and charge at most {spent} at δ = {delta:g} to "{charge.label}" in {log.where}.')
    if (account := log.foreseen(charge.event, charge.label, persons=charge.persons)) is not None:
        say(f"Its budget would take that: {downward(100 * account.left, 3)} % of it would be left.")
    say("`dperm account --log` says what this log holds already.")
