"""Predictions and scores of Dask's collections: what each part gives in memory, lazily, without holding all rows."""

from __future__ import annotations

import threading
import warnings
import weakref
from collections.abc import Iterator
from typing import Any

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from numpy.typing import NDArray
from sklearn.base import is_classifier, is_regressor
from sklearn.exceptions import UndefinedMetricWarning
from sklearn.pipeline import make_pipeline

from dperm.data import Column, Schema
from dperm.distributed.table import by_part
from dperm.estimators import (
    DPLinearSVC,
    DPLogisticRegression,
    DPMLPClassifier,
    DPOrdinalClassifier,
    DPPoissonRegressor,
    DPQuantileRegressor,
    DPRidge,
    DPSearch,
    PublicRangeScaler,
    TableEncoder,
    model_from_json,
    model_to_json,
)
from helpers.estimators import linear_estimators, made

N, D = 400, 5
COLUMNS = list("abcde")
CUTS = (7, 0, 1, 190, 0, 202)  # sizes of parts
SEEDED: dict[str, Any] = {"public_size": N, "random_state": 1}


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with warnings.catch_warnings(), dask.config.set(scheduler="threads", num_workers=2):
        warnings.simplefilter("ignore")  # of small sizes and fixed seeds
        yield


def frame() -> pd.DataFrame:
    return pd.DataFrame(np.random.default_rng(0).normal(size=(N, D)) / 2, columns=COLUMNS)


def labels(X: pd.DataFrame, kind: str) -> NDArray[Any]:
    if kind == "two":
        return np.where(X.a > 0.1, "yes", "no")
    if kind == "three":
        return np.where(X.a > 0.3, "high", np.where(X.b > 0, "middle", "lowest"))
    return {"numbers": X.a.clip(-0.9, 0.9), "counts": (2 * X.a.abs() + X.b**2 * 3).round()}[kind].to_numpy()


def in_pieces(whole: Any) -> list[Any]:
    ends = np.cumsum(CUTS)
    return [whole[end - size : end] for end, size in zip(ends, CUTS, strict=True)]


def as_array(whole: Any) -> Any:
    """With parts of `CUTS` rows, some without any."""
    whole = np.asarray(whole)
    return da.from_array(whole, chunks=(CUTS, *((size,) for size in whole.shape[1:])))


def as_frame(whole: Any) -> Any:
    """The same of a frame or a column, whose sizes Dask does not know."""
    pieces = in_pieces(pd.DataFrame(whole) if isinstance(whole, pd.DataFrame) else pd.Series(whole))
    return dd.from_delayed([dask.delayed(piece) for piece in pieces], meta=pieces[0])


def ordered(kind: type) -> dict[str, Any]:
    """The settings without which a class takes no texts as labels: their order."""
    return {"classes": sorted(set(labels(frame(), "two").tolist()))} if kind is DPOrdinalClassifier else {}


MODELS = [
    pytest.param(DPLogisticRegression, "two", {}, id="two classes"),
    pytest.param(DPLogisticRegression, "three", {}, id="one against the rest"),
    pytest.param(DPLogisticRegression, "three", {"mechanism": "gradient"}, id="softmax"),
    pytest.param(DPLinearSVC, "two", {"fit_intercept": False}, id="support vectors"),
    pytest.param(DPQuantileRegressor, "numbers", {"quantile": 0.8}, id="a quantile"),
    *(
        pytest.param(kind, "two" if is_classifier(made(kind)) else "counts", ordered(kind), id=f"any {kind.__name__}")
        for kind in linear_estimators()
        if kind not in (DPLogisticRegression, DPLinearSVC, DPQuantileRegressor)
    ),
]


