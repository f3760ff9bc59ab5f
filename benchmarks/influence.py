"""Influence: its time against a fit, and how well it tells what leaving records out would do. Writes results/influence.md.

    DPERM_DATA=folder python benchmarks/influence.py [--only adult|mnist]

Adult: logistic regression, every record's influence in three forms, interleaved with the non-private fit, medians of 7; against
exact refits without 100 records, 10 of them the most influential. MNIST: 5,000 images, a CNN with tanh, all records' influence
on one prediction; then 60 groups of 100 records, and the logit they move: against training on from the same optimum with the
group left out, on the same batches, held near the start by the damping; and against training anew.
"""

from __future__ import annotations

import argparse
import copy
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import spearmanr
from torch import Tensor, nn

from dperm.data import load, load_images
from dperm.influence import LinearInfluence, NetworkInfluence
from dperm.objectives import LinearObjective, Logistic, RegularisedSum
from dperm.solvers import minimise

RESULTS = Path(__file__).parent / "results" / "influence.md"
GROUPS, IN_GROUP = 60, 100


def adult() -> list[str]:
    data = load("adult")
    rows, targets = np.asarray(data.features, dtype=float), np.where(data.targets == sorted(data.classes)[1], 1.0, -1.0)
    objective = LinearObjective(Logistic(), rows.shape[1], intercept_scale=0.5, strong_convexity=1.0)
    records = objective.records(rows, targets)

    def fit() -> Any:
        return minimise(RegularisedSum(objective, records), 1e-8)

    theta = fit().theta
    new = objective.records(rows[:1], targets[:1])
    score = np.append(rows[0], 0.5)
    ways: dict[str, Callable[[], Any]] = {
        "one fit without privacy": fit,
        "on one score": lambda: LinearInfluence(objective, records, theta).on(score),
        "lengths of all changes": lambda: LinearInfluence(objective, records, theta).lengths(),
        "all changes of parameters": lambda: LinearInfluence(objective, records, theta).parameters(),
    }
    assert len(new) == 1
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(7):
        for name, run in ways.items():
            started = time.perf_counter()
            run()
            taken[name].append(time.perf_counter() - started)
    middle = {name: statistics.median(times) for name, times in taken.items()}
    influence = LinearInfluence(objective, records, theta)
    on = influence.on(score)
    most = np.argsort(-np.abs(on))[:10]
    chosen = np.concatenate([most, np.random.default_rng(0).choice(np.setdiff1d(np.arange(len(rows)), most), 90, replace=False)])
    true: list[float] = []
    for left in chosen:
        kept = np.delete(np.arange(len(rows)), left)
        again = minimise(RegularisedSum(objective, objective.records(rows[kept], targets[kept])), 1e-9).theta
        true.append(float(score @ (again - theta)))
    correlation = np.corrcoef(true, on[chosen])[0, 1]
    without = np.corrcoef(true[10:], on[chosen[10:]])[0, 1]
    lines = [f"| {name} | {value:.2f} s | {value / middle['one fit without privacy']:.1f} |" for name, value in middle.items()]
    return [
        f"## Adult, {len(rows):,} records of {rows.shape[1]} features, logistic regression", "",
        "| | time | fits |", "| --- | --- | --- |", *lines, "",
        f"Correlation with exact refits without 100 records: {correlation:.6f}; without the 10 most influential: {without:.6f}.",
    ]  # fmt: skip


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 8, 5, 2), nn.Tanh(), nn.Conv2d(8, 16, 5, 2), nn.Tanh(), nn.Flatten(), nn.Linear(256, 32), nn.Tanh(),
        nn.Linear(32, 10),
    )  # fmt: skip


WEIGHT_DECAY, DAMPING = 1e-3, 1e-2


