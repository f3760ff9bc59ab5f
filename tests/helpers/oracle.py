"""What per-example gradients are, computed the slow way: one record at a time by autograd, or by vmap of grad."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from dperm.torch import ModuleObjective
from dperm.torch.tensors.nested import call_model, take


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs, targets, reduction="none")


def half_squares(outputs: Any, targets: Any) -> Tensor:
    """A loss for any output: half its squared length plus a slope that differs by entry and record."""
    flat = outputs.flatten(1)
    slopes = torch.linspace(-1, 1, flat.shape[1], dtype=flat.dtype, device=flat.device)
    return 0.5 * flat.square().sum(1) + (flat * slopes).sum(1) * targets


def by_autograd(model: nn.Module, loss_fn: Any, inputs: Any, targets: Any, size: int) -> Tensor:
    """(b, p): each record alone in its batch."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    rows: list[Tensor] = []
    for index in range(size):
        one = torch.tensor([index])
        loss = loss_fn(call_model(model, take(inputs, one, size)), take(targets, one, size))
        found = torch.autograd.grad(loss.sum(), parameters, allow_unused=True)
        rows.append(
            torch.cat([(torch.zeros_like(p) if g is None else g).flatten() for p, g in zip(parameters, found, strict=True)])
        )
    return torch.stack(rows)


def by_vmap(model: nn.Module, loss_fn: Any, inputs: Tensor, targets: Tensor) -> Tensor:
    """(b, p) by torch.func, for models on one tensor."""
    named = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}

    def one(parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return loss_fn(functional_call(model, parameters, (x[None],)), y[None]).sum()

    rows = vmap(grad(one), in_dims=(None, 0, 0))(named, inputs, targets)
    return torch.cat([rows[name].reshape(len(inputs), -1) for name in named], dim=1)


def assert_exact(
    model: nn.Module, inputs: Any, targets: Any, loss_fn: Any = half_squares, *, vmapped: bool = True
) -> ModuleObjective:
    """Norms, group norms and weighted sums of the pass against the oracles, in float64, to 1e-10 relative."""
    size = len(targets)
    expected = by_autograd(model, loss_fn, inputs, targets, size)
    objective = ModuleObjective(model, loss_fn)
    found = objective.evaluate(inputs, targets)
    factors = torch.linspace(0.1, 1.0, size, dtype=torch.float64, device=expected.device)
    _close(found.norms, expected.norm(dim=1))
    _close(objective.evaluate(inputs, targets, norms_only=True).norms, expected.norm(dim=1))
    _close(found.weighted_sum(factors), factors @ expected)
    _close(found.group_norms.square().sum(1).sqrt(), expected.norm(dim=1))
    with torch.no_grad():
        _close(found.losses, loss_fn(call_model(model, inputs), targets))
    if vmapped:
        _close(factors @ by_vmap(model, loss_fn, inputs, targets), factors @ expected)
    return objective


def _close(found: Tensor, expected: Tensor) -> None:
    assert found.shape == expected.shape
    scale = expected.abs().max().clamp(min=1e-300)
    assert float((found - expected).abs().max() / scale) < 1e-10
