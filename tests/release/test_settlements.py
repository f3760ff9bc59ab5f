"""What was charged and never released is given back once, by who holds it, for good, and to budgets by a filter alone."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dperm.privacy import Composed, Event, Gaussian, PoissonSampled, PureDP, Relation, SelfComposed
from dperm.privacy.accountants.privacy_filters import Price
from dperm.privacy.events import (
    BoundedSquaresGaussian,
    CyclicSampled,
    Disjoint,
    FilteredRdp,
    HiddenIterates,
    ObjectivePerturbationEvent,
    RandomAllocation,
    leaves,
)
from dperm.release import Channel, SpendLog, UnpaidReleaseError
from dperm.release.allowance import Allowance
from dperm.release.ledger import Account, Budget, GdpFilter, Plan, RenyiFilter, Settlement, databases
from dperm.release.ledger.entries import about, account_of, append, set_spent
from dperm.release.ledger.rules import lessened
from dperm.release.ledger.settlements import digest_of_key
from dperm.release.noise import GaussianNoise
from dperm.report.budgets import Spending
from helpers.commands import dperm
from helpers.ledgers import edited

DELTA = 1e-6
RULES = [RenyiFilter.of(4.0, DELTA), GdpFilter.of(4.0, DELTA), GdpFilter.of(4.0, DELTA, mass=0.0)]
TEN = SelfComposed(Gaussian(30.0), 10)


def log_of(where: str | Path, rule: Any = RULES[0]) -> SpendLog:
    log = SpendLog(where)
    log.create_budget(Budget("stays", rule, alert=1.0))
    return log


def run(log: SpendLog, event: Event = TEN, **settings: Any) -> Channel:
    channel = Channel.open(log=log, label="stays")
    channel.charge(event, "test", **settings)
    return channel


def release(channel: Channel, noise: float = 30.0, times: int = 1) -> None:
    for _ in range(times):
        channel.release(np.zeros(2), GaussianNoise(1.0, noise))


def spent(log: SpendLog) -> dict[str, float]:
    account = log.account("stays")
    assert account is not None
    return dict(account.spent)


def holds(log: SpendLog, released: Event | None, charged: Event) -> None:
    """The budget's sum is what was released, neither less nor more, and the log follows."""
    account = log.account("stays")
    assert account is not None
    cost = account.budget.cost(released) if released is not None else {}
    for kind, amount in spent(log).items():
        assert cost.get(kind, 0.0) <= amount <= cost.get(kind, 0.0) + 1e-9 * account.budget.cost(charged)[kind] + 1e-300
    log.verify()


@pytest.mark.fast_cases("sqlite-renyi", "sqlite-gdp", "sqlite-gdp without mass")
@pytest.mark.parametrize("rule", RULES, ids=["renyi", "gdp", "gdp without mass"])
def test_what_was_never_released_is_given_back(where: str, rule: Any) -> None:
    log = log_of(where, rule)
    channel = run(log)
    release(channel, times=3)
    settlement = channel.settle()
    assert (settlement.steps_charged, settlement.steps_given_back) == (10, 7)
    holds(log, SelfComposed(Gaussian(30.0), 3), TEN)
    with pytest.raises(UnpaidReleaseError, match="closed to settle"):
        release(channel)
    with pytest.raises(ValueError, match="settled once"):
        channel.settle()
    assert SpendLog(where).settled(settlement.charge_id)
    for _ in range(2):  # what is left is another run's
        run(SpendLog(where))
    log.verify()


def test_releases_of_several_kinds_are_counted_each(tmp_path: Path) -> None:
    """Whatever was taken of what, in any order."""
    kinds = {20.0: 4, 30.0: 3, 50.0: 2}
    event = Composed(tuple(SelfComposed(Gaussian(noise), count) for noise, count in kinds.items()))
    rng = np.random.default_rng(0)
    for number in range(8):
        log = log_of(tmp_path / f"{number}.db")
        channel = run(log, event)
        order = rng.permutation([noise for noise, count in kinds.items() for _ in range(count)])[: number + 1]
        for noise in order:
            release(channel, float(noise))
        channel.settle()
        holds(log, Composed(tuple(Gaussian(float(noise)) for noise in order)), event)


