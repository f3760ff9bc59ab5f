"""Every strategy is the matrix that it says it is: in its products, in what it takes back, in what is left, in what it keeps."""

from __future__ import annotations

import gc
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from dperm._family import members
from dperm._types import Array
from dperm.gradient.correlation import (
    LARGEST_KEPT,
    Apart,
    Independent,
    Once,
    Periodic,
    Strategy,
    Toeplitz,
    Workload,
    predicted_error,
    strategies,
)
from dperm.gradient.correlation.banded_toeplitz import BandedToeplitz
from dperm.gradient.correlation.buffered import Buffered
from dperm.gradient.correlation.given_matrix import GivenMatrix
from dperm.gradient.correlation.inverse_square_root import InverseSquareRoot
from dperm.gradient.correlation.square_root import BandedSquareRoot
from helpers.policies import all_policies, example

STEPS, LONG = 12, 40
_LAGS = np.subtract.outer(np.arange(LONG), np.arange(LONG))
_SIGNED = np.tril(np.random.default_rng(0).normal(size=(LONG, LONG)), -1) * (_LAGS < 4) + np.eye(LONG)


class Other(Toeplitz):
    """Coefficients of a test's."""

    def __init__(self, values: tuple[float, ...]) -> None:
        object.__setattr__(self, "values", values)

    def coefficients(self, steps: int) -> Array:
        return np.array(vars(self)["values"])


#: some that differ
_CHOSEN: list[Strategy] = [
    Independent(),
    BandedToeplitz(4),
    BandedToeplitz(40),
    BandedToeplitz(3, Workload(momentum=0.9, of="mean", mean_from=0.5)),
    BandedSquareRoot(5, momentum=0.5, decay=0.9),
    InverseSquareRoot(3),
    InverseSquareRoot(4, momentum=0.9),
    Buffered(2, 3),
    Other((1.0, 0.5, -0.7, 0.1)),
    GivenMatrix.of(_SIGNED),
]
all_policies()  # imports every module
#: and one of each kind that is not among them
EXAMPLES = [*_CHOSEN, *(example(kind) for kind in members(Strategy) if kind not in set(map(type, _CHOSEN)))]
WORKLOADS = [
    Workload(),
    Workload(of="all"),
    Workload(momentum=0.9, of="mean", mean_from=0.5),
    Workload(0.5, 0.1, tuple(np.linspace(1.0, 0.1, STEPS).tolist())),
    Workload(0.5, 0.1, tuple(np.linspace(1.0, 0.1, STEPS).tolist()), of="mean", mean_from=0.25),
    Workload(0.3, 0.1, (0.7,) * STEPS, of="all"),
]


@pytest.mark.parametrize("steps", [STEPS, LONG])
@pytest.mark.parametrize("strategy", EXAMPLES, ids=repr)
def test_a_strategy_is_its_matrix(strategy: Strategy, steps: int) -> None:
    matrix = strategy.matrix(steps)
    assert np.all(np.triu(matrix, 1) == 0) and np.all(np.diag(matrix) == 1)
    lags = np.subtract.outer(np.arange(steps), np.arange(steps))
    assert strategy.bands(steps) == lags[matrix != 0].max() + 1
    gram = np.abs(matrix).T @ np.abs(matrix)  # noise that is cut leaves entries of both signs that do not cancel
    for lag in range(steps):
        told = strategy.products(steps, lag)
        assert told == pytest.approx(np.diagonal(gram, lag), rel=1e-10, abs=1e-12)
    for participation in (Once(), Periodic(3), Apart(4, 2)):
        charged = strategy.squared_sensitivity(participation, steps)
        assert charged == pytest.approx(GivenMatrix.of(matrix).squared_sensitivity(participation, steps), rel=1e-9)
    assert strategy.deviations(steps) == pytest.approx(np.linalg.norm(np.linalg.inv(matrix), axis=1), rel=1e-9)


