"""The Gaussian mechanism's exact privacy profile, and its inverses.

With s = 1 ÷ noise multiplier, δ(ε) = Φ(s/2 − ε/s) − e^ε Φ(−s/2 − ε/s) (Balle & Wang 2018, Theorem 8).
Independent Gaussians, chosen adaptively or not, compose to one with s² = Σ sᵢ² (Dong, Roth, Su 2022, Corollary 3.3).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from scipy.optimize import brentq
from scipy.special import erfcx, log_ndtr

__all__ = ["gaussian_delta", "gaussian_epsilon", "gaussian_log_delta", "gaussian_mu", "solve_decreasing"]

_LITTLE_NOISE = 1e5  # privacy losses of 10¹⁰ and more

_HALF_ROOT_PI = math.sqrt(math.pi / 2)


def _mills(x: float) -> float:
    """(1 − Φ(x))/φ(x)."""
    return _HALF_ROOT_PI * float(erfcx(x / math.sqrt(2)))


def gaussian_log_delta(s: float, epsilon: float) -> float:
    """ln δ(ε) of the Gaussian mechanism with noise multiplier 1/s; any real ε. −inf where s = 0 and ε ≥ 0."""
    if s == 0:
        return -math.inf if epsilon >= 0 else math.log(-math.expm1(epsilon))
    upper, lower = s / 2 - epsilon / s, -s / 2 - epsilon / s
    if s > _LITTLE_NOISE:  # e^ε would lose its digits: leave what is subtracted out
        return float(log_ndtr(upper))
    # e^ε φ(lower) = φ(upper), so δ = φ(upper)·(mills(−upper) − mills(−lower)): no cancellation of tiny tails.
    if -upper < -30:  # erfcx overflows; here δ is 1 − something tiny
        gap = math.exp(epsilon + float(log_ndtr(lower))) + math.exp(float(log_ndtr(-upper)))
        return math.log1p(-gap) if gap < 1 else -math.inf
    log_density = -(upper**2) / 2 - 0.5 * math.log(2 * math.pi)
    difference = 0.0 if -upper > 1e4 * max(1.0, s) else _mills(-upper) - _mills(-lower)
    if difference <= 1e-9:  # rounding eats the difference; with x = −upper it is
        # ∫ e^{−xt − t²/2}(1 − e^{−st}) dt ≤ s/(x(x + s)) for x > 0, tight in the far tail,
        # and ≤ s·(1 − x·mills(x)), tight for small s
        near = s * (1 + upper * _mills(-upper)) if -upper < 1e3 else math.inf
        difference = min(near, s / (upper * lower) if upper < 0 else math.inf)
    return log_density + math.log(difference)


def gaussian_delta(noise_multiplier: float, epsilon: float) -> float:
    """Smallest δ at which noise `noise_multiplier`·sensitivity is (ε, δ)-private."""
    return min(1.0, math.exp(gaussian_log_delta(1 / noise_multiplier, epsilon)))


def gaussian_epsilon(noise_multiplier: float, delta: float) -> float:
    """Smallest ε ≥ 0 with δ(ε) ≤ `delta`; 0 where δ(0) already suffices."""
    s = 1 / noise_multiplier
    target = math.log(delta)
    return solve_decreasing(lambda epsilon: gaussian_log_delta(s, epsilon) - target, scale=s * s / 2 + s)


def gaussian_mu(epsilon: float, delta: float) -> float:
    """Largest s = 1/noise_multiplier that is (ε, δ)-private: calibration of the plain Gaussian mechanism."""
    target = math.log(delta)

    def excess(log_s: float) -> float:
        return gaussian_log_delta(math.exp(log_s), epsilon) - target

    low = math.log(min(1.0, epsilon) / 60 / math.sqrt(max(1.0, -target)))
    while excess(low) > 0:
        low -= 2
    high = low + 1
    while excess(high) <= 0:
        low, high = high, high + 1
    root = brentq(excess, low, high, xtol=1e-13, rtol=1e-14)
    while excess(root) > 0:  # step back over the solver's tolerance, never forward
        root -= 1e-13 * max(1.0, abs(root))
    return math.exp(root)


def solve_decreasing(excess: Callable[[float], float], scale: float, relative: float = 1e-9) -> float:
    """Smallest x ≥ 0, to `relative`, with excess(x) ≤ 0 for a decreasing function; always on the safe side."""
    if excess(0.0) <= 0:
        return 0.0
    low, high = 0.0, max(scale, 1e-6)
    while excess(high) > 0:
        low, high = high, 2 * high
        if high > 1e12:
            return math.inf
    if math.isinf(high):
        return math.inf
    root = float(brentq(excess, low, high, xtol=relative * high * 0.1, rtol=max(relative * 0.1, 4 * np.finfo(float).eps)))
    step = relative * max(root, 1e-12)
    while excess(root) > 0:
        root, step = root + step, 2 * step
    return root
