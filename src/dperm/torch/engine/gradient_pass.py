"""What a pass over some records leaves: losses, norms, and the sum of gradients by any weights."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dperm.objectives.per_example import Pass
from dperm.torch.engine.clipped_sums import usual
from dperm.torch.engine.layer_taps import Partial
from dperm.torch.parameters.flat_parameters import FlatParameters
from dperm.torch.tensors.buffers import Leases


@dataclass(frozen=True)
class Part:
    """One run of the records `records` (k,), numbers in the batch. Where it kept no forms, `again` repeats it, for the weighted
    sum (p,) of its gradients by factors (k,) or (k, groups); None for zero."""

    records: Tensor
    run: Partial
    again: Callable[[Tensor], Tensor | None] | None = None


class TorchPass(Pass):
    """Per-example quantities of b records at the model's parameters; tensors on the model's device, without a graph."""

    __slots__ = ("_flat", "_leases", "_losses", "_parts", "_squares")

    def __init__(self, size: int, parts: Sequence[Part], flat: FlatParameters, leases: Sequence[Leases]) -> None:
        self._parts = parts
        self._flat = flat
        self._leases = leases  # the forms' memory is used again when the pass is gone
        self._losses = _picked(size, [(part, part.run.losses) for part in parts])
        self._squares = _picked(size, [(part, part.run.squares) for part in parts])

    @property
    def losses(self) -> Tensor:
        return self._losses

    @property
    def norms(self) -> Tensor:
        return self._squares.sum(1).sqrt()

    @property
    def group_norms(self) -> Tensor:
        """(b, groups): norms of the parts of the gradient that belong to each module, see `ModuleObjective.groups`."""
        return self._squares.sqrt()

    @property
    def bytes_held(self) -> int:
        """Memory that lasts as long as the pass."""
        return sum(lease.bytes_held for lease in self._leases)

    @property
    def untouched(self) -> list[str]:
        """Names of trained parameters that no loss depends on."""
        touched = {leaf for part in self._parts for leaf in part.run.by_parameter}
        return [name for name, leaf in zip(self._flat.names, self._flat.leaves, strict=True) if leaf not in touched]

    def of_nobody(self) -> TorchPass:
        """The pass without its records, whose sums are zero here."""
        return TorchPass(0, [nobody(self._flat)], self._flat, self._leases)

    def weighted_sum(self, factors: Any, bound: float | None = None) -> Tensor:
        """Σ_i factors_i·∇ℓ_i (p,); factors (b,), or (b, groups) to weigh each module's part by itself."""
        if not all(part.run.forms or part.again for part in self._parts):
            raise ValueError("A pass for norms only keeps no gradients.")
        factors = torch.as_tensor(factors, dtype=self._squares.dtype, device=self._squares.device)
        if bound is not None:
            lengths = (self._squares if factors.dim() > 1 else self._squares.sum(1, keepdim=True)).sqrt()
            lengths = torch.linalg.vector_norm(lengths * (factors if factors.dim() > 1 else factors[:, None]), dim=1)
            share = (bound / lengths).clamp(max=1.0)
            factors = factors * (share if factors.dim() == 1 else share[:, None])
        factors = usual(factors)
        total: Tensor | None = None
        if kept := [part for part in self._parts if part.again is None]:
            weights = [_chosen(factors, part) for part in kept]
            fills = [
                functools.partial(self._add, number, group, kept, weights) for number, group in enumerate(self._flat.group_index)
            ]
            total = self._flat.filled(fills, self._squares.device)
        for part in self._parts:
            share = None if part.again is None else part.again(_chosen(factors, part))
            if share is not None:
                total = share if total is None else total.add_(share)
        return self._flat.filled([None] * len(self._flat.leaves), self._squares.device) if total is None else total

    def _add(self, number: int, group: int, parts: Sequence[Part], weights: Sequence[Tensor], out: Tensor) -> None:
        for part, factors in zip(parts, weights, strict=True):
            form = part.run.forms[number]
            if form is not None:
                form.add_weighted(factors if factors.dim() == 1 else factors[:, group], out)


def _chosen(factors: Tensor, part: Part) -> Tensor:
    """Those of a part's records."""
    return factors if len(part.records) == len(factors) else factors[part.records]


def nobody(flat: FlatParameters) -> Part:
    """A run without records."""
    none = torch.zeros(0, dtype=torch.long, device=flat.device)
    losses = torch.zeros(0, dtype=flat.dtype, device=flat.device)
    squares, bad = losses.new_zeros(0, len(flat.groups)), none.bool()
    return Part(none, Partial(losses, squares, {}, bad, [None] * len(flat.parameters)))


def _picked(size: int, parts: Sequence[tuple[Part, Tensor]]) -> Tensor:
    """(b, ...) values of records, from their runs; zero for records that had none."""
    (first, values), *others = parts
    if not others and len(first.records) == size:
        return values
    whole = values.new_zeros(size, *values.shape[1:])
    for part, values in parts:
        whole[part.records] = values
    return whole
