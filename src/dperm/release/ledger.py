"""The spend log: an append-only file in which every fit writes its event before it releases anything.

One JSON object a line, flushed to disk before `charge` returns, safe across processes. The file is named by the
environment variable DPERM_SPEND_LOG (inherited by worker processes; a relative path is meant from where the process started),
otherwise it lies in the user's state folder. It holds events, never data.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dperm.privacy.accounting import epsilon
from dperm.privacy.events import Composed, Event, Relation, Unsupported, event_from_dict, leaves, relation_of
from dperm.privacy.filters import Price

__all__ = ["Charge", "SpendLog", "spend_log"]

_HUGE = 100.0  # of ε: beyond it distributions of privacy losses are too wide to be composed finely
_VARIABLE = "DPERM_SPEND_LOG"
_STARTED_IN = Path.cwd()  # the working directory may change later
#: The log within `spend_log`, for this thread or task alone; and, for processes that are started in it, whose it is and where.
_HERE: ContextVar[Path | None] = ContextVar("dperm_spend_log", default=None)
_CLAIMED: ContextVar[str] = ContextVar("dperm_only_claimed", default="")
_INHERITED = "DPERM_SPEND_LOG_OF_PARENT"
_active: list[tuple[str, Path]] = []  # a file that is there while the block is open, and the log
_lock = threading.Lock()


@dataclass(frozen=True)
class Charge:
    """One line of the log."""

    id: str
    time: str
    label: str
    mechanism: str
    event: Event
    private: bool = True
    keeps_parts: bool = False
    keeps_reservations: bool = False
    persons: bool = False
    claimed: str = ""

    @property
    def certified(self) -> bool:
        """Whether what ran is proved to cost its event."""
        return not self.claimed and not any(isinstance(leaf, Unsupported) for leaf in leaves(self.event))


class SpendLog:
    """An append-only log of charges at `path`."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    @classmethod
    def current(cls) -> SpendLog:
        """The log of this process and its workers, or the one named by `spend_log` here."""
        if here := _HERE.get():
            return cls(here)
        parent, _, rest = os.environ.get(_INHERITED, "").partition(":")
        marker, _, path = rest.partition("\n")
        if path and parent != str(os.getpid()) and Path(marker).exists():  # not in a worker that outlives the block
            return cls(path)
        if named := os.environ.get(_VARIABLE):
            return cls(_STARTED_IN / named)
        state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
        return cls(Path(state) / "dperm" / "spend.jsonl")

    def charge(
        self,
        event: Event,
        *,
        mechanism: str,
        label: str = "",
        private: bool = True,
        keeps_parts: bool = False,
        keeps_reservations: bool = False,
        persons: bool = False,
    ) -> str:
        """Append a charge and wait until it is on disk; returns its id. OSError where that fails: nothing may run.

        `private` = False marks a run with a fixed seed: its event does not bound what it gave away. `keeps_parts`: what its
        filter admits will be in this log; `keeps_reservations`: its steps, before they are drawn. So the run can be continued.
        `persons`: neighbours differ in all rows of a person. Within `only_claimed` the line says so.
        """
        line: dict[str, Any] = {
            "id": uuid.uuid4().hex,
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "label": label,
            "mechanism": mechanism,
            "pid": os.getpid(),
            "private": private,
            "event": event.to_dict(),
        }
        stated = {"keeps_parts": keeps_parts, "keeps_reservations": keeps_reservations, "persons": persons}
        line |= {name: True for name, holds in stated.items() if holds}
        line |= {"claimed": reason} if (reason := _CLAIMED.get()) else {}
        with self._opened() as descriptor:
            _append(descriptor, line)
        return line["id"]

    def reserve(self, charge_id: str, steps: int, limit: int, done: int = 0) -> tuple[int, int] | None:
        """Take the next `steps` of a charged run's `limit` steps: (start, stop), handed to nobody else and never again.

        `done` steps are known to be drawn, whatever the log says. What was reserved counts as drawn, also when the process
        dies in between: a run that is continued takes what is left. (limit, limit) when nothing is; None where this log does
        not hold the charge. ValueError for another limit than before.
        """
        with self._opened() as descriptor:
            known, start = False, done
            for data in _about(charge_id, _lines(descriptor)):
                known = known or data.get("id") == charge_id
                if data.get("continues") == charge_id and "stop" in data:
                    start = max(start, int(data["stop"]))
                    if data["limit"] != limit:
                        raise ValueError(f"Steps of the charge {charge_id} were reserved of {data['limit']}, not of {limit}.")
            if not known:
                return None
            stop = min(start + steps, limit)
            if stop > start:
                _append(descriptor, {"continues": charge_id, "start": start, "stop": stop, "limit": limit, "pid": os.getpid()})
            return start, max(start, stop)

    def add_part(self, charge_id: str, part: Event, price: Price, *, spent: float, note: Mapping[str, Any]) -> float | None:
        """Append a part of a filtered run, at this price, and wait until it is on disk; returns what its account then holds.

        None, and nothing appended, where that would exceed the account's limit: parts of other copies of the run count. `spent`
        is known to be spent, whatever the log says; `note` is public.
        """
        with self._opened() as descriptor:
            total = price.cost + max(spent, _accounts(_lines(descriptor), charge_id).get(price.account, 0.0))
            if not total <= price.limit:
                return None
            line = {"continues": charge_id, "part": part.to_dict(), "account": price.account, "cost": price.cost}
            _append(descriptor, line | {"note": dict(note), "pid": os.getpid()})
        return total

    def parts(self, charge_id: str) -> list[tuple[Event, Mapping[str, Any]]]:
        """The parts of a filtered run and their notes, oldest first."""
        return [(event_from_dict(data["part"]), data["note"]) for data in _parts_in(self._text_lines(), charge_id)]

    def accounts(self, charge_id: str) -> dict[str, float]:
        """What the filter of a charged run has spent, in all its copies, by account."""
        return _accounts(self._text_lines(), charge_id)

    def _text_lines(self) -> list[str]:
        return self.path.read_text().splitlines() if self.path.exists() else []

    @contextlib.contextmanager
    def _opened(self) -> Iterator[int]:
        """The file, locked; OSError with advice where it cannot be written."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o600)
            try:
                with _locked(descriptor):
                    yield descriptor
            finally:
                os.close(descriptor)
        except OSError as error:
            raise OSError(
                f"Cannot write the spend log {self.path} ({error}); nothing was released. "
                f"Set {_VARIABLE} to a file that can be written."
            ) from error

    def charges(self, label: str | None = None) -> list[Charge]:
        """All charges, oldest first, or those with this label. Raises ValueError naming a damaged line."""
        if not self.path.exists():
            return []
        charges: list[Charge] = []
        for number, line in enumerate(self.path.read_text().splitlines(), start=1):
            try:
                data = _object(line)
                if "continues" in data:
                    continue
                event = event_from_dict(data["event"])
                said = (data["id"], data["time"], data["label"], data["mechanism"], event)
                kept = {name: data.get(name, False) for name in ("keeps_parts", "keeps_reservations", "persons")}
                charge = Charge(*said, data.get("private", True), **kept, claimed=str(data.get("claimed", "")))
            except (KeyError, TypeError, AttributeError, ValueError) as error:
                raise ValueError(
                    f"Line {number} of the spend log {self.path} is damaged ({error}). "
                    "Keep a copy, then correct or remove the line; what it charged must be added by hand."
                ) from None
            if label is None or charge.label == label:
                charges.append(charge)
        return charges

    def total(self, delta: float, label: str | None = None, *, persons: bool = False) -> dict[Relation, float]:
        """ε of everything charged, composed, for each relation used: as if all fits saw the same records. inf with a charge that
        is only claimed, whatever else there is. What protects `persons` with all their rows, and what protects records, are never
        added up: the latter says nothing of a person with several.

        Runs with a fixed seed count as if their noise had been fresh; `charges` tells which they were.
        """
        groups: dict[Relation, list[Charge]] = {}
        for charge in self.charges(label):
            relation = relation_of(charge.event)
            if relation is not None and charge.persons == persons:
                groups.setdefault(relation, []).append(charge)
        return {
            relation: _composed_epsilon([charge.event for charge in charges], delta)
            if all(charge.certified for charge in charges)
            else math.inf
            for relation, charges in groups.items()
        }


def _accounts(lines: list[str], charge_id: str) -> dict[str, float]:
    costs: dict[str, float] = {}
    for data in _parts_in(lines, charge_id):
        costs[data["account"]] = costs.get(data["account"], 0.0) + float(data["cost"])
    return costs


def _parts_in(lines: list[str], charge_id: str) -> list[dict[str, Any]]:
    return [data for data in _about(charge_id, lines) if data.get("continues") == charge_id and "part" in data]


def _about(charge_id: str, lines: list[str]) -> Iterator[dict[str, Any]]:
    """The lines that name a charge. ValueError for one that is damaged: what it says was spent."""
    for number, line in enumerate(lines, start=1):
        if charge_id in line:
            try:
                yield _object(line)
            except ValueError as error:
                raise ValueError(
                    f"Line {number} of the spend log, about the charge {charge_id}, is damaged ({error}): correct it first."
                ) from None


def _object(line: str) -> dict[str, Any]:
    data = json.loads(line)
    if not isinstance(data, dict):
        raise ValueError(f"expected an object, got {line[:40]!r}")
    return data


def _composed_epsilon(events: list[Event], delta: float) -> float:
    """ε of all; or, where that is next to nothing or not finite, the sum of what each costs at its share of δ, if it is less."""
    value = epsilon(Composed(tuple(events)), delta)
    return value if value < _HUGE else min(value, sum(epsilon(event, delta / len(events)) for event in events))


def _lines(descriptor: int) -> list[str]:
    return _read(descriptor, os.fstat(descriptor).st_size, 0).decode().splitlines()


def _read(descriptor: int, size: int, start: int) -> bytes:
    """What stands there: on every platform, and of logs that one call does not read whole."""
    os.lseek(descriptor, start, os.SEEK_SET)  # appending does not mind where that is
    parts: list[bytes] = []
    while size > 0 and (part := os.read(descriptor, size)):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _append(descriptor: int, line: dict[str, Any]) -> None:
    """Append a whole line and wait for the disk, or leave the file as it was and raise OSError."""
    data = (json.dumps(line, separators=(",", ":")) + "\n").encode()
    size = os.fstat(descriptor).st_size
    if size and _read(descriptor, 1, 0) != b"{":
        raise OSError("it holds something else: its first line is no charge")
    if size and _read(descriptor, 1, size - 1) != b"\n":
        data = b"\n" + data  # a line that was cut by a crash must not swallow this one
    written = os.write(descriptor, data)
    if written != len(data):
        os.ftruncate(descriptor, size)
        raise OSError(f"only {written} of {len(data)} bytes written: is the disk full?")
    os.fsync(descriptor)


@contextlib.contextmanager
def _locked(descriptor: int) -> Iterator[None]:
    """Exclusive across processes where the platform has flock. Elsewhere (Windows) each process appends by one write; filters and
    reservations that several processes draw on at once need one process there."""
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        yield
    finally:
        fcntl.flock(descriptor, fcntl.LOCK_UN)


@contextlib.contextmanager
def only_claimed(reason: str) -> Iterator[None]:
    """Within the block, charges of this thread are marked: what they state holds only if it were not so that `reason`."""
    token = _CLAIMED.set(reason)
    try:
        yield
    finally:
        _CLAIMED.reset(token)


@contextlib.contextmanager
def spend_log(path: str | os.PathLike[str], *, workers: bool = True) -> Iterator[SpendLog]:
    """Within the block, fits of this thread, and with `workers` of processes started in it, write to `path`.

    Other threads of this process are not concerned.
    """
    log = SpendLog(Path(path).absolute())
    token = _HERE.set(log.path)
    mark = ""
    if workers:
        descriptor, mark = tempfile.mkstemp(prefix="dperm-log-")  # there as long as the block is open
        os.close(descriptor)
        with _lock:
            _active.append((mark, log.path))
            _tell_workers()
    try:
        yield log
    finally:
        _HERE.reset(token)
        if workers:
            with _lock:
                _active[:] = [entry for entry in _active if entry[0] != mark]
                _tell_workers()
            Path(mark).unlink(missing_ok=True)


def _tell_workers() -> None:
    """Name the newest log of an open block to processes that are started from now on."""
    if _active:
        os.environ[_INHERITED] = f"{os.getpid()}:{_active[-1][0]}\n{_active[-1][1]}"
    else:
        os.environ.pop(_INHERITED, None)
