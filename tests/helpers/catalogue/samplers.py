"""DP-SGD by other samplers than Poisson's."""

from __future__ import annotations

from collections.abc import Iterator

from dperm.gradient import BallsAndBins, FixedSize
from helpers.catalogue.common import ADD, REPLACE, Entry, gradient, objective, truncated_poisson


def entries() -> Iterator[Entry]:
    added = objective(relation=ADD)
    yield "balls and bins", gradient(added.facts, sampler=BallsAndBins(4)), added
    yield "truncated Poisson", truncated_poisson(), added
    replaced = objective(relation=REPLACE, public_size=40)  # as many as audits bring
    yield "fixed size", gradient(replaced.facts, sampler=FixedSize(12, 40), public_size=40), replaced
