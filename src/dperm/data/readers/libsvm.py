"""Files of libsvm: a target and the features that are not 0, by their indices, in each line."""

from __future__ import annotations

import io
from pathlib import Path
from typing import ClassVar

from dperm.data.decoding import read_bytes
from dperm.data.file_reader import ArrayReader, Arrays
from dperm.data.untrusted_files import DataError, Limits


class Libsvm(ArrayReader):
    """Sparse features and targets, also compressed. Indices that are not stated are from 0 or 1 to the largest of any record."""

    title, endings = "libsvm", (".libsvm", ".svm", ".svmlight")
    first_line: ClassVar[bytes] = rb"[+-]?[\d.eE+-]+(,[\d.eE+-]+)*(\s+\d+:[^\s:]+)+\s*(#.*)?"
    takes_indices: ClassVar[bool] = True

    def read(self, path: Path, target: str | None, indices: tuple[int, int] | None) -> Arrays:
        from sklearn.datasets import load_svmlight_file

        if indices is not None and not 0 <= indices[0] <= indices[1]:
            raise DataError(
                f"Cannot read {path}: expected indices from 0 or more to as many or more, got {indices[0]} to {indices[1]}."
            )
        if indices is not None:
            Limits.current().refuse_features(indices[1])
        raw = read_bytes(path)
        Limits.current().refuse_cells(raw.count(b":"), path.stat().st_size, 0)
        features, targets = load_svmlight_file(io.BytesIO(raw), zero_based=True)
        Limits.current().refuse_features(features.shape[1] - 1)
        if indices is None:
            first = 0 if features[:, :1].nnz else 1
            return Arrays(features[:, first:], targets, (first, features.shape[1] - 1))
        first, last = indices
        if features.shape[1] > last + 1 or features[:, :first].nnz:
            raise DataError(f"Cannot read {path}: expected indices from {first} to {last}, got others.")
        features.resize(features.shape[0], last + 1)
        return Arrays(features[:, first:], targets, indices, indices_stated=True)
