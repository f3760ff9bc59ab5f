"""The usual Opacus training loop, watched."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import TensorDataset

_LONG = 1e6  # length of a canary's gradient: far beyond any clipping norm


class Seen(NamedTuple):
    """(steps, canaries) noisy gradients in units of the clipping norm, who was drawn, and all indices drawn."""

    values: NDArray[np.float64]
    drawn: NDArray[np.bool_]
    inclusions: list[NDArray[np.intp]]


class WithCanaries(nn.Module):
    """A model, and beside it one weight per canary."""

    def __init__(self, model: nn.Module, canaries: int) -> None:
        super().__init__()
        self.model = model
        self.canary = nn.Linear(canaries, 1, bias=False)

    def forward(self, inputs: Tensor, code: Tensor) -> tuple[Tensor, Tensor]:
        return self.model(inputs), self.canary(code)[:, 0]


def watch(
    make_private: Callable[[Any, Any], tuple[Any, Any, Any]],
    make_model: Callable[[], nn.Module],
    loss_fn: Callable[[Tensor, Tensor], Tensor],
    inputs: Tensor,
    targets: Tensor,
    sign: float,
    canaries: int,
    max_grad_norm: float,
    steps: int,
) -> Seen:
    """Train for `steps` steps with canaries whose gradients have this sign (0: none)."""
    size = len(targets)
    code = torch.zeros(size + canaries, canaries)
    code[size:] = torch.eye(canaries)
    dataset = TensorDataset(
        torch.cat([inputs, inputs[:1].expand(canaries, *inputs.shape[1:])]),
        code,
        torch.cat([targets, targets[:1].expand(canaries, *targets.shape[1:])]),
        torch.arange(size + canaries),
    )
    model, optimizer, loader = make_private(WithCanaries(make_model(), canaries), dataset)
    weight = next(parameter for name, parameter in model.named_parameters() if name.endswith("canary.weight"))
    seen = Seen(np.zeros((steps, canaries)), np.zeros((steps, canaries), dtype=bool), [])
    done = 0
    while done < steps:
        for x, where, y, number in loader:
            if done == steps:
                break
            optimizer.zero_grad()
            outputs, canary = model(x, where)
            ordinary = (number < size).to(canary.dtype)
            losses = ordinary * loss_fn(outputs, y) + sign * _LONG * canary
            losses.mean().backward()
            optimizer.step()
            scale = optimizer.expected_batch_size / max_grad_norm
            seen.values[done] = weight.grad.detach().cpu().numpy().ravel() * scale
            seen.drawn[done, number[number >= size].numpy() - size] = True
            seen.inclusions.append(np.sort(number.numpy()).astype(np.intp))
            done += 1
    return seen
