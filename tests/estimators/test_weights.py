"""Classes and records that count for more than others: public weights, private ones, and what neither may change."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.stats import norm
from sklearn.base import BaseEstimator, clone, is_classifier

from dperm.audit import Pair, Training, replay
from dperm.audit.pairs import of_persons
from dperm.estimators import (
    DPLinearSVC,
    DPLogisticRegression,
    DPOrdinalClassifier,
    DPPoissonRegressor,
    DPQuantileRegressor,
    DPRidge,
    model_from_json,
    model_to_json,
)
from dperm.mechanisms import Gradient, ObjectivePerturbation
from dperm.objectives import (
    Huber,
    LinearObjective,
    Logistic,
    Loss,
    OrdinalLogistic,
    QuantileLoss,
    SmoothedHinge,
    Squared,
    Weighted,
)
from dperm.privacy import Relation, epsilon
from dperm.release import SpendLog
from helpers.estimators import linear_estimators, made, parameters
from helpers.losses import every_loss, unweighted

RNG = np.random.default_rng(0)
N = 4000
X = RNG.uniform(0, 1, (N, 3)) / 2
WEIGHING = [kind for kind in linear_estimators() if "max_sample_weight" in parameters(kind)]
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
    with pytest.warns(UserWarning, match="weights are above 2 and count as 2"):
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
        ({}, {"sample_weight": np.zeros(N)}, "weight of zero for every record"),
        ({}, {"sample_weight": np.where(np.arange(N) == 7, np.inf, 1.0)}, "finite and at least 0"),
        ({}, {"sample_weight": np.where(np.arange(N) == 7, np.nan, 1.0)}, "finite and at least 0"),
        ({}, {"sample_weight": np.where(np.arange(N) == 7, -1e-300, 1.0)}, "finite and at least 0"),
        ({"max_sample_weight": 2.0}, {}, "sample_weight in fit with max_sample_weight=2"),
        ({"max_sample_weight": -2.0}, {"sample_weight": np.ones(N)}, "max_sample_weight"),
        ({"max_sample_weight": np.inf}, {"sample_weight": np.ones(N)}, "max_sample_weight"),
        ({"max_sample_weight": 2.0}, {"sample_weight": np.ones(3)}, "weights, one a row"),
        ({"max_sample_weight": 2.0}, {"sample_weight": -np.ones(N)}, "finite and at least 0"),
        ({"max_sample_weight": 2.0}, {"sample_weight": np.full(N, np.nan)}, "finite and at least 0"),
        ({"class_weight": {"no": 1, "yes": 2, "so": 3}}, {}, "got those of .*'so'"),
        ({"max_sample_weight": 2.0}, {"sample_weight": pd.Series(np.ones(N), index=range(1, N + 1))}, "with the index of X"),
        ({"class_weight": {"no": 1, "yes": 2}, "classes": ["no", "so", "yes"]}, {}, "got those of"),
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


@pytest.mark.fast_cases(
    "DPElasticNet()--4000",
    "DPLasso()--None",
    "DPLinearSVC(classes=[0, 1, 2])--4000",
    "DPLogisticRegression(classes=[0, 1, 2])--None",
    "DPPoissonRegressor()--4000",
    "DPQuantileRegressor()--None",
    "DPRidge()--None",
    "DPLogisticRegression(classes=[0, 1, 2], mechanism='objective')--4000",
    "DPRidge(mechanism='gradient', radius=2.0)--4000",
)
@pytest.mark.parametrize("size", [N, None])
@pytest.mark.parametrize(
    ("model", "y"),
    [
        *((made(kind, classes=[0, 1, 2]), np.arange(N) % 3 if is_classifier(made(kind)) else X[:, 0]) for kind in WEIGHING),
        (DPLogisticRegression(classes=[0, 1, 2], mechanism="objective"), np.arange(N) % 3),
        (DPRidge(mechanism="gradient", radius=2.0), X[:, 0] - X[:, 1]),
    ],
    ids=lambda value: repr(value) if isinstance(value, BaseEstimator) else "",
)
def test_records_of_every_estimator_may_weigh(model: Any, y: Any, size: int | None) -> None:
    """Half of the records count whole, the others, which say the opposite, not at all."""
    model = clone(model).set_params(epsilon=50.0, random_state=3, public_size=size, max_sample_weight=2.0)
    weights = np.where(np.arange(N) % 2, 2.0, 0.0)
    false = np.where(np.arange(N) % 2, y, y[::-1] if getattr(model, "classes", None) is None else (y + 1) % 3)
    told = clone(model).fit(X, y, sample_weight=weights)
    lied = clone(model).fit(X, false, sample_weight=weights)
    whole = clone(model).fit(X, false, sample_weight=np.full(N, 2.0))
    assert told.coef_ == pytest.approx(lied.coef_, abs=1e-3) and not np.allclose(whole.coef_, told.coef_, atol=1e-2)
    assert any("counts at most as much as a weight of 2" in assumption.text for assumption in told.certificate_.assumptions)
    assert told.certificate_.epsilon == whole.certificate_.epsilon


HUGE = float(np.finfo(np.float64).max)


class WeighedByAColumn(BaseEstimator):
    """Takes each record's weight from its last column, so that an audit of the front door can give it any."""

    def __init__(self, epsilon: float = 4.0, relation: str = "add_or_remove_one", random_state: Any = None) -> None:
        self.epsilon = epsilon
        self.relation = relation
        self.random_state = random_state

    def weights(self, own: Any) -> Any:
        return own

    def fit(self, X: Any, y: Any) -> Any:
        size = OTHERS + (self.relation == Relation.ADD_OR_REMOVE_ONE)
        model = DPLogisticRegression(
            epsilon=self.epsilon,
            relation=self.relation,
            classes=[0, 1],
            public_size=size,
            mechanism=Gradient(sampling="full", epochs=2),
            random_state=self.random_state,
        ).fit(X[:, :-1], y, sample_weight=self.weights(X[:, -1]))
        self.coef_, self.intercept_, self.trace_ = model.coef_, model.intercept_, model.trace_
        self.certificate_ = model.certificate_
        return self


