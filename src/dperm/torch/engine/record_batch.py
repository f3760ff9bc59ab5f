"""Records that run together, as a run is given them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from dperm.torch.tensors.nested import map_tensors, tensors


@dataclass
class Batch:
    """Records that run together: their numbers in the whole batch, inputs and targets; in a replay their names, too. `by_record`
    says of each tensor whether its first axis counts the records."""

    records: Tensor
    inputs: Any
    targets: Any
    by_record: Sequence[bool]
    names: Sequence[object] | None = None

    @classmethod
    def whole(cls, records: Tensor, inputs: Any, targets: Any, names: Sequence[object] | None) -> Batch:
        counted = [bool(item.dim()) and item.shape[0] == len(records) for item in tensors((inputs, targets))]
        return cls(records, inputs, targets, counted, names)

    @property
    def size(self) -> int:
        return len(self.records)

    def of(self, places: Tensor) -> Batch:
        """Those of the records at these places."""
        names = None if self.names is None else [self.names[place] for place in places.tolist()]
        counted = iter(self.by_record)

        def chosen(item: Tensor) -> Tensor:
            return item[places.to(item.device)] if next(counted) else item

        inputs, targets = map_tensors(chosen, (self.inputs, self.targets))
        return Batch(self.records[places], inputs, targets, self.by_record, names)
