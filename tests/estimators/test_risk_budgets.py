"""A risk where an ε is asked for: estimators, trainers and what is saved keep it."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import clone

from dperm.estimators import DPLinearSVC, DPLogisticRegression, DPMLPClassifier, DPRidge, model_from_json, model_to_json
from dperm.gradient.recipes import dp_sgd, dpis
from dperm.privacy import Gaussian, Risk, calibrate
from dperm.privacy import epsilon as epsilon_of
from dperm.release import SpendLog
from dperm.torch import PrivateTrainer
from helpers.said import flat

RISK = Risk(advantage=0.1)


def table(classes: int = 2) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(600, 3))
    return rows, np.digitize(rows[:, 0], np.linspace(-0.5, 0.5, classes - 1)) if classes > 1 else np.clip(rows[:, 0], -1, 1)


@pytest.mark.fast_cases("one against the rest")
@pytest.mark.parametrize(
    "model",
    [
        DPLogisticRegression(epsilon=RISK, classes=[0, 1]),
        DPLogisticRegression(epsilon=Risk(prior=0.5, posterior=0.6), classes=[0, 1], mechanism="output", public_size=600),
        DPLogisticRegression(epsilon=RISK, classes=[0, 1], mechanism="gradient"),  # releases its size
        DPLinearSVC(epsilon=RISK, classes=[0, 1, 2], public_size=600),
        DPRidge(epsilon=RISK, relation="replace_one", target_bound=1.0),
        DPLogisticRegression(epsilon=RISK, delta=0.0, classes=[0, 1], mechanism="output", public_size=600),
    ],
    ids=["objective", "output", "private size", "one against the rest", "ridge", "pure"],
)
def test_fits_keep_the_risk_and_hardly_less(model: Any) -> None:
    classes = 1 if isinstance(model, DPRidge) else len(model.classes)
    fitted = clone(model).fit(*table(classes))
    reached = model.epsilon.of(fitted.certificate_.event)
    assert model.epsilon.limit * 0.99 < reached <= model.epsilon.limit
    assert fitted.certificate_.status == "certified" and fitted.certificate_.target_epsilon is not None
    assert f"Asked for: {model.epsilon}." in flat(fitted.certificate_)


def test_importance_sampling_keeps_it_too() -> None:
    """By a Rényi filter, which says little of small advantages: true, and far below the limit."""
    model = DPMLPClassifier(epsilon=Risk(advantage=0.5), classes=[0, 1], public_size=600, hidden_layer_sizes=4)
    model.set_params(mechanism="gradient").fit(*table())
    assert "Asked for: an attacker's advantage of at most 0.5." in flat(model.certificate_)
    assert 0.499 < Risk(advantage=0.5).of(model.certificate_.event) <= 0.5


@pytest.mark.parametrize("public_size", [600, pytest.param(None, marks=pytest.mark.slow)])
@pytest.mark.parametrize("recipe", [dp_sgd, pytest.param(dpis, marks=pytest.mark.slow)])
def test_trainers_keep_it(recipe: Any, public_size: int | None) -> None:
    risk = Risk(advantage=0.5)
    rows, labels = table()
    model = torch.nn.Linear(3, 2).double()
    plan = functools.partial(recipe, expected_batch_size=30, epochs=3, clipping_norm=1.0)
    loss = torch.nn.CrossEntropyLoss(reduction="none")
    trainer = PrivateTrainer(
        model, loss, torch.optim.SGD(model.parameters(), 0.1), plan, epsilon=risk, delta=1e-5, public_size=public_size
    )
    trainer.fit((rows, labels), progress=False)
    assert trainer.certificate is not None and trainer.certificate.target_epsilon is None
    assert f"Asked for: {risk}." in flat(trainer.certificate)
    assert 0.4 < risk.of(trainer.certificate.event) <= 0.5
    assert trainer.total_certificate.epsilon == trainer.certificate.epsilon


def test_less_noise_than_by_way_of_epsilon() -> None:
    """(ε, δ) with tanh(ε/2) + δ ≤ 0.1 keeps an advantage of 0.1 for whatever has it: the straight way needs less noise."""
    straight = calibrate(Gaussian, RISK)
    assert straight < calibrate(Gaussian, 0.2, 1e-5) / 3
    assert epsilon_of(Gaussian(straight), 1e-5) > 0.9


def test_saved_models_remember_it() -> None:
    rows, labels = table()
    risk = Risk(prior=0.5, posterior=0.6)
    model = DPLogisticRegression(epsilon=risk, classes=[0, 1], mechanism="output", public_size=600).fit(rows, labels)
    again, _ = model_from_json(model_to_json(model))
    assert again.epsilon == model.epsilon and np.array_equal(again.coef_, model.coef_)


def test_what_cannot_keep_it_is_refused_before_a_charge() -> None:
    rows, labels = table()
    with pytest.raises(ValueError, match="accounted for"):
        DPLogisticRegression(epsilon=RISK, classes=[0, 1], mechanism="m-ngp-published", public_size=600).fit(rows, labels)
    assert SpendLog.current().charges() == []
