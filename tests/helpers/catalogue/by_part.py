"""A model for each part of the records: alike and unlike parts, several classes, persons of several rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from dperm.gradient import CyclicPoisson
from dperm.gradient.correlation.banded_toeplitz import BandedToeplitz
from dperm.mechanisms import ByPart, Gradient, Objective, Output
from dperm.objectives import Logistic, PrivacyUnit, Task
from helpers.catalogue.common import BUDGET, SIZE, Entry, gradient
from helpers.catalogue.correlated import made_for

TASK = Task(loss=Logistic(), features=5, classes=2, public_size=SIZE, intercept_scale=0.0)


def entries() -> Iterator[Entry]:
    """The first two features say which part a record is in."""
    alike = [Output().build(TASK, BUDGET)] * 2
    yield "by part, output", ByPart.of(alike, (0, 1)), alike[0][1]
    sized = [Objective(strong_convexity=8.0).build(replace(TASK, public_size=size), BUDGET) for size in (SIZE, 5)]
    yield "by part, objective, of two sizes", ByPart.of(sized, (0, 2)), sized[0][1]
    sampled = [(gradient(alike[0][1].facts), alike[0][1])] * 2
    yield "by part, gradient", ByPart.of(sampled, (0, 1)), sampled[0][1]
    turns = [(made_for(alike[0][1], CyclicPoisson(0.6, 4), BandedToeplitz(4)), alike[0][1])] * 2
    yield "by part, correlated noise", ByPart.of(turns, (0, 1)), turns[0][1]
    yield "by part, two mechanisms", ByPart.of([sampled[0], alike[0]], (0, 1)), alike[0][1]
    weighed = [Gradient(sampling="importance", epochs=2).build(TASK, BUDGET)] * 2
    yield "by part, importance", ByPart.of(weighed, (0, 1)), weighed[0][1]
    unknown = [Output().build(replace(TASK, public_size=None), BUDGET)] * 2
    yield "by part, private sizes", ByPart.of(unknown, (0, 1)), unknown[0][1]
    three = [Output().build(replace(TASK, classes=3), BUDGET)] * 2
    yield "by part, three classes", ByPart.of(three, (0, 1)), three[0][1]
    persons = [Output().build(replace(TASK, unit=PrivacyUnit(2)), BUDGET)] * 2
    yield "by part, persons", ByPart.of(persons, (0, 1)), persons[0][1]
