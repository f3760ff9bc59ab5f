"""The command line. Thin: every command parses, calls the library, prints. Heavy imports wait until a command needs them."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dperm.cli.audit import audit
from dperm.cli.shared import (
    Delta,
    JsonFlag,
    Relation,
    VerifyKey,
    certificate_at,
    dataset_of,
    json_table,
    keep,
    probe_writable,
    progress,
    read,
    say,
    warn,
)

if TYPE_CHECKING:
    from dperm.report import StudyResult

__all__ = ["app", "main"]

app = typer.Typer(
    name="dperm",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="""Differentially private training with a certificate per model.

\b
Examples:
  dperm compare                                      the bundled data sets, report.html
  dperm compare people.csv --target income           your own table
  dperm data propose people.csv --target income      a schema to confirm
  dperm train people.csv --schema people.schema.json --epsilon 1 -o model.json
  dperm predict model.json new.csv -o answers.csv
  dperm audit model.json                             try to refute its certificate
  dperm card model.json --audit audit.json           the page for whoever signs
  dperm account --noise 1.1 --rate 0.01 --steps 5000 --delta 1e-5
  dperm calibrate --epsilon 1 --delta 1e-5 --rate 0.01 --steps 5000
""",
)
data_app = typer.Typer(no_args_is_help=True, help="Named data sets and schemas.", rich_markup_mode=None)
app.add_typer(data_app, name="data")
app.command()(audit)

_BUNDLED = ("breast_cancer", "digits")


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        say(version("dperm"))
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


@app.command()
def train(
    source: Annotated[str, typer.Argument(help="A file (CSV, Parquet, Arrow, NumPy, libsvm) or a named data set.")],
    target: Annotated[str | None, typer.Option(help="Target column.")] = None,
    schema: Annotated[Path | None, typer.Option(help="Public schema of the table (see `dperm data propose`).")] = None,
    epsilon: Annotated[float, typer.Option(help="Privacy budget ε.")] = 1.0,
    delta: Delta = 1e-5,
    model: Annotated[str, typer.Option(help="logistic, svm or ridge.")] = "logistic",
    mechanism: Annotated[str, typer.Option(help="auto, objective, output or gradient.")] = "auto",
    sampling: Annotated[
        str | None, typer.Option(help="Batches of --mechanism gradient: poisson, importance (by gradient norm) or full.")
    ] = None,
    relation: Relation = "add_or_remove_one",
    data_norm: Annotated[float, typer.Option(help="Public bound on a row's L2 norm; longer rows are scaled down.")] = 1.0,
    public_size: Annotated[int | None, typer.Option(help="Publicly known number of records, if it is public.")] = None,
    accept_proposed: Annotated[
        bool, typer.Option(help="Train on ranges and categories read off the data; the certificate says so.")
    ] = False,
    output: Annotated[Path, typer.Option("--output", "-o", help="Model file to write.")] = Path("model.json"),
    sign_key: Annotated[Path | None, typer.Option(help="Private key that signs the model (see `dperm keygen`).")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Train one private model and write it with its certificate.

    \b
    Example:
      dperm train people.csv --schema people.schema.json --epsilon 1 -o model.json
    """
    from dperm._validate import choice
    from dperm.estimators import DPLinearSVC, DPLogisticRegression, DPRidge, model_to_json
    from dperm.privacy import Assumption
    from dperm.privacy.signing import sign

    kinds = {"logistic": DPLogisticRegression, "svm": DPLinearSVC, "ridge": DPRidge}
    choice("--model", model, kinds)
    dataset, used = dataset_of(source, target, schema)
    if used is not None and used.proposed and not accept_proposed:
        raise ValueError(
            f"{schema} still says that it is proposed: its ranges, categories and labels were read off the data. Confirm "
            "them and take that word out, or pass --accept-proposed."
            if schema is not None
            else f"No public schema for {source}: ranges, categories and labels would be read off the data. Write one with "
            f"`dperm data propose {source} --target {used.target}`, confirm it and pass --schema, or pass --accept-proposed."
        )
    options: dict[str, Any] = {
        "epsilon": epsilon,
        "delta": delta,
        "relation": relation,
        "data_norm": data_norm,
        "public_size": public_size,
        "label": dataset.name,
    }
    if mechanism != "auto":
        options["mechanism"] = mechanism
    if sampling is not None:
        choice("--sampling", sampling, ("poisson", "importance", "full"))
        if mechanism != "gradient":
            raise ValueError(f"Expected --mechanism gradient with --sampling {sampling}: other mechanisms draw no batches.")
        options["sampling"] = sampling
    targets = dataset.targets
    if model == "ridge":
        if dataset.target_range is None:
            raise ValueError(f"Expected numbers as target for --model ridge, got the labels {list(dataset.classes)[:5]}.")
        low, high = dataset.target_range
        targets = 2 * (targets - low) / (high - low) - 1
    elif not dataset.classes:
        raise ValueError(f"Expected labels as target for --model {model}, got numbers; use --model ridge.")
    else:
        options["classes"] = list(dataset.classes)
    probe_writable(output)
    if sign_key is not None:
        sign("", sign_key)  # an unusable key, before the charge
    fitted = kinds[model](**options).fit(dataset.features, targets, absent=dataset.absent)
    if used is not None and used.proposed:
        fitted.certificate_ = fitted.certificate_.only_claimed("ranges, categories and labels were read off the data, not public")
    elif used is None and dataset.target_range is not None:
        fitted.certificate_ = fitted.certificate_.only_claimed("the target's range was read off the data, not public")
    elif used is None:
        looked = Assumption("The labels present are public.", "caller", "taken from the data")
        fitted.certificate_ = fitted.certificate_.with_assumptions(looked)
    extra: dict[str, Any] = {
        "schema": json.loads(used.to_json()) if used else None,
        "target_range": dataset.target_range,
    }
    keep(output, model_to_json(fitted, extra, sign_key=sign_key))
    if as_json:
        say(fitted.certificate_.to_json())
    else:
        say(str(fitted.certificate_))
        say(f"Model written to {output}.")


