"""Noise for tensors: a keyed keystream on the CPU, the device's own counter-based generator elsewhere."""

from __future__ import annotations

import math
import os
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dperm._random import Randomness
from dperm.privacy import Channel, SystemSource

__all__ = ["TorchSource", "open_channel"]

_BLOCK = 1 << 16  # normals made at once, so that the intermediate numbers stay in cache
_DEVICE_POLICY = "; noise on {}: the device's generator, seeded with 63 bits by the operating system"


class TorchSource(SystemSource):
    """Adds noise to tensors in place of arrays, in the query's type; everything else is the system source's."""

    def __init__(self, randomness: Randomness, device: torch.device) -> None:
        super().__init__(randomness)
        self._device = device
        self._generator: torch.Generator | None = None
        if device.type != "cpu":
            self._generator = torch.Generator(device)
            words = randomness.noise.uniforms(2) if not randomness.private else None
            seed = int.from_bytes(os.urandom(8), "little") >> 1 if words is None else int(words[0] * 2**52)
            self._generator.manual_seed(seed)

    def gaussian(self, query: Any, sensitivity: float, std: float) -> Any:
        if not isinstance(query, Tensor):
            return super().gaussian(query, sensitivity, std)
        if self._generator is not None:
            noise = torch.randn(query.shape, generator=self._generator, dtype=query.dtype, device=query.device)
        elif query.dtype == torch.float64:
            noise = torch.from_numpy(self.randomness.noise.standard_normal(query.numel()).copy()).view(query.shape)
        else:
            noise = self._single(query.numel()).view(query.shape)
        return noise.mul_(std).add_(query)  # in the noise's own memory

    def _single(self, size: int) -> Tensor:
        """`size` normals in single precision by Box and Muller: 53-bit radii, so that tails are as long as in double
        precision, and 31-bit angles."""
        out = torch.empty(size + size % 2, dtype=torch.float32)
        for start in range(0, len(out), _BLOCK):
            part = out[start : start + _BLOCK]
            half = len(part) // 2
            raw = np.frombuffer(self.randomness.noise.raw(12 * half), dtype=np.uint8).copy()
            bits = torch.from_numpy(raw)
            # uniforms on (0, 1], multiples of 2⁻⁵³; angles are multiples of 2π·2⁻³¹
            uniforms = ((bits[: 8 * half].view(torch.int64) & (2**53 - 1)) + 1).double().mul_(2.0**-53)
            radius = uniforms.log_().mul_(-2.0).sqrt_().float()
            angle = bits[8 * half :].view(torch.int32).float().mul_(math.pi * 2.0**-31)
            torch.mul(radius, angle.cos(), out=part[:half])
            torch.mul(radius, angle.sin_(), out=part[half:])
        return out[:size]


def open_channel(random_state: Any, device: torch.device, *, label: str = "") -> Channel:
    """A channel whose noise is made for `device`; a fixed `random_state` makes the run not private."""
    randomness = Randomness.of(random_state)
    policy = randomness.policy + ("" if device.type == "cpu" else _DEVICE_POLICY.format(device.type))
    return Channel(TorchSource(randomness, device), label=label, policy=policy, private=randomness.private)
