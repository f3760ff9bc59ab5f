"""Linear models on rows in parts: Dask workers, one thread each, against the same fit of all rows in memory, also by one thread.

Writes benchmarks/results/parts.md. `OMP_NUM_THREADS=1 python benchmarks/parts.py [--sizes 100000x100,…] [--workers 1,2,4]`
"""

from __future__ import annotations

import argparse
import functools
import os
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
from distributed import Client, LocalCluster
from numpy.typing import NDArray

from dperm.estimators import DPLogisticRegression
from dperm.mechanisms import Gradient, Objective
from dperm.report.page import machine

RESULTS = Path(__file__).parent / "results"
PARTS = 16  # most, where rows are many
ONE_PART = 6_250_000  # numbers in a part, at least
METHODS: dict[str, Any] = {
    "objective": Objective(),
    "full batch, 20 steps": Gradient(sampling="full", epochs=20),
    "DP-SGD, 100 steps of 1 %": Gradient(epochs=1, expected_batch_size=0.01),
}


def block(features: int, numbers: NDArray[np.intp], block_info: Any = None) -> NDArray[np.float32]:
    """Rows of these numbers, the same whoever makes them."""
    rng = np.random.default_rng(int(numbers[0]))
    return rng.standard_normal((len(numbers), features), dtype=np.float32) / np.float32(np.sqrt(features))


def labelled(X: NDArray[np.float32]) -> NDArray[np.int8]:
    return (X[:, 0] + X[:, 1] > 0).astype(np.int8)


def collections(rows: int, features: int) -> tuple[Any, Any]:
    chunk = max(rows // PARTS, min(rows, ONE_PART // features))
    numbers = da.arange(rows, chunks=chunk)
    X = numbers.map_blocks(
        functools.partial(block, features), dtype=np.float32, new_axis=1, chunks=(numbers.chunks[0], (features,))
    )
    return X, X.map_blocks(labelled, dtype=np.int8, drop_axis=1)


def in_memory(rows: int, features: int) -> tuple[NDArray[np.float32], NDArray[np.int8]]:
    X, _ = collections(rows, features)
    whole = np.empty((rows, features), dtype=np.float32)
    start = 0
    for size in X.chunks[0]:
        whole[start : start + size] = block(features, np.arange(start, start + size))
        start += size
    return whole, labelled(whole)


def model(method: Any, rows: int) -> DPLogisticRegression:
    if getattr(method, "expected_batch_size", None):
        method = Gradient(epochs=1, expected_batch_size=0.01 * rows)
    return DPLogisticRegression(epsilon=1.0, delta=1e-9, mechanism=method, public_size=rows, classes=[0, 1])


def timed(run: Callable[[], Any], cpu: Callable[[], float]) -> tuple[float, float]:
    """Wall-clock and CPU seconds."""
    wall, used = time.perf_counter(), cpu()
    run()
    return time.perf_counter() - wall, cpu() - used


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="100000x100,1000000x100,10000000x100")
    parser.add_argument("--workers", default="1,2,4")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    os.environ["DPERM_SPEND_LOG"] = str(Path(tempfile.mkdtemp()) / "spend.db")
    lines: list[str] = []
    for size in asked.sizes.split(","):
        rows, features = map(int, size.split("x"))
        alone: dict[str, tuple[float, float]] = {}
        if 4 * rows * features <= 5e9:
            X, y = in_memory(rows, features)
            for name, method in METHODS.items():
                alone[name] = timed(functools.partial(model(method, rows).fit, X, y), time.process_time)
                print(size, "memory", name, alone[name], flush=True)
            del X, y
        for workers in map(int, asked.workers.split(",")):
            with (
                LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=":0", memory_limit=0) as cluster,
                Client(cluster) as client,
            ):

                def cpu(client: Client = client) -> float:
                    return time.process_time() + sum(client.run(time.process_time).values())

                model(Objective(), 1000).fit(*collections(1000, features))  # workers import what they need
                parts = collections(rows, features)
                made = timed(lambda parts=parts: da.compute(parts[0].sum(), parts[1].sum()), cpu)
                for name, method in METHODS.items():
                    wall, used = timed(functools.partial(model(method, rows).fit, *parts), cpu)
                    ratio = f"{(used - made[1]) / alone[name][1]:.2f}×" if name in alone else ""
                    whole = f"{alone[name][0]:.1f} / {alone[name][1]:.1f}" if name in alone else "–"
                    cells = [f"{rows:,} × {features}", name, str(workers), whole, f"{wall:.1f}", f"{used - made[1]:.1f}", ratio]
                    lines.append("| " + " | ".join([*cells, f"{made[0]:.1f} / {made[1]:.1f}"]) + " |")
                    print(lines[-1], flush=True)
    text = [
        "# Rows in parts",
        "",
        "Logistic regression on rows that workers make in at most 16 parts (float32), one thread each, and in one process on all "
        "rows in memory. Seconds: wall-clock of the workers' fit includes making the rows; CPU seconds, of workers and of the "
        "process that asks, do not. Reading, validating, digests and noise are inside.",
        "",
        "| rows | method | workers | in memory: wall / CPU | wall | CPU | CPU, of that in memory | making the rows: wall / CPU |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
        *lines,
        "",
        ", ".join(f"{name} {value}" for name, value in machine().items()) + ".",
        "",
    ]
    (RESULTS / "parts.md").write_text("\n".join(text), encoding="utf-8")


if __name__ == "__main__":
    main()
