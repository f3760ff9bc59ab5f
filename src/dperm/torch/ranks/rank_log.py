"""The spend log of a run on many ranks: one charge, one reservation, made by rank 0."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from dperm.privacy import Event
from dperm.privacy.accountants.privacy_filters import Price
from dperm.release import SpendLog
from dperm.release.ledger import Charge
from dperm.torch.ranks.group import Ranks


class LogOfFirst(SpendLog):
    """Rank 0's log, for the channels of all ranks: what one of them asks, all ask, and it is asked once."""

    def __init__(self, ranks: Ranks) -> None:
        super().__init__(SpendLog.current().database)
        self._ranks = ranks

    def charge(self, event: Event, **said: Any) -> str:
        return self._ranks.first(partial(super().charge, event, **said))

    def reserve(self, charge_id: str, steps: int, limit: int, done: int = 0) -> tuple[int, int] | None:
        return self._ranks.first(partial(super().reserve, charge_id, steps, limit, done))

    def add_part(self, charge_id: str, part: Event, price: Price, *, spent: float, note: Mapping[str, Any]) -> float | None:
        return self._ranks.first(partial(super().add_part, charge_id, part, price, spent=spent, note=note))

    def parts(self, charge_id: str) -> list[tuple[Event, Mapping[str, Any]]]:
        return self._ranks.first(partial(super().parts, charge_id))

    def accounts(self, charge_id: str) -> dict[str, float]:
        return self._ranks.first(partial(super().accounts, charge_id))

    def charges(self, label: str | None = None) -> list[Charge]:
        return self._ranks.first(partial(super().charges, label))
