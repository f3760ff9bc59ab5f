"""The best of a random number of tries: charged as one, before the first; the number, and every other try, stay secret."""

from __future__ import annotations

import contextlib
import math
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from dperm._random import Randomness
from dperm.privacy.selection import BestOfTries
from dperm.release.ledger import SpendLog, spend_log

__all__ = ["best_of_tries", "set_aside"]

T = TypeVar("T")


def best_of_tries(
    event: BestOfTries, runs: Sequence[Callable[[], tuple[float, T]]], *, label: str = "", random_state: Any = None
) -> tuple[float, T]:
    """The score and the result of the best try; `runs[i]` makes one that costs at most `event.tries[i]`, its score included.

    `event` is charged to the spend log before the first try. How many there were, and what the others gave, is kept from
    everybody: charges of the tries go to a log that is thrown away, warnings are silenced, and a try that fails scores least of
    all. How long it takes is not hidden. A fixed `random_state` makes the run not private, and says so in the log.

    ValueError where there are not as many runs as tries; RuntimeError, after the charge, where no try ended well.
    """
    if len(runs) != len(event.tries):
        raise ValueError(f"Expected a run for each of {len(event.tries)} tries, got {len(runs)}.")
    randomness = Randomness.of(random_state)
    SpendLog.current().charge(event, mechanism="best of a random number of tries", label=label, private=randomness.private)
    draws = randomness.sampling
    best: tuple[float, T] | None = None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(event.draw(draws)):
            with set_aside():
                found = _tried(runs[int(draws.integers(len(runs)))])
            if found is not None and (best is None or found[0] > best[0]):
                best = found
    if best is None:
        raise RuntimeError("No try ended well: all were paid for. Try one of them by itself, on other records, to see why.")
    return best


@contextlib.contextmanager
def set_aside() -> Iterator[None]:
    """Within the block, charges of this thread go to a log that is thrown away: what runs there was charged already, as a part of
    something else."""
    with tempfile.TemporaryDirectory(prefix="dperm-charged-") as folder, spend_log(Path(folder) / "spend.jsonl", workers=False):
        yield


def _tried(run: Callable[[], tuple[float, T]]) -> tuple[float, T] | None:
    """A try, or None where it failed: an error would tell of one that is to stay secret."""
    try:
        score, result = run()
    except Exception:
        return None
    return (score, result) if math.isfinite(score) else None
