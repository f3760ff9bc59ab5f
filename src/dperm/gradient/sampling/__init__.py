"""Samplers, one file each."""

from dperm.gradient.sampling.balls_and_bins import BallsAndBins
from dperm.gradient.sampling.fixed_size import FixedSize
from dperm.gradient.sampling.poisson import Poisson, PoissonUpTo
from dperm.gradient.sampling.rows import PoissonRows
from dperm.gradient.sampling.sampler import FullBatch, Sampler, samplings

__all__ = ["BallsAndBins", "FixedSize", "FullBatch", "Poisson", "PoissonRows", "PoissonUpTo", "Sampler", "samplings"]
