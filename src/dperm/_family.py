"""Families: the classes that dperm wrote below one base. They are found, so that nobody keeps a list."""

from __future__ import annotations

import inspect
from typing import Any, TypeVar

T = TypeVar("T")


def ours(kind: Any) -> bool:
    """Whether dperm wrote this type or function. What derives from one of ours elsewhere is a third party's."""
    return getattr(kind, "__module__", "").startswith("dperm.")


def is_third_party(part: Any) -> bool:
    """Whether dperm did not write the type of this object."""
    return not ours(type(part))


def states(kind: type, name: str) -> bool:
    """Whether what an attribute says is of this very type: it is ours, or says it itself. What derives from ours elsewhere may do
    other things than what it derives from."""
    return ours(kind) or name in vars(kind)


def members(base: type[T]) -> list[type[T]]:
    """All classes at and below `base` that can be made, of the modules that were imported."""
    classes: list[type[T]] = []
    waiting = [base]
    while waiting:
        kind = waiting.pop()
        waiting += kind.__subclasses__()
        if ours(kind) and not inspect.isabstract(kind) and kind not in classes:
            classes.append(kind)
    return classes
