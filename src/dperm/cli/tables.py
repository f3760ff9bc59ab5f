"""Tables that commands read, and what is said of them: to their holder alone."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dperm.cli.printing import progress, say

if TYPE_CHECKING:
    from dperm.data import Dataset, ReadTable, Schema
    from dperm.report.refits import Refits

_MANY = 0.1  # of the rows


def told(name: str, table: ReadTable) -> str:
    """What was read, for the data holder."""
    how = "; ".join(filter(None, (table.written, table.sheet)))
    return f"Read {name}: {len(table.frame):,} rows of {len(table.frame.columns)} columns{f' ({how})' if how else ''}."


def wrong_rows(faults: dict[int, str], rows: int, schema: Schema, on_error: str) -> dict[int, str]:
    """Those of a table's `faults` that the schema's word on gaps does not cover: an error where `on_error` is "fail"."""
    wrong = {row: why for row, why in faults.items() if not (schema.missing == "drop" and why.endswith("is missing"))}
    if wrong and on_error == "fail":
        first = next(iter(wrong))
        raise ValueError(
            f"{len(wrong):,} of {rows:,} rows do not fit the schema. Row {first + 1}: {wrong[first]}. "
            "--on-error skip leaves them out."
        )
    if faults and len(faults) == rows:
        raise ValueError(f"No row fits the schema. Row 1: {faults[0]}.")
    return wrong


def told_of_rows(table: ReadTable, schema: Schema, *, public: bool = False, left_out: Iterable[str] = (), **changes: Any) -> None:
    """What stands out in a table that a model is used on; `changes`: of what is not asked for here."""
    from dataclasses import replace

    from dperm.data.survey import Survey

    survey = replace(Survey.of(table, schema), **changes)
    lines = [*left_out, *survey.lines(), *(f"Warning: {warning}" for warning in survey.warnings())]
    say("Of these rows:" if public else "For the data holder alone, of these rows:")
    for line in lines:
        say(f"  {line}")


def told_to_holder(dataset: Dataset, data_norm: float | None = None, delta: float = 0.0, public_size: int | None = None) -> None:
    """What was read, and what stands out in it, from the rows as they are: for nobody else to see."""
    from dperm.data.survey import share

    say(f"For the data holder alone: {dataset.described()}.")
    lines = [] if dataset.survey is None else dataset.survey.lines()
    warnings = [] if dataset.survey is None else dataset.survey.warnings()
    if data_norm is not None and (longer := _longer(dataset.features, data_norm)):
        lines.append(f"Rows longer than {data_norm:g}, scaled down: {longer:,} ({share(longer, len(dataset))}).")
        if longer > _MANY * len(dataset):
            much = share(longer, len(dataset))
            warnings.append(f"{much} of the rows are scaled down to --data-norm {data_norm:g}: does it bound most rows?")
    persons = len(dataset) if dataset.groups is None else len(set(dataset.groups.tolist()))
    if delta >= 1 / max(1, persons):
        warnings.append(f"--delta {delta:g} is at least 1 in {persons:,}: publishing one whole record would pass. Choose less.")
    whole = persons + dataset.absent
    if public_size is not None and abs(public_size - whole) > _MANY * whole:
        warnings.append(
            f"--public-size {public_size:,} is stated, and there are {whole:,}: what is chosen by it suits other data."
        )
    for line in lines:
        say(f"  {line}")
    for warning in warnings:
        say(f"  Warning: {warning}")
    say()


def _longer(features: Any, norm: float) -> int:
    import numpy as np
    from scipy import sparse

    from dperm import _validate as check

    norm = check.scale("data_norm", norm)
    squares = features.multiply(features).sum(axis=1) if sparse.issparse(features) else np.einsum("ij,ij->i", features, features)
    return int((np.asarray(squares, dtype=np.float64) > norm**2 * (1 + 1e-6)).sum())


def dataset_of(
    source: str,
    target: str | None,
    schema_path: Path | None,
    curves: Callable[[Schema], int] | None = None,
    indices: tuple[int, int] | None = None,
    shown: bool = False,
) -> tuple[Dataset, Schema | None]:
    """A named set, or a file with a given or proposed schema; `curves`: how many knots its numbers get; `indices`: of a libsvm
    file's features."""
    from dperm import data

    if not Path(source).exists() and source in data.named():
        schema = data.schema_of(source)
        schema = schema if curves is None else schema.with_curves(curves(schema))
        return data.load(source, schema), schema
    schema = data.Schema.load(schema_path) if schema_path else None
    with progress("Reading", shown) as bar:
        return data.read_dataset(source, target, schema, curves=curves, indices=indices, progress=bar)


def stated_indices(text: str | None) -> tuple[int, int] | None:
    """ "1-123" as the first and the last index of a libsvm file's features."""
    if text is None:
        return None
    if not (found := re.fullmatch(r"\s*(\d{1,9})\s*-\s*(\d{1,9})\s*", text)):
        raise ValueError(f"Expected --indices as the first and the last, such as 1-123, got {text!r}.")
    return int(found[1]), int(found[2])


def refitted(
    model: Any, records: Path, schema: Schema | None, count: int, *, shown: bool, indices: tuple[int, int] | None = None
) -> Refits:
    """Models like one that was trained on the table of `records`; with how far it is where that is `shown`."""
    from dperm import _validate as check
    from dperm import data
    from dperm.report.refits import Refits

    if not records.exists() and str(records) in data.named():
        table = data.load(str(records), schema)
    else:
        table = data.read_dataset(records, None, schema, indices=indices)[0]
    check.integer("--refits", count, minimum=2)
    with progress("Training again", shown) as step:
        return Refits.of(model, table, count, progress=step)
