"""Item 2: minimisers in a ball that cannot fail, whatever the records are."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import mpmath
import numpy as np
import pytest
from numpy.typing import NDArray

import dperm.solvers.descent as descent
import dperm.solvers.newton as newton
from dperm.estimators import DPPoissonRegressor, DPRidge
from dperm.mechanisms import AccuracyFirst, Output, minimiser
from dperm.objectives import Huber, LinearObjective, Logistic, Loss, Records, RegularisedSum, SmoothedHinge, Squared
from dperm.objectives.ordinal import OrdinalLogistic
from dperm.objectives.poisson import PoissonLoss
from dperm.objectives.quantile import QuantileLoss
from dperm.objectives.weighted import Weighted
from dperm.privacy import ObjectivePerturbationEvent, delta
from dperm.privacy.accountants.dominating_pairs import loss_pairs
from dperm.privacy.accountants.objective_perturbation import LONG_CHANCE, LONGER
from dperm.release.ledger import thrown_away
from dperm.solvers import approach, descend, most_steps
from dperm.solvers.newton import _model_minimiser, _solves  # pyright: ignore[reportPrivateUsage]
from helpers.losses import all_losses, every_loss, smooth, unweighted

Array = NDArray[np.float64]

GAPS = [1 - 1e-9, 0.5, *(10.0**-k for k in range(1, 17)), 3e-16, 0.0, -1e-16, -3e-16, -1e-15, -1e-13, -1e-9, -1e-3]
KINDS = ["logistic", "margin", "huber", "smoothed hinge", "quantile", "squared", "poisson", "ordinal"]


def drawn_loss(kind: str, rng: np.random.Generator, radius: float) -> Loss:
    bound = 10.0 ** rng.uniform(-2, 2)
    return {
        "logistic": Logistic(),
        "margin": Logistic(2.0),
        "huber": Huber(10.0 ** rng.uniform(-3, 1)),
        "smoothed hinge": SmoothedHinge(10.0 ** rng.uniform(-2, 1)),
        "quantile": QuantileLoss(rng.uniform(0.01, 0.99), bound, bound * 10.0 ** rng.uniform(-2, 2)),
        "squared": Squared(bound, radius),
        "poisson": PoissonLoss(bound, radius),
        "ordinal": OrdinalLogistic((-(10.0 ** rng.uniform(-3, 1)), 10.0 ** rng.uniform(-3, 1))),
    }[kind]


def test_every_loss_with_a_minimiser_is_drawn() -> None:
    drawn = {type(drawn_loss(kind, np.random.default_rng(0), 1.0)) for kind in KINDS}
    missing = {type(loss) for loss in all_losses() if smooth(loss) and unweighted(loss)} - drawn
    assert not missing, "a loss that solvers are not tried on: add it to KINDS and drawn_loss, with settings that are drawn"


def in_ball(objective: LinearObjective, radius: float) -> LinearObjective:
    loss = replace(objective.loss, radius=radius) if isinstance(objective.loss, Squared | PoissonLoss) else objective.loss
    return replace(objective, loss=loss, radius=radius)


def problems(rng: np.random.Generator, modulus: tuple[float, float] = (-12, 3)) -> Iterator[tuple[LinearObjective, Records, Any]]:
    """Objectives, records and linear terms, with balls whose radius is as far from the free minimiser's norm as GAPS say."""
    while True:
        count, features = int(rng.integers(1, 13)), int(rng.integers(1, 5))
        data_norm = 10.0 ** rng.uniform(-3, 3)
        kind = str(rng.choice(KINDS))
        wide = (3.0 if kind == "poisson" else 1e8) / data_norm
        loss = drawn_loss(kind, rng, wide)
        rows = rng.normal(size=(count, features)) * data_norm * 10.0 ** rng.uniform(-2, 0.5)
        if rng.random() < 0.2:  # rows that are the same again and again
            rows = np.round(2 * rows / data_norm) / 2 * data_norm
        largest = max(map(abs, loss.targets.extremes))
        targets = (
            rng.choice([-1.0, 1.0], count)
            if loss.targets.classification
            else loss.admit(largest * np.abs(rng.normal(size=count)))
        )
        free = LinearObjective(
            loss,
            features,
            data_norm=data_norm,
            intercept_scale=float(rng.choice([0.0, data_norm])),
            strong_convexity=data_norm**2 * 10.0 ** rng.uniform(*modulus),
            radius=loss.ball,
            size_limit=int(rng.choice([count, 100, 4_000_000])),
        )
        records = free.records(rows, targets)
        linear = rng.normal(size=free.dimension) * data_norm if rng.random() < 0.2 and loss.rank_one else 0.0
        tolerance = minimiser.certain_tolerance(free.facts, free.strong_convexity) / 1000
        norm = float(np.linalg.norm(approach(RegularisedSum(free, records, linear), tolerance, free.radius).theta))
        if norm * data_norm > 1e-30:
            for gap in GAPS:
                yield in_ball(free, norm * (1 - gap)), records, linear


