"""Losses of linear models, with the constants that privacy rests on derived from the public bound on a row's norm.

A loss sees a prediction t = xᵀθ, shape (b,), and a target y, shape (b,): ±1 for classification, a real number for
regression (`Softmax`: t of shape (b, K), y the class numbers). All functions are elementwise and take and return
float64.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from scipy.special import expit, logsumexp, softmax

from dperm import _validate as check
from dperm._types import Array
from dperm.objectives.targets import ClassNumbers, Identity, Interval, Link, Logit, MultinomialLogit, Signs, Targets

_SMALL, _LARGE = 1e-50, 1e50  # bounds whose squares stay within doubles
_LARGEST_MARGIN = 100.0


@dataclass(frozen=True)
class Loss(ABC):
    """A convex loss of a prediction and a target; B below is `data_norm`, the public bound on a row's L2 norm.

    A new loss has a name, its value and two derivatives, and its two constants; a regression also states its `targets`, as an
    `Interval`. What else is here suits a loss of one prediction and targets ±1, whose constants hold on all of ℝ^d.
    """

    #: Whether targets may be (b, 2), with a weight each.
    weighs: ClassVar[bool] = False
    #: Whether one record's Hessian has rank one and the constants hold on all of ℝ^d (objective perturbation).
    rank_one: ClassVar[bool] = True
    #: The name under which the sharp bound of objective perturbation knows this loss.
    sharp: ClassVar[str | None] = None
    #: Predictions for one record.
    outputs: ClassVar[int] = 1
    #: Radius of the L2 ball in which the constants hold; None: everywhere.
    ball: ClassVar[float | None] = None
    #: The targets that the constants hold for.
    targets: ClassVar[Targets] = Signs()

    @property
    @abstractmethod
    def name(self) -> str: ...

    @abstractmethod
    def value(self, t: Array, y: Array) -> Array:
        """ℓ, shape (b,)."""

    @abstractmethod
    def slope(self, t: Array, y: Array) -> Array:
        """∂ℓ/∂t, shape of t."""

    @abstractmethod
    def curvature(self, t: Array, y: Array) -> Array:
        """∂²ℓ/∂t², shape of t (Softmax has no elementwise curvature)."""

    def curvatures(self, t: Array, y: Array) -> Array:
        """∂²ℓ/∂t∂t', shape (b, K, K)."""
        return self.curvature(t, y)[:, None, None]

    @abstractmethod
    def lipschitz(self, data_norm: float) -> float:
        """Bound on one record's gradient norm."""

    @abstractmethod
    def smoothness(self, data_norm: float) -> float:
        """Bound on the largest eigenvalue of one record's Hessian."""

    @property
    def plain(self) -> Loss:
        """The loss of a record that counts whole: this one, but for losses with weights."""
        return self

    def settings(self) -> dict[str, Any]:
        """What it was made with, by name."""
        return dict(vars(self))

    def with_settings(self, **given: Any) -> Loss:
        """The same with other settings."""
        return replace(self, **given)

    def bend(self, data_norm: float) -> float:
        """Bound on how fast one record's Hessian changes: B³ times that of the third derivative. inf: none is known."""
        return math.inf

    @property
    def link(self) -> Link:
        """What a prediction says of the target."""
        return BestAnswer(self) if self.targets.classification else Identity()

    def judged(self, t: Array, y: Array) -> Array:
        """How wrong answers are, shape of t, whatever training made easier for itself: here the loss."""
        return self.value(t, y)

    def slope_error(self, largest: float, steepest: float, curvature: float) -> float:
        """Bound on the rounding error of `slope` at |t| ≤ `largest`, where no slope that occurs is larger than `steepest` and no
        curvature in t larger than `curvature`. Targets count: of t − y the error follows the larger of the two.

        Here: some operations on t, each right to a unit in the last place, and a function right to 8 of them. The tolerance of
        minimisers has room for 2⁻⁵¹·curvature·(1 + at_zero + largest) + 24·2⁻⁵³·steepest where `steepest` is the loss's bound.
        """
        return 2.0**-51 * curvature * (1 + largest) + 2.0**-49 * steepest

    def smoother(self, factor: float) -> Loss | None:
        """A loss of about the same shape whose bends are `factor` ≥ 1 times as wide, or None where there is none.

        A solver that does not converge on the loss itself starts from such a loss's minimiser: nothing is claimed of it.
        """
        return None

    def at_zero(self) -> float:
        """Bound on how far a loss at t = 0 lies above its least value."""
        return float(max(self.value(np.zeros(2), np.array(self.targets.extremes))))

    def admit(self, targets: Array) -> Array:
        """The targets as the constants assume them. ValueError where they are not."""
        try:
            return self.targets.admit(targets)
        except ValueError as error:
            raise ValueError(f"{str(error).removesuffix('.')} for the {self.name} loss.") from None

    def joint(self, classes: int) -> Loss | None:
        """The loss of one model of so many classes; None where there is none, and each class is to have its own."""
        return None


