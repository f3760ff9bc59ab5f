"""What records have spent: the page and its numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dperm.estimators import DPLogisticRegression
from dperm.mechanisms import IndividualGradient
from dperm.report.spending_page import Spending, spending_page


def fitted(**settings: Any) -> DPLogisticRegression:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(400, 3))
    chosen: dict[str, Any] = {"mechanism": IndividualGradient(full_share=0.2), "public_size": 400, "classes": [False, True]}
    return DPLogisticRegression(epsilon=2.0, **(chosen | settings)).fit(rows, rows[:, 0] + 0.3 * rng.normal(size=400) > 0)


def test_no_record_has_an_epsilon_above_the_certificates() -> None:
    model = fitted()
    found = Spending.of(model.private_trace_[0]["spent_by_record"], model.certificate_)
    assert len(found.epsilons) == 400 and 0 < found.epsilons.min() < 1
    assert found.epsilons.max() <= model.certificate_.epsilon * (1 + 1e-9)
    assert 0 < found.silent < 0.5
    page = spending_page(found, model.certificate_, "A study")
    assert "PRIVATE: for the data holder only" in page
    assert "<svg" in page
    assert "ε = 2 " in page


def test_other_runs_have_no_accounts() -> None:
    model = fitted(mechanism="gradient")
    assert list(model.private_trace_) == []
    with pytest.raises(ValueError, match="one run with individual accounting"):
        Spending.of(np.ones(400), model.certificate_)
