"""The Gaussian mechanism's exact privacy profile, and its inverses.

With s = 1 ÷ noise multiplier, δ(ε) = Φ(s/2 − ε/s) − e^ε Φ(−s/2 − ε/s) (Balle & Wang 2018, Theorem 8).
Independent Gaussians, chosen adaptively or not, compose to one with s² = Σ sᵢ² (Dong, Roth, Su 2022, Corollary 3.3).

With x = ε/s − s/2 and Mills' ratio m(x) = (1 − Φ(x))/φ(x) this is δ = φ(x)·(m(x) − m(x + s)), with no tiny tails to subtract.
Where noise is large the two ratios are near each other, and their difference is taken as the integral of −m′(t) = 1 − t·m(t) over
[x, x + s]. m(x) = ∫ e^{−xt − t²/2} dt over t ≥ 0 is completely monotone, so that −m′ has a fourth derivative above 0: Simpson's
rule bounds the integral from above. Every rounding is on the side of a larger δ.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable

import numpy as np
from scipy.special import erfcx

from dperm.privacy.accountants import root_finding

_EPS = float(np.finfo(np.float64).eps)
_HALF_ROOT_PI = math.sqrt(math.pi / 2)
_FAR = 1e100  # whose square still is a double
_SERIES = tuple((-1) ** k * math.prod(range(1, 2 * k + 2, 2)) for k in range(9))  # −m′(t) = Σ (−1)ᵏ (2k + 1)!! / t^{2k + 2}
_SERIES_FROM = 30.0  # where the first term that is left out is less than 1e-17 of the sum


def _mills(x: float) -> tuple[float, float]:
    """(1 − Φ(x))/φ(x), from x = −30 on, and a bound on its error: last digits of erfcx, and what it makes of its argument's."""
    value = _HALF_ROOT_PI * float(erfcx(x / math.sqrt(2)))
    return value, _EPS * value * (8 + 2 * min(x, 0.0) ** 2)


def _mills_falls(t: float) -> float:
    """Upper bound on 1 − t·m(t), by how much Mills' ratio falls at t."""
    if t < _SERIES_FROM:
        value, error = _mills(t)
        return (1 - t * value) * (1 + 2 * _EPS) + abs(t) * (error + 2 * _EPS * value)
    square = 1 / t**2
    total = 0.0
    for term in reversed(_SERIES):  # an alternating series that envelops: it ends on a positive term
        total = total * square + term
    return total * square * (1 + 8 * _EPS)


def _mills_difference(x: float, s: float) -> float:
    """Upper bound on m(x) − m(x + s) for x ≥ −30: the least of three, of which one is near."""
    (near, above), (far, below) = _mills(x), _mills((x + s) * (1 + _EPS))
    bounds = [near - far + above + below + _EPS * near]
    if s < 1:
        ends = _mills_falls(x) + _mills_falls(x + s * (1 - _EPS) - _EPS * abs(x))
        bounds.append(s / 6 * (ends + 4 * _mills_falls(x + s / 2 * (1 - _EPS) - _EPS * abs(x))) * (1 + 8 * _EPS))
    if x > 0:  # ∫ e^{−xt}(1 − e^{−st}) dt
        bounds.append(s / x / (x + s) * (1 + 4 * _EPS))
    return min(bounds) + sys.float_info.min


def gaussian_log_delta(s: float, epsilon: float) -> float:
    """An upper bound on ln δ(ε) of the Gaussian mechanism with noise multiplier 1/s, off by 1e-11 for δ above 1e-200 and
    noise above 0.1, and in proportion to 1/noise² below; any real ε. −inf where s = 0 and ε ≥ 0."""
    if epsilon < 0:  # δ(ε) = 1 − e^ε + e^ε·δ(−ε): the pair with its places exchanged is the same
        part = math.exp(epsilon + gaussian_log_delta(s, -epsilon))
        log_delta = math.log(-math.expm1(epsilon) + part)
        return min(0.0, log_delta + _EPS * (8 + 2 * abs(log_delta)))
    if s == 0:
        return -math.inf
    ratio = min(epsilon / s, _FAR)
    x = ratio - s / 2 - 2 * _EPS * (ratio + s / 2)  # rounded down: this is δ at a smaller ε
    if x < -30:
        return 0.0
    log_difference = math.log(_mills_difference(x, s))
    log_delta = -(x**2) / 2 - 0.5 * math.log(2 * math.pi) + log_difference
    return min(0.0, log_delta + _EPS * (8 + x**2 + 2 * abs(log_difference)))


def gaussian_delta(noise_multiplier: float, epsilon: float) -> float:
    """Smallest δ at which noise `noise_multiplier`·sensitivity is (ε, δ)-private."""
    log_delta = gaussian_log_delta(math.nextafter(1 / noise_multiplier, math.inf), epsilon)
    return min(1.0, math.nextafter(math.exp(log_delta), math.inf))  # exp is right to one place, below the normal range too


def gaussian_epsilon(noise_multiplier: float, delta: float) -> float:
    """Smallest ε ≥ 0 with δ(ε) ≤ `delta`; 0 where δ(0) already suffices."""
    s = math.nextafter(1 / noise_multiplier, math.inf)
    target = math.log(delta) * (1 + _EPS)
    if delta < sys.float_info.min:  # a double that is rounded up in `gaussian_delta` shall not exceed it
        target -= 1.0
    return solve_decreasing(lambda epsilon: gaussian_log_delta(s, epsilon) - target, scale=s)


def gaussian_mu(epsilon: float, delta: float) -> float:
    """Largest s = 1/noise_multiplier that is (ε, δ)-private: calibration of the plain Gaussian mechanism."""
    target = math.log(delta)

    def excess(log_s: float) -> float:
        return gaussian_log_delta(math.exp(log_s), epsilon) - target

    low, high = -2.0, 0.0
    while excess(low) > 0:
        low, high = low - 2, low
    while excess(high) <= 0:
        low, high = high, high + 2
    root, step = root_finding.root(excess, low, high, xtol=1e-13), 2e-13  # more than the last place of any double's logarithm
    while excess(root) > 0:  # step back over the solver's tolerance, never forward; of a vast ε δ is known less finely than that
        root, step = root - step, 2 * step
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
    root = root_finding.root(excess, low, high, xtol=relative * high * 0.1, rtol=max(relative * 0.1, 4 * np.finfo(float).eps))
    step = relative * max(root, 1e-12)
    while excess(root) > 0:
        root, step = root + step, 2 * step
    return root