def test_texts_tell_strategies_apart() -> None:
    for steps in (STEPS, LONG):
        told: dict[str, Strategy] = {}
        for strategy in EXAMPLES:
            same = told.setdefault(strategy.fingerprint(steps), strategy)
            assert np.array_equal(same.matrix(steps), strategy.matrix(steps)), f"{same!r} and {strategy!r}"


@pytest.mark.parametrize("strategy", EXAMPLES, ids=repr)
def test_a_run_in_parts_moves_no_more_where_a_strategy_says_so(strategy: Strategy) -> None:
    if not strategy.restarts(LONG):
        return
    for period in (1, 4, 10, 20):
        whole = strategy.squared_sensitivity(Periodic(period), LONG)
        for cut in range(period, LONG, period):  # runs go on where a period begins, with new places of the records
            blocks = [strategy.matrix(LONG)[:size, :size] for size in (cut, LONG - cut)]
            moved = sum(GivenMatrix.of(block).squared_sensitivity(Periodic(period), len(block)) for block in blocks)
            assert moved <= whole * (1 + 1e-9)


@pytest.mark.parametrize("steps", [STEPS, LONG])
@pytest.mark.parametrize("strategy", EXAMPLES, ids=repr)
def test_what_is_released_is_the_sums_with_noise_that_the_inverse_correlates(strategy: Strategy, steps: int) -> None:
    """Ĝ = G + C⁻¹Z, from what is kept; and C·Ĝ = C·G + Z, which is what the noise is charged for. Runs share nothing, and numbers
    are treated each by itself."""
    rng, matrix = np.random.default_rng(1), strategy.matrix(steps)
    sums, fresh = rng.normal(size=(2, steps, 3))
    memory, other, released = strategy.memory(steps, math.inf), strategy.memory(steps, math.inf), np.zeros((steps, 3))
    for step in range(steps):
        query = memory.query(sums[step])
        alone = other.query(sums[step, 1:])
        assert alone == pytest.approx(query[1:], rel=1e-12)
        released[step] = query + fresh[step]
        memory.keep(released[step])
        other.keep(released[step, 1:])
    assert released == pytest.approx(sums + np.linalg.solve(matrix, fresh), rel=1e-9)
    assert matrix @ released == pytest.approx(matrix @ sums + fresh, rel=1e-9)


@pytest.mark.parametrize("strategy", EXAMPLES, ids=repr)
def test_rounding_brings_queries_no_further_apart_than_it_says(strategy: Strategy) -> None:
    """On a grid of step 1, with sums of up to 2⁵², which a double is a quarter of a step away from, and noise of up to 2⁴⁰."""
    rng, matrix, numbers = np.random.default_rng(3), strategy.matrix(STEPS), 3000
    exact = rng.integers(-(2**62) + 2**21, 2**62 - 2**21, size=(STEPS, numbers))  # in units of 2⁻¹⁰
    moved = rng.integers(-(2**20), 2**20, size=(STEPS, numbers))
    runs = [strategy.memory(STEPS, LARGEST_KEPT) for _ in range(2)]
    noise = np.rint(rng.normal(0, 2.0**36, size=(STEPS, numbers)))
    furthest = 0.0
    for step in range(STEPS):
        totals = [(each / 2.0**10) for each in (exact[step].astype(np.float64), (exact[step] + moved[step]).astype(np.float64))]
        queries = [np.rint(memory.query(total)) for memory, total in zip(runs, totals, strict=True)]
        released = totals[0] + noise[step]
        for memory in runs:
            memory.keep(released)
        apart = queries[1] - queries[0] - matrix[step, : step + 1] @ (moved[: step + 1] / 2.0**10)
        furthest = max(furthest, float(np.abs(apart).max()))
    told = strategy.rounding(STEPS)
    assert told / 8 < furthest <= told


