"""Embeddings: rows of a table, looked up, or summed and averaged in bags."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dperm.torch.forms import Form, Rows
from dperm.torch.rules.registry import detached, register, trainable
from dperm.torch.tape import Axis, Call, RecordsLostError

__all__ = ["embedding", "embedding_bag"]


@register(nn.Embedding, fits=lambda module, layout: not module.scale_grad_by_freq)
def embedding(module: nn.Embedding, call: Call, input: Tensor) -> Tensor:
    axis = call.layout.arguments[0]
    table: Any = module.weight
    output = F.embedding(input, detached(module.weight), module.padding_idx)
    if axis is None:
        output, input, axis = call.repeated(output), call.repeated(input), Axis(0)

    def read(gradient: Tensor, indices: Tensor) -> Iterator[tuple[nn.Parameter, Form]]:
        values = call.front(gradient, axis, 1)
        where = call.front(indices, axis, 0).reshape(call.size, -1)
        yield table, Rows(where, _padding_removed(values, where, module.padding_idx), module.weight.shape)

    return call.tap(output, trainable(module.weight), read, input)


@register(
    nn.EmbeddingBag,
    fits=lambda module, layout: (
        not module.scale_grad_by_freq and module.mode in ("sum", "mean") and not module.include_last_offset
    ),
)
def embedding_bag(
    module: nn.EmbeddingBag,
    call: Call,
    input: Tensor,
    offsets: Tensor | None = None,
    per_sample_weights: Tensor | None = None,
) -> Tensor:
    """Bags as rows of a matrix (b, T), or as a flat list with the offsets of the b bags."""
    table: Any = module.weight
    output = F.embedding_bag(
        input,
        detached(module.weight),
        offsets,
        mode=module.mode,
        per_sample_weights=per_sample_weights,
        padding_idx=module.padding_idx,
    )
    if output.shape[0] != call.size:
        raise RecordsLostError(f"An embedding bag sees {output.shape[0]} bags for {call.size} records.")
    saved = [tensor for tensor in (input, offsets, per_sample_weights) if tensor is not None]

    def read(gradient: Tensor, indices: Tensor, *more: Tensor) -> Iterator[tuple[nn.Parameter, Form]]:
        weights = more[-1] if per_sample_weights is not None else None
        if offsets is not None:
            indices, present, weights = _bags(indices, more[0], weights)
        else:
            present = torch.ones_like(indices, dtype=torch.bool)
        if module.padding_idx is not None:
            present = present & (indices != module.padding_idx)
        share = present.to(gradient.dtype)
        if module.mode == "mean":
            share = share / share.sum(1, keepdim=True).clamp(min=1)
        if weights is not None:
            share = share * weights
        yield table, Rows(indices, gradient[:, None, :] * share[:, :, None], module.weight.shape)

    return call.tap(output, trainable(module.weight), read, *saved)


def _padding_removed(values: Tensor, indices: Tensor, padding: int | None) -> Tensor:
    return values if padding is None else values.masked_fill((indices == padding)[:, :, None], 0.0)


def _bags(flat: Tensor, offsets: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """Ragged bags as a matrix (b, longest): indices, which entries are real, weights."""
    ends = torch.cat([offsets[1:], offsets.new_tensor([len(flat)])])
    lengths = ends - offsets
    place = torch.arange(max(1, int(lengths.max())), device=flat.device)
    present = place < lengths[:, None]
    source = (offsets[:, None] + place).clamp(max=max(0, len(flat) - 1))
    if not len(flat):
        return source, present, None
    return flat[source], present, None if weights is None else weights[source]
