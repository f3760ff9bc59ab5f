"""The CNN of DP-SGD-TS and DPIS on MNIST: ε = 3, δ = 1e-5 in a few minutes on two cores.

DPERM_DATA=/folder/with/mnist python examples/mnist.py [--epsilon 3] [--epochs 20] [--runs 1]
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch
from torch import Tensor, nn

from dperm.data import load_images
from dperm.torch import PrivateTrainer, TemperedSigmoid


def network() -> nn.Module:
    layers = nn.Sequential(
        nn.Conv2d(1, 16, 8, 2, padding=2), TemperedSigmoid(), nn.MaxPool2d(2, 1),
        nn.Conv2d(16, 32, 4, 2), TemperedSigmoid(), nn.MaxPool2d(2, 1),
        nn.Flatten(), nn.Linear(512, 32), TemperedSigmoid(), nn.Linear(32, 10),
    )  # fmt: skip
    return layers.to(memory_format=torch.channels_last)  # pools run at full speed on a CPU, with privacy as without


def pixels(images: Tensor) -> Tensor:
    """(n, 1, 28, 28) on [−1, 1]: a public scaling."""
    return images[:, None].float() / 127.5 - 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epsilon", type=float, default=3.0)
    parser.add_argument("--epochs", type=float, default=20.0)
    parser.add_argument("--runs", type=int, default=1)
    options = parser.parse_args()
    found = load_images("mnist")
    train = pixels(torch.from_numpy(found.train_images)), torch.from_numpy(found.train_labels).long()
    test = pixels(torch.from_numpy(found.test_images)), torch.from_numpy(found.test_labels).long()
    scores: list[float] = []
    for run in range(options.runs):
        torch.manual_seed(run)  # the initial weights; noise and sampling are never seeded
        model = network()
        trainer = PrivateTrainer(
            model,
            nn.CrossEntropyLoss(reduction="none"),
            torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9),
            epsilon=options.epsilon,
            delta=1e-5,
            epochs=options.epochs,
            expected_batch_size=512,
            clipping_norm=0.1,
            public_size=60_000,
            label="mnist",
        )
        started = time.perf_counter()
        trainer.fit(train, ema_decay=0.99)
        with torch.no_grad():
            right = (model(test[0]).argmax(1) == test[1]).double().mean()
        scores.append(100 * float(right))
        print(f"run {run + 1}: {scores[-1]:.2f} % on the test set, {time.perf_counter() - started:.0f} s")
    print(trainer.certificate)
    if len(scores) > 1:
        print(f"mean of {len(scores)} runs: {statistics.mean(scores):.2f} %, standard deviation {statistics.stdev(scores):.2f}")


if __name__ == "__main__":
    main()