class DividedByTheirSum(WeighedByAColumn):
    """A planted defect: one record's weight changes the weights of all others."""

    def weights(self, own: Any) -> Any:
        return len(own) * own / own.sum()


class DividedByTheirMaximum(WeighedByAColumn):
    """A planted defect: the record with the largest weight changes those of all others."""

    def weights(self, own: Any) -> Any:
        return own / own.max()


def of_the_front_door(kind: Any, relation: Relation) -> Training:
    """Records of all weights, beside which one of an extreme weight is added, removed or replaced."""
    rng = np.random.default_rng(5)
    rows = np.column_stack([rng.normal(size=(OTHERS, 3)), rng.choice([1e-9, 0.3, 1.0, 50.0], OTHERS)])
    labels = np.where(rows[:, 0] > 0, 1, 0)
    pairs = [
        Pair.neighbour(relation, f"a weight of {weight:g}", (rows, labels), np.array([9.0, 0.0, 0.0, weight]), 0)
        for weight in (HUGE, 1e9, 1.0, 0.4, 5e-324, 0.0)
    ]
    return Training.of_estimator(kind(relation=relation.value), (rows, labels), pairs)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("relation", list(Relation))
def test_a_record_of_any_weight_moves_its_own_term_alone(relation: Relation) -> None:
    audited = of_the_front_door(WeighedByAColumn, relation)
    found = replay(audited, audited.replay_pairs)
    assert found.verdict == "consistent", found
    assert found.details["largest_movement"] > 0.5


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("kind", [DividedByTheirSum, DividedByTheirMaximum])
def test_weights_that_are_divided_by_those_of_others_are_refuted(kind: Any) -> None:
    audited = of_the_front_door(kind, Relation.ADD_OR_REMOVE_ONE)
    assert replay(audited, audited.replay_pairs[1:2]).verdict == "refuted"


