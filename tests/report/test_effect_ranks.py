"""Which columns of an additive model are ranked: never those that noise alone put there."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import pytest

from dperm._random import Randomness
from dperm.audit.linear import Trials
from dperm.audit.outputs import unlogged
from dperm.data import Column, Dataset, Schema
from dperm.estimators import DPLogisticRegression, DPRidge
from dperm.mechanisms import Objective, Output
from dperm.release import Channel
from dperm.report.effect_values import CHANCE, Effect, MayBeEmpty, deviations_for, noise_of, ranked
from dperm.report.effects import effects, effects_page
from dperm.report.level_noise import CurvatureNoise, EqualNoise, LevelNoise
from dperm.report.refits import Refits

SEX = Column("sex", "category", categories=("f", "m"), other=True)
JOB = Column("job", "category", categories=("baker", "nurse"), other=True)
AGE = Column("age", "number", (0, 80))
SCHEMA = Schema("t", "ill", (SEX, JOB, AGE, Column("ill", "label")), ("no", "yes"), missing="separate", curves=5)


def _people(count: int, others: float = 0.0) -> Dataset:
    """Age decides, and being one of `others` among the jobs. Each has a twin of the other sex, so that sex says nothing."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"age": rng.uniform(0, 80, count // 2), "job": rng.choice(["baker", "nurse"], count // 2)})
    frame.loc[rng.random(count // 2) < others, "job"] = "smith"
    score = (frame["age"] - 40) / 8 + 8 * (frame["job"] == "smith")
    frame["ill"] = np.where(score + rng.logistic(size=count // 2) > 0, "yes", "no")
    return Dataset.of(pd.concat([frame.assign(sex="f"), frame.assign(sex="m")], ignore_index=True), SCHEMA)


def _trained(data: Dataset, seed: int, **given: Any) -> DPLogisticRegression:
    settings = {"epsilon": 1.0, "mechanism": Objective(), "classes": ["no", "yes"], "random_state": seed, **given}
    return DPLogisticRegression(**settings).fit(data.features, data.targets)


def _retrained(data: Dataset, fits: int, **given: Any) -> Iterator[Any]:
    """Models of as many trainings, all made at once, each with other noise from a fixed seed."""
    model = _trained(data, 0, **given)
    mechanism, objective = model.mechanism_for(SCHEMA.dimension)
    with unlogged():
        channel = Channel.open(Trials(fits, Randomness.fixed(0)))
        channel.charge(mechanism.event(objective.facts), mechanism.name)
        records = objective.records(data.features, np.where(data.targets == "yes", 1.0, -1.0))
        found, _ = mechanism.train(objective, records, channel)
    for theta in found:
        model.coef_ = theta[None, : SCHEMA.dimension]
        yield model


def test_levels_that_nobody_has_seldom_stand_out() -> None:
    """Two of "(other)" and three of "missing", all empty: some of a model's stand out in 1 of 20 trainings at most."""
    fits = 600
    found = [effects(model, SCHEMA) for model in _retrained(_people(400), fits)]
    levels = [[level for effect in each for level in effect.may_be_empty] for each in found]
    assert [level.name for level in levels[0]] == ["(other)", "missing", "(other)", "missing", "missing"]
    some = sum(any(level.stands_out for level in each) for each in levels)
    assert abs(some - (1 - 0.99**5) * fits) <= 3 * math.sqrt(fits * CHANCE * (1 - CHANCE))
    # and these levels move nothing else
    assert all(effect.spread == pytest.approx(np.ptp(effect.heights[effect.kept])) for effect in found[0])


def test_a_level_that_many_have_stands_out() -> None:
    jobs = effects(_trained(_people(8000, others=0.3), 1, epsilon=8.0, mechanism=Objective(strong_convexity=100.0)), SCHEMA)[1]
    other, missing = jobs.may_be_empty
    assert other.stands_out
    assert not missing.stands_out
    assert jobs.spread > np.ptp(jobs.heights[jobs.kept])


def test_a_level_counts_if_its_noise_says_that_records_have_it() -> None:
    """The noise of a level that many have is a small part of that of an empty one."""
    model = _trained(_people(4000, others=0.3), 1)
    deviation = model.trace_["without_records"]["scale"]

    class Known(LevelNoise):
        meaning = "Known to a test."

        def deviations(self, vectors: Any, features: slice) -> Any:
            one = np.full(SCHEMA.dimension, deviation)
            one[6] = deviation / 20  # others among the jobs
            return np.linalg.norm(vectors * one[features], axis=1)

    assert SCHEMA.features[6] == "job=(other)"
    jobs = effects(model, SCHEMA, noise=Known())[1]
    assert [level.held for level in jobs.may_be_empty] == [True, False]
    assert [level.counts for level in jobs.may_be_empty] == [True, False]
    assert "some record has it" in effects_page(model, SCHEMA, noise=Known())
    assert not any(level.held for level in effects(model, SCHEMA, noise=EqualNoise(deviation))[1].may_be_empty)


def test_without_noise_nothing_is_ranked() -> None:
    model = _trained(_people(400), 0)
    found = effects(model, SCHEMA)
    assert ranked(found, None) is None
    page = effects_page(model, SCHEMA)
    assert "is not known, and so nothing is ranked" in page
    assert "More than noise" not in page
    titles = [page.index(f"<h3>{name}</h3>") for name in ("sex", "job", "age")]
    assert titles == sorted(titles)


@pytest.mark.parametrize("delta", [1e-5, 0.0])
def test_a_column_that_says_nothing_is_seldom_ranked(delta: float) -> None:
    """Each person has a twin of the other sex, so that the minimiser gives both the same, and what differs is noise alone."""
    fits, wrong, right = 400, 0, 0
    for model in _retrained(_people(600), fits, epsilon=20.0, mechanism=Output(strong_convexity=20.0), delta=delta):
        order = ranked(effects(model, SCHEMA), noise_of(model, SCHEMA))
        assert order is not None
        names = [effect.column for effect in order[0]]
        wrong += "sex" in names
        right += names[:1] == ["age"]
    assert wrong <= CHANCE * fits + 3 * math.sqrt(fits * CHANCE * (1 - CHANCE))
    assert right == fits


def test_noise_can_be_stated_by_whoever_knows_it() -> None:
    """Its vectors are the contrasts; heights and their deviations are in the units of the target."""

    class Known(LevelNoise):
        meaning = "Known to a test."

        def deviations(self, vectors: Any, features: slice) -> Any:
            return np.abs(vectors @ np.arange(100.0)[features])

    model = _trained(_people(400), 0)
    found = effects(model, SCHEMA, noise=Known())
    first = found[0]
    assert first.noise == pytest.approx(np.array([0.5, 0.5, 1.5]) / SCHEMA.divisor)
    assert first.may_be_empty[0].noise == pytest.approx(1.5 / SCHEMA.divisor)
    assert first.may_be_empty[1].noise == pytest.approx(2.5 / SCHEMA.divisor)
    page = effects_page(model, SCHEMA, noise=Known())
    assert "Known to a test." in page
    assert "PRIVATE" not in page
    regression = Schema("t", "y", (AGE, Column("y", "label", (0, 1000))), curves=5)
    ridge = DPRidge(epsilon=4.0, random_state=0).fit(np.eye(5)[np.arange(400) % 5] / regression.divisor, np.zeros(400))
    (amounts,) = effects(ridge, regression, noise=EqualNoise(1.0))
    assert amounts.noise == pytest.approx(500 * np.sqrt(0.8) / regression.divisor)
    for wrong in ([np.nan] * 4, [-1.0] * 4, [1.0]):
        Known.deviations = lambda self, vectors, features, wrong=wrong: np.array(wrong)
        with pytest.raises(ValueError, match="finite standard deviations of 0 or more for 'sex' from Known"):
            effects(model, SCHEMA, noise=Known())
    with pytest.raises(ValueError, match="refits or noise"):
        effects(model, SCHEMA, refits=Refits.of(model, _people(400), 2), noise=Known())


class _Contrasts:
    """What a released Hessian says: records have all levels but two of "missing" and the others of sex."""

    present = np.ones(SCHEMA.dimension + 1, dtype=bool)
    present[[2, 3, 13]] = False  # sex=(other), sex missing, age missing
    mass = np.where(present, np.arange(1.0, SCHEMA.dimension + 2), 0.0)

    def deviations(self, contrasts: Any) -> Any:
        return np.linalg.norm(np.where(self.present, contrasts, 10 * contrasts), axis=1)

    def reference(self, features: slice) -> Any:
        return self.mass[features] / self.mass[features].sum()


def test_a_released_hessian_says_which_levels_records_have() -> None:
    assert [SCHEMA.features[place] for place in (2, 3, 13)] == ["sex=(other)", "sex missing", "age missing"]
    model, noise = _trained(_people(400), 0), CurvatureNoise(_Contrasts(), 2.0)
    found = effects(model, SCHEMA, noise=noise)
    assert [[level.held for level in effect.may_be_empty] for effect in found] == [[False, False], [True, True], [False]]
    weights = model.coef_[0] / SCHEMA.divisor
    for effect, features in zip(found, (slice(0, 4), slice(4, 8), slice(8, 14)), strict=True):
        average = noise.reference(features) @ weights[features]
        assert effect.heights == pytest.approx(weights[features][: len(effect.heights)] - average)
        assert effect.missing == pytest.approx(weights[features][-1] - average)
        assert effect.mass == pytest.approx(_Contrasts.mass[features][: len(effect.heights)])
    # among the levels of sex that records have the noise of the others is not, and theirs is ten times as large
    alone = np.array([1.0, 0, 0, 0]) - noise.reference(slice(0, 4))
    assert found[0].noise is not None
    assert found[0].noise[0] == pytest.approx(2 * np.linalg.norm(alone) / SCHEMA.divisor)
    assert found[0].noise[2] > 10 * 2 / SCHEMA.divisor
    page = effects_page(model, SCHEMA, noise=noise)
    assert "by about how many have them" in page
    assert "Grey areas below curves" in page
    assert CurvatureNoise.of(model, _Contrasts()).unit == 1.0


def _effect(heights: list[float], noise: float | None, **given: Any) -> Effect:
    spread = None if noise is None else np.full(len(heights), noise)
    return Effect("x", tuple(map(str, range(len(heights)))), np.array(heights), noise=spread, **given)


def test_what_exceeds_noise_is_counted_on_both_sides() -> None:
    assert _effect([-3.0, 1.0, 2.0], 0.5).beyond(2.0) == pytest.approx(2.0 + 1.0)
    assert _effect([-0.5, 0.5], 0.5).beyond(2.0) == 0
    assert _effect([-0.5, 5.0], 0.5).beyond(2.0) == pytest.approx(4.0)
    assert _effect([1.0, -1.0], None).beyond(2.0) is None
    far = {"height": 10.0, "without": 0.0, "noise": 1.0}
    for reach, counted in ((20.0, 0.0), (5.0, 8.0), (None, 8.0)):
        level = MayBeEmpty("(other)", reach=reach, **far)
        assert _effect([-0.1, 0.1], 0.5, may_be_empty=(level,)).beyond(2.0) == pytest.approx(counted)
    few, many = (deviations_for([_effect([0.0] * count, 1.0)], EqualNoise(1.0)) for count in (1, 50))
    assert few == pytest.approx(1.959964, rel=1e-6)
    assert many == pytest.approx(3.290527, rel=1e-6)  # 1 in 1,000


def test_a_threshold_is_known_only_where_noise_is_alone() -> None:
    """Levels that the roughness penalty joins to others follow these, and are left without a threshold."""
    data = _people(400)
    joined = _trained(data, 0, mechanism=Objective(roughness=0.3), neighbours=[(2, 0), (8, 9)])
    levels = [level for effect in effects(joined, SCHEMA) for level in effect.may_be_empty]
    assert [level.reach is None for level in levels] == [True, False, False, False, False]
    assert all(
        level.reach is None for level in effects(_trained(data, 0, mechanism="gradient", public_size=400), SCHEMA)[0].may_be_empty
    )
