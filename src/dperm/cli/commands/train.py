"""Train one private model."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dperm.cli.files import keep, refuse_same, reserved, told_kept, uninterrupted
from dperm.cli.kinds import KINDS, Asked, Kind, by_part, files_of_parts, refuse_by_part
from dperm.cli.options import BudgetOptions, Indices, JsonFlag, Relation, Source
from dperm.cli.printing import say, say_json, say_lines
from dperm.cli.tables import dataset_of, stated_indices, told_to_holder

if TYPE_CHECKING:
    from dperm._files import Reserved
    from dperm.data import Dataset, Schema
    from dperm.privacy.certificates.signing import SigningKey

_LOOKED = 10_000  # records


@dataclass(frozen=True, kw_only=True)
class TrainOptions(BudgetOptions):
    source: Source
    target: Annotated[str | None, typer.Option(help="Target column.")] = None
    schema: Annotated[Path | None, typer.Option(help="Public schema of the table (see `dperm data propose`).")] = None
    epsilon: Annotated[float | None, typer.Option(help="Privacy budget ε [default: 1].")] = None
    model: Annotated[str, typer.Option(help="logistic, svm, ridge, or mlp: a network, which needs PyTorch.")] = "logistic"
    hidden: Annotated[str | None, typer.Option(help="Of --model mlp: widths of its hidden layers, 64,32 [default: 32].")] = None
    mechanism: Annotated[str, typer.Option(help="A method: auto, objective, output, gradient …")] = "auto"
    sampling: Annotated[
        str | None,
        typer.Option(
            help="Of --mechanism gradient: poisson, importance, full, balls_and_bins, truncated_poisson, fixed_size or rows."
        ),
    ] = None
    relation: Relation = "add_or_remove_one"
    curves: Annotated[
        int | None,
        typer.Option(
            help="Knots of the curve that each number of a schema gets; 0: a line [default: by --public-size, ε and columns]."
        ),
    ] = None
    class_weight: Annotated[
        str | None, typer.Option(help="Public weights of the labels, no=1,yes=4: errors on a rare one count for more.")
    ] = None
    fit_by: Annotated[
        str | None,
        typer.Option(
            help="A category of the schema: a model, and a file, for each of its values, for the price of one. --public-size is "
            "the number of all records; each part is taken to have an equal share."
        ),
    ] = None
    data_norm: Annotated[float, typer.Option(help="Public bound on a row's L2 norm; longer rows are scaled down.")] = 1.0
    public_size: Annotated[int | None, typer.Option(help="Publicly known number of records, if it is public.")] = None
    accept_proposed: Annotated[
        bool, typer.Option(help="Train on ranges and categories read off the data; the certificate says so.")
    ] = False
    indices: Indices = None
    output: Annotated[Path, typer.Option("--output", "-o", help="Model file to write.")] = Path("model.json")
    sign_key: Annotated[Path | None, typer.Option(help="Private key that signs the model (see `dperm keygen`).")] = None
    private_report: Annotated[
        Path | None, typer.Option(help="With --mechanism individual: a page of what each record has spent. PRIVATE.")
    ] = None
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be read, run and charged, and stop: nothing is spent.")
    ] = False
    as_json: JsonFlag = False

    def wishes(self) -> Asked:
        """What is asked of the model, whatever its kind."""
        return Asked(
            self.budget(1.0),
            self.delta,
            self.relation,
            self.public_size,
            self.mechanism,
            self.sampling,
            self.curves,
            class_weight=self.class_weight,
            data_norm=self.data_norm,
            hidden=self.hidden,
        )


def train(asked: TrainOptions) -> None:
    """Train one private model and write it with its certificate.

    \b
    Example:
      dperm train people.csv --schema people.schema.json --epsilon 1 --dry-run
      dperm train people.csv --schema people.schema.json --epsilon 1 -o model.json
      dperm train people.csv --schema people.schema.json --advantage 0.1 -o model.json
      dperm train people.csv --schema people.schema.json --fit-by ward -o model.json
    """
    from dperm._validate import choice
    from dperm.mechanisms import known_methods
    from dperm.mechanisms.gradient import SAMPLINGS
    from dperm.privacy.certificates.signing import SigningKey

    kind = KINDS[choice("--model", asked.model, KINDS)]
    choice("--mechanism", asked.mechanism, known_methods())
    if asked.sampling is not None:
        choice("--sampling", asked.sampling, SAMPLINGS)
    if asked.dry_run and asked.as_json:
        raise ValueError("Expected --dry-run or --json: there is no certificate of what was not run.")
    refuse_same(asked.source, asked.schema, asked.output, asked.sign_key, asked.private_report)
    wishes = asked.wishes()
    kind.refuse(wishes)
    if asked.fit_by is not None:
        refuse_by_part(kind, wishes, asked.private_report)
    dataset, used = _records(asked, kind, wishes)
    estimator = kind.estimator(dataset, wishes)
    files = {"": asked.output}
    if asked.fit_by is not None:
        if used is None:
            raise ValueError("Expected a table with a schema for --fit-by: a category of it says whose model is whose.")
        estimator = by_part(estimator, used, asked.fit_by, asked.public_size)
        files = files_of_parts(asked.output, estimator.fit_by)
    places = {part: reserved(file, paid_for=True) for part, file in files.items()}
    page = None if asked.private_report is None else _page(asked, asked.private_report, dataset)
    key = None if asked.sign_key is None else SigningKey(asked.sign_key)  # read once, before the charge
    if not asked.as_json:
        told_to_holder(dataset, kind.row_norm(wishes), asked.delta, asked.public_size)
    extra: dict[str, Any] = {
        "schema": json.loads(used.without_notes().to_json()) if used else None,
        "target_range": dataset.target_range,
        "indices": dataset.indices,
    }
    json.dumps(extra, allow_nan=False)  # what could not be written is refused before the charge
    if asked.dry_run:
        _told_of_dry_run(estimator, dataset, wishes.budget)
        return
    if kind.notice and not asked.as_json:
        say_lines(kind.notice)
    fitted = dataset.fit(estimator)
    kept = _kept(asked, fitted, dataset, extra, places, page, key)
    _tell(asked, fitted, dataset, used, kept)


def _records(asked: TrainOptions, kind: Kind, wishes: Asked) -> tuple[Dataset, Schema | None]:
    """What to train on. ValueError for ranges that were read off the data, where nobody accepts that, and for a search whose
    price cannot be added."""
    from dperm.data.dataset import refuse_search_under

    dataset, used = dataset_of(
        asked.source,
        asked.target,
        asked.schema,
        lambda found: kind.knots(found, wishes) if asked.curves is None else asked.curves,
        stated_indices(asked.indices),
        shown=not asked.as_json,
    )
    if used is None:
        if asked.curves:
            raise ValueError(f"Expected a table with columns for --curves, got {asked.source}, whose features have no ranges.")
        return dataset, None
    if used.proposed and not asked.accept_proposed:
        raise ValueError(
            f"{asked.schema} still says that it is proposed: its ranges, categories and labels were read off the data. Correct "
            f"them by what is publicly known and run `dperm data confirm {asked.schema}`, or pass --accept-proposed."
            if asked.schema is not None
            else f"No public schema for {asked.source}: ranges, categories and labels would be read off the data. Write one with "
            f"`dperm data propose {asked.source} --target {used.target}`, confirm it and pass --schema, or pass "
            "--accept-proposed."
        )
    refuse_search_under(used, asked.relation, asked.delta)
    return dataset, used


def _page(asked: TrainOptions, path: Path, dataset: Dataset) -> Reserved:
    """The file for what each record has spent. ValueError for runs that keep no account of that."""
    if asked.mechanism != "individual" or asked.public_size is None or len(dataset.classes) > 2:
        raise ValueError(
            "Expected --mechanism individual, --public-size and at most two classes with --private-report: other runs keep "
            "no account of records."
        )
    return reserved(path, private=True, paid_for=True)


def _kept(
    asked: TrainOptions,
    fitted: Any,
    dataset: Dataset,
    extra: dict[str, Any],
    places: dict[str, Reserved],
    page: Reserved | None,
    key: SigningKey | None,
) -> dict[Path, Path | None]:
    """Write each model, without an interruption; returns, by its file, where what stood there is kept. OSError once all were
    tried, where one was not written as it was asked for."""
    from dperm.estimators import model_to_json
    from dperm.privacy.certificates.assumptions import labels
    from dperm.privacy.certificates.signing import SigningError

    kept: dict[Path, Path | None] = {}
    lost: list[str] = []
    with uninterrupted():
        if extra["schema"] is None and dataset.target_range is None:
            fitted.certificate_ = fitted.certificate_.with_assumptions(labels(None, stated=False))
        for part, place in places.items():
            model_of = fitted if asked.fit_by is None else fitted.models_[part]
            said = extra if asked.fit_by is None else {**extra, "fit_by": {"column": asked.fit_by, "value": part}}
            try:
                try:
                    text = model_to_json(model_of, said, sign_key=key)
                except SigningError as error:
                    text = model_to_json(model_of, said)
                    lost.append(f"{error}. The model for {place.path} is kept, without a signature.")
                kept[place.path] = keep(place, text)
            except (OSError, ValueError) as error:  # the other parts' models are written all the same
                lost.append(str(error))
        if page is not None:
            from dperm.report.spending_page import Spending, spending_page

            found = Spending.of(fitted.private_trace_[0]["spent_by_record"], fitted.certificate_)
            try:
                keep(page, spending_page(found, fitted.certificate_, dataset.title or dataset.name))
            except OSError as error:
                lost.append(str(error))
    if lost:
        raise OSError(" ".join(lost))
    return kept


def _tell(asked: TrainOptions, fitted: Any, dataset: Dataset, used: Schema | None, kept: dict[Path, Path | None]) -> None:
    if asked.as_json:
        say_json(fitted.certificate_.to_json())
        return
    if asked.fit_by is None and len(set(fitted.predict(dataset.features[:_LOOKED]))) == 1 and len(dataset) > 1:
        say("Warning, for the data holder alone: it gives the same answer for all of the first records that it was trained on.")
        say_lines("A larger epsilon, more records, or fewer columns would help; nothing more can be got from this one.\n")
    if asked.private_report is not None:
        say(f"PRIVATE, for the data holder only: {asked.private_report}.")
    say_lines(fitted.certificate_.brief())
    if used is not None and used.curves and KINDS[asked.model].drawn:
        say(f"Each number has a curve of {used.curves} knots: see them by `dperm effects {next(iter(kept))}`.")
    if used is not None and used.pairs and not used.curves:
        say("Its numbers have straight lines, and pairs of columns are left out with curves: --curves says how many knots.")
    for file, older in kept.items():
        say(f"Model written to {file}.{told_kept(older)}")


def _told_of_dry_run(estimator: Any, dataset: Dataset, budget: Any) -> None:
    """Say what training would run and charge, by running it up to its charge: all that it refuses before is refused here, too.
    BudgetExceeded or ValueError where the data set's budget would refuse the charge."""
    from dperm._rounding import downward
    from dperm.release.foreseen import foreseen_charge
    from dperm.release.ledger import SpendLog

    charge, log = foreseen_charge(lambda: dataset.fit(estimator)), SpendLog.current()
    delta = getattr(estimator, "estimator", estimator).delta  # of models by part
    spent = f"ε = {budget:g}" if isinstance(budget, float | int) else f"the ε of {budget}"
    say("Dry run: nothing was trained, charged or written.")
    say(f'It would run {charge.mechanism}, and charge at most {spent} at δ = {delta:g} to "{charge.label}" in {log.where}.')
    if (account := log.foreseen(charge.event, charge.label, persons=charge.persons)) is not None:
        say(f"Its budget would take that: {downward(100 * account.left, 3)} % of it would be left.")
    say("`dperm account --log` says what this log holds already.")
