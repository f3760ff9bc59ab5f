"""Membership inference: can somebody who holds records tell from one model which of them it was trained on?

It proves nothing about ε — many records, one model —, and shows what a simple attacker achieves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dperm._column import agreement, column
from dperm._types import Array
from dperm.audit.distinguish import roc_points, split_claim
from dperm.audit.pairs import Data
from dperm.audit.result import MEMBERSHIP, AuditResult
from dperm.audit.statistics import area_under_curve, upper_bound
from dperm.privacy import Certificate, Event

Losses = Callable[[Any, Data], Array]

_RATES = (0.001, 0.01, 0.1)
_TINY = 1e-300


def membership(
    model: Any,
    members: Data,
    others: Data,
    *,
    losses: Losses | None = None,
    references: Sequence[Any] = (),
    claim: Certificate | Event | None = None,
    delta: float | None = None,
    confidence: float = 0.95,
    mechanism: str = "",
) -> AuditResult:
    """Attack `model` with `members`, records it was trained on, and `others` of the same kind.

    Records with a small loss are taken for members (Yeom et al. 2018); with `references`, models trained without any of
    these records, losses are compared with theirs, so that easy records are not mistaken for members (Watson et al. 2022).
    `losses(model, data) -> (n,)`; None: `record_losses`. Rates need at least 1/rate others. The result is for the data
    holder: it is computed from private records.
    """
    losses = losses or record_losses
    scores = [_scores(model, part, losses, references) for part in (others, members)]
    if min(map(len, scores)) < 2:
        raise ValueError("Expected at least two members and two others.")
    outside, inside = scores
    event, at, claimed = split_claim(claim, delta) if (claim is not None or delta is not None) else (None, 0.0, None)
    area, error = area_under_curve(outside, inside)
    rates: list[tuple[float, float, float]] = []
    for rate in _RATES:
        allowed = int(rate * len(outside))
        if not allowed:
            continue
        cut = np.sort(outside)[len(outside) - allowed - 1]  # at most `allowed` others lie above it
        caught = int((inside > cut).sum())
        rates.append((rate, caught / len(inside), float(upper_bound(caught, len(inside), confidence))))
    details: dict[str, Any] = {"members": len(inside), "others": len(outside), "auc_standard_error": error}
    if isinstance(claim, Certificate):
        view = claim.attack_view([rate for rate, _, _ in rates] or [0.1])
        details["claim_allows"] = dict(zip(map(str, view.false_positive_rates), view.true_positive_rates, strict=True))
    return AuditResult(
        attack=MEMBERSHIP,
        mechanism=mechanism or getattr(claim, "mechanism", ""),
        verdict="not tested",
        delta=at,
        claimed_epsilon=claimed if event is not None else None,
        confidence=confidence,
        trials=len(inside) + len(outside),
        auc=area,
        rates=tuple(rates),
        curve=roc_points(outside, inside, oriented=True),
        details=details,
    )


def _scores(model: Any, data: Data, losses: Losses, references: Sequence[Any]) -> Array:
    mine, *others = (column("losses", losses(each, data), len(data[1])).astype(float) for each in (model, *references))
    return np.mean(others, axis=0) - mine if others else -mine


def member_scores(model: Any, data: Data) -> Array:
    """(n,) larger for records that `model` fits better: a score for `one_run`."""
    return -record_losses(model, data)


def record_losses(model: Any, data: Data) -> Array:
    """(n,) losses of a model in scikit-learn's style: −ln of the probability of the target, the hinge of a decision
    function, or the squared error of a regressor. TypeError for anything else."""
    rows, targets = data[0], column("targets", data[1], np.shape(data[0])[0])
    classes = getattr(model, "classes_", None)
    if classes is None:
        if not hasattr(model, "predict"):
            raise TypeError(f"Expected a model with predict or predict_proba, got {type(model).__name__}: pass losses.")
        return (column("predictions", model.predict(rows), len(targets)).astype(float) - targets.astype(float)) ** 2
    index = np.searchsorted(classes, targets)
    if not agreement(np.asarray(classes)[np.minimum(index, len(classes) - 1)], targets).all():
        raise ValueError("Expected targets among the model's classes.")
    if hasattr(model, "predict_proba"):
        return -np.log(np.maximum(model.predict_proba(rows)[np.arange(len(index)), index], _TINY))
    scores = np.asarray(model.decision_function(rows))
    if scores.ndim == 1:
        return -np.where(index == 1, scores, -scores)
    mine = scores[np.arange(len(index)), index]
    scores[np.arange(len(index)), index] = -np.inf
    return scores.max(axis=1) - mine
