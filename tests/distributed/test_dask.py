"""Dask's collections as rows of a fit: the same model as of all rows in memory, whatever happens to workers."""

from __future__ import annotations

import os
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dask.array as da
import dask.dataframe as dd
import distributed
import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

from dperm.data import Column, Schema
from dperm.distributed import DaskEngine, PartedTable, parted_table
from dperm.estimators import DPLogisticRegression, DPMLPClassifier, DPRidge, TableEncoder
from dperm.mechanisms import Gradient
from dperm.objectives import PartsChangedError
from dperm.privacy.certificates import assumptions as statements
from dperm.release import spend_log

N, D = 400, 5
DESCENT = Gradient(epochs=3, expected_batch_size=80)
GIVEN: dict[str, Any] = {"public_size": N, "classes": [0, 1], "random_state": 1}


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of small sizes and fixed seeds
        yield


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    """Two workers as threads of this process."""
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=False, dashboard_address=":0", protocol="inproc://"
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client


@pytest.fixture
def threads() -> Iterator[Any]:
    """Another cluster of this process."""
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=False, dashboard_address=":0", protocol="inproc://"
        ) as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
    ):
        yield client


def table() -> tuple[NDArray[np.float64], NDArray[np.intp]]:
    X = np.random.default_rng(0).normal(size=(N, D)) / 2
    return X, (X[:, 0] > 0.1).astype(np.intp)


@pytest.mark.fast_cases("objective")
@pytest.mark.parametrize("method", ["objective", DESCENT])
def test_arrays(client: Any, method: Any) -> None:
    X, y = table()
    parts = da.from_array(X, chunks=(150, D))
    model = DPLogisticRegression(epsilon=1.0, delta=1e-5, mechanism=method, **GIVEN).fit(parts, da.from_array(y, 150))
    whole = DPLogisticRegression(epsilon=1.0, delta=1e-5, mechanism=method, **GIVEN).fit(X, y)
    np.testing.assert_allclose(model.coef_, whole.coef_, rtol=1e-6)
    assert model.certificate_.event == whole.certificate_.event
    assert set(model.certificate_.assumptions) == {*whole.certificate_.assumptions, statements.PARTS}
    np.testing.assert_allclose(model.decision_function(parts).compute(), whole.decision_function(X), rtol=1e-6, atol=1e-9)


def test_frames_whose_sizes_are_not_known(client: Any) -> None:
    X, y = table()
    frame = pd.DataFrame(X, columns=list("abcde")).assign(label=y, weight=np.arange(N) % 3)
    parts = dd.from_pandas(frame, npartitions=4)
    parts = parts[parts.a < 0.9]
    model = DPLogisticRegression(epsilon=1.0, delta=1e-5, mechanism=DESCENT, max_sample_weight=2.0, **GIVEN)
    model.fit(parts[list("abcde")], parts.label, sample_weight=parts.weight)
    kept = frame[frame.a < 0.9]
    whole = DPLogisticRegression(epsilon=1.0, delta=1e-5, mechanism=DESCENT, max_sample_weight=2.0, **GIVEN)
    whole.fit(kept[list("abcde")], kept.label, sample_weight=kept.weight)
    np.testing.assert_array_equal(model.coef_, whole.coef_)
    assert list(model.feature_names_in_) == list("abcde")


def test_a_regression(client: Any) -> None:
    X, _ = table()
    y = X[:, 0] / 2
    model = DPRidge(epsilon=1.0, delta=1e-5, public_size=N, random_state=1).fit(
        da.from_array(X, chunks=(200, D)), da.from_array(y, 200)
    )
    np.testing.assert_allclose(
        model.coef_, DPRidge(epsilon=1.0, delta=1e-5, public_size=N, random_state=1).fit(X, y).coef_, rtol=1e-9
    )


