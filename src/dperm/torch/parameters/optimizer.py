"""Any torch optimiser as the update of a plan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dperm._family import ours
from dperm.gradient import Update
from dperm.gradient.correlation import Workload
from dperm.gradient.update import Moved
from dperm.torch.parameters.adam_bc import AdamBC
from dperm.torch.parameters.flat_parameters import FlatParameters


@dataclass(frozen=True, repr=False)
class TorchOptimizer(Update):
    """`optimizer` steps on the model's own parameters, which are views of the flat θ; noisy gradients arrive in `.grad`.

    Raises ValueError for an optimiser that evaluates losses itself, or that misses trainable parameters.
    """

    optimizer: torch.optim.Optimizer
    flat: FlatParameters
    #: (steps, share of the records in each) → the learning rate of each step, in any unit; None, or none of them: the optimiser's
    #: own throughout
    rates: Callable[[int, float], tuple[float, ...]] | None = None

    coordinatewise = True  # an optimiser sees whole parameters, wherever their numbers are

    def __post_init__(self) -> None:
        if isinstance(self.optimizer, torch.optim.LBFGS):
            raise ValueError(f"{type(self.optimizer).__name__} evaluates the loss again within a step: every look costs privacy.")
        self._refuse_missing()

    def _refuse_missing(self) -> None:
        held = {parameter for group in self.optimizer.param_groups for parameter in group["params"]}
        missing = [name for name, p in zip(self.flat.names, self.flat.parameters, strict=True) if p not in held]
        if missing:
            raise ValueError(
                f"Expected the optimizer to hold every trainable parameter, but it misses {', '.join(missing[:5])}: add them, or "
                "freeze them with requires_grad_(False), so that no noise is spent on them."
            )

    @property
    def steps_with(self) -> object | None:
        known = type(self.optimizer).__module__.startswith("torch.optim.") or ours(type(self.optimizer))
        return None if known else self.optimizer

    @property
    def needs_noise(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return isinstance(self.optimizer, AdamBC)

    def told_noise(self, deviation: float | None, state: Any) -> None:
        if isinstance(self.optimizer, AdamBC):
            self.optimizer.noise_deviation = deviation

    def workload(self, steps: int, share: float = 1.0) -> Workload:
        """That of the first group of parameters: SGD's momentum, or Adam's first moment."""
        group = self.optimizer.param_groups[0]
        momentum, decay = float(group.get("momentum") or group.get("betas", (0.0,))[0]), float(group.get("weight_decay", 0.0))
        if self.rates is None or len(set(rates := self.rates(steps, share))) <= 1:
            return Workload(momentum, float(group["lr"]) * decay)
        return Workload(momentum, decay, rates)

    def init(self, theta: Any) -> dict[str, Any]:
        return {}

    def resized(self, state: Any, moved: Moved, theta: Tensor) -> Any:
        """The optimiser keeps its state by parameter. ValueError where it misses one that is trained now."""
        self._refuse_missing()
        return state

    def step(self, theta: Tensor, gradient: Tensor, state: Any) -> Tensor:
        self.flat.assign(gradient)
        self.optimizer.step()
        return self.flat.buffer

    def __repr__(self) -> str:
        skipped = ("params", "foreach", "fused", "capturable", "differentiable", "maximize")
        group = {
            name: value for name, value in self.optimizer.param_groups[0].items() if name not in skipped and value is not None
        }
        return f"{type(self.optimizer).__name__}({', '.join(f'{name}={value}' for name, value in group.items())})"
