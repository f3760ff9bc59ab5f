"""The penalty on roughness: its arithmetic, what is refused, and the rule by which it is used."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from dperm.estimators import DPLinearSVC, DPLogisticRegression, model_from_json, model_to_json
from dperm.mechanisms import Budget, Objective, Output
from dperm.objectives import LinearObjective, Logistic, RegularisedSum, Roughness, Softmax, Task
from dperm.privacy.accountants.gaussian import gaussian_mu
from dperm.release import SpendLog
from dperm.solvers import minimise, minimise_softmax

RNG = np.random.default_rng(0)
RING = Roughness(((0, 1), (1, 2), (2, 3), (3, 0)), 2.5)
X, Y = RNG.uniform(-0.5, 0.5, (40, 5)), RNG.choice([-1.0, 1.0], 40)


def problem(linear: Any = 0.0, **changes: Any) -> RegularisedSum:
    settings = {"intercept_scale": 0.5, "strong_convexity": 0.7, "roughness": RING} | changes
    objective = LinearObjective(settings.pop("loss", Logistic()), 5, **settings)
    return RegularisedSum(objective, objective.records(X, Y), linear)


def test_it_is_the_sum_of_squared_differences() -> None:
    heights = RNG.normal(size=4)
    around = np.append(heights, heights[0])
    assert heights @ RING.matrix(4) @ heights == pytest.approx(2.5 * np.square(np.diff(around)).sum())
    assert RING.times(heights[:, None])[:, 0] == pytest.approx(RING.matrix(4) @ heights)
    star = Roughness(((0, 1), (0, 2), (0, 3)))
    for each in (RING, star, Roughness(((4, 0),), 1e-3), Roughness(())):
        assert np.linalg.eigvalsh(each.matrix(5).toarray()).max() <= each.bound * (1 + 1e-12) <= each.rounding * (1 + 1e-12)


def test_values_gradients_and_hessians_agree() -> None:
    with_it, without = problem(), problem(roughness=None)
    theta = RNG.normal(size=6)
    value, gradient, hessian = with_it.evaluate(theta, True)
    assert hessian is not None
    added = 0.7 * 2.5 / 2 * np.square(np.diff(np.append(theta[:4], theta[0]))).sum()
    assert value == pytest.approx(without.evaluate(theta, False)[0] + added)
    for number in range(6):
        moved = theta + 1e-6 * np.eye(6)[number]
        there = with_it.evaluate(moved, False)
        assert there[0] - value == pytest.approx(1e-6 * gradient[number], abs=1e-9)
        assert there[1] - gradient == pytest.approx(1e-6 * hessian[number], abs=1e-9)
    assert with_it.hessian_product(theta, gradient) == pytest.approx(hessian @ gradient)
    many = np.stack([theta, -theta])
    values, gradients, hessians = with_it.evaluate(many, True)
    assert hessians is not None
    assert values[0] == pytest.approx(value) and gradients[0] == pytest.approx(gradient)
    assert hessians[0] == pytest.approx(hessian)


def test_rounding_is_within_what_is_certified() -> None:
    """Against fractions, at weights where the penalty is nearly all of the gradient."""
    heavy = problem(roughness=Roughness(((0, 1), (1, 2), (0, 2), (2, 4)), 1e5), strong_convexity=1e3)
    for size in (1.0, 1e6):
        theta = size * RNG.normal(size=6)
        gradient, error = heavy.certified_gradient(theta)
        exact = [Fraction(float(value)) for value in theta]
        penalty = list(exact)
        for i, j in heavy.objective.roughness.neighbours:  # pyright: ignore[reportOptionalMemberAccess]
            penalty[i] += 10**5 * (exact[i] - exact[j])
            penalty[j] += 10**5 * (exact[j] - exact[i])
        rest, astray = heavy.objective.exact_gradient(theta, heavy.records)
        off = [Fraction(float(g)) - Fraction(float(r)) - 1000 * p for g, r, p in zip(gradient, rest, penalty, strict=True)]
        assert 0 < math.sqrt(sum(float(each) ** 2 for each in off)) <= error - astray


def test_the_solver_finds_the_minimiser() -> None:
    heavy = problem(RNG.normal(size=6), roughness=Roughness(((0, 1), (1, 2), (2, 3), (3, 4)), 1e4))
    theta = minimise(heavy, 1e-9).theta
    assert np.linalg.norm(heavy.evaluate(theta, False)[1]) < 1e-9
    assert np.ptp(theta[:5]) < 1e-2 < 1e-1 < np.ptp(minimise(problem(heavy.linear, roughness=None), 1e-9).theta[:5])
    wide = LinearObjective(Softmax(3), 5, strong_convexity=0.5, roughness=RING)
    labels = RNG.integers(3, size=40).astype(float)
    found = minimise_softmax(wide, wide.records(X, labels))
    gradient = wide.plain_gradient(found, next(iter(wide.records(X, labels).batches())))
    assert np.linalg.norm(gradient + 0.5 * wide.penalty_hessian() @ found) < 1e-4
    assert wide.penalty_gradient(found) == pytest.approx(wide.penalty_hessian() @ found)


@pytest.mark.parametrize(
    "wrong", [((0, 0),), ((0, 5),), ((-1, 0),), ((0, 1), (1, 0)), ((0.5, 1),), ((True, 2),), (1, 2), "ab", ((0, 1, 2),)]
)
def test_what_are_no_neighbours_is_refused_before_a_charge(wrong: Any) -> None:
    with pytest.raises(ValueError, match=r"neighbours|pairs"):
        DPLogisticRegression(neighbours=wrong).fit(X, Y)
    assert SpendLog.current().charges() == []


@pytest.mark.parametrize("weight", [-1.0, math.inf, math.nan, 1e7])
def test_weights_are_positive_and_finite(weight: float) -> None:
    with pytest.raises(ValueError, match=r"weight|roughness"):
        DPLogisticRegression(neighbours=[(0, 1)], mechanism=Objective(roughness=weight)).fit(X, Y)
    assert SpendLog.current().charges() == []


@pytest.mark.parametrize("given", [np.float16(0.5), np.float32(0.5), np.array(0.5), Fraction(1, 2), np.int8(100), np.uint8(100)])
def test_weights_of_any_kind_are_doubles(given: Any) -> None:
    """R is made by their own arithmetic otherwise: an int8 of 100 overflows where two neighbours meet."""
    made = Roughness(((0, 1), (1, 2)), given)
    assert type(made.weight) is float and made.matrix(3).dtype == np.float64
    assert made.matrix(3).toarray() == pytest.approx(float(given) * np.array([[1, -1, 0], [-1, 2, -1], [0, -1, 1]]))


@pytest.mark.parametrize("given", [True, np.True_])
def test_truth_values_are_no_weights(given: Any) -> None:
    """Of truth values a Laplacian is no Laplacian, and what it leaves is not strongly convex."""
    for made in (lambda: Objective(roughness=given), lambda: Output(roughness=given, strong_convexity=5.0)):
        with pytest.raises(TypeError, match="roughness to be a number, got"):
            DPLogisticRegression(neighbours=[(0, 1), (1, 2), (2, 3)], mechanism=made()).fit(X, Y)
    with pytest.raises((TypeError, ValueError), match="weight"):
        Roughness(((0, 1), (1, 2)), given)
    assert SpendLog.current().charges() == []


def test_a_stranger_s_penalty_is_refused() -> None:
    class Hollow(Roughness):
        def matrix(self, features: int) -> Any:
            return -0.999 * super().matrix(features)

    with pytest.raises(TypeError, match="to be a Roughness"):
        LinearObjective(Logistic(), 3, roughness=Hollow(((0, 1),), 1.0))
    pairs = np.array([[0, 1], [1, 2]])
    model = DPLogisticRegression(neighbours=pairs, public_size=40, classes=[-1.0, 1.0]).fit(X, Y)
    assert model.objective_.roughness is not None and type(model.objective_.roughness) is Roughness


def test_a_penalty_without_neighbours_is_refused() -> None:
    for mechanism in (Objective(roughness=1.0), Output(roughness=1.0, strong_convexity=1.0)):
        with pytest.raises(ValueError, match="neighbours"):
            DPLogisticRegression(mechanism=mechanism).fit(X, Y)


def test_the_rule_goes_by_signal() -> None:
    """0.3 below a signal of 120, and where the number of records is private; what it costs is the same."""
    budget, pairs = Budget(1e-5, 1.0), ((0, 1), (1, 2))

    def task(size: int | None) -> Task:
        return Task(loss=Logistic(), features=8, classes=2, intercept_scale=0.5, public_size=size, neighbours=pairs)

    edge = 120 * math.sqrt(9) / gaussian_mu(1.0, 1e-5)
    weak, strong = (Objective().build(task(size), budget) for size in (math.floor(edge), math.ceil(edge)))
    assert weak[1].roughness == Roughness(pairs, 0.3) and strong[1].roughness is None
    assert weak[0].event(weak[1].facts) == replace(weak[0]).event(strong[1].facts)
    assert Objective().build(task(None), budget)[1].roughness == Roughness(pairs, 0.3)
    assert Objective(roughness=0).build(task(100), budget)[1].roughness is None
    assert Objective(roughness=3).build(task(None), budget)[1].roughness == Roughness(pairs, 3)
    assert Objective(calibration="kifer").build(task(100), budget)[1].roughness is None  # as it was published
    assert Output().build(task(100), budget)[1].roughness is None
    assert Output(roughness=2.0).build(task(100), budget)[1].roughness == Roughness(pairs, 2.0)


@pytest.mark.parametrize("kind", [DPLogisticRegression, DPLinearSVC])
def test_models_with_it_are_kept_whole(kind: type) -> None:
    given = {"epsilon": 2.0, "delta": 1e-3, "public_size": 40, "neighbours": [[0, 1], [1, 2]], "classes": [-1.0, 1.0]}
    model = kind(**given, random_state=1).fit(X, Y)
    assert model.objective_.roughness == Roughness(((0, 1), (1, 2)), 0.3)
    again: Any = model_from_json(model_to_json(model))[0]
    assert again.objective_ == model.objective_ and np.array_equal(again.predict(X), model.predict(X))
    without = kind(**given | {"neighbours": None}, random_state=1).fit(X, Y)
    assert np.ptp(model.coef_[0, :3]) < np.ptp(without.coef_[0, :3])
