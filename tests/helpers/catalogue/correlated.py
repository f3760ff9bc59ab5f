"""DP-SGD with noise that later steps partly take back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dperm.gradient import Clip, CyclicPoisson, FixedOrder, FullBatch, Reshuffled, Sampler
from dperm.gradient.correlation import Strategy
from dperm.gradient.correlation.banded_toeplitz import BandedToeplitz
from dperm.gradient.correlation.buffered import Buffered
from dperm.gradient.correlation.inverse_square_root import InverseSquareRoot
from dperm.mechanisms import GradientPerturbation
from dperm.objectives import LinearObjective
from helpers.catalogue.common import ADD, REPLACE, Entry, gradient, objective


def entries() -> Iterator[Entry]:
    added, replaced = objective(relation=ADD), objective(relation=REPLACE)
    yield "correlated noise, cyclic groups", made_for(added, CyclicPoisson(0.6, 4), BandedToeplitz(4)), added
    strategies = {"banded": BandedToeplitz(5), "buffered": Buffered(2, 5), "inverse square root": InverseSquareRoot(3)}
    for name, strategy in strategies.items():
        for problem in (added, replaced):
            yield f"correlated noise, {name}, {problem.relation}", made_for(problem, FixedOrder(5), strategy), problem
    for problem in (added, replaced):
        yield f"correlated noise, reshuffled, {problem.relation}", made_for(problem, Reshuffled(5, 3), BandedToeplitz(3)), problem
    yield "correlated noise, full batches", made_for(added, FullBatch(), BandedToeplitz(3), steps=8), added


def made_for(problem: LinearObjective, sampler: Sampler, strategy: Strategy, **settings: Any) -> GradientPerturbation:
    """At a clipping norm that gradients exceed throughout, so that a record can move all releases as far as is charged."""
    return gradient(problem.facts, sampler=sampler, correlation=strategy, bounding=Clip(0.3), **settings)
