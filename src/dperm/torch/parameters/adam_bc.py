"""AdamW for private gradients, as a torch optimiser: it subtracts what noise adds to the second moment."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from dperm import _validate as check
from dperm.gradient.update import noise_after, noise_estimated


class AdamBC(torch.optim.Optimizer):
    """AdamW without what noise adds to the second moment (DP-AdamBC: Tang, Shpilevskiy, Lécuyer 2024).

    As `dperm.gradient.AdamBC`: noise of variance s² makes the mean of g² about s² larger, so that where noise is most of a
    gradient Adam is SGD. `PrivateTrainer` tells `noise_deviation` before each step, in `fit` and in a loop of your own.

    Parameters
    ----------
    params : parameters, or groups of them, as for any torch optimiser.
    lr, betas, eps, weight_decay : as of `torch.optim.AdamW`.
    floor : what is left of the second moment is at least so many standard errors of the noise's mean square.

    Raises ValueError at a step before which the noise was not told.
    """

    #: the standard deviation of the noise in each number of the gradients of the next step
    noise_deviation: float | None = None

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        floor: float = 1.0,
    ) -> None:
        check.non_negative("lr", lr)
        for place, beta in enumerate(betas):
            check.fraction(f"betas[{place}]", beta, zero=True)
        check.positive("eps", eps)
        check.non_negative("weight_decay", weight_decay)
        check.positive("floor", floor)
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "floor": floor})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        if closure is not None:
            raise ValueError("Expected no closure: to evaluate the loss again costs privacy.")
        noise_after(0.0, self.noise_deviation, 0.0)  # what is not known is refused before anything moves
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._move(parameter, parameter.grad, group)
        self.noise_deviation = None  # that of the next step is another

    def _move(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        state, (beta1, beta2), lr = self.state[parameter], group["betas"], group["lr"]
        if not state:
            state.update(step=0, noise=0.0, exp_avg=torch.zeros_like(parameter), exp_avg_sq=torch.zeros_like(parameter))
        state["step"] += 1
        state["noise"] = noise_after(state["noise"], self.noise_deviation, beta2)
        mean, error = noise_estimated(state["noise"], beta2, state["step"])
        first, second = state["exp_avg"], state["exp_avg_sq"]
        first.lerp_(gradient, 1 - beta1)
        second.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        lengths = second.div(1 - beta2 ** state["step"]).sub_(mean).clamp_(min=group["floor"] * error).sqrt_().add_(group["eps"])
        parameter.mul_(1 - lr * group["weight_decay"])
        parameter.addcdiv_(first, lengths, value=-lr / (1 - beta1 ** state["step"]))
