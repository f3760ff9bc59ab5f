"""Checkpoints of a run that survive being killed: a folder per step, written beside, synced, and renamed into place.

Tensors are in safetensors, everything else in JSON; nothing is pickled. No random state is stored: noise is never made
twice.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from dperm._extras import needed
from dperm._files import HeldError, Lock, this_process
from dperm.torch.ranks import Ranks
from dperm.torch.training.settings import TrainingSpec
from dperm.torch.training.training_run import PrivateRun

with needed("safetensors", "A checkpoint"):
    from safetensors.torch import load_file, save_file

_TENSORS, _STATE = "tensors.safetensors", "state.json"
_PREFIX, _WRITING, _LOCK = "step-", ".writing-", ".lock"
PARTS = "parts"  # the folder of what each rank wrote, where parameters are sharded
_FORMAT = 2


class RunFolder:
    """The folder that a run writes its checkpoints to, for this run alone from `latest` to `close`."""

    def __init__(self, path: Path, spec: TrainingSpec, ranks: Ranks) -> None:
        self.path, self._spec, self._ranks = path, spec, ranks
        self._lock: Lock | None = None

    def latest(self) -> Path | None:
        """The newest checkpoint, of a folder that can be written to, and which this run holds from now on."""

        def held() -> Path | None:
            probe(self.path, self._contents(None))
            self._lock = hold(self.path)
            return latest(self.path)

        return self._ranks.first(held)

    def close(self) -> None:
        """Let others have the folder."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def save(self, run: PrivateRun) -> None:
        """A checkpoint of this moment, by all ranks."""
        run.follow()
        flat = self._spec.objective.flat
        settings = {
            "noise_multiplier": run.charged.noise,
            "public_size": run.plan.public_size,
            **self._spec.shared_with_continuation(),
        }

        def write(parts: Path | None) -> None:
            state = {"run": run.contents(), **self._contents(run), "settings": settings}
            save(self.path, run.step, state, parts=parts)

        flat.save(self.path, self._spec.settings.optimizer, run.update_state, self._ranks, write)

    def load(self, path: Path) -> dict[str, Any]:
        """What a checkpoint holds. ValueError where it was made with other settings."""
        saved = self._ranks.first(lambda: load(path))
        settings, planner = saved["settings"], self._spec.planner
        mine = {**self._spec.shared_with_continuation(), "public_size": planner.stated_size or settings["public_size"]}
        if planner.budget.noise_multiplier is not None:
            mine["noise_multiplier"] = planner.budget.noise_multiplier
        there = {name: settings.get(name) for name in mine}  # what is younger than a checkpoint is as if it had said nothing
        if changed := [f"{name} = {there[name]!r}, not {value!r}" for name, value in mine.items() if there[name] != value]:
            raise ValueError(f"The checkpoint was made with {'; '.join(changed)}.")
        return saved

    def restore(self, saved: dict[str, Any], path: Path) -> Any:
        """Put the model, the optimiser and the scheduler back; returns the update's state."""
        settings, scheduler = self._spec.settings, self._spec.options.scheduler
        state = self._spec.objective.flat.restore(saved, path / PARTS, settings.model, settings.optimizer)
        if scheduler is not None:
            scheduler.load_state_dict(saved["scheduler"])
        return state

    def _contents(self, run: PrivateRun | None) -> dict[str, Any]:
        """What a checkpoint holds of the model and its training; without a run, what it will be like."""
        settings, scheduler = self._spec.settings, self._spec.options.scheduler
        state = None if run is None else run.update_state
        return {
            **self._spec.objective.flat.contents(settings.model, settings.optimizer, state),
            "scheduler": None if scheduler is None else scheduler.state_dict(),
            "history": [] if run is None else run.history,
        }


def save(folder: Path, step: int, state: Mapping[str, Any], keep: int = 2, *, parts: Path | None = None) -> Path:
    """Write `state`, nested dicts and lists of tensors and JSON values, as the checkpoint of `step`; keep the last `keep`. The
    folder `parts`, with what other processes wrote of it, becomes a part of it.

    When this returns, the checkpoint is on disk; when the process dies before, the one before it is.
    """
    folder.mkdir(parents=True, exist_ok=True)
    final = folder / f"{_PREFIX}{step:09d}"
    temporary = folder / f"{_WRITING}{os.getpid()}"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(mode=0o700)  # it may hold what is private
    tensors: dict[str, Tensor] = {}
    plain = _split(state, tensors, "")
    save_file(tensors, temporary / _TENSORS)
    text = json.dumps({"format": _FORMAT, "state": plain}, ensure_ascii=False)
    (temporary / _STATE).write_text(text, encoding="utf-8")
    if parts is not None:
        parts.rename(temporary / PARTS)
    for path in (temporary / _TENSORS, temporary / _STATE, temporary):
        _sync(path)
    if final.exists():  # the same step again, after a run was continued from an earlier one
        shutil.rmtree(final)
    temporary.rename(final)
    _sync(folder)
    for old in sorted(_steps(folder))[:-keep]:
        shutil.rmtree(old)
    return final


def probe(folder: Path, state: Mapping[str, Any]) -> None:
    """Fail now where `save` would fail later: OSError for the folder, which `hold` then writes to, TypeError for the state."""
    _split(state, {}, "")
    folder.mkdir(parents=True, exist_ok=True)


def hold(folder: Path) -> Lock:
    """The folder for one run alone, until the lock is released or the process ends. ValueError, which names the other run, where
    one has it. What a dead run had not finished writing there is removed."""
    try:
        lock = Lock(folder / _LOCK, this_process())
    except HeldError as error:
        raise ValueError(
            f"Another run writes its checkpoints to {folder}: {error} Wait for its end, or choose another folder. Nothing was "
            "charged."
        ) from None
    for left in folder.glob(f"{_WRITING}*"):
        shutil.rmtree(left)
    return lock


def latest(folder: Path) -> Path | None:
    """The newest complete checkpoint, or None."""
    return max(_steps(folder), default=None)


def load(path: Path) -> dict[str, Any]:
    """What `save` wrote. ValueError where it is not a checkpoint of this format."""
    try:
        content = json.loads((path / _STATE).read_text(encoding="utf-8"))
        if content["format"] != _FORMAT:
            raise ValueError(f"format {content['format']}")
        return _joined(content["state"], load_file(path / _TENSORS))
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is not a readable checkpoint of format {_FORMAT}: {error}") from error


def _steps(folder: Path) -> list[Path]:
    return [path for path in folder.glob(f"{_PREFIX}*") if path.is_dir()] if folder.is_dir() else []


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _split(value: Any, tensors: dict[str, Tensor], name: str) -> Any:
    """`value` as JSON, its tensors moved to `tensors`. Dicts become lists of pairs: their keys may be numbers."""
    if isinstance(value, Tensor):
        tensors[name] = value.detach().to("cpu", copy=True).contiguous()
        return {"tensor": name}
    if isinstance(value, Mapping):
        return {"items": [[key, _split(item, tensors, f"{name}/{key}")] for key, item in value.items()]}
    if isinstance(value, (list, tuple)):
        return [_split(item, tensors, f"{name}/{index}") for index, item in enumerate(value)]
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    raise TypeError(f"Expected tensors, numbers and texts in a checkpoint, got {type(value).__name__} at {name}.")


def _joined(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    if isinstance(value, dict):
        if "tensor" in value:
            return tensors[value["tensor"]]
        return {key: _joined(item, tensors) for key, item in value["items"]}
    if isinstance(value, list):
        return [_joined(item, tensors) for item in value]
    return value
