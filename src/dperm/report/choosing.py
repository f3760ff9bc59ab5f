"""Utility and risk along ε, on one page: for the data holder, since nothing of it is private."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dperm.privacy import Risk
from dperm.report.figures import path_figure
from dperm.report.page import rendered
from dperm.utility import ChosenEpsilon, UtilityCurve
from dperm.utility.choose import Metric

_SHOWN = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
_ADVANTAGE = Risk(advantage=0.5)  # only what they measure counts, not their limits
_ACCUSED = Risk(true_positive_rate=0.5, false_positive_rate=0.01)


@dataclass(frozen=True)
class Level:
    """What one ε gives, on average over the noise and in the middle 80 % of draws, and what it leaves to an attacker."""

    epsilon: float
    mean: float
    low: float
    high: float
    advantage: float
    found: float  # true-positive rate at a false-positive rate of 1 %
    chosen: bool = False


def levels(curve: UtilityCurve, metric: Metric, chosen: ChosenEpsilon | None = None) -> list[Level]:
    """At round values of ε within the curve, and at the one that was chosen."""
    at = {epsilon for epsilon in _SHOWN if curve.epsilons[0] <= epsilon <= curve.epsilons[-1]} or {float(curve.epsilons[0])}
    at |= {chosen.epsilon} if chosen else set()
    bands = curve.band(metric)
    rows: list[Level] = []
    for epsilon in sorted(at):
        mean, low, high = (float(np.interp(np.log(epsilon), np.log(curve.epsilons), values)) for values in bands)
        event = curve.curve.mechanism(epsilon).event(curve.curve.facts)
        is_chosen = chosen is not None and epsilon == chosen.epsilon
        rows.append(Level(epsilon, mean, low, high, _ADVANTAGE.of(event), _ACCUSED.of(event), is_chosen))
    return rows


def choosing_page(
    curve: UtilityCurve, metric: Metric, target: float | None, outcome: ChosenEpsilon | str | None, rows: list[Level], title: str
) -> str:
    """The page. `outcome`: the ε that was chosen, or why there is none; None where no target was asked for."""
    chosen = outcome if isinstance(outcome, ChosenEpsilon) else None
    return rendered(
        "choosing.html",
        curve=curve,
        metric=metric.replace("_", " "),
        target=target,
        chosen=chosen,
        missed=outcome if isinstance(outcome, str) else None,
        rows=rows,
        draws=len(curve.accuracy),
        figure=path_figure(curve, metric, target, chosen),
        title=title,
    )
