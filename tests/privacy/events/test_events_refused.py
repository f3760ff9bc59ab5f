"""What events cannot be, up to the last number that they can; and counts of blocks by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dperm.privacy import FilteredRdp, Gaussian, ObjectivePerturbationEvent, PoissonSampled, PrivacyProfile, PureDP, Relation
from dperm.privacy.events import (
    BoundedSquaresGaussian,
    Event,
    HiddenIterates,
    Laplace,
    RandomAllocation,
    RandomStop,
    RowsSampled,
    SampledWithoutReplacement,
    TruncatedPoisson,
    Unsupported,
    event_from_dict,
    leaves,
    relation_of,
)

ADD, REPLACE = Relation.ADD_OR_REMOVE_ONE, Relation.REPLACE_ONE
ONE, REPLACED = Gaussian(2.0), Gaussian(2.0, REPLACE)
OBJECTIVE = ObjectivePerturbationEvent


@pytest.mark.parametrize(
    ("make", "right", "wrong"),
    [
        (lambda steps: BoundedSquaresGaussian(2.0, 4, steps), [0.5, 4.0], [4.0001, 0.0]),
        (lambda order: FilteredRdp(order, 1.0), [1.0001, 2.0, 1e6], [1.0, 0.5, float("inf"), float("nan")]),
        (lambda count: RandomAllocation(4, ONE, count), [1, 3, 4], [5, 0]),
        (lambda steps: RandomAllocation(steps, ONE), [2], [1, 0]),
        (lambda loss: PrivacyProfile((1.0, loss), (1e-3, 1e-5)), [1.0001, 600.0], [1.0, 0.5, 600.001]),
        (lambda delta: PrivacyProfile((1.0, 2.0), (1e-3, delta)), [1e-3, 1e-9], [1.001e-3, 0.0, 1.5]),
        (lambda deltas: PrivacyProfile((1.0, 2.0), deltas), [(0.1, 0.1)], [(0.1,), (0.1, 0.1, 0.1), ()]),
        (lambda epsilons: PrivacyProfile(epsilons, ()), [], [()]),
        (lambda claim: Unsupported(claim), ["so they say"], ["", " ", "two\nlines", 5, None]),
        (lambda many: OBJECTIVE(2.0, 1.0, 0.3, 1.0, many=many), [True, False], [1, 0, "yes", None]),
        (lambda bend: OBJECTIVE(9.0, 2.0, bend, 1.0, loss="logistic"), [1.0, 1 + 1e-10], [1 + 1e-8, 1 - 1e-8, 0.5, 2.0]),
        (lambda bend: OBJECTIVE(9.0, 2.0, bend, 1.0, loss="huber"), [0.1, 1.0, 7.0], [0.0, -1.0]),
        (lambda loss: OBJECTIVE(9.0, 2.0, 1.0, 1.0, loss=loss), ["logistic", "smoothed_hinge", None], ["squared", 3]),
        (lambda where: HiddenIterates(2.0, 2, 2, 0.5, 1.0, 1e-9, where), [REPLACE], [ADD]),
        (lambda where: RandomStop(2.0, 7, 0.5, 1e-9, where), [REPLACE], [ADD]),
        (lambda inner: TruncatedPoisson(0.1, inner, 5, 9), [ONE, REPLACED], [PureDP(1.0), PoissonSampled(0.5, ONE)]),
        (lambda inner: RowsSampled(0.1, inner, 3), [ONE], [REPLACED, PureDP(1.0)]),
        (lambda inner: RandomAllocation(4, inner), [ONE], [REPLACED, PureDP(1.0)]),
        (lambda inner: SampledWithoutReplacement(0.1, inner), [REPLACED], [ONE, PureDP(1.0, REPLACE)]),
    ],
)  # fmt: skip
def test_what_events_cannot_be(make: Callable[[Any], Event], right: list[Any], wrong: list[Any]) -> None:
    for value in right:
        assert isinstance(make(value), Event)
    for value in wrong:
        with pytest.raises((ValueError, TypeError)):
            make(value)


def test_a_relation_is_one_of_two_by_name() -> None:
    assert Gaussian(2.0, "replace_one") == REPLACED  # type: ignore[arg-type]
    for wrong in (5, None, ADD.name.encode()):
        with pytest.raises(ValueError, match="Expected relation to be one of 'add_or_remove_one', 'replace_one'"):
            Gaussian(2.0, wrong)  # type: ignore[arg-type]


def test_tables_that_are_no_events() -> None:
    for wrong in ([], "Gaussian", 5, None, {}, {"type": None}, {"type": "Normal"}, {"type": "Event"}):
        with pytest.raises(ValueError, match="Expected an event named"):
            event_from_dict(wrong)
    assert event_from_dict({"type": "Gaussian", "noise_multiplier": 2.0}) == ONE
    with pytest.raises(ValueError, match="noise_multiplier is missing"):
        event_from_dict({"type": "Gaussian"})
    with pytest.raises(ValueError, match="got 'more' as well"):
        event_from_dict({"type": "Gaussian", "noise_multiplier": 2.0, "more": 1.0})
    deep = ONE.to_dict()
    for _ in range(5000):
        deep = {"type": "SelfComposed", "event": deep, "count": 1}
    with pytest.raises(ValueError, match="nested at most 100 deep"):
        event_from_dict(deep)


def test_several_places_of_a_record_are_one_in_each_block() -> None:
    """Blocks differ by one step at most, and hold all steps; a block of one step is a release of all records."""
    one = Gaussian(2.0)
    assert leaves(RandomAllocation(7, one, 3)) == {RandomAllocation(3, one): 1, RandomAllocation(2, one): 2}
    assert leaves(RandomAllocation(9, one, 3)) == {RandomAllocation(3, one): 3}
    assert leaves(RandomAllocation(6, one, 4)) == {RandomAllocation(2, one): 2, one: 2}
    assert leaves(RandomAllocation(5, one, 5)) == {one: 5}
    assert leaves(RandomAllocation(5, one)) == {RandomAllocation(5, one): 1}
    assert RandomAllocation(7, one, 2).pays_for is None
    for steps in range(2, 40):
        for selected in range(1, steps + 1):
            found = leaves(RandomAllocation(steps, one, selected))
            sizes = {leaf.steps if isinstance(leaf, RandomAllocation) else 1: count for leaf, count in found.items()}
            assert sum(sizes.values()) == selected
            assert sum(size * count for size, count in sizes.items()) == steps
            assert max(sizes) - min(sizes) <= 1
    assert PoissonSampled(0.5, Laplace(1.0)).pays_for is None
    assert relation_of(PoissonSampled(0.5, REPLACED)) is REPLACE
    assert relation_of(TruncatedPoisson(0.1, REPLACED, 5, 9)) is REPLACE
    assert leaves(PoissonSampled(0.75, one)) == {PoissonSampled(0.75, one): 1}
