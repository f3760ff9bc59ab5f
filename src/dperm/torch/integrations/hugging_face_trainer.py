"""A private run under Hugging Face's `Trainer`: its callbacks, logs, evaluation and saving, a `PrivateTrainer`'s steps."""

from __future__ import annotations

import copy
from typing import Any, Self

import torch
from torch import Tensor

from dperm._extras import needed
from dperm.gradient import PlannedRun
from dperm.torch.data.labelled_items import pair_of
from dperm.torch.integrations.scripts import Script, without_input_gradients
from dperm.torch.integrations.training_arguments import taken_over
from dperm.torch.language import DirectPreference
from dperm.torch.training.trainer import PrivateStep, PrivateTrainer

with needed("transformers", "A trainer of Transformers"):
    import transformers  # pyright: ignore[reportMissingImports]


class PrivateHuggingFaceTrainer(transformers.Trainer):
    """Trains a `PrivateTrainer`'s model by its steps on `train_dataset`; `given` is what `PrivateTrainer.steps` takes beside, and
    other arguments are those of `transformers.Trainer`. `from_trainer` makes one of a script's own trainer.

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
        pairs = isinstance(private.model, DirectPreference)
        model = private.model.model if pairs else private.model  # the policy itself is what is saved
        super().__init__(model, args, train_dataset=train_dataset, optimizers=(private.optimizer, scheduler), **kwargs)

    @classmethod
    def from_trainer(
        cls,
        trainer: Any,
        *,
        epsilon: Any = None,
        delta: float,
        public_size: int | None = None,
        clipping_norm: float | None = None,
        given: dict[str, Any] | None = None,
        **settings: Any,
    ) -> Self:
        """A private run of what a script's trainer was to do: `from_trainer(SFTTrainer(…), epsilon=3.0, delta=1e-5).train()`.

        Nothing is charged here. Taken over are the model with its adapters, the data set as the trainer has prepared it, the
        collation, the optimizer, the schedule, evaluation and callbacks, and of the arguments what `taken_over` says. The loss
        is `causal_language_loss`, or that of `DirectPreference`; the reference runs here, on each record alone.

        Parameters
        ----------
        trainer : a `transformers.Trainer` of a causal language model, or TRL's `SFTTrainer` or `DPOTrainer`, not a subclass.
        epsilon, delta, public_size, settings : of `PrivateTrainer`; what is said there goes before the script's arguments.
        clipping_norm : each record's gradient is clipped at it; `max_grad_norm` where it is left out.
        given : of `PrivateTrainer.steps`, for example {"groups": …} with `max_rows_per_unit`.

        Raises TypeError for another trainer, for its loss would be lost; ValueError for settings that would change gradients, mix
        records or pack them, with what to do instead.
        """
        taken = taken_over(trainer.args, public_size=public_size, clipping_norm=clipping_norm)
        _rehearse_schedule(trainer.args)
        script = Script.of(trainer, settings, grouped="groups" in (given or {}))
        budget: dict[str, Any] = {"epsilon": epsilon, "delta": delta, "public_size": public_size}
        stated: dict[str, Any] = {**taken.settings, "collate_fn": script.collate_fn, **settings, **budget}
        private = PrivateTrainer(script.model, script.loss_fn, script.optimizer, **stated)
        args = copy.copy(trainer.args)
        for name, value in taken.changed.items():
            setattr(args, name, value)
        made = cls(private, args, script.records, given=given, data_collator=script.collate_fn, **script.handed)
        for callback in trainer.callback_handler.callbacks:
            if type(callback) not in {type(own) for own in made.callback_handler.callbacks}:
                made.add_callback(callback)
        return made

    def preview(self, records: int | None = None) -> PlannedRun:
        """What `train` would run and charge: `PrivateTrainer.preview`. Nothing is charged."""
        return self.private.preview(records)

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **kwargs: Any) -> Any:
        """Of records to evaluate on: Hugging Face's own, or the mean of preferences."""
        preference = self.private.model
        if not isinstance(preference, DirectPreference):
            return super().compute_loss(model, inputs, return_outputs=return_outputs, **kwargs)
        given, labels = pair_of(inputs)
        outputs = preference(**given)
        loss = preference.loss(outputs, labels).mean()
        return (loss, outputs) if return_outputs else loss

    def get_train_dataloader(self) -> Any:
        _refuse(self.args)
        without_input_gradients(self.model)
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


def _rehearse_schedule(args: Any) -> None:
    """ValueError for a schedule that cannot be made: Transformers makes it after the first step, when the run is charged."""
    stand_in = torch.optim.SGD([torch.zeros(())], lr=1.0)
    try:
        transformers.get_scheduler(
            args.lr_scheduler_type,
            stand_in,
            num_warmup_steps=args.get_warmup_steps(100),
            num_training_steps=100,
            scheduler_specific_kwargs=args.lr_scheduler_kwargs,
        )
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise ValueError(f"The schedule {args.lr_scheduler_type} cannot be made: {error} Nothing was charged.") from error


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