def losses(outputs: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(outputs, targets, reduction="none")


def train(
    model: nn.Module, x: Tensor, y: Tensor, keep: Tensor, epochs: int, near: Tensor | None = None, rate: float = 0.1
) -> None:
    """SGD on the mean over all places of the losses that are kept; the batches do not depend on who is."""
    generator = torch.Generator().manual_seed(1)
    parameters = list(model.parameters())
    optimizer = torch.optim.SGD(parameters, rate, momentum=0.9, weight_decay=WEIGHT_DECAY)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    for _ in range(epochs):
        order = torch.randperm(len(x), generator=generator)
        for start in range(0, len(x), 500):
            batch = order[start : start + 500]
            loss = (losses(model(x[batch]), y[batch]) * keep[batch]).mean()
            if near is not None:
                flat = torch.cat([parameter.flatten() for parameter in parameters])
                loss = loss + DAMPING / 2 * (flat - near).square().sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        schedule.step()


def mnist() -> list[str]:
    images = load_images("mnist")
    x = torch.from_numpy(images.train_images[:5000]).float().reshape(-1, 1, 28, 28) / 255
    y = torch.from_numpy(images.train_labels[:5000]).long()
    everyone = torch.ones(len(x))
    model = network()
    train(model, x, y, everyone, 60)
    seen = torch.from_numpy(images.test_images[:200]).float().reshape(-1, 1, 28, 28) / 255
    with torch.no_grad():
        outputs = model(seen).softmax(1)
    place = int(outputs.max(1).values.argmin())  # the least certain prediction
    image, label = seen[place : place + 1], int(outputs[place].argmax())
    started = time.perf_counter()
    steps: list[int] = []
    influence = NetworkInfluence(
        model, losses, (x, y), damping=DAMPING, weight_decay=WEIGHT_DECAY, tolerance=1e-3, batch_size=1000,
        progress=lambda number, _: steps.append(number),
    )  # fmt: skip
    each = influence.on_prediction(image, label)
    taken = time.perf_counter() - started
    rng = np.random.default_rng(0)
    order = np.argsort(each)
    groups = [rng.choice(len(x), IN_GROUP, replace=False) for _ in range(GROUPS // 2)]
    groups += [rng.choice(part, IN_GROUP, replace=False) for part in np.array_split(order, GROUPS // 2)]  # alike in influence
    told = np.array([each[group].sum() for group in groups])
    anchor = influence.theta.clone()

    def moved(epochs: int, group: Any, *, warm: bool) -> float:
        keep = everyone.clone()
        keep[torch.from_numpy(group)] = 0.0
        other = copy.deepcopy(model) if warm else network()
        train(other, x, y, keep, epochs, anchor if warm else None, 0.02 if warm else 0.1)
        with torch.no_grad():
            return float(other(image)[0, label])

    nobody = np.array([], dtype=np.intp)
    base = moved(8, nobody, warm=True)
    warm = np.array([moved(8, group, warm=True) - base for group in groups])
    cold_groups = list(range(0, GROUPS, 6))
    cold_base = moved(60, nobody, warm=False)
    cold = np.array([moved(60, groups[number], warm=False) - cold_base for number in cold_groups])
    halves = [spearmanr(told[part], warm[part])[0] for part in (slice(0, GROUPS // 2), slice(GROUPS // 2, None))]
    return [
        "## MNIST, 5,000 images, a CNN with tanh "
        f"({len(anchor):,} parameters), on the logit of its least certain prediction among 200", "",
        f"All records' influence: {taken:.1f} s ({len(steps)} iterations of conjugate gradients on Gauss–Newton products, "
        f"damping {DAMPING:g}).", "",
        f"{GROUPS} groups of {IN_GROUP} left out, rank correlation with training on from the same optimum on the same batches, "
        f"held near it by the damping: {spearmanr(told, warm)[0]:.3f}; of the {GROUPS // 2} drawn at random {halves[0]:.3f}, of "
        f"the {GROUPS // 2} of alike influence {halves[1]:.3f}. With training anew, {len(cold_groups)} of them: "
        f"{spearmanr(told[cold_groups], cold)[0]:.3f}.",
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("adult", "mnist"))
    only = parser.parse_args().only
    parts = {"adult": adult, "mnist": mnist}
    lines = ["# Influence", "", f"{platform.machine()}, {torch.get_num_threads()} thread(s), torch {torch.__version__}.", ""]
    for name, run in parts.items():
        if only in (None, name):
            lines += [*run(), ""]
    text = "\n".join(lines)
    print(text)
    if only is None:
        RESULTS.write_text(text)


if __name__ == "__main__":
    main()
