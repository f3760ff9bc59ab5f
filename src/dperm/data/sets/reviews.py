"""Film reviews (Maas et al., "Learning word vectors for sentiment analysis", ACL 2011), and texts as sequences of numbers."""

from __future__ import annotations

import re
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dperm import _validate as check
from dperm.data.sets.downloads import fetch
from dperm.data.untrusted_files import DataError

#: Two archives hold the same labelled reviews, and either will do: one without the unlabelled reviews and word counts (sha256),
#: and the publisher's (raw_sha256), which a download must be.
_ITEMS: dict[str, dict[str, Any]] = {
    "imdb": {
        "path": "imdb/aclImdb_labeled.tar.gz",
        "url": "https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz",
        "sha256": "6eb7e3eb5725f54901c5eff49e827441ba96a5a7a89193e5590e6aad6b2efd35",
        "raw_sha256": "c40f74a18d3b61f90feba1e17730e0d38e8b97c05fde7008942e91923d1658fe",
    }
}

_MEMBER = re.compile(r"aclImdb/(train|test)/(neg|pos)/(\d+)_\d+\.txt", re.ASCII)
_BREAK = re.compile(r"<br\s*/?>")
_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)*")  # letters and digits, and apostrophes between them


@dataclass(frozen=True, repr=False)
class Reviews:
    """Texts (n) and labels (n,), 1 = positive and 0 = negative, for training and for testing."""

    train_texts: list[str]
    train_labels: NDArray[np.uint8]
    test_texts: list[str]
    test_labels: NDArray[np.uint8]

    def __repr__(self) -> str:
        return f"Reviews({len(self.train_texts)} for training, {len(self.test_texts)} for testing)"


def load_reviews(name: str = "imdb") -> Reviews:
    """ "imdb": 25,000 reviews for training and 25,000 for testing, from the folder DPERM_DATA or the publisher.

    Ordered by the number in the file name, the negative review before the positive one of that number: labels alternate.
    Neighbours often review the same film, so shuffle before splitting. DataError where the reviews are not to be had.
    """
    if name not in _ITEMS:
        raise DataError(f"Expected reviews named one of {', '.join(_ITEMS)}, got {name!r}.")
    return _parsed(fetch(_ITEMS[name], name))


def hashed_words(texts: Sequence[str], length: int, vocabulary: int = 10_000) -> NDArray[np.int64]:
    """Word numbers (len(texts), length): the last `length` words of each text, padded in front with 0 (as Keras does both).

    A row depends on its own text only. A vocabulary counted on private records would leak them; here a word's number is a
    hash of it, in 2 … vocabulary - 1, so different words may share one. No word is numbered 1. Words are lower-case runs of
    letters and digits; line breaks of HTML count as spaces. ValueError for length < 1 or vocabulary < 3.
    """
    if isinstance(texts, str):
        raise TypeError("Expected texts to be a sequence of strings, got one string.")
    length, vocabulary = check.integer("length", length), check.integer("vocabulary", vocabulary, minimum=3)

    @cache  # for speed: most words of a text are common ones
    def number(word: str) -> int:
        # Python's own hash of a string differs from run to run.
        return 2 + int.from_bytes(blake2b(word.encode(), digest_size=8).digest(), "big") % (vocabulary - 2)

    numbers = np.zeros((len(texts), length), dtype=np.int64)
    for row, text in zip(numbers, texts, strict=True):
        words = _WORD.findall(_BREAK.sub(" ", text.lower()))[-length:]
        row[length - len(words) :] = [number(word) for word in words]
    return numbers


def _parsed(path: Path) -> Reviews:
    """The labelled reviews in the archive at `path`, read in one pass and never unpacked; other members are skipped."""
    reviews: dict[str, list[tuple[int, bool, str]]] = {"train": [], "test": []}
    with tarfile.open(path, "r|gz") as archive:
        for member in archive:
            match = _MEMBER.fullmatch(member.name)
            # Only a plain file: a link would be followed to another member.
            if match and member.isfile() and (file := archive.extractfile(member)):
                split, folder, number = match.groups()
                reviews[split].append((int(number), folder == "pos", file.read().decode("utf-8")))
    return Reviews(*_columns(reviews["train"]), *_columns(reviews["test"]))


def _columns(records: list[tuple[int, bool, str]]) -> tuple[list[str], NDArray[np.uint8]]:
    records = sorted(records)
    return [text for _, _, text in records], np.array([label for _, label, _ in records], dtype=np.uint8)
