"""A trained model as ONNX."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from dperm.cli.command_files import JsonFlag
from dperm.cli.files import reserved
from dperm.cli.printing import say, say_json
from dperm.jobs.files import SavedModel, refuse_same
from dperm.jobs.options import VerifyKey


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    model: Annotated[Path, typer.Argument(help="A linear model written by `dperm train`.")]
    output: Annotated[Path, "ONNX file to write."] = Path("model.onnx")
    verify_key: VerifyKey = None
    as_json: JsonFlag = False


def export(asked: ExportOptions) -> None:
    """Write a trained linear model as ONNX, for programs without Python. Costs no privacy: it holds what the model's file does.

    \b
    Example:
      dperm export model.json -o model.onnx
    """
    from dperm._extras import require
    from dperm._rounding import upward
    from dperm.estimators.onnx_models import model_to_onnx

    require("skl2onnx", "dperm export")
    refuse_same(asked.model, asked.output)
    saved = SavedModel.at(asked.model, asked.verify_key)
    fitted, schema = saved.fitted, saved.schema
    if not hasattr(fitted, "coef_"):
        raise ValueError(f"Expected a linear model, got {type(fitted).__name__}: PyTorch exports its networks itself.")
    certificate = fitted.certificate_
    names = [f"feature {number}" for number in range(fitted.n_features_in_)] if schema is None else list(schema.features)
    claim = "claimed, not certified" if certificate.epsilon is None else f"epsilon = {upward(certificate.epsilon)}"
    notes = {
        "dperm privacy": f"{claim} at delta = {upward(certificate.delta, 2)}, when {certificate.neighbours}",
        "dperm model sha256": saved.sha256,
        "dperm features": json.dumps(names, ensure_ascii=False),
    }
    file = reserved(asked.output)
    file.write(model_to_onnx(fitted, schema, target_range=saved.target_range, notes=notes))
    if asked.as_json:
        say_json({"output": str(asked.output), "features": names, "model_sha256": saved.sha256})
        return
    encoded = "rows" if schema is None else "rows as the schema encodes them (TableEncoder)"
    say(f'Written to {asked.output}: its input "features" takes {encoded}, of {len(names)} numbers, which its notes name.')
    say("The certificate stays with the model's file, by whose SHA-256 the notes name it.")
