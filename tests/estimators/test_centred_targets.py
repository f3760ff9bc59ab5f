"""Targets in a public range: centred and scaled inside, clipped to it, and noise as for half of its width."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from dperm._remind import given
from dperm.audit import Pair, Training, replay
from dperm.estimators import DPByPart, DPElasticNet, DPPoissonRegressor, DPRidge, model_from_json, model_to_json
from dperm.objectives.targets import Interval
from dperm.privacy import Relation
from dperm.release import SpendLog
from helpers.estimators import all_estimators, learnable, made, parameters
from helpers.halving import is_found, places_of

KINDS = [kind for kind in all_estimators() if "target_range" in parameters(kind)]
CENTRED = [kind for kind in KINDS if kind is not DPPoissonRegressor]
FAST = [kind for kind in KINDS if kind is not DPElasticNet]
RELATIONS = list(Relation)
COUNT, LOW, HIGH = 40, 9000.0, 9500.0


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "delta = ")
        yield


def ends(kind: type) -> tuple[float, float]:
    return (2.0, 9.0) if kind is DPPoissonRegressor else (LOW, HIGH)


def model(kind: type, **settings: Any) -> Any:
    given = {"epsilon": 4.0, "public_size": COUNT, "radius": 0.3, "target_range": ends(kind)}
    return made(kind, **(given | settings))


def data(kind: type) -> tuple[Any, Any]:
    """Rows, and targets over all of the range."""
    rows, targets = learnable(kind, COUNT)
    low, high = ends(kind)
    return rows, low + (high - low) * targets


def audited(kind: type, relation: Relation) -> Training:
    """Records with targets far beyond the range on either side, beside the longest rows there are."""
    rows, targets = data(kind)
    far = np.array([100.0, 0.0, 0.0])
    rows[-1], targets[-1] = -far, 0.0
    beyond = (0.0, 1e300) if kind is DPPoissonRegressor else (-1e300, 1e300)
    pairs = [Pair.neighbour(relation, f"target {target:g}", (rows, targets), far, target) for target in beyond]
    return Training.of_estimator(model(kind, relation=relation.value), (rows, targets), pairs)


def test_every_regression_has_a_range() -> None:
    assert {kind.__name__ for kind in KINDS} == {
        "DPElasticNet", "DPLasso", "DPPoissonRegressor", "DPQuantileRegressor", "DPRidge"
    }  # fmt: skip


@pytest.mark.parametrize("kind", CENTRED)
def test_models_move_and_stretch_with_the_range(kind: type) -> None:
    """The same noise gives the same model in other units: nothing inside knows where a range lies or how wide it is."""
    rows, targets = learnable(kind, COUNT)
    plain = model(kind, target_range=(0.0, 1.0), random_state=0).fit(rows, targets)
    moved = model(kind, target_range=(-4e6, 4e6), random_state=0).fit(rows, 8e6 * targets - 4e6)
    assert np.allclose(moved.predict(rows), 8e6 * plain.predict(rows) - 4e6, rtol=1e-9, atol=1e-3)
    assert np.allclose(moved.coef_, 8e6 * plain.coef_) and moved.certificate_.event == plain.certificate_.event


@pytest.mark.parametrize("kind", CENTRED)
def test_a_range_about_0_is_a_bound(kind: type) -> None:
    rows, targets = learnable(kind, COUNT)
    first = model(kind, target_range=(-1.0, 1.0), random_state=0).fit(rows, targets)
    second = model(kind, target_range=None, target_bound=1.0, random_state=0).fit(rows, targets)
    assert np.array_equal(first.predict(rows), second.predict(rows)) and str(first.certificate_) == str(second.certificate_)


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_targets_beyond_the_range_move_nothing_by_more_than_is_charged(kind: type, relation: Relation) -> None:
    training = audited(kind, relation)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = replay(training, both_ways=False)
    assert found.verdict == "consistent", found


@pytest.mark.parametrize("kind", [*FAST, pytest.param(DPElasticNet, marks=pytest.mark.slow)])
def test_half_of_the_sensitivity_is_refuted(kind: type) -> None:
    training = audited(kind, Relation.ADD_OR_REMOVE_ONE)
    assert any(is_found(training, place) for place in places_of(training))


def test_what_nobody_clips_is_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The estimator clips, and so does the objective: without both a target moves more than is charged."""
    monkeypatch.setattr(Interval, "admit", lambda self, targets: targets)
    assert replay(audited(DPRidge, Relation.ADD_OR_REMOVE_ONE), both_ways=False).verdict == "consistent"

    def unclipped(self: DPRidge, y: Any) -> tuple[Any, int, list[Any]]:
        return (np.asarray(y) - self._middle()) / self._half_width(), 0, []

    monkeypatch.setattr(DPRidge, "_targets", unclipped)
    assert replay(audited(DPRidge, Relation.ADD_OR_REMOVE_ONE), both_ways=False).verdict == "refuted"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"target_range": (1.0, 1.0)}, "low < high"),
        ({"target_range": (2.0, 1.0)}, "low < high"),
        ({"target_range": (0.0, np.inf)}, r"finite target_range\[1\]"),
        ({"target_range": (np.nan, 1.0)}, r"target_range\[0\] to be a number, got nan"),
        ({"target_range": (0.0, 1e300)}, "within 1e100"),
        ({"target_range": (0.0, 1e-200)}, "wider than 2e-100"),
        ({"target_range": 5.0}, "two numbers, "),
        ({"target_range": "01"}, "two numbers, "),
        ({"target_range": (0.0, 1.0, 2.0)}, "two numbers, "),
        ({"target_range": ("0", "1")}, r"target_range\[0\] to be a number"),
        ({"target_range": (0.0, 30.0), "target_bound": 30.0}, "target_range or target_bound, got both"),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_ranges_that_are_none_are_refused_before_the_charge(kind: type, settings: dict[str, Any], said: str) -> None:
    with pytest.raises((ValueError, TypeError), match=said):
        model(kind, **settings).fit(*data(kind))
    assert SpendLog.current().charges() == []