@pytest.mark.fast_cases("sqlite-renyi", "sqlite-gdp")
@pytest.mark.parametrize("rule", RULES[:2], ids=["renyi", "gdp"])
def test_a_run_whose_steps_have_numbers_gives_back_those_that_nobody_reserved(where: str, rule: Any) -> None:
    log = log_of(where, rule)
    channel = run(log, continuable=True)
    channel.reserve(4, 10)
    release(channel, times=2)
    assert channel.charge_id is not None
    assert SpendLog(where).reserve(channel.charge_id, 3, 10) == (4, 7)  # a copy in another process, which may release these
    settlement = channel.settle()
    assert settlement.steps_given_back == 2 + 3
    holds(log, SelfComposed(Gaussian(30.0), 5), TEN)
    for copy in (channel.log, SpendLog(where)):
        with pytest.raises(ValueError, match="was settled"):
            copy.reserve(settlement.charge_id, 1, 10)
    with pytest.raises(UnpaidReleaseError, match="cannot be continued"):
        Channel.open(log=log, label="stays").resume(settlement.charge_id, TEN)


def test_a_log_that_nobody_follows_holds_as_well() -> None:
    """In memory, where no chain is followed: nothing is appended to a settled charge."""
    log = SpendLog(databases.Memory())
    log.create_budget(Budget("stays", RULES[0]))
    channel = run(log, continuable=True)
    charge_id = channel.settle().charge_id
    with pytest.raises(ValueError, match="was settled"):
        log.reserve(charge_id, 1, 10)
    with pytest.raises(ValueError, match="was settled"):
        log.add_part(charge_id, Gaussian(30.0), Price("x", 1.0, 2.0), spent=0.0, note={})


def test_a_copy_keeps_what_it_reserved_and_settles_nothing(tmp_path: Path) -> None:
    log = log_of(tmp_path / "spend.db")
    channel = run(log, continuable=True)
    channel.reserve(2, 10)
    copy = Channel.open(log=log, label="stays")
    assert channel.charge_id is not None
    copy.resume(channel.charge_id, TEN)
    copy.reserve(3, 10, 2)
    with pytest.raises(ValueError, match="Only the process that made a charge"):
        copy.settle()
    assert channel.settle().steps_given_back == 2 + 5
    release(copy, times=3)
    with pytest.raises(ValueError, match="was settled"):
        copy.reserve(1, 10, 5)
    with pytest.raises(UnpaidReleaseError):
        release(copy)
    holds(log, SelfComposed(Gaussian(30.0), 3), TEN)


def test_releases_of_other_threads_are_counted_or_refused(tmp_path: Path) -> None:
    log, many = log_of(tmp_path / "spend.db"), SelfComposed(Gaussian(1000.0), 3000)
    channel = run(log, many)
    left: list[int] = []
    begun = threading.Barrier(4)

    def work() -> None:
        begun.wait()
        count = 0
        with contextlib.suppress(UnpaidReleaseError):
            while True:
                release(channel, 1000.0)
                count += 1
        left.append(count)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    begun.wait()
    settlement = channel.settle()
    for thread in threads:
        thread.join()
    assert sum(left) + settlement.steps_given_back == 3000
    log.verify()


def reserve_all(where: str, charge_id: str, told: Any) -> None:
    log, taken = SpendLog(where), 0
    try:
        while (found := log.reserve(charge_id, 1, 100_000)) is not None and found[1] > found[0]:
            taken += found[1] - found[0]
            told.put(("", taken))
    except ValueError as error:
        assert "was settled" in str(error)
    told.put(("end", taken))


@pytest.mark.fast_cases("sqlite")  # those of chargers on a server: test_roles.py
def test_steps_of_other_processes_are_counted_or_refused(where: str) -> None:
    """Whoever writes first: no step is both reserved and given back."""
    event = SelfComposed(Gaussian(3000.0), 100_000)
    log = log_of(where)
    channel = run(log, event, continuable=True)
    told = multiprocessing.get_context("fork").Queue()
    workers = [
        multiprocessing.get_context("fork").Process(target=reserve_all, args=(where, channel.charge_id, told), daemon=True)
        for _ in range(2)
    ]
    for worker in workers:
        worker.start()
    told.get(timeout=60)  # they are at it
    settlement = channel.settle()
    totals = []
    while len(totals) < 2:
        word, taken = told.get(timeout=60)
        totals += [taken] if word else []
    assert sum(totals) + settlement.steps_given_back == 100_000
    for worker in workers:
        worker.join(60)
    log.verify()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks here")
