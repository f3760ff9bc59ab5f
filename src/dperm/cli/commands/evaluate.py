"""How good a model is on test records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from dperm.cli.shared import JsonFlag, VerifyKey, read, say

__all__ = ["register"]

_MODES = {
    "public": "The test records are public: these numbers may be shown.",
    "private": "PRIVATE, for the data holder only: no noise hides what these numbers say of the test records.",
}


def evaluate(
    model: Annotated[Path, typer.Argument(help="A model written by `dperm train`.")],
    source: Annotated[str, typer.Argument(help="Test records with their target: none that the model was trained on.")],
    test_data: Annotated[str, typer.Option(help="public: the numbers may be shown; private: they are the data holder's alone.")],
    by: Annotated[str | None, typer.Option(help="A column of the table: scores of each of its values, too.")] = None,
    verify_key: VerifyKey = None,
    as_json: JsonFlag = False,
) -> None:
    """How good a model is on test records: accuracy, recall of each class, AUC, calibration; R² and errors of numbers. Exact, and
    nothing is charged: of private records the numbers are for their holder alone.

    \b
    Example:
      dperm evaluate model.json test.csv --test-data private
      dperm evaluate model.json test.csv --test-data public --by ward
    """
    from dperm import data
    from dperm._validate import choice
    from dperm.data.entries import texts
    from dperm.estimators import model_from_json

    choice("--test-data", test_data, _MODES)
    loaded: tuple[Any, dict[str, Any]] = model_from_json(read(model), verify_key=verify_key)
    fitted, extra = loaded
    if extra.get("schema"):
        schema = data.Schema.from_dict(extra["schema"])
        named = source in data.named() and not Path(source).exists()
        if named and by is not None:
            raise ValueError(f"Expected a file with --by, got the named set {source}.")
        frame = None if named else data.read_frame(source, schema)
        dataset = data.load(source, schema) if frame is None else data.Dataset.of(frame, schema)
    else:
        frame, (dataset, _) = None, data.read_dataset(source)
    groups = None
    if by is not None:
        if frame is None or by not in frame.columns:
            known = [] if frame is None else list(frame.columns[:12])
            raise ValueError(f"Expected --by one of the columns {known}, got {by!r}.")
        groups = texts(frame[by].iloc[dataset.places], ()).fillna("(missing)").astype(str).to_numpy()
    whole = _judged(fitted, dataset.features, dataset.targets, extra)
    parts: dict[str, Any] = {}
    if groups is not None:
        names = sorted(set(groups))
        if len(names) > 50:
            raise ValueError(f"Expected --by a column of at most 50 values, got {len(names)} in {by!r}.")
        parts = {
            name: _judged(fitted, dataset.features[groups == name], dataset.targets[groups == name], extra) for name in names
        }
    if as_json:
        found = {"test_data": test_data, **whole.to_dict()}
        say(json.dumps(found if by is None else {**found, "by": {name: part.to_dict() for name, part in parts.items()}}))
        return
    say(_MODES[test_data])
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
