"""Parameters of which each rank holds a part: a model given to FSDP2's `fully_shard`."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.checkpoint.state_dict_loader import load as load_parts
from torch.distributed.checkpoint.state_dict_saver import save as save_parts
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Shard

from dperm.torch.parameters.flat_parameters import FlatParameters
from dperm.torch.ranks import Ranks
from dperm.torch.tensors.nested import local, map_tensors, tensors, with_tensors

_TOGETHER = 1 << 22  # numbers of sums that are exchanged at once: fewer would wait for the network each time


class ShardedParameters(FlatParameters):
    """Rows of each trainable parameter, as `fully_shard` spread them over all ranks.

    While a layer runs, its parameters are whole, in tensors of FSDP's that are `leaves` here; between passes only this rank's
    rows are in memory. Vectors (p,) are of these rows, and `buffer` is a copy of them: `put` writes it back. All ranks run the
    same passes, for FSDP gathers parameters in each. ValueError where parameters are spread in another way.
    """

    sharded = True

    def __init__(self, model: nn.Module, loss: nn.Module | None = None) -> None:
        self._blocks = [module for module in model.modules() if isinstance(module, FSDPModule)]
        for module in self._blocks:
            module.set_reshard_after_forward(True, recurse=False)  # the outermost, too: no pass leaves parameters in memory
        self.rest()  # nor one before this
        super().__init__(model, loss)

    def _settle(self) -> None:
        if loose := [name for name, p in zip(self.names, self.parameters, strict=True) if not isinstance(p, DTensor)]:
            raise ValueError(
                f"Expected all trainable parameters sharded, or none, but {loose[0]} is not: fully_shard(model), too."
            )
        spread = {name: f"{tuple(p.shape)}, {p.dtype}" for name, p in zip(self.names, self.parameters, strict=True)}
        self._ranks = Ranks.here()
        self._ranks.same(spread)  # or gathering them would wait for ever
        self._mesh = cast(DTensor, self.parameters[0]).device_mesh
        self.summands, self._place = self._mesh.size(), self._mesh.get_local_rank() if self._mesh.ndim == 1 else 0
        for name, parameter in zip(self.names, self.parameters, strict=True):
            self._admit(name, cast(DTensor, parameter))
        self.leaves = self._gathered()
        self.group_of = dict(zip(self.leaves, self.group_index, strict=True))
        self.wholes = [parameter.shape for parameter in self.parameters]
        self.shapes = [local(parameter).shape for parameter in self.parameters]
        self.size = sum(shape.numel() for shape in self.shapes)
        self._latest: Tensor | None = None

    def _admit(self, name: str, parameter: DTensor) -> None:
        everyone = dist.get_world_size()
        if parameter.device_mesh != self._mesh or self._mesh.ndim != 1 or self._mesh.size() != everyone:
            raise ValueError(f"Expected {name} sharded over all {everyone} ranks by one mesh, got {parameter.device_mesh}.")
        if tuple(parameter.placements) != (Shard(0),):
            raise ValueError(f"Expected {name} sharded along its first axis, as fully_shard does, got {parameter.placements}.")
        start, stop = self._rows(parameter.shape)
        if parameter.to_local().shape[0] != stop - start:
            raise ValueError(f"Expected {stop - start} of {name}'s rows on rank {self._place}, got {len(parameter.to_local())}.")

    def _rows(self, shape: torch.Size) -> tuple[int, int]:
        each = -(-shape[0] // self.summands)
        return min(self._place * each, shape[0]), min((self._place + 1) * each, shape[0])

    def _gathered(self) -> list[nn.Parameter]:
        """The tensors that layers see while they run: the same objects in every pass."""
        for module in self._blocks:
            module.unshard()
        there = dict(self._model.named_parameters())
        leaves = [there[name] for name in self.names]
        self.rest()
        for name, leaf, parameter in zip(self.names, leaves, self.parameters, strict=True):
            if isinstance(leaf, DTensor):
                raise ValueError(f"Expected {name} in a module that was given to fully_shard: nothing gathers it.")
            if (leaf.dtype, leaf.device) != (parameter.dtype, parameter.device):
                raise ValueError(
                    f"Expected {name} in {parameter.dtype} on {parameter.device} where it is gathered, got {leaf.dtype} on "
                    f"{leaf.device}: leave mp_policy and offload_policy out, and use autocast."
                )
        return leaves

    @property
    def whole(self) -> int:
        return sum(shape.numel() for shape in self.wholes)

    @property
    def buffer(self) -> Tensor:
        """(p,) a copy of the rows that are here, as they are now."""
        self.check()
        self._latest = torch.cat([part.flatten() for part in self.stored()])
        return self._latest

    def rest(self) -> None:
        for module in self._blocks:
            module.reshard()

    def put(self, theta: Tensor) -> None:
        if theta is self._latest:
            return
        with torch.no_grad():
            for held, part in zip(self.stored(), self.parts(theta), strict=True):
                held.copy_(part)

    def assign(self, gradient: Tensor) -> None:
        for parameter, part in zip(self.parameters, self.parts(gradient), strict=True):
            parameter.grad = self._distributed(parameter, part)

    def stored(self) -> list[Tensor]:
        return [local(parameter.detach()) for parameter in self.parameters]

    def filled(self, fills: Iterable[Callable[[Tensor], None] | None], device: torch.device) -> Tensor:
        """(p,) this rank's rows of what all ranks' functions add, in double precision. A few parameters are whole at a time."""
        rows: list[Tensor] = []
        waiting: list[tuple[Callable[[Tensor], None] | None, torch.Size]] = []
        for fill, shape in zip(fills, self.wholes, strict=True):
            if waiting and sum(other.numel() for _, other in waiting) + shape.numel() > _TOGETHER:
                rows += self._summed(waiting, device)
                waiting = []
            waiting.append((fill, shape))
        return torch.cat([*rows, *self._summed(waiting, device)])

    def _summed(self, fills: Sequence[tuple[Callable[[Tensor], None] | None, torch.Size]], device: torch.device) -> list[Tensor]:
        """This rank's rows of each of these sums, by one exchange: row i of the table is what rank i gets."""
        widths = [-(-shape[0] // self.summands) * shape[1:].numel() for _, shape in fills]
        table = torch.zeros(self.summands, sum(widths), dtype=torch.float64, device=device)
        for (fill, shape), columns in zip(fills, table.split(widths, dim=1), strict=True):
            if fill is not None:
                part = torch.zeros(shape, dtype=self.dtype, device=device)
                fill(part)
                padded = torch.zeros(columns.numel(), dtype=torch.float64, device=device)
                padded[: part.numel()] = part.flatten()
                columns.copy_(padded.view(columns.shape))
        own = torch.empty(table.shape[1], dtype=torch.float64, device=device)
        dist.reduce_scatter_tensor(own, table.view(-1), group=self._mesh.get_group())
        kept = [(self._rows(shape)[1] - self._rows(shape)[0]) * shape[1:].numel() for _, shape in fills]
        return [part[:count].to(self.dtype) for part, count in zip(own.split(widths), kept, strict=True)]

    def blocks(self) -> list[list[int]]:
        where = {name: number for number, name in enumerate(self.names)}
        found: list[list[int]] = []
        left = set(where.values())
        for name, module in reversed(list(self._model.named_modules())):
            if isinstance(module, FSDPModule):
                prefix = f"{name}." if name else ""
                block = [number for inner, number in where.items() if inner.startswith(prefix) and number in left]
                left -= set(block)
                found += [block] if block else []
        return found

    def own(self, number: int, gradient: Tensor) -> Tensor:
        start, stop = self._rows(self.wholes[number])
        return gradient[start:stop].clone()

    def length(self, vector: Tensor) -> Tensor:
        square = vector.double().square().sum()
        dist.all_reduce(square, group=self._mesh.get_group())
        return square.sqrt()

    def agreed(self, seed: int) -> int:
        return self._ranks.first(lambda: seed)

    def everywhere(self, holds: bool) -> bool:
        return all(self._ranks.gathered(holds))

    # The whole vector, as one process would have it

    def spread(self, rows: Tensor) -> Tensor:
        """(whole,) these rows (p,) at their places, and zeros."""
        whole = torch.zeros(self.whole, dtype=rows.dtype, device=rows.device)
        for place, part in zip(self._places(), self.parts(rows), strict=True):
            whole[place] = part.flatten()
        return whole

    def gathered(self, whole: Tensor) -> Tensor:
        """(p,) this rank's rows of a vector (whole,)."""
        return torch.cat([whole[place] for place in self._places()])

    def _places(self) -> Iterable[slice]:
        first = 0
        for shape in self.wholes:
            start, stop = self._rows(shape)
            row = shape[1:].numel()
            yield slice(first + start * row, first + stop * row)
            first += shape.numel()

    # Checkpoints: each rank writes its part, and any number of ranks reads them

    def contents(self, model: nn.Module, optimizer: torch.optim.Optimizer | None, update: Any) -> dict[str, Any]:
        known = None
        if optimizer is not None:
            held = optimizer.state_dict()
            known = {"begun": bool(held["state"]), "param_groups": held["param_groups"]}
        return {"model": None, "optimizer": known, "update": map_tensors(lambda vector: vector.new_zeros(0), update)}

    def save(
        self,
        folder: Path,
        optimizer: torch.optim.Optimizer | None,
        update: Any,
        ranks: Ranks,
        write: Callable[[Path | None], None],
    ) -> None:
        parts = folder / ".parts"
        ranks.first(lambda: _emptied(parts))
        ranks.together(lambda: _seen(parts))
        save_parts(self._state(_begun(optimizer), tensors(update)), checkpoint_id=parts)
        ranks.first(lambda: write(parts))

    def restore(self, saved: dict[str, Any], parts: Path, model: nn.Module, optimizer: torch.optim.Optimizer | None) -> Any:
        """ValueError where the checkpoint has no parts."""
        if not parts.is_dir():
            raise ValueError(f"Expected what each rank had of sharded parameters in {parts}, which is not there.")
        begun = optimizer is not None and saved["optimizer"]["begun"]
        like = [torch.zeros(self.size, dtype=self.dtype, device=self.device) for _ in tensors(saved["update"])]
        state = self._state(optimizer if begun else None, like)
        load_parts(state, checkpoint_id=parts)
        set_model_state_dict(self._model, state["model"])
        if optimizer is not None:
            if begun:
                set_optimizer_state_dict(self._model, optimizer, state["optimizer"])
            for group, then in zip(optimizer.param_groups, saved["optimizer"]["param_groups"], strict=True):
                group.update({name: value for name, value in then.items() if name != "params"})
        rows = [[local(state["vectors"][f"{number}.{name}"]).flatten() for name in self.names] for number in range(len(like))]
        return with_tensors(saved["update"], map(torch.cat, rows))

    def _state(self, optimizer: torch.optim.Optimizer | None, vectors: Sequence[Tensor]) -> dict[str, Any]:
        """`optimizer` has taken a step: one that has not would be given one, of zeros."""
        return {
            "model": get_model_state_dict(self._model),
            "optimizer": {} if optimizer is None else get_optimizer_state_dict(self._model, optimizer),
            "vectors": {
                f"{number}.{name}": self._distributed(parameter, part)
                for number, vector in enumerate(vectors)
                for name, parameter, part in zip(self.names, self.parameters, self.parts(vector), strict=True)
            },
        }

    def _distributed(self, parameter: Tensor, part: Tensor) -> DTensor:
        """These rows as a tensor that is spread like the parameter."""
        like = cast(DTensor, parameter)
        return DTensor.from_local(
            part, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
        )


def _begun(optimizer: torch.optim.Optimizer | None) -> torch.optim.Optimizer | None:
    """An optimiser that has taken no step has nothing to keep."""
    return optimizer if optimizer is not None and optimizer.state else None


def _emptied(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)


def _seen(folder: Path) -> None:
    if not folder.is_dir():
        raise ValueError(f"Expected checkpoints in a folder that all ranks see, but {folder} is not here.")
