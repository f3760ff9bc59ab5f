"""Which mechanisms a unit may have met under parallel composition: by brute force over the parts it may lie in."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import pytest

from dperm.privacy import (
    Composed,
    Disjoint,
    Gaussian,
    HiddenIterates,
    Laplace,
    PoissonSampled,
    PureDP,
    Relation,
    SelfComposed,
    epsilon,
)
from dperm.privacy.accountants.gaussian import gaussian_epsilon
from dperm.privacy.events import LARGEST_COUNT, Event, Side, TruncatedPoisson, alternatives, event_from_dict, leaves
from dperm.privacy.events.disjoint import _choices, released_leaves
from dperm.privacy.events.event import DEEPEST

ADD, REPLACE = Relation.ADD_OR_REMOVE_ONE, Relation.REPLACE_ONE
SAMPLED = TruncatedPoisson(0.1, Gaussian(2.0), 25, 100)


def met(event: Event) -> set[frozenset[tuple[Event, int]]]:
    return {frozenset(each.items()) for each in alternatives(event)}


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_unit_may_be_in_another_part_each_time(count: int) -> None:
    parts = (SelfComposed(Gaussian(1.0), 2), Composed((PureDP(0.5), Gaussian(3.0))), Composed(()))
    split, other = Disjoint(parts), SelfComposed(PureDP(0.1), 2)
    expected: set[frozenset[tuple[Event, int]]] = set()
    for chosen in itertools.product(parts, repeat=count):
        total = Counter(leaves(other))
        for part in chosen:
            total.update(leaves(part))
        expected.add(frozenset(total.items()))
    assert met(Composed((SelfComposed(split, count), other))) == expected
    second = Disjoint((Gaussian(7.0), PureDP(0.9)))
    both = {
        frozenset((Counter(dict(one)) + Counter({last: 1})).items()) for one in expected for last in (Gaussian(7.0), PureDP(0.9))
    }
    assert met(Composed((SelfComposed(split, count), other, second))) == both
    assert met(other) == {frozenset({(PureDP(0.1), 2)})}


def test_one_option_is_met_every_time() -> None:
    alike = Disjoint((Gaussian(2.0), Gaussian(2.0)))
    assert met(SelfComposed(alike, 10**9)) == {frozenset({(Gaussian(2.0), 10**9)})}
    twice = Disjoint((SelfComposed(Gaussian(2.0), 3),))
    assert met(SelfComposed(twice, 5)) == {frozenset({(Gaussian(2.0), 15)})}
    options = [Counter({Gaussian(1.0): 2}), Counter({PureDP(1.0): 1})]
    assert list(_choices(options, 2)) == [{Gaussian(1.0): 4}, {Gaussian(1.0): 2, PureDP(1.0): 1}, {PureDP(1.0): 2}]


def test_too_many_ways_are_left_to_the_largest_profile() -> None:
    """Of a split that is used once all parts are gone through, however many; of what is used often, none."""
    many = Disjoint(tuple(Gaussian(1.0 + number / 1000) for number in range(300)))
    few = Disjoint((Gaussian(5.0), PureDP(0.1)))
    assert len(met(many)) == 300
    assert len(met(Composed((many, few)))) == 300  # the second stays as it is
    assert all(Counter(dict(way))[few] == 1 for way in met(Composed((many, few))))
    assert len(met(SelfComposed(few, 255))) == 256
    assert met(SelfComposed(few, 256)) == {frozenset({(few, 256)})}
    assert len(met(Composed((SelfComposed(few, 15), SelfComposed(Disjoint((Gaussian(4.0), PureDP(0.2))), 15))))) == 256
    assert len(met(Composed((SelfComposed(few, 15), SelfComposed(Disjoint((Gaussian(4.0), PureDP(0.2))), 16))))) == 16


@pytest.mark.parametrize(
    ("moved", "joined"),
    [
        ((1.0, 1.0), [(1.0, 1.0)]),
        ((1.0, 2.0), [(1.0, 2.0)]),
        ((1.0, 2.0, 2.0), [(1.0, 2.0), (2.0, 2.0)]),
        ((1.0, 1.0, 1.0), [(1.0, 1.0)]),
        ((1.0, 2.0, 3.0), [(1.0, 2.0), (1.0, 3.0), (2.0, 3.0)]),
        ((1.5,), [(1.5,)]),
    ],
)
def test_a_move_joins_another_part(moved: tuple[float, ...], joined: list[tuple[float, ...]]) -> None:
    """From part i to part j ≠ i, which may be alike; out of a single part, or into it."""
    parts = tuple(Gaussian(50.0 + number, REPLACE) for number in range(len(moved)))
    event = Disjoint(parts, tuple(map(Gaussian, moved)))
    moves = {frozenset(Counter(Gaussian(noise, REPLACE) for noise in pair).items()) for pair in joined}
    assert met(event) == {frozenset({(part, 1)}) for part in parts} | moves
    largest = max(math.hypot(*(1 / noise for noise in pair)) for pair in joined)
    assert epsilon(event, 1e-6) == pytest.approx(gaussian_epsilon(1 / largest, 1e-6), rel=1e-9)


def test_the_two_sides_of_a_move_are_told_apart() -> None:
    first, second = PoissonSampled(0.1, Gaussian(1.0)), SelfComposed(PoissonSampled(0.2, Gaussian(1.0)), 3)
    event = Disjoint((Gaussian(50.0, REPLACE), Gaussian(51.0, REPLACE)), (first, second))
    inner = second.event
    assert {
        frozenset({(Side(first, True), 1), (Side(inner, False), 3)}),
        frozenset({(Side(first, False), 1), (Side(inner, True), 3)}),
    } <= met(event)
    assert len(met(event)) == 4
    alone = Disjoint((Gaussian(50.0, REPLACE),), (first,))
    assert {frozenset({(Side(first, True), 1)}), frozenset({(Side(first, False), 1)})} <= met(alone)
    side = Side(SAMPLED, True)
    assert (side.astray, side.pays_for, side.releases) == (SAMPLED.astray, SAMPLED.pays_for, 1)


def test_what_may_go_astray_of_parts_is_that_of_the_worst() -> None:
    """A unit met one part alone: the others' chances do not add up; within a part they do."""
    event = Disjoint((Gaussian(1.0), SelfComposed(SAMPLED, 3), SAMPLED))
    assert event.astray == 3 * SAMPLED.astray
    assert Disjoint((Gaussian(1.0),)).astray == 0.0


