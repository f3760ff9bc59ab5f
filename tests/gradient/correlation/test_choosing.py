"""Strategies are compared at equal ε, and bands are chosen where they leave less noise."""

from __future__ import annotations

import pytest

from dperm.estimators import DPLogisticRegression
from dperm.gradient import CyclicPoisson, FixedOrder, Plan, Poisson
from dperm.gradient.correlation import Once, Workload, predicted_error
from dperm.gradient.correlation.banded_toeplitz import BandedToeplitz
from dperm.gradient.correlation.choosing import best_bands, compared
from dperm.mechanisms import CorrelatedGradient
from dperm.privacy import Gaussian, PoissonSampled, SelfComposed, calibrate, epsilon
from dperm.privacy.events import CyclicSampled

STEPS, SHARE, DELTA, WORKLOAD = 400, 0.05, 1e-5, Workload(momentum=0.9)


def error(bands: int, target: float) -> float:
    """The predicted error at this ε, from the certified noise."""

    def event(noise: float) -> SelfComposed:
        if bands == 1:
            return SelfComposed(PoissonSampled(SHARE, Gaussian(noise)), STEPS)
        return SelfComposed(CyclicSampled(bands * SHARE, Gaussian(noise), bands), -(-STEPS // bands))

    noise = calibrate(event, target, DELTA)
    return noise * predicted_error(BandedToeplitz(bands, WORKLOAD), Once(bands), WORKLOAD, STEPS)


@pytest.mark.fast_cases("1.0")
@pytest.mark.parametrize("target", [0.1, 1.0, 4.0])
def test_the_chosen_bands_are_as_good_as_any(target: float) -> None:
    chosen = best_bands(STEPS, SHARE, target, DELTA, WORKLOAD)
    errors = {bands: error(bands, target) for bands in (1, 2, 3, 4, 6, 8, 12, 16, 19)}
    assert error(chosen, target) <= min(errors.values()) * 1.02
    assert error(chosen, target) <= errors[1]
    if min(errors.values()) < 0.95 * errors[1]:
        assert chosen > 1


def test_small_budgets_need_one_band_and_large_ones_many() -> None:
    chosen = [best_bands(STEPS, SHARE, target, DELTA, WORKLOAD) for target in (0.05, 1.0, 8.0)]
    assert chosen == sorted(chosen)
    assert chosen[0] == 1 and chosen[-1] >= 12
    assert best_bands(STEPS, 0.6, 8.0, DELTA, WORKLOAD) == 1  # no group is larger than a batch


def test_strategies_are_compared_at_one_epsilon() -> None:
    found = compared(STEPS, SHARE, 2.0, DELTA, WORKLOAD, widths=(2, 8, 32))
    assert (found[0].name, found[0].error, found[0].kept) == ("DP-SGD", 1.0, 0)
    assert [each.name for each in found if each.sampling == "cyclic groups"] == ["banded, 2", "banded, 8"]
    for each in found:
        if each.sampling == "fixed order":
            assert epsilon(Gaussian(each.noise / each.sensitivity), DELTA) == pytest.approx(2.0, rel=1e-3)
    by_groups = next(each for each in found if each.name == "banded, 8")
    assert by_groups.error == pytest.approx(error(8, 2.0) / error(1, 2.0), rel=1e-3)


def plan_of(**settings: object) -> Plan:
    model = DPLogisticRegression(mechanism=CorrelatedGradient(**settings), public_size=20_000, classes=[0, 1], epsilon=4.0)
    mechanism = model.mechanism_for(features=5)[0]
    return mechanism.plan


def test_a_method_chooses_its_bands_and_its_sampler() -> None:
    chosen = plan_of()
    assert isinstance(chosen.sampler, CyclicPoisson) and chosen.sampler.groups == chosen.correlation.bands(chosen.steps)
    assert chosen.correlation == BandedToeplitz(chosen.sampler.groups, Workload(momentum=0.9, weight_decay=0.02, of="all"))
    assert isinstance(plan_of(bands=1).sampler, Poisson)
    fixed = plan_of(sampling="fixed_order", correlation="buffered", bands=2)
    assert isinstance(fixed.sampler, FixedOrder) and fixed.correlation.kept(fixed.steps) == 2
    replaced = DPLogisticRegression(mechanism="correlated", public_size=20_000, classes=[0, 1], relation="replace_one")
    assert isinstance(replaced.mechanism_for(features=5)[0].plan.sampler, FixedOrder)
