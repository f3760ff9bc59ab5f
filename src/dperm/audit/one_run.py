"""One-run audits: one training with many canaries, each included by a fair coin, then guessed (Steinke, Nasr, Jagielski 2023)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from dperm import _validate as check
from dperm._column import column, refuse_masked
from dperm._types import Array
from dperm.audit.distinguish import roc_points, same_relation, split_claim
from dperm.audit.pairs import Data
from dperm.audit.result import VERDICT_CONFIDENCE, AuditResult
from dperm.audit.statistics import COARSE, area_under_curve, gdp_estimate, one_run_epsilon, one_run_p_value
from dperm.privacy import Certificate, Event, Relation
from dperm.privacy import delta as profile
from dperm.privacy.accountants.gaussian import gaussian_mu

_EPSILONS = np.linspace(0.0, 1.0, 33) ** 1.5


def one_run(
    train: Callable[[Data], Any],
    data: Data,
    canaries: Data,
    score: Callable[[Any, Data], Array],
    *,
    alternatives: Data | None = None,
    claim: Certificate | Event | None = None,
    delta: float | None = None,
    guesses: int | None = None,
    confidence: float = 0.95,
    verdict_confidence: float = VERDICT_CONFIDENCE,
    mechanism: str = "",
    random_state: Any = None,
) -> AuditResult:
    """Train once on `data` and about half of the m `canaries`; guess from the model which.

    `score(model, canaries) -> (m,)` is larger where a canary was more likely in (`member_scores` for classifiers).
    Under add/remove a canary is in or out; under replace-one either it or its twin in `alternatives` is in.
    `guesses`: how many canaries are guessed, half of them as in; fixed before the run. None: the number that proves most if
    the claim is tight, or a fifth. `random_state` is of the coins alone.
    """
    for rows, targets in (data, canaries, *(() if alternatives is None else (alternatives,))):
        if np.shape(rows)[:1] != np.shape(targets)[:1]:
            raise ValueError(f"Expected a target for each row, got shapes {np.shape(rows)} and {np.shape(targets)}.")
        refuse_masked("targets", targets)
    count = len(canaries[1])
    check.integer("canaries", count, minimum=10)
    check.fraction("confidence", confidence)
    check.fraction("verdict_confidence", verdict_confidence)
    event, at, claimed = split_claim(claim, delta)
    if event is not None:
        same_relation(event, Relation.ADD_OR_REMOVE_ONE if alternatives is None else Relation.REPLACE_ONE)
    if guesses is None:
        guesses = max(2, count // 5) if claimed is None else guesses_for(count, claimed, at, confidence)
    check.integer("guesses", guesses, minimum=2)
    if any(sp.issparse(part) for part in (*data, *canaries)):
        raise TypeError("Expected dense rows: canaries are added to them.")
    coins = np.random.default_rng(random_state).random(count) < 0.5
    chosen = [part[coins] for part in canaries]
    if alternatives is not None:
        if len(alternatives[1]) != count:
            raise ValueError(f"Expected an alternative for each of {count} canaries, got {len(alternatives[1])}.")
        chosen = [np.concatenate([part, other[~coins]]) for part, other in zip(chosen, alternatives, strict=True)]
    rows, targets = (np.concatenate([np.asarray(part), extra]) for part, extra in zip(data, chosen, strict=True))
    model = train((rows, targets))
    scores = column("scores of canaries", score(model, canaries), count).astype(float)
    if alternatives is not None:
        scores = scores - column("scores of alternatives", score(model, alternatives), count).astype(float)
    return guess(
        scores,
        coins,
        claim=claim,
        delta=delta,
        guesses=guesses,
        confidence=confidence,
        verdict_confidence=verdict_confidence,
        mechanism=mechanism,
    )


def guess(
    scores: Array,
    coins: NDArray[np.bool_],
    *,
    claim: Certificate | Event | None,
    delta: float | None,
    guesses: int,
    confidence: float = 0.95,
    verdict_confidence: float = VERDICT_CONFIDENCE,
    mechanism: str = "",
) -> AuditResult:
    """The audit of scores (m,) of canaries that were in where `coins` say so: the highest are guessed in, the lowest out.

    Ties are broken by the canaries' order, which says nothing. The verdict looks at the claim's whole profile: each ε with
    its own δ(ε).
    """
    event, at, claimed = split_claim(claim, delta)
    scores = column("scores", scores).astype(float)
    if np.isnan(scores).any():
        raise ValueError("Expected scores that are numbers, got NaN.")
    count = len(scores)
    coins = column("coins", coins, count).astype(np.bool_)
    if check.integer("guesses", guesses, minimum=2) > count:
        raise ValueError(f"Expected at most as many guesses as canaries, {count}, got {guesses}.")
    order = np.argsort(scores, kind="stable")
    top = guesses // 2
    correct = int(coins[order[count - top :]].sum() + (~coins[order[: guesses - top]]).sum())
    findings: list[str] = []
    if event is not None:
        # one number of right guesses, many (ε, δ(ε)) that each would have to allow it: any of them refutes, at the cost
        # of looking at all
        reach = max(2.0, 1.5 * (claimed or 4.0))
        allowed = (1 - verdict_confidence) / len(_EPSILONS)
        for epsilon in reach * _EPSILONS:
            chance = one_run_p_value(count, guesses, correct, float(epsilon), profile(event, float(epsilon), COARSE))
            if chance < allowed:
                findings.append(
                    f"{correct} of {guesses} guesses were right, which the claim allows with probability {chance:.2g} at most"
                )
                break
    both = 1 < int(coins.sum()) < count - 1  # two of each kind at least, for an area and its error
    return AuditResult(
        attack="the one-run audit",
        mechanism=mechanism or getattr(claim, "mechanism", ""),
        verdict="not tested" if event is None else "refuted" if findings else "consistent",
        delta=at,
        claimed_epsilon=claimed,
        epsilon_lower=one_run_epsilon(count, guesses, correct, at, confidence),
        confidence=confidence,
        verdict_confidence=verdict_confidence,
        estimate=gdp_estimate(scores[~coins], scores[coins], at, confidence) if both else None,
        trials=count,
        findings=tuple(findings),
        auc=area_under_curve(scores[~coins], scores[coins])[0] if both else None,
        curve=roc_points(scores[~coins], scores[coins]) if both else (),
        details={"canaries": count, "guesses": guesses, "correct": correct},
    )


def guesses_for(canaries: int, epsilon: float, delta: float, confidence: float) -> int:
    """The number of guesses that proves most where scores are those of a Gaussian mechanism of this ε: public numbers alone."""
    mu = gaussian_mu(max(epsilon, 1e-3), max(delta, 1e-9))
    best, chosen = 0.0, max(2, canaries // 5)  # where nothing can be proven
    for share in (0.01, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0):
        number = max(2, round(canaries * share))
        # the threshold above which half of `number` scores lie, and how many of those are members
        cut = _quantile(mu, 1 - share / 2)
        right = ndtr(mu - cut) / (ndtr(mu - cut) + ndtr(-cut))
        proven = one_run_epsilon(canaries, number, int(number * right), delta, confidence)
        if proven > best:
            best, chosen = proven, number
    return chosen


def _quantile(mu: float, level: float) -> float:
    """Of the even mixture of N(0, 1) and N(mu, 1)."""
    low, high = float(ndtri(level)), float(ndtri(level)) + mu
    for _ in range(60):
        middle = (low + high) / 2
        if (ndtr(middle) + ndtr(middle - mu)) / 2 < level:
            low = middle
        else:
            high = middle
    return high
