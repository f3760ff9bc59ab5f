"""One noise, one draw and one spend log for all ranks: the two sides of a channel of a run on many processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeVar

import numpy as np
from torch import Tensor

from dperm._types import Array
from dperm.privacy import Event, Provenance
from dperm.privacy.accountants.privacy_filters import Price
from dperm.release import Noise, Source, SpendLog
from dperm.release.draws import Coin, Draw, Indices
from dperm.release.ledger import Charge, Part, Settlement
from dperm.release.source import in_earnest, provenance_of
from dperm.torch.ranks.group import RankError, Ranks

T = TypeVar("T")


@in_earnest
class RankSource(Source):
    """Every rank's `own` source, as one: draws are of `sampling`.

    A query is the sum of the ranks' parts. Noise is added to it once. Where `own` is private, each rank's is of its own operating
    system: it adds noise to its part of a tensor's numbers, and tells the others. Where it is not, as with a fixed seed or noise
    that a test makes, ranks may have the same noise: rank 0 adds that of the whole. Arrays get theirs from rank 0, always.

    All ranks draw the same records, of a generator whose state rank 0 tells: what is drawn does not depend on how many ranks
    there are, and no rank's own seed has a part in it. Only a stranger's source may draw of something else.
    """

    def __init__(self, own: Source, ranks: Ranks, sampling: np.random.Generator) -> None:
        self._own, self._ranks, self._sampling = own, ranks, sampling

    @property
    def trials(self) -> int | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self._own.trials

    @property
    def provenance(self) -> Provenance:
        return provenance_of(self._own)

    def length(self, query: Any) -> int:
        return self._own.length(query)

    def summed(self, part: Any) -> Any:
        return self._ranks.total(part) if isinstance(part, Tensor) else np.sum(self._ranks.gathered(part), axis=0)

    def first(self, work: Callable[[], T]) -> T:
        return self._ranks.first(work)

    def noisy(self, query: Any, noise: Noise) -> Any:
        if not isinstance(query, Tensor):
            return self._ranks.first(lambda: self._own.noisy(query, noise))
        if self.provenance.private:
            return self._ranks.by_parts(query, lambda part: self._own.noisy(part, noise))
        noisy = self._own.noisy(query, noise) if self._ranks.rank == 0 else query
        return self._ranks.told(noisy.contiguous())

    def draw(self, draw: Draw, records: int, steps: int) -> Iterator[Indices]:
        # ranks may have read ahead, some further than others: from here on all are at the same place again
        generators = self._sampling, self._own.generator  # which are one, unless the source is the caller's
        told = self._ranks.first(lambda: [generator.bit_generator.state for generator in generators])

        def go_on_there() -> None:
            for generator, state in zip(generators, told, strict=True):
                generator.bit_generator.state = state

        self._ranks.together(go_on_there)
        return self._own.draw(draw, records, steps)

    def thin(self, indices: Indices, keep: Array, coin: Coin) -> Indices:
        return self._own.thin(indices, keep, coin)  # by the state that all drew from, and the numbers of records

    @property
    def generator(self) -> np.random.Generator:
        return self._own.generator

    def admitted(self, event: Event) -> None:
        self._own.admitted(event)


class LogOfFirst(SpendLog):
    """Rank 0's log, for the channels of all ranks: what one of them asks, all ask, and it is asked once."""

    def __init__(self, ranks: Ranks) -> None:
        super().__init__(SpendLog.current().database)
        self._ranks = ranks

    def charge(self, event: Event, **said: Any) -> str:
        return self._ranks.first(partial(super().charge, event, **said))

    def reserve(self, charge_id: str, steps: int, limit: int, done: int = 0) -> tuple[int, int] | None:
        return self._ranks.first(partial(super().reserve, charge_id, steps, limit, done))

    def add_part(self, charge_id: str, part: Event, price: Price, **stated: Any) -> float | None:
        return self._ranks.first(partial(super().add_part, charge_id, part, price, **stated))

    def settle(self, charge_id: str, key: str, unreleased: Callable[[int | None], Event]) -> Settlement:
        everyone = self._ranks.gathered(charge_id)  # all have closed their channels: only then does the first one write
        if len(set(everyone)) > 1:
            raise RankError("Expected all ranks to settle the same charge.")
        return self._ranks.first(partial(super().settle, charge_id, key, unreleased))

    def foreseen_settlement(self, charge_id: str, key: str, unreleased: Callable[[int | None], Event]) -> Settlement:
        return self._ranks.first(partial(super().foreseen_settlement, charge_id, key, unreleased))

    def settled(self, charge_id: str) -> bool:
        return self._ranks.first(partial(super().settled, charge_id))

    def parts(self, charge_id: str) -> list[Part]:
        return self._ranks.first(partial(super().parts, charge_id))

    def accounts(self, charge_id: str) -> dict[str, float]:
        return self._ranks.first(partial(super().accounts, charge_id))

    def charges(self, label: str | None = None) -> list[Charge]:
        return self._ranks.first(partial(super().charges, label))
