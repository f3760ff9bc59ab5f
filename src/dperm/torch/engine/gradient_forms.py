"""Per-example gradients of one parameter, each kept in the form that costs least.

A form answers three questions about b records without being told how it does so: the squared norm of each record's
gradient, the sum of the gradients weighted by (b,) factors, and, where nothing cheaper is known, all b gradients.
Numbers narrower than single precision are widened first, so that norms and sums are in float32 or float64.

Norms are never understated (`dperm.torch.engine.lengths`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from dperm.torch.engine.lengths import ghost_squares, length_bounds, needs_double, reordering, row_lengths, squared_lengths
from dperm.torch.tensors.buffers import Scratch, record_chunks

_TOUCHED = 32  # products in the time that it takes to add up a number and its square


def wide(tensor: Tensor) -> Tensor:
    """float32 for half precision; other types as they are."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


class Form(ABC):
    """Gradients of one parameter of `shape`, for `b` records."""

    shape: torch.Size

    @abstractmethod
    def squares(self) -> Tensor:
        """(b,) squared L2 norms, of the gradients as they are summed: what cancellation takes from ghost norms is added back."""

    @abstractmethod
    def weighted_sum(self, factors: Tensor) -> Tensor:
        """Σ_i factors_i·g_i, of the parameter's shape."""

    def add_weighted(self, factors: Tensor, out: Tensor) -> None:
        """Add the weighted sum to `out`, of the parameter's shape."""
        out += self.weighted_sum(factors)

    @abstractmethod
    def dense(self) -> Tensor:
        """All gradients, (b, *shape)."""

    @abstractmethod
    def without(self, bad: Tensor) -> Form:
        """The same with the gradients of the records in `bad` (b,) set to zero."""

    @property
    def kept_numbers(self) -> int:
        """How many numbers it holds once it is settled, by shapes alone; 0 where that is not known."""
        return 0

    def settled(self, scratch: Scratch) -> Form:
        """The form to keep until the weighted sum: this one, or all gradients where they take less memory."""
        return self

    def blocks(self, lease: Callable[[], Scratch], *, summed: bool) -> Iterator[tuple[slice, Form]]:
        """The form, settled, for some records at a time where that takes less memory; each lasts until the next one comes. Its
        norms are wanted, and its sum where it is to be `summed`."""
        yield slice(None), self.settled(lease())


class Dense(Form):
    """All gradients: values (b, *shape); `squares` (b,) where they are known already."""

    def __init__(self, values: Tensor, squares: Tensor | None = None) -> None:
        self.values = wide(values)
        self.shape = values.shape[1:]
        self._squares = squares

    def squares(self) -> Tensor:
        if self._squares is not None:
            return self._squares
        if self.values.dim() == 1:
            return self.values * self.values
        return squared_lengths(self.values.flatten(1)).to(self.values.dtype)

    @property
    def kept_numbers(self) -> int:
        return self.values.numel()

    def weighted_sum(self, factors: Tensor) -> Tensor:
        return (factors @ self.values.flatten(1)).view(self.shape) if self.values.dim() > 1 else factors @ self.values

    def dense(self) -> Tensor:
        return self.values

    def without(self, bad: Tensor) -> Dense:
        return Dense(_zeroed(self.values, bad))


