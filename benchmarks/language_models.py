"""Private steps of language models against the same model without privacy, at the same physical batch:
`PYTHONPATH=tests python benchmarks/language_models.py`.

Time: interleaved in one process, medians; gathering, clipping, noise and the optimiser are inside the timer. Memory: what
PyTorch's allocator has handed out at the peak of a step, by its profiler, above what it holds before and after steps, in a
process of its own; the parameters and Adam's moments are not in it. Writes benchmarks/results/language_models.md.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from dperm.gradient import SGD, Clip, Constant, NoisyGradients, Plan, Poisson
from dperm.privacy import Relation
from dperm.report.page import machine
from dperm.torch import ModuleObjective, TorchOptimizer, TorchRecords
from dperm.torch.ranks.tensor_noise import open_channel
from helpers.language_models import LanguageModel, Style, adapted, next_words, words

RESULTS = Path(__file__).parent / "results"
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
ON_CPU = DEVICE.type == "cpu"
BATCH, LENGTH, ROUNDS = 8, 128 if ON_CPU else 512, 7
LLAMA = Style(width=384, hidden=1024, layers=8, vocabulary=2000, key_heads=1)
if not ON_CPU:
    LLAMA = replace(LLAMA, width=1024, hidden=2816, layers=16, vocabulary=32_000)


@dataclass(frozen=True)
class Work:
    """`narrow` has the frozen model in bfloat16; `rank` of its adapters, 0 to train all of the model."""

    rank: int
    narrow: bool = False
    checkpointed: bool = False
    goal: str = ""

    def model(self) -> nn.Module:
        torch.manual_seed(0)
        model: nn.Module = LanguageModel(replace(LLAMA, checkpointed={"use_reentrant": False} if self.checkpointed else None))
        if self.narrow:
            model.to(torch.bfloat16)
        if self.rank:
            model = adapted(model, lambda name: "proj" in name or "feed" in name, self.rank)
        return model.to(DEVICE)


WORK = {
    "full fine-tuning": Work(0, goal="≤ 2×, memory ≤ 1.3×"),
    "full fine-tuning, checkpointed": Work(0, checkpointed=True),
    "LoRA of rank 8, frozen float32": Work(8),
    "LoRA of rank 8, frozen bfloat16": Work(8, narrow=True, goal="≤ 1.4×, memory ≤ 1.3×"),
    "LoRA of rank 8, frozen bfloat16, checkpointed": Work(8, narrow=True, checkpointed=True),
}


def trained(model: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def plain_step(work: Work) -> Callable[[], Any]:
    model, data = work.model(), words(BATCH, LENGTH, LLAMA.vocabulary).to(DEVICE)
    optimizer = torch.optim.AdamW(trained(model), lr=1e-4)

    def step() -> None:
        optimizer.zero_grad()
        next_words(model(data), data).mean().backward()
        optimizer.step()

    return step


def private_step(work: Work) -> Callable[[], Any]:
    model, data = work.model(), words(BATCH, LENGTH, LLAMA.vocabulary).to(DEVICE)
    objective = ModuleObjective(model, next_words, public_size=BATCH)
    objective.prepare(data, data)
    plan = Plan(Poisson(1.0), Clip(1.0), Constant(1.0), SGD(0.01), 100_000, BATCH)  # so that all batches are of one size
    channel = open_channel(None, DEVICE)
    channel.charge(plan.event(Relation.ADD_OR_REMOVE_ONE), "benchmark")
    records = TorchRecords((data.cpu(), data.cpu()), physical_batch_size=10 * BATCH, device=DEVICE)
    gradients = NoisyGradients(plan, objective, records, channel)
    update = TorchOptimizer(torch.optim.AdamW(trained(model), lr=1e-4), objective.flat)

    def step() -> None:
        update.step(objective.theta, gradients(objective.theta), {})

    return step


STEPS = {"plain": plain_step, "private": private_step}


def peak_megabytes(name: str, kind: str) -> float:
    done = subprocess.run([sys.executable, __file__, "--memory", name, kind], capture_output=True, text=True, check=True)
    return float(done.stdout.split()[-1])


def measure_memory(name: str, kind: str) -> None:
    step = STEPS[kind](WORK[name])
    step()
    if not ON_CPU:
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        step()
        print((torch.cuda.max_memory_allocated() - before) / 2**20)
        return
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        step()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.json"
        seen.export_chrome_trace(str(file))
        events = [event for event in json.loads(file.read_text())["traceEvents"] if event.get("name") == "[memory]"]
    events.sort(key=lambda event: event["ts"])
    held = [event["args"]["Total Allocated"] for event in events]
    print((max(held) - held[0]) / 2**20)


def compare(name: str) -> str:
    steps = {kind: make(WORK[name]) for kind, make in STEPS.items()}
    times: dict[str, list[float]] = {kind: [] for kind in steps}
    for round_number in range(ROUNDS + 1):
        for kind, step in steps.items():
            started = time.perf_counter()
            step()
            if not ON_CPU:
                torch.cuda.synchronize()
            if round_number:
                times[kind].append(time.perf_counter() - started)
    plain, private = (1e3 * statistics.median(times[kind]) for kind in STEPS)
    memory = {kind: peak_megabytes(name, kind) for kind in STEPS}
    model = WORK[name].model()
    sizes = [sum(parameter.numel() for parameter in some) / 1e6 for some in (model.parameters(), trained(model))]
    times_more = memory["private"] / memory["plain"]
    return (
        f"| {name} | {sizes[0]:.1f} ({sizes[1]:.2f}) | {plain:.0f} | {private:.0f} (**{private / plain:.2f}×**) "
        f"| {memory['plain']:.0f} | {memory['private']:.0f} (**{times_more:.2f}×**) | {WORK[name].goal} |"
    )


def main() -> None:
    if sys.argv[1:2] == ["--memory"]:
        measure_memory(*sys.argv[2:4])
        return
    warnings.simplefilter("ignore")
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", os.cpu_count() or 1)))
    lines = [
        "| work | parameters, millions (trained) | without privacy, ms | dperm, ms | without privacy, MB | dperm, MB | goal |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name in WORK:
        if len(sys.argv) < 2 or sys.argv[1] in name:
            lines.append(compare(name))
            print(lines[-1], flush=True)
    if len(sys.argv) > 1:
        return
    about = "\n".join(f"- {name}: {value}" for name, value in machine().items())
    if not ON_CPU:
        about += f"\n- GPU: {torch.cuda.get_device_name()}"
    (RESULTS / ("language_models.md" if ON_CPU else "language_models_gpu.md")).write_text(
        f"# Language models\n\nOne step of a Llama-like model (width {LLAMA.width}, {LLAMA.layers} layers, one key head, "
        f"{LLAMA.vocabulary:,} words) on {BATCH} records of {LENGTH} words, with AdamW, private and not: medians of {ROUNDS} "
        "interleaved runs in one process (`PYTHONPATH=tests python benchmarks/language_models.py`). Memory is what PyTorch's "
        "allocator hands out at the peak of a step, above what stays between steps.\n\n"
        + "\n".join(lines)
        + f"\n\n{about}\n- device: {DEVICE.type}, {torch.get_num_threads()} threads\n- torch {metadata.version('torch')}\n"
        f"- load average at the end: {os.getloadavg()[0]:.1f}\n"
    )


if __name__ == "__main__":
    main()
