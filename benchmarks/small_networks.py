"""What a private step costs where layers, or batches, are so small that Python takes the time: CPU seconds of one thread.

A whole step of a loop, with its draw of records, noise and optimiser, beside a step without privacy of as many records:
medians of blocks of steps that take turns in one process. Then the networks of `benchmarks/networks.py` on a few records a step,
as on a device on which products cost next to nothing. Writes benchmarks/results/small_networks.md.
"""

from __future__ import annotations

import itertools
import os
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import torch
from torch import Tensor, nn

from dperm.report.page import machine
from dperm.torch import PrivateTrainer
from network_models import WORK as NETWORKS
from networks import data, norms_step, plain_step, private_step

RESULTS = Path(__file__).parent / "results"
RECORDS, FEATURES = 5000, 20
BLOCK = 25  # steps


def layers(*widths: int) -> nn.Module:
    inner = [part for a, b in itertools.pairwise(widths) for part in (nn.Linear(a, b), nn.Tanh())]
    return nn.Sequential(*inner, nn.Linear(widths[-1], 2))


def convolution() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 4, 5)), nn.Conv2d(1, 8, 3), nn.Tanh(), nn.Flatten(), nn.Linear(8 * 2 * 3, 2)
    )  # fmt: skip


WORK: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "20, 32, 2; b = 50": (lambda: layers(FEATURES, 32), 50),
    "20, 256, 2; b = 256": (lambda: layers(FEATURES, 256), 256),
    "20, 512, 512, 2; b = 512": (lambda: layers(FEATURES, 512, 512), 512),
    "convolution of 8 channels, 2; b = 50": (convolution, 50),
}


#: networks of `benchmarks/networks.py` by the beginning of their names: records a step, tokens a record, and rounds
FEW_RECORDS: dict[str, tuple[int, int | None, int]] = {
    "LoRA": (4, 8, 40), "CNN": (8, None, 150), "BiLSTM": (4, None, 60), "Transformer": (4, None, 25),
}  # fmt: skip


def small_step(model: nn.Module, optimizer: torch.optim.Optimizer, inputs: Tensor, targets: Tensor, batch: int) -> None:
    places = torch.randint(0, len(inputs), (batch,))
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(inputs[places]), targets[places]).backward()
    optimizer.step()


def compare(make: Callable[[], nn.Module], batch: int, steps: int = 200) -> tuple[float, float]:
    """Milliseconds of a step without privacy, and of a private one."""
    torch.manual_seed(0)
    inputs, targets = torch.randn(RECORDS, FEATURES), torch.randint(0, 2, (RECORDS,))
    model, private = make(), make()
    plain_optimizer, optimizer = (torch.optim.SGD(net.parameters(), lr=0.1) for net in (model, private))
    trainer = PrivateTrainer(
        private, nn.CrossEntropyLoss(reduction="none"), optimizer,
        noise_multiplier=1.0, delta=1e-6, epochs=steps * batch / RECORDS, expected_batch_size=batch, public_size=RECORDS,
    )  # fmt: skip
    without: list[float] = []
    with_privacy: list[float] = []
    start = time.process_time()
    for step in trainer.steps((inputs, targets)):
        optimizer.step()
        with_privacy.append(time.process_time() - start)
        if step.number % BLOCK == 0:
            for _ in range(BLOCK):
                start = time.process_time()
                small_step(model, plain_optimizer, inputs, targets, batch)
                without.append(time.process_time() - start)
        start = time.process_time()
    return 1e3 * statistics.median(without), 1e3 * statistics.median(with_privacy)


def compare_on_few_records(name: str) -> tuple[str, dict[str, float]]:
    """The network's whole name with its records a step, and milliseconds of a step without privacy, of a private one, and of
    norms alone."""
    batch, tokens, rounds = FEW_RECORDS[name]
    whole = next(each for each in NETWORKS if each.startswith(name))
    work = replace(NETWORKS[whole], batch=batch)
    inputs, targets = data(work)
    if tokens is not None:
        inputs, targets = inputs[:, :tokens], targets[:, :tokens]
    makers = {"plain": plain_step, "private": private_step, "norms": norms_step}
    steps = {kind: make(work, inputs, targets) for kind, make in makers.items()}
    times: dict[str, list[float]] = {kind: [] for kind in steps}
    for number in range(rounds + 3):
        for kind, step in steps.items():
            start = time.process_time()
            step()
            if number >= 3:
                times[kind].append(time.process_time() - start)
    title = f"{whole.split(',')[0]}, b = {batch}" + ("" if tokens is None else f", T = {tokens}")
    return title, {kind: 1e3 * statistics.median(values) for kind, values in times.items()}


def main() -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    lines = ["| widths | without privacy, ms | dperm, ms | times |", "| --- | --- | --- | --- |"]
    with tempfile.TemporaryDirectory() as folder:
        os.environ["DPERM_SPEND_LOG"] = str(Path(folder) / "spend.db")
        for name, (make, batch) in WORK.items():
            plain, private = compare(make, batch)
            lines.append(f"| {name} | {plain:.2f} | {private:.2f} | {private / plain:.1f} |")
            print(lines[-1], flush=True)
        few = ["| network | without privacy, ms | dperm, ms | times | norms alone, ms | times |", "|" + " --- |" * 6]
        for name in FEW_RECORDS:
            title, taken = compare_on_few_records(name)
            plain, private, norms = taken["plain"], taken["private"], taken["norms"]
            few.append(f"| {title} | {plain:.2f} | {private:.2f} | {private / plain:.1f} | {norms:.2f} | {norms / plain:.1f} |")
            print(few[-1], flush=True)
    about = "\n".join(f"- {name}: {value}" for name, value in machine().items())
    (RESULTS / "small_networks.md").write_text(
        "# Steps of small networks\n\n`python benchmarks/small_networks.py`: CPU time of a whole step of a loop, with its draw "
        "of records, noise and optimiser, beside a step without privacy of as many records; one thread, medians of blocks of "
        f"{BLOCK} steps that take turns in one process. Of most of these steps Python takes more time than the products do.\n\n"
        + "\n".join(lines)
        + "\n\n## Few records a step\n\nNetworks of [networks.md](networks.md) on a few records a step, so that the price of "
        "Python shows as it does on a device on which products cost little: medians of steps that take turns in one process. The "
        'private step has a draw by Poisson sampling, the sum of clipped gradients, noise and the optimiser; "norms alone" is '
        "the way forward and back of the engine. Noise for a million parameters is most of the BiLSTM's step.\n\n"
        + "\n".join(few)
        + f"\n\n{about}\n- torch {metadata.version('torch')}\n- load average at the end: {os.getloadavg()[0]:.1f}\n"
    )


if __name__ == "__main__":
    main()
