"""Checkpointed parts of a model (Chen et al. 2016), in step: what they compute on the way is thrown away, and computed again on
the way back.

`torch.utils.checkpoint.checkpoint` computes a part again when nothing of `torch.vmap` is there any more. While an engine runs,
calls of it come here, through whatever name a model has for it. A part is run once, and the tensors of records that it is given,
or finds elsewhere, are noted. On the way back it runs under another `torch.vmap` over the same records: code sees one record
there, too. A record draws what it drew at first, what Python reads are the constants that it read at first, and the taps of this
second run are the ones that are read. Where the second run calls other functions than the first one, reads more or fewer
numbers, or has another result, the model does not run in step.

The memory is that of ordinary checkpointing: the inputs of each part, and one part's insides at a time. Gradients of records are
not kept either (`dperm.torch.engine.clipped_sums`).
"""

from __future__ import annotations

import contextlib
import contextvars
import inspect
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from dperm.torch.engine.batching import together
from dperm.torch.engine.tracing import OutsideError
from dperm.torch.engine.watch import Watch
from dperm.torch.tensors.global_randomness import put_python_states, python_states
from dperm.torch.tensors.nested import tensors, with_tensors

_CHANGED = "A checkpointed part computes something else when it runs again: it keeps what the first run has left."
_HIDDEN = "A checkpointed part gives tensors to the model by another way than by returning them."


# How calls of checkpoint come here

_TARGET: Any = inspect.unwrap(checkpoint)
_CODE = _TARGET.__code__
_LOCK = threading.Lock()
_users = 0


def _entry(*args: Any, **kwargs: Any) -> Any:
    """Its code stands in that of `checkpoint` for a while, with torch's global names: so it imports what it calls."""
    from dperm.torch.engine.running import checkpoint_called

    return checkpoint_called(*args, **kwargs)


@contextlib.contextmanager
def in_runs() -> Iterator[None]:
    """Within the block calls of `checkpoint` in an engine's run come here. Its code is exchanged, for models hold the function by
    many names: in their modules, in partials, in attributes. Other threads call PyTorch's, as always."""
    global _users
    with _LOCK:
        _users += 1
        _TARGET.__code__ = _entry.__code__
    try:
        yield
    finally:
        with _LOCK:
            _users -= 1
            if not _users:
                _TARGET.__code__ = _CODE


# What a run does in a part


class _Place:
    """How far a run has come: its draws, and what Python has read."""

    def __init__(self, run: Any) -> None:
        self._run = run
        self._draws, self._reads = run.draws.place, run.branch.place
        self._python = python_states()

    def _go(self) -> None:
        self._run.draws.place, self._run.branch.place = self._draws, self._reads
        put_python_states(self._python)

    @contextlib.contextmanager
    def taken(self) -> Iterator[None]:
        """Within the block the run is there again."""
        now = _Place(self._run)
        self._go()
        try:
            yield
        finally:
            now._go()


def run_part(
    run: Any, function: Callable[..., Any], context_fn: Callable[[], Any] | None, args: Sequence[Any], kwargs: Any
) -> Any:
    """What `function` returns, which is computed again on the way back. `run` is an `InStep` of `by_record`."""
    forward, backward = (contextlib.nullcontext(), contextlib.nullcontext()) if context_fn is None else context_fn()
    part = _Part(run, function, backward, args, kwargs)
    with run.apart(_refuse_to_read) as watch, forward:
        output = function(*args, **kwargs)
    output = part.joined(output, watch)
    run.made_apart(output)
    return output


def _refuse_to_read(*_: Any) -> Any:
    raise OutsideError(_HIDDEN)


