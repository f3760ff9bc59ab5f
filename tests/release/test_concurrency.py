"""Continued runs, worker processes and threads share no reservation, log, record or noise that is another's."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dperm._random import Randomness
from dperm.audit.recording import Recorder
from dperm.gradient import SGD, Clip, Constant, FullBatch, Plan, Poisson, descend
from dperm.mechanisms import Budget, GradientPerturbation, ObjectivePerturbation
from dperm.objectives import LinearObjective, Logistic
from dperm.privacy import FilteredRdp, Gaussian
from dperm.privacy.accountants.rdp import rdp_curve
from dperm.release import Channel, GaussianNoise, SpendLog, SystemSource, UnpaidReleaseError
from dperm.release.ledger import log as log_module


def gradient(objective: LinearObjective, **changes: Any) -> GradientPerturbation:
    parts: dict[str, Any] = {
        "sampler": FullBatch(), "bounding": Clip(0.5), "noise": Constant(2.0), "update": SGD(0.1), "steps": 6,
        "public_size": objective.public_size or 40,
    }  # fmt: skip
    return GradientPerturbation(budget=Budget(1e-5), plan=Plan(**(parts | changes)))


def test_a_run_that_reserved_nothing_is_not_continued(tmp_path: Path) -> None:
    """A finished one was released again and again, without a charge."""
    log = SpendLog(tmp_path / "log.db")
    objective = LinearObjective(Logistic(), 2, public_size=40)
    records = objective.records(np.ones((40, 2)), np.ones(40))
    for mechanism in (
        gradient(objective),
        ObjectivePerturbation(budget=Budget(1e-5), noise_std=5.0, strong_convexity=1.0),
    ):
        channel = Channel.open(log=log)
        mechanism.release(objective, records, channel)
        with pytest.raises(UnpaidReleaseError, match="reserved no steps"):
            Channel.open(log=log).resume(channel.charge_id, channel.event)


def test_no_more_is_reserved_than_was_charged(tmp_path: Path) -> None:
    log = SpendLog(tmp_path / "log.db")
    event = gradient(LinearObjective(Logistic(), 2)).plan.event(LinearObjective(Logistic(), 2).relation)
    channel = Channel.open(log=log)
    channel.charge(event, "test", continuable=True)
    for limit in (7, 60):
        with pytest.raises(UnpaidReleaseError, match="6 releases"):
            channel.reserve(1, limit)
    assert channel.reserve(6, 6) == (0, 6)
    again = Channel.open(log=log)
    again.resume(channel.charge_id, event)
    with pytest.raises(UnpaidReleaseError, match="6 releases"):
        again.reserve(1, 12)
    assert again.reserve(1, 6) == (6, 6)


def test_a_worker_that_is_used_again_charges_the_log_of_now(tmp_path: Path) -> None:
    """Workers kept the log of the block in which they were started."""
    code = f"""
import os
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from dperm.privacy import Gaussian
from dperm.release import SpendLog, spend_log
def fit(_):
    SpendLog.current().charge(Gaussian(1.0), mechanism="fit")
    return os.getpid()
if __name__ == "__main__":
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        with spend_log({str(tmp_path / "block.db")!r}) as log:
            inside = list(pool.map(fit, range(3)))
        outside = list(pool.map(fit, range(4)))
    assert set(inside) == set(outside)
    print(len(log.charges()), len(SpendLog.current().charges()))
"""
    script = tmp_path / "script.py"
    script.write_text(code)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["3", "4"], done.stderr


def test_threads_share_no_memory_of_records() -> None:
    """Queries were up to 47 sensitivities from the true ones."""
    objective = LinearObjective(Logistic(), 20, public_size=400)
    rng = np.random.default_rng(0)
    records = objective.records(rng.normal(size=(400, 20)), np.where(rng.random(400) < 0.5, 1.0, -1.0))
    plan = Plan(Poisson(0.3), Clip(0.5), Constant(1.0), SGD(0.1), 300, 400)
    recorders = [Recorder(SystemSource(Randomness.fixed(seed))) for seed in range(2)]

    def run(recorder: Recorder) -> None:
        channel = Channel.open(recorder)
        channel.charge(plan.event(objective.relation), "test")
        descend(plan, objective, records, channel, np.zeros(20))

    together = [Recorder(SystemSource(Randomness.fixed(seed))) for seed in range(2)]
    threads = [threading.Thread(target=run, args=(recorder,)) for recorder in together]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for alone, other in zip(recorders, together, strict=True):
        run(alone)
        for a, b in zip(alone.recording.releases, other.recording.releases, strict=True):
            assert np.array_equal(a.query, b.query) and np.array_equal(a.released, b.released)


def test_threads_share_no_budget() -> None:
    """Two asked what was left of a filter before either had taken it, and both had it."""
    part = Gaussian(3.0)
    channel = Channel.open(0)
    channel.charge(FilteredRdp(2.0, 1.5 * float(rdp_curve(part, np.array([2.0]))[0])), "test")
    assert channel.filter is not None
    both = threading.Barrier(2)

    class Slow(dict[str, float]):
        def get(self, *asked: Any) -> Any:
            found = super().get(*asked)
            with contextlib.suppress(threading.BrokenBarrierError):
                both.wait(timeout=1.0)
            return found

    channel.filter.accounts = Slow(channel.filter.accounts)
    with ThreadPoolExecutor(2) as threads:
        asked = [threads.submit(channel.allow, part) for _ in range(2)]
    assert sorted(type(each.exception()).__name__ for each in asked) == ["BudgetExceeded", "NoneType"]
    channel.release(np.zeros(1), GaussianNoise(1.0, 3.0))
    with pytest.raises(UnpaidReleaseError):
        channel.release(np.zeros(1), GaussianNoise(1.0, 3.0))


def test_threads_share_no_noise() -> None:
    """Of 111,000 numbers up to 3,734 were handed out twice."""
    source = SystemSource(Randomness.from_system())
    parts: list[np.ndarray] = []

    def draw() -> None:
        for _ in range(400):
            parts.append(source.randomness.noise.standard_normal(117))

    threads = [threading.Thread(target=draw) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    drawn = np.concatenate(parts)
    assert len(drawn) == 4 * 400 * 117 and len(np.unique(drawn)) == len(drawn)


def test_a_log_that_another_thread_has_just_begun_is_no_unknown_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two that began a new log, the second found entries before the first had written down that it knows them."""
    path = tmp_path / "begun.db"
    held = threading.Event()
    remember = log_module.remember

    def late(address: str, known: Any) -> None:
        held.set()
        time.sleep(0.2)
        remember(address, known)

    monkeypatch.setattr(log_module, "remember", late)
    first = threading.Thread(target=lambda: SpendLog(path).charge(Gaussian(50.0), mechanism="test", label="first"))
    first.start()
    held.wait(10)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        SpendLog(path).charge(Gaussian(50.0), mechanism="test", label="second")
    first.join()
    assert [charge.label for charge in SpendLog(path).charges()] == ["first", "second"]
