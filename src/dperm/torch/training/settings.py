"""What a run is told beside its plan: settings of the trainer and of `fit`, checked when they are made."""

from __future__ import annotations

import copy
import functools
import hashlib
import math
import types
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from dperm import _validate as check
from dperm.gradient import ExponentialAverage, Policy
from dperm.objectives import RECORD, PrivacyUnit
from dperm.privacy import Certificate, Relation, Risk
from dperm.torch.data.units import MeanLoss, MeanOfViews, OfPersons
from dperm.torch.module_objective import ModuleObjective
from dperm.torch.parameters.optimizer import TorchOptimizer
from dperm.torch.ranks.tensor_noise import told_of
from dperm.torch.training.callbacks import Callback
from dperm.torch.training.planner import Planner


@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """What `PrivateTrainer` is told of the model, the records and where the run is noted, as it says there."""

    model: nn.Module
    loss_fn: Callable[[Any, Any], Tensor]
    optimizer: torch.optim.Optimizer | None = None
    unit: PrivacyUnit = RECORD
    spent: tuple[Certificate, ...] = ()
    physical_batch_size: int | None = None
    collate_fn: Callable[[list[Any]], Any] | None = None
    num_workers: int = 0
    views: int = 1
    transform: Callable[[Any], Any] | None = None
    checkpoint: Path | None = None
    label: str = ""
    random_state: Any = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "views", check.integer("views", self.views))
        if self.transform is not None and not callable(self.transform):
            raise TypeError(f"Expected transform to be a function of a record's inputs, got {self.transform!r}.")
        if self.physical_batch_size is not None:
            object.__setattr__(self, "physical_batch_size", check.integer("physical_batch_size", self.physical_batch_size))
        given: list[Any] = [self.optimizer, *self.spent]
        if not (given[0] is None or isinstance(given[0], torch.optim.Optimizer)):
            raise TypeError(f"Expected a torch optimizer over the model's parameters, got {given[0]!r}.")
        if wrong := [item for item in given[1:] if not isinstance(item, Certificate)]:
            raise TypeError(f"Expected spent to hold certificates, got {wrong[0]!r}.")
        if any(certificate.of_persons != (self.unit != RECORD) for certificate in self.spent):
            raise ValueError("Expected spent to hold certificates that protect the same as this run: records, or persons.")

    def of_a_record(self) -> tuple[nn.Module, Callable[[Any, Any], Tensor]]:
        """Model and loss of one record: the mean of the losses of its views, and of a person's rows."""
        model, loss_fn = self.model, self.loss_fn
        if not isinstance(model, nn.Module) or not callable(loss_fn):  # pyright: ignore[reportUnnecessaryIsInstance]
            return model, loss_fn  # for the objective to refuse
        if self.views > 1:
            model, loss_fn = OfPersons(model), MeanOfViews(loss_fn)
        if self.unit.several_rows:
            model, loss_fn = OfPersons(model), MeanLoss(loss_fn)
        return model, loss_fn


