"""Item 6: no clock that is wrong reopens a budget that has expired, or lets others expire, where a second clock shows it."""

from __future__ import annotations

import calendar
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dperm.privacy import Gaussian
from dperm.privacy.accountants.privacy_filters import BudgetExceeded
from dperm.release import SpendLog
from dperm.release.ledger import Budget, clocks
from dperm.release.ledger.importing import read_in
from helpers import postgres
from helpers.commands import dperm

Clock = Callable[[str], None]
_of = time.gmtime


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Sets this machine's clock to noon of a day, or to "now"."""

    def set_to(day: str) -> None:
        moment = _of() if day == "now" else time.strptime(f"{day} 12:00", "%Y-%m-%d %H:%M")
        monkeypatch.setattr(time, "gmtime", lambda *_: moment)

    return set_to


@pytest.fixture
def restart(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """What comes next is as of a process that was started on this day."""

    def started(day: str) -> None:
        moment = calendar.timegm(time.strptime(f"{day} 12:00", "%Y-%m-%d %H:%M"))
        monkeypatch.setattr(clocks, "time_by_process", lambda: float(moment))

    return started


def charge(log: SpendLog, label: str = "stays") -> str:
    return log.charge(Gaussian(50.0), mechanism="test", label=label)


def kinds(log: SpendLog) -> list[str]:
    return [entry["kind"] for entry in log.entries(None, ("charge", "budget", "refusal", "steps"))]


def test_a_refusal_by_expiry_is_an_entry_so_that_it_stays(tmp_path: Path, clock: Clock) -> None:
    log = SpendLog(tmp_path / "spend.db")
    clock("2026-03-01")
    log.create_budget(Budget.of("stays", 4.0, 1e-5, expires="2026-03-10"))
    clock("2026-03-10")
    charge(log)
    for day in ("2026-03-11", "2026-03-05", "2026-03-12"):
        clock(day)
        with pytest.raises(BudgetExceeded, match="expired on 2026-03-10: nothing was charged"):
            charge(log)
        with pytest.raises(BudgetExceeded, match="expired on 2026-03-10"):
            log.foreseen(Gaussian(50.0), "stays")
    assert kinds(log) == ["budget", "charge", "refusal"]  # one says it
    assert log.head()["time"] == "2026-03-11T12:00:00Z" and log.verify() == 3
    account = log.account("stays")
    assert account is not None and account.spent == account.budget.cost(Gaussian(50.0))


@pytest.mark.parametrize("stated", ["20260310", "2026-W11-2", "2026W112"])
def test_a_last_day_in_another_form_is_the_same_day(tmp_path: Path, clock: Clock, stated: str) -> None:
    """As texts they come after all of 2026: a budget that was stated so stayed open."""
    log = SpendLog(tmp_path / "spend.db")
    clock("2026-03-10")
    log.create_budget(Budget.of("stays", 4.0, 1e-5, expires=stated))
    charge(log)
    clock("2026-03-11")
    with pytest.raises(BudgetExceeded, match="expired on 2026-03-10"):
        charge(log)
    account = log.account("stays")
    assert account is not None and account.budget.to_dict()["expires"] == "2026-03-10"


def test_time_never_goes_back_in_a_log(tmp_path: Path, clock: Clock) -> None:
    log = SpendLog(tmp_path / "spend.db")
    clock("2026-03-10")
    charge(log)
    clock("2026-03-01")
    charge(log)
    assert [entry["time"] for entry in log.history()] == ["2026-03-10T12:00:00Z"] * 2


def test_a_clock_that_jumps_ahead_while_a_process_runs_writes_nothing(tmp_path: Path, clock: Clock) -> None:
    log = SpendLog(tmp_path / "spend.db")
    log.create_budget(Budget.of("stays", 4.0, 1e-5, expires="2089-12-31"))
    run = log.charge(Gaussian(50.0), mechanism="test", label="stays", keeps_reservations=True)
    before = log.head()
    clock("2099-01-01")
    for use in (
        lambda: charge(log),
        lambda: log.create_budget(Budget.of("others", 4.0, 1e-5)),
        lambda: log.foreseen(Gaussian(50.0), "stays"),
    ):
        with pytest.raises(ValueError, match=r"clock says 2099-01-01T12:00:00Z, .* nothing was charged"):
            use()
    assert log.head() == before
    assert log.reserve(run, 2, 4) == (0, 2)  # what was charged goes on, at a time that no clock denies
    assert log.head()["time"] < "2089"
    clock("now")
    charge(log)
    assert log.verify() == 4


def test_a_process_that_starts_with_a_wrong_clock_has_no_second_one(tmp_path: Path, clock: Clock, restart: Clock) -> None:
    """On a file of this machine: what has expired stays so."""
    log = SpendLog(tmp_path / "spend.db")
    log.create_budget(Budget.of("stays", 4.0, 1e-5, expires="2089-12-31"))
    restart("2099-01-01")
    clock("2099-01-01")
    with pytest.raises(BudgetExceeded, match="expired"):
        charge(log)
    clock("now")
    with pytest.raises(BudgetExceeded, match="expired"):
        charge(log)


def test_small_differences_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = SpendLog(tmp_path / "spend.db")
    for ahead, held in ((clocks.SLACK - 60, True), (clocks.SLACK + 60, False)):
        moment = _of(time.time() + ahead)
        monkeypatch.setattr(time, "gmtime", lambda *_, moment=moment: moment)
        if held:
            charge(log)
        else:
            with pytest.raises(ValueError, match="Set the clock that is wrong"):
                charge(log)


@pytest.mark.parametrize(("server", "held"), [("2026-03-10", False), ("2099-01-01", True)])
def test_a_file_server_s_clock_is_a_second_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: str, held: bool) -> None:
    """A touch of a file tells the time of the server that it lies on."""
    log, touch = SpendLog(tmp_path / "spend.db"), os.utime
    moment = float(calendar.timegm(time.strptime(server, "%Y-%m-%d")))
    monkeypatch.setattr(os, "utime", lambda path: touch(path, (moment, moment)))
    if held:  # the later of both
        charge(log)
        assert log.head()["time"].startswith(server)
    else:
        with pytest.raises(ValueError, match=r"that of the file's server 2026-03-10T00:00:0"):
            charge(log)
        assert log.head()["count"] == 0