def test_as_many_unlike_moves_as_can_be_gone_through() -> None:
    def moving(number: int, unlike: int) -> Disjoint:
        parts = tuple(Gaussian(50.0, REPLACE) for _ in range(number))
        return Disjoint(parts, tuple(Gaussian(5.0 + place % unlike) for place in range(number)))

    assert len(moving(40, 32).moved) == 40
    with pytest.raises(ValueError, match="at most 32 unlike"):
        moving(33, 33)


def test_leaves_of_what_runs_in_parts_are_counted_as_often_as_they_run() -> None:
    event = Composed((SelfComposed(Disjoint((SelfComposed(Gaussian(1.0), 3), Laplace(2.0))), 5), SelfComposed(Gaussian(1.0), 2)))
    assert released_leaves(event) == {Gaussian(1.0): 17, Laplace(2.0): 5}


def test_events_are_as_many_and_as_deep_as_may_be() -> None:
    event: Event = Gaussian(1.0)
    for _ in range(4):
        event = SelfComposed(event, 10**15)
    assert leaves(event) == {Gaussian(1.0): LARGEST_COUNT} == {Gaussian(1.0): 10**60}
    for more in (SelfComposed(Gaussian(1.0), 10**60), Composed((event, event)), Composed((SelfComposed(Gaussian(1.0), 3),))):
        with pytest.raises(ValueError, match="at most 1e\\+60 times"):
            SelfComposed(more, 10**60)
    assert SelfComposed(Gaussian(1.0), 10**60).count > 0.9999 * 10**60
    event = Gaussian(1.0)
    for depth in range(1, DEEPEST):
        event = Composed((Gaussian(5.0), event)) if depth % 2 else SelfComposed(event, 1)
    assert event_from_dict(event.to_dict()) == event
    for deeper in (lambda: SelfComposed(event, 1), lambda: Composed((event,))):
        with pytest.raises(ValueError, match="at most 100 deep"):
            deeper()
    with pytest.raises(ValueError, match="at most 100 deep"):
        event_from_dict({"type": "SelfComposed", "event": event.to_dict(), "count": 1})
    with pytest.raises(ValueError, match="Expected an event named"):
        event_from_dict({"type": "Event"})
    repeated = Gaussian(3.0)
    assert leaves(Composed((repeated, repeated, Gaussian(4.0), repeated))) == {repeated: 3, Gaussian(4.0): 1}
    assert leaves(Composed((SelfComposed(repeated, 5),) * 2)) == {repeated: 10}


def test_hidden_steps_are_one_gaussian_of_their_shift() -> None:
    """Nothing hidden: one batch, no contraction, anywhere: T steps move as far as T releases do."""
    assert HiddenIterates(2.0, 1, 16, 1.0, 1e6, 1e-12).whole.noise_multiplier == pytest.approx(2.0 / 4, rel=1e-3)
    assert HiddenIterates(2.0, 1, 16, 1.0, 1e6, 1e-12).whole.relation is REPLACE
