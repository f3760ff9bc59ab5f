"""How many records to take at once: as fit memory, measured on a few, and no more than are fast."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dperm._memory import free_memory
from dperm.torch.engine import TorchPass
from dperm.torch.module_objective import ModuleObjective
from dperm.torch.tensors.nested import batch_size, take

_CAP = 4096  # larger batches gain nothing
_SHARE = 0.4  # of the memory that is free now
_CPU_LIMIT = 4 << 30
# C libraries map large blocks anew each time they are asked for, and the system clears them page by page: glibc all above
# 32 MiB. Passes with tensors of 33 MB and more were slower than with 19 MB; half the limit leaves a margin
_CPU_TENSOR = 16 << 20


def bytes_per_record(objective: ModuleObjective, inputs: Any, targets: Any) -> tuple[int, int]:
    """What a pass keeps per record: activations saved for the way back, twice, for their gradients, and per-example forms;
    and the largest of these activations. Measured as the difference between passes of two sizes: weights do not grow."""
    size = batch_size(inputs) or 1
    objective.prepare(inputs, targets)  # now: its checks are passes too
    few = torch.arange(max(1, size // 2))
    evaluation, all_saved = _saved(objective, inputs, targets)
    _, few_saved = _saved(objective, take(inputs, few, size), take(targets, few, size)) if size > 1 else (evaluation, [])
    # where the two do not run alike, the smaller pass says nothing
    less = few_saved if len(few_saved) == len(all_saved) else [0] * len(all_saved)
    records = size - len(few) if any(less) else size
    grown = [(most - least) // records for most, least in zip(all_saved, less, strict=True)]
    return max(1, 2 * sum(grown) + evaluation.bytes_held // size), max(grown, default=0)


def _saved(objective: ModuleObjective, inputs: Any, targets: Any) -> tuple[TorchPass, list[int]]:
    """A pass, and the bytes of each block of memory that it saved for the way back, in order."""
    seen: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        place = tensor.data_ptr()
        seen[place] = max(seen.get(place, 0), tensor.numel() * tensor.element_size())
        return tensor

    objective.engine.hooked = True
    try:
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            evaluation = objective.evaluate(inputs, targets)
    finally:
        objective.engine.hooked = False
    return evaluation, list(seen.values())


def physical_batch_size(objective: ModuleObjective, inputs: Any, targets: Any) -> int:
    """Records at once that leave most of the free memory free; at least 1, at most 4,096, and on a CPU only as many as keep
    each activation below 16 MiB."""
    total, largest = bytes_per_record(objective, inputs, targets)
    device = objective.flat.device
    if device.type == "cuda":
        free = torch.cuda.mem_get_info(device)[0]
    else:
        free = min(_CPU_LIMIT, free_memory())
    fast = _CPU_TENSOR // max(1, largest) if device.type == "cpu" else _CAP
    return max(1, min(_CAP, fast, int(_SHARE * free / total)))
