"""Constants of losses against what they bound, by grids of predictions and targets: each holds, and none is needlessly loose."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import pytest
import scipy.sparse as sp

from dperm.objectives import (
    Huber,
    LinearObjective,
    Logistic,
    Loss,
    PoissonLoss,
    PublicFacts,
    QNormHinge,
    QuantileLoss,
    Roughness,
    SmoothedHinge,
    Softmax,
    Squared,
    Weighted,
)
from dperm.objectives.constraints import project_l2_ball
from dperm.objectives.grouped import GroupedRecords, MeanPass
from dperm.objectives.linear import _exact_product
from dperm.objectives.records import EXACT_ROWS, ROW_BITS, PrivacyUnit
from dperm.objectives.sums import RunningSum, exact_sum
from dperm.privacy import Relation
from dperm.release.grid import Grid
from helpers.losses import every_loss, one_output

FAR = 40.0  # predictions of losses that hold everywhere

LOSSES = every_loss(
    Logistic(),
    Logistic(2.0),
    Huber(0.1),
    Huber(1.5),
    SmoothedHinge(0.1),
    SmoothedHinge(2.0),
    QNormHinge(1.5, 2.0),
    QNormHinge(2.0, 2.0),
    QuantileLoss(0.8, 2.0),
    QuantileLoss(0.1, 1.0, 0.5),
    PoissonLoss(5.0, 1.5),
    PoissonLoss(30.0, 0.4),
    *(Weighted(loss) for loss in (Logistic(), SmoothedHinge(0.3), Squared(3.0, 2.0))),
    of=one_output,
)


def predictions(loss: Loss, norm: float) -> np.ndarray:
    reach = FAR if loss.ball is None else loss.ball * norm
    return np.linspace(-reach, reach, 100_001)


def unbounded(values: np.ndarray, t: np.ndarray) -> bool:
    """Whether differences of values over those of t grow as the grid gets finer: then no constant bounds them."""
    coarse, fine = (np.abs(np.diff(values[..., ::by])).max() / (t[by] - t[0]) for by in (10, 1))
    return bool(fine > 2 * coarse)


def close(found: float, constant: float) -> bool:
    """Whether a supremum, found on a grid, is within its constant, which is no larger than it must be."""
    return constant * (1 - 1e-3) <= found <= constant * (1 + 1e-9)


@pytest.mark.parametrize("norm", [0.7, 3.0])
@pytest.mark.parametrize("loss", LOSSES, ids=repr)
def test_constants_of_a_loss_are_what_its_derivatives_reach(loss: Loss, norm: float) -> None:
    t = predictions(loss, norm)
    slopes, curvatures = [], []
    for target in (*loss.targets.extremes, *loss.targets.between):
        y = np.full_like(t, target)
        slopes.append(loss.slope(t, y))
        curvatures.append(loss.curvature(t, y))
    assert close(norm * float(np.abs(slopes).max()), loss.lipschitz(norm))
    if loss.smoothness(norm) < math.inf:
        assert close(norm**2 * float(np.max(curvatures)), loss.smoothness(norm))
    else:
        assert unbounded(np.array(slopes), t)
    if loss.bend(norm) < math.inf:
        assert close(norm**3 * float(np.abs(np.diff(curvatures)).max() / (t[1] - t[0])), loss.bend(norm))
    else:
        assert unbounded(np.array(slopes), t) or unbounded(np.array(curvatures), t)


@pytest.mark.parametrize("radius", [60.0, 400.0])
def test_counts_that_are_far_off_have_constants_that_hold(radius: float) -> None:
    """From predictions of 50 on the loss is a straight line: no slope and no curvature is larger than there."""
    loss, t = PoissonLoss(5.0, radius), np.linspace(-radius, radius, 200_001)
    slopes, curvature = loss.slope(t, np.zeros_like(t)), loss.curvature(t, np.zeros_like(t))
    assert close(float(slopes.max()), loss.lipschitz(1.0))
    assert close(float(curvature.max()), loss.smoothness(1.0) * (1 + 1e-12))
    assert loss.bend(1.0) == loss.smoothness(1.0)


def test_slopes_of_counts_are_bounded_to_the_last_digit() -> None:
    """Those of a large count, at the lowest prediction, to 40 digits: rounding never makes the bound less, and hardly more."""
    rng = np.random.default_rng(0)
    for bound, radius in zip(rng.uniform(20, 50, 200), rng.uniform(0.01, 2.5, 200), strict=True):
        with mpmath.workdps(40):
            lowest = mpmath.exp(-mpmath.mpf(radius))
            steepest = mpmath.mpf(bound) - lowest
            above = mpmath.mpf(PoissonLoss(bound, radius).lipschitz(1.0)) - steepest
            assert 0 <= above <= 1e-12 * lowest + 2.0**-53 * steepest


@pytest.mark.parametrize("classes", [2, 5])
def test_constants_of_cross_entropy_are_reached(classes: int) -> None:
    loss, norm = Softmax(classes), 3.0
    t = np.zeros((1, classes))
    t[0, 1] = 60.0
    assert close(norm * float(np.linalg.norm(loss.slope(t, np.zeros(1)))), loss.lipschitz(norm))
    t[0, :2] = 60.0
    assert close(norm**2 * float(np.linalg.eigvalsh(loss.curvatures(t, np.zeros(1))[0]).max()), loss.smoothness(norm))
    rng = np.random.default_rng(0)
    t, y = rng.normal(size=(2000, classes)) * 10.0 ** rng.uniform(-1, 2, (2000, 1)), rng.integers(0, classes, 2000) * 1.0
    assert norm * np.linalg.norm(loss.slope(t, y), axis=1).max() <= loss.lipschitz(norm) * (1 + 1e-12)
    assert norm**2 * np.linalg.eigvalsh(loss.curvatures(t, y)).max() <= loss.smoothness(norm) * (1 + 1e-12)


@pytest.mark.parametrize(
    ("loss", "low", "high"), [(Squared(3.0, 2.0), -3.0, 3.0), (QuantileLoss(0.8, 2.0), -2.0, 2.0), (PoissonLoss(5.0), 0.0, 5.0)]
)
def test_targets_are_cut_at_both_ends_of_what_constants_assume(loss: Loss, low: float, high: float) -> None:
    assert loss.admit(np.array([-1e9, low, 0.5, high, 1e9])).tolist() == [low, low, 0.5, high, high]
    targets = np.array([[-1e9, -1e9], [0.5, 0.25], [1e9, 1e9]])
    assert Weighted(loss).admit(targets).tolist() == [[low, 0.0], [0.5, 0.25], [high, 1.0]]


def test_loss_scales_end_where_doubles_do() -> None:
    for factor in (1.0, 10.0):
        assert QuantileLoss(half_width=1e100).smoother(factor) == QuantileLoss(half_width=1e100)
    assert Logistic(100.0).margin == 100.0
    with pytest.raises(ValueError, match="at most 100"):
        Logistic(100.0 * (1 + 1e-12))
    assert Roughness(((0, 1),), 1e6).weight == 1e6
    with pytest.raises(ValueError, match="up to 1e"):
        Roughness(((0, 1),), 1e6 * (1 + 1e-12))


@pytest.mark.parametrize("loss", every_loss(of=lambda loss: one_output(loss) and loss.name != "squared"), ids=repr)
def test_losses_far_away_are_numbers(loss: Loss) -> None:
    t = np.array([-1e200, 1e200])
    for target in loss.targets.extremes:
        for found in (
            loss.value(t, np.full(2, target)),
            loss.slope(t, np.full(2, target)),
            loss.curvature(t, np.full(2, target)),
        ):
            assert np.isfinite(found).all()


# Facts


class Foreign(Logistic):
    """A loss that dperm did not write."""


def test_facts_say_of_a_loss_what_is_proved_of_it() -> None:
    own, foreign = LinearObjective(Logistic(), 3).facts, LinearObjective(Foreign(), 3).facts
    assert (own.loss, own.foreign_loss) == ("logistic", None)
    assert (foreign.loss, foreign.foreign_loss) == (None, f"{__name__}.Foreign")
    assert (own.target_bound, own.roughness) == (None, 0.0)
    assert LinearObjective(Squared(3.0, 2.0), 3, radius=2.0).facts.target_bound == 3.0
    assert LinearObjective(PoissonLoss(7.0), 3, radius=2.0).facts.target_bound == 7.0
    rough = Roughness(((0, 1), (1, 2)), 2.0)
    assert LinearObjective(Logistic(), 3, roughness=rough).facts.roughness >= np.linalg.eigvalsh(rough.matrix(3).toarray()).max()


@pytest.mark.parametrize(("data_norm", "intercept"), [(3.0, 0.0), (3.0, 4.0), (0.5, 9.0)])
def test_rows_are_no_longer_than_their_bound_and_the_longest_is_as_long(data_norm: float, intercept: float) -> None:
    objective = LinearObjective(Logistic(), 2, data_norm=data_norm, intercept_scale=intercept)
    longest = np.append(data_norm * np.array([0.6, 0.8]), intercept)
    assert objective.row_norm == pytest.approx(float(np.linalg.norm(longest)), rel=1e-12)


@pytest.mark.parametrize(("rows", "grouped"), [(None, False), (1, False), (2, True), (9, True)])
def test_a_record_is_a_mean_where_persons_may_have_several_rows(rows: int | None, grouped: bool) -> None:
    facts = PublicFacts(1, 1.0, 1.0, math.inf, Relation.ADD_OR_REMOVE_ONE, unit=PrivacyUnit(rows))
    assert facts.unit.several_rows is grouped


def test_weights_of_a_person_add_up_to_at_most_one() -> None:
    """In exact arithmetic, for every number of rows; and to no less than a trillionth under it."""
    for count in (*range(1, 400), 1023, 4095, 8192):
        starts = np.array([0, count])
        (weight,) = set(GroupedRecords(np.ones((count, 1)), np.ones(count), 1.0, 0.0, starts=starts, most=count).weights.tolist())
        assert 1 - Fraction(1, 10**12) <= count * Fraction(weight) <= 1


# Balls and sums


@pytest.mark.parametrize("shape", [(1,), (3,), (1, 3), (7, 3), (7, 1)])
@pytest.mark.parametrize("radius", [0.4, 2.5])
def test_a_projection_is_the_nearest_point_of_the_ball(shape: tuple[int, ...], radius: float) -> None:
    rng = np.random.default_rng(0)
    for scale in (1e-3, 0.3, 1.0, 50.0):
        theta = scale * rng.normal(size=shape)
        found = project_l2_ball(theta.copy(), radius)
        lengths = np.linalg.norm(theta, axis=-1, keepdims=True)
        assert np.array_equal(project_l2_ball(theta, None), theta)
        assert found.shape == theta.shape
        assert np.linalg.norm(found, axis=-1) == pytest.approx(np.minimum(lengths, radius)[..., 0], rel=1e-12)
        assert found / np.minimum(lengths, radius) == pytest.approx(theta / lengths, rel=1e-9)  # in the same direction


def test_exact_sums_are_cut_where_the_grid_ends() -> None:
    """At both ends, and only a sum that doubles do not hold: cutting brings no two of them further apart."""
    largest = Grid.of(1.0, 2.0, 2).largest
    total = RunningSum()
    for part in (np.array([largest, -largest]), np.array([2.0**-30, -(2.0**-30)]), np.array([largest, -largest])):
        total.add(part)
    assert total.query(1.0, 2.0).tolist() == [largest, -largest]
    small = RunningSum()
    for part in (np.array([0.5, -0.25]), np.array([2.0**-60, 0.0])):
        small.add(part)
    assert small.query(1.0, 2.0).tolist() == [0.5, -0.25]


def test_running_sums_are_the_nearest_double_to_the_true_sum_in_any_order() -> None:
    """Of whole numbers of up to 53 digits, whose sums need more than a double holds: in one run, and joined from two."""
    rng = np.random.default_rng(0)
    parts = rng.integers(-(2**53), 2**53, size=(12, 30)) >> rng.integers(0, 4, size=(12, 1))
    wanted = [float(sum(map(int, numbers))) for numbers in parts.T]  # Python's conversion of whole numbers is to the nearest
    assert any(int(number) != sum(map(int, numbers)) for number, numbers in zip(wanted, parts.T, strict=True))
    for order in (np.arange(12), np.arange(12)[::-1], rng.permutation(12), rng.permutation(12)):
        whole, halves = RunningSum(), (RunningSum(), RunningSum())
        for place, part in enumerate(parts[order].astype(np.float64)):
            whole.add(part)
            halves[place % 2].add(part)
        assert whole.value().tolist() == wanted
        assert halves[0].joined(halves[1]).value().tolist() == wanted
        assert RunningSum().joined(whole).value().tolist() == whole.joined(RunningSum()).value().tolist() == wanted
    assert RunningSum().joined(RunningSum()).value() is None


@pytest.mark.parametrize(("sensitivity", "noise"), [(1.0, 2.0), (37.0, 2.0**18), (1e-3, 2.0**18), (1e-3, 1e-3)])
def test_a_sum_is_cut_where_the_grid_that_it_is_released_on_ends(sensitivity: float, noise: float) -> None:
    """A channel takes its grid from the sensitivity, the noise's standard deviation and how many numbers the whole query has."""
    for size in (2, 1000):
        step = Grid.of(sensitivity, noise * sensitivity, size).step
        total = RunningSum()
        for part in (np.array([2.0**52 * step, -(2.0**52) * step]), np.array([0.25 * step, 0.0]), np.array([step, -step])):
            total.add(part)
        assert total.query(sensitivity, noise, lambda _, size=size: size).tolist() == [2.0**52 * step, -(2.0**52) * step]
    few = RunningSum()
    for part in (np.array([1e-5 * sensitivity, 0.0]), np.array([0.0, 1e-5 * sensitivity])):
        few.add(part)
        assert few.query(sensitivity, noise).tolist() == few.value().tolist()
    assert RunningSum().query(sensitivity, noise) is None


