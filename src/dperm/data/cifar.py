"""CIFAR-10 in its binary form: an archive of files of records, each a label and three planes of 32 × 32 pixels."""

from __future__ import annotations

import tarfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dperm.data.read import DataError

__all__ = ["CIFAR10", "read_cifar10"]

Bytes = NDArray[np.uint8]

_SHA256 = "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"

#: The published archive, as `fetch` knows it.
CIFAR10 = {
    "path": "cifar10/cifar-10-binary.tar.gz",
    "url": "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
    "sha256": _SHA256,
    "raw_sha256": _SHA256,
}

_SHAPE = (3, 32, 32)
_RECORD = 1 + int(np.prod(_SHAPE))


def read_cifar10(path: Path) -> tuple[Bytes, Bytes, Bytes, Bytes]:
    """Images (n, 3, 32, 32) and labels (n,) for training, and the same for testing. DataError where the archive has others."""
    with tarfile.open(path) as archive:
        batches = [_records(archive, f"data_batch_{number}.bin") for number in range(1, 6)]
        test_images, test_labels = _records(archive, "test_batch.bin")
    images, labels = (np.concatenate(parts) for parts in zip(*batches, strict=True))
    return images, labels, test_images, test_labels


def _records(archive: tarfile.TarFile, name: str) -> tuple[Bytes, Bytes]:
    path = f"cifar-10-batches-bin/{name}"
    try:
        member = archive.extractfile(path)
    except KeyError:
        member = None
    if member is None:
        raise DataError(f"{archive.name} holds no file {path}.")
    content = np.frombuffer(member.read(), np.uint8)
    if len(content) % _RECORD:
        raise DataError(f"{path} is not made of records of {_RECORD} bytes.")
    records = content.reshape(-1, _RECORD)
    return records[:, 1:].reshape(-1, *_SHAPE), records[:, 0].copy()
