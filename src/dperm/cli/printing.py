"""The one way to the terminal. Names, labels and entries that are printed were written by others: whatever they hold, a line
stays one line, and no sign of it steers the terminal or changes what stands above."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from dperm._extras import needed
from dperm._json import on_one_line
from dperm._progress import unwatched

_PAUSE = 10.0  # seconds between lines of progress
_LONGEST = 4_000  # signs of a complaint, which may quote what a file holds


def say(line: str = "") -> None:
    """Print one line."""
    sys.stdout.write(f"{on_one_line(line)}\n")


def say_lines(text: str) -> None:
    """Print a text of several lines, made of parts that hold no line ends of others."""
    for line in text.split("\n"):
        say(line)


def say_json(value: Any) -> None:
    """Print a text of JSON, or another value as JSON: what steers a terminal stands in texts alone, and is escaped there, so
    that it stays the same JSON."""
    sys.stdout.write(_shown(value if isinstance(value, str) else json.dumps(value)))


def _shown(text: str) -> str:
    """JSON, with escapes for what steers a terminal."""
    lines = text.split("\n")
    return "".join("".join(each if each.isprintable() else _escaped(each) for each in line) + "\n" for line in lines)


def printed_instead(text: str) -> bool:
    """Print JSON that no file took. Returns whether it is on the screen now, on the error stream where the other one is full or
    closed."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.write(_shown(text))
            stream.flush()
            return True
        except (OSError, ValueError):  # full, or closed
            continue
    return False


def _escaped(sign: str) -> str:
    """A sign of a text in JSON, by its code."""
    return f"\\u{ord(sign):04x}" if sign.isascii() else json.dumps(sign)[1:-1]


def warn(text: str) -> None:
    """Print a line on the error stream, as a warning."""
    _to_errors(f"warning: {text}")


def complain(text: str) -> None:
    """Print a line on the error stream, as the error that a command ends with."""
    _to_errors(f"error: {text if len(text) <= _LONGEST else text[:_LONGEST] + ' …'}")


def _to_errors(line: str) -> None:
    sys.stderr.write(f"{on_one_line(line)}\n")


@contextmanager
def progress(title: str, shown: bool) -> Iterator[Any]:
    """A progress bar on the error stream, or a line now and then where that is no terminal; None where nobody watches."""
    if not shown or not sys.stderr.isatty():
        with unwatched():
            yield _lines(title) if shown else None
        return
    with needed("rich", "A progress bar"):
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with unwatched(), Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(on_one_line(title), total=None)
        yield lambda done, total, now=title: bar.update(task, completed=done, total=total, description=on_one_line(now))


def _lines(title: str) -> Any:
    """Progress as lines, for logs and pipes."""
    last = {"title": "", "time": -_PAUSE}

    def step(done: int, total: int, now: str = title) -> None:
        clock = time.monotonic()
        if now != last["title"] or clock - float(last["time"]) >= _PAUSE:
            last.update(title=now, time=clock)
            _to_errors(f"{now}: {done:,} of {total:,}")
            sys.stderr.flush()

    return step
