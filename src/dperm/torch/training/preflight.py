"""Before a charge: the model on some records, from all over the data."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor

from dperm.torch.data.records import TorchRecords
from dperm.torch.module_objective import ModuleObjective
from dperm.torch.ranks import Ranks
from dperm.torch.tensors.nested import on_device, refuse_other_shapes, tensors
from dperm.torch.tensors.user_code_errors import in_short
from dperm.torch.training.physical_batch import physical_batch_size as measured_batch_size

PROBED = 16  # records


def look_at(records: TorchRecords, objective: ModuleObjective, ranks: Ranks, *, physical_batch_size: int | None) -> None:
    """Run the model on some records, and measure how many of them to take at once where that is not said.

    What is wrong with the model, the loss or the records is raised on every rank. Where parameters are sharded, all ranks
    look at the same records.
    """
    sample = ranks.together(lambda: records.sample(PROBED))
    if objective.flat.sharded:  # all run the model as often
        own = sample
        sample = on_device(ranks.first(lambda: on_device(own, torch.device("cpu"))), objective.flat.device)
        ranks.together(lambda: refuse_other_shapes(own, sample))
        objective.share_sample(*sample)
        records.in_step = True
    inputs, targets = sample
    losses = ranks.together(lambda: _first_losses(objective, inputs, targets))
    if names := objective.engine.untouched:
        shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
        warnings.warn(
            f"No loss depends on {shown}: noise alone would move what nobody trains. Look for no_grad and detach, or freeze it "
            "by requires_grad_(False).",
            UserWarning,
            stacklevel=6,
        )
    ranks.together(lambda: objective.check_targets(inputs, records.all_targets()))
    ranks.together(lambda: _refuse_infinite(losses))
    if physical_batch_size is None:
        measured = ranks.together(lambda: measured_batch_size(objective, inputs, targets))
        records.physical_batch_size = min(ranks.gathered(measured)) if objective.flat.sharded else measured


def _first_losses(objective: ModuleObjective, inputs: Any, targets: Any) -> Tensor:
    try:
        return objective.evaluate(inputs, targets, norms_only=True).losses
    except (RuntimeError, IndexError, KeyError, AttributeError, TypeError) as error:
        kinds = [", ".join(dict.fromkeys(str(tensor.dtype) for tensor in tensors(part))) for part in (inputs, targets)]
        raise ValueError(
            f"The model or the loss does not run on the first records (inputs {kinds[0]}, targets {kinds[1]}, model "
            f"{objective.flat.dtype}; of several inputs a tuple is given as arguments, a dict by name): {in_short(error)}"
        ) from error


def _refuse_infinite(losses: Tensor) -> None:
    if not bool(torch.isfinite(losses).all()):
        raise ValueError(
            f"The loss of some of {len(losses)} records, from all over the data, is not finite: look at inputs, targets and "
            "initial weights."
        )
