"""What rules of budgets hold and charge, against closed forms of their own and numbers by hand."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtr

from dperm.privacy import AboveThreshold, ApproximateDP, Composed, Gaussian, PureDP, Relation, SelfComposed, epsilon
from dperm.privacy.accountants.privacy_filters import BudgetExceeded
from dperm.privacy.events import PoissonSampled, TruncatedPoisson, Unsupported
from dperm.release import SpendLog
from dperm.release.ledger import Account, Budget, GdpFilter, Plan, RenyiFilter
from dperm.release.ledger.log import _composed_epsilon, only_claimed
from dperm.release.ledger.rules import added, rule_from_dict

ADD, REPLACE = Relation.ADD_OR_REMOVE_ONE, Relation.REPLACE_ONE


def gaussian_delta(mu: float, eps: float) -> float:
    """δ(ε) of N(0, 1) against N(μ, 1) (Balle & Wang 2018, Theorem 8)."""
    return float(ndtr(mu / 2 - eps / mu) - math.exp(eps + log_ndtr(-mu / 2 - eps / mu)))


def gaussian_epsilon(mu: float, delta: float) -> float:
    return float(brentq(lambda eps: gaussian_delta(mu, eps) - delta, 0.0, 2000.0, xtol=1e-12))


@pytest.mark.parametrize("relation", Relation)
@pytest.mark.parametrize(
    ("eps", "delta", "mass"),
    [
        (1.0, 1e-6, 0.0),
        (0.1, 1e-5, 9e-6),
        (2.0, 0.4, 0.3),
        (0.4, 0.9, 0.2),
        (50.0, 1e-9, None),
        (500.0, 1e-3, 1e-4),
        (3.0, 1e-250, 0),
    ],
)
def test_a_gdp_filter_holds_the_largest_gaussian_that_keeps_its_promise(
    eps: float, delta: float, mass: float | None, relation: Relation
) -> None:
    """Outside the mass M a Gaussian is met, inside it nothing is promised: (ε′ − ln(1 − M), M + δ′)."""
    rule = GdpFilter.of(eps, delta, relation=relation, mass=mass)
    assert rule.mass == (delta / 2 if mass is None else mass)
    assert rule.relation is relation
    left = eps + math.log1p(-rule.mass)
    mu = math.sqrt(rule.mu_squared)
    assert gaussian_delta(mu * (1 - 1e-7), left) <= delta - rule.mass <= gaussian_delta(mu * (1 + 1e-7), left)
    assert rule.limits == {"mu_squared": rule.mu_squared, "mass": rule.mass}
    assert eps * (1 - 1e-6) < rule.epsilon_of(rule.limits) <= eps
    half = rule.epsilon_of({"mu_squared": mu**2 / 4, "mass": rule.mass})
    if gaussian_delta(mu / 2, 0.0) > delta - rule.mass:
        assert half == pytest.approx(gaussian_epsilon(mu / 2, delta - rule.mass) - math.log1p(-rule.mass), rel=1e-7)
    assert rule.epsilon_of({"mass": 1e-300}) == -math.log1p(-rule.mass)
    assert rule.epsilon_of({"mu_squared": 0.0, "mass": 0.0}) == rule.epsilon_of({}) == 0.0


def test_masses_larger_than_a_budget_are_refused() -> None:
    for kind in (GdpFilter, RenyiFilter):
        for mass in (1e-6, 2e-6):
            with pytest.raises(ValueError, match="below delta"):
                kind.of(1.0, 1e-6, mass=mass)
    with pytest.raises(ValueError, match="smaller mass"):
        GdpFilter.of(0.5, 0.9, mass=0.4)  # ln(1 − 0.4) takes more than 0.5
    with pytest.raises(ValueError, match="larger epsilon or delta"):
        GdpFilter.of(1e-13, 1e-13)


@pytest.mark.parametrize("limit", [1.0, 500.0])
def test_what_may_go_astray_is_charged_in_both_directions(limit: float) -> None:
    """Another mechanism runs with this chance, under either neighbour: e^ε + 1 times it is added to δ (Event.astray)."""
    sampled = (
        TruncatedPoisson(0.01, Gaussian(2.0), 25, 1000) if limit == 1.0 else TruncatedPoisson(1e-3, Gaussian(2.0), 150, 10**5)
    )
    log_astray = math.log(sampled.astray)
    promise = ApproximateDP(0.01, 2e-3)
    rule = RenyiFilter.of(limit, 1e-6, order=2.0) if limit > 100 else RenyiFilter.of(limit, 1e-6)
    cost = rule.cost(Composed((SelfComposed(sampled, 3), promise)))
    expected = 2e-3 + 3 * (math.exp(log_astray) + math.exp(limit + log_astray))
    assert cost["mass"] == pytest.approx(expected, rel=1e-5)


def test_astray_in_budgets_whose_epsilon_is_no_exponent_of_a_double() -> None:
    sampled = TruncatedPoisson(0.01, Gaussian(2.0), 60, 1000)
    assert RenyiFilter.of(900.0, 1e-6, order=2.0).cost(sampled)["mass"] > 1


def test_a_renyi_filter_spends_its_epsilon() -> None:
    """Conversion of a divergence D at order α (Canonne, Kamath, Steinke 2020, Proposition 12), from the definition."""
    for mass in (0.0, 3e-7, 9e-7):
        rule = RenyiFilter.of(2.0, 1e-6, mass=mass)
        order, left = rule.order, 1e-6 - mass
        assert rule.mass == mass
        beside = math.log((order - 1) / order) - (math.log(left) + math.log(order)) / (order - 1)
        assert rule.divergence == pytest.approx(2.0 - beside, rel=1e-9)
        assert rule.epsilon_of({"divergence": 0.1}) == pytest.approx(0.1 + beside, rel=1e-9)
        assert rule.epsilon_of({"mass": 1e-8}) == pytest.approx(beside, rel=1e-9)
        assert rule.epsilon_of({"divergence": 0.0}) == 0.0
        assert rule.cost(Gaussian(5.0)) == {"divergence": pytest.approx(order / 50), "mass": 0.0}


def test_the_share_of_a_budget_is_that_of_the_kind_most_was_taken_of() -> None:
    rule = GdpFilter(1.0, 1e-5, ADD, mu_squared=0.5, mass=1e-6)
    assert rule.share({"mu_squared": 0.1, "mass": 5e-7}) == pytest.approx(0.5)
    assert rule.share({"mu_squared": 0.3, "mass": 5e-7}) == pytest.approx(0.6)
    assert rule.share({"mu_squared": 0.1}, {"mu_squared": 0.2, "mass": 8e-7}) == 0.0
    assert rule.share({"mu_squared": 0.1, "mass": 1e-7}, {"mu_squared": 0.4, "mass": 2e-7}) == pytest.approx(0.2)
    assert rule.share({}) == rule.share({"mass": 0.0}) == rule.share({"mass": 1e-7}, {}) == 0.0
    without = RenyiFilter(1.0, 1e-5, ADD, order=8.0, divergence=0.5, mass=0.0)
    assert without.share({"mass": 1e-9}) == 1.0  # more than it holds: all of it
    assert without.share({"divergence": 0.1, "mass": 0.0}) == pytest.approx(0.2)
    assert added({"a": 1.0}, {"a": 2.0, "b": 3.0}, 4) == {"a": 9.0, "b": 12.0}
    assert added({"a": 1.0}, {}) == {"a": 1.0}


@pytest.mark.parametrize("rule", [GdpFilter(1.0, 1e-5, ADD, 0.5, 1e-6), RenyiFilter(1.0, 1e-5, ADD, 8.0, 0.5, 1e-6)])
def test_an_account_is_full_when_one_of_its_limits_is_reached(rule: GdpFilter | RenyiFilter) -> None:
    """A quarter at a time, exact in binary: four fit, of each kind, and not a hair more."""
    spending = next(iter(rule.limits))
    budget = Budget("stays", rule)
    assert (budget.epsilon, budget.delta, budget.relation) == (1.0, 1e-5, ADD)
    with pytest.raises(ValueError, match="protects by add_or_remove_one, this release by replace_one"):
        budget.cost(Gaussian(9.0, REPLACE))
    assert Account(budget, {kind: 2 * limit for kind, limit in rule.limits.items()}).left == 0.0  # of a budget made smaller
    for kind, limit in rule.limits.items():
        account = Account(Budget("stays", rule, owner="Ada"))
        for number in range(4):
            assert account.left == pytest.approx(1 - number / 4)
            account = account.charged({kind: limit / 4}, "")
        assert account.left == 0.0
        assert account.spent == {kind: limit}
        with pytest.raises(BudgetExceeded, match="Ada"):
            account.charged({kind: limit * 1e-9}, "")
        assert Account(Budget("stays", rule)).charged({kind: limit / 4}, "", 4).spent == {kind: limit}
        with pytest.raises(BudgetExceeded):
            Account(Budget("stays", rule)).charged({kind: limit / 4}, "", 5)
        with pytest.raises(BudgetExceeded):
            Account(Budget("stays", rule)).charged({kind: math.nan}, "")
    with pytest.raises(ValueError, match="was changed"):
        Account(Budget("stays", rule)).charged({"other": 0.0}, "")
    for wrong in (-1e-9, math.inf, math.nan):
        with pytest.raises(ValueError, match="from 0 on"):
            type(rule)(**{**vars(rule), spending: wrong})


def test_a_plan_counts_and_composes_what_is_in_it() -> None:
    one, other = SelfComposed(PoissonSampled(0.1, Gaussian(2.0)), 20), PureDP(0.1)
    rule = Plan.of(5.0, 1e-6, [(one, 2), (other, 3), (one, 1)])
    whole = [one, one, one, other, other, other]
    assert rule.planned == epsilon(Composed(tuple(whole)), 1e-6)
    spent: dict[str, float] = {}
    for number, event in enumerate(whole, start=1):
        assert rule.cost(event) == {next(iter(rule.cost(event))): 1.0}
        spent = added(spent, rule.cost(event))
        assert rule.epsilon_of(spent) == pytest.approx(epsilon(Composed(tuple(whole[:number])), 1e-6), rel=1e-9)
        assert rule.share(spent) == pytest.approx(number / 6)
    assert spent == rule.limits
    assert rule.epsilon_of({}) == 0.0
    for event, message in ((Gaussian(3.0), "no release like it"), (SelfComposed(other, 2), "no release like it")):
        with pytest.raises(ValueError, match=message):
            rule.cost(event)
    with pytest.raises(ValueError, match="at least one release"):
        Plan.of(5.0, 1e-6, [])
    with pytest.raises(ValueError, match="planned releases by replace_one"):
        Plan.of(5.0, 1e-6, [(one, 1)], relation=REPLACE)
    assert Plan.of(rule.planned, 1e-6, rule.releases).planned == rule.planned
    with pytest.raises(ValueError, match="more than"):
        Plan.of(rule.planned * 0.999, 1e-6, rule.releases)


def test_a_log_adds_up_in_both_ways_where_composing_is_coarse() -> None:
    """Where next to nothing is left, each at its share of δ, if that is less; else all composed."""
    few = {Gaussian(2.0): 3, PureDP(0.3): 1}
    assert _composed_epsilon(few, 1e-6) == epsilon(Composed((SelfComposed(Gaussian(2.0), 3), PureDP(0.3))), 1e-6)
    assert _composed_epsilon(few, 1e-6) < 3 * epsilon(Gaussian(2.0), 2.5e-7) + 0.3
    assert _composed_epsilon({}, 1e-6) == 0.0
    for many in (
        {Gaussian(0.2): 9},
        {Gaussian(0.01): 2, AboveThreshold(90.0): 2},
        {PureDP(700.0): 3, ApproximateDP(50.0, 1e-9): 2},
    ):
        share = 1e-6 / sum(many.values())
        apart = sum(count * epsilon(event, share) for event, count in many.items())
        together = epsilon(Composed(tuple(SelfComposed(event, count) for event, count in many.items())), 1e-6)
        assert together > 100
        assert _composed_epsilon(many, 1e-6) == min(apart, together)


def test_what_is_left_is_told_and_an_expired_budget_takes_nothing() -> None:
    rule = GdpFilter(1.0, 1e-5, ADD, 0.5, 1e-6)
    account = Account(Budget("stays", rule, expires="2027-12-31"))
    with pytest.raises(BudgetExceeded, match=r"costs a μ of 1, left is a μ of 0\.7071\."):
        account.charged({"mu_squared": 1.0}, "2027-12-31")
    account = account.charged({"mu_squared": 0.125}, "2027-12-31", 3)
    with pytest.raises(BudgetExceeded, match=r"costs a μ of 0\.5, left is a μ of 0\.3536\."):
        account.charged({"mu_squared": 0.125}, "2027-01-01", 2)
    full = Account(account.budget, {"mu_squared": 0.6})  # of a budget made smaller
    with pytest.raises(BudgetExceeded, match=r"left is a μ of 0\."):
        full.charged({"mu_squared": 0.125}, "2027-12-31")
    for cost in ({}, {"mu_squared": 0.125}):
        with pytest.raises(BudgetExceeded, match="expired on 2027-12-31"):
            account.charged(cost, "2028-01-01")


def test_a_log_adds_up_persons_and_records_apart(tmp_path: Path) -> None:
    log = SpendLog(tmp_path / "spend.db")
    one, other = Gaussian(3.0), PureDP(0.2)
    charges = [(one, "a", False), (one, "a", False), (one, "b", True), (other, "b", False), (Composed(()), "a", False)]
    for event, label, persons in charges:
        log.charge(event, mechanism="m", label=label, persons=persons)
    assert log.total(1e-6) == {ADD: epsilon(Composed((one, one, other)), 1e-6)}
    assert log.total(1e-6, persons=True) == {ADD: epsilon(one, 1e-6)}
    assert log.total(1e-6, "a") == {ADD: epsilon(Composed((one, one)), 1e-6)}
    assert log.total(1e-6, "b") == {ADD: epsilon(other, 1e-6)}
    assert log.total(1e-6, "nobody") == {}
    log.charge(Gaussian(4.0, REPLACE), mechanism="m", label="a")
    with only_claimed("somebody says so"):
        log.charge(one, mechanism="m", label="a")
    assert log.total(1e-6, "a") == {ADD: math.inf, REPLACE: epsilon(Gaussian(4.0), 1e-6)}
    log.charge(Composed((one, Unsupported("they say"))), mechanism="m", label="b")
    assert log.total(1e-6, "b") == {ADD: math.inf}
    assert SpendLog(tmp_path / "none.db").total(1e-6) == {}


def test_rules_go_to_json_and_back_by_their_names() -> None:
    for rule in (GdpFilter.of(1.0, 1e-5), RenyiFilter.of(1.0, 1e-5), Plan.of(5.0, 1e-6, [(PureDP(0.1), 3)])):
        assert rule_from_dict(json.loads(json.dumps(rule.to_dict()))) == rule
    for wrong in ({"type": "Rule"}, {"type": "Odometer"}, {}):
        with pytest.raises(ValueError, match="no budget that adds up by"):
            rule_from_dict(wrong)