@dataclass(frozen=True)
class BestAnswer(Link):
    """P(y = 1) for which t is the best answer to a loss of targets ±1: p·ℓ'(t, 1) + (1 − p)·ℓ'(t, −1) = 0. It is 1/2 where no
    answer nearby is better."""

    loss: Loss

    def inverse(self, t: Array) -> Array:
        right, wrong = np.abs(self.loss.slope(t, np.ones_like(t))), np.abs(self.loss.slope(t, -np.ones_like(t)))
        both = right + wrong
        return np.divide(wrong, both, out=np.full_like(both, 0.5), where=both > 0)


@dataclass(frozen=True)
class Logistic(Loss):
    """ln(1 + e^{a − yt}) with the `margin` a ≥ 0: L = B, β = B²/4, whatever a is.

    a = 0 is the logistic loss; with a larger one an answer counts as right from yt = a on. At θ = 0 a record pulls with
    1/(1 + e^{−a}) of the slope that noise has to hide, in place of a half (docs/margin.md). The best answer is on the same side
    of 0; its `link` knows what it stands for.
    """

    margin: float = 0.0

    sharp = "logistic"

    def __post_init__(self) -> None:
        if check.non_negative("margin", self.margin) > _LARGEST_MARGIN:
            raise ValueError(f"Expected a margin of at most {_LARGEST_MARGIN:g}, got {self.margin!r}.")

    @property
    def name(self) -> str:
        return f"logistic of margin {self.margin:g}" if self.margin else "logistic"

    def joint(self, classes: int) -> Loss:
        return Softmax(classes)

    def smoother(self, factor: float) -> Loss:
        """A smoothed hinge: its bend is at 1 in place of the margin, which is little compared with its width."""
        return SmoothedHinge(factor)

    def slope_error(self, largest: float, steepest: float, curvature: float) -> float:
        if self.margin:
            return super().slope_error(largest + self.margin, steepest, curvature)
        return 2.0**-49 * steepest  # nothing is done to t but a change of sign

    def value(self, t: Array, y: Array) -> Array:
        return np.logaddexp(0.0, self.margin - y * t)

    def slope(self, t: Array, y: Array) -> Array:
        z = y * t  # in place from here on: the inner loop of DP-SGD
        np.subtract(self.margin, z, out=z)
        expit(z, out=z)
        z *= y
        return np.negative(z, out=z)

    def curvature(self, t: Array, y: Array) -> Array:
        p = expit(self.margin - y * t) if self.margin else expit(t)
        return p * (1 - p)

    @property
    def link(self) -> Logit:
        return Logit(self.margin)

    def judged(self, t: Array, y: Array) -> Array:
        """−ln of the label's probability: the loss itself where a = 0."""
        return np.logaddexp(0.0, -y * self.link.log_odds(t))

    def lipschitz(self, data_norm: float) -> float:
        return data_norm

    def smoothness(self, data_norm: float) -> float:
        return data_norm**2 / 4

    def bend(self, data_norm: float) -> float:
        return data_norm**3 / (6 * math.sqrt(3))


@dataclass(frozen=True)
class Huber(Loss):
    """Huber SVM of half-width h: 0 if m > 1+h, (1+h−m)²/(4h) if |1−m| ≤ h, else 1−m, for the margin m = yt.

    L = B, β = B²/(2h). The derivative is Lipschitz but not differentiable at the two joints.
    """

    half_width: float = 0.1

    sharp = "huber"

    def __post_init__(self) -> None:
        check.positive("half_width", self.half_width)

    @property
    def name(self) -> str:
        return "huber"

    def value(self, t: Array, y: Array) -> Array:
        gap, h = 1 - y * t, self.half_width
        return np.where(gap >= h, gap, np.square(np.clip(gap + h, 0.0, 2 * h)) / (4 * h))

    def slope(self, t: Array, y: Array) -> Array:
        h = self.half_width
        return -y * np.clip((1 - y * t + h) / (2 * h), 0.0, 1.0)

    def curvature(self, t: Array, y: Array) -> Array:
        h = self.half_width
        return np.where(np.abs(1 - y * t) <= h, 1 / (2 * h), 0.0)

    def lipschitz(self, data_norm: float) -> float:
        return data_norm

    def smoothness(self, data_norm: float) -> float:
        return data_norm**2 / (2 * self.half_width)

    def smoother(self, factor: float) -> Loss:
        return Huber(self.half_width * factor)


