"""Tables written as text: how a file is written is found out, or stated, and no row is lost in silence.

The separator, the encoding and the decimal mark are told from the file, as is whether it is compressed. That looks at the
records, speaks to nobody but their holder, and is named on certificates among what is not charged. Every entry is then read by
itself, as text.
"""

from __future__ import annotations

import bz2
import codecs
import csv
import gzip
import io
import itertools
import lzma
import re
import zipfile
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Dialect", "TextError", "read_bytes", "read_text"]

_SEPARATORS = (";", "\t", "|", ",")  # the comma last: it may stand in numbers
_SAMPLE = 200  # rows that a separator is told from
_LETTERS = 1 << 18  # that they may take
_BYTES = 1 << 20  # that an encoding is told from
_BROKEN = 0.1  # of the lines beyond ASCII: fewer that are not UTF-8 are mistakes in a text that is
_ENCODINGS = ["cp1252", "cp1251", "cp1253", "shift_jis", "gb18030", "big5", "euc_kr"]  # others must be stated
_BLOCK = 1 << 24  # bytes parsed at once: no row is longer
_COMPRESSED = (".gz", ".bz2", ".xz", ".zip")
_ALIKE = 0.9  # of rows, in how many fields they have
#: a number with a decimal comma, or with points between thousands
_COMMA = r"^\s*[+-]?([1-9]\d{0,2}(\.\d{3})+(,\d+)?|\d*,\d+)\s*$"
#: numbers that tell which mark is the decimal one: three digits behind it may be thousands
_TELLING = {",": r"^\s*[+-]?[\d.]*,(\d{1,2}|\d{4,})\s*$", ".": r"^\s*[+-]?[\d,]*\.(\d{1,2}|\d{4,})\s*$"}
_BOMS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),  # before UTF-16, whose mark it begins with
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
#: how a missing value is written, beside what a schema's format says
_MISSING = ("", "NA", "N/A", "n/a", "#N/A", "#NA", "<NA>", "NaN", "nan", "-NaN", "-nan", "NULL", "null", "None", "#NULL!")


class TextError(ValueError):
    """A text cannot be read as a table: why, and in which line."""


@dataclass(frozen=True)
class Dialect:
    """How a table is written."""

    separator: str
    encoding: str
    decimal: str = "."
    header: bool = True

    def __str__(self) -> str:
        separator = {"\t": "tabs", ",": "commas", ";": "semicolons", " ": "spaces", "|": "bars"}.get(self.separator, "marks")
        decimal = ", decimal commas" if self.decimal == "," else ""
        return f"{self.encoding}, separated by {separator}{decimal}{'' if self.header else ', without a header'}"

    def format(self) -> dict[str, Any]:
        """As a schema's format has it: what is not as usual."""
        usual = Dialect(",", "utf-8")
        return {name: value for name, value in vars(self).items() if value != getattr(usual, name)}


def read_text(path: Path, options: Mapping[str, Any], names: Sequence[str] | None = None) -> tuple[pd.DataFrame, Dialect]:
    """The table, all entries as text, and how it was written.

    `options` state `separator`, `encoding`, `decimal` ("." or ","), `header` (False: columns are called `names`, or by their
    numbers), `skip_lines`, `missing` (a mark) and `strip`; the first three are found out where they are not stated. TextError,
    with a line, for rows of unequal length and for quotes that do not close.
    """
    _admit(options)
    text, encoding = _decoded(read_bytes(path), options.get("encoding"))
    skipped = int(options.get("skip_lines", 0))
    text = text.split(b"\n", skipped)[-1] if skipped else text
    body = text.lstrip(b"\r\n")
    skipped += text[: len(text) - len(body)].count(b"\n")
    stated = re.match(rb"sep=(.)\r?\n", body)  # Excel's own
    if stated and not options.get("separator"):
        body, skipped = body[stated.end() :], skipped + 1
    separator = options.get("separator") or (stated.group(1).decode() if stated else _separator(body))
    sample = _sample(body, separator)
    if not sample:
        raise TextError("it has no lines")
    dialect = Dialect(separator, encoding, options.get("decimal") or _decimal(sample, separator), options.get("header", True))
    first = [name.strip() for name in sample[0]]
    if dialect.header and not all(first):
        raise TextError(f"column {first.index('') + 1} of its header has no name: is there a separator at the end?")
    known = first if dialect.header else list(names or (f"column_{place + 1}" for place in range(len(first))))
    if doubled := sorted(name for name, count in Counter(known).items() if count > 1):
        raise TextError(f"expected distinct column names, got {doubled[:5]} twice")
    trailing = len(sample) > 1 and all(len(row) == len(known) + 1 and not row[-1] for row in sample[1 if dialect.header else 0 :])
    table = _parsed(body, dialect, [*known, ""] if trailing else known, skipped)
    _refuse_swallowed(table, body, dialect, skipped)
    marks = options.get("missing", ())
    missing = {*_MISSING, *map(str, marks if isinstance(marks, list | tuple) else [marks])}
    return _as_frame(table, dialect, missing, strip=bool(options.get("strip"))), dialect


