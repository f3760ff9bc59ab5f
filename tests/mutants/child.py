"""One process that runs chosen tests: forked from one that has the libraries loaded, but nothing of dperm."""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from mutants.planted import Reached

__all__ = ["Child", "Report", "start"]

#: A test has this many seconds of processor time, and so many times what it takes without a mutant; of the clock, ten times that.
_LEAST_SECONDS, _TIMES_LONGER = 10.0, 10.0
_MEMORY = 8 << 30  # bytes of addresses beyond those that libraries have: a mutant that asks for more fails


@dataclass(frozen=True)
class Report:
    """How the tests of a child went. `failed` is the test that failed, or the file that could not be collected."""

    failed: str | None
    timed_out: bool
    error: str | None  # of the tool
    seconds: float  # of processor time
    tests: Mapping[str, dict[str, Any]]  # of each test: passed, seconds, and what it reached


@dataclass(eq=False)
class _Watch:
    """The pytest plugin: keeps the chosen tests in their order, limits their time and writes down how each went."""

    chosen: Mapping[str, float] | None  # seconds of each; None: all
    log: int
    reached: Reached | None
    began: float = 0.0
    state: dict[str, Any] = field(default_factory=dict)

    def write(self, **what: Any) -> None:
        os.write(self.log, (json.dumps(what) + "\n").encode())

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        if self.chosen is None:
            items[:] = [item for item in items if item.get_closest_marker("slow") is None]
            return
        order = {name: place for place, name in enumerate(self.chosen)}
        items[:] = sorted((item for item in items if item.nodeid in order), key=lambda item: order[item.nodeid])
        if not items:
            self.write(kind="nothing")

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.write(kind="failed", test=report.nodeid)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Any:
        if self.chosen is not None:
            limit = _LEAST_SECONDS + _TIMES_LONGER * self.chosen[item.nodeid]
            signal.setitimer(signal.ITIMER_PROF, limit)
            signal.setitimer(signal.ITIMER_REAL, 10 * limit)
        self.state = {"passed": True, "collection": self.reached.taken() if self.reached else {}}
        self.write(kind="start", test=item.nodeid)
        began = time.process_time()
        try:
            return (yield)
        finally:
            seconds = time.process_time() - began
            lines = self.reached.taken() if self.reached else {}
            self.write(kind="end", test=item.nodeid, seconds=seconds, lines=lines, **self.state)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.state["passed"] = False
            self.write(kind="failed", test=report.nodeid)
        elif report.skipped and report.when in ("setup", "call"):
            self.state["passed"] = False


class Child:
    """A running child."""

    def __init__(self, pid: int, log: Path) -> None:
        self.pid, self._log = pid, log

    def report(self, status: int, used: resource.struct_rusage) -> Report:
        """What became of it, once it has ended with `status`."""
        lines = [json.loads(line) for line in self._log.read_text(encoding="utf-8").splitlines()]
        self._log.unlink()
        failed = next((line["test"] for line in lines if line["kind"] == "failed"), None)
        open_test = lines[-1]["test"] if lines and lines[-1]["kind"] == "start" else None
        tests = {line["test"]: line for line in lines if line["kind"] == "end"}
        killed_by = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        timed_out = failed is None and killed_by in (signal.SIGPROF, signal.SIGALRM)
        crashed = failed is None and not timed_out and killed_by and open_test is not None
        error = None
        if failed is None and not timed_out and not crashed:
            if any(line["kind"] == "nothing" for line in lines):
                error = "none of the chosen tests was collected"
            elif killed_by or os.WEXITSTATUS(status) not in (0, 5):
                error = f"ended with status {status} outside of a test"
        if timed_out or crashed:
            failed = open_test or "collection"
        return Report(failed, timed_out, error, used.ru_utime + used.ru_stime, tests)


def start(
    root: Path, files: Sequence[str], chosen: Mapping[str, float] | None, prepare: Callable[[], Reached | None], folder: Path
) -> Child:
    """Fork a process that runs the chosen tests of these files, in their order, until one fails; None: all, to their end.

    `prepare` plants a mutant, or watches.
    """
    folder.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return Child(pid, folder / f"{pid}.log")
    status = 70
    try:
        status = _run(root, files, chosen, prepare, folder)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)  # nothing of the parent's is run at exit


def _limit_memory() -> None:
    held = Path("/proc/self/statm")
    if held.exists():
        limit = int(held.read_text(encoding="ascii").split()[0]) * resource.getpagesize() + _MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def _run(
    root: Path, files: Sequence[str], chosen: Mapping[str, float] | None, prepare: Callable[[], Reached | None], folder: Path
) -> int:
    log = os.open(folder / f"{os.getpid()}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.setpgid(0, 0)
    output = os.open(os.environ.get("DPERM_MUTANTS_OUTPUT", os.devnull), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(output, stream)
    _limit_memory()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.chdir(root)
    phases = [hypothesis.Phase.explicit, hypothesis.Phase.generate]  # the same examples every time, and none made smaller
    hypothesis.settings.register_profile("mutants", database=None, derandomize=True, phases=phases, deadline=None)
    hypothesis.settings.load_profile("mutants")
    if chosen is not None:  # importing and collecting have a limit, too
        signal.setitimer(signal.ITIMER_PROF, 60)
    watch = _Watch(chosen, log, prepare())
    stop = ["-x"] if chosen is not None else []
    options = ["-q", "--tb=no", "--assert=plain", "-p", "no:cacheprovider", "-p", "no:faulthandler", *stop]
    return int(pytest.main([*options, *files], plugins=[watch]))
