"""What a charge costs, and what a million of them: SQLite, and PostgreSQL where `--postgres URL` names an empty database.

Writes benchmarks/results/ledger.md. `python benchmarks/ledger.py`
"""

from __future__ import annotations

import argparse
import resource
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dperm.privacy import Event, Gaussian, PoissonSampled, SelfComposed
from dperm.release import SpendLog
from dperm.release.ledger import Budget
from dperm.release.ledger.entries import append_all
from dperm.report.page import machine

RESULTS = Path(__file__).parent / "results"
CHARGES = 300
AT_ONCE = 2000
EVENTS = [SelfComposed(PoissonSampled(0.001, Gaussian(4.0 + number / 5)), 100) for number in range(20)]


def seconds(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def charges(log: SpendLog, label: str) -> float:
    """Median milliseconds of a charge."""
    return 1e3 * statistics.median(
        seconds(lambda number=number: log.charge(EVENTS[number % len(EVENTS)], mechanism="x", label=label))
        for number in range(CHARGES)
    )


def entry(number: int) -> tuple[str, str, dict[str, Any], Event]:
    body = {"id": f"{number:032x}", "label": "many", "mechanism": "x", "private": True, "pid": 1}
    return "charge", body["id"], body, EVENTS[number % len(EVENTS)]


def measured(name: str, where: str, many: int) -> list[str]:
    log = SpendLog(where)
    plain = charges(log, "stays")
    log.create_budget(Budget.of("held", 1e5, 1e-6))
    log.create_budget(Budget.of("stays", 1e5, 1e-6))
    held = charges(log, "held")
    for start in range(0, many, AT_ONCE):  # of a long transaction PostgreSQL keeps every head that there was
        with log.database.writing() as rows:
            append_all(rows, (entry(number) for number in range(start, min(start + AT_ONCE, many))))
    full = charges(log, "held")
    whole, listed = seconds(lambda: log.total(1e-6, "many")), seconds(lambda: log.charges("many"))
    checked = seconds(log.verify)
    return [f"| {name} | {plain:.1f} | {held:.1f} | {full:.1f} | {whole:.1f} | {listed:.1f} | {checked:.1f} |"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--postgres", help="URL of an empty database")
    parser.add_argument("--many", type=int, default=1_000_000)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory(dir=RESULTS) as folder:  # on this disk, not in memory
        lines = measured("SQLite", str(Path(folder) / "spend.db"), given.many)
    if given.postgres:
        lines += measured("PostgreSQL", given.postgres, given.many)
    told = ", ".join(f"{name} {value}" for name, value in machine().items())
    text = [
        "# The spend log",
        "",
        f"A charge: median of {CHARGES}, in milliseconds, without a budget, with one, and beside {given.many:,} charges.",
        f"Of {given.many:,} charges of {len(EVENTS)} different events, in seconds: ε of all, the list, the check.",
        "",
        "| | a charge, ms | under a budget, ms | beside a full log, ms | ε of all, s | all listed, s | verified, s |",
        "| --- | --- | --- | --- | --- | --- | --- |",
        *lines,
        "",
        f"Largest memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6:.1f} GB. {told}.",
        "",
    ]
    (RESULTS / "ledger.md").write_text("\n".join(text), encoding="utf-8")
    print("\n".join(text))


if __name__ == "__main__":
    main()
