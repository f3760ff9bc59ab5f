"""Tempered sigmoids: bounded activations that keep gradients short (DP-SGD-TS, Papernot et al. 2021)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dperm import _validate as check


class TemperedSigmoid(nn.Module):
    """scale·sigmoid(temperature·x) − offset; the defaults (2, 2, 1) are tanh."""

    def __init__(self, scale: float = 2.0, temperature: float = 2.0, offset: float = 1.0) -> None:
        super().__init__()
        self.scale = check.positive("scale", scale)
        self.temperature = check.positive("temperature", temperature)
        self.offset = check.finite("offset", offset)

    def forward(self, x: Tensor) -> Tensor:
        if (self.scale, self.temperature, self.offset) == (2, 2, 1):  # fewer passes over the numbers
            return torch.tanh(x)
        return self.scale * torch.sigmoid(self.temperature * x) - self.offset

    def extra_repr(self) -> str:
        return f"scale={self.scale:g}, temperature={self.temperature:g}, offset={self.offset:g}"
