"""The networks whose training steps `benchmarks/networks.py` measures: models, batches, and what each is compared with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def cnn(private: bool = False) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 8, 2, padding=2), nn.Tanh(), nn.MaxPool2d(2, 1), nn.Conv2d(16, 32, 4, 2), nn.Tanh(), nn.MaxPool2d(2, 1),
        nn.Flatten(), nn.Linear(512, 32), nn.Tanh(), nn.Linear(32, 10),
    )  # fmt: skip


class Residual(nn.Module):
    """Two 3 × 3 convolutions with group normalisation, beside a shortcut (He et al. 2016; Wu and He 2018)."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.GroupNorm(16, after))
        self.second = nn.Sequential(nn.Conv2d(after, after, 3, 1, 1, bias=False), nn.GroupNorm(16, after))
        narrow = before != after or stride > 1
        self.shortcut = (
            nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.GroupNorm(16, after)) if narrow else None
        )

    def forward(self, x: Tensor) -> Tensor:
        beside = x if self.shortcut is None else self.shortcut(x)
        return F.relu(self.second(F.relu(self.first(x))) + beside)


def resnet18(private: bool = False) -> nn.Module:
    """ResNet-18 for images of 32 × 32, with group normalisation: 11.2 million parameters."""
    widths = [(64, 64, 1), (64, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2), (256, 256, 1), (256, 512, 2), (512, 512, 1)]
    return nn.Sequential(
        nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.GroupNorm(16, 64), nn.ReLU(), *(Residual(*width) for width in widths),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10),
    )  # fmt: skip