def test_weights_within_one_need_no_bound_and_are_clipped_to_one() -> None:
    options: dict[str, Any] = {"epsilon": 4.0, "classes": ["no", "yes"], "random_state": 3}
    weights = np.where(RARE == "yes", 1.0, 0.25)
    stated = DPLogisticRegression(max_sample_weight=1.0, **options).fit(X, RARE, sample_weight=weights)
    plain = DPLogisticRegression(**options).fit(X, RARE, sample_weight=weights)
    assert np.array_equal(plain.coef_, stated.coef_) and plain.certificate_.event == stated.certificate_.event
    with pytest.warns(UserWarning, match="weights are above 1 and count as 1: .*max_sample_weight"):
        above = DPLogisticRegression(**options).fit(X, RARE, sample_weight=np.where(RARE == "yes", 7.0, 0.25))
    assert np.array_equal(above.coef_, plain.coef_)
    said = {item.key: item for item in plain.certificate_.assumptions}
    assert said["weights apart"].responsible == "caller" and "its own record alone" in said["weights apart"].text
    assert "a weight of 1;" in said["record weights"].text
    loaded, _ = model_from_json(model_to_json(plain))
    assert loaded.objective_.loss == plain.objective_.loss and np.array_equal(loaded.predict(X), plain.predict(X))
    assert clone(plain).max_sample_weight is None
    assert not any("weight" in text for text in map(str, (above.trace_, above.certificate_.public_facts)))


def test_no_path_of_weighted_records() -> None:
    with pytest.raises(ValueError, match="the path of weighted records is not followed"):
        DPLogisticRegression(class_weight={"no": 1, "yes": 3}).epsilon_path(X, RARE)


def test_a_loss_is_weighted_once() -> None:
    with pytest.raises(ValueError, match="to be weighted, got one that is"):
        Weighted(Weighted(Logistic()))


@pytest.mark.parametrize(
    "base",
    every_loss(
        Logistic(), Logistic(2.0), Huber(0.5), SmoothedHinge(0.3), Squared(1.0, 2.0), QuantileLoss(0.8, 2.0, 0.5), of=unweighted
    ),
    ids=lambda loss: loss.name,
)
def test_weights_scale_value_slope_and_curvature(base: Loss) -> None:
    loss, t = Weighted(base), np.linspace(-5, 5, 99)
    names = ["value", "slope", "curvature"]
    if base.outputs > 1:
        t, names = np.random.default_rng(0).normal(size=(99, base.outputs)), ["value", "slope", "curvatures"]
    for target in base.targets.extremes:
        whole = np.full(99, target)
        for name in names:
            full = getattr(base, name)(t.copy(), whole.copy())
            for u in (0.0, 0.3, 1.0):
                found = getattr(loss, name)(t.copy(), np.column_stack([whole, np.full(99, u)]))
                assert found.shape == full.shape and found == pytest.approx(u * full)
            assert np.array_equal(getattr(loss, name)(t.copy(), whole.copy()), full)  # no weights: 1 each
    admitted = loss.admit(np.column_stack([np.full(4, base.targets.extremes[0]), [-7.0, 0.2, 1e9, 1.0]]))
    assert admitted[:, 1].tolist() == [0.0, 0.2, 1.0, 1.0]
    assert np.array_equal(admitted[:, 0], base.admit(np.full(4, base.targets.extremes[0])))
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
            t = np.column_stack([np.ones(len(theta)), np.full(len(theta), u)])
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
    "Expected a loss of",
)
OTHERS = 40
METHODS: list[Any] = [
    "objective", "output", "gradient", "coordinate", "frank-wolfe", "frank-wolfe-l2", "greedy-coordinate", "last-iterate",
    "bolt-on", "individual", "lssgd", "tgp", Gradient(sampling="importance", epochs=2), Gradient(sampling="full", epochs=3),
    Gradient(sampling="balls_and_bins", epochs=2), Gradient(sampling="fixed_size", epochs=2), Gradient(sampling="rows", epochs=2),
]  # fmt: skip


