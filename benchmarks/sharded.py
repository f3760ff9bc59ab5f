"""Private steps of a wide network whose parameters are sharded over ranks, against whole ones on every rank: memory and time.

Writes benchmarks/results/sharded.md. Every rank has one thread; each figure is of a run of its own, and the median of interleaved
rounds. Memory is the most that a rank's process held, less what it held before the model was made.
`python benchmarks/sharded.py [--ranks 2] [--rounds 3]`
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
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

from dperm.report.page import machine
from dperm.torch import PrivateTrainer
from dperm.torch.ranks import Ranks

RESULTS = Path(__file__).parent / "results"
WIDTH, BLOCKS, RECORDS, BATCH, STEPS, WARM = 1536, 12, 4_000, 64, 10, 2


def network() -> nn.Sequential:
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()) for _ in range(BLOCKS)]
    return nn.Sequential(*blocks, nn.Linear(WIDTH, 10))


def held(what: str) -> float:
    """MB, by the system."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(what))
    return int(line.split()[1]) / 1024


def measured(kind: str) -> None:
    """Of rank 0: median seconds of a step, and megabytes."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(1)
    data = torch.randn(RECORDS, WIDTH, generator=generator), torch.randint(0, 10, (RECORDS,), generator=generator)
    ranks, before = Ranks.here(), held("VmRSS")
    model = network()
    if kind == "sharded":
        mesh = dist.init_device_mesh("cpu", (ranks.size,))
        for block in model[:-1]:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    trainer = PrivateTrainer(
        model, nn.CrossEntropyLoss(reduction="none"), optimizer, physical_batch_size=BATCH,
        noise_multiplier=1.0, delta=1e-5, public_size=RECORDS, expected_batch_size=BATCH, epochs=STEPS * BATCH / RECORDS,
    )  # fmt: skip
    times: list[float] = []
    last = time.perf_counter()
    for _ in trainer.steps(data):
        optimizer.step()
        now = time.perf_counter()
        times.append(now - last)
        last = now
    if ranks.rank == 0:
        print(json.dumps([statistics.median(times[WARM:]), held("VmHWM") - before, held("VmRSS") - before]))
    dist.destroy_process_group()


def launched(kind: str, ranks: int) -> list[float]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    done = subprocess.run(
        [*command, __file__, "--measure", kind], capture_output=True, text=True, check=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    return json.loads(done.stdout.strip().splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--measure", choices=("whole", "sharded"))
    asked = parser.parse_args()
    if asked.measure:
        measured(asked.measure)
        return
    found: dict[str, list[list[float]]] = {"whole": [], "sharded": []}
    for _ in range(asked.rounds):
        for kind, values in found.items():
            values.append(launched(kind, asked.ranks))
    size = sum(p.numel() for p in network().parameters())
    lines = [
        "# Sharded parameters",
        "",
        ", ".join(f"{name} {value}" for name, value in machine().items()) + f", torch {torch.__version__}.",
        "",
        f"Adam on {size:,} parameters ({4 * size / 2**20:.0f} MB) in {BLOCKS} blocks, {BATCH} records a step, {asked.ranks} "
        "ranks of one thread:",
        "",
        "| parameters | a step | at most held by a rank | at the end |",
        "|---|---|---|---|",
    ]
    for kind, values in found.items():
        seconds, most, end = (statistics.median(column) for column in zip(*values, strict=True))
        lines.append(f"| {kind} | {1e3 * seconds:.0f} ms | {most:.0f} MB | {end:.0f} MB |")
    text = "\n".join(lines) + "\n"
    (RESULTS / "sharded.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
