"""By what rules budgets add up: what each admits keeps (ε, δ)."""

from __future__ import annotations

import json
import math
import re
import warnings
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import ndtr, ndtri

from dperm.privacy import ApproximateDP, Composed, Gaussian, Laplace, PureDP, Relation, SelfComposed, epsilon
from dperm.privacy.accountants.budget_costs import gdp_bounds
from dperm.privacy.accountants.privacy_filters import BudgetExceeded, privacy_profile
from dperm.privacy.events import Event, FilteredRdp, PoissonSampled, PrivacyProfile, Unsupported, UnsupportedEventError
from dperm.release import SpendLog
from dperm.release.ledger import Account, Budget, GdpFilter, Plan, RenyiFilter, Rule, databases
from dperm.release.ledger.entries import append
from helpers.commands import dperm

DELTA = 1e-6
EVENTS: list[Event] = [
    Gaussian(6.0),
    PureDP(0.2),
    ApproximateDP(0.2, 1e-8),
    Laplace(9.0),
    SelfComposed(PoissonSampled(0.01, Gaussian(1.0)), 50),
    Composed((PoissonSampled(0.2, Gaussian(5.0)), Gaussian(30.0))),
    privacy_profile(Gaussian(12.0), smallest_delta=1e-10),
]


def against(mu_squared: float, mass: float, false: Any) -> Any:
    """The most true positives that a bound leaves at these false ones: both distributions without a mass of `mass`."""
    inner = (1 - mass) * ndtr(ndtri(np.minimum(1.0, false / (1 - mass))) + math.sqrt(mu_squared))
    return np.minimum(1.0, mass + inner)


@pytest.mark.parametrize(("rate", "noise"), [(0.01, 1.0), (0.01, 0.6), (0.3, 2.0), (0.9, 1.0)])
@pytest.mark.parametrize("mass", [1e-4, 1e-7])
def test_no_test_beats_a_bound_on_noise_on_samples(rate: float, noise: float, mass: float) -> None:
    """Both directions of one step, by their exact error rates; and the bound is not idle."""
    at = np.linspace(-8 * noise, 8 * noise + 1, 4001)
    alone = np.stack([ndtr(-at / noise), ndtr(at / noise)])
    mixed = (1 - rate) * alone + rate * np.stack([ndtr(-(at - 1) / noise), ndtr((at - 1) / noise)])
    for bound in gdp_bounds(PoissonSampled(rate, Gaussian(noise)), mass):
        assert bound.mass <= mass and bound.mu_squared < 1 / noise**2
        for false, true in ((alone[0], mixed[0]), (mixed[1], alone[1])):
            slack = against(bound.mu_squared, bound.mass, false) - true
            assert np.all(slack >= -1e-12)
    least = gdp_bounds(PoissonSampled(rate, Gaussian(noise)), mass)[0]
    beaten = against(0.9 * least.mu_squared, least.mass, alone[0]) - mixed[0]
    assert np.min(beaten) < 0 or np.min(against(0.9 * least.mu_squared, least.mass, mixed[1]) - alone[1]) < 0


def test_what_gives_nearly_everything_away_costs_as_much() -> None:
    """Profiles whose δ(0) rounds to 1, and corners that lie on the diagonal."""
    for size in (3.0, 24.0, 30.0, 40.0):
        exact = -2 * float(ndtri(1 / (1 + math.exp(size))))
        for bound in gdp_bounds(PureDP(size), 5e-7):
            assert math.sqrt(bound.mu_squared) > 0.98 * exact
        for event in (ApproximateDP(size, 5e-5), privacy_profile(PureDP(size), smallest_delta=1e-9)):
            for bound in gdp_bounds(event, 1e-3):
                # on all but the mass, ε-DP for most of ε, and so no smaller μ than of ε less what the mass may hide
                assert math.sqrt(bound.mu_squared) > 0.7 * exact
    for limit, delta, event in (
        (1.0, 1e-3, ApproximateDP(40.0, 5e-5)),
        (1.0, 2e-4, ApproximateDP(27.0, 1e-6)),
        (1.0, 1e-3, PrivacyProfile((40.0,), (5e-5,))),
    ):
        account = Account(Budget("stays", GdpFilter.of(limit, delta)))
        with pytest.raises((BudgetExceeded, ValueError)):
            account.charged(account.budget.cost(event), "")
    assert gdp_bounds(ApproximateDP(0.1, 4e-7), 5e-7)[0].mass < 5e-7  # a δ of its own just below the mass
    assert gdp_bounds(PrivacyProfile((0.0,), (1e-9,)), 1e-7)[0].mu_squared == 0


