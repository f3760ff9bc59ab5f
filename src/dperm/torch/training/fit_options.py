"""What a fit is told beside the records: none of it costs privacy, and all of it is checked before the charge."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dperm import _validate as check
from dperm.torch.training.callbacks import Callback


@dataclass(frozen=True)
class Fitting:
    """The settings of `PrivateTrainer.fit`; of a loop of one's own, their defaults."""

    metrics: dict[str, Callable[[Any, Any], Tensor]] | None = None
    scheduler: Any = None
    scheduler_interval: str = "epoch"
    ema_decay: float | None = None
    callbacks: tuple[Callback, ...] = ()
    show_private: bool = False
    checkpoint_every: int | None = None

    def check(self, optimizer: torch.optim.Optimizer | None, checkpoint: Path | None) -> None:
        """ValueError or TypeError where settings are of no use, or contradict the trainer's."""
        if self.metrics is not None and not isinstance(self.metrics, dict):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"Expected metrics as a table of names and functions, got {self.metrics!r}.")
        check.choice("scheduler_interval", self.scheduler_interval, ("epoch", "step"))
        if isinstance(self.scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
            raise TypeError("ReduceLROnPlateau needs a metric: step it in a loop of your own over steps().")
        if self.scheduler is not None and (
            isinstance(self.scheduler, type) or not callable(getattr(self.scheduler, "step", None))
        ):
            raise TypeError(f"Expected a torch learning-rate scheduler, got {self.scheduler!r}.")
        if self.scheduler is not None and optimizer is None:
            raise ValueError("Expected an optimizer where a scheduler is given.")
        if self.scheduler is not None and getattr(self.scheduler, "optimizer", optimizer) is not optimizer:
            raise ValueError("Expected a scheduler of the trainer's optimizer, got one of another, which would not train.")
        if self.ema_decay is not None:
            check.fraction("ema_decay", self.ema_decay)
        if self.checkpoint_every is not None:
            check.integer("checkpoint_every", self.checkpoint_every)
            if checkpoint is None:
                raise ValueError("Expected a checkpoint folder where checkpoint_every is given.")
        given: list[Any] = list(self.callbacks)
        if wrong := [callback for callback in given if not isinstance(callback, Callback)]:
            raise TypeError(f"Expected callbacks to be Callback objects, got {wrong[0]!r}.")

    def step_scheduler(self) -> None:
        """A schedule of so many steps that has come to its end leaves the learning rate as it is: the run is paid for."""
        end = getattr(self.scheduler, "total_steps", None)
        if self.scheduler is not None and (end is None or self.scheduler.last_epoch < end):
            self.scheduler.step()