def test_a_forked_process_settles_nothing(tmp_path: Path) -> None:
    """Its copy of the channel says nothing of what the first one releases."""
    log = log_of(tmp_path / "spend.db")
    channel = run(log)

    def settle() -> None:
        try:
            channel.settle()
        except UnpaidReleaseError:
            os._exit(7)

    child = multiprocessing.get_context("fork").Process(target=settle)
    child.start()
    child.join(60)
    assert child.exitcode == 7
    release(channel, times=10)
    assert not log.settled(channel.charge_id or "")


def closed_and_killed(where: str) -> None:
    log = SpendLog(where)
    channel = run(log)
    release(channel, times=2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SpendLog, "settle", lambda *_: os.kill(os.getpid(), signal.SIGKILL))
        channel.settle()


def test_a_kill_before_the_entry_settles_nothing(tmp_path: Path) -> None:
    where = str(tmp_path / "spend.db")
    log = log_of(where)
    child = multiprocessing.get_context("fork").Process(target=closed_and_killed, args=(where,))
    child.start()
    child.join(60)
    assert child.exitcode == -signal.SIGKILL
    holds(log, TEN, TEN)
    (charge,) = log.charges()
    with pytest.raises(ValueError, match="made by another process"):
        log.settle(charge.id, "0" * 64, lambda _: Gaussian(30.0))


def runs_and_settles(where: str, told: str) -> None:
    """Run after run, each stopped somewhere and settled; what is released is told before."""
    log, rng = SpendLog(where), np.random.default_rng()
    with Path(told).open("a") as file:
        while True:
            channel = run(log, SelfComposed(Gaussian(500.0), 20), continuable=bool(rng.integers(2)))
            for number in range(1, int(rng.integers(2, 19))):
                if channel.charge_id is not None and number % 5 == 1:
                    with contextlib.suppress(ValueError):
                        channel.reserve(5, 20, number - 1)
                file.write(f"{channel.charge_id} {number}\n")
                file.flush()
                release(channel, 500.0)
            channel.settle()


@pytest.mark.parametrize("kills", [6, pytest.param(200, marks=pytest.mark.slow)])
def test_whenever_a_run_is_killed_nothing_is_given_back_that_was_released(tmp_path: Path, kills: int) -> None:
    where, told = str(tmp_path / "spend.db"), tmp_path / "told"
    log, rng = log_of(where, RenyiFilter.of(50.0, DELTA)), np.random.default_rng(0)
    told.touch()
    for _ in range(kills):
        worker = multiprocessing.get_context("fork").Process(target=runs_and_settles, args=(where, str(told)))
        size, until = told.stat().st_size, time.monotonic() + 60
        worker.start()
        while told.stat().st_size == size and time.monotonic() < until:
            time.sleep(0.001)
        time.sleep(float(rng.uniform(0.0, 0.3)))
        assert worker.pid is not None
        os.kill(worker.pid, signal.SIGKILL)
        worker.join()
    released = dict(line.split() for line in told.read_text().splitlines() if line.count(" ") == 1)  # the last of each run
    settlements = log.history(None, ["settlement"])
    assert len(settlements) > kills / 3
    for entry in settlements:
        assert entry["unreleased"] == 20 - int(released[entry["charge"]])
    assert len(log.charges()) > len(settlements)
    log.verify()


def test_a_log_that_cannot_be_written_leaves_the_charge_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = log_of(tmp_path / "spend.db")
    channel = run(log)
    release(channel, times=2)

    def broken(*_: Any) -> Any:
        raise OSError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(databases.Sqlite, "_written", broken)
        with pytest.raises(OSError, match="no space"):
            channel.settle()
    holds(log, TEN, TEN)
    with pytest.raises(UnpaidReleaseError, match="closed to settle"):
        release(channel)
    assert channel.settle().steps_given_back == 8  # once it can be written
    holds(log, SelfComposed(Gaussian(30.0), 2), TEN)


