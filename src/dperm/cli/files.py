"""Files of the command that runs: those that it has reserved, and what is said of tables that it reads, to their holder alone."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dperm._files import Reserved, replace_own, write_new
from dperm.cli.printing import progress, say

if TYPE_CHECKING:
    from dperm.data import Dataset, ReadTable, Schema
    from dperm.jobs.files import SavedModel
    from dperm.report.refits import Refits

#: Closed when a command ends: reservations that were not used leave nothing behind.
RESERVED = ExitStack()


def reserved(path: Path, *, private: bool = False, paid_for: bool = False) -> Reserved:
    """A file of this command's, reserved until it ends: an unusable output is refused now. One that is `paid_for` keeps what
    stands there under another name; others replace it. Only its owner may read what is `private`."""
    return RESERVED.enter_context((write_new if paid_for else replace_own)(path, private=private))


def told_kept(older: Path | None) -> str:
    """A sentence that says under which name the older file is kept; empty where there was none."""
    return "" if older is None else f" What was there is kept as {older}."


def told(name: str, table: ReadTable) -> str:
    """A sentence for the data holder: the name, rows and columns of a table that was read."""
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
    """Warnings about a table that a model is used on. `changes` replace fields of the survey that are not asked for here."""
    from dataclasses import replace

    from dperm.data.survey import Survey

    survey = replace(Survey.of(table, schema), **changes)
    lines = [*left_out, *survey.lines(), *(f"Warning: {warning}" for warning in survey.warnings())]
    say("Of these rows:" if public else "For the data holder alone, of these rows:")
    for line in lines:
        say(f"  {line}")


def told_to_holder(dataset: Dataset, data_norm: float | None = None, delta: float = 0.0, public_size: int | None = None) -> None:
    """Print a description of the records and warnings about them. They come from the private rows, for the data holder alone."""
    say(f"For the data holder alone: {dataset.described()}.")
    for line in dataset.stands_out(data_norm, delta, public_size):
        say(f"  {line}")
    say()


def refitted(saved: SavedModel, records: Path | None, count: int, *, shown: bool) -> Refits | None:
    """Models like this one, with how far it is where that is `shown`; None without the table that it was trained on."""
    if records is None:
        return None
    with progress("Training again", shown) as step:
        return saved.refitted(records, count, step)
