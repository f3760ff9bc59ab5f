"""Which ε a target asks for, by looking: utility along ε on held-out records, and the least ε from which on it is good enough."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import rankdata

from dperm import _validate as check
from dperm._column import column
from dperm._types import Array
from dperm.mechanisms import Objective
from dperm.objectives import LinearObjective
from dperm.utility.curve import EpsilonCurve
from dperm.utility.path import UtilityPath

Metric = Literal["accuracy", "auc", "loss", "training_loss"]

_POINTS = 100
_RISING = ("accuracy", "auc")

_NOT_CHARGED = (
    "Chosen by looking at the records, which is not charged: what is trained on the same records with it is private only if they "
    "or the choice are public. On public records, or on other people's, it costs nothing."
)


@dataclass(frozen=True)
class ChosenEpsilon:
    """The least ε from which on the mean of a metric reaches `target`; `reached` is the mean there. `method` is what was looked
    at: `mechanism=` of an estimator."""

    epsilon: float
    delta: float
    metric: Metric
    target: float
    reached: float
    method: Objective
    statement: str = _NOT_CHARGED
    note: str = ""

    def __str__(self) -> str:
        return (
            f"ε = {self.epsilon:.4g} at δ = {self.delta:.2g}: {self.metric.replace('_', ' ')} {self.reached:.4g}, on average "
            f"over the noise, by mechanism={self.method}.{self.note}\n{self.statement}"
        )


@dataclass(frozen=True)
class UtilityCurve:
    """What objective perturbation gives at k values of ε, for m draws of the noise: (m, k) each. Not private.

    `accuracy`, `auc` (the probability that a record of the second class is scored above one of the first; nan where one is
    missing) and `loss` (mean; of the logistic loss with a margin the log loss of its probabilities) are of held-out records,
    `training_loss` is the mean of what was minimised, on those that were trained on.
    """

    curve: EpsilonCurve
    epsilons: Array
    accuracy: Array
    auc: Array
    loss: Array
    training_loss: Array

    @classmethod
    def of(cls, path: UtilityPath, rows: Any, targets: ArrayLike, epsilons: ArrayLike | None = None) -> UtilityCurve:
        """On held-out rows (h, d) and targets (h,), −1 and 1; at 100 values of ε where none are given. ValueError where nothing
        is held out, or of one class only."""
        signs = path.objective.loss.admit(column("held-out targets", targets, rows.shape[0]).astype(np.float64))
        if not len(signs):
            raise ValueError("Expected held-out records with a target each, got none.")
        if len(np.unique(signs)) < 2:
            raise ValueError("Expected held-out records of both classes, got one class only: hold out more, or others.")
        low, high = path.curve.low, path.curve.high
        at = np.geomspace(low, high, _POINTS).clip(low, high) if epsilons is None else np.sort(path.curve.admit(epsilons))
        found = path.scores(at, rows, lambda predictions: _scored(path.objective, predictions, signs))
        accuracy, auc, loss = np.moveaxis(found, -1, 0)
        return cls(path.curve, at, accuracy, auc, loss, path.training_loss(at))

    def band(self, metric: Metric, share: float = 0.8) -> tuple[Array, Array, Array]:
        """(k,) each: the mean over draws, and the ends of the middle `share` of them."""
        check.fraction("share", share)
        values = self._values(metric)
        low, high = np.quantile(values, [(1 - share) / 2, (1 + share) / 2], axis=0)
        return values.mean(axis=0), low, high

    def epsilon_for(self, target: float, metric: Metric = "accuracy") -> ChosenEpsilon:
        """The least ε of the range from which on the mean over draws is at least `target`, at most for losses; between the values
        of ε it is interpolated. ValueError where none is, with what is reached."""
        mean = self._values(metric).mean(axis=0)
        target = (check.fraction if metric in _RISING else check.positive)("target", target)
        sign = 1 if metric in _RISING else -1
        enough = sign * mean >= sign * target
        name = metric.replace("_", " ")
        if not enough[-1]:
            best = int(np.argmax(sign * mean))
            raise ValueError(
                f"Expected a target that some epsilon up to {self.epsilons[-1]:g} reaches and keeps, got {name} {target:g}: at "
                f"epsilon = {self.epsilons[-1]:g} it is {mean[-1]:.4g} on average, and {mean[best]:.4g} at its best "
                f"(epsilon = {self.epsilons[best]:.4g})."
            )
        first = 0 if enough.all() else int(np.flatnonzero(~enough)[-1]) + 1
        epsilon, reached = float(self.epsilons[first]), float(mean[first])
        if first:
            share = (target - mean[first - 1]) / (mean[first] - mean[first - 1])
            before, after = np.log(self.epsilons[first - 1 : first + 1])
            epsilon, reached = float(np.exp(before + share * (after - before))), target
        method = self.curve.method(epsilon)
        method = replace(method, strong_convexity=float(f"{method.strong_convexity:.5g}"))  # to be read and typed
        note = "" if first else " It is the least that was looked at: a smaller one may do."
        return ChosenEpsilon(epsilon, self.curve.delta, metric, target, reached, method, note=note)

    def _values(self, metric: Metric) -> Array:
        return getattr(self, check.choice("metric", metric, get_args(Metric)))


def _scored(objective: LinearObjective, predictions: Array, signs: Array) -> Array:
    """(k, 3) accuracy, AUC and mean loss of predictions (h, k)."""
    positive = signs > 0
    right = ((predictions > 0) == positive[:, None]).mean(axis=0)
    ranks = rankdata(predictions, axis=0)[positive].sum(axis=0)
    count = int(positive.sum())
    auc = (ranks - count * (count + 1) / 2) / (count * (len(signs) - count))
    return np.stack([right, auc, objective.loss.judged(predictions, signs[:, None]).mean(axis=0)], axis=1)
