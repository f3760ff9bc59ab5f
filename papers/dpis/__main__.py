"""`python -m papers.dpis run [TABLES] [--minutes M]` trains the cells that are not there yet; `report` writes report.md.

DPERM_DATA names the folder with the data. A run that is cut short loses the cell in progress and nothing else.
"""

from __future__ import annotations

import argparse
import time

import torch

from dperm.data import DataError
from papers.dpis.cells import Cell, load, save
from papers.dpis.tables import TABLES


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m papers.dpis", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="train cells")
    run.add_argument("tables", nargs="*", default=list(TABLES), help=f"of {', '.join(TABLES)}; all of them by default")
    run.add_argument("--minutes", type=float, default=float("inf"), help="start no cell after so many minutes")
    run.add_argument("--threads", type=int, default=torch.get_num_threads())
    run.add_argument("--only", default="", help="cells whose name contains this")
    run.add_argument("--list", action="store_true", help="name the cells that are missing, and train none")
    commands.add_parser("report", help="write report.md and its figures")
    options = parser.parse_args()
    if options.command == "report":
        from papers.dpis.report import write

        write()
        return
    if options.threads < 1 or not options.minutes > 0:
        parser.error("expected --threads and --minutes above 0")
    torch.set_num_threads(options.threads)
    if unknown := [table for table in options.tables if table not in TABLES]:
        parser.error(f"no table {', '.join(unknown)}: there are {', '.join(TABLES)}")
    if options.list:
        for cell in missing(options.tables, options.only):
            print(cell.name)
        return
    train(options.tables, options.minutes, options.only)


def missing(tables: list[str], only: str) -> list[Cell]:
    """Cells of these tables that were not trained yet. SystemExit where no cell has such a name."""
    cells = list(dict.fromkeys(cell for table in tables for cell in TABLES[table]() if only in cell.name))
    if not cells:
        raise SystemExit(f"No cell of {', '.join(tables)} has {only!r} in its name.")
    return [cell for cell in cells if load(cell) is None]


def train(tables: list[str], minutes: float, only: str) -> None:
    """SystemExit at the end where the data of some cells is not to be had: the others are trained."""
    from papers.dpis.train import run_cell

    waiting = missing(tables, only)
    print(f"{len(waiting)} cells to train", flush=True)
    started = time.monotonic()
    absent: dict[str, DataError] = {}
    for number, cell in enumerate(waiting, start=1):
        if time.monotonic() - started > 60 * minutes:
            print(f"time is up: {len(waiting) - number + 1} cells are left", flush=True)
            return
        if cell.dataset in absent or load(cell) is not None:  # another process trained it meanwhile
            continue
        print(f"{number}/{len(waiting)}  {cell.name}", end=": ", flush=True)
        try:
            result = run_cell(cell)
        except DataError as error:
            absent[cell.dataset] = error
            print("no data", flush=True)
            continue
        save(cell, result)
        print(f"{result['accuracy']:.2f} %, {result['seconds']:.0f} s", flush=True)
    if absent:
        raise SystemExit("\n".join(str(error) for error in absent.values()))


if __name__ == "__main__":
    main()