@pytest.mark.parametrize("cut", [as_array, as_frame])
@pytest.mark.parametrize(("kind", "target", "settings"), MODELS)
def test_answers_are_those_of_each_part_in_memory(kind: Any, target: str, settings: Any, cut: Any) -> None:
    X = frame()
    model = kind(epsilon=3.0, delta=1e-5, **SEEDED, **settings).fit(X if cut is as_frame else X.to_numpy(), labels(X, target))
    given = X if cut is as_frame else X.to_numpy()
    for name in ("predict", "predict_proba", "decision_function"):
        if not hasattr(model, name):
            continue
        asked = getattr(model, name)
        found = asked(cut(X))
        expected = np.concatenate([asked(piece) for piece in in_pieces(given) if len(piece)])
        assert isinstance(found, da.Array)
        assert found.dtype == found._meta.dtype == expected.dtype
        assert found.ndim == found._meta.ndim == expected.ndim
        assert found.numblocks[0] == len(CUTS)
        computed = found.compute()
        assert computed.dtype == expected.dtype
        np.testing.assert_array_equal(computed, expected)
        whole = asked(given)
        if name == "predict" and whole.dtype.kind == "U":
            np.testing.assert_array_equal(computed, whole)
        else:  # of many at once, the last bits depend on how many there are
            np.testing.assert_allclose(computed, whole, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("weighed", [False, True])
@pytest.mark.parametrize("cut", [as_array, as_frame])
@pytest.mark.parametrize(("kind", "target", "settings"), MODELS)
def test_scores_are_those_of_all_rows(kind: Any, target: str, settings: Any, cut: Any, weighed: bool) -> None:
    X = frame()
    y = labels(X, target)
    weights = np.random.default_rng(1).gamma(1.0, size=N) if weighed else None
    if weights is not None:
        weights[: CUTS[0]] = 0.0  # a part that counts for nothing
    given = X if cut is as_frame else X.to_numpy()
    model = kind(epsilon=3.0, delta=1e-5, **SEEDED, **settings).fit(given, y)
    found = model.score(cut(X), cut(y), sample_weight=None if weights is None else cut(weights))
    expected = model.score(given, y, sample_weight=weights)
    assert type(found) is float
    if target in ("two", "three") and not weighed:
        assert found == expected  # a number of rows by another
    assert found == pytest.approx(expected, rel=1e-12)
    assert np.isfinite(expected)


@pytest.mark.parametrize("quantile", [0.001, 0.25, 0.5, 0.999])
def test_quantiles_of_parts_with_ties_and_signs(quantile: float) -> None:
    X = frame()
    y = np.random.default_rng(2).choice([-0.5, -0.0, 0.0, 0.25, 1e-300, -3.0], N)
    model = DPQuantileRegressor(epsilon=3.0, delta=1e-5, quantile=quantile, **SEEDED).fit(X, y)
    assert model.score(as_frame(X), as_frame(y)) == pytest.approx(model.score(X, y), rel=1e-12)


def test_scores_keep_their_digits_far_from_zero() -> None:
    X = frame()
    y = 1e8 + labels(X, "numbers")
    model = DPRidge(epsilon=3.0, delta=1e-5, target_bound=2e8, **SEEDED).fit(X, y)
    model.intercept_, model.coef_ = 1e8, np.ones(D)
    assert model.score(as_frame(X), as_frame(y)) == pytest.approx(model.score(X, y), rel=1e-6)


def test_a_lazy_answer_is_of_the_model_that_was_asked() -> None:
    X = frame()
    model = DPRidge(epsilon=3.0, delta=1e-5, **SEEDED).fit(X, labels(X, "numbers"))
    before = model.predict(X.iloc[:100])
    lazy = model.predict(dd.from_pandas(X, npartitions=4))
    model.set_params(data_norm=0.1).fit(X, -labels(X, "numbers"))
    np.testing.assert_array_equal(lazy.compute()[:100], before)
    assert not np.array_equal(model.predict(X)[:100], before)


def test_a_subclass_that_changes_answers_changes_them_once() -> None:
    X = frame()
    model = Doubled(epsilon=3.0, delta=1e-5, **SEEDED).fit(X, labels(X, "numbers"))
    np.testing.assert_array_equal(model.predict(dd.from_pandas(X, npartitions=1)).compute(), model.predict(X))


class Doubled(DPRidge):
    def predict(self, X: Any) -> Any:
        return 2 * super().predict(X)


def test_other_columns_are_refused_at_once() -> None:
    X = frame()
    model = DPRidge(epsilon=3.0, delta=1e-5, **SEEDED).fit(X, labels(X, "numbers"))
    with pytest.raises(ValueError, match="feature names"):
        model.predict(as_frame(X.assign(more=0.0)))
    with pytest.raises(ValueError, match="same order"):
        model.predict(as_frame(X[COLUMNS[::-1]]))
    with pytest.raises(ValueError, match="expecting 5 features"):
        model.predict(da.zeros((N, 4), chunks=(100, 4)))
    with pytest.raises(ValueError, match="columns cut in 2: rechunk"):
        model.predict(da.zeros((N, 5), chunks=(100, 3)))
    with pytest.raises(ValueError, match="got 1 axes"):
        model.predict(as_frame(X).a)


def test_a_bad_row_is_refused_where_it_is() -> None:
    X = frame()
    model = DPRidge(epsilon=3.0, delta=1e-5, **SEEDED).fit(X, labels(X, "numbers"))
    X.iloc[300, 2] = np.nan
    lazy = model.predict(as_frame(X))
    np.testing.assert_array_equal(lazy.blocks[3].compute(), model.predict(X.iloc[8:198]))
    with pytest.raises(ValueError, match="NaN"):
        lazy.compute()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda y: y.compute(), "y as a collection of Dask"),
        (lambda y: y.rechunk(200), "y cut as X is, in 6 parts, got 2"),
        (lambda y: y.rechunk(((8, 0, 0, 190, 0, 202),)), "y cut as X is, got parts of [08] and [17] rows"),
        (lambda y: None, "Expected y with X"),
        (lambda y: y.reshape(-1, 1).repeat(2, 1), "y"),
    ],
)
@pytest.mark.parametrize("kind", [DPRidge, DPQuantileRegressor])
def test_targets_that_are_cut_otherwise_are_refused(kind: Any, change: Any, message: str) -> None:
    X = frame()
    y = labels(X, "numbers")
    model = kind(epsilon=3.0, delta=1e-5, **SEEDED).fit(X.to_numpy(), y)
    with pytest.raises(ValueError, match=message):
        model.score(as_array(X), change(as_array(y)))


