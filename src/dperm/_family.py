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


def by_word(base: type[T], attribute: str) -> dict[str, type[T]]:
    """The members of a family by the word that each has as this class attribute, in order; those without one are left out.
    ValueError where two have the same: one could not be asked for."""
    named: dict[str, type[T]] = {}
    for kind in members(base):
        word = getattr(kind, attribute)
        if word and named.setdefault(word, kind) is not kind:
            raise ValueError(f"Expected a word of its own for {kind.__name__}, got {word!r}, that of {named[word].__name__}.")
    return dict(sorted(named.items()))