def test_costs_are_never_negative() -> None:
    for event in (PureDP(1e-9), SelfComposed(PureDP(1e-9), 10**17), PureDP(1e-5)):
        cost = RenyiFilter.of(3.0, DELTA).cost(event)["divergence"]
        count, size = (event.count, 1e-9) if isinstance(event, SelfComposed) else (1, event.epsilon)
        assert cost == pytest.approx(count * RenyiFilter.of(3.0, DELTA).order * size**2 / 2, rel=1e-5)

    laplace = RenyiFilter.of(3.0, DELTA).cost(Laplace(math.sqrt(2) * 1e9))["divergence"]
    assert laplace == pytest.approx(RenyiFilter.of(3.0, DELTA).order * 1e-18 / 2)
    (tiny,) = gdp_bounds(SelfComposed(PureDP(1e-17), 10**34), 0.0)
    assert tiny.mu_squared == pytest.approx(math.pi / 2) and tiny.mu_squared >= math.pi / 2

    class Refilling(RenyiFilter):
        def cost(self, event: Event) -> dict[str, float]:
            return {"divergence": -1.0}

    made = RenyiFilter.of(3.0, DELTA)
    budget = Budget("stays", Refilling(**{part.name: getattr(made, part.name) for part in fields(made)}))
    with pytest.raises(ValueError, match="it costs -1"):
        budget.cost(Gaussian(9.0))
    with pytest.raises(ValueError, match="from 0 on"):
        replace(made, divergence=math.nan)
    with pytest.raises(ValueError, match="larger epsilon"):
        GdpFilter.of(1e-13, 1e-13)


def test_bounds_of_what_is_known_exactly() -> None:
    exact = 2 * float(ndtri(1 / (1 + math.exp(-0.3))))
    assert [math.sqrt(bound.mu_squared) for bound in gdp_bounds(PureDP(0.3), 0.0)] == [pytest.approx(exact, rel=1e-8)]
    (both,) = gdp_bounds(Composed((PureDP(0.3), SelfComposed(Gaussian(4.0), 3))), 0.0)
    assert both.mu_squared == pytest.approx(exact**2 + 3 / 16, rel=1e-8) and both.mass == 0
    # a Gaussian that only its profile is known of
    like = gdp_bounds(privacy_profile(Gaussian(4.0), smallest_delta=1e-12), 1e-7)
    assert 1 / 16 * (1 - 1e-3) < like[0].mu_squared < 1 / 16 * 1.03
    costs, masses = [bound.mu_squared for bound in like], [bound.mass for bound in like]
    assert costs == sorted(costs)
    assert masses == sorted(masses, reverse=True)
    assert len(like) > 5
    for event, mass in ((Laplace(5.0), 0.0), (ApproximateDP(0.1, 1e-5), 1e-6), (ApproximateDP(0.1, 0.9), 1e-6)):
        with pytest.raises(UnsupportedEventError):
            gdp_bounds(event, mass)
    for event in (Unsupported("a paper's word"), FilteredRdp(8.0, 0.1)):  # one order says nothing of all errors
        with pytest.raises(UnsupportedEventError):
            gdp_bounds(event, 1e-6)


def chosen(seed: int) -> list[Event]:
    rng = np.random.default_rng(seed)
    return [EVENTS[place] for place in rng.integers(0, len(EVENTS), 300)]


