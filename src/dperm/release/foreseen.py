"""What a run would charge: it runs up to its charge, with everything that it refuses before, and no further."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass

from dperm.privacy.events import Event

_FORESEEING: ContextVar[bool] = ContextVar("dperm_foreseeing", default=False)


@dataclass(frozen=True)
class ForeseenCharge:
    """A charge that was not made: its event, by which mechanism, to which data set, and whether it protects persons."""

    event: Event
    mechanism: str
    label: str
    persons: bool


class _AtCharge(BaseException):
    """Ends a run in place of its charge: no handler of errors takes it for one."""

    def __init__(self, charge: ForeseenCharge) -> None:
        super().__init__(charge)
        self.charge = charge


def foreseen_charge(run: Callable[[], object]) -> ForeseenCharge:
    """The charge that `run`, such as a fit, would make first. Nothing is charged or released; what `run` raises before its charge
    is raised. RuntimeError where it charges nothing."""
    token = _FORESEEING.set(True)
    try:
        run()
    except _AtCharge as stopped:
        return stopped.charge
    finally:
        _FORESEEING.reset(token)
    raise RuntimeError("Expected a run that charges through a channel, got one that ended without a charge.")


def stop_where_foreseen(event: Event, mechanism: str, label: str, persons: bool) -> None:
    """Called in place of a charge, by the channel: within `foreseen_charge` the run ends here."""
    if _FORESEEING.get():
        raise _AtCharge(ForeseenCharge(event, mechanism, label, persons))
