"""Norms of sums of outer products from inner products of their factors, which are never understated.

‖Σ_t l_t ⊗ r_t‖² = Σ_tt' ⟨l_t, l_t'⟩·⟨r_t, r_t'⟩ (ghost norm: Li et al. 2021; Bu, Mao and Xu 2022). The terms cancel where
gradients of the positions point against each other, and an inner product of n numbers may lose n roundings: of constant rows it
loses about as many, always to the same side. So norms are raised by all that rounding can take from them. Single precision adds
up few products, whose sums are added in double; where much would have to be added, the norm is computed in double as a whole.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

__all__ = ["ghost_precise", "ghost_squares", "gram", "reordering"]

_RAISED = 2e-3  # squared norms that had to be raised by more are computed in double
_TERMS = 128  # products that single precision adds up


def gram(rows: Tensor) -> Tensor:
    """Inner products (b, T, T) of rows (b, T, n), in double precision, each wrong by `_error` of the lengths at most."""
    if rows.dtype == torch.float64 or rows.shape[2] <= _TERMS:
        return (rows @ rows.mT).double()
    total = rows.new_zeros(len(rows), rows.shape[1], rows.shape[1], dtype=torch.float64)
    for part in rows.split(_TERMS, 2):
        total += part @ part.mT
    return total


def _error(rows: Tensor) -> float:
    """Of an entry of `gram`, in units of the rows' lengths: n roundings in any order, and those of bringing rows to size 1."""
    terms = rows.shape[2] if rows.dtype == torch.float64 else min(rows.shape[2], _TERMS)
    return (terms + 4) * torch.finfo(rows.dtype).eps / 2


def ghost_precise(left: Tensor, right: Tensor) -> bool:
    """Whether single precision suffices where gradients of positions are at right angles: the square of their lengths' sum is
    then T times the result."""
    return 2 * (_error(left) + _error(right)) * left.shape[1] < _RAISED


def ghost_squares(left: Tensor, right: Tensor, right_gram: Callable[[Tensor], Tensor] = gram) -> Tensor:
    """(b,) squared norms of Σ_t left_t ⊗ right_t for left (b, T, m) and right (b, T, n), or for what `right_gram` (b, T, T) gives
    the inner products of: sums of entries of `gram(right)`, of which it makes rows."""
    narrow, reordered = left.dtype != torch.float64, reordering(left.shape[1], left.dtype)
    (left, left_size), (right, right_size) = _normalised(left), _normalised(right)
    if narrow and not ghost_precise(left, right):
        left, right, narrow = left.double(), right.double(), False
    squares, rounding, lengths = _squares(left, right, right_gram)
    doubtful = rounding > _RAISED * squares
    if narrow and bool(doubtful.any()):
        again = _squares(left[doubtful].double(), right[doubtful].double(), right_gram)
        squares[doubtful], rounding[doubtful], lengths[doubtful] = again
    norms = (squares + rounding).sqrt() + reordered * lengths
    return (norms * left_size.double() * right_size.double()).square().to(left_size.dtype)


def reordering(count: int, dtype: torch.dtype) -> float:
    """What a sum of `count` terms in another order, and the products in it, may add to its length, in units of the terms'."""
    return (8 + count) * torch.finfo(dtype).eps / 2


def _squares(left: Tensor, right: Tensor, right_gram: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Squared norms in double precision, what rounding may have taken from them, and the sums of the terms' lengths."""
    lefts, rights = gram(left), right_gram(right)
    lengths = (lefts.diagonal(dim1=1, dim2=2) * rights.diagonal(dim1=1, dim2=2)).clamp(min=0).sqrt().sum(1)
    squares = (lefts * rights).sum((1, 2)).clamp(min=0)
    summed = lefts.shape[1] ** 2 * torch.finfo(torch.float64).eps  # of this sum itself
    return squares, (1.01 * (_error(left) + _error(right)) + summed) * lengths.square(), lengths


def _normalised(values: Tensor) -> tuple[Tensor, Tensor]:
    """Values (b, T, n) brought to size 1, where their squares neither underflow nor overflow, and the sizes (b,)."""
    sizes = values.abs().amax((1, 2)).clamp(min=torch.finfo(values.dtype).tiny)
    return values / sizes[:, None, None], sizes
