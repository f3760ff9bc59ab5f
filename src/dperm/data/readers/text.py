"""Tables written as text: how a file is written is found out, or stated, and no row is lost in silence.

The separator, the encoding and the decimal mark are told from the file, as is whether it is compressed. That looks at the
records, speaks to nobody but their holder, and is named on certificates among what is not charged. Every entry is then read by
itself, as text.
"""

from __future__ import annotations

import csv
import io
import itertools
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dperm.data.decoding import TextError, decoded, is_gzip, read_bytes, without_outer_quotes
from dperm.data.file_reader import MISSING, TableOptions, TableReader, distinct_names
from dperm.data.schema.entries import ReadTable
from dperm.data.schema.schema_file import TEXT_OPTIONS
from dperm.data.untrusted_files import Limits

if TYPE_CHECKING:
    import pandas as pd

_SEPARATORS = (";", "\t", "|", ",")  # the comma last: it may stand in numbers
_SAMPLE = 200  # rows that a separator is told from
_ABOVE = 20  # lines that may stand above a header
_LETTERS = 1 << 18  # that they may take, below the first line
_LONGEST = 2**31 - 1  # letters of a field
_BLOCK = 1 << 24  # bytes parsed at once: no row is longer
_ALIKE = 0.9  # of rows, in how many fields they have
_NUMBERS = 0.8  # of a column's entries, where it is one of numbers
_TELLING = 0.5  # where it tells the decimal mark
_NUMBER = re.compile(r"\s*[+-]?(\d[\d.,]*|[.,]\d+)(e[+-]?\d+)?\s*", re.IGNORECASE)
_BREAK = re.compile(r"\r\n|\n|\r")


@dataclass(frozen=True)
class Dialect:
    """How a table is written."""

    separator: str
    encoding: str
    decimal: str = "."
    header: bool = True
    broken: int = 0  # rows that go on in further lines, within quotes
    quoted: bool = False  # whether lines were quoted as a whole
    renamed: str = ""  # which columns got other names, in words

    def __str__(self) -> str:
        separator = {"\t": "tabs", ",": "commas", ";": "semicolons", " ": "spaces", "|": "bars"}.get(self.separator, "marks")
        decimal = ", decimal commas" if self.decimal == "," else ""
        broken = f", {self.broken:,} with line breaks in entries" if self.broken else ""
        quoted = ", lines quoted as a whole" if self.quoted else ""
        header = "" if self.header else ", without a header"
        renamed = f", {self.renamed}" if self.renamed else ""
        return f"{self.encoding}, separated by {separator}{decimal}{header}{broken}{quoted}{renamed}"

    def found(self) -> dict[str, Any]:
        """What another text of the same making is to be read by: as options."""
        return {"decimal": self.decimal} if self.separator != "," else {}


@dataclass(frozen=True)
class _Body:
    """A text from its header on."""

    text: bytes
    above: int  # lines
    separator: str
    quoted: bool = False  # whether its lines were quoted as a whole, and are not now

    def rows(self, *, strict: bool = False) -> Iterator[tuple[int, list[str]]]:
        """The rows as Python's own reader has them, and the line in which each ends: it is slow, and knows lines."""
        limit = csv.field_size_limit(_LONGEST)
        try:
            file = io.TextIOWrapper(io.BytesIO(self.text), "utf-8", newline="")
            rows = csv.reader(file, delimiter=self.separator, strict=strict)
            for row in rows:
                yield rows.line_num, row
        finally:
            csv.field_size_limit(limit)

    def sample(self) -> list[list[str]]:
        """The first rows that are not blank."""
        end = self.text.find(b"\n", self.text.find(b"\n") + _LETTERS)
        part = self.text if end < 0 else self.text[: end + 1]
        return [row for _, row in itertools.islice(_Body(part, 0, self.separator).rows(), _SAMPLE) if row]

    def below_header(self) -> int:
        """How many bytes the header takes, its line end included."""
        lines, _ = next(self.rows())
        ends = re.finditer(rb"\r\n|\n|\r", self.text)
        return next((end.end() for end in itertools.islice(ends, lines - 1, None)), len(self.text))


