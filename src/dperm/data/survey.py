"""What a table holds beside its schema: gaps, numbers outside their ranges, columns left out. Exact, so for its holder alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from dperm.data.schema.encoder import SchemaEncoder
from dperm.data.schema.entries import SchemaError, as_numbers, texts
from dperm.data.schema.schema import Schema

if TYPE_CHECKING:
    import pandas as pd

_MANY = 0.05  # of a column's entries, which are clipped: its range hardly fits
_EMPTY = 0.5  # of a column's entries, which are missing
_STRANGE = 0.3  # which are in no category
_NARROW = 0.02  # of a range, that nearly all numbers lie in
_SHOWN = 8


@dataclass(frozen=True)
class Survey:
    """Counts of one table's rows. By column: entries that are `missing`; `unread`, of these, with one of them: such as are there
    and count as missing, for they are no number or date; numbers `outside` their range, which are clipped; and texts in no
    category, which are `strange`. `narrow`: the share of its range in which 98 % of a column's numbers lie, where
    that is little. `unlabelled` rows have no target; `no_target`: how many of them hold something else, and what one does."""

    rows: int
    used: tuple[str, ...]
    left_out: tuple[str, ...]
    unknown: tuple[str, ...]  # to the schema
    missing: dict[str, int]
    unread: dict[str, tuple[int, str]]
    outside: dict[str, int]
    strange: dict[str, int]
    narrow: dict[str, float]
    unlabelled: int
    targets_outside: int
    no_target: tuple[int, str] = (0, "")

    @classmethod
    def of(cls, frame: Any, schema: Schema) -> Survey:
        """Of a table that fits the schema."""
        table = SchemaEncoder(schema, frame)
        frame, decimal = table.frame, table.decimal
        used = schema.feature_columns
        names = {*schema.table_columns(), schema.unit}
        missing = {name: int(gap.sum()) for name, gap in table.gaps.items()}
        outside: dict[str, int] = {}
        strange: dict[str, int] = {}
        narrow: dict[str, float] = {}
        for column in used:
            entries = column.entries(frame[column.source])
            outside[column.name] = int(column.outside(frame[column.source], decimal).sum())
            if column.type == "number" and column.curve_scale == "linear":
                if (width := _width(entries, column.ends, decimal)) < _NARROW:
                    narrow[column.name] = width
            elif column.type == "category":
                words = texts(entries, column.categories)
                strange[column.name] = int((words.notna() & ~words.isin(column.categories)).sum())
        targets, unlabelled, said = 0, np.zeros(0, dtype=bool), frame.iloc[:0, 0]
        if schema.target in frame.columns:
            unlabelled = ~table.labelled
            said = frame[schema.target][unlabelled].dropna()
        if schema.target_range is not None and schema.target in frame.columns:
            said_numbers = schema.label.entries(frame[schema.target])
            given, (low, high) = as_numbers(said_numbers, decimal), schema.target_range
            targets = int((np.isfinite(given) & ((given < low) | (given > high))).sum())
            if (width := _width(said_numbers, schema.target_range, decimal)) < _NARROW:
                narrow[schema.target] = width
        return cls(
            rows=len(frame),
            used=tuple(column.name for column in used),
            left_out=tuple(
                column.name for column in schema.columns if column.type == "ignore" and column.source in frame.columns
            ),
            unknown=tuple(str(name) for name in frame.columns if name not in names),
            missing=_some(missing),
            unread={column.name: found for column in used if (found := column.unread(frame[column.source], decimal))[0]},
            outside=_some(outside),
            strange=_some(strange),
            narrow=narrow,
            unlabelled=int(unlabelled.sum()),
            targets_outside=targets,
            no_target=(0, "") if said.empty else (len(said), str(said.iloc[0])),
        )

    def with_rows(self, other: Survey) -> Survey:
        """Of this part of a table and another one. Where numbers lie in their ranges is not known of both together."""
        unread = dict(self.unread)
        for name, (count, entry) in other.unread.items():
            before, first = unread.get(name, (0, entry))
            unread[name] = (before + count, first)
        return replace(
            self,
            rows=self.rows + other.rows,
            missing=_added(self.missing, other.missing),
            unread=unread,
            outside=_added(self.outside, other.outside),
            strange=_added(self.strange, other.strange),
            narrow={},
            unlabelled=self.unlabelled + other.unlabelled,
            targets_outside=self.targets_outside + other.targets_outside,
            no_target=(self.no_target[0] + other.no_target[0], self.no_target[1] or other.no_target[1]),
        )

    def refuse_unread(self, schema: Schema, entries: Mapping[str, int]) -> None:
        """SchemaError for a column none of whose `entries` could be read."""
        for column in schema.feature_columns:
            odd, entry = self.unread.get(column.name, (0, ""))
            if odd and odd == entries[column.name]:
                raise SchemaError(
                    f"Expected some {column.type}s in column {column.name!r}, got {entry!r} and the like alone, which count as "
                    "missing."
                )

    def lines(self) -> list[str]:
        """In words, one fact a line."""
        lines = [f"Columns used: {_listed(self.used)}."]
        if self.left_out:
            lines[0] += f" Left out by the schema: {_listed(self.left_out)}."
        if self.missing:
            lines.append(f"Missing values: {self._counted(self.missing)}.")
        if self.unread:
            told = [f"{name} {count:,} (such as {entry!r})" for name, (count, entry) in list(self.unread.items())[:_SHOWN]]
            lines.append(f"Among these are entries that say something, which is no number or date: {', '.join(told)}.")
        if self.outside:
            lines.append(f"Outside their range, clipped: {self._counted(self.outside)}.")
        if self.strange:
            lines.append(f"In none of their categories: {self._counted(self.strange)}.")
        if self.unlabelled:
            such = "" if not self.no_target[0] else f" (in {self.no_target[0]:,} stands something, such as {self.no_target[1]!r})"
            lines.append(f"Rows without a target, left out: {self.unlabelled:,}{such}.")
        if self.targets_outside:
            lines.append(f"Targets outside their range, clipped: {self.targets_outside:,}.")
        return lines

    def warnings(self) -> list[str]:
        """What hardly was meant, and what to do."""
        few = {"range": self.outside, "missing": self.missing, "categories": self.strange}
        limits = {"range": _MANY, "missing": _EMPTY, "categories": _STRANGE}
        says = {
            "range": "outside its range: is the range right?",
            "missing": "missing: is the column worth its place?",
            "categories": "in none of its categories: are these complete?",
        }
        found = [
            f"{count / self.rows:.0%} of {name!r} are {says[kind]}"
            for kind, counts in few.items()
            for name, count in counts.items()
            if count > limits[kind] * self.rows
        ]
        if self.unknown:
            found.append(
                f"Not in the schema, and not used: {_listed(self.unknown)}. If that is meant, give them the type ignore."
            )
        if self.targets_outside > _MANY * self.rows:
            found.append(f"{self.targets_outside / self.rows:.0%} of the targets are outside their range: is it right?")
        return found + [
            f"Nearly all of {name!r} lie in {width:.1%} of its range: a narrower public range, or a log scale, would tell more."
            for name, width in self.narrow.items()
        ]

    def _counted(self, counts: dict[str, int]) -> str:
        most = sorted(counts.items(), key=lambda item: -item[1])
        told = ", ".join(f"{name} {count:,} ({share(count, self.rows)})" for name, count in most[:_SHOWN])
        return told + (f" and {len(most) - _SHOWN} more columns" if len(most) > _SHOWN else "")


def share(count: int, of: int) -> str:
    """In words."""
    return "under 1%" if 0 < count < 0.01 * of else f"{count / of:.0%}"


def _width(entries: pd.Series[float], ends: tuple[float, float], decimal: str) -> float:
    """In which share of the range 98 % of the numbers lie."""
    numbers = as_numbers(entries, decimal)
    numbers = numbers[np.isfinite(numbers)]
    if not len(numbers):
        return 1.0
    low, high = ends
    inner = np.quantile(np.clip(numbers, low, high), [0.01, 0.99])
    width = float(inner[1] - inner[0]) / (high - low)
    constant = float(np.ptp(numbers)) == 0
    return 1.0 if constant else width


def _added(first: dict[str, int], second: dict[str, int]) -> dict[str, int]:
    return dict(Counter(first) + Counter(second))


def _some(counts: dict[str, int]) -> dict[str, int]:
    return {name: count for name, count in counts.items() if count}


def _listed(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{len(names)} ({', '.join(names[:_SHOWN])}{more})" if len(names) > 1 else ", ".join(names)
