"""Argument checks whose message says what was expected, what came, and the value."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Set
from decimal import Decimal
from difflib import get_close_matches
from fractions import Fraction
from functools import partial
from typing import Annotated, Any

import numpy as np


def _number(name: str, value: Any) -> float:
    try:
        # what float() would take, and arithmetic would not, or not as it was meant
        if isinstance(value, (str, bytes, bool, np.bool_)) or getattr(value, "ndim", 0):
            raise TypeError
        number = float(value)
    except (TypeError, ValueError):
        raise TypeError(f"Expected {name} to be a number, got {value!r}.") from None
    except OverflowError:
        raise ValueError(f"Expected a finite {name}, got {value!r}.") from None
    if math.isnan(number):
        raise ValueError(f"Expected {name} to be a number, got nan.")
    return number


def finite(name: str, value: Any) -> float:
    number = _number(name, value)
    if math.isinf(number):
        raise ValueError(f"Expected a finite {name}, got {value!r}.")
    return number


def plain_numbers(instance: object, names: Iterable[str]) -> None:
    """Make numbers among these attributes Python's own: what is computed from a number of single precision would be of single
    precision too, decimal fractions mix with no other numbers, and JSON knows none of them."""
    for name in names:
        value = getattr(instance, name)
        if type(value) is np.longdouble:  # whose item is itself
            object.__setattr__(instance, name, float(value))
        elif isinstance(value, np.generic) or (isinstance(value, np.ndarray) and value.ndim == 0):
            object.__setattr__(instance, name, value.item())
        elif isinstance(value, (Decimal, Fraction)):
            object.__setattr__(instance, name, float(value))


def positive(name: str, value: Any) -> float:
    """A finite number > 0."""
    number = finite(name, value)
    if number <= 0:
        raise ValueError(f"Expected {name} > 0, got {value!r}.")
    return number


def scale(name: str, value: Any) -> float:
    """A positive number whose square and whose square's inverse are doubles, with room for noise: in [1e-100, 1e100]."""
    number = positive(name, value)
    if not 1e-100 <= number <= 1e100:
        raise ValueError(f"Expected {name} between 1e-100 and 1e100, got {value!r}.")
    return number


def interval(name: str, value: Any) -> tuple[float, float]:
    """Two finite numbers (low, high), low < high, whose middle and half width are doubles, and the latter a `scale`."""
    try:
        if isinstance(value, (str, bytes, Mapping, Set)):  # the entries of a set have no order
            raise TypeError
        low, high = value
    except (TypeError, ValueError):
        raise TypeError(f"Expected {name} as two numbers, (low, high), got {value!r}.") from None
    low, high = finite(f"{name}[0]", low), finite(f"{name}[1]", high)
    if not low < high:
        raise ValueError(f"Expected {name} as (low, high) with low < high, got {value!r}.")
    if not (1e-100 <= high / 2 - low / 2 <= 1e100 and max(abs(low), abs(high)) <= 1e100):
        raise ValueError(f"Expected {name} within 1e100 on either side of 0, and wider than 2e-100, got {value!r}.")
    return low, high


def non_negative(name: str, value: Any) -> float:
    number = finite(name, value)
    if number < 0:
        raise ValueError(f"Expected {name} >= 0, got {value!r}.")
    return number


def at_least(name: str, value: Any, bound: float) -> float:
    number = finite(name, value)
    if number < bound:
        raise ValueError(f"Expected {name} >= {bound:g}, got {value!r}.")
    return number


def fraction(name: str, value: Any, *, zero: bool = False, one: bool = False) -> float:
    """A number in (0, 1); `zero` and `one` admit the ends."""
    number = finite(name, value)
    low_ok = number >= 0 if zero else number > 0
    high_ok = number <= 1 if one else number < 1
    if not (low_ok and high_ok):
        raise ValueError(f"Expected {name} in {'[' if zero else '('}0, 1{']' if one else ')'}, got {value!r}.")
    return number


def integer(name: str, value: Any, minimum: int = 1) -> int:
    number = finite(name, value)
    if number != int(number):
        raise ValueError(f"Expected {name} to be an integer, got {value!r}.")
    if number < minimum:
        raise ValueError(f"Expected {name} >= {minimum}, got {value!r}.")
    return int(number)


