"""A private model of a table that lives on a Dask cluster, paid from a ledger that a team shares.

`python train.py --out folder` runs on the cluster that DASK_SCHEDULER_ADDRESS names, or on two processes of this machine, and
charges the log that DPERM_SPEND_LOG names. `--table folder` trains on Parquet files there; without it on made rows.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
from distributed import Client

from dperm.data import Column, Schema
from dperm.estimators import DPLogisticRegression, TableEncoder, model_to_json

CLASSES = ["no", "yes"]
#: what is publicly known of the columns
SCHEMA = Schema(
    "made",
    "answer",
    (Column("age", "number", (0, 100)), Column("hours", "number", (0, 80)), Column("answer", "label")),
    tuple(CLASSES),
)


def made(rows: int) -> tuple[Any, Any]:
    """Rows and labels in parts, made where they are used."""
    random = da.random.default_rng(1)
    chunk = max(1, rows // 8)
    ages, hours = random.uniform(0, 100, rows, chunks=chunk), random.uniform(0, 80, rows, chunks=chunk)
    noise = random.normal(0, 10, rows, chunks=chunk)
    X = da.stack([2 * ages / 100 - 1, 2 * hours / 80 - 1], axis=1).rechunk({1: 2})
    return X, da.where(ages / 2 + hours + noise > 65, "yes", "no")


def read(folder: Path) -> tuple[Any, Any]:
    """Rows and labels of Parquet files, encoded where they are read."""
    from dask import dataframe

    frame = dataframe.read_parquet(folder)
    return TableEncoder(SCHEMA).fit(frame).transform(frame), frame["answer"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", type=Path, help="folder of Parquet files with the columns age, hours and answer")
    parser.add_argument("--out", type=Path, default=Path("out"))
    parser.add_argument("--rows", type=int, default=400_000, help="made rows")
    parser.add_argument("--epsilon", type=float, default=1.0)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    own: dict[str, Any] = {} if os.environ.get("DASK_SCHEDULER_ADDRESS") else {"n_workers": 2, "threads_per_worker": 1}
    with Client(**own) as client:
        X, y = made(given.rows) if given.table is None else read(given.table)
        model = DPLogisticRegression(given.epsilon, 1e-7, classes=CLASSES, data_norm=float(np.sqrt(2)), label=SCHEMA.name)
        model.fit(X, y)
        workers = len(client.scheduler_info()["workers"])
    (given.out / "model.json").write_text(model_to_json(model), encoding="utf-8")
    (given.out / "certificate.json").write_text(model.certificate_.to_json(), encoding="utf-8")
    print(f"Trained on {workers} workers: differentially private at ε = {model.certificate_.epsilon:.3g}. In {given.out}.")


if __name__ == "__main__":
    main()