def _admit(options: Mapping[str, Any]) -> None:
    separator, decimal, skipped = options.get("separator"), options.get("decimal"), options.get("skip_lines", 0)
    plain = isinstance(separator, str) and len(separator) == 1 and separator.isascii() and separator not in '"\r\n'
    if separator is not None and not plain:
        raise TextError(f"expected a separator of one letter, got {separator!r}")
    if decimal not in (None, ".", ","):
        raise TextError(f'expected a decimal mark of "." or ",", got {decimal!r}')
    for name, kind in (("encoding", str), ("header", bool), ("strip", bool)):
        if options.get(name) is not None and type(options[name]) is not kind:
            raise TextError(f"expected {name} to be {'text' if kind is str else 'true or false'}, got {options[name]!r}")
    if type(skipped) is not int or skipped < 0:
        raise TextError(f"expected skip_lines to be a number of lines, got {skipped!r}")


def read_bytes(path: Path) -> bytes:
    """A file, decompressed where it is compressed, whatever its name says."""
    with path.open("rb") as file:
        magic = file.read(8)
    try:
        if magic.startswith(b"\x1f\x8b"):
            return gzip.decompress(path.read_bytes())
        if magic.startswith(b"BZh"):
            return bz2.decompress(path.read_bytes())
        if magic.startswith(b"\xfd7zXZ"):
            return lzma.decompress(path.read_bytes())
        if magic.startswith(b"PK\x03\x04"):
            with zipfile.ZipFile(path) as archive:
                inner = [name for name in archive.namelist() if not (name.endswith("/") or name.startswith("__MACOSX/"))]
                if len(inner) != 1:
                    raise TextError(f"expected one file in the archive, got {len(inner)}")
                return archive.read(inner[0])
    except TextError:
        raise
    except (RuntimeError, NotImplementedError) as error:  # a password, or a method that nobody else has
        raise TextError(f"it is compressed in a way that cannot be read: {error}") from None
    except (EOFError, OSError, ValueError, zipfile.BadZipFile, lzma.LZMAError, zlib.error) as error:
        raise TextError(f"it is compressed and broken: {error}") from None
    if path.suffix.lower() in _COMPRESSED:
        raise TextError("it is not compressed, as its name says")
    return path.read_bytes()


def _decoded(raw: bytes, encoding: str | None) -> tuple[bytes, str]:
    """The text in UTF-8, and what it was written in."""
    if encoding is None:
        encoding = next((name for mark, name in _BOMS if raw.startswith(mark)), None)
    if encoding is None:
        encoding = "utf-8" if _is_utf8(raw) else _encoding(raw)
    if encoding == "utf-8" and _is_utf8(raw):
        return _lines(raw.removeprefix(codecs.BOM_UTF8)), encoding
    try:
        return _lines(raw.decode(encoding).removeprefix("\ufeff").encode()), encoding
    except LookupError:
        raise TextError(f"expected an encoding that Python knows, got {encoding!r}") from None
    except UnicodeError as error:
        where = f": byte {error.start} cannot be read" if isinstance(error, UnicodeDecodeError) else ""
        raise TextError(f"it is not {encoding}{where}") from None


def _lines(text: bytes) -> bytes:
    """Line ends of an old Macintosh as everybody else's."""
    return text if b"\n" in text else text.replace(b"\r", b"\n")


