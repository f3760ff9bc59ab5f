"""Tables that memory need not hold: Parquet read and encoded in parts, and objective perturbation trained on what lies on disk.

Writes benchmarks/results/streaming.md. `python benchmarks/streaming.py [--rows 10000000 …] [--features 20]`
"""

from __future__ import annotations

import argparse
import os
import tempfile
import threading
import time
import warnings
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from dperm.data import Schema, columnar, read_dataset
from dperm.estimators import DPLogisticRegression
from dperm.report.page import machine

RESULTS = Path(__file__).parent / "results"
PART = 500_000


class Memory:
    """The most memory of the process's own (anonymous, without pages of files) while the block runs, looked at often."""

    def __enter__(self) -> Memory:
        self.most, self._ends = 0.0, threading.Event()
        self._looks = threading.Thread(target=self._look, daemon=True)
        self._looks.start()
        return self

    def _look(self) -> None:
        while not self._ends.wait(0.02):
            status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
            self.most = max(self.most, float(status["RssAnon"].split()[0]) / 1e6)

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._looks.join()


def made(path: Path, rows: int, features: int) -> None:
    rng = np.random.default_rng(0)
    names = [f"x{number}" for number in range(features)]
    schema = pa.schema([*((name, pa.float32()) for name in names), ("y", pa.string())])
    with parquet.ParquetWriter(path, schema) as file:
        for start in range(0, rows, PART):
            values = rng.random((min(PART, rows - start), features), dtype=np.float32)
            labels = np.where(values[:, 0] + values[:, 1] + rng.normal(0, 0.3, len(values)) > 1, "yes", "no")
            file.write_table(pa.table([*(pa.array(column) for column in values.T), pa.array(labels)], schema=schema))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[10_000_000, 100_000_000])
    parser.add_argument("--features", type=int, default=20)
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    os.environ["DPERM_SPEND_LOG"] = str(Path(tempfile.mkdtemp()) / "spend.db")
    columnar.free_memory = lambda: 0.0  # as on a machine that holds none of it
    found = [measured(rows, asked.features) for rows in asked.rows]
    text = [
        "# Tables in parts",
        "",
        f"Rows of {asked.features} numbers and a label in a Parquet file, read and encoded in parts, and objective perturbation "
        "trained on what lies on disk then. Memory: the process's own, at most.",
        "",
        "| rows | Parquet, GB | on disk while it is used, GB | read: s | memory, GB | trained: s | memory, GB |",
        "| --- | --- | --- | --- | --- | --- | --- |",
        *found,
        "",
        ", ".join(f"{name} {value}" for name, value in machine().items()) + ".",
        "",
    ]
    (RESULTS / "streaming.md").write_text("\n".join(text), encoding="utf-8")
    print("\n".join(text))


def measured(rows: int, features: int) -> str:
    """A line of the table."""
    columns = [{"name": f"x{number}", "type": "number", "range": [0, 1]} for number in range(features)]
    schema = Schema.from_dict(
        {"name": "made", "target": "y", "classes": ["no", "yes"], "columns": [*columns, {"name": "y", "type": "label"}]}
    )
    with tempfile.TemporaryDirectory(dir=RESULTS) as folder:
        path = Path(folder) / "made.parquet"
        made(path, rows, features)
        os.environ["DPERM_SCRATCH"] = folder
        with Memory() as reading:
            start = time.perf_counter()
            data, _ = read_dataset(path, schema=schema)
            read = time.perf_counter() - start
        with Memory() as training:
            start = time.perf_counter()
            data.fit(DPLogisticRegression(epsilon=1.0, classes=schema.classes, public_size=rows))
            trained = time.perf_counter() - start
        disk = path.stat().st_size, data.features.nbytes + data.targets.nbytes
    values = [disk[0] / 1e9, disk[1] / 1e9, read, reading.most, trained, training.most]
    line = f"| {rows:,} | " + " | ".join(f"{value:.2f}" for value in values) + " |"
    print(line, flush=True)
    return line


if __name__ == "__main__":
    main()
