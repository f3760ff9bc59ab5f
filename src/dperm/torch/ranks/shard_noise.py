"""Noise where each rank has a part of every sum: each adds the noise of its own numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from dperm.release import Noise, Source
from dperm.release.source import in_earnest
from dperm.torch.ranks.group import Ranks
from dperm.torch.ranks.rank_channel import RankSource


class Shards(Protocol):
    """Which of a vector's numbers this rank has."""

    @property
    def whole(self) -> int: ...

    def spread(self, rows: Tensor) -> Tensor: ...

    def gathered(self, whole: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class Lengthened:
    """Shards with `more` numbers at the end, of which every rank has a part: an audit's canaries."""

    shards: Shards
    more: int

    @property
    def whole(self) -> int:
        return self.shards.whole + self.more

    def spread(self, rows: Tensor) -> Tensor:
        own = len(rows) - self.more
        return torch.cat([self.shards.spread(rows[:own]), rows[own:]])

    def gathered(self, whole: Tensor) -> Tensor:
        own = self.shards.whole
        return torch.cat([self.shards.gathered(whole[:own]), whole[own:]])


@in_earnest
class ShardSource(RankSource):
    """As `RankSource`, but for tensors: a query is this rank's numbers of a sum that is complete, and each number is one rank's.

    Every rank adds independent noise, from its own operating system, to its numbers alone, so that each number has its noise
    once. Where noise is not private, as with a fixed seed or noise that a test makes, rank 0 adds that of the whole vector, which
    all get.
    """

    def __init__(self, own: Source, ranks: Ranks, sampling: np.random.Generator, shards: Shards) -> None:
        super().__init__(own, ranks, sampling)
        self._shards, self._sums = shards, 0

    def summed(self, part: Any) -> Any:
        if not isinstance(part, Tensor):
            return super().summed(part)
        self._sums += 1
        self._ranks.keep_step(self._sums, part.device)  # ranks that add their noise by themselves would run ahead
        return part

    def length(self, query: Any) -> int:
        return self._shards.whole if isinstance(query, Tensor) else super().length(query)

    def noisy(self, query: Any, noise: Noise) -> Any:
        if not isinstance(query, Tensor):
            return super().noisy(query, noise)
        if self.provenance.private:
            return self._own.noisy(query, noise) if len(query) else query
        whole = self._ranks.total(self._shards.spread(query))
        return self._shards.gathered(super().noisy(whole, noise))
