"""Private steps of networks beside the same model without privacy, Opacus' engines and Opake: `make bench`.

    pip install opacus opake && python benchmarks/networks.py

Interleaved in one process, medians; sampling, gathering, clipping, noise and the optimiser are inside the timer. Peak
memory comes from a process of its own each. An engine that does not take a model is named with its error. Writes
benchmarks/results/networks.md.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from dperm.gradient import SGD, Clip, Constant, NoisyGradients, Plan, Poisson
from dperm.privacy import Relation
from dperm.report.page import machine
from dperm.torch import ModuleObjective, TorchOptimizer, TorchRecords
from dperm.torch.ranks.tensor_noise import open_channel
from network_models import WORK, Work, losses

RESULTS = Path(__file__).parent / "results"
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
CLIP, NOISE, RATE = 1.0, 1.0, 0.01


def work_on_device(name: str) -> Work:
    """The work of this name, on a GPU with eight times the records a batch and more rounds."""
    work = WORK[name]
    return work if DEVICE.type == "cpu" else replace(work, batch=8 * work.batch, rounds=15)


def data(work: Work) -> tuple[Tensor, Tensor]:
    size = round(work.batch / RATE)
    torch.manual_seed(0)
    return work.inputs(size).to(DEVICE), work.targets(size).to(DEVICE)


def trained(model: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def plain_step(work: Work, x: Tensor, y: Tensor) -> Callable[[], Any]:
    model = work.make().to(DEVICE)
    optimizer = torch.optim.SGD(trained(model), lr=0.01)

    def step() -> None:
        chosen = torch.randint(0, len(x), (work.batch,), device=DEVICE)
        optimizer.zero_grad()
        losses(model(x[chosen]), y[chosen]).mean().backward()
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
    update = TorchOptimizer(torch.optim.SGD(trained(model), lr=0.01), objective.flat)

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


class ByRecord(nn.CrossEntropyLoss):
    """The mean cross entropy of each record, averaged where `reduction` says so: what Opacus' ghost clipping asks of a loss."""

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        each = losses(outputs, targets)
        return each.mean() if self.reduction == "mean" else each


def opacus_loop(x: Tensor, y: Tensor, wrapped: Any, optimizer: Any, criterion: Any) -> Callable[[], Any]:
    """A step of Opacus on a batch by Poisson sampling."""

    def step() -> None:
        chosen = torch.nonzero(torch.rand(len(x), device=DEVICE) < RATE).flatten()
        optimizer.zero_grad()
        criterion(wrapped(x[chosen]), y[chosen]).backward()
        optimizer.step()

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
        optimizer: Any = DPOptimizerFastGradientClipping(torch.optim.SGD(trained(wrapped), lr=0.01), **settings)
        criterion: Any = DPLossFastGradientClipping(wrapped, optimizer, ByRecord(), "mean")
    else:
        kinds = {"hooks": GradSampleModule, "expanded weights": GradSampleModuleExpandedWeights}
        wrapped = GradSampleModule(model, force_functorch=True) if mode == "functorch" else kinds[mode](model)
        optimizer = DPOptimizer(torch.optim.SGD(trained(wrapped), lr=0.01), **settings)
        criterion = ByRecord()

    return opacus_loop(x, y, wrapped, optimizer, criterion)


def opacus_sharded_step(work: Work, x: Tensor, y: Tensor, mode: str) -> Callable[[], Any]:
    """Opacus' ghost clipping under `fully_shard`, on one process."""
    from opacus.grad_sample import GradSampleModuleFastGradientClippingFSDP
    from opacus.optimizers import FSDPOptimizerFastGradientClipping
    from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping
    from torch.distributed.fsdp import fully_shard

    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    model = work.make(True).to(DEVICE)
    fully_shard(model)
    settings = {"noise_multiplier": NOISE, "max_grad_norm": CLIP, "expected_batch_size": work.batch}
    wrapped: Any = GradSampleModuleFastGradientClippingFSDP(model, max_grad_norm=CLIP, use_ghost_clipping=True)
    optimizer: Any = FSDPOptimizerFastGradientClipping(torch.optim.SGD(trained(wrapped), lr=0.01), **settings)
    criterion: Any = DPLossFastGradientClipping(wrapped, optimizer, ByRecord(), "mean")

    return opacus_loop(x, y, wrapped, optimizer, criterion)


def opake_step(work: Work, x: Tensor, y: Tensor, mode: str) -> Callable[[], Any]:
    """Opake's functions: the gradient of one record under torch.vmap, clipped and summed, and noise."""
    from opake.dpsgd.clipping import clipped_grad
    from opake.dpsgd.noise import gaussian_noise
    from opake.random import key

    model = work.make().to(DEVICE)
    parameters = {name: parameter.detach() for name, parameter in model.named_parameters() if parameter.requires_grad}
    others = {
        name: value.detach() for name, value in (*model.named_parameters(), *model.named_buffers()) if name not in parameters
    }

    def loss(learned: dict[str, Tensor], one_x: Tensor, one_y: Tensor) -> Tensor:
        return losses(torch.func.functional_call(model, {**others, **learned}, (one_x[None],)), one_y[None])[0]

    gradient, clipping = clipped_grad(loss, clipping_norm=CLIP, batch_argnums=(1, 2), normalize_by=work.batch)
    noise, noises = gaussian_noise(noise_multiplier=NOISE, key=key(1))

    def step() -> None:
        nonlocal clipping, noises
        chosen = torch.nonzero(torch.rand(len(x), device=DEVICE) < RATE).flatten()
        summed, clipping = gradient(parameters, x[chosen], y[chosen], state=clipping)
        noisy, noises = noise(summed, noises)
        for name, slope in noisy.pytree.items():
            parameters[name].sub_(slope, alpha=0.01)

    return step


