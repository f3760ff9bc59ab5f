"""What is kept of a record is no longer than its norm says, depends on that record alone, and stays absent where it was."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from dperm.objectives import LinearObjective, Logistic, Records
from dperm.objectives.records import EXACT_ROWS, Batch

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
def test_a_sparse_row_in_pieces_is_the_record_that_they_add_up_to(pieces: int) -> None:
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


def test_no_sparse_row_is_longer_than_the_bound_however_many_entries_one_column_has() -> None:
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
def test_who_is_absent_is_absent_from_every_subset(sparse: bool, keep: bool) -> None:
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


def dense(rows: Any) -> np.ndarray:
    return rows.toarray() if sp.issparse(rows) else np.asarray(rows)


STORAGES = [(False, False), (False, True), (True, True)]  # sparse, kept in units


@pytest.mark.parametrize("constant", [0.0, 0.7])
@pytest.mark.parametrize(("sparse", "keep"), STORAGES)
def test_norms_bound_the_rows_that_are_used_and_no_row_is_cut_by_more_than_its_digits(
    sparse: bool, keep: bool, constant: float
) -> None:
    """In exact arithmetic, of rows of all lengths: a row is used as long as it is, or as the bound where it is longer, but for 21
    binary digits of that; its norm, with the constant feature, is no less than that, and more by less than a billionth."""
    rng, data_norm = np.random.default_rng(0), 1.5
    rows = rng.normal(size=(90, FEATURES)) * (rng.random((90, FEATURES)) < 0.7) * 10.0 ** rng.uniform(-30, 20, (90, 1))
    rows[:30] = rng.normal(size=(30, FEATURES)) * rng.uniform(0.1, 2, (30, 1))
    rows[3], rows[4], rows[5] = 0.0, [0.0, 0.0, 1.5, 0.0, 0.0], [-1.5, 0.0, 0.0, 0.0, 0.0]
    records = Records(sp.csr_array(rows) if sparse else rows, np.ones(90), data_norm, constant, keep=keep)
    (batch,) = records.batches()
    table = dense(batch.rows)
    assert np.array_equal(table, np.trunc(table))
    assert np.all(np.linalg.norm(table, axis=1) < 2.0**21)
    assert np.array_equal(batch.counted(np.ones(90)), np.ones(90))  # a row of zeros is there too
    assert np.array_equal(np.frexp(batch.units)[0], np.full(90, 0.5))
    (tiny,) = Records(1e-150 * records.rows[:30], np.ones(30), data_norm, constant, keep=keep).batches()
    assert not dense(tiny.rows).any()  # lengths whose squares doubles do not hold well count as 0
    assert tiny.units.min() > 1e-150
    for row, used, unit, norm in zip(rows, table, batch.units, batch.norms, strict=True):
        length = sum(Fraction(number) ** 2 for number in row.tolist())
        kept = [Fraction(number) * Fraction(unit) for number in used.tolist()]
        square = sum(number**2 for number in kept)
        assert square <= Fraction(data_norm) ** 2
        whole = square + Fraction(constant) ** 2
        assert whole <= Fraction(norm) ** 2
        assert Fraction(norm) ** 2 <= whole * (1 + Fraction(1, 10**9)) + Fraction(1, 10**390)
        share = min(1.0, data_norm / max(float(length) ** 0.5, 1e-300))
        assert np.abs([float(number) for number in kept] - share * row).max() <= 2.0**-19.9 * share * np.linalg.norm(row)


def readings(records: Records, order: np.ndarray) -> Iterator[tuple[np.ndarray, Batch]]:
    """All ways to read records, each batch with the numbers of its records; a batch may be valid until the next is asked for."""
    for read in (records.batches, records.in_turn, lambda: next(iter(records.stream([None])))):
        start = 0
        for batch in read():
            part = np.arange(start, start + len(batch.units))
            start += len(part)
            yield part, batch
        assert start == len(records)
    for drawn in (order, order[:EXACT_ROWS], order[: EXACT_ROWS + 1], order[:5], order[:0]):
        start = 0
        for batch in next(iter(records.stream([drawn]))):
            part = drawn[start : start + len(batch.units)]
            start += len(part)
            yield part, batch
        assert start == len(drawn)
    seen = np.random.default_rng(1).random((3, len(records))) < 0.5
    start = 0
    for batch in next(iter(records.stream([seen]))):
        part = np.arange(start, start + len(batch.units))
        start += len(part)
        assert np.array_equal(batch.included, seen[:, part])
        yield part, batch
    assert start == len(records)


@pytest.mark.parametrize("weighed", [False, True])
@pytest.mark.parametrize(("sparse", "keep"), STORAGES)
def test_a_record_is_the_same_however_it_is_read(sparse: bool, keep: bool, weighed: bool) -> None:
    """Alone, among all, and among those that are drawn, in batches that sums are exact in: row, norm, target and weight."""
    rng, size = np.random.default_rng(0), EXACT_ROWS + 700
    rows = rng.normal(size=(size, 2)) * rng.uniform(0.1, 1, (size, 1))
    targets = np.where(rng.random(size) < 0.5, 1.0, -1.0)
    rows[7, 0] = np.nan
    given = np.column_stack([targets, rng.random(size)]) if weighed else targets
    records = Records(sp.csr_array(rows) if sparse else rows, given, 1.0, 0.3, keep=keep)
    assert (len(records), records.weighed) == (size, weighed)
    alone = records.subset(np.arange(size))
    expected = [np.concatenate(parts) for parts in zip(*((b.norms, b.units, b.targets) for b in alone.batches()), strict=True)]
    wanted = np.concatenate([dense(batch.rows) for batch in alone.batches()])
    there = np.arange(size) != 7
    assert np.allclose(
        (wanted * expected[1][:, None])[there],
        (rows * np.minimum(1, 1 / np.linalg.norm(rows, axis=1))[:, None])[there],
        atol=1e-6,
    )
    assert np.array_equal(expected[2][there], given[there])
    for part, batch in readings(records, rng.permutation(size)):
        assert len(part) <= EXACT_ROWS
        assert np.array_equal(dense(batch.rows), wanted[part])
        for found, whole in zip((batch.norms, batch.units, batch.targets), expected, strict=True):
            assert np.array_equal(found, whole[part])
        assert np.array_equal(batch.counted(np.full(len(part), 2.0)), np.where(part == 7, 0.0, 2.0))
    for other in (records.relabelled(-given), records.admitted(np.negative)):
        for part, batch in readings(other, rng.permutation(size)):
            assert np.array_equal(batch.targets[part != 7], -given[part[part != 7]])
            assert np.array_equal(batch.norms, expected[0][part])
    for number in (1, -1):
        for part, batch in readings(records.one_against_rest(number), np.arange(size)):
            label = batch.targets[:, 0] if weighed else batch.targets
            assert np.array_equal(label[part != 7], np.where(targets == number, 1.0, -1.0)[part[part != 7]])
            if weighed:
                assert np.array_equal(batch.targets[:, 1][part != 7], given[part[part != 7], 1])


@pytest.mark.parametrize(("sparse", "keep"), STORAGES)
def test_the_place_of_a_record_is_its_largest_feature_of_those_asked_about(sparse: bool, keep: bool) -> None:
    rows = np.array([[0.1, 0.5, 0.9], [0.5, 0.1, 0.0], [0.3, 0.3, 0.0], [-0.4, 0.0, 0.9], [0.0, 0.0, 0.0], [np.nan, 0.4, 0.1]])
    records = Records(sp.csr_array(rows) if sparse else rows, np.ones(6), 1.0, keep=keep)
    assert records.places([0, 1]).tolist() == [1, 0, 0, -1, -1, -1]
    assert records.places([1, 0]).tolist() == [0, 1, 0, -1, -1, -1]
    assert records.places([2]).tolist() == [0, -1, -1, 0, -1, -1]
    assert records.subset(np.arange(0)).places([0]).tolist() == []
    little = np.array([[1.0, 2.0**-20, 2.0**-23]])  # of 21 digits it has a last one, and nothing beyond
    records = Records(sp.csr_array(little) if sparse else little, np.ones(1), 1.0, keep=keep)
    assert [records.places([column]).tolist() for column in (1, 2)] == [[0], [-1]]


def test_sparse_rows_whose_arrays_do_not_fit_together_are_refused() -> None:
    """They would read beyond the matrix: a column that it does not have, a row that ends before it begins, and more entries than
    there are."""
    for change, value in (("indices", 99), ("indices", -1), ("indptr", 5)):
        table = sp.csr_array(np.eye(4, FEATURES))
        getattr(table, change)[1] = value
        with pytest.raises(ValueError):
            Records(table, np.ones(4), 1.0)


def test_targets_of_another_shape_and_parts_of_rows_that_are_gone_are_refused() -> None:
    records = Records(np.eye(4, FEATURES), np.ones(4), 1.0)
    with pytest.raises(ValueError, match="Expected targets of shape"):
        records.relabelled(np.ones((4, 2)))
    for shape in ((4, 3), (3,), (3, 2), (2, 4)):
        with pytest.raises(ValueError):
            Records(np.eye(4, FEATURES), np.ones(shape), 1.0)
    records.forget_table()
    assert [len(batch.units) for batch in records.batches()] == [4]
    with pytest.raises(TypeError, match="let go of it"):
        records.subset(np.arange(2))
    read_again = Records(np.eye(4, FEATURES), np.ones(4), 1.0, keep=False)
    read_again.forget_table()  # it has no others
    assert len(read_again.subset(np.arange(2))) == 2
