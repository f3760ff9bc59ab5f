"""Correlated noise beside DP-SGD on images, in pairs: a linear model on scattering features, and a convolutional network.

    python benchmarks/correlated_images.py [--only cifar10-scattering] [--pairs 3]      # DPERM_DATA names the folder of the data

Both methods have the same batches, epochs, clipping norm, momentum and δ, and the same first weights in a pair; correlated noise
has as many bands as its public rule chooses. Each has the learning rate of a grid that is best for it at this ε on 5,000 training
images that are held out, in a run that is not counted. Results that correlated_images.json has are not found again.
Writes benchmarks/results/correlated_images.md.
"""

from __future__ import annotations

import argparse
import functools
import json
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import stats
from torch import Tensor, nn

from dperm.data import load_images
from dperm.gradient import Plan
from dperm.gradient.recipes import dp_sgd
from dperm.report.page import machine
from dperm.torch import PrivateTrainer, scattering_features

RESULTS = Path(__file__).parent / "results"
EPSILONS, DELTA, MOMENTUM, HELD_OUT = (1.0, 2.0, 4.0, 8.0), 1e-5, 0.9, 5000
METHODS: dict[str, Any] = {"DP-SGD": dp_sgd, "correlated": functools.partial(dp_sgd, correlation="banded")}

Images = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Setting:
    """A data set with a model."""

    dataset: str
    model: Callable[[], nn.Module]
    scattering: bool
    epochs: int
    batch: int
    clipping_norm: float
    rates: tuple[float, ...]
    epsilons: tuple[float, ...] = EPSILONS

    @property
    def said(self) -> str:
        rates = ", ".join(f"{rate:g}" for rate in self.rates)
        return f"{self.epochs} epochs of {self.batch}, clipping norm {self.clipping_norm:g}, learning rates {rates}"

    @functools.cached_property
    def parts(self) -> tuple[Images, Images]:
        """Training and test images, prepared."""
        data = load_images(self.dataset)
        train = self._prepared(data.train_images), torch.tensor(data.train_labels).long()
        return train, (self._prepared(data.test_images), torch.tensor(data.test_labels).long())

    def _prepared(self, images: Any) -> Tensor:
        scaled = torch.tensor(images).float().reshape(len(images), -1, *images.shape[-2:]) / 255
        if not self.scattering:
            return (scaled - 0.4) / 0.3
        around = (32 - scaled.shape[-1]) // 2
        padded = nn.functional.pad(scaled, (around,) * 4)
        features = scattering_features(padded, 2)
        return nn.functional.group_norm(features, features.shape[1] // 3).flatten(1)


def linear(channels: int) -> nn.Module:
    layer = nn.Linear(channels * 81 * 64, 10)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 8, 2, padding=3), nn.Tanh(), nn.MaxPool2d(2, 1), nn.Conv2d(16, 32, 4, 2), nn.Tanh(), nn.MaxPool2d(2, 1),
        nn.Flatten(), nn.Linear(512, 32), nn.Tanh(), nn.Linear(32, 10),
    )  # fmt: skip


SETTINGS = {
    "cifar10-scattering": Setting("cifar10", lambda: linear(3), True, 5, 1000, 0.1, (1.0, 2.0, 4.0, 8.0)),
    "fashion-scattering": Setting("fashion_mnist", lambda: linear(1), True, 5, 1000, 0.1, (1.0, 2.0, 4.0, 8.0)),
    "fashion-cnn": Setting("fashion_mnist", convolutional, False, 5, 500, 1.0, (0.1, 0.2, 0.4, 0.8), (8.0,)),
}


