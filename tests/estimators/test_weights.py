"""Classes and records that count for more than others: public weights, private ones, and what neither may change."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.stats import norm

from dperm.audit import Pair, Training, replay
from dperm.audit.pairs import of_persons
from dperm.estimators import DPLinearSVC, DPLogisticRegression, model_from_json, model_to_json
from dperm.mechanisms import Gradient, ObjectivePerturbation
from dperm.objectives import Hinge, Huber, LinearObjective, Logistic, SmoothedHinge, Softmax, Squared, Weighted
from dperm.privacy import Relation, epsilon
from dperm.release import SpendLog

RNG = np.random.default_rng(0)
N = 4000
X = RNG.uniform(0, 1, (N, 3)) / 2
RARE = np.where(X[:, 0] + 0.25 * RNG.normal(size=N) > 0.62, "yes", "no")


@pytest.mark.parametrize("kind", [DPLogisticRegression, DPLinearSVC])
def test_a_rare_class_that_weighs_more_is_found_more_often(kind: Any) -> None:
    options: dict[str, Any] = {"epsilon": 20.0, "classes": ["no", "yes"], "random_state": 0}
    plain = kind(**options).fit(X, RARE)
    weighted = kind(class_weight={"no": 1, "yes": 8}, **options).fit(X, RARE)
    found = [float(np.mean(model.predict(X)[RARE == "yes"] == "yes")) for model in (plain, weighted)]
    assert found[1] > found[0] + 0.3 and np.mean(RARE == "yes") < 0.25
    assert weighted.certificate_.event == plain.certificate_.event or kind is DPLinearSVC  # it costs the same
    assert any("no: 0.125, yes: 1" in assumption.text for assumption in weighted.certificate_.assumptions)


def test_class_weights_are_weights_of_all_records_of_a_class() -> None:
    options: dict[str, Any] = {"epsilon": 4.0, "classes": ["no", "yes"], "random_state": 3}
    by_class = DPLogisticRegression(class_weight={"no": 0.5, "yes": 2.0}, **options).fit(X, RARE)
    weights = np.where(RARE == "yes", 2.0, 0.5)
    by_record = DPLogisticRegression(max_sample_weight=2.0, **options).fit(X, RARE, sample_weight=weights)
    assert np.array_equal(by_class.coef_, by_record.coef_)
    clipped = DPLogisticRegression(max_sample_weight=2.0, **options).fit(
        X, RARE, sample_weight=weights * (1 + 9 * (weights == 2))
    )
    assert np.array_equal(clipped.coef_, by_record.coef_)
    alike = DPLogisticRegression(max_sample_weight=3.0, **options).fit(X, RARE, sample_weight=np.full(N, 3.0))
    assert np.allclose(alike.coef_, DPLogisticRegression(**options).fit(X, RARE).coef_, atol=1e-3)


def test_records_of_no_weight_are_as_good_as_absent() -> None:
    options: dict[str, Any] = {"epsilon": 4.0, "classes": ["no", "yes"], "random_state": 3, "max_sample_weight": 1.0}
    weights = (np.arange(N) % 2).astype(float)
    half = DPLogisticRegression(**options).fit(X[1::2], RARE[1::2], sample_weight=np.ones(N // 2))
    whole = DPLogisticRegression(**options).fit(X, RARE, sample_weight=weights)
    assert np.allclose(half.coef_, whole.coef_, atol=1e-3)


@pytest.mark.parametrize(
    ("settings", "given", "message"),
    [
        ({"class_weight": "balanced"}, {}, "counts the labels, which is not private"),
        ({"class_weight": {"no": 1}}, {}, r"one weight of each of the classes \['no', 'yes'\], got those of \['no'\]"),
        (
            {"class_weight": {"no": 1, "yes": 3}, "classes": None},
            {"labels": np.where(np.arange(N) % 2, "no", "so")},
            "got those of",
        ),
        ({"class_weight": {"no": 1, "yes": -1}}, {}, "class_weight of 'yes'"),
        ({"class_weight": {"no": 0, "yes": 2}}, {}, "class_weight of 'no'"),
        ({"class_weight": {1: 1, "1": 2}}, {}, "one weight a label"),
        ({"class_weight": [1, 2]}, {}, "weights by label"),
        ({"class_weight": {"no": 1, "yes": np.nan}}, {}, "class_weight of 'yes'"),
        ({}, {"sample_weight": np.ones(N)}, "max_sample_weight together"),
        ({"max_sample_weight": 2.0}, {}, "max_sample_weight together"),
        ({"max_sample_weight": -2.0}, {"sample_weight": np.ones(N)}, "max_sample_weight"),
        ({"max_sample_weight": np.inf}, {"sample_weight": np.ones(N)}, "max_sample_weight"),
        ({"max_sample_weight": 2.0}, {"sample_weight": np.ones(3)}, "weights, one a row"),
        ({"max_sample_weight": 2.0}, {"sample_weight": -np.ones(N)}, "finite and at least 0"),
        ({"max_sample_weight": 2.0}, {"sample_weight": np.full(N, np.nan)}, "finite and at least 0"),
        ({"class_weight": {"no": 1, "yes": 2, "so": 3}}, {}, "got those of .*'so'"),
        ({"max_sample_weight": 2.0}, {"sample_weight": pd.Series(np.ones(N), index=range(1, N + 1))}, "with the index of X"),
        ({"class_weight": {"no": 1, "yes": 2, "so": 3}, "classes": ["no", "so", "yes"]}, {}, "Expected two classes"),
    ],
)
def test_odd_weights_are_refused_uncharged(settings: dict[str, Any], given: dict[str, Any], message: str) -> None:
    before = len(SpendLog.current().charges())
    model = DPLogisticRegression(**({"classes": ["no", "yes"]} | settings))
    X = pd.DataFrame(globals()["X"])
    with pytest.raises((ValueError, TypeError), match=message):
        model.fit(X, given.pop("labels", RARE), **given)
    assert len(SpendLog.current().charges()) == before


@pytest.mark.parametrize("kind", [DPLogisticRegression, DPLinearSVC])
def test_weighted_models_are_saved(kind: Any) -> None:
    y = (RARE == "yes").astype(int)
    model = kind(class_weight={np.int64(0): 1, np.int64(1): 3}, classes=[0, 1]).fit(X, y)  # as np.unique gives them
    loaded, _ = model_from_json(model_to_json(model))
    assert np.array_equal(loaded.predict(X), model.predict(X)) and loaded.objective_.loss == model.objective_.loss
    assert loaded.fit(X, y).certificate_.epsilon == model.certificate_.epsilon  # its table of weights is as good as it was


def test_no_path_of_weighted_records() -> None:
    with pytest.raises(ValueError, match="the path of weighted records is not followed"):
        DPLogisticRegression(class_weight={"no": 1, "yes": 3}).epsilon_path(X, RARE)


def test_losses_that_cannot_be_weighted_are_refused() -> None:
    for loss in (Squared(), Softmax(3), Weighted(Logistic())):
        with pytest.raises(ValueError, match="to be weighted"):
            Weighted(loss)


@pytest.mark.parametrize("base", [Logistic(), Logistic(2.0), Huber(0.5), SmoothedHinge(0.3), Hinge()])
def test_weights_scale_value_slope_and_curvature(base: Any) -> None:
    loss, t = Weighted(base), np.linspace(-5, 5, 101)
    for sign in (-1.0, 1.0):
        for u in (0.0, 0.3, 1.0):
            y, full = np.full(101, sign * u), np.full(101, sign)
            for name in ("value", "slope", "curvature"):
                assert getattr(loss, name)(t.copy(), y) == pytest.approx(u * getattr(base, name)(t.copy(), full))
    assert loss.admit(np.array([-7.0, 0.2])).tolist() == [-1.0, 0.2]
    if not isinstance(base, Hinge):
        assert (loss.lipschitz(2.0), loss.smoothness(2.0), loss.sharp) == (base.lipschitz(2.0), base.smoothness(2.0), base.sharp)


@pytest.mark.parametrize("base", [Logistic(), Logistic(2.0), SmoothedHinge(0.3)])
def test_a_weighted_record_costs_no_more_than_a_whole_one(base: Any) -> None:
    """Exact densities in one dimension: the minimiser's density with and without a record of weight u, and δ at the stated ε."""
    objective = LinearObjective(Weighted(base), 1, data_norm=1.0)
    mechanism = ObjectivePerturbation.calibrate(objective.facts, 1.0, 1e-3)
    modulus, noise = mechanism.strong_convexity, mechanism.noise_std
    theta = np.linspace(-60, 60, 400_001) * noise / modulus / 8
    step = theta[1] - theta[0]
    claimed = epsilon(mechanism.event(objective.facts), 1e-3)
    worst = 0.0
    for others in (0.0, 3.0):  # so many records of full weight beside it
        y = np.full(len(theta), -1.0)
        slope, curvature = modulus * theta, np.full(len(theta), modulus)
        slope, curvature = slope + others * base.slope(theta.copy(), y), curvature + others * base.curvature(theta.copy(), y)
        without = norm.pdf(slope / noise) * curvature / noise
        for u in (0.05, 0.3, 0.7, 1.0):
            t = np.full(len(theta), u)
            with_record = norm.pdf((slope + objective.loss.slope(theta.copy(), t)) / noise)
            with_record = with_record * (curvature + objective.loss.curvature(theta.copy(), t)) / noise
            assert step * with_record.sum() == pytest.approx(1.0, abs=1e-3)
            for first, second in ((with_record, without), (without, with_record)):
                delta = step * np.maximum(first - np.exp(claimed) * second, 0).sum()
                worst = max(worst, delta)
                assert delta <= 1e-3 * (1 + 1e-3)
    assert worst > 1e-4  # the whole record comes near