@pytest.mark.parametrize("bound", [1e-8, 0.37, 1.0, 1.9e5])
def test_exact_sums_keep_thirty_digits_of_the_bound_of_each_value_and_are_the_same_in_any_order(bound: float) -> None:
    """No value is made larger, and each loses less than 2⁻³⁰ of the bound."""
    values = bound * np.random.default_rng(0).uniform(-1, 1, 500)
    each = np.array([exact_sum(values[place : place + 1], bound)[0] for place in range(500)])
    assert np.all(np.abs(each) <= np.abs(values))
    assert np.all(np.abs(values - each) < 2.0**-30 * bound)
    assert Fraction(float(exact_sum(values, bound)[0])) == sum(map(Fraction, each.tolist()))
    assert exact_sum(values[::-1], bound)[0] == exact_sum(values, bound)[0]


@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_each_value_of_an_exact_sum_is_cut_to_its_bound(sign: float) -> None:
    assert exact_sum(sign * np.array([5.0, 0.25]), 0.5)[0] == sign * 0.75
    assert exact_sum(sign * np.array([math.inf, math.nan, 0.25]), 0.5)[0] == sign * 0.75


# Digits


@pytest.mark.parametrize("features", [3, 200])
def test_predictions_have_no_rounding(features: int) -> None:
    """Products of rows with parameters as records see them, added in any order: what fractions say."""
    objective, rng = LinearObjective(Logistic(), features), np.random.default_rng(0)
    rows = rng.normal(size=(40, features)) * 10.0 ** rng.uniform(-6, 0, (40, 1))
    (batch,) = objective.records(rows, np.ones(40)).batches()
    for scale in (1e-9, 1.0, 1e9):
        theta = objective.seen(scale * rng.normal(size=features))
        for found, row, unit in zip(objective.predict(theta, batch), batch.rows, batch.units, strict=True):
            exact = sum(Fraction(float(x)) * Fraction(float(weight)) for x, weight in zip(row, theta, strict=True))
            assert Fraction(float(found)) == exact * Fraction(float(unit))


