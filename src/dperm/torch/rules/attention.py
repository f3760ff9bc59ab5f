"""nn.MultiheadAttention through its projections: each is a linear layer with the records on the batch axis."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dperm.torch.forms import Block, Dense, Form, Outer
from dperm.torch.rules.linear import affine
from dperm.torch.rules.registry import detached, register, trainable
from dperm.torch.tape import Axis, Call, CallLayout, repeated

__all__ = ["attention"]


def _fits(module: Any, layout: CallLayout | None) -> bool:
    batch = Axis(0 if module.batch_first else 1)
    return layout is None or all(axis == batch for axis in layout.arguments[:3])


@register(nn.MultiheadAttention, fits=_fits)
def attention(
    module: nn.MultiheadAttention,
    call: Call,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Vaswani et al. 2017, with the arguments, masks and outputs of nn.MultiheadAttention."""
    batch = Axis(0 if module.batch_first else 1)
    q, k, v = _projected(module, call, batch, query, key, value)
    q, k, v = (batch.to_front(tensor, call.size) for tensor in (q, k, v))  # (b, T, E)
    if module.bias_k is not None and module.bias_v is not None:
        k, v = (_appended(call, states, row) for states, row in ((k, module.bias_k), (v, module.bias_v)))
    if module.add_zero_attn:
        k, v = (F.pad(states, (0, 0, 0, 1)) for states in (k, v))
    heads = [states.unflatten(2, (module.num_heads, -1)).transpose(1, 2) for states in (q, k, v)]
    mask = _mask(module, call.size, heads[0], k.shape[1], key_padding_mask, attn_mask)
    dropout = module.dropout if module.training else 0.0
    if need_weights:
        scores = heads[0] @ heads[1].mT / math.sqrt(heads[0].shape[-1])
        probabilities = torch.softmax(scores if mask is None else scores + mask, dim=-1)
        weights: Tensor | None = F.dropout(probabilities, dropout)
        mixed = weights @ heads[2]
        weights = weights.mean(1) if average_attn_weights else weights
    else:
        causal = is_causal and attn_mask is not None and key_padding_mask is None and k.shape[1] == key.shape[1 - batch.dim]
        weights = None
        mixed = F.scaled_dot_product_attention(*heads, attn_mask=None if causal else mask, dropout_p=dropout, is_causal=causal)
    joined = mixed.transpose(1, 2).flatten(2)
    joined = joined if module.batch_first else joined.transpose(0, 1)
    out = module.out_proj
    output = affine(call, F.linear(joined, detached(out.weight), detached(out.bias)), joined, batch, out.weight, out.bias)
    return output, weights


def _projected(module: Any, call: Call, batch: Axis, query: Tensor, key: Tensor, value: Tensor) -> list[Tensor]:
    """Queries, keys and values, each projected; self-attention in one product."""
    weight, bias = module.in_proj_weight, module.in_proj_bias
    if weight is not None and query is key and key is value:
        output = F.linear(query, detached(weight), detached(bias))
        return list(affine(call, output, query, batch, weight, bias).chunk(3, dim=-1))
    width = module.embed_dim
    biases = [None] * 3 if bias is None else list(detached(bias).split(width))
    if weight is not None:
        weights, owners = list(detached(weight).split(width)), [weight] * 3
    else:
        owners = [module.q_proj_weight, module.k_proj_weight, module.v_proj_weight]
        weights = [detached(owner) for owner in owners]
    projected: list[Tensor] = []
    for number, (states, w, b, owner) in enumerate(zip((query, key, value), weights, biases, owners, strict=True)):
        start = number * width if weight is not None else None
        projected.append(_part(call, batch, F.linear(states, w, b), states, owner, start, bias, number * width))
    return projected


def _part(
    call: Call, batch: Axis, output: Tensor, states: Tensor, weight: Tensor, start: int | None, bias: Tensor | None, at: int
) -> Tensor:
    """Tap one of three projections, whose weight may be, and whose bias is, a block of rows of a shared parameter."""
    learned = trainable(weight, bias)
    if not learned:
        return output

    def read(gradient: Tensor, saved: Tensor) -> Iterator[tuple[nn.Parameter, Form]]:
        left = call.front(gradient, batch, 1)
        for parameter in learned:
            if parameter is not weight:
                yield parameter, Block(Dense(left.sum(1)), at, parameter.shape)
                continue
            form = Outer(left, call.front(saved, batch, 1))
            yield parameter, form if start is None else Block(form, start, parameter.shape)

    return call.tap(output, learned, read, states)


def _appended(call: Call, states: Tensor, row: Tensor) -> Tensor:
    """(b, T + 1, E): a learned row (1, 1, E) after each record's states."""
    copies = repeated(detached(row), call.size, leading_one=True)  # (b, 1, E)
    if row.requires_grad:
        learned = trainable(row)
        copies = call.tap(copies, learned, lambda gradient: [(learned[0], Dense(gradient[:, None]))])
    return torch.cat([states, copies], dim=1)


def _mask(
    module: nn.MultiheadAttention, size: int, q: Tensor, keys: int, padding: Tensor | None, attend: Tensor | None
) -> Tensor | None:
    """What is added to the scores, broadcastable to (b, heads, T, S); positions appended to the keys stay visible."""

    def added(mask: Tensor) -> Tensor:
        if mask.dtype is torch.bool:
            mask = torch.zeros_like(mask, dtype=q.dtype).masked_fill_(mask, -math.inf)
        return F.pad(mask.to(q.dtype), (0, keys - mask.shape[-1]))

    total: Tensor | None = None
    if attend is not None:
        total = added(attend)
        total = total.view(size, module.num_heads, *total.shape[1:]) if total.dim() == 3 else total
    if padding is not None:
        hidden = added(padding).view(size, 1, 1, keys)
        total = hidden if total is None else total + hidden
    return total