class Text(TableReader):
    """Delimited texts of any separator, encoding, decimal mark and compression."""

    title, any_text, options = "CSV", True, TEXT_OPTIONS
    endings = (".csv", ".tsv", ".csv.gz", ".tsv.gz", ".csv.bz2", ".csv.xz", ".csv.zip", ".txt")

    def read(self, path: Path, options: TableOptions) -> ReadTable:
        """The table, all entries as text.

        `options.stated` has `separator`, `encoding`, `decimal` ("." or ","), `header` (False: columns are called by those of
        `options.names` that are as many, or by their numbers), `skip_lines`, `missing` (marks), `strip`, and whether entries hold
        `line_breaks`; the first three are found out where they are not stated. TextError, with a line, for rows of unequal
        length, quotes that do not close, and lines that a quote may have swallowed.
        """
        stated = options.stated
        _admit(stated)
        raw = read_bytes(path)
        if is_gzip(raw):
            raise TextError("it is compressed twice")
        text, encoding = decoded(raw, stated.get("encoding"))
        del raw
        body = _body(text if b"\n" in text else text.replace(b"\r", b"\n"), stated)  # an old Macintosh ends lines so
        del text
        sample = body.sample()
        if not sample:
            raise TextError("it has no lines")
        limits, rows_in_lines = Limits.current(), body.text.count(b"\n")
        limits.refuse_columns(len(sample[0]))
        limits.refuse_cells(len(sample[0]) * rows_in_lines, path.stat().st_size, 0)
        header = stated.get("header", True)
        known, ended, renamed = _names(sample, options.names, header=header)
        if header and "header" not in stated and all(_NUMBER.fullmatch(name) for name in known):
            raise TextError(f"its first line looks like a row, {known[:5]}: say whether it has a header")
        rows = sample[1 if header else 0 :]
        decimal = stated.get("decimal") or _decimal(rows, body.separator)
        table, broken = _parsed(body, known, _numeric(rows), ended=ended, header=header, breaks=stated.get("line_breaks"))
        dialect = Dialect(body.separator, encoding, decimal, header, broken, body.quoted, renamed)
        del body
        frame = _as_frame(table, options, decimal)
        whole = {"separator", "encoding", "decimal"} <= set(stated) and not dialect.quoted and not dialect.renamed
        written = "" if whole else str(dialect)
        return ReadTable(frame, written, decimal=decimal, format=dialect.found())


def _admit(options: Mapping[str, Any]) -> None:
    if odd := sorted(set(options) - {*TEXT_OPTIONS, "label_suffix", "other_label"}):
        raise TextError(f"expected options {', '.join(TEXT_OPTIONS)}, got {odd[0]!r}")
    separator, decimal, skipped = options.get("separator"), options.get("decimal"), options.get("skip_lines", 0)
    plain = isinstance(separator, str) and len(separator) == 1 and separator.isascii() and separator not in '"\r\n'
    if separator is not None and not plain:
        raise TextError(f"expected a separator of one letter, such as ; or \\t for tabs, got {separator!r}")
    if decimal not in (None, ".", ","):
        raise TextError(f'expected a decimal mark of "." or ",", got {decimal!r}')
    for name, kind in (("encoding", str), ("header", bool), ("strip", bool), ("line_breaks", bool)):
        if options.get(name) is not None and type(options[name]) is not kind:
            raise TextError(f"expected {name} to be {'text' if kind is str else 'true or false'}, got {options[name]!r}")
    marks = options.get("missing", ())
    if any(
        isinstance(mark, bool) or not isinstance(mark, str | int | float)
        for mark in (marks if isinstance(marks, list | tuple) else [marks])
    ):
        raise TextError(f"expected missing to be a text or a number, or several, got {marks!r}")
    if type(skipped) is not int or skipped < 0:
        raise TextError(f"expected skip_lines to be a number of lines, got {skipped!r}")


def _body(text: bytes, options: Mapping[str, Any]) -> _Body:
    above = int(options.get("skip_lines", 0))
    if above > text.count(b"\n"):
        raise TextError(f"it has no line behind the {above:,} that are to be skipped")
    text, above = _stripped(text.split(b"\n", above)[-1] if above else text, above)
    separator = options.get("separator")
    if stated := re.match(rb'"?sep=([!-~\t])"?\r?\n', text):  # Excel's own
        separator = separator or stated.group(1).decode()
        _admit({"separator": separator})
        text, above = _stripped(text[stated.end() :], above + 1)
    plain = without_outer_quotes(text, (separator,) if separator else _SEPARATORS) if b'"' in text else None
    text = text if plain is None else plain
    return _Body(text, above, separator or _separator(text), plain is not None)


def _stripped(text: bytes, above: int) -> tuple[bytes, int]:
    """Without blank lines in front, and how many lines are above then."""
    body = text.lstrip(b"\r\n")
    return body, above + len(re.findall(rb"\r\n|\n|\r", text[: len(text) - len(body)]))


