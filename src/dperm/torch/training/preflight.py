"""Before a charge: a caller's records are read, the model is run on some of them, and it is measured how many fit memory at once;
warnings tell of settings that are seldom meant."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor, nn

from dperm._memory import free_memory
from dperm._remind import remind_of_size
from dperm.objectives import RECORD
from dperm.privacy import Relation
from dperm.release import alignment
from dperm.torch.data.records import TorchRecords
from dperm.torch.data.units import PersonRecords
from dperm.torch.engine import TorchPass
from dperm.torch.module_objective import ModuleObjective
from dperm.torch.ranks import Ranks, share_of
from dperm.torch.tensors.nested import batch_size, on_device, refuse_other_shapes, take, tensors
from dperm.torch.tensors.user_code_errors import in_short
from dperm.torch.training.settings import TrainingSpec

_AT_ONCE = 1024  # records, until it is measured how many fit memory
_DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)
PROBED = 16  # records
_CAP = 4096  # larger batches gain nothing
_SHARE = 0.4  # of the memory that is free now
_CPU_LIMIT = 4 << 30
# C libraries map large blocks anew each time they are asked for, and the system clears them page by page: glibc all above
# 32 MiB. Passes with tensors of 33 MB and more were slower than with 19 MB; half the limit leaves a margin
_CPU_TENSOR = 16 << 20


def prepared(spec: TrainingSpec, data: Any, groups: Any, ranks: Ranks, *, sharded: bool) -> TorchRecords:
    """The records to train on: read, looked at, and shared out among the ranks. What is wrong with them, the model or the loss is
    raised on every rank."""
    settings = spec.settings
    if sharded and settings.unit != RECORD:
        raise ValueError("Expected all records on every rank with max_rows_per_unit: nobody can tell whether one is on two.")
    spec.objective.flat.check()
    records = ranks.together(lambda: _protected(spec, data, groups))
    inputs = _look_at(records, spec.objective, ranks, settings.physical_batch_size)
    if settings.views > 1 and ranks.rank == 0:
        _remind_of_equal_views(spec, inputs, stacklevel=6)
    records.share = share_of(records, ranks, sharded=sharded)
    if ranks.rank == 0:
        _remind(spec, len(records), stacklevel=6)
    return records


def _protected(spec: TrainingSpec, data: Any, groups: Any) -> TorchRecords:
    """The records that are protected: persons, where these have several rows."""
    most = spec.settings.unit.max_rows
    seen: dict[str, Any] = {"views": spec.settings.views, "transform": spec.settings.transform}
    if most is not None:
        return PersonRecords(data, groups, most=most, unit_is=spec.unit_is, **_reading(spec), **seen)
    if groups is not None:
        raise ValueError("Expected max_rows_per_unit with groups: the most rows used of one of them, a public number such as 64.")
    return TorchRecords(data, **_reading(spec), **seen)


def held_out_records(spec: TrainingSpec, data: Any) -> TorchRecords:
    """Records that are public, or apart: a batch of them is collated as a whole."""
    return TorchRecords(data, **_reading(spec), protected=False)


def _reading(spec: TrainingSpec) -> dict[str, Any]:
    settings = spec.settings
    return {
        "physical_batch_size": settings.physical_batch_size or _AT_ONCE,
        "device": spec.objective.flat.device,
        "collate_fn": settings.collate_fn,
        "num_workers": settings.num_workers,
        "key": None if settings.random_state is None or alignment.current() else int(torch.randint(1 << 62, ())),
    }


def _look_at(records: TorchRecords, objective: ModuleObjective, ranks: Ranks, physical_batch_size: int | None) -> Any:
    """Run the model on some records, and measure how many of them to take at once where that is not said. Returns their inputs.

    What is wrong with the model, the loss or the records is raised on every rank. Where parameters are sharded, all ranks
    look at the same records.
    """
    sample = ranks.together(lambda: records.sample(PROBED))
    if objective.flat.sharded:  # all run the model as often
        own = sample
        sample = on_device(ranks.first(lambda: on_device(own, torch.device("cpu"))), objective.flat.device)
        ranks.together(lambda: refuse_other_shapes(own, sample))
        objective.inspection.sample = sample
        records.in_step = True
    inputs, targets = sample
    losses = ranks.together(lambda: _first_losses(objective, inputs, targets))
    if names := objective.engine.untouched:
        shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
        warnings.warn(
            f"No loss depends on {shown}: noise alone would move what nobody trains. Look for no_grad and detach, or freeze it "
            "by requires_grad_(False).",
            UserWarning,
            stacklevel=6,
        )
    if objective.engine.mixing and objective.engine.one_by_one is None:
        warnings.warn(" ".join(objective.engine.mixing), UserWarning, stacklevel=6)
    if names := objective.engine.changing:
        shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
        warnings.warn(
            f"The model or the loss changes {shown} when it runs. That is put back after each pass: it would tell of records "
            "without noise, so it stays as it was before the run. Count steps, and change such values, in a callback's on_step "
            "or in a loop over steps(), or in what you give to trainer.public_step.",
            UserWarning,
            stacklevel=6,
        )
    ranks.together(lambda: objective.inspection.look_at_targets(inputs, records.all_targets()))
    ranks.together(lambda: _refuse_infinite(losses))
    if physical_batch_size is None:
        measured = ranks.together(lambda: fitting_batch_size(objective, inputs, targets))
        records.physical_batch_size = min(ranks.gathered(measured)) if objective.flat.sharded else measured
    return inputs


def _remind_of_equal_views(spec: TrainingSpec, inputs: Any, *, stacklevel: int) -> None:
    """A warning where the views of some records are the same, and neither the model nor the loss draws."""
    engine, axis = spec.objective.engine, 2 if spec.settings.unit.several_rows else 1
    alike = all(bool((tensor == tensor.narrow(axis, 0, 1)).all()) for tensor in tensors(inputs))
    if alike and engine.one_by_one is None and not engine.draws.ever:
        warnings.warn(
            f"The {spec.settings.views} views of a record are all the same, for neither the data set, transform, the model nor "
            "the loss draws anything: steps take longer and gain nothing. Pass a transform, or leave views out.",
            stacklevel=stacklevel,
        )


def _first_losses(objective: ModuleObjective, inputs: Any, targets: Any) -> Tensor:
    try:
        return objective.evaluate(inputs, targets, norms_only=True).losses
    except (RuntimeError, IndexError, KeyError, AttributeError, TypeError) as error:
        kinds = [", ".join(dict.fromkeys(str(tensor.dtype) for tensor in tensors(part))) for part in (inputs, targets)]
        raise ValueError(
            f"The model or the loss does not run on the first records (inputs {kinds[0]}, targets {kinds[1]}, model "
            f"{objective.flat.dtype}; of several inputs a tuple is given as arguments, a dict by name, all but what is called "
            f"'labels' or 'label'): {in_short(error)}"
        ) from error


def _refuse_infinite(losses: Tensor) -> None:
    if not bool(torch.isfinite(losses).all()):
        raise ValueError(
            f"The loss of some of {len(losses)} records, from all over the data, is not finite: look at inputs, targets and "
            "initial weights."
        )


def _remind(spec: TrainingSpec, records: int, *, stacklevel: int) -> None:
    """Warnings of settings that are seldom meant, at most one of a kind; `stacklevel` is that of `warnings.warn`, from here."""
    model, optimizer, objective, planner = spec.settings.model, spec.settings.optimizer, spec.objective, spec.planner
    if optimizer is not None and optimizer.state:
        warnings.warn(
            "The optimizer has a state from steps before this run: momenta of gradients without noise would be applied. Make "
            "a new one, unless those steps were private or on other records.",
            stacklevel=stacklevel,
        )
    if optimizer is not None:
        private = set(objective.flat.parameters)
        held = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        if others := sum(parameter.requires_grad and parameter not in private for parameter in held):
            warnings.warn(
                f"The optimizer holds {others} parameters that are neither the model's nor the loss's: they have no private "
                "gradients, and stay as they are. A loss whose parameters are to be trained is a torch.nn.Module.",
                stacklevel=stacklevel,
            )
    asleep = any(isinstance(module, _DROPOUTS) and module.p and not module.training for module in model.modules())
    if asleep and not model.training:
        warnings.warn(
            "The model is in eval mode: dropout is off. Call model.train() if that is not meant.", stacklevel=stacklevel
        )
    size = planner.stated_size
    if size is None and planner.adaptive and objective.relation is Relation.ADD_OR_REMOVE_ONE:
        batch = planner.within_budget(None, objective.relation).expected_batch_size
        if batch > records / 2:
            warnings.warn(
                f"Batches of {batch:g} are expected, but there are {records} records: hardly anything is left of sampling.",
                stacklevel=stacklevel,
            )
    if size is not None:
        what = "steps" if planner.adaptive else "batches"  # DPIS sees to its batches
        consequence = f"{what} will be {records / size:.2g} times what is expected, and noise is for the expected ones."
        whom = f"{spec.unit_is}s"
        remind_of_size(size, records, consequence, stacklevel=stacklevel, whom=whom)


def bytes_per_record(objective: ModuleObjective, inputs: Any, targets: Any) -> tuple[int, int]:
    """What a pass keeps per record: activations saved for the way back, twice, for their gradients, and per-example forms;
    and the largest of these activations. Measured as the difference between passes of two sizes: weights do not grow."""
    size = batch_size(inputs) or 1
    objective.prepare(inputs, targets)  # now: its checks are passes too
    few = torch.arange(max(1, size // 2))
    evaluation, all_saved = _saved(objective, inputs, targets)
    _, few_saved = _saved(objective, take(inputs, few, size), take(targets, few, size)) if size > 1 else (evaluation, [])
    # where the two do not run alike, the smaller pass says nothing
    less = few_saved if len(few_saved) == len(all_saved) else [0] * len(all_saved)
    records = size - len(few) if any(less) else size
    grown = [(most - least) // records for most, least in zip(all_saved, less, strict=True)]
    return max(1, 2 * sum(grown) + evaluation.bytes_held // size), max(grown, default=0)


def _saved(objective: ModuleObjective, inputs: Any, targets: Any) -> tuple[TorchPass, list[int]]:
    """A pass, and the bytes of each block of memory that it saved for the way back, in order."""
    seen: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        place = tensor.data_ptr()
        seen[place] = max(seen.get(place, 0), tensor.numel() * tensor.element_size())
        return tensor

    objective.engine.hooked = True
    try:
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            evaluation = objective.evaluate(inputs, targets)
    finally:
        objective.engine.hooked = False
    return evaluation, list(seen.values())


def fitting_batch_size(objective: ModuleObjective, inputs: Any, targets: Any) -> int:
    """Records at once that leave most of the free memory free; at least 1, at most 4,096, and on a CPU only as many as keep
    each activation below 16 MiB."""
    total, largest = bytes_per_record(objective, inputs, targets)
    fast = _CPU_TENSOR // max(1, largest) if objective.flat.device.type == "cpu" else _CAP
    return max(1, min(_CAP, fast, int(_SHARE * _free(objective.flat.device) / total)))


def vectors_at_once(objective: ModuleObjective) -> int:
    """Records at once whose vectors (p,) leave most of the free memory free; at least 1."""
    flat = objective.flat
    return max(1, int(_SHARE * _free(flat.device) / (2 * flat.size * flat.dtype.itemsize)))


def _free(device: torch.device) -> int:
    """Bytes of memory that may be thought of as free."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else int(min(_CPU_LIMIT, free_memory()))
