"""How good answers are, beside the truth: by exact numbers of test records, which no noise hides."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dperm._column import agreement, column
from dperm._types import Array

_BINS = 10  # of probabilities, for calibration

#: scores of classes with an order
RANKS_OFF, MIDDLE_OFF = "mean error in ranks", "mean error in ranks, of the middle rank"


@dataclass(frozen=True)
class Judgement:
    """Scores by name, what stands out about them, and for classes the share of each that was recognised."""

    records: int
    scores: dict[str, float]
    recalls: dict[str, float]
    warnings: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready; what is not defined on these records is None."""
        scores, recalls = (
            {name: None if np.isnan(value) else float(value) for name, value in table.items()}
            for table in (self.scores, self.recalls)
        )
        return {"records": self.records, "scores": scores, "recalls": recalls, "warnings": list(self.warnings)}


def judge_classes(
    truth: NDArray[Any],
    answers: NDArray[Any],
    probabilities: Array | None,
    classes: list[Any],
    *,
    weighted: bool = False,
    ordered: bool = False,
) -> Judgement:
    """Labels (n,) beside predicted ones (n,), and probabilities (n, K) of the classes in their order, where there are some.
    `weighted`: the classes did not count alike, so that accuracy is not what the model was made for. `ordered`: the classes stand
    from the least to the greatest, and answers are judged by how many ranks they are off, too.

    ValueError for other shapes.
    """
    from sklearn.metrics import log_loss, recall_score, roc_auc_score

    truth = column("labels", truth)
    answers = column("predicted labels", answers, len(truth))
    if probabilities is not None and np.shape(probabilities) != (len(truth), len(classes)):
        raise ValueError(f"Expected probabilities ({len(truth)}, {len(classes)}), got shape {np.shape(probabilities)}.")
    right = agreement(truth, answers)
    present = [label for label in classes if (truth == label).any()]
    each = recall_score(truth, answers, labels=classes, average=None, zero_division=np.nan)
    recalls = {str(label): float(value) for label, value in zip(classes, np.atleast_1d(each), strict=True)}
    accuracy = float(np.mean(right))
    majority = max(float(np.mean(truth == label)) for label in present)
    scores = {
        "accuracy": accuracy,
        "most frequent class": majority,
        "balanced accuracy": float(np.nanmean(list(recalls.values()))),
    }
    if ordered:
        scores |= _rank_errors(truth, answers, classes)
    if probabilities is not None:
        auc = np.nan
        if len(classes) == 2 and len(present) == 2:
            auc = roc_auc_score(truth == classes[1], probabilities[:, 1])
        elif len(present) == len(classes) > 2:
            order = np.argsort(classes)  # in which scikit-learn expects them
            auc = roc_auc_score(truth, probabilities[:, order], labels=np.array(classes)[order], multi_class="ovr")
        scores["AUC"] = float(auc)
        order = np.argsort(classes)
        scores["log loss"] = float(log_loss(truth, probabilities[:, order], labels=np.array(classes)[order]))
        scores["calibration error"] = _calibration(right, probabilities.max(axis=1))
        if len(classes) == 2:
            scores[f"share of {classes[1]}"] = float(np.mean(truth == classes[1]))
            scores[f"mean probability of {classes[1]}"] = float(probabilities[:, 1].mean())
    warnings: list[str] = []
    if ordered and scores[RANKS_OFF] > scores[MIDDLE_OFF]:
        off = f"{scores[RANKS_OFF]:.3g} against {scores[MIDDLE_OFF]:.3g} ranks"
        warnings.append(f"Further off than always saying the middle rank of these records: {off}.")
    if accuracy < majority and not ordered:
        worse = f"Worse than always saying the most frequent class: {100 * accuracy:.1f} against {100 * majority:.1f} %."
        meant = " Its classes were weighted, which gives accuracy away for recall: judge it by its recalls and AUC."
        warnings.append(worse + (meant if weighted else ""))
    if len(np.unique(answers)) == 1 and len(present) > 1:
        warnings.append(f"It says {answers[0]} of every record.")
    if weighted and probabilities is not None:
        warnings.append("Probabilities are those of weighted classes: no shares of records.")
    never = [name for name, recall in recalls.items() if recall == 0]
    if never and len(classes) == 2 and not weighted:
        warnings.append(f"It recognises no {never[0]!r}: class_weight (--class-weight) makes errors on it count for more.")
    return Judgement(len(truth), scores, recalls, tuple(warnings))


