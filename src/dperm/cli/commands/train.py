"""Train one private model."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from typing import Annotated, Any

import typer

from dperm.cli.shared import (
    Advantage,
    Delta,
    FalsePositives,
    JsonFlag,
    Posterior,
    Prior,
    Relation,
    TruePositives,
    dataset_of,
    keep,
    kept_aside,
    probe_writable,
    refuse_same,
    say,
    stated_budget,
    told_to_holder,
)

__all__ = ["register"]

_LOOKED = 10_000  # records
_WIDEST = 65_536  # hidden layer


def train(
    source: Annotated[str, typer.Argument(help="A file (CSV, Parquet, Arrow, NumPy, libsvm) or a named data set.")],
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
    data_norm: Annotated[float, typer.Option(help="Public bound on a row's L2 norm; longer rows are scaled down.")] = 1.0,
    public_size: Annotated[int | None, typer.Option(help="Publicly known number of records, if it is public.")] = None,
    accept_proposed: Annotated[
        bool, typer.Option(help="Train on ranges and categories read off the data; the certificate says so.")
    ] = False,
    output: Annotated[Path, typer.Option("--output", "-o", help="Model file to write.")] = Path("model.json"),
    sign_key: Annotated[Path | None, typer.Option(help="Private key that signs the model (see `dperm keygen`).")] = None,
    private_report: Annotated[
        Path | None, typer.Option(help="With --mechanism individual: a page of what each record has spent. PRIVATE.")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Train one private model and write it with its certificate.

    \b
    Example:
      dperm train people.csv --schema people.schema.json --epsilon 1 -o model.json
      dperm train people.csv --schema people.schema.json --advantage 0.1 -o model.json
    """
    import numpy as np

    from dperm._validate import choice
    from dperm.data import Schema
    from dperm.data.knots import usual_knots
    from dperm.estimators import DPLinearSVC, DPLogisticRegression, DPMLPClassifier, DPRidge, model_to_json
    from dperm.mechanisms import Gradient, known_methods
    from dperm.mechanisms.gradient import SAMPLINGS
    from dperm.privacy.signing import sign
    from dperm.privacy.statements import labels

    kinds: dict[str, Any] = {"logistic": DPLogisticRegression, "svm": DPLinearSVC, "ridge": DPRidge, "mlp": DPMLPClassifier}
    choice("--model", model, kinds)
    network = model == "mlp"
    if network and any(importlib.util.find_spec(name) is None for name in ("torch", "safetensors")):
        raise ValueError("Expected PyTorch and safetensors with --model mlp: pip install 'dperm[torch]'.")
    widths = _widths(hidden)
    if hidden is not None and not network:
        raise ValueError(f"Expected --model mlp with --hidden, got --model {model}, which has no layers.")
    if network and (class_weight is not None or mechanism not in ("auto", "gradient") or data_norm != 1.0):
        raise ValueError(
            "Expected --model mlp without --class-weight and --data-norm, by --mechanism gradient: others need convexity."
        )
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

    def knots(found: Schema) -> int:
        if curves is not None:
            return curves
        if network and not found.curves:
            return 0
        asked = budget if isinstance(budget, float | int) else 1.0
        return found.curves or usual_knots(found, asked, delta, public_size)

    dataset, used = dataset_of(source, target, schema, knots)
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
        used.found_by(relation, delta)  # refused here, before anything is charged
    options: dict[str, Any] = {
        "epsilon": budget,
        "delta": delta,
        "relation": relation,
        "data_norm": data_norm,
        "public_size": public_size,
        "mechanism": mechanism,
        "label": dataset.name,
    }
    choice("--mechanism", mechanism, known_methods())
    if sampling is not None:
        choice("--sampling", sampling, SAMPLINGS)
        if mechanism != "gradient" and not network:
            raise ValueError(f"Expected --mechanism gradient with --sampling {sampling}: other mechanisms draw no batches.")
        options["mechanism"] = Gradient(sampling=sampling)
    if dataset.groups is not None:
        options["person_rows"] = dataset.person_rows
    targets = dataset.targets
    if network:
        del options["data_norm"]
        options["hidden_layer_sizes"] = widths
        options["mechanism"] = Gradient() if sampling is None else Gradient(sampling=sampling)
        if dataset.absent and (relation == "replace_one" or public_size is not None):
            raise ValueError(
                f"Expected no records to leave out for --model mlp where their number is public, got {dataset.absent:,}: without "
                'a label, or with gaps, which "missing": "middle" or "separate" in the schema keeps.'
            )
        if sampling == "rows" and dataset.groups is None:
            raise ValueError("Expected a schema with a unit with --sampling rows: without one each row is a person.")
        if not isinstance(dataset.features, np.ndarray):
            raise ValueError(f"Expected dense features with --model mlp, got those of {source}, which are sparse.")
    if class_weight is not None and not dataset.classes:
        raise ValueError("Expected labels as target with --class-weight, got numbers.")
    if model == "ridge":
        if dataset.target_range is None:
            raise ValueError(
                f"Expected numbers as target for --model ridge, got the labels {list(dataset.classes)[:5]}. "
                "A schema says so: `dperm data propose --task regression` makes one."
            )
        targets = dataset.target_range.scaled(targets)
    elif not dataset.classes:
        raise ValueError(f"Expected labels as target for --model {model}, got numbers; use --model ridge.")
    else:
        options["classes"] = list(dataset.classes)
        if not network:
            options["neighbours"] = list(dataset.neighbours) or None
            options["class_weight"] = _weights(class_weight)
    probe_writable(output)
    if not as_json:
        told_to_holder(dataset, None if network else data_norm, delta, public_size)
    if private_report is not None:
        if mechanism != "individual" or public_size is None or len(dataset.classes) > 2:
            raise ValueError(
                "Expected --mechanism individual, --public-size and at most two classes with --private-report: other runs keep "
                "no account of records."
            )
        probe_writable(private_report)
    if sign_key is not None:
        sign("", sign_key)  # an unusable key, before the charge
    if network and not as_json:
        say("Training a network: this can take minutes.\n")
    absent = {} if network else {"absent": dataset.absent}
    with kept_aside(output) as kept:
        fitted = kinds[model](**options).fit(dataset.features, targets, groups=dataset.groups, **absent)
    if used is None and dataset.target_range is None:
        fitted.certificate_ = fitted.certificate_.with_assumptions(labels(None, stated=False))
    fitted.certificate_ = dataset.certified(fitted.certificate_)
    extra: dict[str, Any] = {
        "schema": json.loads(used.without_notes().to_json()) if used else None,
        "target_range": dataset.target_range,
    }
    keep(output, model_to_json(fitted, extra, sign_key=sign_key))
    if private_report is not None:
        from dperm.report import write_atomically
        from dperm.report.individual import Spending, spending_page

        found = Spending.of(fitted.private_trace_[0]["spent_by_record"], fitted.certificate_)
        write_atomically(private_report, spending_page(found, fitted.certificate_, dataset.title or dataset.name))
    if not as_json and len(set(fitted.predict(dataset.features[:_LOOKED]))) == 1 and len(dataset) > 1:
        say("Warning, for the data holder alone: it gives the same answer for all of the first records that it was trained on.")
        say("A larger epsilon, more records, or fewer columns would help; nothing more can be got from this one.\n")
    if as_json:
        say(fitted.certificate_.to_json())
    else:
        if private_report is not None:
            say(f"PRIVATE, for the data holder only: {private_report}.")
        say(fitted.certificate_.brief())
        if used is not None and used.curves and not network:
            say(f"Each number has a curve of {used.curves} knots: see them by `dperm effects {output}`.")
        if used is not None and used.pairs and not used.curves:
            say("Its numbers have straight lines, and pairs of columns are left out with curves: --curves says how many knots.")
        say(f"Model written to {output}." + (f" What was there is kept as {kept}." if kept else ""))


def _widths(given: str | None) -> list[int]:
    """ "64,32" as widths of layers."""
    parts = "32" if given is None else given
    if not re.fullmatch(r"\s*\d+\s*(,\s*\d+\s*)*", parts):
        raise ValueError(f"Expected --hidden as widths of layers, such as 64,32, got {given!r}.")
    widths = [int(part) for part in parts.split(",")]
    if not 1 <= min(widths) <= max(widths) <= _WIDEST:
        raise ValueError(f"Expected --hidden as widths from 1 to {_WIDEST:,}, got {given!r}.")
    return widths


def _weights(given: str | None) -> dict[str, float] | None:
    """ "no=1,yes=4" as weights by label."""
    if given is None or given == "balanced":
        return given  # pyright: ignore[reportReturnType]  # refused by name
    weights: dict[str, float] = {}
    for part in given.split(","):
        label, equals, weight = part.rpartition("=")
        try:
            weights[label.strip()] = float(weight)
        except ValueError:
            equals = ""
        if not equals:
            raise ValueError(f"Expected --class-weight such as no=1,yes=4, got {given!r}.")
    return weights


def register(app: typer.Typer) -> None:
    app.command()(train)
