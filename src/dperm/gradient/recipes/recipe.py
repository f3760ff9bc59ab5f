"""What a recipe is: a function of keywords that composes a policy, marked with what it is handed beside its own settings."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from dperm.gradient.policy import Policy

F = TypeVar("F", bound=Callable[..., Policy])

_MARK = "dperm_recipe"


class RecipeKind(tuple[str, ...]):
    """The keywords that whoever runs a recipe hands over; settings of the caller's own come beside them."""

    @property
    def budgeted(self) -> bool:
        """Whether the policy plans its noise on the way, within a budget."""
        return "epsilon" in self

    def refuse_others(self, function: Callable[..., Policy], settings: dict[str, Any]) -> None:
        """ValueError for settings that the recipe does not have, and where it needs more."""
        while isinstance(function, functools.partial):
            function, settings = function.func, {**function.keywords, **settings}
        try:
            inspect.signature(function).bind(**dict.fromkeys(self, None), **settings)
        except TypeError as error:
            raise ValueError(f"Expected the settings of {getattr(function, '__name__', function)}: {error}.") from None

    def handed(self, **known: Any) -> dict[str, Any]:
        """Those of these keywords that a recipe of this kind is handed by whoever runs it."""
        return {name: value for name, value in known.items() if name in self}


_NOISE = RecipeKind(("noise_multiplier", "public_size"))
_TARGETED = RecipeKind((*_NOISE, "target"))
_BUDGET = RecipeKind(("epsilon", "delta", "public_size"))


def recipe(function: F) -> F:
    """Marks a function that takes noise_multiplier and public_size: its noise is calibrated by whoever runs it. Where it takes
    `target`, too, it is handed the (ε, δ) that the noise is calibrated to, or None where that is another."""
    setattr(function, _MARK, _TARGETED if "target" in inspect.signature(function).parameters else _NOISE)
    return function


def budgeted_recipe(function: F) -> F:
    """Marks a function that takes epsilon, delta, public_size (None where it is to be released) and perhaps `earlier`, an event
    of the same records: its policy plans its noise on the way."""
    setattr(function, _MARK, _BUDGET)
    return function


def kind_of(function: Any) -> RecipeKind | None:
    """Of a recipe, perhaps with some settings bound by functools.partial; None of anything else."""
    while isinstance(function, functools.partial):
        function = function.func
    return getattr(function, _MARK, None)
