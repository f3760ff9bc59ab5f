"""Samplers, which choose the records of each step; one file for each kind of sampling.

A sampler states how it draws and the event that follows from its draws; only the sampler may claim amplification. To add one,
derive from `Sampler` in a file here and state its name for `sampling=`; all modules are imported.
"""

import pkgutil
from importlib import import_module

from dperm.gradient.sampling.balls_and_bins import BallsAndBins
from dperm.gradient.sampling.cyclic import CyclicPoisson
from dperm.gradient.sampling.fixed_order import FixedOrder
from dperm.gradient.sampling.fixed_size import FixedSize
from dperm.gradient.sampling.poisson import Poisson, PoissonUpTo
from dperm.gradient.sampling.reshuffled import Reshuffled
from dperm.gradient.sampling.rows import PoissonRows
from dperm.gradient.sampling.sampler import FullBatch, Sampler, samplings

for _module in pkgutil.iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")

__all__ = [
    "BallsAndBins",
    "CyclicPoisson",
    "FixedOrder",
    "FixedSize",
    "FullBatch",
    "Poisson",
    "PoissonRows",
    "PoissonUpTo",
    "Reshuffled",
    "Sampler",
    "samplings",
]
