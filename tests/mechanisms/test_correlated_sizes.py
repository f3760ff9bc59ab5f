"""Correlated noise where the number of records is released first: whatever it came out as, a run that is paid for is made."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dperm.mechanisms import Budget, CorrelatedGradient
from dperm.objectives import LinearObjective, Logistic
from dperm.privacy import Relation


@pytest.mark.parametrize("relation", list(Relation))
@pytest.mark.parametrize(
    "settings", [{"bands": 4}, {"bands": 4, "expected_batch_size": 20}, {"bands": 40}, {"expected_batch_size": 10}], ids=repr
)
def test_a_noisy_number_of_records_refuses_nobody(settings: dict[str, Any], relation: Relation) -> None:
    problem = LinearObjective(Logistic(), 3, data_norm=1.0, public_size=None, relation=relation)
    asked = CorrelatedGradient(epochs=1, **settings)
    for size in (1, 2, 15, 21, 80, 81, 3000):
        facts = replace(problem.facts, public_size=size)
        made: Any = asked._for_noisy(facts).at(facts, Budget(1e-5, 1.0), 1, 1.0)  # pyright: ignore[reportPrivateUsage]
        assert made.plan.public_size == size


def test_batches_that_fit_stay_as_they_were_asked_for() -> None:
    facts = LinearObjective(Logistic(), 3, data_norm=1.0, public_size=3000).facts
    for asked in (CorrelatedGradient(bands=4, expected_batch_size=20.0), CorrelatedGradient(bands=3)):
        assert asked._for_noisy(facts) == asked  # pyright: ignore[reportPrivateUsage]
