"""Refits are not charged and certify nothing; what is fitted beside them is charged."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from dperm.data import Dataset
from dperm.estimators import DPLogisticRegression, DPSearch, model_from_json, model_to_json
from dperm.release import SpendLog
from dperm.report.refits import Refits

X = np.random.default_rng(0).normal(size=(60, 2)) / 3
Y = np.where(X[:, 0] > 0, "yes", "no")


def test_refits_certify_nothing() -> None:
    records = Dataset("t", X, Y, ("u", "v"), ("no", "yes"), None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        model = DPLogisticRegression(classes=["no", "yes"]).fit(X, Y)
    for each in Refits.of(model, records, 2).models:
        assert each.certificate_.epsilon is None and "uncharged" in each.certificate_.claim
        assert model_from_json(model_to_json(each))[0].certificate_.epsilon is None
    assert model.certificate_.epsilon is not None


def test_fits_of_a_progress_and_of_a_scoring_are_charged() -> None:
    def another(*_: Any) -> float:
        DPLogisticRegression(classes=["no", "yes"]).fit(X, Y)
        return 0.5

    model = DPLogisticRegression(classes=["no", "yes"]).fit(X, Y)
    Refits.of(model, Dataset("t", X, Y, ("u", "v"), ("no", "yes"), None), 3, progress=lambda done, count: print(another()))
    assert len(SpendLog.current().charges()) == 1 + 3
    found = DPSearch(model, {"data_norm": [1.0, 2.0]}, epsilon=1.0, how="each once", scoring=another).fit(X, Y, held_out=(X, Y))
    assert found.how_ == "each once"
    assert len(SpendLog.current().charges()) == 4 + 1 + 2
