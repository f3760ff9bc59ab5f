"""What a person sees of a run: a progress bar, TensorBoard, and whatever they add."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from dperm._extras import needed
from dperm._progress import watching
from dperm.privacy import Certificate


@dataclass(frozen=True)
class PrivateStep:
    """One private step: its noisy gradient (p,) is in the trainable parameters' `.grad`.

    `number` counts from 1 to `total`; `epoch` is number·rate. `noise_deviation` is the standard deviation of the noise in each
    of the gradient's numbers, which is public; None where the plan does not tell it, or where they differ. `batch_loss` and
    `batch_clipped` (share of records longer than the bound) are None unless asked for: they are made from records without noise
    and are not private.
    """

    number: int
    total: int
    epoch: float
    gradient: Tensor
    noise_deviation: float | None = None
    batch_loss: float | None = None
    batch_clipped: float | None = None


class Callback:
    """Override what you need. Nothing here is charged: keep what is not private to yourself."""

    def on_start(self, total: int, certificate: Certificate) -> None:
        """Before the first step, after the charge."""

    def on_step(self, step: PrivateStep) -> None:
        """After the update."""

    def on_epoch(self, record: Mapping[str, Any]) -> None:
        """After an expected pass: epoch, step, epsilon so far, validation scores."""

    def should_stop(self) -> bool:
        """Asked after each step, once the others were called: whether the run stops here. The charge stands; `fit` may go on
        later by ``resume=True``, up to the steps that were charged, or `PrivateTrainer.settle` gives back the rest.

        Decide by what was released, such as the model or a noisy score, or by public held-out records. Exact scores of
        protected records, and what `show_private` shows, were not released: whoever stops by them tells of them without noise.
        Of several ranks the first one is asked.
        """
        return False

    def on_end(self, certificate: Certificate) -> None:
        """After the last step, or the one that a callback stopped the run at."""

    def close(self) -> None:
        """Always called last, also when training was interrupted."""


class ProgressBar(Callback):
    """A line on the terminal: step, ε so far, validation scores, and, where shown, what is not private."""

    def __init__(self) -> None:
        with needed("rich", "A progress bar"):
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
            from rich.table import Column

        self._progress = Progress(
            TextColumn("step {task.completed:.0f}/{task.total:.0f}", table_column=Column(no_wrap=True)),
            BarColumn(bar_width=12),
            TimeRemainingColumn(compact=True, table_column=Column(no_wrap=True, min_width=5)),
            TextColumn("{task.fields[note]}", table_column=Column(no_wrap=False, ratio=1)),
            console=Console(stderr=True),
        )
        self._task: Any = None
        self._scores = self._batch = ""

    def on_start(self, total: int, certificate: Certificate) -> None:
        self._task = self._progress.add_task("", total=total, note="")
        self._progress.start()

    def on_step(self, step: PrivateStep) -> None:
        if step.batch_loss is not None:
            self._batch = f"not private: loss {step.batch_loss:.3f}, clipped {100 * (step.batch_clipped or 0):.0f} %"
        self._show(step.number)

    def on_epoch(self, record: Mapping[str, Any]) -> None:
        parts = [f"ε {record['epsilon']:.2f}"]
        parts += [f"{name.replace('_', ' ')} {value:.4g}" for name, value in record.items() if name.startswith("validation")]
        self._scores = ", ".join(parts)
        self._show(record["step"])

    def _show(self, completed: int) -> None:
        note = "\n".join(part for part in (self._scores, self._batch) if part)
        self._progress.update(self._task, completed=completed, note=note)

    def close(self) -> None:
        self._progress.stop()


class Watched(Callback):
    """One line, on a terminal or in a notebook, once a run takes longer than two seconds; it goes when the run ends."""

    def __init__(self) -> None:
        self._open = ExitStack()
        self._step: Any = None

    def on_start(self, total: int, certificate: Certificate) -> None:
        self._step = self._open.enter_context(watching("Training"))

    def on_step(self, step: PrivateStep) -> None:
        self._step(step.number, step.total)

    def close(self) -> None:
        self._open.close()


class TensorBoard(Callback):
    """Scalars for TensorBoard in `folder`: ε so far and validation scores by epoch; what is not private says so in its tag."""

    def __init__(self, folder: str | Path) -> None:
        with needed("tensorboard", "A log for TensorBoard"):
            from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder))

    def on_step(self, step: PrivateStep) -> None:
        if step.batch_loss is not None:
            self._writer.add_scalar("not private/loss", step.batch_loss, step.number)
            self._writer.add_scalar("not private/clipped", step.batch_clipped, step.number)

    def on_epoch(self, record: Mapping[str, Any]) -> None:
        for name, value in record.items():
            if name not in ("epoch", "step"):
                self._writer.add_scalar(name, value, record["step"])

    def close(self) -> None:
        self._writer.close()