class BiLstm(nn.Module):
    """DPIS, table 1: embedding 100, 32, bidirectional LSTM 32, 16, 2. `lstm` is the layer's class."""

    def __init__(self, lstm: Any = nn.LSTM) -> None:
        super().__init__()
        self.embed, self.enter = nn.Embedding(10_000, 100), nn.Linear(100, 32)
        self.core = lstm(32, 32, batch_first=True, bidirectional=True)
        self.mix, self.leave = nn.Linear(64, 16), nn.Linear(16, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        states, _ = self.core(torch.relu(self.enter(self.embed(tokens))))
        return self.leave(torch.relu(self.mix(states.mean(1))))


def bilstm(private: bool = False) -> nn.Module:
    if not private:
        return BiLstm()
    from opacus.layers import DPLSTM

    return BiLstm(DPLSTM)


class Transformer(nn.Module):
    """4 layers of width 128, 4 heads, feed-forward 512. `attention` replaces the layers' attention."""

    def __init__(self, attention: Any = None) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(1000, 128), nn.Embedding(128, 128)
        layer = nn.TransformerEncoderLayer(128, 4, 512, 0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        self.head = nn.Linear(128, 10)
        if attention is not None:
            for part in self.encoder.layers:
                part.self_attn = attention(128, 4, dropout=0.1, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        places = torch.arange(x.shape[1], device=x.device).expand(len(x), -1)
        return self.head(self.encoder(self.tokens(x) + self.places(places)).mean(1))


def transformer(private: bool = False) -> nn.Module:
    if not private:
        return Transformer()
    from opacus.layers import DPMultiheadAttention

    return Transformer(DPMultiheadAttention)


class Adapted(nn.Module):
    """A frozen linear layer with a trained low-rank part of `rank` (LoRA: Hu et al. 2022)."""

    def __init__(self, width: int, out: int, rank: int = 8) -> None:
        super().__init__()
        self.base = nn.Linear(width, out, bias=False)
        self.base.requires_grad_(False)
        self.down, self.up = nn.Linear(width, rank, bias=False), nn.Linear(rank, out, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.up(self.down(x))


class LlamaLayer(nn.Module):
    """Rotary attention and a gated feed-forward block between root-mean-square norms (Touvron et al. 2023)."""

    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList([nn.RMSNorm(width), nn.RMSNorm(width)])
        self.query, self.key, self.value, self.out = (Adapted(width, width) for _ in range(4))
        self.gate, self.enter, self.leave = (
            nn.Linear(*shape, bias=False) for shape in ((width, hidden),) * 2 + ((hidden, width),)
        )

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        y = self.norms[0](x)
        query, key, value = (
            part(y).unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (self.query, self.key, self.value)
        )
        query, key = (part * cosine + torch.cat((-part[..., 1::2], part[..., ::2]), -1) * sine for part in (query, key))
        x = x + self.out(F.scaled_dot_product_attention(query, key, value, is_causal=True).transpose(1, 2).flatten(2))
        y = self.norms[1](x)
        return x + self.leave(F.silu(self.gate(y)) * self.enter(y))


class Llama(nn.Module):
    """6 layers of width 256: 8.9 million frozen parameters, of which LoRA of rank 8 on the attention trains 98,304."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(4000, 256)
        self.layers = nn.ModuleList([LlamaLayer(256, 4, 688) for _ in range(6)])
        self.norm, self.head = nn.RMSNorm(256), nn.Linear(256, 4000, bias=False)
        angles = torch.outer(torch.arange(128.0), 10_000.0 ** -(torch.arange(0, 64, 2) / 64)).repeat(1, 2)
        self.register_buffer("cosine", angles.cos())
        self.register_buffer("sine", angles.sin())
        for name, parameter in self.named_parameters():
            parameter.requires_grad_("down" in name or "up" in name)

    def forward(self, x: Tensor) -> Tensor:
        y = self.tokens(x)
        for layer in self.layers:
            y = layer(y, self.cosine[: x.shape[1]], self.sine[: x.shape[1]])
        return self.head(self.norm(y)).transpose(1, 2)


def llama(private: bool = False) -> nn.Module:
    return Llama()


class BagOfWords(nn.Module):
    """The table of GPT-2's vocabulary, 50,257 × 256, and a linear layer on the mean of a record's rows."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(50_257, 256), nn.Linear(256, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.words(x).mean(1))


def embedding(private: bool = False) -> nn.Module:
    return BagOfWords()


@dataclass(frozen=True)
class Work:
    """A model, the records of a batch, how many classes each target has, `length` targets a record, and rounds to measure."""

    make: Callable[..., nn.Module]
    batch: int
    inputs: Callable[[int], Tensor]
    classes: int
    goal: str
    rounds: int
    length: int | None = None

    def targets(self, records: int) -> Tensor:
        return torch.randint(0, self.classes, (records,) if self.length is None else (records, self.length))


def losses(outputs: Tensor, targets: Tensor) -> Tensor:
    """(b,) the mean of each record's cross entropies."""
    each = F.cross_entropy(outputs, targets, reduction="none")
    return each if each.dim() == 1 else each.mean(1)


WORK = {
    "CNN, b = 512": Work(cnn, 512, lambda n: torch.rand(n, 1, 28, 28), 10, "≤ 1.3×", 15),
    "ResNet-18 GN, b = 64": Work(resnet18, 64, lambda n: torch.rand(n, 3, 32, 32), 10, "ahead", 3),
    "BiLSTM, b = 128, T = 80": Work(bilstm, 128, lambda n: torch.randint(0, 10_000, (n, 80)), 2, "≤ 2×, ≥ 3× Opacus", 7),
    "Transformer, b = 64, T = 128": Work(transformer, 64, lambda n: torch.randint(0, 1000, (n, 128)), 10, "≤ 1.15×", 5),
    "LoRA on Llama, b = 16, T = 128": Work(llama, 16, lambda n: torch.randint(0, 4000, (n, 128)), 4000, "≤ 1.4×", 5, 128),
    "Embedding 50,257 × 256, b = 16, T = 64": Work(embedding, 16, lambda n: torch.randint(0, 50_257, (n, 64)), 2, "ahead", 5),
}
