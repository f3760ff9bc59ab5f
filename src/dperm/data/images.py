"""Image sets: MNIST and Fashion-MNIST, in the idx format, and CIFAR-10."""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dperm.data.cifar import load_cifar10
from dperm.data.dataset import DataError
from dperm.data.fetch import fetch

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
