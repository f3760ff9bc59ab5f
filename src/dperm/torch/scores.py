"""Scores of a model on held-out records, without noise."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from dperm.torch.structure import batch_size, call_model

__all__ = ["mean_scores"]


@torch.no_grad()
def mean_scores(
    model: nn.Module,
    loss_fn: Callable[[Any, Any], Tensor],
    metrics: dict[str, Callable[[Any, Any], Tensor]] | None,
    batches: Iterable[Any],
) -> dict[str, float]:
    """Means over the batches (inputs, targets), in eval mode, of the loss and of `metrics`; without metrics, of the
    accuracy where targets are classes.

    ValueError for a metric that does not give one number per record.
    """
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    totals: dict[str, float] = {}
    count = 0
    try:
        for inputs, targets in batches:
            outputs = call_model(model, inputs)
            losses = loss_fn(outputs, targets)
            values = {"loss": losses}
            if metrics is not None:
                values |= {name: metric(outputs, targets) for name, metric in metrics.items()}
            elif _classifies(outputs, targets):
                values["accuracy"] = (outputs.argmax(1) == targets).float()
            for name, value in values.items():
                if tuple(getattr(value, "shape", ())) != (batch_size(inputs),):
                    raise ValueError(f"Expected the metric {name!r} to give one number per record, not a mean.")
                totals[name] = totals.get(name, 0.0) + float(value.sum())
            count += len(losses)
    finally:
        for module, mode in modes:
            module.training = mode
    return {name: total / count for name, total in totals.items()}


def _classifies(outputs: Any, targets: Any) -> bool:
    return (
        isinstance(outputs, Tensor)
        and isinstance(targets, Tensor)
        and outputs.dim() == 2
        and targets.dim() == 1
        and not targets.is_floating_point()
        and math.prod(targets.shape) == outputs.shape[0]
    )
