"""Embeddings: rows of a table, looked up, or summed and averaged in bags. What is looked up for a record is by its own
indices."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dperm.torch.engine.gradient_forms import Form, Rows
from dperm.torch.engine.tracing import RefusedError, Run, detached, rule_for


@rule_for(F.embedding)
def embedding(
    run: Run,
    input: Tensor,
    weight: Any,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Any:
    _refuse_counts(max_norm, scale_grad_by_freq)
    if not run.constant(weight) or not run.learned(weight):
        return NotImplemented
    padding = padding_idx if padding_idx is None or padding_idx >= 0 else padding_idx + len(weight)
    return run.together(lambda indices: _looked_up(run, indices, weight, padding), input)


@rule_for(Tensor.__getitem__)
def getitem(run: Run, input: Any, index: Any) -> Any:
    """Rows of a matrix at a record's own indices."""
    if not run.constant(input) or input.dim() != 2 or not isinstance(index, Tensor) or index.dtype not in _INTEGERS:
        return NotImplemented
    if run.trains(index) or run.rows(index) is None:
        return NotImplemented
    return run.together(lambda indices: _looked_up(run, indices.long() % len(input), input, None), index)


_INTEGERS = (torch.int64, torch.int32)


@rule_for(F.embedding_bag)
def embedding_bag(
    run: Run,
    input: Tensor,
    weight: Any,
    offsets: Tensor | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Any:
    """A record's bags are rows of a matrix, (bags, length)."""
    _refuse_counts(max_norm, scale_grad_by_freq)
    if not run.constant(weight) or mode not in ("sum", "mean"):
        return NotImplemented
    if offsets is not None:
        return _ragged(run, input, weight, run.agreed(offsets), mode, per_sample_weights, include_last_offset, padding_idx)
    if input.dim() != 2:
        return NotImplemented
    padding = padding_idx if padding_idx is None or padding_idx >= 0 else padding_idx + len(weight)

    def body(indices: Tensor, weights: Tensor | None) -> Tensor:
        found = _looked_up(run, indices, weight, padding)  # (b, bags, length, d)
        present = None if padding is None else indices != padding
        if present is not None:
            found = found * present[..., None]
        if weights is not None:
            found = found * weights[..., None]
        if mode == "sum":
            return found.sum(2)
        return found.mean(2) if present is None else found.sum(2) / present.sum(2, keepdim=True).clamp(min=1)

    return run.together(body, input, per_sample_weights)


def _ragged(
    run: Run, input: Tensor, weight: Any, offsets: Tensor, mode: str, weights: Any, last: bool, padding: int | None
) -> Tensor:
    """Bags of several lengths as slices of a list: one bag after the other."""
    ends = offsets.tolist() if last else [*offsets.tolist(), input.shape[0]]
    bags: list[Tensor] = []
    for start, stop in itertools.pairwise(ends):
        part = None if weights is None else weights[start:stop][None]
        bags.append(
            embedding_bag(run, input[start:stop][None], weight, mode=mode, per_sample_weights=part, padding_idx=padding)
            if stop > start
            else input.new_zeros(1, weight.shape[1], dtype=weight.dtype)
        )
    return torch.cat(bags)


def _looked_up(run: Run, indices: Tensor, weight: Any, padding: int | None) -> Tensor:
    """(b, ..., d) the rows at indices (b, ...), tapped; rows at `padding` have no gradient."""
    output = F.embedding(indices, detached(weight))
    learned = run.learned(weight)
    if not learned:
        return output
    size = len(indices)

    def read(gradient: Tensor, saved: Tensor) -> Iterator[tuple[nn.Parameter, Form]]:
        where, values = saved.reshape(size, -1), gradient.reshape(size, -1, gradient.shape[-1])
        if padding is not None:
            values = values.masked_fill((where == padding)[:, :, None], 0.0)
        yield weight, Rows(where, values, weight.shape)

    return run.tape.tap(output, learned, read, (indices,))


def _refuse_counts(max_norm: float | None, scale_grad_by_freq: bool) -> None:
    if max_norm is not None:
        raise RefusedError("max_norm rescales rows of an embedding in place, depending on which records come together.")
    if scale_grad_by_freq:
        raise RefusedError("scale_grad_by_freq divides a gradient by how often a row occurs in the batch: leave it out.")