def test_sums_of_products_with_many_rows_have_no_rounding() -> None:
    """Of the longest rows and as many as there may be: what is missing is what was left out of each coefficient."""
    rng = np.random.default_rng(0)
    rows = np.full((EXACT_ROWS, 1), 2.0**ROW_BITS - 1)
    for _ in range(6):  # half of these sums are odd: one digit too many would be rounded off
        coefficients = rng.uniform(0.9, 1.0, EXACT_ROWS)
        parts, left = _exact_product(coefficients, rows)
        exact = sum(map(Fraction, coefficients.tolist())) * Fraction(float(rows[0, 0]))
        missing = exact - sum(Fraction(float(part[0])) for part in parts)
        assert 0 <= missing <= Fraction(left) * EXACT_ROWS * Fraction(float(rows[0, 0]))
        assert left <= 2.0**-50


@pytest.mark.parametrize("reach", [40.0, 200.0])
def test_a_gradient_of_slopes_that_nearly_vanish_is_as_certain_as_its_predictions(reach: float) -> None:
    """What is left out of slopes is counted in their own units, not in those of ordinary ones."""
    objective = LinearObjective(Logistic(), 1, strong_convexity=2.0)
    records = objective.records(np.ones((5, 1)), np.ones(5))
    found, error = objective.exact_gradient(np.array([reach]), records)
    assert abs(found[0] + 5 * math.exp(-reach)) <= error <= 1e-15 * reach


