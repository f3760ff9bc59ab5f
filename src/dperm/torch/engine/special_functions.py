"""Functions of torch that mean something else where code sees one record: those that read numbers, draw, print, or look
around."""

from __future__ import annotations

from collections.abc import Callable
from numbers import Integral
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dperm.torch.engine.branches import constants
from dperm.torch.engine.tracing import SPECIAL, RefusedError, Run


def _special(*functions: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def keep(special: Callable[..., Any]) -> Callable[..., Any]:
        SPECIAL.update(dict.fromkeys(functions, special))
        return special

    return keep


@_special(
    Tensor.__bool__, Tensor.__int__, Tensor.__float__, Tensor.__complex__, Tensor.__index__, Tensor.__contains__, Tensor.item,
    Tensor.tolist, Tensor.equal, Tensor.allclose, Tensor.is_nonzero, torch.equal, torch.allclose,
    torch.is_nonzero,
)  # fmt: skip
def _read(run: Run, func: Any, *args: Any, **kwargs: Any) -> Any:
    """Numbers that Python sees."""
    return func(*constants(run, args), **kwargs)


@_special(Tensor.numpy, Tensor.__array__)
def _read_by_numpy(run: Run, func: Any, *args: Any, **kwargs: Any) -> Any:
    """An array of its own: what is written into it goes nowhere else."""
    return func(constants(run, args[0]).detach().clone(), *args[1:], **kwargs)


@_special(
    torch.nonzero, Tensor.nonzero, torch.argwhere, Tensor.argwhere, torch.unique, Tensor.unique, torch.unique_consecutive,
    Tensor.unique_consecutive, torch.bincount, Tensor.bincount,
)  # fmt: skip
def _shape_by_numbers(run: Run, func: Any, *args: Any, **kwargs: Any) -> Any:
    """Their result's shape depends on the numbers."""
    return func(*constants(run, args), **kwargs)


@_special(torch.where, Tensor.where)
def _where(run: Run, func: Any, *args: Any, **kwargs: Any) -> Any:
    return run.agreed(args[0]).nonzero().unbind(1) if len(args) == 1 and not kwargs else NotImplemented


@_special(torch.masked_select, Tensor.masked_select)
def _masked_select(run: Run, func: Any, input: Tensor, mask: Tensor) -> Any:
    return func(run.owned(input), run.agreed(mask))


@_special(torch.repeat_interleave, Tensor.repeat_interleave)
def _repeat_interleave(run: Run, func: Any, input: Tensor, repeats: Any = None, *args: Any, **kwargs: Any) -> Any:
    if repeats is None:
        return func(run.agreed(input), **kwargs)
    return func(run.owned(input), constants(run, repeats), *args, **kwargs)


@_special(Tensor.__getitem__)
def _getitem(run: Run, func: Any, input: Tensor, index: Any) -> Any:
    """A mask of truths has as many entries as it has."""
    return func(run.owned(input), _masks_agreed(run, index)) if _has_mask(index) else NotImplemented


@_special(Tensor.__setitem__)
def _setitem(run: Run, func: Any, input: Tensor, index: Any, value: Any) -> Any:
    if not _has_mask(index):
        return NotImplemented
    if not isinstance(value, Tensor) or not value.dim():
        if not isinstance(index, Tensor) or not _fits(value, input):
            return NotImplemented
        # one number at all places of a mask: each record at its own
        mask = index.bool()
        return input.masked_fill_(mask.reshape(*mask.shape, *[1] * (input.dim() - mask.dim())), run.owned(value))
    return func(input, _masks_agreed(run, index), run.owned(value))


def _fits(value: Any, input: Tensor) -> bool:
    """Whether a number is written into a tensor as it is."""
    fractional = value.is_floating_point() if isinstance(value, Tensor) else isinstance(value, float)
    return isinstance(value, Tensor | bool | int | float) and (input.is_floating_point() or not fractional)


def _parts(index: Any) -> tuple[Any, ...]:
    return index if isinstance(index, tuple) else (index,)


def _is_mask(part: Any) -> bool:
    return isinstance(part, Tensor) and part.dtype in (torch.bool, torch.uint8)


def _has_mask(index: Any) -> bool:
    return any(map(_is_mask, _parts(index)))


def _masks_agreed(run: Run, index: Any) -> Any:
    return tuple(run.agreed(part) if _is_mask(part) else part for part in _parts(index))


@_special(torch.rand, torch.randn, torch.randint)
def _draw(run: Run, func: Any, *args: Any, **kwargs: Any) -> Any:
    """One number for all: a coin of the step, which is drawn where all records are."""
    shapes = [value for value in (*args, kwargs.get("size")) if isinstance(value, (tuple, list))]
    single = not shapes[-1] if shapes else func is not torch.randint and not any(isinstance(value, Integral) for value in args)
    if not single:
        return NotImplemented
    kwargs.pop("generator", None)
    return run.together(lambda: func(*args, **kwargs, generator=run.draws.of_step).expand(run.tape.size))


@_special(Tensor.scatter_)
def _scatter_in_place(run: Run, func: Any, input: Tensor, *args: Any, **kwargs: Any) -> Any:
    """`torch.vmap` has a rule for it out of place only; without one, it takes record after record."""
    return input.copy_(input.scatter(*run.owned(args), **{name: run.owned(value) for name, value in kwargs.items()}))


@_special(Tensor.__repr__, Tensor.__format__)
def _print(run: Run, func: Any, *args: Any, **kwargs: Any) -> Any:
    raise RefusedError("The model prints a tensor, or makes a text of it: raw numbers of records would leave the run.")


@_special(Tensor.requires_grad_, Tensor.requires_grad.__set__)  # type: ignore[attr-defined]
def _ask_for_gradients(run: Run, func: Any, input: Tensor, asked: bool = True) -> Any:
    """As checkpointed models do with the input of their first part. `torch.vmap` refuses it; taps are read without."""
    if not run.in_step or isinstance(input, nn.Parameter):
        return NotImplemented
    return input


@_special(Tensor.register_hook, Tensor.register_post_accumulate_grad_hook)
def _hook(run: Run, func: Any, *args: Any, **kwargs: Any) -> Any:
    raise RefusedError("The model hooks a tensor's gradient, which would see all records at once: leave register_hook out.")


@_special(F.embedding, F.embedding_bag)
def _embedding(run: Run, func: Any, *args: Any, **kwargs: Any) -> Any:
    if kwargs.get("max_norm") is not None or any(isinstance(value, float) for value in args):
        raise RefusedError("max_norm rescales rows in place, depending on which records come together: clip the rows afterwards.")
    return NotImplemented


@_special(Tensor.backward, Tensor.untyped_storage, Tensor.storage, Tensor.__dlpack__, Tensor.share_memory_)
def _look_around(run: Run, func: Any, *args: Any, **kwargs: Any) -> Any:
    raise RefusedError(f"The model calls {func.__name__} of a tensor, which reaches beyond the record that it sees.")
