"""Sums of weighted outer products: exact in any order, no row longer than its bound, and moved by no more than is stated."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import dperm.mechanisms.preconditioned as preconditioned
import dperm.mechanisms.second_moments as module
from dperm.objectives import LinearObjective, Records, Squared
from dperm.objectives.parts import exact_total
from dperm.privacy import Relation
from dperm.release.grid import power_below

RNG = np.random.default_rng(0)
REPLACE = Relation.REPLACE_ONE


def squared_counts(objective: LinearObjective) -> Any:
    return functools.partial(preconditioned._counts, objective)


def gram_of(objective: LinearObjective, records: Records) -> np.ndarray:
    return module.upper_triangle(objective, records, squared_counts(objective))


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("intercept", [0.0, 0.5])
def test_the_gram_matrix_is_exact_in_any_order_and_no_row_is_longer(sparse: bool, intercept: float) -> None:
    rows = RNG.normal(size=(500, 4)) * np.geomspace(1e-6, 1e6, 500)[:, None]
    rows[::7] = 0
    rows[3] = np.nan
    objective = LinearObjective(Squared(1.0), 4, intercept_scale=intercept)

    def gram(table: np.ndarray) -> np.ndarray:
        given = sp.csr_array(table) if sparse else table
        with np.errstate(invalid="ignore"):
            return gram_of(objective, objective.records(given, np.ones(len(table))))

    whole = gram(rows)
    assert np.array_equal(whole, gram(rows[::-1]))
    assert whole == pytest.approx(gram(rows[:200]) + gram(rows[200:]), rel=1e-14, abs=1e-14)  # √2 is rounded
    for row in rows[::50]:
        assert np.linalg.norm(gram(row[None])) <= objective.row_norm**2
    scaled = np.nan_to_num(rows) / np.maximum(1, np.linalg.norm(np.nan_to_num(rows), axis=1))[:, None]
    constant = np.where(np.isnan(rows).any(axis=1), 0.0, intercept)
    full = np.column_stack([scaled, constant]) if intercept else scaled
    mine = (full.T @ full) * (np.sqrt(2) - (np.sqrt(2) - 1) * np.eye(full.shape[1]))
    assert whole == pytest.approx(mine[np.triu_indices(full.shape[1])], abs=500 * 2.0**-17)


@pytest.mark.parametrize("intercept", [0.0, 1.2])
def test_gram_sums_of_full_batches_of_the_longest_rows_are_exact(intercept: float) -> None:
    bound = 1.9999  # just below a power of two: rows have the most digits that they may
    objective = LinearObjective(Squared(1.0), 1, data_norm=bound, intercept_scale=intercept)
    rows = bound * (1 - 1e-6 * np.random.default_rng(0).random((20_001, 1)))
    records = objective.records(rows, np.zeros(len(rows)))
    unit = 2 * power_below(objective.row_norm) * 2.0**-20
    digits = [int(each) for batch in records.batches() for each in np.trunc(batch.rows[:, 0] * (batch.units / unit))]
    constant = int(intercept / unit)
    exact = [sum(each**2 for each in digits)]
    if intercept:
        exact += [sum(each * constant for each in digits), len(digits) * constant**2]
    found = exact_total(records, functools.partial(module._products, objective, unit, squared_counts(objective))).value()
    assert found[np.triu_indices(len(found))].tolist() == [float(each) for each in exact]
    assert gram_of(objective, records)[0] == float(exact[0]) * unit**2
    assert exact[0] > 2**52  # so many digits are needed


@pytest.mark.parametrize("intercept", [0.0, 0.5])
@pytest.mark.parametrize(
    ("stated", "counted"), [(1.0, 1.0), (0.25, 0.25), (3.0, 1.0), (1e300, 1.0), (-2.0, 0.0), (math.nan, 0.0)]
)
def test_a_record_counts_in_the_gram_matrix_for_no_more_than_one(
    stated: float, counted: float, intercept: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever weight a stranger's squared loss states by its curvature after it was checked, of a record of the largest norm."""
    objective = LinearObjective(Squared(1.0), 2, intercept_scale=intercept)
    records = objective.records(np.array([[0.6, 0.8]]), np.ones(1))
    monkeypatch.setattr(Squared, "curvature", lambda self, t, y: np.full(len(t), stated))
    full = np.append([0.6, 0.8], [intercept] if intercept else [])
    upper = (np.outer(full, full) * (np.sqrt(2) - (np.sqrt(2) - 1) * np.eye(len(full))))[np.triu_indices(len(full))]
    found = gram_of(objective, records)
    assert found == pytest.approx(counted * upper, abs=1e-5)
    assert np.linalg.norm(found) <= objective.row_norm**2


def test_replaced_rows_move_the_gram_matrix_by_root_two() -> None:
    objective = LinearObjective(Squared(1.0), 2, relation=REPLACE)
    grams = [gram_of(objective, objective.records(np.array([row]), np.ones(1))) for row in ([1.0, 0.0], [0.0, 1.0])]
    assert np.linalg.norm(grams[0] - grams[1]) == pytest.approx(math.sqrt(2), abs=1e-4)


def test_a_triangle_is_read_as_the_matrix_whose_length_it_has() -> None:
    half = RNG.normal(size=(5, 5))
    matrix = half + half.T
    triangle = (matrix * (np.sqrt(2) - (np.sqrt(2) - 1) * np.eye(5)))[np.triu_indices(5)]
    assert module.symmetric(triangle, 5) == pytest.approx(matrix)
    assert np.linalg.norm(triangle) == pytest.approx(np.linalg.norm(matrix))