def choice(name: str, value: Any, allowed: Collection[str]) -> str:
    if not isinstance(value, str) or value not in allowed:
        raise ValueError(f"Expected {name} to be one of {', '.join(map(repr, allowed))}, got {value!r}.")
    return value


def nearest(name: str, known: Collection[str]) -> str | None:
    """The known name that is most likely meant by another one; None where none is like it. A shortened name, such as
    "local_lr", stands for one that has its letters in their order."""
    shortened = [each for each in known if len(name) > 1 and _has_in_order(each, name)]
    alike = get_close_matches(name, shortened, 1, 0.0) or get_close_matches(name, known, 1, 0.65)
    return alike[0] if alike else None


def _has_in_order(text: str, letters: str) -> bool:
    left = iter(text)
    return all(letter in left for letter in letters)


#: Below which floats of so many bytes tell whole numbers apart: this one stands for the next, too.
_WHOLE = {2: 2.0**11, 4: 2.0**24, 8: 2.0**53, 16: 2.0**53}


def told_apart(values: Any, dtype: Any = None) -> bool:
    """Whether no float among these, of an array or a column of this type, may stand for several whole numbers."""
    kind, size = getattr(dtype, "kind", ""), getattr(dtype, "itemsize", 8)
    if kind in ("f", "c"):
        return all(abs(each) < _WHOLE.get(size, 2.0**53) for each in values)
    floats = (each for each in values if isinstance(each, float | np.floating))
    return all(abs(each) < _WHOLE[each.itemsize if isinstance(each, np.floating) else 8] for each in floats)


# Types of fields that say which values a field admits: `learning_rate: Positive | None = None`

Positive = Annotated[float, positive]
Scale = Annotated[float, scale]
NonNegative = Annotated[float, non_negative]
Share = Annotated[float, fraction]
Count = Annotated[int, integer]
#: a whole number from 0
CountOrNone = Annotated[int, partial(integer, minimum=0)]


def _scale_or_zero(name: str, value: Any) -> float:
    return scale(name, value) if non_negative(name, value) else 0.0


def _share_or_one(name: str, value: Any) -> float:
    return fraction(name, value, one=True)


#: 0, or a `Scale`
ScaleOrZero = Annotated[float, _scale_or_zero]
#: a `Share`, or 1
ShareOrOne = Annotated[float, _share_or_one]


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"Expected {name} to be True or False, got {value!r}.")
    return value


Flag = Annotated[bool, _flag]


def fields(instance: Any) -> None:
    """Check the fields of a dataclass by their types: each is None where its type admits that, or what `Positive` and the other
    types above say. Numbers become Python's own, and whole numbers int. ValueError or TypeError for other values.

    A class that states a field again, in whatever words, is checked by what those that it derives from say, too.
    """
    plain_numbers(instance, [field.name for field in dataclasses.fields(instance)])
    for name, rule, optional in _rules(type(instance)):
        value = getattr(instance, name)
        if optional and value is None:
            continue
        checked = rule(name, value)
        # other objects that pass for numbers could change after they were checked
        if rule is integer or type(value) not in (int, float):
            object.__setattr__(instance, name, checked)


@functools.cache
def _rules(kind: type) -> list[tuple[str, Callable[[str, Any], Any], bool]]:
    """The field, its check, and whether it may be None: for each field whose type has a check."""
    found: list[tuple[str, Callable[[str, Any], Any], bool]] = []
    names = {field.name for field in dataclasses.fields(kind)}
    for base in kind.__mro__:
        for name, hint in _own_hints(base).items():
            parts = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
            said = [item for part in parts if typing.get_origin(part) is Annotated for item in part.__metadata__]
            checks = [
                item for item in said if getattr(item, "__module__", None) == __name__
            ]  # metadata of other libraries is not ours to read
            if name in names and checks:
                found.append((name, checks[0], type(None) in parts))
    return found


def _own_hints(kind: type) -> dict[str, Any]:
    """The types that a class itself states. Those of a third party's class may be texts that only type checkers can read, in
    ways of any kind: nothing is known of its fields then, and what it derives from is checked all the same."""
    try:
        return inspect.get_annotations(kind, eval_str=True)
    except Exception:
        if kind.__module__.startswith("dperm."):
            raise
        return {}
