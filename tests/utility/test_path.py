"""The path along ε against trainings one by one; the first-order estimate against differences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from dperm.objectives import (
    Hinge,
    Huber,
    LinearObjective,
    Logistic,
    Loss,
    Records,
    RegularisedSum,
    Roughness,
    SmoothedHinge,
    Softmax,
)
from dperm.solvers import SolverError, minimise
from dperm.utility import EpsilonCurve, FirstOrder, UtilityPath, first_order

DELTA, SIZE, FEATURES = 1e-6, 12_000, 6
EPSILONS = np.geomspace(0.2, 4.0, 9)


def objective(loss: Loss | None = None, **settings: Any) -> LinearObjective:
    return LinearObjective(loss or Logistic(), FEATURES, public_size=SIZE, intercept_scale=1.0, **settings)


def table(size: int = SIZE) -> tuple[Any, Any]:
    rng = np.random.default_rng(3)
    rows = rng.normal(size=(size, FEATURES)) / 3
    targets = np.where(rows[:, 0] - rows[:, 1] + 0.3 * rng.normal(size=size) > 0.2, 1.0, -1.0)
    return rows, targets


def refits(problem: LinearObjective, records: Records, curve: EpsilonCurve, direction: Any, epsilons: Any) -> Any:
    """θ (k, p) and mean losses (k,), each trained by itself."""
    thetas, losses = [], []
    for epsilon in epsilons:
        linear = float(curve.noise_std(epsilon)[0]) * direction
        alone = RegularisedSum(problem.with_strong_convexity(float(curve.modulus(epsilon)[0])), records, linear)
        thetas.append(minimise(alone, 1e-7 * float(np.linalg.norm(linear))).theta)
        losses.append(problem.evaluate(thetas[-1], records)[0] / len(records))
    return np.array(thetas), np.array(losses)


@pytest.mark.fast_cases("huber-generic")
@pytest.mark.parametrize("calibration", ["sharp", "generic", "kifer"])
@pytest.mark.parametrize("loss", [Logistic(), Huber(0.5), SmoothedHinge(0.5)], ids=["logistic", "huber", "hinge"])
def test_every_point_is_what_training_there_gives(loss: Loss, calibration: Any) -> None:
    problem = objective(loss)
    records = problem.records(*table())
    curve = EpsilonCurve(problem.facts, DELTA, 0.2, 4.0, calibration)
    path = UtilityPath(problem, records, curve, draws=2, random_state=0)
    for draw, direction in enumerate(path.directions):
        thetas, losses = refits(problem, records, curve, direction, EPSILONS)
        assert path.training_loss(EPSILONS)[draw] == pytest.approx(losses, rel=1e-4 if isinstance(loss, Huber) else 1e-6)
        apart = np.linalg.norm(path.theta(EPSILONS)[draw] - thetas, axis=1)
        assert (apart < (1e-2 if isinstance(loss, Huber) else 1e-4) * np.linalg.norm(thetas, axis=1)).all()


def test_a_path_is_found_from_few_points_and_in_any_order() -> None:
    problem = objective()
    path = UtilityPath(problem, problem.records(*table()), EpsilonCurve(problem.facts, DELTA, 0.2, 4.0), random_state=0)
    assert len(path.nodes) <= 17
    assert path.nodes[0] == 0.2
    assert path.nodes[-1] == 4.0
    assert np.array_equal(path.training_loss(EPSILONS[::-1]), path.training_loss(EPSILONS)[:, ::-1])
    assert path.theta(1.0).shape == (1, 1, FEATURES + 1)
    assert path.training_loss(path.nodes[3])[0, 0] == pytest.approx(path.training_loss(path.nodes)[0, 3], rel=1e-12)
    for wrong in (0.1, 5.0, np.nan):
        with pytest.raises(ValueError, match=r"between 0\.2 and 4"):
            path.theta([1.0, wrong])


def test_scores_of_other_rows_are_those_of_the_models() -> None:
    problem = objective()
    rows, targets = table()
    path = UtilityPath(
        problem, problem.records(rows, targets), EpsilonCurve(problem.facts, DELTA, 0.2, 4.0), draws=3, random_state=1
    )
    other, labels = rows[:500] * 1.7, targets[:500]

    def accuracy(predictions: Any) -> Any:
        return ((predictions > 0) == (labels > 0)[:, None]).mean(axis=0)

    found = path.scores(EPSILONS, other, accuracy)
    (batch,) = problem.records(other, labels).batches()
    for draw, thetas in enumerate(path.theta(EPSILONS)):
        expected = accuracy(np.stack([problem.predict(theta, batch) for theta in thetas], axis=1))
        assert found[draw] == pytest.approx(expected, abs=0.004)  # a row on the edge may fall to either side
    assert path.scores(EPSILONS, sp.csr_array(other), accuracy) == pytest.approx(found, abs=0.004)


@pytest.mark.parametrize("kind", ["sparse", "single precision", "few", "one", "absent", "one class", "sorted", "copies", "rough"])
def test_whatever_the_records_are(kind: str) -> None:
    problem = objective(roughness=Roughness(((0, 1), (2, 3)), 5.0) if kind == "rough" else None)
    rows, targets = table()
    if kind == "sparse":
        rows = sp.csr_array(rows)
    elif kind == "single precision":
        rows = rows.astype(np.float32)
    elif kind in ("few", "one"):
        rows, targets = rows[: 20 if kind == "few" else 1], targets[: 20 if kind == "few" else 1]
    elif kind == "absent":
        rows[::3] = np.nan
    elif kind == "one class":
        targets = np.ones(SIZE)
    elif kind == "sorted":
        order = np.argsort(targets)
        rows, targets = rows[order], targets[order]
    elif kind == "copies":
        rows, targets = np.repeat(rows[:3], SIZE // 3, axis=0), np.repeat(targets[:3], SIZE // 3)
    records = problem.records(rows, targets)
    curve = EpsilonCurve(problem.facts, DELTA, 0.2, 4.0)
    path = UtilityPath(problem, records, curve, random_state=0)
    _, losses = refits(problem, records, curve, path.directions[0], EPSILONS[::2])
    assert path.training_loss(EPSILONS[::2])[0] == pytest.approx(losses, rel=1e-6)


def test_many_features_are_solved_for_by_products(monkeypatch: pytest.MonkeyPatch) -> None:
    from dperm.utility import path as module

    monkeypatch.setattr(module, "_DENSE", 2)
    problem = objective()
    records = problem.records(*table(1000))
    curve = EpsilonCurve(problem.facts, DELTA, 0.5, 4.0)
    path = UtilityPath(problem, records, curve, random_state=0)
    _, losses = refits(problem, records, curve, path.directions[0], [0.5, 1.3, 4.0])
    assert path.training_loss([0.5, 1.3, 4.0])[0] == pytest.approx(losses, rel=1e-6)


def test_what_has_no_path_is_refused() -> None:
    curve = EpsilonCurve(objective().facts, DELTA, 0.2, 4.0)
    for problem, message in (
        (objective(radius=3.0), "without a ball"),
        (objective(Hinge()), "smooth loss"),
        (objective(Softmax(3)), "one output"),
    ):
        records = objective().records(*table(10))
        with pytest.raises(ValueError, match=message):
            UtilityPath(problem, records, curve)
        with pytest.raises(ValueError, match=message):
            first_order(problem, records, curve, 1.0)
    problem = objective()
    records = problem.records(*table(10))
    for directions in (np.ones(3), np.ones((2, 3)), np.ones((0, FEATURES + 1))):
        with pytest.raises(ValueError, match="directions of shape"):
            UtilityPath(problem, records, curve, directions=directions)
    with pytest.raises(ValueError, match="tolerance"):
        UtilityPath(problem, records, curve, tolerance=0.0)
    with pytest.raises(SolverError, match="smaller range"):
        UtilityPath(objective(Huber(0.1)), problem.records(*table(40)), curve, tolerance=1e-10)


# First order


def test_slopes_of_the_estimate_are_those_of_differences() -> None:
    problem = objective()
    records = problem.records(*table())
    for calibration in ("sharp", "kifer"):
        curve = EpsilonCurve(problem.facts, DELTA, 0.2, 4.0, calibration)
        found = first_order(problem, records, curve, 1.0, draws=2, random_state=5)
        for draw, direction in enumerate(np.random.default_rng(5).standard_normal((2, FEATURES + 1))):
            thetas, losses = refits(problem, records, curve, direction, [0.999, 1.0, 1.001])
            assert found.loss[draw] == pytest.approx(losses[1], rel=1e-8)
            assert found.theta_slope[draw] == pytest.approx((thetas[2] - thetas[0]) / 0.002, rel=1e-3, abs=1e-5)
            assert found.slope[draw] == pytest.approx((losses[2] - losses[0]) / 0.002, rel=1e-3)


def test_estimates_touch_the_path_and_come_back_from_targets() -> None:
    problem = objective()
    records = problem.records(*table())
    curve = EpsilonCurve(problem.facts, DELTA, 0.2, 4.0)
    found = first_order(problem, records, curve, 0.8, random_state=0)
    path = UtilityPath(problem, records, curve, random_state=0)
    true = path.training_loss(EPSILONS)[0]
    errors = {}
    for variable in ("epsilon", "inverse", "log"):
        assert found.training_loss(0.8, variable)[0, 0] == found.loss[0]
        near = found.training_loss([0.79, 0.81], variable)[0]
        assert near == pytest.approx(path.training_loss([0.79, 0.81])[0], rel=1e-4)
        errors[variable] = np.abs(found.training_loss(EPSILONS, variable)[0] - true).max()
        for epsilon in (0.5, 1.1):
            target = float(found.training_loss(epsilon, variable)[0, 0])
            assert found.epsilon_for(target, variable) == pytest.approx(epsilon)
    early = first_order(problem, records, curve, 0.25, random_state=0)
    wrong = {variable: np.abs(early.training_loss(EPSILONS, variable)[0] - true).max() for variable in errors}
    assert max(wrong["inverse"], wrong["log"]) < wrong["epsilon"] / 5  # as published it is poor from small ε
    assert found.epsilon_for(100.0) is None  # a worse loss than any ε above 0 has on the tangent
    assert found.epsilon_for(0.0, "inverse") is None
    with pytest.raises(ValueError, match="variable"):
        found.training_loss(1.0, "square")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="each epsilon"):
        found.training_loss([0.0])


def test_a_flat_estimate_reaches_nothing_else() -> None:
    flat = FirstOrder(1.0, np.zeros((1, 2)), np.zeros((1, 2)), np.array([0.5]), np.array([0.0]))
    assert flat.epsilon_for(0.5) == 1.0 and flat.epsilon_for(0.4) is None