@pytest.mark.parametrize(
    ("seed", "count"), [(0, 500), *(pytest.param(seed, 20_000, marks=pytest.mark.slow) for seed in range(1, 6))]
)
def test_no_minimiser_in_a_ball_fails(seed: int, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def not_needed(problem: Any, tolerance: float, radius: float, start: Any) -> Any:
        """Newton's method ended with a certificate, or 0 is near enough."""
        assert problem.strong_convexity * radius <= tolerance
        return descend(problem, tolerance, radius, start)

    monkeypatch.setattr(minimiser, "descend", not_needed)
    found, hard = problems(np.random.default_rng(seed)), 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(count):
            objective, records, linear = next(found)
            noise = objective.data_norm if np.ndim(linear) else 0.0
            facts, modulus, radius = objective.facts, objective.strong_convexity, objective.radius
            assert radius is not None
            tolerance = minimiser.certain_tolerance(facts, modulus, noise)
            hard += modulus * radius > tolerance
            solution = minimiser.solve(objective, records, linear, tolerance, noise)
            assert solution.residual <= tolerance
            assert solution.evaluations <= minimiser.most_evaluations(facts, modulus, tolerance, noise)
            assert np.linalg.norm(solution.theta) <= radius * (1 + 2.0**-48)
    assert hard > count / 2


def slopes_of(loss: Loss, t: Any, y: float) -> Any:
    if isinstance(loss, Logistic):
        return -y / (1 + mpmath.exp(y * t - loss.margin))
    if isinstance(loss, Squared):
        return t - y
    assert isinstance(loss, PoissonLoss)
    return mpmath.exp(t) - y


@pytest.mark.fast_cases("logistic-Newton", "squared-descent", "poisson-Newton")
@pytest.mark.parametrize("way", ["Newton", "descent"])
@pytest.mark.parametrize("kind", ["logistic", "margin", "squared", "poisson"])
def test_either_way_ends_within_the_tolerance_of_the_true_minimiser(kind: str, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One dimension, with 40 digits, by bisection."""
    rng = np.random.default_rng(3)
    if way == "descent":
        monkeypatch.setattr(descent, "residual_of", lambda *_: math.inf)  # all steps are made, and none is certified
    for _ in range(25):
        loss = drawn_loss(kind, rng, 2.0)
        modulus, rows = 10.0 ** rng.uniform(-1, 1), rng.uniform(-1, 1, size=(6, 1))
        targets = rng.choice([-1.0, 1.0], 6) if loss.targets.classification else loss.admit(rng.uniform(0, 2, 6))
        objective = LinearObjective(loss, 1, strong_convexity=modulus, radius=loss.ball, size_limit=10)
        records = objective.records(rows, targets)
        batch = next(iter(records.batches()))
        x = [mpmath.mpf(float(value)) for value in batch.rows[:, 0] * batch.units]
        with mpmath.workdps(40):
            low, high = mpmath.mpf(-50), mpmath.mpf(50)
            for _ in range(140):
                middle = (low + high) / 2
                pairs = zip(x, batch.targets, strict=True)
                slope = sum(each * slopes_of(loss, each * middle, float(y)) for each, y in pairs) + modulus * middle
                low, high = (low, middle) if slope > 0 else (middle, high)
            for gap in (0.3, 1e-9, 1e-15, 0.0, -1e-15, -0.3):
                radius = abs(float(low)) * (1 - gap)
                bounded = in_ball(objective, min(radius, loss.ball or math.inf))
                tolerance = minimiser.certain_tolerance(bounded.facts, modulus)
                problem = RegularisedSum(bounded, records)
                solution = (approach if way == "Newton" else descend)(problem, tolerance, bounded.radius)  # type: ignore[arg-type]
                exact = min(max(low, -mpmath.mpf(bounded.radius)), mpmath.mpf(bounded.radius))
                assert solution.residual <= tolerance
                assert abs(solution.theta[0] - exact) * modulus <= tolerance


@dataclass(frozen=True)
class Bowl:
    """Σ curvatures·(θ − centre)²/2, whose gradients are wrong by `error`, in the direction that does the most harm."""

    curvatures: Array
    centre: Array
    best: Array
    error: float

    @property
    def dimension(self) -> int:
        return len(self.centre)

    @property
    def strong_convexity(self) -> float:
        return float(self.curvatures.min())

    @property
    def curvature_bound(self) -> float:
        return float(self.curvatures.max())

    def smoother(self, factor: float) -> None:
        return None

    def certified_gradient(self, theta: Array) -> tuple[Array, float]:
        away = theta - self.best
        length = np.linalg.norm(away)
        push = away / length if length > 0 else np.eye(self.dimension)[0]
        return self.curvatures * (theta - self.centre) - self.error * push, self.error

    def evaluate(self, theta: Array, hessian: bool) -> Any:
        away = theta - self.centre
        return float(self.curvatures @ away**2) / 2, self.curvatures * away, np.diag(self.curvatures) if hessian else None

    def hessian_product(self, theta: Array, vector: Array) -> Array:
        return self.curvatures * vector


@pytest.mark.parametrize("condition", [1.0, 1e2, 1e5])
@pytest.mark.parametrize("reach", [1e1, 1e5])
@pytest.mark.parametrize("inside", [True, False])
def test_descent_keeps_its_theorem_under_the_worst_errors(
    condition: float, reach: float, inside: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(descent, "residual_of", lambda *_: math.inf)
    rng = np.random.default_rng(0)
    curvatures = np.array([1.0, condition, math.sqrt(condition), 1.0])
    centre = rng.normal(size=4)
    radius = float(np.linalg.norm(centre)) * (1.0 if inside else 0.3)
    exact = approach(Bowl(curvatures, centre, centre, 0.0), 1e-12, radius).theta
    tolerance = radius / reach
    found = descend(Bowl(curvatures, centre, exact, 0.45 * tolerance), tolerance, radius)
    assert found.evaluations == most_steps(condition, reach)
    assert np.linalg.norm(found.theta - exact) <= tolerance  # 2e/Λ of it by errors, a tenth by where it started
    # errors do what the theorem says that they may, but for a factor of 2
    assert not inside or np.linalg.norm(found.theta - exact) >= 0.44 * tolerance


@pytest.mark.parametrize("rows", [20, 3_000])
@pytest.mark.parametrize("features", [2, 700])
@pytest.mark.parametrize(
    "loss",
    every_loss(
        Logistic(),
        Logistic(100.0),
        Weighted(PoissonLoss(3.0, 1.5)),
        Huber(0.01),
        SmoothedHinge(0.05),
        Squared(2.0, 1.5),
        QuantileLoss(0.5, 1.0, 1e3),
        Weighted(QuantileLoss(0.9, 1.0)),
        of=smooth,
    ),
    ids=repr,
)
def test_no_gradient_is_less_exact_than_the_tolerance_allows_for(loss: Loss, features: int, rows: int) -> None:
    """The error that is certified at full-length rows, all of them, wherever the solver may look: 2e is at most γ ÷ 1.25."""
    rng = np.random.default_rng(0)
    table = rng.normal(size=(rows, features))
    table /= np.linalg.norm(table, axis=1, keepdims=True)
    targets: Any = np.where(rng.random(rows) < 0.5, *loss.targets.extremes)
    if loss.weighs:
        targets = np.column_stack([targets, np.ones(rows)])
    objective = LinearObjective(loss, features, intercept_scale=0.7, strong_convexity=0.5, radius=1.5, size_limit=rows)
    records = objective.records(table, targets)
    tolerance = minimiser.certain_tolerance(objective.facts, 0.5)
    for _ in range(3):
        theta = rng.normal(size=features + 1)
        theta *= 1.5 / np.linalg.norm(theta)
        assert RegularisedSum(objective, records).certified_gradient(theta)[1] <= tolerance / 2.5


def test_the_slope_of_a_wide_quantile_loss_is_right_to_what_it_states() -> None:
    loss = QuantileLoss(0.3, 1.0, 1e3)
    t = np.random.default_rng(0).uniform(-1, 1, 2000) * 1e-4
    y = np.zeros(2000)
    slope = loss.slope(t, y)
    with mpmath.workdps(40):
        exact = [(mpmath.mpf(each) + 1000) / 2000 - mpmath.mpf(0.3) for each in t.tolist()]
    wrong = max(abs(float(mpmath.mpf(one) - other)) for one, other in zip(slope.tolist(), exact, strict=True))
    assert wrong <= loss.slope_error(1e-4, float(np.abs(slope).max()), 1 / 2000)


@pytest.mark.parametrize("spread", [0.0, 6.0, 13.0])
def test_models_are_minimised_on_the_ball_for_all_gaps(spread: float) -> None:
    """Karush–Kuhn–Tucker conditions, with 50 digits."""
    rng = np.random.default_rng(0)
    for gap in GAPS:
        values = 10.0 ** rng.uniform(-spread, 0, 4)
        basis = np.linalg.qr(rng.normal(size=(4, 4)))[0]
        matrix, gradient = (basis * values) @ basis.T, rng.normal(size=4)
        bowl = Bowl(values, np.zeros(4), np.zeros(4), 0.0)
        radius = float(np.linalg.norm(np.linalg.solve(matrix, gradient))) * (1 - gap)
        found = _model_minimiser(_solves(bowl, np.zeros(4), matrix, 1.0), np.zeros(4), gradient, radius)
        assert found is not None and np.linalg.norm(found) <= radius * (1 + 1e-15)
        slope = matrix @ found + gradient
        pull = max(0.0, -float(slope @ found) / float(found @ found))
        scale = float(np.linalg.norm(matrix, 2) * np.linalg.norm(found) + np.linalg.norm(gradient))
        assert np.linalg.norm(slope + pull * found) <= 1e-13 * scale


@pytest.mark.parametrize("loss", [Logistic(), Huber(0.3), Squared(1.0, 1e6)], ids=repr)
def test_the_ball_by_hessian_products_alone(loss: Loss, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    rows, targets = rng.normal(size=(20, 8)), rng.choice([-1.0, 1.0], 20)
    free = LinearObjective(loss, 8, strong_convexity=0.03, radius=loss.ball, size_limit=20)
    records = free.records(rows, targets)
    norm = float(np.linalg.norm(approach(RegularisedSum(free, records), 1e-10, free.radius).theta))
    for gap in (0.9, 0.1, 1e-6, 1e-12, 1e-15, -1e-15):
        objective = in_ball(free, norm * (1 - gap))
        tolerance = minimiser.certain_tolerance(objective.facts, 0.03)
        exact = approach(RegularisedSum(objective, records), tolerance, objective.radius)
        with monkeypatch.context() as patch:
            patch.setattr(newton, "_DENSE_LIMIT", 3)
            found = approach(RegularisedSum(objective, records), tolerance, objective.radius)
        assert max(found.residual, exact.residual) <= tolerance
        assert np.linalg.norm(found.theta - exact.theta) <= 2 * tolerance / 0.03


def makers() -> list[Any]:
    output = Output(strong_convexity=1.0)
    return [
        pytest.param(lambda radius: DPRidge(epsilon=1.0, radius=radius, mechanism=output), 50.0, id="ridge"),
        pytest.param(lambda radius: DPRidge(epsilon=1.0, delta=0, radius=radius, public_size=20), 50.0, id="pure ridge"),
        pytest.param(
            lambda radius: DPPoissonRegressor(epsilon=1.0, radius=radius, mechanism=output, target_bound=1.0), 2.5, id="poisson"
        ),
        pytest.param(
            lambda radius: DPRidge(epsilon=1.0, radius=radius, mechanism=AccuracyFirst(loss=0.1, strong_convexity=1.0)),
            50.0,
            id="accuracy first",
        ),
    ]


@pytest.mark.fast_cases("ridge", "pure ridge", "poisson")
@pytest.mark.parametrize(("make", "wide"), makers())
def test_fits_with_the_radius_just_below_the_free_norm(make: Any, wide: float) -> None:
    rng = np.random.default_rng(5)
    rows = rng.uniform(0, 1, (20, 2)) / 1.5
    targets = np.clip(rows @ [1.0, 0.5] + 0.1 * rng.normal(size=20), 0, 1)
    _, objective = make(wide).mechanism_for(features=2)
    for gap in (1e-15, 1e-13, 3e-12, 1e-10, 1e-8):
        radius = 1.0
        for _ in range(40):  # the strong convexity may follow the radius
            mechanism, _ = make(radius).mechanism_for(features=2)
            free = objective.with_strong_convexity(mechanism.strong_convexity)
            theta = approach(RegularisedSum(free, free.records(rows, targets)), 1e-12, objective.radius).theta
            radius = float(np.linalg.norm(theta)) * (1 - gap)
        for some in (slice(None), slice(0, -1)):
            model = make(radius).fit(rows[some], targets[some])
            assert np.isfinite(model.coef_).all()


def test_a_descent_ends_within_its_public_number_of_evaluations(monkeypatch: pytest.MonkeyPatch) -> None:
    found, longest = problems(np.random.default_rng(1), modulus=(-1, 2)), 0
    monkeypatch.setattr(minimiser, "approach", lambda problem, *_: replace(approach(problem, 1.0, 1.0), residual=math.inf))
    for _ in range(60):
        objective, records, linear = next(found)
        tolerance = minimiser.certain_tolerance(objective.facts, objective.strong_convexity, objective.data_norm)
        solution = minimiser.solve(objective, records, linear, tolerance, objective.data_norm)
        most = minimiser.most_evaluations(objective.facts, objective.strong_convexity, tolerance, objective.data_norm)
        assert solution.residual <= tolerance and solution.evaluations <= most
        longest = max(longest, solution.iterations)
    assert longest > 20


def test_a_linear_term_longer_than_the_tolerance_allows_for_is_in_delta() -> None:
    event = ObjectivePerturbationEvent(4.0, 1.0, 0.25, 5.0, loss="logistic")
    assert loss_pairs(event).infinite == LONG_CHANCE  # in compositions
    assert delta(event, 600.0) >= LONG_CHANCE  # and by itself, where nothing else is left
    chance = 2 * mpmath.gammainc(0.5, LONGER**2 / 2, regularized=True)  # p = 1: of |b| > LONGER·σ, on both
    assert chance <= LONG_CHANCE <= 1e-296


@pytest.mark.parametrize(("dimension", "dense"), [(1, True), (4, True), (4, False)])
def test_no_ball_is_too_small_for_a_solver(dimension: int, dense: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one whose radius has no square, or no inverse, among doubles. The minimiser points against the gradient at 0."""
    if not dense:
        monkeypatch.setattr(newton, "_DENSE_LIMIT", 0)
    rng = np.random.default_rng(3)
    objective = LinearObjective(Squared(1.0), dimension, strong_convexity=0.5)
    records = objective.records(rng.normal(size=(8, dimension)), rng.uniform(-1, 1, 8))
    problem = RegularisedSum(objective, records, np.zeros(dimension))
    downwards = -problem.evaluate(np.zeros(dimension), False)[1]
    for radius in (5e-324, 1e-300, 1e-200, 1e-160, 1e-110, 1e-100, 1e-50):
        theta = approach(problem, 1e-6, radius).theta
        assert newton.length_of(theta) <= radius * (1 + 1e-12)
        if radius > 1e-300 and theta.any():
            assert theta / newton.length_of(theta) == pytest.approx(downwards / np.linalg.norm(downwards), abs=1e-6)


@pytest.mark.parametrize("kind", [DPRidge, DPPoissonRegressor])
@pytest.mark.parametrize("radius", [5e-324, 1e-300, 1e-160, 1e-101, 1e-100, 1e-60, 1e98, 1e101, 1e300])
def test_a_radius_is_refused_before_the_charge_or_trains(kind: Any, radius: float) -> None:
    rows = np.random.default_rng(0).normal(size=(20, 2)) / 3
    for spent in (0.0, 1e-5):
        with thrown_away() as log:
            try:
                model = kind(radius=radius, delta=spent, public_size=20).fit(rows, np.abs(rows[:, 0]))
            except ValueError:
                assert log.charges() == []
                assert kind is DPPoissonRegressor or not 1e-100 <= radius <= 1e100
            else:
                assert np.isfinite(model.coef_).all()
                assert 1e-100 <= radius <= 1e100
                assert len(log.charges()) == 1
