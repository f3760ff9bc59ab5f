"""The distinguishing game: train on two neighbouring data sets again and again, and tell from the outputs which it was."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from dperm import _validate as check
from dperm._types import Array
from dperm.audit.outputs import Progress
from dperm.audit.pairs import Pair
from dperm.audit.result import VERDICT_CONFIDENCE, AuditResult, Verdict
from dperm.audit.statistics import (
    TradeOff,
    area_under_curve,
    choose_threshold,
    epsilon_from_rates,
    gdp_estimate,
    trade_off,
    upper_bound,
)
from dperm.privacy import ApproximateDP, Certificate, Event, Relation, epsilon
from dperm.privacy.events import relation_of

#: (data, m) → outputs of m independent trainings, shape (m, …); a third parameter `progress(done, m)` is used if there is one
Train = Callable[..., Any]

#: outputs (m, k) → scores (m,), larger where the second data set is likelier
Score = Callable[[Array], Array]

_SHOWN_POINTS = 120
_FEWEST = 4  # scores of a world


def distinguish(
    train: Train,
    pair: Pair,
    trials: int,
    *,
    claim: Certificate | Event | None = None,
    delta: float | None = None,
    score: Score | None = None,
    confidence: float = 0.95,
    verdict_confidence: float = VERDICT_CONFIDENCE,
    mechanism: str = "",
    progress: Callable[[int, int], None] | None = None,
) -> AuditResult:
    """Train `trials` times on each data set of `pair` and bound ε from below.

    `train(data, m)` returns m outputs, for example a `Training`'s `outputs` or `one_at_a_time(function)`. `score` maps
    outputs to numbers; None learns the best linear one. Score and threshold are chosen on one half of the outputs, and
    counted on the other (Clopper–Pearson, the error split over both rates). `claim` is what is tested: a certificate, or
    an event, then with `delta`. Raises ValueError where the outputs are not finite numbers.
    """
    trials = check.integer("trials", trials, minimum=20)
    _checked(claim, delta, confidence, verdict_confidence, pair.relation)
    reports = "progress" in inspect.signature(train).parameters
    outputs: list[Array] = []
    for number, data in enumerate((pair.first, pair.second)):
        told = _shifted(progress, number * trials, 2 * trials) if reports else None
        made = train(data, trials) if told is None else train(data, trials, told)
        rows = np.asarray(made, dtype=np.float64)
        if len(rows) != trials:
            raise ValueError(f"Expected {trials} outputs from train, got {len(rows)}.")
        outputs.append(rows.reshape(trials, -1))
        if progress is not None:
            progress((number + 1) * trials, 2 * trials)
    if not all(np.isfinite(rows).all() for rows in outputs):
        raise ValueError("Expected finite outputs: encode a failed training as a number of its own, for it tells worlds apart.")
    half = trials // 2
    chosen = score or learned_score(outputs[0][:half], outputs[1][:half])
    scores = [np.asarray(chosen(rows), dtype=np.float64).reshape(trials) for rows in outputs]
    return compare_scores(
        *scores,
        claim=claim,
        delta=delta,
        confidence=confidence,
        verdict_confidence=verdict_confidence,
        mechanism=mechanism,
        learned=score is None,
        details={"pair": pair.name},
    )


def _shifted(progress: Progress | None, before: int, total: int) -> Progress | None:
    """Progress in a part that begins when `before` of `total` are done."""
    return None if progress is None else lambda done, _: progress(before + done, total)


def compare_scores(
    first: Array,
    second: Array,
    *,
    claim: Certificate | Event | None = None,
    delta: float | None = None,
    confidence: float = 0.95,
    verdict_confidence: float = VERDICT_CONFIDENCE,
    learned: bool = False,
    attack: str = "the distinguishing game",
    mechanism: str = "",
    details: dict[str, Any] | None = None,
) -> AuditResult:
    """The audit of scores from the two worlds; of independent runs each, in the order in which they were made.

    The first halves choose thresholds; the second halves decide. A score that was `learned` must have been learned on the
    first halves too; estimate, area and curve then rest on the second halves alone.
    """
    event, at, claimed = _checked(claim, delta, confidence, verdict_confidence)
    first, second = (_scores(scores) for scores in (first, second))
    half, other = len(first) // 2, len(second) // 2
    test, tested = (first[half:], second[other:]), (first[:half], second[:other])

    threshold = choose_threshold(*tested, lambda a, b: epsilon_from_rates(a, b, at), confidence)
    lower = float(epsilon_from_rates(*_box(threshold.errors(*test), test, confidence), at))
    verdict: Verdict = "not tested"
    findings: list[str] = []
    extra: dict[str, Any] = {}
    if event is not None:
        curve = trade_off(event, len(first))
        decisive = choose_threshold(*tested, curve.excess, verdict_confidence)
        errors = decisive.errors(*test)
        a, b = _box(errors, test, verdict_confidence)
        excess = float(curve.excess(a, b))
        verdict = "refuted" if excess > 0 else "consistent"
        if excess > 0:
            findings.append(
                f"a test with {errors[0]} false alarms in {len(test[0]):,} runs and {errors[1]} misses in {len(test[1]):,}, "
                f"which with {100 * verdict_confidence:.8g} % confidence is better than the claim allows any test to be"
            )
        extra["allowed"] = _allowed(curve, len(first))
    shown = test if learned else (first, second)
    return AuditResult(
        attack=attack,
        mechanism=mechanism or getattr(claim, "mechanism", ""),
        verdict=verdict,
        delta=at,
        claimed_epsilon=claimed,
        epsilon_lower=lower,
        confidence=confidence,
        verdict_confidence=verdict_confidence,
        estimate=gdp_estimate(*shown, at, confidence),
        trials=len(first),
        findings=tuple(findings),
        auc=area_under_curve(*shown)[0],
        curve=roc_points(*shown),
        details={**(details or {}), **extra},
    )


def learned_score(first: Array, second: Array) -> Score:
    """Fisher's linear discriminant of two worlds' outputs (m, k); outputs of one number are their own score."""
    if first.shape[1] == 1:
        return lambda outputs: outputs[:, 0]
    centre = (first.mean(axis=0) + second.mean(axis=0)) / 2
    spread = np.maximum(first.std(axis=0) + second.std(axis=0), 1e-300)
    a, b = (first - centre) / spread, (second - centre) / spread
    difference = b.mean(axis=0) - a.mean(axis=0)
    width = first.shape[1]
    if width > min(1000, len(first) // 2):
        # too few runs for a covariance: each coordinate by itself, those that do not differ left out
        direction = np.where(np.abs(difference) > math.sqrt(2 / len(first)), difference, 0.0)
        direction = direction if direction.any() else difference
    else:
        covariance = (np.cov(a, rowvar=False) + np.cov(b, rowvar=False)) / 2
        covariance[np.diag_indices(width)] += 1e-6 + width / len(first) * 0.01
        direction = np.linalg.solve(covariance, difference)
    weights = direction / spread
    return lambda outputs: (outputs - centre) @ weights


def _checked(
    claim: Certificate | Event | None,
    delta: float | None,
    confidence: float,
    verdict_confidence: float,
    relation: Relation | None = None,
) -> tuple[Event | None, float, float | None]:
    """`split_claim`, and everything else that can be refused before anything is trained."""
    check.fraction("confidence", confidence)
    check.fraction("verdict_confidence", verdict_confidence)
    event, at, claimed = split_claim(claim, delta)
    if event is not None and relation is not None:
        same_relation(event, relation)
    return event, at, claimed


def same_relation(event: Event, relation: Relation) -> None:
    """ValueError where a claim speaks of other neighbours than those that are tried."""
    if relation_of(event) is not relation:
        raise ValueError(
            f"The claim is about neighbours under {relation_of(event)}, the data sets tried are neighbours under {relation}: "
            "a mechanism may keep the one promise and break the other."
        )


def _scores(values: Any) -> Array:
    scores = np.asarray(values, dtype=np.float64)
    if scores.ndim != 1 or len(scores) < _FEWEST:
        raise ValueError(f"Expected at least {_FEWEST} scores of each world in one dimension, got shape {scores.shape}.")
    if np.isnan(scores).any():
        raise ValueError("Expected scores that are numbers, got NaN: give a training that fails a score of its own.")
    return scores


def split_claim(claim: Certificate | Event | None, delta: float | None) -> tuple[Event | None, float, float | None]:
    """The event to test, the δ to speak of, and the claimed ε there.

    Of what is only claimed, the (ε, δ) that it was made for is tested. ValueError where there is none.
    """
    if isinstance(claim, Certificate):
        at = claim.delta if delta is None else delta
        if claim.epsilon is None:
            if claim.target_epsilon is None or at != claim.delta:
                raise ValueError(f"A claimed mechanism has no profile to test: {claim.claim} Pass the claim as an event instead.")
            return ApproximateDP(claim.target_epsilon, at, claim.relation), at, claim.target_epsilon
        return claim.event, at, claim.epsilon if at == claim.delta else _epsilon(claim.event, at)
    if delta is None:
        raise ValueError("Expected delta, or a certificate as claim.")
    at = check.fraction("delta", delta, zero=True)
    if claim is None:
        return None, at, None
    value = _epsilon(claim, at)
    return claim, at, value if math.isfinite(value) else None


_epsilon = functools.lru_cache(maxsize=256)(epsilon)  # audits come in series


def _box(errors: tuple[int, int], worlds: tuple[Array, Array], confidence: float) -> tuple[Array, Array]:
    side = 1 - (1 - confidence) / 2
    return upper_bound(errors[0], len(worlds[0]), side), upper_bound(errors[1], len(worlds[1]), side)


def roc_points(first: Array, second: Array, *, oriented: bool = False) -> tuple[tuple[float, float], ...]:
    """(FPR, TPR) at thresholds evenly spread over the logarithm of the false-positive rate; of the better of both
    directions unless the scores are `oriented`."""
    if not oriented and area_under_curve(first, second)[0] < 0.5:
        first, second = -first, -second
    low = np.sort(first)
    ranks = np.unique(np.round(np.logspace(0, math.log10(len(low)), _SHOWN_POINTS)).astype(int))
    cuts = low[len(low) - ranks]
    return tuple((float((first >= cut).mean()), float((second >= cut).mean())) for cut in cuts)


def _allowed(curve: TradeOff, trials: int) -> list[list[float]]:
    """(FPR, largest TPR) on the claimed trade-off curve, for the figure."""
    a = np.logspace(-math.log10(max(trials, 100)), 0, 60)
    growth = np.exp(curve.epsilons)
    tpr = np.minimum(growth * a[:, None] + curve.deltas, 1 - (1 - curve.deltas - a[:, None]) / growth).min(axis=1)
    return [[float(x), float(min(max(y, x), 1.0))] for x, y in zip(a, tpr, strict=True)]