# What gives nothing back

SAMPLED = PoissonSampled(0.1, Gaussian(3.0))
NOTHING: dict[str, tuple[Any, Event, str]] = {
    "a plan": (Plan.of(4.0, DELTA, [(TEN, 1)]), TEN, "composed exactly, for a number of releases that was fixed"),
    "gdp of samples": (RULES[1], SelfComposed(SAMPLED, 10), "its μ was computed for all such steps together"),
    "gdp of both": (RULES[1], Composed((SelfComposed(SAMPLED, 5), TEN)), "its μ was computed for all such steps together"),
    "balls and bins": (RULES[0], RandomAllocation(10, Gaussian(5.0)), "Nothing to settle"),
    "a cycle": (RULES[0], SelfComposed(CyclicSampled(0.1, Gaussian(5.0), 3), 4), "Nothing to settle"),
    "correlated noise": (RULES[0], BoundedSquaresGaussian(9.0, 10, 1.0), "Nothing to settle"),
    "objective": (RULES[0], ObjectivePerturbationEvent(9.0, 1.0, 0.25, 7.0), "Nothing to settle"),
    "hidden steps": (
        RenyiFilter.of(4.0, DELTA, relation=Relation.REPLACE_ONE),
        HiddenIterates(20.0, 1, 2, 0.9, 1.0, 1e-9),
        "Nothing to settle",
    ),
    "a split": (RULES[0], Disjoint((Gaussian(20.0), Gaussian(30.0))), "Nothing to settle"),
    "a filter": (RULES[0], FilteredRdp(8.0, 0.1), "parts that are chosen on the way"),
    "two alike": (RULES[0], Composed((Gaussian(30.0), Gaussian(30.0 + 1e-9))), "Nothing to settle"),
}


@pytest.mark.filterwarnings("ignore:The budget of")
@pytest.mark.parametrize("name", NOTHING)
def test_nothing_is_given_back_where_nothing_is_proved(tmp_path: Path, name: str) -> None:
    rule, event, message = NOTHING[name]
    log = log_of(tmp_path / "spend.db", rule)
    channel = run(log, event)
    with pytest.raises(ValueError, match=message):
        channel.settle()
    assert [entry["kind"] for entry in log.history()] == ["budget", "charge"]
    if name == "a plan":
        release(channel)  # what is refused closes nothing


def test_nothing_is_given_back_without_a_filter_from_the_beginning(tmp_path: Path) -> None:
    log = SpendLog(tmp_path / "spend.db")
    channel = run(log)
    with pytest.raises(ValueError, match="no budget for 'stays'"):
        channel.settle()
    log.create_budget(Budget("stays", RULES[0]))
    with pytest.raises(ValueError, match="made after the first charge"):
        channel.settle()
    other = log_of(tmp_path / "other.db", RULES[0])
    channel = run(other)
    other.create_budget(Budget("stays", RenyiFilter.of(5.0, DELTA)))
    with pytest.raises(ValueError, match="its rule was changed"):
        channel.settle()
    other.create_budget(Budget("stays", RULES[0]))  # nor where it was changed back
    with pytest.raises(ValueError, match="its rule was changed"):
        channel.settle()
    release(channel)


def test_another_rule_counts_what_was_settled_in_full(tmp_path: Path) -> None:
    log = log_of(tmp_path / "spend.db")
    channel = run(log)
    release(channel)
    channel.settle()
    before = spent(log)
    log.create_budget(Budget("stays", RULES[0], owner="Ada"))  # by the same rule it is what it was
    assert spent(log) == before
    log.verify()
    log.create_budget(Budget("stays", RenyiFilter.of(5.0, DELTA)))
    holds(log, TEN, TEN)


# Entries that somebody else writes


