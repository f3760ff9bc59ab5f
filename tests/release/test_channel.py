from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from dperm._random import NoiseStream, Randomness
from dperm.gradient import Poisson
from dperm.privacy import (
    ApproximateDP,
    BudgetExceeded,
    Composed,
    Gaussian,
    ObjectivePerturbationEvent,
    PoissonSampled,
    PureDP,
    SelfComposed,
    privacy_profile,
)
from dperm.release import Channel, GaussianNoise, ObjectiveNoise, PureNoise, SpendLog, SystemSource, UnpaidReleaseError


def open_channel() -> Channel:
    return Channel.open()


def test_exactly_what_was_charged_can_leave() -> None:
    channel = open_channel()
    channel.charge(Composed((SelfComposed(Gaussian(2.0), 2), PoissonSampled(0.1, Gaussian(3.0)), PureDP(0.5))), "test")
    query = np.zeros(4)
    channel.release(query, GaussianNoise(1.5, 2.0))
    channel.draw(Poisson(0.1), 10, 1)
    channel.release(query, GaussianNoise(1.0, 3.0, 0.1))
    channel.release(query, GaussianNoise(1.0, 2.0))
    channel.release(query, PureNoise(1.0, 0.5))
    for wrong in (
        lambda: channel.release(query, GaussianNoise(1.0, 2.0)),
        lambda: channel.release(query, GaussianNoise(1.0, 3.0, 0.1)),
        lambda: channel.release(query, PureNoise(1.0, 0.5)),
    ):
        with pytest.raises(UnpaidReleaseError, match="not paid for"):
            wrong()


@pytest.mark.parametrize("noise", [1.99, 2.01, 0.5])
def test_other_noise_than_charged_is_refused(noise: float) -> None:
    channel = open_channel()
    channel.charge(Gaussian(2.0), "test")
    with pytest.raises(UnpaidReleaseError):
        channel.release(np.zeros(2), GaussianNoise(1.0, noise))


def test_a_sampled_charge_does_not_pay_for_full_batches() -> None:
    channel = open_channel()
    channel.charge(PoissonSampled(0.1, Gaussian(2.0)), "test")
    with pytest.raises(UnpaidReleaseError):
        channel.release(np.zeros(2), GaussianNoise(1.0, 2.0))


def test_a_claimed_rate_must_be_the_drawn_one() -> None:
    channel = open_channel()
    channel.charge(PoissonSampled(0.1, Gaussian(2.0)), "test")
    with pytest.raises(UnpaidReleaseError, match="drawn at None"):
        channel.release(np.zeros(2), GaussianNoise(1.0, 2.0, 0.1))
    channel.draw(Poisson(0.5), 10, 1)
    with pytest.raises(UnpaidReleaseError, match=r"drawn at 0\.5"):
        channel.release(np.zeros(2), GaussianNoise(1.0, 2.0, 0.1))


def test_nothing_leaves_before_a_charge_and_no_second_charge() -> None:
    channel = open_channel()
    with pytest.raises(UnpaidReleaseError):
        channel.release(np.zeros(2), GaussianNoise(1.0, 1.0))
    channel.charge(Gaussian(1.0), "test")
    with pytest.raises(UnpaidReleaseError, match="charged once"):
        channel.charge(Gaussian(1.0), "test")


def test_a_filter_takes_a_count_and_one_part_below_its_profile() -> None:
    channel = open_channel()
    profile = privacy_profile(Gaussian(4.0), smallest_delta=1e-8)
    channel.charge(Composed((PureDP(0.1), profile)), "test")
    with pytest.raises(UnpaidReleaseError, match="not paid for"):
        channel.release(np.zeros(1), PureNoise(1.0, 0.1))  # places are taken by name
    channel.allow(PureDP(0.1))
    channel.release(np.zeros(1), PureNoise(1.0, 0.1))
    with pytest.raises(BudgetExceeded):
        channel.allow(Gaussian(3.9))
    channel.allow(Gaussian(4.0))
    channel.release(np.zeros(2), GaussianNoise(1.0, 4.0))
    for event in (Gaussian(4.0), PureDP(0.1)):
        with pytest.raises(BudgetExceeded):
            channel.allow(event)


def test_nothing_is_allowed_without_a_filter() -> None:
    """An (ε, δ) promise or a pure charge pays for nothing but itself: what it would hold composes with nothing finer."""
    for charged in (PureDP(1.0), ApproximateDP(1.0, 1e-5)):
        channel = open_channel()
        channel.charge(charged, "test")
        with pytest.raises(UnpaidReleaseError, match="No filter"):
            channel.allow(PureDP(0.1))


