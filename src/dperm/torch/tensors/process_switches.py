"""Switches of the whole process that a model can change: what one run sets would change how the next one computes."""

from __future__ import annotations

import decimal
from typing import Any, NamedTuple

import torch

_DEVICES = ("cpu", "cuda")


class Switches(NamedTuple):
    """PyTorch's default type and its autocast, by device, and the precision of Python's decimal numbers."""

    default_type: torch.dtype
    autocast: tuple[tuple[bool, torch.dtype], ...]
    autocast_cache: bool
    decimals: decimal.Context


def switches() -> Switches:
    """How they are set now."""
    autocast = tuple((torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)) for device in _DEVICES)
    return Switches(torch.get_default_dtype(), autocast, torch.is_autocast_cache_enabled(), decimal.getcontext().copy())


def put_switches(kept: Switches) -> None:
    """Set them as they were."""
    if torch.get_default_dtype() != kept.default_type:
        torch.set_default_dtype(kept.default_type)
    for device, (enabled, narrow) in zip(_DEVICES, kept.autocast, strict=True):
        if torch.is_autocast_enabled(device) != enabled:
            torch.set_autocast_enabled(device, enabled)
        if torch.get_autocast_dtype(device) != narrow:
            torch.set_autocast_dtype(device, narrow)
    if torch.is_autocast_cache_enabled() != kept.autocast_cache:
        torch.set_autocast_cache_enabled(kept.autocast_cache)
    now: Any = decimal.getcontext()
    if repr(now) != repr(kept.decimals):
        decimal.setcontext(kept.decimals.copy())