# Bounded sums of persons


def squared_length(vector: np.ndarray) -> Fraction:
    return sum((Fraction(float(number)) ** 2 for number in vector), Fraction(0))


def bounded(vectors: np.ndarray, factors: Any, bound: float, sparse: bool) -> np.ndarray:
    table = sp.csr_array(vectors) if sparse else vectors
    return MeanPass(table, np.zeros(len(vectors))).weighted_sum(np.asarray(factors, dtype=np.float64), bound)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("bound", [1e-15, 0.37, 1e6])
def test_no_factor_makes_a_person_s_part_longer_than_the_bound(bound: float, sparse: bool) -> None:
    """In exact arithmetic; those that are to be as long as the bound are so to nine digits, and a factor that is no number adds
    nothing."""
    rng = np.random.default_rng(0)
    for features in (1, 3, 60):
        for factor in (1.0, -1.0, 0.5, 1e300, -1e300, np.inf, -np.inf, np.nan):
            vector = bound * rng.normal(size=(1, features))
            found = bounded(vector, [factor], bound, sparse)
            assert squared_length(found) <= Fraction(bound) ** 2
            wanted = min(bound, abs(factor) * np.linalg.norm(vector)) if np.isfinite(factor) else 0.0
            assert np.linalg.norm(found) == pytest.approx(wanted, rel=1e-9)
            if wanted:
                assert found / wanted == pytest.approx(np.sign(factor) * vector[0] / np.linalg.norm(vector), abs=1e-9)


