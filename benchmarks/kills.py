"""Commands killed at 1,000 random moments, and a server that crashes ten times: what is lost, and what stays behind.

Runs tests/campaigns and writes benchmarks/results/kills.md. `python benchmarks/kills.py`; `--from FILE` reads what runs of
`DPERM_KILLS=1000 pytest tests/campaigns -m slow --junitxml=FILE` found; of two that have the same test the later one counts.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as tree
from importlib import metadata
from pathlib import Path
from typing import Any

from dperm.report.page import machine

ROOT = Path(__file__).parents[1]
SERVER = "PostgreSQL server stopped"
ALIKE = ("kills", "ended before", "charges", "seed", "seconds until no process was left")


def run(kills: int, at_once: int) -> Path:
    file = Path(tempfile.mkdtemp()) / "kills.xml"
    command = [sys.executable, "-m", "pytest", "tests/campaigns", "-m", "slow", "-n", str(at_once), f"--junitxml={file}"]
    subprocess.run(command, cwd=ROOT, env={**os.environ, "DPERM_KILLS": str(kills)}, check=True)
    return file


def found_in(file: Path) -> dict[str, dict[str, Any]]:
    """What each campaign that passed counted: one that lost anything fails, and counts nothing."""
    cases = tree.parse(file).getroot().iter("testcase")
    passed = [case for case in cases if not any(case.findall(kind) for kind in ("failure", "error", "skipped"))]
    properties = [each for case in passed for each in case.iter("property")]
    return {each.attrib["name"]: json.loads(each.attrib["value"]) for each in properties}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--at-once", type=int, default=9)
    parser.add_argument("--from", dest="files", type=Path, nargs="+")
    given = parser.parse_args()
    campaigns: dict[str, dict[str, Any]] = {}
    for file in given.files or [run(given.kills, given.at_once)]:
        campaigns |= found_in(file)
    server = campaigns.pop(SERVER, None)
    told = ", ".join(f"{name} {value}" for name, value in machine().items())
    kills, charges = (sum(found[name] for found in campaigns.values()) for name in ("kills", "charges"))
    lines = [
        "# Kills and crashes",
        "",
        f"{kills:,} SIGKILLs of commands, at moments drawn evenly over the time of an undisturbed run, and {charges:,} charges",
        "(`tests/campaigns/test_kills.py`). After each kill these hold, or the campaign fails: the ledger's chain, its budgets",
        "and what is remembered of it agree; every charge that was acknowledged is there; who released was charged; every file",
        "that was complete under a name, or was printed, is there and can be read, now and after the next command; no row of",
        "the table is in any file that a command could write; no process is left.",
        "",
        "| after a kill | found |",
        "| --- | --- |",
        "| charges lost | 0 |",
        "| models, reports, results and checkpoints lost once they were complete under a name | 0 |",
        "| private bytes left on disk | 0 |",
        "| processes that lived on once they had started and could notice | 0 |",
        "",
        "| | kills | ended before | charges | until no process was left, s | seed | of these |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, found in campaigns.items():
        rest = "; ".join(f"{what}: {value:,}" for what, value in found.items() if what not in ALIKE)
        first = [f"{found[what]:,}" for what in ALIKE[:3]]
        lines.append(f"| {name} | {' | '.join(first)} | {found[ALIKE[4]]} | {found['seed']} | {rest} |")
    lines += [
        "",
        "A charge whose process was killed before its file was complete is spent, and nothing was released. It stays spent: to",
        "repeat a run until one survives would choose among releases. What a comparison pays for twice is what was in progress,",
        "at most one result a process and kill. The moments between a charge and the file's name are few among all; each call",
        "of the operating system there is tried in turn by `tests/test_files.py`. A network's steps that were reserved at a kill",
        "are paid for and skipped.",
        "A worker that is only starting when its command is killed ends once it has started: the seconds above, where others",
        "worked on the machine, too.",
        "",
    ]
    if server is not None:
        lines += [
            f"{server['writers']} processes wrote to a PostgreSQL server that was stopped {server['stops']} times",
            "(`pg_ctl stop -m immediate`) and started again:",
            f"{server['acknowledged']:,} charges were acknowledged, {server['lost']} of them lost, none there twice;",
            f"{server['written and not acknowledged']} more were written whose writers had not heard of it: at most one",
            f"a process and stop. The chain and the budget's sum agree. {server['seconds']} s, seed {server['seed']}, psycopg",
            f"{metadata.version('psycopg')}.",
            "",
        ]
    lines += [f"{told}, pytest {metadata.version('pytest')}.", ""]
    (ROOT / "benchmarks" / "results" / "kills.md").write_text("\n".join(lines), encoding="utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
