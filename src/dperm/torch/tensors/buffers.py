"""Memory that is used again: large buffers on a CPU cost more to map than to fill, and records are cut into blocks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

#: (shape, a tensor of the wanted type and device) → an uninitialised tensor
Scratch = Callable[[Sequence[int], Tensor], Tensor]

_BLOCK_BYTES = 1 << 23  # large enough for batched products to run at full speed, small enough to be used again
_DEVICE_BYTES = 1 << 28  # the same where launching is dear and bandwidth is not


def record_chunks(records: int, numbers_each: int, like: Tensor) -> Iterator[slice]:
    """Slices of the records such that `numbers_each` numbers a record fit a block of the cache's size."""
    limit = _BLOCK_BYTES if like.device.type == "cpu" else _DEVICE_BYTES
    step = max(1, limit // max(1, numbers_each * like.element_size()))
    for start in range(0, records, step):
        yield slice(start, min(start + step, records))


class Pool:
    """Blocks given back by passes that are gone. Devices with an allocator that keeps its memory do without."""

    def __init__(self) -> None:
        self._free: list[Tensor] = []

    def lease(self) -> Leases:
        return Leases(self)

    def take(self, size: int, like: Tensor) -> Tensor:
        """The smallest free block with `size` numbers of the type of `like`, or a new one in place of the next smaller."""
        alike = [block for block in self._free if block.dtype == like.dtype and size <= 4 * block.numel() <= 16 * size]
        best = min((block for block in alike if block.numel() >= size), key=Tensor.numel, default=None)
        leaving = best if best is not None else max(alike, key=Tensor.numel, default=None)
        self._free = [block for block in self._free if block is not leaving]
        # batches differ a little in size: a margin keeps one block from being outgrown every few steps
        return best if best is not None else torch.empty(size + size // 8, dtype=like.dtype, device=like.device)

    def give_back(self, blocks: Sequence[Tensor]) -> None:
        self._free += blocks


class Leases:
    """The blocks of one pass; they return to the pool when nobody holds the lease any more."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._blocks: list[Tensor] = []

    def __call__(self, shape: Sequence[int], like: Tensor) -> Tensor:
        size = math.prod(shape)
        if like.device.type != "cpu":
            return like.new_empty(shape)
        block = self._pool.take(size, like)
        self._blocks.append(block)
        return block[:size].view(*shape)

    @property
    def bytes_held(self) -> int:
        return sum(block.numel() * block.element_size() for block in self._blocks)

    def __del__(self) -> None:
        self._pool.give_back(self._blocks)
