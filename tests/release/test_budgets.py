"""Budgets: nothing that exceeds one is charged, whoever asks, however many at once, and whatever dies."""

from __future__ import annotations

import contextlib
import json
import math
import multiprocessing
import os
import signal
import socket
import sqlite3
import threading
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest

from dperm.privacy import ApproximateDP, Composed, Gaussian, PureDP, Relation, SelfComposed, Unsupported, epsilon
from dperm.privacy.accountants.budget_costs import divergence
from dperm.privacy.accountants.privacy_filters import BudgetExceeded, privacy_profile
from dperm.privacy.accountants.rdp import rdp
from dperm.privacy.events import Event, PoissonSampled
from dperm.release import SpendLog, spend_log
from dperm.release.ledger import Budget, only_claimed
from dperm.release.ledger.importing import read_in
from helpers import postgres
from helpers.commands import dperm

DELTA = 1e-6


def charge(log: SpendLog, event: Event, label: str = "stays", **settings: Any) -> str:
    return log.charge(event, mechanism="test", label=label, **settings)


def test_a_log_keeps_what_was_charged(where: str) -> None:
    log = SpendLog(where)
    assert log.charges() == []
    assert log.total(DELTA) == {}
    assert log.verify() == 0
    ids = [charge(log, Gaussian(8.0 + number % 2)) for number in range(6)]
    charge(log, PureDP(0.3, Relation.REPLACE_ONE), label="others")
    assert [found.id for found in log.charges("stays")] == ids
    assert log.total(DELTA)[Relation.ADD_OR_REMOVE_ONE] == pytest.approx(
        epsilon(Composed((SelfComposed(Gaussian(8.0), 3), SelfComposed(Gaussian(9.0), 3))), DELTA)
    )
    run = charge(log, Gaussian(1.0), keeps_reservations=True)
    assert [log.reserve(run, 5, 12) for _ in range(4)] == [(0, 5), (5, 10), (10, 12), (12, 12)]
    with pytest.raises(ValueError, match="reserved of 12"):
        log.reserve(run, 1, 13)
    assert log.reserve("nobody", 1, 2) is None
    assert log.verify() == 8 + 3 and SpendLog(where).head()["count"] == 11


def test_a_budget_holds_whatever_is_chosen(where: str) -> None:
    log = SpendLog(where)
    charge(log, Gaussian(30.0))  # before it was made: it counts
    budget = Budget.of("stays", 2.0, DELTA, owner="Ada")
    assert 0 < log.create_budget(budget).epsilon < 2
    events: list[Event] = [
        Gaussian(6.0),
        PureDP(0.2),
        ApproximateDP(0.2, 1e-7),
        SelfComposed(PoissonSampled(0.01, Gaussian(1.0)), 50),
    ]
    taken: list[Event] = [Gaussian(30.0)]
    for number in range(200):
        event = events[number % len(events)]
        try:
            charge(log, event)
        except BudgetExceeded as error:
            assert "Nothing was charged; ask Ada" in str(error)
            break
        taken.append(event)
    else:
        pytest.fail("nothing was refused")
    assert len(log.charges("stays")) == len(taken) > 3
    account = log.account("stays")
    assert account is not None and epsilon(Composed(tuple(taken)), DELTA) <= account.epsilon <= 2.0
    charge(log, Gaussian(1000.0))  # what is little enough still fits
    log.verify()


