"""Item 8: each charge looks whether the log goes on from what is remembered of it, and whether its budgets are what it says."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import pytest

from dperm.privacy import Gaussian
from dperm.privacy.accountants.privacy_filters import BudgetExceeded, Price
from dperm.release import SpendLog
from dperm.release.ledger import Budget
from dperm.release.ledger.entries import append, canonical
from dperm.release.ledger.log import _looked_at
from helpers.commands import dperm
from helpers.ledgers import edited

CUT = (  # to four entries, so that all fits together
    "DELETE FROM dperm_entries WHERE number > 4",
    "UPDATE dperm_head SET count = 4, chain = (SELECT chain FROM dperm_entries WHERE number = 4)",
)


@pytest.fixture
def log() -> SpendLog:
    """A budget and eight charges: nine entries, of which all are remembered here."""
    made = SpendLog.current()  # in memory: it is written very often
    made.create_budget(Budget.of("stays", 4.0, 1e-5))
    for number in range(8):
        charge(made, 20.0 + number)
    return made


def charge(log: SpendLog, noise: float = 20.0) -> str:
    return log.charge(Gaussian(noise), mechanism="test", label="stays")


def forget() -> None:
    for path in heads():
        path.unlink()


def heads() -> list[Path]:
    from dperm.release.ledger.heads import state_folder

    return sorted((state_folder() / "heads").iterdir())


TAMPERINGS = {
    "spent lowered": ("UPDATE dperm_budgets SET spent = '{}'",),
    "spent negative": ('UPDATE dperm_budgets SET spent = \'{"divergence":-1e9,"mass":0}\'',),
    "spent a hair less": ('UPDATE dperm_budgets SET spent = \'{"divergence":0.001,"mass":0}\'',),
    "spent no number": ('UPDATE dperm_budgets SET spent = \'{"divergence":NaN,"mass":0}\'',),
    "spent a text": ('UPDATE dperm_budgets SET spent = \'{"divergence":"0","mass":0}\'',),
    "spent a list": ("UPDATE dperm_budgets SET spent = '[]'",),
    "limit raised": ("UPDATE dperm_budgets SET body = replace(body, '\"divergence\":', '\"divergence\":9')",),
    "day of expiry moved": ('UPDATE dperm_budgets SET body = replace(body, \'"expires":""\', \'"expires":"2999-01-01"\')',),
    "budget deleted": ("DELETE FROM dperm_budgets",),
    "budget renamed": ("UPDATE dperm_budgets SET label = 'others'",),
    "budget added": ("INSERT INTO dperm_budgets SELECT 'others', body, spent FROM dperm_budgets",),
    "last entry deleted": ("DELETE FROM dperm_entries WHERE number = 9",),
    "all entries deleted": ("DELETE FROM dperm_entries",),
    "entries and head deleted": ("DELETE FROM dperm_entries", "UPDATE dperm_head SET count = 0, chain = '', time = ''"),
    "cut": CUT,
    "cut, and spent less": (*CUT, 'UPDATE dperm_budgets SET spent = \'{"divergence":0.001,"mass":0}\''),
    "two heads": ("INSERT INTO dperm_head SELECT * FROM dperm_head",),
    "no head": ("DELETE FROM dperm_head",),
    "head's count -3": ("UPDATE dperm_head SET count = -3",),
    "head's count 3.5": ("UPDATE dperm_head SET count = 3.5",),
    "head's time earlier": ("UPDATE dperm_head SET time = '2020-01-01T00:00:00Z'",),
    "version 0": ("PRAGMA user_version = 0",),
    "version -1": ("PRAGMA user_version = -1",),
    "version 1": ("PRAGMA user_version = 1",),
    "version 99": ("PRAGMA user_version = 99",),
    "no mark": ("PRAGMA application_id = 0",),
    "trigger": ("CREATE TRIGGER t AFTER UPDATE ON dperm_budgets BEGIN UPDATE dperm_budgets SET spent = '{}'; END",),
    "view": (
        "ALTER TABLE dperm_entries RENAME TO hidden",
        "CREATE VIEW dperm_entries AS SELECT * FROM hidden WHERE number < 5",
    ),
}
for _place in ("-1", "0", "NULL"):  # where the chain does not lead
    TAMPERINGS[f"entry at {_place}"] = (
        f"INSERT INTO dperm_entries SELECT {_place}, 'part', charge, '', event, 0, 1, 0, '{{\"account\":\"x\",\"cost\":-9}}', '' "
        "FROM dperm_entries WHERE number = 2",
    )
for _spent in ("1" + "0" * 400, "1" * 5000, "true", "[" * 10**5 + "]" * 10**5):  # what doubles, and Python, do not hold
    TAMPERINGS[f"spent {_spent[:9]} of {len(_spent)}"] = (
        f'UPDATE dperm_budgets SET spent = \'{{"divergence":{_spent},"mass":0}}\'',
    )
#: What only entries before the remembered one show: a charge does not read them, `verify` does.
EARLIER = {
    "first entry deleted": ("DELETE FROM dperm_entries WHERE number = 1",),
    "an entry changed": ("UPDATE dperm_entries SET body = replace(body, 'test', 'tess') WHERE number = 4",),
}


@pytest.mark.parametrize("name", TAMPERINGS)
def test_nothing_is_charged_to_a_log_that_was_changed(log: SpendLog, name: str) -> None:
    edited(log.where, *TAMPERINGS[name])
    for use in (
        lambda: charge(log),
        lambda: log.reserve("a" * 32, 1, 2),
        lambda: log.create_budget(Budget.of("stays", 400.0, 1e-5)),
        lambda: log.foreseen(Gaussian(20.0), "stays"),
        log.verify,
    ):
        with pytest.raises((ValueError, OSError)) as refused:
            use()
        assert not isinstance(refused.value, BudgetExceeded)
        assert str(refused.value).count(log.where) == 1 or "What was spent" in str(refused.value)


AMOUNTS = ("-9", "NaN", "1e999", "1" + "0" * 400, "1" * 5000, "true", "[" * 10**5 + "]" * 10**5)


def appended(log: SpendLog, kind: str, of: str, said: str) -> None:
    """An entry that follows from the one before, as whoever may write the file can make it, with an event that is there."""
    with contextlib.closing(sqlite3.connect(log.where)) as connection:
        ((count, chain, time),) = connection.execute("SELECT count, chain, time FROM dperm_head")
        label = "stays" if kind == "charge" else ""
        ((event,),) = connection.execute("SELECT event FROM dperm_entries WHERE number = 2")
        made = {
            "kind": kind,
            "charge": of,
            "time": time,
            "event": None if kind == "steps" else event,
            "label": label,
            "private": True,
        }
        body = f"{canonical(made)[:-1]},{said}}}"
        after = hashlib.sha256((chain + body).encode()).hexdigest()
        cells = (count + 1, kind, of, label, made["event"], 0, 1, 0, body, after)
        connection.execute("INSERT INTO dperm_entries VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", cells)
        connection.execute("UPDATE dperm_head SET count = count + 1, chain = ?", (after,))
        connection.commit()


@pytest.mark.parametrize("amount", AMOUNTS, ids=lambda amount: f"{amount[:9]} of {len(amount)}")
@pytest.mark.parametrize("kind", ["charge", "part", "steps"])
def test_no_entry_makes_room_or_cannot_be_told(log: SpendLog, kind: str, amount: str) -> None:
    run = charge(log)
    said = {
        "charge": f'"costs":{{"divergence":{amount},"mass":0}}',
        "part": f'"account":"x","cost":{amount},"note":{{}}',
        "steps": f'"start":0,"stop":{amount},"limit":9',
    }
    appended(log, kind, "c" * 32 if kind == "charge" else run, said[kind])
    for use in (
        lambda: charge(log),
        lambda: log.add_part(run, Gaussian(9.0), Price("x", 1.0, 0.5), spent=0.0, note={}),
        lambda: log.reserve(run, 1, 9),
        log.verify,
    ):
        with pytest.raises(ValueError, match=r"^Entry 11 of the spend log [^ ]+(:| is damaged:) ") as refused:
            use()
        assert str(refused.value).count(log.where) == 1


@pytest.mark.parametrize("spent", [f'{{"a":1{"0" * 400}}}', '{"a":-1}', "[" * 10**5], ids=["vast", "negative", "deep"])
def test_a_head_in_another_form_is_one_that_cannot_be_read(log: SpendLog, spent: str) -> None:
    (head,) = heads()
    whole = head.read_text()
    told = whole.replace(json.dumps(json.loads(whole)["accounts"]["stays"]["spent"]), spent)
    assert told != whole
    head.write_text(told)
    with pytest.warns(UserWarning, match="cannot be read"), pytest.warns(UserWarning, match="nothing was remembered"):
        charge(log)


@pytest.mark.parametrize("start", ['"0"', "0.5", "true", "null"])
def test_the_first_step_of_a_part_is_a_whole_number(log: SpendLog, start: str) -> None:
    appended(log, "part", charge(log), f'"account":"x","cost":0.5,"note":{{}},"start":{start}')
    with pytest.raises(ValueError, match="first step"):
        log.verify()


def test_an_event_that_was_changed_enters_no_run_that_goes_on(log: SpendLog) -> None:
    run = log.charge(Gaussian(20.0), mechanism="test", label="stays", keeps_parts=True)
    assert log.add_part(run, Gaussian(2.0), Price("x", 1.0, 5.0), spent=0.0, note={}) == 1.0
    edited(log.where, "UPDATE dperm_events SET body = replace(body, ':2.0', ':2000.0')")
    for use in (
        lambda: log.parts(run),
        lambda: log.accounts(run),
        lambda: log.add_part(run, Gaussian(2.0), Price("x", 1.0, 5.0), spent=0.0, note={}),
        log.verify,
    ):
        with pytest.raises(ValueError, match="An event of the spend log was changed"):
            use()


def test_a_user_of_another_encoding_charges(log: SpendLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPERM_USER", os.fsdecode(b"Ren\xe9"))
    charge(log)
    assert log.history()[-1]["by"] == r"Ren\udce9"


def test_nobody_else_writes_folders_that_are_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever can write them can put another log, or other heads, in the place of what lies there."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("DPERM_SPEND_LOG")
    before = os.umask(0)
    try:
        charge(SpendLog(tmp_path / "other" / "spend.db"))
        charge(SpendLog.current())
    finally:
        os.umask(before)
    found = {path.relative_to(tmp_path): path.stat().st_mode & 0o777 for path in tmp_path.rglob("*")}
    assert found.pop(Path("state")) == 0o777  # the user's, by the umask
    assert {path.suffix: mode for path, mode in found.items()} == {"": 0o700, ".db": 0o600, ".json": 0o600}
    assert len(found) == 7


def test_what_is_counted_again_is_looked_at_again(log: SpendLog) -> None:
    """A budget that is made anew, and a run that goes on, count early entries again."""
    run = charge(log, 30.0)
    log.reserve(run, 5, 20)
    for number in range(3):
        charge(log, 40.0 + number)
    whole = Path(log.where).read_bytes()
    edited(log.where, "DELETE FROM dperm_entries WHERE number = 3")
    with pytest.raises(ValueError, match=r"Entry 4 .* was changed or taken out"):
        log.create_budget(Budget.of("stays", 5.0, 1e-5))
    Path(log.where).write_bytes(whole)
    edited(log.where, "DELETE FROM dperm_entries WHERE kind = 'steps'")
    _looked_at.clear()  # a new process
    with pytest.raises(ValueError, match="was changed or taken out"):
        log.reserve(run, 5, 20)
    with pytest.raises(ValueError, match="was changed or taken out"):
        log.add_part("a" * 32, Gaussian(9.0), Price("x", 1.0, 2.0), spent=0.0, note={})
    Path(log.where).write_bytes(whole)
    assert log.reserve(run, 5, 20) == (5, 10)


@pytest.mark.parametrize("name", EARLIER)
def test_what_was_changed_before_the_remembered_entry_moves_no_budget(log: SpendLog, name: str) -> None:
    account = log.account("stays")
    edited(log.where, *EARLIER[name])
    charge(log)  # what is remembered says what was spent, whatever the log's beginning says now
    after = log.account("stays")
    assert account is not None and after is not None
    assert after.spent["divergence"] > account.spent["divergence"]
    with pytest.raises(ValueError, match="was changed or taken out"):
        log.verify()
    forget()
    with pytest.raises(ValueError, match="was changed or taken out"):
        charge(log)


@pytest.mark.filterwarnings("ignore:.*nothing was remembered here")
@pytest.mark.parametrize("name", sorted({*TAMPERINGS, *EARLIER} - {"entries and head deleted", "cut, and spent less"}))
def test_the_first_use_reads_all(log: SpendLog, name: str) -> None:
    forget()
    edited(log.where, *{**TAMPERINGS, **EARLIER}[name])
    if name == "cut":  # the budget shows it
        assert log.head()["count"] == 4
    with pytest.raises((ValueError, OSError)) as refused:
        charge(log)
    assert not isinstance(refused.value, BudgetExceeded)


def test_a_log_that_is_set_back_shows_only_from_what_lies_outside(log: SpendLog, tmp_path: Path) -> None:
    """An earlier copy fits together. Whoever used the log since remembers; who did not is told so; an owner's head shows it."""
    path, copy = Path(log.where), tmp_path / "copy.db"
    shutil.copy(path, copy)
    charge(log)
    later = log.head()
    shutil.copy(copy, path)
    for use in (lambda: charge(log), log.verify):
        with pytest.raises(ValueError, match="does not go on from the 10 entries"):
            use()
    forget()
    with pytest.raises(ValueError, match="it had 10"):
        log.verify(later)
    with pytest.warns(UserWarning, match="nothing was remembered here"):
        charge(log)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        charge(log)  # from now on it is
    assert log.verify() == 11


