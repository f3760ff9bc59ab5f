"""Post-processing of a released gradient. A function of released values alone, so it costs nothing."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
from array_api_compat import array_namespace, device
from numpy.typing import NDArray

from dperm import _validate as check


@dataclass(frozen=True)
class Post(ABC):
    #: whether each number is made of the same number of the gradient alone
    coordinatewise = False

    @abstractmethod
    def apply(self, gradient: Any) -> Any:
        """The gradient handed to the update, (p,)."""

    def noise_left(self, size: int) -> float | None:
        """The standard deviation of what is left of independent noise of one unit in each of `size` numbers; None where it is not
        the same for all, or depends on the gradient."""
        return None


@dataclass(frozen=True)
class Identity(Post):
    coordinatewise = True

    def apply(self, gradient: Any) -> Any:
        return gradient

    def noise_left(self, size: int) -> float | None:
        return 1.0


@dataclass(frozen=True)
class LaplacianSmoothing(Post):
    """A⁻¹g, A = I − strength·L, L the second difference of neighbouring numbers on a ring (DP-LSSGD: Wang, Gu, Boedihardjo, Wang,
    Barekat, Osher 2019). A⁻¹ has eigenvalues 1/(1 + 2·strength·(1 − cos(2πj/p))): sums stay, and noise shrinks."""

    strength: float = 1.0

    def __post_init__(self) -> None:
        check.non_negative("strength", self.strength)

    def apply(self, gradient: Any) -> Any:
        size, xp = gradient.shape[-1], array_namespace(gradient)
        if str(device(gradient)) == "cpu":  # NumPy's transform starts no threads, which fight with those of a network's layers
            values = np.asarray(gradient)
            smoothed = np.fft.irfft(np.fft.rfft(values) * _shrinkage(self.strength, size), size).astype(values.dtype, copy=False)
            return smoothed if isinstance(gradient, np.ndarray) else xp.asarray(smoothed)
        spectrum = xp.fft.rfft(gradient, axis=-1)
        shrinkage = xp.asarray(_shrinkage(self.strength, size), dtype=gradient.dtype, device=device(gradient))
        return xp.fft.irfft(spectrum * shrinkage, n=size, axis=-1)

    def noise_left(self, size: int) -> float | None:
        half = _shrinkage(self.strength, size) ** 2
        # of the whole spectrum, which is that half and, but for its first number and a middle one, its mirror image
        return float(np.sqrt((2 * half.sum() - half[0] - (half[-1] if size % 2 == 0 else 0.0)) / size))


@functools.lru_cache(maxsize=16)
def _shrinkage(strength: float, size: int) -> NDArray[np.float64]:
    return 1 / (1 + 2 * strength * (1 - np.cos(2 * np.pi * np.arange(size // 2 + 1) / size)))


@dataclass(frozen=True)
class UnitAtLeast(Post):
    """g/min(1, ‖g‖): a gradient shorter than 1 becomes one of length 1, longer ones stay (m-NGP, done to the noisy gradient)."""

    def apply(self, gradient: Any) -> Any:
        xp = array_namespace(gradient)
        length = xp.linalg.vector_norm(gradient, axis=-1, keepdims=True)
        return gradient / xp.where((length > 0) & (length < 1), length, xp.ones_like(length))
