"""Images in the idx format, by checksum."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dperm.data import DataError, load_images
from dperm.data.images import _parsed


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
    with pytest.raises(DataError, match="mnist, fashion_mnist"):
        load_images("cats")


def test_damaged_idx_files() -> None:
    good = b"\x00\x00\x08\x02" + b"\x00\x00\x00\x02\x00\x00\x00\x03" + bytes(range(6))
    assert _parsed(good, "x").tolist() == [[0, 1, 2], [3, 4, 5]]
    for bad in (good[:-1], good + b"1", b"\x00\x01" + good, b""):
        with pytest.raises(DataError, match="x is"):
            _parsed(bad, "x")
