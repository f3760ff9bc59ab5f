"""What noise, checks and frames cost: the noise of a network's step, what a pass restores, and a fit on pandas' column order.

Writes benchmarks/results/noise.md. `python benchmarks/noise.py`
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from dperm.estimators import DPLogisticRegression
from dperm.release import GaussianNoise
from dperm.report.page import machine
from dperm.torch import ModuleObjective
from dperm.torch.engine.model_state import Snapshot
from dperm.torch.ranks.tensor_noise import open_channel
from networks import DEVICE, WORK, data, private_step

RESULTS = Path(__file__).parent / "results"
ROUNDS = 15


def milliseconds(function: Callable[[], Any]) -> float:
    start = time.perf_counter()
    function()
    return 1e3 * (time.perf_counter() - start)


def interleaved(*functions: Callable[[], Any]) -> list[float]:
    """Medians, of rounds in which each runs once."""
    for function in functions:
        function()
    rounds = [[milliseconds(function) for function in functions] for _ in range(ROUNDS)]
    return [statistics.median(times) for times in zip(*rounds, strict=True)]


def network(name: str) -> str:
    work = WORK[name]
    x, y = data(work)
    step = private_step(work, x, y)
    model = work.make().to(DEVICE)
    size = ModuleObjective(model, lambda outputs, targets: outputs.sum(1)).flat.size
    source, query = open_channel(None, DEVICE).source, torch.zeros(size, device=DEVICE)

    def restore() -> None:
        Snapshot((model,), without=model.parameters(), light=True).restore()

    whole, noise, kept = interleaved(step, lambda: source.noisy(query, GaussianNoise(1.0, 1.0, step=2.0**-30)), restore)
    shares = " | ".join(f"{part:.2f} ({100 * part / whole:.1f} %)" for part in (noise, kept))
    return f"| {name} | {size:,} | {whole:.1f} | {shares} |"


def frames() -> list[str]:
    rows = np.random.default_rng(0).normal(size=(49_000, 181))
    labels = (rows[:, 0] > 0).astype(int)
    tables = {
        "row order, double": rows,
        "column order, double": np.asfortranarray(rows),
        "pandas frame": pd.DataFrame(rows),
        "pandas frame, single precision": pd.DataFrame(rows.astype(np.float32)),
    }
    settings: dict[str, Any] = {"mechanism": "gradient", "public_size": len(rows), "classes": [0, 1]}
    found: dict[str, list[float]] = {name: [] for name in tables}
    for _ in range(5):
        for name, table in tables.items():
            found[name].append(milliseconds(lambda table=table: DPLogisticRegression(**settings).fit(table, labels)))
    return [f"| {name} | {statistics.median(times) / 1e3:.2f} |" for name, times in found.items()]


def main() -> None:
    warnings.simplefilter("ignore")
    os.environ["DPERM_SPEND_LOG"] = str(Path(tempfile.mkdtemp()) / "spend.db")
    torch.set_num_threads(os.cpu_count() or 1)
    lines = ["| model | parameters | step, ms | noise, ms | state put back, ms |", "| --- | --- | --- | --- | --- |"]
    lines += [network(name) for name in WORK]
    tables = ["| 49,000 × 181, DP-SGD by the public rule | seconds |", "| --- | --- |", *frames()]
    about = "\n".join(f"- {name}: {value}" for name, value in machine().items())
    title = ["# What noise, checks and frames cost", "", "Medians of interleaved runs in one process."]
    text = "\n".join([*title, "", *lines, "", *tables, ""])
    (RESULTS / "noise.md").write_text(f"{text}\n{about}\n- device: {DEVICE.type}, {torch.get_num_threads()} threads\n")
    print(text)


if __name__ == "__main__":
    main()
