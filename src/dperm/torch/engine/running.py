"""The run of a model that a thread is in, and what becomes of calls of `torch.utils.checkpoint.checkpoint` in it."""

from __future__ import annotations

import contextvars
import inspect
from collections.abc import Callable
from types import FunctionType
from typing import Any

from torch.utils.checkpoint import checkpoint

#: the run (`dperm.torch.engine.tracing.Run`) that code in this thread is in, or None
RUNNING: contextvars.ContextVar[Any] = contextvars.ContextVar("RUNNING", default=None)


def _copied(function: Any) -> Callable[..., Any]:
    made = FunctionType(function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__)
    made.__kwdefaults__ = function.__kwdefaults__
    return made


_ORIGINAL = _copied(inspect.unwrap(checkpoint))


def checkpoint_called(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """What a call of `checkpoint` returns: that of PyTorch where no engine runs in this thread."""
    run = RUNNING.get()
    return _ORIGINAL(function, *args, **kwargs) if run is None else run.checkpointed(function, *args, **kwargs)
