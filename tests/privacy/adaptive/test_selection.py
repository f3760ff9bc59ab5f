"""The best of a random number of tries: against exact laws of small mechanisms, Rényi's bound, and simulation."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from scipy.optimize import brentq, minimize_scalar

from dperm.privacy import (
    BestOfTries,
    Composed,
    FilteredRdp,
    Gaussian,
    PoissonSampled,
    PureDP,
    Relation,
    SelfComposed,
    budget_of_a_try,
    calibrate,
    delta,
    epsilon,
    selection_epsilon,
)
from dperm.privacy.adaptive.private_selection import _Bound, _parameter, _slope
from dperm.privacy.events import event_from_dict

LAWS = ("geometric", "logarithmic", "poisson")
Array = np.ndarray


def generating(law: str, mean: float) -> Callable[[Array], Array]:
    """φ, from the definitions of the laws."""
    p = _parameter(law, mean)
    if law == "poisson":
        return lambda u: np.expm1(p * u) / math.expm1(p)
    if law == "geometric":
        return lambda u: p * u / (1 - (1 - p) * u)
    return lambda u: np.log1p(-(1 - p) * u) / math.log(p)


def hockey(first: Array, second: Array, e: float) -> float:
    return float(np.maximum(first - math.exp(e) * second, 0.0).sum())


def best(masses: Array, law: str, mean: float) -> Array:
    """The law of the best try, outcomes in rising order of their scores."""
    return np.diff(generating(law, mean)(np.concatenate([[0.0], np.cumsum(masses)]).clip(0, 1)))


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("mean", [1.5, 20.0, 300.0])
def test_laws_are_what_they_are_called(law: str, mean: float) -> None:
    phi, v = generating(law, mean), np.array([0.0, 1e-4, 0.3, 0.9])
    step = 1e-6
    slopes = (phi(1 - v[1:] + step) - phi(1 - v[1:] - step)) / (2 * step)
    assert _slope(law, mean)(v)[0] == pytest.approx(mean, rel=1e-9) and phi(np.array([1.0]))[0] == pytest.approx(1.0)
    assert _slope(law, mean)(v)[1:] == pytest.approx(slopes, rel=1e-3)
    event, generator = BestOfTries((Gaussian(1.0),), mean, law), np.random.default_rng(0)
    counts = np.array([event.draw(generator) for _ in range(20_000)])
    assert counts.min() >= 1 and abs(counts.mean() - mean) < 5 * counts.std() / math.sqrt(len(counts))
    for u in (0.5, 0.9):
        missed = np.power(u, counts.astype(float))
        assert abs(missed.mean() - phi(np.array([u]))[0]) < 5 * missed.std() / math.sqrt(len(counts)) + 1e-9


def pairs_of_laws(rng: np.random.Generator) -> Iterator[tuple[Array, Array]]:
    for _ in range(8):
        n = int(rng.integers(2, 40))
        first = rng.dirichlet(np.ones(n)) + 1e-12
        yield first, first * np.exp(rng.normal(size=n) * rng.choice([0.05, 0.3, 1.0]))
        x, shift = np.linspace(-5, 5, n + 2), rng.choice([0.1, 0.5, 1.5])
        yield np.exp(-(x**2) / 2), np.exp(-((x - shift) ** 2) / 2)
        e, d = rng.choice([0.1, 0.5, 1.0]), rng.choice([1e-3, 1e-2])
        worst = np.repeat([d, (1 - d) * math.exp(e) / (1 + math.exp(e)), (1 - d) / (1 + math.exp(e)), 1e-12], 4)
        yield worst, worst[::-1].copy()
        yield rng.dirichlet(np.full(n, 0.1)) + 1e-9, rng.dirichlet(np.full(n, 0.1)) + 1e-9


def orders(losses: Array, rng: np.random.Generator) -> Iterator[Array]:
    """Scores that an adversary might give: by the loss, either way, or blocks of it moved about."""
    n, rising = len(losses), np.argsort(losses)
    yield from (rising, rising[::-1], np.argsort(np.abs(losses)), rng.permutation(n), rng.permutation(n))
    for cut in range(1, n, max(1, n // 5)):
        yield np.concatenate([rising[cut:], rising[:cut]])
        yield np.concatenate([rising[: cut // 2], rising[cut:], rising[cut // 2 : cut]])


@pytest.mark.fast_cases("100.0-logarithmic")
@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("mean", [1.5, 20.0, 100.0])
def test_no_mechanism_and_no_score_costs_more(law: str, mean: float) -> None:
    rng = np.random.default_rng(int(mean))
    nearest = 0.0
    for first, second in pairs_of_laws(rng):
        first, second = first / first.sum(), second / second.sum()
        losses = np.log(first / second)
        most = float(np.abs(losses).max())
        at = np.linspace(0.0, most + 1e-9, 120)
        profile = np.array([max(hockey(first, second, e), hockey(second, first, e)) for e in at])
        bound = _Bound.of(at, profile, _slope(law, mean))
        for order in orders(losses, rng):
            mine, theirs = best(first[order], law, mean), best(second[order], law, mean)
            for e in np.linspace(0.0, 3 * most, 7):
                exact = max(hockey(mine, theirs, e), hockey(theirs, mine, e))
                stated = bound.delta(float(e))
                assert exact <= stated * (1 + 1e-9) + 1e-12
                nearest = max(nearest, exact / stated if 1e-7 < exact < 0.5 else 0.0)
    assert nearest > 0.9  # and some come near


def renyi_bound(noise: float, mean: float, shape: float, target: float) -> float:
    """Papernot & Steinke 2022, Theorem 2, for tries of Gaussian noise: ε at δ = `target`, the best of all orders."""
    gamma = _parameter("geometric" if shape == 1 else "logarithmic", mean)

    def cost(order: float) -> float:
        def beside(log_other: float) -> float:
            other = 1 + math.exp(log_other)
            return (1 + shape) * ((1 - 1 / other) * other / (2 * noise**2) + math.log(1 / gamma) / other)

        least = minimize_scalar(beside, bounds=(-3, 12), method="bounded").fun
        whole = order / (2 * noise**2) + least + math.log(mean) / (order - 1)
        return whole + math.log1p(-1 / order) - math.log(target * order) / (order - 1)

    return float(minimize_scalar(lambda x: cost(1 + math.exp(x)), bounds=(-3, 12), method="bounded").fun)


@pytest.mark.parametrize(("law", "shape"), [("geometric", 1.0), ("logarithmic", 0.0)])
@pytest.mark.parametrize("target", [0.5, 2.0])
def test_twenty_tries_cost_less_than_twice_one_and_less_than_by_renyi(law: str, shape: float, target: float) -> None:
    noise = calibrate(Gaussian, target, 1e-5)
    found = epsilon(BestOfTries((Gaussian(noise),), 20.0, law), 1e-5)
    assert target < found < 2 * target
    assert found < 0.9 * renyi_bound(noise, 20.0, shape, 1e-5)


def test_pure_tries_cost_what_is_known() -> None:
    """(2 + η)ε, η = 1 and 0 (Papernot & Steinke 2022, Corollary 3), for large means."""
    for law, factor in (("geometric", 3.0), ("logarithmic", 2.0)):
        found = selection_epsilon(BestOfTries((PureDP(0.4),), 1000.0, law), 1e-9)
        assert found == pytest.approx(factor * 0.4, rel=2e-2)


def test_accountants_take_it_as_any_event() -> None:
    tried = BestOfTries((Gaussian(4.0), SelfComposed(PoissonSampled(0.1, Gaussian(1.5)), 20)), 5.0)
    assert event_from_dict(json.loads(json.dumps(tried.to_dict()))) == tried
    alone = epsilon(tried, 1e-5)
    assert alone == pytest.approx(selection_epsilon(tried, 1e-5), rel=2e-3) and alone >= selection_epsilon(tried, 1e-5)
    assert delta(tried, alone) == pytest.approx(1e-5, rel=0.02)
    both = epsilon(Composed((tried, Gaussian(4.0))), 1e-5)
    assert alone < both < alone + epsilon(Gaussian(4.0), 1e-6)
    worse, better = (BestOfTries((Gaussian(noise),), 5.0) for noise in (2.5, 4.0))
    assert epsilon(better, 1e-5) < alone and epsilon(BestOfTries((Gaussian(2.5), Gaussian(4.0)), 5.0), 1e-5) < epsilon(
        worse, 1e-5
    )
    filtered = BestOfTries((FilteredRdp(20.0, 0.3),), 5.0)
    assert epsilon(FilteredRdp(20.0, 0.3), 1e-5) < epsilon(filtered, 1e-5) < 4 * epsilon(FilteredRdp(20.0, 0.3), 1e-5)
    assert epsilon(BestOfTries((Gaussian(1e-3),), 5.0), 1e-5) == math.inf


@pytest.mark.fast_cases("poisson")
@pytest.mark.parametrize("law", LAWS)
def test_a_try_s_budget_spends_the_whole(law: str) -> None:
    for relation in Relation:
        each = budget_of_a_try(1.0, 1e-5, 10.0, law, relation)
        noise = calibrate(lambda x, relation=relation: Gaussian(x, relation), *each)
        assert 0.99 < selection_epsilon(BestOfTries((Gaussian(noise, relation),), 10.0, law), 1e-5) <= 1.0


def test_more_tries_cost_more() -> None:
    found = [selection_epsilon(BestOfTries((Gaussian(3.0),), mean), 1e-5) for mean in (1.01, 2.0, 20.0, 200.0)]
    assert found == sorted(found) and found[0] == pytest.approx(epsilon(Gaussian(3.0), 1e-5), rel=0.05)
    crossing = brentq(lambda e: delta(BestOfTries((Gaussian(3.0),), 20.0), e) - 1e-5, 0.5, 10.0)
    assert crossing == pytest.approx(found[2], rel=2e-3)


@pytest.mark.parametrize(
    ("tries", "mean", "law", "kind"),
    [
        ((), 5.0, "geometric", TypeError),
        ((1.0,), 5.0, "geometric", TypeError),
        ((Gaussian(1.0), Gaussian(1.0, Relation.REPLACE_ONE)), 5.0, "geometric", ValueError),
        ((Composed(()),), 5.0, "geometric", ValueError),
        ((Gaussian(1.0),), 1.0, "geometric", ValueError),
        ((Gaussian(1.0),), math.inf, "geometric", ValueError),
        ((Gaussian(1.0),), 5.0, "uniform", ValueError),
    ],
)
def test_what_is_no_search_is_refused(tries: tuple[Gaussian, ...], mean: float, law: str, kind: type[Exception]) -> None:
    with pytest.raises(kind):
        BestOfTries(tries, mean, law)