def _is_utf8(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


def _encoding(raw: bytes) -> str:
    """Of a text that is not UTF-8, told from the lines that are more than ASCII."""
    from charset_normalizer import from_bytes

    if b"\x00" in raw:
        raise TextError("it is no text: it has bytes of value 0")
    lines = [(place, line) for place, line in enumerate(raw.split(b"\n"), start=1) if not line.isascii()]
    broken = [place for place, line in lines if not _is_utf8(line)]
    if len(broken) < _BROKEN * len(lines):
        raise TextError(
            f"line {broken[0]} is not UTF-8, as {len(lines) - len(broken):,} others are: mend it, or state the encoding"
        )
    telling = b"\n".join(line for _, line in lines)[:_BYTES]
    found = from_bytes(telling, cp_isolation=_ENCODINGS).best()
    return "cp1252" if found is None else found.encoding


def _rows(text: bytes, separator: str, *, strict: bool = False) -> Any:
    """As Python's own reader has them: it is slow, and knows lines."""
    return csv.reader(io.TextIOWrapper(io.BytesIO(text), "utf-8", newline=""), delimiter=separator, strict=strict)


def _sample(text: bytes, separator: str) -> list[list[str]]:
    """The first rows that are not blank."""
    part = text[: max(_LETTERS, text.find(b"\n", 0) + 1)]
    if len(part) < len(text):
        part = part[: part.rfind(b"\n") + 1]
    rows = _rows(part, separator)
    try:
        return [row for row in itertools.islice(rows, _SAMPLE) if row]
    except csv.Error as error:
        raise TextError(str(error)) from None


def _separator(text: bytes) -> str:
    """The one by which most rows have as many fields as the header, the more fields the better; a comma where none does."""
    best, score = ",", 0.0
    for separator in _SEPARATORS:
        try:
            rows = _sample(text, separator)
        except TextError:  # a field as long as its reader has none
            continue
        if rows and len(rows[0]) > 1:
            alike = Counter(map(len, rows))[len(rows[0])] / len(rows)
            if alike >= _ALIKE or len(rows) < 10:
                worth = alike + len(rows[0]) / 1000
                best, score = (separator, worth) if worth > score else (best, score)
    return best


def _decimal(rows: list[list[str]], separator: str) -> str:
    fields = [field for row in rows for field in row] if separator != "," else []
    commas, points = (sum(bool(re.match(_TELLING[mark], field)) for field in fields) for mark in ",.")
    return "," if commas > points else "."


def _parsed(text: bytes, dialect: Dialect, names: list[str], skipped: int) -> Any:
    """The table as Arrow has it, all columns texts."""
    import pyarrow as pa
    import pyarrow.csv as arrow

    if b"\x00" in text:
        raise TextError("it is no text: it has bytes of value 0")
    if text.count(b'"') % 2 and (fault := _fault(text, dialect.separator, len(names), skipped)):
        raise TextError(fault)
    beside = not names[-1]  # a separator at the end of all rows is no field
    try:
        table = arrow.read_csv(
            io.BytesIO(text[_header(text, dialect.separator) :] if dialect.header and beside else text),
            arrow.ReadOptions(block_size=_BLOCK, column_names=names),
            arrow.ParseOptions(delimiter=dialect.separator, newlines_in_values=b'"' in text, ignore_empty_lines=len(names) > 1),
            arrow.ConvertOptions(column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=False),
        )
    except pa.ArrowInvalid as error:
        reason = str(error).splitlines()[0]
        raise TextError(_fault(text, dialect.separator, len(names), skipped) or reason) from None
    if not beside:
        return table.slice(1 if dialect.header else 0)
    if any(table.column(len(names) - 1).to_pylist()):
        raise TextError(f"some rows have {len(names)} fields, and the header {len(names) - 1}")
    return table.drop_columns([""])


def _header(text: bytes, separator: str) -> int:
    """How many bytes the header has, its line end included."""
    rows = _rows(text, separator)
    next(rows)
    return sum(len(line) for line in text[:_LETTERS].splitlines(keepends=True)[: rows.line_num])


def _fault(text: bytes, separator: str, width: int, skipped: int) -> str | None:
    """What is wrong with the first row that is none, and in which line; None where nothing is."""
    rows = _rows(text, separator, strict=True)
    start = skipped + 1
    try:
        for row in rows:
            if row and len(row) != width:
                return f"line {start} has {len(row)} fields in place of {width}: a separator or a quote is missing, or too many"
            start = skipped + rows.line_num + 1
    except csv.Error as error:
        return f"a quote in line {start} does not close, or closes within a field ({error})"
    return None


def _refuse_swallowed(table: Any, text: bytes, dialect: Dialect, skipped: int) -> None:
    """A quote that somebody forgot makes one entry of all up to the next quote: entries that hold lines like rows are refused."""
    import pyarrow.compute as pc

    commas = table.num_columns - 1
    if not commas or b'"' not in text:
        return
    several = [entry for column in table.columns for entry in column.filter(pc.match_substring(column, "\n")).to_pylist()]
    if not several:
        return
    if fault := _fault(text, dialect.separator, commas + 1, skipped):  # as a strict reader has it
        raise TextError(fault)
    swallowed = {entry for entry in several if commas > 1 and _like_rows(entry, dialect.separator, commas)}
    rows, start = _rows(text, dialect.separator), skipped + 1
    for row in rows if swallowed else ():
        if swallowed & set(row):
            raise TextError(f"a quote in line {start} closes in line {skipped + rows.line_num}, behind what looks like rows")
        start = skipped + rows.line_num + 1


def _like_rows(entry: str, separator: str, commas: int) -> bool:
    inner = entry.split("\n")[1:-1]
    return bool(inner) and all(line.count(separator) == commas for line in inner)


def _as_frame(table: Any, dialect: Dialect, missing: set[str], *, strip: bool) -> pd.DataFrame:
    import pyarrow as pa
    import pyarrow.compute as pc

    marks = pa.array(sorted(missing))
    columns: list[Any] = []
    for column in table.columns:
        values = pc.utf8_trim_whitespace(column) if strip else column
        if dialect.decimal == ",":
            plain = pc.replace_substring(pc.replace_substring(values, ".", ""), ",", ".")
            values = pc.if_else(pc.match_substring_regex(values, _COMMA), plain, values)
        gone = pc.is_in(pc.utf8_trim_whitespace(values), marks)
        columns.append(pc.if_else(gone, pa.scalar(None, pa.string()), values))
    return pa.table(columns, names=table.column_names).to_pandas()
