"""Persons with several rows: every mechanism that has a proof for them, both relations, several models, a private size."""

from __future__ import annotations

from collections.abc import Iterator

from dperm.gradient import Clip, FixedSize, Normalise, Poisson, PoissonRows
from dperm.gradient.sampling import FullBatch
from dperm.mechanisms import Objective, Output, Preconditioned
from dperm.objectives import Huber, Logistic, PrivacyUnit, Softmax, Squared, Task
from helpers.catalogue.common import ADD, BUDGET, REPLACE, SIZE, Entry, gradient, objective, truncated_poisson


def entries() -> Iterator[Entry]:
    for relation in (ADD, REPLACE):
        facts = {"features": 3, "public_size": SIZE, "relation": relation, "intercept_scale": 0.2, "unit": PrivacyUnit(3)}
        for name, loss, method in (
            ("objective", Logistic(), Objective(strong_convexity=8.0)),
            ("objective, less regularisation", Logistic(), Objective(strong_convexity=6.0)),
            ("objective, Huber", Huber(0.5), Objective(strong_convexity=12.0)),
            ("objective, generic", Logistic(), Objective(calibration="generic", margin=2.0, strong_convexity=8.0)),
            ("output", Logistic(4.0), Output(strong_convexity=4.0)),
            ("preconditioned", Squared(1.0, 2.0), Preconditioned()),
        ):
            yield f"persons, {name}, {relation}", *method.build(Task(loss=loss, **facts), BUDGET)  # pyright: ignore[reportArgumentType]
        for name, changes in (
            ("Poisson", {"sampler": Poisson(0.3)}),
            ("full batch", {"sampler": FullBatch(), "bounding": Clip(0.3)}),
        ):
            made = objective(relation=relation, unit=PrivacyUnit(3))
            yield f"persons, {name}, {relation}", gradient(made.facts, **changes), made
    several = Task(loss=Logistic(), features=3, classes=3, public_size=SIZE, intercept_scale=0.2, unit=PrivacyUnit(2))
    yield "persons, one against the rest", *Objective(strong_convexity=8.0).build(several, BUDGET)
    softmax = objective(Softmax(3), unit=PrivacyUnit(2))
    yield "persons, softmax, normalised", gradient(softmax.facts, bounding=Normalise(0.01)), softmax
    private = Task(loss=Logistic(), features=3, intercept_scale=0.2, unit=PrivacyUnit(2))
    yield "persons, private size", *Output().build(private, BUDGET)
    drawn = objective(unit=PrivacyUnit(3))
    yield "persons, rows drawn", gradient(drawn.facts, sampler=PoissonRows(0.3, 3)), drawn
    truncated = objective(unit=PrivacyUnit(2))
    yield "persons, truncated Poisson", truncated_poisson(), truncated
    fixed = objective(relation=REPLACE, public_size=40, unit=PrivacyUnit(2))
    yield "persons, fixed size", gradient(fixed.facts, sampler=FixedSize(12, 40), public_size=40), fixed
    alone = Task(loss=Logistic(), features=3, public_size=SIZE, unit=PrivacyUnit(1))
    yield "persons, one row each", *Objective(strong_convexity=8.0).build(alone, BUDGET)
