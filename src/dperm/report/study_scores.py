"""What a study measures of each model on held-out records: which scores there are for a task, and which one ranks."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dperm._types import Array
from dperm.audit.statistics import area_under_curve
from dperm.objectives import Task
from dperm.report.judging import calibration_error, judge_numbers

_LARGEST = 1e150  # of a prediction that is no number
_LEAST = float(np.finfo(np.float64).eps)  # of a probability, for the log loss, as scikit-learn has it
FEWEST = 20  # held-out records without a copy, for a score of them

#: The score on those held-out records that have no copy among the training records.
WITHOUT_COPIES = "without copies"


@dataclass(frozen=True)
class Measure:
    """A score by its name among a fit's scores.

    Attributes
    ----------
    name, title, short : str
        Among a fit's scores, as the head of a column, and where there is little room.
    unit : str
        "percent", "number", or "target": in the units of a numeric target.
    meaning : str
        What it says, for people who have not met it.
    chance : float or None
        What a constant answer reaches, where that is the same on every table.
    """

    name: str
    title: str
    short: str
    unit: str
    meaning: str
    chance: float | None = None


AUC = Measure(
    "AUC", "AUC", "AUC", "number",
    "how often the model ranks a record of one class above a record of the other as it should: 1 is always, 0.5 is guessing", 0.5,
)  # fmt: skip
BALANCED = Measure(
    "balanced accuracy", "Balanced accuracy", "Bal.acc.", "percent",
    "the share of each class that is recognised, averaged over the classes: a rare class counts as much as a common one",
)  # fmt: skip
R_SQUARED = Measure(
    "R²", "R²", "R²", "number",
    "the share of the target's variation that predictions explain: 1 is all of it, 0 is no better than predicting the mean", 0.0,
)  # fmt: skip
LOG_LOSS = Measure(
    "log loss", "Log loss", "Loss", "number",
    "how far probabilities are from what happens, where sure and wrong costs most: 0 is perfect",
)  # fmt: skip
ACCURACY = Measure(
    "accuracy", "Accuracy", "Accuracy", "percent", "how often answers are right: high by itself where one class is rare"
)

_TWO = (
    AUC,
    Measure("recall", "Finds", "Finds", "percent", "recall: of 100 records of the rarer class, how many the model flags"),
    Measure("precision", "Flags rightly", "Rightly", "percent", "precision: of 100 that it flags, how many are of that class"),
    Measure("balanced accuracy", "Balanced accuracy", "Bal.acc.", "percent", f"{BALANCED.meaning}; 50 is guessing", 0.5),
    LOG_LOSS,
    Measure(
        "calibration error", "Calibration error", "Calibr.", "percent",
        "how many points probabilities are off, on average over ten groups of records from the lowest to the highest probability",
    ),
    ACCURACY,
)  # fmt: skip
_MORE = (
    BALANCED,
    ACCURACY,
    Measure(
        "lowest recall", "Worst class", "Worst class", "percent", "the share recognised of the class that is recognised least"
    ),
    Measure("AUC", "AUC", "AUC", "number", f"{AUC.meaning}; each class against the others, averaged", 0.5),
    LOG_LOSS,
)
RANKS = Measure(
    "rank error saved", "Rank error saved", "Saved", "number",
    "how much of the error in ranks of always saying the middle rank the model's answers save: 1 is all of it, 0 is none",
    0.0,
)  # fmt: skip
_RANKS = (
    RANKS,
    Measure("mean error in ranks", "Mean error in ranks", "Ranks off", "number", "how many ranks answers are off, on average"),
    ACCURACY,
    BALANCED,
    LOG_LOSS,
)
_NUMBERS = (
    R_SQUARED,
    Measure("mean absolute error", "Mean error", "Mean error", "target", "the mean distance of predictions from the truth (MAE)"),
    Measure(
        "root mean squared error",
        "Root mean squared error",
        "RMSE",
        "target",
        "the same with large errors counting for more (RMSE)",
    ),
)


def measures_of(classes: int, ordered: bool = False) -> tuple[Measure, ...]:
    """The scores of a task with so many classes (0: numbers), which may have an order; the first one ranks."""
    if ordered:
        return _RANKS
    return _TWO if classes == 2 else _MORE if classes else _NUMBERS


def constant_score(task: Task, measured: float) -> float:
    """What a constant answer reaches by the score that ranks: what was `measured`, where that hangs on the classes held out."""
    first = measures_of(task.classes, task.ordered)[0]
    return measured if first.chance is None else first.chance


@dataclass(frozen=True)
class Answers:
    """What a model says of n records.

    Attributes
    ----------
    predicted : (n,)
        What `predict` answers: class numbers, or numbers in the target's units.
    probabilities : (n, K) or None
        Of the classes; None for numbers.
    """

    predicted: NDArray[Any]
    probabilities: Array | None = None

    def of(self, rows: NDArray[Any]) -> Answers:
        """Those to some of the records."""
        return Answers(self.predicted[rows], None if self.probabilities is None else self.probabilities[rows])


def score_classes(truth: NDArray[np.intp], given: Answers, rarer: int, threshold: float) -> dict[str, float]:
    """Scores of answers with probabilities (n, K) beside class numbers (n,). Of two classes `rarer` is flagged where its
    probability is above `threshold`."""
    answers, probabilities = given.predicted, given.probabilities
    assert probabilities is not None
    classes, size = probabilities.shape[1], len(truth)
    recalls = [_found(answers == number, truth == number)[0] for number in range(classes)]
    areas = [_area(probabilities[:, number], truth == number) for number in (range(classes) if classes > 2 else (1,))]
    scores = {
        "AUC": float(np.mean(areas)),
        "log loss": -float(np.log(np.maximum(probabilities[np.arange(size), truth], _LEAST)).mean()),
        "accuracy": float(np.mean(answers == truth)),
        "balanced accuracy": float(np.nanmean(recalls)),
    }
    if classes > 2:
        return scores | {"lowest recall": float(np.nanmin(recalls))}
    chance, wanted = probabilities[:, rarer], truth == rarer
    found, precision = _found(chance > threshold, wanted)
    missed, _ = _found(chance <= threshold, ~wanted)
    usual, _ = _found(answers == rarer, wanted)
    return scores | {
        "recall": found,
        "precision": precision,
        "balanced accuracy": (found + missed) / 2,
        "calibration error": calibration_error(wanted, chance),
        "recall at 0.5": usual,
        "flagged": float(np.mean(chance > threshold)),
        "mean probability": float(chance.mean()),
        "threshold": threshold,
    }


def median_class(probabilities: Array) -> NDArray[np.intp]:
    """The rank (n,), from 0, that half of the probability lies at or below; probabilities (n, K) stand in the classes' order."""
    return np.minimum((probabilities.cumsum(axis=1) < 0.5).sum(axis=1), probabilities.shape[1] - 1)


