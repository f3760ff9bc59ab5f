"""What papers prove of the excess risk of private training: rates and bounds, with what they assume and leave open.

All are of the mean loss: `size` records, `dimension` parameters. A bound whose constants its source leaves out gives the rate
alone, with the constant 1: good for slopes, not for heights. Where a proof does not hold as printed, `caveat` says so
(docs/errata.md). For planning: nothing here is charged for, or certifies anything.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from scipy.optimize import minimize_scalar

from dperm import _validate as check
from dperm._types import Array
from dperm.objectives import LinearObjective, Records

Of = Literal["empirical", "population", "lower"]


@dataclass(frozen=True, kw_only=True)
class Problem:
    """What bounds depend on; None: not known, and bounds that need it have no value.

    `lipschitz` (G, l), `smoothness` (L) and `strong_convexity` (μ, s; also the constant of Polyak and Łojasiewicz) are of one
    record's loss and of the mean; `radius` (R) bounds ‖θ‖; `gap` is the excess at the start, `variance` that of one record's
    gradient, `optimum` the least mean loss, `influential` (k) how many records move the model, `norm` that of the minimiser,
    `hoelder` (α) the exponent with which gradients are continuous; `steps` (T) None: as many as the source takes.
    """

    size: int
    dimension: int
    epsilon: float
    delta: float
    lipschitz: float | None = None
    smoothness: float | None = None
    strong_convexity: float | None = None
    radius: float | None = None
    gap: float | None = None
    variance: float | None = None
    optimum: float | None = None
    norm: float | None = None
    influential: int | None = None
    hoelder: float | None = None
    steps: int | None = None

    def __post_init__(self) -> None:
        check.integer("size", self.size)
        check.integer("dimension", self.dimension)
        check.positive("epsilon", self.epsilon)
        check.fraction("delta", self.delta)
        for name, value in vars(self).items():
            if value is not None:
                check.non_negative(name, value)

    @property
    def log_delta(self) -> float:
        return math.log(1 / self.delta)


@dataclass(frozen=True)
class Bound:
    """`value(problem)` of what `needs` names. `of`: excess empirical or population risk, from above; "lower": any method's."""

    name: str
    source: str
    of: Of
    formula: str
    needs: tuple[str, ...]
    assumes: tuple[str, ...]
    exact: bool  # whether constants are stated: otherwise a rate
    at: Callable[[Problem], float]
    caveat: str = ""

    def value(self, problem: Problem) -> float | None:
        """The bound; None where the problem leaves open what it needs."""
        if any(getattr(problem, name) is None for name in self.needs):
            return None
        return float(self.at(problem))

    def slopes(self, problem: Problem) -> tuple[float, float] | None:
        """Log-log slopes in the number of records and in ε, at this problem."""
        here = self.value(problem)
        more = self.value(replace(problem, size=math.ceil(problem.size * 1.01)))
        looser = self.value(replace(problem, epsilon=problem.epsilon * 1.01))
        if not (here and more and looser):
            return None
        ratio = math.log(math.ceil(problem.size * 1.01) / problem.size)
        return math.log(more / here) / ratio, math.log(looser / here) / math.log(1.01)


# The lecture's noisy descent, one record a step


def _lecture_noise(p: Problem, steps: float) -> float:
    """σ of its Gaussian noise."""
    assert p.lipschitz is not None
    logs = math.log(2 / p.delta) * math.log(max(2.5 * steps / (p.delta * p.size), math.e))
    return 16 * p.lipschitz * math.sqrt(steps * logs) / (p.size * p.epsilon)


def _lecture_moment(p: Problem, steps: float) -> float:
    assert p.lipschitz is not None
    return math.sqrt(p.lipschitz**2 + p.dimension * _lecture_noise(p, steps) ** 2)


def _steps(p: Problem) -> float:
    return p.steps or float(p.size) ** 2


def _lecture_convex(p: Problem) -> float:
    assert p.radius is not None
    return 2 * p.radius * _lecture_moment(p, _steps(p)) * (2 + math.log(_steps(p))) / math.sqrt(_steps(p))


