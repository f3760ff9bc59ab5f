"""Views of a record: what a step of four views costs beside a step of four times as many records, and what it buys at ε = 3.

12,000 images of Fashion-MNIST and a small convolutional network, one thread. Times are of the processor, which others may share.
Needs DPERM_DATA. Seeds of the weights only; the noise is fresh. Writes benchmarks/results/views.md.
"""

from __future__ import annotations

import copy
import statistics
import time
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dperm.data import load_images
from dperm.report.page import machine
from dperm.torch import PrivateTrainer

RESULTS = Path(__file__).parent / "results"
EPSILON, DELTA, EPOCHS, BATCH, CLIP, RECORDS, VIEWS = 3.0, 1e-5, 8, 256, 1.0, 12_000, 4
SEEDS = (0, 1)
TIMED = 12  # steps, of which the first few are left out


def network(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 16, 8, 2, padding=3), nn.ReLU(), nn.MaxPool2d(2, 1), nn.Conv2d(16, 32, 4, 2), nn.ReLU(), nn.MaxPool2d(2, 1),
        nn.Flatten(), nn.Linear(512, 32), nn.ReLU(), nn.Linear(32, 10),
    )  # fmt: skip


def prepared(images: Any) -> Tensor:
    return ((torch.tensor(images).float() / 255 - 0.286) / 0.353)[:, None]


def augmented(image: Tensor) -> Tensor:
    """Shifted by up to two pixels each way, and mirrored by a coin."""
    down, right = torch.randint(5, (2,)).tolist()
    moved = F.pad(image, (2, 2, 2, 2), value=-0.81)[:, down : down + 28, right : right + 28]
    return moved.flip(2) if int(torch.randint(2, ())) else moved