@pytest.mark.parametrize("kind", [RenyiFilter, GdpFilter])
@pytest.mark.parametrize(("limit", "delta"), [(0.5, 1e-6), (2.0, 1e-5), (8.0, 1e-9)])
def test_filters_admit_no_more_than_they_may(kind: type[RenyiFilter] | type[GdpFilter], limit: float, delta: float) -> None:
    """What was taken composes to less than what the budget says, exactly and at its δ."""
    rule = kind.of(limit, delta)
    account, taken = Account(Budget("stays", rule)), []
    assert account.epsilon == 0 and account.left == 1
    for event in chosen(3):
        try:
            account = account.charged(account.budget.cost(event), "")
            taken.append(event)
        except (BudgetExceeded, ValueError):
            continue
    assert len(taken) > 1
    assert epsilon(Composed(tuple(taken)), delta) <= account.epsilon * (1 + 1e-6) <= limit * (1 + 1e-6)
    assert rule.epsilon_of(rule.limits) <= limit
    assert 0 <= account.left < 0.6
    assert Budget.from_dict(json.loads(json.dumps(account.budget.to_dict()))) == account.budget


def test_a_gdp_filter_takes_gaussian_noise_of_the_whole_and_more_of_steps_on_samples() -> None:
    whole = GdpFilter.of(4.0, DELTA, mass=0.0)
    from dperm.privacy import calibrate

    noise = calibrate(Gaussian, 4.0, DELTA) * (1 + 1e-6)
    account = Account(Budget("stays", whole)).charged(whole.cost(Gaussian(noise)), "")
    assert account.left < 1e-5
    with pytest.raises(ValueError, match=r"Gaussian|cannot add"):
        account.budget.cost(PoissonSampled(0.1, Gaussian(3.0)))
    run = SelfComposed(PoissonSampled(0.02, Gaussian(3.0)), 1000)
    room = {kind: 1 / kind.of(4.0, DELTA).share(kind.of(4.0, DELTA).cost(run)) for kind in (RenyiFilter, GdpFilter)}
    planned = max(count for count in range(10, 20) if epsilon(SelfComposed(run, count), DELTA) <= 4.0)
    assert 1.08 * room[RenyiFilter] < room[GdpFilter] < planned + 1
    assert GdpFilter.of(1e-3, 1e-9).mu_squared > 0 and GdpFilter.of(500.0, 1e-9).mu_squared > 100
    with pytest.raises(ValueError, match="below delta"):
        GdpFilter.of(1.0, 1e-6, mass=1e-6)
    with pytest.raises(ValueError, match="larger epsilon"):
        GdpFilter.of(1e-9, 1e-6)


def test_a_plan_takes_what_was_planned_in_any_order(tmp_path: Path) -> None:
    first, second = EVENTS[4], EVENTS[5]
    log = SpendLog(tmp_path / "spend.db")
    plan = Plan.of(3.0, DELTA, [(first, 2), (second, 1), (first, 1)])
    assert plan.planned == epsilon(Composed((SelfComposed(first, 3), second)), DELTA) and plan.name == "plan of 4 releases"
    log.create_budget(Budget("stays", plan, owner="Ada", alert=1.0))

    def charge(event: Event) -> None:
        log.charge(event, mechanism="test", label="stays")

    charge(second)
    with pytest.raises(BudgetExceeded, match=r"costs 1 of a planned release, left is 0 .* ask Ada"):
        charge(second)
    with pytest.raises(ValueError, match="no release like it was planned"):
        charge(Gaussian(50.0))
    for _ in range(3):
        with warnings.catch_warnings(action="ignore"):  # the last of them crosses the alert
            charge(Composed((first,)))  # the same parts
    with pytest.raises(BudgetExceeded):
        charge(first)
    account = log.account("stays")
    assert account is not None
    assert account.left == 0
    assert account.epsilon == pytest.approx(plan.planned)
    assert log.verify() == 5 and log.total(DELTA, "stays")[Relation.ADD_OR_REMOVE_ONE] <= plan.planned * (1 + 1e-9)
    # what was released may be a reason for another plan: of ε-DP first, and then, as it came out, either of two releases that
    # each fit beside it, the whole would cost more than each plan says
    with pytest.raises(ValueError, match="before anything is charged"):
        log.create_budget(Budget("stays", Plan.of(3.0, DELTA, [(first, 9), (second, 1)])))
    log.create_budget(Budget("stays", RenyiFilter.of(4.0, DELTA), alert=1.0))
    charge(Gaussian(90.0))
    assert log.verify() == 7


