"""Time of importance sampling against DP-SGD and plain training: whole epochs of the MNIST CNN, interleaved in one process.

DPERM_DATA=/folder/with/mnist python benchmarks/importance.py [--rounds 3] [--threads 2] [--layout channels_last]
"""

from __future__ import annotations

import argparse
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
from mnist import network, pixels

from dperm.data import load_images
from dperm.gradient import SGD
from dperm.gradient.recipes import dp_sgd, dpis
from dperm.privacy import Relation
from dperm.release import spend_log
from dperm.torch import ModuleObjective, TorchRecords
from dperm.torch.ranks.tensor_noise import open_channel

BATCH, SIZE = 512, 60_000
LARGE = 1600  # b/r on MNIST at ε = 1, r being 0.32 on average
LAYOUTS = {"channels_last": torch.channels_last, "contiguous": torch.contiguous_format}
STEPS = round(SIZE / BATCH)


def loss_fn(outputs: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(outputs, targets, reduction="none")


def private(plan, objective: ModuleObjective, records: TorchRecords, epochs: int = 1) -> Iterator[float]:
    """Seconds of an epoch, update included: means over as many `epochs` as make one look at all norms."""
    channel = open_channel(None, torch.device("cpu"))
    channel.charge(plan.event(Relation.ADD_OR_REMOVE_ONE), "benchmark")
    gradients = plan.gradients(objective, records, channel)
    state = plan.update.init(objective.theta)
    while True:
        started = time.perf_counter()
        for _ in range(STEPS * epochs):
            objective.theta.copy_(plan.update.step(objective.theta, gradients(objective.theta), state))
        yield (time.perf_counter() - started) / epochs


def plain(model: nn.Module, data: tuple[Tensor, Tensor]) -> Iterator[float]:
    """The same steps without privacy: batches of exactly 512, PyTorch's own gradient and momentum."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    while True:
        started = time.perf_counter()
        for _ in range(STEPS):
            chosen = torch.randint(0, SIZE, (BATCH,))
            optimizer.zero_grad()
            loss_fn(model(data[0][chosen]), data[1][chosen]).mean().backward()
            optimizer.step()
        yield time.perf_counter() - started


def norms(objective: ModuleObjective, records: TorchRecords) -> Iterator[float]:
    """The epoch's pass for norms alone."""
    while True:
        started = time.perf_counter()
        for batch in records.batches():
            _ = objective.per_example(objective.theta, batch, norms_only=True).norms
        yield time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--layout", choices=LAYOUTS, default="channels_last")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    found = load_images("mnist")
    data = pixels(torch.from_numpy(found.train_images)), torch.from_numpy(found.train_labels).long()
    torch.manual_seed(0)
    start = network().to(memory_format=LAYOUTS[options.layout])
    trained = plain(start, data)
    for _ in range(5):  # to where norms are bimodal, as in most of a run
        next(trained)
    weights = start.state_dict()

    def again() -> nn.Module:
        model = network().to(memory_format=LAYOUTS[options.layout])
        model.load_state_dict(weights)
        return model

    many = 10 * options.rounds
    update = SGD(0.01, 0.9)
    common = {"public_size": SIZE, "clipping_norm": 0.1, "update": update, "average_from": None}
    records = TorchRecords(data)
    runs = {
        f"plain steps of {BATCH}": plain(again(), data),
    }
    for batch in (BATCH, LARGE):
        plan = dp_sgd(noise_multiplier=1.0, epochs=many * batch / BATCH, expected_batch_size=batch, **common)
        runs[f"DP-SGD, b = {batch}"] = private(plan, ModuleObjective(again(), loss_fn), records)
    runs["norms of all records"] = norms(ModuleObjective(again(), loss_fn), TorchRecords(data))
    for k, every in ((1.0, 1), (1.0, 2), (2.0, 1), (2.0, 2)):
        plan = dpis(
            epsilon=3.0, delta=1e-5, epochs=many, expected_batch_size=BATCH, proposal_factor=k, pass_every=every, **common
        )
        runs[f"DPIS, b = {BATCH}, k = {k:g}" + ", norms every other epoch" * (every == 2)] = private(
            plan, ModuleObjective(again(), loss_fn), TorchRecords(data), every
        )
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    with tempfile.TemporaryDirectory() as folder, spend_log(Path(folder) / "log"):
        for number in range(options.rounds + 1):
            for name, run in runs.items():
                value = next(run)
                if number:  # the first is for memory and caches
                    seconds[name].append(value)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    base = medians[f"plain steps of {BATCH}"]
    print(
        f"MNIST CNN ({options.layout}) after 5 epochs, {STEPS} steps an epoch, {options.threads} threads, "
        f"torch {torch.__version__}, numpy {np.__version__}, {platform.machine()}\n"
    )
    print("| epoch of | seconds | ms a step | against plain |\n| --- | --- | --- | --- |")
    for name, value in medians.items():
        print(f"| {name} | {value:.2f} | {1000 * value / STEPS:.1f} | {value / base:.2f}× |")


if __name__ == "__main__":
    main()