def test_objective_noise_has_its_own_key() -> None:
    channel = open_channel()
    event = ObjectivePerturbationEvent(4.0, 2.0, 1.0, 1.0)
    channel.charge(event, "test")
    for other in (replace(event, strong_convexity=0.5), replace(event, lipschitz=1.0), replace(event, noise_std=3.0)):
        with pytest.raises(UnpaidReleaseError, match="not paid for"):
            channel.release(np.zeros(3), ObjectiveNoise.of(other))
    assert channel.release(np.zeros(3), ObjectiveNoise.of(event)).shape == (3,)
    with pytest.raises(UnpaidReleaseError):
        channel.release(np.zeros(3), ObjectiveNoise.of(event))


def test_the_charge_is_on_disk_before_anything_else() -> None:
    channel = open_channel()
    channel.charge(Gaussian(1.0), "test")
    assert [charge.event for charge in SpendLog.current().charges()] == [Gaussian(1.0)]


def test_noise_is_normal_with_the_stated_deviation() -> None:
    stream = NoiseStream(bytes(range(32)))
    draws = stream.standard_normal(400_000)
    assert stats.kstest(draws, "norm").pvalue > 1e-4
    assert abs(np.corrcoef(draws[:-1], draws[1:])[0, 1]) < 0.01


def test_noise_blocks_never_repeat() -> None:
    stream = NoiseStream(bytes(32))
    drawn = np.concatenate([stream.standard_normal(1000) for _ in range(200)])
    assert len(np.unique(drawn)) == drawn.size


def test_system_streams_differ_and_fixed_ones_repeat() -> None:
    first, second = Randomness.from_system(), Randomness.from_system()
    assert first.private
    assert not np.array_equal(first.noise.standard_normal(8), second.noise.standard_normal(8))
    one, two = Randomness.of(7), Randomness.of(7)
    assert not one.private
    assert "NOT PRIVATE" in one.seeded
    assert np.array_equal(one.noise.standard_normal(8), two.noise.standard_normal(8))
    assert not Randomness.of(np.random.default_rng(0)).private
    assert not Randomness.of(np.random.RandomState(0)).private


def test_pure_noise_has_gamma_norm_and_laplace_in_one_dimension() -> None:
    source = SystemSource(Randomness.fixed(1))
    norms = [np.linalg.norm(source.noisy(np.zeros(5), PureNoise(2.0, 0.5, step=2.0**-20))) for _ in range(4000)]
    assert stats.kstest(norms, stats.gamma(5, scale=4.0).cdf).pvalue > 1e-4
    scalars = [source.noisy(np.zeros(1), PureNoise(1.0, 0.5, step=2.0**-20))[0] for _ in range(4000)]
    assert stats.kstest(scalars, stats.laplace(scale=2.0).cdf).pvalue > 1e-4


@pytest.mark.parametrize(("records", "rate"), [(1000, 0.02), (37, 0.9), (5, 0.01), (100_000, 0.005), (1, 0.5)])
def test_poisson_draws_are_independent_with_the_exact_rate(records: int, rate: float) -> None:
    source = SystemSource(Randomness.fixed(3))
    steps = 3000 if records < 10_000 else 300
    counts = np.zeros(steps)
    hits = np.zeros(records)
    for step, included in enumerate(source.draw(Poisson(rate), records, steps)):
        assert np.all(np.diff(included) > 0)
        assert included.size == 0 or (included[0] >= 0 and included[-1] < records)
        counts[step] = included.size
        hits[included] += 1
    # batch sizes: Binomial(records, rate); each record: Binomial(steps, rate)
    assert counts.mean() == pytest.approx(records * rate, abs=5 * np.sqrt(records * rate * (1 - rate) / steps))
    assert counts.var() == pytest.approx(records * rate * (1 - rate), rel=0.35)
    spread = np.sqrt(steps * rate * (1 - rate))
    assert np.abs(hits - steps * rate).max() < 6 * spread + 3


def test_poisson_edges() -> None:
    source = SystemSource(Randomness.fixed(3))
    assert [len(draw) for draw in source.draw(Poisson(0.5), 0, 3)] == [0, 0, 0]
    assert [len(draw) for draw in source.draw(Poisson(1.0), 4, 2)] == [4, 4]
