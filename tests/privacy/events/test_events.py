from __future__ import annotations

import json
from collections import Counter

import pytest

from dperm.privacy import (
    ApproximateDP,
    Composed,
    Event,
    ExponentialMechanism,
    FilteredRdp,
    Gaussian,
    Laplace,
    ObjectivePerturbationEvent,
    PoissonSampled,
    PrivacyProfile,
    PureDP,
    RandomAllocation,
    Relation,
    SelfComposed,
    Unsupported,
    UnsupportedEventError,
    delta,
    epsilon,
)
from dperm.privacy.events import Paid, alike, event_from_dict, leaves, relation_of
from dperm.privacy.events.event import DEEPEST
from dperm.release import Channel, SpendLog

REPLACE = Relation.REPLACE_ONE

EVENTS: list[Event] = [
    Gaussian(1.5),
    Gaussian(2.0, REPLACE),
    Laplace(3.0),
    PureDP(0.5),
    ApproximateDP(0.5, 1e-6),
    ExponentialMechanism(1.0),
    PoissonSampled(0.1, Gaussian(1.0)),
    SelfComposed(PoissonSampled(0.1, Gaussian(1.0)), 7),
    Composed((Gaussian(1.0), SelfComposed(Composed((PureDP(0.1), Gaussian(3.0))), 2))),
    ObjectivePerturbationEvent(3.0, 1.0, 0.25, 2.0, loss="logistic"),
    Unsupported("a claim"),
]


@pytest.mark.parametrize("event", EVENTS, ids=repr)
def test_json_round_trip(event: Event) -> None:
    assert event_from_dict(json.loads(json.dumps(event.to_dict()))) == event


def test_counts_multiply_out_in_one_place() -> None:
    inner = Composed((Gaussian(1.0), SelfComposed(PureDP(0.1), 3)))
    assert leaves(SelfComposed(inner, 4)) == {Gaussian(1.0): 4, PureDP(0.1): 12}
    assert leaves(PoissonSampled(1.0, Gaussian(1.0))) == {Gaussian(1.0): 1}


def test_relations_do_not_mix() -> None:
    with pytest.raises(ValueError, match="one relation"):
        Composed((Gaussian(1.0), Gaussian(1.0, REPLACE)))
    assert relation_of(SelfComposed(PoissonSampled(0.5, Gaussian(1.0, REPLACE)), 2)) is REPLACE


def test_default_relation_is_add_or_remove() -> None:
    for event in EVENTS[2:]:
        assert relation_of(event) is Relation.ADD_OR_REMOVE_ONE


def test_an_object_repeated_a_million_times_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = 0
    parts = Gaussian.counts

    def counted(self: Gaussian) -> Counter[Event]:
        nonlocal looked
        looked += 1
        return parts(self)

    monkeypatch.setattr(Gaussian, "counts", counted)
    step, other = Gaussian(1000.0), Gaussian(2000.0)
    event = Composed((step,) * 600_000 + (other,) * 400_000)
    assert leaves(event) == {step: 600_000, other: 400_000}
    assert epsilon(event, 1e-5) == epsilon(Composed((SelfComposed(step, 600_000), SelfComposed(other, 400_000))), 1e-5)
    assert looked <= 10
    leaves(event).clear()
    assert leaves(event).total() == 1_000_000
    alike = Composed(tuple(Gaussian(1000.0) for _ in range(1000)))  # equal, and not one object
    looked = 0
    assert leaves(alike) == {step: 1000} and looked <= 1


def test_an_event_that_nests_too_deep_is_found_behind_one_of_its_kind_that_does_not() -> None:
    deep: Event = Gaussian(1.0)
    for _ in range(DEEPEST - 1):
        deep = SelfComposed(deep, 1)
    for parts in ((deep,), (SelfComposed(Gaussian(1.0), 1), deep)):
        with pytest.raises(ValueError, match="nested at most"):
            Composed(parts)


