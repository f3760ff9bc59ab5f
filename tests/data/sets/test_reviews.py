"""Reviews from an archive, by checksum, and texts as hashed words."""

from __future__ import annotations

import hashlib
import io
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dperm.data import DataError, hashed_words, load_reviews
from dperm.data.sets.reviews import _ITEMS

# Out of order, and 10 before 9 as text: the order of the records must come from the numbers.
TEXTS = {
    "aclImdb/train/pos/10_7.txt": "tenth, good",
    "aclImdb/train/pos/9_10.txt": "ninth, good",
    "aclImdb/train/neg/10_1.txt": "tenth, bad",
    "aclImdb/train/neg/9_4.txt": "ninth, bad: café",
    "aclImdb/test/pos/0_8.txt": "test, good",
    "aclImdb/test/neg/0_2.txt": "test, bad",
}
OTHERS = {
    "aclImdb/train/unsup/0_0.txt": "no label",
    "aclImdb/train/labeledBow.feat": "9 0:9 1:1",
    "aclImdb/train/pos/../neg/1_1.txt": "a way around",
    "../aclImdb/train/pos/2_9.txt": "above",
    "/aclImdb/train/pos/3_9.txt": "at the root",
    "aclImdb/train/pos/4_9.txt.bak": "a copy",
    "aclImdb/train/pos/٥_9.txt": "not an ASCII digit",
    "aclImdb/README": "about",
}


