"""`python -m papers.dpis run [TABLES] [--minutes M]` trains the cells that are not there yet; `report` writes report.md.

DPERM_DATA names the folder with the data. A run that is cut short loses the cell in progress and nothing else.
"""

from __future__ import annotations

import argparse
import time

import torch

from papers.dpis.cells import load, save
from papers.dpis.tables import TABLES


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m papers.dpis", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="train cells")
    run.add_argument("tables", nargs="*", default=list(TABLES), help=f"of {', '.join(TABLES)}; all of them by default")
    run.add_argument("--minutes", type=float, default=float("inf"), help="start no cell after so many minutes")
    run.add_argument("--threads", type=int, default=torch.get_num_threads())
    run.add_argument("--only", default="", help="cells whose name contains this")
    commands.add_parser("report", help="write report.md and its figures")
    options = parser.parse_args()
    if options.command == "report":
        from papers.dpis.report import write

        write()
        return
    torch.set_num_threads(options.threads)
    if unknown := [table for table in options.tables if table not in TABLES]:
        parser.error(f"no table {', '.join(unknown)}: there are {', '.join(TABLES)}")
    train(options.tables, options.minutes, options.only)


def train(tables: list[str], minutes: float, only: str) -> None:
    from papers.dpis.train import run_cell

    cells = list(dict.fromkeys(cell for table in tables for cell in TABLES[table]() if only in cell.name))
    waiting = [cell for cell in cells if load(cell) is None]
    print(f"{len(cells)} cells, {len(waiting)} to train", flush=True)
    started = time.monotonic()
    for number, cell in enumerate(waiting, start=1):
        if time.monotonic() - started > 60 * minutes:
            print(f"time is up: {len(waiting) - number + 1} cells are left", flush=True)
            return
        if load(cell) is not None:  # another process trained it meanwhile
            continue
        result = run_cell(cell)
        save(cell, result)
        print(f"{number}/{len(waiting)}  {cell.name}: {result['accuracy']:.2f} %, {result['seconds']:.0f} s", flush=True)


if __name__ == "__main__":
    main()
