"""Budgets for runs whose number of records is released first."""

from __future__ import annotations

import numpy as np
import pytest

from dperm.estimators import DPLogisticRegression
from dperm.gradient import Plan
from dperm.gradient.recipes import dp_sgd
from dperm.mechanisms import Gradient, Method, Output
from dperm.privacy import Composed, FilteredRdp, Gaussian, PrivacyProfile, PureDP, Relation, calibrate, epsilon
from dperm.privacy.accountants.calibration import calibrate_below
from dperm.privacy.accountants.privacy_filters import excess
from dperm.privacy.events import leaves
from dperm.release import Channel, SpendLog
from dperm.release.sizing import NOMINAL_SIZES, CountFirst
from helpers.asked import Asked

DELTA, ADD = 1e-5, Relation.ADD_OR_REMOVE_ONE


def plan(noise: float, size: int) -> Plan:
    return dp_sgd(noise_multiplier=noise, public_size=size, expected_batch_size=min(200, size / 4), epochs=10, clipping_norm=1.0)


RUNS = [lambda noise, size=size: plan(noise, size).event(ADD) for size in NOMINAL_SIZES]


@pytest.mark.parametrize("relation", list(Relation))
@pytest.mark.parametrize("filtered", [False, True])
def test_the_number_of_records_is_released_as_it_was_charged(filtered: bool, relation: Relation) -> None:
    """One record more or less moves it by 1. A filter takes it as its first part; beside what is known it is charged."""
    for epsilon_of_all in (0.5, 2.0):
        if filtered:
            first = CountFirst.within(FilteredRdp(8.0, 1.0, relation), epsilon_of_all)
        else:
            first = CountFirst.known(epsilon_of_all, relation, lambda count, relation=relation: Gaussian(2.0, relation))
        assert first.count == PureDP(0.05 * epsilon_of_all, relation)
        source = Asked(answers=[np.array([17.4])])
        channel = Channel.open(source)
        channel.charge(first.charged, "test")
        assert first.release(channel, 40) == 17
        (question,) = source.questions
        assert (question.kind, question.query.tolist()) == ("pure", [40.0])
        assert question.sensitivity == pytest.approx(1.0, rel=2e-6)
        assert question.noise == pytest.approx(1 / first.count.epsilon)
        assert filtered or set(leaves(first.charged)) == {first.count, Gaussian(2.0, relation)}
    assert [first.released(np.array([noisy])) for noisy in (-3.0, 0.2, 1.2, 1.6, 2.4)] == [1, 1, 1, 2, 2]


@pytest.mark.fast_cases("0.5")
@pytest.mark.parametrize("target", [0.5, 3.0])
def test_the_whole_keeps_within_the_budget_and_hardly_costs_noise(target: float) -> None:
    first = CountFirst.profiled(target, DELTA, ADD, RUNS)
    count = first.count
    assert 0.97 * target < epsilon(first.charged, DELTA) <= target
    for size in (300, 20_000):
        noise = first.noise_below(lambda x, size=size: plan(x, size).event(ADD))
        alone = calibrate(lambda x, size=size: Composed((count, plan(x, size).event(ADD))), target, DELTA)
        assert alone <= noise < 1.05 * alone
        # the check is by PLD, and reaches beyond the last point: the part and the count are within the budget themselves
        assert epsilon(Composed((count, plan(noise, size).event(ADD))), DELTA) <= target


def test_what_was_released_earlier_is_paid_from_the_same_budget() -> None:
    earlier = Gaussian(4.0)
    charged = CountFirst.profiled(2.0, DELTA, ADD, RUNS, earlier=[earlier]).charged
    assert 1.9 < epsilon(Composed((earlier, charged)), DELTA) <= 2.0
    with pytest.raises(ValueError, match="target that noise can reach"):
        CountFirst.profiled(0.3, DELTA, ADD, RUNS, earlier=[Gaussian(2.0)])


def test_calibrating_below_a_profile_finds_its_edge() -> None:
    charged = CountFirst.profiled(1.0, DELTA, ADD, [lambda x: Gaussian(x)]).charged
    assert isinstance(charged, Composed)
    profile = charged.events[-1]
    assert isinstance(profile, PrivacyProfile)
    edge = calibrate_below(Gaussian, profile)
    assert excess(Gaussian(edge / 1.001), profile) > 0
    for start in (1e-3, 30.0):
        assert calibrate_below(Gaussian, profile, start=start) == pytest.approx(edge, rel=1e-4)
    assert excess(Gaussian(edge), profile) <= 0
    with pytest.raises(ValueError, match="noise matters to"):
        calibrate_below(lambda x: Gaussian(5.0), profile)


def test_four_default_fits_of_several_classes_compose() -> None:
    """Each used to promise all of its δ, so that four in one log had no finite ε."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(400, 4)), np.arange(400) % 3
    for _ in range(4):
        fitted = DPLogisticRegression(epsilon=1.0, classes=[0, 1, 2], mechanism=Gradient(epochs=4)).fit(X, y)
        assert 0.97 < fitted.certificate_.epsilon <= 1.0
    assert 1.9 < SpendLog.current().total(1e-5)[ADD] < 2.4


@pytest.mark.parametrize("method", [Gradient(sampling="importance", epochs=2), Output()], ids=repr)
def test_other_mechanisms_with_a_private_size_compose_too(method: Method) -> None:
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(300, 4)), np.arange(300) % 2
    for _ in range(2):
        fitted = DPLogisticRegression(epsilon=1.0, classes=[0, 1], mechanism=method).fit(X, y)
        assert 0.97 < fitted.certificate_.epsilon <= 1.0
    assert SpendLog.current().total(1e-5)[ADD] < 1.7
