"""Private training of a torch model: `PrivateTrainer(...).fit(dataset)`, or its steps for a loop of your own."""

from __future__ import annotations

import contextlib
import hashlib
import math
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, Self, cast

import torch
from torch import Tensor, nn

from dperm import _validate as check
from dperm._remind import remind_of_budget
from dperm.gradient import ExponentialAverage, Policy
from dperm.objectives import PrivacyUnit
from dperm.privacy import Certificate, Relation, Risk
from dperm.release import alignment
from dperm.torch.data.records import TorchRecords
from dperm.torch.data.units import MeanLoss, OfPersons, PersonRecords
from dperm.torch.module_objective import Independence, ModuleObjective
from dperm.torch.parameters.optimizer import TorchOptimizer
from dperm.torch.parameters.trained_parameters import FirstStep
from dperm.torch.ranks import Ranks, share_of
from dperm.torch.ranks.tensor_noise import told_of
from dperm.torch.tensors.global_randomness import secret_masks
from dperm.torch.training import checkpoint
from dperm.torch.training.callbacks import Callback, PrivateStep, ProgressBar
from dperm.torch.training.fit_options import Fitting
from dperm.torch.training.heldout_scores import mean_scores, refuse_mixed_scores
from dperm.torch.training.loop_guard import LoopGuard
from dperm.torch.training.plan_settings import MakePlan, Planner, Recipe
from dperm.torch.training.preflight import PROBED, look_at
from dperm.torch.training.reminders import remind
from dperm.torch.training.start import Starter
from dperm.torch.training.training_run import PrivateRun


