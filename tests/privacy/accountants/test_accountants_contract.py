"""Laws that every accountant keeps for every event it accepts."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dperm.privacy import (
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
    Relation,
    SelfComposed,
    delta,
    epsilon,
)
from dperm.privacy.accountants.pld import pld_delta, pld_epsilon
from dperm.privacy.accountants.rdp import rdp_delta, rdp_epsilon

REPLACE = Relation.REPLACE_ONE

LEAVES: list[Event] = [
    Gaussian(3.0),
    Gaussian(3.0, REPLACE),
    Laplace(4.0),
    PureDP(0.2),
    ExponentialMechanism(0.2),
    PoissonSampled(0.05, Gaussian(1.2)),
    FilteredRdp(8.0, 0.05),
    PrivacyProfile((0.0, 0.1, 0.4, 1.0), (0.02, 0.004, 1e-5, 1e-8)),
    PoissonSampled(0.05, Gaussian(1.2, REPLACE)),
    ObjectivePerturbationEvent(4.0, 1.0, 0.25, 2.0, loss="logistic"),
    ObjectivePerturbationEvent(4.0, 1.0, 0.25, 2.0),
    ObjectivePerturbationEvent(9.0, 1.0, 0.25, 2.0, REPLACE),
    ObjectivePerturbationEvent(9.0, 1.0, 2.0, 8.0, loss="huber"),
]
Bound = Callable[[Event, float], float]
ACCOUNTANTS: dict[str, tuple[Bound, Bound]] = {
    "PLD": (pld_epsilon, pld_delta),
    "RDP": (rdp_epsilon, rdp_delta),
    "best": (epsilon, delta),
}


def accepted(name: str) -> list[Event]:
    found: list[Event] = []
    for leaf in LEAVES:
        try:
            ACCOUNTANTS[name][0](leaf, 1e-5)
        except ValueError:
            continue
        found.append(leaf)
    return found


CASES = [(name, leaf) for name in ACCOUNTANTS for leaf in accepted(name)]


def test_the_best_accountant_accepts_every_event() -> None:
    assert accepted("best") == LEAVES
    assert len(accepted("PLD")) >= 9
    assert len(accepted("RDP")) >= 9


@pytest.mark.parametrize(("name", "leaf"), CASES, ids=repr)
def test_n_times_an_event_is_its_self_composition(name: str, leaf: Event) -> None:
    bound = ACCOUNTANTS[name][0]
    one = bound(SelfComposed(leaf, 5), 1e-5)
    assert bound(Composed((leaf,) * 5), 1e-5) == one
    assert bound(Composed((SelfComposed(leaf, 2), SelfComposed(Composed((leaf,)), 3))), 1e-5) == one
    assert one > bound(leaf, 1e-5)


@pytest.mark.parametrize(("name", "leaf"), CASES, ids=repr)
def test_epsilon_and_delta_invert_each_other(name: str, leaf: Event) -> None:
    eps, dlt = ACCOUNTANTS[name]
    event = SelfComposed(leaf, 3)
    value = eps(event, 1e-5)
    assert dlt(event, value) <= 1e-5 * (1 + 2e-3)
    if name != "best" or not isinstance(leaf, (PureDP, Laplace)):
        assert dlt(event, value) >= 1e-5 * 0.98
    assert dlt(event, 0.5 * value) > dlt(event, value)


@pytest.mark.parametrize("leaf", LEAVES, ids=repr)
def test_best_is_never_worse_than_rdp(leaf: Event) -> None:
    event = SelfComposed(leaf, 4)
    try:
        rdp = rdp_epsilon(event, 1e-5)
    except ValueError:
        return
    assert epsilon(event, 1e-5) <= rdp * (1 + 1e-3)


@settings(max_examples=8, deadline=None)
@given(st.floats(0.5, 20), st.floats(1e-9, 1e-2), st.integers(1, 200), st.floats(0.001, 1.0))
def test_profiles_fall_and_epsilon_grows_with_steps(sigma: float, dlt: float, steps: int, rate: float) -> None:
    event = SelfComposed(PoissonSampled(rate, Gaussian(sigma)), steps)
    value = epsilon(event, dlt)
    assert 0 <= value < math.inf
    assert epsilon(SelfComposed(event, 2), dlt) >= value * (1 - 1e-4)
    assert epsilon(event, dlt / 10) >= value * (1 - 1e-4)
    assert delta(event, value + 0.1) <= delta(event, value) * (1 + 1e-6) + 1e-300


def test_pure_events_at_delta_zero() -> None:
    assert epsilon(SelfComposed(PureDP(0.25), 4), 0.0) == 1.0
    assert epsilon(Composed((PureDP(0.25), Laplace(math.sqrt(2)))), 0.0) == pytest.approx(1.25)
    assert epsilon(Gaussian(1.0), 0.0) == math.inf
    assert delta(PureDP(1.0), 1.0) == 0.0


def test_bad_arguments() -> None:
    with pytest.raises(ValueError, match="delta"):
        epsilon(Gaussian(1.0), 1.0)
    with pytest.raises(ValueError, match="epsilon >= 0"):
        delta(Gaussian(1.0), -0.5)