@dataclass(frozen=True)
class SmoothedHinge(Loss):
    """τ·ln(1 + e^{(1−m)/τ}) of temperature τ: L = B, β = B²/(4τ)."""

    temperature: float = 0.1

    sharp = "smoothed_hinge"

    def __post_init__(self) -> None:
        check.positive("temperature", self.temperature)

    @property
    def name(self) -> str:
        return "smoothed_hinge"

    def value(self, t: Array, y: Array) -> Array:
        return self.temperature * np.logaddexp(0.0, (1 - y * t) / self.temperature)

    def slope(self, t: Array, y: Array) -> Array:
        return -y * expit((1 - y * t) / self.temperature)

    def curvature(self, t: Array, y: Array) -> Array:
        p = expit((1 - y * t) / self.temperature)
        return p * (1 - p) / self.temperature

    def lipschitz(self, data_norm: float) -> float:
        return data_norm

    def smoothness(self, data_norm: float) -> float:
        return data_norm**2 / (4 * self.temperature)

    def bend(self, data_norm: float) -> float:
        return data_norm**3 / (6 * math.sqrt(3) * self.temperature**2)

    def smoother(self, factor: float) -> Loss:
        return SmoothedHinge(self.temperature * factor)


@dataclass(frozen=True)
class Squared(Loss):
    """(t − y)²/2 on ‖θ‖ ≤ radius with |y| ≤ target_bound: L = B(B·radius + target_bound), β = B².

    The bound on the gradient holds only inside the ball: objective perturbation refuses this loss.
    """

    target_bound: float = 1.0
    radius: float = math.inf

    rank_one = False

    def __post_init__(self) -> None:
        if not _SMALL <= check.positive("target_bound", self.target_bound) <= _LARGE:
            raise ValueError(f"Expected target_bound between {_SMALL:g} and {_LARGE:g}, got {self.target_bound!r}.")
        if self.radius != math.inf:
            check.scale("radius", self.radius)

    @property
    def name(self) -> str:
        return "squared"

    @property
    def ball(self) -> float | None:
        return None if self.radius == math.inf else self.radius

    @property
    def targets(self) -> Interval:
        return Interval(-self.target_bound, self.target_bound)

    def at_zero(self) -> float:
        return self.target_bound**2 / 2

    def value(self, t: Array, y: Array) -> Array:
        return np.square(t - y) / 2

    def slope(self, t: Array, y: Array) -> Array:
        return t - y

    def curvature(self, t: Array, y: Array) -> Array:
        return np.ones_like(t)

    def lipschitz(self, data_norm: float) -> float:
        return data_norm * (data_norm * self.radius + self.target_bound)

    def smoothness(self, data_norm: float) -> float:
        return data_norm**2

    def bend(self, data_norm: float) -> float:
        return 0.0


@dataclass(frozen=True)
class Softmax(Loss):
    """Cross-entropy of K classes: −t_y + ln Σ_k e^{t_k}. L = √2·B, β = B²/2. Gradient methods only."""

    classes: int

    rank_one = False

    def __post_init__(self) -> None:
        check.integer("classes", self.classes, minimum=2)

    @property
    def name(self) -> str:
        return "softmax"

    @property
    def outputs(self) -> int:
        return self.classes

    @property
    def targets(self) -> ClassNumbers:
        return ClassNumbers(self.classes)

    @property
    def link(self) -> MultinomialLogit:
        return MultinomialLogit()

    def at_zero(self) -> float:
        return math.log(self.classes)

    def value(self, t: Array, y: Array) -> Array:
        return logsumexp(t, axis=-1) - t[..., np.arange(len(y)), y.astype(np.intp)]

    def slope(self, t: Array, y: Array) -> Array:
        result = softmax(t, axis=-1)
        result[..., np.arange(len(y)), y.astype(np.intp)] -= 1
        return result

    def curvature(self, t: Array, y: Array) -> Array:
        raise TypeError("Softmax has no elementwise curvature; use a gradient method.")

    def curvatures(self, t: Array, y: Array) -> Array:
        p = softmax(t, axis=-1)
        return p[:, :, None] * (np.eye(self.classes) - p[:, None, :])

    def lipschitz(self, data_norm: float) -> float:
        return math.sqrt(2) * data_norm

    def smoothness(self, data_norm: float) -> float:
        return data_norm**2 / 2
