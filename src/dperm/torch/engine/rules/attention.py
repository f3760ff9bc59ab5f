"""Attention: the projections of multi-head attention are linear layers, and dot products are taken within a record.

Leading axes of scaled dot-product attention are batch axes by its definition.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dperm.torch.engine.by_record import Alone
from dperm.torch.engine.gradient_forms import Block, Dense, Form, Outer
from dperm.torch.engine.rules.linear import affine
from dperm.torch.engine.tracing import SPECIAL, Run, detached, rule_for

_ASKED = inspect.signature(F.multi_head_attention_forward)


@rule_for(F.multi_head_attention_forward)
def attention(run: Run, *args: Any, **named: Any) -> Any:
    """Vaswani et al. 2017 on (T, n, E) of a record that counts as a batch of n, or on (T, E)."""
    bound = _ASKED.bind(*args, **named)
    bound.apply_defaults()
    asked: Any = SimpleNamespace(**bound.arguments)
    separate = asked.use_separate_proj_weight
    weights = (asked.q_proj_weight, asked.k_proj_weight, asked.v_proj_weight) if separate else (asked.in_proj_weight,) * 3
    trained = *weights, asked.in_proj_bias, asked.bias_k, asked.bias_v, asked.out_proj_weight, asked.out_proj_bias
    states = asked.query, asked.key, asked.value
    if not run.constant(*trained) or any(map(run.trains, states)) or asked.static_k is not None or asked.static_v is not None:
        return NotImplemented
    batch = None if asked.query.dim() == 2 else 1
    found = run.together(
        functools.partial(_attend, run, asked, weights), *states, asked.key_padding_mask, asked.attn_mask,
        axes=(batch, batch, batch, 0, None), returned=(1, 0)[: 1 + asked.need_weights],
    )  # fmt: skip
    return found if asked.need_weights else (found, None)


def _attend(run: Run, asked: Any, weights: Any, q: Tensor, k: Tensor, v: Tensor, padding: Any, attend: Any) -> Any:
    """What is `asked` of the records' queries, keys and values (b, T, n, E), or (b, T, E)."""
    alone, same, packed = asked.query.dim() == 2, asked.query is asked.key is asked.value, not asked.use_separate_proj_weight
    size = len(q)
    # (b, n, T, E), then (b·n, T, E)
    q, k, v = (states[:, :, None] if alone else states for states in (q, k, v))
    several = q.shape[2]
    q, k, v = (states.transpose(1, 2) for states in (q, k, v))
    length = k.shape[2]
    q, k, v = _projected(run, (q, q, q) if same else (q, k, v), weights, asked.in_proj_bias, packed, same)
    if asked.bias_k is not None:
        k, v = (_appended(run, states, row) for states, row in ((k, asked.bias_k), (v, asked.bias_v)))
    if asked.add_zero_attn:
        k, v = (F.pad(states, (0, 0, 0, 1)) for states in (k, v))
    # (b, n, heads, T, E / heads)
    q, k, v = (states.unflatten(3, (asked.num_heads, -1)).transpose(2, 3) for states in (q, k, v))
    mask = _mask(q, k.shape[3], None if padding is None else padding.view(size, several, -1), attend)
    dropout = asked.dropout_p if asked.training else 0.0
    if asked.need_weights:
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        chances = torch.softmax(scores if mask is None else scores + mask, dim=-1)
        chances = run.dropout(chances, dropout) if dropout else chances
        mixed = chances @ v
    else:
        chances = None
        causal = asked.is_causal and attend is not None and padding is None and k.shape[3] == length
        mixed = _mixed(run, q, k, v, None if causal else mask, dropout, causal)
    joined = mixed.transpose(2, 3).flatten(3)  # (b, n, T, E)
    output = affine(run, joined, asked.out_proj_weight, asked.out_proj_bias).transpose(1, 2)  # (b, T, n, E)
    output = output[:, :, 0] if alone else output
    if chances is None:
        return output
    chances = chances.mean(2) if asked.average_attn_weights else chances
    return output, chances[:, 0] if alone else chances


def _projected(run: Run, states: Any, weights: Any, bias: Any, packed: bool, same: bool) -> list[Tensor]:
    """Queries, keys and values, each projected; self-attention by packed weights in one product."""
    if packed and same:
        return list(affine(run, states[0], weights[0], bias).chunk(3, dim=-1))
    width = weights[0].shape[0] // (3 if packed else 1)
    return [
        _part(run, part, weight, number * width if packed else None, bias, number * width, width)
        for number, (part, weight) in enumerate(zip(states, weights, strict=True))
    ]


