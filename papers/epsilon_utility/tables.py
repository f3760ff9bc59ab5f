"""The paper's data: Adult, KDD Cup 99, Gisette, and a stand-in for Gisette, whose files are not to be had everywhere."""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import NDArray

from dperm.data import load, load_images
from dperm.data.sets.downloads import fetch

__all__ = ["TITLES", "table"]

Array = NDArray[np.float64]

TITLES = {
    "adult": "Adult", "kddcup99": "KDD Cup 99", "gisette": "Gisette", "mnist_4_9": "MNIST, fours against nines, 5,000 features",
}  # fmt: skip
_FEATURES = 5000
_PUBLISHER = "https://archive.ics.uci.edu/ml/machine-learning-databases/gisette/"
_GISETTE = {
    "gisette_train.data": "6d4c5e998afe67937b9e77a3334e03c85e545ebc65a6eb1333ffc14125cfc389",
    "gisette_train.labels": "42bd681fe51b161f033df773df14a0116e492676555ab14616c1b72edc054075",
    "gisette_valid.data": "5cea897956dd172a006132738254a27a8f61ecc1ceb6f5b20639c281d2942254",
    "gisette_valid.labels": "a6b857a0448023f033c4dda2ef848714b4be2ae45ce598d088fb3efb406e08c5",
}


@functools.cache
def table(name: str) -> tuple[Array, Array]:
    """Rows (n, d), at most 1 long, in a fixed random order, and signs (n,). DataError where files are not to be had."""
    if name == "gisette":
        rows, signs = _gisette()
    elif name == "mnist_4_9":
        rows, signs = _fours_and_nines()
    else:
        data = load(name)
        rows, signs = data.features.astype(float), np.where(data.targets == sorted(data.classes)[1], 1.0, -1.0)
    order = np.random.default_rng(0).permutation(len(signs))
    return rows[order] / np.sqrt((rows**2).sum(axis=1).max()), signs[order]


def _gisette() -> tuple[Array, Array]:
    """Training and validation sets, as the test set's labels were never published."""
    parts = {}
    for name, checksum in _GISETTE.items():
        folder = "" if "valid.labels" in name else "GISETTE/"
        item = {"path": f"gisette/{name}", "sha256": checksum, "raw_sha256": checksum, "url": f"{_PUBLISHER}{folder}{name}"}
        parts[name] = np.loadtxt(fetch(item, "gisette"))
    return np.vstack([parts["gisette_train.data"], parts["gisette_valid.data"]]), np.concatenate(
        [parts["gisette_train.labels"], parts["gisette_valid.labels"]]
    )


def _fours_and_nines() -> tuple[Array, Array]:
    """The digits that Gisette was made of, and the construction: pixels, and products of two of them, drawn once."""
    images = load_images("mnist")
    chosen = np.isin(images.train_labels, (4, 9))
    pixels = images.train_images[chosen].reshape(int(chosen.sum()), -1) / 255.0
    used = np.flatnonzero(pixels.max(axis=0) > 0)
    first, second = np.random.default_rng(1).choice(used, (2, _FEATURES - len(used)))
    return np.hstack([pixels[:, used], pixels[:, first] * pixels[:, second]]), np.where(
        images.train_labels[chosen] == 9, 1.0, -1.0
    )