def room(event: Event, limit: float) -> list[int]:
    """How many fit into a Rényi filter, into a GDP filter, and into a plan."""
    filters = (RenyiFilter.of(limit, DELTA), GdpFilter.of(limit, DELTA))
    found = [math.floor(1 / rule.share(rule.cost(event))) for rule in filters]
    planned = max(found)
    while epsilon(SelfComposed(event, planned + 1), DELTA) <= limit:
        planned += 1
    return [*found, planned]


def test_the_page_says_how_many_fit() -> None:
    page = (Path(__file__).parents[2] / "docs" / "budgets.md").read_text()
    steps = "1,000 steps of DP-SGD, rate {}, noise {}"
    for name, event, limit in (
        ("a Gaussian of noise multiplier 6", Gaussian(6.0), 4.0),
        (steps.format(0.02, 3), SelfComposed(PoissonSampled(0.02, Gaussian(3.0)), 1000), 2.0),
        (steps.format(0.02, 3), SelfComposed(PoissonSampled(0.02, Gaussian(3.0)), 1000), 4.0),
        (steps.format(0.01, 1), SelfComposed(PoissonSampled(0.01, Gaussian(1.0)), 1000), 4.0),
        ("pure 0.1-DP", PureDP(0.1), 4.0),
    ):
        assert f"| {name} | {limit:g} | {' | '.join(map(str, room(event, limit)))} |" in page


def test_plans_that_cannot_be() -> None:
    for releases, message in (
        ([], "at least one"),
        ([(Gaussian(0.3), 1)], "more than 1"),
        ([(Gaussian(9.0), 0)], "how often"),
        ([(Gaussian(9.0, Relation.REPLACE_ONE), 1)], "replace_one"),
        ([(Unsupported("x"), 1)], r"Unsupported\("),
    ):
        with pytest.raises(ValueError, match=message):
            Plan.of(1.0, DELTA, releases)
    with pytest.raises(ValueError, match="adds up by 'Odometer'"):
        Budget.from_dict({"label": "x", "rule": {"type": "Odometer"}})


def write_first_version(where: str) -> None:
    """A log as the first version with budgets left it: with a Rényi filter, a charge before it, and one under it."""
    now, databases.MIGRATIONS = databases.MIGRATIONS, databases.MIGRATIONS[:1]
    rule = RenyiFilter.of(2.0, DELTA)
    held = {
        "label": "stays", "epsilon": 2.0, "delta": DELTA, "order": rule.order, "rdp": rule.divergence, "mass": rule.mass,
        "relation": "add_or_remove_one", "persons": False, "owner": "Ada", "expires": "", "alert": 0.8,
    }  # fmt: skip
    try:
        with databases.database_at(where).writing() as rows:
            body: dict[str, Any] = {"label": "stays", "mechanism": "test", "private": True}
            append(rows, "charge", "a" * 32, {**body, "id": "a" * 32}, event=Gaussian(20.0))
            append(rows, "budget", "", {"label": "stays", "budget": held})
            costs = {"rdp": rule.cost(Gaussian(30.0))["divergence"], "mass": 0.0}
            append(rows, "charge", "b" * 32, {**body, "id": "b" * 32, **costs}, event=Gaussian(30.0))
            spent = rule.cost(Gaussian(20.0))["divergence"] + costs["rdp"]
            rows("INSERT INTO dperm_budgets VALUES (?, ?, ?, ?)", "stays", json.dumps(held), spent, 0.0)
    finally:
        databases.MIGRATIONS = now


