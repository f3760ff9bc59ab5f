"""Private steps of networks against the same model without privacy and against Opacus' engines: `make bench`.

Interleaved in one process, medians; sampling, gathering, clipping, noise and the optimiser are inside the timer. Peak
memory comes from a process of its own each. Writes benchmarks/results/networks.md.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from dperm.gradient import SGD, Clip, Constant, NoisyGradients, Plan, Poisson
from dperm.privacy import Relation
from dperm.report.page import machine
from dperm.torch import ModuleObjective, TorchOptimizer, TorchRecords
from dperm.torch.ranks.tensor_noise import open_channel

RESULTS = Path(__file__).parent / "results"
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
CLIP, NOISE, RATE = 1.0, 1.0, 0.01


def cnn(private: bool = False) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 8, 2, padding=2), nn.Tanh(), nn.MaxPool2d(2, 1), nn.Conv2d(16, 32, 4, 2), nn.Tanh(), nn.MaxPool2d(2, 1),
        nn.Flatten(), nn.Linear(512, 32), nn.Tanh(), nn.Linear(32, 10),
    )  # fmt: skip


class BiLstm(nn.Module):
    """DPIS, table 1: embedding 100, 32, bidirectional LSTM 32, 16, 2. `lstm` is the layer's class."""

    def __init__(self, lstm: Any = nn.LSTM) -> None:
        super().__init__()
        self.embed, self.enter = nn.Embedding(10_000, 100), nn.Linear(100, 32)
        self.core = lstm(32, 32, batch_first=True, bidirectional=True)
        self.mix, self.leave = nn.Linear(64, 16), nn.Linear(16, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        states, _ = self.core(torch.relu(self.enter(self.embed(tokens))))
        return self.leave(torch.relu(self.mix(states.mean(1))))


def bilstm(private: bool = False) -> nn.Module:
    if not private:
        return BiLstm()
    from opacus.layers import DPLSTM

    return BiLstm(DPLSTM)


class Transformer(nn.Module):
    """4 layers of width 128, 4 heads, feed-forward 512. `attention` replaces the layers' attention."""

    def __init__(self, attention: Any = None) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(1000, 128), nn.Embedding(128, 128)
        layer = nn.TransformerEncoderLayer(128, 4, 512, 0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        self.head = nn.Linear(128, 10)
        if attention is not None:
            for part in self.encoder.layers:
                part.self_attn = attention(128, 4, dropout=0.1, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        places = torch.arange(x.shape[1], device=x.device).expand(len(x), -1)
        return self.head(self.encoder(self.tokens(x) + self.places(places)).mean(1))


def transformer(private: bool = False) -> nn.Module:
    if not private:
        return Transformer()
    from opacus.layers import DPMultiheadAttention

    return Transformer(DPMultiheadAttention)


@dataclass(frozen=True)
class Work:
    make: Callable[..., nn.Module]
    batch: int
    inputs: Callable[[int], Tensor]
    classes: int
    goal: str
    rounds: int


WORK = {
    "CNN, b = 512": Work(cnn, 512, lambda n: torch.rand(n, 1, 28, 28), 10, "≤ 1.3×", 25),
    "BiLSTM, b = 128, T = 80": Work(bilstm, 128, lambda n: torch.randint(0, 10_000, (n, 80)), 2, "≤ 2×, ≥ 3× Opacus", 25),
    "Transformer, b = 64, T = 128": Work(transformer, 64, lambda n: torch.randint(0, 1000, (n, 128)), 10, "≤ 1.15×", 9),
}


def losses(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs, targets, reduction="none")


def data(work: Work) -> tuple[Tensor, Tensor]:
    size = round(work.batch / RATE)
    torch.manual_seed(0)
    return work.inputs(size).to(DEVICE), torch.randint(0, work.classes, (size,), device=DEVICE)


def plain_step(work: Work, x: Tensor, y: Tensor) -> Callable[[], Any]:
    model = work.make().to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step() -> None:
        chosen = torch.randint(0, len(x), (work.batch,), device=DEVICE)
        optimizer.zero_grad()
        F.cross_entropy(model(x[chosen]), y[chosen]).backward()
        optimizer.step()

    return step


def private_step(work: Work, x: Tensor, y: Tensor) -> Callable[[], Any]:
    model = work.make().to(DEVICE)
    objective = ModuleObjective(model, losses, public_size=len(x))
    objective.prepare(x[:8], y[:8])
    plan = Plan(Poisson(RATE), Clip(CLIP), Constant(NOISE), SGD(0.01), 100_000, len(x))
    channel = open_channel(None, DEVICE)
    channel.charge(plan.event(Relation.ADD_OR_REMOVE_ONE), "benchmark")
    records = TorchRecords((x.cpu(), y.cpu()), physical_batch_size=10 * work.batch, device=DEVICE)
    gradients = NoisyGradients(plan, objective, records, channel)
    update = TorchOptimizer(torch.optim.SGD(model.parameters(), lr=0.01), objective.flat)

    def step() -> None:
        update.step(objective.theta, gradients(objective.theta), {})

    return step


def norms_step(work: Work, x: Tensor, y: Tensor) -> Callable[[], Any]:
    objective = ModuleObjective(work.make().to(DEVICE), losses)
    objective.prepare(x[:8], y[:8])

    def step() -> None:
        chosen = torch.randint(0, len(x), (work.batch,), device=DEVICE)
        _ = objective.evaluate(x[chosen], y[chosen], norms_only=True).norms

    return step


def opacus_step(work: Work, x: Tensor, y: Tensor, mode: str) -> Callable[[], Any]:
    """Opacus' own loop: per-sample gradients by hooks or functorch, or ghost clipping, then its optimiser."""
    from opacus.grad_sample import GradSampleModule, GradSampleModuleExpandedWeights, GradSampleModuleFastGradientClipping
    from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping
    from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping

    model = work.make(True).to(DEVICE)
    settings = {"noise_multiplier": NOISE, "max_grad_norm": CLIP, "expected_batch_size": work.batch}
    if mode == "ghost":
        wrapped: Any = GradSampleModuleFastGradientClipping(model, max_grad_norm=CLIP, use_ghost_clipping=True)
        optimizer: Any = DPOptimizerFastGradientClipping(torch.optim.SGD(wrapped.parameters(), lr=0.01), **settings)
        criterion: Any = DPLossFastGradientClipping(wrapped, optimizer, nn.CrossEntropyLoss(), "mean")
    else:
        kinds = {"hooks": GradSampleModule, "expanded weights": GradSampleModuleExpandedWeights}
        wrapped = GradSampleModule(model, force_functorch=True) if mode == "functorch" else kinds[mode](model)
        optimizer = DPOptimizer(torch.optim.SGD(wrapped.parameters(), lr=0.01), **settings)
        criterion = nn.CrossEntropyLoss()

    def step() -> None:
        chosen = torch.nonzero(torch.rand(len(x), device=DEVICE) < RATE).flatten()
        optimizer.zero_grad()
        criterion(wrapped(x[chosen]), y[chosen]).backward()
        optimizer.step()

    return step


def timed(function: Callable[[], Any]) -> float:
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()
    started = time.perf_counter()
    function()
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - started


def multiplications(step: Callable[[], Any]) -> int:
    with FlopCounterMode(display=False) as counter:
        step()
    return counter.get_total_flops()


def peak_megabytes(name: str, kind: str) -> float:
    """Memory that a few steps take at their peak, above what the process held before, in a process of its own."""
    done = subprocess.run([sys.executable, __file__, "--memory", name, kind], capture_output=True, text=True, check=True)
    return float(done.stdout.split()[-1])


def resident(field: str) -> float:
    with Path("/proc/self/status").open() as status:
        return next(int(line.split()[1]) for line in status if line.startswith(field)) / 1024


def measure_memory(name: str, kind: str) -> None:
    work = WORK[name]
    step = {"plain": plain_step, "private": private_step}[kind](work, *data(work))
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    for _ in range(4):
        step()
    print(resident("VmHWM") - before)


def compare(name: str) -> str:
    work = WORK[name]
    x, y = data(work)
    steps = {"plain": plain_step(work, x, y), "private": private_step(work, x, y), "norms": norms_step(work, x, y)}
    engines: dict[str, str] = {}
    for mode in ("hooks", "functorch", "expanded weights", "ghost"):
        try:
            candidate = opacus_step(work, x, y, mode)
            for _ in range(2):
                candidate()
            steps[mode] = candidate
        except Exception as error:  # an engine that does not take the model is not a peer for it
            engines[mode] = type(error).__name__
    times: dict[str, list[float]] = {kind: [] for kind in steps}
    for round_number in range(work.rounds + 2):
        for kind, step in steps.items():
            taken = timed(step)
            if round_number > 1:
                times[kind].append(taken)
    medians = {kind: 1e3 * statistics.median(values) for kind, values in times.items()}
    peers = {kind: value for kind, value in medians.items() if kind not in ("plain", "private", "norms")}
    best = min(peers, key=lambda kind: peers[kind])
    floor = multiplications(steps["private"]) / multiplications(steps["plain"])
    memory = peak_megabytes(name, "private") / peak_megabytes(name, "plain")
    plain = medians["plain"]
    others = ", ".join([*(f"{kind} {value:.0f}" for kind, value in peers.items()), *(f"{m}: {e}" for m, e in engines.items())])
    return (
        f"| {name} | {plain:.1f} | {medians['private']:.1f} (**{medians['private'] / plain:.2f}×**) | {work.goal} "
        f"| {peers[best]:.0f} ({peers[best] / plain:.1f}×; {peers[best] / medians['private']:.1f}× dperm): {others} "
        f"| {medians['norms']:.1f} ({medians['norms'] / plain:.2f}×) | {memory:.2f}× | {floor:.2f}× |"
    )


def main() -> None:
    if sys.argv[1:2] == ["--memory"]:
        measure_memory(*sys.argv[2:4])
        return
    warnings.simplefilter("ignore")
    torch.set_num_threads(os.cpu_count() or 1)
    os.environ["DPERM_SPEND_LOG"] = str(RESULTS.parent / ".spend.db")
    lines = [
        "| model | without privacy, ms | dperm, ms | goal | Opacus, best engine, ms: all | norms only | peak memory | products |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    try:
        for name in WORK:
            if len(sys.argv) < 2 or sys.argv[1] in name:
                lines.append(compare(name))
                print(lines[-1], flush=True)
    finally:
        Path(os.environ["DPERM_SPEND_LOG"]).unlink(missing_ok=True)
    if len(sys.argv) > 1:
        return
    about = "\n".join(f"- {name}: {value}" for name, value in machine().items())
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in ("torch", "opacus"))
    (RESULTS / "networks.md").write_text(
        "# Speed of networks\n\nOne training step: medians of interleaved runs in one process (`make bench`). Peak memory of "
        "the steps, as a multiple of training without privacy. Products: matrix and convolution products of a private step as a "
        "multiple of a plain one's, the floor where products are all.\n\n"
        + "\n".join(lines)
        + f"\n\n{about}\n- device: {DEVICE.type}, {torch.get_num_threads()} threads\n- {versions}\n"
        f"- load average at the end: {os.getloadavg()[0]:.1f}\n"
    )


if __name__ == "__main__":
    main()
