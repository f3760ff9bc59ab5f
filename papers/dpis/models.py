"""The networks of the paper's section 5.2: those of Tramèr & Boneh 2021 on images, but for the CNN on grey pixels."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from dperm.torch import TemperedSigmoid

__all__ = ["make_model"]

_WORDS = 20_000  # hash buckets, where the paper counts words


def make_model(dataset: str, kind: str) -> nn.Module:
    """A network with initial weights from torch's global generator."""
    if dataset == "imdb":
        return ReviewNetwork(TemperedSigmoid() if kind == "tanh" else nn.ReLU())
    coloured = dataset == "cifar10"
    if kind == "scattering" and not coloured:
        return scattering_network()
    activation = TemperedSigmoid if kind == "tanh" else nn.ReLU  # a tempered sigmoid's defaults are tanh
    if kind == "scattering":
        network = coloured_scattering_network()
    else:
        network = coloured_pixel_network(activation) if coloured else pixel_network(activation)
    return network.to(memory_format=torch.channels_last)  # convolutions and pools are up to several times as fast so on a CPU


def pixel_network(activation: Callable[[], nn.Module]) -> nn.Module:
    """The CNN of Papernot et al. 2021 for 28 × 28 grey pixels."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 8, 2, padding=2), activation(), nn.MaxPool2d(2, 1),
        nn.Conv2d(16, 32, 4, 2), activation(), nn.MaxPool2d(2, 1),
        nn.Flatten(), nn.Linear(512, 32), activation(), nn.Linear(32, 10),
    )  # fmt: skip


def coloured_pixel_network(activation: Callable[[], nn.Module]) -> nn.Module:
    """Tramèr & Boneh's CNN (2021) for 32 × 32 coloured pixels: 550,570 weights."""
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), activation(), nn.Conv2d(32, 32, 3, padding=1), activation(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1), activation(), nn.Conv2d(64, 64, 3, padding=1), activation(), nn.MaxPool2d(2),
        nn.Conv2d(64, 128, 3, padding=1), activation(), nn.Conv2d(128, 128, 3, padding=1), activation(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(2048, 128), activation(), nn.Linear(128, 10),
    )  # fmt: skip


def scattering_network() -> nn.Module:
    """Tramèr & Boneh's CNN (2021) on 81 scattering channels of 7 × 7, normalised in 27 groups: no statistics to charge."""
    return nn.Sequential(
        nn.GroupNorm(27, 81, affine=False),
        nn.Conv2d(81, 16, 3, 2, padding=1), nn.Tanh(),
        nn.Conv2d(16, 32, 3, 1, padding=1), nn.Tanh(),
        nn.Flatten(), nn.Linear(512, 32), nn.Tanh(), nn.Linear(32, 10),
    )  # fmt: skip


def coloured_scattering_network() -> nn.Module:
    """Tramèr & Boneh's CNN (2021) on 243 scattering channels of 8 × 8, normalised beforehand."""
    return nn.Sequential(
        nn.Conv2d(243, 64, 3, padding=1), nn.Tanh(), nn.MaxPool2d(2),
        nn.Conv2d(64, 64, 3, padding=1), nn.Tanh(),
        nn.Flatten(), nn.Linear(1024, 10),
    )  # fmt: skip


class ReviewNetwork(nn.Module):
    """Table 1: a frozen embedding of 100, 32 units, a bidirectional LSTM of 32 units, 16 units, 2 units.

    The paper's embedding is GloVe's. This one is random: words are told apart, nothing more is known of them.
    """

    def __init__(self, activation: nn.Module) -> None:
        super().__init__()
        self.embedding = nn.Embedding(_WORDS, 100, padding_idx=0)
        self.embedding.requires_grad_(False)
        self.first = nn.Linear(100, 32)
        self.lstm = nn.LSTM(32, 32, batch_first=True, bidirectional=True)
        self.second = nn.Linear(64, 16)
        self.last = nn.Linear(16, 2)
        self.activation = activation

    def forward(self, words: Tensor) -> Tensor:
        inner = self.activation(self.first(self.embedding(words)))
        _, (hidden, _) = self.lstm(inner)
        return self.last(self.activation(self.second(torch.cat([hidden[0], hidden[1]], dim=1))))
