"""Training in rounds: local updates of clients with several rows and of single records, however clients are drawn."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dperm.gradient import Adam, AdaptiveClip, FixedOrder, FixedSize, LocalUpdate, Plan
from dperm.gradient.correlation.banded_toeplitz import BandedToeplitz
from dperm.gradient.recipes import dp_fedavg
from dperm.mechanisms import GradientPerturbation
from dperm.objectives import PrivacyUnit, Softmax
from helpers.catalogue.common import ADD, DELTA, EPSILON, REPLACE, SIZE, Entry, gradient, objective

LOCAL = LocalUpdate(4, 2.0)


def in_rounds(facts: Any, **changes: Any) -> GradientPerturbation:
    settings: dict[str, Any] = {
        "public_size": SIZE,
        "expected_cohort": 18,
        "rounds": 12,
        "local_steps": 4,
        "local_learning_rate": 2.0,
        "clipping_norm": 0.5,
    }

    def make(noise: float) -> Plan:
        return dp_fedavg(noise_multiplier=noise, **(settings | changes))

    return GradientPerturbation.calibrate(make, facts, EPSILON, DELTA)


def entries() -> Iterator[Entry]:
    for relation in (ADD, REPLACE):
        clients = objective(relation=relation, unit=PrivacyUnit(3))
        yield f"recipe dp_fedavg, {relation}", in_rounds(clients.facts), clients
        records = objective(relation=relation)
        yield f"local updates of records, {relation}", gradient(records.facts, query=LOCAL), records
    softmax = objective(Softmax(3), unit=PrivacyUnit(2))
    yield "local updates, softmax", in_rounds(softmax.facts, local_momentum=0.5, update=Adam(0.1)), softmax
    clients = objective(unit=PrivacyUnit(3))
    settings: dict[str, Any] = {"clipping_norm": None, "bounding": AdaptiveClip(0.5)}
    yield "local updates, adaptive clip", in_rounds(clients.facts, **settings), clients
    yield "local updates, in turns", in_rounds(clients.facts, sampling="fixed_order", expected_cohort=20), clients
    settings = {"sampler": FixedOrder(4), "correlation": BandedToeplitz(4), "query": LOCAL}
    yield "local updates, in turns, correlated noise", gradient(clients.facts, **settings), clients
    fixed = objective(relation=REPLACE, public_size=40, unit=PrivacyUnit(2))
    yield "local updates, fixed size", gradient(fixed.facts, sampler=FixedSize(12, 40), public_size=40, query=LOCAL), fixed