class _Part:
    """A part that has run once, and its call."""

    def __init__(self, run: Any, function: Callable[..., Any], context: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        self._run, self._function, self._context, self._args, self._kwargs = run, function, context, args, kwargs
        self._place = _Place(run)
        self._variables = contextvars.copy_context()  # as the first run finds them: what the second sets goes nowhere
        device = run.tape.flat.device.type
        self._autocast = {
            kind: (torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind), torch.is_autocast_cache_enabled())
            for kind in dict.fromkeys(("cpu", device))
        }
        self._given: list[Tensor] = []
        self._chosen: list[int] = []
        self._order = self._reads = 0
        self._sums: list[tuple[Tensor, Tensor]] = []

    def joined(self, output: Any, watch: Watch) -> Any:
        """The output of the first run, with the part as one node of the graph in place of all that is in it."""
        self._order, self._reads = watch.order, self._run.branch.place[0]
        run, outputs = self._run, tensors(output)
        watch.take(outputs)
        candidates = [tensor for tensor in watch.given.values() if not run.trains(tensor)]
        places = [place for place, tensor in enumerate(outputs) if not run.constant(tensor)]

        def body(*found: tuple[Tensor, int | None]) -> tuple[Tensor, ...]:
            mine = [axis is not None for _, axis in found]
            first = [numbers.movedim(axis, 0) for numbers, axis in found if axis is not None]
            split = sum(mine[: len(candidates)])
            self._given = [tensor for tensor, is_mine in zip(candidates, mine, strict=False) if is_mine]
            self._chosen = [place for place, is_mine in zip(places, mine[len(candidates) :], strict=True) if is_mine]
            run.tape.given_bytes += sum(numbers.numel() * numbers.element_size() for numbers in first[:split])
            results = first[split:]
            self._sums = [_sums(result) for result in results]
            if not results:
                return ()
            fixed = [number for number, result in enumerate(results) if not result.requires_grad]
            return _Node.apply(self, run.tape.anchor, [result.detach() for result in results], fixed, *first[:split])

        joined = together(body, run.record, *candidates, *(outputs[place] for place in places))
        found = dict(enumerate(outputs)) | dict(zip(self._chosen, joined, strict=True))
        return with_tensors(output, found.values())

    def again(self, numbers: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        """The gradients of the given tensors, whose `numbers` have the records first, from those of the results. Reads taps."""
        run, tape = self._run, self._run.tape
        fresh = [tensor.detach().requires_grad_(tensor.requires_grad) for tensor in numbers]
        given, self._given = self._given, []
        if len(given) != len(fresh):
            raise RuntimeError("A checkpointed part can be computed again once.")
        orders: list[tuple[int, int]] = []

        def one(record: Tensor, *mine: Tensor) -> tuple[Tensor, ...]:
            second = run.again(record, {id(stale): new for stale, new in zip(given, mine, strict=True)})
            with second.apart(None) as watch, second, self._context:
                output = self._function(*self._args, **self._kwargs)
            if second.stopped is not None:
                raise second.stopped
            orders.append((watch.order, run.branch.place[0]))
            found = [second.renewed(tensor) for tensor in tensors(output)]
            return tuple(found[place] for place in self._chosen)

        with contextlib.ExitStack() as stack:
            for kind, (enabled, dtype, cached) in self._autocast.items():
                stack.enter_context(torch.autocast(kind, dtype=dtype, enabled=enabled, cache_enabled=cached))
            stack.enter_context(self._place.taken())
            stack.enter_context(torch.enable_grad())
            anchor = stack.enter_context(tape.again())
            whole = torch.vmap(one, randomness="different")
            results = self._variables.copy().run(whole, torch.zeros(tape.size), *fresh)
        if orders != [(self._order, self._reads)] or not all(map(_agree, self._sums, map(_sums, results))):
            raise OutsideError(_CHANGED)
        pairs = [
            (result, slope)
            for result, slope in zip(results, gradients, strict=True)
            if slope is not None and result.requires_grad
        ]
        wanted = [tensor for tensor in fresh if tensor.requires_grad]
        leaves = tape.flat.leaves
        ends = [result for result, _ in pairs]
        found: Any = torch.autograd.grad(ends, [*wanted, anchor, *leaves], [slope for _, slope in pairs], allow_unused=True)
        if any(slope is not None for slope in found[len(wanted) + 1 :]):
            raise OutsideError("A checkpointed part uses a trained parameter where torch's functions do not see it.")
        slopes = iter(found)
        return [next(slopes) if tensor.requires_grad else None for tensor in fresh]


def _sums(result: Tensor) -> tuple[Tensor, Tensor]:
    """(b,) the sums of each record's numbers, and of their sizes, in double precision."""
    flat = result.detach().flatten(1) if result.dim() > 1 else result.detach()[:, None]
    if not flat.is_floating_point():
        flat = flat.double()
    return flat.sum(1, dtype=torch.float64), torch.linalg.vector_norm(flat, 1, dim=1, dtype=torch.float64)


def _agree(first: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor]) -> bool:
    """Whether sums are the same, up to rounding."""
    (mine, size), (other, _) = first, second
    usual = size.isfinite()
    return bool(((mine - other).abs() <= 1e-3 * size)[usual].all()) and bool((other.isfinite() | ~usual).all())


class _Node(torch.autograd.Function):
    """The results of a part's first run, and on the way back its second run."""

    @staticmethod
    def forward(ctx: Any, part: _Part, anchor: Tensor, results: list[Tensor], fixed: list[int], *numbers: Tensor) -> Any:
        ctx.part = part
        ctx.save_for_backward(*numbers)
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*(results[number] for number in fixed))
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        return None, None, None, None, *ctx.part.again(ctx.saved_tensors, gradients)