class Outer(Form):
    """Sums of outer products: g_i = Σ_t left_it ⊗ right_it for left (b, T, m) and right (b, T, n), of `shape` (m, n).

    The norms come from the b products (m, n) (Bu et al. 2022) or from the T × T Gram matrices (Li et al. 2021, ghost
    norm), whichever takes fewer operations; with T = 1 from the factors alone (Goodfellow 2015).
    """

    def __init__(self, left: Tensor, right: Tensor, shape: Sequence[int] | None = None) -> None:
        self.left = wide(left)
        self.right = wide(right).to(self.left.dtype)
        self.shape = torch.Size(shape or (left.shape[2], right.shape[2]))

    @property
    def _sizes(self) -> tuple[int, int, int]:
        return self.left.shape[1], self.left.shape[2], self.right.shape[2]

    def squares(self) -> Tensor:
        t, m, n = self._sizes
        if t == 1:  # one factor may be tiny where the other is huge: their squares would underflow in single precision
            return (row_lengths(self.left.flatten(1)) * row_lengths(self.right.flatten(1))).square().to(self.left.dtype)
        ghost = (2 if needs_double(self.left, self.right) else 1) * t * (m + n) < m * n
        parts: list[Tensor] = []
        for part in record_chunks(len(self.left), 2 * t * (t + m + n) if ghost else m * n, self.left):
            left, right = self.left[part], self.right[part]
            if ghost:
                parts.append(ghost_squares(left, right))
            else:
                parts.append(_lengthened(Dense(left.mT @ right).squares(), left, right))
        return torch.cat(parts)

    def products(self, out: Tensor) -> Tensor:
        """All gradients, written into `out` (b, m, n)."""
        return torch.bmm(self.left.mT, self.right, out=out)

    def weighted_sum(self, factors: Tensor) -> Tensor:
        left = self.left * factors[:, None, None]
        return (left.flatten(0, 1).T @ self.right.flatten(0, 1)).view(self.shape)

    def dense(self) -> Tensor:
        return torch.bmm(self.left.mT, self.right).view(-1, *self.shape)

    def without(self, bad: Tensor) -> Outer:
        return Outer(_zeroed(self.left, bad), _zeroed(self.right, bad), self.shape)

    @property
    def _is_stored(self) -> bool:
        t, m, n = self._sizes
        return t > 1 and m * n <= 2 * t * (m + n)  # up to twice the memory, for a third of the operations

    @property
    def kept_numbers(self) -> int:
        t, m, n = self._sizes
        return len(self.left) * (m * n if self._is_stored else t * (m + n))

    def settled(self, scratch: Scratch) -> Form:
        return self._stored(scratch) if self._is_stored else self

    def blocks(self, lease: Callable[[], Scratch], *, summed: bool) -> Iterator[tuple[slice, Form]]:
        t, m, n = self._sizes
        ghost = (2 if needs_double(self.left, self.right) else 1) * t * t * (m + n)
        if not self._is_stored and not (summed and t > 1 and ghost > _TOUCHED * m * n):
            yield slice(None), self
            return
        for part in record_chunks(len(self.left), m * n, self.left):
            scratch = lease()
            yield part, Outer(self.left[part], self.right[part], self.shape)._stored(scratch)

    def _stored(self, scratch: Scratch) -> Dense:
        t, m, n = self._sizes
        values = scratch((len(self.left), m, n), self.left)
        squares: list[Tensor] = []
        for part in record_chunks(len(values), m * n + t * (m + n), values):
            torch.bmm(self.left[part].mT, self.right[part], out=values[part])
            squares.append(Dense(values[part]).squares())  # while the block is in the cache
        return Dense(values.view(-1, *self.shape), torch.cat(squares))


