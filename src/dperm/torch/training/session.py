"""One run of a trainer from its preparation to its end: everything is checked before anything is charged."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Generator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor, nn

from dperm.gradient import PlannedRun
from dperm.privacy import Certificate
from dperm.release import alignment
from dperm.release.ledger import Settlement
from dperm.torch.data.records import TorchRecords
from dperm.torch.parameters.adam_bc import AdamBC
from dperm.torch.ranks import Ranks
from dperm.torch.tensors.global_randomness import secret_masks
from dperm.torch.training.callbacks import PrivateStep
from dperm.torch.training.charging import Charging
from dperm.torch.training.checkpoint import RunFolder
from dperm.torch.training.loop_guard import LoopGuard
from dperm.torch.training.preflight import prepared
from dperm.torch.training.public_steps import PublicSteps
from dperm.torch.training.reachable import PrivateData
from dperm.torch.training.settings import FitOptions, TrainingSpec
from dperm.torch.training.training_run import PrivateRun
from dperm.torch.training.unspent import settled

#: Options that a run keeps when it goes on.
_FIXED = ("own_loop", "show_private", "scheduler", "scheduler_interval", "ema_decay")

T = TypeVar("T")


class TrainingSession:
    """Prepares, charges and guards the run of a specification, and saves it; `run` is there once it is charged."""

    run: PrivateRun | None = None
    _records: PrivateData | None = None
    _public: PublicSteps | None = None
    _within_step = False

    def __init__(self, spec: TrainingSpec) -> None:
        self.spec = spec
        self._charging: Charging | None = None
        self._folder: RunFolder | None = None
        self._given: tuple[Any, ...] = ()  # records, groups and whether they are a part: those that a run goes on with

    @property
    def certificate(self) -> Certificate | None:
        """What the run costs, known from the charge on, whatever fails later; None before it."""
        return None if self._charging is None else self._charging.certificate

    def settle(self, *, public_validation: bool) -> Settlement:
        """Give back what the run was charged for and did not release; see `PrivateTrainer.settle`."""
        if self.run is None or self._charging is None:
            raise ValueError("Expected a run that was charged and stopped: nothing is charged yet.")
        settlement = settled(self.run, public_validation=public_validation)
        self._charging.certificate = self.run.certificate
        return settlement

    def going_on(self, options: FitOptions) -> TrainingSession:
        """A session that goes on with the run of this one, which stopped in this process. ValueError where it cannot go on."""
        run = self.run
        if run is None or run.failed:
            raise ValueError(
                "The run failed within a step, or before its first one: in this process it cannot go on. From a checkpoint it "
                "can, by a new trainer with fit(..., resume=True)."
            )
        if run.settlement is not None:
            raise ValueError(f"The run was settled and cannot go on: {run.settlement}.")
        if run.step >= run.plan.steps:
            raise ValueError(f"The run cannot go on: all {run.plan.steps:,} steps that were charged were taken.")
        now = self.spec.options
        if changed := [name for name in _FIXED if getattr(options, name) != getattr(now, name)]:
            raise ValueError(f"Expected a run to go on as it began: {', '.join(changed)} differ.")
        session = TrainingSession(replace(self.spec, options=options))
        session.run, session._charging, session._given = run, self._charging, self._given
        return session

    def planned(self) -> Certificate:
        """What a run of a stated number of records will be certified as."""
        return Charging(self.spec).planned()

    def preview(self, records: int | None) -> PlannedRun:
        """What a run of so many records would do and cost."""
        return Charging(self.spec).preview(records)

    def certify_as(self, certificate: Certificate) -> None:
        """State that of a search which this run was a try of."""
        if self._charging is None or self._charging.certificate is None:
            raise ValueError("Expected a trainer that ran.")
        if self._charging.certificate.event not in getattr(certificate.event, "tries", ()):
            raise ValueError("Expected the certificate of a search that this run was a try of.")
        self._charging.certificate = certificate

    def public_step(self, function: Callable[[nn.Module], T]) -> T:
        """What the function returns for a copy of the model as it was released. ValueError without a run, and where a copy cannot
        be made of parameters that several processes hold."""
        run, charging = self.run, self._charging
        if run is None or charging is None or self._records is None:
            raise ValueError("Expected a run: call public_step in the loop over steps(), or in a callback's on_step.")
        if self._within_step:
            raise RuntimeError("Expected public_step between steps: within one, the model runs on records.")
        if self.spec.objective.flat.sharded or Ranks.here().size > 1:
            raise ValueError("Expected one process for public_step: what is drawn in it would differ between ranks.")
        charging.with_public_steps(run)
        if self._public is None:
            self._public = PublicSteps(self.spec.settings.model, self.spec.settings.optimizer, self._records)
        return self._public.run(function)

    def _next(self, run: PrivateRun) -> Tensor | None:
        self._within_step = True
        try:
            return run.next()
        finally:
            self._within_step = False

    def steps(self, data: Any, groups: Any, *, resume: bool, sharded: bool) -> Generator[PrivateStep, None, None]:
        """The steps of a new run, or of one that a checkpoint has: each has put its noisy gradient into `.grad`."""
        spec, objective, settings, options = self.spec, self.spec.objective, self.spec.settings, self.spec.options
        secret = settings.random_state is None
        if secret and alignment.current() is not None:
            raise ValueError("Masks of known seeds are for replay: give the trainer the source that the audit handed out.")
        ranks = Ranks.here()
        if ranks.size > 1:
            ranks.same({"resume": resume, "sharded": sharded, **spec.shared_by_ranks()})
            ranks.put_on_all(settings.model)
            if isinstance(settings.loss_fn, nn.Module):
                ranks.put_on_all(settings.loss_fn)
        # callbacks and loops of the caller's own may change the model by what was released: they are not undone
        kept = None if options.own_loop or options.callbacks else objective.snapshot()
        self._records = PrivateData(data, groups)
        with contextlib.ExitStack() as until_the_end:
            run = self.run = self._begin(data, groups, resume, sharded, until_the_end)
            run.open = True
            until_the_end.callback(setattr, run, "open", False)
            if kept is not None and run.step:  # a checkpoint was put back since
                kept = objective.snapshot()
            if kept is not None:
                until_the_end.callback(lambda: kept.restore())  # what passes over records left behind
            until_the_end.enter_context(objective.engine.paid_for(secret))
            rate = run.plan.rate
            guard = LoopGuard(settings.model, objective.flat, options.own_loop)
            with secret_masks(objective.flat.device) if secret else contextlib.nullcontext(), guard.watching():
                while (gradient := self._next(run)) is not None:
                    guard.gives(gradient)
                    seen = run.observed() if options.show_private else (None, None)
                    noise = run.gradients.noise_deviation
                    if options.own_loop and isinstance(settings.optimizer, AdamBC):
                        settings.optimizer.noise_deviation = noise
                    yield PrivateStep(run.step, run.plan.steps, run.step * rate, gradient, noise, *seen)
                    guard.takes_back()
            if options.own_loop and settings.checkpoint is not None:
                self.save()  # the end of the run: whoever resumes gets the trained model

    def save(self) -> None:
        """Write a checkpoint now. ValueError where there is no folder for it, or no run."""
        if self._folder is None or self.run is None:
            raise ValueError("Expected a checkpoint folder and a run in progress.")
        self._folder.save(self.run)

    def _begin(self, data: Any, groups: Any, resume: bool, sharded: bool, until_the_end: contextlib.ExitStack) -> PrivateRun:
        spec, path, ranks = self.spec, self.spec.settings.checkpoint, Ranks.here()
        if self.run is not None:
            return self._go_on(self.run, (data, groups, sharded), until_the_end)
        self._given = data, groups, sharded
        if resume and path is None:
            raise ValueError("Expected a checkpoint folder to resume from.")
        records = prepared(spec, data, groups, ranks, sharded=sharded)
        self._folder = folder = None if path is None else RunFolder(path, spec, ranks)
        latest = None
        if folder is not None:
            until_the_end.callback(folder.close)
            latest = folder.latest()
        if latest is not None and not resume:
            raise ValueError(f"{path} holds checkpoints of a run: pass resume=True, or choose another folder.")
        if resume and latest is None:
            warnings.warn(f"{path} holds no checkpoint: a run starts anew and is charged.", stacklevel=4)
        self._charging = charging = Charging(spec)
        if folder is not None and latest is not None:
            return self._continue(charging, records, folder, latest)
        records.charged = True
        self.run = charging.fresh(records)
        if folder is not None:
            self.save()
        return self.run

    def _go_on(self, run: PrivateRun, given: tuple[Any, ...], until_the_end: contextlib.ExitStack) -> PrivateRun:
        """The run of this process, where it stopped."""
        if run.open:
            raise ValueError("Expected the first loop over the run's steps to be left: close its iterator.")
        if not _same(given, self._given):
            raise ValueError("Expected the records that the run began with: the same objects, groups and setting of sharded.")
        if (path := self.spec.settings.checkpoint) is not None:
            self._folder = RunFolder(path, self.spec, Ranks.here())
            until_the_end.callback(self._folder.close)
            self._folder.latest()
        run.go_on()
        return run

    def _continue(self, charging: Charging, records: TorchRecords, folder: RunFolder, path: Path) -> PrivateRun:
        """The run of a checkpoint; the model, the optimiser and what else it holds are put back."""
        saved = folder.load(path)
        state = saved["run"]
        plan = Ranks.here().together(lambda: charging.again(saved["settings"], state))
        update_state = folder.restore(saved, path)
        records.charged = True
        run = self.run = charging.continued(plan, records, state)
        run.update_state, run.history = update_state, saved["history"]
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


def _same(one: Any, other: Any) -> bool:
    """Whether two values are one object, or tuples, lists or tables of the same objects."""
    if isinstance(one, tuple | list) and type(one) is type(other):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, Mapping) and type(one) is type(other):
        return one.keys() == other.keys() and all(_same(one[name], other[name]) for name in one)
    return one is other
