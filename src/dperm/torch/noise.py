"""Noise for tensors: a keyed keystream on the CPU, the device's own counter-based generator elsewhere."""

from __future__ import annotations

import math
import os
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dperm._random import Randomness
from dperm.privacy import Channel, Source, SystemSource

__all__ = ["TorchSource", "open_channel"]

_BLOCK = 1 << 16  # normals made at once, so that the intermediate numbers stay in cache
_DEVICE_POLICY = "; noise on {}: the device's generator, seeded with 63 bits by the operating system"


class TorchSource(SystemSource):
    """Adds noise to tensors, in their type and memory; everything else is the system source's."""

    def __init__(self, randomness: Randomness, device: torch.device) -> None:
        super().__init__(randomness)
        self._device = device
        self._work: _Workspace | None = None
        self._generator: torch.Generator | None = None
        if device.type != "cpu":
            self._generator = torch.Generator(device)
            words = randomness.noise.uniforms(2) if not randomness.private else None
            seed = int.from_bytes(os.urandom(8), "little") >> 1 if words is None else int(words[0] * 2**52)
            self._generator.manual_seed(seed)

    def gaussian(self, query: Any, sensitivity: float, std: float) -> Any:
        """Tensors get their noise in place: a step's query has no other use."""
        if not isinstance(query, Tensor):
            return super().gaussian(query, sensitivity, std)
        if self._generator is not None:
            noise = torch.randn(query.shape, generator=self._generator, dtype=query.dtype, device=query.device)
            return query.add_(noise, alpha=std)
        if query.dtype == torch.float64:
            return query.add_(torch.from_numpy(self.randomness.noise.standard_normal(query.numel())).view(query.shape), alpha=std)
        flat = query.view(-1)
        for start in range(0, len(flat), _BLOCK):
            self._add_single(flat[start : start + _BLOCK], std)
        return query

    def _add_single(self, part: Tensor, std: float) -> None:
        """Add normals in single precision by Box and Muller: 53-bit radii, so that tails are as long as in double precision,
        and 31-bit angles."""
        half = (len(part) + 1) // 2
        work = self._work
        if work is None or len(work.angle) != half:
            work = self._work = _Workspace(half)
        self.randomness.noise.fill(work.raw)
        # uniforms on (0, 1], multiples of 2⁻⁵³; angles are multiples of 2π·2⁻³¹
        work.radius.copy_(work.long_words.bitwise_and_(2**53 - 1).add_(1)).mul_(2.0**-53).log_().mul_(-2.0).sqrt_()
        work.angle.copy_(work.words).mul_(math.pi * 2.0**-31)
        rest = len(part) - half
        part[:half].add_(torch.cos(work.angle, out=work.normals).mul_(work.radius), alpha=std)
        part[half:].add_(torch.sin(work.angle, out=work.normals).mul_(work.radius)[:rest], alpha=std)


class _Workspace:
    """Memory for one block of 2·half normals: 8 keystream bytes a radius, 4 an angle."""

    def __init__(self, half: int) -> None:
        self.raw = np.empty(12 * half + 15, dtype=np.uint8)
        bits = torch.from_numpy(self.raw)
        self.long_words = bits[: 8 * half].view(torch.int64)
        self.words = bits[8 * half : 12 * half].view(torch.int32)
        self.radius = torch.empty(half, dtype=torch.float64)
        self.angle, self.normals = torch.empty(half, dtype=torch.float32), torch.empty(half, dtype=torch.float32)


def open_channel(random_state: Any, device: torch.device, *, label: str = "") -> Channel:
    """A channel whose noise is made for `device`; a fixed `random_state`, or an audit's source, makes the run not private."""
    if isinstance(random_state, Source):
        return Channel.audited(random_state, TorchSource(Randomness.from_system(), device), label=label)
    randomness = Randomness.of(random_state)
    policy = randomness.policy + ("" if device.type == "cpu" else _DEVICE_POLICY.format(device.type))
    return Channel(TorchSource(randomness, device), label=label, policy=policy, private=randomness.private)