def archive_at(path: Path) -> str:
    """Writes a small archive laid out as the publisher's, with members to be skipped; its sha256."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as archive:
        folder = tarfile.TarInfo("aclImdb/train/pos")
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)
        for name, text in (OTHERS | TEXTS).items():
            member = tarfile.TarInfo(name)
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))
        for number, kind in enumerate([tarfile.SYMTYPE, tarfile.LNKTYPE]):
            link = tarfile.TarInfo(f"aclImdb/train/pos/{number}_9.txt")
            link.type, link.linkname = kind, "aclImdb/README"
            archive.addfile(link)
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("DPERM_DATA", str(tmp_path))
    return archive_at(tmp_path / "imdb" / "aclImdb_labeled.tar.gz")


def check_the_records() -> None:
    found = load_reviews()
    assert found.train_texts == ["ninth, bad: café", "ninth, good", "tenth, bad", "tenth, good"]
    assert found.test_texts == ["test, bad", "test, good"]
    assert found.train_labels.tolist() == [0, 1, 0, 1] and found.test_labels.tolist() == [0, 1]
    assert found.train_labels.dtype == found.test_labels.dtype == np.uint8
    assert repr(found) == "Reviews(4 for training, 2 for testing)"  # and not the texts


@pytest.mark.parametrize("kind", ["sha256", "raw_sha256"])
def test_the_labelled_records_come_in_order_from_either_archive(local: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(_ITEMS["imdb"], kind, local)
    check_the_records()


@pytest.mark.usefixtures("local")
def test_another_archive_is_refused() -> None:
    with pytest.raises(DataError, match="not the file that 'imdb' needs"):
        load_reviews("imdb")
    with pytest.raises(DataError, match="one of imdb, got 'yelp'"):
        load_reviews("yelp")


def test_the_publishers_archive_is_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pooch

    asked: list[str] = []
    path = tmp_path / "aclImdb_v1.tar.gz"
    checksum = archive_at(path)

    def retrieve(url: str, **_: Any) -> str:
        asked.append(url)
        return str(path)

    monkeypatch.delenv("DPERM_DATA", raising=False)
    monkeypatch.setattr(pooch, "retrieve", retrieve)
    with pytest.raises(DataError, match="is not the published one"):
        load_reviews()
    monkeypatch.setitem(_ITEMS["imdb"], "raw_sha256", checksum)
    check_the_records()
    assert set(asked) == {"https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz"}


def test_a_failed_download_names_the_file_to_supply(monkeypatch: pytest.MonkeyPatch) -> None:
    import pooch

    def fail(*_: Any, **__: Any) -> None:
        raise ConnectionError

    monkeypatch.delenv("DPERM_DATA", raising=False)
    monkeypatch.setattr(pooch, "retrieve", fail)
    with pytest.raises(DataError, match=r"Cannot download 'imdb'.*imdb/aclImdb_labeled\.tar\.gz.*set DPERM_DATA"):
        load_reviews()


def test_published_reviews(data_folder: Path) -> None:
    """The totals that the MTEB benchmark publishes for this set: characters and distinct texts of each half."""
    if not (data_folder / "imdb" / "aclImdb_labeled.tar.gz").is_file():
        pytest.skip("the film reviews are not here; set DPERM_DATA to a folder with imdb/aclImdb_labeled.tar.gz")
    found = load_reviews()
    for texts, labels, characters, distinct in (
        (found.train_texts, found.train_labels, 33_126_741, 24_904),
        (found.test_texts, found.test_labels, 32_344_810, 24_801),
    ):
        assert (len(texts), sum(map(len, texts)), len(set(texts))) == (25_000, characters, distinct)
        assert np.array_equal(labels, np.tile([0, 1], 12_500))
    assert len(set(found.train_texts) & set(found.test_texts)) == 123
    assert found.train_texts[1].startswith("Bromwell High is a cartoon comedy.")
    rows = hashed_words(found.train_texts[:1000], 80)
    assert rows.min() == 0
    assert rows.max() < 10_000
    assert np.all(rows[:, -1] >= 2)


def test_word_numbers_never_change() -> None:
    # By hand: 2 + the first 8 bytes of BLAKE2b, big-endian, modulo 9998.
    expected = [2 + int(hashlib.blake2b(word, digest_size=8).hexdigest(), 16) % 9_998 for word in (b"a", b"great", b"film")]
    assert hashed_words(["A great film"], 3).tolist() == [expected] == [[2513, 4582, 7283]]


def test_words() -> None:
    plain = hashed_words(["it's great 10 10 café"], 6)
    assert np.array_equal(hashed_words(["It's<br /><br/>_GREAT_ (10/10)... 'CAFÉ'!"], 6), plain)
    assert len(set(plain[0].tolist())) == 5  # the padding, and 10 once
    assert not np.array_equal(hashed_words(["it s great 10 10 café"], 6), plain)


def test_the_last_words_are_kept_and_the_padding_is_in_front() -> None:
    one, two, three = hashed_words(["one two three"], 3)[0]
    assert hashed_words(["one two three", "three", "", " ... "], 2).tolist() == [[two, three], [0, three], [0, 0], [0, 0]]
    assert hashed_words(["one two three"], 5).tolist() == [[0, 0, one, two, three]]
    assert hashed_words([], 4).shape == (0, 4) and hashed_words([], 4).dtype == np.int64


def test_a_row_depends_on_its_own_text_only() -> None:
    rng = np.random.default_rng(0)
    texts = [" ".join(f"w{i}" for i in rng.integers(0, 500, size=rng.integers(0, 30))) for _ in range(50)]
    together = hashed_words(texts, 20)
    assert np.array_equal(together, np.vstack([hashed_words([text], 20) for text in texts]))
    order = rng.permutation(50)
    assert np.array_equal(hashed_words([texts[i] for i in order], 20), together[order])


def test_numbers_stay_inside_the_vocabulary() -> None:
    texts = [" ".join(f"w{i}" for i in range(200))]
    assert set(hashed_words(texts, 200, vocabulary=7)[0].tolist()) == {2, 3, 4, 5, 6}
    assert set(hashed_words(texts, 200, vocabulary=3)[0].tolist()) == {2}


def test_wrong_arguments() -> None:
    with pytest.raises(TypeError, match="got one string"):
        hashed_words("a great film", 3)
    with pytest.raises(ValueError, match="length >= 1, got 0"):
        hashed_words(["a"], 0)
    with pytest.raises(ValueError, match="vocabulary >= 3, got 2"):
        hashed_words(["a"], 3, vocabulary=2)
