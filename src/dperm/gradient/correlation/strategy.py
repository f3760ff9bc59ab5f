"""Strategies: what noise of earlier steps a step takes back, how far a record then moves all releases, and what that leaves."""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from array_api_compat import array_namespace, device
from scipy.signal import lfilter

from dperm import _validate as check
from dperm._family import by_word
from dperm._types import Array
from dperm.gradient.correlation.participation import Participation, squared_sensitivity
from dperm.gradient.correlation.workload import Workload

#: in grid steps: where noise that is kept is cut, so that what a step takes back is nearly exact
LARGEST_KEPT = 2.0**40
_DOUBLE = 2.0**-53


class Memory(ABC):
    """The noise of earlier steps that later ones take back: private, for it is what was released less what the records gave."""

    @abstractmethod
    def query(self, total: Any) -> Any:
        """The next step's query (p,) in double precision: the sum (p,) of what the records give, less what is taken back. Another
        array than any that is kept."""

    @abstractmethod
    def keep(self, released: Any) -> None:
        """Take in what was released in that step, Ĝ (p,), which stays as it is."""


class Last(Memory):
    """The noise of the last steps, in full, Ĝ − G; what is taken back is a linear function of it.

    `coefficients` are those of the step before, of the one before that, and so on; `limit` is where noise is cut.
    """

    def __init__(self, coefficients: Sequence[float], limit: float) -> None:
        self._coefficients, self._limit = np.array(coefficients, dtype=np.float64), limit
        self._noise: Any = None  # (bands − 1, p), the noise of step t in row t mod (bands − 1); of a step in progress, its sum
        self._step = 0

    def query(self, total: Any) -> Any:
        if not len(self._coefficients):
            return doubles(total)
        if self._noise is None:
            self._noise = no_noise(len(self._coefficients), total)
        place = self._place
        query = weighted(-np.roll(self._by_age(), place), self._noise)
        self._noise[place, ...] = total  # in place of the oldest noise, which no later step takes back
        query += self._noise[place]
        return query

    @property
    def _place(self) -> int:
        return self._step % len(self._coefficients)

    def _by_age(self) -> Array:
        """The coefficients of what is kept, the oldest first."""
        return self._coefficients[::-1]

    def keep(self, released: Any) -> None:
        if len(self._coefficients):
            noise_of(released, self._noise[self._place], self._limit)
            self._step += 1


def doubles(array: Any) -> Any:
    """The same numbers in double precision, in another array."""
    xp = array_namespace(array)
    return xp.astype(array, xp.float64, copy=True)


def no_noise(count: int, like: Any) -> Any:
    """(count, p) of zeros in double precision, for vectors (p,) like this one."""
    xp = array_namespace(like)
    return xp.zeros((count, *like.shape), dtype=xp.float64, device=device(like))


def weighted(coefficients: Array, arrays: Any) -> Any:
    """Σ of coefficient × array, of arrays (k, p) of one backend."""
    xp = array_namespace(arrays)
    return xp.tensordot(xp.asarray(coefficients, dtype=arrays.dtype, device=device(arrays)), arrays, axes=1)


def noise_of(released: Any, total: Any, limit: float) -> Any:
    """The noise of a release: what was released less the total, cut at ±limit. It overwrites the total."""
    total *= -1
    total += released
    cut(total, limit)
    return total


def cut(array: Any, limit: float) -> None:
    """In place, so that no number is beyond ±limit: that brings no two arrays further apart. Seldom is any."""
    xp = array_namespace(array)
    if 0 not in array.shape and not (xp.max(array) <= limit and xp.min(array) >= -limit):
        array[...] = xp.clip(array, -limit, limit)


