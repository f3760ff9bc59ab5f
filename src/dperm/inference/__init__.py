"""How sure released parameters are: standard errors, confidence intervals, and what of a difference is noise.

What these are computed from is one more release, which is charged; all that is computed of it costs nothing more
(docs/standard-errors.md).
"""

from dperm.inference.contrast_noise import ContrastNoise
from dperm.inference.intervals import Interval, coefficient_intervals, contrast_intervals, estimable
from dperm.inference.parameter_noise import ParameterNoise
from dperm.inference.released_derivatives import ReleasedDerivatives, release_derivatives

__all__ = [
    "ContrastNoise",
    "Interval",
    "ParameterNoise",
    "ReleasedDerivatives",
    "coefficient_intervals",
    "contrast_intervals",
    "estimable",
    "release_derivatives",
]
