"""The networks of the paper's section 5.2."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dperm.torch import TemperedSigmoid

__all__ = ["make_model"]

_WORDS = 20_000  # hash buckets, where the paper counts words


def make_model(dataset: str, kind: str) -> nn.Module:
    """A network with initial weights from torch's global generator."""
    if dataset == "imdb":
        return ReviewNetwork(TemperedSigmoid() if kind == "tanh" else nn.ReLU())
    if kind == "scattering":
        return scattering_network(dataset)
    activation = TemperedSigmoid if kind == "tanh" else nn.ReLU  # a tempered sigmoid's defaults are tanh
    network = nn.Sequential(
        nn.Conv2d(1, 16, 8, 2, padding=2), activation(), nn.MaxPool2d(2, 1),
        nn.Conv2d(16, 32, 4, 2), activation(), nn.MaxPool2d(2, 1),
        nn.Flatten(), nn.Linear(512, 32), activation(), nn.Linear(32, 10),
    )  # fmt: skip
    return network.to(memory_format=torch.channels_last)  # the pools are several times as fast so on a CPU


def scattering_network(dataset: str) -> nn.Module:
    """The CNN on 81 scattering channels of 7 × 7 (Tramèr & Boneh 2021), which groups of 27 normalise: no statistics."""
    return nn.Sequential(
        nn.GroupNorm(27, 81, affine=False),
        nn.Conv2d(81, 16, 3, 2, padding=1), nn.Tanh(),
        nn.Conv2d(16, 32, 3, 1, padding=1), nn.Tanh(),
        nn.Flatten(), nn.Linear(512, 32), nn.Tanh(), nn.Linear(32, 10),
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
