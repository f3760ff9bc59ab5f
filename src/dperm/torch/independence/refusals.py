"""Refusals before a run: modules that have no per-example gradient, such as batch normalisation, and calls whose results all
records of a physical batch would share, which are looked for in code that runs on some records."""

from __future__ import annotations

import contextlib
import gc
import os
import random
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from types import CodeType, FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.grad_mode import set_multithreading_enabled

from dperm.torch.engine.model_state import INSTALLED, is_library
from dperm.torch.engine.tracing import RefusedError

#: Python's generators of the operating system's randomness all end in the first.
_COINS = (
    os.urandom, getattr(os, "getrandom", os.urandom),
    time.strftime, time.localtime, time.gmtime, time.ctime, time.time, time.time_ns,
    time.perf_counter, time.perf_counter_ns, time.monotonic, time.monotonic_ns, time.process_time, time.process_time_ns,
    time.thread_time, time.thread_time_ns,
)  # fmt: skip
_SEEDING = random.Random.seed.__code__
_NEW_GENERATOR = random.Random.__init__.__code__
_MAY_CALL = ("dperm.", "torch.", "logging.", "warnings.")

_COIN = (
    "The model or the loss reads a clock or the operating system's randomness ({}): the records of a physical batch would share "
    "what it gives. Draw from torch's global generator."
)
_BELOW = "The model or the loss reaches below torch.vmap ({}), where the numbers of all records are: leave it out."


@contextlib.contextmanager
def _watching(look: Callable[[FrameType, str, Any], None]) -> Iterator[None]:
    """`look` is told of each call in the block."""
    if sys.getprofile() is not None:  # somebody measures the program, and there can be one profile function only
        yield
        return
    collects = gc.isenabled()
    gc.disable()  # what collects garbage may call whoever counts its time
    sys.setprofile(look)
    try:
        yield
    finally:
        sys.setprofile(None)
        if collects:
            gc.enable()


def refuse_hooks(leaves: Iterable[nn.Parameter], names: Iterable[str]) -> None:
    """RefusedError where something is called with the gradient of one of these: what it keeps of a record's gradient would leave
    the run without noise, and what it changes would not be trained."""
    called: list[str] = []

    def look(frame: FrameType, event: str, function: Any) -> None:
        if event == "call" and not is_library(frame.f_globals.get("__name__", "")):
            called.append(frame.f_code.co_name)

    seen: set[torch.device] = set()
    for leaf, name in zip(leaves, names, strict=True):
        if leaf.device not in seen:  # the first way back on a device imports modules, whose code runs
            seen.add(leaf.device)
            _take_back(torch.zeros((), device=leaf.device, requires_grad=True))
        with _watching(look):
            _take_back(leaf)
        if called:
            raise RefusedError(
                f"A hook ({called[0]}) is called with the gradient of {name}, which is of single records here: leave "
                "register_hook out, and change the noisy gradient in .grad before the optimizer's step instead."
            )


def _take_back(leaf: Tensor) -> None:
    """Call the hooks of `leaf`, in this thread."""
    with torch.enable_grad():
        nothing = (leaf * 0).sum()
    with set_multithreading_enabled(False):
        torch.autograd.grad(nothing, leaf)


@contextlib.contextmanager
def refusing_shared_calls() -> Iterator[set[CodeType]]:
    """RefusedError at the end of the block where code in it, that is neither PyTorch's nor dperm's, has read a clock, drawn from
    the operating system, or reached below `torch.vmap`.

    Clocks and the system's randomness would be drawn once for each physical batch, neither for a record nor for a step; what
    reaches below sees all records. This sees what runs, and nothing of what may run on other records: that there is none is an
    assumption. Under a profiler it sees nothing. Yields the set of code of installed packages that ran so far.
    """
    found: dict[str, None] = {}
    ran = set[CodeType]()

    def look(frame: FrameType, event: str, called: Any) -> None:
        module = f"{frame.f_globals.get('__name__', '')}."
        if event == "c_call" and not module.startswith(_MAY_CALL):
            owner = getattr(called, "__self__", None)
            if any(called is coin for coin in _COINS):
                found[_COIN.format(f"{'os' if called.__module__ == 'posix' else 'time'}.{called.__name__}")] = None
            elif (owner is datetime and called.__name__ in ("now", "utcnow", "today")) or (
                isinstance(owner, torch.Generator) and called.__name__ == "seed"
            ):
                found[_COIN.format(f"{called.__name__} of {owner}")] = None
            elif called.__module__ == "torch._C._functorch":
                found[_BELOW.format(called.__name__)] = None
        elif event == "call":
            if frame.f_code.co_filename.startswith(INSTALLED):
                ran.add(frame.f_code)
            if (frame.f_code is _NEW_GENERATOR and frame.f_locals.get("x") is None) or (
                frame.f_code is _SEEDING and frame.f_locals.get("a") is None
            ):
                found[_COIN.format("random.Random()")] = None
            elif frame.f_code.co_name == "__torch_dispatch__" and not module.startswith(_MAY_CALL):
                found[_BELOW.format("__torch_dispatch__")] = None

    with _watching(look):
        yield ran
    if found:
        raise RefusedError(next(iter(found)))


_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


def reason_to_refuse(module: nn.Module) -> str | None:
    """Why `module` has no per-example gradient, in words for its user; None where it may have one."""
    if type(module).__name__ == "OptimizedModule":
        return "a compiled model cannot be looked into: pass the model that was given to torch.compile"
    if isinstance(module, torch.jit.ScriptModule):
        return "a traced or scripted model cannot be looked into: pass the model that it was made of"
    if isinstance(module, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
        return "it adds up raw gradients: pass the model inside it (.module); a run by torchrun is parallel as it is"
    if isinstance(module, _BATCH_NORMS) and (module.training or not module.track_running_stats):
        return (
            "batch normalisation mixes the records of a batch: replace it by nn.GroupNorm, or keep it in eval mode with "
            "statistics from public data"
        )
    if (
        isinstance(module, (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d))
        and module.track_running_stats
        and module.training
    ):
        return "its running statistics leave the run without noise: use track_running_stats=False"
    if isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and module.max_norm is not None:
        return "max_norm rescales rows in place, depending on which records come together: clip the rows afterwards"
    if type(module).__module__.startswith("torch.ao.nn.quantized.dynamic"):
        return (
            "it takes the range of its input from all records of a batch, and has no gradient: keep weights in int8 and multiply "
            "them by their scales in forward"
        )
    if any(isinstance(parameter, nn.UninitializedParameter) for parameter in module.parameters(recurse=False)):
        return "its parameters have no shape yet: run the model once on public input first"
    return None
