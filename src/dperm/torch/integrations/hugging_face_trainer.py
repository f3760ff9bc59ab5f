"""A private run under Hugging Face's `Trainer`: its callbacks, logs, evaluation and saving, a `PrivateTrainer`'s steps."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dperm._extras import needed
from dperm.torch.training.trainer import PrivateStep, PrivateTrainer

with needed("transformers", "A trainer of Transformers"):
    import transformers  # pyright: ignore[reportMissingImports]


class PrivateHuggingFaceTrainer(transformers.Trainer):
    """Trains a `PrivateTrainer`'s model by its steps on `train_dataset`; `given` is what `PrivateTrainer.steps` takes beside, and
    other arguments are those of `transformers.Trainer`.

    One epoch of Hugging Face's is the whole run, whose batches are private steps: `num_train_epochs=1`. The charge is made when
    `train` asks for them; stopping early lowers none. Logs have "epsilon" so far, and no loss, which would be of records.
    ValueError for settings under which gradients would be changed, or several devices used.

    Batch sizes, the learning rate and label smoothing of `TrainingArguments` are not used: they are PrivateTrainer's, its
    optimizer's and its loss's. `eval_dataset` is to be public, or apart. Checkpoints of Hugging Face's are the model's: to
    continue a run, use `PrivateTrainer(checkpoint=…)` and `given={"resume": True}`.
    """

    def __init__(
        self, private: PrivateTrainer, args: Any, train_dataset: Any, *, given: dict[str, Any] | None = None, **kwargs: Any
    ) -> None:
        self.private, self._given = private, given or {}
        self._steps: Any = (step for step in ())
        self._first: PrivateStep | None = None
        self._left = 0
        _refuse(args)
        if "optimizers" in kwargs:
            raise TypeError("Expected scheduler= in place of optimizers=: the optimizer is the PrivateTrainer's.")
        scheduler = kwargs.pop("scheduler", None)
        super().__init__(private.model, args, train_dataset=train_dataset, optimizers=(private.optimizer, scheduler), **kwargs)

    def get_train_dataloader(self) -> Any:
        _refuse(self.args)
        self._steps = self.private.steps(self.train_dataset, **self._given)
        self._first = next(self._steps, None)
        self._left = 0 if self._first is None else self._first.total - self._first.number + 1
        self.args.max_steps = min(self.args.max_steps, self._left)  # −1 where nothing is said
        numbered: Any = range(self._left)  # is indexed as a data set is, which is all that a loader asks of it
        return torch.utils.data.DataLoader(numbered, collate_fn=lambda numbers: {"step": torch.tensor(numbers)})

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        """Puts a step's gradient into `.grad`: there is no loss, and no backward."""
        if self._first is not None:  # gradients were set to zero since
            self.private.objective.flat.assign(self._first.gradient)
            self._first = None
        else:
            next(self._steps)
        self._left -= 1
        return torch.zeros((), device=self.args.device)

    def train(self, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
        if resume_from_checkpoint:
            raise ValueError(
                "Expected resume_from_checkpoint=None: a run continues by PrivateTrainer(checkpoint=…) and "
                "given={'resume': True}, which know what was charged. Nothing was charged."
            )
        try:
            found = super().train(None, *args, **kwargs)
            if not self._left:
                next(self._steps, None)  # the run's own end
            return found
        finally:
            self._steps.close()

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        told = {name: value for name, value in logs.items() if name not in ("loss", "train_loss")}
        super().log({**told, "epsilon": self.private.epsilon_spent}, *args, **kwargs)


def _refuse(args: Any) -> None:
    wanted = {
        "num_train_epochs": 1,
        "gradient_accumulation_steps": 1,
        "max_grad_norm": 0,  # gradients are clipped before the noise, by PrivateTrainer
        "fp16": False,  # `autocast` of PrivateTrainer is for narrower types
        "bf16": False,
        "world_size": 1,  # several processes: PrivateTrainer under torchrun
    }
    for name, value in wanted.items():
        if getattr(args, name) != value:
            raise ValueError(f"Expected {name}={value} of TrainingArguments, got {getattr(args, name)!r}. Nothing was charged.")