#: what a combination that does not exist says
WITHOUT = (
    "Expected relation=",
    "Expected one row a person",
    "Expected persons of several rows",
    "Expected the relation",
    "random allocation",
    "rows that are drawn by themselves",
)
OTHERS = 40
METHODS: list[Any] = [
    "objective", "output", "gradient", "coordinate", "frank-wolfe", "frank-wolfe-l2", "greedy-coordinate", "last-iterate",
    "bolt-on", "individual", "lssgd", "tgp", Gradient(sampling="importance", epochs=2), Gradient(sampling="full", epochs=3),
    Gradient(sampling="balls_and_bins", epochs=2), Gradient(sampling="fixed_size", epochs=2), Gradient(sampling="rows", epochs=2),
]  # fmt: skip


def weighted_pairs(relation: Relation) -> list[Pair]:
    """Neighbours of every weight, among others of every weight."""
    rng = np.random.default_rng(2)
    rows = rng.normal(size=(OTHERS, 3))
    rows /= np.linalg.norm(rows, axis=1)[:, None]
    others = (rows, np.sign(rows[:, 0]) * rng.choice([0.0, 1e-9, 0.3, 1.0], OTHERS))
    far = np.array([1.0, 0.0, 0.0])
    return [Pair.neighbour(relation, f"a record of weight {u:g}", others, far, u) for u in (-1.0, 0.4)]


@pytest.mark.parametrize("relation", [Relation.ADD_OR_REMOVE_ONE, Relation.REPLACE_ONE])
@pytest.mark.parametrize(
    "method", [pytest.param(method, marks=[] if method == "objective" else pytest.mark.slow) for method in METHODS]
)
@pytest.mark.parametrize("person_rows", [None, 3])
def test_neighbours_of_every_weight_are_replayed(method: Any, relation: Relation, person_rows: int | None) -> None:
    size = OTHERS if relation is Relation.REPLACE_ONE else OTHERS + 1
    model = DPLogisticRegression(
        epsilon=4.0,
        mechanism=method,
        class_weight={"no": 1, "yes": 3},
        relation=relation,
        public_size=size,
        person_rows=person_rows,
    )
    try:
        training = Training.of_mechanism(*model.mechanism_for(3, 2, size))
    except ValueError as refused:
        assert any(word in str(refused) for word in WITHOUT), refused
        return
    pairs = weighted_pairs(relation)
    if person_rows is not None:
        pairs = [of_persons(pair, person_rows, alike=alike) for pair in pairs for alike in (True, False)]
    found = replay(training, pairs)
    assert found.verdict == "consistent", found
    assert found.details["largest_movement"] > 0.02
