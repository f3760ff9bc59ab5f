"""What `fit` does around each private step: the update, schedules, scores, checkpoints, and telling callbacks."""

from __future__ import annotations

import sys
from typing import Any

from dperm._progress import in_notebook
from dperm.torch.ranks import Ranks
from dperm.torch.training.callbacks import Callback, PrivateStep, ProgressBar, Watched
from dperm.torch.training.heldout_scores import HeldOut
from dperm.torch.training.session import TrainingSession
from dperm.torch.training.settings import ends_epoch


class FitLoop:
    """Follows the steps of a session: `after` each, `finish` after the last, and `close` whatever happened."""

    def __init__(self, session: TrainingSession, validation: Any, progress: bool | None) -> None:
        self._session, self._options = session, session.spec.options
        self._callbacks = list(self._options.callbacks)
        if progress or (progress is None and sys.stderr.isatty() and Ranks.here().rank == 0):
            self._callbacks.append(ProgressBar())
        elif progress is None and in_notebook():
            self._callbacks.append(Watched())
        self._held_out = HeldOut.of(session.spec, validation)
        self._announced = False

    def after(self, step: PrivateStep) -> None:
        """Move the model by a step, and whatever else follows it."""
        run, options = self._session.run, self._options
        assert run is not None
        if not self._announced:
            self._announced = True
            for callback in self._callbacks:
                callback.on_start(step.total, run.certificate)
        run.update(step.gradient)
        for callback in self._callbacks:
            callback.on_step(step)
        rate, last = run.plan.rate, run.step == step.total
        epoch_ends = ends_epoch(run.step, step.total, rate)
        options.step_scheduler(run.step, step.total, rate)
        if epoch_ends:
            record: dict[str, Any] = {"epoch": round(run.step * rate, 2), "step": run.step, "epsilon": run.epsilon}
            if self._held_out is not None:
                run.validated = True
                record |= {f"validation_{name}": value for name, value in self._held_out.scores(run).items()}
            run.history.append(record)
            for callback in self._callbacks:
                callback.on_epoch(record)
        every = options.checkpoint_every
        due = epoch_ends if every is None else last or run.step % every == 0
        if due and self._session.spec.settings.checkpoint is not None:
            self._session.save()

    def stops(self, step: PrivateStep) -> bool:
        """Whether a callback stops the run after this step; then a checkpoint of it is written, where there is a folder."""
        asked = [callback for callback in self._callbacks if type(callback).should_stop is not Callback.should_stop]
        if not asked or step.number == step.total:
            return False
        stops = Ranks.here().first(lambda: True in [callback.should_stop() for callback in asked])
        if stops and self._session.spec.settings.checkpoint is not None:
            self._session.save()
        return stops

    def finish(self) -> None:
        """Leave the model where the plan says, without gradients."""
        run, objective = self._session.run, self._session.spec.objective
        assert run is not None
        run.leave()
        for parameter in objective.flat.parameters:
            parameter.grad = None
        for callback in self._callbacks if self._announced else []:
            callback.on_end(run.certificate)

    def close(self) -> None:
        for callback in self._callbacks:
            callback.close()
