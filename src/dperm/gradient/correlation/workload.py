"""What noise in the steps' gradients does to a trained model: a linear function of it, known beforehand."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from scipy.signal import lfilter

from dperm import _validate as check
from dperm._types import Array

_ITERATES = 64  # that stand for all of them, where the learning rate is not constant


@dataclass(frozen=True, repr=False)
class Workload:
    """SGD from public numbers alone: v ← momentum·v + g, θ ← (1 − η_t·weight_decay)·θ − η_t·v.

    Attributes
    ----------
    momentum, weight_decay : float
        Of the update, at least 0.
    learning_rates : tuple of float
        η_t of each step, in any unit; empty: the same in all steps, and 1 beside the weight decay.
    of : "last", "mean" or "all"
        Which iterates' noise counts: the last one's; that of their mean from `mean_from`·steps on; or every one's alike.
    """

    momentum: float = 0.0
    weight_decay: float = 0.0
    learning_rates: tuple[float, ...] = ()
    of: Literal["last", "mean", "all"] = "last"
    mean_from: float = 0.0

    def __post_init__(self) -> None:
        check.fraction("momentum", self.momentum, zero=True)
        check.non_negative("weight_decay", self.weight_decay)
        check.fraction("mean_from", self.mean_from, zero=True)
        check.choice("of", self.of, ("last", "mean", "all"))
        object.__setattr__(self, "learning_rates", tuple(float(rate) for rate in self.learning_rates))
        if any(not 0 <= rate < 1e100 for rate in self.learning_rates):
            raise ValueError("Expected learning rates of at least 0.")

    def __repr__(self) -> str:
        settings = [
            f"momentum={self.momentum!r}" if self.momentum else "",
            f"weight_decay={self.weight_decay!r}" if self.weight_decay else "",
            f"learning_rates=<{len(self.learning_rates)} steps, sha256 {self._digest()}>" if self.learning_rates else "",
            f"of={self.of!r}",
            f"mean_from={self.mean_from!r}" if self.mean_from else "",
        ]
        return f"Workload({', '.join(filter(None, settings))})"

    def _digest(self) -> str:
        return hashlib.sha256(np.array(self.learning_rates).tobytes()).hexdigest()[:16]

    @property
    def decay(self) -> float:
        """The factor by which weight decay multiplies the parameters in a step with the mean learning rate; at least 0.001."""
        rate = float(np.mean(self.learning_rates)) if self.learning_rates else 1.0
        return max(1 - rate * self.weight_decay, 1e-3)

    def functionals(self, steps: int) -> list[tuple[Array, Array]]:
        """What is to be small: Σ over these pairs (a, w) of Σ_j w_j·m_j², where m is C⁻¹ applied to a, for a Toeplitz strategy C.

        Each a (at most `steps` numbers) is the part that an iterate has in the gradients, from its last step backwards.
        """
        rates = np.array(self.learning_rates or (1.0,) * steps)
        if len(rates) != steps:
            raise ValueError(f"Expected a learning rate for each of {steps} steps, got {len(rates)}.")
        if self.of == "last":
            return [(self._backwards(rates, kept=steps - 1), np.ones(steps))]
        if self.of == "mean":
            return [(self._backwards(rates, kept=min(steps - 1, round(self.mean_from * steps))), np.ones(steps))]
        if len(set(rates.tolist())) == 1:  # a later iterate has one gradient more, and the same part in the others
            return [(self._backwards(rates, kept=steps - 1), np.arange(steps, 0, -1) / steps)]
        ends = np.unique(np.linspace(1, steps, min(steps, _ITERATES)).round().astype(int))
        return [(self._backwards(rates[:end], kept=end - 1), np.full(end, 1 / len(ends))) for end in ends]

    def _backwards(self, rates: Array, kept: int) -> Array:
        """(T,) the part of each gradient, the last one's first, in the mean of the iterates from number `kept` on."""
        left, weighed = 0.0, np.zeros(len(rates))
        share = 1 / (len(rates) - kept)
        for number, step in enumerate(reversed(range(len(rates)))):
            left += share if step >= kept else 0.0  # the weight of the iterates from this step on, less what decays until there
            weighed[number] = rates[step] * left
            left *= 1 - rates[step] * self.weight_decay
        return _filtered(weighed, [1.0, -self.momentum])


def _filtered(values: Array, denominator: Sequence[float] | Array) -> Array:
    made: Any = lfilter([1.0], denominator, values)
    return made
