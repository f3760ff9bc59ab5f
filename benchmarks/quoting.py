"""What it costs `dperm predict` to quote texts that a spreadsheet would run, beside `--raw-cells`.

Writes benchmarks/results/quoting.md. `python benchmarks/quoting.py`
"""

from __future__ import annotations

import contextlib
import io
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd

from dperm.cli import main as dperm
from dperm.report.page import machine

RESULTS = Path(__file__).parent / "results"
ROWS, TRAINED, TIMES = 100_000, 2000, 7


def table() -> pd.DataFrame:
    """Six numbers and a category, three columns of texts, 1 % of one of which are formulas."""
    rng = np.random.default_rng(1)
    made = pd.DataFrame({f"x{number}": rng.uniform(0, 100, ROWS) for number in range(6)})
    made["ward"] = rng.choice(["north", "south"], ROWS)
    made["case"] = [f"C-{number:07d}" for number in range(ROWS)]
    made["name"] = rng.choice(["=SUM(A1)", "Ann-Lee", "Bo", "-12A", "Mary Smith"], ROWS, p=[0.01, 0.3, 0.3, 0.09, 0.3])
    made["street"] = [f"{number} {rng.choice(['High', 'Mill'])} Street" for number in rng.integers(1, 999, ROWS)]
    made["left"] = np.where(made["x0"] + rng.normal(0, 20, ROWS) > 50, "yes", "no")
    return made


def command(*arguments: object) -> float:
    """Processor seconds of a command. RuntimeError where it fails."""
    sys.argv = ["dperm", *map(str, arguments)]
    start, said = time.process_time(), io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            dperm()
        except SystemExit as stop:
            if stop.code:
                raise RuntimeError(said.getvalue()) from None
    return time.process_time() - start


def main() -> None:
    seconds: dict[str, list[float]] = {"quoted": [], "--raw-cells": []}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ |= {"DPERM_SPEND_LOG": str(folder / "spend.db"), "XDG_STATE_HOME": name}
        made = table()
        made.head(TRAINED).drop(columns=["case", "name", "street"]).to_csv(folder / "train.csv", index=False)
        made.drop(columns="left").to_csv(folder / "new.csv", index=False)
        command("data", "propose", folder / "train.csv", "--target", "left", "-o", folder / "s.json")
        command("train", folder / "train.csv", "--schema", folder / "s.json", "--accept-proposed", "-o", folder / "m.json")
        for _ in range(TIMES + 1):
            for kind, found in seconds.items():
                options = ["--raw-cells"] if kind == "--raw-cells" else []
                given = ("predict", folder / "m.json", folder / "new.csv", "--keep", "case,name,street", *options)
                found.append(command(*given, "--on-error", "skip", "-o", folder / "out.csv"))
    quoted, raw = (statistics.median(found[1:]) for found in seconds.values())
    text = [
        "# Quoting of formulas",
        "",
        f"`dperm predict` on {ROWS:,} rows of 10 columns, of which 3 of texts are kept:",
        f"processor seconds, medians of {TIMES} in turn.",
        "",
        "| quoted | `--raw-cells` | more |",
        "| --- | --- | --- |",
        f"| {quoted:.2f} | {raw:.2f} | {100 * (quoted / raw - 1):.1f} % |",
        "",
        ", ".join(f"{name} {value}" for name, value in machine().items()) + ".",
        "",
    ]
    (RESULTS / "quoting.md").write_text("\n".join(text), encoding="utf-8")
    print("\n".join(text))


if __name__ == "__main__":
    main()
