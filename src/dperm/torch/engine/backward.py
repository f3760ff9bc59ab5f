"""The way back: gradients by autograd, with an error that says what the model does wrong."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def slopes(
    losses: Tensor, wanted: Sequence[Tensor], weights: Tensor | None = None, *, keep: bool = False
) -> Sequence[Tensor | None]:
    """The gradients of Σ weights·losses with respect to each of `wanted`; None for those that the losses do not depend on.
    With `keep` the graph stays for another call.

    ValueError where the model overwrites what a gradient needs, or has reentrant checkpointing.
    """
    if not losses.requires_grad:
        return [None] * len(wanted)
    try:
        weights = torch.ones_like(losses) if weights is None else weights
        return torch.autograd.grad(losses, wanted, weights, retain_graph=keep, allow_unused=True)
    except RuntimeError as error:
        if "inplace operation" in str(error):
            raise ValueError(f"The model overwrites in place what a gradient needs: {error}") from error
        if "use_reentrant" in str(error):
            raise ValueError("Reentrant checkpointing has no gradients of this kind: pass use_reentrant=False.") from error
        raise
