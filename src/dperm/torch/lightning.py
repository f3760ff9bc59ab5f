"""A private run under Lightning's `Trainer`: its loggers, progress bars and checkpoint callbacks, a `PrivateTrainer`'s steps."""

from __future__ import annotations

from typing import Any

import lightning  # pyright: ignore[reportMissingImports]

from dperm.torch.trainer import PrivateStep, PrivateTrainer

__all__ = ["PrivateModule"]


class PrivateModule(lightning.LightningModule):
    """The model of a `PrivateTrainer`, trained by its steps on `dataset`; other arguments are those of `PrivateTrainer.steps`.

    `lightning.Trainer(max_epochs=1).fit(PrivateModule(private, dataset))`: one of Lightning's epochs is the whole run, whose
    batches are private steps. The charge is made when Lightning asks for them. ε so far is logged as "epsilon". Stopping early
    lowers no charge. ValueError for settings under which Lightning would change gradients, or train on several devices.

    Validation is Lightning's own: override `validation_step`; what it sees is to be public, or apart.
    """

    def __init__(self, private: PrivateTrainer, dataset: Any, **given: Any) -> None:
        super().__init__()
        self.automatic_optimization = False  # the gradient is in .grad already: no loss, and no backward
        self.model = private.model
        self.private, self._dataset, self._given = private, dataset, given
        self._steps: Any = (step for step in ())
        self._next: PrivateStep | None = None

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.model(*args, **kwargs)

    def configure_optimizers(self) -> Any:
        return self.private.optimizer

    def train_dataloader(self) -> Any:
        self._refuse()
        self._steps = self.private.steps(self._dataset, **self._given)
        self._next = next(self._steps, None)
        return range(0 if self._next is None else self._next.total - self._next.number + 1)

    def training_step(self, batch: int, batch_idx: int) -> None:
        if self._next is None:
            raise RuntimeError("Expected a step that is left: the run has ended.")
        optimizer: Any = self.optimizers()
        optimizer.step()
        self.log("epsilon", self.private.epsilon_spent, prog_bar=True)
        self._next = next(self._steps, None)

    def on_train_end(self) -> None:
        self._steps.close()

    def _refuse(self) -> None:
        trainer: Any = self.trainer
        found = {
            "max_epochs=1": trainer.max_epochs,
            "precision='32-true'": trainer.precision,  # `autocast` of PrivateTrainer is for narrower types
            "accumulate_grad_batches=1": trainer.accumulate_grad_batches,
            "gradient_clip_val=None": trainer.gradient_clip_val or None,
            "one device, or dperm's own ranks under torchrun, world_size=1": trainer.world_size,
        }
        for wanted, value in found.items():
            if str(value) != wanted.rpartition("=")[2].strip("'"):
                raise ValueError(f"Expected {wanted} of Lightning's Trainer, got {value!r}. Nothing was charged.")
