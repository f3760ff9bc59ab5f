"""Train one private model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dperm.cli.printing import say, say_json, say_lines
from dperm.cli.shared import (
    Advantage,
    Delta,
    FalsePositives,
    Indices,
    JsonFlag,
    Posterior,
    Prior,
    Relation,
    TruePositives,
    dataset_of,
    keep,
    refuse_same,
    reserved,
    stated_budget,
    stated_indices,
    told_kept,
    told_to_holder,
    uninterrupted,
)

if TYPE_CHECKING:
    from dperm.data import Dataset

_LOOKED = 10_000  # records


def train(
    source: Annotated[
        str, typer.Argument(help="A file (CSV, Parquet, Arrow, NumPy, libsvm), a folder of Parquet, or a named data set.")
    ],
    target: Annotated[str | None, typer.Option(help="Target column.")] = None,
    schema: Annotated[Path | None, typer.Option(help="Public schema of the table (see `dperm data propose`).")] = None,
    epsilon: Annotated[float | None, typer.Option(help="Privacy budget ε [default: 1].")] = None,
    delta: Delta = 1e-5,
    advantage: Advantage = None,
    true_positive_rate: TruePositives = None,
    false_positive_rate: FalsePositives = None,
    prior: Prior = None,
    posterior: Posterior = None,
    model: Annotated[str, typer.Option(help="logistic, svm, ridge, or mlp: a network, which needs PyTorch.")] = "logistic",
    hidden: Annotated[str | None, typer.Option(help="Of --model mlp: widths of its hidden layers, 64,32 [default: 32].")] = None,
    mechanism: Annotated[str, typer.Option(help="A method: auto, objective, output, gradient …")] = "auto",
    sampling: Annotated[
        str | None,
        typer.Option(
            help="Of --mechanism gradient: poisson, importance, full, balls_and_bins, truncated_poisson, fixed_size or rows."
        ),
    ] = None,
    relation: Relation = "add_or_remove_one",
    curves: Annotated[
        int | None,
        typer.Option(
            help="Knots of the curve that each number of a schema gets; 0: a line [default: by --public-size, ε and columns]."
        ),
    ] = None,
    class_weight: Annotated[
        str | None, typer.Option(help="Public weights of the labels, no=1,yes=4: errors on a rare one count for more.")
    ] = None,
    fit_by: Annotated[
        str | None,
        typer.Option(
            help="A category of the schema: a model, and a file, for each of its values, for the price of one. --public-size is "
            "the number of all records; each part is taken to have an equal share."
        ),
    ] = None,
    data_norm: Annotated[float, typer.Option(help="Public bound on a row's L2 norm; longer rows are scaled down.")] = 1.0,
    public_size: Annotated[int | None, typer.Option(help="Publicly known number of records, if it is public.")] = None,
    accept_proposed: Annotated[
        bool, typer.Option(help="Train on ranges and categories read off the data; the certificate says so.")
    ] = False,
    indices: Indices = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="Model file to write.")] = Path("model.json"),
    sign_key: Annotated[Path | None, typer.Option(help="Private key that signs the model (see `dperm keygen`).")] = None,
    private_report: Annotated[
        Path | None, typer.Option(help="With --mechanism individual: a page of what each record has spent. PRIVATE.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be read, run and charged, and stop: nothing is spent.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Train one private model and write it with its certificate.

    \b
    Example:
      dperm train people.csv --schema people.schema.json --epsilon 1 --dry-run
      dperm train people.csv --schema people.schema.json --epsilon 1 -o model.json
      dperm train people.csv --schema people.schema.json --advantage 0.1 -o model.json
      dperm train people.csv --schema people.schema.json --fit-by ward -o model.json
    """
    from dperm._validate import choice
    from dperm.cli.by_part import by_part, files_of_parts, refuse_by_part
    from dperm.cli.kinds import KINDS, Asked
    from dperm.data.dataset import refuse_search_under
    from dperm.estimators import model_to_json
    from dperm.mechanisms import known_methods
    from dperm.mechanisms.gradient import SAMPLINGS
    from dperm.privacy.certificates.assumptions import labels
    from dperm.privacy.certificates.signing import SigningError, SigningKey

    kind = KINDS[choice("--model", model, KINDS)]
    choice("--mechanism", mechanism, known_methods())
    if sampling is not None:
        choice("--sampling", sampling, SAMPLINGS)
    if dry_run and as_json:
        raise ValueError("Expected --dry-run or --json: there is no certificate of what was not run.")
    refuse_same(source, schema, output, sign_key, private_report)
    budget = stated_budget(
        epsilon,
        1.0,
        advantage=advantage,
        true_positive_rate=true_positive_rate,
        false_positive_rate=false_positive_rate,
        prior=prior,
        posterior=posterior,
    )
    asked = Asked(
        budget,
        delta,
        relation,
        public_size,
        mechanism,
        sampling,
        curves,
        class_weight=class_weight,
        data_norm=data_norm,
        hidden=hidden,
    )
    kind.refuse(asked)
    if fit_by is not None:
        refuse_by_part(kind, asked, private_report)

    dataset, used = dataset_of(
        source,
        target,
        schema,
        lambda found: kind.knots(found, asked) if curves is None else curves,
        stated_indices(indices),
        shown=not as_json,
    )
    if used is None and curves:
        raise ValueError(f"Expected a table with columns for --curves, got {source}, whose features have no ranges.")
    if used is not None and used.proposed and not accept_proposed:
        raise ValueError(
            f"{schema} still says that it is proposed: its ranges, categories and labels were read off the data. Correct them by "
            f"what is publicly known and run `dperm data confirm {schema}`, or pass --accept-proposed."
            if schema is not None
            else f"No public schema for {source}: ranges, categories and labels would be read off the data. Write one with "
            f"`dperm data propose {source} --target {used.target}`, confirm it and pass --schema, or pass --accept-proposed."
        )
    if used is not None:
        refuse_search_under(used, relation, delta)  # refused here, before anything is charged
    estimator = kind.estimator(dataset, asked)
    files = {"": output}
    if fit_by is not None:
        if used is None:
            raise ValueError("Expected a table with a schema for --fit-by: a category of it says whose model is whose.")
        estimator = by_part(estimator, used, fit_by, public_size)
        files = files_of_parts(output, estimator.fit_by)
    places = {part: reserved(file, paid_for=True) for part, file in files.items()}
    page = None
    if private_report is not None:
        if mechanism != "individual" or public_size is None or len(dataset.classes) > 2:
            raise ValueError(
                "Expected --mechanism individual, --public-size and at most two classes with --private-report: other runs keep "
                "no account of records."
            )
        page = reserved(private_report, private=True, paid_for=True)
    key = None if sign_key is None else SigningKey(sign_key)  # read once, before the charge
    if not as_json:
        told_to_holder(dataset, kind.row_norm(asked), delta, public_size)
    extra: dict[str, Any] = {
        "schema": json.loads(used.without_notes().to_json()) if used else None,
        "target_range": dataset.target_range,
        "indices": dataset.indices,
    }
    json.dumps(extra, allow_nan=False)  # what could not be written is refused before the charge
    if dry_run:
        _told_of_dry_run(estimator, dataset, budget)
        return
    if kind.notice and not as_json:
        say_lines(kind.notice)
    fitted = dataset.fit(estimator)
    with uninterrupted():
        if used is None and dataset.target_range is None:
            fitted.certificate_ = fitted.certificate_.with_assumptions(labels(None, stated=False))
        kept: dict[str, Path | None] = {}
        lost: list[str] = []
        for part, place in places.items():
            model_of = fitted if fit_by is None else fitted.models_[part]
            said = extra if fit_by is None else {**extra, "fit_by": {"column": fit_by, "value": part}}
            try:
                try:
                    text = model_to_json(model_of, said, sign_key=key)
                except SigningError as error:
                    text = model_to_json(model_of, said)
                    lost.append(f"{error}. The model for {place.path} is kept, without a signature.")
                kept[part] = keep(place, text)
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
    alike = fit_by is None and len(set(fitted.predict(dataset.features[:_LOOKED]))) == 1 and len(dataset) > 1
    if not as_json and alike:
        say("Warning, for the data holder alone: it gives the same answer for all of the first records that it was trained on.")
        say_lines("A larger epsilon, more records, or fewer columns would help; nothing more can be got from this one.\n")
    if as_json:
        say_json(fitted.certificate_.to_json())
    else:
        if private_report is not None:
            say(f"PRIVATE, for the data holder only: {private_report}.")
        say_lines(fitted.certificate_.brief())
        if used is not None and used.curves and kind.drawn:
            say(f"Each number has a curve of {used.curves} knots: see them by `dperm effects {next(iter(files.values()))}`.")
        if used is not None and used.pairs and not used.curves:
            say("Its numbers have straight lines, and pairs of columns are left out with curves: --curves says how many knots.")
        for part, file in files.items():
            say(f"Model written to {file}.{told_kept(kept[part])}")


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


def register(app: typer.Typer) -> None:
    app.command()(train)
