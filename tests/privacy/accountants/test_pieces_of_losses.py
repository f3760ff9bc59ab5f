"""Piecewise-linear losses of several pieces, with jumps and flat parts: profiles, moments and masses against integrals."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import mpmath
import numpy as np
import pytest

from dperm.privacy.accountants.loss_bound import (
    HalfNormal,
    Law,
    LossBound,
    Normal,
    Rayleigh,
    SymmetrisedLoss,
    log_normal_mass,
    upper_envelope,
)

INFINITE = math.inf
Function = Callable[[np.ndarray], np.ndarray]
DENSITIES: dict[type[Law], Function] = {
    Normal: lambda y: np.exp(-np.square(y) / 2) / math.sqrt(2 * math.pi),
    HalfNormal: lambda y: 2 * np.exp(-np.square(y) / 2) / math.sqrt(2 * math.pi),
    Rayleigh: lambda y: y * np.exp(-np.square(y) / 2),
}
NODES, WEIGHTS = np.polynomial.legendre.leggauss(20)


def one(losses: np.ndarray) -> np.ndarray:
    return np.ones_like(losses)


def inverse(losses: np.ndarray) -> np.ndarray:
    """e^−loss, by which P-masses become Q-masses."""
    return np.exp(-losses)


@dataclass(frozen=True)
class Pieces:
    """R(y) on ]-inf, breaks[0]], ]breaks[0], breaks[1]], …, of a law of its own."""

    law: type[Law]
    slopes: tuple[float, ...]
    intercepts: tuple[float, ...]
    breaks: tuple[float, ...]
    most: float = 36.0  # of the variable

    @property
    def bound(self) -> LossBound:
        return LossBound(self.law(), np.array(self.slopes), np.array(self.intercepts), np.array(self.breaks))

    def integral(self, of: Function, low: float, high: float) -> float:
        """∫ of(R(y)) dP over low < R(y) ≤ high, by Gauss and Legendre: a sum of numbers of one sign, to thirteen digits."""
        ends = [-self.most if self.law is Normal else 0.0, *self.breaks, self.most]
        total = 0.0
        for m, c, start, stop in zip(self.slopes, self.intercepts, ends, ends[1:], strict=False):
            a, b = (max(start, ends[0]), stop) if m else (start, stop if low < c <= high else start)
            if m:
                a, b = max(a, (low - c) / m), min(b, (high - c) / m)
            if a < b:
                cuts = np.linspace(a, b, 2 + int(2 * (b - a)))
                y = ((cuts[1:] + cuts[:-1])[:, None] + np.diff(cuts)[:, None] * NODES).ravel() / 2
                total += float((np.diff(cuts)[:, None] / 2 * WEIGHTS).ravel() @ (of(c + m * y) * DENSITIES[self.law](y)))
        return total

    def profile(self, value: float) -> float:
        return self.integral(lambda losses: -np.expm1(value - losses), value, INFINITE)


PIECES = [
    Pieces(Normal, (0.2, 0.5, 1.1), (0.4, 0.7, 0.22), (-1.0, 0.8)),
    Pieces(Normal, (0.1, 0.9, 0.7, 2.0), (-0.3, -0.3, -0.2, -25.0), (-25.0, 0.5, 18.0)),  # pieces where nothing is, and a fall
    Pieces(HalfNormal, (0.0, 0.8), (0.5, 0.1), (0.5,)),  # a loss that has a mass of its own
    Pieces(HalfNormal, (0.3, 3.0), (0.1, -5.3), (2.0,)),
    Pieces(HalfNormal, (0.5, 0.4), (0.1, 0.7), (1.0,)),  # a jump
    Pieces(Rayleigh, (0.4,), (0.2,), ()),
    Pieces(Rayleigh, (0.05, 0.0, 1.5), (0.0, 0.05, -2.95), (1.0, 2.0)),
]


@pytest.mark.parametrize("pieces", PIECES, ids=range(len(PIECES)))
def test_profiles_of_several_pieces_are_their_integrals(pieces: Pieces) -> None:
    low, high = pieces.bound.support
    for place in (-0.2, 0.0, 0.1, 0.35, 0.5, 0.7, 0.97):
        value = low + place * (high - low)
        exact = pieces.profile(value)
        assert exact * (1 - 1e-13) <= pieces.bound.delta(value) <= exact * (1 + 1e-8) + 4e-40
    assert pieces.bound.delta(high + 1.0) <= 4e-40
    assert 1 - 1e-12 <= pieces.bound.delta(low - 40.0) <= 1.0


@pytest.mark.parametrize("pieces", PIECES, ids=range(len(PIECES)))
def test_moments_of_several_pieces_are_their_integrals(pieces: Pieces) -> None:
    """The last moves the mass of a normal variable by fifteen deviations."""
    for t in (0.3, 2.0, 15.0 / max(pieces.slopes)):
        whole = replace(pieces, most=12.0 + t * max(pieces.slopes))
        exact = math.log(whole.integral(lambda losses, t=t: np.exp(t * losses), -INFINITE, INFINITE))
        found = pieces.bound.log_moment(t)
        assert exact - 1e-12 * abs(exact) <= found <= exact + 1e-12 * (1 + abs(exact) + t * t)
        assert pieces.bound.rdp(np.array([1 + t])) == pytest.approx([found / t], rel=1e-12)


@pytest.mark.parametrize("pieces", PIECES, ids=range(len(PIECES)))
def test_masses_of_several_pieces_are_their_integrals(pieces: Pieces) -> None:
    """Also where an end of an interval is a loss that has a mass of its own: it belongs to the interval below."""
    bound, pieces = pieces.bound, replace(pieces, most=13.5)
    low, high = bound.support
    inner = [low + place * (high - low) for place in (-0.1, 0.02, 0.3, 0.6, 0.9)]
    atoms = [c for c, m in zip(pieces.intercepts, pieces.slopes, strict=True) if m == 0]
    edges = [-INFINITE, *sorted({*inner, *atoms, *(atom - 1e-3 for atom in atoms)}), INFINITE]
    p, q = bound.masses(np.array(edges))
    exact = [[pieces.integral(of, a, b) for a, b in itertools.pairwise(edges)] for of in (one, inverse)]
    assert p == pytest.approx(exact[0], rel=1e-8, abs=1e-39)
    assert q == pytest.approx(exact[1], rel=1e-8, abs=1e-39)
    for loss in (inner[2], inner[3], *atoms):
        beyond = [pieces.integral(of, loss, INFINITE) for of in (one, inverse)]
        assert bound.above(loss) == pytest.approx(beyond, rel=1e-8, abs=1e-39)
    assert bound.above(high) == (0.0, 0.0) == bound.above(high + 2.0)


def test_what_lies_outside_the_support_is_less_than_what_is_added_for_it() -> None:
    """The norm of two normal variables is beyond 13.5 with a chance of 2.7e-40."""
    for law in (Rayleigh, HalfNormal, Normal):
        pieces = Pieces(law, (80.0,), (0.0,), ())
        value = pieces.bound.support[1]
        assert pieces.profile(value) <= pieces.bound.delta(value) <= 4e-40


def test_masses_of_normal_variables_keep_their_digits_in_both_tails() -> None:
    with mpmath.workdps(60):
        for a, b in ((-37.0, -36.9), (-2.0, -1.0), (-1.0, 2.0), (0.0, 1e-9), (3.0, 3.1), (36.9, 37.0), (-38.0, 38.0)):
            exact = mpmath.log(mpmath.ncdf(b) - mpmath.ncdf(a) if a < 0 else mpmath.ncdf(-a) - mpmath.ncdf(-b))
            assert float(log_normal_mass(np.array([a]), np.array([b]))[0]) == pytest.approx(float(exact), rel=1e-7, abs=1e-15)
    assert log_normal_mass(np.array([1.0, -np.inf]), np.array([1.0, -np.inf])).tolist() == [-np.inf, -np.inf]


def test_the_upper_envelope_is_the_largest_of_the_lines_everywhere() -> None:
    rng = np.random.default_rng(3)
    y = np.linspace(-60, 60, 4001)
    for number in (1, 2, 3, 8, 30):
        slopes, intercepts = np.sort(rng.normal(size=number)), rng.normal(size=number)
        kept_slopes, kept_intercepts, breaks = upper_envelope(slopes, intercepts)
        assert len(breaks) == len(kept_slopes) - 1
        piece = np.searchsorted(breaks, y)
        found = kept_intercepts[piece] + kept_slopes[piece] * y
        assert found == pytest.approx((intercepts[:, None] + slopes[:, None] * y).max(axis=0), abs=1e-12)
        assert (np.diff(breaks) > 0).all()


@pytest.mark.parametrize("pieces", [PIECES[2], Pieces(HalfNormal, (0.0, 0.8), (0.05, -0.35), (0.5,)), PIECES[3]], ids=range(3))
def test_a_symmetrised_loss_has_the_profile_at_0_and_above_and_its_mirror_image_below(pieces: Pieces) -> None:
    """It is the convex envelope: beyond the edge both, between −edge and edge a chord; where masses are too few, an atom at 0."""
    symmetrised = SymmetrisedLoss(pieces.bound)
    low, high = symmetrised.support
    assert low == -high
    edges = np.concatenate([[-np.inf], np.linspace(low - 0.1, high + 0.1, 40_001)])
    p, q = symmetrised.masses(edges)
    assert p.sum() == pytest.approx(1.0, abs=1e-12) and q.sum() == pytest.approx(1.0, abs=1e-12)
    edge = symmetrised.edge
    assert sum(pieces.integral(of, edge, INFINITE) for of in (one, inverse)) <= 1 + 1e-9
    if edge > 0:  # the least such
        assert sum(pieces.integral(of, edge * (1 - 1e-6), INFINITE) for of in (one, inverse)) >= 1 - 1e-12
    left, right = math.exp(-edge), math.exp(edge)
    at_right = pieces.profile(edge)
    at_left = 1 - left + left * at_right
    for value in (0.0, 0.1, 0.6, 1.4, 3.0):
        exact = pieces.profile(value)
        if value < edge:
            exact = at_left + (at_right - at_left) * (math.exp(value) - left) / (right - left)
        assert np.maximum(p - np.exp(value) * q, 0.0).sum() == pytest.approx(exact, rel=1e-3, abs=1e-9)
    # the pair with its places exchanged is itself
    mirrored_p, mirrored_q = symmetrised.masses(np.concatenate([-edges[:0:-1], [np.inf]]))
    assert mirrored_q[::-1] == pytest.approx(p, abs=1e-12)
    assert mirrored_p[::-1] == pytest.approx(q, abs=1e-12)
