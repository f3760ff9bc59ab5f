"""A model's trainable parameters as one flat vector, with the parameters as views of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dperm.torch.ranks import Ranks
from dperm.torch.tensors.nested import on_device


class FlatParameters:
    """Trainable parameters in `named_parameters()` order, tied ones once; those of the loss, where it is a module, come last.

    `group_of` and `group_index` say to which module each belongs, `groups` how the modules are called. The vector is in
    row-major order; `formats` remembers the parameters that came with their channels last, for layers to run so. `padding` marks
    the rows of embeddings at their `padding_idx`, which have no gradient: by number of the parameter, (rows,) of what is here.
    TypeError or ValueError where there are none, or where they differ in type or device.

    What is here is all there is; `ShardedParameters` holds a part of each parameter, and the rest is on other ranks.
    """

    sharded = False
    summands = 1  # ranks whose sums are added where one is `filled`

    def __init__(self, model: nn.Module, loss: nn.Module | None = None) -> None:
        self._model, self._loss = model, loss
        self._buffer: Tensor | None = None
        self.formats: dict[nn.Parameter, torch.memory_format] = {}
        self._read()

    def _read(self) -> None:
        named = list(self._trained())
        if not named:
            raise ValueError("Expected a model with trainable parameters, got none: set requires_grad.")
        self.names = [name for name, _ in named]
        self.parameters = [parameter for _, parameter in named]
        _same("device", {str(parameter.device): name for name, parameter in named}, "move the model to one device")
        _same("type", {str(parameter.dtype): name for name, parameter in named}, "convert it with model.to(dtype)")
        self.dtype, self.device = self.parameters[0].dtype, self.parameters[0].device
        if self.dtype not in (torch.float32, torch.float64):
            raise TypeError(
                f"Expected parameters of float32 or float64, got {self.dtype}: noise and sums need that precision; narrow "
                "the forward pass with autocast instead."
            )
        owners = [name.rpartition(".")[0] or "model" for name in self.names]
        self.groups = tuple(dict.fromkeys(owners))
        self.group_index = [self.groups.index(owner) for owner in owners]
        self.formats = {parameter: self.formats[parameter] for parameter in self.parameters if parameter in self.formats}
        self.leaves = self.parameters  # what layers run with, and graphs end in
        self.shapes = [parameter.shape for parameter in self.parameters]
        self._settle()
        self.padding = {
            number: self.own(number, torch.arange(self.parameters[number].shape[0], device=self.device) == row)
            for number, row in _padding_rows([self._model, self._loss], self.parameters)
        }

    def _trained(self) -> Iterator[tuple[str, nn.Parameter]]:
        """The names and parameters that are trainable now."""
        seen = set[nn.Parameter]()
        for prefix, module in (("", self._model), ("loss_fn.", self._loss)):
            for name, parameter in module.named_parameters() if module is not None else ():
                if parameter.requires_grad and parameter not in seen:
                    seen.add(parameter)
                    yield prefix + name, parameter

    def _of_loss(self) -> list[Tensor]:
        """The numbers of the parameters that the loss alone holds, which no state of the model has."""
        in_model = set(self._model.parameters())
        return [parameter.detach() for parameter in self.parameters if parameter not in in_model]

    def _settle(self) -> None:
        self.group_of = dict(zip(self.leaves, self.group_index, strict=True))
        self.size = sum(shape.numel() for shape in self.shapes)

    @property
    def whole(self) -> int:
        """How many numbers are trained, here and elsewhere."""
        return self.size

    def check(self) -> None:
        """Follow the model to another device or type, or another choice of trainable parameters."""
        now = [parameter for _, parameter in self._trained()]
        same = len(now) == len(self.parameters) and all(a is b for a, b in zip(now, self.parameters, strict=True))
        if not same or (self.parameters[0].dtype, self.parameters[0].device) != (self.dtype, self.device):
            self._buffer = None
            self._read()

    @property
    def buffer(self) -> Tensor:
        """(p,) the parameters' storage. Made on first use; made again when the model replaced its parameters' storage."""
        self.check()
        if self._buffer is None or not self._attached(self._buffer):
            for parameter in self.parameters:  # before they are laid out anew
                if (memory_format := _channels_last(parameter)) is not None:
                    self.formats[parameter] = memory_format
            buffer = torch.empty(self.size, dtype=self.dtype, device=self.device)
            for parameter, part in zip(self.parameters, self.parts(buffer), strict=True):
                part.copy_(parameter.detach())
                parameter.data = part
            self._buffer = buffer
        return self._buffer

    def _attached(self, buffer: Tensor) -> bool:
        place, each = buffer.data_ptr(), buffer.element_size()
        for parameter, shape in zip(self.parameters, self.shapes, strict=True):
            numbers = shape.numel()
            if numbers and (parameter.data_ptr() != place or not parameter.is_contiguous()):  # without numbers, it is nowhere
                return False
            place += numbers * each
        return True

    def parts(self, flat: Tensor) -> Iterator[Tensor]:
        """Views of a flat vector (p,) in the parameters' shapes."""
        start = 0
        for shape in self.shapes:
            yield flat[start : start + shape.numel()].view(shape)
            start += shape.numel()

    def moved(self, before: Sequence[nn.Parameter], vector: Tensor, new: Tensor) -> Tensor:
        """A vector (p,) of the parameters `before` as one (q,) of those that are trained now, with the numbers of `new` (q,) for
        parameters that were not among them."""
        held = dict(zip(before, vector.split([parameter.numel() for parameter in before]), strict=True))
        parts = zip(self.parameters, self.parts(new), strict=True)
        return torch.cat([held.get(parameter, part).flatten() for parameter, part in parts])

    def rest(self) -> None:
        """After a pass, also one that failed on its way: parameters lie where they did."""

    def put(self, theta: Tensor) -> None:
        """Leave the model at θ (p,)."""
        buffer = self.buffer
        if theta is not buffer:
            buffer.copy_(theta)

    def without_padding(self, gradient: Tensor) -> Tensor:
        """The gradient (p,) with zeros, set in place, where embeddings have their `padding_idx`. No record has a gradient there,
        so that only noise is left out: an optimiser moves these rows no more than it does without privacy."""
        if self.padding:
            for number, part in enumerate(self.parts(gradient)):
                if number in self.padding:
                    part[self.padding[number]] = 0.0
        return gradient

    def assign(self, gradient: Tensor) -> None:
        """Views of a flat gradient (p,) as the parameters' `.grad`."""
        for parameter, part in zip(self.parameters, self.parts(gradient), strict=True):
            parameter.grad = part

    def stored(self) -> list[Tensor]:
        """What this process holds of each parameter, to be read or changed in place."""
        return [parameter.detach() for parameter in self.parameters]

    # Checkpoints

    def contents(self, model: nn.Module, optimizer: torch.optim.Optimizer | None, update: Any) -> dict[str, Any]:
        """What rank 0 writes of the model, the optimiser and the update's state."""
        held = None if optimizer is None else optimizer.state_dict()
        return {
            "trained": self.names, "model": model.state_dict(), "loss": self._of_loss(), "optimizer": held, "update": update,
        }  # fmt: skip

    def save(
        self,
        folder: Path,
        optimizer: torch.optim.Optimizer | None,
        update: Any,
        ranks: Ranks,
        write: Callable[[Path | None], None],
    ) -> None:
        """Make a checkpoint in `folder`, by all ranks: rank 0 calls `write`, with the folder of what others wrote of it."""
        if ranks.rank == 0:
            write(None)

    def restore(self, saved: dict[str, Any], parts: Path, model: nn.Module, optimizer: torch.optim.Optimizer | None) -> Any:
        """Put back what a checkpoint has of the model and the optimiser; returns the update's state. `parts` is the folder
        that all ranks wrote to, where parameters are sharded."""
        if changed := set(self.names) ^ set(saved.get("trained", self.names)):
            raise ValueError(
                f"The checkpoint was made when other parameters were trained ({', '.join(sorted(changed)[:5])}): freeze, "
                "unfreeze, add and remove the same ones before the run goes on."
            )
        model.load_state_dict(saved["model"])
        for parameter, then in zip(self._of_loss(), saved.get("loss", []), strict=True):
            parameter.copy_(then)
        if optimizer is not None:
            optimizer.load_state_dict(saved["optimizer"])
        return on_device(saved["update"], self.device)

    # Sums and comparisons, which are of all ranks where parameters are sharded

    def filled(self, fills: Iterable[Callable[[Tensor], None] | None], device: torch.device) -> Tensor:
        """(p,) what each of these adds to its parameter's part of a vector of zeros."""
        out = torch.zeros(self.size, dtype=self.dtype, device=device)
        for fill, part in zip(fills, list(self.parts(out)), strict=True):
            if fill is not None:
                fill(part)
        return out

    def blocks(self) -> list[list[int]]:
        """Numbers of the parameters whose gradients may be held together."""
        return [list(range(len(self.parameters)))]

    def own(self, number: int, gradient: Tensor) -> Tensor:
        """Of a parameter's whole gradient, what belongs here."""
        return gradient

    def length(self, vector: Tensor) -> Tensor:
        """The Euclidean length of a vector (p,)."""
        return vector.norm()

    def agreed(self, seed: int) -> int:
        """The same seed on every rank."""
        return seed

    def everywhere(self, holds: bool) -> bool:
        """Whether it holds on every rank that has a part."""
        return holds


