"""Every strategy is the matrix that it says it is: in its products, in what it takes back, in what is left, in what it keeps."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from dperm._family import members
from dperm._types import Array
from dperm.gradient.correlation import (
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

STEPS = 12
_RNG = np.random.default_rng(0)
_SIGNED = np.tril(_RNG.normal(size=(STEPS, STEPS)), -1) * (np.subtract.outer(np.arange(STEPS), np.arange(STEPS)) < 4) + np.eye(
    STEPS
)

#: one of each, and some that differ
EXAMPLES: list[Strategy] = [
    Independent(),
    BandedToeplitz(4),
    BandedToeplitz(40),
    BandedToeplitz(3, Workload(momentum=0.9, of="mean", mean_from=0.5)),
    BandedSquareRoot(5, momentum=0.5, decay=0.9),
    InverseSquareRoot(3),
    InverseSquareRoot(4, momentum=0.9),
    Buffered(2, 3),
    GivenMatrix.of(_SIGNED),
]
WORKLOADS = [
    Workload(),
    Workload(of="all"),
    Workload(momentum=0.9, of="mean", mean_from=0.4),
    Workload(0.5, 0.1, tuple(np.linspace(1.0, 0.1, STEPS).tolist())),
    Workload(0.5, 0.1, tuple(np.linspace(1.0, 0.1, STEPS).tolist()), of="mean", mean_from=0.3),
    Workload(0.3, 0.1, (0.7,) * STEPS, of="all"),
]


def test_every_strategy_is_here() -> None:
    assert {type(each) for each in EXAMPLES} == set(members(Strategy)), "a strategy without an example: add one to EXAMPLES"


@pytest.mark.parametrize("strategy", EXAMPLES, ids=repr)
def test_a_strategy_is_its_matrix(strategy: Strategy) -> None:
    matrix = strategy.matrix(STEPS)
    assert np.all(np.triu(matrix, 1) == 0) and np.all(np.diag(matrix) == 1)
    lags = np.subtract.outer(np.arange(STEPS), np.arange(STEPS))
    assert strategy.bands(STEPS) == lags[matrix != 0].max() + 1
    gram = np.abs(matrix).T @ np.abs(matrix)  # noise that is cut leaves entries of both signs that do not cancel
    for lag in range(STEPS):
        told = strategy.products(STEPS, lag)
        assert told == pytest.approx(np.diagonal(gram, lag), rel=1e-10, abs=1e-12)
    for participation in (Once(), Periodic(3), Apart(4, 2)):
        charged = strategy.squared_sensitivity(participation, STEPS)
        assert charged == pytest.approx(GivenMatrix.of(matrix).squared_sensitivity(participation, STEPS), rel=1e-9)


@pytest.mark.parametrize("strategy", EXAMPLES, ids=repr)
def test_what_is_released_is_the_sums_with_noise_that_the_inverse_correlates(strategy: Strategy) -> None:
    """Ĝ = G + C⁻¹Z, from what is kept; and C·Ĝ = C·G + Z, which is what the noise is charged for."""
    rng, matrix = np.random.default_rng(1), strategy.matrix(STEPS)
    sums, fresh = rng.normal(size=(2, STEPS, 3))
    memory, released = strategy.memory(STEPS, math.inf), np.zeros((STEPS, 3))
    for step in range(STEPS):
        released[step] = memory.query(sums[step]) + fresh[step]
        memory.keep(released[step])
    assert released == pytest.approx(sums + np.linalg.solve(matrix, fresh), rel=1e-9)
    assert matrix @ released == pytest.approx(matrix @ sums + fresh, rel=1e-9)


@pytest.mark.parametrize("strategy", EXAMPLES, ids=repr)
def test_a_strategy_keeps_as_many_vectors_as_it_says(strategy: Strategy) -> None:
    steps = STEPS
    memory, vector = strategy.memory(steps, math.inf), np.zeros(7)
    for _ in range(steps):
        memory.keep(memory.query(vector) + 1)
    kept = sum(held.size for held in vars(memory).values() if isinstance(held, np.ndarray) and held.shape[1:] == (7,)) // 7
    assert kept == strategy.kept(steps)


@pytest.mark.parametrize("strategy", EXAMPLES, ids=repr)
def test_nothing_that_is_kept_goes_beyond_its_limit(strategy: Strategy) -> None:
    owed: list[Any] = []
    for limit in (2.0, math.inf):
        memory = strategy.memory(STEPS, limit)
        for _ in range(STEPS - 1):
            memory.query(np.zeros(2))
            memory.keep(np.full(2, 1e6))
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


class Other(Toeplitz):
    """Coefficients of a test's."""

    def __init__(self, values: tuple[float, ...]) -> None:
        object.__setattr__(self, "values", values)

    def coefficients(self, steps: int) -> Array:
        return np.array(vars(self)["values"])


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


def test_a_run_of_coefficients_of_both_signs_does_not_go_on() -> None:
    """What a record moved before an interruption may have cancelled a part of what it moves after it."""
    assert Other((1.0, 0.5, 0.2)).restarts(8) and not Other((1.0, 0.5, -0.2)).restarts(8)


def test_a_strategy_that_is_asked_for_again_is_not_searched_for_again() -> None:
    first = BandedToeplitz(8, Workload(momentum=0.3)).coefficients(500)
    assert BandedToeplitz(8, Workload(momentum=0.3)).coefficients(500) is first
    with pytest.raises(ValueError, match="read-only"):
        first[1] = 0.0


@pytest.mark.parametrize("word", [word for word in strategies() if word != "none"])
def test_a_word_makes_a_strategy_for_a_run(word: str) -> None:
    made = strategies()[word].for_run(3, Periodic(5), Workload(momentum=0.5))
    assert made.kept(30) in (2, 3) and isinstance(made, strategies()[word])


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