def _lecture_strongly(p: Problem) -> float:
    assert p.strong_convexity is not None
    return 17 * _lecture_moment(p, _steps(p)) ** 2 * (1 + math.log(_steps(p))) / (p.strong_convexity * _steps(p))


# PIDP-SGD's analysis


def _pidp_noise(p: Problem, steps: float) -> float:
    """σ² of T steps on all records: G²T ln(1/δ)/(n²ε²), with the constant 1."""
    assert p.lipschitz is not None
    return p.lipschitz**2 * steps * p.log_delta / (p.size * p.epsilon) ** 2


def _pidp_steps(p: Problem) -> float:
    return p.steps or math.ceil(math.log(p.size))


def _pidp_empirical(p: Problem, share: float = 1.0) -> float:
    assert p.strong_convexity is not None and p.smoothness is not None and p.gap is not None
    kept = (1 - min(p.strong_convexity / p.smoothness, 1.0)) ** _pidp_steps(p)
    return kept * p.gap + share * p.dimension * _pidp_noise(p, _pidp_steps(p)) / (2 * p.strong_convexity)


def _least_over_tau(value: Callable[[float], float]) -> float:
    return float(minimize_scalar(lambda x: value(math.exp(x)), bounds=(-30, 30), method="bounded").fun)


def _pidp_generalisation(p: Problem) -> float:
    assert p.strong_convexity and p.smoothness and p.lipschitz and p.optimum is not None
    excess, mu, smooth = _pidp_empirical(p), p.strong_convexity, p.smoothness
    stable = 16 * p.lipschitz**2 / (p.size * mu) ** 2
    risk = p.optimum + excess
    return _least_over_tau(lambda tau: (tau + smooth) * (8 * excess / mu + stable) + smooth * risk / tau)


def _pidp_population(p: Problem) -> float:
    assert p.strong_convexity and p.smoothness and p.lipschitz and p.optimum is not None
    excess, mu, smooth, optimum = _pidp_empirical(p), p.strong_convexity, p.smoothness, p.optimum
    stable = 16 * p.lipschitz**2 / (p.size * mu) ** 2
    return _least_over_tau(lambda t: (t + smooth) * ((8 * t + mu) / (mu * t) * excess + stable) + smooth * optimum / t)


def _pidp_seven(p: Problem) -> float:
    assert p.influential is not None
    n, e, km = float(p.size), p.epsilon, max(p.influential, 1) * p.dimension
    first = km / (n**3 * e**2) + 1 / n
    return min(first, km / (n**2.5 * e**2) + n**-1.5, km**1.5 / (n**2 * e**3) + e / (math.sqrt(km) * n))


def _root_rate(p: Problem) -> float:
    return math.sqrt(p.dimension) / (p.size * p.epsilon)


_CONVEX, _LIPSCHITZ, _SMOOTH = "a convex loss", "slopes of at most G", "curvature of at most L"
_PL, _STRONG = "‖∇‖² ≥ 2μ·excess (Polyak, Łojasiewicz)", "μ-strong convexity"
_FULL = "Its proof takes the mean gradient for a record's: it holds for steps on all records only (errata 11)."
_PIDP = "PIDP-SGD, 2023"
_NGP = "m-NGP, 2022"

