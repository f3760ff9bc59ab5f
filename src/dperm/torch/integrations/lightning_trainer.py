"""A private run under Lightning's `Trainer`: its loggers, progress bars and checkpoint callbacks, a `PrivateTrainer`'s steps."""

from __future__ import annotations

from typing import Any

from dperm._extras import needed
from dperm.torch.training.trainer import PrivateStep, PrivateTrainer

with needed("lightning", "A trainer of Lightning"):
    import lightning  # pyright: ignore[reportMissingImports]


class PrivateModule(lightning.LightningModule):
    """The model of a `PrivateTrainer`, trained by its steps on `dataset`; other arguments are those of `PrivateTrainer.steps`.

    `lightning.Trainer(max_epochs=1).fit(PrivateModule(private, dataset))`: one of Lightning's epochs is the whole run, whose
    batches are private steps. The charge is made when Lightning asks for them. ε so far is logged as "epsilon". Stopping early
    lowers no charge. ValueError for settings under which Lightning would change gradients, or train on several devices.

    Validation is Lightning's own: override `validation_step`; what it sees is to be public, or apart. A learning-rate schedule is
    yours to step, in `on_train_batch_end`. To continue a run: `PrivateTrainer(checkpoint=…)` and `resume=True` here.
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

    def training_step(self, batch: Any, batch_idx: int) -> None:
        if self._next is None:
            raise RuntimeError(
                "Expected fit(PrivateModule(…)) without a loader of data: the module brings its steps, and all ran."
            )
        optimizer: Any = self.optimizers()
        optimizer.step()
        self.log("epsilon", self.private.epsilon_spent, prog_bar=True)
        self._next = next(self._steps, None)

    def on_train_end(self) -> None:
        self._steps.close()

    def _refuse(self) -> None:
        trainer: Any = self.trainer
        one = "PrivateTrainer runs on several under torchrun, without Lightning"
        for name, wanted, why in (
            ("max_epochs", 1, "one epoch is the whole run"),
            ("precision", "32-true", "autocast= of PrivateTrainer is for narrower types"),
            ("accumulate_grad_batches", 1, "a private step is one step"),
            ("gradient_clip_val", None, "gradients are clipped before the noise"),
            ("world_size", 1, one),
            ("fast_dev_run", False, "a run is charged as a whole"),
            ("overfit_batches", 0, "a run is charged as a whole"),
            ("ckpt_path", None, "a run continues by PrivateTrainer(checkpoint=…) and resume=True, which know what was charged"),
        ):
            found = getattr(trainer, name)
            if found != wanted:
                raise ValueError(f"Expected {name}={wanted!r} of Lightning, got {found!r}: {why}. Nothing was charged.")