@app.command()
def predict(
    model: Annotated[Path, typer.Argument(help="A model written by `dperm train`.")],
    source: Annotated[str, typer.Argument(help="A table with the columns of the model's schema; the target may be absent.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="CSV file to write.")] = Path("predictions.csv"),
    verify_key: VerifyKey = None,
    as_json: JsonFlag = False,
) -> None:
    """Predict with a trained model. Costs no privacy of the training records.

    \b
    Example:
      dperm predict model.json new.csv -o answers.csv
    """
    import pandas as pd

    from dperm import data
    from dperm.estimators import model_from_json
    from dperm.report import write_atomically

    fitted, extra = model_from_json(read(model), verify_key=verify_key)
    if extra.get("schema"):
        schema = data.Schema.from_dict(extra["schema"])
        if source in data.named() and not Path(source).exists():
            features, kept = data.load(source).features, None
        else:
            features, kept = schema.encode_features(data.read_frame(source, schema))
    else:
        features, kept = data.read_dataset(source)[0].features, None
    answers = fitted.predict(features)  # type: ignore[attr-defined]
    if extra.get("target_range"):
        low, high = extra["target_range"]
        answers = low + (answers + 1) / 2 * (high - low)
    table = pd.DataFrame({"prediction": answers})
    if hasattr(fitted, "predict_proba"):
        for name, column in zip(fitted.classes_, fitted.predict_proba(features).T, strict=True):  # type: ignore[attr-defined]
            table[f"probability of {name}"] = column
    blank = 0
    if kept is not None and not kept.all():  # one line for every record of the input, blank where values are missing
        blank = int((~kept).sum())
        table.index = pd.Index(kept.nonzero()[0])
        table = table.reindex(range(len(kept)))
    write_atomically(output, table.to_csv(index=False))
    summary = {"predictions": len(table) - blank, "blank": blank, "output": str(output)}
    left_blank = f" {blank} records have missing values and were left blank." if blank else ""
    say(json.dumps(summary) if as_json else f"{len(table) - blank} predictions written to {output}.{left_blank}")


@app.command()
def compare(
    sources: Annotated[list[str] | None, typer.Argument(help="Files or named data sets [default: breast_cancer digits].")] = None,
    target: Annotated[str | None, typer.Option(help="Target column, for a file.")] = None,
    schema: Annotated[
        Path | None, typer.Option(help="Public schema, for a file; otherwise one is proposed from the data.")
    ] = None,
    epsilons: Annotated[str, typer.Option(help="Comma-separated ε.")] = "0.1,0.3,1,3,10",
    delta: Delta = 1e-5,
    mechanisms: Annotated[str | None, typer.Option(help="Comma-separated subset of the mechanisms.")] = None,
    repeats: Annotated[int, typer.Option(help="Repeats, on paired random splits.")] = 10,
    data_norm: Annotated[float, typer.Option(help="Public bound on a row's L2 norm.")] = 1.0,
    attack: Annotated[bool, typer.Option("--audit", help="Also attack each mechanism, at the ε nearest 1.")] = False,
    jobs: Annotated[int | None, typer.Option(help="Processes [default: all cores].")] = None,
    seed: Annotated[int | None, typer.Option(help="Fix all randomness, for tests: nothing is private then.")] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="Report to write.")] = Path("report.html"),
    as_json: JsonFlag = False,
) -> None:
    """Compare private mechanisms with each other and with no privacy; write a self-contained report.

    \b
    Examples:
      dperm compare
      dperm compare people.csv --target income --repeats 20
      dperm compare people.csv --target income --audit
    """
    from dperm.audit import overall
    from dperm.report import Study, run_study, write_atomically
    from dperm.report.audits import audit_study
    from dperm.report.candidates import CANDIDATES
    from dperm.report.page import comparison_page
    from dperm.report.summary import result_table, results_json

    try:
        values = tuple(sorted({float(value) for value in epsilons.split(",") if value.strip()}))
    except ValueError:
        raise ValueError(f"Expected --epsilons to be numbers separated by commas, got {epsilons!r}.") from None
    chosen = tuple(key.strip() for key in mechanisms.split(",")) if mechanisms else tuple(CANDIDATES)
    study = Study(epsilons=values, delta=delta, mechanisms=chosen, repeats=repeats, data_norm=data_norm, seed=seed)
    probe_writable(output)
    jobs = jobs or os.cpu_count() or 1
    results: list[StudyResult] = []
    loaded = [(source, *dataset_of(source, target, schema)) for source in sources or _BUNDLED]  # all, before any charge
    for source, dataset, used in loaded:
        if used is not None and used.proposed:
            warn(f"No schema for {source}: ranges, categories and labels were read off the data, which is not private.")
        with progress(f"{dataset.name}: {repeats} repeats of {len(chosen)} mechanisms at {len(values)} ε", not as_json) as step:
            results.append(run_study(dataset, study, jobs, step))
        if not as_json:
            result_table(results[-1])
    audits: list[Any] = []
    for result in results if attack else []:
        with progress(f"{result.dataset}: attacking", not as_json) as step:
            audits.append(audit_study(result, step))
        for key, found in audits[-1] if not as_json else ():
            say(f"{key}: {overall(found)}. {found[1]}")
    write_atomically(output, comparison_page(results, audits))
    say(
        results_json(results)
        if as_json
        else f"Report written to {output}. It is for the data holder only: it says which parts are private."
    )


