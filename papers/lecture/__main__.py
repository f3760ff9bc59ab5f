"""`python -m papers.lecture run` measures excess risk along n, ε and p; `report` writes report.md and its figure."""

from __future__ import annotations

import argparse

from papers.lecture.ladder import run
from papers.lecture.report import write

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m papers.lecture", description=__doc__)
    parser.add_argument("command", choices=["run", "report"])
    {"run": run, "report": write}[parser.parse_args().command]()