def test_frames_are_encoded_where_they_are(client: Any) -> None:
    frame = pd.DataFrame({"age": np.arange(N) % 90, "job": np.where(np.arange(N) % 3, "a", "b"), "paid": np.arange(N) % 2})
    columns = (Column("age", "number", (0, 100)), Column("job", "category", categories=("a", "b")), Column("paid", "label"))
    encoder = TableEncoder(Schema("people", "paid", columns, ("0", "1")), curves=5)
    parts = dd.from_pandas(frame, npartitions=3)
    model = DPLogisticRegression(epsilon=1.0, delta=1e-5, **GIVEN).fit(encoder.fit(parts).transform(parts), parts.paid)
    whole = DPLogisticRegression(epsilon=1.0, delta=1e-5, **GIVEN).fit(encoder.transform(frame), frame.paid)
    np.testing.assert_allclose(model.coef_, whole.coef_, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("columns", [["age", "paid"], None])
def test_columns_that_are_chosen_first_are_cut_as_their_labels(client: Any, tmp_path: Path, columns: Any) -> None:
    """Several files may be read at once for some columns: then X and the frame that it was made of are cut otherwise."""
    for number in range(4):
        frame = pd.DataFrame(
            {"age": np.arange(100) % 90, "more": np.ones(100), "other": np.ones(100), "paid": np.arange(100) % 2}
        )
        frame.to_parquet(tmp_path / f"{number}.parquet")
    chosen = dd.read_parquet(tmp_path, columns=columns)
    encoder = TableEncoder(Schema("people", "paid", (Column("age", "number", (0, 100)), Column("paid", "label")), ("0", "1")))
    model = DPLogisticRegression(epsilon=1.0, delta=1e-5, **GIVEN).fit(encoder.fit(chosen).transform(chosen), chosen.paid)
    assert model.n_features_in_ == 1


def test_what_has_no_way_of_parts_refuses_them() -> None:
    X, y = table()
    parts, labels = da.from_array(X, chunks=(150, D)), da.from_array(y, 150)
    with pytest.raises(ValueError, match="X in memory"):
        DPMLPClassifier(epsilon=1.0, delta=1e-5, classes=[0, 1]).fit(parts, y)
    with pytest.raises(ValueError, match="y in memory"):
        DPLogisticRegression(epsilon=1.0, delta=1e-5, **GIVEN).fit(X, labels)


@pytest.mark.parametrize(
    ("cut", "message"),
    [
        (lambda X, y: (X.rechunk((150, 2)), y), "rechunk"),
        (lambda X, y: (X, y.compute()), "as a collection of Dask"),
        (lambda X, y: (X, y.rechunk(200)), "in 3 parts, got 2"),
        (lambda X, y: (X, y.rechunk(((100, 150, 150),))), r"parts of 1[05]0 and 1[05]0 rows"),
        (lambda X, y: (X, None), "Expected y with X"),
    ],
)
def test_collections_that_do_not_fit_are_refused(client: Any, cut: Any, message: str, tmp_path: Path) -> None:
    X, y = table()
    X, y = cut(da.from_array(X, chunks=(150, D)), da.from_array(y, 150))
    with spend_log(tmp_path / "log.db") as log:
        with pytest.raises(ValueError, match=message):
            DPLogisticRegression(epsilon=1.0, delta=1e-5, **GIVEN).fit(X, y)
        assert not log.charges()


def test_without_a_cluster_one_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody() -> Any:
        raise ValueError("No global client found and no address provided")

    monkeypatch.setattr(distributed, "get_client", nobody)
    X, y = table()
    with pytest.raises(ValueError, match="Expected a Dask cluster"):
        parted_table(da.from_array(X, chunks=(150, D)), da.from_array(y, 150))


@pytest.mark.parametrize("cluster", ["threads", pytest.param("processes", marks=pytest.mark.slow)])
def test_what_another_cluster_holds_is_refused(client: Any, cluster: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    other: Any = request.getfixturevalue(cluster)
    X, y = table()
    frame = dd.from_pandas(pd.DataFrame(X, columns=list("abcde")).assign(label=y), npartitions=4)
    with client.as_current():
        held = frame[[*"abcde", "label"]].persist()
        model = DPLogisticRegression(epsilon=1.0, delta=1e-5, **GIVEN).fit(held[list("abcde")], held.label)
    with other.as_current(), spend_log(tmp_path / "log.db") as log:
        for X, y in ((held[list("abcde")], held.label), (frame[list("abcde")], held.label)):
            with pytest.raises(ValueError, match=r"Expected [Xy] persisted on the cluster .*, got one on inproc"):
                model.fit(X, y)
        assert not log.charges()
        again = frame.persist()
        model.fit(again[list("abcde")], again.label)
        distributed.futures_of(again)[0].cancel()
        with pytest.raises(ValueError, match="persist it again"):
            model.fit(again[list("abcde")], again.label)


def test_a_sum_has_a_time_limit(client: Any) -> None:
    engine = DaskEngine(client, timeout=0.2)
    with pytest.raises(TimeoutError, match="no sum within 0"):
        engine.total(lambda part, given: time.sleep(2), [1], [None], max)


def test_parts_on_one_worker_are_added_up_by_one_task(client: Any) -> None:
    parts = client.map(lambda number: number, range(20))
    distributed.wait(parts)

    def task(part: int, given: int) -> list[tuple[str, int]]:
        return [(str(distributed.get_worker().get_current_task()), part * given)]

    ran = DaskEngine(client).total(task, parts, range(20), lambda first, second: first + second)
    assert sorted(product for _, product in ran) == [number**2 for number in range(20)]
    assert 2 <= len({name for name, _ in ran}) <= 3  # workers, of a thread each, of which one may hold more than its share


def test_tasks_hold_no_more_parts_than_a_worker_can_take() -> None:
    from dperm.distributed.engine import _groups

    assert _groups([4, 7, 9], [10, 10, 10], most=30) == [[4, 7, 9]]
    assert _groups([4, 7, 9], [10, 10, 10], most=29) == [[4, 7], [9]]
    assert _groups([4, 7, 9], [10, 90, 10], most=20) == [[4], [7], [9]]
    assert _groups([0, 1, 2, 3], [500, 1, 500, 1], most=512) == [[0, 1], [2, 3]]
    assert _groups([], [], most=1) == []


class Told:
    """A client whose scheduler answers what it is told to."""

    asynchronous = False
    scheduler = SimpleNamespace(**{name: name for name in ("who_has", "nbytes", "ncores", "identity")})

    def __init__(self, **answers: Any) -> None:
        self.answers = answers

    def sync(self, question: str, callback_timeout: float, **about: Any) -> Any:
        return self.answers[question]


def test_who_holds_parts_decides_who_adds_them_up(client: Any) -> None:
    parts = client.map(lambda number: number, range(8))
    keys = [part.key for part in parts]
    size, until = 1 << 20, time.monotonic() + 60

    def groups(holders: dict[str, list[str]], limits: dict[str, int], *, sizes: Any = None) -> Any:
        told = Told(
            who_has=holders,
            nbytes=dict.fromkeys(keys, size) if sizes is None else sizes,
            ncores=dict.fromkeys(limits, 1),
            identity={"workers": {name: {"memory_limit": limit} for name, limit in limits.items()}},
        )
        return DaskEngine(told)._together(parts, until)  # pyright: ignore

    one, two = {key: ["a"] for key in keys}, {key: ["a" if place < 4 else "b"] for place, key in enumerate(keys)}
    assert groups(two, {"a": 0, "b": 0}) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert groups(one, {"a": 0}) == [[0, 1, 2, 3, 4, 5, 6, 7]]
    assert groups(one, {"a": 0, "b": 0}) == [[0, 1, 2, 3], [4, 5, 6, 7]]  # so that one of them may move to b
    assert groups(one, {"a": 16 * size}) == [[0, 1], [2, 3], [4, 5], [6, 7]]  # an eighth of what it may hold
    assert groups(one, {"a": size}) == [[number] for number in range(8)]
    both = {key: ["a", "b"] for key in keys}
    assert sorted(map(len, groups(both, {"a": 0, "b": 0}))) == [4, 4]
    assert groups({**one, keys[3]: []}, {"a": 0}) is None
    assert groups(one, {"a": 0}, sizes={}) is None  # one was let go of meanwhile


def test_a_scheduler_that_does_not_answer_is_waited_for_no_longer_than_stated(client: Any) -> None:
    import asyncio

    class Silent(DaskEngine):
        def _together(self, parts: Any, until: float) -> Any:
            async def never() -> None:
                await asyncio.sleep(60)

            return self._asked(never, until)

    with pytest.raises(TimeoutError, match="no sum within 0"):
        Silent(client, timeout=0.2).total(max, client.map(abs, range(3)), [0, 0, 0], max)


def test_large_shares_are_added_up_where_they_are(client: Any) -> None:
    parts = client.map(lambda number: number, range(6))
    distributed.wait(parts)
    sent: list[int] = []

    def here(first: Any, second: Any) -> Any:
        return first + second

    class Counting(DaskEngine):
        def _few(self, *given: Any) -> Any:
            waiting = super()._few(*given)
            sent.append(len(waiting))
            return waiting

    for length in (10, 1 << 18):
        total = Counting(client).total(lambda part, given, length=length: np.full(length, part), parts, [None] * 6, here)
        assert total[0] == 15
    assert sent[0] > 1
    assert sent[1] == 1


def test_asynchronous_clients_are_refused(client: Any) -> None:
    class Asynchronous:
        asynchronous = True

    with pytest.raises(ValueError, match="got an asynchronous one"):
        DaskEngine(Asynchronous())  # pyright: ignore[reportArgumentType]


@pytest.mark.slow
def test_parts_that_lie_on_a_workers_disk_are_added_up(tmp_path: Path) -> None:
    """More than a worker may hold at once."""
    with (
        distributed.LocalCluster(
            n_workers=1, threads_per_worker=1, dashboard_address=":0", memory_limit="400MB", local_directory=str(tmp_path)
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        parts = client.map(lambda number: np.full(20_000_000 // 8, float(number)), range(24), pure=False)
        for _ in range(2):
            total = DaskEngine(client, timeout=300).total(lambda part, given: part.sum(), parts, [None] * 24, lambda a, b: a + b)
            assert total == 2_500_000 * sum(range(24))


def test_an_error_on_a_worker_is_raised_here(client: Any) -> None:
    with pytest.raises(ZeroDivisionError):
        DaskEngine(client).total(lambda part, given: 1 // given, [1, 2], [1, 0], max)


# Workers that are processes, and die


@pytest.fixture(scope="module")
def processes() -> Iterator[Any]:
    with (
        distributed.LocalCluster(n_workers=3, threads_per_worker=1, dashboard_address=":0", memory_limit=0) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client


def read(path: Path) -> NDArray[np.float64]:
    return np.load(path)


def on_disk(folder: Path, X: NDArray[np.float64], y: NDArray[np.intp]) -> tuple[Any, Any]:
    """Collections that read a file a part, again where a worker was lost."""
    from dask.delayed import delayed

    rows: list[Any] = []
    labels: list[Any] = []
    for number, start in enumerate(range(0, N, 50)):
        part = slice(start, start + 50)
        np.save(folder / f"X{number}.npy", X[part])
        np.save(folder / f"y{number}.npy", y[part])
        rows.append(da.from_delayed(delayed(read)(folder / f"X{number}.npy"), (50, D), float))
        labels.append(da.from_delayed(delayed(read)(folder / f"y{number}.npy"), (50,), int))
    return da.concatenate(rows), da.concatenate(labels)


class Killing(DaskEngine):
    """Kills a worker's process while every so many sums are under way."""

    def __init__(self, client: Any, every: int, before: Any = None) -> None:
        super().__init__(client)
        self.every, self.before = every, before
        self.sums = self.kills = 0

    def total(self, *given: Any) -> Any:
        self.sums += 1
        killer = None
        if self.sums % self.every == 0:
            killer = threading.Thread(target=self._kill)
            killer.start()
        try:
            return super().total(*given)
        finally:
            if killer is not None:
                killer.join()

    def _kill(self) -> None:
        if self.before is not None:
            self.before()
        running = self.client.run(os.getpid)
        os.kill(sorted(running.values())[self.kills % len(running)], 9)
        self.kills += 1


def with_engine(engine: DaskEngine, X: Any, y: Any) -> PartedTable:
    found = parted_table(X, y, client=engine.client)
    assert found is not None
    return PartedTable(engine, found.parts, found.columns)


@pytest.mark.slow
@pytest.mark.parametrize("method", [Gradient(sampling="poisson", epochs=3, expected_batch_size=80), "objective"])
def test_lost_workers_change_nothing(processes: Any, method: Any, tmp_path: Path) -> None:
    X, y = table()
    engine = Killing(processes, every=4)
    with spend_log(tmp_path / "log.db") as log:
        model = DPLogisticRegression(epsilon=1.0, delta=1e-5, mechanism=method, **GIVEN)
        model.fit(with_engine(engine, *on_disk(tmp_path, X, y)), None)
        assert len(log.charges()) == 1
    assert engine.kills >= 2
    whole = DPLogisticRegression(epsilon=1.0, delta=1e-5, mechanism=method, **GIVEN).fit(X, y)
    np.testing.assert_allclose(model.coef_, whole.coef_, rtol=1e-6, atol=0 if method == "objective" else 1e-15)


@pytest.mark.slow
def test_a_file_that_changed_and_is_read_again_is_refused(processes: Any, tmp_path: Path) -> None:
    X, y = table()

    def change() -> None:
        for number in range(N // 50):
            np.save(tmp_path / f"X{number}.npy", np.load(tmp_path / f"X{number}.npy") * 0.5)

    engine = Killing(processes, every=5, before=change)
    model = DPLogisticRegression(epsilon=1.0, delta=1e-5, mechanism=Gradient(epochs=20, expected_batch_size=200), **GIVEN)
    with pytest.raises(PartsChangedError, match="not what it was"):
        model.fit(with_engine(engine, *on_disk(tmp_path, X, y)), None)
    assert engine.kills >= 1
