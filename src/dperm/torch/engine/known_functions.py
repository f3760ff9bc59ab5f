"""What functions of torch are, where that matters: all are public ones."""

from __future__ import annotations

import functools
import inspect
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

#: They say something of a tensor that is not its numbers.
PROPERTIES = {
    Tensor.size, Tensor.dim, Tensor.ndimension, Tensor.numel, Tensor.nelement, Tensor.stride, Tensor.is_contiguous,
    Tensor.is_floating_point, Tensor.is_complex, Tensor.element_size, Tensor.get_device, Tensor.__len__, Tensor.__hash__,
    Tensor.data_ptr, torch.is_tensor, torch.is_floating_point, torch.is_complex, torch.numel, torch.result_type,
}  # fmt: skip

#: Attributes that are tensors with the same numbers.
VIEWS = {getattr(Tensor, name).__get__ for name in ("T", "mT", "H", "mH", "real", "imag")}

_ARITHMETIC = ("add", "sub", "mul", "div")
#: They act on each entry of tensors that are broadcast: a view of a parameter for each record costs nothing more there.
ENTRYWISE = {
    getattr(owner, name)
    for word in (*_ARITHMETIC, "subtract", "multiply", "divide", "true_divide")
    for owner, name in ((torch, word), (Tensor, word), (Tensor, f"{word}_"))
} | {getattr(Tensor, f"__{kind}{word}__") for word in (*_ARITHMETIC[:3], "truediv") for kind in ("", "r", "i")}  # fmt: skip

#: What `torch.utils.checkpoint.checkpoint` is asked, besides the function's own arguments.
CHECKPOINTING = ("use_reentrant", "preserve_rng_state", "context_fn", "determinism_check", "debug", "early_stop")

#: They put tensors beside one another.
PLACING = {torch.cat, torch.concat, torch.concatenate, torch.stack, torch.hstack, torch.vstack}

#: Names of functions below those of `torch.nn.functional`, whose fourth and fifth arguments are running statistics.
_NORMALISATIONS = {"batch_norm", "batch_norm_legit", "instance_norm"}

_NUMBERS_SET = {getattr(Tensor, name).__set__ for name in ("data", "real", "imag")}

#: They make tensors that may be written into.
FACTORIES = {
    torch.zeros, torch.ones, torch.empty, torch.full, torch.eye, torch.arange, torch.linspace, torch.tensor, torch.zeros_like,
    torch.ones_like, torch.empty_like, torch.full_like, Tensor.new_zeros, Tensor.new_ones, Tensor.new_empty, Tensor.new_full,
    Tensor.new_tensor, Tensor.clone, torch.clone,
}  # fmt: skip


def written_by(func: Any, args: Any, kwargs: Any) -> Any:
    """What a function writes into: a tensor, or a list of them; None where it writes into nothing that it is given."""
    writes, asks, place = _way_of_writing(func)
    if not writes and asks:
        writes = bool(kwargs.get("inplace") or (place is not None and len(args) > place and args[place]))
    if not writes:
        return None
    given = (*args, *kwargs.values())
    return given[0] if given else None


@functools.lru_cache(maxsize=4096)
def places_of_statistics(func: Any) -> tuple[int, ...]:
    """The places of the running statistics among the arguments of a normalisation, which it writes into in training mode."""
    if func in (F.batch_norm, F.instance_norm):
        return 1, 2
    return (3, 4) if func.__name__.split(".")[0].strip("_").removeprefix("native_") in _NORMALISATIONS else ()


@functools.lru_cache(maxsize=4096)
def _way_of_writing(func: Any) -> tuple[bool, bool, int | None]:
    """Whether a function always writes into its first argument, whether it may be asked to, and the place of what asks it."""
    name = func.__name__.split(".")[0]
    if name == "__set__":  # an attribute: of its numbers, in other words, or of whether it has a gradient
        return func in _NUMBERS_SET, False, None
    if name.startswith("__"):
        by_name = name == "__setitem__" or (name.startswith("__i") and name not in ("__int__", "__invert__", "__index__"))
        return by_name, False, None
    return name.endswith("_"), True, inplace_argument(func)


@functools.lru_cache(maxsize=4096)
def module_of(func: Any) -> str:
    """The module that a function says it is of; nothing where it says none."""
    return getattr(func, "__module__", None) or ""


@functools.lru_cache(maxsize=4096)
def inplace_argument(func: Any) -> int | None:
    """The place of the argument that says whether a function writes into its first; None where it has none."""
    try:
        names = list(inspect.signature(func).parameters)
    except (TypeError, ValueError):  # of functions that are not written in Python
        return None
    return names.index("inplace") if "inplace" in names else None


def is_property(func: Any) -> bool:
    """Whether it says something of a tensor that is not its numbers."""
    return func in PROPERTIES or (func.__name__ == "__get__" and func not in VIEWS)