def _separator(text: bytes) -> str:
    """The first one by which nearly all rows have as many fields as the header; a comma where none does."""
    best, score = ",", 0.0
    for separator in _SEPARATORS:
        rows = _Body(text, 0, separator).sample()
        if rows and len(rows[0]) > 1:
            alike = Counter(map(len, rows))[len(rows[0])] / len(rows)
            if alike > score + (1 - _ALIKE) and (alike >= _ALIKE or len(rows) < 10):
                best, score = separator, alike
    return best


def _names(sample: list[list[str]], names: Sequence[Sequence[str]], *, header: bool) -> tuple[list[str], bool, str]:
    """Return the names of the columns, whether each row ends in a separator without meaning, and a sentence on the columns that
    were renamed."""
    first, rows = [name.strip() for name in sample[0]], sample[1:]
    if not header:
        if not names:
            return [f"column_{place + 1}" for place in range(len(first))], False, ""
        ended = all(not row[-1] for row in sample)
        for known in names:
            if len(first) == len(known) or (ended and len(first) == len(known) + 1):
                return list(known), len(first) > len(known), ""
        raise TextError(f"expected {len(names[0])} columns, as the schema has, got {len(first)}")
    ended = bool(rows) and len(first) > 1 and not first[-1] and all(len(row) == len(first) and not row[-1] for row in rows)
    known = first[:-1] if ended else first
    ended = ended or (bool(rows) and all(len(row) == len(known) + 1 and not row[-1] for row in rows))
    known = [name or f"column_{place}" for place, name in enumerate(known, start=1)]
    known, renamed = distinct_names(known)
    return known, ended, renamed


def _numeric(rows: list[list[str]]) -> list[int]:
    """Which columns hold numbers, in whatever way they are written."""
    columns = itertools.zip_longest(*rows, fillvalue="")
    known = [[entry for entry in column if entry.strip() not in MISSING] for column in columns]
    return [
        place
        for place, entries in enumerate(known)
        if entries and sum(bool(_NUMBER.fullmatch(entry)) for entry in entries) >= _NUMBERS * len(entries)
    ]


def _decimal(rows: list[list[str]], separator: str) -> str:
    """Told by the columns of numbers: three digits behind a mark may be thousands. TextError where they contradict each other."""
    if separator == ",":
        return "."
    columns = [[entry.strip() for entry in column] for column in itertools.zip_longest(*rows, fillvalue="")]
    columns = [[entry for entry in column if entry not in MISSING] for column in columns]
    found = {mark: [column for column in columns if _tells(column, mark)] for mark in ",."}
    if not found[","]:
        commas = re.compile(r"[+-]?[1-9]\d{0,2},\d{3}")
        if not found["."] and (alike := [column[0] for column in columns if column and all(map(commas.fullmatch, column))]):
            raise TextError(f"it holds {alike[0]!r}, of three decimals or of thousands: state whether its decimal mark is , or .")
        return "."
    comma = next(entry for entry in found[","][0] if "," in entry)
    thousands = re.compile(r"[+-]?[1-9]\d{0,2}\.\d{3}")  # in all entries of a column: each may be as well with three decimals
    doubtful = [column[0] for column in columns if column and all(thousands.fullmatch(entry) for entry in column)]
    if other := next((entry for column in found["."] for entry in column if "." in entry), next(iter(doubtful), None)):
        raise TextError(f"it holds {comma!r} and {other!r}: state whether its decimal mark is , or .")
    return ","


def _tells(entries: list[str], mark: str) -> bool:
    other, own = ("." if mark == "," else ","), re.escape(mark)
    number = re.compile(rf"[+-]?(\d+|\d{{1,3}}([{other}]\d{{3}})+)?({own}\d*)?(e[+-]?\d+)?", re.IGNORECASE)
    telling = re.compile(rf"[+-]?[\d{other}]*{own}(\d{{1,2}}|\d{{4,}})(e[+-]?\d+)?", re.IGNORECASE)
    plain = [entry.strip("<>≤≥~=$€£¥% ") for entry in entries]  # "< 5,5" is one as well, and "5,50 €"
    numbers = [entry for entry in plain if number.fullmatch(entry)]
    return len(numbers) >= _TELLING * len(entries) and any(telling.fullmatch(entry) for entry in numbers)


