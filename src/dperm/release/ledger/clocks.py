"""Clocks that this machine's own is held against.

A clock that is set back would reopen a budget that has expired, and one that is far ahead would let all budgets expire. A second
clock shows the latter: a server's, a file server's, or the time that this process has been running.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime

_FORM = "%Y-%m-%dT%H:%M:%SZ"
#: Seconds by which clocks that are set right may differ.
SLACK = 600.0
# also while the machine sleeps, which `time.monotonic` leaves out on some systems
_STEADY = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", None))


def _steady() -> float:
    return time.monotonic() if _STEADY is None else time.clock_gettime(_STEADY)


_STARTED, _STARTED_STEADY = time.time(), _steady()


def time_by_process() -> float:
    """Seconds since 1970 by the clock that this process found when it started, counted on from then by one that nobody sets."""
    return _STARTED + _steady() - _STARTED_STEADY


def text_of(moment: float) -> str:
    """Seconds since 1970 as entries state them, 2027-12-31T23:59:59Z: such texts are in the order of time."""
    return datetime.fromtimestamp(moment, UTC).strftime(_FORM)


def agreed(mine: str, servers: Mapping[str, float]) -> str:
    """The later of this machine's clock and those of servers.

    Parameters
    ----------
    mine : str
        By this machine's clock, as `text_of` writes it.
    servers : mapping from str to float
        Seconds since 1970 by the clocks of servers, each by its name.

    Raises
    ------
    ValueError
        Where this machine's clock is ahead of another, or of the time that this process has been running, by more than `SLACK`.
    """
    for name, moment in {**servers, "and by the time that this process has been running it is": time_by_process()}.items():
        if mine > text_of(moment + SLACK):
            raise ValueError(
                f"This machine's clock says {mine}, {name} {text_of(moment)}: nothing was charged. Set the clock that is "
                "wrong; if it was set while this process ran, or the machine was stopped, start the process again."
            )
    return max([mine, *map(text_of, servers.values())])


def not_ahead(mine: str, servers: Mapping[str, float]) -> str:
    """The earliest of the clocks that `agreed` compares."""
    return min(mine, *map(text_of, [*servers.values(), time_by_process()]))