@dataclass(frozen=True)
class Strategy(ABC):
    """A lower-triangular matrix C with ones on its diagonal, fixed by public numbers.

    A step's query is its sum less what it takes back, G_t − Σ_{j<t} C[t, j]·(Ĝ_j − G_j), and what is released is Ĝ_t. That is
    the release of (C·G)_t + Z_t: the two differ by Σ_{j<t} C[t, j]·Ĝ_j, which everybody knows.
    """

    #: `correlation=` of recipes; empty: there is no word for it
    word: ClassVar[str] = ""
    #: where it is published
    paper: ClassVar[str] = ""
    #: the most bands, or buffers, that a rule chooses, where they cost nothing but memory: more gain next to nothing. At least 2,
    #: for 1 stands for no correlation
    widest: ClassVar[int] = 64
    #: whether C has no more bands than the width says, so that records may take turns in as many groups
    banded: ClassVar[bool] = True
    #: whether it treats every number of a sum by itself
    coordinatewise = True

    @classmethod
    def for_run(cls, width: int, participation: Participation, workload: Workload) -> Strategy:
        """That of this `width`, as bands or buffers, for records that take part so, and for this workload."""
        raise ValueError(f"Expected a {cls.__name__} of your own to be handed to a plan: it has no rule for its settings.")

    @abstractmethod
    def bands(self, steps: int) -> int:
        """The number of diagonals of C, beside which it is zero, for a run of so many steps."""

    @abstractmethod
    def products(self, steps: int, lag: int) -> Array:
        """(steps − lag,) the inner products of column i of |C| with column i + lag, for every i; never too small.

        Of entries by size: where a step's noise is cut as it is kept, later steps take back less of what a record gave to it than
        C says, and entries of both signs no longer cancel. Otherwise whatever is left of each entry moves no more than all of it.
        """

    @abstractmethod
    def memory(self, steps: int, limit: float, first: int = 0) -> Memory:
        """What a run of so many steps keeps; no number of it beyond ±limit. A run that goes on at step `first` after an
        interruption keeps nothing of those before."""

    @abstractmethod
    def restarts(self, steps: int) -> bool:
        """Whether a record moves no more in all if the run is interrupted, and goes on with a later period, new places of the
        records and nothing kept."""

    @abstractmethod
    def kept(self, steps: int) -> int:
        """How many vectors of the model's size a run keeps."""

    @abstractmethod
    def matrix(self, steps: int) -> Array:
        """(steps, steps) C itself: of short runs."""

    @abstractmethod
    def remaining(self, workload: Workload, steps: int) -> float:
        """The root of the workload's sum of squares of C⁻¹Z, for independent Z of one unit."""

    @abstractmethod
    def deviations(self, steps: int) -> Array:
        """(steps,) the standard deviation of each number of C⁻¹Z, row by row: of the noise that an update sees, for independent Z
        of one unit."""

    @abstractmethod
    def rounding(self, steps: int) -> float:
        """How far apart rounding may bring a number of C·G of two neighbours in one step, in units of the grid's step."""

    def fingerprint(self, steps: int) -> str:
        """A text that tells its numbers from others: those that are found numerically may differ between machines."""
        return repr(self)

    def squared_sensitivity(self, participation: Participation, steps: int) -> float:
        """How far one record moves all releases together, squared, in units of the longest vector that it contributes."""
        return squared_sensitivity(lambda lag: self.products(steps, lag), participation, steps, self.bands(steps))


@dataclass(frozen=True)
class Independent(Strategy):
    """No correlation: C is the identity, as in DP-SGD."""

    word = "none"

    @classmethod
    def for_run(cls, width: int, participation: Participation, workload: Workload) -> Strategy:
        return cls()

    def bands(self, steps: int) -> int:
        return 1

    def products(self, steps: int, lag: int) -> Array:
        return np.full(steps, 1.0) if lag == 0 else np.zeros(steps - lag)

    def memory(self, steps: int, limit: float, first: int = 0) -> Memory:
        return Last((), limit)

    def restarts(self, steps: int) -> bool:
        return True

    def kept(self, steps: int) -> int:
        return 0

    def matrix(self, steps: int) -> Array:
        return np.eye(steps)

    def remaining(self, workload: Workload, steps: int) -> float:
        return math.sqrt(sum(float(weights @ part**2) for part, weights in workload.functionals(steps)))

    def deviations(self, steps: int) -> Array:
        return np.ones(steps)

    def rounding(self, steps: int) -> float:
        return 3.0


