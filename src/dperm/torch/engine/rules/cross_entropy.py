"""Cross entropy with class numbers as targets, of all records in one call: `torch.vmap` would run it in Python.

Without a reduction, entry i of the losses is a function of row i of the inputs and of entry i of the targets alone.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dperm.torch.engine.tracing import SPECIAL, Run


def _cross_entropy(
    run: Run,
    func: Any,
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Any:
    """Input (n, classes, ...) of a record that counts as a batch of n, and its target (n, ...)."""
    if weight is not None or size_average is not None or reduce is not None or reduction != "none":
        return NotImplemented
    if not run.in_step or run.trains(input) or target.dtype is not torch.int64:
        return NotImplemented
    if input.dim() < 2 or target.shape != (input.shape[0], *input.shape[2:]):
        return NotImplemented

    def body(scores: Tensor, classes: Tensor) -> Tensor:
        losses = func(
            scores.flatten(0, 1), classes.flatten(0, 1), ignore_index=ignore_index, reduction="none",
            label_smoothing=label_smoothing,
        )  # fmt: skip
        return losses.unflatten(0, scores.shape[:2])

    return run.together(body, input, target)


SPECIAL[F.cross_entropy] = _cross_entropy
