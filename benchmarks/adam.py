"""Adam, and Adam without what noise adds to its second moment (AdamBC), beside SGD, with independent and with correlated noise.

    python benchmarks/adam.py         # DPERM_DATA names the folder of the data sets

A network of one layer of 32 on 20,000 images of Fashion-MNIST, 5 epochs of 256, clipping norm 1: test accuracy in %, the mean of
two seeds of the weights. Writes benchmarks/results/adam.md.
"""

from __future__ import annotations

import functools
import statistics
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dperm.data import load_images
from dperm.gradient.recipes import dp_sgd
from dperm.report.page import machine
from dperm.torch import AdamBC, PrivateTrainer

RESULTS = Path(__file__).parent / "results"
RECORDS, DELTA, SEEDS = 20_000, 1e-5, (0, 1)
OPTIMISERS: dict[str, tuple[Any, tuple[float, ...]]] = {
    "SGD, momentum 0.9": (functools.partial(torch.optim.SGD, momentum=0.9), (0.1, 0.3, 1.0)),
    "Adam": (torch.optim.Adam, (0.001, 0.003, 0.01, 0.03)),
    "AdamBC": (AdamBC, (0.0003, 0.001, 0.003, 0.01, 0.03)),
}
NOISES: dict[str, Any] = {"independent": dp_sgd, "correlated": functools.partial(dp_sgd, correlation="banded")}


def prepared(images: Any) -> Tensor:
    return (torch.tensor(images).float().reshape(len(images), -1) / 255 - 0.286) / 0.353


def main() -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    images = load_images("fashion_mnist")
    x, y = prepared(images.train_images[:RECORDS]), torch.tensor(images.train_labels[:RECORDS]).long()
    tests, answers = prepared(images.test_images), torch.tensor(images.test_labels).long()

    def accuracy(make: Any, rate: float, plan: Any, epsilon: float, seed: int) -> float:
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(784, 32), nn.Tanh(), nn.Linear(32, 10))
        trainer = PrivateTrainer(
            model, nn.CrossEntropyLoss(reduction="none"), make(model.parameters(), lr=rate), plan, epsilon=epsilon, delta=DELTA,
            epochs=5, expected_batch_size=256, clipping_norm=1.0, public_size=len(x),
        )  # fmt: skip
        trainer.fit((x, y), progress=False)
        with torch.no_grad():
            return 100 * float((model(tests).argmax(1) == answers).float().mean())

    lines = ["| ε, noise | optimiser | accuracy by learning rate |", "| --- | --- | --- |"]
    for epsilon in (2.0, 8.0):
        for noise, plan in NOISES.items():
            for name, (make, rates) in OPTIMISERS.items():
                found = [statistics.mean(accuracy(make, rate, plan, epsilon, seed) for seed in SEEDS) for rate in rates]
                cells = ", ".join(f"{score:.1f} at {rate:g}" for rate, score in zip(rates, found, strict=True))
                lines.append(f"| {epsilon:g}, {noise} | {name} | {cells} |")
                print(lines[-1], flush=True)
    head = f"# Adam and AdamBC\n\n{(__doc__ or '').split('sets')[1].split('Writes')[0].strip()}\n\n"
    foot = f"\n\n{machine()['machine']}, one thread, torch {torch.__version__}.\n"
    (RESULTS / "adam.md").write_text(head + "\n".join(lines) + foot, encoding="utf-8")


if __name__ == "__main__":
    main()