def test_a_length_that_is_rounded_down_is_within_the_bound_too() -> None:
    """Whole numbers lie on the grid. Their length, rounded, is the bound: what is longer by its last digit is made shorter."""
    rng = np.random.default_rng(0)
    longer = 0
    for _ in range(60):
        vector = rng.integers(1, 1 << 20, (1, 5)).astype(np.float64)
        bound = float(np.linalg.norm(vector))
        longer += squared_length(vector[0]) > Fraction(bound) ** 2
        assert squared_length(bounded(vector, [1.0], bound, sparse=False)) <= Fraction(bound) ** 2
    assert longer > 10


@pytest.mark.parametrize("sparse", [False, True])
def test_as_many_parts_as_a_batch_has_rows_add_up_without_rounding(sparse: bool) -> None:
    bound = 1.9  # nearly twice a power of two: as many steps of the grid as there may be
    vectors = bound * np.random.default_rng(0).uniform(0.99, 1.2, (EXACT_ROWS, 1))
    alone = [Fraction(float(bounded(vector[None], [1.0], bound, sparse=False)[0])) for vector in vectors[:200]]
    several = bounded(vectors[:200], np.ones(200), bound, sparse)
    assert Fraction(float(several[0])) == sum(alone)
    whole = Fraction(float(bounded(vectors, np.ones(EXACT_ROWS), bound, sparse)[0]))
    parts = [Fraction(float(bounded(part, np.ones(len(part)), bound, sparse)[0])) for part in np.split(vectors, 64)]
    assert whole == sum(parts)


def test_sums_without_a_bound_are_what_they_say() -> None:
    vectors, factors = np.array([[1.0, 2.0], [3.0, -4.0]]), np.array([0.5, 2.0])
    assert MeanPass(vectors, np.zeros(2)).weighted_sum(factors).tolist() == [6.5, -7.0]


