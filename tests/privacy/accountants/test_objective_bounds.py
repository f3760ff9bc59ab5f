"""The losses that bound objective perturbation, by quadrature of what the theorems state; and the chance of long linear terms."""

from __future__ import annotations

import math
from collections.abc import Callable

import mpmath
import numpy as np
import pytest

from dperm.privacy import ObjectivePerturbationEvent, Relation, delta
from dperm.privacy.accountants.objective_perturbation import LONG_CHANCE, LONGER
from dperm.privacy.accountants.rdp import rdp

ADD, REPLACE = Relation.ADD_OR_REMOVE_ONE, Relation.REPLACE_ONE
Z = np.linspace(-14.0, 14.0, 40_001)
NORMAL = np.exp(-(Z**2) / 2) / math.sqrt(2 * math.pi)
RADIUS = np.linspace(0.0, 14.0, 20_001)
RAYLEIGH = RADIUS * np.exp(-(RADIUS**2) / 2)


def hockey(losses: np.ndarray, density: np.ndarray, at: np.ndarray, epsilon: float) -> float:
    """E(1 − e^{ε − L})₊ by the trapezium rule."""
    return float(np.trapezoid(density * -np.expm1(np.minimum(epsilon - losses, 0.0)), at))


def generic(s: float, c: float) -> np.ndarray:
    """Add/remove: c + s²/2 + s·|Z| (Redberg, Koskela, Wang 2023)."""
    return c + s**2 / 2 + s * np.abs(Z)


def plane(s: float, c: float) -> np.ndarray:
    """Replace-one: gradients differ by up to twice the bound, in a plane: |Z| is the length of a normal in two dimensions."""
    return c + (2 * s) ** 2 / 2 + 2 * s * RADIUS


def huber(s: float, c: float) -> np.ndarray:
    """Where the slope is not at an end curvature is constant: the largest of p = 0 and p = 1 of c + p·s·Z + p²·s²/2."""
    return np.maximum(c, c + s * Z + s**2 / 2)


@pytest.mark.parametrize(
    ("relation", "loss", "bound"),
    [(ADD, None, generic), (REPLACE, None, plane), (REPLACE, "logistic", plane), (ADD, "huber", huber)],
)
@pytest.mark.parametrize(("noise", "lipschitz", "modulus"), [(12.0, 3.0, 2.0), (60.0, 0.5, 0.01), (2.0, 2.0, 40.0)])
def test_losses_are_those_of_the_theorems(
    relation: Relation,
    loss: str | None,
    bound: Callable[[float, float], np.ndarray],
    noise: float,
    lipschitz: float,
    modulus: float,
) -> None:
    smoothness = 0.25 * lipschitz**2
    s, c = lipschitz / noise, math.log1p(smoothness / modulus)
    event = ObjectivePerturbationEvent(noise, lipschitz, smoothness, modulus, relation, loss)
    if relation is REPLACE and loss and not (smoothness / modulus > 0.5 and smoothness / modulus / s > 5.5):
        generic_event = ObjectivePerturbationEvent(noise, lipschitz, smoothness, modulus, relation)
        assert delta(event, c) < delta(generic_event, c)  # the flow, which is tested elsewhere
        return
    losses, density, at = (bound(s, c), RAYLEIGH, RADIUS) if bound is plane else (bound(s, c), NORMAL, Z)
    for epsilon in (0.0, c, c + s, c + 3 * s, c + 5 * s + s**2):
        exact = hockey(losses, density, at, epsilon)
        assert delta(event, epsilon) == pytest.approx(exact, rel=1e-4, abs=1e-15)
    for order in (1.5, 6.0):
        moment = float(np.trapezoid(density * np.exp((order - 1) * losses), at))
        assert rdp(event, np.array([order]))[0] == pytest.approx(math.log(moment) / (order - 1), rel=1e-6)


def test_the_chance_of_long_linear_terms_is_charged() -> None:
    with mpmath.workdps(40):
        chance = 2 * mpmath.exp(-(mpmath.mpf(LONGER) ** 2) / 2)
        assert chance <= LONG_CHANCE <= chance * (1 + mpmath.mpf(10) ** -9)
    event = ObjectivePerturbationEvent(50.0, 1.0, 0.25, 1.0)
    assert delta(event, 600.0) >= LONG_CHANCE > 0
    assert delta(ObjectivePerturbationEvent(1e-3, 1.0, 0.25, 1e-3), 0.0) == 1.0


def test_the_flow_is_asked_where_it_is_the_less() -> None:
    """Of a record that is replaced: with little curvature the flow is less than the bound in a plane; with much of it, and much
    noise, it is more, and the bound in a plane is kept. Means of many losses have the flow alone."""
    for loss, limit in (("logistic", 5.5), ("huber", 2.0)):
        for s in (0.02, 0.3):
            for curvature, flows in ((0.9 * limit, True), (1.1 * limit, 1.1 * limit * s <= 0.5), (0.2 / s, True)):
                ratio = curvature * s
                event, plain = (
                    ObjectivePerturbationEvent(1 / s, 1.0, 0.25, 0.25 / ratio, REPLACE, name) for name in (loss, None)
                )
                assert (delta(event, s) != delta(plain, s)) == flows
                assert delta(event, s) <= delta(plain, s) * (1 + 1e-9)
    settings = (9.0, 1.0, 0.25, 2.0)
    one, two, generic_many = (
        delta(ObjectivePerturbationEvent(*settings, relation, loss, True), 0.3)
        for relation, loss in ((ADD, "logistic"), (REPLACE, "logistic"), (ADD, None))
    )
    assert delta(ObjectivePerturbationEvent(*settings, ADD, "logistic"), 0.3) < one < generic_many < two