#: the other libraries' engines, by the name in the table
PEERS: dict[str, Callable[[Work, Tensor, Tensor, str], Callable[[], Any]]] = {
    "hooks": opacus_step, "functorch": opacus_step, "expanded weights": opacus_step, "ghost": opacus_step,
    "ghost under FSDP": opacus_sharded_step, "Opake": opake_step,
}  # fmt: skip


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


def peak_megabytes_on_device(step: Callable[[], Any]) -> float:
    """Memory of the device that a few steps take at their peak, above what is held between them."""
    step()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    for _ in range(3):
        step()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def resident(field: str) -> float:
    with Path("/proc/self/status").open() as status:
        return next(int(line.split()[1]) for line in status if line.startswith(field)) / 1024


def measure_memory(name: str, kind: str) -> None:
    work = work_on_device(name)
    given = (work, *data(work))
    step = {"plain": plain_step, "private": private_step}[kind](*given) if kind not in PEERS else PEERS[kind](*given, kind)
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    for _ in range(4):
        step()
    print(resident("VmHWM") - before)


def compare(name: str) -> str:
    work = work_on_device(name)
    x, y = data(work)
    steps = {"plain": plain_step(work, x, y), "private": private_step(work, x, y), "norms": norms_step(work, x, y)}
    refused: dict[str, str] = {}
    for peer, make in PEERS.items():
        try:
            candidate = make(work, x, y, peer)
            for _ in range(2):
                candidate()
            steps[peer] = candidate
        except Exception as error:  # an engine that does not take the model is not a peer for it
            refused[peer] = type(error).__name__
    times: dict[str, list[float]] = {kind: [] for kind in steps}
    for round_number in range(work.rounds + 2):
        for kind, step in steps.items():
            taken = timed(step)
            if round_number > 1:
                times[kind].append(taken)
    medians = {kind: 1e3 * statistics.median(values) for kind, values in times.items()}
    peers = {kind: value for kind, value in medians.items() if kind in PEERS}
    best = min(peers, key=lambda kind: peers[kind])
    floor = multiplications(steps["private"]) / multiplications(steps["plain"])
    if DEVICE.type == "cuda":
        held = {kind: peak_megabytes_on_device(steps[kind]) for kind in ("plain", "private", *peers)}
    else:
        steps.clear()  # before other processes are measured
        held = {kind: peak_megabytes(name, kind) for kind in ("plain", "private", *peers)}
    plain, memory = medians["plain"], {kind: megabytes / held["plain"] for kind, megabytes in held.items()}
    others = [f"{kind} {value:.0f} ({memory[kind]:.1f}×)" for kind, value in peers.items()]
    others += [f"{kind}: {error}" for kind, error in refused.items()]
    ours = medians["private"]
    cells = (
        name, f"{plain:.1f}", f"{ours:.1f} (**{ours / plain:.2f}×**)", work.goal,
        f"{best} {peers[best]:.0f} ({peers[best] / plain:.1f}×; {peers[best] / ours:.1f}× dperm)", ", ".join(others),
        f"{medians['norms']:.1f} ({medians['norms'] / plain:.2f}×)", f"{memory['private']:.2f}×", f"{floor:.2f}×",
    )  # fmt: skip
    return f"| {' | '.join(cells)} |"


def main() -> None:
    if sys.argv[1:2] == ["--memory"]:
        measure_memory(*sys.argv[2:4])
        return
    warnings.simplefilter("ignore")
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", os.cpu_count() or 1)))
    lines = [
        "| model | without privacy, ms | dperm, ms | goal | fastest peer, ms | all peers, ms (peak memory) | norms only "
        "| peak memory | products |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    with tempfile.TemporaryDirectory() as folder:
        os.environ["DPERM_SPEND_LOG"] = str(Path(folder) / "spend.db")
        for name in WORK:
            if len(sys.argv) < 2 or sys.argv[1] in name:
                lines.append(compare(name))
                print(lines[-1], flush=True)
    if len(sys.argv) > 1:
        return
    about = "\n".join(f"- {name}: {value}" for name, value in machine().items())
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in ("torch", "opacus", "opake"))
    if DEVICE.type == "cuda":
        about += f"\n- GPU: {torch.cuda.get_device_name()}; eight times the records a batch that the table names"
    (RESULTS / ("networks.md" if DEVICE.type == "cpu" else "networks_gpu.md")).write_text(
        "# Speed of networks\n\nOne training step: medians of interleaved runs in one process (`make bench`). Peak memory of "
        "the steps, as a multiple of training without privacy. Products: matrix and convolution products of a private step as a "
        "multiple of a plain one's, the floor where products are all. Peers are Opacus' engines, and Opake's.\n\n"
        + "\n".join(lines)
        + f"\n\n{about}\n- device: {DEVICE.type}, {torch.get_num_threads()} threads\n- {versions}\n"
        f"- load average at the end: {os.getloadavg()[0]:.1f}\n"
    )


if __name__ == "__main__":
    main()
