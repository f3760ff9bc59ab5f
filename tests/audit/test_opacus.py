"""Training loops of another library, watched from outside."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dperm.audit.opacus import audit_opacus

pytestmark = pytest.mark.filterwarnings("ignore")


def private(**settings: Any) -> Any:
    from opacus import PrivacyEngine
    from torch.utils.data import DataLoader

    def make(model: Any, dataset: Any) -> Any:
        return PrivacyEngine().make_private(
            module=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
            data_loader=DataLoader(dataset, batch_size=100, shuffle=True),
            max_grad_norm=1.0,
            **({"noise_multiplier": 1.0} | settings),
        )

    return make


def audited(make: Any) -> Any:
    torch.manual_seed(0)
    inputs = torch.randn(600, 10)
    return audit_opacus(
        make,
        lambda: torch.nn.Sequential(torch.nn.Linear(10, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2)),
        torch.nn.CrossEntropyLoss(reduction="none"),
        inputs,
        (inputs[:, 0] > 0).long(),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        rate=1 / 8,
        steps=80,
        delta=1e-5,
        canaries=200,
    )


def test_poisson_sampling_is_consistent() -> None:
    result = audited(private())
    assert result.verdict == "consistent", str(result)
    assert abs(result.details["signal_to_claimed_signal"] - 1) < 0.15


def test_less_noise_than_claimed_is_refuted() -> None:
    assert audited(private(noise_multiplier=0.7)).refuted


def test_shuffled_batches_are_refuted() -> None:
    result = audited(private(poisson_sampling=False))
    assert result.refuted and any("not independent" in text for text in result.findings)