def _padding_rows(roots: Sequence[nn.Module | None], parameters: list[nn.Parameter]) -> list[tuple[int, int]]:
    """Numbers of the parameters that are tables of embeddings with a `padding_idx`, and that row.

    A table that another layer holds too, such as an output layer tied to it, is trained in all its rows, as without privacy.
    """
    held: dict[nn.Parameter, set[int | None]] = {}
    for module in {module for root in roots if root is not None for module in root.modules()}:
        for parameter in module.parameters(recurse=False):
            row = None
            if isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and parameter is module.weight:
                row = module.padding_idx
            held.setdefault(parameter, set()).add(row)
    rows = [(number, held.get(parameter, {None})) for number, parameter in enumerate(parameters)]
    return [(number, row) for number, paddings in rows for row in paddings if row is not None and len(paddings) == 1]


def _channels_last(parameter: Tensor) -> torch.memory_format | None:
    """The format of `model.to(memory_format=...)`, told by strides: is_contiguous is true of both where there is one channel."""
    memory_format = {4: torch.channels_last, 5: torch.channels_last_3d}.get(parameter.dim())
    if memory_format is None:
        return None
    rows = torch.empty(parameter.shape, device="meta")
    return memory_format if parameter.stride() == rows.to(memory_format=memory_format).stride() != rows.stride() else None


def _same(what: str, kinds: dict[str, str], advice: str) -> None:
    if len(kinds) > 1:
        listed = ", ".join(f"{name} is {kind}" for kind, name in kinds.items())
        raise ValueError(f"Expected trainable parameters of one {what}, got several ({listed}): {advice}.")