def weighted_pairs(relation: Relation, objective: LinearObjective, classes: int) -> list[Pair]:
    """Neighbours of every weight, among others of every weight."""
    if isinstance(objective.loss.plain, OrdinalLogistic):
        classes = 0  # ranks, of one model
    rng = np.random.default_rng(2)
    rows = rng.normal(size=(OTHERS, 3))
    rows /= np.linalg.norm(rows, axis=1)[:, None]
    one, other = (0.0, 1.0) if classes > 2 else objective.loss.targets.extremes
    known = np.arange(OTHERS) % classes if classes > 2 else np.where(rows[:, 0] > 0, one, other)
    others = (rows, np.column_stack([known, rng.choice([0.0, 1e-9, 0.3, 1.0], OTHERS)]))
    far = np.array([1.0, 0.0, 0.0])
    return [Pair.neighbour(relation, f"{y:g} of weight {u:g}", others, far, [y, u]) for y, u in ((other, 1.0), (one, 0.4))]


KINDS: dict[str, tuple[Any, int]] = {
    "two classes": (DPLogisticRegression(class_weight={"no": 1, "yes": 3}), 2),
    "three classes": (DPLogisticRegression(class_weight={"no": 1, "so": 2, "yes": 3}), 3),
    "three classes, svm": (DPLinearSVC(class_weight={"no": 1, "so": 2, "yes": 3}), 3),
    "ranks": (DPOrdinalClassifier(classes=["no", "so", "yes"], max_sample_weight=1.0), 3),
    "squares": (DPRidge(radius=2.0, max_sample_weight=1.0), 0),
    "counts": (DPPoissonRegressor(radius=0.5, max_sample_weight=1.0), 0),
    "quantiles": (DPQuantileRegressor(max_sample_weight=1.0), 0),
    # by a mechanism of their own
    **{kind.__name__: (made(kind, max_sample_weight=1.0), 0) for kind in WEIGHING if "mechanism" not in parameters(kind)},
}


def test_every_linear_model_that_weighs_records_is_among_them() -> None:
    assert {type(model) for model, _ in KINDS.values()} == set(WEIGHING)


def _methods(kind: str) -> list[Any]:
    """Those that might be: "frank-wolfe" has a radius of its own, too large for losses that are bounded on a ball."""
    if "mechanism" not in KINDS[kind][0].get_params():
        return [None]
    bounded = kind in ("squares", "counts")
    named = [method for method in METHODS if not (bounded and method == "frank-wolfe")]
    return [*named, "preconditioned"] if kind == "squares" else named


def _always(kind: str, method: Any) -> bool:
    return (kind, method) in {("two classes", "objective"), ("squares", "preconditioned")}  # the catalogue has others


@pytest.mark.parametrize("relation", [Relation.ADD_OR_REMOVE_ONE, Relation.REPLACE_ONE])
@pytest.mark.parametrize(
    ("kind", "method"),
    [
        pytest.param(kind, method, marks=[] if _always(kind, method) else pytest.mark.slow)
        for kind in KINDS
        for method in _methods(kind)
    ],
)
@pytest.mark.parametrize("max_rows_per_unit", [None, 3])
def test_neighbours_of_every_weight_are_replayed(
    kind: str, method: Any, relation: Relation, max_rows_per_unit: int | None
) -> None:
    size = OTHERS if relation is Relation.REPLACE_ONE else OTHERS + 1
    base, classes = KINDS[kind]
    model = clone(base).set_params(epsilon=4.0, relation=relation, public_size=size)
    if method is not None:
        model.set_params(mechanism=method)
    if max_rows_per_unit is not None and "max_rows_per_unit" not in model.get_params():
        return  # of one row a person alone
    if max_rows_per_unit is not None:
        model.set_params(max_rows_per_unit=max_rows_per_unit)
    try:
        mechanism, objective = model.mechanism_for(3, classes, size)
        training = Training.of_mechanism(mechanism, objective)
    except ValueError as refused:
        assert any(word in str(refused) for word in WITHOUT), refused
        return
    pairs = weighted_pairs(relation, objective, classes)
    if max_rows_per_unit is not None:
        pairs = [of_persons(pair, max_rows_per_unit, alike=alike) for pair in pairs for alike in (True, False)]
    found = replay(training, pairs)
    assert found.verdict == "consistent", found
    assert found.details["largest_movement"] > (1e-4 if kind == "counts" else 0.02)  # its bounds are far above what rows do
