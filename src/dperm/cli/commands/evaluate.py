"""How good a model is on test records."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Annotated, Any

import typer

from dperm.cli.printing import say, say_json
from dperm.cli.shared import (
    Delta,
    JsonFlag,
    OnError,
    Relation,
    VerifyKey,
    keep,
    read,
    refuse_same,
    reserved,
    told_kept,
    told_of_rows,
    uninterrupted,
    wrong_rows,
)

_MODES = {
    "public": "The test records are public: these numbers may be shown.",
    "private": "PRIVATE, for the data holder only: no noise hides what these numbers say of the test records.",
    "released": "With noise, and charged: these numbers may be published.",
}
_MOST_GROUPS = 50


def evaluate(
    model: Annotated[Path, typer.Argument(help="A model written by `dperm train`.")],
    source: Annotated[str, typer.Argument(help="Test records with their target: none that the model was trained on.")],
    test_data: Annotated[
        str,
        typer.Option(
            help="public: the numbers may be shown; private: they are the data holder's alone; released: with noise, within "
            "--epsilon, which is charged."
        ),
    ],
    on_error: OnError = "fail",
    by: Annotated[str | None, typer.Option(help="A column of the table: scores of each of its values, too.")] = None,
    epsilon: Annotated[float | None, typer.Option(help="With --test-data released: what the numbers may cost.")] = None,
    delta: Delta = 1e-5,
    relation: Relation = "add_or_remove_one",
    output: Annotated[
        Path, typer.Option("--output", "-o", help="With --test-data released: the numbers and their certificate, as JSON.")
    ] = Path("scores.json"),
    verify_key: VerifyKey = None,
    as_json: JsonFlag = False,
) -> None:
    """How good a model is on test records: accuracy, recall of each class, AUC, calibration; R² and errors of numbers. Exact, and
    nothing is charged: of private records the numbers are for their holder alone. Or from noisy counts, charged, for everybody.

    \b
    Example:
      dperm evaluate model.json test.csv --test-data private
      dperm evaluate model.json test.csv --test-data public --by ward
      dperm evaluate model.json test.csv --test-data released --epsilon 0.5
    """
    from dperm import data
    from dperm._rounding import upward
    from dperm._validate import choice
    from dperm.data.schema.entries import texts
    from dperm.data.schema.row_faults import row_faults
    from dperm.estimators import model_from_json

    choice("--test-data", test_data, _MODES)
    choice("--on-error", on_error, ("fail", "skip"))
    released = test_data == "released"
    if released != (epsilon is not None):
        raise ValueError("Expected --epsilon with --test-data released, and only there: what the numbers may cost.")
    file = None
    if released:
        refuse_same(model, source, output)
        file = reserved(output, paid_for=True)
    loaded: tuple[Any, dict[str, Any]] = model_from_json(read(model), verify_key=verify_key)
    fitted, extra = loaded
    wrong: dict[int, str] = {}
    if extra.get("schema"):
        schema = data.Schema.from_dict(extra["schema"])
        named = source in data.named() and not Path(source).exists()
        if named and by is not None:
            raise ValueError(f"Expected a file with --by, got the named set {source}.")
        frame = None if named else data.read_frame(source, schema)
        if frame is not None:
            wrong = wrong_rows(row_faults(schema, frame), len(frame), schema, on_error)
            frame = frame.drop(index=frame.index[list(wrong)])
        dataset = data.load(source, schema) if frame is None else data.Dataset.of(frame, schema)
    else:
        schema, frame, (dataset, _) = None, None, data.read_dataset(source, indices=extra.get("indices"))
    left_out = [f"Left out: {len(wrong):,}. Row {row + 1}: {why}." for row, why in [*wrong.items()][:1]]
    groups = None
    if by is not None:
        if frame is None or by not in frame.columns:
            known = [] if frame is None else list(frame.columns[:12])
            raise ValueError(f"Expected --by one of the columns {known}, got {by!r}.")
        told = frame[by] if dataset.places is None else frame[by].iloc[dataset.places]
        groups = texts(told, ()).fillna("(missing)").astype(str).to_numpy()
    if file is not None:
        found = _released(fitted, dataset, schema, groups, by, extra, float(epsilon or 0.0), delta, relation)
        with uninterrupted():
            kept = keep(file, json.dumps(found, indent=2, ensure_ascii=False))
        if as_json:
            say_json(json.dumps(found))
            return
        who = found["of"]
        if frame is not None and schema is not None:
            told_of_rows(frame, schema, left_out=left_out)
        say(_MODES[test_data])
        say(f"About {found['records']:,} {who}. Half-widths of 95 % intervals are for the noise alone.")
        for name, value in {
            **found["scores"],
            **{f"recall of {name}": value for name, value in found["recalls"].items()},
        }.items():
            width = found["half_widths"].get(name)
            told = "hidden by the noise" if value is None else f"{value:8.3f}" + ("" if width is None else f" ± {width:.3f}")
            say(f"  {name:24s} {told}")
        for name, part in found.get("by", {}).items():
            first, value = next(iter(part["scores"].items()))
            width = part["half_widths"].get(first)
            score = "hidden by the noise" if value is None else f"{first} {value:.3f} ± {width:.3f}"
            say(f"  {by} = {name}: {score} of about {part['records']:,} {who}")
        cost = found["certificate"]
        price = f"epsilon = {upward(cost['epsilon'])} at delta = {upward(cost['delta'], 2)}"
        say(f"They cost {price}, charged to {dataset.name!r}; see {output}.{told_kept(kept)}")
        return
    whole = _judged(fitted, dataset.features, dataset.targets, extra)
    parts: dict[str, Any] = {}
    if groups is not None:
        names = sorted(set(groups))
        if len(names) > _MOST_GROUPS:
            raise ValueError(f"Expected --by a column of at most {_MOST_GROUPS} values, got {len(names)} in {by!r}.")
        parts = {
            name: _judged(fitted, dataset.features[groups == name], dataset.targets[groups == name], extra) for name in names
        }
    if as_json:
        found = {"test_data": test_data, **whole.to_dict()}
        say_json(json.dumps(found if by is None else {**found, "by": {name: part.to_dict() for name, part in parts.items()}}))
        return
    say(_MODES[test_data])
    if frame is not None and schema is not None:
        told_of_rows(frame, schema, public=test_data == "public", left_out=left_out)
    say(f"{whole.records:,} records.")
    for name, value in whole.scores.items():
        say(f"  {name:24s} {value:8.3f}")
    for name, value in whole.recalls.items():
        say(f"  {'recall of ' + name:24s} {value:8.3f}")
    for name, part in parts.items():
        first = next(iter(part.scores))
        say(f"  {by} = {name}: {first} {part.scores[first]:.3f} of {part.records:,} records")
    for warning in whole.warnings:
        say(f"Warning: {warning}")


def _released(
    fitted: Any,
    dataset: Any,
    schema: Any,
    groups: Any,
    by: str | None,
    extra: dict[str, Any],
    epsilon: float,
    delta: float,
    relation: str,
) -> dict[str, Any]:
    """Noisy scores, JSON-ready, with their certificate. ValueError, before the charge, for groups that are not public."""
    import numpy as np

    from dperm.data import TargetRange
    from dperm.report.released import release_class_scores, release_number_scores

    if schema is not None and schema.proposed:
        raise ValueError(
            "Expected a model by a confirmed schema with released scores: its classes and ranges were read off the data."
        )
    given: dict[str, Any] = {"epsilon": epsilon, "delta": delta, "relation": relation, "label": dataset.name}
    given["persons"] = dataset.groups
    answers = _one_by_one(fitted.predict, dataset.features)
    if not hasattr(fitted, "classes_"):
        if by is not None:
            raise ValueError("Expected no --by with released scores of numbers.")
        if schema is None or not extra.get("target_range"):  # of arrays it was read off the data
            raise ValueError("Expected a model of a table with a schema: the public range of its target bounds the errors.")
        bounds = TargetRange(*extra["target_range"])
        found = release_number_scores(np.asarray(dataset.targets, dtype=np.float64), bounds.restored(answers), bounds, **given)
    else:
        classes = [str(label) for label in fitted.classes_]
        number = {label: place for place, label in enumerate(classes)}
        truth = [number.get(str(label), -1) for label in dataset.targets]
        if -1 in truth:
            raise ValueError(f"Expected the model's labels {classes[:8]}, got {str(dataset.targets[truth.index(-1)])!r}.")
        if by is not None:
            names, groups = _public_groups(schema, by, groups)
            given |= {"groups": groups, "group_names": names}
        likely = None
        if hasattr(fitted, "predict_proba") and len(classes) == 2:
            likely = _one_by_one(fitted.predict_proba, dataset.features)[:, 1]
        places = np.array([number[str(label)] for label in answers])
        found = release_class_scores(np.array(truth), places, likely, classes, **given)
    told: dict[str, Any] = {"test_data": "released", **found.whole.to_dict()}
    told["half_widths"] = _shown(found.widths)
    told["of"] = "records" if dataset.groups is None else "persons"
    if found.parts:
        told["by"] = {
            name: {**part.to_dict(), "half_widths": _shown(found.part_widths[name])} for name, part in found.parts.items()
        }
    return told | {"certificate": json.loads(found.certificate.to_json())}


def _shown(widths: dict[str, float]) -> dict[str, float | None]:
    """JSON-ready."""
    return {name: width if math.isfinite(width) else None for name, width in widths.items()}


def _one_by_one(answer: Any, rows: Any) -> Any:
    """Answers to rows, each computed by itself: of many at once, last bits may depend on how many there are."""
    import numpy as np

    return np.concatenate([answer(rows[place : place + 1]) for place in range(rows.shape[0])])


def _public_groups(schema: Any, by: str, groups: Any) -> tuple[list[str], Any]:
    """The values of a column that the schema states, others and missing ones as one each, and which of them each record has."""
    import numpy as np

    column = next((column for column in schema.columns if column.name == by and column.type == "category"), None)
    if column is None:
        known = [column.name for column in schema.columns if column.type == "category"]
        raise ValueError(f"Expected --by one of the schema's categories {known}, whose values are public, got {by!r}.")
    names = [*column.categories, "(other or missing)"]
    place = {name: number for number, name in enumerate(column.categories)}
    return names, np.array([place.get(value, len(column.categories)) for value in groups])


def _judged(fitted: Any, features: Any, targets: Any, extra: dict[str, Any]) -> Any:
    import numpy as np

    from dperm.data import TargetRange
    from dperm.report.judging import judge_classes, judge_numbers

    answers = fitted.predict(features)
    if not hasattr(fitted, "classes_"):
        if extra.get("target_range"):
            answers = TargetRange(*extra["target_range"]).restored(answers)
        return judge_numbers(np.asarray(targets, dtype=np.float64), answers)
    classes = list(fitted.classes_)
    targets = np.asarray(targets)
    if strange := sorted(set(np.unique(targets)) - set(classes))[:5]:
        raise ValueError(f"Expected the model's labels {list(map(str, classes))[:8]}, got {list(map(str, strange))}.")
    probabilities = fitted.predict_proba(features) if hasattr(fitted, "predict_proba") else None
    weighted = getattr(fitted, "class_weight", None) is not None
    return judge_classes(targets, answers, probabilities, classes, weighted=weighted)


def register(app: typer.Typer) -> None:
    app.command()(evaluate)
