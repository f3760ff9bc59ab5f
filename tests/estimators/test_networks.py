"""Networks as scikit-learn estimators."""

from __future__ import annotations

import pickle
import subprocess
import sys
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_iris, make_classification
from sklearn.utils.estimator_checks import parametrize_with_checks
from torch import nn

from dperm.estimators import DPMLPClassifier, DPTorchClassifier
from dperm.mechanisms import Gradient
from dperm.release import SpendLog
from helpers.estimators import TwoLayers, made, network_estimators
from helpers.said import flat

ESTIMATORS = [made(kind, epsilon=50.0, mechanism=Gradient(epochs=10)) for kind in network_estimators()]
VARIANTS = [
    DPTorchClassifier(TwoLayers(), epsilon=50.0, mechanism=Gradient(sampling="importance", epochs=10)),
    DPMLPClassifier((), epsilon=50.0, relation="replace_one", delta=1e-6),
]


@pytest.mark.slow
@parametrize_with_checks(ESTIMATORS)
def test_scikit_learn_contract(estimator: Any, check: Any) -> None:
    keeps_the_contract(estimator, check)


@pytest.mark.slow
@parametrize_with_checks(VARIANTS)
def test_variants_keep_scikit_learn_s_contract(estimator: Any, check: Any) -> None:
    keeps_the_contract(estimator, check)


def keeps_the_contract(estimator: Any, check: Any) -> None:
    """All of scikit-learn's checks; the array-API check needs an environment variable and is in test_estimators.py."""
    if getattr(check, "func", check).__name__ == "check_array_api_input":
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # δ >= 1/n on tiny data
        check(estimator)


def test_a_certificate_per_fit() -> None:
    X, y = make_classification(600, 8, random_state=0)
    model = DPMLPClassifier(epsilon=2.0, public_size=600, classes=[0, 1], hidden_layer_sizes=16).fit(X, y)
    assert 1.99 < model.certificate_.epsilon <= 2.0
    assert "stated by the caller" in flat(model.certificate_)
    assert len(SpendLog.current().charges()) == 1
    assert model.score(X, y) > 0.7
    again = pickle.loads(pickle.dumps(model))
    assert np.array_equal(again.predict(X), model.predict(X))
    assert np.allclose(model.predict_proba(X).sum(axis=1), 1.0)
    assert clone(model).get_params()["epsilon"] == 2.0


def test_a_module_is_copied_and_several_classes_work() -> None:
    X, y = load_iris(return_X_y=True)
    X = (X - 4) / 4
    module = nn.Linear(4, 3)
    before = module.weight.clone()
    names = np.array(["a", "b", "c"])[y]
    model = DPTorchClassifier(
        module, epsilon=20.0, mechanism=Gradient(epochs=30, learning_rate=0.1), public_size=150, delta=1e-3
    ).fit(X, names)
    assert torch.equal(module.weight, before)
    assert model.decision_function(X).shape == (150, 3) and model.score(X, names) > 0.7


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"epsilon": -1.0}, "epsilon > 0"),
        ({"delta": 0.0}, "delta"),
        ({"activation": "step"}, "activation"),
        ({"hidden_layer_sizes": (0,)}, "hidden_layer_sizes"),
        ({"classes": [0]}, "among classes"),
        ({"relation": "both"}, "relation"),
        ({"mechanism": "objective"}, "others need convexity"),
        ({"mechanism": Gradient(strong_convexity=1.0)}, "no strong_convexity"),
    ],
)
def test_settings_are_refused_before_anything_is_charged(changes: dict[str, Any], reason: str) -> None:
    X, y = make_classification(60, 4, random_state=0)
    with pytest.raises(ValueError, match=reason):
        DPMLPClassifier(**changes).fit(X, y)
    assert SpendLog.current().charges() == []


@pytest.mark.parametrize("classes", [2, 5])
def test_a_module_with_another_number_of_scores_is_refused(classes: int) -> None:
    X, y = make_classification(60, 4, n_informative=4, n_redundant=0, n_classes=3, n_clusters_per_class=1, random_state=0)
    with pytest.raises(ValueError, match="3 scores per record"):
        DPTorchClassifier(nn.Linear(4, classes)).fit(X, y)
    assert SpendLog.current().charges() == []


@pytest.mark.slow  # nor does test_layers.py let them
def test_importing_the_estimators_does_not_import_torch() -> None:
    code = "import sys, dperm.estimators; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.fast_cases("None")
@pytest.mark.parametrize("public_size", [2000, None])
def test_importance_sampling_by_a_word(public_size: int | None) -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(2000, 5))
    y = np.where(X[:, 0] > 0, "yes", "no")
    model = DPMLPClassifier(
        epsilon=3.0, mechanism=Gradient(sampling="importance", epochs=8), public_size=public_size, classes=["no", "yes"]
    )
    model.fit(X, y)
    assert model.score(X, y) > 0.9
    assert model.certificate_.epsilon <= 3.0
    assert model.certificate_.mechanism.endswith("(importance sampling)")
    assert len(model.trace_["epochs"]) == 8 and abs(model.trace_["public_size"] - 2000) < 200
    with pytest.raises(ValueError, match="DPIS has no other"):
        clone(model).set_params(relation="replace_one", public_size=None).fit(X, y)


def test_full_batches() -> None:
    X, y = make_classification(600, 8, random_state=0)
    model = DPMLPClassifier(epsilon=2.0, public_size=600, mechanism=Gradient(sampling="full", epochs=40)).fit(X, y)
    assert model.trace_["steps"] == 40
    assert model.score(X, y) > 0.7
    assert model.certificate_.epsilon <= 2.0
    assert clone(model).set_params(mechanism__epochs=3).fit(X, y).trace_["steps"] == 3
