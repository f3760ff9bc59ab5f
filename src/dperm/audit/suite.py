"""All attacks that suit a training."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dperm import _validate as check
from dperm._progress import unwatched, watching
from dperm.audit.distinguish import Train, distinguish
from dperm.audit.pairs import Pair
from dperm.audit.replay import RUNS, replay
from dperm.audit.result import VERDICT_CONFIDENCE, AuditResult
from dperm.audit.statistics import area_under_curve
from dperm.audit.training import Training

_PILOT = 2000
_VECTORISED, _ONE_BY_ONE = 10_000, 400
_FEWEST = 20  # trials
_TIMED = 20
_SLOW = 2.0  # seconds of a training: a neighbour is not replayed to tell how long that takes


@dataclass(frozen=True)
class AttackPlan:
    """How often a training is run: `trials` in each world of the game, `pilot` of each candidate pair. `seconds`: what that takes
    on this machine, as told from a few runs."""

    trials: int
    pilot: int
    seconds: float

    def __str__(self) -> str:
        long = f"{self.seconds:.0f} seconds" if self.seconds < 90 else f"{self.seconds / 60:.1f} minutes"
        return f"Expected to take about {long}: replay on worst-case neighbours, then {self.trials:,} trainings in each world."


def planned_attack(training: Training, trials: int | None = None, seconds: float | None = None) -> AttackPlan:
    """What `attack` will do: `trials` where they are stated; otherwise what fits into `seconds`, from 20 up to the default."""
    if trials is not None:
        check.integer("trials", trials, minimum=_FEWEST)
    pairs, single = training.candidate_pairs, 0.0
    each = [0.0]  # of each pair: of large persons it takes much longer than of ordinary records
    if pairs:
        training.outputs(pairs[0].first, 1)  # the first run also loads and compiles
        single = _seconds(lambda: training.outputs(pairs[0].first, 1))
        runs = 1 if training.many is None else _TIMED
        each = [_seconds(functools.partial(training.outputs, pair.second, runs)) / runs for pair in pairs]
    replayed = len(training.replay_pairs) * _replaying(training, single)
    most = default_trials(training)
    game, piloted = 2 * max(each), 2 * sum(each)  # at worst the pair that takes longest is the easiest
    if trials is None and seconds is not None and game:
        # a pilot of a quarter of the trials for both worlds of each pair, and the game itself
        most = int(np.clip((seconds - replayed) / (game + piloted / 4), _FEWEST, most))
    count = trials or most
    pilot = min(_PILOT, max(_FEWEST, count // 4))
    return AttackPlan(count, pilot, replayed + piloted * pilot + game * count)


def _replaying(training: Training, single: float) -> float:
    """Seconds that a neighbour takes to be replayed, where a training takes `single` ones."""
    if not training.replay_pairs or single > _SLOW:
        return 2 * RUNS * single
    return _seconds(lambda: replay(training, training.replay_pairs[-1:]))


def _seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def attack(
    training: Training,
    *,
    trials: int | AttackPlan | None = None,
    confidence: float = 0.95,
    verdict_confidence: float = VERDICT_CONFIDENCE,
    progress: Callable[[str, int, int], None] | None = None,
) -> list[AuditResult]:
    """Replay `training`, then play the distinguishing game on the pair that a pilot finds easiest to tell apart.

    `trials` per world, or a plan; None: as many as are usual, however long they take. Confidences are the game's; replay's own
    tests err about once in 10⁹ times.
    """
    if isinstance(trials, AttackPlan):
        count, pilot = trials.trials, trials.pilot
    else:
        count = default_trials(training) if trials is None else check.integer("trials", trials, minimum=_FEWEST)
        pilot = min(_PILOT, max(_FEWEST, count // 4))

    if progress is None:
        with watching("Attacking") as step:
            return _attacked(training, count, pilot, confidence, verdict_confidence, lambda _, *done: step(*done))
    with unwatched():
        return _attacked(training, count, pilot, confidence, verdict_confidence, progress)


def _attacked(
    training: Training,
    count: int,
    pilot: int,
    confidence: float,
    verdict_confidence: float,
    progress: Callable[[str, int, int], None],
) -> list[AuditResult]:
    """Replay and the game of `count` trials per world, on the pair that `pilot` ones tell apart best."""

    def told(name: str) -> Callable[[int, int], None]:
        return lambda done, total: progress(name, done, total)

    results = [replay(training, progress=told("replay"))]
    if training.candidate_pairs:
        pair = easiest_pair(training, pilot, told("pilot"))
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
