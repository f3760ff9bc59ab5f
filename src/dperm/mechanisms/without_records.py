"""What noise alone makes of a parameter that no record has a say in, such as that of a category that nobody has."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from scipy.integrate import quad
from scipy.optimize import brentq
from scipy.special import betaincinv, gammaincc, ndtri

from dperm import _validate as check
from dperm._json import foreign

#: The entry of a trace that holds this law.
ENTRY = "without_records"


@dataclass(frozen=True)
class WithoutRecords:
    """The law of θ_j where every record's feature j is 0 and the roughness penalty joins j with no other parameter. It is public.

    Such a θ_j is in no prediction, so that what is minimised splits into a part without it and one in it alone.

    * Objective perturbation minimises Σℓ + (Λ/2)‖θ‖² + bᵀθ with b ~ N(0, σ²I): the part in θ_j is (Λ/2)θ_j² + b_jθ_j. Its
      minimiser is −b_j/Λ, noise divided by the curvature that the regulariser alone gives. What is released has a second noise of
      standard deviation τ, so that θ_j ~ N(0, σ²/Λ² + τ²), independently of all other parameters. In a ball the minimiser is
      divided by Λ and a multiplier that is not negative: then it is no farther from 0.
    * Output perturbation minimises (Λ/2)θ_j², at 0 in a ball, too, and descent that starts at 0 stays there: θ_j is a coordinate
      of the noise. It is N(0, s²), or, of density ∝ exp(−‖b‖/s) in p dimensions, the product of a length of the Gamma law of
      shape p and scale s and of a coordinate u of a random direction, where u² has the Beta law of shapes 1/2 and (p − 1)/2.

    The solver's error, at most the tolerance divided by Λ, and the rounding of releases are left out. Both are far below noise.

    Attributes
    ----------
    scale : float
        The standard deviation of a normal law, or s of the other one, in the units of parameters.
    dimension : int or None
        p of the other law. None: the law is normal.
    """

    scale: float
    dimension: int | None = None

    def __post_init__(self) -> None:
        check.positive("scale", self.scale)
        if self.dimension is not None:
            check.integer("dimension", self.dimension)

    @property
    def deviation(self) -> float:
        """The standard deviation of θ_j, in the units of parameters: of the other law the mean square of ‖b‖ is s²p(p + 1)."""
        return self.scale * (1.0 if self.dimension is None else math.sqrt(self.dimension + 1))

    def reach(self, chance: float) -> float:
        """The distance from 0 that |θ_j| exceeds with probability `chance`, in the units of parameters."""
        check.fraction("chance", chance)
        if self.dimension is None:
            return -self.scale * float(ndtri(chance / 2))
        return self.scale * _reach(self.dimension, chance)

    def to_dict(self) -> dict[str, Any]:
        """The law as JSON has it, for a trace."""
        return {"scale": self.scale, "dimension": self.dimension}

    @classmethod
    def of(cls, trace: Mapping[str, Any]) -> Self | None:
        """The law that a fitted model's trace states; None where none is known. ValueError for an entry that is no law."""
        stated = trace.get(ENTRY)
        if stated is None:
            return None
        if not isinstance(stated, Mapping) or set(stated) != {"scale", "dimension"}:
            raise ValueError(f"Expected {ENTRY} of a trace as its scale and dimension, got {stated!r}.")
        with foreign(f"Expected {ENTRY} of a trace as numbers"):
            return cls(**stated)


@functools.lru_cache(maxsize=64)
def _reach(dimension: int, chance: float) -> float:
    """The distance that a coordinate of a vector of density ∝ exp(−‖b‖) in p dimensions exceeds with probability `chance`."""
    if dimension == 1:
        return -math.log(chance)
    highest = 2.0  # grows until less than `chance` lies beyond
    while _beyond(highest, dimension) > chance:
        highest *= 2
    return float(brentq(lambda far: _beyond(far, dimension) - chance, 0.0, highest, rtol=1e-10))


def _beyond(far: float, dimension: int) -> float:
    """The probability that a coordinate of a vector of density ∝ exp(−‖b‖) in p dimensions is farther from 0 than `far`."""
    if far == 0:
        return 1.0

    def longer(share: float) -> float:
        """The probability that the length is enough where u² is at the quantile `share` of its law."""
        along = math.sqrt(float(betaincinv(0.5, (dimension - 1) / 2, share)))
        return float(gammaincc(dimension, far / along)) if along > 0 else 0.0

    return float(quad(longer, 0.0, 1.0, limit=200)[0])
