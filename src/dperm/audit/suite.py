"""All attacks that suit a training."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dperm import _validate as check
from dperm.audit.distinguish import Train, distinguish
from dperm.audit.pairs import Pair
from dperm.audit.replay import replay
from dperm.audit.result import VERDICT_CONFIDENCE, AuditResult
from dperm.audit.statistics import area_under_curve
from dperm.audit.training import Training

__all__ = ["attack", "easiest_pair"]

_PILOT = 2000
_VECTORISED, _ONE_BY_ONE = 10_000, 400


def attack(
    training: Training,
    *,
    trials: int | None = None,
    confidence: float = 0.95,
    verdict_confidence: float = VERDICT_CONFIDENCE,
    progress: Callable[[str, int, int], None] | None = None,
) -> list[AuditResult]:
    """Replay `training`, then play the distinguishing game on the pair that a pilot finds easiest to tell apart.

    `trials` per world: None is `default_trials`. Confidences are the game's; replay's own tests err about once in 10⁹ times.
    """
    if trials is not None:
        check.integer("trials", trials, minimum=20)
    count = trials or default_trials(training)

    def told(name: str) -> Callable[[int, int], None]:
        return lambda done, total: None if progress is None else progress(name, done, total)

    results = [replay(training, progress=told("replay"))]
    if training.candidate_pairs:
        pair = easiest_pair(training, min(_PILOT, max(20, count // 4)), told("pilot"))
        score = None if training.likelihood_ratio is None else training.likelihood_ratio(pair)
        results.append(
            distinguish(
                training.outputs,
                pair,
                count,
                claim=training.certificate,
                score=score,
                confidence=confidence,
                verdict_confidence=verdict_confidence,
                mechanism=training.name,
                progress=told("game"),
            )
        )
    return results


def default_trials(training: Training) -> int:
    """10,000 where a training is vectorised, fewer where each is of more than 30 parameters, and 400 elsewhere."""
    if training.many is None:
        return _ONE_BY_ONE
    wide = training.certificate.public_facts.get("dimension") or 1
    return int(np.clip(_VECTORISED * (30 / wide) ** 2, _ONE_BY_ONE, _VECTORISED))


def easiest_pair(training: Training, trials: int, progress: Callable[[int, int], None] | None = None) -> Pair:
    """The candidate whose worlds a pilot of `trials` runs each tells apart best; its runs are not used again."""
    play: Train = training.outputs
    merits: list[float] = []
    for number, pair in enumerate(training.candidate_pairs):
        first, second = play(pair.first, trials), play(pair.second, trials)
        score = None if training.likelihood_ratio is None else training.likelihood_ratio(pair)
        if score is None:
            direction = second.mean(axis=0) - first.mean(axis=0)
            first, second = first @ direction, second @ direction
        else:
            first, second = score(first), score(second)
        area = area_under_curve(first, second)[0]
        merits.append(max(area, 1 - area))
        if progress is not None:
            progress(number + 1, len(training.candidate_pairs))
    return training.candidate_pairs[merits.index(max(merits))]
