"""Files as texts: what compresses them is told from their first bytes, their encoding from a mark or from what they hold.

UTF-8, what begins with a mark, and Western texts are told; other encodings are suggested, with a line to judge by, and must be
stated: a wrong guess would change names and categories. Broken lines are never a reason to read all others in another encoding.
"""

from __future__ import annotations

import bz2
import codecs
import csv
import gzip
import io
import lzma
import re
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from dperm._extras import needed
from dperm._memory import free_memory
from dperm.data.untrusted_files import Limits, TooLargeError

_COMPRESSED = (".gz", ".bz2", ".xz", ".zip")
_MAGIC = (
    (re.compile(rb"\x1f\x8b.*", re.DOTALL), gzip.open),
    (re.compile(rb"BZh[1-9]1A"), bz2.open),
    (re.compile(rb"\xfd7zXZ\x00"), lzma.open),
)
_GROWS = 10  # times a text's bytes, that reading it takes, with its table: 5 for numbers of many digits, 11 for single ones
_BOMS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),  # before UTF-16, whose mark it begins with
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_USUAL = "cp1252"
_OTHERS = [  # that may be suggested
    "cp1252", "cp1250", "cp1251", "cp1253", "cp1254", "cp1255", "cp1256", "cp1257", "koi8_r", "mac_roman", "mac_cyrillic",
    "shift_jis", "euc_jp", "gb18030", "big5", "euc_kr",
]  # fmt: skip
_WORD = re.compile(rb"[A-Za-z\x80-\xff]*[\x80-\xff][A-Za-z\x80-\xff]*")
#: hardly words of Western languages: of letters beyond ASCII alone, with three in a row, or of one that is no word there
_FOREIGN = re.compile(
    rb"^[\x80-\xff]{2,}$|[\x80-\xff]{3}|"
    rb"^[\xc1-\xc3\xc5-\xd7\xd9-\xdb\xdd-\xdf\xe2-\xe3\xe5-\xe8\xea-\xf1\xf4-\xff]$"
)
#: what is a symbol there, or hardly a letter, in front of letters or behind them: a letter of another encoding
_SYMBOL = re.compile(
    rb"[\x83\x86-\x89\x8b\x98\x9b\x9f\xa2-\xa9\xac-\xaf\xb1\xb4\xb6\xb8\xb9\xbc-\xbe\xd7\xf7][A-Za-z]|[A-Za-z][\x9f\xbf]"
)
_SOME = 0.1  # of the words
_SHOWN = 40  # letters
_TELLING = 1 << 20  # bytes
_BLOCK = 1 << 22


class TextError(ValueError):
    """A text cannot be read as a table: why, and in which line."""


def is_gzip(start: bytes) -> bool:
    return start.startswith(b"\x1f\x8b")


def read_bytes(path: Path, most: int | None = None) -> bytes:
    """A file's first bytes (all, without `most`), decompressed where it is compressed, whatever its name says.

    TextError for what is broken, and for more than the free memory holds; TooLargeError for what unpacks to more than the limits
    allow, before more than that is unpacked.
    """
    stored = path.stat().st_size
    with path.open("rb") as file:
        magic = file.read(8)
    opener = next((opener for mark, opener in _MAGIC if mark.fullmatch(magic[:6])), None)
    try:
        if opener is not None:
            with opener(path, "rb") as file:
                return _read(file, most, stored)
        if magic.startswith(b"PK\x03\x04"):
            with zipfile.ZipFile(path) as archive:
                inner = [name for name in archive.namelist() if not (name.endswith("/") or name.startswith("__MACOSX/"))]
                if len(inner) != 1:
                    raise TextError(f"expected one file in the archive, got {len(inner)}")
                if most is None:  # an archive never gives more of a file than it says
                    Limits.current().refuse_memory(_GROWS * archive.getinfo(inner[0]).file_size, stored)
                with archive.open(inner[0]) as file:
                    return _read(file, most, stored)
    except (TextError, TooLargeError):
        raise
    except (RuntimeError, NotImplementedError) as error:  # a password, or a method that nobody else has
        raise TextError(f"it is compressed in a way that cannot be read: {error}") from None
    except (EOFError, OSError, ValueError, zipfile.BadZipFile, lzma.LZMAError, zlib.error) as error:
        raise TextError(f"it is compressed and broken: {error}") from None
    if path.suffix.lower() in _COMPRESSED:
        raise TextError("it is not compressed, as its name says")
    with path.open("rb") as file:
        return _read(file, most, stored)


def _read(file: Any, most: int | None, stored: int) -> bytes:
    if most is not None:
        return file.read(most)
    limit, limits = free_memory() / _GROWS, Limits.current()
    parts: list[bytes] = []
    size = 0
    while part := file.read(_BLOCK):
        parts.append(part)
        size += len(part)
        if size > limit:
            raise TextError(
                f"it has more than {size / 1e9:.1f} GB of text, too much for the free memory: split it, "
                "or save the encoded features as a .npy file, which is memory-mapped"
            )
        limits.refuse_proportion(_GROWS * size, stored, whole=False)
    return b"".join(parts)


