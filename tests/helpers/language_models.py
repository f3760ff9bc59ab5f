"""Small language models in plain PyTorch, built as the families that people train: RMS norms that multiply by a weight or by one
more than it, rotary or learned positions, gated layers, tied heads, experts, prompts and adapters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

VOCABULARY, WIDTH, HEADS, LENGTH = 13, 8, 2, 5


@dataclass(frozen=True)
class Style:
    """What sets families apart. `checkpointed` says how checkpointing is asked for; None for none."""

    norm: str = "rms"
    positions: str = "rotary"
    gated: bool = True
    tied: bool = False
    key_heads: int = HEADS
    query_norm: bool = False
    parallel: bool = False
    post_norm: bool = False
    experts: int = 0
    dropout: float = 0.0
    layers: int = 2
    width: int = WIDTH
    vocabulary: int = VOCABULARY
    hidden: int = 12
    checkpointed: dict[str, Any] | None = None


class Norm(nn.Module):
    """RMS normalisation as Llama has it, or Gemma: by one more than the weight."""

    def __init__(self, width: int, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.weight = nn.Parameter(torch.linspace(-0.5, 0.5, width) + float(kind != "gemma"))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.double() if x.dtype == torch.float64 else x.float()
        scaled = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        if self.kind == "gemma":
            return (scaled * (1.0 + self.weight.to(wide.dtype))).type_as(x)
        return self.weight * scaled.to(x.dtype)


def norm(width: int, kind: str) -> nn.Module:
    return nn.LayerNorm(width) if kind == "layer" else Norm(width, kind)


def rotated(x: Tensor) -> Tensor:
    """Rotary positions (Su et al. 2021) on (n, heads, T, even)."""
    half = x.shape[-1] // 2
    like = {"dtype": x.dtype, "device": x.device}
    angles = torch.arange(x.shape[-2], **like)[:, None] / 10 ** (torch.arange(half, **like) / half)
    cos, sin = (torch.cat([part, part], -1) for part in (angles.cos(), angles.sin()))
    return x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin


class Attention(nn.Module):
    def __init__(self, style: Style) -> None:
        super().__init__()
        self.style, self.size = style, style.width // HEADS
        self.q_proj = nn.Linear(style.width, style.width, bias=False)
        self.k_proj = nn.Linear(style.width, self.size * style.key_heads, bias=False)
        self.v_proj = nn.Linear(style.width, self.size * style.key_heads, bias=False)
        self.o_proj = nn.Linear(style.width, style.width, bias=False)
        self.norms = nn.ModuleList(norm(self.size, style.norm) for _ in range(2 * style.query_norm))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (layer(x).unflatten(-1, (-1, self.size)).transpose(1, 2) for layer in (self.q_proj, self.k_proj, self.v_proj))
        if self.style.query_norm:
            q, k = self.norms[0](q), self.norms[1](k)
        if self.style.positions == "rotary":
            q, k = rotated(q), rotated(k)
        k, v = (part.repeat_interleave(HEADS // self.style.key_heads, 1) for part in (k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(mixed.transpose(1, 2).flatten(2))


class Feed(nn.Module):
    def __init__(self, style: Style) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(style.width, style.hidden, bias=False), nn.Linear(style.hidden, style.width, bias=False)
        self.gate = nn.Linear(style.width, style.hidden, bias=False) if style.gated else None

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x)) if self.gate is None else F.silu(self.gate(x)) * self.up(x))


class Experts(nn.Module):
    """The best of several, position by position, with all weights in two tensors."""

    def __init__(self, style: Style) -> None:
        super().__init__()
        self.router = nn.Linear(style.width, style.experts, bias=False)
        self.up = nn.Parameter(torch.randn(style.experts, style.hidden, style.width) / 4)
        self.down = nn.Parameter(torch.randn(style.experts, style.width, style.hidden) / 4)

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(0, 1)
        chances, best = self.router(flat).softmax(-1).max(-1)
        out = torch.zeros_like(flat)
        for expert in range(len(self.up)):
            places = (best == expert).nonzero()[:, 0]
            hidden = F.linear(F.silu(F.linear(flat[places], self.up[expert])), self.down[expert])
            out.index_add_(0, places, hidden * chances[places, None])
        return out.view(x.shape)


class Block(nn.Module):
    def __init__(self, style: Style) -> None:
        super().__init__()
        self.style = style
        self.attention, self.feed = Attention(style), Experts(style) if style.experts else Feed(style)
        self.first = norm(style.width, style.norm)
        self.second = nn.Identity() if style.parallel else norm(style.width, style.norm)  # a parallel block has one
        self.dropout = nn.Dropout(style.dropout)

    def forward(self, x: Tensor, scale: Tensor | float = 1.0) -> Tensor:
        if self.style.parallel:
            inner = self.first(x)
            return x + self.dropout(self.attention(inner) + self.feed(inner)) * scale
        if self.style.post_norm:
            x = x + self.dropout(self.first(self.attention(x))) * scale
            return x + self.second(self.feed(x))
        x = x + self.dropout(self.attention(self.first(x))) * scale
        return x + self.feed(self.second(x))


class LanguageModel(nn.Module):
    """(n, T) numbers of words → (n, T, vocabulary) logits."""

    def __init__(self, style: Style) -> None:
        super().__init__()
        self.style = style
        self.words = nn.Embedding(style.vocabulary, style.width)
        if style.positions == "learned":
            self.places = nn.Parameter(torch.randn(1, 2 * LENGTH, style.width))
        self.layers = nn.ModuleList(Block(style) for _ in range(style.layers))
        self.last = norm(style.width, style.norm)
        self.head = nn.Linear(style.width, style.vocabulary, bias=False)
        if style.tied:
            self.head.weight = self.words.weight

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.words(input_ids)
        if self.style.norm == "gemma":
            x = x * torch.tensor(self.style.width**0.5, dtype=x.dtype)
        if self.style.positions == "learned":
            x = x + self.places[:, : x.shape[1]]
        for layer in self.layers:
            x = layer(x) if self.style.checkpointed is None else checkpoint(layer, x, **self.style.checkpointed)
        return self.head(self.last(x))


FAMILIES: dict[str, Style] = {
    "GPT-2": Style("layer", "learned", gated=False, tied=True),
    "Llama": Style(),
    "Llama, tied": Style(tied=True),
    "Mistral": Style(key_heads=1),
    "Qwen 3": Style(query_norm=True, key_heads=1),
    "Gemma": Style("gemma", tied=True),
    "Gemma 3": Style("gemma", tied=True, query_norm=True),
    "Phi": Style("layer", parallel=True, gated=False),
    "OLMo 2": Style(post_norm=True, query_norm=True),
    "Mixtral": Style(experts=3),
}


class ImageModel(nn.Module):
    """A vision transformer of patches: a class token, learned positions, and layers that are scaled (Touvron et al. 2021)."""

    def __init__(self) -> None:
        super().__init__()
        self.see = nn.Conv2d(1, WIDTH, 2, 2)
        self.cls_token, self.pos_embed = nn.Parameter(torch.randn(1, 1, WIDTH)), nn.Parameter(torch.randn(1, 5, WIDTH))
        self.block, self.gamma = Block(Style("layer", "learned", gated=False)), nn.Parameter(torch.linspace(0.1, 1, WIDTH))
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, images: Tensor) -> Tensor:
        x = self.see(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], dim=1) + self.pos_embed
        return self.head((x + self.gamma * self.block(x))[:, 0])


def words(size: int, length: int = LENGTH, vocabulary: int = VOCABULARY, seed: int = 0) -> Tensor:
    return torch.randint(0, vocabulary, (size, length), generator=torch.Generator().manual_seed(seed))


def next_words(logits: Tensor, words: Tensor) -> Tensor:
    """(n,) the mean cross entropy of each word after those before it."""
    return F.cross_entropy(logits[:, :-1].transpose(1, 2), words[:, 1:], reduction="none").mean(1)


def made(style: Style, seed: int = 0) -> LanguageModel:
    torch.manual_seed(seed)
    return LanguageModel(style)


class Adapted(nn.Module):
    """Low-rank adaptation of a frozen linear layer (Hu et al. 2021), of any type, by factors in single precision or wider."""

    def __init__(self, base: nn.Linear, rank: int = 2) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        dtype = torch.promote_types(base.weight.dtype, torch.float32)
        self.down = nn.Parameter(torch.randn(rank, base.in_features, dtype=dtype) / 4)
        self.up = nn.Parameter(torch.randn(base.out_features, rank, dtype=dtype) / 4)

    def forward(self, x: Tensor) -> Tensor:
        low = F.linear(F.linear(x.to(self.down.dtype), self.down), self.up)
        return self.base(x) + low.to(x.dtype)


def adapted(model: nn.Module, wanted: Callable[[str], bool], rank: int = 2) -> nn.Module:
    """The model frozen, with adapters at the linear layers of these names."""
    model.requires_grad_(False)
    for name, layer in list(model.named_modules()):
        if isinstance(layer, nn.Linear) and wanted(name):
            model.set_submodule(name, Adapted(layer, rank))
    return model
