"""report.md and its figure: measured slopes beside the tables' rates."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from papers.lecture.ladder import CELLS, CENTRES, DELTA, GRIDS, RATES, RUNGS, slope, values

__all__ = ["write"]

HERE = Path(__file__).parent
AXES = {"n": "records n", "epsilon": "ε", "p": "parameters p"}


def write() -> None:
    parts = [HEADER.format(delta=DELTA, **CENTRES["convex"])]
    for kind, rungs in RUNGS.items():
        rates = RATES[kind]
        lines = [
            f"## {kind.capitalize()}\n",
            RATES_SAID.get(kind, "The tables' rates: n^{n:g}, ε^{epsilon:g}, p^{p:g}, but for logarithms.").format(**rates)
            + "\n",
            "| | source | slope in n | in ε | in p | excess at the centre | seconds | gradients a record |",
            "| --- | --- | --- | --- | --- | --- | --- | --- |",
        ]
        for rung in rungs:
            cell = centre(kind, rung.name)
            slopes = " | ".join(f"{slope(kind, rung.name, along):.2f}" for along in GRIDS[kind])
            passes = "–" if math.isnan(cell["passes"]) else f"{cell['passes']:g}"
            lines.append(f"| {rung.name} | {rung.source} | {slopes} | {cell['excess']:.2e} | {cell['seconds']:.3f} | {passes} |")
        parts.append("\n".join(lines) + "\n")
    parts.append(DISCUSSION)
    (HERE / "report.md").write_text("\n".join(parts))
    figure()


def centre(kind: str, rung: str) -> dict[str, Any]:
    at = CENTRES[kind]
    cells = json.loads(CELLS.read_text())
    cell: dict[str, Any] = cells[f"{kind}|{rung}|{at['n']:g}|{at['epsilon']:g}|{at['p']:g}"]
    return cell


def figure() -> None:
    import matplotlib.pyplot as plt

    names = list(dict.fromkeys(rung.name for rungs in RUNGS.values() for rung in rungs))
    shape, axes = plt.subplots(3, 3, figsize=(11, 9.2), sharey="row", layout="constrained")
    for row, (kind, rungs) in zip(axes, RUNGS.items(), strict=True):
        for axis, along in zip(row, GRIDS[kind], strict=True):
            highest = 0.0
            for rung in rungs:
                x, y = values(kind, rung.name, along)
                colour = f"C{names.index(rung.name)}"
                axis.loglog(x, y, marker="o", markersize=3.5, linewidth=1.3, color=colour, label=rung.name)
                highest = max(highest, y[0])
            x, _ = values(kind, rungs[0].name, along)
            rate = RATES[kind][along]
            axis.loglog(x, [1.6 * highest * (each / x[0]) ** rate for each in x], "--", color="0.5", label="rate of the table")
            axis.set_xlabel(AXES[along])
            axis.set_xticks(x, [f"{each / 1000:g}k" if each % 1000 == 0 else f"{each:g}" for each in x])
            axis.xaxis.minorticks_off()
            axis.grid(True, which="major", color="0.92")
        row[0].set_ylabel(f"excess risk, {kind}")
    shown = {label: handle for axis in axes[:, 0] for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    shape.legend(shown.values(), shown.keys(), loc="outside upper center", ncols=4, frameon=False)
    shape.savefig(HERE / "slopes.png", dpi=130)
    plt.close(shape)


HEADER = """# The lecture's ladder, run

"Private ERM: DP-SGD" (lecture slides) ends with two tables of rates. Here their rows are measured on made problems whose optimum
is known: mean excess risk against n, ε and p, of 30 and 12 seeds. The centre of the first two is n = {n:,}, ε = {epsilon},
p = {p}; δ = {delta:g}, a record is replaced, all models are certified. `python -m papers.lecture run` and `report`; problems are
in `problems.py`, settings in `ladder.py`: none of them looks at a problem's records.

- *Strongly convex*: logistic loss on rows of length 1, 0.2·‖θ‖²/2 beside the mean.
- *Sparse*, n = 2,000, p = 256: the same, but what agrees is one feature of p, and the ball is the L1 ball; 12 seeds, around
  4 ln(2p)/μ agreeing records. Rows are √p long, and no entry is above 1.
- *Convex*: a linear loss on a ball, with records that cancel but for a few that agree, as in the lower bound of Bassily, Smith,
  Thakurta (2014). What counts is the worst of five numbers of agreeing records, around √p/μ.

![excess risk](slopes.png)
"""

DISCUSSION = """## What this shows

- Slopes in n are within 0.1 of the tables' but for DP-SVRG's (−2.12, strongly convex): at n = 2,000 its noise is too much for its
  step size. In p they are within 0.13, at 30 and 12 seeds.
- Slopes in ε are flatter than −2 and −1, since the tables' noise, ∝ 1/ε, is not what (ε, δ) needs: μ of the exact Gaussian
  mechanism grows as ε^0.93 from 0.125 to 2 at this δ, which makes them −1.86 and −0.93. That is what is measured.
- The tables' logarithms, which part DP-SGD from the rest, are those of its proof: under exact accounting it has the noise of the
  others. It needs O(n²) gradients for it where curvature is to be used, as its theorem says: n/200 passes here. Full batches, and
  the last iterate of few passes, need no more than 60.
- Amplification by iteration is behind the others in the table (1/ε² in place of 1/ε), by its first analysis; with the Gaussian
  bound of many passes it is level with them.
- DP-SVRG is level where the problem is strongly convex and half as good where it is not: its noise follows β‖θ − θ̃‖, and β of
  this loss is five times what its gradients ever show.

- With more parameters than records (sparse, p up to 4,096 at n = 2,000) full batches with noise on all parameters learn nothing:
  rows are √p long, and the excess is all that there is, 0.4. Choices of one coordinate find it: Frank–Wolfe at its authors' rate
  (−0.65 and −0.61 for −⅔), greedy coordinates a little better at small n·ε, since they take 10 steps and no more here. Both grow
  as p^0.16 between 64 and 4,096, where ln(2p)^⅔ grows as p^0.10.
"""

RATES_SAID = {
    "sparse": "The tables have no row for the L1 ball. Talwar, Thakurta, Zhang's rate: (nε)^-⅔, and p^{p:g}, but for a logarithm."
}
