"""Models for each value of a category, as `dperm train --fit-by` makes them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dperm.cli.kinds import Asked, Kind
    from dperm.data import Schema


def refuse_by_part(kind: Kind, asked: Asked, private_report: Path | None) -> None:
    """ValueError, before a row is read, for what has no models by part."""
    if not kind.drawn:
        raise ValueError("Expected a linear model with --fit-by: logistic, svm or ridge.")
    if asked.relation != "add_or_remove_one":
        raise ValueError(
            "Expected --relation add_or_remove_one with --fit-by: under replace_one the number of records of each part would be "
            "public, and a record that moves to another part changes it."
        )
    if private_report is not None:
        raise ValueError("Expected no --private-report with --fit-by.")


def by_part(estimator: Any, schema: Schema, column: str, public_size: int | None) -> Any:
    """A model for each category of a column. Of a public number of all records each part is taken to have an equal share."""
    from dperm.estimators import DPByPart

    parts = schema.columns_of(column)
    share = None if public_size is None else max(1, public_size // len(parts))
    return DPByPart(estimator.set_params(public_size=None), parts, public_sizes=share)


def files_of_parts(output: Path, parts: Iterable[str]) -> dict[str, Path]:
    """A file for each part: model.json becomes model.north.json."""
    words = {part: re.sub(r"[^\w-]+", "-", part).strip("-") for part in parts}
    if len(set(map(str.lower, words.values()))) < len(words) or not all(words.values()):  # some file systems know one case
        words = {part: f"{number}-{word}" for number, (part, word) in enumerate(words.items(), start=1)}
    return {part: output.with_name(f"{output.stem}.{word}{output.suffix}") for part, word in words.items()}
