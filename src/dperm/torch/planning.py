"""What a caller states about a plan, as a function of its noise and of the number of records."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from dperm import _validate as check
from dperm.gradient import Plan
from dperm.gradient.recipes import dp_sgd

__all__ = ["MakePlan", "Recipe", "planner"]

#: (noise_multiplier, public_size) → plan
MakePlan = Callable[[float, int], Plan]

#: a function of keywords, noise_multiplier and public_size among them, that returns a plan: `dperm.gradient.recipes`
Recipe = Callable[..., Plan]


def planner(
    plan: Plan | MakePlan | Recipe | None,
    *,
    noise_is_set: tuple[bool, bool],
    epochs: float | None,
    expected_batch_size: float | None,
    clipping_norm: float | None,
) -> MakePlan:
    """The function that `calibrate` searches; `noise_is_set` says whether epsilon and noise_multiplier are given.

    Raises ValueError where settings are missing, unknown or stated twice.
    """
    simple = {"epochs": epochs, "expected_batch_size": expected_batch_size, "clipping_norm": clipping_norm}
    settings: dict[str, Any] = {name: check.positive(name, value) for name, value in simple.items() if value is not None}
    if isinstance(plan, Plan):
        if any(noise_is_set):
            raise ValueError("A Plan has its noise already: pass a recipe, or a function (noise_multiplier, public_size) → Plan.")
        if settings:
            raise ValueError(f"Expected {', '.join(settings)} inside the plan, not beside it.")
        return lambda noise, size: plan
    if sum(noise_is_set) != 1:
        raise ValueError("Expected exactly one of epsilon and noise_multiplier.")
    if plan is None:
        if missing := [name for name in simple if name not in settings]:
            raise ValueError(f"Expected {', '.join(missing)}, or a plan.")
        plan = dp_sgd
    recipe: Recipe = plan
    known = inspect.signature(recipe).parameters
    if "noise_multiplier" not in known or known["noise_multiplier"].kind is not inspect.Parameter.KEYWORD_ONLY:
        if settings:
            raise ValueError(f"Expected {', '.join(settings)} inside the plan, not beside it.")
        return recipe  # a function (noise_multiplier, public_size) → plan
    if unknown := [name for name in settings if name not in known]:
        raise ValueError(f"Expected settings that the recipe has, got {', '.join(unknown)}.")
    if "average_from" in known and "average_from" not in getattr(recipe, "keywords", {}):
        settings["average_from"] = None  # averages of half the iterates are for convex problems
    return lambda noise, size: recipe(noise_multiplier=noise, public_size=size, **settings)
