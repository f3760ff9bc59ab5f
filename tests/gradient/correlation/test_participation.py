"""How far a record moves all releases together: never less than the worst pattern and vectors that there are."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest

from dperm._types import Array
from dperm.gradient.correlation import Apart, Once, Participation, Periodic
from dperm.gradient.correlation.given_matrix import GivenMatrix


def random_strategy(rng: np.random.Generator, steps: int, *, signed: bool, bands: int) -> Array:
    """(steps, steps) lower triangular, with ones on its diagonal."""
    matrix = rng.normal(size=(steps, steps)) * rng.choice([0.2, 1.0, 3.0])
    matrix = matrix if signed else np.abs(matrix)
    lags = np.subtract.outer(np.arange(steps), np.arange(steps))
    matrix[(lags < 0) | (lags >= bands)] = 0.0
    np.fill_diagonal(matrix, 1.0)
    return matrix


def patterns(participation: Participation, steps: int) -> list[tuple[int, ...]]:
    every = itertools.chain.from_iterable(itertools.combinations(range(steps), count) for count in range(1, steps + 1))
    return [pattern for pattern in every if participation.admits(pattern)]


def moved_by_vectors(gram: Array, rng: np.random.Generator) -> float:
    """A largest Σ_ij G_ij⟨u_i, u_j⟩ over unit vectors u_i, found by turning one after the other to where it is largest: each turn
    can only add, so that what is found is reached by vectors that there are."""
    best = 0.0
    for _ in range(3):
        vectors = rng.normal(size=(len(gram), min(4, len(gram))))
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        for _ in range(40):
            for place in range(len(gram)):
                pull = gram[place] @ vectors - gram[place, place] * vectors[place]
                if np.linalg.norm(pull) > 0:
                    vectors[place] = pull / np.linalg.norm(pull)
        best = max(best, float(np.sum(gram * (vectors @ vectors.T))))
    return best


def moved(matrix: Array, participation: Participation, rng: np.random.Generator) -> float:
    """The squared movement that some pattern and vectors reach; the largest there is, where no product of columns is negative."""
    gram = matrix.T @ matrix
    best = 0.0
    for pattern in patterns(participation, len(matrix)):
        part = gram[np.ix_(pattern, pattern)]
        best = max(best, float(part.sum()) if np.all(part >= 0) else moved_by_vectors(part, rng))
    return best


def drawn_case(rng: np.random.Generator, steps: int) -> tuple[Array, int, bool, Participation]:
    signed, bands = bool(rng.integers(2)), int(rng.integers(1, steps + 1))
    least, period = int(rng.integers(1, steps)), int(rng.integers(1, steps + 1))
    kinds: list[Participation] = [
        Once(), Periodic(period), Apart(least, int(rng.integers(1, 5))), Apart(min(least, period), period=period),
        Apart(least, int(rng.integers(1, 5)), period)
    ]  # fmt: skip
    return random_strategy(rng, steps, signed=signed, bands=bands), bands, signed, kinds[int(rng.integers(len(kinds)))]


def check_case(rng: np.random.Generator, steps: int) -> None:
    matrix, bands, signed, participation = drawn_case(rng, steps)
    charged = GivenMatrix.of(matrix).squared_sensitivity(participation, steps)
    reached = moved(matrix, participation, rng)
    assert charged >= reached * (1 - 1e-12)
    orthogonal = not isinstance(participation, Once) and bands <= participation.separation
    if isinstance(participation, Once) or orthogonal or (isinstance(participation, Periodic) and not signed):
        assert charged == pytest.approx(reached, rel=1e-9)  # the exact families


@pytest.mark.parametrize("seed", range(150))
def test_nobody_moves_more_than_is_charged(seed: int) -> None:
    rng = np.random.default_rng(seed)
    check_case(rng, int(rng.integers(2, 9)))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100))
def test_nobody_moves_more_than_is_charged_in_ten_thousand_strategies(seed: int) -> None:
    rng = np.random.default_rng([seed, 1])
    for _ in range(100):
        check_case(rng, int(rng.integers(2, 10)))
    check_case(rng, 12)


def test_signs_alone_do_not_reach_what_vectors_do() -> None:
    """Three columns whose products are all negative: vectors in a plane move more than any signs, and less than is charged."""
    gram = np.array([[1.0, -0.5, -0.5], [-0.5, 1.0, -0.5], [-0.5, -0.5, 1.0]]) + 0.3 * np.eye(3)
    matrix = np.linalg.cholesky(gram[::-1, ::-1])[::-1, ::-1].T  # gram = matrixᵀ·matrix, matrix lower triangular
    assert matrix.T @ matrix == pytest.approx(gram)
    matrix = matrix / np.diag(matrix)
    products = matrix.T @ matrix
    signs = max(float(np.array(s) @ products @ np.array(s)) for s in itertools.product((1, -1), repeat=3))
    vectors = moved_by_vectors(products, np.random.default_rng(0))
    assert signs * 1.001 < vectors <= GivenMatrix.of(matrix).squared_sensitivity(Periodic(1), 3)


@pytest.mark.parametrize("cut", [False, True])
def test_noise_that_is_cut_as_it_is_kept_is_charged_for(cut: bool) -> None:
    """Two columns that are orthogonal: where the second step's noise is cut, what it moves no longer cancels the first one's."""
    matrix = np.eye(4)
    matrix[2, 0], matrix[3, 0], matrix[3, 2] = 4.0, -4.0, 1.0
    strategy = GivenMatrix.of(matrix)
    queries: list[list[float]] = []
    for moved in (0.0, 1.0):
        memory, asked = strategy.memory(4, 100.0), list[float]()
        for step in range(4):
            asked.append(float(memory.query(np.array([moved * (step in (0, 2))]))[0]))
            memory.keep(np.array([1000.0 if cut and step == 2 else 0.5]))
        queries.append(asked)
    square = float(np.sum(np.square(np.subtract(queries[1], queries[0]))))
    assert square == (42.0 if cut else 35.0)
    assert square <= strategy.squared_sensitivity(Periodic(2), 4)


@pytest.mark.parametrize("seed", range(40))
def test_the_bound_on_steps_apart_is_over_patterns_of_patterns(seed: int) -> None:
    """Σ over the steps of a pattern of what each has in common, at most, with the steps of a pattern that it is in."""
    rng = np.random.default_rng([seed, 2])
    steps, most = int(rng.integers(2, 9)), None if seed % 2 else int(rng.integers(1, 5))
    participation = Apart(int(rng.integers(1, 4)), most, int(rng.integers(1, 5)))
    matrix = random_strategy(rng, steps, signed=False, bands=int(rng.integers(1, steps + 1)))
    gram, every = matrix.T @ matrix, patterns(participation, steps)
    common = [max(float(gram[step, p].sum()) for p in map(list, every) if step in p) for step in range(steps)]
    bound = max(sum(common[step] for step in pattern) for pattern in every)
    assert GivenMatrix.of(matrix).squared_sensitivity(participation, steps) == pytest.approx(bound, rel=1e-9)


@pytest.mark.parametrize(
    ("participation", "bands", "known"),
    [
        (Apart(3, period=5), 3, True),
        (Apart(3, period=5), 4, False),
        (Apart(5, period=5), 5, True),
        (Apart(6, period=5), 3, False),
        (Apart(3, 2, 5), 3, False),  # at most twice in each part would be four times
        (Periodic(3), 50, True),
    ],
)
def test_of_which_records_it_is_proved_that_new_places_move_them_no_more(
    participation: Participation, bands: int, known: bool
) -> None:
    assert participation.restarts(bands) is known


def one_by_one(gram: Array, least: int, most: int) -> float:
    """The planted defect: steps are chosen from the first on, each for what it adds to those that were chosen before it."""
    steps = len(gram)
    best: dict[tuple[int, int], tuple[float, tuple[int, ...]]] = {}
    for last in range(steps):
        best[1, last] = float(gram[last, last]), (last,)
        for count in range(2, most + 1):
            for before in range(last - least + 1):
                if (count - 1, before) in best:
                    value, chosen = best[count - 1, before]
                    value += float(gram[last, last] + 2 * gram[last, list(chosen)].sum())
                    best[count, last] = max(best.get((count, last), (0.0, ())), (value, (*chosen, last)))
    return max(value for value, _ in best.values())


def test_steps_that_are_chosen_one_by_one_are_not_the_worst() -> None:
    rng, ratio = np.random.default_rng(5), 1.0
    for _ in range(300):
        matrix = random_strategy(rng, 9, signed=False, bands=9)
        gram, participation = matrix.T @ matrix, Apart(2, 3)
        truth = max(float(gram[np.ix_(p, p)].sum()) for p in patterns(participation, 9))
        assert GivenMatrix.of(matrix).squared_sensitivity(participation, 9) >= truth
        ratio = min(ratio, one_by_one(gram, 2, 3) / truth)
    assert ratio < 0.98


def test_a_record_in_every_step_moves_far_more_than_the_root_of_their_number() -> None:
    """Noise of which each step takes back 0.6 of the last one's: twelve steps move by 7.7, not by 1.25·√12."""
    matrix = GivenMatrix.of(np.array([[0.6 ** (t - j) if t >= j else 0.0 for j in range(12)] for t in range(12)]))
    column = math.sqrt(matrix.squared_sensitivity(Once(), 12))
    every = math.sqrt(matrix.squared_sensitivity(Periodic(1), 12))
    assert column == pytest.approx(1.25, rel=1e-3)
    assert every == pytest.approx(math.sqrt(sum(((1 - 0.6 ** (t + 1)) / 0.4) ** 2 for t in range(12))), rel=1e-9)
    assert every > 7.7 > 1.7 * column * math.sqrt(12)


def test_one_step_of_a_round_is_no_bound_for_strategies_of_more_bands() -> None:
    matrix = GivenMatrix.of(random_strategy(np.random.default_rng(0), 8, signed=False, bands=4))
    assert matrix.squared_sensitivity(Once(4), 8) == matrix.squared_sensitivity(Once(), 8)
    with pytest.raises(ValueError, match="at most 3 bands"):
        matrix.squared_sensitivity(Once(3), 8)


@pytest.mark.parametrize("bad", [(0, 3), (2, 0), (-1, 2), (1.5, 2)])
def test_numbers_of_steps_are_whole(bad: tuple[Any, Any]) -> None:
    with pytest.raises(ValueError, match="Expected"):
        Apart(*bad)
