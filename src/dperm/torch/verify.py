"""Before a model is trusted: whether it treats each record by itself, and whether what its layers are found to contribute
is what autograd says.

Everything runs on a few records, with dropout off, and leaves parameters, buffers and random state as they were.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from dperm.torch.flat import FlatParameters
from dperm.torch.guard import fresh_seed, global_states, kept_states, seed_all
from dperm.torch.state import Snapshot
from dperm.torch.structure import FAILURES, map_tensors, take, tensors

__all__ = ["BackwardError", "Sample", "UsedElsewhereError", "Verifier", "drawn_anew", "drops_out", "gradients"]

_FEW, _SEEDS = 4, 16  # records and draws with which a model's own randomness is looked for
_EXCHANGED = 4  # records that are exchanged, one at a time, to see whether others notice
_ALONE = 3  # records whose own gradient is compared
DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)
_WITH_DROPOUT = (nn.MultiheadAttention, nn.LSTM, nn.GRU, nn.RNN)


def drops_out(module: nn.Module) -> bool:
    """Whether it drops something out when it is in training mode."""
    return bool(module.p if isinstance(module, DROPOUTS) else isinstance(module, _WITH_DROPOUT) and module.dropout)


_MIXES = (
    "One record's loss depends on another record: a layer or the loss mixes the records of a batch, and such a model has no "
    "per-example gradients. Look for normalisation over the batch and losses that compare records."
)


class UsedElsewhereError(ValueError):
    """Parameters reach the loss around their modules' taps: `parameters` are those."""

    def __init__(self, message: str, parameters: Sequence[nn.Parameter]) -> None:
        super().__init__(message)
        self.parameters = parameters


@dataclass(frozen=True)
class Sample:
    """`size` records to check a model on."""

    inputs: Any
    targets: Any
    size: int

    def take(self, indices: Sequence[int]) -> tuple[Any, Any]:
        chosen = torch.tensor(indices)
        return take(self.inputs, chosen, self.size), take(self.targets, chosen, self.size)

    def distinct(self) -> bool:
        """Whether at least three records differ, as far as they are told apart by tensors."""
        if self.size < 3:
            return False
        rows = [tensors(self.take([index])) for index in range(min(self.size, 8))]
        kinds: list[list[Tensor]] = []
        for row in rows:
            if not any(_same(row, other) for other in kinds):
                kinds.append(row)
        return len(kinds) >= 3


def _odd(sample: Sample) -> Iterator[Sample]:
    """The sample with every other record made odd: its inputs loud, or silent; its target another's; its mask cut short."""
    second = torch.arange(1, sample.size, 2)

    def scaled(factor: float, tensor: Tensor) -> Tensor:
        if not tensor.is_floating_point() or not tensor.dim() or tensor.shape[0] != sample.size:
            return tensor
        changed = tensor.clone()
        changed[second.to(tensor.device)] *= factor
        return changed

    def turned(tensor: Tensor) -> Tensor:
        if not tensor.dim() or tensor.shape[0] != sample.size:
            return tensor
        changed = tensor.clone()
        binary = bool(((tensor == 0) | (tensor == 1)).all())
        there = second.to(tensor.device)
        changed[there] = (1 - tensor[there].to(torch.int8)).to(tensor.dtype) if binary else tensor[(there + 2) % sample.size]
        return changed

    for factor in (100.0, 0.0):
        yield Sample(map_tensors(functools.partial(scaled, factor), sample.inputs), sample.targets, sample.size)
    yield Sample(sample.inputs, map_tensors(turned, sample.targets), sample.size)
    if (cut := _cut_short(sample)) is not None:
        yield cut


def drawn_anew(sample: Sample) -> Sample:
    """The sample with inputs of the same shapes, drawn: what all records happen to share — zeros, ties, one order — is gone."""

    def drawn(tensor: Tensor) -> Tensor:
        if not tensor.dim() or tensor.shape[0] != sample.size or tensor.dtype == torch.bool or not tensor.numel():
            return tensor
        if tensor.is_floating_point():
            finite = torch.nan_to_num(tensor, nan=0.0, posinf=0.0, neginf=0.0)
            return torch.randn_like(tensor) * (float(finite.abs().mean()) or 1.0)
        low, high = int(tensor.min()), int(tensor.max())
        return tensor if (low, high) == (0, 1) else torch.randint_like(tensor, low, high + 1)

    return Sample(map_tensors(drawn, sample.inputs), sample.targets, sample.size)


