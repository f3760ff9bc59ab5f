"""What a recipe is: a function of keywords that composes a policy, marked with what it is handed beside its own settings."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

from dperm import _validate as check
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
        if problem := _wrong_settings(function, {**dict.fromkeys(self), **settings}):
            raise ValueError(problem)

    def handed(self, **known: Any) -> dict[str, Any]:
        """Those of these keywords that a recipe of this kind is handed by whoever runs it."""
        return {name: value for name, value in known.items() if name in self}


_NOISE = RecipeKind(("noise_multiplier", "public_size"))
_TARGETED = RecipeKind((*_NOISE, "target"))
_BUDGET = RecipeKind(("epsilon", "delta", "public_size"))
#: what whoever runs a recipe states, and no setting of the caller's own
_HANDED = (*_TARGETED, *_BUDGET, "earlier")


def recipe(function: F) -> F:
    """Marks a function that takes noise_multiplier and public_size: its noise is calibrated by whoever runs it. Where it takes
    `target`, too, it is handed the (ε, δ) that the noise is calibrated to, or None where that is another."""
    return _marked(function, _TARGETED if "target" in inspect.signature(function).parameters else _NOISE)


def budgeted_recipe(function: F) -> F:
    """Marks a function that takes epsilon, delta, public_size (None where it is to be released) and perhaps `earlier`, an event
    of the same records: its policy plans its noise on the way."""
    return _marked(function, _BUDGET)


def kind_of(function: Any) -> RecipeKind | None:
    """Of a recipe, perhaps with some settings bound by functools.partial; None of anything else."""
    while isinstance(function, functools.partial):
        function = function.func
    return getattr(function, _MARK, None)


def _marked(function: F, kind: RecipeKind) -> F:
    """The same function, which says by name what is wrong with the settings that it is called with."""

    @functools.wraps(function)
    def checked(*args: Any, **settings: Any) -> Policy:
        if not args and (problem := _wrong_settings(function, settings)):
            raise TypeError(problem)
        return function(*args, **settings)

    setattr(checked, _MARK, kind)
    return cast(F, checked)


def _wrong_settings(function: Callable[..., Any], given: Mapping[str, Any]) -> str | None:
    """What is wrong with these keywords of the function, by name; None where nothing is."""
    signature, name = inspect.signature(function), getattr(function, "__name__", str(function))
    try:
        signature.bind(**given)
    except TypeError as error:
        named = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        parameters = [each for each in signature.parameters.values() if each.kind in named]
        takes_any = len(parameters) < len(signature.parameters)
        own = [each.name for each in parameters if each.name not in _HANDED]
        if unknown := [each for each in given if each not in signature.parameters and not takes_any]:
            likely = check.nearest(unknown[0], [each for each in own if each not in given])
            hint = "" if likely is None else f" (did you mean {likely!r}?)"
            return f"Expected the settings of {name}, got {unknown[0]!r}{hint}. They are {', '.join(own)}."
        missing = [each.name for each in parameters if each.default is each.empty and each.name not in given]
        lacks = f"{', '.join(missing)} missing, " if missing else ""
        return f"Expected the settings of {name}: {lacks}{error}."
    return None