@pytest.mark.parametrize(
    ("event", "name"),
    [
        (SelfComposed(Composed((Gaussian(1.0), Unsupported("their epsilon is 1"))), 3), "their epsilon is 1"),
        (PoissonSampled(0.1, PureDP(1.0)), "PureDP"),
        (Composed((PoissonSampled(0.1, Composed((Gaussian(1.0), Gaussian(2.0)))), Gaussian(1.0))), "Poisson sampling"),
    ],
)
def test_unknown_parts_are_refused_by_name(event: Event, name: str) -> None:
    with pytest.raises(UnsupportedEventError, match=name):
        epsilon(event, 1e-5)
    with pytest.raises(UnsupportedEventError, match=name):
        delta(event, 1.0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Gaussian(0.0), "noise_multiplier > 0, got 0"),
        (lambda: Gaussian(float("nan")), "nan"),
        (lambda: PoissonSampled(1.5, Gaussian(1.0)), "rate"),
        (lambda: SelfComposed(Gaussian(1.0), 0), "count >= 1, got 0"),
        (lambda: SelfComposed(Gaussian(1.0), 1.5), "integer"),
        (lambda: Composed((1.0,)), r"events\[0\]"),
        (lambda: ObjectivePerturbationEvent(1.0, 1.0, 0.3, 1.0, loss="logistic"), "smoothness = 0.25"),
        (lambda: ObjectivePerturbationEvent(1.0, 1.0, 0.3, 1.0, loss="cubic"), "one of"),
        (lambda: Gaussian(1.0, "sideways"), "sideways"),
        (lambda: event_from_dict({"type": "Magic"}), "Magic"),
    ],
)
def test_bad_arguments_are_refused(make: object, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        make()


def test_what_releases_events_pay_for() -> None:
    """One place says it, for the channel, replay and the limits of noise."""
    assert Gaussian(2.0).pays_for == Paid("gaussian", 2.0) and PureDP(0.5).pays_for == Paid("pure", 0.5)
    assert PoissonSampled(0.1, Gaussian(2.0)).pays_for == Paid("gaussian", 2.0, 0.1, "poisson")
    assert RandomAllocation(5, Gaussian(2.0)).pays_for == Paid("gaussian", 2.0, 0.2, "allocated")
    assert ObjectivePerturbationEvent(3.0, 2.0, 1.0, 1.0).pays_for == Paid("objective", 1.5)
    for silent in (PoissonSampled(0.1, PureDP(0.5)), Laplace(1.0), FilteredRdp(4.0, 1.0), Composed((Gaussian(1.0),))):
        assert silent.pays_for is None


class Louder(Gaussian):
    """A stranger's event, which pays for a release of less noise than its accountant sees."""

    @property
    def pays_for(self) -> Paid:
        return Paid("gaussian", self.noise_multiplier / 10)


def test_events_of_strangers_are_refused() -> None:
    for event in (Louder(2.0), PureDP(1.0)):
        with pytest.raises(TypeError, match=r"an event of dperm's own, got .*Louder"):
            Channel.open().charge(event if isinstance(event, Louder) else Composed((event, Louder(2.0))), "a stranger's")
    with pytest.raises(TypeError, match="an event of dperm's own"):
        PoissonSampled(0.1, Louder(2.0))
    with pytest.raises(TypeError, match="an event of dperm's own"):
        epsilon(Louder(2.0), 1e-5)
    assert SpendLog.current().charges() == []


def test_events_are_alike_that_differ_by_what_another_machine_computes() -> None:
    """Of a profile, which is searched for, its points may differ more."""
    one = Composed((SelfComposed(PoissonSampled(0.1, Gaussian(2.0)), 3), Gaussian(5.0)))
    near = Composed((SelfComposed(PoissonSampled(0.1, Gaussian(2.0 * (1 + 1e-7))), 3), Gaussian(5.0)))
    assert one != near
    assert alike(one, near) and alike(near, one)
    others = [
        Composed(one.events[:1]),
        Composed(one.events[::-1]),
        Composed((*one.events, Gaussian(5.0))),
        Composed((one.events[0], Gaussian(5.0 * (1 + 1e-5)))),
        Composed((SelfComposed(PoissonSampled(0.1, Gaussian(2.0)), 4), Gaussian(5.0))),
        Composed((SelfComposed(PoissonSampled(0.1001, Gaussian(2.0)), 3), Gaussian(5.0))),
        Gaussian(5.0),
    ]
    assert not any(alike(one, other) or alike(other, one) for other in others)
    assert not any(alike(Gaussian(5.0), other) for other in (Gaussian(5.0, REPLACE), PureDP(5.0)))
    profile = PrivacyProfile((0.0, 1.0), (0.5, 0.2))
    for deltas, expected in (((0.5, 0.201), True), ((0.5, 0.21), False), ((0.5, 0.2, 0.1), False)):
        assert alike(profile, PrivacyProfile((0.0, 1.0, 2.0)[: len(deltas)], deltas)) == expected
    for budget, expected in ((1.0 + 1e-12, True), (1.0 + 1e-7, False)):
        assert alike(FilteredRdp(8.0, 1.0), FilteredRdp(8.0, budget)) == expected