def test_weights_that_do_not_fit_are_refused() -> None:
    X = frame()
    y = labels(X, "two")
    model = DPLogisticRegression(epsilon=3.0, delta=1e-5, **SEEDED).fit(X.to_numpy(), y)
    asked = as_array(X), as_array(y)
    with pytest.raises(ValueError, match="sample_weight as a collection of Dask"):
        model.score(*asked, np.ones(N))
    with pytest.raises(ValueError, match="sample_weight cut as X is, in 6 parts"):
        model.score(*asked, da.ones(N, chunks=100))
    with pytest.raises(ValueError, match="at least 0"):
        model.score(*asked, as_array(-np.ones(N)))
    with pytest.raises(ValueError, match="sum above 0"):
        model.score(*asked, as_array(np.zeros(N)))
    with pytest.raises(ValueError, match="Expected sample_weight in memory"):
        model.score(X.to_numpy(), y, as_array(np.ones(N)))
    with pytest.raises(ValueError, match="Expected y in memory"):
        model.score(X.to_numpy(), asked[1])


def test_scores_of_hardly_any_rows() -> None:
    X = frame()
    y = labels(X, "numbers")
    models = [
        kind(epsilon=3.0, delta=1e-5, **SEEDED).fit(X.to_numpy(), abs(y))
        for kind in linear_estimators()
        if is_regressor(made(kind))
    ]
    for model in models:
        with pytest.raises(ValueError, match="at least one row"):
            model.score(da.zeros((0, D)), da.zeros(0))
        assert model.predict(da.zeros((0, D))).compute().shape == (0,)
        with pytest.warns(UndefinedMetricWarning):
            assert np.isnan(model.score(da.zeros((1, D)), da.zeros(1)))
        assert model.score(da.ones((9, D), chunks=(4, D)), da.zeros(9, chunks=4)) == 0.0  # no variance
    with pytest.raises(ValueError, match="counts >= 0"):
        next(model for model in models if isinstance(model, DPPoissonRegressor)).score(as_array(X), as_array(-abs(y)))


