"""Images in the idx format and CIFAR-10's, by checksum."""

from __future__ import annotations

import hashlib
import io
import tarfile
from pathlib import Path

import numpy as np
import pytest

from dperm.data import DataError, load_images
from dperm.data.sets import images as cifar
from dperm.data.sets.images import _parsed


@pytest.mark.parametrize(("name", "first"), [("mnist", 5), ("fashion_mnist", 9)])
def test_published_images(data_folder: Path, name: str, first: int) -> None:
    found = load_images(name)
    assert found.train_images.shape == (60_000, 28, 28) and found.test_images.shape == (10_000, 28, 28)
    assert found.train_labels[0] == first and set(found.test_labels.tolist()) == set(range(10))
    assert found.train_images.dtype == np.uint8 and found.train_images.max() == 255


def test_another_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPERM_DATA", str(tmp_path))
    (tmp_path / "mnist").mkdir()
    (tmp_path / "mnist" / "train-images-idx3-ubyte.gz").write_bytes(b"other")
    with pytest.raises(DataError, match="not the file"):
        load_images("mnist")
    with pytest.raises(DataError, match="mnist, fashion_mnist, cifar10"):
        load_images("cats")


def test_damaged_idx_files() -> None:
    good = b"\x00\x00\x08\x02" + b"\x00\x00\x00\x02\x00\x00\x00\x03" + bytes(range(6))
    assert _parsed(good, "x").tolist() == [[0, 1, 2], [3, 4, 5]]
    for bad in (good[:-1], good + b"1", b"\x00\x01" + good, b""):
        with pytest.raises(DataError, match="x is"):
            _parsed(bad, "x")


FILES = list(cifar._BATCHES)


def archive(
    folder: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, bytes], packed: str = "cifar-10-binary.tar.gz"
) -> None:
    """These files where CIFAR-10's archive belongs, and their checksums for the published ones."""
    path = folder / "cifar10" / packed
    path.parent.mkdir(parents=True)
    with tarfile.open(path, f"w:{path.suffix[1:]}") as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    monkeypatch.setenv("DPERM_DATA", str(folder))
    for name, content in files.items():
        monkeypatch.setitem(cifar._BATCHES, name, hashlib.sha256(content).hexdigest())


def record(label: int) -> bytes:
    return bytes([label]) + b"".join(bytes((plane + pixel) % 256 for pixel in range(1024)) for plane in (10, 20, 30))


@pytest.mark.parametrize("packed", ["cifar-10-binary.tar.gz", "cifar-10-batches-bin.tar.xz"])
def test_cifar10_is_planes_of_red_green_and_blue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packed: str) -> None:
    """The layout that the publisher documents: a label, then 1024 bytes of each colour, row by row."""
    archive(tmp_path, monkeypatch, {name: record(place) + record(9) for place, name in enumerate(FILES)}, packed)
    found = load_images("cifar10")
    assert found.train_images.shape == (10, 3, 32, 32) and found.test_images.shape == (2, 3, 32, 32)
    assert found.train_images.dtype == np.uint8
    assert found.train_labels.tolist() == [0, 9, 1, 9, 2, 9, 3, 9, 4, 9] and found.test_labels.tolist() == [5, 9]
    assert found.test_images[0, :, 0, 1].tolist() == [11, 21, 31] and found.test_images[0, :, 1, 0].tolist() == [42, 52, 62]


def test_another_archive_of_cifar10(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = dict.fromkeys(FILES, record(1))
    archive(tmp_path / "one", monkeypatch, files)
    monkeypatch.setitem(cifar._BATCHES, FILES[2], hashlib.sha256(record(2)).hexdigest())
    with pytest.raises(DataError, match=r"data_batch_3\.bin in .* is not the published file"):
        load_images("cifar10")
    del files["test_batch.bin"]
    archive(tmp_path / "two", monkeypatch, files)
    with pytest.raises(DataError, match=r"holds no file cifar-10-batches-bin/test_batch\.bin"):
        load_images("cifar10")


@pytest.mark.slow
def test_published_cifar10(data_folder: Path) -> None:
    found = load_images("cifar10")
    assert found.train_images.shape == (50_000, 3, 32, 32) and found.test_images.shape == (10_000, 3, 32, 32)
    assert np.bincount(found.train_labels).tolist() == [5000] * 10 and np.bincount(found.test_labels).tolist() == [1000] * 10
