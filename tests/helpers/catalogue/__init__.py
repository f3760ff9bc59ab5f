"""Trainings of every mechanism, policy, sampler, bounding, schedule, query, loss and recipe that the library certifies.

Each module here has `entries`: they are found by walking, and so is what the library holds. `test_contract.py` fails where
something is certified that is not here: nothing goes unaudited because somebody forgot.
"""

from __future__ import annotations

import dataclasses
import inspect
import pkgutil
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from typing import Any, get_type_hints

import dperm
import dperm.gradient.recipes
from dperm.gradient import Bounding, GradientDifference, ImportancePlan, NoiseSchedule, Policy, Query, Sampler, SvrgPlan, Unit
from dperm.gradient.recipes.recipe import kind_of
from dperm.mechanisms import GradientPerturbation, Mechanism, OneVsRest, Stopping
from dperm.objectives import Loss
from helpers.catalogue.common import DELTA, EPSILON, Entry, gradient

__all__ = [
    "DELTA",
    "EPSILON",
    "MODULES",
    "catalogue",
    "certified_parts",
    "concrete",
    "covering",
    "entries_of",
    "gradient",
    "parts_of",
    "recipes",
]

#: of policies, parts that are none of their fields
WITHIN: dict[type, set[type]] = {ImportancePlan: {Unit}, SvrgPlan: {GradientDifference}}
#: what makes or bounds what is released; updates and what is done to a noisy gradient read releases alone
FAMILIES = (Mechanism, Policy, Sampler, Bounding, NoiseSchedule, Query, Loss, Stopping)


#: Names of the modules. Tests go through one at a time: to make all takes half a minute, which no collection should.
MODULES = tuple(module.name for module in pkgutil.iter_modules(__path__) if module.name != "common")


@cache
def entries_of(module: str) -> tuple[Entry, ...]:
    """(name, mechanism, objective) of one module, made once a process."""
    return tuple(import_module(f"helpers.catalogue.{module}").entries())


def catalogue() -> tuple[Entry, ...]:
    """All of them."""
    return tuple(entry for module in MODULES for entry in entries_of(module))


def covering(entries: Sequence[Entry], *, by_neighbours: bool = False) -> list[Entry]:
    """Few of them that together have every part; `by_neighbours` under every relation that it is there under, and of persons."""
    parts: dict[str, set[Any]] = {name: set(parts_of(mechanism, objective)) for name, mechanism, objective in entries}
    if by_neighbours:
        for name, _, objective in entries:
            parts[name] = {(part, objective.relation, objective.unit.several_rows) for part in parts[name]}
    chosen, left = set[str](), set[Any]().union(*parts.values())
    while left:
        best = max(parts, key=lambda name: len(parts[name] & left))
        chosen.add(best)
        left -= parts[best]
    return [entry for entry in entries if entry[0] in chosen]


@cache
def import_all() -> None:
    """Every module of the library, wherever a member of a family may be, but for those whose optional libraries are not here."""
    for module in pkgutil.walk_packages(dperm.__path__, "dperm."):
        if module.name.endswith(".__main__"):
            continue
        try:
            import_module(module.name)
        except ModuleNotFoundError as error:
            if (error.name or "").startswith("dperm"):
                raise


def concrete(base: type) -> set[type]:
    """All classes below `base` that can be made, of the whole library."""
    import_all()
    found: set[type] = set()
    waiting = [base]
    while waiting:
        kind = waiting.pop()
        waiting += kind.__subclasses__()
        claimed = issubclass(kind, Policy) and kind.claim is not None
        if not inspect.isabstract(kind) and kind.__module__.startswith("dperm.") and not claimed:
            found.add(kind)
    return found


def certified_parts() -> set[type]:
    return set().union(*map(concrete, FAMILIES))


def recipes() -> set[str]:
    """Marked functions of all modules beside the published recipes, exported or not, but for those that are only claimed."""
    package = dperm.gradient.recipes
    modules = [import_module(f"{package.__name__}.{module.name}") for module in pkgutil.iter_modules(package.__path__)]
    marked = {name: value for module in modules for name, value in vars(module).items() if kind_of(value) is not None}
    return {name for name, value in marked.items() if get_type_hints(value)["return"].claim is None}


def parts_of(mechanism: Mechanism, objective: Any) -> set[type]:
    """The types that an entry puts to the test."""
    found: set[type] = {type(mechanism), type(objective.loss)}
    found |= {type(value) for value in vars(mechanism).values() if isinstance(value, Stopping)}
    if isinstance(mechanism, OneVsRest):
        found |= parts_of(mechanism.mechanism, objective)
    if isinstance(mechanism, GradientPerturbation):
        plan: Any = mechanism.plan
        parts = [plan, *(getattr(plan, field.name) for field in dataclasses.fields(plan))]
        found |= {type(part) for part in parts} | WITHIN.get(type(plan), set())
    return found