def arrays(value: Any, size: int) -> Iterator[Array]:
    """The arrays (…, size) that something holds, in lists and attributes too."""
    if isinstance(value, np.ndarray):
        if value.shape[-1:] == (size,):
            yield value
        return
    held = value.values() if isinstance(value, dict) else vars(value).values() if hasattr(value, "__dict__") else ()
    for part in value if isinstance(value, list | tuple | set) else held:
        yield from arrays(part, size)


@pytest.mark.parametrize("strategy", EXAMPLES, ids=repr)
def test_a_strategy_keeps_as_many_vectors_as_it_says(strategy: Strategy) -> None:
    memory = strategy.memory(STEPS, math.inf)
    for _ in range(STEPS):
        memory.keep(memory.query(np.zeros(7)) + 1)
    assert sum(array.size for array in arrays(memory, 7)) == 7 * strategy.kept(STEPS)


@pytest.mark.parametrize("strategy", EXAMPLES, ids=repr)
def test_nothing_that_is_kept_goes_beyond_its_limit(strategy: Strategy) -> None:
    owed: list[Any] = []
    for limit in (2.0, math.inf):
        memory = strategy.memory(STEPS, limit)
        for _ in range(STEPS - 1):
            memory.query(np.zeros(2))
            memory.keep(np.full(2, 1e6))
            assert all(np.all(np.abs(array) <= limit) for array in arrays(memory, 2))
        owed.append(-memory.query(np.zeros(2)))
    if not strategy.kept(STEPS):
        assert not np.any(owed)
        return
    assert np.all(np.abs(owed[0]) <= 2.0 * np.abs(strategy.matrix(STEPS)).sum(axis=1).max())
    assert np.all(np.abs(owed[1]) > 1e4)  # which it does without one


def trained_noise(workload: Workload, matrix: Array) -> float:
    """The workload's sum of squares, by training on unit noise in each step in turn: SGD as it is written down."""
    steps = len(matrix)
    rates = workload.learning_rates or (1.0,) * steps
    theta, velocity, iterates = np.zeros(steps), np.zeros(steps), []
    for gradient, rate in zip(np.linalg.inv(matrix), rates, strict=True):
        velocity = workload.momentum * velocity + gradient
        theta = (1 - rate * workload.weight_decay) * theta + rate * velocity
        iterates.append(theta)
    if workload.of == "all":
        return float(np.mean(np.sum(np.square(iterates), axis=1)))
    counted = iterates[-1:] if workload.of == "last" else iterates[int(workload.mean_from * steps) :]
    return float(np.sum(np.mean(counted, axis=0) ** 2))


@pytest.mark.parametrize("workload", WORKLOADS, ids=repr)
@pytest.mark.parametrize("strategy", EXAMPLES, ids=repr)
def test_what_is_left_of_the_noise_is_what_training_leaves(strategy: Strategy, workload: Workload) -> None:
    left = strategy.remaining(workload, STEPS)
    assert left**2 == pytest.approx(trained_noise(workload, strategy.matrix(STEPS)), rel=1e-9)
    assert predicted_error(strategy, Once(), workload, STEPS) == pytest.approx(
        math.sqrt(strategy.squared_sensitivity(Once(), STEPS)) * left
    )


def test_the_square_root_is_one() -> None:
    for momentum, decay in ((0.0, 1.0), (0.9, 0.95)):
        root = BandedSquareRoot(STEPS, momentum, decay).matrix(STEPS)
        inverse = InverseSquareRoot(STEPS, momentum, decay).matrix(STEPS)
        lags = np.arange(STEPS)
        sums = np.convolve(momentum**lags, decay**lags)[:STEPS]
        assert (root @ root)[:, 0] == pytest.approx(sums, rel=1e-12)
        assert inverse == pytest.approx(root, rel=1e-12)


