"""Gradients as autograd gives them: of the sum of some losses, or of one record, whose vector a tape takes whole."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.autograd.grad_mode import set_multithreading_enabled

from dperm.torch.engine.gradient_forms import Dense
from dperm.torch.engine.layer_taps import Tape


def add_dense(tape: Tape, vectors: Sequence[Tensor | None]) -> None:
    """Give a tape of one record that record's vector, by parameter."""
    for parameter, vector in zip(tape.flat.leaves, vectors, strict=True):
        if vector is not None:
            tape.expect([parameter])
            tape.add([(parameter, Dense(vector[None]))])


def slopes(
    losses: Tensor, wanted: Sequence[Tensor], weights: Tensor | None = None, *, keep: bool = False
) -> Sequence[Tensor | None]:
    """The gradients of Σ weights·losses with respect to each of `wanted`; None for those that the losses do not depend on.
    With `keep` the graph stays for another call. The way back runs in this thread, on any device: what surrounds the model's
    run, such as what records draw, is of a thread, and checkpointed parts run again on the way back.

    ValueError where the model overwrites what a gradient needs, or has reentrant checkpointing.
    """
    if not losses.requires_grad:
        return [None] * len(wanted)
    try:
        weights = torch.ones_like(losses) if weights is None else weights
        with set_multithreading_enabled(False):
            return torch.autograd.grad(losses, wanted, weights, retain_graph=keep, allow_unused=True)
    except RuntimeError as error:
        if "inplace operation" in str(error):
            raise ValueError(f"The model overwrites in place what a gradient needs: {error}") from error
        if "use_reentrant" in str(error):
            raise ValueError("Reentrant checkpointing has no gradients of this kind: pass use_reentrant=False.") from error
        raise
