"""How many records fit memory at once: measured on a few, capped."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor

from dperm.torch.objective import ModuleObjective
from dperm.torch.structure import batch_size

__all__ = ["bytes_per_record", "physical_batch_size"]

_CAP = 4096  # larger batches gain nothing
_SHARE = 0.4  # of the memory that is free now
_CPU_LIMIT = 4 << 30


def bytes_per_record(objective: ModuleObjective, inputs: Any, targets: Any) -> int:
    """What a pass keeps per record: activations saved for the way back, twice, for their gradients, and per-example forms."""
    size = batch_size(inputs) or 1
    seen: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        seen[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        found = objective.evaluate(inputs, targets)
    parameters = objective.flat.buffer.untyped_storage().nbytes()
    saved = max(0, sum(seen.values()) - parameters)
    return max(1, (2 * saved + found.bytes_held) // size)


def physical_batch_size(objective: ModuleObjective, inputs: Any, targets: Any) -> int:
    """Records at once that leave most of the free memory free; at least 1, at most 4,096."""
    device = objective.flat.device
    if device.type == "cuda":
        free = torch.cuda.mem_get_info(device)[0]
    else:
        free = min(_CPU_LIMIT, _available())
    return max(1, min(_CAP, int(_SHARE * free / bytes_per_record(objective, inputs, targets))))


def _available() -> int:
    """Bytes of main memory that are free; the limit where the system does not say."""
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return _CPU_LIMIT