@pytest.mark.parametrize("gone", ["deleted", "emptied", "replaced"])
def test_a_log_that_is_gone_is_not_begun_anew_unless_somebody_says_so(log: SpendLog, tmp_path: Path, gone: str) -> None:
    path = Path(log.where)
    path.unlink()
    if gone == "emptied":
        path.touch()
    elif gone == "replaced":
        other = SpendLog(tmp_path / "other.db")
        charge(other)
        shutil.copy(other.where, path)
    content = path.read_bytes() if path.exists() else None
    with pytest.raises(ValueError, match="--remember"):
        charge(log)
    assert (path.read_bytes() if path.exists() else None) == content
    assert log.verify(remember_it=True) == (gone == "replaced")
    charge(log)
    assert log.verify() == 1 + (gone == "replaced")


def test_heads_belong_to_their_user_and_to_one_log(log: SpendLog, tmp_path: Path) -> None:
    (head,) = heads()
    assert head.stat().st_mode & 0o777 == 0o600 and head.parent.stat().st_mode & 0o777 == 0o700
    charge(log)
    assert heads() == [head] and json.loads(head.read_text())["count"] == 10
    charge(SpendLog(tmp_path / "another.db"))
    assert len(heads()) == 2
    head.write_text("{")
    with pytest.warns(UserWarning, match="cannot be read"), pytest.warns(UserWarning, match="nothing was remembered"):
        charge(log)
    assert json.loads(head.read_text())["count"] == 11


