"""The first sheet of a workbook, read row by row within limits: what a workbook says of its size is not believed."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, ClassVar
from xml.parsers import expat

from dperm._extras import needed
from dperm.data.file_reader import TableOptions, TableReader, distinct_names
from dperm.data.schema.entries import ReadTable
from dperm.data.untrusted_files import DataError, Limits

_ELEMENT = 30  # times its bytes, that XML takes in memory while it is parsed, at most
_AT_ONCE = 1 << 12  # bytes of a file, or rows
_MOST_MEMBERS = 10_000  # files within a workbook
_MOST_ROWS = 1 << 20  # of a sheet, as the format has it


class Workbook(TableReader):
    """Excel's workbooks, of which the first sheet is read."""

    title, endings, options = "Excel", (".xlsx", ".xlsm"), ("missing",)
    unreadable: ClassVar[Mapping[str, str]] = {".xls": "save it as .xlsx or as CSV"}

    def read(self, path: Path, options: TableOptions) -> ReadTable:
        return read_sheet(path, options.marks)


def read_sheet(path: Path, marks: Callable[[str], Collection[str]]) -> ReadTable:
    """The first sheet, its first row the header, all entries as texts; those among the `marks` of their column are missing.

    DataError for a first row that leaves a column without a name; ValueError for a workbook that
    declares entities of XML; TooLargeError for one that would take more memory than the limits allow. openpyxl and its parsers
    raise errors of any kind for what is no workbook: see `parsing`.
    """
    import pandas as pd

    with needed("openpyxl", f"Reading {path.name}"):
        from openpyxl import load_workbook

    limits, stored = Limits.current(), path.stat().st_size
    try:
        with zipfile.ZipFile(path) as archive:
            _admit(archive, limits, stored)
    except zipfile.BadZipFile as error:
        raise ValueError(f"it is no workbook: {error}") from None
    workbook = load_workbook(path, read_only=True, data_only=True, keep_links=False)
    try:
        sheets = workbook.worksheets
        rows = list(_rows(sheets[0], limits, stored))
    finally:
        workbook.close()
    while rows and not rows[-1]:
        rows.pop()
    width = max(map(len, rows), default=0)
    rows = [row + [""] * (width - len(row)) for row in rows]
    names = [name.strip() for name in rows[0]] if rows else []
    if not all(names):
        raise DataError(f"Column {names.index('') + 1} of the first row of {path} has no name: is there something above?")
    names, renamed = distinct_names(names)
    columns = {place: pd.Series([row[place] for row in rows[1:]], dtype=str) for place in range(width)}
    columns = {place: each.mask(each.str.strip().isin(marks(names[place]))) for place, each in columns.items()}
    frame = pd.DataFrame(columns).set_axis(names, axis=1)
    sheet = f"sheet {sheets[0].title!r}, the first of {len(sheets)}" if len(sheets) > 1 else ""
    return ReadTable(frame, "", sheet="; ".join(filter(None, (sheet, renamed))))


def _admit(archive: zipfile.ZipFile, limits: Limits, stored: int) -> None:
    """Refuse what unpacks to too much, and what declares entities, by which a few letters become many. An archive never gives
    more of a file than it declares."""
    members = archive.infolist()
    if len(members) > _MOST_MEMBERS:
        raise ValueError(f"it is made of {len(members):,} files, and no workbook of more than {_MOST_MEMBERS:,}")
    limits.refuse_memory(_ELEMENT * sum(member.file_size for member in members), stored)
    for member in members:
        with archive.open(member) as file:
            _refuse_declarations(file)


def _refuse_declarations(file: IO[bytes]) -> None:
    """ValueError for XML with a document type, which stands in front of its first element."""
    parser = expat.ParserCreate()
    begun = False

    def begin(*_: Any) -> None:
        nonlocal begun
        begun = True

    def refuse(*_: Any) -> None:
        raise ValueError("it declares a document type, and entities of XML, which no workbook needs")

    parser.StartElementHandler, parser.StartDoctypeDeclHandler = begin, refuse
    try:
        while not begun and (part := file.read(_AT_ONCE)):
            parser.Parse(part)
    except expat.ExpatError:
        return  # it is no XML, and whoever reads it as that finds so, too


def _rows(sheet: Any, limits: Limits, stored: int) -> Iterator[list[str]]:
    """Entries of each row as texts, without empty ones at its end. TooLargeError once the table that they make is too large,
    ValueError for a row that no sheet has: all above it would be filled up."""
    sheet.reset_dimensions()  # as they are stated, they need not be true
    width = 0
    for number, row in enumerate(sheet.rows, start=1):
        if number > _MOST_ROWS:
            raise ValueError(f"it numbers rows beyond {_MOST_ROWS:,}, which no sheet has")
        entries = [_text(cell) for cell in row]
        while entries and not entries[-1]:
            entries.pop()
        if len(entries) > width:
            width = len(entries)
            limits.refuse_columns(width)
            limits.refuse_cells(number * width, stored)
        elif number % _AT_ONCE == 0:
            limits.refuse_cells(number * max(1, width), stored)
        yield entries


def _text(cell: Any) -> str:
    """An entry as text: whole numbers without a point, an error such as #DIV/0! as the word that counts as missing."""
    value = cell.value
    if value is None:
        return ""
    if cell.data_type == "e":
        return "nan"
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
