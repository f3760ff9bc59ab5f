"""The same short script here and in Opacus: 12,000 images of Fashion-MNIST, a small convolutional network, ε = 3.

Needs the peers' environment (`make bench` makes it) and DPERM_DATA. Seeds of the weights only; the noise is fresh. Writes
benchmarks/results/fashion.md.
"""

from __future__ import annotations

import statistics
import time
import warnings
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dperm.data import load_images
from dperm.report.page import machine
from dperm.torch import PrivateTrainer

RESULTS = Path(__file__).parent / "results"
EPSILON, DELTA, EPOCHS, BATCH, CLIP, RECORDS = 3.0, 1e-5, 10, 256, 1.0, 12_000
OPTIMISERS = {
    "SGD(0.5)": lambda model: torch.optim.SGD(model.parameters(), lr=0.5),
    "Adam(0.002)": lambda model: torch.optim.Adam(model.parameters(), lr=0.002),
    "SGD(0.1)": lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
}
SEEDS = (0, 1)


def network(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 16, 8, 2, padding=3), nn.ReLU(), nn.MaxPool2d(2, 1), nn.Conv2d(16, 32, 4, 2), nn.ReLU(), nn.MaxPool2d(2, 1),
        nn.Flatten(), nn.Linear(512, 32), nn.ReLU(), nn.Linear(32, 10),
    )  # fmt: skip


def prepared(images: Any) -> Tensor:
    return ((torch.tensor(images).float() / 255 - 0.286) / 0.353)[:, None]


def accuracy(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    model.eval()
    with torch.no_grad():
        answers = torch.cat([model(part) for part in images.split(1000)]).argmax(1)
    return float((answers == labels).float().mean())


def here(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor, size: int | None = None) -> nn.Module:
    loss = nn.CrossEntropyLoss(reduction="none")
    trainer = PrivateTrainer(
        model, loss, optimizer, epsilon=EPSILON, delta=DELTA, epochs=EPOCHS, expected_batch_size=BATCH, clipping_norm=CLIP,
        public_size=size,
    )  # fmt: skip
    trainer.fit((x, y), progress=False)
    return model


def opacus(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> nn.Module:
    from opacus import PrivacyEngine

    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=BATCH)
    model, optimizer, loader = PrivacyEngine().make_private_with_epsilon(
        module=model, optimizer=optimizer, data_loader=loader, target_epsilon=EPSILON, target_delta=DELTA, epochs=EPOCHS,
        max_grad_norm=CLIP,
    )  # fmt: skip
    model.train()
    for _ in range(EPOCHS):
        for inputs, targets in loader:
            if len(inputs):
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(inputs), targets).backward()
                optimizer.step()
    return model


def main() -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    images = load_images("fashion_mnist")
    x, y = prepared(images.train_images[:RECORDS]), torch.tensor(images.train_labels[:RECORDS]).long()
    tests = prepared(images.test_images), torch.tensor(images.test_labels).long()
    ways = {
        f"Opacus {metadata.version('opacus')}": opacus,
        "dperm": here,
        "dperm, n stated": lambda *given: here(*given, size=RECORDS),
    }
    lines = ["| optimizer | training | test accuracy, by seed | mean | seconds |", "| --- | --- | --- | --- | --- |"]
    for name, make in OPTIMISERS.items():
        for way, train in ways.items():
            scores, start = list[float](), time.perf_counter()
            for seed in SEEDS:
                model = network(seed)
                scores.append(100 * accuracy(train(model, make(model), x, y), *tests))
            took = (time.perf_counter() - start) / len(SEEDS)
            told = ", ".join(f"{score:.1f}" for score in scores)
            lines.append(f"| {name} | {way} | {told} | {statistics.mean(scores):.1f} | {took:.0f} |")
    head = (
        f"# Fashion-MNIST, {RECORDS:,} images\n\nε = {EPSILON:g}, δ = {DELTA:g}, {EPOCHS} epochs of {BATCH}, C = {CLIP:g}. "
        f"{machine()['machine']}, one thread, torch {torch.__version__}.\n\n"
    )
    (RESULTS / "fashion.md").write_text(head + "\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
