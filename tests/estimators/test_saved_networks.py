"""Networks as files: saved, loaded, trained by the command; nothing in a file is believed."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from dperm.estimators import DPMLPClassifier, DPTorchClassifier, model_from_json, model_to_json
from dperm.mechanisms import Gradient
from dperm.privacy import Risk
from dperm.privacy.certificates.signing import digest_of
from dperm.release import SpendLog
from helpers.commands import dperm

RNG = np.random.default_rng(0)
X = RNG.normal(size=(200, 3))
Y = np.where(X[:, 0] > 0, "yes", "no")


def fitted(**settings: Any) -> DPMLPClassifier:
    given = {"epsilon": 5.0, "classes": ["no", "yes"], "mechanism": Gradient(epochs=2), "random_state": 0, "public_size": 200}
    return DPMLPClassifier((4, 3), **(given | settings)).fit(X, Y)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DPERM_SPEND_LOG", str(tmp_path_factory.mktemp("log") / "spend.db"))
        return model_to_json(fitted(), {"schema": None})


@pytest.mark.parametrize("precision", [np.float32, np.float64])
def test_what_is_loaded_is_what_was_saved(precision: Any) -> None:
    rows = X.astype(precision)
    model = DPMLPClassifier(
        (4, 3),
        activation="gelu",
        epsilon=Risk(advantage=0.3),
        classes=["no", "yes"],
        mechanism=Gradient(epochs=2),
        public_size=len(Y),
    )
    model.fit(rows, Y)
    before = torch.random.get_rng_state()
    again, extra = model_from_json(model_to_json(model, {"target_range": None}))
    assert extra == {"target_range": None} and isinstance(again, DPMLPClassifier)
    assert np.array_equal(again.predict_proba(rows), model.predict_proba(rows))
    assert again.predict(rows).tolist() == model.predict(rows).tolist()
    assert (again.certificate_, again.history_) == (model.certificate_, model.history_)
    assert (again.hidden_layer_sizes, again.activation, str(again.mechanism)) == ([4, 3], "gelu", str(model.mechanism))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert model_from_json(model_to_json(again))[0].certificate_ == model.certificate_  # saved again


def test_settings_are_those_of_the_fit() -> None:
    model = fitted()
    model.hidden_layer_sizes = (9,)
    again, _ = model_from_json(model_to_json(model))
    assert again.hidden_layer_sizes == [4, 3]


def changed(text: str, **entries: Any) -> str:
    """A file with other entries, and a digest that fits: its writer is not trusted."""
    data = json.loads(text)
    data.pop("digest")
    for name, value in entries.items():
        data[name] = data[name] | value if isinstance(value, dict) else value
    return json.dumps({**data, "digest": digest_of(data)})


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"weights": "no base 64!"}, "its weights cannot be used"),
        ({"weights": base64.b64encode(b"no tensors").decode()}, "its weights cannot be used"),
        ({"settings": {"hidden_layer_sizes": [4]}}, "its weights cannot be used"),
        ({"settings": {"hidden_layer_sizes": [10**12]}}, "hidden_layer_sizes up to 1,000,000"),
        ({"features": 7}, "its weights cannot be used"),
        ({"classes": ["a", "b", "c"]}, "its weights cannot be used"),
        ({"classes": "ab"}, "classes as a list"),
        ({"classes": ["a", "a"]}, "two distinct classes"),
        ({"classes": ["a", None]}, "classes as a list"),
        ({"settings": {"hidden_layer_sizes": [1] * 40_000}}, "a list of at most 100 widths"),
        ({"kind": "DPTorchClassifier"}, "DPTorchClassifier"),
        ({"extra": []}, "extra to be a table"),
        ({"certificate": {"epsilon": 0.01}}, "its digest is another"),
    ],
)
def test_files_that_do_not_fit_are_refused(text: str, entries: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        model_from_json(changed(text, **entries))


def test_a_file_of_endless_depth_is_none() -> None:
    with pytest.raises(ValueError, match="no JSON"):
        model_from_json("[" * 200_000)


def test_weights_that_are_not_finite_are_neither_saved_nor_loaded(text: str) -> None:
    from safetensors.torch import load, save

    model = fitted()
    with torch.no_grad():
        next(model.module_.parameters())[0, 0] = float("nan")
    with pytest.raises(ValueError, match="this training diverged"):
        model_to_json(model)
    tensors = load(base64.b64decode(json.loads(text)["weights"]))
    for wrong in (float("inf"), None):
        odd = {name: tensor.int() if wrong is None else tensor * wrong for name, tensor in tensors.items()}
        with pytest.raises(ValueError, match=r"finite weights of one floating-point type|its weights cannot be used"):
            model_from_json(changed(text, weights=base64.b64encode(save(odd)).decode()))


def test_a_module_of_one_s_own_is_saved_by_torch() -> None:
    from torch import nn

    model = DPTorchClassifier(nn.Linear, epsilon=5.0, classes=["no", "yes"], mechanism=Gradient(epochs=2)).fit(X, Y)
    with pytest.raises(TypeError, match="save the weights by torch"):
        model_to_json(model)


def test_the_command_trains_networks_and_the_others_use_them(tmp_path: Path) -> None:
    table, schema, model = (tmp_path / name for name in ("t.csv", "t.schema.json", "m.json"))
    frame = pd.DataFrame({"age": RNG.integers(18, 90, 400), "ward": RNG.choice(list("abc"), 400)})
    frame.assign(ill=np.where(frame["age"] > 60, "yes", "no")).to_csv(table, index=False)
    dperm("data", "propose", table, "--target", "ill", "-o", schema)
    dperm("data", "confirm", schema)
    train = ("train", table, "--schema", schema, "--model", "mlp", "--hidden", "8", "--epsilon", 20, "-o", model)
    assert "For the data holder alone: 400 records" in dperm(*train).stdout
    assert len(SpendLog.current().charges()) == 1
    dperm("predict", model, table, "-o", tmp_path / "a.csv")
    assert len(pd.read_csv(tmp_path / "a.csv")) == 400
    scores = json.loads(dperm("evaluate", model, table, "--test-data", "private", "--json").stdout)["scores"]
    assert scores["accuracy"] > 0.6
    dperm("card", model, "-o", tmp_path / "card.html")
    assert "age, ward" in (tmp_path / "card.html").read_text()
    assert "nothing of one column alone" in dperm("effects", model, "-o", tmp_path / "e.html", expect=1).stderr
    for wrong, message in (
        (("--hidden", "8,x"), "widths of layers"),
        (("--hidden", 10**12), "widths from 1 to 65,536"),
        (("--sampling", "rows"), "a schema with a unit"),
        (("--mechanism", "objective"), "by --mechanism gradient"),
        (("--data-norm", 2), "by --mechanism gradient"),
        (("--model", "svm"), "which has no layers"),
        (("--curves", 1), "3 to 200 knots"),
    ):
        assert message in dperm(*train, *wrong, expect=1).stderr
    assert len(SpendLog.current().charges()) == 1