def forged(log: SpendLog, charge_id: str, event: Event, rule: Any, **changes: Any) -> None:
    """A settlement that fits into the chain, written by who may write the file; the budget's sum with it."""
    given_back = changes.pop("given_back", dict(rule.given_back(event)))
    body = {"label": "stays", "settlement_key": "f" * 64, "given_back": given_back, "unreleased": 1, "charged": 10, **changes}
    with log.database.writing() as rows:
        account = account_of(rows, "stays")
        assert account is not None
        set_spent(rows, Account(account.budget, lessened(account.spent, given_back)))
        append(rows, "settlement", charge_id, body, event=event)


def test_no_settlement_is_forged(tmp_path: Path) -> None:
    """By whoever may write the file, chain and sums right: who goes on from what was remembered refuses the log."""
    log = log_of(tmp_path / "spend.db")
    channel = run(log)
    release(channel, times=10)
    key = channel._settlement_key
    whole = (tmp_path / "spend.db").read_bytes()
    part = Gaussian(30.0)
    cases: dict[str, dict[str, Any]] = {
        "does not state the key": {},
        "no more than its charge cost": {"settlement_key": key, "given_back": {"divergence": 99.0}},
        "no more than its charge cost.": {"settlement_key": key, "given_back": {"mu_squared": 0.0}},
        "amounts from 0 on": {"settlement_key": key, "given_back": {"divergence": -1.0}},
        "settles no charge of its data set": {"settlement_key": key, "label": "others"},
    }
    for message, changes in cases.items():
        (tmp_path / "spend.db").write_bytes(whole)
        forged(log, channel.charge_id or "", part, RULES[0], **changes)
        with pytest.raises(ValueError, match=message):
            run(log)
        with pytest.raises(ValueError):
            log.verify()


def test_no_charge_is_settled_twice_in_a_file(tmp_path: Path) -> None:
    log = log_of(tmp_path / "spend.db")
    channel = run(log)
    settlement = channel.settle()
    key = channel._settlement_key
    edited(tmp_path / "spend.db", "DROP INDEX dperm_settlements")
    forged(log, settlement.charge_id, Gaussian(30.0), RULES[0], settlement_key=key)
    with pytest.raises(ValueError, match="was settled before"):
        run(log)


def test_no_steps_follow_a_settlement_in_a_file(tmp_path: Path) -> None:
    log = log_of(tmp_path / "spend.db")
    channel = run(log, continuable=True)
    settlement = channel.settle()
    with log.database.writing() as rows:
        append(rows, "steps", settlement.charge_id, {"start": 0, "stop": 5, "limit": 10})
    with pytest.raises(ValueError, match="was settled"):
        run(log)


def test_verify_finds_a_settlement_of_what_was_not_charged(tmp_path: Path) -> None:
    """As with what charges cost: costs are added up by everybody, and computed again by who verifies."""
    for event, message in (
        (Gaussian(29.0), "no more than its charge reserved"),
        (Gaussian(30.0), "no more than its charge cost"),
    ):
        log = log_of(tmp_path / f"{event.noise_multiplier}.db")
        channel = run(log)
        costs = RULES[0].cost(TEN)
        forged(log, channel.charge_id or "", event, RULES[0], settlement_key=channel._settlement_key, given_back=dict(costs))
        with pytest.raises(ValueError, match=message):
            log.verify()


def test_a_log_of_the_version_before_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(databases, "MIGRATIONS", databases.MIGRATIONS[:3])
        patch.setattr("dperm.release.ledger.settlements.SETTLEMENT", "none")
        log = log_of(tmp_path / "spend.db")
        old = log.charge(TEN, mechanism="test", label="stays")
    channel = run(log)
    release(channel)
    assert channel.settle().steps_given_back == 9
    with pytest.raises(ValueError, match="made by another process"):  # before keys: nobody can tell who holds it
        log.settle(old, "", lambda _: Gaussian(30.0))
    log.verify()