def _parsed(
    body: _Body, names: list[str], numeric: list[int], *, ended: bool, header: bool, breaks: bool | None
) -> tuple[Any, int]:
    """The table as Arrow has it, all columns texts, and how many of its rows go on in further lines."""
    import pyarrow as pa
    import pyarrow.csv as arrow

    text = body.text
    if b"\x00" in text:
        raise TextError("it is no text: it has bytes of value 0")
    width = len(names) + ended
    if len(names) == 1 and text.count(b"\r") != text.count(b"\r\n"):  # they would be rows of their own
        raise TextError("its lines end in several ways: with and without line feeds")
    rows = broken = None
    if b'"' in text:
        rows, broken = _checked(body, width, names, numeric, breaks)
    columns = [*names, ""] if ended else names
    data = memoryview(text)[body.below_header() if header else 0 :]
    while len(names) == 1 and len(data) and data[-1] in b"\r\n":  # a blank line in the middle is a missing value
        data = data[:-1]
    if not len(data):
        return pa.table({name: pa.array([], pa.large_string()) for name in names}), 0
    try:
        table = arrow.read_csv(
            pa.BufferReader(pa.py_buffer(data)),
            arrow.ReadOptions(block_size=_BLOCK, column_names=columns),
            arrow.ParseOptions(delimiter=body.separator, newlines_in_values=rows is not None, ignore_empty_lines=len(names) > 1),
            arrow.ConvertOptions(column_types=dict.fromkeys(columns, pa.large_string()), strings_can_be_null=False),
        )
    except pa.ArrowInvalid as error:
        _checked(body, width, names, numeric, breaks)  # it says more
        raise TextError(str(error).splitlines()[0]) from None
    if rows is not None and len(names) > 1 and rows - header != len(table):
        raise TextError(f"it has {len(table):,} or {rows - header:,} rows, as one reads its quotes: it is not told which")
    if not ended:
        return table, broken or 0
    if any(table.column(len(names)).to_pylist()):
        raise TextError(f"some rows have {width} fields, and the header {len(names)}")
    return table.drop_columns([""]), broken or 0


def _checked(body: _Body, width: int, names: list[str], numeric: list[int], breaks: bool | None) -> tuple[int, int]:
    """How many rows it has, its header's included, and how many of them go on in further lines. TextError for the first row that
    has another width, for a quote that does not close, and for lines that look like rows within an entry."""
    rows, broken, ends = body.rows(strict=True), 0, 0
    count = 0
    try:
        for end, row in rows:
            start, ends = body.above + ends + 1, end
            if not row:
                continue
            count += 1
            if any(entry.startswith(' "') for entry in row):
                raise TextError(f"there are blanks in front of quotes in line {start}: they would be letters")
            if len(row) != width and not (count == 1 and len(row) == len(names)):
                hint = "a separator or a quote is missing, or too many"
                if len(row) == 1 and body.separator in row[0]:
                    hint = "it is quoted as a whole, and not all lines are: take these quotes out"
                if len(row) > width and count <= _ABOVE:
                    above = start - 1
                    hint += f"; or there are lines above its header, and this is it: skip_lines={above} (--skip-lines {above})"
                raise TextError(f"line {start} has {len(row)} fields in place of {width}: {hint}")
            if body.above + end == start:
                continue
            broken += 1
            if breaks is None and _like_rows(row, body.separator, numeric):
                raise TextError(
                    f"a quote in line {start} closes in line {body.above + end}, behind what looks like rows. "
                    'If these are breaks in its text, say "line_breaks": true in its format'
                )
            if breaks is False:
                raise TextError(f"an entry in line {start} holds line breaks")
    except csv.Error as error:
        raise TextError(f"a quote in line {body.above + ends + 1} does not close, or closes within a field ({error})") from None
    return count, broken


def _like_rows(row: list[str], separator: str, numeric: list[int]) -> bool:
    """Whether the lines of what was read as one row look like rows each: a quote that somebody forgot makes one entry of all up
    to the next quote. Then they have as many fields, and numbers where these belong."""
    lines: list[list[str]] = [[]]
    for entry in row:
        first, *further = _BREAK.split(entry)
        lines[-1] += first.split(separator) if further else [first]
        lines += [line.split(separator) for line in further]
    lines = [line for line in lines if any(entry.strip() for entry in line)]
    return len(lines) > 1 and all(
        len(line) == len(row) and all(_NUMBER.fullmatch(line[place]) or line[place].strip() in MISSING for place in numeric)
        for line in lines
    )


def _as_frame(table: Any, options: TableOptions, decimal: str) -> pd.DataFrame:
    import pyarrow as pa
    import pyarrow.compute as pc

    nothing = pa.scalar(None, pa.large_string())
    columns: list[Any] = []
    for name, column in zip(table.column_names, table.columns, strict=True):
        column = pc.utf8_trim_whitespace(column) if options.stated.get("strip") else column
        marks = pa.array(sorted(options.marks(name, decimal)), pa.large_string())
        columns.append(pc.if_else(pc.is_in(pc.utf8_trim_whitespace(column), marks), nothing, column))
    return pa.table(columns, names=table.column_names).to_pandas()
