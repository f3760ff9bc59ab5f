from __future__ import annotations

import math
import multiprocessing
import os
import sqlite3
import sys
from pathlib import Path

import pytest

from dperm.privacy import Event, Gaussian, PureDP, Relation, SelfComposed, epsilon
from dperm.release import SpendLog, spend_log
from dperm.release.ledger.entries import append, append_all


def write_some(count: int) -> None:
    for _ in range(count):
        SpendLog.current().charge(Gaussian(10.0), mechanism="test", label="worker")


def test_total_composes_everything_per_relation(tmp_path: Path) -> None:
    log = SpendLog(tmp_path / "deep" / "log.db")
    assert log.charges() == []
    assert log.total(1e-5) == {}
    for _ in range(4):
        log.charge(Gaussian(4.0), mechanism="a", label="adult")
    log.charge(PureDP(0.3, Relation.REPLACE_ONE), mechanism="b", label="bank")
    totals = log.total(1e-5)
    assert totals[Relation.ADD_OR_REMOVE_ONE] == pytest.approx(epsilon(SelfComposed(Gaussian(4.0), 4), 1e-5))
    assert totals[Relation.REPLACE_ONE] <= 0.3
    assert set(log.total(1e-5, label="adult")) == {Relation.ADD_OR_REMOVE_ONE}


def test_processes_share_one_log(tmp_path: Path) -> None:
    with spend_log(tmp_path / "shared.db") as log:
        workers = [multiprocessing.get_context("spawn").Process(target=write_some, args=(25,)) for _ in range(3)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
            assert worker.exitcode == 0
        assert len(log.charges("worker")) == 75
        assert len({charge.id for charge in log.charges()}) == 75


def test_many_entries_are_chained_as_one_after_another(tmp_path: Path) -> None:
    """More than one statement takes, of few events and of none, with clocks that were set back."""
    times = ["2026-01-02T00:00:00Z", "2026-01-01T00:00:00Z", "2026-01-03T00:00:00Z"]
    entries: list[tuple[str, str, dict[str, object], Event | None]] = [
        (
            "charge",
            f"{number:032x}",
            {"id": f"{number:032x}", "label": "many", "time": times[number % 3]},
            Gaussian(4.0 + number % 2),
        )
        for number in range(1100)
    ]
    entries.insert(700, ("steps", "f" * 32, {"start": 0, "stop": 5, "limit": 9, "time": times[0]}, None))
    together, apart = SpendLog(tmp_path / "together.db"), SpendLog(tmp_path / "apart.db")
    with together.database.writing() as rows:
        append_all(rows, entries)
        append_all(rows, [])
    with apart.database.writing() as rows:
        for kind, charge, body, event in entries:
            append(rows, kind, charge, body, event=event)
    assert together.head() == apart.head()
    assert together.verify() == 1101
    assert together.total(1e-6, "many") == apart.total(1e-6, "many")
    with together.database.writing() as rows:
        rows("UPDATE dperm_head SET count = 0")  # what there is is listed, whatever the head says
    assert len(together.history()) == 1100


def test_a_log_that_cannot_be_written_stops_the_fit(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="nothing was released"):
        SpendLog(tmp_path / "file" / "log.db").charge(Gaussian(1.0), mechanism="x")


def test_the_context_restores_the_environment(tmp_path: Path) -> None:
    before = SpendLog.current().where
    with spend_log(tmp_path / "inner.db") as log:
        assert SpendLog.current().where == log.where
    assert SpendLog.current().where == before


def test_fixed_seeds_are_marked(tmp_path: Path) -> None:
    from dperm.release import Channel

    log = SpendLog(tmp_path / "log.db")
    Channel.open(0, log=log).charge(Gaussian(1.0), "x")
    Channel.open(None, log=log).charge(Gaussian(1.0), "x")
    assert [charge.private for charge in log.charges()] == [False, True]


def test_charges_that_compose_to_no_finite_epsilon_are_added_up(tmp_path: Path) -> None:
    log = SpendLog(tmp_path / "log.db")
    for event in (PureDP(4.0), Gaussian(1e-3)):
        log.charge(event, mechanism="test")
    total = log.total(1e-5)[Relation.ADD_OR_REMOVE_ONE]
    assert math.isfinite(total) and total <= 4.0 + epsilon(Gaussian(1e-3), 5e-6) + 1e-6


@pytest.mark.parametrize("text", ["age,income\n1,2\n", "[1]\n", "\n"])
def test_a_file_that_is_no_log_is_not_written_to(text: str, tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text(text)
    with pytest.raises(OSError, match="nothing was released"):
        SpendLog(path).charge(Gaussian(1.0), mechanism="test")
    assert path.read_text() == text


def charge_on_a_full_disk(path: str) -> None:
    import resource
    import signal

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    size = Path(path).stat().st_size
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
    log = SpendLog(path)
    for _ in range(200):  # what fits into the pages that are there is written
        try:
            log.charge(Gaussian(2.0), mechanism="x")
        except OSError as error:
            print(error, flush=True)
            os._exit(17)
    os._exit(0)


@pytest.mark.skipif(sys.platform == "win32", reason="limits on files are POSIX's")
def test_a_full_disk_stops_the_fit_and_leaves_the_log_as_it_was(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "log.db"
    log = SpendLog(path)
    log.charge(Gaussian(1.0), mechanism="x")
    worker = multiprocessing.get_context("spawn").Process(target=charge_on_a_full_disk, args=(str(path),))
    worker.start()
    worker.join()
    assert worker.exitcode == 17 and "nothing was released" in capfd.readouterr().out
    before = len(log.charges())
    log.charge(Gaussian(3.0), mechanism="x")
    assert len(log.charges()) == before + 1 == log.verify()


def test_a_log_of_lines_is_not_written_to_and_named(tmp_path: Path) -> None:
    path = tmp_path / "spend.jsonl"
    path.write_text('{"id": "a", "event": {}}\n')
    with pytest.raises(OSError, match="dperm budget import"):
        SpendLog(path).charge(Gaussian(1.0), mechanism="x")


def test_a_log_of_a_newer_dperm_is_not_written_to(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    SpendLog(path).charge(Gaussian(1.0), mechanism="x")
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    for use in (lambda log: log.charge(Gaussian(1.0), mechanism="x"), lambda log: log.charges()):
        with pytest.raises(OSError, match="newer dperm"):
            use(SpendLog(path))


def test_another_program_s_database_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE people (name TEXT)")
    connection.commit()
    connection.close()
    with pytest.raises(OSError, match="another program"):
        SpendLog(path).charge(Gaussian(1.0), mechanism="x")
