"""What a part of a run costs: parts together cost what the whole does, counted release by release while it runs."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from typing import Any

import numpy as np
import pytest

from dperm.gradient import SGD, Clip, Constant, ExponentialDecay, FixedSize, FullBatch, Plan, Poisson, PoissonUpTo, SvrgPlan
from dperm.gradient.sampling import BallsAndBins
from dperm.objectives import LinearObjective, Logistic
from dperm.privacy import Composed, Gaussian, PoissonSampled, Relation, SampledWithoutReplacement, SelfComposed
from dperm.privacy.events import Event, RandomAllocation, leaves
from dperm.release import Channel
from helpers.asked import Asked

ADD, REPLACE = Relation.ADD_OR_REMOVE_ONE, Relation.REPLACE_ONE


def plan(sampler: Any, noise: Any = None, steps: int = 12) -> Plan:
    return Plan(sampler, Clip(1.0), noise or Constant(2.0), SGD(0.1), steps, 10)


PLANS = {
    "Poisson": (plan(Poisson(0.5)), 1),
    "falling noise": (plan(Poisson(0.5), ExponentialDecay(2.0, 0.5, 5)), 1),
    "all": (plan(FullBatch()), 1),
    "truncated": (plan(PoissonUpTo(0.5, 9, 10)), 1),
    "balls and bins": (plan(BallsAndBins(4)), 4),
    "variance-reduced": (SvrgPlan(0.5, 3, 4, 1.0, 5.0, 2.0, SGD(0.1), 10), 4),
}


@pytest.mark.parametrize("name", PLANS)
def test_parts_cost_what_the_whole_does(name: str) -> None:
    """Where an epoch is charged as a whole, parts begin with one."""
    policy, period = PLANS[name]
    whole = leaves(policy.event(ADD))
    assert whole == leaves(policy.event(ADD, 0, policy.steps)) and sum(whole.values()) > 0
    for cuts in ([4], [4, 8], [0, 8], [8, 12]) if period > 1 else ([5], [1, 11], [3, 4, 9], [0, 5], [5, 12]):
        ends = [0, *cuts, policy.steps]
        parts = [policy.event(ADD, start, stop) for start, stop in itertools.pairwise(ends)]
        assert sum((leaves(part) for part in parts), Counter[Event]()) == whole
        assert leaves(policy.event(ADD, cuts[-1])) == leaves(parts[-1])


def test_an_epoch_that_is_begun_is_charged_as_a_whole() -> None:
    bins, epoch = BallsAndBins(4), RandomAllocation(4, Gaussian(2.0))
    for first, count, epochs in ((0, 1, 1), (0, 4, 1), (0, 5, 2), (3, 1, 1), (3, 2, 2), (4, 4, 1), (2, 7, 3)):
        assert bins.event(Gaussian(2.0), first, count) == SelfComposed(epoch, epochs)
    svrg, _ = PLANS["variance-reduced"]
    for start, stop, snapshots in ((0, 1, 1), (0, 5, 2), (3, 5, 2), (4, 8, 1), (5, 6, 1)):
        found = leaves(svrg.event(ADD, start, stop))
        assert found == {Gaussian(5.0): snapshots, PoissonSampled(0.5, Gaussian(2.0)): stop - start}


def test_an_epoch_is_charged_at_the_noise_that_falls_with_the_epochs() -> None:
    """Two epochs at each level; those that are begun as a whole."""
    policy = plan(BallsAndBins(4), ExponentialDecay(2.0, 0.5, 8), 16)
    high, low = (RandomAllocation(4, Gaussian(2.0 * math.exp(-0.5 * epoch))) for epoch in range(2))
    for start, stop, first, second in ((0, 16, 2, 2), (7, 9, 1, 1), (3, 16, 2, 2), (7, 8, 1, 0), (3, 5, 2, 0), (11, 13, 0, 2)):
        assert leaves(policy.event(ADD, start, stop)) == +Counter({high: first, low: second})


def test_a_batch_of_all_records_is_not_sampled() -> None:
    step = Gaussian(2.0, REPLACE)
    assert FixedSize(4, 10).event(step, 0, 3) == SelfComposed(SampledWithoutReplacement(0.4, step), 3)
    assert FixedSize(10, 10).event(step, 0, 3) == SelfComposed(step, 3)
    for size in (4, 10):
        with pytest.raises(ValueError, match="for batches of fixed size: their share tells how many records are"):
            FixedSize(size, 10).event(Gaussian(2.0), 0, 3)


def test_a_run_has_spent_its_steps_so_far() -> None:
    policy, _ = PLANS["falling noise"]
    objective = LinearObjective(Logistic(), 2, data_norm=1.0, public_size=10)
    channel = Channel.open(Asked())
    channel.charge(policy.event(ADD), "steps")
    records = objective.records(np.random.default_rng(0).normal(size=(10, 2)), np.ones(10))
    run = policy.gradients(objective, records, channel)
    assert run.spent(ADD, 0) is None
    for step in range(1, 8):
        run(np.zeros(2))
        spent = run.spent(ADD, 0)
        assert spent == policy.event(ADD, 0, step) and run.spent(ADD, step) is None
        if step > 2:
            assert run.spent(ADD, 2) == policy.event(ADD, 2, step)
    assert sum(leaves(Composed((policy.event(ADD, 0, 7), policy.event(ADD, 7)))).values()) == 12
    run.skip(3)
    assert run.spent(ADD, 7) == policy.event(ADD, 7, 10)
