"""Before a model is trusted: whether it treats each record by itself, and whether what its layers are found to contribute
is what autograd says.

Everything runs on a few records, with dropout off, and leaves parameters, buffers and random state as they were.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from dperm.torch.flat import FlatParameters
from dperm.torch.structure import take, tensors

__all__ = ["Sample", "UsedElsewhereError", "Verifier", "gradients"]

_EXCHANGED = 4  # records that are exchanged, one at a time, to see whether others notice
_ALONE = 3  # records whose own gradient is compared
DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)
_WITH_DROPOUT = (nn.MultiheadAttention, nn.LSTM, nn.GRU, nn.RNN)


class UsedElsewhereError(ValueError):
    """A parameter reaches the loss around its module's tap."""


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


def _same(first: Sequence[Tensor], second: Sequence[Tensor]) -> bool:
    return all(a.shape == b.shape and torch.equal(a, b) for a, b in zip(first, second, strict=True))


def gradients(
    losses: Tensor, sources: Sequence[Tensor], weights: Tensor | None = None, keep: bool = False
) -> tuple[Tensor | None, ...]:
    """Gradients of Σ weights·losses, None where it does not depend on a source. ValueError, with advice, where autograd fails."""
    if not losses.requires_grad:
        raise ValueError("The losses do not depend on any trainable parameter.")
    try:
        weights = torch.ones_like(losses) if weights is None else weights
        return torch.autograd.grad(losses, list(sources), weights, retain_graph=keep, allow_unused=True)
    except RuntimeError as error:
        if "inplace operation" in str(error):
            raise ValueError(
                "The model overwrites, in place, a layer's input that the layer's gradient needs: replace the in-place "
                f"operation by one that makes a new tensor. PyTorch says: {error}"
            ) from error
        if "use_reentrant" in str(error):
            raise ValueError("Expected torch.utils.checkpoint with use_reentrant=False.") from error
        raise


