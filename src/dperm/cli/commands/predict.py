"""Predict with a trained model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from dperm.cli.shared import JsonFlag, VerifyKey, read, refuse_same, say, told

__all__ = ["register"]


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

    refuse_same(model, source, output)
    loaded: tuple[Any, dict[str, Any]] = model_from_json(read(model), verify_key=verify_key)  # of any kind
    fitted, extra = loaded
    if extra.get("schema"):
        schema = data.Schema.from_dict(extra["schema"])
        if source in data.named() and not Path(source).exists():
            features, kept = data.load(source, schema).features, None
        else:
            frame = data.read_frame(source, schema)
            if not as_json:
                say(told(Path(source).name, frame))
            features, kept = schema.encode_features(frame)
    else:
        features, kept = data.read_dataset(source)[0].features, None
    answers = fitted.predict(features)
    if extra.get("target_range"):
        answers = data.TargetRange(*extra["target_range"]).restored(answers)
    table = pd.DataFrame({"prediction": answers})
    if hasattr(fitted, "predict_proba"):
        for name, column in zip(fitted.classes_, fitted.predict_proba(features).T, strict=True):
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


def register(app: typer.Typer) -> None:
    app.command()(predict)
