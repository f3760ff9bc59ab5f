"""The network of figures 1 and 2: one hidden layer as wide as the input."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dperm.gradient import LaplacianSmoothing
from dperm.gradient.recipes import dp_sgd, full_batch_descent, individual_descent
from dperm.published import pidp_sgd
from dperm.release import spend_log
from dperm.torch import PrivateTrainer
from papers.linear import Cell, Results, Split, quietly, split

__all__ = ["METHODS", "run", "section"]

REPEATS = 2
BATCH, EPOCHS, NORM, RATE, STEPS = 1024, 10, 0.5, 0.02, 60
PUBLISHED, SHARE, PLAIN_RATE = "PIDP-SGD, published", 4, 0.1  # n/4 steps on single records, without Adam

#: plans by name; individual accounting in full batches
METHODS: dict[str, Any] = {
    PUBLISHED: functools.partial(pidp_sgd, lipschitz=(NORM, 1.0, 1.0)),
    "DP-SGD": functools.partial(dp_sgd, expected_batch_size=BATCH, epochs=EPOCHS, clipping_norm=NORM),
    "DP-LSSGD": functools.partial(
        dp_sgd, expected_batch_size=BATCH, epochs=EPOCHS, clipping_norm=NORM, post=LaplacianSmoothing(1.0)
    ),
    "full batches": functools.partial(full_batch_descent, steps=STEPS, clipping_norm=NORM),
    "individual accounting": functools.partial(individual_descent, steps=STEPS, full_steps=STEPS / 2, clipping_norm=NORM),
}


def run(datasets: dict[str, int | None], epsilons: tuple[float, ...], results: Callable[[str], Results]) -> None:
    for dataset, records in datasets.items():
        stored = results(f"{dataset}_network")
        base = Cell(dataset, "without privacy", 0.0, records)
        if stored.of(base) is None:
            stored.save(base, _columns([_plain(split(dataset, repeat, records), repeat) for repeat in range(REPEATS)]))
        for name in METHODS:
            for epsilon in epsilons:
                cell = Cell(dataset, name, epsilon, records)
                if stored.of(cell) is None:
                    each = [quietly(_train, split(dataset, repeat, records), name, epsilon, repeat) for repeat in range(REPEATS)]
                    stored.save(cell, _columns(each))
        print(f"{dataset}, network: done", flush=True)


def _columns(each: list[dict[str, Any]]) -> dict[str, Any]:
    return {name: [one[name] for one in each] for name in each[0]}


def _network(parts: Split, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    width = parts.train[0].shape[1]
    return nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, parts.classes))


def _tensors(pair: Any) -> tuple[Tensor, Tensor]:
    """Rows at most 1 long, as linear models have them."""
    rows = pair[0] / np.maximum(np.linalg.norm(pair[0], axis=1, keepdims=True), 1.0)
    return torch.from_numpy(rows).float(), torch.from_numpy(pair[1]).long()


def _train(parts: Split, name: str, epsilon: float, seed: int) -> dict[str, Any]:
    model, data, plan = _network(parts, seed), _tensors(parts.train), METHODS[name]
    optimizer: torch.optim.Optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    size = len(data[1])
    if name == PUBLISHED:
        plan = functools.partial(plan, steps=max(1, size // SHARE))
        optimizer = torch.optim.SGD(model.parameters(), lr=PLAIN_RATE)
    trainer = PrivateTrainer(
        model, nn.CrossEntropyLoss(reduction="none"), optimizer, plan, epsilon=epsilon, delta=1 / size, public_size=size,
        label="papers",
    )  # fmt: skip
    with spend_log(Path(__file__).parent / "spend.db"):
        trainer.fit(data, progress=False)
    assert trainer.certificate is not None
    found = {**_scores(model, parts), "certified": trainer.certificate.epsilon, "status": trainer.certificate.status}
    private = trainer.private_trace
    return {**found, "noiseless": len(private["noiseless_steps"])} if name == PUBLISHED else found


def _plain(parts: Split, seed: int) -> dict[str, Any]:
    model, (rows, targets) = _network(parts, seed), _tensors(parts.train)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(30):
        order = torch.randperm(len(rows))
        for start in range(0, len(rows), 512):
            batch = order[start : start + 512]
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(rows[batch]), targets[batch]).backward()
            optimizer.step()
    return _scores(model, parts)


@torch.no_grad()
def _scores(model: nn.Module, parts: Split) -> dict[str, float]:
    (rows, targets), (seen, labels) = _tensors(parts.test), _tensors(parts.train)
    accuracy = float((model(rows).argmax(1) == targets).double().mean())
    return {"accuracy": 100 * accuracy, "loss": float(nn.functional.cross_entropy(model(seen), labels))}


def section(
    datasets: dict[str, str],
    epsilons: tuple[float, ...],
    records: dict[str, int],
    values: Callable[..., list[float]],
    mean: Callable[[list[float]], str],
    table: Callable[[list[str], list[list[str]]], str],
) -> str:
    rows = []
    for dataset, title in datasets.items():
        for epsilon in epsilons:
            found = [values(dataset, name, epsilon, "accuracy", f"{dataset}_network", records.get(dataset)) for name in METHODS]
            if any(found):
                rows.append([title, f"{epsilon:g}", *(mean(each) for each in found)])
    if not rows:
        return ""
    noiseless = [
        count
        for dataset in datasets
        for epsilon in epsilons
        for count in values(dataset, PUBLISHED, epsilon, "noiseless", f"{dataset}_network", records.get(dataset))
    ]
    return f"""One hidden layer of tanh units, as wide as the input, Adam with rate {RATE:g}, C = {NORM:g}; DP-SGD and DP-LSSGD
{EPOCHS} epochs of batches of {BATCH}; {STEPS} full batches, of individual accounting half of them paid for; {REPEATS} splits.
Bolt-on is for convex losses. PIDP-SGD takes n/{SHARE} steps of rate {PLAIN_RATE:g} with G = {NORM:g}, L = C = 1; a network has no
such constants, and the paper names none. Of its steps, in {len(noiseless)} runs, {sum(noiseless):,} were without noise.

{table(["data", "ε", *METHODS], rows)}"""