BOUNDS: tuple[Bound, ...] = (
    Bound(
        "noisy descent, convex", "lecture on DP-SGD", "empirical", "2RG(2 + ln T)/√T, G² = l² + pσ²",
        ("lipschitz", "radius"), (_CONVEX, _LIPSCHITZ, "a ball of radius R"), True, _lecture_convex,
    ),
    Bound(
        "noisy descent, strongly convex", "lecture on DP-SGD", "empirical", "17G²(1 + ln T)/(sT), G² = l² + pσ²",
        ("lipschitz", "strong_convexity"), (_STRONG, _LIPSCHITZ), True, _lecture_strongly,
    ),
    Bound(
        "full-batch noisy descent", f"{_PIDP}, Theorem 1", "empirical", "(1 − μ/L)^T·Δ₀ + pσ²/(2μ)",
        ("lipschitz", "smoothness", "strong_convexity", "gap"), (_LIPSCHITZ, _SMOOTH, _PL), False, _pidp_empirical, _FULL,
    ),
    Bound(
        "one record a step", f"{_PIDP}, Theorem 1, with the variance that it leaves out", "empirical",
        "(1 − μ/L)^T·Δ₀ + (pσ² + V)/(2μ)",
        ("lipschitz", "smoothness", "strong_convexity", "gap", "variance"), (_LIPSCHITZ, _SMOOTH, _PL), False,
        lambda p: _pidp_empirical(p) + (p.variance or 0.0) / (2 * (p.strong_convexity or math.inf)),
    ),
    Bound(
        "generalisation gap", f"{_PIDP}, Theorem 2", "population", "min over τ of (τ + L)(8E/μ + 16G²/(n²μ²)) + L·risk/τ",
        ("lipschitz", "smoothness", "strong_convexity", "gap", "optimum"), (_LIPSCHITZ, _SMOOTH, _PL), False,
        _pidp_generalisation, _FULL,
    ),
    Bound(
        "population risk", f"{_PIDP}, Theorem 3", "population", "(τ + L)((8τ + μ)E/(μτ) + 16G²/(n²μ²)) + L·L*/τ",
        ("lipschitz", "smoothness", "strong_convexity", "gap", "optimum"), (_LIPSCHITZ, _SMOOTH, _PL), False,
        _pidp_population, _FULL,
    ),
    Bound(
        "noise for k records alone", f"{_PIDP}, Theorem 6", "empirical", "(1 − μ/L)^T·Δ₀ + (k/n)·pσ²/(2μ)",
        ("lipschitz", "smoothness", "strong_convexity", "gap", "influential"), (_LIPSCHITZ, _SMOOTH, _PL), False,
        lambda p: _pidp_empirical(p, (p.influential or 0) / p.size),
        f"{_FULL} PIDP-SGD as published is not private at its ε (errata 8).",
    ),
    Bound(
        "noise for k records alone, population", f"{_PIDP}, Theorem 7", "population",
        "min{kp/(n³ε²) + 1/n, kp/(n^2.5 ε²) + n^−1.5, (kp)^1.5/(n²ε³) + ε/(√(kp)·n)}",
        ("influential",), (_LIPSCHITZ, _SMOOTH, _PL), False, _pidp_seven,
        f"{_FULL} PIDP-SGD as published is not private at its ε (errata 8).",
    ),
    Bound(
        "gradient perturbation, high probability", f"{_NGP}, Theorem 1", "population", "√p/(nε)",
        (), (_LIPSCHITZ, _SMOOTH, _PL, "a bounded loss"), False, _root_rate,
    ),
    Bound(
        "Hölder-smooth losses, high probability", f"{_NGP}, Theorem 2", "population", "n^(−2α/(1 + 2α)) + √p/(nε)",
        ("hoelder",), ("gradients continuous with exponent α", _PL), False,
        lambda p: float(p.size) ** (-2 * (p.hoelder or 0.0) / (1 + 2 * (p.hoelder or 0.0))) + _root_rate(p),
    ),
    Bound(
        "normalised gradients, high probability", f"{_NGP}, Theorem 3", "population", "√p/(nε)",
        (), ("gradients continuous with exponent α", _PL), False, _root_rate,
        "m-NGP as published is not private at its ε (errata 7).",
    ),
    Bound(
        "objective perturbation", "Kifer, Smith, Thakurta 2012, as in Li, Liu, Li, Wang, Liu, Theorem 2", "empirical",
        "ζ‖θ̂‖√(p ln(1/δ))/(nε)", ("lipschitz", "norm"), (_CONVEX, _LIPSCHITZ, "rank-one Hessians"), False,
        lambda p: (p.lipschitz or 0.0) * (p.norm or 0.0) * math.sqrt(p.dimension * p.log_delta) / (p.size * p.epsilon),
    ),
    Bound(
        "output and objective perturbation, strongly convex", "Chaudhuri, Monteleoni, Sarwate 2011", "empirical",
        "G²p²/(μn²ε²)", ("lipschitz", "strong_convexity"), (_STRONG, _LIPSCHITZ, "δ = 0"), False,
        lambda p: (p.lipschitz or 0.0) ** 2 * p.dimension**2 / ((p.strong_convexity or 0.0) * (p.size * p.epsilon) ** 2),
    ),
    Bound(
        "noisy SVRG", "Wang, Ye, Xu 2017", "empirical", "G²p·ln(n)·ln(1/δ)/(μn²ε²)", ("lipschitz", "strong_convexity"),
        (_STRONG, _LIPSCHITZ, _SMOOTH), False,
        lambda p: (p.lipschitz or 0.0) ** 2 * p.dimension * math.log(p.size) * p.log_delta
        / ((p.strong_convexity or 0.0) * (p.size * p.epsilon) ** 2),
    ),
    Bound(
        "phased and noisy descent", "Feldman, Koren, Talwar 2020", "population", "lR(1/√n + √(p ln(1/δ))/(nε))",
        ("lipschitz", "radius"), (_CONVEX, _LIPSCHITZ, "a ball of radius R"), False,
        lambda p: (p.lipschitz or 0.0) * (p.radius or 0.0)
        * (p.size**-0.5 + math.sqrt(p.dimension * p.log_delta) / (p.size * p.epsilon)),
    ),
    Bound(
        "no method is better, convex", "Bassily, Smith, Thakurta 2014", "lower", "min{1, √p/(nε)}·lR", ("lipschitz", "radius"),
        (_CONVEX, _LIPSCHITZ), False, lambda p: (p.lipschitz or 0.0) * (p.radius or 0.0) * min(1.0, _root_rate(p)),
    ),
    Bound(
        "no method is better, strongly convex", "Bassily, Smith, Thakurta 2014", "lower", "min{1, p/(n²ε²)}·l²/μ",
        ("lipschitz", "strong_convexity"), (_STRONG, _LIPSCHITZ), False,
        lambda p: (p.lipschitz or 0.0) ** 2 / (p.strong_convexity or math.inf) * min(1.0, _root_rate(p) ** 2),
    ),
)  # fmt: skip