def test_other_kinds_of_rows() -> None:
    """Single precision, sparse, sorted, and columns of objects: each part as in memory."""
    X = frame()
    model = DPLogisticRegression(epsilon=3.0, delta=1e-5, **SEEDED).fit(X.to_numpy(), labels(X, "three"))
    single = as_array(X.to_numpy(np.float32))
    expected = np.concatenate([model.predict_proba(piece) for piece in in_pieces(X.to_numpy(np.float32)) if len(piece)])
    np.testing.assert_array_equal(model.predict_proba(single).compute(), expected)
    thin = X.where(X.abs() > 0.5, 0.0).to_numpy()
    expected = np.concatenate([model.predict_proba(sp.csr_matrix(piece)) for piece in in_pieces(thin) if len(piece)])
    np.testing.assert_array_equal(model.predict_proba(as_array(thin).map_blocks(sp.csr_matrix)).compute(), expected)
    named = DPLogisticRegression(epsilon=3.0, delta=1e-5, **SEEDED).fit(X, labels(X, "three"))
    for odd in (X.sort_values("a"), X.astype(object), X.astype({"a": "Float64", "b": "float32"}), X.round().astype(int)):
        parts = as_frame(odd)
        expected = np.concatenate([named.predict_proba(piece) for piece in in_pieces(odd) if len(piece)])
        np.testing.assert_array_equal(named.predict_proba(parts).compute(), expected)


def test_of_some_rows_whose_number_is_not_known() -> None:
    X = frame()
    model = DPLogisticRegression(epsilon=3.0, delta=1e-5, **SEEDED).fit(X.to_numpy(), labels(X, "two"))
    parts = as_array(X)
    some = parts[parts[:, 0] > 0]
    y = as_array(labels(X, "two"))[parts[:, 0] > 0]
    kept = X[X.a > 0]
    np.testing.assert_array_equal(model.predict(some).compute(), model.predict(kept.to_numpy()))
    assert model.score(some, y) == model.score(kept.to_numpy(), labels(kept, "two"))


def test_a_model_that_was_saved() -> None:
    X = frame()
    model = DPLogisticRegression(epsilon=3.0, delta=1e-5, **SEEDED).fit(X.to_numpy(), labels(X, "three"))
    again, _ = model_from_json(model_to_json(model))
    np.testing.assert_array_equal(again.predict_proba(as_array(X)).compute(), model.predict_proba(as_array(X)).compute())
    assert again.score(as_array(X), as_array(labels(X, "three"))) == model.score(X.to_numpy(), labels(X, "three"))