class PrivateTrainer:
    """Trains `model` privately and certifies what it cost.

    Parameters
    ----------
    model, loss_fn : the network, and `loss_fn(outputs, targets) -> (b,)`, one loss per record (`reduction="none"`).
    optimizer : any torch optimiser over the model's trainable parameters. None: the plan's own update.
    epsilon, delta : the budget; the noise is the least that keeps within it. `delta` is always needed. `epsilon` may be a `Risk`:
        what an attacker may achieve at most.
    noise_multiplier : instead of `epsilon`: noise standard deviation ÷ sensitivity. Not for recipes that choose their noise.
    epochs, expected_batch_size, clipping_norm : of DP-SGD with Poisson sampling (`dperm.gradient.recipes.dp_sgd`); where they
        and `plan` are left out, by public rule 20, 256 (at most a quarter of the records), and 1.
    plan : another recipe, with these as its settings or bound by functools.partial; a function
        (noise_multiplier, public_size) → `Plan`; or a `Plan` with its noise.
    relation : "add_or_remove_one" (the number of records is private) or "replace_one" (it is public).
    public_size : publicly known number of records. None under add/remove: released with noise, at 5 % of
        epsilon, or as the recipe says. Of persons, where `max_rows_per_unit` is given.
    max_rows_per_unit : with `groups` in `fit`, the most records that are used of a person; public. A person's loss is then the
        mean of these, and what is said of a record is said of a person.
    spent : certificates of earlier releases from the same records (normalisation, other models) that `epsilon` is to cover too.
    physical_batch_size : most records at once in memory. None: measured on the first records.
    autocast : run the forward in this type, for example `torch.bfloat16`; norms and sums stay in single precision.
    collate_fn, num_workers : as for a DataLoader.
    checkpoint : a folder for checkpoints, from which an interrupted run can be continued.
    label : names the data set in the spend log.
    random_state : None for real noise. A fixed seed is for tests: the certificate then says "not private".
    independence : "proved": the model sees one record at a time, so that none can influence another. "tested": it sees whole
        batches, for what cannot run so (sharded parameters); that it keeps records apart is looked at, and is an assumption of
        yours that the certificate states.

    Attributes
    ----------
    certificate : what the run cost and on what assumptions; known from the charge on.
    total_certificate : that, and what was spent before.
    epsilon_spent : of the steps so far.
    steps_lost : steps that an interrupted run had reserved and that were skipped.
    history : one dict per expected epoch: epoch, step, epsilon so far, validation scores.
    trace : by epoch, what a plan chose on the way that plans its noise by releases (`dpis`).
    plan : what ran. objective : the model's per-example gradients.

    Raises ValueError or TypeError for anything unusable before anything is charged. Whatever fails later, the charge stands.
    """

    def __init__(
        self,
        model: nn.Module,
        loss_fn: Callable[[Any, Any], Tensor],
        optimizer: torch.optim.Optimizer | None = None,
        plan: Policy | MakePlan | Recipe | None = None,
        *,
        epsilon: float | Risk | None = None,
        delta: float,
        noise_multiplier: float | None = None,
        epochs: float | None = None,
        expected_batch_size: float | None = None,
        clipping_norm: float | None = None,
        relation: Relation | str = Relation.ADD_OR_REMOVE_ONE,
        public_size: int | None = None,
        max_rows_per_unit: int | None = None,
        spent: Sequence[Certificate] = (),
        physical_batch_size: int | None = None,
        autocast: torch.dtype | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        num_workers: int = 0,
        checkpoint: str | Path | None = None,
        label: str = "",
        random_state: Any = None,
        independence: Independence | str = "proved",
    ) -> None:
        self.max_rows_per_unit = PrivacyUnit(max_rows_per_unit).max_rows
        whole, mean = (model, loss_fn) if (max_rows_per_unit or 1) == 1 else (OfPersons(model), MeanLoss(loss_fn))
        self.objective = ModuleObjective(
            whole, mean, relation=relation, autocast=autocast, max_rows_per_unit=max_rows_per_unit, independence=independence
        )
        self.model, self.loss_fn, self.optimizer = model, loss_fn, optimizer
        self.epsilon = epsilon if epsilon is None or isinstance(epsilon, Risk) else check.positive("epsilon", epsilon)
        self.delta = check.fraction("delta", delta)
        if isinstance(self.epsilon, float):
            remind_of_budget(self.epsilon, self.delta, stacklevel=2)
        self.noise_multiplier = None if noise_multiplier is None else check.positive("noise_multiplier", noise_multiplier)
        self.public_size = None if public_size is None else check.integer("public_size", public_size)
        self.physical_batch_size = (
            None if physical_batch_size is None else check.integer("physical_batch_size", physical_batch_size)
        )
        self.spent: tuple[Certificate, ...] = tuple(spent)
        given_spent: list[Any] = list(self.spent)
        if wrong := [item for item in given_spent if not isinstance(item, Certificate)]:
            raise TypeError(f"Expected spent to hold certificates, got {wrong[0]!r}.")
        if any(certificate.of_persons != (self.max_rows_per_unit is not None) for certificate in self.spent):
            raise ValueError("Expected spent to hold certificates that protect the same as this run: records, or persons.")
        self._planner = Planner(
            plan,
            epsilon=self.epsilon,
            delta=self.delta,
            noise_multiplier=self.noise_multiplier,
            public_size=self.public_size,
            epochs=epochs,
            expected_batch_size=expected_batch_size,
            clipping_norm=clipping_norm,
            earlier=tuple(certificate.event for certificate in spent),
        )
        if optimizer is not None and self._planner.binds_update:
            raise ValueError("Expected the optimizer or the recipe's update, not both: the optimizer would be what runs.")
        self.collate_fn, self.num_workers = collate_fn, num_workers
        self.checkpoint = None if checkpoint is None else Path(checkpoint)
        self.label = label
        self.random_state = random_state
        self.history: list[dict[str, Any]] = []
        self._starter: Starter | None = None
        self._run: PrivateRun | None = None
        self._until_the_end = contextlib.ExitStack()  # of a run: its lock on the checkpoint folder
        self._state: Any = None
        self._announced = self._own_loop = False
        self._ranks = Ranks()
        self._fitting = Fitting()
        if optimizer is not None and not isinstance(optimizer, torch.optim.Optimizer):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"Expected a torch optimizer over the model's parameters, got {optimizer!r}.")
        if optimizer is not None:
            TorchOptimizer(optimizer, self.objective.flat)  # refused here rather than at the first step

    @property
    def certificate(self) -> Certificate | None:
        """What the run costs and on what assumptions; None before the charge."""
        return None if self._starter is None else self._starter.certificate

    def planned(self) -> Certificate:
        """What a run will be certified as, for a stated number of records: nothing is charged, and no records are needed."""
        return self._starting().planned()

    def certify_as(self, certificate: Certificate) -> None:
        """State another certificate than the run's own: of a search whose event has the run among its `tries`. ValueError
        otherwise."""
        if self._starter is None or self.certificate is None:
            raise ValueError("Expected a trainer that ran.")
        if self.certificate.event not in getattr(certificate.event, "tries", ()):
            raise ValueError("Expected the certificate of a search that this run was a try of.")
        self._starter.certificate = certificate

    @property
    def plan(self) -> Policy | None:
        """What runs, with its noise and its update; None before the run."""
        return None if self._run is None else self._run.plan

    @property
    def trace(self) -> list[dict[str, Any]]:
        """What an adaptive plan chose in each of its epochs: rates, noise, clipping norms. Public; empty for other plans."""
        return [] if self._run is None else self._run.gradients.trace()

    @property
    def private_trace(self) -> dict[str, Any]:
        """What some plans tell the data holder alone, such as what each record has spent, as arrays by name. Not private."""
        return {} if self._run is None else self._run.gradients.private()

    @property
    def steps_lost(self) -> int:
        """Steps that were paid for and reserved before an interruption, and will not run."""
        return 0 if self._run is None else self._run.lost

    @property
    def epsilon_spent(self) -> float:
        """ε of the steps so far and of what they rest on, at `delta`: what `history` has by epoch, also in a loop of your own.

        The charge is `certificate`'s, whatever ran; by a Rényi filter both are the same from the first step on. What was
        `spent` before is not in it.
        """
        return 0.0 if self._run is None else self._run.epsilon(self.objective.relation, self.delta)

    @property
    def total_certificate(self) -> Certificate:
        """The certificate of this run and of what was `spent` before it: what all of it costs."""
        if self.certificate is None:
            raise ValueError("Expected a run: nothing is charged yet.")
        if not self.spent:
            return self.certificate
        # what had to be paid for again may exceed what was asked for: the sum is stated, and no target
        again = self._run is not None and len(self._run.charged.events) > 1
        return Certificate.of_all(
            [*self.spent, self.certificate], self.delta, self.epsilon if isinstance(self.epsilon, float) and not again else None
        )

    # Fitting

    def fit(
        self,
        dataset: Any,
        validation: Any = None,
        *,
        groups: Any = None,
        metrics: dict[str, Callable[[Any, Any], Tensor]] | None = None,
        scheduler: Any = None,
        scheduler_interval: str = "epoch",
        ema_decay: float | None = None,
        callbacks: Sequence[Callback] = (),
        progress: bool | None = None,
        show_private: bool = False,
        checkpoint_every: int | None = None,
        resume: bool = False,
        sharded: bool = False,
    ) -> Self:
        """Train on `dataset`: (inputs, targets) tensors or a map-style dataset of such pairs; or of records with named
        entries, such as Hugging Face's, one called "labels" or "label". What is said here costs nothing.

        Parameters
        ----------
        groups : with `max_rows_per_unit`, whose each record of `dataset` is, (n,) in its order: persons are drawn then, and their
            mean gradients bounded. Neighbours differ in all of one person's.
        validation : of the same kind, scored without noise after every expected epoch: keep it public or apart.
        metrics : name → function(outputs, targets) → (b,), averaged over it. None: loss, and accuracy where targets are classes.
        scheduler, scheduler_interval : a torch learning-rate scheduler, stepped every "epoch" or "step".
        ema_decay : average the weights exponentially, and leave the average in the model.
        callbacks, progress : `Callback`s; a progress bar (None: on a terminal).
        show_private : also show each batch's loss and clipped share, which are not private; of several ranks, each its own
            share's.
        checkpoint_every : steps between checkpoints. None: an expected epoch.
        resume : continue from the newest checkpoint, with fresh noise; steps lost since then are skipped, not drawn again.
        sharded : on several ranks (`torchrun`), `dataset` is this rank's own part of the records, not all of them.
        """
        self._refuse_again()
        self._own_loop = False
        if isinstance(callbacks, Callback):
            callbacks = [callbacks]
        self._fitting = Fitting(
            metrics, scheduler, scheduler_interval, ema_decay, tuple(callbacks), show_private, checkpoint_every
        )
        self._fitting.check(self.optimizer, self.checkpoint)
        watching = list(self._fitting.callbacks)
        if progress or (progress is None and sys.stderr.isatty() and Ranks.here().rank == 0):
            watching.append(ProgressBar())
        held_out = self._held_out(validation)
        try:
            for step in self._steps(dataset, groups, resume, sharded):
                run = self._run
                assert run is not None and self.certificate is not None
                if self._state is None:
                    self._state = run.plan.update.init(self.objective.theta)
                if not self._announced:
                    self._announced = True
                    for callback in watching:
                        callback.on_start(step.total, self.certificate)
                theta = run.plan.update.step(self.objective.theta, step.gradient, self._state)
                self.objective.flat.put(theta)
                for callback in watching:
                    callback.on_step(step)
                self._after(run, held_out, watching)
            self._finish(watching)
        finally:
            for callback in watching:
                callback.close()
        return self

    def steps(
        self, dataset: Any, *, groups: Any = None, show_private: bool = False, resume: bool = False, sharded: bool = False
    ) -> Iterator[PrivateStep]:
        """Private steps for a loop of your own: each has put its noisy gradient into `.grad`; call `optimizer.step()`.

        The charge is made, for the whole plan, when the first step is asked for. Schedules, averages, validation and
        checkpoints are yours in such a loop; `save` writes a checkpoint, and the last one is written by itself. The rest as in
        `fit`.
        """
        self._refuse_again()
        self._fitting = Fitting(show_private=show_private)
        self._own_loop = True
        yield from self._steps(dataset, groups, resume, sharded)

    def _steps(self, dataset: Any, groups: Any, resume: bool, sharded: bool) -> Iterator[PrivateStep]:
        if self.random_state is None and alignment.current() is not None:
            raise ValueError("Masks of known seeds are for replay: give the trainer the source that the audit handed out.")
        self._ranks = ranks = Ranks.here()
        if ranks.size > 1:
            ranks.same(self._common(resume, sharded))
            ranks.put_on_all(self.model)
        # callbacks and loops of the caller's own may change the model by what was released: they are not undone
        kept = None if self._own_loop or self._fitting.callbacks else self.objective.snapshot()
        try:
            run = self._begin(dataset, groups, resume, sharded)
        except BaseException:
            self._until_the_end.close()
            raise
        if kept is not None and run.step:  # a checkpoint was put back since
            kept = self.objective.snapshot()
        rate = run.plan.rate
        self.objective.engine.draws.secret = self.random_state is None
        self.objective.engine.charged = True
        watches = [leaf.register_post_accumulate_grad_hook(_refuse_backward) for leaf in self.objective.flat.leaves]
        looking: FirstStep | None = FirstStep(self.model, self.objective.flat)
        guard = LoopGuard(self.objective.flat, self._own_loop)
        secret = secret_masks(self.objective.flat.device) if self.random_state is None else contextlib.nullcontext()
        try:
            with secret, guard.watching():
                while (gradient := run.next()) is not None:
                    self.objective.flat.assign(gradient)
                    guard.gives(gradient)
                    seen = run.observed() if self._fitting.show_private else (None, None)
                    yield PrivateStep(run.step, run.plan.steps, run.step * rate, gradient, *seen)
                    guard.takes_back()
                    if looking is not None and looking.seen():
                        looking = None
            if self._own_loop and self.checkpoint is not None:
                self.save()  # the end of the run: whoever resumes gets the trained model
        finally:
            self.objective.engine.draws.secret, self.objective.engine.charged = True, False
            for watch in watches:
                watch.remove()
            self._until_the_end.close()
            if kept is not None:
                kept.restore()  # what passes over records left behind

    def _after(self, run: PrivateRun, held_out: TorchRecords | None, callbacks: list[Callback]) -> None:
        """What follows an update: schedules, scores, checkpoints."""
        rate = run.plan.rate
        # an epoch ends with the step that brings the expected passes to a whole number
        epoch_ends = math.floor(run.step * rate + 1e-9) > math.floor((run.step - 1) * rate + 1e-9) or run.step == run.plan.steps
        if self._fitting.scheduler_interval == "step" or epoch_ends:
            self._fitting.step_scheduler()
        if epoch_ends:
            record: dict[str, Any] = {
                "epoch": round(run.step * rate, 2),
                "step": run.step,
                "epsilon": self.epsilon_spent,
            }
            if held_out is not None:
                record |= {f"validation_{name}": value for name, value in self._scores(held_out.batches()).items()}
            self.history.append(record)
            for callback in callbacks:
                callback.on_epoch(record)
        due = (
            epoch_ends
            if self._fitting.checkpoint_every is None
            else run.step % self._fitting.checkpoint_every == 0 or run.step == run.plan.steps
        )
        if self.checkpoint is not None and due:
            self.save()

    def save(self) -> None:
        """Write a checkpoint now. Needs `checkpoint`."""
        if self.checkpoint is None or self._run is None or self._starter is None:
            raise ValueError("Expected a checkpoint folder and a run in progress.")
        settings = {"noise_multiplier": self._starter.noise, "public_size": self._run.plan.public_size, **self._identity()}
        write = partial(self._run.save, {**self._contents(), "settings": settings})
        self.objective.flat.save(self.checkpoint, self.optimizer, self._state, self._ranks, write)

    def _contents(self) -> dict[str, Any]:
        """What of a checkpoint is known without a run."""
        return {
            **self.objective.flat.contents(self.model, self.optimizer, self._state),
            "scheduler": None if self._fitting.scheduler is None else self._fitting.scheduler.state_dict(),
            "history": self.history,
        }

    def _identity(self) -> dict[str, Any]:
        """What a run and its continuation must share, besides the plan."""
        stated = self._planner.stated_size is not None or self.objective.relation is Relation.REPLACE_ONE
        return {
            "relation": self.objective.relation.value,
            "max_rows_per_unit": self.max_rows_per_unit,
            "a stated public_size": stated,
            "epsilon": self.epsilon.to_dict() if isinstance(self.epsilon, Risk) else self.epsilon,
            "delta": self.delta,
            "optimizer": None if self.optimizer is None else type(self.optimizer).__name__,
            "scheduler": None if self._fitting.scheduler is None else type(self._fitting.scheduler).__name__,
            "ema_decay": self._fitting.ema_decay,
            "sharded parameters": self.objective.flat.sharded or None,
        }

    def _finish(self, callbacks: list[Callback]) -> None:
        if self._state is not None and self.plan is not None:
            self.objective.flat.put(self.plan.update.result(self.objective.theta, self._state))
        for parameter in self.objective.flat.parameters:
            parameter.grad = None
        assert self.certificate is not None
        for callback in callbacks if self._announced else []:
            callback.on_end(self.certificate)

    def _with_update(self, plan: Policy) -> Policy:
        """The plan with the update that runs: the torch optimiser where there is one, averaged where asked for."""
        if self._own_loop:
            return plan
        update = plan.update
        if self.optimizer is not None:
            inner = TorchOptimizer(self.optimizer, self.objective.flat)
            update = update.around(inner)
        if self._fitting.ema_decay is not None:
            update = ExponentialAverage(update, self._fitting.ema_decay)
        return plan if update is plan.update else replace(cast(Any, plan), update=update)

    # Starting: everything is checked before anything is charged

    def _held_out(self, validation: Any) -> TorchRecords | None:
        ranks = Ranks.here()
        records = ranks.together(
            lambda: None if validation is None else self._records(validation, self.physical_batch_size or 1024, protected=False)
        )
        if self.objective.flat.sharded:  # scores are of passes that all run
            size = None if records is None else len(records)
            ranks.same({"the number of records to validate on": size, "physical_batch_size": self.physical_batch_size})
        if records is not None:
            probed = ranks.together(lambda: records.sample(PROBED))  # what can fail fails before anything is charged
            ranks.together(lambda: refuse_mixed_scores(self.model, self.loss_fn, self._fitting.metrics, probed))
            ranks.together(lambda: self._scores([probed]))
        return records

    def _records(self, data: Any, size: int, *, protected: bool = True) -> TorchRecords:
        return TorchRecords(data, **self._reading(size), protected=protected)

    def _trained_on(self, data: Any, groups: Any, size: int) -> TorchRecords:
        """The records that are protected: persons, where these have several rows."""
        if self.max_rows_per_unit is None:
            if groups is not None:
                raise ValueError(
                    "Expected max_rows_per_unit with groups: the most rows used of a person, a public number such as 64."
                )
            return self._records(data, size)
        return PersonRecords(data, groups, most=self.max_rows_per_unit, **self._reading(size))

    def _reading(self, size: int) -> dict[str, Any]:
        return {
            "physical_batch_size": size,
            "device": self.objective.flat.device,
            "collate_fn": self.collate_fn,
            "num_workers": self.num_workers,
            "key": None if self.random_state is None or alignment.current() else int(torch.randint(1 << 62, ())),
        }

    def _refuse_again(self) -> None:
        if self.certificate is not None:
            raise ValueError(
                "A trainer runs once: its certificate speaks of one run from weights that do not depend on these records. Make "
                "a new trainer on a new model; training this one further would add to what was spent."
            )

    def _begin(self, dataset: Any, groups: Any, resume: bool, sharded: bool) -> PrivateRun:
        ranks = self._ranks
        self.objective.flat.check()
        records = ranks.together(lambda: self._trained_on(dataset, groups, self.physical_batch_size or 1024))
        look_at(records, self.objective, ranks, physical_batch_size=self.physical_batch_size)
        if resume and self.checkpoint is None:
            raise ValueError("Expected a checkpoint folder to resume from.")
        if sharded and self.max_rows_per_unit is not None:
            raise ValueError(
                "Expected all records on every rank with max_rows_per_unit: nobody can tell whether a person is on two."
            )
        records.share = share_of(records, ranks, sharded=sharded)
        latest = None if self.checkpoint is None else ranks.first(self._latest)
        if latest is not None and not resume:
            raise ValueError(f"{self.checkpoint} holds checkpoints of a run: pass resume=True, or choose another folder.")
        if resume and latest is None:
            warnings.warn(f"{self.checkpoint} holds no checkpoint: a run starts anew and is charged.", stacklevel=4)
        if ranks.rank == 0:
            remind(self.model, self.objective, self.optimizer, self._planner, len(records), stacklevel=5)
        self._starter = starter = self._starting()
        if latest is not None:
            return self._continue(starter, records, ranks.first(lambda: checkpoint.load(latest)), latest)
        self.history, self._state = [], None
        records.charged = True
        self._run = starter.fresh(records)
        if self.checkpoint is not None:
            self.save()
        return self._run

    def _latest(self) -> Path | None:
        """The newest checkpoint of a folder that can be written to."""
        assert self.checkpoint is not None
        checkpoint.probe(self.checkpoint, self._contents())
        self._until_the_end.callback(checkpoint.hold(self.checkpoint).release)
        return checkpoint.latest(self.checkpoint)

    def _common(self, resume: bool, sharded: bool) -> dict[str, Any]:
        """What the ranks of a run must share, besides the plan."""
        tensors_of = (*self.model.named_parameters(), *self.model.named_buffers())
        shapes = [f"{name} {tuple(tensor.shape)} {tensor.dtype}" for name, tensor in tensors_of]
        scheduler = self._fitting.scheduler
        return {
            "dperm": version("dperm"),
            "torch": torch.__version__,
            "resume": resume,
            "sharded": sharded,
            **self._identity(),
            "noise_multiplier": self.noise_multiplier,
            "public_size": self.public_size,
            "spent": _digest(*(certificate.to_json() for certificate in self.spent)),
            "label": self.label,
            "autocast": self.objective.autocast,
            "loss_fn": getattr(self.loss_fn, "__qualname__", type(self.loss_fn).__qualname__),
            "random_state": told_of(self.random_state),
            "checkpoint": self.checkpoint is not None,
            **({} if self.objective.shards is None else self._common_of_shards()),
            "the model's parameters": _digest(*shapes, "trained:", *self.objective.flat.names),
            "the optimizer's settings": None if self.optimizer is None else self.optimizer.state_dict()["param_groups"],
            "the scheduler's settings": None if scheduler is None else scheduler.state_dict(),
        }

    def _common_of_shards(self) -> dict[str, Any]:
        """What ranks must share beside that where they run every pass together."""
        return {
            "physical_batch_size": self.physical_batch_size,
            "checkpoint_every": self._fitting.checkpoint_every,
            "the checkpoint folder": self.checkpoint and self.checkpoint.absolute(),
        }

    def _starting(self) -> Starter:
        return Starter(
            self.objective, self._planner, self._with_update,
            shares_epsilon=bool(self.spent), own_loop=self._own_loop, folder=self.checkpoint,
            observe=self._fitting.show_private, label=self.label, random_state=self.random_state,
        )  # fmt: skip

    def _continue(self, starter: Starter, records: TorchRecords, saved: dict[str, Any], path: Path) -> PrivateRun:
        """The run of a checkpoint; the model, the optimiser and what else it holds are put back."""
        settings, state = saved["settings"], saved["run"]
        mine = {**self._identity(), "public_size": self._planner.stated_size or settings["public_size"]}
        if self.noise_multiplier is not None:
            mine["noise_multiplier"] = self.noise_multiplier
        there = {name: settings.get(name) for name in mine}  # what is younger than a checkpoint is as if it had said nothing
        if changed := [f"{name} = {there[name]!r}, not {value!r}" for name, value in mine.items() if there[name] != value]:
            raise ValueError(f"The checkpoint was made with {'; '.join(changed)}.")
        plan = self._ranks.together(lambda: starter.again(settings, state))
        self._state = self.objective.flat.restore(saved, path / checkpoint.PARTS, self.model, self.optimizer)
        if self._fitting.scheduler is not None:
            self._fitting.scheduler.load_state_dict(saved["scheduler"])
        self.history = saved["history"]
        records.charged = True
        run = self._run = starter.continued(plan, records, state)
        if run.charged.charge_id != state["charge_id"]:
            self.save()  # killed now, the run must know of this charge too
            total = run.certificate.epsilon
            warnings.warn(
                "The log that the run was charged to is not here, and steps may have been drawn that this checkpoint does not "
                "know of: the rest of the run is paid for again, and the whole costs "
                + ("more than delta allows." if total is None else f"epsilon = {total:.4g}."),
                stacklevel=5,
            )
        return run

    def _scores(self, batches: Iterable[Any]) -> dict[str, float]:
        """Means over a held-out set of the model that `fit` would leave now."""
        theta = self.objective.theta
        final = theta if self._state is None or self.plan is None else self.plan.update.result(theta, self._state)
        if final is theta:
            return mean_scores(self.model, self.loss_fn, self._fitting.metrics, batches)
        kept = theta.clone()
        self.objective.flat.put(final)
        try:
            return mean_scores(self.model, self.loss_fn, self._fitting.metrics, batches)
        finally:
            self.objective.flat.put(kept)


def _digest(*texts: str) -> str:
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:12]


def _refuse_backward(parameter: Tensor) -> None:
    raise RuntimeError(
        "A backward pass added a gradient without noise to the model during a private run. The noisy gradient is in .grad "
        "already: call optimizer.step() and nothing else."
    )
