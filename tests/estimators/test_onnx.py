"""A fitted linear model as ONNX answers as it does, in single precision, also rows beyond data_norm."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import is_classifier

from dperm.data import Dataset, Schema
from dperm.estimators import DPLinearSVC, DPLogisticRegression, DPMLPClassifier, DPOrdinalClassifier, model_from_json
from dperm.estimators.onnx_models import model_to_onnx
from dperm.mechanisms import Gradient, Objective, Output
from helpers.commands import dperm
from helpers.estimators import learnable, linear_estimators, made

runtime = pytest.importorskip("onnxruntime")
pytest.importorskip("skl2onnx")


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of small data, and of libraries that use each other's older names
        yield


def answered(content: bytes, rows: Any) -> dict[str, Any]:
    session = runtime.InferenceSession(content, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, {"features": np.asarray(rows, dtype=np.float32)}), strict=True))


def fitted(kind: type, classes: int = 2, **settings: Any) -> tuple[Any, Any]:
    X, y = learnable(kind, 60, classes=classes)
    known = [f"class {number}" for number in range(classes)] if is_classifier(made(kind)) else None
    given = {"epsilon": 50.0, "public_size": 60, "classes": known, "data_norm": 0.7, "radius": 2.0} | settings
    targets = y if known is None else np.array(known)[y]
    return made(kind, **given).fit(X, targets), np.vstack([X, 50 * X[:20], np.zeros((1, X.shape[1]))])


PLAIN = [kind for kind in linear_estimators() if kind is not DPOrdinalClassifier]


@pytest.mark.parametrize("kind", PLAIN, ids=lambda kind: kind.__name__)
def test_every_linear_estimator_as_onnx(kind: type) -> None:
    model, rows = fitted(kind)
    found = answered(model_to_onnx(model), rows)
    if is_classifier(model):
        sure = np.abs(model.decision_function(rows)) > 1e-4 if hasattr(model, "decision_function") else slice(None)
        assert np.array_equal(found["label"][sure], model.predict(rows)[sure])
        if hasattr(model, "predict_proba"):
            np.testing.assert_allclose(found["probabilities"], model.predict_proba(rows), atol=1e-5)
    else:
        np.testing.assert_allclose(found["variable"][:, 0], model.predict(rows), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("mechanism", "classes"), [(Objective(margin=0), 2), (Objective(margin=2.0), 3), (Output(), 4), (Gradient(epochs=3), 3)]
)
def test_probabilities_of_every_form(mechanism: Any, classes: int) -> None:
    model, rows = fitted(DPLogisticRegression, classes, mechanism=mechanism)
    found = answered(model_to_onnx(model), rows)
    np.testing.assert_allclose(found["probabilities"], model.predict_proba(rows), atol=2e-5)
    svc, rows = fitted(DPLinearSVC, classes)
    assert np.mean(answered(model_to_onnx(svc), rows)["label"] == svc.predict(rows)) > 0.95


def test_the_command_takes_a_schema_s_model_and_names_its_features(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"age": rng.uniform(0, 100, 400).round(1), "ward": rng.choice(["a", "b"], 400)})
    frame["pay"] = (1000 + 20 * frame.age).round(1)
    frame.to_csv(tmp_path / "t.csv", index=False)
    columns = [
        {"name": "age", "type": "number", "range": [0, 100]},
        {"name": "ward", "type": "category", "categories": ["a", "b"]},
    ]
    table = {"name": "t", "target": "pay", "columns": [*columns, {"name": "pay", "type": "label", "range": [1000, 4000]}]}
    (tmp_path / "s.json").write_text(json.dumps(table))
    model, file = tmp_path / "m.json", tmp_path / "m.onnx"
    dperm("train", tmp_path / "t.csv", "--schema", tmp_path / "s.json", "--epsilon", "50", "-o", model)
    told = dperm("export", model, "-o", file).stdout
    assert "as the schema encodes them" in told
    fit, extra = model_from_json(model.read_text())
    schema = Schema.from_dict(extra["schema"])
    rows = Dataset.of(frame, schema).features
    expected = schema.target_range.restored(fit.predict(rows))  # pyright: ignore[reportOptionalMemberAccess]
    np.testing.assert_allclose(answered(file.read_bytes(), rows)["variable"][:, 0], expected, rtol=1e-4)
    session = runtime.InferenceSession(file.read_bytes(), providers=["CPUExecutionProvider"])
    notes = session.get_modelmeta().custom_metadata_map
    assert json.loads(notes["dperm features"]) == list(schema.features) and notes["dperm privacy"].startswith("epsilon = 50")
    assert json.loads(dperm("export", model, "-o", file, "--json").stdout)["model_sha256"] == notes["dperm model sha256"]


def test_other_models_are_refused() -> None:
    with pytest.raises(TypeError, match="Expected a linear estimator"):
        model_to_onnx(DPMLPClassifier())  # pyright: ignore[reportArgumentType]