def accuracy(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    model.eval()
    with torch.no_grad():
        answers = torch.cat([model(part) for part in images.split(1000)]).argmax(1)
    return float((answers == labels).float().mean())


def trainer(model: nn.Module, batch: int, **settings: Any) -> PrivateTrainer:
    loss, optimizer = nn.CrossEntropyLoss(reduction="none"), torch.optim.SGD(model.parameters(), lr=0.5)
    given: dict[str, Any] = {"epsilon": EPSILON, "epochs": EPOCHS}
    given |= {"delta": DELTA, "expected_batch_size": batch, "clipping_norm": CLIP, "public_size": RECORDS, **settings}
    return PrivateTrainer(model, loss, optimizer, **given)


def seconds_a_step(x: Tensor, y: Tensor, batch: int, **settings: Any) -> float:
    """The median of some steps, with the update."""
    made, times = trainer(network(0), batch, noise_multiplier=1.0, epsilon=None, epochs=TIMED * batch / RECORDS, **settings), []
    start = time.process_time()
    for _ in made.steps((x, y)):
        made.optimizer.step()  # pyright: ignore[reportOptionalMemberAccess]
        times.append(time.process_time() - start)
        start = time.process_time()
    return statistics.median(times[3:])


def seconds_without_privacy(x: Tensor, y: Tensor, batch: int) -> float:
    model, times = network(0), list[float]()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(TIMED):
        start = time.process_time()
        chosen = torch.randint(len(x), (batch,))
        optimizer.zero_grad()
        F.cross_entropy(model(x[chosen]), y[chosen]).backward()
        optimizer.step()
        times.append(time.process_time() - start)
    return statistics.median(times[3:])


def seconds_a_public_step() -> tuple[float, float]:
    """Of a function that does nothing, for a discriminator of a million parameters with Adam; and of a deep copy of it alone."""
    model = nn.Sequential(nn.Linear(784, 768), nn.ReLU(), nn.Linear(768, 512), nn.ReLU(), nn.Linear(512, 1), nn.Flatten(0))
    made = PrivateTrainer(
        model, lambda outputs, targets: outputs + 0 * targets.sum(1), torch.optim.Adam(model.parameters()), noise_multiplier=1.0,
        delta=DELTA, epochs=1, expected_batch_size=32, clipping_norm=1.0, public_size=128,
    )  # fmt: skip
    steps, copies = list[float](), list[float]()
    for _ in made.steps(torch.randn(128, 784)):
        made.optimizer.step()  # pyright: ignore[reportOptionalMemberAccess]
        for _ in range(5):
            start = time.process_time()
            made.public_step(lambda released: None)
            steps.append(time.process_time() - start)
            start = time.process_time()
            copy.deepcopy(model)
            copies.append(time.process_time() - start)
    return statistics.median(steps), statistics.median(copies)


def costs(x: Tensor, y: Tensor) -> list[str]:
    ways = {
        f"without privacy, {VIEWS * BATCH:,} records": lambda: seconds_without_privacy(x, y, VIEWS * BATCH),
        f"one view, {BATCH} records": lambda: seconds_a_step(x, y, BATCH),
        f"one view, {VIEWS * BATCH:,} records": lambda: seconds_a_step(x, y, VIEWS * BATCH),
        f"{VIEWS} views, {BATCH} records": lambda: seconds_a_step(x, y, BATCH, views=VIEWS),
        f"{VIEWS} views by a transform, {BATCH} records": lambda: seconds_a_step(x, y, BATCH, views=VIEWS, transform=augmented),
    }
    found = {name: min(way() for _ in range(3)) for name, way in ways.items()}
    step, copied = seconds_a_public_step()
    return [
        "| a step of | ms of the processor |", "| --- | --- |",
        *(f"| {name} | {1e3 * took:.0f} |" for name, took in found.items()),
        "", "A `public_step` that does nothing, beside a discriminator of a million parameters with Adam: "
        f"{1e3 * step:.1f} ms; a deep copy of it alone: {1e3 * copied:.1f} ms.",
    ]  # fmt: skip


def accuracies(x: Tensor, y: Tensor, tests: tuple[Tensor, Tensor]) -> list[str]:
    ways: dict[str, dict[str, Any]] = {
        "as they are": {},
        "augmented, one view": {"transform": augmented},
        f"augmented, {VIEWS} views": {"transform": augmented, "views": VIEWS},
    }
    lines, spread = ["| images | test accuracy, by seed | mean | seconds of the processor |", "| --- | --- | --- | --- |"], 0.0
    for name, settings in ways.items():
        scores, start = list[float](), time.process_time()
        for seed in SEEDS:
            model = network(seed)
            trainer(model, BATCH, **settings).fit((x, y), progress=False)
            scores.append(100 * accuracy(model, *tests))
        took = (time.process_time() - start) / len(SEEDS)
        told = ", ".join(f"{score:.1f}" for score in scores)
        lines.append(f"| {name} | {told} | {statistics.mean(scores):.1f} | {took:.0f} |")
        spread = max(spread, max(scores) - min(scores))
    return [*lines, "", f"Seeds of one row differ by up to {spread:.1f} points: smaller differences between rows say nothing."]


def main() -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    images = load_images("fashion_mnist")
    x, y = prepared(images.train_images[:RECORDS]), torch.tensor(images.train_labels[:RECORDS]).long()
    tests = prepared(images.test_images), torch.tensor(images.test_labels).long()
    head = (
        f"# Views of a record\n\n{RECORDS:,} images of Fashion-MNIST, a small convolutional network (26,010 parameters). "
        f"{machine()['machine']}, one thread, torch {torch.__version__}. `python benchmarks/views.py`.\n\n"
    )
    told = (
        f"ε = {EPSILON:g}, δ = {DELTA:g}, {EPOCHS} epochs of {BATCH}, C = {CLIP:g}, SGD(0.5). Augmentation: shifts of up to two "
        "pixels, mirrored by a coin.\n\n"
    )
    parts = [head, "\n".join(costs(x, y)), "\n\n", told, "\n".join(accuracies(x, y, tests)), "\n"]
    (RESULTS / "views.md").write_text("".join(parts), encoding="utf-8")


if __name__ == "__main__":
    main()