def test_pipelines_and_searches_answer_by_part() -> None:
    people = pd.DataFrame({"age": np.arange(N) % 90, "job": np.where(np.arange(N) % 3, "a", "b")})
    y = np.where(people.age > 40, "yes", "no")
    columns = (Column("age", "number", (0, 100)), Column("job", "category", categories=("a", "b")), Column("paid", "label"))
    schema = Schema("people", "paid", columns, ("no", "yes"))
    model = make_pipeline(
        TableEncoder(schema), DPLogisticRegression(epsilon=3.0, delta=1e-5, classes=["no", "yes"], **SEEDED)
    ).fit(people, y)
    np.testing.assert_array_equal(model.predict(as_frame(people)).compute(), model.predict(people))
    assert model.score(as_frame(people), as_frame(y)) == model.score(people, y)
    X = frame()
    held_out = X.to_numpy()[:50], labels(X, "two")[:50]
    search = DPSearch(
        DPLogisticRegression(classes=["no", "yes"]), {"data_norm": [1.0, 2.0]}, epsilon=3.0, how="each once", random_state=1
    )
    with pytest.raises(ValueError, match="held-out rows in memory"):
        search.fit(X.to_numpy(), labels(X, "two"), held_out=(as_array(X), held_out[1]))
    with pytest.raises(ValueError, match="X in memory"):
        DPLogisticRegression(epsilon=3.0, delta=1e-5).epsilon_path(as_array(X), labels(X, "two"))
    search.fit(X.to_numpy(), labels(X, "two"), held_out=held_out)
    np.testing.assert_array_equal(search.predict(as_array(X)).compute(), search.predict(X.to_numpy()))
    assert search.score(as_array(X), as_array(labels(X, "two"))) == search.score(X.to_numpy(), labels(X, "two"))


@pytest.mark.parametrize("kind", [np.float32, np.float64, np.int64])
@pytest.mark.parametrize("cut", [as_array, as_frame])
def test_public_ranges_scale_by_part(cut: Any, kind: Any) -> None:
    X = (3 * frame()).astype(kind)
    given = X if cut is as_frame else X.to_numpy()
    scaler = PublicRangeScaler((-1.0, 1.0)).fit(cut(X))
    whole = PublicRangeScaler((-1.0, 1.0)).fit(given).transform(given)
    found = scaler.transform(cut(X))
    assert found.dtype == whole.dtype
    np.testing.assert_array_equal(found.compute(), whole)


def test_networks_refuse_parts() -> None:
    X = frame()
    network = DPMLPClassifier(epsilon=3.0, classes=["no", "yes"], random_state=1).fit(X.to_numpy(), labels(X, "two"))
    with pytest.raises(ValueError, match="X in memory"):
        network.predict(as_array(X))


class Held:
    """Blocks of rows that are alive, and the most that were at once."""

    def __init__(self) -> None:
        self.now = self.most = self.made = 0
        self._lock = threading.Lock()

    def block(self, block_id: Any) -> NDArray[np.float64]:
        rows = np.random.default_rng(block_id[0]).normal(size=(1000, D))
        with self._lock:
            self.made += 1
            self.now += 1
            self.most = max(self.most, self.now)
        weakref.finalize(rows, self._gone)
        return rows

    def _gone(self) -> None:
        with self._lock:
            self.now -= 1


@pytest.mark.fast_cases("DPElasticNet", "DPLinearSVC", "DPLogisticRegression", "DPPoissonRegressor", "DPRidge")
@pytest.mark.parametrize("kind", linear_estimators())
def test_rows_are_never_held_at_once(kind: Any) -> None:
    parts = 100
    held = Held()
    X = frame()
    model = made(kind, **SEEDED).fit(X.to_numpy(), (X.a > 0).astype(int))
    rows = da.map_blocks(held.block, chunks=((1000,) * parts, (D,)), dtype=float, meta=np.empty((0, 0)))
    y = (rows[:, 0] > 0).astype(int)
    total = model.predict(rows).sum()
    assert held.made == 0
    total.compute()
    assert held.made == parts
    assert held.most <= 20
    assert model.score(rows, y) <= 1.0
    assert held.made >= 2 * parts
    assert held.most <= 20


def test_a_method_of_any_model() -> None:
    class Sums:
        @by_part
        def transform(self, X: Any) -> Any:
            return X.sum(axis=1)

    np.testing.assert_array_equal(Sums().transform(da.ones((6, 3), chunks=(2, 3))).compute(), np.full(6, 3.0))