@pytest.mark.parametrize("workload", [each for each in WORKLOADS if not each.learning_rates], ids=repr)
@pytest.mark.parametrize("width", [2, 5, 16])
def test_the_best_of_some_bands_is_better_than_all_that_are_near_it(width: int, workload: Workload) -> None:
    steps, participation = 60, Periodic(20)
    best = BandedToeplitz(width, workload)
    error = predicted_error(best, participation, workload, steps)
    assert error <= predicted_error(BandedSquareRoot(width, workload.momentum), participation, workload, steps)
    assert error < predicted_error(Independent(), participation, workload, steps)
    rng = np.random.default_rng(2)
    for _ in range(40):
        other = best.coefficients(steps).copy()
        other[1:] = np.clip(other[1:] + 0.02 * rng.normal(size=width - 1), -1, 1)
        assert error <= predicted_error(Other(tuple(other.tolist())), participation, workload, steps) * (1 + 1e-9)


def test_more_bands_and_more_buffers_leave_less() -> None:
    steps, participation, workload = 400, Periodic(100), Workload(of="all")
    by_bands = [predicted_error(BandedToeplitz(width, workload), participation, workload, steps) for width in (1, 2, 4, 16, 64)]
    assert by_bands == sorted(by_bands, reverse=True) and by_bands[-1] < 0.3 * by_bands[0]
    by_buffers = [predicted_error(Buffered(count, 100, workload), participation, workload, steps) for count in (1, 2, 3)]
    assert by_buffers == sorted(by_buffers, reverse=True)
    assert by_buffers[1] < 1.02 * by_bands[-1]


def test_a_buffer_may_be_added_to_one_that_ended_as_near_to_1_as_there_are() -> None:
    """Its coefficients used to be no numbers: the search began infinitely far off."""
    errors = [predicted_error(Buffered(count, 4), Periodic(4), Workload(), 12) for count in (2, 3)]
    assert errors[1] == pytest.approx(errors[0], rel=1e-3)


def test_a_strategy_that_is_asked_for_again_is_not_searched_for_again() -> None:
    first = BandedToeplitz(8, Workload(momentum=0.3)).coefficients(500)
    assert BandedToeplitz(8, Workload(momentum=0.3)).coefficients(500) is first
    with pytest.raises(ValueError, match="read-only"):
        first[1] = 0.0


@pytest.mark.parametrize("word", [word for word in strategies() if word != "none"])
def test_a_word_makes_a_strategy_for_a_run(word: str) -> None:
    kind = strategies()[word]
    made = [kind.for_run(3, Periodic(5), Workload(momentum=momentum)) for momentum in (0.0, 0.5, 0.5)]
    assert type(made[0]) is kind and kind.widest >= 2
    assert 1 <= made[0].kept(30) <= 3
    assert made[0].fingerprint(30) != made[1].fingerprint(30) == made[2].fingerprint(30)
    if kind.banded:
        assert made[0].bands(30) <= 3
    decayed = kind.for_run(3, Periodic(5), Workload(weight_decay=0.5, learning_rates=(0.01,) * 30))
    assert decayed.remaining(Workload(), 30) == pytest.approx(made[0].remaining(Workload(), 30), rel=0.05)


def test_a_word_of_another_s_is_refused() -> None:
    kind = type("Second", (Buffered,), {"__module__": "dperm.planted", "paper": "none"})
    try:
        with pytest.raises(ValueError, match=r"a word of its own for (Second|Buffered), got 'buffered'"):
            strategies()
    finally:
        del kind
        gc.collect()  # so that nobody else finds it
    assert strategies()["buffered"] is Buffered


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([[1.0, 0.5], [0.0, 1.0]], "lower-triangular"),
        ([[2.0, 0.0], [0.0, 1.0]], "ones on its diagonal"),
        ([[1.0, 0.0]], "square"),
        ([[1.0, 0.0], [math.nan, 1.0]], "finite"),
    ],
)
def test_a_matrix_that_is_no_strategy_is_refused(rows: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GivenMatrix(rows)
    with pytest.raises(ValueError, match="for 5 steps, got one for 2"):
        GivenMatrix.of(np.eye(2)).products(5, 0)
