"""Files that jobs read and write: read within limits, and what was paid for is kept whatever happens."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dperm._files import Reserved, read_bounded, rescue
from dperm._json import unique_names
from dperm._memory import free_memory

if TYPE_CHECKING:
    from dperm.data import Dataset, Schema, TargetRange
    from dperm.privacy import Certificate, Event
    from dperm.report.refits import Refits

_LARGEST_COST = 1000.0  # of accounting for what a file holds: a minute, for whoever asked for it
_UNPACKED = 10  # times its bytes, that JSON takes in memory


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


def sha256_of(text: str) -> str:
    """The SHA-256 of a file that dperm wrote with this text, as `sha256sum` prints it."""
    return hashlib.sha256(text.encode()).hexdigest()


def json_table(path: Path) -> dict[str, Any]:
    text = read(path)
    try:
        data = json.loads(text, object_pairs_hook=unique_names)
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
        return SavedModel.at(path, verify_key).fitted.certificate_
    if verify_key is not None:
        raise ValueError(f"Expected a model with --verify-key, got {path}: a certificate alone is not signed.")
    if "event" not in data or "type" in data:
        return None
    certificate = Certificate.from_json(read(path), largest_cost=_LARGEST_COST)
    certificate.verify()
    return certificate


@dataclass(frozen=True)
class SavedModel:
    """A fitted model, of any kind, and what was written beside it."""

    fitted: Any
    extra: dict[str, Any]
    sha256: str = ""  # of its file

    @classmethod
    def at(cls, path: Path, verify_key: Path | None = None) -> SavedModel:
        """ValueError for a file that holds none, and for one that the owner of the public key did not sign."""
        from dperm.estimators import model_from_json

        text = read(path)
        return cls(*model_from_json(text, verify_key=verify_key), sha256_of(text))

    @property
    def schema(self) -> Schema | None:
        """None for one of arrays. ValueError for a model of amounts that answers in the target's own units: commands take answers
        to be on [−1, 1] of the schema's range, as `dperm train` makes such models."""
        from dperm.data import Schema
        from dperm.data.schema.ranges import CountRange

        schema = Schema.from_dict(self.extra["schema"]) if self.extra.get("schema") else None
        amounts = schema is not None and schema.target_range is not None and not isinstance(schema.target_range, CountRange)
        if amounts and getattr(self.fitted, "stated_range", None) is not None:
            raise ValueError(
                "Expected a model of this schema whose estimator states no range of the target, as dperm train makes it: this "
                "one answers in the target's own units. Use it from Python, or fit it without target_range and target_bound."
            )
        return schema

    @property
    def target_range(self) -> TargetRange | None:
        """Of a numeric target, by which answers are in its units."""
        from dperm.data import TargetRange

        if self.schema is not None:
            return self.schema.target_range
        return TargetRange(*self.extra["target_range"]) if self.extra.get("target_range") else None

    @property
    def as_read(self) -> dict[str, Any]:
        """How other files of arrays like its records are read: with the same indices, and targets in the same range."""
        given = self.extra.get("target_range") if self.schema is None else None
        return {"indices": self.extra.get("indices"), **({} if given is None else {"target_range": tuple(given)})}

    @property
    def range_is_public(self) -> bool:
        """Whether the range of a numeric target was stated, by a schema or beside its file, and not read off the data."""
        return self.schema is not None or self.extra.get("target_range_stated") is True

    def records(self, source: Path | str) -> Dataset:
        """A data file, or where there is none of this name a named set, as this model sees it."""
        from dperm import data

        if not Path(source).exists() and str(source) in data.named():
            return data.load(str(source), self.schema)
        return data.read_dataset(source, None, self.schema, **self.as_read)[0]

    def refitted(self, records: Path, count: int, progress: Callable[[int, int], None] | None = None) -> Refits:
        """Models like this one, trained again on the table of `records`: private, and not charged."""
        from dperm import _validate as check
        from dperm.report.refits import Refits

        table = self.records(records)
        check.integer("--refits", count, minimum=2)
        return Refits.of(self.fitted, table, count, progress=progress)


def dataset_of(
    source: str | Path, target: str | None = None, schema: str | Path | Schema | None = None, **how: Any
) -> tuple[Dataset, Schema | None]:
    """A data file, or where there is none of this name a named set, which has a schema of its own; and the schema used. `how` it
    is read: `curves`, `indices` and `progress`, as for `data.read_dataset`."""
    from dperm import data

    if not Path(source).exists() and source in data.named():
        own, curves = data.schema_of(str(source)), how.get("curves")
        own = own if curves is None else own.with_curves(curves(own))
        return data.load(str(source), own), own
    used = data.Schema.load(schema) if isinstance(schema, str | Path) else schema
    return data.read_dataset(source, target, used, **how)


def event_at(path: Path) -> Event:
    """The event in a file of somebody else's, read as strictly as a certificate: no name twice in a table, no number that doubles
    do not hold. ValueError for anything else."""
    from dperm._json import bounded_table

    text = read(path)
    try:
        table = bounded_table(text)
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


def keep(place: Reserved, text: str, print_instead: Callable[[str], bool]) -> Path | None:
    """Write what a charge was paid for; returns where what stood there is kept. Where the place takes it no more, it goes to a
    file elsewhere, and else to `print_instead`, which returns whether it has it now, and OSError says so: it must not be lost."""
    try:
        return place.write(text)
    except OSError as error:
        where = rescue(place.path.name, text)
        if where is not None:
            raise OSError(f"{error} It was paid for and is not lost: it is in {where}.") from error
        if not print_instead(text):
            raise OSError(f"{error} It was paid for, and no file or screen took it: it is lost.") from error
        raise OSError(f"{error} It was paid for and is not lost: it was printed instead.") from error


#: Signals that end a process.
ENDING = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Signals that would end the process take effect after the block: what was paid for is written first. They reach the main
    thread alone, so that in others nothing is done."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before = {number: signal.signal(number, lambda which, _: came.append(which)) for number in ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for number in came[:1]:
            os.kill(os.getpid(), number)