def score_ranks(truth: NDArray[np.intp], answers: NDArray[np.intp]) -> dict[str, float]:
    """Errors in ranks of answers (n,) beside the true ranks (n,)."""
    off = float(np.abs(answers - truth).mean())
    middle = float(np.abs(np.sort(truth)[(len(truth) - 1) // 2] - truth).mean())
    return {"mean error in ranks": off, RANKS.name: 1 - off / middle if middle > 0 else math.nan}


def score_numbers(truth: Array, answers: Array) -> dict[str, float]:
    """Scores of predictions (n,) beside targets (n,), both in the target's units."""
    found = judge_numbers(truth, np.nan_to_num(answers, nan=0.0, posinf=_LARGEST, neginf=-_LARGEST)).scores
    return {name: found[name] for name in ("R²", "mean absolute error", "root mean squared error")}


def score_without_copies(truth: NDArray[Any], answers: Answers, alone: NDArray[np.bool_]) -> dict[str, float]:
    """The score that ranks, on the held-out records that are `alone` (n,): without a copy among the training records."""
    if alone.sum() < FEWEST:
        return {}
    if answers.probabilities is None:
        return {WITHOUT_COPIES: score_numbers(truth[alone], answers.predicted[alone])["R²"]}
    scores = score_classes(truth[alone].astype(np.intp), answers.of(alone), 0, 0.5)
    return {WITHOUT_COPIES: scores[measures_of(answers.probabilities.shape[1])[0].name]}


def _area(chance: Array, wanted: NDArray[np.bool_]) -> float:
    """The area under the curve; not a number where there is one class only."""
    if wanted.all() or not wanted.any():
        return math.nan
    return area_under_curve(chance[~wanted], chance[wanted])[0]


def _found(flagged: NDArray[np.bool_], wanted: NDArray[np.bool_]) -> tuple[float, float]:
    """Recall and precision; not a number where there is nothing to find, or nothing was flagged."""
    both = int((flagged & wanted).sum())
    recall = both / int(wanted.sum()) if wanted.any() else np.nan
    return recall, both / int(flagged.sum()) if flagged.any() else np.nan
