"""The ladder's rungs, its settings and its measurements: excess risk along n, ε and p.

The lecture's two tables (strongly convex, convex), the rates of which become slopes on logarithmic axes, and a problem of up to
more parameters than records; replace-one, δ = 1e-6.
"""

from __future__ import annotations

import json
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dperm.gradient import SGD, Averaged, SvrgPlan
from dperm.gradient.recipes import dp_sgd, full_batch_descent
from dperm.mechanisms import (
    Budget,
    FrankWolfe,
    FrankWolfeDescent,
    GradientPerturbation,
    GreedyCoordinate,
    GreedyDescent,
    LastIterateDescent,
    Mechanism,
    ObjectivePerturbation,
    OutputPerturbation,
)
from dperm.privacy import calibrate
from dperm.privacy.accountants.gaussian import gaussian_mu
from dperm.release import Channel, spend_log
from papers.lecture.problems import RADIUS, Problem, convex, sparse, strongly_convex

HERE = Path(__file__).parent
CELLS = HERE / "cells.json"
DELTA = 1e-6
SEEDS = {"strongly convex": 30, "convex": 12, "sparse": 12}
_SMALL = {"n": 8000, "epsilon": 0.5, "p": 16}
CENTRES = {"strongly convex": _SMALL, "convex": _SMALL, "sparse": {"n": 2000, "epsilon": 0.5, "p": 256}}
GRIDS: dict[str, dict[str, tuple[float, ...]]] = {
    "strongly convex": {
        "n": (2000, 4000, 8000, 16_000, 32_000),
        "epsilon": (0.125, 0.25, 0.5, 1.0, 2.0),
        "p": (4, 8, 16, 32, 64),
    },
    "convex": {"n": (2000, 4000, 8000, 16_000, 32_000), "epsilon": (0.125, 0.25, 0.5, 1.0, 2.0), "p": (4, 16, 64, 256)},
    "sparse": {"n": (500, 1000, 2000, 4000, 8000), "epsilon": (0.125, 0.25, 0.5, 1.0, 2.0), "p": (64, 256, 1024, 4096)},
}
AGREEING = (0.5, 1.0, 2.0, 4.0, 8.0)  # of the convex problems, times what noise hides: the worst of them counts
#: what the lecture's tables say of n, ε and p
RATES = {
    "strongly convex": {"n": -2.0, "epsilon": -2.0, "p": 1.0},
    "convex": {"n": -1.0, "epsilon": -1.0, "p": 0.5},
    "sparse": {"n": -2 / 3, "epsilon": -2 / 3, "p": 0.0},
}


@dataclass(frozen=True)
class Rung:
    """A row of a table: `make` builds the mechanism for a problem, ε and its μ; `passes` are gradient evaluations a record."""

    name: str
    source: str
    make: Callable[[Problem, float, float], tuple[Mechanism, float]]


def output(problem: Problem, epsilon: float, mu: float) -> tuple[Mechanism, float]:
    facts = problem.objective.facts
    modulus = problem.modulus * len(problem.records) or 4 * math.sqrt(facts.dimension) / mu / RADIUS
    return OutputPerturbation.calibrate(facts, epsilon, DELTA, strong_convexity=modulus), math.nan


def objective(problem: Problem, epsilon: float, mu: float) -> tuple[Mechanism, float]:
    facts = problem.objective.facts
    modulus = (
        problem.modulus * len(problem.records) or 2 * math.sqrt(facts.dimension) / mu / RADIUS + 2 * facts.smoothness / epsilon
    )
    return ObjectivePerturbation.calibrate(facts, epsilon, DELTA, strong_convexity=modulus), math.nan


def _descent(problem: Problem, epsilon: float, steps: int, rate: float, make: Callable[..., Any]) -> Mechanism:
    """Gradient perturbation of J/n at a learning rate for the mean: the regulariser's step is the plan's."""
    return GradientPerturbation.calibrate(make, problem.objective.facts, epsilon, DELTA)


def _rate(problem: Problem, mu: float, steps: float) -> float:
    """1/β where the problem is strongly convex; otherwise the step that brings as far as the noise lets it: R/(G√T)."""
    facts, n = problem.objective.facts, len(problem.records)
    if problem.modulus:
        return 1 / (facts.smoothness + problem.modulus)
    noise = 2 * math.sqrt(steps * facts.dimension) / mu / n  # of a mean gradient, were the budget split over the steps
    return RADIUS / math.sqrt(steps) / max(noise, 1e-12)


