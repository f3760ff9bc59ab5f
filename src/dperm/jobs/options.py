"""Options that several jobs share. A job takes one value of options: a frozen dataclass, each of whose fields has the words that
explain it beside its type. A command shows them as its help, and derives from it what a terminal needs beside."""

from __future__ import annotations

import math
import re
import typing
from dataclasses import dataclass, fields
from numbers import Integral, Real
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any

if TYPE_CHECKING:
    from dperm.privacy import Risk

#: Kinds of files that are read, as their readers call themselves; a test compares, for jobs are known without loading readers.
TABLES = ("Arrow", "CSV", "Excel", "Parquet")
ARRAYS = ("NumPy archive", "NumPy array", "libsvm")
KINDS = ", ".join(TABLES + ARRAYS)
SOURCE = f"a file ({KINDS}), a folder of Parquet files, or a named data set"

Delta = Annotated[float, "The δ of the guarantee; well below 1/n."]
Indices = Annotated[str | None, "Of a libsvm file: the first and the last index that a feature may have, 1-123: public."]
TargetRange = Annotated[
    str | None, "Of an array file with numbers as targets: the range that is publicly known of them, LOW,HIGH, such as 0,200000."
]
Relation = Annotated[str, "add_or_remove_one or replace_one."]
VerifyKey = Annotated[Path | None, "Public key whose owner must have signed the model."]


@dataclass(frozen=True, kw_only=True)
class JobOptions:
    """Options as programs give them: a path may be a text, and what is of another type than its field is refused.

    ValueError for such a value.
    """

    def __post_init__(self) -> None:
        hints = typing.get_type_hints(type(self))
        for field in fields(self):
            hint, value = hints[field.name], getattr(self, field.name)
            kinds = typing.get_args(hint) if isinstance(hint, UnionType) else (hint,)
            if Path in kinds and isinstance(value, str):
                object.__setattr__(self, field.name, Path(value))
            elif not any(_is_of(kind, value) for kind in kinds):
                wanted = " or ".join(_WORDS.get(typing.get_origin(kind) or kind, str(kind)) for kind in kinds)
                raise ValueError(f"Expected {field.name} as {wanted}, got {value!r:.80}.")


_WORDS: dict[Any, str] = {
    Path: "a path",
    str: "text",
    bool: "True or False",
    int: "a whole number",
    float: "a number",
    list: "a list",
    type(None): "None",
}


def _is_of(kind: Any, value: Any) -> bool:
    """Whether a value is of this type; whole numbers are numbers, and truths are none."""
    plain = typing.get_origin(kind) or kind
    if plain in (int, float):
        return type(value) is not bool and isinstance(value, Integral if plain is int else Real)
    return isinstance(value, plain) if isinstance(plain, type) else True


@dataclass(frozen=True, kw_only=True)
class BudgetOptions(JobOptions):
    """ε and δ, or a risk in the place of ε."""

    epsilon: Annotated[float | None, "Privacy budget ε."] = None
    delta: Delta = 1e-5
    advantage: Annotated[
        float | None, "Instead of ε: the most by which an attacker's true positives may exceed its false ones."
    ] = None
    true_positive_rate: Annotated[float | None, "Instead of ε: the most true positives, at --false-positive-rate."] = None
    false_positive_rate: Annotated[float | None, "With --true-positive-rate."] = None
    prior: Annotated[float | None, "With --posterior: how sure it is before it looks."] = None
    posterior: Annotated[
        float | None, "Instead of ε: how often an attacker's best guess may be right, starting from --prior."
    ] = None

    def budget(self, default: float | None = None) -> float | Risk:
        """ε, or the risk that stands in its place. ValueError where both are given, or neither where there is no default."""
        names = ("advantage", "true_positive_rate", "false_positive_rate", "prior", "posterior")
        given = {name: value for name in names if (value := getattr(self, name)) is not None}
        if self.epsilon is not None and given:
            raise ValueError(f"Expected --epsilon or {', '.join('--' + name.replace('_', '-') for name in given)}, got both.")
        if given:
            from dperm.privacy import Risk as Limits

            return Limits(**given)
        if (epsilon := default if self.epsilon is None else self.epsilon) is None:
            raise ValueError("Expected --epsilon, or a risk in its place: --advantage, --true-positive-rate or --posterior.")
        return epsilon


def stated_relation(value: str) -> Any:
    """`--relation` as the library has it."""
    from dperm._validate import choice
    from dperm.privacy import Relation as Relations

    return Relations(choice("--relation", value, [item.value for item in Relations]))


def stated_range(text: str | None) -> tuple[float, float] | None:
    """ "0,200000" as the range of a target."""
    if text is None:
        return None
    ends = text.split(",")
    try:
        low, high = map(float, ends)
    except ValueError:
        low, high = math.nan, math.nan
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise ValueError(f"Expected --target-range as two numbers LOW,HIGH, the first below the second, got {text!r}.")
    return low, high


def stated_indices(text: str | None) -> tuple[int, int] | None:
    """ "1-123" as the first and the last index of a libsvm file's features."""
    if text is None:
        return None
    if not (found := re.fullmatch(r"\s*(\d{1,9})\s*-\s*(\d{1,9})\s*", text)):
        raise ValueError(f"Expected --indices as the first and the last, such as 1-123, got {text!r}.")
    return int(found[1]), int(found[2])
