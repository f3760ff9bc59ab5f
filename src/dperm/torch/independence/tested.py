"""Whether a model seems to keep records apart, where nothing makes it: looked at on some records, and no proof."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from dperm.torch.engine.isolated import Apart
from dperm.torch.tensors.global_randomness import fresh_seed, kept_states, seed_all
from dperm.torch.tensors.nested import take

_EXCHANGED = 4  # records that are exchanged, one at a time


def mixing(engine: Apart, inputs: Any, targets: Any, size: int) -> str | None:
    """What shows that records are mixed, or None: a record's loss changes when another is exchanged, when the batch is turned
    round, or when some are left out. In evaluation mode, here and with parameters moved by a tenth of their size."""
    flat = engine.flat
    kept = engine.snapshot()
    modes = {module: module.training for module in engine.model.modules()}
    stored = flat.stored()
    before = [part.clone() for part in stored]
    with kept_states(flat.device), torch.no_grad():
        try:
            for module in modes:
                module.training = False
            for share in (0.0, 0.1):
                seed_all(flat.agreed(fresh_seed()))
                for part, was in zip(stored, before, strict=True):
                    part.add_(torch.randn_like(was), alpha=share * (float(was.square().mean().sqrt()) or 0.1))
                if found := _seen(engine, inputs, targets, size):
                    return found
        finally:
            flat.rest()
            for part, was in zip(stored, before, strict=True):
                part.copy_(was)
            for module, mode in modes.items():
                module.training = mode
            kept.restore()
    return None


def _seen(engine: Apart, inputs: Any, targets: Any, size: int) -> str | None:
    def losses(places: list[int]) -> Tensor:
        chosen = torch.tensor(places)
        return engine.losses(take(inputs, chosen, size), take(targets, chosen, size))

    everyone = list(range(size))
    whole = losses(everyone)
    scale = float(whole.abs().mean()) or 1.0  # losses that happen to be near zero are as far apart as others by rounding
    close = functools.partial(_close, scale=scale)
    for place in range(0, size, max(1, size // _EXCHANGED)):
        others = [index for index in everyone if index != place]
        exchanged = [(place + 1) % size if index == place else index for index in everyone]
        if not close(losses(exchanged)[others], whole[others]):
            return "One record's loss depends on another record: a layer or the loss mixes the records of a batch."
    if not close(losses(everyone[::-1]), whole.flip(0)):
        return "One record's loss depends on its place in the batch."
    if not close(losses(everyone[:1]), whole[:1]) or not close(losses(everyone[: (size + 1) // 2]), whole[: (size + 1) // 2]):
        return "One record's loss depends on how many records there are: leave the division by the batch size to the trainer."
    return None


def _close(first: Tensor, second: Tensor, *, scale: float) -> bool:
    coarse = 1e-4 if first.dtype == torch.float32 else 1e-9
    return torch.allclose(first, second, rtol=coarse, atol=coarse * scale, equal_nan=True)
