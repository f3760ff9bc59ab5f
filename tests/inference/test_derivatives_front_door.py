"""Derivatives released at a model's parameters, replayed through `release_derivatives` with how it prepares records."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dperm.audit import Training, replay
from dperm.audit.pairs import Data, extreme_pairs, worst_pairs
from dperm.estimators import DPLogisticRegression, DPRidge
from dperm.inference import ReleasedDerivatives, release_derivatives
from dperm.mechanisms import DerivativesRelease
from dperm.release import Source

NUMBER = 40
ROWS = np.random.default_rng(0).normal(size=(NUMBER, 3)) / 3
EPSILON, DELTA = 1.5, 1e-4

pytestmark = pytest.mark.filterwarnings("ignore")  # of the ε of models, which are public here and need to be far from 0


def classifier(**changes: Any) -> DPLogisticRegression:
    model = DPLogisticRegression(**{"epsilon": 50.0, "classes": [-1, 1]} | changes)
    groups = np.arange(NUMBER) if model.max_rows_per_unit else None
    return model.fit(ROWS, np.where(ROWS[:, 0] > -0.1, 1, -1), groups)


def regression(**changes: Any) -> DPRidge:
    return DPRidge(**{"epsilon": 50.0, "target_range": (-1, 1)} | changes).fit(ROWS, np.clip(2 * ROWS[:, 0], -1, 1))


def released(model: Any, spread: str, data: Data, source: Source | None = None) -> ReleasedDerivatives:
    """From rows (n, d), or of persons (n, rows of one, d), of which a row is left out where its target is not a number."""
    rows, targets = data
    persons = np.arange(len(rows)) if model.max_rows_per_unit else None
    if rows.ndim == 3:
        there = ~np.isnan(targets)
        persons, rows, targets = np.nonzero(there)[0], rows[there], targets[there]
    given: dict[str, Any] = {"epsilon": EPSILON, "delta": DELTA, "spread": spread, "clipped": "named"}
    return release_derivatives(model, rows, targets, persons, **given, random_state=source)


def training(model: Any, spread: str, beside: tuple[str, ...] = (), charged_as: str | None = None) -> Training:
    """`model` is public. Pairs are those of the mechanism at its parameters; `charged_as`: the spread that is certified."""

    def run(data: Data, source: Source) -> dict[str, Any]:
        found = released(model, spread, data, source)
        return {name: getattr(found, name) for name in ("hessian", "gradient", "products", "residuals")}

    objective = model.objective_
    mechanism = DerivativesRelease.calibrate(objective.facts, model.parameters(), EPSILON, DELTA, beside=beside)
    targets = np.where(np.arange(NUMBER) % 2, 1.0, -1.0)
    return Training(
        "derivatives",
        released(model, charged_as or spread, (ROWS, targets)).certificate,
        run,
        replay_pairs=[*extreme_pairs(objective, NUMBER), *worst_pairs(mechanism, objective, NUMBER)],
        leaves=("sums of derivatives",),
    )


CASES: dict[str, tuple[Callable[[], Any], str, tuple[str, ...]]] = {
    "logistic": (classifier, "robust", ("products",)),
    "logistic, replaced": (lambda: classifier(relation="replace_one", public_size=NUMBER), "robust", ("products",)),
    "logistic, persons": (lambda: classifier(max_rows_per_unit=3), "noise", ()),
    "squared": (regression, "model", ("gradient", "residuals")),
    "squared, robust": (regression, "robust", ("gradient", "products")),
}


@pytest.mark.parametrize("case", CASES)
def test_nothing_moves_more_than_charged_and_half_would_be_seen(case: str) -> None:
    make, spread, beside = CASES[case]
    result = replay(training(make(), spread, beside), both_ways=False)
    assert result.verdict == "consistent", str(result)
    movement = result.details["movement"]
    assert len(movement) == 1 + len(beside)
    assert min(movement.values()) > 0.5
    assert max(movement.values()) <= 1 + 1e-6


def _by_the_longest(rows: Any, targets: Any) -> tuple[Any, Any]:
    return rows / np.linalg.norm(rows, axis=1, keepdims=True).max(initial=1e-9), targets


def _twice(rows: Any, targets: Any) -> tuple[Any, Any]:
    return np.vstack([rows, rows]), np.concatenate([targets, targets])


def _without_their_mean(rows: Any, targets: Any) -> tuple[Any, Any]:
    return rows - rows.mean(axis=0), targets


@pytest.mark.parametrize("prepared", [_by_the_longest, _twice, _without_their_mean])
def test_records_prepared_by_others_are_refuted(prepared: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    right = DPLogisticRegression._validated
    model = classifier()
    monkeypatch.setattr(DPLogisticRegression, "_validated", lambda self, *given, **named: prepared(*right(self, *given, **named)))
    result = replay(training(model, "robust", ("products",)), both_ways=False)
    assert "movement" in result.details["kinds"]


def test_sums_that_nothing_was_charged_for_are_refuted() -> None:
    cheaper = training(classifier(), "robust", ("products",), charged_as="noise")
    assert replay(cheaper, cheaper.replay_pairs[:4], both_ways=False).refuted