def decoded(raw: bytes, stated: str | None) -> tuple[bytes, str]:
    """The text in UTF-8, without a mark, and the name of what it was written in: stated, or found out."""
    marked = next((name for mark, name in _BOMS if raw.startswith(mark)), None)
    name = _admitted(stated, marked) if stated else ""
    utf8 = marked in (None, "utf-8-sig") and _is_utf8(raw)
    if name and utf8 and not name.startswith("utf-8") and (not raw.isascii() or (name.startswith("utf") and b"\x00" not in raw)):
        raise TextError(f'it is UTF-8, and "encoding" says {stated}: leave that out')
    encoding = marked or stated or ("utf-8" if utf8 else _told(raw))
    if utf8 and (not name or name.startswith("utf-8")):
        return raw.removeprefix(codecs.BOM_UTF8), encoding
    try:
        return raw.decode(encoding).removeprefix("\ufeff").encode(), encoding
    except UnicodeError as error:
        where = f": byte {error.start} cannot be read" if isinstance(error, UnicodeDecodeError) else ""
        raise TextError(f"it is not {encoding}{where}") from None


def _admitted(stated: str, marked: str | None) -> str:
    """The stated encoding's name, where the text's mark does not say otherwise."""
    try:
        name = codecs.lookup(stated).name
        b" ".decode(stated, errors="replace")  # some codecs are of bytes alone
    except (LookupError, ValueError):
        raise TextError(f"expected an encoding that Python knows, got {stated!r}") from None
    family = marked and marked.removesuffix("-sig")
    if family and not name.startswith(family):
        raise TextError(f'it begins with the mark of {family}, and "encoding" says {stated}')
    return name


def _is_utf8(raw: bytes) -> bool:
    decoder = codecs.getincrementaldecoder("utf-8")()
    view = memoryview(raw)
    try:
        for start in range(0, len(raw), _BLOCK):
            decoder.decode(view[start : start + _BLOCK], final=start + _BLOCK >= len(raw))
    except UnicodeDecodeError:
        return False
    return True


def _told(raw: bytes) -> str:
    """Western Europe's, for a text that is not UTF-8 but reads like that. TextError for all others, with what may be tried."""
    if b"\x00" in raw:
        pairs = max(raw[:_TELLING:2].count(0), raw[1:_TELLING:2].count(0)) > 0.3 * len(raw[:_TELLING:2])
        hint = ': state its encoding, "utf-16-le" or "utf-16-be"' if pairs else ""
        raise TextError(f"it is no text: it has bytes of value 0{hint}")
    telling, first = bytearray(), 0
    broken = whole = 0
    for place, line in enumerate(_lines(raw), start=1):
        if line.isascii():
            continue
        if _is_utf8(line):
            whole += 1
        else:
            broken = broken or place
        if len(telling) < _TELLING:
            first = first or place
            telling += line + b"\n"
    if whole:
        raise TextError(f"line {broken} is not UTF-8, as {whole:,} others are: mend it, or state the encoding")
    words = _WORD.findall(telling)
    foreign = sum(bool(_FOREIGN.search(word) or _SYMBOL.search(word)) for word in words)
    if foreign <= _SOME * len(words) and _fits(raw, _USUAL):
        return _USUAL
    raise TextError(f"it is not UTF-8, and its encoding must be stated{_suggestion(bytes(telling), first)}")


def _lines(raw: bytes) -> Iterator[bytes]:
    if b"\n" in raw:
        return iter(io.BytesIO(raw))
    return iter(raw.split(b"\r"))  # an old Macintosh


def _suggestion(telling: bytes, place: int) -> str:
    with needed("charset_normalizer", "Guessing the encoding of a text"):
        from charset_normalizer import from_bytes

    found = from_bytes(telling, cp_isolation=_OTHERS).best()
    if found is None:
        return ""
    line = telling.split(b"\n", 1)[0].decode(found.encoding, errors="replace").strip()
    return f": as {found.encoding} line {place} would read {line[:_SHOWN]!r}"


def _fits(raw: bytes, encoding: str) -> bool:
    try:
        raw.decode(encoding)
    except UnicodeDecodeError:
        return False
    return True


_QUOTED = re.compile(rb'"((?:[^"]|"")*)"')
_FIRST_LINES, _LOOKED = 200, 1 << 16  # lines, and bytes


def without_outer_quotes(text: bytes, separators: Sequence[str]) -> bytes | None:
    """A table whose lines, maybe but for its header, were each quoted as a whole, as spreadsheets do with lines that they take
    for one entry: without these quotes. None of another text: where some line is not quoted so, or where lines within the quotes
    have other numbers of fields than the header, or one."""
    head = text[:_LOOKED].splitlines()
    if not all(_QUOTED.fullmatch(line) for line in head[1 : -1 if len(text) > _LOOKED else None] if line.strip()):
        return None  # before all of a long text is cut into lines
    lines = [line for line in text.splitlines() if line.strip()]
    if len(lines) < 2 or not all(_QUOTED.fullmatch(line) for line in lines[1:]):
        return None
    plain = [found[1].replace(b'""', b'"') if (found := _QUOTED.fullmatch(line)) else line for line in lines]
    first = [line.decode("utf-8") for line in plain[:_FIRST_LINES]]
    for separator in separators:
        widths = {len(row) for row in csv.reader(first, delimiter=separator)}
        if len(widths) == 1 and max(widths) > 1:
            return b"\n".join(plain) + b"\n"
    return None