def test_a_file_that_cannot_be_touched_tells_no_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Any) -> None:
        raise PermissionError(1, "not the owner")

    monkeypatch.setattr(os, "utime", refuse)
    charge(SpendLog(tmp_path / "spend.db"))


def test_a_database_s_server_tells_the_time(server: str, clock: Clock, restart: Clock) -> None:
    log = SpendLog(postgres.database(server, "spend"))
    log.create_budget(Budget.of("stays", 4.0, 1e-5, expires="2089-12-31"))
    log.create_budget(Budget.of("old", 4.0, 1e-5, expires="2026-01-31"))
    clock("2026-01-01")  # set back: the server knows better
    with pytest.raises(BudgetExceeded, match="expired on 2026-01-31"):
        charge(log, "old")
    charge(log)
    restart("2099-01-01")
    clock("2099-01-01")
    with pytest.raises(ValueError, match=r"2099-01-01T12:00:00Z, that of the database's server 20\d\d-.* nothing was charged"):
        charge(log)
    clock("now")
    charge(log)
    assert log.verify() == 4
    assert log.head()["time"] < "2089"


def test_a_log_of_lines_from_the_future_is_not_read_in(tmp_path: Path) -> None:
    old = tmp_path / "spend.jsonl"
    line = {"id": "a" * 32, "time": "2099-01-01T00:00:00Z", "mechanism": "m", "event": Gaussian(4.0).to_dict()}
    old.write_text(json.dumps(line) + "\n")
    log = SpendLog(tmp_path / "spend.db")
    with pytest.raises(ValueError, match="Line 1 of the log is from 2099"):
        read_in(log, old)
    assert log.head()["count"] == 0


def test_the_history_tells_of_refusals(clock: Clock) -> None:
    clock("2026-03-01")
    dperm("budget", "create", "stays", "--epsilon", "4", "--expires", "2026-03-10")
    clock("2026-03-20")
    with pytest.raises(BudgetExceeded):
        charge(SpendLog.current())
    assert "refused: expired on 2026-03-10" in dperm("budget", "history", "stays").stdout
    assert len(json.loads(dperm("budget", "history", "--json").stdout)) == 1
