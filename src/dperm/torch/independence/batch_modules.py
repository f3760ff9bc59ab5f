"""Modules that have no per-example gradient, whatever runs them."""

from __future__ import annotations

import torch
from torch import nn

_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


def reason_to_refuse(module: nn.Module) -> str | None:
    """Why `module` has no per-example gradient, in words for its user; None where it may have one."""
    if type(module).__name__ == "OptimizedModule":
        return "a compiled model cannot be looked into: pass the model that was given to torch.compile"
    if isinstance(module, torch.jit.ScriptModule):
        return "a traced or scripted model cannot be looked into: pass the model that it was made of"
    if isinstance(module, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
        return "it adds up raw gradients: pass the model inside it (.module); a run by torchrun is parallel as it is"
    if isinstance(module, _BATCH_NORMS) and (module.training or not module.track_running_stats):
        return (
            "batch normalisation mixes the records of a batch: replace it by nn.GroupNorm, or keep it in eval mode with "
            "statistics from public data"
        )
    if (
        isinstance(module, (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d))
        and module.track_running_stats
        and module.training
    ):
        return "its running statistics leave the run without noise: use track_running_stats=False"
    if isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and module.max_norm is not None:
        return "max_norm rescales rows in place, depending on which records come together: clip the rows afterwards"
    if any(isinstance(parameter, nn.UninitializedParameter) for parameter in module.parameters(recurse=False)):
        return "its parameters have no shape yet: run the model once on public input first"
    return None