@dataclass(frozen=True, kw_only=True)
class FitOptions:
    """The settings of `PrivateTrainer.fit`, none of which costs privacy; for an `own_loop` of the caller's, their defaults."""

    metrics: dict[str, Callable[[Any, Any], Tensor]] | None = None
    scheduler: Any = None
    scheduler_interval: str = "epoch"
    ema_decay: float | None = None
    callbacks: tuple[Callback, ...] = ()
    show_private: bool = False
    checkpoint_every: int | None = None
    own_loop: bool = False

    def __post_init__(self) -> None:
        if self.metrics is not None and not isinstance(self.metrics, dict):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"Expected metrics as a table of names and functions, got {self.metrics!r}.")
        check.choice("scheduler_interval", self.scheduler_interval, ("epoch", "step"))
        if isinstance(self.scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
            raise TypeError("ReduceLROnPlateau needs a metric: step it in a loop of your own over steps().")
        if self.scheduler is not None and (
            isinstance(self.scheduler, type) or not callable(getattr(self.scheduler, "step", None))
        ):
            raise TypeError(f"Expected a torch learning-rate scheduler, got {self.scheduler!r}.")
        if self.ema_decay is not None:
            check.fraction("ema_decay", self.ema_decay)
        if self.checkpoint_every is not None:
            check.integer("checkpoint_every", self.checkpoint_every)
        given: list[Any] = list(self.callbacks)
        if wrong := [callback for callback in given if not isinstance(callback, Callback)]:
            raise TypeError(f"Expected callbacks to be Callback objects, got {wrong[0]!r}.")

    def step_scheduler(self, step: int, total: int, rate: float) -> None:
        """Call it after step number `step` of `total`, each of a share `rate` of the records. A schedule that has come to its
        end leaves the learning rate as it is: the run is paid for."""
        if self.scheduler is None or (self.scheduler_interval == "epoch" and not ends_epoch(step, total, rate)):
            return
        end = getattr(self.scheduler, "total_steps", None)
        if end is None or self.scheduler.last_epoch < end:
            self.scheduler.step()

    def learning_rates(self, optimizer: torch.optim.Optimizer, total: int, rate: float) -> tuple[float, ...]:
        """That of the optimiser's first group in each step of a run, by a copy of the schedule and of what its functions hold.
        Empty, with a warning, where it cannot be copied."""
        groups = [{name: value for name, value in group.items() if name != "params"} for group in optimizer.param_groups]
        stand_in = torch.optim.SGD([{**copy.deepcopy(group), "params": [torch.zeros(())]} for group in groups], lr=0.0)
        try:
            rehearsed = replace(self, scheduler=_copied(self.scheduler, {id(optimizer): stand_in}))
        except (TypeError, ValueError, NotImplementedError, RuntimeError) as error:  # what copying an object of others may raise
            warnings.warn(
                f"The schedule cannot be copied ({error}), so that the strategy for correlated noise is made for a learning rate "
                "that stays.",
                stacklevel=2,
            )
            return ()
        rates: list[float] = []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a rehearsal moves no parameters, which torch warns of
            for step in range(1, total + 1):
                rates.append(float(stand_in.param_groups[0]["lr"]))
                rehearsed.step_scheduler(step, total, rate)
        return tuple(rates)


def _copied(value: Any, known: dict[int, Any]) -> Any:
    """A deep copy, also of what functions hold in closures, which `copy.deepcopy` shares. `known` has copies by identity."""
    for function in _functions(value):
        cells = tuple(types.CellType(_copied(cell.cell_contents, known)) for cell in function.__closure__ or ())
        again = types.FunctionType(function.__code__, function.__globals__, function.__name__, function.__defaults__, cells)
        again.__kwdefaults__ = function.__kwdefaults__
        known[id(function)] = again
    return copy.deepcopy(value, known)


def _functions(value: Any) -> Iterator[types.FunctionType]:
    """The plain functions in an object, its attributes, and lists and tuples of them."""
    if isinstance(value, types.FunctionType):
        yield value
    elif isinstance(value, list | tuple):
        for part in cast(Any, value):
            yield from _functions(part)
    elif hasattr(value, "__dict__") and not isinstance(value, type | torch.optim.Optimizer | types.ModuleType):
        for part in vars(value).values():
            yield from _functions(part) if isinstance(part, list | tuple | types.FunctionType) else ()


def ends_epoch(step: int, total: int, rate: float) -> bool:
    """Whether this step brings the expected passes to a whole number, or is the last."""
    return step == total or math.floor(step * rate + 1e-9) > math.floor((step - 1) * rate + 1e-9)


@dataclass(frozen=True)
class TrainingSpec:
    """What is to be run: an objective, its plan, and all settings. ValueError where settings contradict each other."""

    objective: ModuleObjective
    planner: Planner
    settings: TrainingSettings
    options: FitOptions

    def __post_init__(self) -> None:
        optimizer, scheduler = self.settings.optimizer, self.options.scheduler
        if optimizer is not None and self.planner.binds_update:
            raise ValueError("Expected the optimizer or the recipe's update, not both: the optimizer would be what runs.")
        if optimizer is not None:
            self.objective.flat.check()
            object.__setattr__(self, "planner", self.planner.for_update(self.optimiser))
        if scheduler is not None and optimizer is None:
            raise ValueError("Expected an optimizer where a scheduler is given.")
        if scheduler is not None and getattr(scheduler, "optimizer", optimizer) is not optimizer:
            raise ValueError("Expected a scheduler of the trainer's optimizer, got one of another, which would not train.")
        if self.options.checkpoint_every is not None and self.settings.checkpoint is None:
            raise ValueError("Expected a checkpoint folder where checkpoint_every is given.")

    @functools.cached_property
    def optimiser(self) -> TorchOptimizer | None:
        """The caller's, as an update. ValueError where it cannot be one."""
        optimizer, options = self.settings.optimizer, self.options
        if optimizer is None:
            return None
        # remembered, for plans are made often, and later the schedule is no longer at its beginning
        rates = None if options.scheduler is None else functools.cache(functools.partial(options.learning_rates, optimizer))
        return TorchOptimizer(optimizer, self.objective.flat, rates)

    @functools.cached_property
    def unit_is(self) -> str:
        """What one of those that are protected is called in messages: a record, a person, or a client that trains locally."""
        if self.settings.unit.max_rows is None:
            return "record"
        return "client" if self.planner.trains_on_rows else "person"

    def with_update(self, plan: Policy) -> Policy:
        """The plan with the update that runs: the torch optimiser where there is one, averaged where asked for."""
        update = plan.update
        if self.optimiser is not None:
            update = update.around(self.optimiser)
        if self.options.ema_decay is not None:
            update = ExponentialAverage(update, self.options.ema_decay)
        return plan if update is plan.update else replace(cast(Any, plan), update=update)

    def shared_with_continuation(self) -> dict[str, Any]:
        """What a run and its continuation from a checkpoint must have in common, besides the plan."""
        objective, budget, settings, options = self.objective, self.planner.budget, self.settings, self.options
        return {
            "relation": objective.relation.value,
            "max_rows_per_unit": settings.unit.max_rows,
            "a stated public_size": self.planner.stated_size is not None or objective.relation is Relation.REPLACE_ONE,
            "epsilon": budget.epsilon.to_dict() if isinstance(budget.epsilon, Risk) else budget.epsilon,
            "delta": budget.delta,
            "optimizer": None if settings.optimizer is None else type(settings.optimizer).__name__,
            "scheduler": None if options.scheduler is None else type(options.scheduler).__name__,
            "ema_decay": options.ema_decay,
            "sharded parameters": objective.flat.sharded or None,
            "views": settings.views if settings.views > 1 else None,
        }

    def shared_by_ranks(self) -> dict[str, Any]:
        """What the ranks of a run must have in common, besides the plan."""
        objective, settings, options = self.objective, self.settings, self.options
        tensors_of = (*settings.model.named_parameters(), *settings.model.named_buffers())
        shapes = [f"{name} {tuple(tensor.shape)} {tensor.dtype}" for name, tensor in tensors_of]
        together = {  # where they run every pass together
            "physical_batch_size": settings.physical_batch_size,
            "checkpoint_every": options.checkpoint_every,
            "the checkpoint folder": settings.checkpoint and settings.checkpoint.absolute(),
        }
        return {
            "dperm": version("dperm"),
            "torch": torch.__version__,
            **self.shared_with_continuation(),
            "noise_multiplier": self.planner.budget.noise_multiplier,
            "public_size": self.planner.stated_size,
            "spent": _digest(*(certificate.to_json() for certificate in settings.spent)),
            "label": settings.label,
            "autocast": objective.losses.autocast,
            "loss_fn": getattr(settings.loss_fn, "__qualname__", type(settings.loss_fn).__qualname__),
            "transform": settings.transform is not None,
            "random_state": told_of(settings.random_state),
            "checkpoint": settings.checkpoint is not None,
            **(together if objective.flat.sharded else {}),
            "the model's parameters": _digest(*shapes, "trained:", *objective.flat.names),
            "the optimizer's settings": None if settings.optimizer is None else settings.optimizer.state_dict()["param_groups"],
            "the scheduler's settings": None if options.scheduler is None else options.scheduler.state_dict(),
        }


def _digest(*texts: str) -> str:
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:12]
