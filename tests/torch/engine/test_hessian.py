"""Products with the Hessian of a network's loss, against the Hessian itself."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.autograd.functional import hessian
from torch.func import functional_call

from dperm.torch import per_example
from dperm.torch.data.records import TorchRecords


@pytest.mark.parametrize("layers", [[nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)], [nn.Linear(3, 2)]], ids=["hidden", "linear"])
def test_products_are_those_of_the_hessian(layers: list[nn.Module]) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*layers, nn.Dropout(0.5)).double()
    loss = nn.CrossEntropyLoss(reduction="none")
    inputs, targets = torch.randn(20, 3).double(), torch.arange(20) % 2
    problem = per_example(model, loss)
    theta = torch.randn(problem.flat.size).double()

    def total(flat: torch.Tensor) -> torch.Tensor:
        parts = dict(zip(problem.flat.names, problem.flat.parts(flat), strict=True))
        return loss(functional_call(model, parts, (inputs,)), targets).sum()

    model.eval()
    exact = hessian(total, theta).numpy()
    model.train()
    records = TorchRecords((inputs, targets), physical_batch_size=7)
    for vector in np.eye(len(theta))[:5]:
        assert np.allclose(problem.hessian_product(theta, records, vector), exact @ vector, atol=1e-10)
    assert model.training and torch.equal(problem.theta, theta)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_loss_without_curvature_has_none() -> None:
    problem = per_example(nn.Linear(2, 1), lambda outputs, targets: outputs[:, 0] - targets)
    records = TorchRecords((torch.randn(5, 2), torch.zeros(5)))
    assert not problem.hessian_product(problem.theta, records, np.ones(3)).any()