def test_an_older_version_refuses_a_log_with_settlements(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = log_of(tmp_path / "spend.db")
    run(log).settle()
    monkeypatch.setattr(databases, "MIGRATIONS", databases.MIGRATIONS[:3])
    with pytest.raises(OSError, match="a newer dperm"):
        log.charge(TEN, mechanism="test", label="stays")


# What people see


def test_commands_show_what_was_given_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPERM_SPEND_LOG", str(tmp_path / "spend.db"))
    monkeypatch.setenv("DPERM_USER", "Ada")
    log = log_of(tmp_path / "spend.db")
    run(log)
    channel = run(log)
    release(channel, times=4)
    before = dperm("budget", "show").stdout
    settlement = channel.settle()
    after = dperm("budget", "show").stdout
    assert "gave back" not in before and "1 run that stopped early gave back 6 steps" in after
    assert f"settled {settlement.charge_id[:8]}…: 6 of 10 steps were never released" in dperm("budget", "history").stdout
    assert "all 4 entries are as they were written" in dperm("budget", "verify").stdout
    assert '"unreleased": 6' in dperm("budget", "show", "--json").stdout
    assert settlement.charge_id in dperm("budget", "history", "--json").stdout
    account = log.account("stays")
    assert account is not None
    spending = Spending.of(log, account)
    assert spending.charges == 2 and spending.shares["Ada"] == pytest.approx(1 - account.left)
    assert spending.by["Ada"][-2] == pytest.approx(spending.shares["Ada"])


# Planted defects: what released and gave back in all is no more than what was charged, or a test above fails


def conserved(tmp_path: Path, name: str) -> None:
    """A run of each kind, settled in the middle, and what it releases afterwards."""
    for continuable in (False, True):
        log = log_of(tmp_path / f"{name}_{continuable}.db".replace(" ", "_"))
        channel = run(log, continuable=continuable)
        released = others = 0
        with contextlib.suppress(UnpaidReleaseError, ValueError):
            for number in range(30):
                if continuable and number % 3 == 0:
                    channel.reserve(3, 10, number)
                release(channel)
                released += 1
                if number == 3:
                    if continuable and (taken := log.reserve(channel.charge_id or "", 2, 10)):  # by a copy of the run
                        others = taken[1] - taken[0]
                    settlement: Settlement = channel.settle()
        assert released + others + settlement.steps_given_back == 10
        assert leaves(settlement.unreleased) <= leaves(TEN)
        holds(log, SelfComposed(Gaussian(30.0), released + others), TEN)


def test_planted_defects_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    conserved(tmp_path, "right")
    honest = Allowance.unreleased
    planted: dict[str, tuple[str, Any]] = {
        "counts one that was released": ("unreleased", lambda self, first: honest(self, first) + honest(self, first)),
        "forgets what others reserved": ("unreleased", lambda self, first: honest(self, None if first is None else 0)),
        "stays open": ("close", lambda self: None),
    }
    for name, (method, defect) in planted.items():
        with monkeypatch.context() as patch:
            patch.setattr(Allowance, method, defect)
            with pytest.raises((AssertionError, UnboundLocalError)):
                conserved(tmp_path, name)


def test_a_key_is_no_other_charge_s(tmp_path: Path) -> None:
    log = log_of(tmp_path / "spend.db")
    first, second = run(log), run(log)
    assert digest_of_key(first._settlement_key) != digest_of_key(second._settlement_key)
    with pytest.raises(ValueError, match="made by another process"):
        log.settle(second.charge_id or "", first._settlement_key, lambda _: Gaussian(30.0))
    with log.database.reading() as rows:
        assert rows is not None
        bodies = str(about(rows, second.charge_id or ""))
    assert second._settlement_key not in bodies  # who reads the log cannot settle


def test_a_run_knows_what_it_took_whatever_the_log_says() -> None:
    allowance = Allowance()
    allowance.open(TEN, continuable=True)
    allowance.grant(0, 4)
    paid = Gaussian(30.0).pays_for
    allowance.take(paid)
    allowance.close()
    for unreserved, given_back in ((0, 9), (3, 9), (4, 9), (7, 6), (10, 3)):
        assert allowance.unreleased(unreserved) == {Gaussian(30.0): given_back}


def test_pure_noise_is_given_back(tmp_path: Path) -> None:
    event = SelfComposed(PureDP(0.05), 4)
    log = log_of(tmp_path / "spend.db")
    channel = run(log, event)
    assert channel.settle().steps_given_back == 4
    holds(log, None, event)