@dataclass(frozen=True)
class Toeplitz(Strategy):
    """C[t, t − k] = c_k, the same in every step, with c_0 = 1."""

    @abstractmethod
    def coefficients(self, steps: int) -> Array:
        """(bands,) c_0 = 1, c_1, … of a run of so many steps."""

    def fingerprint(self, steps: int) -> str:
        return hashlib.sha256(np.ascontiguousarray(self.coefficients(steps)).tobytes()).hexdigest()

    def bands(self, steps: int) -> int:
        return len(self.coefficients(steps))

    def products(self, steps: int, lag: int) -> Array:
        found, all = np.zeros(steps - lag), np.abs(self.coefficients(steps))
        if lag < len(all):
            common = all[: len(all) - lag] * all[lag:]
            sums = np.cumsum(common)[::-1]  # the last columns have fewer rows
            found[: steps - lag] = sums[0]
            found[max(0, steps - lag - len(sums)) :] = sums[max(0, len(sums) - (steps - lag)) :]
        return found

    def memory(self, steps: int, limit: float, first: int = 0) -> Memory:
        return Last(self.coefficients(steps)[1:].tolist(), limit)

    def restarts(self, steps: int) -> bool:
        """It does not: what is charged is what |C| moves, which is no less than what C moves. By |C|, what a record moves from
        its first step i on is a part of what one moves from the first step of the run on, and rows of both parts of the run are
        moved no less if what was moved before counts in the second as well."""
        return True

    def kept(self, steps: int) -> int:
        return self.bands(steps) - 1

    def matrix(self, steps: int) -> Array:
        all = np.zeros(steps)
        all[: self.bands(steps)] = self.coefficients(steps)[:steps]
        lags = np.subtract.outer(np.arange(steps), np.arange(steps))
        return np.where(lags >= 0, all[np.maximum(lags, 0)], 0.0)

    def remaining(self, workload: Workload, steps: int) -> float:
        return math.sqrt(sum(float(weights @ self.inverted(part, steps) ** 2) for part, weights in workload.functionals(steps)))

    def deviations(self, steps: int) -> Array:
        return np.sqrt(np.cumsum(self.inverted(np.eye(1, steps)[0], steps) ** 2))

    def inverted(self, values: Array, steps: int) -> Array:
        """C⁻¹ applied to `values` (at most `steps` numbers)."""
        made: Any = lfilter([1.0], self.coefficients(steps), values)
        return made

    def rounding(self, steps: int) -> float:
        """The query, and the query on the grid, are half a grid step away from the true ones; so is the double nearest to a sum,
        and noise that is kept as far from the true one as that: twice (½ + ½ + ½·Σ|c|). What is kept is no larger than 2⁴⁰ grid
        steps, so that products and sums of doubles add no more than 2⁻¹² for each of them.
        """
        return 2.0 + float(np.abs(self.coefficients(steps)).sum()) * (1 + rounded_terms(self.kept(steps)))


def rounded_terms(count: int) -> float:
    """What rounding adds to a sum of so many products of kept noise, in half grid steps."""
    return 2 * (count + 2) * _DOUBLE * LARGEST_KEPT


@dataclass(frozen=True)
class BestFor:
    """The strategy of this kind (its word in `correlation=`) and width for whatever run it is in: for its update's workload, and
    its records' participation."""

    kind: str
    width: int

    def __post_init__(self) -> None:
        check.choice("correlation", self.kind, strategies())
        check.integer("width", self.width)

    def at(self, participation: Participation, workload: Workload) -> Strategy:
        return strategies()[self.kind].for_run(self.width, participation, workload)


def predicted_error(strategy: Strategy, participation: Participation, workload: Workload, steps: int) -> float:
    """The root of the workload's mean square of the noise in a trained model, in units of noise ÷ sensitivity: what strategies
    are compared by at equal noise multiplier."""
    return math.sqrt(strategy.squared_sensitivity(participation, steps)) * strategy.remaining(workload, steps)


def strategies() -> dict[str, type[Strategy]]:
    """dperm's strategies by the word for each in `correlation=`."""
    return by_word(Strategy, "word")
