"""Whether a model gives its records the losses and gradients that it gives them in one ordinary batch; and whether such a batch
seems to keep them apart, where nothing makes it.

No privacy rests on it: the engine's gradients are those of records by themselves. A model that was written to compare
records, such as one with batch statistics, would silently become another one; and PyTorch's own batching rules may have
faults.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from dperm.torch.engine.gradient_pass import TorchPass
from dperm.torch.engine.isolated import IsolatedEngine
from dperm.torch.engine.model_state import Snapshot
from dperm.torch.engine.record_gradients import slopes
from dperm.torch.engine.state_changes import changes
from dperm.torch.engine.tracing import RefusedError
from dperm.torch.independence.refusals import refusing_shared_calls
from dperm.torch.parameters.flat_parameters import FlatParameters
from dperm.torch.tensors.global_randomness import fresh_seed, global_states, kept_states, seed_all
from dperm.torch.tensors.nested import FAILURES, map_tensors, take
from dperm.torch.tensors.user_code_errors import in_short

_NORMS = 2  # records whose gradients are compared by themselves
_EXCHANGED = 4  # records that are exchanged, one at a time, where mixing is looked for

_TRIES = 10  # runs by which it is told whether draws matter, and that must all differ from an ordinary batch where they may

_UNTESTED = (
    "The model draws random numbers in evaluation mode that change its losses, so that its gradients cannot be compared with "
    'autograd\'s, which independence="tested" rests on: let it draw in training mode only.'
)
_MIXES = (
    "One record's loss depends on another record: the model and the loss give it another loss in a batch than alone. A layer or "
    "the loss mixes records, or depends on how many records there are. Look for normalisation over the batch, losses that "
    "compare records or divide by their number, and padding that counts."
)
_GRADIENTS = (
    "Per-example gradients do not agree with autograd's: a layer or the loss mixes, reorders or drops records on the way "
    "back, hooks gradients, or has a batching rule with a fault."
)


def disagreement(engine: IsolatedEngine, inputs: Any, targets: Any, size: int, *, beside: bool) -> str | None:
    """What is wrong with the gradients of these records, or None. Parameters are moved a little meanwhile, so that layers
    that start at zero hide nothing; layers are in evaluation mode where draws make a difference, and nothing is compared where
    they still do. With `beside` that is a reason to refuse the model: which axis of a tensor has the records is only tested.
    """
    model, flat = engine.model, engine.flat
    kept, asleep = engine.snapshot(), False
    modes = {module: module.training for module in model.modules()}
    with kept_states(flat.device), _moved(flat):
        try:
            plain = _undrawn(engine, kept, inputs, targets, note=True)
            if plain is None:
                asleep = True
                for module in modes:
                    module.training = False
                plain = _undrawn(engine, kept, inputs, targets)
                for module in modes:
                    module.training = modes[module] if plain is None else False
                asleep = plain is not None
            try:
                looked = contextlib.nullcontext(set[Any]()) if beside else refusing_shared_calls()
                with looked as ran, engine.as_it_was() if asleep else contextlib.nullcontext():
                    mine, problem = _compared(engine, plain, inputs, targets, size, beside=beside)
                engine.ran |= ran
            except RefusedError:
                raise
            except FAILURES as error:
                if size == 1:
                    raise
                return f"The model or the loss runs on a batch of {size} records and not on each by itself: {in_short(error)}"
        finally:
            kept.restore()
            for module, mode in modes.items():
                module.training = mode
    if plain is None:
        return _UNTESTED if beside else None
    if not plain.trains:
        return "The losses do not depend on the trainable parameters: there is nothing to train."
    engine.untouched = mine.untouched
    return problem


def _copied(*batch: Any) -> Any:
    """The batch in tensors that the model may overwrite."""
    return map_tensors(Tensor.clone, batch)


@dataclass(frozen=True)
class _Ordinary:
    """Of one ordinary batch: its losses (b,), weights (b,), the gradient (p,) of the weighted losses, the norms of the gradients
    of some records by their numbers, whether there is a gradient at all, and whether the model drew random numbers."""

    losses: Tensor
    weights: Tensor
    gradient: Tensor
    norms: dict[int, Tensor]
    trains: bool
    draws: bool
    #: the states of the generators afterwards
    after: tuple[bytes, ...]


def _compared(
    engine: IsolatedEngine, plain: _Ordinary | None, inputs: Any, targets: Any, size: int, *, beside: bool
) -> tuple[TorchPass, str | None]:
    """The engine's pass, and how it differs from the ordinary batch, if it does. Where the model draws, several passes have to
    differ: a coin that seldom matters may be why one does."""
    left = _TRIES if plain is not None and plain.draws else 1
    while True:
        left -= 1
        mine = engine.evaluate((inputs, targets), size, beside=beside)
        problem = None if plain is None else _apart(mine, plain, engine.flat, _rounding(engine.model))
        if problem is None or not left:
            return mine, problem
        engine.draws.next_step()


def _undrawn(engine: IsolatedEngine, kept: Snapshot, inputs: Any, targets: Any, *, note: bool = False) -> _Ordinary | None:
    """What an ordinary batch gives, or None where that depends on what the model draws: one of several runs differs. With
    `note` the engine is told what a run changes, in the modes that the model is in."""
    first = _ordinary(engine, *_copied(inputs, targets))
    if note:
        engine.changing = changes(kept)
    kept.restore()
    for _ in range(_TRIES if first.draws else 0):
        engine.draws.next_step()
        other = _ordinary(engine, *_copied(inputs, targets))
        kept.restore()
        same = torch.equal(first.losses, other.losses) and torch.equal(first.gradient, other.gradient)
        if not engine.flat.everywhere(same) or other.after[0] == first.after[0]:  # the model seeds torch's generator
            return None
    return first


def _ordinary(engine: IsolatedEngine, inputs: Any, targets: Any) -> _Ordinary:
    flat, draws = engine.flat, engine.draws
    before = *global_states(flat.device), draws.of_step.get_state().numpy().tobytes()
    with torch.enable_grad(), engine.watching():
        losses = engine.losses(inputs, targets)
        weights = torch.linspace(0.5, 1.5, len(losses), dtype=losses.dtype, device=losses.device)
        weights[1::2] *= -1
        usable = torch.where(torch.isfinite(losses), losses, 0.0)
        norms: dict[int, Tensor] = {}
        for number in range(0, len(losses), max(1, len(losses) // _NORMS)):
            only = torch.zeros_like(weights).index_fill_(0, torch.tensor([number], device=losses.device), 1.0)
            norms[number] = flat.length(_gradient(usable, flat, only, keep=True))
        gradient = _gradient(usable, flat, weights)
    after = *global_states(flat.device), draws.of_step.get_state().numpy().tobytes()
    return _Ordinary(losses.detach(), weights, gradient, norms, losses.requires_grad, flat.everywhere(after != before), after)


def _gradient(losses: Tensor, flat: FlatParameters, weights: Tensor, *, keep: bool = False) -> Tensor:
    """(p,) the gradient of Σ weights·losses by autograd."""
    found = slopes(losses, flat.leaves, weights, keep=keep)
    parts: list[Tensor] = []
    for number, (leaf, slope) in enumerate(zip(flat.leaves, found, strict=True)):
        whole = torch.zeros_like(leaf) if slope is None else slope
        parts.append(flat.own(number, whole.to_dense() if whole.is_sparse else whole).flatten())
    return torch.cat(parts)


def _rounding(model: nn.Module) -> float:
    """What parts of a model in half precision, such as a frozen one below adapters, may add to gradients by rounding in another
    order; 0 where there are none."""
    held = (*model.parameters(), *model.buffers())
    return max((16 * torch.finfo(each.dtype).eps for each in held if each.dtype in (torch.float16, torch.bfloat16)), default=0.0)


def _apart(mine: TorchPass, plain: _Ordinary, flat: FlatParameters, rounding: float) -> str | None:
    losses = plain.losses
    coarse = max(1e-2 if losses.dtype == torch.float32 else 1e-6, rounding)
    size = float(torch.where(torch.isfinite(losses), losses, 0.0).abs().mean())
    if not torch.allclose(mine.losses, losses, rtol=coarse, atol=coarse * size, equal_nan=True):
        return _MIXES
    if not flat.everywhere(bool(torch.isfinite(plain.gradient).all() and torch.isfinite(losses).all())):
        return None  # records without a finite gradient count nothing here, and everything there
    size = mine.norms.norm()
    apart = flat.length(mine.weighted_sum(plain.weights) - plain.gradient * flat.summands)
    wrong = bool(apart > coarse * size * flat.summands + 1e-9)
    for number, norm in plain.norms.items():
        # longer ones are sound: they hold what sums may add in rounding
        wrong = wrong or bool(norm - mine.norms[number] > coarse * (norm + 1e-3 * size) + 1e-9)
    return _GRADIENTS if wrong else None


@contextlib.contextmanager
def _moved(flat: FlatParameters, share: float = 0.1) -> Iterator[None]:
    """Within the block the trainable parameters are elsewhere by a share of their size; rows of padding stay."""
    stored = flat.stored()
    kept = [parameter.clone() for parameter in stored]
    try:
        with torch.no_grad():
            for number, (parameter, before) in enumerate(zip(stored, kept, strict=True)):
                size = float(before.square().sum().sqrt()) / max(1, before.numel()) ** 0.5 or 0.1
                parameter.add_(torch.randn_like(before), alpha=share * size)
                if number in flat.padding:
                    parameter[flat.padding[number]] = before[flat.padding[number]]
        yield
    finally:
        with torch.no_grad():
            for parameter, before in zip(stored, kept, strict=True):
                parameter.copy_(before)


def mixing(engine: IsolatedEngine, inputs: Any, targets: Any, size: int) -> str | None:
    """What shows that records are mixed, or None: a record's loss changes when another is exchanged, when the batch is turned
    round, or when some are left out. In evaluation mode, here and with parameters moved by a tenth of their size."""
    flat = engine.flat
    kept = engine.snapshot()
    modes = {module: module.training for module in engine.model.modules()}
    stored = flat.stored()
    before = [part.clone() for part in stored]
    with kept_states(flat.device), torch.no_grad():
        try:
            for module in modes:
                module.training = False
            for share in (0.0, 0.1):
                seed_all(flat.agreed(fresh_seed()))
                for part, was in zip(stored, before, strict=True):
                    part.add_(torch.randn_like(was), alpha=share * (float(was.square().mean().sqrt()) or 0.1))
                if found := _mixed(engine, inputs, targets, size):
                    return found
        finally:
            flat.rest()
            for part, was in zip(stored, before, strict=True):
                part.copy_(was)
            for module, mode in modes.items():
                module.training = mode
            kept.restore()
    return None


def _mixed(engine: IsolatedEngine, inputs: Any, targets: Any, size: int) -> str | None:
    def losses(places: list[int]) -> Tensor:
        chosen = torch.tensor(places)
        return engine.losses(take(inputs, chosen, size), take(targets, chosen, size))

    everyone = list(range(size))
    whole = losses(everyone)
    scale = float(whole.abs().mean()) or 1.0  # losses that happen to be near zero are as far apart as others by rounding
    close = functools.partial(_close, scale=scale)
    for place in range(0, size, max(1, size // _EXCHANGED)):
        others = [index for index in everyone if index != place]
        exchanged = [(place + 1) % size if index == place else index for index in everyone]
        if not close(losses(exchanged)[others], whole[others]):
            return "One record's loss depends on another record: a layer or the loss mixes the records of a batch."
    if not close(losses(everyone[::-1]), whole.flip(0)):
        return "One record's loss depends on its place in the batch."
    if not close(losses(everyone[:1]), whole[:1]) or not close(losses(everyone[: (size + 1) // 2]), whole[: (size + 1) // 2]):
        return "One record's loss depends on how many records there are: leave the division by the batch size to the trainer."
    return None


def _close(first: Tensor, second: Tensor, *, scale: float) -> bool:
    coarse = 1e-4 if first.dtype == torch.float32 else 1e-9
    return torch.allclose(first, second, rtol=coarse, atol=coarse * scale, equal_nan=True)
