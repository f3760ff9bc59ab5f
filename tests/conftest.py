"""Every test writes its charges to a log of its own; tests on real data find them beside the checkout or by DPERM_DATA."""

from __future__ import annotations

import gc
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dperm._remind import given

# A session in the background ignores these, and so would the commands that tests start, and end by a signal.
if threading.current_thread() is threading.main_thread():
    for number, handler in ((signal.SIGINT, signal.default_int_handler), (getattr(signal, "SIGHUP", None), signal.SIG_DFL)):
        if number is not None and signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)

# The tests run one process per core: threads on top of that would wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# The commands that tests start are dozens: each would compile dperm anew. Tests, too, are then compiled once, not at each run.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

_MEMORY = Path("/dev/shm")
_BESIDE = Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of a test under `fast_cases` mark all cases but the named ones as slow; a name of no case is an error."""
    found: dict[str, set[str]] = {}
    named: dict[str, set[str]] = {}
    for item in items:
        for mark in item.iter_markers("fast_cases"):
            test, _, case = item.nodeid.partition("[")
            case = case.removesuffix("]")
            found.setdefault(test, set()).add(case)
            named[test] = set(mark.args)
            if case not in mark.args:
                item.add_marker(pytest.mark.slow)
    if any("[" in argument for argument in config.args):
        return  # single cases are asked for: the others are not collected
    for test, cases in found.items():
        if unknown := named[test] - cases:
            raise pytest.UsageError(f"fast_cases of {test} names {sorted(unknown)}, which are none of its cases.")


def pytest_collection_finish() -> None:
    """Let collections of garbage pass by tests and libraries, which stay: looking through them takes half a second each time."""
    gc.collect()
    gc.freeze()


@contextmanager
def _spend_log() -> Iterator[None]:
    """A log, and a folder for what is remembered of it. In memory where there is a folder in memory: a disk waits at each charge,
    of which there are thousands."""
    where = _MEMORY if os.access(_MEMORY, os.W_OK) else None
    folders = tempfile.TemporaryDirectory(prefix="dperm-test-", dir=where, ignore_cleanup_errors=True)
    with folders as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("DPERM_SPEND_LOG", f"{folder}/spend.db")
        patch.setenv("XDG_STATE_HOME", folder)
        yield


@pytest.fixture(autouse=True, scope="session")
def _own_spend_log_of_modules() -> Iterator[None]:
    """For what several tests share, which is made before the first of them has its own."""
    with _spend_log():
        yield


@pytest.fixture(autouse=True)
def _own_spend_log() -> Iterator[None]:
    with _spend_log():
        yield


@pytest.fixture(autouse=True)
def _reminders_of_its_own() -> None:
    """Reminders are given once in a process: a test sees its own, whatever ran before."""
    given.clear()


@pytest.fixture
def data_folder(monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of real data sets; skips where there is none."""
    folder = Path(os.environ.get("DPERM_DATA", _BESIDE))
    if not folder.is_dir():
        pytest.skip("real data sets are not here; set DPERM_DATA to their folder")
    monkeypatch.setenv("DPERM_DATA", str(folder))
    return folder
