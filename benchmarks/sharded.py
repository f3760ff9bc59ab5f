"""Private steps of a wide network whose parameters are sharded over ranks, against whole ones on every rank: memory and time.

Writes benchmarks/results/sharded.md. Every rank has one thread; each figure is of a run of its own, and the median of interleaved
rounds. Memory is that of the tensors that a rank holds between steps, without the records: what a system reports of a process on
CPUs is several times as much, for C's allocator keeps what was freed.
`python benchmarks/sharded.py [--ranks 2] [--rounds 3]`
"""

from __future__ import annotations

import argparse
import gc
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
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard

from dperm.report.page import machine
from dperm.torch import PrivateTrainer
from dperm.torch.ranks import Ranks
from dperm.torch.tensors.nested import local

RESULTS = Path(__file__).parent / "results"
WIDTH, BLOCKS, RECORDS, BATCH, STEPS, WARM = 1024, 10, 4_000, 64, 8, 2


def network() -> nn.Sequential:
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()) for _ in range(BLOCKS)]
    return nn.Sequential(*blocks, nn.Linear(WIDTH, 10))


def held(data: tuple[Tensor, ...]) -> float:
    """MB."""
    there: dict[int, int] = {}
    for tensor in [item for item in gc.get_objects() if isinstance(item, Tensor)]:
        storage = local(tensor.detach()).untyped_storage()
        there[storage.data_ptr()] = storage.nbytes()
    return (sum(there.values()) - sum(part.nbytes for part in data)) / 2**20


def measured(kind: str) -> None:
    """Of rank 0: median seconds of a step, and megabytes."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(1)
    data = torch.randn(RECORDS, WIDTH, generator=generator), torch.randint(0, 10, (RECORDS,), generator=generator)
    ranks, model = Ranks.here(), network()
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
    times, most = list[float](), 0.0
    last = time.perf_counter()
    for _ in trainer.steps(data):
        optimizer.step()
        times.append(time.perf_counter() - last)
        if len(times) == STEPS - 1:
            most = held(data)
        last = time.perf_counter()
    if ranks.rank == 0:
        print(json.dumps([statistics.median(times[WARM:]), most]))
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
        "| parameters | a step | held by a rank |",
        "|---|---|---|",
    ]
    for kind, values in found.items():
        seconds, most = (statistics.median(column) for column in zip(*values, strict=True))
        lines.append(f"| {kind} | {1e3 * seconds:.0f} ms | {most:.0f} MB |")
    text = "\n".join(lines) + "\n"
    (RESULTS / "sharded.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
