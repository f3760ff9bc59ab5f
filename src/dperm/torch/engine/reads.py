"""Numbers that Python reads of a tensor: constants where all records agree on them; else records part, and each goes its own
way.

Every way runs on all records of the physical batch with the same random state, and counts for the records whose way it is. A
record's draws are then its own, also where the way hangs on them: to split the batch instead would draw again, for records
that were chosen by what they drew.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

__all__ = ["Parting", "Way", "constants"]


class Parting(Exception):
    """Records of a run differ in what the model reads of them. `groups` (k,) numbers those that agree."""

    def __init__(self, groups: Tensor) -> None:
        super().__init__("Records differ in what the model reads of them.")
        self.groups = groups

    @property
    def ways(self) -> int:
        """How many groups there are."""
        return int(self.groups.max()) + 1


class Way:
    """What a model read of the records `records` (k,), numbers within a physical batch, all of whom agree on it."""

    def __init__(self, records: Tensor, answers: list[Tensor] | None = None) -> None:
        self.records = records
        self.answers = answers or []
        self._asked = 0

    def begin(self) -> None:
        """Before each run: the first read comes first again."""
        self._asked = 0

    def parted(self, groups: Tensor) -> list[Way]:
        """One way for each group of the records, all as far as this one came."""
        return [Way(self.records[groups == group], list(self.answers)) for group in range(int(groups.max()) + 1)]

    def agreed(self, tensor: Tensor, rows: Callable[[Tensor], Tensor | None]) -> Tensor:
        """The numbers of a tensor as a constant. Raises `Parting` where records do not agree on them, bit for bit."""
        numbers = rows(tensor)
        if numbers is None:
            return tensor
        self._asked += 1
        if self._asked > len(self.answers):
            self.answers.append(self._found(numbers))
        return self.answers[self._asked - 1]

    def _found(self, rows: Tensor) -> Tensor:
        mine = rows[self.records.to(rows.device)].contiguous()
        if len(mine) > 1 and mine.numel():
            bits = mine.reshape(len(mine), -1).view(torch.uint8)
            if not bool((bits == bits[:1]).all()):
                raise Parting(torch.unique(bits, dim=0, return_inverse=True)[1].cpu())
        return mine[0].clone()


def constants(run: Any, value: Any) -> Any:
    """`value` with the tensors in it as constants of the way."""
    if isinstance(value, Tensor):
        return run.agreed(value)
    return type(value)(constants(run, item) for item in value) if type(value) in (tuple, list) else value
