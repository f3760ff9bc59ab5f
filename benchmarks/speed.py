"""Speed against peers, interleaved in one process, medians. Needs the `bench` extra: `make bench`.

Adult where DPERM_DATA holds it, otherwise rows of its shape made here, so that it runs anywhere.
Writes benchmarks/results/speed.md.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from dperm import data
from dperm.estimators import DPLogisticRegression
from dperm.gradient import SGD, Clip, Constant, Plan, Poisson, descend
from dperm.objectives import LinearObjective, Logistic, RegularisedSum
from dperm.privacy import Gaussian, PoissonSampled, SelfComposed, calibrate, epsilon
from dperm.release import Channel, spend_log
from dperm.report.page import machine
from dperm.solvers import minimise

RESULTS = Path(__file__).parent / "results"
N, BATCH = 45_222, 512


def interleaved(work: dict[str, Callable[[], float]], rounds: int) -> dict[str, float]:
    """Each function returns seconds; they take turns; the median of each."""
    times: dict[str, list[float]] = {name: [] for name in work}
    for _ in range(rounds):
        for name, function in work.items():
            times[name].append(function())
    return {name: statistics.median(values) for name, values in times.items()}


def seconds(function: Callable[[], Any]) -> float:
    started = time.perf_counter()
    function()
    return time.perf_counter() - started


def make_data() -> tuple[np.ndarray, np.ndarray]:
    """Adult, rows scaled to norm 1, where DPERM_DATA holds it; otherwise rows of its shape."""
    if os.environ.get("DPERM_DATA"):
        adult = data.load("adult")
        rows = adult.features.astype(np.float64)
        rows = rows[:, rows.any(axis=0)]
        labels = np.where(adult.targets == ">50K", 1.0, -1.0)
    else:
        rng = np.random.default_rng(0)
        parts = [rng.random((N, 6))]
        for width in (7, 16, 7, 14, 6, 5, 2, 41):
            parts.append(np.eye(width)[np.minimum(rng.geometric(min(0.6, 2.5 / width), N) - 1, width - 1)])
        rows = np.hstack(parts)
        score = rows @ rng.normal(size=rows.shape[1]) * 2
        labels = np.where(score - np.quantile(score, 0.75) + rng.logistic(size=N) > 0, 1.0, -1.0)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return np.ascontiguousarray(rows), labels


def dp_sgd_step(rows: np.ndarray, labels: np.ndarray) -> list[str]:
    import torch
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer

    torch.set_num_threads(2)
    steps = 1000
    width = rows.shape[1]
    objective = LinearObjective(Logistic(), width, public_size=N)
    plan = Plan(Poisson(BATCH / N), Clip(0.5), Constant(1.0), SGD(1.0, momentum=0.9), steps, N)

    def ours(table: np.ndarray) -> Callable[[], float]:
        records = objective.records(table, labels)
        records.take(np.arange(BATCH))  # first use builds the buffers

        def run() -> float:
            channel = Channel.open()
            channel.charge(plan.event(objective.relation), "bench")
            return seconds(lambda: descend(plan, objective, records, channel, np.zeros(width))) / steps

        return run

    tensor, target = torch.tensor(rows, dtype=torch.float32), torch.tensor((labels + 1) / 2, dtype=torch.float32)
    model = GradSampleModule(torch.nn.Linear(width, 1, bias=False))
    inner = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9)
    optimizer = DPOptimizer(inner, noise_multiplier=1.0, max_grad_norm=0.5, expected_batch_size=BATCH)
    loss = torch.nn.BCEWithLogitsLoss(reduction="mean")

    def opacus() -> float:
        def run() -> None:
            for _ in range(50):
                chosen = torch.nonzero(torch.rand(N) < BATCH / N)[:, 0]
                optimizer.zero_grad()
                loss(model(tensor[chosen])[:, 0], target[chosen]).backward()
                optimizer.step()

        return seconds(run) / 50

    from opacus import PrivacyEngine

    fresh = torch.nn.Linear(width, 1, bias=False)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(tensor, target), batch_size=BATCH)
    as_documented = PrivacyEngine().make_private(
        module=fresh,
        optimizer=torch.optim.SGD(fresh.parameters(), lr=1.0, momentum=0.9),
        data_loader=loader,
        noise_multiplier=1.0,
        max_grad_norm=0.5,
    )

    def opacus_engine() -> float:
        module, private, batches = as_documented

        def run() -> None:
            for number, (inputs, wanted) in enumerate(batches):
                private.zero_grad()
                loss(module(inputs)[:, 0], wanted).backward()
                private.step()
                if number == 24:
                    break

        return seconds(run) / 25

    plain_rows = rows.astype(np.float32)
    chosen = [np.sort(np.random.default_rng(i).choice(N, BATCH, replace=False)) for i in range(500)]
    buffer = np.empty((BATCH, width), dtype=np.float32)

    def gather() -> float:
        return seconds(lambda: [plain_rows.take(index, axis=0, out=buffer, mode="clip") for index in chosen]) / 500

    found = interleaved(
        {
            "float32": ours(plain_rows),
            "float64": ours(rows),
            "opacus": opacus,
            "engine": opacus_engine,
            "gather": gather,
        },
        rounds=9,
    )
    times = {name: found[name] / found["float32"] for name in ("engine", "opacus")}
    peers = (
        f"Opacus as documented (PrivacyEngine, its loader) {1e6 * found['engine']:.0f} µs ({times['engine']:.0f}×); "
        f"its optimiser on tensors indexed by hand {1e6 * found['opacus']:.0f} µs ({times['opacus']:.0f}×)"
    )
    return [
        f"| DP-SGD step, {N:,} × {width}, expected batch {BATCH}, clipping, float32 rows | {1e6 * found['float32']:.0f} µs "
        f"| {peers} | ≤ 35 µs, ≥ 60× |",
        f"| … float64 rows | {1e6 * found['float64']:.0f} µs | | |",
        f"| … of which gathering 512 random float32 rows (the floor of memory) | {1e6 * found['gather']:.0f} µs | | |",
    ]


def objective_fit(rows: np.ndarray, labels: np.ndarray) -> list[str]:
    from sklearn.linear_model import LogisticRegression

    width = rows.shape[1]
    objective = LinearObjective(Logistic(), width, strong_convexity=1.0)
    rng = np.random.default_rng(1)

    def ours() -> float:
        noise = rng.normal(size=width) * 3.73

        def run() -> None:
            problem = RegularisedSum(objective, objective.records(rows, labels), noise)
            assert minimise(problem, 1e-8).residual <= 1e-8

        return seconds(run)

    norms: list[float] = []

    def scikit() -> float:
        model = LogisticRegression(C=1.0, fit_intercept=False, tol=1e-10, max_iter=10_000)
        taken = seconds(lambda: model.fit(rows, labels))
        slope = -labels / (1 + np.exp(labels * (rows @ model.coef_[0])))
        norms.append(float(np.linalg.norm(rows.T @ slope + model.coef_[0])))
        return taken

    found = interleaved({"ours": ours, "scikit": scikit}, rounds=7)
    return [
        f"| objective perturbation, same data, to ‖∇J‖ ≤ 1e-8 | {1e3 * found['ours']:.0f} ms | scikit-learn lbfgs "
        f"{1e3 * found['scikit']:.0f} ms to ‖∇J‖ = {statistics.median(norms):.1g} ({found['scikit'] / found['ours']:.1f}×) "
        "| ≤ 120 ms, ≥ 2.5× |"
    ]


def calibration() -> list[str]:
    from dp_accounting import dp_event
    from dp_accounting.mechanism_calibration import calibrate_dp_mechanism
    from dp_accounting.pld import PLDAccountant

    def event(noise: float) -> SelfComposed:
        return SelfComposed(PoissonSampled(512 / 60000, Gaussian(noise)), 2340)

    answers: dict[str, float] = {}

    def ours() -> float:
        return seconds(lambda: answers.__setitem__("ours", calibrate(event, 1.0, 1e-5)))

    def theirs() -> float:
        def make(noise: float) -> Any:
            step = dp_event.PoissonSampledDpEvent(512 / 60000, dp_event.GaussianDpEvent(noise))
            return dp_event.SelfComposedDpEvent(step, 2340)

        return seconds(lambda: answers.__setitem__("theirs", calibrate_dp_mechanism(PLDAccountant, make, 1.0, 1e-5)))

    found = interleaved({"ours": ours, "theirs": theirs}, rounds=3)
    return [
        f"| calibration, q = 512/60000, T = 2340, ε = 1, δ = 1e-5 | {found['ours']:.2f} s, σ = {answers['ours']:.5f}, "
        f"ε = {epsilon(event(answers['ours']), 1e-5):.6f} "
        f"| dp-accounting PLD {found['theirs']:.1f} s, σ = {answers['theirs']:.5f} "
        "| ≤ 0.4 s, 0.1 % |"
    ]


def anonymous_megabytes() -> float:
    with Path("/proc/self/status").open() as status:
        return next(int(line.split()[1]) for line in status if line.startswith("RssAnon")) / 1024


def mapped_fit(folder: Path) -> list[str]:
    rows, width = 2_000_000, 100
    path = folder / "rows.npy"
    table = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(rows, width))
    rng = np.random.default_rng(0)
    theta = rng.normal(size=width)
    labels = np.empty(rows)
    for start in range(0, rows, 100_000):
        block = rng.normal(size=(100_000, width)).astype(np.float32)
        table[start : start + 100_000] = block
        labels[start : start + 100_000] = block @ theta > 0
    table.flush()
    del table
    mapped = np.load(path, mmap_mode="r")
    before, peak, stop = anonymous_megabytes(), [0.0], threading.Event()

    def watch() -> None:
        while not stop.wait(0.01):
            peak[0] = max(peak[0], anonymous_megabytes())

    watcher = threading.Thread(target=watch)
    watcher.start()
    taken = seconds(lambda: DPLogisticRegression(classes=[0.0, 1.0]).fit(mapped, labels))
    stop.set()
    watcher.join()
    return [
        f"| the whole fit on 2,000,000 × 100 memory-mapped float32 | {taken:.0f} s, {peak[0] - before:.0f} MB anonymous "
        "memory more | | ≤ 300 MB |"
    ]


def main() -> None:
    warnings.simplefilter("ignore")
    rows, labels = make_data()
    lines = ["| what | dperm | peer | goal |", "| --- | --- | --- | --- |"]
    with tempfile.TemporaryDirectory() as folder, spend_log(Path(folder) / "spend.db"):
        wanted = sys.argv[1:] or ["step", "fit", "calibration", "mapped"]
        parts = {
            "step": lambda: dp_sgd_step(rows, labels),
            "fit": lambda: objective_fit(rows, labels),
            "calibration": calibration,
            "mapped": lambda: mapped_fit(Path(folder)),
        }
        for name in wanted:
            lines += parts[name]()
            print("\n".join(lines), flush=True)
    about = "\n".join(f"- {name}: {value}" for name, value in machine().items())
    from importlib import metadata

    peers = ", ".join(f"{name} {metadata.version(name)}" for name in ("opacus", "torch", "scikit-learn", "dp-accounting"))
    text = "# Speed\n\nMedians of interleaved runs in one process (`make bench`).\n\n" + "\n".join(lines)
    if len(wanted) == len(parts):
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / "speed.md").write_text(
            f"{text}\n\n{about}\n- peers: {peers}\n- load average at the end: {os.getloadavg()[0]:.1f}\n"
        )


if __name__ == "__main__":
    main()
