from __future__ import annotations

import math
import multiprocessing
import os
import sys
from pathlib import Path

import pytest

from dperm.privacy import Gaussian, PureDP, Relation, SelfComposed, epsilon
from dperm.release import SpendLog, spend_log


def write_some(count: int) -> None:
    for _ in range(count):
        SpendLog.current().charge(Gaussian(10.0), mechanism="test", label="worker")


def test_total_composes_everything_per_relation(tmp_path: Path) -> None:
    log = SpendLog(tmp_path / "deep" / "log.jsonl")
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
    with spend_log(tmp_path / "shared.jsonl") as log:
        workers = [multiprocessing.get_context("spawn").Process(target=write_some, args=(25,)) for _ in range(3)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
            assert worker.exitcode == 0
        assert len(log.charges("worker")) == 75
        assert len({charge.id for charge in log.charges()}) == 75


def test_a_log_that_cannot_be_written_stops_the_fit(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="nothing was released"):
        SpendLog(tmp_path / "file" / "log.jsonl").charge(Gaussian(1.0), mechanism="x")


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    SpendLog(path).charge(Gaussian(1.0), mechanism="x")
    path.write_text(path.read_text() + "{half a line\n")
    with pytest.raises(ValueError, match="Line 2"):
        SpendLog(path).charges()


def test_the_context_restores_the_environment(tmp_path: Path) -> None:
    before = SpendLog.current().path
    with spend_log(tmp_path / "inner.jsonl") as log:
        assert SpendLog.current().path == log.path
    assert SpendLog.current().path == before


def test_a_write_cut_short_leaves_the_log_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    log = SpendLog(tmp_path / "log.jsonl")
    log.charge(Gaussian(1.0), mechanism="x")
    whole = os.write
    monkeypatch.setattr("os.write", lambda descriptor, data: whole(descriptor, data[:42]))
    with pytest.raises(OSError, match=r"42 of .* is the disk full"):
        log.charge(Gaussian(2.0), mechanism="x")
    monkeypatch.undo()
    log.charge(Gaussian(3.0), mechanism="x")
    assert [charge.event for charge in log.charges()] == [Gaussian(1.0), Gaussian(3.0)]


def test_a_line_cut_by_a_crash_does_not_swallow_the_next(tmp_path: Path) -> None:
    log = SpendLog(tmp_path / "log.jsonl")
    log.path.write_text('{"half a line')
    log.charge(Gaussian(1.0), mechanism="x")
    log.path.write_text(log.path.read_text().splitlines()[1] + "\n")  # the half line removed by hand, as the message says
    assert len(log.charges()) == 1


def test_fixed_seeds_are_marked(tmp_path: Path) -> None:
    from dperm.release import Channel

    log = SpendLog(tmp_path / "log.jsonl")
    Channel.open(0, log=log).charge(Gaussian(1.0), "x")
    Channel.open(None, log=log).charge(Gaussian(1.0), "x")
    assert [charge.private for charge in log.charges()] == [False, True]


def test_charges_that_compose_to_no_finite_epsilon_are_added_up(tmp_path: Path) -> None:
    log = SpendLog(tmp_path / "log.jsonl")
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


def test_a_platform_without_locks_and_positioned_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on Windows: no `fcntl`, no `os.pread`; and a read may give less than was asked for."""
    monkeypatch.setitem(sys.modules, "fcntl", None)
    monkeypatch.delattr(os, "pread")
    whole = os.read
    monkeypatch.setattr(os, "read", lambda descriptor, size: whole(descriptor, min(size, 7)))
    log = SpendLog(tmp_path / "log.jsonl")
    for _ in range(3):
        log.charge(Gaussian(4.0), mechanism="a", label="adult")
    with log.path.open("a") as file:
        file.write('{"cut')  # by a crash
    log.charge(Gaussian(4.0), mechanism="a", label="bank")
    assert [line for line in log.path.read_text().splitlines() if line == '{"cut'] == ['{"cut']
    assert len(log.path.read_text().splitlines()) == 5
    (tmp_path / "other.txt").write_text("not a log")
    with pytest.raises(OSError, match="its first line is no charge"):
        SpendLog(tmp_path / "other.txt").charge(Gaussian(4.0), mechanism="a")
