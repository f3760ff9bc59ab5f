"""Image sets: MNIST and Fashion-MNIST, in the idx format, and CIFAR-10."""

from __future__ import annotations

import gzip
import hashlib
import lzma
import os
import tarfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dperm.data.sets.downloads import fetch
from dperm.data.untrusted_files import DataError

_ADDRESSES = {
    "mnist": "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "fashion_mnist": "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
}

#: Of the published files, which are gzip files.
_CHECKSUMS = {
    "mnist": {
        "train-images-idx3": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        "train-labels-idx1": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        "t10k-images-idx3": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        "t10k-labels-idx1": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
    },
    "fashion_mnist": {
        "train-images-idx3": "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
        "train-labels-idx1": "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
        "t10k-images-idx3": "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
        "t10k-labels-idx1": "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
    },
}

Bytes = NDArray[np.uint8]


@dataclass(frozen=True)
class Images:
    """Images and labels (n,), as bytes, for training and for testing: grey (n, height, width), coloured (n, 3, height, width)."""

    train_images: Bytes
    train_labels: Bytes
    test_images: Bytes
    test_labels: Bytes


def load_images(name: str) -> Images:
    """ "mnist", "fashion_mnist" or "cifar10", from the folder DPERM_DATA/name or the publisher. DataError where they are not to
    be had."""
    if name == "cifar10":
        return Images(*load_cifar10())
    if name not in _CHECKSUMS:
        raise DataError(f"Expected images named one of {', '.join(_CHECKSUMS)}, cifar10, got {name!r}.")
    arrays = [_read(_item(name, stem, checksum), name) for stem, checksum in _CHECKSUMS[name].items()]
    return Images(*arrays)


def _item(name: str, stem: str, checksum: str) -> dict[str, Any]:
    file = f"{stem}-ubyte.gz"
    return {"path": f"{name}/{file}", "url": _ADDRESSES[name] + file, "sha256": checksum, "raw_sha256": checksum}


def _read(item: dict[str, Any], name: str) -> Bytes:
    return _parsed(gzip.decompress(Path(fetch(item, name)).read_bytes()), item["path"])


def _parsed(content: bytes, path: str) -> Bytes:
    """The idx format: two zero bytes, the type (8: bytes), the number of axes, their lengths, the numbers."""
    if len(content) < 4 or content[:3] != b"\x00\x00\x08":
        raise DataError(f"{path} is not an idx file of bytes.")
    axes = content[3]
    shape = tuple(np.frombuffer(content, ">u4", axes, offset=4).astype(int))
    if len(content) != 4 + 4 * axes + int(np.prod(shape)):
        raise DataError(f"{path} is cut short or too long for its shape {shape}.")
    return np.frombuffer(content, np.uint8, offset=4 + 4 * axes).reshape(shape).copy()


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
    folder DPERM_DATA/cifar10, or from the publisher. DataError where they are not to be had.
    Archives differ by how they were packed; the files in them are known by their checksums."""
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
