"""Noise of a device's own generator, which is made for some numbers at a time."""

from __future__ import annotations

import pytest
import torch

from dperm.privacy import Gaussian
from dperm.release import GaussianNoise
from dperm.torch.ranks import tensor_noise


def test_every_number_of_a_query_gets_noise_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor_noise, "_DEVICE_BLOCK", 1000)
    channel = tensor_noise.open_channel(None, torch.device("cpu"))
    assert isinstance(channel.source, tensor_noise.TorchSource)
    channel.source._generator = torch.Generator()  # as on a device
    channel.charge(Gaussian(2.0), "a test")
    query, noise = torch.full((20_300,), 0.3), GaussianNoise(0.5, 2.0)
    found = channel.release(query, noise)
    moved = found.double() - 0.3
    assert float(moved.mean()) == pytest.approx(0.0, abs=0.035)
    assert float(moved.std()) == pytest.approx(1.0, rel=0.025)
    assert bool((found.double() / noise.step == (found.double() / noise.step).round()).all())
    blocks = moved.split(1000)
    assert len(torch.stack(blocks[:20]).unique(dim=0)) == 20, "no block repeats another"
    assert all(float(block.std()) > 0.8 for block in blocks)
