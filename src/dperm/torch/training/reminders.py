"""What a data holder is told before a run is charged: settings that are seldom meant."""

from __future__ import annotations

import warnings

import torch
from torch import nn

from dperm._remind import remind_of_size
from dperm.privacy import Relation
from dperm.torch.module_objective import ModuleObjective
from dperm.torch.training.plan_settings import Planner

_DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)


def remind(
    model: nn.Module,
    objective: ModuleObjective,
    optimizer: torch.optim.Optimizer | None,
    planner: Planner,
    records: int,
    *,
    stacklevel: int,
) -> None:
    """Warnings, at most one of a kind; `stacklevel` is that of `warnings.warn`, counted from here."""
    if optimizer is not None and optimizer.state:
        warnings.warn(
            "The optimizer has a state from steps before this run: momenta of gradients without noise would be applied. Make "
            "a new one, unless those steps were private or on other records.",
            stacklevel=stacklevel,
        )
    if optimizer is not None:
        private = set(objective.flat.parameters)
        held = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        if others := sum(parameter.requires_grad and parameter not in private for parameter in held):
            warnings.warn(
                f"The optimizer holds {others} parameters that are not the model's: they have no private gradients, and stay "
                "as they are.",
                stacklevel=stacklevel,
            )
    asleep = any(isinstance(module, _DROPOUTS) and module.p and not module.training for module in model.modules())
    if asleep and not model.training:
        warnings.warn(
            "The model is in eval mode: dropout is off. Call model.train() if that is not meant.", stacklevel=stacklevel
        )
    size = planner.stated_size
    if size is None and planner.adaptive and objective.relation is Relation.ADD_OR_REMOVE_ONE:
        batch = planner.within_budget(None, objective.relation).expected_batch_size
        if batch > records / 2:
            warnings.warn(
                f"Batches of {batch:g} are expected, but there are {records} records: hardly anything is left of sampling.",
                stacklevel=stacklevel,
            )
    if size is not None:
        what = "steps" if planner.adaptive else "batches"  # DPIS sees to its batches
        consequence = f"{what} will be {records / size:.2g} times what is expected, and noise is for the expected ones."
        whom = "records" if objective.max_rows_per_unit is None else "persons"
        remind_of_size(size, records, consequence, stacklevel=stacklevel, whom=whom)
