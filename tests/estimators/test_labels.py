"""Label sets: the same whether labels are looked at at once or some at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dperm.estimators import records as labels
from dperm.estimators.records import admit_labels
from dperm.objectives import LinearObjective, Logistic


@pytest.mark.parametrize("y", [["b", "a", "c", "a"] * 25, [3, 1, 1, 7] * 25, [True, False] * 50, [2.0, 1.0] * 50])
def test_labels_in_parts_are_those_of_the_whole(y: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    whole = admit_labels(np.array(y), None)
    monkeypatch.setattr(labels, "_AT_ONCE", 7)
    known, index, said = admit_labels(np.array(y), None)
    assert np.array_equal(known, whole[0])
    assert known.dtype == whole[0].dtype
    assert said == whole[2]
    assert np.array_equal(index, whole[1]) and np.array_equal(known[index], y)
    with pytest.raises(ValueError, match="among classes"):
        admit_labels(np.array(y), known[1:])
    with pytest.raises(ValueError, match="continuous"):
        admit_labels(np.append(np.zeros(90), 0.5), None)


def test_indices_are_as_wide_as_they_need_be() -> None:
    for count in (2, 127, 128, 129, 1000):
        known, index, _ = admit_labels(np.arange(count)[::-1].repeat(2), None)
        assert np.array_equal(known[index], np.arange(count)[::-1].repeat(2))
        assert index.dtype.itemsize == (1 if count <= 128 else 2)


def test_two_classes_take_a_byte_a_record_and_count_in_doubles() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.uniform(-1, 1, (300, 4)), rng.choice(["no", "yes"], 300)
    objective = LinearObjective(Logistic(), 4, data_norm=2.0)
    signs = np.where(y == "yes", 1, -1)
    small, wide = objective.records(x, signs.astype(np.int8)), objective.records(x, signs.astype(np.float64))
    assert small.targets.nbytes == 300 and wide.targets.nbytes == 2400
    theta = rng.normal(size=4)
    for one, other in zip(
        objective.evaluate(theta, small, hessian=True), objective.evaluate(theta, wide, hessian=True), strict=True
    ):
        assert np.array_equal(one, other)
    assert next(iter(small.batches())).targets.dtype == np.float64