class Rows(Form):
    """Gradients that touch few rows of a table of `shape` (V, d): values (b, T, d) added at indices (b, T)."""

    def __init__(self, indices: Tensor, values: Tensor, shape: Sequence[int]) -> None:
        self.indices = indices
        self.values = wide(values)
        self.shape = torch.Size(shape)

    def squares(self) -> Tensor:
        # a row that a record touches twice is summed before it is squared
        b, t = self.indices.shape
        record = torch.arange(b, device=self.indices.device).repeat_interleave(t)
        keys, place = torch.unique(record * self.shape[0] + self.indices.flatten(), return_inverse=True)
        sums = self.values.new_zeros(len(keys), self.values.shape[2]).index_add_(0, place, self.values.flatten(0, 1))
        each = row_lengths(sums).square()
        squares = each.new_zeros(b).index_add_(0, keys // self.shape[0], each).to(self.values.dtype)
        return _longer(squares, row_lengths(self.values), t)

    @property
    def kept_numbers(self) -> int:
        return self.values.numel() + self.indices.numel()

    def weighted_sum(self, factors: Tensor) -> Tensor:
        out = self.values.new_zeros(self.shape)
        self.add_weighted(factors, out)
        return out

    def add_weighted(self, factors: Tensor, out: Tensor) -> None:
        values = self.values * factors[:, None, None]
        out.index_add_(0, self.indices.flatten(), values.flatten(0, 1).to(out.dtype))

    def dense(self) -> Tensor:
        b, t = self.indices.shape
        record = torch.arange(b, device=self.indices.device).repeat_interleave(t)
        out = self.values.new_zeros(b * self.shape[0], self.shape[1])
        return out.index_add_(0, record * self.shape[0] + self.indices.flatten(), self.values.flatten(0, 1)).view(b, *self.shape)

    def without(self, bad: Tensor) -> Rows:
        return Rows(self.indices, _zeroed(self.values, bad), self.shape)


class Block(Form):
    """The gradient of the rows from `start` of a parameter of `shape`, and zero elsewhere."""

    def __init__(self, form: Form, start: int, shape: Sequence[int]) -> None:
        self.form, self.start, self.shape = form, start, torch.Size(shape)

    @property
    def stop(self) -> int:
        return self.start + self.form.shape[0]

    def squares(self) -> Tensor:
        return self.form.squares()

    @property
    def kept_numbers(self) -> int:
        return self.form.kept_numbers

    def weighted_sum(self, factors: Tensor) -> Tensor:
        part = self.form.weighted_sum(factors)
        return _padded(part, 0, self.start, self.shape[0] - self.stop)

    def dense(self) -> Tensor:
        return _padded(self.form.dense(), 1, self.start, self.shape[0] - self.stop)

    def without(self, bad: Tensor) -> Block:
        return Block(self.form.without(bad), self.start, self.shape)

    def settled(self, scratch: Scratch) -> Block:
        return Block(self.form.settled(scratch), self.start, self.shape)

    def blocks(self, lease: Callable[[], Scratch], *, summed: bool) -> Iterator[tuple[slice, Block]]:
        for part, form in self.form.blocks(lease, summed=summed):
            yield part, Block(form, self.start, self.shape)


class Total(Form):
    """A parameter used more than once: the gradients of its uses add up before any norm is taken."""

    def __init__(self, parts: Sequence[Form]) -> None:
        self.parts = list(parts)
        self.shape = self.parts[0].shape

    def squares(self) -> Tensor:
        result = torch.stack([part.squares() for part in self.parts]).sum(0)
        size = torch.zeros_like(result)
        for index, first in enumerate(self.parts):
            for second in self.parts[index + 1 :]:
                cross, magnitude = _inner(first, second)
                result = result + 2 * cross
                size = size + 2 * magnitude
        # without cross terms nothing cancels
        return _raised(result, torch.where(size > 0, size + result, size))

    @property
    def kept_numbers(self) -> int:
        return sum(part.kept_numbers for part in self.parts)

    def weighted_sum(self, factors: Tensor) -> Tensor:
        result = self.parts[0].weighted_sum(factors)
        for part in self.parts[1:]:
            result = result + part.weighted_sum(factors)
        return result

    def dense(self) -> Tensor:
        result = self.parts[0].dense()
        for part in self.parts[1:]:
            result = result + part.dense()
        return result

    def without(self, bad: Tensor) -> Total:
        return Total([part.without(bad) for part in self.parts])


def total(parts: Sequence[Form]) -> Form:
    """The gradient of a parameter from the forms of its uses; uses of one kind become one form."""
    if len(parts) == 1:
        return parts[0]
    shape = parts[0].shape
    merged: list[Form] = []
    if dense := [part.values for part in parts if isinstance(part, Dense)]:
        merged.append(Dense(torch.stack(dense).sum(0)))
    if outer := [part for part in parts if isinstance(part, Outer)]:
        merged.append(Outer(torch.cat([part.left for part in outer], 1), torch.cat([part.right for part in outer], 1), shape))
    if rows := [part for part in parts if isinstance(part, Rows)]:
        merged.append(Rows(torch.cat([part.indices for part in rows], 1), torch.cat([part.values for part in rows], 1), shape))
    blocks: dict[tuple[int, int], list[Form]] = {}
    for part in parts:
        if isinstance(part, Block):
            blocks.setdefault((part.start, part.stop), []).append(part.form)
        elif not isinstance(part, (Dense, Outer, Rows)):
            merged.append(part)
    merged += [Block(total(inner), start, shape) for (start, _), inner in blocks.items()]
    return merged[0] if len(merged) == 1 else Total(merged)


def _lengthened(squares: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """Squared norms of Σ_t left_t ⊗ right_t, with what the sum over records may add to one of them in rounding: it takes another
    order, and where terms are huge and cancel, another result."""
    return _longer(squares, length_bounds(left) * length_bounds(right), left.shape[1])


def _longer(squares: Tensor, terms: Tensor, count: int) -> Tensor:
    """Norms raised by what the rounding of sums of `count` terms of these lengths (b, T) may add."""
    rounding = reordering(count, squares.dtype) * terms.double().sum(1)
    return (squares.double().sqrt() + rounding).square().to(squares.dtype)


def _raised(value: Tensor, magnitude: Tensor) -> Tensor:
    return value.clamp(min=0) + 4 * torch.finfo(value.dtype).eps * magnitude


def _inner(first: Form, second: Form) -> tuple[Tensor, Tensor]:
    """(b,) inner products of two gradients of one parameter, and a bound on the sizes of the terms that were added."""
    if isinstance(first, Outer) and isinstance(second, Rows):
        # ⟨left ⊗ right, e_index ⊗ value⟩ = left[index]·⟨right, value⟩: a tied embedding and output layer
        at_rows = first.left.gather(2, second.indices[:, None, :].expand(-1, first.left.shape[1], -1))
        terms = at_rows.double() * (first.right.double() @ second.values.double().mT)
        return _summed(terms.flatten(1), at_rows)
    if isinstance(first, Rows) and isinstance(second, Outer):
        return _inner(second, first)
    if isinstance(first, Block) and isinstance(second, Block) and (first.stop <= second.start or second.stop <= first.start):
        nothing = torch.zeros(())
        return nothing, nothing
    terms = (first.dense().double() * second.dense().double()).flatten(1)
    return _summed(terms, first.dense())


def _summed(terms: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
    return terms.sum(1).to(like.dtype), terms.abs().sum(1).to(like.dtype)


def _zeroed(values: Tensor, bad: Tensor) -> Tensor:
    return torch.where(bad.view(-1, *[1] * (values.dim() - 1)), torch.zeros((), dtype=values.dtype, device=values.device), values)


def _padded(values: Tensor, axis: int, before: int, after: int) -> Tensor:
    sizes = list(values.shape)
    sizes[axis] += before + after
    out = values.new_zeros(sizes)
    out.narrow(axis, before, values.shape[axis]).copy_(values)
    return out