def test_a_link_that_leads_elsewhere_now_shows(log: SpendLog, tmp_path: Path) -> None:
    folder = tmp_path / "team"
    folder.symlink_to(Path(log.where).parent)
    linked = SpendLog(folder / "spend.db")
    with pytest.warns(UserWarning, match="nothing was remembered"):  # by this name
        charge(linked)
    (tmp_path / "elsewhere").mkdir()
    other = SpendLog(tmp_path / "elsewhere" / "spend.db")
    other.create_budget(Budget.of("stays", 400.0, 1e-5))
    folder.unlink()
    folder.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match="does not go on from the 10 entries"):
        charge(linked)


def test_a_user_without_a_home_is_told_that_nothing_is_remembered(log: SpendLog, monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("no home")

    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setattr(Path, "home", homeless)
    with pytest.warns(UserWarning) as told:
        charge(log)
    assert "set XDG_STATE_HOME" in str(told[0].message)
    monkeypatch.delenv("DPERM_SPEND_LOG")
    with pytest.raises(OSError, match="set XDG_STATE_HOME"):
        SpendLog.current()


COLUMNS = {
    "dperm_entries": ("number", "kind", "charge", "label", "event", "persons", "private", "claimed", "body", "chain"),
    "dperm_head": ("count", "chain", "time"),
    "dperm_budgets": ("label", "body", "spent"),
}
CELLS = [(table, column) for table, columns in COLUMNS.items() for column in columns]
VALUES = ("NULL", "-3", "3.5", "9e999", "1000000", "'x'", "''", "'{}'", "'[]'", "'null'", "x'ff00'", "CAST(x'ff' AS TEXT)")


@pytest.mark.filterwarnings("ignore:.*nothing was remembered")
@pytest.mark.parametrize(("table", "column"), CELLS)
def test_whatever_stands_in_a_cell_is_refused_in_one_line(log: SpendLog, table: str, column: str) -> None:
    """Of the last row, for who remembers the entry before it, and for who remembers nothing."""
    path, (head,) = Path(log.where), heads()
    charge(log, 50.0)
    earlier = head.read_bytes()
    charge(log, 51.0)
    whole, accepted = path.read_bytes(), 0
    last = " WHERE number = 11" if table == "dperm_entries" else ""
    for value in VALUES:
        for known in (earlier, None):
            path.write_bytes(whole)
            head.write_bytes(earlier)
            try:
                edited(path, f"UPDATE {table} SET {column} = {value}{last}")
            except sqlite3.IntegrityError:
                continue  # the table itself refuses it
            if known is None:
                head.unlink()
            for use in (lambda: charge(log), lambda: log.foreseen(None, "stays"), log.verify):
                with pytest.raises((ValueError, OSError)) as refused:
                    use()
                assert not isinstance(refused.value, UnicodeError) and len(str(refused.value).splitlines()) == 1
                accepted += 1
    assert accepted >= 3 * 2 * 6


@pytest.mark.parametrize(("table", "column"), CELLS)
def test_whatever_stands_in_a_cell_is_read_or_refused_in_one_line(log: SpendLog, table: str, column: str) -> None:
    """Who only reads need not notice, and meets no other error."""
    path = Path(log.where)
    charge(log, 50.0)
    whole = path.read_bytes()
    last = " WHERE number = 10" if table == "dperm_entries" else ""
    for value in VALUES:
        path.write_bytes(whole)
        with contextlib.suppress(sqlite3.IntegrityError):
            edited(path, f"UPDATE {table} SET {column} = {value}{last}")
        for read in (log.charges, log.history, log.accounts_held, log.head, lambda: log.total(1e-5)):
            with contextlib.suppress(ValueError, OSError):
                read()


def test_the_history_of_a_damaged_entry_ends_in_one_line(log: SpendLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPERM_SPEND_LOG", log.where)
    whole = Path(log.where).read_bytes()
    for body in ('{"kind":"charge"}', '{"kind":"budget"}', '{"kind":"time"}', '{"kind":"refusal"}', "{}", "[]", "x"):
        Path(log.where).write_bytes(whole)
        edited(log.where, f"UPDATE dperm_entries SET body = '{body}' WHERE number = 9")
        told = dperm("budget", "history", expect=1).stderr
        assert told.startswith("error: Entry 9 of the spend log is damaged") and len(told.splitlines()) == 1


NO_COSTS = [{"divergence": -100.0}, {"divergence": 0.0, "mass": -1e-9}, {"divergence": "0"}, {"divergence": True}, [], "x", None]


@pytest.mark.parametrize("costs", [*NO_COSTS, {}], ids=str)
def test_no_entry_makes_room_in_a_budget(log: SpendLog, costs: Any) -> None:
    """Also where it is written as an entry should be, and the sum with it."""
    account = log.account("stays")
    assert account is not None
    with log.database.writing() as rows:
        body = {"id": "a" * 32, "label": "stays", "mechanism": "test", "private": True, "costs": costs}
        append(rows, "charge", "a" * 32, body, event=Gaussian(20.0))
        less = {"divergence": account.spent["divergence"] - 100.0, "mass": 0.0} if costs else account.spent
        rows("UPDATE dperm_budgets SET spent = ?", json.dumps(dict(less)))
    if costs == {}:  # nothing is taken, and nothing is given
        charge(log)
        return
    for use in (lambda: charge(log), log.verify):
        with pytest.raises(ValueError, match="Entry 10 of the spend log"):
            use()


def test_a_budget_s_entry_is_of_its_own_label(log: SpendLog) -> None:
    with log.database.writing() as rows:
        body = {"label": "others", "budget": Budget.of("stays", 400.0, 1e-5).to_dict(), "spent": {}}
        append(rows, "budget", "", body)
        rows("INSERT INTO dperm_budgets VALUES ('others', ?, '{}')", canonical(body["budget"]))
    with pytest.raises(ValueError, match="it is of 'others', and its budget of 'stays'"):
        charge(log)


def test_what_killed_writers_left_is_removed(log: SpendLog) -> None:
    from dperm.release.ledger import heads as remembering

    folder = heads()[0].parent
    old, new = folder / ".head-old", folder / ".head-new"
    for path in (old, new):
        path.touch()
    os.utime(old, (0, 0))
    remembering._sweep.cache_clear()
    charge(log)
    assert new.exists() and not old.exists()


def test_a_head_that_cannot_be_remembered_stops_no_charge(log: SpendLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    with pytest.warns(UserWarning) as told:
        charge(log)
    assert sum("cannot be remembered" in str(each.message) for each in told) >= 1
    assert len(log.charges()) == 9


FORGED: list[dict[str, Any]] = [
    {"count": -3, "chain": "x"},
    {"count": 3.5, "chain": "x"},
    {"count": math.nan, "chain": "x"},
    {"count": math.inf, "chain": "x"},
    {"count": True, "chain": "x"},
    {"count": "9", "chain": "x"},
    {"count": None, "chain": "x"},
    {"count": 0, "chain": "a" * 64},
    {"count": 1, "chain": ""},
    {"count": 1, "chain": None},
    {"count": 1, "chain": "A" * 64},
    {"count": 1},
]


@pytest.mark.parametrize("head", FORGED, ids=str)
def test_forged_heads_are_refused(log: SpendLog, head: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="Expected a head of a spend log"):
        log.verify(head)
    with pytest.raises(ValueError, match="Expected a head of a spend log"):
        SpendLog(tmp_path / "none.db").verify(head)


def test_the_command_takes_a_log_as_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DPERM_SPEND_LOG", str(tmp_path / "spend.db"))
    dperm("budget", "create", "stays", "--epsilon", "4")
    (tmp_path / "spend.db").unlink()
    for command in (("create", "stays", "--epsilon", "4"), ("verify",)):
        assert "verify --remember" in dperm("budget", *command, expect=1).stderr
    assert "all 0 entries" in dperm("budget", "verify", "--remember").stdout
    dperm("budget", "create", "stays", "--epsilon", "4")
    assert dperm("budget", "verify").stderr == ""
    forget()
    assert "nothing was remembered here" in dperm("budget", "verify").stderr
    assert dperm("budget", "verify").stderr == ""


def is_locked(path: str) -> bool:
    """Whether another process cannot begin to write."""
    code = "import sqlite3, sys; sqlite3.connect(sys.argv[1], timeout=0, isolation_level=None).execute('BEGIN IMMEDIATE')"
    done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, check=False)
    assert done.returncode == 0 or "database is locked" in done.stderr
    return done.returncode != 0


def test_threads_do_not_take_each_other_s_lock(log: SpendLog) -> None:
    """Closing a file drops all locks that the process has on it, also those of another thread's transaction."""
    with log.database.writing():
        for look in (lambda: log.account("stays"), lambda: SpendLog(log.where).head()):
            thread = threading.Thread(target=look)
            thread.start()
            thread.join()
        assert is_locked(log.where), "another process wrote while this one did"
    assert not is_locked(log.where)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system forks no processes")
@pytest.mark.parametrize("uses", ["reads", "writes"])
def test_a_child_that_was_forked_while_a_thread_charged_charges(log: SpendLog, uses: str) -> None:
    """SQLite's memory of locks is the process's: the child took the thread's for its own, and found the file locked for ever."""
    inside, forked = threading.Event(), threading.Event()

    def use() -> None:
        with log.database.writing() if uses == "writes" else log.database.reading():
            inside.set()
            forked.wait(0.5)  # the fork comes in between, and waits

    thread = threading.Thread(target=use)
    thread.start()
    inside.wait()
    child = os.fork()
    if not child:
        signal.alarm(20)
        try:
            charge(log)
        finally:
            os._exit(0 if log.head()["count"] == 10 else 1)
    forked.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert log.verify() == 10
