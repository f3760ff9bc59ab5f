"""What is kept of a record is no longer than its norm says, depends on that record alone, and stays absent where it was."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from dperm.objectives import LinearObjective, Logistic, Records

FEATURES = 5


def in_pieces(rows: np.ndarray, pieces: int, seed: int) -> Any:
    """The same rows as CSR whose entries are each given in so many pieces, in any order of columns."""
    rng = np.random.default_rng(seed)
    data, indices, ends = [], [], [0]
    for row in rows:
        columns = rng.permutation(np.repeat(np.flatnonzero(row), pieces))
        data += [row[column] / pieces for column in columns]
        indices += columns.tolist()
        ends.append(len(data))
    return sp.csr_matrix((np.array(data), np.array(indices, dtype=np.int32), np.array(ends, dtype=np.int32)), shape=rows.shape)


@pytest.mark.parametrize("pieces", [1, 2, 64])
def test_42_a_sparse_row_in_pieces_is_the_record_that_they_add_up_to(pieces: int) -> None:
    """Its norm, and how far it moves a sum that is bounded: pieces are powers of two, so that they add up without rounding."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(40, FEATURES)) * (rng.random((40, FEATURES)) < 0.6) * 10.0 ** rng.uniform(-2, 1, (40, 1))
    objective, targets = LinearObjective(Logistic(), FEATURES), np.ones(40)
    theta = rng.normal(size=FEATURES)
    (whole,) = objective.records(rows, targets).batches()
    table = in_pieces(rows, pieces, seed=1)
    table.has_canonical_format = True  # what the matrix says of itself is not asked
    (split,) = objective.records(table, targets).batches()
    assert np.array_equal(split.norms, whole.norms)
    assert np.array_equal(split.rows.toarray() * split.units[:, None], whole.rows * whole.units[:, None])
    bound = 0.1
    factors = bound / np.maximum(objective.per_example(theta, whole).norms, bound)
    wanted = objective.per_example(theta, whole).weighted_sum(factors, bound)
    assert np.array_equal(objective.per_example(theta, split).weighted_sum(factors, bound), wanted)


def test_42_no_sparse_row_is_longer_than_the_bound_however_many_entries_one_column_has() -> None:
    """Entries of one column add up: fifty of 1/√50, whose squares add up to 1, are a row of length √50."""
    objective = LinearObjective(Logistic(), 1)
    for count in (2, 50, 5000):
        table = sp.csr_matrix((np.full(count, count**-0.5), np.zeros(count, int), np.array([0, count])), shape=(1, 1))
        (batch,) = objective.records(table, np.ones(1)).batches()
        assert batch.norms[0] == pytest.approx(1.0, abs=1e-6)
        gradient = objective.per_example(np.zeros(1), batch).weighted_sum(np.full(1, 0.2), 0.1)
        assert gradient == pytest.approx([-0.1], rel=1e-4)
        assert abs(gradient[0]) <= 0.1


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("keep", [False, True])
def test_42_who_is_absent_is_absent_from_every_subset(sparse: bool, keep: bool) -> None:
    """Left out by hand, without a target, with an infinite weight, too long, or with no number in the row: each in a way of its
    own, and nobody else."""
    rng = np.random.default_rng(0)
    rows, targets = rng.normal(size=(12, FEATURES)), np.column_stack([np.ones(12), np.full(12, 0.5)])
    present = np.ones(12, dtype=bool)
    present[1], targets[3, 0], targets[4, 1], rows[6, 2], rows[7, 0], rows[9] = False, np.nan, np.inf, np.nan, np.inf, 1e200
    absent = np.isin(np.arange(12), [1, 3, 4, 6, 7, 9])
    records = Records(sp.csr_array(rows) if sparse else rows, targets, 1.0, 0.7, present=present, keep=keep)
    (batch,) = records.batches()
    assert np.array_equal(batch.norms == 0, absent)
    assert np.isfinite(batch.targets).all()
    for indices in (np.arange(12), np.array([1, 2]), np.array([5, 3, 1]), np.array([0, 2, 5]), np.array([4, 6, 7, 9])):
        for part in (records.subset(indices), records.subset(np.arange(12)).subset(indices)):
            (chosen,) = part.batches()
            assert np.array_equal(chosen.norms, batch.norms[indices])
            assert np.array_equal(chosen.norms == 0, absent[indices])
            assert not np.any(chosen.counted(np.ones(len(indices)))[absent[indices]])
            used = chosen.rows.toarray() if sparse else chosen.rows
            assert np.isfinite(used).all()
