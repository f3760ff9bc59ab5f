"""What Laplacian smoothing adds to a step. Writes results/smoothing.md.

    python benchmarks/smoothing.py

DP-SGD with and without it, interleaved in one process, medians of steps: a logistic model of 100 features, batches of 512 of
20,000 rows; a CNN of 26,010 parameters on images of 28 × 28, batches of 256.
"""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from dperm.gradient import SGD, LaplacianSmoothing
from dperm.gradient.recipes import dp_sgd
from dperm.objectives import LinearObjective, Logistic
from dperm.privacy import Relation
from dperm.release import Channel, spend_log
from dperm.torch import ModuleObjective
from dperm.torch.data.records import TorchRecords
from dperm.torch.ranks.tensor_noise import open_channel

RESULTS = Path(__file__).parent / "results" / "smoothing.md"


def linear() -> dict[str, Callable[[], Any]]:
    rng = np.random.default_rng(0)
    objective = LinearObjective(Logistic(), 100, public_size=20_000)
    records = objective.records(rng.normal(size=(20_000, 100)), np.where(rng.random(20_000) < 0.5, 1.0, -1.0))
    return {name: _step(post, objective, records, Channel.open(), 20_000, 512, np.zeros(100)) for name, post in _posts()}


def network() -> dict[str, Callable[[], Any]]:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 8, 2, padding=2), nn.ReLU(), nn.MaxPool2d(2, 1), nn.Conv2d(16, 32, 4, 2), nn.ReLU(), nn.MaxPool2d(2, 1),
        nn.Flatten(), nn.Linear(512, 32), nn.ReLU(), nn.Linear(32, 10),
    )  # fmt: skip
    objective = ModuleObjective(model, nn.CrossEntropyLoss(reduction="none"), public_size=5_000)
    records = TorchRecords((torch.randn(5_000, 1, 28, 28), torch.randint(0, 10, (5_000,))), physical_batch_size=512)
    theta = objective.theta
    return {name: _step(post, objective, records, open_channel(None, theta.device), 5_000, 256, theta) for name, post in _posts()}


def _posts() -> list[tuple[str, LaplacianSmoothing | None]]:
    return [("plain", None), ("smoothed", LaplacianSmoothing(1.0))]


def _step(post: Any, objective: Any, records: Any, channel: Channel, size: int, batch: int, theta: Any) -> Callable[[], Any]:
    plan = dp_sgd(
        noise_multiplier=2.0,
        public_size=size,
        expected_batch_size=batch,
        epochs=100,
        clipping_norm=0.5,
        update=SGD(0.1),
        post=post,
    )
    channel.charge(plan.event(Relation.ADD_OR_REMOVE_ONE), "benchmark")
    gradients = plan.gradients(objective, records, channel)
    return lambda: gradients(theta)


def main() -> None:
    lines = ["| | step, plain | smoothed | more |", "| --- | --- | --- | --- |"]
    with spend_log(RESULTS.with_suffix(".jsonl")):
        for title, make, steps in (("logistic, 100 features", linear, 2_000), ("CNN, 26,010 parameters", network, 100)):
            ways = make()
            taken: dict[str, list[float]] = {name: [] for name in ways}
            for _ in range(steps):
                for name, step in ways.items():
                    started = time.perf_counter()
                    step()
                    taken[name].append(time.perf_counter() - started)
            plain, smoothed = (statistics.median(taken[name]) for name in ways)
            lines.append(f"| {title} | {1e6 * plain:,.0f} µs | {1e6 * smoothed:,.0f} µs | {100 * (smoothed / plain - 1):.1f} % |")
    RESULTS.with_suffix(".jsonl").unlink()
    machine = f"{platform.machine()}, {torch.get_num_threads()} thread(s), NumPy {np.__version__}, torch {torch.__version__}"
    text = "\n".join(["# Laplacian smoothing", "", machine, "", *lines, ""])
    print(text)
    RESULTS.write_text(text)


if __name__ == "__main__":
    main()