def full(problem: Problem, epsilon: float, mu: float) -> tuple[Mechanism, float]:
    steps = 60
    rate = _rate(problem, mu, steps)

    def make(noise: float) -> Any:
        return full_batch_descent(
            noise_multiplier=noise, public_size=len(problem.records), steps=steps, clipping_norm=1.0, average_from=0.3,
            update=SGD(rate),
        )  # fmt: skip

    return _descent(problem, epsilon, steps, rate, make), steps


def sampled(problem: Problem, epsilon: float, mu: float) -> tuple[Mechanism, float]:
    """The lecture's DP-SGD, by the exact accountant: O(n²) gradients, as its theorem asks, in batches of n/40."""
    n = len(problem.records)
    epochs, batch = max(5, n // 200), n / 40
    steps = epochs * n / batch
    rate = _rate(problem, mu, steps) if not problem.modulus else 20 / (problem.modulus * steps)

    def make(noise: float) -> Any:
        return dp_sgd(
            noise_multiplier=noise, public_size=n, expected_batch_size=batch, epochs=epochs, clipping_norm=1.0, average_from=0.3,
            update=SGD(rate),
        )  # fmt: skip

    return _descent(problem, epsilon, int(steps), rate, make), epochs


def svrg(problem: Problem, epsilon: float, mu: float) -> tuple[Mechanism, float]:
    n = len(problem.records)
    epochs, per = 30, 2
    share = 0.05
    rate = _rate(problem, mu, epochs * per)

    def make(noise: float) -> SvrgPlan:
        return SvrgPlan(share, epochs, per, 1.0, noise, noise / 2, Averaged(SGD(rate), skip=epochs * per // 3), n)

    return _descent(problem, epsilon, epochs * per, rate, make), epochs * (1 + 2 * per * share)


def iteration(problem: Problem, epsilon: float, mu: float) -> tuple[Mechanism, float]:
    """The last iterate of E passes in E batches, whose noise brings it as far as the ball is wide; of 30 passes in one batch
    where the problem is strongly convex, and every step forgets."""
    facts, n = problem.objective.facts, len(problem.records)
    rate = 1 / (facts.smoothness + problem.modulus)
    passes = max(2, round(math.sqrt(RADIUS * mu * n / (2 * math.sqrt(2 * facts.dimension) * rate))))
    batch = -(-n // passes)
    if problem.modulus:
        passes, batch = 30, n

    def at(noise: float) -> LastIterateDescent:
        return LastIterateDescent(
            budget=Budget(DELTA, epsilon), epochs=passes, batch_size=batch, learning_rate=rate,
            radius=RADIUS if not problem.modulus else 5.0, noise_multiplier=noise, strong_convexity=problem.modulus * n,
        )  # fmt: skip

    return at(calibrate(lambda noise: at(noise).event(facts), epsilon, DELTA)), passes


def frank_wolfe(problem: Problem, epsilon: float, mu: float) -> tuple[Mechanism, float]:
    mechanism = FrankWolfe(radius=RADIUS, entry_bound=1.0).calibrated(problem.objective.facts, Budget(DELTA, epsilon), 1)
    assert isinstance(mechanism, FrankWolfeDescent)
    return mechanism, mechanism.steps


def greedy(problem: Problem, epsilon: float, mu: float) -> tuple[Mechanism, float]:
    method = GreedyCoordinate(entry_bound=1.0, box=RADIUS)
    mechanism = method.calibrated(problem.objective.facts, Budget(DELTA, epsilon), 1)
    assert isinstance(mechanism, GreedyDescent)
    return mechanism, mechanism.steps


def ball(problem: Problem, epsilon: float, mu: float) -> tuple[Mechanism, float]:
    """Full batches for rows of this length, in the L2 ball."""
    steps, facts = 60, problem.objective.facts
    noise = 2 * facts.lipschitz * math.sqrt(steps * facts.dimension) / mu / len(problem.records)
    rate = RADIUS / math.sqrt(steps) / noise

    def make(noise: float) -> Any:
        return full_batch_descent(
            noise_multiplier=noise, public_size=len(problem.records), steps=steps, clipping_norm=facts.lipschitz,
            average_from=0.3, update=SGD(rate),
        )  # fmt: skip

    return _descent(problem, epsilon, steps, rate, make), steps


RUNGS = {
    "strongly convex": [
        Rung("output perturbation", "Chaudhuri and others 2011", output),
        Rung("objective perturbation", "Chaudhuri and others 2011; Kifer and others 2012", objective),
        Rung("DP-SGD", "Bassily and others 2014", sampled),
        Rung("full-batch descent", "the same, batches of n", full),
        Rung("DP-SVRG", "Wang, Ye, Xu 2017", svrg),
        Rung("last iterate", "Feldman and others 2018; Altschuler & Talwar 2022", iteration),
    ],
    "convex": [
        Rung("objective perturbation", "Chaudhuri and others 2011; Kifer and others 2012", objective),
        Rung("DP-SGD", "Bassily and others 2014", sampled),
        Rung("full-batch descent", "the same, batches of n", full),
        Rung("DP-SVRG", "Wang, Ye, Xu 2017", svrg),
        Rung("last iterate", "Feldman and others 2018; Altschuler & Talwar 2022", iteration),
    ],
    "sparse": [
        Rung("full-batch descent", "Bassily and others 2014, batches of n", ball),
        Rung("Frank–Wolfe", "Talwar, Thakurta, Zhang 2015", frank_wolfe),
        Rung("greedy coordinates", "Mangold and others 2023", greedy),
    ],
}


def measured(kind: str, rung: Rung, n: int, epsilon: float, p: int) -> dict[str, float]:
    """Mean excess risk, of the worst problem where there are several; seconds; gradients a record."""
    mu = gaussian_mu(epsilon, DELTA)
    worst, seconds, passes = 0.0, [], math.nan
    hidden = {"strongly convex": 0.0, "convex": 2 * math.sqrt(p) / mu, "sparse": 4 * math.log(2 * p) / mu}[kind]
    sizes = AGREEING if hidden else (0.0,)
    for size in sizes:
        found: list[float] = []
        for seed in range(SEEDS[kind]):
            agreeing = max(2, round(size * hidden))
            if kind == "strongly convex":
                problem = strongly_convex(n, p, seed)
            else:
                problem = (convex if kind == "convex" else sparse)(n, p, agreeing, seed)
            mechanism, passes = rung.make(problem, epsilon, mu)
            started = time.perf_counter()
            with spend_log(HERE / "spend.db"):
                release = mechanism.release(
                    _with_modulus(problem, mechanism), problem.records, Channel.open(label="papers/lecture")
                )
            seconds.append(time.perf_counter() - started)
            assert release.certificate.epsilon is not None and release.certificate.epsilon <= epsilon * (1 + 1e-9)
            theta = release.theta
            norm = float(np.linalg.norm(theta, ord=1 if kind == "sparse" else 2))
            if hidden and norm > RADIUS:
                theta = theta * RADIUS / norm
            found.append(problem.excess(theta))
        worst = max(worst, statistics.fmean(found))
    return {"excess": worst, "seconds": statistics.median(seconds), "passes": passes}


def _with_modulus(problem: Problem, mechanism: Mechanism) -> Any:
    """Plans take the regulariser from the objective; other mechanisms bring it."""
    if isinstance(mechanism, GradientPerturbation) and problem.modulus:
        return problem.objective.with_strong_convexity(problem.modulus * len(problem.records))
    return problem.objective


def run() -> None:
    cells: dict[str, Any] = json.loads(CELLS.read_text()) if CELLS.exists() else {}
    for kind, grids in GRIDS.items():
        for rung in RUNGS[kind]:
            for along, values in grids.items():
                for value in values:
                    at: dict[str, Any] = CENTRES[kind] | {along: value}
                    key = f"{kind}|{rung.name}|{at['n']:g}|{at['epsilon']:g}|{at['p']:g}"
                    if key not in cells:
                        cells[key] = measured(kind, rung, int(at["n"]), at["epsilon"], int(at["p"]))
                        CELLS.write_text(json.dumps(cells, indent=0, sort_keys=True) + "\n")
            print(kind, rung.name, flush=True)


def values(kind: str, rung: str, along: str) -> tuple[list[float], list[float]]:
    cells, grid = json.loads(CELLS.read_text()), GRIDS[kind][along]
    points: list[dict[str, Any]] = [CENTRES[kind] | {along: value} for value in grid]
    return list(grid), [cells[f"{kind}|{rung}|{at['n']:g}|{at['epsilon']:g}|{at['p']:g}"]["excess"] for at in points]


def slope(kind: str, rung: str, along: str) -> float:
    """Of a line through the logarithms, by least squares."""
    x, y = values(kind, rung, along)
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])
