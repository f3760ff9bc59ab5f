"""Private steps of a convolutional network on several ranks: against one rank, and against plain data parallel training.

Writes benchmarks/results/ranks.md. Every rank has one thread. Rounds are interleaved; the median of a round's steps is taken,
then that of the rounds. `python benchmarks/ranks.py [--ranks 2] [--rounds 3]`
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from dperm.report.page import machine
from dperm.torch import PrivateTrainer
from dperm.torch.ranks import Ranks

RESULTS = Path(__file__).parent / "results"
RECORDS, BATCH, STEPS, WARM = 20_000, 512, 24, 4


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.GroupNorm(8, 32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1), nn.GroupNorm(8, 64), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(64 * 49, 128), nn.ReLU(), nn.Linear(128, 10),
    )  # fmt: skip


def records() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(RECORDS, 1, 28, 28, generator=generator), torch.randint(0, 10, (RECORDS,), generator=generator)


def private_steps() -> Iterator[None]:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    run = PrivateTrainer(
        model, nn.CrossEntropyLoss(reduction="none"), optimizer,
        noise_multiplier=1.0, delta=1e-5, public_size=RECORDS, expected_batch_size=BATCH, epochs=STEPS * BATCH / RECORDS,
    )  # fmt: skip
    for _ in run.steps(records()):
        optimizer.step()
        yield


def plain_steps() -> Iterator[None]:
    ranks = Ranks.here()
    model: nn.Module = network() if ranks.size == 1 else DistributedDataParallel(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    inputs, targets = records()
    generator = torch.Generator().manual_seed(ranks.rank)
    for _ in range(STEPS):
        chosen = torch.randint(0, RECORDS, (BATCH // ranks.size,), generator=generator)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs[chosen]), targets[chosen]).backward()
        optimizer.step()
        yield


def measured(kind: str) -> None:
    """Median seconds of a step, printed by rank 0."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    times: list[float] = []
    before = time.perf_counter()
    for _ in {"private": private_steps, "plain": plain_steps}[kind]():
        now = time.perf_counter()
        times.append(now - before)
        before = now
    if Ranks.here().rank == 0:
        print(json.dumps(statistics.median(times[WARM:])))
    if dist.is_initialized():
        dist.destroy_process_group()


def launched(kind: str, ranks: int) -> float:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    done = subprocess.run(
        [*(command if ranks > 1 else [sys.executable]), __file__, "--measure", kind],
        capture_output=True, text=True, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    return float(done.stdout.strip().splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--measure", choices=("private", "plain"))
    asked = parser.parse_args()
    if asked.measure:
        measured(asked.measure)
        return
    kinds = [(kind, ranks) for kind in ("private", "plain") for ranks in (1, asked.ranks)]
    found: dict[Any, list[float]] = {kind: [] for kind in kinds}
    for _ in range(asked.rounds):
        for kind in kinds:
            found[kind].append(launched(*kind))
    times = {kind: statistics.median(values) for kind, values in found.items()}
    lines = [
        "# Several ranks",
        "",
        ", ".join(f"{name} {value}" for name, value in machine().items()) + f", torch {torch.__version__}.",
        "",
        f"A step of {sum(p.numel() for p in network().parameters()):,} parameters on {BATCH} records, one thread a rank:",
        "",
        "| | 1 rank | " + f"{asked.ranks} ranks | faster |",
        "|---|---|---|---|",
    ]
    for kind in ("private", "plain"):
        one, many = times[kind, 1], times[kind, asked.ranks]
        lines.append(f"| {kind} | {1e3 * one:.0f} ms | {1e3 * many:.0f} ms | {one / many:.2f} × |")
    over = times["private", asked.ranks] / times["plain", asked.ranks]
    alone = times["private", 1] / times["plain", 1]
    lines += ["", f"Private over plain: {over:.2f} on {asked.ranks} ranks, {alone:.2f} on one."]
    text = "\n".join(lines) + "\n"
    (RESULTS / "ranks.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
