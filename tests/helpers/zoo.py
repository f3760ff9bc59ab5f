"""Architectures as people write them, at their own widths, with a batch each."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def lenet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(inplace=True), nn.AvgPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(inplace=True),
        nn.AvgPool2d(2), nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10),
    )  # fmt: skip


def dpis_cnn() -> nn.Module:
    """Of DPIS and DP-SGD-TS for 28 × 28 images."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 8, 2, padding=2), nn.Tanh(), nn.MaxPool2d(2, 1), nn.Conv2d(16, 32, 4, 2), nn.Tanh(), nn.MaxPool2d(2, 1),
        nn.Flatten(), nn.Linear(512, 32), nn.Tanh(), nn.Linear(32, 10),
    )  # fmt: skip


class DpisRnn(nn.Module):
    """Of DPIS, table 1, for IMDb."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.enter = nn.Embedding(2000, 100), nn.Linear(100, 32)
        self.core = nn.LSTM(32, 32, batch_first=True, bidirectional=True)
        self.mix, self.leave = nn.Linear(64, 16), nn.Linear(16, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        _, (hidden, _) = self.core(torch.relu(self.enter(self.embed(tokens))))
        return self.leave(torch.relu(self.mix(torch.cat([hidden[0], hidden[1]], dim=1))))


class Residual(nn.Module):
    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.norm_one, self.norm_two = nn.GroupNorm(32, after), nn.GroupNorm(32, after)
        self.short = (
            nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.GroupNorm(32, after))
            if stride > 1 or before != after
            else nn.Identity()
        )

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.norm_one(self.one(x)), inplace=True)
        return F.relu(self.norm_two(self.two(out)) + self.short(x))


def resnet18() -> nn.Module:
    """ResNet-18 with GroupNorm, for 32 × 32 images."""
    blocks: list[nn.Module] = []
    width = 64
    for after, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        blocks += [Residual(width, after, stride), Residual(after, after, 1)]
        width = after
    return nn.Sequential(
        nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.GroupNorm(32, 64), nn.ReLU(inplace=True), *blocks, nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(512, 10),
    )  # fmt: skip


class ViT(nn.Module):
    """With its class token and positions as parameters of the model itself."""

    def __init__(self, width: int = 192, depth: int = 2) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, width, 8, 8)
        self.cls_token = nn.Parameter(torch.randn(1, 1, width) * 0.02)
        self.pos_embed = nn.Parameter(torch.randn(1, 17, width) * 0.02)
        layer = nn.TransformerEncoderLayer(width, 3, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, depth, norm=nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        patches = self.patch(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.cls_token.expand(len(x), -1, -1), patches], dim=1) + self.pos_embed
        return self.head(self.encoder(tokens)[:, 0])


class Attention(nn.Module):
    """Causal self-attention written out, as in small GPTs."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        b, t, width = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(b, t, width))


class GptBlock(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm_one, self.attend = nn.LayerNorm(width), Attention(width, heads)
        self.norm_two, self.mlp = (
            nn.LayerNorm(width),
            nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attend(self.norm_one(x))
        return x + self.mlp(self.norm_two(x))


class Gpt(nn.Module):
    """With positions looked up once for all records and the output layer tied to the embedding."""

    def __init__(self, vocabulary: int = 300, width: int = 128, depth: int = 2) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(64, width)
        self.blocks = nn.Sequential(*(GptBlock(width, 4) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, x: Tensor) -> Tensor:
        places = torch.arange(x.shape[1], device=x.device)
        return self.head(self.norm(self.blocks(self.tokens(x) + self.places(places))))


class MixerBlock(nn.Module):
    def __init__(self, places: int, width: int) -> None:
        super().__init__()
        self.norm_one, self.norm_two = nn.LayerNorm(width), nn.LayerNorm(width)
        self.across = nn.Sequential(nn.Linear(places, 64), nn.GELU(), nn.Linear(64, places))
        self.along = nn.Sequential(nn.Linear(width, 256), nn.GELU(), nn.Linear(256, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.across(self.norm_one(x).transpose(1, 2)).transpose(1, 2)
        return x + self.along(self.norm_two(x))


class Mixer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, 128, 8, 8)
        self.blocks = nn.Sequential(MixerBlock(16, 128), MixerBlock(16, 128))
        self.norm, self.head = nn.LayerNorm(128), nn.Linear(128, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks(self.patch(x).flatten(2).transpose(1, 2))).mean(1))


def _twice(before: int, after: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(before, after, 3, padding=1), nn.InstanceNorm2d(after, affine=True), nn.ReLU(inplace=True),
        nn.Conv2d(after, after, 3, padding=1), nn.InstanceNorm2d(after, affine=True), nn.ReLU(inplace=True),
    )  # fmt: skip


class UNet(nn.Module):
    """Two levels, skip connections, one loss per image over all pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.down_one, self.down_two, self.bottom = _twice(1, 16), _twice(16, 32), _twice(32, 64)
        self.up_two, self.up_one = nn.ConvTranspose2d(64, 32, 2, 2), nn.ConvTranspose2d(32, 16, 2, 2)
        self.after_two, self.after_one, self.out = _twice(64, 32), _twice(32, 16), nn.Conv2d(16, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        one = self.down_one(x)
        two = self.down_two(F.max_pool2d(one, 2))
        low = self.up_two(self.bottom(F.max_pool2d(two, 2)))
        middle = self.up_one(self.after_two(torch.cat([two, low], dim=1)))
        return self.out(self.after_one(torch.cat([one, middle], dim=1)))


def per_token(outputs: Tensor, goals: Tensor) -> Tensor:
    """Mean cross entropy over a record's tokens or pixels; −100 marks those without a goal."""
    losses = F.cross_entropy(outputs, goals, ignore_index=-100, reduction="none").flatten(1)
    return losses.sum(1) / (goals != -100).flatten(1).sum(1).clamp(min=1)
