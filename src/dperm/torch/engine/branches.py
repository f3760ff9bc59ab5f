"""Numbers that Python reads of a tensor, as control flow does: a constant where all records agree on it, else the records branch.

What a record draws is a function of its own branch (`dperm.torch.engine.randomness`): it draws the same again where a run is
repeated for those that go on together.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


class BranchesDiffer(Exception):
    """Records of a run differ in what the model reads of them. `groups` (k,) numbers those that agree."""

    def __init__(self, groups: Tensor) -> None:
        super().__init__("Records differ in what the model reads of them.")
        self.groups = groups


class Branch:
    """What a model read of the records `records` (k,), numbers within a physical batch, all of whom agree on it."""

    def __init__(self, records: Tensor, answers: Sequence[Tensor] = ()) -> None:
        self.records = records
        self.answers = list(answers)
        self.path = b""
        self._asked = 0

    def begin(self) -> None:
        """Before each run: the first read comes first again."""
        self._asked, self.path = 0, b""

    @property
    def place(self) -> tuple[int, bytes]:
        """How many numbers the run has read, and which way it has taken."""
        return self._asked, self.path

    @place.setter
    def place(self, place: tuple[int, bytes]) -> None:
        self._asked, self.path = place

    def parted(self, groups: Tensor) -> list[Branch]:
        """One branch for each group of the records, all as far as this one came."""
        return [Branch(self.records[groups == group], self.answers) for group in range(int(groups.max()) + 1)]

    def halves(self) -> list[Branch]:
        """The same branch for the first half of the records, and for the others."""
        return [Branch(part, self.answers) for part in self.records.chunk(2)]

    def agreed(self, tensor: Tensor, rows: Callable[[Tensor], Tensor | None]) -> Tensor:
        """The numbers of a tensor as a constant. Raises `BranchesDiffer` where records do not agree on them, bit for bit."""
        numbers = rows(tensor)
        if numbers is None:
            return tensor
        self._asked += 1
        if self._asked > len(self.answers):
            self.answers.append(_common(numbers))
        answer = self.answers[self._asked - 1]
        self.path = hashlib.sha256(self.path + answer.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()).digest()
        return answer


def _common(rows: Tensor) -> Tensor:
    rows = rows.contiguous()
    if len(rows) > 1 and rows.numel():
        bits = rows.reshape(len(rows), -1).view(torch.uint8)
        if not bool((bits == bits[:1]).all()):
            raise BranchesDiffer(torch.unique(bits, dim=0, return_inverse=True)[1].cpu())
    return rows[0].clone()


def constants(run: Any, value: Any) -> Any:
    """`value` with the tensors in it as constants of the branch."""
    if isinstance(value, Tensor):
        return run.agreed(value)
    return type(value)(constants(run, item) for item in value) if type(value) in (tuple, list) else value