@pytest.mark.filterwarnings("ignore:The budget of")
def test_what_is_no_proved_release_of_it_is_refused(where: str) -> None:
    log = SpendLog(where)
    log.create_budget(Budget.of("stays", 3.0, DELTA, expires="2999-12-31"))
    refusals: list[tuple[Event, dict[str, Any], str]] = [
        (Gaussian(9.0), {"private": False}, "no fixed seed"),
        (Gaussian(9.0), {"persons": True}, "protects records"),
        (Gaussian(9.0, Relation.REPLACE_ONE), {}, "replace_one"),
        (Unsupported("a paper's word"), {}, "cannot add"),
        (Gaussian(9.0), {"label": "renamed"}, "none for 'renamed'"),
        (Gaussian(9.0), {"label": ""}, "names no data set: state by label"),
    ]
    for event, settings, message in refusals:
        with pytest.raises(ValueError, match=message):
            charge(log, event, **{"label": "stays", **settings})
    with only_claimed("its ranges were read off the data"), pytest.raises(ValueError, match="read off"):
        charge(log, Gaussian(9.0))
    assert log.charges() == []
    log.create_budget(Budget.of("old", 3.0, DELTA, expires="2020-01-01"))
    with pytest.raises(BudgetExceeded, match="expired on 2020-01-01"):
        charge(log, Gaussian(9.0), label="old")
    assert log.charges() == [] and log.verify() == 2


def test_a_charge_that_crosses_the_alert_warns(where: str) -> None:
    log = SpendLog(where)
    log.create_budget(Budget.of("stays", 2.0, DELTA, alert=0.3))
    charge(log, Gaussian(6.0))
    with pytest.warns(UserWarning, match=r"of 'stays' is spent to 33\.\d %"):
        charge(log, Gaussian(6.0))


def spend(where: str, count: int) -> None:
    log = SpendLog(where)
    for _ in range(count):
        try:
            charge(log, Gaussian(20.0))
        except BudgetExceeded:
            return