def _part(run: Run, x: Tensor, weight: Any, start: int | None, bias: Any, at: int, width: int) -> Tensor:
    """One of three projections, whose weight may be, and whose bias is, a block of rows of a shared parameter."""
    matrix = detached(weight) if start is None else detached(weight)[start : start + width]
    output = F.linear(x, matrix, None if bias is None else detached(bias)[at : at + width])
    learned, size = run.learned(weight, bias), len(x)
    if not learned:
        return output

    def read(gradient: Tensor, saved: Tensor) -> Iterator[tuple[nn.Parameter, Form]]:
        left = gradient.reshape(size, -1, gradient.shape[-1])
        for parameter in learned:
            if parameter is not weight:
                yield parameter, Block(Dense(left.sum(1)), at, parameter.shape)
                continue
            form = Outer(left, saved.reshape(size, -1, saved.shape[-1]))
            yield parameter, form if start is None else Block(form, start, parameter.shape)

    return run.tape.tap(output, learned, read, (x,))


def _appended(run: Run, states: Tensor, row: Any) -> Tensor:
    """(b, n, T + 1, E): a learned row (1, 1, E) after each record's states."""
    size, several = states.shape[:2]
    copies = detached(row).expand(size, several, *row.shape[1:])
    if run.trains(row):
        copies = run.tape.tap(copies, [row], lambda gradient: [(row, Dense(gradient.sum(1, keepdim=True)))], ())
    return torch.cat([states, copies], dim=2)


def _mask(q: Tensor, keys: int, padding: Tensor | None, attend: Tensor | None) -> Tensor | None:
    """What is added to the scores, broadcastable to (b, n, heads, T, S); positions appended to the keys stay visible."""
    size, several, heads = q.shape[:3]

    def added(mask: Tensor) -> Tensor:
        if mask.dtype is torch.bool:
            mask = torch.zeros_like(mask, dtype=q.dtype).masked_fill_(mask, -math.inf)
        return F.pad(mask.to(q.dtype), (0, keys - mask.shape[-1]))

    total: Tensor | None = None
    if attend is not None:
        total = added(attend)
        total = total.view(size, several, heads, *total.shape[2:]) if total.dim() == 4 else total[:, None, None]
    if padding is not None:
        hidden = added(padding)[:, :, None, None]
        total = hidden if total is None else total + hidden
    return total


def _mixed(run: Run, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float, causal: bool, **more: Any) -> Tensor:
    """Scaled dot products (b, …, T, E) of all records: by PyTorch's own function where nothing is drawn."""
    if not dropout:
        return _fused(q, k, v, mask, causal, more)
    scale = more.get("scale") or 1 / math.sqrt(q.shape[-1])
    if more.get("enable_gqa"):
        k, v = (states.repeat_interleave(q.shape[-3] // states.shape[-3], -3) for states in (k, v))
    scores = q @ k.mT * scale
    if causal:
        mask = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).tril()
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf) if mask.dtype is torch.bool else scores + mask
    return run.dropout(torch.softmax(scores, dim=-1), dropout) @ v


def _fused(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, more: dict[str, Any]) -> Tensor:
    """By PyTorch's own function on four axes, for which alone it has kernels that keep no table of scores."""
    same = q.dim() == k.dim() == v.dim() and q.shape[:-3] == k.shape[:-3] == v.shape[:-3]
    if q.dim() < 5 or not same or (mask is not None and mask.dim() != q.dim()):
        return F.scaled_dot_product_attention(q, k, v, mask, 0.0, causal, **more)
    leading = q.shape[:-3]
    if mask is not None:
        mask = mask.flatten(0, -4) if mask.shape[:-3] == leading else mask.expand(*leading, *mask.shape[-3:]).flatten(0, -4)
    q, k, v = (states.flatten(0, -4) for states in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, mask, 0.0, causal, **more).unflatten(0, leading)


def _dot_product(
    run: Run,
    func: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    **more: Any,
) -> Any:
    """All records in one call: `torch.vmap` would call once a record where it has no rule."""
    if isinstance(run, Alone):
        return NotImplemented

    def body(q: Tensor, k: Tensor, v: Tensor, masked: Tensor | None) -> Tensor:
        if masked is not None and masked.dim() - 1 < q.dim() - 1:
            masked = masked.view(len(masked), *[1] * (q.dim() - masked.dim()), *masked.shape[1:])
        return _mixed(run, q, k, v, masked, dropout_p, is_causal, **more)

    return run.together(body, *map(run.owned, (query, key, value, attn_mask)))


SPECIAL[F.scaled_dot_product_attention] = _dot_product
