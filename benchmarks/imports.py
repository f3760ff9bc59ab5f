"""How long dperm takes to start: importing its estimators, beside scikit-learn, and an accounting command.

Writes benchmarks/results/imports.md. `python benchmarks/imports.py`
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from dperm.report.page import machine

RESULTS = Path(__file__).parent / "results"
RUNS = 11
NOTHING = "pass"
BASE, LINEAR, OURS = "import sklearn.base, sklearn.utils.validation", "import sklearn.linear_model", "import dperm.estimators"
ACCOUNTS = ("--noise 4", "--noise 1.1 --rate 0.01 --steps 5000")


def command(arguments: str) -> list[str]:
    return [sys.executable, "-m", "dperm", "account", *arguments.split()]


def measured(cases: dict[str, list[str]]) -> dict[str, tuple[float, float]]:
    """Median seconds by the clock and of processor time of each case, in turn, each in a process of its own. Bytecode is there,
    as after an installation; a first run of each is not counted."""
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in cases}
    with tempfile.TemporaryDirectory() as folder:
        env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        env |= {"PYTHONPYCACHEPREFIX": folder, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        for _ in range(RUNS + 1):
            for name, arguments in cases.items():
                before, start = os.times(), time.perf_counter()
                subprocess.run(arguments, check=True, env=env, stdout=subprocess.DEVNULL)
                clock, after = time.perf_counter() - start, os.times()
                used = after.children_user + after.children_system - before.children_user - before.children_system
                seconds[name].append((clock, used))
    return {
        name: (statistics.median(clock for clock, _ in all_of[1:]), statistics.median(used for _, used in all_of[1:]))
        for name, all_of in seconds.items()
    }


def main() -> None:
    cases = {f"`{code}`": [sys.executable, "-c", code] for code in (NOTHING, BASE, LINEAR, OURS)}
    cases |= {f"`dperm account {arguments}`": command(arguments) for arguments in ACCOUNTS}
    found = measured(cases)
    linear, base = found[f"`{LINEAR}`"], found[f"`{BASE}`"]
    ours = found[f"`{OURS}`"]
    told = ", ".join(f"{name} {value}" for name, value in machine().items())
    text = [
        "# How long dperm takes to start",
        "",
        f"Medians of {RUNS} processes each, in turn, with bytecode and one thread; seconds by the clock, and of processor time,",
        "which other work on the machine moves less.",
        "",
        "| | by the clock, s | processor, s |",
        "| --- | --- | --- |",
        *(f"| {name} | {clock:.3f} | {used:.3f} |" for name, (clock, used) in found.items()),
        "",
        f"dperm's estimators take {ours[1] / linear[1]:.2f} times what scikit-learn's own linear models take (processor time; by",
        f"the clock {ours[0] / linear[0]:.2f}), and {ours[1] / base[1]:.2f} times what they must load of scikit-learn, its base",
        "class and checks.",
        "",
        f"{told}.",
        "",
    ]
    (RESULTS / "imports.md").write_text("\n".join(text), encoding="utf-8")
    print("\n".join(text))


if __name__ == "__main__":
    main()