def _cut_short(sample: Sample) -> Sample | None:
    """Every other record with a shorter mask, and targets left out where it is masked; None where nothing is a mask.

    A mask holds zeros and ones, or booleans, along a second axis.
    """
    cut = False

    def shorter(tensor: Tensor) -> Tensor:
        nonlocal cut
        if tensor.dim() != 2 or tensor.shape[0] != sample.size or tensor.shape[1] < 4 or tensor.is_floating_point():
            return tensor
        if not bool(((tensor == 0) | (tensor == 1)).all()) or not bool(tensor.any()):
            return tensor
        cut = True
        changed = tensor.clone()
        changed[1::2, tensor.shape[1] // 2 :] = 0
        changed[1::2, 0] = tensor[1::2, 0]
        return changed

    def left_out(tensor: Tensor) -> Tensor:
        whole = tensor.dim() == 2 and tensor.shape[0] == sample.size and tensor.shape[1] >= 4
        if not whole or tensor.is_floating_point() or tensor.dtype == torch.bool or not bool((tensor == -100).any()):
            return tensor
        changed = tensor.clone()
        changed[1::2, tensor.shape[1] // 2 :] = -100
        return changed

    inputs = map_tensors(shorter, sample.inputs)
    return Sample(inputs, map_tensors(left_out, sample.targets), sample.size) if cut else None


def _same(first: Sequence[Tensor], second: Sequence[Tensor]) -> bool:
    return all(a.shape == b.shape and torch.equal(a, b) for a, b in zip(first, second, strict=True))


class BackwardError(ValueError):
    """Autograd cannot go back through the model, whoever calls it: the message says what to change."""


def gradients(
    losses: Tensor, sources: Sequence[Tensor], weights: Tensor | None = None, keep: bool = False
) -> tuple[Tensor | None, ...]:
    """Gradients of Σ weights·losses, None where it does not depend on a source. BackwardError where autograd fails."""
    if not losses.requires_grad:
        raise BackwardError("The losses do not depend on any trainable parameter.")
    try:
        weights = torch.ones_like(losses) if weights is None else weights
        return torch.autograd.grad(losses, list(sources), weights, retain_graph=keep, allow_unused=True)
    except RuntimeError as error:
        if "inplace operation" in str(error):
            raise BackwardError(
                "The model overwrites, in place, a layer's input that the layer's gradient needs: replace the in-place "
                f"operation by one that makes a new tensor. PyTorch says: {error}"
            ) from error
        if "use_reentrant" in str(error):
            raise BackwardError("Expected torch.utils.checkpoint with use_reentrant=False.") from error
        raise


class Verifier:
    """The checks of one model. `losses_of(inputs, targets) -> (b,)` runs it."""

    def __init__(self, model: nn.Module, loss_fn: Any, losses_of: Callable[[Any, Any], Tensor], flat: FlatParameters) -> None:
        self._model = model
        self._roots = (model, loss_fn)  # both may keep what they see
        self._losses_of = losses_of
        self._flat = flat

    @contextlib.contextmanager
    def quiet(self) -> Iterator[None]:
        """Within the block: no dropout; the model's state and the random state are restored at the end."""
        rates = [(module, "p", module.p) for module in self._model.modules() if isinstance(module, DROPOUTS)]
        rates += [(module, "dropout", module.dropout) for module in self._model.modules() if isinstance(module, _WITH_DROPOUT)]
        kept = Snapshot(self._roots)
        device = self._flat.device
        with (
            kept_states(device),
            torch.backends.cudnn.flags(allow_tf32=False),
        ):
            if self._flat.sharded:  # what is drawn for a check is the same on all ranks
                seed_all(self._flat.agreed(fresh_seed()))
            for module, name, _ in rates:
                setattr(module, name, 0.0)
            try:
                yield
            finally:
                self._flat.rest()
                kept.restore()  # rates and modes too

    def check_records(self, sample: Sample) -> None:
        """ValueError where one record's loss depends on another, on its place, or on how many there are, or where the model keeps
        what it saw.

        Here, with parameters moved a little, and with records that are cut short, loud, silent, or have another target: gates
        that start at zero, and records that look alike, would hide it. Gradients are on, as in the run.
        """
        with torch.enable_grad():
            self._run(sample, list(range(sample.size)))  # what fails at once
            self._check_memory(sample)
            self._check_apart(sample)
            with self._moved():
                self._check_apart(sample)
                for odd in _odd(sample):
                    try:
                        self._run(odd, list(range(sample.size)))
                    except FAILURES:
                        continue  # such records may not be
                    self._check_odd(sample, odd)

    def _check_apart(self, sample: Sample) -> None:
        """In the model's modes; where it is random without dropout layers, with the same draws, and again in eval mode."""
        if not self.random(sample):
            self._check_exact(sample)
            return
        self._check_exchange(sample, self._run(sample, list(range(sample.size))))
        self._check_own_draws(sample)
        with self._in_eval_mode():
            self._check_exact(sample)

    def _check_exact(self, sample: Sample) -> None:
        losses = self._run(sample, list(range(sample.size)))
        self._check_exchange(sample, losses)
        self._check_numbers(sample, losses)

    @contextlib.contextmanager
    def _in_eval_mode(self) -> Iterator[None]:
        modes = [(module, module.training) for module in self._model.modules()]
        for module, _ in modes:
            module.training = False
        try:
            yield
        finally:
            for module, mode in modes:
                module.training = mode

    def random(self, sample: Sample) -> bool:
        """Whether losses hang on a seed, though dropout layers are off. ValueError where, by the same draws, a record's loss
        hangs on another record: a branch that a coin takes is looked into when it is taken. Seeds are fresh: known ones can
        miss it."""
        seed_all(self._flat.agreed(fresh_seed()))  # or a model that seeds may leave what was there
        before = global_states(self._flat.device)
        self._losses_of(sample.inputs, sample.targets)
        if before == global_states(self._flat.device):
            return False  # nothing was drawn
        few = list(range(min(_FEW, sample.size)))
        runs: list[Tensor] = []
        ahead: list[float] = []
        for number in range(_SEEDS):
            seed = self._flat.agreed(fresh_seed())
            runs.append(self._run(sample, few, seed))
            ahead.append(float(torch.rand(())))
            # another place each time: a loss that is saturated notices nothing
            place = number % len(few)
            exchanged = [sample.size - 1 if index == place else index for index in few]
            others = [index for index in few if index != place]
            if not self._close(runs[-1][others], self._run(sample, exchanged, seed)[others]):
                raise ValueError(_MIXES)
        if len(set(ahead)) == 1:
            raise ValueError(
                "The model seeds torch's generator while it runs: its masks are known, and a record's mask hangs on its place. "
                "Leave seeds to the trainer."
            )
        return not all(self._close(losses, runs[0]) for losses in runs)

    def _check_exchange(self, sample: Sample, losses: Tensor) -> None:
        step = max(1, sample.size // _EXCHANGED)
        for exchanged in range(0, sample.size, step):
            others = [index for index in range(sample.size) if index != exchanged]
            indices = [(exchanged + 1) % sample.size if index == exchanged else index for index in range(sample.size)]
            if not self._close(self._run(sample, indices)[others], losses[others]):
                raise ValueError(_MIXES)

    def _check_odd(self, sample: Sample, odd: Sample) -> None:
        """Records at even places are as they were: their losses too. And the odd sample is one like any other."""
        with self._in_eval_mode():
            everyone = list(range(sample.size))
            if odd.targets is not sample.targets:
                self._check_exact(odd)
            if not self._close(self._run(odd, everyone)[::2], self._run(sample, everyone)[::2]):
                raise ValueError(_MIXES)

    def _check_numbers(self, sample: Sample, losses: Tensor) -> None:
        everyone = list(range(sample.size))
        backwards, later, half = everyone[::-1], everyone[1:], everyone[: (sample.size + 1) // 2]
        if not self._close(self._run(sample, backwards), losses[backwards]):
            raise ValueError(
                "One record's loss depends on its place in the batch: look for positions counted along the records in place of "
                "time (batch_first), and for weights by place."
            )
        alone = self._run(sample, half[:1])  # the last physical batch may be one record
        fewer = [half, later] if later else [half]
        if not all(self._close(self._run(sample, some), losses[some]) for some in fewer) or not self._close(alone, losses[:1]):
            raise ValueError(
                "One record's loss depends on how many records there are: leave the division by the batch size to the trainer."
            )

    def _check_own_draws(self, sample: Sample) -> None:
        """One record, over and over: a mask of its own each time, or the masks of a batch depend on how it was cut."""
        same = [0] * _FEW
        losses = [self._run(sample, same, self._flat.agreed(fresh_seed())) for _ in range(_SEEDS)]
        shared = all(self._close(run, run[:1].expand_as(run)) for run in losses)
        if shared and not all(self._close(run, losses[0]) for run in losses):
            raise ValueError(
                "The model draws one mask for a whole batch: records that run together share it, and who runs with whom depends "
                "on the others. Draw a mask for each record (stochastic depth: mode='row')."
            )

    @torch.no_grad()
    def check_collated(self, sample: Sample, alone: Sequence[tuple[int, Any, Any]], moved: Sequence[float] = ()) -> None:
        """ValueError where a record's loss is another in a batch of its own than among those of the sample: (place, inputs,
        targets) of single records.

        Here, and with parameters moved by each of these shares of their own size: a layer that starts at zero hides what comes
        before it.
        """
        for module in self._model.modules():
            module.training = False
        self._compare_collated(sample, alone)
        for share in moved:
            seed_all(self._flat.agreed(fresh_seed()))
            with self._moved(share):
                self._compare_collated(sample, alone)

    def _compare_collated(self, sample: Sample, alone: Sequence[tuple[int, Any, Any]]) -> None:
        losses = self._run(sample, list(range(sample.size)))
        for place, inputs, targets in alone:
            torch.manual_seed(0)
            if not self._close(self._losses_of(inputs, targets).detach(), losses[place : place + 1]):
                raise ValueError(
                    "One record's loss depends on the records that it is collated with: padding must be masked, in the model and "
                    "in the loss, and collate_fn must not mix records. Or pad all records to one length."
                )

    def _run(self, sample: Sample, indices: Sequence[int], seed: int = 0) -> Tensor:
        """From one state and one seed: what changes by being called alone, as power iterations do, must change no loss."""
        kept = Snapshot(self._roots, without=self._model.parameters(), light=True)
        seed_all(seed)
        try:
            return self._losses_of(*sample.take(indices)).detach()
        finally:
            self._flat.rest()
            kept.restore()

    def _close(self, first: Tensor, second: Tensor) -> bool:
        tolerance = 1e-4 if first.dtype == torch.float32 else 1e-9
        return torch.allclose(first, second, rtol=tolerance, atol=tolerance, equal_nan=True)

    def _check_memory(self, sample: Sample) -> None:
        """Whatever hangs on the modules and the loss must be the same after a run on some records as after one on others."""
        half = sample.size // 2
        if not half:
            return
        before = Snapshot(self._roots)
        after: list[Snapshot] = []
        for part in (range(half), range(half, 2 * half)):
            losses = self._losses_of(*sample.take(list(part)))
            with contextlib.suppress(ValueError, RuntimeError):  # hooks on the way back keep things too; failures show later
                self._slope(losses)
            after.append(Snapshot(self._roots))
            before.restore()
        if paths := after[0].apart(after[1]):
            raise ValueError(
                f"The model keeps what it saw of the records in {', '.join(paths[:3])}, which leaves the run without noise: "
                "running statistics and caches of activations must go."
            )

    def mismatch(self, sample: Sample, evaluate: Callable[[Any, Any], Any], tolerance: float | None = None) -> str | None:
        """Compare a pass with autograd, at parameters moved a little so that none is zero: what is wrong, or None."""
        inputs, targets = sample.inputs, sample.targets
        kept = Snapshot(self._roots, without=self._model.parameters(), light=True)
        with self._moved(), torch.enable_grad():
            weights = torch.rand(sample.size, device=self._flat.device) + 0.5
            weights[1::2] *= -1
            with torch.backends.cudnn.flags(enabled=False):
                torch.manual_seed(0)
                plain = self._losses_of(inputs, targets)
                weights = weights.to(plain.dtype)
                whole = self._slope(plain, weights, keep=True)
                alone = [self._own(plain, index) for index in range(0, sample.size, max(1, sample.size // _ALONE))]
            kept.restore()  # the same start for both
            torch.manual_seed(0)
            mine = evaluate(inputs, targets)
            kept.restore()
        tolerance = tolerance or (1e-3 if plain.dtype == torch.float32 else 1e-8)
        if not torch.allclose(mine.losses, plain.detach(), rtol=tolerance, atol=tolerance, equal_nan=True):
            return "The model's losses change when its layers are tapped."
        if not self._finite(whole):
            rest = self.finite(sample)
            return self.mismatch(rest, evaluate, tolerance) if rest.size < sample.size else None
        size = mine.norms.norm()
        apart = mine.weighted_sum(weights) - whole * self._flat.summands
        wrong = bool(self._flat.length(apart) > tolerance * size * self._flat.summands + 1e-9)
        for index, norm in alone:
            # longer ones are sound: they hold what sums may add in rounding
            wrong = wrong or bool(norm - mine.norms[index] > tolerance * (norm + 1e-3 * size) + 1e-9)
        if wrong:
            return "Per-example gradients do not agree with autograd's: some layer mixes, reorders or drops records."
        return None

    def finite(self, sample: Sample) -> Sample:
        """The records whose loss and gradient, each by itself, are finite: what is not says nothing of the others. All, where
        none is."""
        if self.is_finite(sample):
            return sample
        usable = [index for index in range(sample.size) if self.is_finite(Sample(*sample.take([index]), 1))]
        return sample if not usable else Sample(*sample.take(usable), len(usable))

    @torch.enable_grad()
    def is_finite(self, sample: Sample) -> bool:
        """Whether losses and the gradient of their sum are."""
        losses = self._losses_of(sample.inputs, sample.targets)
        if not losses.requires_grad or not bool(torch.isfinite(losses).all()):
            return bool(torch.isfinite(losses).all())
        return self._finite(self._slope(losses))

    def anew(self, sample: Sample) -> Sample | None:
        """`drawn_anew`, where the model takes such records."""
        drawn = drawn_anew(sample)
        try:
            return self.finite(drawn) if bool(torch.isfinite(self._losses_of(drawn.inputs, drawn.targets)).any()) else None
        except FAILURES:
            return None

    def _own(self, losses: Tensor, index: int) -> tuple[int, Tensor]:
        only = torch.zeros_like(losses)
        only[index] = 1.0
        return index, self._flat.length(self._slope(losses, only, keep=True))

    def _finite(self, vector: Tensor) -> bool:
        return self._flat.everywhere(bool(torch.isfinite(vector).all()))

    def _slope(self, losses: Tensor, weights: Tensor | None = None, keep: bool = False) -> Tensor:
        """(p,) autograd's gradient of Σ weights·losses."""
        flat, parts = self._flat, dict[int, Tensor]()
        blocks = flat.blocks()
        for place, block in enumerate(blocks):
            found = gradients(losses, [flat.leaves[number] for number in block], weights, keep or place < len(blocks) - 1)
            for number, gradient in zip(block, found, strict=True):
                whole = torch.zeros_like(flat.leaves[number]) if gradient is None else gradient
                parts[number] = flat.own(number, whole.to_dense() if whole.is_sparse else whole).flatten()
        return torch.cat([parts[number] for number in range(len(parts))])

    @contextlib.contextmanager
    def _moved(self, share: float = 0.1) -> Iterator[None]:
        """Within the block the trainable parameters are elsewhere by a share of their size: layers that start at zero would hide
        errors. Rows of embeddings that no step moves, those of padding, stay."""
        stored = self._flat.stored()
        kept = [parameter.clone() for parameter in stored]
        try:
            with torch.no_grad(), kept_states(self._flat.device):  # ranks that hold more numbers draw more
                for number, (parameter, before) in enumerate(zip(stored, kept, strict=True)):
                    size = float(before.square().sum().sqrt()) / max(1, before.numel()) ** 0.5 or 0.1
                    parameter.add_(torch.randn_like(before), alpha=share * size)
                    if number in self._flat.padding:
                        rows = self._flat.padding[number]
                        parameter[rows] = before[rows]
            yield
        finally:
            with torch.no_grad():
                for parameter, before in zip(stored, kept, strict=True):
                    parameter.copy_(before)
