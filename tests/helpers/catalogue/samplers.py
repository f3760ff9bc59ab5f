"""DP-SGD by other samplers than Poisson's."""

from __future__ import annotations

from collections.abc import Iterator

from dperm.gradient import BallsAndBins, FixedSize, PoissonUpTo
from helpers.catalogue.common import ADD, REPLACE, SIZE, Entry, gradient, objective


def entries() -> Iterator[Entry]:
    added = objective(relation=ADD)
    yield "balls and bins", gradient(added.facts, sampler=BallsAndBins(4)), added
    truncated = PoissonUpTo(0.3, capacity=40, largest=SIZE)
    yield "truncated Poisson", gradient(added.facts, sampler=truncated), added
    replaced = objective(relation=REPLACE, public_size=40)  # as many as audits bring
    yield "fixed size", gradient(replaced.facts, sampler=FixedSize(12, 40), public_size=40), replaced
