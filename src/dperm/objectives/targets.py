"""Which targets a loss takes, and what a prediction says of the target: its link."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, log_expit, softmax

from dperm._types import Array

_LARGEST_EXPONENT = 700.0


@dataclass(frozen=True)
class Targets(ABC):
    """The targets that a loss's constants hold for."""

    #: whether targets are labels, not numbers
    classification: ClassVar[bool] = True
    #: whether targets are centred ranks of labels with an order
    ranked: ClassVar[bool] = False

    @property
    @abstractmethod
    def extremes(self) -> tuple[float, float]:
        """Two targets as far apart as there are."""

    @property
    def between(self) -> tuple[float, ...]:
        """Targets between the extremes at which a loss may bend more than there: audits try them, too."""
        return ()

    @abstractmethod
    def admit(self, targets: Array) -> Array:
        """These targets (n,) as the constants assume them. ValueError where they are not."""


@dataclass(frozen=True)
class Signs(Targets):
    """−1 and 1, of two classes."""

    @property
    def extremes(self) -> tuple[float, float]:
        return 1.0, -1.0

    def admit(self, targets: Array) -> Array:
        if not np.isin(targets, (-1.0, 1.0)).all():
            raise ValueError("Expected targets of -1 and 1.")
        return targets


@dataclass(frozen=True)
class ClassNumbers(Targets):
    """0 … classes − 1."""

    classes: int

    @property
    def extremes(self) -> tuple[float, float]:
        return 0.0, 1.0

    def admit(self, targets: Array) -> Array:
        if not np.isin(targets, np.arange(self.classes)).all():
            raise ValueError(f"Expected class numbers from 0 to {self.classes - 1} as targets.")
        return targets


@dataclass(frozen=True)
class Interval(Targets):
    """Numbers from `low` to `high`; others are clipped to that."""

    low: float
    high: float

    classification = False

    @property
    def extremes(self) -> tuple[float, float]:
        return self.high, self.low

    @property
    def between(self) -> tuple[float, ...]:
        return (0.0,)

    def admit(self, targets: Array) -> Array:
        return np.clip(targets, self.low, self.high)


class Link(ABC):
    """What a prediction t says of the target."""

    @abstractmethod
    def inverse(self, t: Array) -> Array:
        """The expected target, shape of t; of labels the probability of the label 1, or of each of several classes (…, K)."""

    def answer(self, t: Array) -> NDArray[np.intp]:
        """The class numbers (n,) that `predict` answers to predictions t: (n,) of one score, or (n, K) of one for each class."""
        return (t > 0).astype(np.intp) if t.ndim == 1 else t.argmax(axis=1)


@dataclass(frozen=True)
class Identity(Link):
    """The expected target is the prediction."""

    def inverse(self, t: Array) -> Array:
        return t


@dataclass(frozen=True)
class Log(Link):
    """The prediction is the logarithm of the expected target."""

    def inverse(self, t: Array) -> Array:
        return np.exp(np.minimum(t, _LARGEST_EXPONENT))


@dataclass(frozen=True)
class Logit(Link):
    """P(y = 1) = σ(a + t)/(σ(a + t) + σ(a − t)) for the margin a and σ the logistic function: σ(t) where a = 0."""

    margin: float = 0.0

    def log_odds(self, t: Array) -> Array:
        """ln P(y = 1)/P(y = −1), shape of t."""
        return log_expit(self.margin + t) - log_expit(self.margin - t) if self.margin else t

    def inverse(self, t: Array) -> Array:
        return expit(self.log_odds(t))


@dataclass(frozen=True)
class MultinomialLogit(Link):
    """Probabilities of K classes ∝ e^t, for t (…, K)."""

    def inverse(self, t: Array) -> Array:
        return softmax(t, axis=-1)
