"""Randomness that nobody can put back: of the operating system, and of clocks."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from types import FrameType
from typing import Any

from dperm.torch.engine.runs import RefusedError

__all__ = ["none_of_the_system"]

#: Python's generators of the operating system's randomness all end in the first.
_COINS = (
    os.urandom, time.time, time.time_ns, time.perf_counter, time.perf_counter_ns, time.monotonic, time.monotonic_ns,
    time.process_time, time.process_time_ns, time.thread_time, time.thread_time_ns,
)  # fmt: skip
_MAY_CALL = ("dperm.", "torch.", "logging", "warnings")


@contextlib.contextmanager
def none_of_the_system() -> Iterator[None]:
    """RefusedError at the end of the block where code in it, that is not PyTorch's, has read a clock or drawn from the
    operating system: such a coin would be drawn once for each physical batch, neither for a record nor for a step.

    It sees what runs, and nothing of what may run on other records.
    """
    seen: dict[str, None] = {}

    def look(frame: FrameType, event: str, called: Any) -> None:
        if event != "c_call" or frame.f_globals.get("__name__", "").startswith(_MAY_CALL):
            return
        if any(called is coin for coin in _COINS):
            seen["os.urandom" if called is os.urandom else f"time.{called.__name__}"] = None

    before = sys.getprofile()
    sys.setprofile(look)
    try:
        yield
    finally:
        sys.setprofile(before)
    if seen:
        raise RefusedError(
            f"The model or the loss reads a clock or the operating system's randomness ({', '.join(seen)}): the records of a "
            "physical batch would share what it gives. Draw from torch's global generator."
        )
