"""The settings of a study, and what tells its results from those of others."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import Any

import numpy as np
from scipy.sparse import issparse

from dperm import _validate as check
from dperm.data import Dataset
from dperm.report.candidates import CANDIDATES, USUAL

_HASHED = 1 << 12  # rows at once


@dataclass(frozen=True)
class Study:
    """What is compared. The test share is held out at random, anew each repeat; nothing is tuned on it. `boosting`: whether
    gradient boosting without privacy stands beside, which takes longer than the others."""

    epsilons: tuple[float, ...] = (0.1, 0.3, 1.0, 3.0, 10.0)
    delta: float = 1e-5
    mechanisms: tuple[str, ...] = USUAL
    repeats: int = 10
    test_share: float = 0.2
    data_norm: float = 1.0
    intercept_scale: float = 0.5
    relation: str = "add_or_remove_one"
    seed: int | None = None
    boosting: bool = True

    def __post_init__(self) -> None:
        for epsilon in self.epsilons:
            check.positive("epsilon", epsilon)
        if not self.epsilons:
            raise ValueError("Expected at least one epsilon.")
        check.fraction("delta", self.delta)
        check.integer("repeats", self.repeats)
        check.fraction("test_share", self.test_share)
        check.positive("data_norm", self.data_norm)
        for key in self.mechanisms:
            check.choice("mechanism", key, CANDIDATES)


def key_of(dataset: Dataset, study: Study) -> str:
    """A digest of what a result depends on, beside its mechanism, ε and repeat: the records, the settings, the version."""
    rows = dataset.features.tocsr() if issparse(dataset.features) else dataset.features
    held: list[Any] = [rows.data, rows.indices, rows.indptr] if issparse(rows) else [rows]
    digest = hashlib.sha256()
    for array in map(np.asarray, [*held, dataset.targets, () if dataset.groups is None else dataset.groups]):
        values = array.astype(str) if array.dtype == object else array
        digest.update(f"{values.dtype} {values.shape} ".encode())
        for start in range(0, len(values), _HASHED):
            digest.update(values[start : start + _HASHED].tobytes())
    public = (
        dataset.name,
        dataset.classes,
        dataset.target_range,
        dataset.unit.max_rows,
        dataset.neighbours,
        dataset.read_off,
        *(("answers in ranks",) if dataset.ordered else ()),  # results of an earlier version judged the likeliest class
    )
    settings = replace(
        study, epsilons=(1.0,), mechanisms=(), repeats=1, boosting=True
    )  # of these, results are told apart one by one
    digest.update(repr((version("dperm"), public, settings)).encode())
    return digest.hexdigest()