def race(where: str, processes: int, count: int) -> None:
    workers = [multiprocessing.get_context("spawn").Process(target=spend, args=(where, count)) for _ in range(processes)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(600)
        assert worker.exitcode == 0


@pytest.mark.fast_cases("sqlite")
@pytest.mark.filterwarnings("ignore:The budget of")
def test_many_at_once_never_overspend(where: str) -> None:
    log = SpendLog(where)
    budget = Budget.of("stays", 1.0, DELTA, alert=1.0)
    log.create_budget(budget)
    fit = math.floor(budget.rule.limits["divergence"] / budget.cost(Gaussian(20.0))["divergence"])
    race(where, 4, fit)
    assert len(log.charges()) == fit and log.verify() == fit + 1
    account = log.account("stays")
    assert account is not None and account.spent["divergence"] <= budget.rule.limits["divergence"]


@pytest.mark.slow
def test_sixteen_processes_of_a_thousand_charges(where: str) -> None:
    log = SpendLog(where)
    log.create_budget(Budget.of("stays", 300.0, DELTA, alert=1.0))
    race(where, 16, 1000)
    account = log.account("stays")
    assert account is not None and account.spent["divergence"] <= account.budget.rule.limits["divergence"]
    assert log.verify() == len(log.charges()) + 1


def spend_and_tell(where: str, told: str) -> None:
    log = SpendLog(where)
    with Path(told).open("a") as file:
        while True:
            file.write(charge(log, Gaussian(500.0)) + "\n")
            file.flush()


@pytest.mark.parametrize("kills", [5, pytest.param(1000, marks=pytest.mark.slow)])
def test_a_kill_loses_no_charge(where: str, tmp_path: Path, kills: int) -> None:
    """What `charge` returned is in the log, whenever the process is killed."""
    log, told = SpendLog(where), tmp_path / "told"
    log.create_budget(Budget.of("stays", 50.0, DELTA, alert=1.0))
    rng = np.random.default_rng(0)
    told.touch()
    for _ in range(kills):
        worker = multiprocessing.get_context("fork").Process(target=spend_and_tell, args=(where, str(told)))
        size, until = told.stat().st_size, time.monotonic() + 60
        worker.start()
        while told.stat().st_size == size and time.monotonic() < until:
            time.sleep(0.001)  # until it has told of a charge
        time.sleep(float(rng.uniform(0.0, 0.05)))
        assert worker.pid is not None
        os.kill(worker.pid, signal.SIGKILL)
        worker.join()
    told_of = [line for line in told.read_text().split("\n")[:-1] if len(line) == 32]
    assert len(told_of) >= kills and set(told_of) <= {found.id for found in log.charges()}
    log.verify()


def test_what_was_changed_or_taken_out_shows(tmp_path: Path) -> None:
    path = tmp_path / "spend.db"
    log = SpendLog(path)
    log.create_budget(Budget.of("stays", 3.0, DELTA))
    for event in (Gaussian(20.0), Gaussian(20.0), ApproximateDP(0.1, 1e-8)):
        charge(log, event)
    head = log.head()
    charge(log, Gaussian(21.0))
    assert log.verify(head) == 5
    whole = path.read_bytes()
    changes = {
        "Entry 2": "UPDATE dperm_entries SET body = replace(body, 'test', 'tess') WHERE number = 2",
        "Entry 3": "UPDATE dperm_entries SET label = 'others' WHERE number = 3",
        "Entry 4": "DELETE FROM dperm_entries WHERE number = 3",
        "should have 5 entries and has 4": "DELETE FROM dperm_entries WHERE number = 5",
        "An event": "UPDATE dperm_events SET body = replace(body, '20.0', '2000.0')",
        "budget of 'stays'": "UPDATE dperm_budgets SET spent = '{}'",
        "The budget": "UPDATE dperm_budgets SET spent = replace(spent, 'mass', 'mess')",
        "Entry 2 of": "UPDATE dperm_entries SET claimed = 1 WHERE number = 2",
        "Entry 3 of": "UPDATE dperm_entries SET persons = 1 WHERE number = 3",
        "Entry 4 of": "UPDATE dperm_entries SET charge = 'x' WHERE number = 4",
        "may look open": "UPDATE dperm_head SET time = ''",
        "expected amounts of each kind, got 0": "UPDATE dperm_budgets SET spent = '0'",
        "nobody made it": "INSERT INTO dperm_budgets SELECT 'others', body, spent FROM dperm_budgets",
    }
    for message, change in changes.items():
        path.write_bytes(whole)
        connection = sqlite3.connect(path)
        connection.execute(change)
        connection.commit()
        connection.close()
        with pytest.raises(ValueError, match=message):
            log.verify()
    path.write_bytes(whole)
    connection = sqlite3.connect(path)  # a tail that was cut with care: only the head that lies elsewhere tells
    connection.execute("DELETE FROM dperm_entries WHERE number >= 4")
    chain = connection.execute("SELECT chain FROM dperm_entries WHERE number = 3").fetchone()[0]
    connection.execute("UPDATE dperm_head SET count = 3, chain = ?", (chain,))
    connection.execute("UPDATE dperm_budgets SET spent = ?", ('{"divergence":0.5,"mass":0}',))
    connection.commit()
    connection.close()
    with pytest.raises(ValueError, match="it had 4"):
        log.verify(head)


def test_a_log_of_lines_is_read_in_once(tmp_path: Path, where: str) -> None:
    old = tmp_path / "spend.jsonl"
    lines = [
        {"id": "a" * 32, "time": "2026-01-01T00:00:00Z", "label": "stays", "mechanism": "m", "pid": 1, "private": True,
         "event": Gaussian(4.0).to_dict(), "keeps_reservations": True},
        {"continues": "a" * 32, "start": 0, "stop": 5, "limit": 9, "pid": 1},
        {"continues": "a" * 32, "part": Gaussian(9.0).to_dict(), "account": "x", "cost": 1.0, "note": {}, "pid": 1},
        {"id": "b" * 32, "time": "2026-01-02T00:00:00Z", "label": "", "mechanism": "m", "pid": 1, "private": False,
         "event": PureDP(1.0).to_dict()},
    ]  # fmt: skip
    old.write_text("".join(json.dumps(line) + "\n" for line in lines))
    log = SpendLog(where)
    assert read_in(log, old) == 2 and read_in(log, old) == 0
    first, second = log.charges()
    assert (first.time, first.event, first.keeps_reservations) == ("2026-01-01T00:00:00Z", Gaussian(4.0), True)
    assert not second.private
    assert log.reserve(first.id, 9, 9) == (5, 9)
    assert log.accounts(first.id) == {"x": 1.0}
    old.write_text(old.read_text() + "{half a line\n")
    with pytest.raises(ValueError, match="Line 5"):
        read_in(log, old)
    assert log.verify() == 5


@pytest.mark.parametrize(
    "change",
    [
        {"mechanism": None}, {"mechanism": 5}, {"id": None}, {"id": ["a"]}, {"time": None}, {"time": "yesterday"}, {"label": {}},
        {"private": "no"}, {"persons": 1}, {"claimed": True}, {"event": 5}, {"event": None},
        {"continues": 5}, {"continues": "a", "start": 0}, {"continues": "a", "start": 3, "stop": 2, "limit": 9},
        {"continues": "a", "start": 0.5, "stop": 2, "limit": 9}, {"continues": "a", "start": 0, "stop": 1, "limit": 10**400},
        {"continues": "a", "part": PureDP(1.0).to_dict(), "account": "x", "cost": -1.0, "note": {}},
        {"continues": "a", "part": PureDP(1.0).to_dict(), "account": "x", "cost": 1.0},
    ],
)  # fmt: skip
def test_a_line_that_would_spoil_the_log_is_not_read_in(change: dict[str, Any], tmp_path: Path, where: str) -> None:
    """An entry stays: one without a mechanism made every later look at the charges fail."""
    line = {"id": "b", "time": "2026-01-02T00:00:00Z", "mechanism": "m", "event": PureDP(1.0).to_dict(), **change}
    line = {name: value for name, value in line.items() if value is not None}
    (tmp_path / "spend.jsonl").write_text(json.dumps(line))
    log = SpendLog(where)
    log.charge(PureDP(1.0), mechanism="m", label="t")
    with pytest.raises(ValueError, match="Line 1 of the log is damaged"):
        read_in(log, tmp_path / "spend.jsonl")
    assert len(log.charges()) == 1 and log.verify() == 1


@pytest.mark.parametrize("order", [1.5, 8.0, 40.0])
def test_divergences_are_above_the_exact_ones_and_near(order: float) -> None:
    for part, like in (
        (privacy_profile(Gaussian(4.0), smallest_delta=1e-9), Gaussian(4.0)),
        (ApproximateDP(0.5, 1e-7), PureDP(0.5)),
    ):
        found, exact = divergence(part, order), float(rdp(like, np.array([order]))[0])
        assert found.mass <= 1.1e-7 and found.astray == 0
        if isinstance(part, ApproximateDP):
            assert exact <= found.rdp <= exact * 1.01 + 1e-5
        else:  # its points hold masses back: less than the Gaussian's divergence at large orders, never much more
            assert found.rdp <= exact * 1.02
    both = divergence(Composed((ApproximateDP(0.5, 1e-7), SelfComposed(Gaussian(9.0), 3))), order)
    assert both.rdp == pytest.approx(divergence(ApproximateDP(0.5, 1e-7), order).rdp + 3 * order / 162)


def test_another_budget_keeps_what_is_not_stated() -> None:
    create = ("budget", "create", "stays", "--epsilon")
    dperm(*create, "4", "--owner", "Ada", "--expires", "2999-01-01", "--alert", "0.5", "--persons")
    told = dperm(*create, "6", "--filter", "gdp").stdout
    assert "ε = 6" in told
    assert "of Ada, until 2999-01-01" in told
    assert "protects persons" in told
    dperm(*create, "5", "--owner", "Eve", "--expires", "", "--records")
    (account,) = SpendLog.current().accounts_held()
    budget = account.budget
    assert (budget.epsilon, budget.owner, budget.expires, budget.alert, budget.persons) == (5.0, "Eve", "", 0.5, False)
    assert "gdp" not in budget.rule.name.lower()


def test_the_commands(tmp_path: Path) -> None:
    assert (
        "100 % is left"
        in dperm("budget", "create", "stays", "--epsilon", "4", "--owner", "Ada", "--expires", "2999-01-01").stdout
    )
    charge(SpendLog.current(), Gaussian(9.0))
    told = dperm("budget", "show").stdout
    assert "stays: ε = 4 at δ = 1e-06 by a Rényi filter" in told
    assert "of Ada" in told
    assert "% is left" in told
    (shown,) = json.loads(dperm("budget", "show", "stays", "--json").stdout)["budgets"]
    assert shown["epsilon"] == 4.0
    assert 0 < shown["spent"] < 4
    assert 0 < shown["left"] < 1
    assert len(dperm("budget", "history").stdout.splitlines()) == 2
    page = tmp_path / "budgets.html"
    dperm("budget", "history", "-o", page)
    assert "Budgets of 1 data set<" in page.read_text() and "<svg" in page.read_text()
    key, head = tmp_path / "key", tmp_path / "head.json"
    dperm("keygen", key)
    dperm("budget", "head", "-o", head, "--sign-key", key)
    charge(SpendLog.current(), Gaussian(9.0))
    assert "all 3 entries" in dperm("budget", "verify", head, "--verify-key", f"{key}.pub").stdout
    changed = json.loads(head.read_text()) | {"count": 1}
    head.write_text(json.dumps(changed))
    assert "signature" in dperm("budget", "verify", head, "--verify-key", f"{key}.pub", expect=1).stderr
    assert "Expected a data set" in dperm("budget", "show", "others", expect=1).stderr
    for wrong in (("--epsilon", "-1"), ("--epsilon", "1", "--expires", "soon"), ("--epsilon", "1", "--mass", "1e-5")):
        assert "Expected" in dperm("budget", "create", "x", *wrong, expect=1).stderr


def test_a_server_that_cannot_be_reached_stops_a_charge() -> None:
    pytest.importorskip("psycopg")
    with pytest.raises(OSError, match="nothing was released") as failed:
        charge(SpendLog("postgresql://me:secret@127.0.0.1:9/none"), Gaussian(1.0))
    assert "secret" not in str(failed.value)
    assert "secret" not in SpendLog("postgresql://127.0.0.1:9/none?user=me&password=secret").where


@pytest.mark.parametrize(
    ("text", "got"),
    [
        ("mysql://me:secret@host/none", "a URL of 'mysql'"),
        ("host=db.example.org password=secret://", "a text with '=' and ':' and a blank"),
        ("me:secret://db.example.org/spend", "a text with ':'"),
        ("host=db.example.org password=secret", "a text with '=' and a blank"),
        ("dbname=spend.db", "a text with '='"),
        ("postgresql:/me:secret@host/spend.db", "a text with ':'"),
        ("postgresql//secret/spend", "a name without an ending"),
        ("postgresql //secret/spend.db", "a text with a blank"),
        (" spend.db", "a text with a blank"),
        ("spend.db\n", "a text with a blank"),
        ("secret", "a name without an ending and no file that exists"),
        ("spend.json", "a name that ends in '.json' and no file that exists"),
        ("~/spend.db", "a text with '~' at its beginning"),
        ("$HOME/spend.db", "a text with '$'"),
        ("postgresql：／／me：secret＠host／spend.db", "a text with ':'"),
        ("", "nothing; without DPERM_SPEND_LOG"),
    ],
)
def test_a_misspelt_spend_log_opens_no_file(text: str, got: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would bypass the team's budget, and its password would stand in a file's name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("dperm.release.ledger.log._STARTED_IN", tmp_path)
    monkeypatch.setenv("DPERM_SPEND_LOG", text)
    for open_log in (SpendLog.current, lambda: SpendLog(text), lambda: spend_log(text).__enter__()):
        with pytest.raises(ValueError, match=r"Expected the spend log as the path .* or as postgresql://") as refused:
            open_log()
        assert got in str(refused.value)
        assert "secret" not in str(refused.value)
    assert list(tmp_path.iterdir()) == []


def test_existing_files_and_folders_with_blanks_are_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "Jane Doe = 1:2"
    folder.mkdir()
    monkeypatch.chdir(folder)
    with spend_log("new.sqlite") as log:  # what was asked for is a plain name
        charge(log, Gaussian(1.0))
    (folder / "new.sqlite").rename(folder / "no ending")
    assert len(SpendLog(folder / "no ending").charges()) == 1
    monkeypatch.setenv("XDG_STATE_HOME", str(folder))
    monkeypatch.delenv("DPERM_SPEND_LOG")
    assert SpendLog.current().where == str(folder / "dperm" / "spend.db")


class Proxy:
    """Passes bytes to a server and back, until it drops the connection that commits: before the server hears of it, or after."""

    def __init__(self, url: str, *, heard: bool) -> None:
        self.heard, self.dropped = heard, 0
        place = urlsplit(url)
        assert place.port is not None
        self._there = (place.hostname, place.port)
        self._door = socket.create_server(("127.0.0.1", 0))
        self.url = url.replace(str(place.port), str(self._door.getsockname()[1]))
        self.drops = False
        self._silent, self._answered = threading.Event(), threading.Event()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            here, _ = self._door.accept()
            there = socket.create_connection(self._there)
            threading.Thread(target=self._pass, args=(here, there), daemon=True).start()
            threading.Thread(target=self._back, args=(there, here), daemon=True).start()

    def _pass(self, here: socket.socket, there: socket.socket) -> None:
        with here, there, contextlib.suppress(OSError):
            while data := here.recv(1 << 16):
                if self.drops and b"COMMIT" in data and b"dperm" not in data:
                    self.dropped += 1
                    if self.dropped % 2 == 0:  # the first commit of a charge ends a look at the budget
                        self._silent.set()
                        if self.heard:
                            there.sendall(data)
                            self._answered.wait(20)
                        for side in (here, there):
                            side.shutdown(socket.SHUT_RDWR)
                        return
                there.sendall(data)

    def _back(self, there: socket.socket, here: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := there.recv(1 << 16):
                if self._silent.is_set():  # the answer to the commit
                    self._answered.set()
                    return
                here.sendall(data)


@pytest.mark.parametrize("heard", [False, True])
def test_a_connection_that_drops_while_it_commits_stops_the_charge(server: str, heard: bool) -> None:
    """Whether the server heard of it is not known then: it may stand in the log, and nothing runs for it."""
    url = postgres.database(server, "spend")
    charge(SpendLog(url), Gaussian(8.0))
    proxy = Proxy(url, heard=heard)
    log = SpendLog(proxy.url)
    with pytest.warns(UserWarning, match="nothing was remembered"):  # by this address
        charge(log, Gaussian(8.0))
    proxy.drops = True
    with pytest.raises(OSError, match="nothing was released"):
        charge(log, Gaussian(8.0))
    assert proxy.dropped == 2
    assert len(SpendLog(url).charges()) == 2 + heard
    charge(SpendLog(url), Gaussian(8.0))
    assert SpendLog(url).verify() == 3 + heard


def test_a_disk_that_cannot_be_written_stops_a_charge() -> None:
    with pytest.raises(OSError, match="nothing was released"):
        charge(SpendLog("/sys/dperm/spend.db"), Gaussian(1.0))


def test_the_card_shows_the_budget(tmp_path: Path) -> None:
    table, schema, model, page = (tmp_path / name for name in ("stays.csv", "s.json", "m.json", "c.html"))
    rng = np.random.default_rng(0)
    table.write_text("age,late\n" + "".join(f"{age},{'yes' if age > 50 else 'no'}\n" for age in rng.integers(20, 80, 300)))
    dperm("data", "propose", table, "--target", "late", "-o", schema)
    dperm("data", "confirm", schema)
    dperm("budget", "create", "stays", "--epsilon", "4", "--delta", "1e-5", "--owner", "Ada", "--expires", "2999-01-01")
    dperm("train", table, "--schema", schema, "--epsilon", "1", "-o", model)
    told = dperm("card", model, "-o", page).stdout
    account = SpendLog.current().account("stays")
    assert account is not None and "Budget of the data set: ε = 4 at δ = 1e-05, of Ada, until 2999-01-01: " in told
    assert "% of it is left, by its own rule, and the log refuses what exceeds it" in page.read_text()
    found = json.loads(dperm("card", model, "-o", page, "--json").stdout)["spent"]["account"]
    assert found["owner"] == "Ada" and found["left"] == account.left < 1
