"""Warnings about what is allowed and is seldom meant. They are for the data holder: some look at the data.

Each is given once in a process, also where the fits of a loop or of a search deserve it: it is one reminder while what is public
of it, such as a range or δ, stays the same. One that a filter ignores counts as not given.
"""

from __future__ import annotations

import warnings
from collections.abc import Hashable
from typing import Any

import numpy as np

_MUCH = 100.0  # of ε: odds of 1e-43 may become even
_LIKELY = 0.25  # of δ
_MANY_CLIPPED = 0.05  # of the targets
_ROWS, _COLUMNS, _BLOCK, _CLOSE = 20, 50, 8192, 1e-5


#: the reminders that were given in this process
given: set[Hashable] = set()


def remind(about: Hashable, text: str, *, stacklevel: int) -> None:
    """Warn by `text`, once in a process for what it is `about`: public values alone, as numbers of records change from fit to
    fit."""
    if about in given:
        return
    warnings.warn(text, UserWarning, stacklevel=stacklevel + 1)
    if not _ignored(text):
        given.add(about)


def _ignored(text: str) -> bool:
    """Whether the first filter that may apply to this warning, wherever it is given, ignores it."""
    for action, message, category, module, _line in warnings.filters:
        pattern: Any = message  # a text, or a compiled pattern
        fits = pattern is None or (pattern.match(text) if hasattr(pattern, "match") else text.startswith(str(pattern)))
        if issubclass(UserWarning, category) and fits and module is None:
            return action == "ignore"
    return False


def weakness(epsilon: float, delta: float) -> str:
    """What to say of a budget that keeps little from anybody; nothing of others."""
    if delta >= _LIKELY:
        return f"delta = {delta:g} lets a mechanism give all away with that probability: it promises next to nothing."
    if epsilon > _MUCH:
        return f"epsilon = {epsilon:.4g} lets one record change odds by a factor of e to it: it promises next to nothing."
    return ""


def remind_of_budget(epsilon: float, delta: float, *, stacklevel: int) -> None:
    """Needs no data: from the budget alone."""
    if text := weakness(epsilon, delta):
        remind(("budget", epsilon, delta), text, stacklevel=stacklevel + 1)


def remind_of_delta(delta: float, size: int, *, stacklevel: int) -> None:
    if delta >= 1 / size:
        remind(
            ("delta", delta),
            f"delta = {delta:g} >= 1/n = {1 / size:.3g}: a mechanism that publishes one whole record would pass. "
            "Choose a smaller delta.",
            stacklevel=stacklevel + 1,
        )


def remind_of_persons(persons: int, rows: int, *, stacklevel: int, unit: str = "person") -> None:
    """Warn about a column of persons that makes every row a person of its own, or all rows one person. `unit` is the word for a
    person."""
    if persons == rows > 1:
        alike = "each a person"
        text = f"Every row is a {unit} of its own by these groups: is that the column meant?"
    elif persons == 1 < rows:
        alike = "all one person"
        text = f"All {rows} rows are one {unit}'s by these groups: is that the column meant?"
    else:
        return
    remind(("persons", alike), text, stacklevel=stacklevel + 1)


def remind_of_size(public_size: int, records: int, consequence: str, *, stacklevel: int, whom: str = "records") -> None:
    """`consequence` of a number that is stated and is far from the number of records."""
    if not records / 2 <= public_size <= 2 * records:
        text = f"public_size = {public_size}, but there are {records} {whom}: {consequence}"
        remind(("size", public_size, whom), text, stacklevel=stacklevel + 1)


def beyond(ends: tuple[float, float], targets: Any) -> tuple[int, int, int]:
    """How many of the targets (n,) lie below a range, how many above it, and how many there are."""
    low, high = ends
    numbers = np.asarray(targets, dtype=np.float64)
    return int(np.count_nonzero(numbers < low)), int(np.count_nonzero(numbers > high)), len(numbers)


def remind_of_clipped_targets(counted: tuple[int, int, int], ends: tuple[float, float], *, stacklevel: int) -> None:
    """Warn if many targets lie outside the public range `ends`, to which they are clipped. `counted`: see `beyond`."""
    low, high = ends
    below, above, size = counted
    if below + above > _MANY_CLIPPED * size:
        remind(
            ("clipped targets", low, high),
            f"{below + above:,} of {size:,} targets lie outside [{low:g}, {high:g}] ({below:,} below, {above:,} above) "
            "and are clipped to it. State the range that is publicly known of the target: target_range=(low, high). This is for "
            "the data holder alone.",
            stacklevel=stacklevel + 1,
        )


def remind_of_clipped_weights(weights: Any, bound: float | None, *, stacklevel: int) -> None:
    """Warn if some of the validated weights (n,) are above the public `bound`, to which each of them is clipped."""
    own = np.asarray(weights, dtype=np.float64)
    above = 0 if bound is None else int(np.count_nonzero(own > bound))
    if above:
        remind(
            ("clipped weights", bound),
            f"{above:,} of {len(own):,} weights are above {bound:g} and count as {bound:g}: state the largest that is publicly "
            "known (max_sample_weight=…). This is for the data holder alone.",
            stacklevel=stacklevel + 1,
        )


def remind_of_scaling(rows: Any, *, stacklevel: int) -> None:
    """Of columns that are scaled by the rows themselves, as a StandardScaler in front of an estimator does: the model is private
    then, what scaled its rows is not."""
    if not isinstance(rows, np.ndarray) or len(rows) < _ROWS:
        return
    with np.errstate(over="ignore", invalid="ignore"):  # rows may be huge: these are no scaler's
        sums = squares = np.zeros(min(rows.shape[1], _COLUMNS))
        for start in range(0, len(rows), _BLOCK):  # a mapped file is not copied
            part = rows[start : start + _BLOCK, :_COLUMNS].astype(np.float64)
            sums, squares = sums + part.sum(axis=0), squares + np.square(part).sum(axis=0)
        mean = sums / len(rows)
        variance = squares / len(rows) - mean**2
    if np.all(np.abs(mean) <= _CLOSE) and np.all(np.abs(variance - 1.0) <= _CLOSE):
        remind(
            "scaling",
            "All columns have mean 0 and variance 1, as by a StandardScaler: if the rows told how to scale them, that is neither "
            "private nor charged. Scale by public ranges: PublicRangeScaler, or a schema.",
            stacklevel=stacklevel + 1,
        )
