"""Linear objectives: every storage gives the same numbers; passes match plain formulas; bad records vanish."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from dperm.objectives import Huber, LinearObjective, Logistic, Loss, Records, RegularisedSum, SmoothedHinge, Softmax, Squared
from helpers.losses import every_loss, labelled, smooth

N, D = 700, 7
RNG = np.random.default_rng(0)
ROWS = RNG.normal(size=(N, D)) * (RNG.random((N, D)) < 0.6)
ROWS[3] = 0.0
LABELS = np.where(RNG.random(N) < 0.4, 1.0, -1.0)
STORAGES = ["dense", "float32", "fortran", "csr", "csr_array", "mapped", "strided"]


def store(kind: str, rows: np.ndarray, folder: Path) -> Any:
    if kind == "mapped":
        path = folder / "rows.npy"
        np.save(path, rows)
        return np.load(path, mmap_mode="r")
    return {
        "dense": lambda: rows,
        "float32": lambda: rows.astype(np.float32),
        "fortran": lambda: np.asfortranarray(rows),
        "csr": lambda: sp.csr_matrix(rows),
        "csr_array": lambda: sp.csr_array(rows),
        "strided": lambda: np.repeat(rows, 2, axis=0)[::2],
    }[kind]()


def reference(loss: Loss, theta: np.ndarray, rows: np.ndarray, targets: np.ndarray, bound: float, s0: float) -> Any:
    """Scaled rows with the constant feature, written out."""
    scaled = rows * np.minimum(1.0, bound / np.maximum(np.linalg.norm(rows, axis=1), 1e-300))[:, None]
    full = np.hstack([scaled, np.full((len(rows), 1), s0)]) if s0 else scaled
    table = theta.reshape(full.shape[1], -1)
    t = full @ table
    t = t[:, 0] if t.shape[1] == 1 else t
    slope = loss.slope(t, targets)
    gradients = full * slope[:, None] if slope.ndim == 1 else np.einsum("nd,nk->ndk", full, slope).reshape(len(rows), -1)
    return loss.value(t, targets), gradients, full, t


@pytest.mark.parametrize("kind", STORAGES)
@pytest.mark.parametrize("s0", [0.0, 0.7])
@pytest.mark.parametrize("loss", every_loss(Huber(0.5), SmoothedHinge(0.4), Squared(2.0)), ids=repr)
def test_passes_and_sums_on_every_storage(kind: str, s0: float, loss: Loss, tmp_path: Path) -> None:
    targets = np.arange(N) % 3 * 1.0 if isinstance(loss, Softmax) else labelled(loss, LABELS)
    objective = LinearObjective(loss, D, data_norm=1.5, intercept_scale=s0, radius=loss.ball)
    theta = np.random.default_rng(1).normal(size=objective.dimension)
    records = objective.records(store(kind, ROWS, tmp_path), targets)
    tolerance = {"rtol": 1e-5, "atol": 1e-5}  # rows have 21 binary digits
    losses, gradients, full, t = reference(loss, theta, ROWS, targets, 1.5, s0)

    chosen = np.sort(np.random.default_rng(2).choice(N, 60, replace=False))
    at_theta = objective.per_example(theta, records.take(chosen))
    factors = np.random.default_rng(3).random(60)
    assert np.allclose(at_theta.losses, losses[chosen], **tolerance)
    assert np.allclose(at_theta.norms, np.linalg.norm(gradients[chosen], axis=1), **tolerance)
    assert np.allclose(at_theta.weighted_sum(factors), factors @ gradients[chosen], **tolerance)
    whole = sum(objective.per_example(theta, batch).weighted_sum(np.ones(len(batch.targets))) for batch in records.batches())
    assert np.allclose(whole, gradients.sum(axis=0), **{**tolerance, "atol": 1e-3})

    if not smooth(loss):
        return
    value, gradient, hessian = objective.evaluate(theta, records, hessian=True)
    assert value == pytest.approx(losses.sum(), rel=1e-5)
    assert np.allclose(gradient, gradients.sum(axis=0), **{**tolerance, "atol": 1e-3})
    exact = full.T @ (full * loss.curvature(t, targets)[:, None])
    assert hessian is not None
    assert np.allclose(hessian, exact, rtol=1e-4, atol=1e-3)
    vector = np.random.default_rng(4).normal(size=objective.dimension)
    assert np.allclose(objective.hessian_product(theta, records, vector), exact @ vector, rtol=1e-4, atol=1e-3)


def test_rows_are_never_longer_than_the_bound() -> None:
    records = Records(ROWS * 100, LABELS, 1.0)
    batch = records.take(np.arange(N))
    lengths = np.linalg.norm(batch.rows, axis=1) * batch.units
    assert np.all(lengths <= 1)
    assert np.all(lengths <= batch.norms)
    assert np.all(lengths[[0, 1, 2]] > 1 - 1e-5)
    assert np.all(batch.rows == np.rint(batch.rows))
    assert 0 < batch.norms[3] < 1e-9  # a zero row stays


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e300, 1e39])
@pytest.mark.parametrize("kind", ["dense", "csr"])
@pytest.mark.parametrize("s0", [0.0, 1.0])
def test_a_record_that_is_not_finite_contributes_nothing(bad: float, kind: str, s0: float, tmp_path: Path) -> None:
    """Same sums as without the record, whether the row or the target is broken; 1e300 overflows its norm."""
    rows, targets = ROWS.copy(), LABELS.copy()
    rows[5, 2] = bad
    targets[9] = np.nan
    keep = np.setdiff1d(np.arange(N), [5, 9])
    objective = LinearObjective(Logistic(), D, intercept_scale=s0)
    theta = np.random.default_rng(1).normal(size=objective.dimension)
    broken = objective.records(store(kind, rows, tmp_path), targets)
    clean = objective.records(store(kind, ROWS[keep], tmp_path), LABELS[keep])
    for hessian in (False, True):
        got, expected = objective.evaluate(theta, broken, hessian), objective.evaluate(theta, clean, hessian)
        assert got[0] == pytest.approx(expected[0])
        assert np.allclose(got[1], expected[1])
        assert not hessian or np.allclose(got[2], expected[2], atol=1e-3)
    at_theta = objective.per_example(theta, broken.take(np.array([4, 5, 9])))
    assert np.all(at_theta.norms[1:] == 0)
    assert at_theta.norms[0] > 0
    assert np.all(np.isfinite(at_theta.weighted_sum(np.ones(3))))


def test_an_empty_batch_is_ordinary() -> None:
    objective = LinearObjective(Logistic(), D)
    at_theta = objective.per_example(np.zeros(D), objective.records(ROWS, LABELS).take(np.array([], dtype=np.intp)))
    assert at_theta.norms.shape == (0,)
    assert np.array_equal(at_theta.weighted_sum(np.empty(0)), np.zeros(D))


def test_empty_data() -> None:
    objective = LinearObjective(Logistic(), D, intercept_scale=1.0)
    records = objective.records(ROWS[:0], LABELS[:0])
    value, gradient, _ = objective.evaluate(np.zeros(D + 1), records)
    assert value == 0
    assert np.array_equal(gradient, np.zeros(D + 1))


def test_facts_follow_from_the_loss_and_the_bound() -> None:
    facts = LinearObjective(Logistic(), 10, data_norm=3.0, intercept_scale=4.0).facts
    assert (facts.dimension, facts.data_norm, facts.lipschitz, facts.smoothness) == (11, 5.0, 5.0, 6.25)
    assert facts.loss == "logistic"
    assert LinearObjective(Softmax(3), 10).facts.dimension == 30
    assert LinearObjective(Squared(1.0, 2.0), 10, radius=2.0).facts.rank_one is False


def test_the_regularised_sum_adds_both_terms() -> None:
    objective = LinearObjective(Logistic(), D, strong_convexity=2.0)
    records = objective.records(ROWS, LABELS)
    theta, linear = np.arange(D) * 0.1, np.ones(D)
    plain, full = objective.evaluate(theta, records, True), RegularisedSum(objective, records, linear).evaluate(theta, True)
    assert full[0] == pytest.approx(plain[0] + theta @ theta + theta.sum())
    assert np.allclose(full[1], plain[1] + 2 * theta + 1)
    assert np.allclose(full[2], plain[2] + 2 * np.eye(D))


@pytest.mark.parametrize("reach", [650.0, 706.0, 707.0, 708.0, 1000.0])
def test_the_exact_gradient_holds_where_slopes_vanish(reach: float) -> None:
    objective = LinearObjective(Logistic(), 1, strong_convexity=2.0)
    records = objective.records(np.ones((5, 1)), np.ones(5))
    found, error = objective.exact_gradient(np.array([reach]), records)
    assert abs(found[0] + 5 * np.exp(-reach)) <= error < 1e-9


def test_wrong_shapes_are_refused() -> None:
    objective = LinearObjective(Logistic(), D)
    with pytest.raises(ValueError, match="7 features, got 6"):
        objective.records(ROWS[:, :6], LABELS)
    with pytest.raises(ValueError, match="targets"):
        objective.records(ROWS, LABELS[:5])
    with pytest.raises(TypeError, match="float64 or float32, got int8"):
        objective.records(ROWS.astype(np.int8), LABELS)
    with pytest.raises(ValueError, match="radius of at most 1"):
        LinearObjective(Squared(1.0, 1.0), D, radius=100.0)
    with pytest.raises(TypeError, match="CSR"):
        objective.records(sp.csc_matrix(ROWS), LABELS)
