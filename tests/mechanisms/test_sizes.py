"""Mechanisms hold to the number of records that they were calibrated for: stated, bounded, noisy or under replace-one."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from dperm.audit.network import event_of_network
from dperm.estimators import DPLogisticRegression, DPMLPClassifier, model_from_json, model_to_json
from dperm.mechanisms import Budget, Gradient, ObjectivePerturbation, OneVsRest
from dperm.objectives import LinearObjective, Logistic
from dperm.release import Channel, SpendLog


def test_one_against_the_rest_admits_no_more_records_than_its_parts() -> None:
    objective = LinearObjective(Logistic(), 2, public_size=10, size_limit=50)
    part = ObjectivePerturbation(budget=Budget(1e-5), noise_std=5.0, strong_convexity=1.0)
    records = objective.records(np.ones((60, 2)), np.zeros(60))
    with pytest.raises(ValueError, match="at most 50 records"):
        OneVsRest.of(part, 3).release(objective, records, Channel.open(0))


RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(300, 3)), np.arange(300) % 3


def test_the_number_of_records_is_public_under_replace_one() -> None:
    model = DPLogisticRegression(relation="replace_one", public_size=100, mechanism="gradient")
    with pytest.raises(ValueError, match="Expected public_size=300"):
        model.fit(X, Y > 0)
    with pytest.raises(ValueError, match="Expected public_size under replace_one"):
        model.set_params(public_size=None).mechanism_for(3)
    assert SpendLog.current().charges() == []


@pytest.mark.fast_cases("poisson")
@pytest.mark.parametrize("sampling", ["balls_and_bins", "poisson"])
def test_a_noisy_size_refuses_no_batch_that_was_paid_for(sampling: str) -> None:
    """Two records, and batches of a hundred: the noisy number is released before anybody knows."""
    rows = np.random.default_rng(0).normal(size=(2, 6))
    for _ in range(10):
        method = Gradient(sampling=sampling, expected_batch_size=100, epochs=2)
        model = DPLogisticRegression(epsilon=1.0, classes=[0, 1], mechanism=method).fit(rows, [0, 1])
        assert model.certificate_.epsilon is not None and model.certificate_.epsilon <= 1.0


@pytest.mark.parametrize("stated", [None, 60])
def test_a_network_under_replace_one_is_audited_at_its_own_size(stated: int | None) -> None:
    method = Gradient(epochs=2, expected_batch_size=10)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        model = DPMLPClassifier((2,), classes=[0, 1], relation="replace_one", mechanism=method, public_size=stated)
        model.fit(X[:60, :2], Y[:60] > 1)
    again, _ = model_from_json(model_to_json(model))
    assert event_of_network(again) == model.certificate_.event
