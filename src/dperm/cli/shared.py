"""What the commands share: how they speak, read and write."""

from __future__ import annotations

import atexit
import json
import os
import re
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dperm._files import Reserved, read_bounded, replace_own, rescue, write_new
from dperm._json import unique_names
from dperm._memory import free_memory
from dperm.cli.printing import printed_instead, progress, say

if TYPE_CHECKING:
    import pandas as pd

    from dperm.audit import AuditResult
    from dperm.data import Dataset, Schema
    from dperm.privacy import Certificate, Event
    from dperm.report.refits import Refits

_LARGEST_COST = 1000.0  # of accounting for what a file holds: a minute, for whoever asked for it

_RESERVED = ExitStack()  # the files of the command that runs
atexit.register(_RESERVED.close)

_MANY = 0.1  # of the rows
_UNPACKED = 10  # times its bytes, that JSON takes in memory


def told(name: str, frame: pd.DataFrame) -> str:
    """What was read, for the data holder."""
    how = [frame.attrs[key] for key in ("written", "sheet") if frame.attrs.get(key)]
    written = f" ({'; '.join(how)})" if how else ""
    return f"Read {name}: {len(frame):,} rows of {len(frame.columns)} columns{written}."


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


def told_of_rows(frame: Any, schema: Schema, *, public: bool = False, left_out: Iterable[str] = (), **changes: Any) -> None:
    """What stands out in a table that a model is used on; `changes`: of what is not asked for here."""
    from dataclasses import replace

    from dperm.data.survey import Survey

    survey = replace(Survey.of(frame, schema), **changes)
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

    if source in data.named() and not Path(source).exists():
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

    if str(records) in data.named() and not records.exists():
        table = data.load(str(records), schema)
    else:
        table = data.read_dataset(records, None, schema, indices=indices)[0]
    check.integer("--refits", count, minimum=2)
    with progress("Training again", shown) as step:
        return Refits.of(model, table, count, progress=step)


def reserved(path: Path, *, private: bool = False, paid_for: bool = False) -> Reserved:
    """A file of this command's, reserved until it ends: an unusable output is refused now. One that is `paid_for` keeps what
    stands there under another name; others replace it. Only its owner may read what is `private`."""
    door: AbstractContextManager[Reserved] = (write_new if paid_for else replace_own)(path, private=private)
    return _RESERVED.enter_context(door)


def give_up_reserved() -> None:
    """End a command: reservations that were not used leave nothing behind."""
    _RESERVED.close()


def refuse_same(*paths: Path | str | None) -> None:
    """ValueError where two of the files that a command reads and writes are one."""
    given = [Path(path).resolve() for path in paths if path is not None]
    doubled = {str(path) for path in given if given.count(path) > 1}
    if doubled:
        raise ValueError(f"Expected different files to read and to write, got {', '.join(sorted(doubled))} twice.")


def read(path: Path) -> str:
    """The text of a file: a model, a schema, a certificate … ValueError for what cannot be read, or would take too much."""
    try:
        needed, free = _UNPACKED * path.stat().st_size, free_memory()
        if needed > free / 2:
            raise ValueError(
                f"Cannot read {path}: it would take about {needed / 1e9:.3g} GB of memory, too much for the {free / 1e9:.3g} GB "
                "that are free."
            )
        return read_bounded(path, free / 2 / _UNPACKED).decode("utf-8").replace("\r\n", "\n")
    except OSError as error:
        raise ValueError(f"Cannot read {path}: {error.strerror or error}.") from None
    except UnicodeDecodeError:
        raise ValueError(f"Cannot read {path}: it is no text.") from None


def json_table(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(read(path), object_pairs_hook=unique_names)
    except json.JSONDecodeError as error:
        raise ValueError(f"Cannot read {path}: not JSON ({error}).") from None
    except ValueError as error:
        raise ValueError(f"Cannot read {path}: {error}.") from None
    except RecursionError:
        raise ValueError(f"Cannot read {path}: its tables and lists nest too deep.") from None
    if not isinstance(data, dict):
        raise ValueError(f"Expected {path} to hold an event, a certificate or a model.")
    return data


def certificate_at(path: Path, verify_key: Path | None = None) -> Certificate | None:
    """The certificate of a model or certificate file, checked; None where the file holds neither."""
    from dperm.privacy import Certificate

    data = json_table(path)
    if "certificate" in data:
        from dperm.estimators import model_from_json

        return model_from_json(read(path), verify_key=verify_key)[0].certificate_
    if verify_key is not None:
        raise ValueError(f"Expected a model with --verify-key, got {path}: a certificate alone is not signed.")
    if "event" not in data or "type" in data:
        return None
    certificate = Certificate.from_json(read(path), largest_cost=_LARGEST_COST)
    certificate.verify()
    return certificate


def event_at(path: Path) -> Event:
    """The event in a file of somebody else's, read as strictly as a certificate: no name twice in a table, no number that doubles
    do not hold. ValueError for anything else."""
    from dperm._json import bounded_table

    try:
        table = bounded_table(read(path))
    except ValueError as error:
        raise ValueError(f"Cannot read {path}: {error}.") from None
    return event_of(table)


def event_of(data: Any) -> Event:
    """The event that a table of somebody else's states. ValueError for anything else, and for one that accounting would take
    minutes for."""
    from dperm.privacy.events import accounting_cost, event_from_dict

    event = event_from_dict(data)
    if not (cost := accounting_cost(event)) <= _LARGEST_COST:
        raise ValueError(
            f"Expected an event that is at most {_LARGEST_COST:,.4g} times as much work for an accountant as one sampled "
            f"Gaussian, got one of {cost:,.4g} times: account for it in Python."
        )
    return event


def search_of(extra: Mapping[str, Any]) -> Event | None:
    """What it cost to find a model's schema privately, which was charged beside its training; None where it was stated."""
    from dperm.privacy import Certificate

    found = (extra.get("schema") or {}).get("found")
    return None if found is None else Certificate.from_json(json.dumps(found)).event


def keep(place: Reserved, text: str) -> Path | None:
    """Write what a charge was paid for; returns where what stood there is kept. Where the place takes it no more, it goes to a
    file elsewhere, and else to the screen, and OSError says so: it must not be lost."""
    try:
        return place.write(text)
    except OSError as error:
        where = rescue(place.path.name, text)
        if where is not None:
            raise OSError(f"{error} It was paid for and is not lost: it is in {where}.") from error
        if not printed_instead(text):
            raise OSError(f"{error} It was paid for, and no file or screen took it: it is lost.") from error
        raise OSError(f"{error} It was paid for and is not lost: it was printed instead.") from error


def told_kept(older: Path | None) -> str:
    """A sentence that says under which name the older file is kept; empty where there was none."""
    return "" if older is None else f" What was there is kept as {older}."


#: Signals that end a command.
ENDING = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Signals that would end the command take effect after the block: what was paid for is written first."""
    came: list[int] = []
    before = {number: signal.signal(number, lambda which, _: came.append(which)) for number in ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for number in came[:1]:
            os.kill(os.getpid(), number)


def speaks_of(result: AuditResult, certificate: Certificate) -> bool:
    """Whether an audit's claim is this certificate's."""
    same = result.claimed_epsilon == certificate.epsilon and result.delta == certificate.delta
    return same or result.claimed_epsilon is None


def stated_relation(value: str) -> Any:
    """`--relation` as the library has it."""
    from dperm._validate import choice
    from dperm.privacy import Relation as Relations

    return Relations(choice("--relation", value, [item.value for item in Relations]))