@app.command()
def account(
    noise: Annotated[float | None, typer.Option(help="Noise multiplier: standard deviation ÷ sensitivity.")] = None,
    rate: Annotated[float, typer.Option(help="Poisson sampling rate.")] = 1.0,
    steps: Annotated[int, typer.Option(help="Number of steps.")] = 1,
    delta: Delta = 1e-5,
    relation: Relation = "add_or_remove_one",
    event: Annotated[Path | None, typer.Option(help="A JSON event or certificate to account for instead.")] = None,
    log: Annotated[bool, typer.Option("--log", help="Compose everything in the spend log instead.")] = False,
    label: Annotated[str | None, typer.Option(help="With --log: only charges with this label.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """ε of a mechanism at a given δ.

    \b
    Examples:
      dperm account --noise 1.1 --rate 0.01 --steps 5000
      dperm account --log
    """
    from dperm.privacy import Gaussian, PoissonSampled, SelfComposed
    from dperm.privacy import Relation as Relations
    from dperm.privacy.accounting import best_epsilon
    from dperm.privacy.events import event_from_dict, relation_of

    if (event is not None) + (noise is not None) + log != 1:
        raise ValueError("Expected one of --noise, --event and --log.")
    if log:
        _account_log(delta, label, as_json)
        return
    if label is not None:
        raise ValueError("Expected --log with --label: only charges have labels.")
    if event is not None:
        certificate = certificate_at(event)
        if certificate is not None and certificate.epsilon is None:
            shown = {"epsilon": None, "claim": certificate.claim, "delta": delta, "relation": certificate.relation}
            say(json.dumps(shown) if as_json else f"No ε: claimed, not certified. {certificate.claim}")
            return
        mechanism = event_from_dict(json_table(event)) if certificate is None else certificate.event
    else:
        mechanism = SelfComposed(PoissonSampled(rate, Gaussian(noise or 0.0, _relation(relation, Relations))), steps)
    value, accountant = best_epsilon(mechanism, delta)
    if as_json:
        shown = value if value < float("inf") else None
        say(json.dumps({"epsilon": shown, "delta": delta, "accountant": accountant, "relation": relation_of(mechanism)}))
    else:
        say(f"ε = {value:.6g} at δ = {delta:g} ({accountant}, {relation_of(mechanism)})")


def _relation(value: str, kind: Any) -> Any:
    from dperm._validate import choice

    return kind(choice("--relation", value, [item.value for item in kind]))


def _account_log(delta: float, label: str | None, as_json: bool) -> None:
    from dperm.privacy import ApproximateDP, SpendLog
    from dperm.privacy.events import leaves, relation_of

    log = SpendLog.current()
    charges, totals = log.charges(label), log.total(delta, label)
    if as_json:
        shown = {str(relation): value if value < float("inf") else None for relation, value in totals.items()}
        say(json.dumps({"log": str(log.path), "charges": len(charges), "delta": delta, "epsilon": shown}))
        return
    say(f"{log.path}: {len(charges)} charges" + (f" labelled {label!r}" if label else ""))
    labels: dict[str, int] = {}
    for charge in charges:
        labels[charge.label] = labels.get(charge.label, 0) + 1
    for name, count in sorted(labels.items()):
        say(f"  {count:6d}  {name or '(no label)'}")
    if exposed := sum(not charge.private for charge in charges):
        say(f"{exposed} of them had a fixed seed and were not private at all; below they count as if their noise had been fresh.")
    for relation, value in totals.items():
        mine = [charge.event for charge in charges if relation_of(charge.event) is relation]
        spent = sum(
            leaf.delta * count for event in mine for leaf, count in leaves(event).items() if isinstance(leaf, ApproximateDP)
        )
        which = f"The {len(mine)} charged under {relation}, as if on the same records"
        if value < float("inf"):
            say(f"{which}: ε = {value:.6g} at δ = {delta:g}")
        else:
            why = f"their promises alone spend δ = {spent:g}" if spent else "at least one of them has none"
            say(f"{which}: no finite ε at δ = {delta:g}: {why}; ask with a larger --delta.")


@app.command()
def calibrate(
    epsilon: Annotated[float, typer.Option(help="Target ε.")],
    delta: Delta = 1e-5,
    rate: Annotated[float, typer.Option(help="Poisson sampling rate.")] = 1.0,
    steps: Annotated[int | None, typer.Option(help="Number of steps [default: 1].")] = None,
    noise: Annotated[float | None, typer.Option(help="Fix the noise multiplier and find the largest number of steps.")] = None,
    relation: Relation = "add_or_remove_one",
    as_json: JsonFlag = False,
) -> None:
    """Least noise for a target ε, or most steps for a given noise.

    \b
    Examples:
      dperm calibrate --epsilon 1 --rate 0.01 --steps 5000
      dperm calibrate --epsilon 1 --rate 0.01 --noise 1.1
    """
    from dperm.privacy import Gaussian, PoissonSampled, SelfComposed
    from dperm.privacy import Relation as Relations
    from dperm.privacy import calibrate as least_noise
    from dperm.privacy.accounting import best_epsilon
    from dperm.privacy.calibration import calibrate_steps

    kind = _relation(relation, Relations)

    def event(multiplier: float, count: int) -> Any:
        return SelfComposed(PoissonSampled(rate, Gaussian(multiplier, kind)), count)

    if noise is not None and steps is not None:
        raise ValueError("Expected --noise or --steps, got both: one of them is what calibration finds.")
    if noise is not None:
        count = calibrate_steps(lambda number: event(noise, number), epsilon, delta)
        if count == 0:
            raise ValueError(f"Expected a noise multiplier that allows one step at epsilon={epsilon:g}, got {noise:g}.")
        found: dict[str, Any] = {"steps": count, "noise_multiplier": noise}
    else:
        found = {"noise_multiplier": least_noise(lambda x: event(x, steps or 1), epsilon, delta), "steps": steps or 1}
    value, accountant = best_epsilon(event(found["noise_multiplier"], found["steps"]), delta)
    if as_json:
        say(json.dumps({**found, "epsilon": value, "delta": delta, "accountant": accountant}))
    else:
        shown = f"noise multiplier {found['noise_multiplier']:.6g}, {found['steps']} steps"
        say(f"{shown}: ε = {value:.6g} at δ = {delta:g} ({accountant})")


@app.command()
def card(
    model: Annotated[Path, typer.Argument(help="A model or certificate file.")],
    audit_file: Annotated[Path | None, typer.Option("--audit", help="What `dperm audit` found, to show beside it.")] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="Page to write.")] = Path("card.html"),
    verify_key: VerifyKey = None,
    as_json: JsonFlag = False,
) -> None:
    """The page for whoever signs: what was spent, on what assumptions, what an attacker could do.

    \b
    Examples:
      dperm card model.json -o card.html
      dperm card model.json --audit audit.json
    """
    from dperm.audit import results_from_json
    from dperm.cli.audit import speaks_of
    from dperm.report import write_atomically
    from dperm.report.page import card_page

    certificate = certificate_at(model, verify_key)
    if certificate is None:
        raise ValueError(f"Expected {model} to hold a model or a certificate.")
    attacks = [] if audit_file is None else results_from_json(read(audit_file))
    if any(not speaks_of(item, certificate) for item in attacks):
        raise ValueError(f"{audit_file} is about another claim than {model}.")
    page = card_page(certificate, f"{model.stem}: {certificate.mechanism}", attacks)
    write_atomically(output, page)
    if as_json:
        say(certificate.to_json())
    else:
        say(str(certificate))
        say(f"Page written to {output}.")


@app.command()
def keygen(
    path: Annotated[Path, typer.Argument(help="File for the private key; the public one goes to PATH.pub.")],
) -> None:
    """A pair of keys: the private one signs models (train --sign-key), the public one checks them (--verify-key).

    \b
    Example:
      dperm keygen signer.pem
    """
    from dperm.privacy.signing import make_key

    public = make_key(path)
    say(f"Private key in {path}: keep it to yourself. Public key in {public}: give it to whoever checks models.")


@data_app.command("list")
def list_sets(as_json: JsonFlag = False) -> None:
    """Named data sets."""
    from dperm import data

    rows = [(name, data.schema_of(name)) for name in data.named()]
    if as_json:
        say(json.dumps([{"name": name, "title": schema.title, "dimension": schema.dimension} for name, schema in rows]))
        return
    for name, schema in rows:
        say(f"{name:24s} {schema.dimension:4d} features, {len(schema.classes):2d} classes   {schema.title}")


@data_app.command()
def show(name: Annotated[str, typer.Argument(help="A named data set or a schema file.")]) -> None:
    """A schema: columns, ranges, categories, where they come from."""
    from dperm import data

    schema = data.Schema.load(name) if Path(name).is_file() else data.schema_of(name)
    say(schema.to_json().rstrip())


@data_app.command()
def propose(
    source: Annotated[Path, typer.Argument(help="A table.")],
    target: Annotated[str, typer.Option(help="Target column.")],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Schema to write [default: NAME.schema.json].")] = None,
) -> None:
    """Propose a schema by looking at the data; confirm or correct it before use.

    \b
    Example:
      dperm data propose people.csv --target income
    """
    from dperm import data
    from dperm.report import write_atomically

    name = source.name.split(".")[0]
    schema = data.propose(data.read_frame(source), target, name)
    output = output or source.with_name(f"{name}.schema.json")
    write_atomically(output, schema.to_json())
    ignored = [column.name for column in schema.columns if column.type == "ignore"]
    say(f"{output}: {schema.dimension} features from {len(schema.columns) - 1} columns.")
    if ignored:
        say(f"Ignored (one value, or too many different texts): {', '.join(ignored)}.")
    say("This looked at the data: replace its ranges, categories and labels by publicly known ones, then set")
    say('"proposed" to false. Until then certificates say that they were read off the data.')


@data_app.command("check")
def check_table(
    source: Annotated[str, typer.Argument(help="A table or a named data set.")],
    schema: Annotated[Path | None, typer.Option(help="The schema it should fit.")] = None,
) -> None:
    """Does a table fit its schema? Says so to the data holder; releases nothing."""
    dataset, _ = dataset_of(source, None, schema)
    say(f"{source} fits: {len(dataset)} records, {dataset.features.shape[1]} features, {len(dataset.classes)} classes.")


class _InterruptedByUser(BaseException):
    """Ctrl-C, as an exception that the command-line framework passes on."""


def main() -> None:
    """Run a command. Exit codes: 0 done, 1 refused or failed with one line saying why, 2 misused, 130 interrupted."""
    import signal
    import warnings

    def interrupt(*_: object) -> None:
        raise _InterruptedByUser

    signal.signal(signal.SIGINT, interrupt)
    warnings.showwarning = lambda message, *_: warn(str(message))
    try:
        app(standalone_mode=True)
    except _InterruptedByUser:
        sys.stderr.write("interrupted: nothing half-written was left; what was charged stays charged\n")
        raise SystemExit(130) from None
    except (ValueError, TypeError, OSError, RuntimeError, MemoryError) as error:
        if os.environ.get("DPERM_TRACEBACK"):
            raise
        sys.stderr.write(f"error: {str(error) or type(error).__name__}\n")
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
