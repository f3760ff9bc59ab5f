"""Files as texts: what compresses them is told from their first bytes, their encoding from a mark or from what they hold.

An encoding is guessed only where the text gives enough evidence; otherwise it must be stated. A wrong guess would change names
and categories, and lines that are broken under one encoding are never a reason to read all others under another.
"""

from __future__ import annotations

import bz2
import codecs
import gzip
import lzma
import os
import re
import zipfile
import zlib
from pathlib import Path
from typing import Any

__all__ = ["TextError", "decoded", "free_memory", "is_gzip", "read_bytes"]

_COMPRESSED = (".gz", ".bz2", ".xz", ".zip")
_MAGIC = ((b"\x1f\x8b", gzip.open), (b"BZh", bz2.open), (b"\xfd7zXZ", lzma.open))
_GROWS = 6  # times a text's bytes, that reading it takes: with its table
_BOMS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),  # before UTF-16, whose mark it begins with
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_USUAL = "cp1252"
_SINGLE = ("cp125", "iso8859", "mac", "koi8")  # one byte a letter: hardly any text of theirs is UTF-8 as well
_OTHERS = ["cp1251", "cp1253", "shift_jis", "gb18030", "big5", "euc_kr"]  # further ones must be stated
_WORD = re.compile(rb"[A-Za-z\x80-\xff]*[\x80-\xff][A-Za-z\x80-\xff]*")
_FOREIGN = re.compile(rb"[\x80-\xff]{3}")  # letters beyond ASCII in a row: hardly any in a word of a Western language
_SOME = 0.1  # of the words
_ENOUGH = 50  # words that another encoding is told from
_TELLING = 1 << 20  # bytes
_BLOCK = 1 << 22


class TextError(ValueError):
    """A text cannot be read as a table: why, and in which line."""


def free_memory() -> float:
    """Bytes; infinite where the platform does not say."""
    try:
        return float(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (AttributeError, ValueError, OSError):
        return float("inf")


def is_gzip(start: bytes) -> bool:
    return start.startswith(_MAGIC[0][0])


def read_bytes(path: Path, most: int | None = None) -> bytes:
    """A file's first bytes (all, without `most`), decompressed where it is compressed, whatever its name says.

    TextError for what is broken, and for more than the free memory holds.
    """
    with path.open("rb") as file:
        magic = file.read(8)
    opener = next((opener for mark, opener in _MAGIC if magic.startswith(mark)), None)
    try:
        if opener is not None:
            with opener(path, "rb") as file:
                return _read(file, most)
        if magic.startswith(b"PK\x03\x04"):
            with zipfile.ZipFile(path) as archive:
                inner = [name for name in archive.namelist() if not (name.endswith("/") or name.startswith("__MACOSX/"))]
                if len(inner) != 1:
                    raise TextError(f"expected one file in the archive, got {len(inner)}")
                with archive.open(inner[0]) as file:
                    return _read(file, most)
    except TextError:
        raise
    except (RuntimeError, NotImplementedError) as error:  # a password, or a method that nobody else has
        raise TextError(f"it is compressed in a way that cannot be read: {error}") from None
    except (EOFError, OSError, ValueError, zipfile.BadZipFile, lzma.LZMAError, zlib.error) as error:
        raise TextError(f"it is compressed and broken: {error}") from None
    if path.suffix.lower() in _COMPRESSED:
        raise TextError("it is not compressed, as its name says")
    with path.open("rb") as file:
        return _read(file, most)


def _read(file: Any, most: int | None) -> bytes:
    if most is not None:
        return file.read(most)
    limit = free_memory() / _GROWS
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
    return b"".join(parts)


def decoded(raw: bytes, stated: str | None) -> tuple[bytes, str]:
    """The text in UTF-8, without a mark, and the name of what it was written in: stated, or found out."""
    marked = next((name for mark, name in _BOMS if raw.startswith(mark)), None)
    name = _admitted(stated, marked) if stated else ""
    utf8 = marked in (None, "utf-8-sig") and _is_utf8(raw)
    if name.startswith(_SINGLE) and utf8 and not raw.isascii():
        raise TextError(f'it is UTF-8, and "encoding" says {stated}: leave that out')
    encoding = marked or stated or ("utf-8" if utf8 else _guessed(raw))
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
    except LookupError:
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


def _guessed(raw: bytes) -> str:
    """The encoding of a text that is not UTF-8, told from its words beyond ASCII. TextError where they do not tell it."""
    from charset_normalizer import from_bytes

    if b"\x00" in raw:
        pairs = max(raw[:_TELLING:2].count(0), raw[1:_TELLING:2].count(0)) > 0.3 * len(raw[:_TELLING:2])
        hint = ': state its encoding, "utf-16-le" or "utf-16-be"' if pairs else ""
        raise TextError(f"it is no text: it has bytes of value 0{hint}")
    lines = [(place, line) for place, line in enumerate(raw.split(b"\n"), start=1) if not line.isascii()]
    whole = [place for place, line in lines if _is_utf8(line)]
    if whole:
        broken = next(place for place, line in lines if not _is_utf8(line))
        raise TextError(f"line {broken} is not UTF-8, as {len(whole):,} others are: mend it, or state the encoding")
    telling = b"\n".join(line for _, line in lines)[:_TELLING]
    words = _WORD.findall(telling)
    foreign = sum(bool(_FOREIGN.search(word)) for word in words)
    if foreign <= _SOME * len(words) and _fits(raw, _USUAL):
        return _USUAL
    found = from_bytes(telling, cp_isolation=_OTHERS).best() if len(words) >= _ENOUGH else None
    if found is None:
        raise TextError(f"it is neither UTF-8 nor {_USUAL}, and does not tell what else: state its encoding")
    return found.encoding


def _fits(raw: bytes, encoding: str) -> bool:
    try:
        raw.decode(encoding)
    except UnicodeDecodeError:
        return False
    return True
