"""Whether a model gives its records the losses and gradients that it gives them in one ordinary batch.

No privacy rests on it: the engine's gradients are those of records by themselves. A model that was written to compare
records, such as one with batch statistics, would silently become another one; and PyTorch's own batching rules may have
faults.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from dperm.torch.engine.backward import slopes
from dperm.torch.engine.passes import TorchPass
from dperm.torch.engine.runs import RefusedError
from dperm.torch.flat import FlatParameters
from dperm.torch.guard import global_states, kept_states
from dperm.torch.state import Snapshot
from dperm.torch.structure import FAILURES

if TYPE_CHECKING:
    from dperm.torch.objective import ModuleObjective

__all__ = ["disagreement"]

_MIXES = (
    "One record's loss depends on another record: the model and the loss give it another loss in a batch than alone. A layer or "
    "the loss mixes records, or depends on how many records there are. Look for normalisation over the batch, losses that "
    "compare records or divide by their number, and padding that counts."
)
_GRADIENTS = (
    "Per-example gradients do not agree with autograd's: some layer mixes, reorders or drops records on the way back, hooks "
    "gradients, or has a batching rule with a fault."
)


def disagreement(objective: ModuleObjective, inputs: Any, targets: Any, size: int) -> str | None:
    """What is wrong with the gradients of these records, or None. Parameters are moved a little meanwhile, so that layers
    that start at zero hide nothing; layers are in evaluation mode where the model draws, and nothing is compared where it
    draws still.
    """
    model, flat = objective.model, objective.flat
    kept = Snapshot(objective.roots, without=flat.parameters, light=True)
    modes = {module: module.training for module in model.modules()}
    with kept_states(flat.device), _moved(flat):
        try:
            plain = _ordinary(objective, inputs, targets)
            kept.restore()
            if plain is None:
                for module in modes:
                    module.training = False
                plain = _ordinary(objective, inputs, targets)
                kept.restore()
                for module in modes:
                    module.training = modes[module] if plain is None else False
            try:
                mine = objective.run((inputs, targets), size)
            except RefusedError:
                raise
            except FAILURES as error:
                if size == 1:
                    raise
                return f"The model or the loss runs on a batch of {size} records and not on each by itself: {error}"
        finally:
            kept.restore()
            for module, mode in modes.items():
                module.training = mode
    if plain is not None and not plain[3]:
        return "The losses do not depend on the trainable parameters: there is nothing to train."
    return None if plain is None else _apart(mine, *plain[:3], flat)


def _ordinary(objective: ModuleObjective, inputs: Any, targets: Any) -> tuple[Tensor, Tensor, Tensor, bool] | None:
    """The losses (b,) of one ordinary batch, weights (b,), the gradient (p,) of the weighted losses, and whether they have
    one; None where the model draws."""
    flat, before = objective.flat, global_states(objective.flat.device)
    with torch.enable_grad():
        losses = objective.ordinary_losses(inputs, targets)
        weights = torch.linspace(0.5, 1.5, len(losses), dtype=losses.dtype, device=losses.device)
        weights[1::2] *= -1
        usable = torch.isfinite(losses)
        found = slopes(torch.where(usable, losses, 0.0), flat.parameters, weights)
    if global_states(flat.device) != before:
        return None
    parts = [torch.zeros_like(p) if slope is None else slope for p, slope in zip(flat.parameters, found, strict=True)]
    flattened = [(part.to_dense() if part.is_sparse else part).flatten() for part in parts]
    return losses.detach(), weights, torch.cat(flattened), losses.requires_grad


def _apart(mine: TorchPass, losses: Tensor, weights: Tensor, whole: Tensor, flat: FlatParameters) -> str | None:
    coarse = 1e-2 if losses.dtype == torch.float32 else 1e-6
    if not torch.allclose(mine.losses, losses, rtol=coarse, atol=coarse, equal_nan=True):
        return _MIXES
    if not bool(torch.isfinite(whole).all()) or not bool(torch.isfinite(losses).all()):
        return None  # records without a finite gradient count nothing here, and everything there
    apart = (mine.weighted_sum(weights) - whole).norm()
    return _GRADIENTS if bool(apart > coarse * mine.norms.norm() + 1e-9) else None


@contextlib.contextmanager
def _moved(flat: FlatParameters, share: float = 0.1) -> Iterator[None]:
    """Within the block the trainable parameters are elsewhere by a share of their size; rows of padding stay."""
    stored = flat.stored()
    kept = [parameter.clone() for parameter in stored]
    try:
        with torch.no_grad():
            for number, (parameter, before) in enumerate(zip(stored, kept, strict=True)):
                size = float(before.square().sum().sqrt()) / max(1, before.numel()) ** 0.5 or 0.1
                parameter.add_(torch.randn_like(before), alpha=share * size)
                if number in flat.padding:
                    parameter[flat.padding[number]] = before[flat.padding[number]]
        yield
    finally:
        with torch.no_grad():
            for parameter, before in zip(stored, kept, strict=True):
                parameter.copy_(before)
