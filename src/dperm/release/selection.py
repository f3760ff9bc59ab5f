"""The best of a random number of tries: charged as one, before the first; the number, and every other try, stay secret."""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from dperm._progress import unwatched
from dperm._random import Randomness
from dperm.privacy import Certificate, Event, Provenance
from dperm.privacy.adaptive.private_selection import BestOfTries
from dperm.privacy.certificates import assumptions as statements
from dperm.release.ledger import SpendLog, thrown_away

T = TypeVar("T")
_UNCHANGING = (int, float, str, bytes, tuple, frozenset, type(None))


def best_of_tries(
    event: BestOfTries, runs: Sequence[Callable[[], tuple[float, T]]], *, label: str = "", random_state: Any = None
) -> tuple[float, T]:
    """The score and the result of the best try; `runs[i]` makes one that costs at most `event.tries[i]`, its score included.

    `event` is charged to the spend log before the first try. How many there were, and what the others gave, is kept from
    everybody: a try's charges go to a log that is thrown away, its warnings are silenced, and a try that fails scores least of
    all. That holds for what a try does in this thread. Charges that it makes in threads or processes of its own go to the log,
    one a try, and what it prints or writes is seen; a filter of warnings that another thread sets meanwhile counts for all. How
    long it takes is not hidden. A fixed `random_state` makes the run not private, and says so in the log.

    Each try must make a result of its own: one that is changed by the next try would leave with another try's numbers.
    ValueError where there are not as many runs as tries, and, after the charge, where two tries return one object; RuntimeError,
    after the charge, where no try ended well.
    """
    if len(runs) != len(event.tries):
        raise ValueError(f"Expected a run for each of {len(event.tries)} tries, got {len(runs)}.")
    randomness = Randomness.of(random_state)
    SpendLog.current().charge(event, mechanism="best of a random number of tries", label=label, private=randomness.private)
    draws = randomness.sampling
    best: tuple[float, T] | None = None
    with warnings.catch_warnings(), unwatched():  # how many tries there are is a secret
        warnings.simplefilter("ignore")
        for _ in range(event.draw(draws)):
            with set_aside():
                found = _tried(runs[int(draws.integers(len(runs)))])
            if found is not None and best is not None and found[1] is best[1] and not isinstance(found[1], _UNCHANGING):
                raise ValueError("Expected a result of its own from each try, got one object twice.")
            if found is not None and (best is None or found[0] > best[0]):
                best = found
    if best is None:
        raise RuntimeError("No try ended well: all were paid for. Try one of them by itself, on other records, to see why.")
    return best


def certificate_of_search(
    event: Event,
    parts: Sequence[Certificate],
    how: str,
    settings: int,
    *,
    delta: float,
    epsilon: float,
    held_out_private: bool,
    facts: Mapping[str, Any],
    provenance: Provenance,
) -> Certificate:
    """Of a search and the model that it found, from what each try would be certified as. `how`: "each once", or the law of the
    number of tries."""
    assumptions = dict.fromkeys(item for part in parts for item in part.assumptions if item.key != "arithmetic")
    names = ", ".join(dict.fromkeys(part.mechanism for part in parts))
    certificate = Certificate.issue(
        mechanism=f"search ({how}) over {settings} settings of {names}",
        event=event,
        delta=delta,
        target_epsilon=epsilon,
        paper="Liu & Talwar 2019; Papernot & Steinke 2022; " + "; ".join(dict.fromkeys(part.paper for part in parts)),
        assumptions=[
            *([] if how == "each once" else [statements.SECRET_TRIES]),
            *([] if held_out_private else [statements.PUBLIC_HELD_OUT]),
            *assumptions,
        ],
        public_facts=facts,
        not_charged=tuple(dict.fromkeys(text for part in parts for text in part.not_charged)),
        provenance=provenance,
    )
    claims = list(dict.fromkeys(part.claim for part in parts if part.claim))
    return certificate.only_claimed("; ".join(claims)) if claims else certificate


@contextlib.contextmanager
def set_aside() -> Iterator[None]:
    """Within the block, charges of this thread go to a log that is thrown away: what runs there was charged already, as a part of
    something else."""
    with thrown_away():
        yield


def _tried(run: Callable[[], tuple[float, T]]) -> tuple[float, T] | None:
    """A try, or None where it failed: an error would tell of one that is to stay secret."""
    try:
        score, result = run()
        return (float(score), result) if math.isfinite(score) else None
    except Exception:
        return None