def _rank_errors(truth: NDArray[Any], answers: NDArray[Any], classes: list[Any]) -> dict[str, float]:
    """Mean distances in ranks of answers (n,) from labels (n,), and of the records' own median class."""
    order = np.argsort(classes)
    ranks = [order[np.searchsorted(np.array(classes)[order], labels)] for labels in (truth, answers)]
    middle = np.sort(ranks[0])[(len(truth) - 1) // 2]
    return {
        RANKS_OFF: float(np.abs(ranks[0] - ranks[1]).mean()),
        MIDDLE_OFF: float(np.abs(ranks[0] - middle).mean()),
    }


def judge_numbers(truth: Array, answers: Array, *, quantile: float | None = None) -> Judgement:
    """Numbers (n,) beside predicted ones (n,). `quantile`: the answers are this quantile, and not means: they are judged by the
    pinball loss, beside that of the records' own quantile, and by the share of numbers at or below them. ValueError for other
    shapes."""
    truth = column("targets", truth).astype(np.float64)
    answers = column("predictions", answers, len(truth)).astype(np.float64)
    off = answers - truth
    spread = float(np.square(truth - truth.mean()).sum())
    r2 = 1 - float(np.square(off).sum()) / spread if spread > 0 else np.nan
    scores = {
        "R²": r2,
        "mean absolute error": float(np.abs(off).mean()),
        "root mean squared error": float(np.sqrt(np.square(off).mean())),
        "of the mean, absolute": float(np.abs(truth - truth.mean()).mean()),
    }
    if quantile is None:
        warning = "Worse than always saying the mean: R² is below 0." if r2 < 0 else ""
    else:
        loss, constant = (_pinball(truth, given, quantile) for given in (answers, np.quantile(truth, quantile)))
        scores = {
            "pinball loss": loss,
            "of the quantile of all, pinball": constant,
            "share at or below": float(np.mean(truth <= answers)),
            **scores,
        }
        warning = f"Worse than always saying the records' {quantile:g} quantile: {loss:.4g} against {constant:.4g}, pinball loss."
        warning = warning if loss > constant else ""
    return Judgement(len(truth), scores, {}, (warning,) if warning else ())


def _pinball(truth: Array, answers: Array | np.float64, quantile: float) -> float:
    """Mean pinball loss of answers to numbers (n,)."""
    from sklearn.metrics import mean_pinball_loss

    return float(mean_pinball_loss(truth, np.broadcast_to(answers, truth.shape), alpha=quantile))


def _calibration(right: NDArray[np.bool_], confidence: Array) -> float:
    """Mean distance of confidence from accuracy over bins of equal width, by their records (expected calibration error)."""
    bins = np.minimum((confidence * _BINS).astype(np.intp), _BINS - 1)
    counts = np.bincount(bins, minlength=_BINS)
    apart = np.bincount(bins, right - confidence, minlength=_BINS)
    return float(np.abs(apart[counts > 0]).sum() / len(right))


def calibration_error(happened: NDArray[np.bool_], probability: Array) -> float:
    """Mean distance of the share of records of a class from the mean of its probability (n,), over ten groups of as many records
    each, from the lowest probability to the highest: of a rare class no group is all of the table."""
    order = np.argsort(probability, kind="stable")
    groups = [group for group in np.array_split(order, min(_BINS, len(order))) if len(group)]
    apart = [len(group) * abs(float(happened[group].mean() - probability[group].mean())) for group in groups]
    return sum(apart) / len(order)
