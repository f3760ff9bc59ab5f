"""Norms of a convolution's gradients from patches and from pixels, and with the weighted sum behind them.

Interleaved in one process, medians. Writes benchmarks/results/convolutions.md.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

from dperm.report.page import machine
from dperm.torch.engine.rules import conv
from dperm.torch.engine.rules.conv import ConvGradient
from dperm.torch.engine.rules.patches import Geometry
from dperm.torch.tensors.buffers import Pool

RESULTS = Path(__file__).parent / "results"
#: records, channels in, size, channels out, kernel, stride, padding
LAYERS = [
    (512, 1, 28, 16, 8, 2, 2),
    (512, 16, 13, 32, 4, 2, 0),
    (64, 32, 32, 32, 3, 1, 1),
    (256, 64, 16, 64, 3, 1, 1),
    (512, 64, 4, 64, 3, 1, 1),
    (512, 243, 8, 64, 3, 1, 1),
    (128, 64, 14, 128, 3, 2, 1),
    (256, 128, 8, 128, 3, 1, 1),
    (64, 256, 8, 256, 3, 1, 1),
    (32, 512, 4, 512, 3, 1, 1),
    (64, 256, 8, 64, 1, 1, 0),
]


def seconds(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def main() -> None:
    lines: list[str] = []
    pool = Pool()
    worth_it = conv._WORTH_IT
    for records, inner, size, outer, kernel, stride, padding in LAYERS:
        torch.manual_seed(0)
        out = (size + 2 * padding - kernel) // stride + 1
        geometry = Geometry((stride, stride), (padding, padding), (1, 1), 1)
        x, slopes = torch.randn(records, inner, size, size), torch.randn(records, outer, out, out)
        form, factors = ConvGradient(x, slopes, (outer, inner, kernel, kernel), geometry), torch.rand(records)

        def step(form: ConvGradient = form, factors: torch.Tensor = factors) -> None:
            settled = form.settled(pool.lease())
            settled.squares()
            settled.weighted_sum(factors)

        taken: dict[tuple[str, str], list[float]] = {}
        chosen = form._pixels_are_cheaper
        for turn in range(6):
            for way, limit in (("patches", float("inf")), ("pixels", 0.0)):
                conv._WORTH_IT = limit
                for what, function in (("norms", form.squares), ("step", step)):
                    found = seconds(function)
                    if turn:
                        taken.setdefault((way, what), []).append(1e6 * found / records)
        conv._WORTH_IT = worth_it
        cells = [f"{statistics.median(taken[way, what]):.0f}" for what in ("norms", "step") for way in ("patches", "pixels")]
        shape = f"{inner} → {outer}, {size} × {size}, kernel {kernel}, stride {stride}"
        lines.append(f"| {shape} | " + " | ".join(cells) + f" | {'pixels' if chosen else 'patches'} |")
        print(lines[-1])
    text = [
        "# Norms of convolutions",
        "",
        "Microseconds a record: squared norms alone, and a step of norms and a weighted sum.",
        "",
        "| layer | norms: patches | pixels | step: patches | pixels | chosen |",
        "| --- | --- | --- | --- | --- | --- |",
        *lines,
        "",
        f"{torch.get_num_threads()} threads, torch {torch.__version__}. "
        + ", ".join(f"{name} {value}" for name, value in machine().items())
        + ".",
        "",
    ]
    (RESULTS / "convolutions.md").write_text("\n".join(text), encoding="utf-8")


if __name__ == "__main__":
    main()
