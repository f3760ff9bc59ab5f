"""JSON from somebody else, within limits: length, depth, number of values, and texts that fit on one line."""

from __future__ import annotations

import contextlib
import json
import math
import re
from collections.abc import Iterator
from typing import Any, NoReturn

_MOST_CHARACTERS = 4_000_000
_MOST_VALUES = 100_000  # names included
_DEEPEST = 256
_LARGEST_INTEGER = 10**300  # it is a double

#: A string, ended or not, or a sign that nests or separates. Whatever the text is, each character is looked at once.
_TOKENS = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)|[\[{\]},:]', re.DOTALL)


class JsonTooLargeError(ValueError):
    """JSON that is longer, deeper or of more values than its reader is prepared for."""


def on_one_line(text: str) -> str:
    """The text with spaces for line ends and other white space, and control characters as escapes: whoever prints it prints one
    line, and nothing of it changes what stands before."""
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() else " " if each.isspace() else each.encode("unicode_escape").decode() for each in text
    )


@contextlib.contextmanager
def foreign(what: str) -> Iterator[None]:
    """A block that makes objects of tables that somebody else wrote: whatever a constructor or a computation stumbles over, it is
    the tables that are wrong, and a ValueError says so, as "WHAT: why". The error stays its cause."""
    try:
        yield
    except ModuleNotFoundError:  # the tables may be right: it says what is to be installed
        raise
    except Exception as error:
        raise ValueError(f"{what}: {str(error) or type(error).__name__}") from error


def bounded_table(text: Any) -> dict[str, Any]:
    """The table that `text` holds, as of `bounded_value`."""
    data = bounded_value(text)
    if not isinstance(data, dict):
        raise ValueError("it holds no table")
    return data


def bounded_value(text: Any) -> Any:
    """The value that the JSON in `text` describes.

    All its numbers are finite, and doubles hold them; all its texts, names included, are printable and of one line; no name
    stands twice in a table. Raises ValueError for anything else, before memory or time is spent on it.
    """
    if not isinstance(text, str):
        raise ValueError(f"expected text, got {type(text).__name__}")
    if len(text) > _MOST_CHARACTERS:
        raise JsonTooLargeError(f"expected at most {_MOST_CHARACTERS:,} characters, got {len(text):,}")
    _measure(text)
    data = json.loads(text, object_pairs_hook=unique_names, parse_constant=_refuse_constant)
    _walk(data)
    return data


def _measure(text: str) -> None:
    """JsonTooLargeError for JSON that nests too deep or holds too many values: without recursion, and before any is built."""
    depth, values = 0, 1
    for token in _TOKENS.finditer(text):
        sign = text[token.start()]
        if sign in "]}":
            depth -= 1
        elif sign != '"':  # at most one value follows each of these
            depth += sign in "[{"
            values += 1
            if depth > _DEEPEST:
                raise JsonTooLargeError(f"expected tables and lists nested at most {_DEEPEST} deep")
            if values > _MOST_VALUES:
                raise JsonTooLargeError(f"expected at most {_MOST_VALUES:,} names and values")


def unique_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A table of these pairs, as `object_pairs_hook` of JSON. ValueError where a name stands twice: readers differ in which of
    its values they take, so that what was signed need not be what is read."""
    table = dict(pairs)
    if len(table) < len(pairs):
        raise ValueError("expected each name once in a table")
    return table


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"expected finite numbers, got {name}")


def _walk(data: Any) -> None:
    """ValueError for other numbers or texts than `bounded_value` promises."""
    waiting: list[Any] = [data]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            waiting += [*value, *value.values()]
        elif isinstance(value, list):
            waiting += value
        elif isinstance(value, str):
            if not value.isprintable():
                raise ValueError(f"expected texts of one line without control characters, got {value[:80]!r}")
        elif isinstance(value, float):
            if not math.isfinite(value):
                raise ValueError("expected finite numbers")
        elif isinstance(value, int) and abs(value) > _LARGEST_INTEGER:
            raise ValueError("expected whole numbers of at most 300 digits")