def shares(log: SpendLog) -> dict[str, float]:
    from dperm.report.budgets import Spending

    (account,) = log.accounts_held()
    return Spending.of(log, account).shares


def test_many_charges_are_drawn_at_some(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dperm.report import budgets

    log = SpendLog(tmp_path / "spend.db")
    log.create_budget(Budget("stays", RenyiFilter.of(3.0, DELTA)))
    for number in range(45):
        monkeypatch.setenv("DPERM_USER", "ada" if number % 3 else "grace")
        log.charge(Gaussian(80.0), mechanism="test", label="stays")
    (account,) = log.accounts_held()
    whole = budgets.Spending.of(log, account)
    monkeypatch.setattr(budgets, "_POINTS", 10)
    monkeypatch.setattr("dperm.release.ledger.log._AT_ONCE", 7)
    some = budgets.Spending.of(log, account)
    assert whole.charges == some.charges == 45
    assert len(whole.times) == 47
    assert len(some.times) == 8  # after every eighth, the last, and now
    assert some.shares == whole.shares
    spent = [sum(row) for row in zip(*some.by.values(), strict=True)]
    np.testing.assert_allclose(spent, (1 - account.left) * np.array([0, *range(8, 45, 8), 45, 45]) / 45, rtol=1e-9)
    assert some.times[:3] == (whole.times[0], whole.times[8], whole.times[16])
    assert [entry["number"] for entry in log.history()] == list(range(1, 47))


def test_who_reads_entries_slowly_keeps_nobody_waiting(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dperm.release.ledger.log._AT_ONCE", 2)
    monkeypatch.setattr(databases, "_WAIT", 0.2)
    log = SpendLog(where)
    for number in range(4):
        log.charge(Gaussian(10.0 + number), mechanism="test", label="stays")
    slow = log.entries("stays")
    seen = [next(slow)["number"]]
    log.charge(Gaussian(10.0), mechanism="test", label="stays")
    seen += [entry["number"] for entry in slow]
    assert seen == [1, 2, 3, 4]
    assert len(list(log.entries())) == 5
    assert not list(log.entries("other"))


@pytest.mark.parametrize(
    ("rule", "told"),
    [
        (GdpFilter.of(3.0, DELTA), "mu_squared"),
        (RenyiFilter.of(3.0, DELTA), r"divergence \d+(\.\d+)? %"),
        (Plan.of(3.0, DELTA, [(Gaussian(20.0), 9)]), "^2 of 9 releases$"),
    ],
)
def test_what_is_short_is_told(tmp_path: Path, rule: Rule, told: str) -> None:
    log = SpendLog(tmp_path / "spend.db")
    log.create_budget(Budget("stays", rule))
    assert rule.told_spent({}) == ""
    for _ in range(2):
        log.charge(Gaussian(20.0), mechanism="test", label="stays")
    (account,) = log.accounts_held()
    assert re.search(told, rule.told_spent(account.spent))


def test_a_log_of_the_first_version_goes_on(where: str) -> None:
    write_first_version(where)
    account = SpendLog(where).account("stays")
    rule = RenyiFilter.of(2.0, DELTA)
    assert account is not None and account.budget == Budget("stays", rule, owner="Ada")
    wanted = rule.cost(Composed((Gaussian(20.0), Gaussian(30.0))))["divergence"]
    assert wanted <= account.spent["divergence"] <= wanted * (1 + 1e-12)
    log = SpendLog(where)
    assert log.verify() == 3
    log.charge(Gaussian(40.0), mechanism="test", label="stays")
    assert log.verify() == 4 and "before it was made" in json.dumps(shares(log))


@pytest.mark.parametrize(
    "rule", [GdpFilter.of(3.0, DELTA), RenyiFilter.of(3.0, DELTA), Plan.of(3.0, DELTA, [(Gaussian(20.0), 9)])]
)
def test_who_spent_what(tmp_path: Path, rule: Rule, monkeypatch: pytest.MonkeyPatch) -> None:
    log = SpendLog(tmp_path / "spend.db")
    log.create_budget(Budget("stays", RenyiFilter.of(9.0, DELTA)))
    if not isinstance(rule, Plan):
        log.charge(Gaussian(20.0), mechanism="test", label="stays")
    log.create_budget(Budget("stays", rule))  # in place of the first
    for name, count in (("ada", 3), ("grace", 1), ("ada", 1)):
        monkeypatch.setenv("DPERM_USER", name)
        for _ in range(count):
            log.charge(Gaussian(20.0), mechanism="test", label="stays")
    found = shares(log)
    account = log.account("stays")
    assert account is not None
    assert next(iter(found)) == "ada"
    assert sum(found.values()) == pytest.approx(1 - account.left)
    assert found["ada"] == pytest.approx(4 * found["grace"])
    assert isinstance(rule, Plan) or found["before it was made"] == pytest.approx(found["grace"])


def test_names_are_no_markup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    label, user = 'a"><script>\\1 $x_</script>', "ada$x_\n  7  <b>$ & --> co"
    log = SpendLog.current()
    log.create_budget(Budget(label, RenyiFilter.of(3.0, DELTA)))
    log.create_budget(Budget("nothing charged", RenyiFilter.of(3.0, DELTA), expires="2020-01-01"))
    monkeypatch.setenv("DPERM_USER", user)
    log.charge(Gaussian(20.0), mechanism="<i>", label=label)
    page = tmp_path / "budgets.html"
    assert len(dperm("budget", "history", "-o", page).stdout.splitlines()) == 3
    text = page.read_text()
    assert "<script>" not in text.replace("<script>(", "")
    assert "<b>" not in text
    assert "<i>" not in text
    told = dperm("budget", "show").stdout
    assert "2 budgets." in told and "expired on 2020-01-01" in told
    head = tmp_path / "model.json"
    head.write_text('{"kind": "model"}')
    assert "to be a head" in dperm("budget", "verify", head, expect=1).stderr


def test_the_commands_for_rules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPERM_USER", "grace")
    told = dperm("budget", "create", "stays", "--epsilon", "3", "--filter", "gdp").stdout
    assert "by a GDP filter, of which 100 % is left" in told
    SpendLog.current().charge(Gaussian(4.0), mechanism="test", label="stays")
    (shown,) = json.loads(dperm("budget", "show", "--json").stdout)["budgets"]
    assert shown["adds_up_by"] == "GDP filter" and shown["by"] == {"grace": pytest.approx(1 - shown["left"])}
    event, plan = tmp_path / "event.json", tmp_path / "plan.json"
    event.write_text(json.dumps(Gaussian(9.0).to_dict()))
    plan.write_text(json.dumps([{"times": 3, "event": Gaussian(9.0).to_dict()}, {"event": PureDP(0.1).to_dict()}]))
    misspelt = tmp_path / "misspelt.json"
    misspelt.write_text(json.dumps([{"time": 3, "event": Gaussian(9.0).to_dict()}]))
    planned = ("budget", "create", "visits", "--epsilon", "3", "--plan", plan, "--plan", event)
    assert "by a plan of 5 releases" in dperm(*planned).stdout
    SpendLog.current().charge(PureDP(0.1), mechanism="test", label="visits")
    page = tmp_path / "budgets.html"
    assert "grace" in dperm("budget", "history", "-o", page).stdout
    text = page.read_text()
    assert text.count("<svg") == 2
    assert "plan of 5 releases" in text
    assert "grace 20.0 %" in text
    for wrong, message in (
        (("--plan", plan, "--mass", "1e-8"), "no --filter"),
        (("--filter", "gdp", "--order", "4"), "no --order"),
        (("--plan", page), "to be a model, a certificate"),
        (("--plan", misspelt), "unknown: ['time']"),
    ):
        assert message in dperm("budget", "create", "x", "--epsilon", "3", *wrong, expect=1).stderr
