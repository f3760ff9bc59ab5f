"""Many processes as one run: what they do together, and what the first of them does for all."""

from __future__ import annotations

import atexit
import hashlib
import os
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor, nn

T = TypeVar("T")

_TIME_LIMIT = timedelta(minutes=10)  # that a rank waits for another
_LAST_MOMENT = 0.2  # seconds
_ADDRESS = re.compile(r" at 0x[0-9a-f]+|, device='cuda:\d+'")  # which differ between processes that run the same
_RESTARTS = "TORCHELASTIC_RESTART_COUNT"
_TOLD = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")  # what torchrun tells each process


class RankError(RuntimeError):
    """Another rank failed, or the ranks of a run disagree."""


def _join() -> None:
    """As `init_process_group`, and beside what an attempt that was killed left in the store: gloo would call its ranks."""
    from torch.distributed.rendezvous import rendezvous  # which not every build of torch has

    store, rank, size = next(rendezvous("env://", timeout=_TIME_LIMIT))
    store = dist.PrefixStore(f"attempt {os.environ.get(_RESTARTS, '0')}", store)  # pyright: ignore[reportPrivateImportUsage]
    dist.init_process_group(store=store, rank=rank, world_size=size, timeout=_TIME_LIMIT)
    atexit.register(_leave)


def _leave() -> None:
    """Before the interpreter ends: threads of a group that is still there may abort the process, whatever it did before.

    Meshes and caches of torch keep a group's threads alive once it is destroyed. One that was late to let go of its last tensor
    would ask for the interpreter when that is gone, and C++ ends the process for it: they get a moment in which nobody else runs.
    """
    if dist.is_initialized():
        dist.destroy_process_group()
        time.sleep(_LAST_MOMENT)


@dataclass(frozen=True)
class Ranks:
    """The processes of a run, of which this is number `rank`. One process alone is rank 0 of 1.

    Every method is called by all ranks, in the same order.
    """

    rank: int = 0
    size: int = 1

    @classmethod
    def here(cls) -> Ranks:
        """The ranks of torch.distributed. Where torchrun started several processes and nobody called `init_process_group`, it is
        called: each of them as a run of its own would be charged as often."""
        if not dist.is_available():
            return cls()
        if not dist.is_initialized():
            if not all(name in os.environ for name in _TOLD) or int(os.environ["WORLD_SIZE"]) <= 1:
                return cls()
            _join()
        return cls(dist.get_rank(), dist.get_world_size())

    def first(self, work: Callable[[], T]) -> T:
        """What `work` gives on rank 0, on every rank. Where it fails there, it fails everywhere."""
        if self.size == 1:
            return work()
        box: list[Any] = [None]
        failure: Exception | None = None
        if self.rank == 0:
            try:
                box = [(work(), "")]
            except Exception as error:  # raised below, once the others know
                failure, box = error, [(None, f"{type(error).__name__}: {error}")]
        dist.broadcast_object_list(box, src=0)
        if failure is not None:
            raise failure
        value, problem = box[0]
        if problem:
            raise RankError(f"Rank 0 failed. {problem}")
        return value

    def together(self, work: Callable[[], T]) -> T:
        """`work` on each rank by itself. Where it fails on some, it fails on all, and nobody waits for who is gone."""
        if self.size == 1:
            return work()
        result: Any = None
        failure: Exception | None = None
        try:
            result = work()
        except Exception as error:  # raised below, once the others know
            failure = error
        problems = self.gathered("" if failure is None else f"{type(failure).__name__}: {failure}")
        if failure is not None:
            raise failure
        for rank, problem in enumerate(problems):
            if problem:
                raise RankError(f"Rank {rank} failed. {problem}")
        return result

    def gathered(self, value: T) -> list[T]:
        """Every rank's value, on every rank."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value)
        return values

    def same(self, settings: Mapping[str, Any]) -> None:
        """RankError, on every rank, where these differ between ranks."""
        everyone = self.gathered({name: _ADDRESS.sub("", str(value)) for name, value in settings.items()})
        for rank, theirs in enumerate(everyone):
            differing = [name for name in everyone[0] | theirs if everyone[0].get(name) != theirs.get(name)]
            if differing:
                name = differing[0]
                raise RankError(
                    f"Expected all ranks to run the same, but {', '.join(differing[:5])} differ: {name} is "
                    f"{everyone[0].get(name)} on rank 0 and {theirs.get(name)} on rank {rank}."
                )

    def keep_step(self, step: int, device: torch.device) -> None:
        """RankError, on every rank, where ranks are at different steps: they would add parts of one to those of another."""
        if self.size == 1:
            return
        first, last = self._extremes(step, device)
        if last != first:
            raise RankError(f"Expected all ranks at one step, but one is at {first} and another at {last}.")

    def keep_draw(self, drawn: NDArray[np.intp], device: torch.device) -> None:
        """RankError, on every rank, where ranks drew other records than each other, or in another order."""
        if self.size == 1:
            return
        digest = hashlib.blake2b(np.ascontiguousarray(drawn, dtype=np.int64).data, digest_size=8).digest()
        first, last = self._extremes(int.from_bytes(digest, "little") >> 1, device)
        if last != first:
            raise RankError(
                "Expected all ranks to draw the same records, but they drew others: a record that two of them compute on would "
                "count twice. Draws are to be made of one seed, on processors and by versions of NumPy that are alike."
            )

    def _extremes(self, number: int, device: torch.device) -> tuple[int, int]:
        """The least and the largest of the ranks' numbers."""
        told = torch.tensor([number, -number], device=device)
        dist.all_reduce(told, dist.ReduceOp.MAX)
        return -int(told[1]), int(told[0])

    def put_on_all(self, model: nn.Module) -> None:
        """Give every rank the parameters and buffers of rank 0."""
        if self.size == 1:
            return
        with torch.no_grad():
            for name, tensor in (*model.named_parameters(), *model.named_buffers()):
                if hasattr(tensor, "device_mesh"):
                    continue  # each rank has its part
                if tensor.layout is not torch.strided or (tensor.numel() and 0 in tensor.stride() and tensor.numel() > 1):
                    raise ValueError(f"Expected {name} as a dense tensor with memory of its own, to give it to every rank.")
                held = tensor.detach().clone(memory_format=torch.contiguous_format)
                self.told(held.view(-1).view(torch.uint8))  # of any type, also of those that the group knows no sums of
                tensor.copy_(held)

    def total(self, part: Tensor) -> Tensor:
        """The sum of every rank's part, added in double precision, on every rank."""
        if self.size == 1:
            return part
        wide = part.double().contiguous()
        dist.all_reduce(wide)
        return wide.to(part.dtype)

    def by_parts(self, values: Tensor, work: Callable[[Tensor], Tensor]) -> Tensor:
        """`work` on values (p,) that every rank has, number by number: each number is worked on by one rank, and told to all."""
        if self.size == 1:
            return work(values)
        length = -(-len(values) // self.size)
        part = values[self.rank * length : (self.rank + 1) * length]
        told = values.new_zeros(length)  # all of one length: the last ones have less to tell
        told[: len(part)] = work(part)
        whole = values.new_empty(self.size * length)
        dist.all_gather_into_tensor(whole.view(torch.uint8), told.view(torch.uint8))
        return whole[: len(values)]

    def told(self, values: Tensor) -> Tensor:
        """The values of rank 0, in this contiguous tensor's memory."""
        if self.size > 1:
            dist.broadcast(values, src=0)
        return values
