"""CIFAR-10 in its binary form: an archive of files of records, each a label and three planes of 32 × 32 pixels.

Archives differ by how they were packed; the files in them are known by their checksums.
"""

from __future__ import annotations

import hashlib
import lzma
import os
import tarfile
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dperm.data.dataset import DataError
from dperm.data.fetch import fetch

Bytes = NDArray[np.uint8]

_FOLDER = "cifar-10-batches-bin"
_ARCHIVE_SHA256 = "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"
_PUBLISHED = {
    "path": "cifar10/cifar-10-binary.tar.gz",
    "url": "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
    "sha256": _ARCHIVE_SHA256,
    "raw_sha256": _ARCHIVE_SHA256,
}

#: Of the published files, whatever archive they come in; the last is for testing.
_BATCHES = {
    "data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
    "data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
    "data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
    "data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
    "data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
    "test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
}

_SHAPE = (3, 32, 32)
_RECORD = 1 + int(np.prod(_SHAPE))


def load_cifar10() -> tuple[Bytes, Bytes, Bytes, Bytes]:
    """Images (n, 3, 32, 32) and labels (n,) for training, and the same for testing, from an archive of any compression in the
    folder DPERM_DATA/cifar10, or from the publisher. DataError where they are not to be had."""
    path = _local() or fetch(_PUBLISHED, "cifar10")
    try:
        with tarfile.open(path) as archive:
            parts = [_records(archive, f"{_FOLDER}/{name}", checksum) for name, checksum in _BATCHES.items()]
    except (tarfile.TarError, EOFError, OSError, lzma.LZMAError, zlib.error) as error:
        raise DataError(f"{path} is no archive, or a damaged one: {error}.") from error
    test_images, test_labels = parts.pop()
    images, labels = (np.concatenate(part) for part in zip(*parts, strict=True))
    return images, labels, test_images, test_labels


def _local() -> Path | None:
    folder = os.environ.get("DPERM_DATA")
    return next(iter(sorted(Path(folder, "cifar10").glob("cifar-10-*.tar.*"))), None) if folder else None


def _records(archive: tarfile.TarFile, path: str, checksum: str) -> tuple[Bytes, Bytes]:
    try:
        member = archive.extractfile(path)
    except KeyError:
        member = None
    if member is None:
        raise DataError(f"{archive.name} holds no file {path}.")
    content = member.read()
    if (actual := hashlib.sha256(content).hexdigest()) != checksum:
        raise DataError(
            f"{path} in {archive.name} is not the published file: its sha256 is {actual[:12]}…, not {checksum[:12]}…."
        )
    records = np.frombuffer(content, np.uint8).reshape(-1, _RECORD)
    return records[:, 1:].reshape(-1, *_SHAPE).copy(), records[:, 0].copy()