# Bounded sums of records


def passes(outputs: int, intercept: float, sparse: bool, rows: np.ndarray, theta_scale: float = 1.0) -> Any:
    """The pass of records at a θ, and many models' at once."""
    loss: Loss = Logistic() if outputs == 1 else Softmax(outputs)
    objective = LinearObjective(loss, rows.shape[1], intercept_scale=intercept)
    targets = np.ones(len(rows))
    records = objective.records(sp.csr_array(rows) if sparse else rows, targets)
    (batch,) = records.batches()
    theta = theta_scale * np.random.default_rng(1).normal(size=(2, objective.dimension))
    return objective.per_example(theta[0], batch), objective.per_example(theta, batch)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("intercept", [0.0, 0.7])
@pytest.mark.parametrize("outputs", [1, 3])
def test_no_factor_makes_a_record_s_part_longer_than_the_bound(outputs: int, intercept: float, sparse: bool) -> None:
    """In exact arithmetic; those that are to be as long as the bound are nearly so, a factor that is no number adds nothing, and
    of two models at once the first adds what it adds alone."""
    rng = np.random.default_rng(0)
    for _ in range(8):
        rows = rng.normal(size=(1, 4)) * 10.0 ** rng.uniform(-2, 1)
        alone, both = passes(outputs, intercept, sparse, rows)
        plain = alone.weighted_sum(np.ones(1))
        length = float(np.linalg.norm(plain))
        for factor in (1.0, -1.0, 0.1, 1e100, np.inf, -np.inf, np.nan):
            for bound in (1e-15, 0.3 * length, 0.55 * length, 0.97 * length, length, 20 * length):
                found = alone.weighted_sum(np.array([factor]), bound)
                assert squared_length(found) <= Fraction(bound) ** 2
                if np.isfinite(factor):
                    wanted = np.sign(factor) * min(bound, abs(factor) * length) * plain / length
                    assert found == pytest.approx(wanted, rel=0, abs=2.0**-16 * bound)  # rows have 21 binary digits
                assert np.array_equal(both.weighted_sum(np.full((2, 1), factor), bound)[0], found)
        for factor in (np.nan, np.inf, -np.inf):
            assert not alone.weighted_sum(np.array([factor]), 1.0).any()
        assert np.array_equal(both.weighted_sum(np.ones((2, 1)))[0], plain)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("intercept", [0.0, 0.7])
@pytest.mark.parametrize("outputs", [1, 3])
def test_who_is_absent_changes_nothing_of_what_others_add(outputs: int, intercept: float, sparse: bool) -> None:
    """Records shorter and longer than 1, bounded ones and others, with one among them that has no numbers and without it."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(30, 4)) * rng.uniform(0.01, 1, (30, 1))
    gone = np.insert(rows, 11, np.nan, axis=0)
    for bound in (0.05, 1.0, 100.0):
        sums = [
            found.weighted_sum(np.full((*shape, len(given)), 3.0), bound)
            for given in (rows, gone)
            for found, shape in zip(passes(outputs, intercept, sparse, given), ((), (2,)), strict=True)
        ]
        assert np.linalg.norm(sums[0]) > 0.01 * bound
        assert np.array_equal(sums[2], sums[0])
        assert np.array_equal(sums[3], sums[1])


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("intercept", [0.0, 0.7])
@pytest.mark.parametrize("outputs", [1, 3])
def test_parts_of_records_add_up_without_rounding(outputs: int, intercept: float, sparse: bool) -> None:
    """As many as there may be in a batch, all nearly as long as the bound: what 64 parts of them add up to, in fractions."""
    rng, bound = np.random.default_rng(0), 1.9
    rows = np.full((EXACT_ROWS, 2), 0.6) + rng.uniform(0, 0.05, (EXACT_ROWS, 2))

    def total(part: np.ndarray) -> list[Fraction]:
        found, _ = passes(outputs, intercept, sparse, part)
        return [Fraction(float(number)) for number in found.weighted_sum(np.full(len(part), 1e3), bound)]

    parts = [total(part) for part in np.split(rows, 64)]
    assert total(rows) == [sum(numbers) for numbers in zip(*parts, strict=True)]
