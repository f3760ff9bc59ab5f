"""Pairs of columns: what a model may say of two together, by public facts alone, each row by itself."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dperm.data.schema.columns import Column, Encoding
from dperm.data.schema.entries import SchemaError

if TYPE_CHECKING:
    import pandas as pd

_KNOTS = 5  # at most, of a number in a pair: their product is what counts
_WIDEST = 2500  # features


@dataclass(frozen=True)
class Pair:
    """Two columns of features: the products of the one's features with the other's, which describe a surface.

    Their squares add up to at most 1, as those of a column do. Numbers have at most 5 knots here.
    """

    first: Column
    second: Column

    @property
    def name(self) -> str:
        return f"{self.first.name} × {self.second.name}"

    def encoding(self, encoding: Encoding) -> Encoding:
        """That of its columns, where the schema has this one."""
        return replace(encoding, curves=min(encoding.curves, _KNOTS))

    def width(self, encoding: Encoding) -> int:
        """Features it becomes."""
        inner = self.encoding(encoding)
        return self.first.width(inner) * self.second.width(inner)

    def sides(self, encoding: Encoding) -> tuple[list[str], list[str]]:
        """Names of the features of the first column here, and of the second."""
        inner = self.encoding(encoding)
        return self.first.features(inner), self.second.features(inner)

    def features(self, encoding: Encoding) -> list[str]:
        """Their names: `age≈20 × job=clerk`, those of the first column in blocks."""
        first, second = self.sides(encoding)
        return [f"{one} × {other}" for one in first for other in second]

    def encode(self, frame: pd.DataFrame, encoding: Encoding) -> NDArray[np.float32]:
        """(n, width): of squared length at most 1. SchemaError, naming column and value, for what does not fit."""
        inner = self.encoding(encoding)
        one, other = (column.encode(frame[column.source], inner) for column in (self.first, self.second))
        return (one[:, :, None] * other[:, None, :]).reshape(len(frame), self.width(encoding))

    def neighbours(self, encoding: Encoding) -> list[tuple[int, int]]:
        """Which of its features are next to each other on the surface, along either column."""
        inner = self.encoding(encoding)
        rows, columns = self.first.width(inner), self.second.width(inner)
        down = [(a * columns + j, b * columns + j) for a, b in self.first.neighbours(inner) for j in range(columns)]
        across = [(i * columns + a, i * columns + b) for a, b in self.second.neighbours(inner) for i in range(rows)]
        return [*down, *across]


def admit_pairs(given: Any, columns: list[Column], encoding: Encoding) -> tuple[tuple[str, str], ...]:
    """Names of two columns of features each. SchemaError for anything else, for a pair that is there twice or is too wide."""
    known = {column.name: column for column in columns}
    if isinstance(given, str) or not all(isinstance(pair, (list, tuple)) and len(pair) == 2 for pair in given):
        raise SchemaError(f"Expected pairs as a list of two columns' names each, got {given!r}.")
    pairs = tuple((first, second) for first, second in given)
    for first, second in pairs:
        if first == second or not {first, second} <= set(known):
            raise SchemaError(f"Expected a pair of two of the columns {list(known)[:20]}, got {[first, second]!r}.")
        if (width := Pair(known[first], known[second]).width(encoding)) > _WIDEST:
            raise SchemaError(f"Expected a pair of at most {_WIDEST:,} features, got {width:,} of {first!r} and {second!r}.")
    if len({frozenset(pair) for pair in pairs}) < len(pairs):
        raise SchemaError(f"Expected each pair once, got {[list(pair) for pair in pairs]!r}.")
    return pairs
