"""Squared lengths of vectors and of sums of outer products, in floating point: never understated.

A sum of n squares in single precision may lose n roundings, of equal numbers always to the same side. So few are added up in
single precision, and their sums in double; what they may have lost is added.

‖Σ_t l_t ⊗ r_t‖² = Σ_tt' ⟨l_t, l_t'⟩·⟨r_t, r_t'⟩ (ghost norm: Li et al. 2021; Bu, Mao and Xu 2022). The terms cancel where
gradients of the positions point against each other: the norm is raised by all that rounding can take from inner products,
relative to the lengths of the terms. Where that is much of the norm, it is computed in double.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

_RAISED = 2e-3  # squared norms that had to be raised by more are computed in double
_TERMS = 128  # products that single precision adds up
_SQUARES = 256  # and squares


def squared_lengths(values: Tensor) -> Tensor:
    """(…,) squared lengths of values (…, n), in double precision; squares below the smallest number of their type are lost."""
    if values.dtype == torch.float64:
        return torch.linalg.vector_norm(values, dim=-1).square() * (1 + values.shape[-1] * torch.finfo(values.dtype).eps)
    count = values.shape[-1]
    whole = count // _SQUARES * _SQUARES
    if not whole:
        total = torch.linalg.vector_norm(values, dim=-1).double().square()
    else:
        total = torch.linalg.vector_norm(values[..., :whole].unflatten(-1, (-1, _SQUARES)), dim=-1).double().square().sum(-1)
        if whole < count:
            total = total + torch.linalg.vector_norm(values[..., whole:], dim=-1).double().square()
    return total * (1 + (_SQUARES + 4) * torch.finfo(values.dtype).eps / 2)


def row_lengths(values: Tensor) -> Tensor:
    """(…,) lengths of values (…, n), in double precision, whatever their size."""
    if values.dtype != torch.float64:  # squares of single precision neither overflow nor underflow in double
        error = values.shape[-1] * torch.finfo(torch.float64).eps
        return torch.linalg.vector_norm(values, dim=-1, dtype=torch.float64) * (1 + error)
    scaled, sizes = _scaled(values)
    return squared_lengths(scaled).sqrt() * sizes


def length_bounds(values: Tensor) -> Tensor:
    """(…,) bounds from above on lengths of values (…, n), in double precision; in one pass where squares neither overflow nor
    underflow."""
    if values.dtype == torch.float64:
        return row_lengths(values)
    lengths = torch.linalg.vector_norm(values, dim=-1).double() * (1 + values.shape[-1] * torch.finfo(values.dtype).eps)
    far = ~((lengths > 1e-12) & (lengths < 1e15))
    if bool(far.any()):
        lengths[far] = row_lengths(values[far])
    return lengths


def reordering(count: int, dtype: torch.dtype) -> float:
    """What a sum of `count` terms in another order, and the products in it, may add to its length, in units of the terms'."""
    return (8 + count) * torch.finfo(dtype).eps / 2


def gram(rows: Tensor) -> Tensor:
    """Inner products (b, T, T) of rows (b, T, n), in double precision, each wrong by `_error` of the lengths at most."""
    inner, sizes = _inner_products(rows)
    return inner * (sizes[:, :, None] * sizes[:, None, :])


def ghost_squares(left: Tensor, right: Tensor, right_gram: Callable[[Tensor], Tensor] | None = None) -> Tensor:
    """(b,) squared norms of Σ_t left_t ⊗ right_t for left (b, T, m) and right (b, T, n).

    Or for positions whose inner products `right_gram` (b, T, T) gives: sums of entries of `gram(right)`, of single precision.
    """
    dtype, narrow = left.dtype, left.dtype != torch.float64
    if needs_double(left, right):
        squares, rounding, lengths = _squares(left.double(), right.double(), right_gram, scaled=False)
        return ((squares + rounding).sqrt() + reordering(left.shape[1], dtype) * lengths).square().to(dtype)
    squares, rounding, lengths = _squares(left, right, right_gram)
    doubtful = rounding > _RAISED * squares
    if narrow and bool(doubtful.any()):
        again = _squares(left[doubtful].double(), right[doubtful].double(), right_gram, scaled=False)
        squares[doubtful], rounding[doubtful], lengths[doubtful] = again
    # a sum over records adds up in the factors' own precision, in another order
    return ((squares + rounding).sqrt() + reordering(left.shape[1], dtype) * lengths).square().to(dtype)


def needs_double(left: Tensor, right: Tensor) -> bool:
    """Whether single precision says too little of ghost norms where gradients of positions are at right angles: the square of
    their lengths' sum is T times the result then."""
    return left.dtype != torch.float64 and 2 * (_error(left) + _error(right)) * left.shape[1] > _RAISED


def _squares(
    left: Tensor, right: Tensor, right_gram: Callable[[Tensor], Tensor] | None, *, scaled: bool = True
) -> tuple[Tensor, Tensor, Tensor]:
    """Squared norms in double precision, what rounding may have taken from them, and the sums of the terms' lengths. What was of
    single precision need not be `scaled`: in double its products neither overflow nor underflow."""
    lefts, weights = _inner_products(left, scaled=scaled)
    if right_gram is None:  # sizes of both factors together: one may be tiny where the other is huge
        rights, sizes = _inner_products(right, scaled=scaled)
        weights = weights * sizes
    else:
        rights = right_gram(right)
    terms = lefts * rights * (weights[:, :, None] * weights[:, None, :])
    lengths = terms.diagonal(dim1=1, dim2=2).clamp(min=0).sqrt().sum(1)
    summed = lefts.shape[1] ** 2 * torch.finfo(torch.float64).eps  # of this sum itself
    return terms.sum((1, 2)).clamp(min=0), (1.01 * (_error(left) + _error(right)) + summed) * lengths.square(), lengths


def _inner_products(rows: Tensor, *, scaled: bool = True) -> tuple[Tensor, Tensor]:
    """Inner products of rows brought to size 1 where they are `scaled`, (b, T, T), and the sizes (b, T): both in double."""
    if not scaled:
        return rows @ rows.mT, rows.new_ones(rows.shape[:2])
    rows, sizes = _scaled(rows)
    if rows.dtype == torch.float64 or rows.shape[2] <= _TERMS:
        return (rows @ rows.mT).double(), sizes
    total = rows.new_zeros(len(rows), rows.shape[1], rows.shape[1], dtype=torch.float64)
    for part in rows.split(_TERMS, 2):
        total += part @ part.mT
    return total, sizes


def _scaled(values: Tensor) -> tuple[Tensor, Tensor]:
    """Values (…, n) with their largest entry 1, where squares neither underflow nor overflow, and the sizes (…,) in double."""
    sizes = values.abs().amax(-1).clamp(min=torch.finfo(values.dtype).tiny)
    return values / sizes[..., None], sizes.double()


def _error(rows: Tensor) -> float:
    """Of an entry of `gram`, in units of the rows' lengths: n roundings in any order, and those of bringing rows to size 1."""
    terms = rows.shape[2] if rows.dtype == torch.float64 else min(rows.shape[2], _TERMS)
    return (terms + 4) * torch.finfo(rows.dtype).eps / 2
