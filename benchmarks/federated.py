"""DP-FedAvg on Fashion-MNIST: 1,000 simulated clients of 60 images, cohorts of 50 by Poisson sampling, 5 local steps, 100 rounds.

Clients have images of all classes, or of two shards sorted by class (McMahan et al. 2017). Settings are the first that were
tried, on training images alone. Needs DPERM_DATA. Writes benchmarks/results/federated.md.
"""

from __future__ import annotations

import itertools
import time
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dperm.data import load_images
from dperm.gradient.recipes import dp_fedavg
from dperm.report.page import machine
from dperm.torch import PrivateTrainer

RESULTS = Path(__file__).parent / "results"
CLIENTS, COHORT, ROUNDS, STEPS, BATCH, DELTA = 1000, 50, 100, 5, 20, 1e-5
CLIP, LOCAL_RATE = 0.5, 0.2
WAYS: dict[str, dict[str, Any]] = {
    "ε = 3": {"epsilon": 3.0},
    "ε = 8": {"epsilon": 8.0},
    "no noise, clipped": {"noise_multiplier": 1e-9},
}


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 8, 5, 2), nn.ReLU(), nn.Conv2d(8, 16, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(400, 10)
    )  # fmt: skip


def clients_of(labels: Tensor, shards: bool) -> np.ndarray:
    """Which client holds each image: 60 at random, or two shards of 30 among all images sorted by class."""
    if not shards:
        return np.random.default_rng(0).permutation(len(labels)) % CLIENTS
    groups = np.empty(len(labels), dtype=np.int64)
    by_class = np.argsort(labels.numpy(), kind="stable")
    groups[by_class] = np.random.default_rng(0).permutation(2 * CLIENTS).repeat(30) % CLIENTS
    return groups


def trained(x: Tensor, y: Tensor, groups: np.ndarray, **budget: Any) -> tuple[nn.Module, PrivateTrainer]:
    model = network()
    plan = partial(
        dp_fedavg, rounds=ROUNDS, expected_cohort=COHORT, local_steps=STEPS, local_batch_size=BATCH,
        local_learning_rate=LOCAL_RATE, clipping_norm=CLIP,
    )  # fmt: skip
    server = torch.optim.SGD(model.parameters(), lr=1.0)
    trainer = PrivateTrainer(
        model,
        nn.CrossEntropyLoss(reduction="none"),
        server,
        plan,
        delta=DELTA,
        public_size=CLIENTS,
        max_rows_per_unit=60,
        **budget,
    )
    trainer.fit((x, y), groups=groups, progress=False)
    return model, trainer


def main() -> None:
    warnings.simplefilter("ignore")
    images = load_images("fashion_mnist")
    x, y, test, answers = (
        torch.tensor(part) for part in (images.train_images, images.train_labels, images.test_images, images.test_labels)
    )
    x, test = (((part.float() / 255 - 0.286) / 0.353)[:, None] for part in (x, test))
    y, answers = y.long(), answers.long()
    lines = [
        "| clients have | privacy | noise multiplier | ε | test accuracy, % | seconds | of CPU |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for shards, (name, budget) in itertools.product((False, True), WAYS.items()):
        start, used = time.perf_counter(), time.process_time()
        model, trainer = trained(x, y, clients_of(y, shards), **budget)
        took, used = time.perf_counter() - start, time.process_time() - used
        with torch.no_grad():
            right = torch.cat([model(part) for part in test.split(1000)]).argmax(1) == answers
        plan: Any = trainer.plan
        certificate: Any = trainer.certificate
        private = "epsilon" in budget
        lines.append(
            f"| {'two shards' if shards else 'all classes'} | {name} | "
            f"{plan.noise.noise_multiplier if private else 0:.3f} | {certificate.epsilon if private else float('inf'):.3f} | "
            f"{100 * float(right.float().mean()):.1f} | {took:.0f} | {used:.0f} |"
        )
        print(lines[-1], flush=True)
        (RESULTS / "federated.md").write_text(heading() + "\n".join(lines) + "\n", encoding="utf-8")


def heading() -> str:
    numbers = sum(parameter.numel() for parameter in network().parameters())
    return (
        f"# DP-FedAvg, Fashion-MNIST\n\n{CLIENTS:,} simulated clients of 60 images, cohorts of {COHORT} by Poisson sampling, "
        f"{STEPS} local steps on {BATCH} images at {LOCAL_RATE}, {ROUNDS} rounds, C = {CLIP}, δ = {DELTA:g}; the server "
        f"averages; {numbers:,} parameters; one run each. {machine()['machine']}, {torch.get_num_threads()} threads, torch "
        f"{torch.__version__}; seconds are those of a machine that other work shared, and of CPU those of this process.\n\n"
    )


if __name__ == "__main__":
    main()
