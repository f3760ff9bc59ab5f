"""One of a dataclass, made by the names of its fields: a new class whose fields are called as others' needs nothing more."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

__all__ = ["by_names"]


def by_names(kind: type[Any], values: Mapping[str, Any], where: str, **given: Any) -> Any:
    """One with these values for its fields of such names, but for what is `given`. TypeError, in a sentence that says `where` to
    write it, for a field that has no value."""
    named = {field.name: values[field.name] for field in dataclasses.fields(kind) if field.init and field.name in values}
    try:
        return kind(**(named | given))
    except TypeError as error:
        raise TypeError(f"No example of {kind.__name__} can be made ({error}): set its fields in {where}.") from None
