"""Scores of a model on held-out records, without noise."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from dperm.torch.data.records import TorchRecords
from dperm.torch.ranks import Ranks
from dperm.torch.tensors.nested import batch_size, call_model, take, tensors
from dperm.torch.training.preflight import PROBED, held_out_records
from dperm.torch.training.settings import TrainingSpec
from dperm.torch.training.training_run import PrivateRun


@dataclass(frozen=True)
class HeldOut:
    """Records to validate on, which are public or apart, and the scores of a run's model on them."""

    spec: TrainingSpec
    records: TorchRecords

    @classmethod
    def of(cls, spec: TrainingSpec, data: Any) -> HeldOut | None:
        """Of every rank's `data`; None where there are none. What can fail fails here, before anything is charged."""
        ranks = Ranks.here()
        records = ranks.together(lambda: None if data is None else held_out_records(spec, data))
        if spec.objective.flat.sharded:  # scores are of passes that all run
            size = None if records is None else len(records)
            physical_batch_size = spec.settings.physical_batch_size
            ranks.same({"the number of records to validate on": size, "physical_batch_size": physical_batch_size})
        if records is None:
            return None
        held_out = cls(spec, records)
        probed = ranks.together(lambda: records.sample(PROBED))
        ranks.together(lambda: held_out._refuse_mixed(probed))
        ranks.together(lambda: held_out._means([probed]))
        return held_out

    def scores(self, run: PrivateRun) -> dict[str, float]:
        """Means over the records of the model that training would leave now: of the loss and of the metrics, or, without these,
        of the accuracy where targets are classes."""
        theta = self.spec.objective.theta
        final = run.averaged(theta)
        if final is theta:
            return self._means(self.records.batches())
        kept = theta.clone()
        self.spec.objective.theta = final
        try:
            return self._means(self.records.batches())
        finally:
            self.spec.objective.theta = kept

    @torch.no_grad()
    def _means(self, batches: Iterable[Any]) -> dict[str, float]:
        """ValueError for a metric that does not give one number per record."""
        metrics, totals, count = self.spec.options.metrics, dict[str, float](), 0
        with _asleep(self.spec.settings.model) as model:
            for inputs, targets in batches:
                outputs = call_model(model, inputs)
                losses = self.spec.settings.loss_fn(outputs, targets)
                values = {"loss": losses}
                if metrics is not None:
                    values |= {name: metric(outputs, targets) for name, metric in metrics.items()}
                elif _classifies(outputs, targets):
                    values["accuracy"] = (outputs.argmax(1) == targets).float()
                for name, value in values.items():
                    _refuse_other_than_numbers(name, value, batch_size(inputs))
                    totals[name] = totals.get(name, 0.0) + float(value.sum())
                count += len(losses)
        return {name: total / count for name, total in totals.items()}

    @torch.no_grad()
    def _refuse_mixed(self, batch: Any) -> None:
        """ValueError where the loss, or a metric, does not run on this batch (inputs, targets), or has another value for the
        first of its records beside the others than for that record alone: targets (b,) beside outputs (b, 1) are broadcast to a
        table.
        """
        inputs, targets = batch
        size = batch_size(inputs) or 0
        with _asleep(self.spec.settings.model) as model:
            outputs = call_model(model, inputs)
        first = torch.tensor([0])
        alone = take(outputs, first, size), take(targets, first, size)
        for name, value_of in {"loss": self.spec.settings.loss_fn, **(self.spec.options.metrics or {})}.items():
            try:
                together, single = value_of(outputs, targets), value_of(*alone)
            except (RuntimeError, IndexError, KeyError, AttributeError) as error:
                shapes = [", ".join(str(tuple(tensor.shape)) for tensor in tensors(part)) for part in (outputs, targets)]
                raise ValueError(
                    f"The {name} does not run on the records to validate on (outputs {shapes[0]}, targets {shapes[1]}): {error}"
                ) from error
            _refuse_other_than_numbers(name, together, size)
            _refuse_other_than_numbers(name, single, 1)
            if not torch.allclose(together[:1].double(), single.double(), rtol=1e-3, atol=1e-5, equal_nan=True):
                raise ValueError(
                    f"Expected the metric {name!r} to be of each record by itself, got {float(together[0]):.4g} for a record "
                    f"beside others and {float(single[0]):.4g} for it alone: look at the shapes of outputs and targets."
                )


@contextlib.contextmanager
def _asleep(model: nn.Module) -> Iterator[nn.Module]:
    """The model in eval mode, and back."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield model
    finally:
        for module, mode in modes:
            module.training = mode


def _refuse_other_than_numbers(name: str, value: Any, size: int | None) -> None:
    if tuple(getattr(value, "shape", ())) != (size,):
        raise ValueError(f"Expected the metric {name!r} to give one number per record, not a mean.")


def _classifies(outputs: Any, targets: Any) -> bool:
    return (
        isinstance(outputs, Tensor)
        and isinstance(targets, Tensor)
        and outputs.dim() == 2
        and targets.dim() == 1
        and not targets.is_floating_point()
        and math.prod(targets.shape) == outputs.shape[0]
    )