class Verifier:
    """The checks of one model. `losses_of(inputs, targets) -> (b,)` runs it."""

    def __init__(self, model: nn.Module, losses_of: Callable[[Any, Any], Tensor], flat: FlatParameters) -> None:
        self._model = model
        self._losses_of = losses_of
        self._flat = flat

    @contextlib.contextmanager
    def quiet(self) -> Iterator[None]:
        """Within the block: no dropout; buffers and random state are restored at the end."""
        rates = [(module, "p", module.p) for module in self._model.modules() if isinstance(module, DROPOUTS)]
        rates += [(module, "dropout", module.dropout) for module in self._model.modules() if isinstance(module, _WITH_DROPOUT)]
        modes = [(module, module.training) for module in self._model.modules()]
        kept = [(buffer, buffer.clone()) for buffer in self._model.buffers()]
        device = self._flat.device
        kind = "cuda" if device.type == "cuda" else "cpu"
        with (
            torch.random.fork_rng([device.index or 0] if kind == "cuda" else [], device_type=kind),
            torch.backends.cudnn.flags(allow_tf32=False),
        ):
            for module, name, _ in rates:
                setattr(module, name, 0.0)
            try:
                yield
            finally:
                for module, name, rate in rates:
                    setattr(module, name, rate)
                for module, mode in modes:
                    module.training = mode
                with torch.no_grad():
                    for buffer, value in kept:
                        buffer.copy_(value)

    @torch.no_grad()
    def check_records(self, sample: Sample) -> None:
        """ValueError where one record's loss depends on another, or on how many there are, or where the model keeps what it
        saw. A model that is random without dropout layers is checked in eval mode."""
        everyone = list(range(sample.size))
        losses = self._run(sample, everyone)
        if not self._close(losses, self._run(sample, everyone, seed=1)):
            for module in self._model.modules():
                module.training = False
            losses = self._run(sample, everyone)
        self._check_memory(sample)
        step = max(1, sample.size // _EXCHANGED)
        for exchanged in range(0, sample.size, step):
            others = [index for index in everyone if index != exchanged]
            indices = [(exchanged + 1) % sample.size if index == exchanged else index for index in everyone]
            if not self._close(self._run(sample, indices)[others], losses[others]):
                raise ValueError(
                    "One record's loss depends on another record: a layer or the loss mixes the records of a batch, and such "
                    "a model has no per-example gradients. Look for normalisation over the batch and losses that compare records."
                )
        half = everyone[: (sample.size + 1) // 2]
        alone = self._run(sample, half[:1])  # the last physical batch may be one record
        if not self._close(self._run(sample, half), losses[half]) or not self._close(alone, losses[:1]):
            raise ValueError(
                "One record's loss depends on how many records there are: leave the division by the batch size to the trainer."
            )

    def _run(self, sample: Sample, indices: Sequence[int], seed: int = 0) -> Tensor:
        torch.manual_seed(seed)
        return self._losses_of(*sample.take(indices)).detach()

    def _close(self, first: Tensor, second: Tensor) -> bool:
        tolerance = 1e-4 if first.dtype == torch.float32 else 1e-9
        return torch.allclose(first, second, rtol=tolerance, atol=tolerance, equal_nan=True)

    def _check_memory(self, sample: Sample) -> None:
        """Buffers and tensor attributes after a run on some records and after a run on others must be the same."""
        half = sample.size // 2
        if not half:
            return
        found: list[dict[str, Tensor]] = []
        for part in (range(half), range(half, 2 * half)):
            kept = [(buffer, buffer.clone()) for buffer in self._model.buffers()]
            self._run(sample, list(part))
            found.append(self._state())
            for buffer, value in kept:
                buffer.copy_(value)
        for name, value in found[0].items():
            other = found[1].get(name)
            if other is None or other.shape != value.shape or not torch.equal(other, value):
                raise ValueError(
                    f"The model keeps what it saw of the records in {name}, which leaves the run without noise: running "
                    "statistics and caches of activations must go."
                )

    def _state(self) -> dict[str, Tensor]:
        state = {name: buffer.clone() for name, buffer in self._model.named_buffers()}
        for prefix, module in self._model.named_modules():
            state |= {f"{prefix}.{name}": value.clone() for name, value in vars(module).items() if isinstance(value, Tensor)}
        return state

    def mismatch(self, sample: Sample, evaluate: Callable[[Any, Any], Any]) -> str | None:
        """Compare a pass with autograd, at parameters moved a little so that none is zero: what is wrong, or None."""
        inputs, targets = sample.inputs, sample.targets
        with self._moved(), torch.enable_grad():
            weights = torch.rand(sample.size, device=self._flat.device) + 0.5
            weights[1::2] *= -1
            with torch.backends.cudnn.flags(enabled=False):
                torch.manual_seed(0)
                plain = self._losses_of(inputs, targets)
                weights = weights.to(plain.dtype)
                whole = self._flattened(gradients(plain, self._flat.parameters, weights, keep=True))
                alone = [self._own(plain, index) for index in range(0, sample.size, max(1, sample.size // _ALONE))]
            torch.manual_seed(0)
            mine = evaluate(inputs, targets)
        tolerance = 1e-3 if plain.dtype == torch.float32 else 1e-8
        if not torch.allclose(mine.losses, plain.detach(), rtol=tolerance, atol=tolerance, equal_nan=True):
            return "The model's losses change when its layers are tapped."
        if not bool(torch.isfinite(whole).all()):
            return None
        size = mine.norms.norm()
        wrong = bool((mine.weighted_sum(weights) - whole).norm() > tolerance * size + 1e-9)
        for index, norm in alone:
            wrong = wrong or bool((mine.norms[index] - norm).abs() > tolerance * (norm + 1e-3 * size) + 1e-9)
        if wrong:
            return "Per-example gradients do not agree with autograd's: some layer mixes, reorders or drops records."
        return None

    def _own(self, losses: Tensor, index: int) -> tuple[int, Tensor]:
        only = torch.zeros_like(losses)
        only[index] = 1.0
        return index, self._flattened(gradients(losses, self._flat.parameters, only, keep=True)).norm()

    def _flattened(self, found: Sequence[Tensor | None]) -> Tensor:
        parameters = self._flat.parameters
        filled = [torch.zeros_like(p) if gradient is None else gradient for p, gradient in zip(parameters, found, strict=True)]
        return torch.cat([gradient.flatten() for gradient in filled])

    @contextlib.contextmanager
    def _moved(self) -> Iterator[None]:
        """Within the block the trainable parameters are a little elsewhere: layers that start at zero would hide errors."""
        kept = [parameter.detach().clone() for parameter in self._flat.parameters]
        try:
            with torch.no_grad():
                for parameter, before in zip(self._flat.parameters, kept, strict=True):
                    size = float(before.square().mean().sqrt()) or 0.1
                    parameter.add_(torch.randn_like(before), alpha=0.1 * size)
            yield
        finally:
            with torch.no_grad():
                for parameter, before in zip(self._flat.parameters, kept, strict=True):
                    parameter.copy_(before)
