"""Privacy loss distributions: composition by FFT, exponentially tilted so that the tail that matters keeps its digits.

A mechanism's pair (P, Q) is laid on a grid of losses by splitting every interval's mass between its two ends so that
both its P-mass and its Q-mass are kept: the profile is then exact at grid points and linear in e^ε between them, above
the true one ("connect the dots", Doroshenko, Ghazi, Kamath, Kumar, Manurangsi 2022). Before the FFT each
distribution is multiplied by e^{λ·loss} and normalised; the λ that is optimal for Rényi accounting puts the mean of the
composition near the ε asked for. Aliasing, truncation and rounding are then errors relative to a
Chernoff bound, not to 1, and are added to δ. Every result is an upper bound.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.fft import irfft, next_fast_len, rfft
from scipy.optimize import minimize_scalar

from dperm.privacy.events import Event, Gaussian, leaves
from dperm.privacy.gaussian import solve_decreasing
from dperm.privacy.pairs import LOSS_CAP, MOST_NOISE, LossPair, composed_pairs, gaussian_pair, symmetric

__all__ = ["PrivacyLossDistribution", "lay", "pld_delta", "pld_epsilon", "pld_epsilon_and_doubt"]

Array = NDArray[np.float64]

#: Relative growth of the composition's variance that the grid may cause; ε grows by about as much.
TOLERANCE = 2e-5
_ALIASED = 1e-11  # mass of the tilted composition allowed outside the window
_VANISHED = -110.0  # logarithm of what is left out of a frequency: with all others far less than the slack of `log_delta`
_OUTSIDE = 3e-40  # P-mass of one event outside its support
_WIDEST_CELL = 20.0  # so that a cell beyond the largest finite loss still ends within doubles
_MAX_POINTS = 1 << 22
_ANCHORS = (0.02, 0.3, 0.9)  # where `deltas` composes, in units of the largest ε
_STEPS = (7.0, 5.0, 3.0, 1.5, 0.5, 0.15, 0.05, 0.015)  # exponents tried in Chernoff bounds, in units of 1/std


@dataclass(frozen=True)
class _Discrete:
    """`count` copies of a distribution with P-masses `mass` at losses h·(start + 0, 1, …)."""

    mass: Array
    start: int
    h: float
    count: int

    @functools.cached_property
    def losses(self) -> Array:
        return self.h * np.arange(self.start, self.start + self.mass.size, dtype=np.float64)

    @functools.cached_property
    def log_mass(self) -> Array:
        with np.errstate(divide="ignore"):
            return np.log(self.mass)

    def tilted(self, t: float) -> tuple[Array, float]:
        """Probabilities ∝ mass·e^{t·loss}, and ln Σ mass·e^{t·loss}."""
        exponent = self.log_mass + t * self.losses
        peak = float(exponent.max())
        weights = np.exp(exponent - peak)
        total = float(weights.sum())
        return weights / total, peak + math.log(total)

    def log_moment(self, t: float) -> float:
        return self.tilted(t)[1]


def lay(pair: LossPair, h: float, count: int = 1) -> tuple[_Discrete, float]:
    """Lay a pair on the grid h·ℤ; also the P-mass counted as infinite."""
    low, high = pair.support
    low, high = max(low, -LOSS_CAP), min(high, LOSS_CAP)
    start, stop = math.floor(low / h) - 1, math.ceil(high / h) + 1
    edges = h * np.arange(start, stop + 1, dtype=np.float64)
    p, q = pair.masses(edges)
    upper = np.clip((p - q * np.exp(edges[:-1])) / -math.expm1(-h), 0.0, p)
    mass = np.zeros(edges.size)
    mass[1:] += upper
    mass[:-1] += p - upper
    infinite = _OUTSIDE
    if pair.support[1] > LOSS_CAP or pair.support[0] < -LOSS_CAP:
        infinite += max(0.0, 1.0 - float(p.sum())) + 1e-15  # what lies outside the grid, and the rounding of that difference
    return _Discrete(mass, start, h, count), infinite


_Objective = Callable[[Sequence[_Discrete], float], float]


class _Composition:
    """The composition of laid distributions in one direction, tilted by λ."""

    def __init__(self, parts: Sequence[_Discrete], infinite: float, tilt: float) -> None:
        self.tilt = tilt
        self.infinite = infinite
        self.h = parts[0].h
        tilted = [part.tilted(tilt) for part in parts]
        self.log_moment = sum(part.count * log_total for part, (_, log_total) in zip(parts, tilted, strict=True))
        mean, variance = _moments(parts, [weights for weights, _ in tilted])
        scale = max(math.sqrt(variance), self.h)
        above = self._reach(parts, mean, scale, 1.0)
        below = self._reach(parts, mean, scale, -1.0)
        most = (_MAX_POINTS - 2) * self.h
        self.missing = 0.0  # mass of the tilted composition outside a window that had to be cut
        if above + below > most:
            above, below = (min(above, max(most / 2, most - below)), min(below, max(most / 2, most - above)))
            self.missing = self._outside(parts, mean, scale, above, 1.0) + self._outside(parts, mean, scale, below, -1.0)
        size = next_fast_len(math.ceil((above + below) / self.h) + 2, real=True)
        first = math.floor((mean - below) / self.h)
        spectrum = np.zeros(size // 2 + 1, dtype=complex)
        left: Any = slice(None)  # frequencies that are not next to nothing yet: of many copies they are few
        product: Any = 1.0
        shift = 0
        for part, (weights, _) in zip(parts, tilted, strict=True):
            wrapped = np.zeros(-(-weights.size // size) * size)
            wrapped[: weights.size] = weights
            factor = rfft(wrapped.reshape(-1, size).sum(axis=0))[left]
            with np.errstate(divide="ignore"):
                stays = np.log(np.abs(factor)) * part.count + np.log(np.abs(product)) > _VANISHED
            product = (product if np.isscalar(product) else product[stays]) * factor[stays] ** part.count
            left = np.flatnonzero(stays) if isinstance(left, slice) else left[stays]
            shift += part.start * part.count
        spectrum[left] = product
        masses = np.maximum(irfft(spectrum, size), 0.0)
        self.masses = np.roll(masses, (shift - first) % size)
        self.losses = self.h * (float(first) + np.arange(size))

    def _reach(self, parts: Sequence[_Discrete], mean: float, std: float, side: float) -> float:
        """Distance from the mean beyond which the tilted composition has mass ≤ _ALIASED (Chernoff)."""
        best = math.inf
        for step in _STEPS:
            reach = (self._centred_moment(parts, mean, side * step / std) - math.log(_ALIASED)) * std / step
            if reach > best:
                break
            best = reach
        return max(best, self.h)

    def _outside(self, parts: Sequence[_Discrete], mean: float, std: float, distance: float, side: float) -> float:
        """Chernoff bound on the tilted mass further than `distance` from the mean on one side."""
        exponents = [self._centred_moment(parts, mean, side * step / std) - distance * step / std for step in _STEPS]
        return math.exp(min(0.0, *exponents))

    def _centred_moment(self, parts: Sequence[_Discrete], mean: float, t: float) -> float:
        """ln E e^{t·(loss − mean)} of the tilted composition."""
        return sum(part.count * part.log_moment(self.tilt + t) for part in parts) - self.log_moment - t * mean

    def log_delta(self, epsilon: float) -> float:
        """ln of an upper bound on δ(ε)."""
        lam = self.tilt
        first = int(np.searchsorted(self.losses, epsilon, side="right"))
        gap = self.losses[first:] - epsilon
        last = int(np.searchsorted(gap, 60.0 / max(lam, 1e-12)))  # e^{−60}: below the slack added next
        gap = gap[:last]
        total = float(np.dot(self.masses[first : first + last], np.exp(-lam * gap) * -np.expm1(-gap)))
        peak = (lam / (lam + 1)) ** lam / (lam + 1)  # max over x ≥ 0 of e^{−λx}(1 − e^{−x})
        log_tail = self.log_moment - lam * epsilon + math.log(total + (3 * _ALIASED + 2 * self.missing) * peak + 1e-26)
        return min(0.0, float(np.logaddexp(log_tail, math.log(self.infinite))))


def _moments(parts: Sequence[_Discrete], weights: Sequence[Array]) -> tuple[float, float]:
    mean = variance = 0.0
    for part, weight in zip(parts, weights, strict=True):
        centre = float(weight @ part.losses)
        mean += part.count * centre
        variance += part.count * float(weight @ np.square(part.losses - centre))
    return mean, variance


class PrivacyLossDistribution:
    """The composed privacy loss of an event, both directions. Raises UnsupportedEventError where it has no bound."""

    def __init__(self, event: Event, tolerance: float = TOLERANCE) -> None:
        counts = leaves(event)
        # Gaussians compose exactly into one, under any relation (Dong, Roth, Su 2022, Corollary 3.3).
        squares = sum(n * min(1 / leaf.noise_multiplier, 1e100) ** 2 for leaf, n in counts.items() if isinstance(leaf, Gaussian))
        pairs = [pair for leaf, n in counts.items() if not isinstance(leaf, Gaussian) for pair in composed_pairs(leaf, n)]
        if squares > 0:
            pairs.append((symmetric(gaussian_pair(max(math.sqrt(squares), 1 / MOST_NOISE))), 1))
        self._tolerance = tolerance
        self._astray = min(1.0, sum(n * leaf.astray for leaf, n in counts.items()))
        self.coarse = False  # whether a grid had to be coarser than the tolerance asks for, so that bounds are loose
        # nor is there hope where all losses are beyond the largest that counts as finite
        hopeless = any(pair.infinite >= 1 or max(pair.remove.support[0], pair.add.support[0]) >= LOSS_CAP for pair, _ in pairs)
        self._infinite = 1.0 if hopeless else -math.expm1(sum(n * math.log1p(-pair.infinite) for pair, n in pairs))
        pairs = [] if hopeless else pairs
        one_direction = all(pair.remove is pair.add for pair, _ in pairs)
        self._directions = [[(pair.remove, n) for pair, n in pairs]]
        if not one_direction:
            self._directions.append([(pair.add, n) for pair, n in pairs])

    def epsilon(self, delta: float) -> float:
        """Upper bound on the smallest ε ≥ 0 with δ(ε) ≤ `delta`; inf where no finite ε is found."""
        if self._infinite >= 1:
            return math.inf
        tried = 0.0
        while (left := delta - self._gone_astray(tried)) > 0:
            found = max((self._epsilon(pairs, left) for pairs in self._directions), default=0.0)
            if found <= tried or not self._astray:
                return max(found, tried)
            tried = found * (1 + 1e-6)  # what goes astray costs more the larger ε is: up to where both agree
        return math.inf

    def delta(self, epsilon: float) -> float:
        """Upper bound on δ(ε)."""
        if self._infinite >= 1:
            return 1.0
        kept = max((math.exp(self._log_delta(pairs, epsilon)) for pairs in self._directions), default=0.0)
        return min(1.0, kept + self._gone_astray(epsilon))

    def _gone_astray(self, epsilon: float | Array) -> Any:
        """What a mechanism that is another with a small chance adds to δ, on both sides: |P − P'| and e^ε·|Q − Q'|."""
        return self._astray * (1 + np.exp(np.minimum(epsilon, LOSS_CAP))) if self._astray else 0.0

    def deltas(self, epsilons: Sequence[float]) -> Array:
        """The same at each of `epsilons`, from a few compositions: near what each would have of its own, but for one or two steps
        at tiny ε, where it is far above."""
        points = np.asarray(epsilons, dtype=float)
        if self._infinite >= 1:
            return np.ones(len(points))
        places = [share * max(float(points.max()), 1e-6) for share in _ANCHORS]
        log_deltas = np.full(len(points), -math.inf)
        for pairs in self._directions:
            if self._infinite_mass(pairs) >= 0.5:
                return np.ones(len(points))
            logs = np.zeros(len(points))
            for number, place in enumerate(places):
                near = points > (places[number - 1] + place) / 2 if number else np.full(len(points), True)
                if np.any(near & (logs > log_deltas)):  # the other direction may be the larger one already
                    composition = self._at(pairs, place)
                    logs = np.minimum(logs, [composition.log_delta(epsilon) for epsilon in points])
            log_deltas = np.maximum(log_deltas, logs)
        return np.minimum(np.exp(log_deltas) + self._gone_astray(points), 1.0)

    def _epsilon(self, pairs: list[tuple[LossPair, int]], delta: float) -> float:
        log_target = math.log(delta)
        if self._infinite_mass(pairs) >= delta:
            return math.inf

        def renyi(parts: Sequence[_Discrete], t: float) -> float:
            return (sum(part.count * part.log_moment(t) for part in parts) - log_target + _log_peak(t)) / t

        composition, start = self._compose(pairs, renyi, lambda best: max(best, 1e-4))
        if composition.infinite >= delta:
            return math.inf
        return solve_decreasing(lambda epsilon: composition.log_delta(epsilon) - log_target, scale=max(start, 1e-6))

    def _log_delta(self, pairs: list[tuple[LossPair, int]], epsilon: float) -> float:
        if self._infinite_mass(pairs) >= 0.5:  # all but hopeless, and perhaps nothing left to compose
            return 0.0
        return self._at(pairs, epsilon).log_delta(epsilon)

    def _at(self, pairs: list[tuple[LossPair, int]], epsilon: float) -> _Composition:
        """The composition tilted for `epsilon`."""

        def chernoff(parts: Sequence[_Discrete], t: float) -> float:
            return sum(part.count * part.log_moment(t) for part in parts) - t * epsilon + _log_peak(t)

        return self._compose(pairs, chernoff, lambda _: max(epsilon, 1e-2))[0]

    def _infinite_mass(self, pairs: list[tuple[LossPair, int]]) -> float:
        """Bound on the P-mass of an infinite loss, from a coarse grid."""
        return self._infinite + sum(n * lay(pair, _capped_width(pair) / 200, n)[1] for pair, n in pairs)

    def _compose(
        self, pairs: list[tuple[LossPair, int]], objective: _Objective, scale: Callable[[float], float]
    ) -> tuple[_Composition, float]:
        """Choose the tilt that minimises `objective` and a grid fine enough for it, then compose.

        `scale` maps that minimum to the size of the ε in question, which the grid must resolve as well.
        """
        copies = sum(n for _, n in pairs)
        widest = max(_capped_width(pair) for pair, _ in pairs)
        laid = [lay(pair, _capped_width(pair) / 1000, n) for pair, n in pairs]
        parts = [part for part, _ in laid]
        tilt, best = _minimise(objective, parts)
        h = math.inf
        while True:
            # A grid coarser than the distribution overstates its variance: refine until the two agree.
            _, variance = _moments(parts, [part.tilted(tilt)[0] for part in parts])
            deviation = max(math.sqrt(variance), widest / 2000)
            spacing = deviation * math.sqrt(6 * self._tolerance / copies)
            # Splitting masses adds up to t²h²/8 to one copy's log-moment: ε moves by count·t·h²/8. It must resolve ε too.
            wanted = scale(best)
            spacing = min(spacing, math.sqrt(8 * self._tolerance * wanted / (tilt * copies)), wanted * math.sqrt(self._tolerance))
            finest = max(widest, 40 * deviation) / _MAX_POINTS
            self.coarse = self.coarse or spacing < finest
            spacing = min(max(spacing, finest), _WIDEST_CELL)
            if spacing > 0.7 * h:
                break
            if h < math.inf:
                tilt, best = _minimise(objective, parts)
            h = spacing
            laid = [lay(pair, h, n) for pair, n in pairs]
            parts = [part for part, _ in laid]
        infinite = self._infinite + sum(n * mass for (_, mass), (_, n) in zip(laid, pairs, strict=True))
        return _Composition(parts, min(infinite, 1.0), tilt), best


def _capped_width(pair: LossPair) -> float:
    low, high = pair.support
    return max(min(high, LOSS_CAP) - max(low, -LOSS_CAP), 1e-12)


def _minimise(objective: _Objective, parts: Sequence[_Discrete]) -> tuple[float, float]:
    """The tilt with the smallest objective, and that value."""
    best = minimize_scalar(
        lambda log_t: objective(parts, math.exp(log_t)), bounds=(-9.0, 9.5), method="bounded", options={"xatol": 0.03}
    )
    return math.exp(float(best.x)), float(best.fun)


def _log_peak(t: float) -> float:
    """ln max over x ≥ 0 of e^{−tx}(1 − e^{−x})."""
    return t * math.log(t / (t + 1)) - math.log1p(t)


def pld_epsilon(event: Event, delta: float, tolerance: float = TOLERANCE) -> float:
    return PrivacyLossDistribution(event, tolerance).epsilon(delta)


def pld_epsilon_and_doubt(event: Event, delta: float, tolerance: float = TOLERANCE) -> tuple[float, bool]:
    """`pld_epsilon`, and whether its grid was too coarse for the tolerance: another accountant may then give less."""
    distribution = PrivacyLossDistribution(event, tolerance)
    return distribution.epsilon(delta), distribution.coarse


def pld_delta(event: Event, epsilon: float, tolerance: float = TOLERANCE) -> float:
    return PrivacyLossDistribution(event, tolerance).delta(epsilon)