def measured_problem(objective: LinearObjective, records: Records, theta: Array, epsilon: float, delta: float) -> Problem:
    """The constants of a fitted problem, of the mean loss with its regulariser: L and μ at θ, the variance of gradients there,
    the gap at 0. G is the loss's own bound. NOT PRIVATE: estimates from records; μ elsewhere may be less."""
    size = len(records)
    modulus = objective.strong_convexity / size
    curvatures = np.linalg.eigvalsh(np.asarray(objective.hessian(theta, records))) / size
    value = objective.evaluate(theta, records)[0] / size + modulus / 2 * float(theta @ theta)
    start = objective.evaluate(np.zeros_like(theta), records)[0] / size
    squares, mean = 0.0, np.zeros_like(theta)
    for batch in records.batches():
        found = objective.per_example(theta, batch)
        squares += float(np.sum(np.square(found.norms)))
        mean += found.weighted_sum(np.ones(len(found.norms)))
    facts = objective.facts
    return Problem(
        size=size,
        dimension=objective.dimension,
        epsilon=epsilon,
        delta=delta,
        lipschitz=facts.lipschitz,
        smoothness=max(float(curvatures[-1]) + modulus, 1e-300),
        strong_convexity=max(float(curvatures[0]), 0.0) + modulus,
        radius=objective.radius or float(np.linalg.norm(theta)),
        gap=max(start - value, 0.0),
        variance=max(squares / size - float(mean @ mean) / size**2, 0.0),
        optimum=max(value, 0.0),
        norm=float(np.linalg.norm(theta)),
    )
