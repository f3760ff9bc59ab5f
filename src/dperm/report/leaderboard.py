"""Models of a comparison in the order in which a reader wants them, and their scores as texts, for pages and terminals alike."""

from __future__ import annotations

import math

from dperm.report.candidates import CANDIDATES, DEFAULT, REFERENCES
from dperm.report.study import Cell, StudyResult
from dperm.report.study_scores import Measure

WORSE = "worse than the mean"
_DIGITS = 3  # that are shown of a number in the target's units
_WIDEST = 1.0  # half an interval of R²: a wider one says only that the fits differ


def title_of(key: str) -> str:
    """A model's name in full."""
    return (REFERENCES.get(key) or CANDIDATES[key]).title


def short_of(key: str) -> str:
    """A model's name where there is little room."""
    return (REFERENCES.get(key) or CANDIDATES[key]).short


def ranked_keys(result: StudyResult, epsilon: float) -> list[str]:
    """Private mechanisms: the default first, then from the best at this ε to the worst; what is only claimed last."""

    def place(key: str) -> tuple[bool, bool, float]:
        mean = result.cell(key, epsilon).mean
        return key != DEFAULT, CANDIDATES[key].claimed, math.inf if math.isnan(mean) else -mean

    return sorted(result.keys, key=place)


def told_apart(result: StudyResult) -> dict[float, str | None]:
    """The best mechanism at each ε, where it leads beyond chance and is better than a constant answer."""
    best = {epsilon: result.best(epsilon) for epsilon in result.study.epsilons}
    return {
        epsilon: key if key is not None and result.cell(key, epsilon).mean > result.baseline else None
        for epsilon, key in best.items()
    }


def score_text(result: StudyResult, cell: Cell) -> tuple[str, str]:
    """The score that ranks, and half of its interval: "" where there is none, or where it would say nothing."""
    value, spread, measure = cell.mean, cell.spread, result.measure
    if cell.mechanism == "constant":
        return value_text(measure, result.baseline), ""
    if result.task.classes == 0 and value < 0:
        return WORSE, ""
    if math.isnan(spread) or (result.task.classes == 0 and spread > _WIDEST):
        return value_text(measure, value), ""
    return value_text(measure, value), f"{100 * spread:.1f}" if measure.unit == "percent" else f"{spread:.3f}"


def measured_text(cell: Cell, measure: Measure) -> str:
    """The mean of any score."""
    value = cell.measured(measure.name)
    if measure.name == "R²" and cell.mechanism == "constant":  # the mean of other records is a little worse than their own
        return value_text(measure, 0.0)
    return WORSE if measure.name == "R²" and value < 0 else value_text(measure, value)


def value_text(measure: Measure, value: float) -> str:
    """A score as its unit asks for it."""
    if math.isnan(value):
        return "–"
    if measure.unit == "percent":
        return f"{100 * value:.1f}"
    return amount_text(value) if measure.unit == "target" else f"{value:.3f}"


def amount_text(value: float) -> str:
    """A number in the target's units, to three significant digits, without an exponent where it has fewer than ten digits."""
    if not math.isfinite(value) or value == 0:
        return f"{value:g}"
    digits = _DIGITS - 1 - math.floor(math.log10(abs(value)))
    if not -8 < digits < 8:
        return f"{value:.{_DIGITS}g}"
    return f"{round(value, digits):,.{max(digits, 0)}f}"