def accuracy(
    setting: Setting, method: str, epsilon: float, rate: float, seed: int, train: Images, test: Images
) -> dict[str, Any]:
    """Of one training, in %, with the number of bands."""
    torch.manual_seed(seed)
    model = setting.model()
    optimizer = torch.optim.SGD(model.parameters(), rate, momentum=MOMENTUM)
    trainer = PrivateTrainer(
        model, nn.CrossEntropyLoss(reduction="none"), optimizer, METHODS[method], epsilon=epsilon, delta=DELTA,
        epochs=setting.epochs, expected_batch_size=setting.batch, clipping_norm=setting.clipping_norm, public_size=len(train[0]),
    )  # fmt: skip
    began = time.perf_counter()
    trainer.fit(train, progress=False)
    model.eval()
    with torch.no_grad():
        right = torch.cat([model(part) for part in test[0].split(1000)]).argmax(1) == test[1]
    assert isinstance(trainer.plan, Plan)
    bands = trainer.plan.strategy.bands(trainer.plan.steps)
    return {"accuracy": 100 * float(right.float().mean()), "bands": bands, "seconds": time.perf_counter() - began}


class Cells:
    """Results by what they are of, kept on disk."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.known: dict[str, dict[str, Any]] = json.loads(path.read_text()) if path.exists() else {}

    def get(self, name: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        if name not in self.known:
            self.known[name] = make()
            self._path.write_text(json.dumps(self.known, indent=0, sort_keys=True))
            print(name, self.known[name], flush=True)
        return self.known[name]


def compared(name: str, pairs: int, cells: Cells) -> list[str]:
    """Rows of a table: a setting at each ε."""
    setting, lines = SETTINGS[name], list[str]()

    def held_out(epsilon: float, method: str, rate: float) -> float:
        def run() -> dict[str, Any]:
            (x, y), _ = setting.parts
            return accuracy(setting, method, epsilon, rate, 100, (x[:-HELD_OUT], y[:-HELD_OUT]), (x[-HELD_OUT:], y[-HELD_OUT:]))

        return float(cells.get(f"{name}, {epsilon:g}, {method}, held out, {rate:g}", run)["accuracy"])

    def paired(epsilon: float, method: str, rate: float, seed: int) -> dict[str, Any]:
        label = f"{name}, {epsilon:g}, {method}, pair {seed}"
        return cells.get(label, lambda: accuracy(setting, method, epsilon, rate, seed, *setting.parts))

    for epsilon in sorted(setting.epsilons, reverse=True):
        rates = {method: max(setting.rates, key=functools.partial(held_out, epsilon, method)) for method in METHODS}
        found = {method: [paired(epsilon, method, rate, seed) for seed in range(pairs)] for method, rate in rates.items()}
        scores = {method: np.array([each["accuracy"] for each in runs]) for method, runs in found.items()}
        gains = scores["correlated"] - scores["DP-SGD"]
        half = stats.t.ppf(0.975, pairs - 1) * gains.std(ddof=1) / np.sqrt(pairs)
        lines.insert(
            0,
            f"| {name}, {epsilon:g} | {scores['DP-SGD'].mean():.2f} ({rates['DP-SGD']:g}) | {scores['correlated'].mean():.2f} "
            f"({rates['correlated']:g}) | {found['correlated'][0]['bands']} | {gains.mean():+.2f} ± {half:.2f} |",
        )
    return lines


def main() -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--only", choices=sorted(SETTINGS), nargs="*", default=sorted(SETTINGS))
    options.add_argument("--pairs", type=int, default=3)
    asked = options.parse_args()
    cells = Cells(RESULTS / "correlated_images.json")
    rows = [row for name in asked.only for row in compared(name, asked.pairs, cells)]
    described = [f"- {name}: {SETTINGS[name].said}" for name in asked.only]
    text = [
        "# Correlated noise beside DP-SGD on images", "", f"`python benchmarks/correlated_images.py --pairs {asked.pairs}`", "",
        f"Test accuracy in %, with the learning rate that was best for each on held-out images; the gain in {asked.pairs} pairs, "
        "with its 95 % interval.", "",
        "| setting, ε | DP-SGD | correlated | bands | gain |", "| --- | --- | --- | --- | --- |", *rows, "", *described, "",
        f"{machine()['machine']}, one thread, torch {torch.__version__}.",
    ]  # fmt: skip
    (RESULTS / "correlated_images.md").write_text("\n".join(text) + "\n", encoding="utf-8")
    print("\n".join(text))


if __name__ == "__main__":
    main()