def test_counts_below_0_are_refused() -> None:
    with pytest.raises(ValueError, match="target_range of counts, from 0 or above"):
        model(DPPoissonRegressor, target_range=(-1.0, 5.0)).fit(*data(DPPoissonRegressor))
    with pytest.raises(ValueError, match="Expected counts >= 0"):
        model(DPPoissonRegressor).fit(data(DPPoissonRegressor)[0], np.full(COUNT, -1.0))


@pytest.mark.parametrize("kind", KINDS)
def test_clipping_is_said_to_the_data_holder_alone_and_before_the_charge(kind: type) -> None:
    rows, _ = data(kind)
    low, high = ends(kind)
    targets = np.r_[np.full(3, high + 1.0), np.full(2, low - 1.0), np.full(COUNT - 5, low)]
    with pytest.warns(
        UserWarning, match=rf"^5 of {COUNT} targets lie outside .* \(2 below, 3 above\) .*data holder alone"
    ) as told:
        fitted = model(kind).fit(rows, targets)
    assert [warning.filename for warning in told] == [__file__]
    kept = json.loads(model_to_json(fitted))
    assert not [text for text in (str(kept["certificate"]), str(kept["trace"]), str(kept["settings"])) if "below" in text]
    assert str(fitted.certificate_).count(f"[{low:g}, {high:g}]") == 1
    spent = len(SpendLog.current().charges())
    given.clear()  # it is a reminder, given once in a process
    with warnings.catch_warnings(), pytest.raises(UserWarning, match="lie outside"):
        warnings.simplefilter("error")
        model(kind).fit(rows, targets)
    assert len(SpendLog.current().charges()) == spent == 1


def test_few_targets_outside_are_not_spoken_of() -> None:
    rows, targets = data(DPRidge)
    targets[0] = 1e6
    model(DPRidge).fit(rows, targets)  # a warning would be an error


def test_the_default_bound_is_no_longer_a_silent_one() -> None:
    rows, targets = data(DPRidge)
    with pytest.warns(UserWarning, match=r"40 of 40 targets lie outside \[-1, 1\].*target_range=\(low, high\)"):
        DPRidge(epsilon=4.0, public_size=COUNT).fit(rows, targets)


@pytest.mark.parametrize("kind", KINDS)
def test_files_keep_the_range(kind: type) -> None:
    rows, targets = data(kind)
    fitted = model(kind, target_range=np.array(ends(kind))).fit(rows, targets)
    again, _ = model_from_json(model_to_json(fitted))
    assert np.array_equal(again.predict(rows), fitted.predict(rows)) and tuple(again.target_range) == ends(kind)
    assert again.fit(rows, targets).certificate_.event == fitted.certificate_.event


def test_models_by_part_and_weighted_ones_answer_in_the_targets_units() -> None:
    rng = np.random.default_rng(0)
    part = np.repeat([0, 1], 2000)
    rows = np.column_stack([part == 0, part == 1]).astype(float)
    targets = np.where(part == 0, 9100.0, 9400.0) + rng.normal(size=4000)
    byparts = DPByPart(DPRidge(epsilon=5.0, target_range=(LOW, HIGH), data_norm=1.2), {"a": 0, "b": 1}).fit(rows, targets)
    weighted = DPRidge(epsilon=5.0, target_range=(LOW, HIGH), data_norm=1.2, max_sample_weight=2.0)
    for fitted in (byparts, weighted.fit(rows, targets, sample_weight=np.ones(4000))):
        answers = fitted.predict(rows)
        assert abs(answers[:2000].mean() - 9100) < 40 and abs(answers[2000:].mean() - 9400) < 40
