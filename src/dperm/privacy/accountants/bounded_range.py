"""Mechanisms of bounded range, such as the exponential mechanism, alone and adaptively composed.

A mechanism has range ε if, for any two neighbours, its privacy loss L = ln P/Q takes values in an interval of length ε (Dong,
Durfee, Rogers 2020). Write A = e^ε and α = e^x; δ is taken as a function of α, of which it is convex.

One mechanism
    δ(x) = (√A − √α)²/(A − 1) for |x| ≤ ε, the largest of any mechanism of this range.

    Proof. L lies in [t − ε, t] for some t in [0, ε], and E_P e^(−L) = 1. A convex function of e^(−L), such as (1 − αe^(−L))₊, has
    its largest mean where all mass is at both ends: p_t = (A − e^t)/(A − 1) at t, the rest at t − ε. So δ(x) is at most the
    largest of p_t·(1 − αe^(−t)) over t, which is found at e^t = √(Aα). ∎

k mechanisms, each chosen by what the earlier ones released
    With V_0(α) = (1 − α)₊ and V_k(α) = max over t of p_t·V_{k−1}(αe^(−t)) + (1 − p_t)·V_{k−1}(αe^(ε−t)), δ(x) = V_k(e^x) is the
    largest of any k such mechanisms.

    Proof. Let the first release have the loss L. The k − 1 others have at most V_{k−1}(αe^(−L)), and all k together
    at most E_P V_{k−1}(αe^(−L)), the mean of a convex function of e^(−L): the argument above applies. ∎

Other mechanisms before, between and after them
    V_k is convex, falls from 1 and is no less than (1 − α)₊: it is the profile of a pair (P_k, Q_k) (Zhu, Dong, Wang 2022,
    Proposition 7). This pair dominates the k mechanisms in any composition with others, however they take turns.

    Proof. One draw z_k from either distribution suffices to answer k questions of bounded range, asked one after another, with
    the answers' right distributions under either neighbour. For k > 0, let y be the answer to the first question and z_{k−1} a
    draw of the pair for k − 1, taken under the same neighbour. The profile of (y, z_{k−1}) is E_P V_{k−1}(αe^(−L)) ≤ V_k(α), so
    there is a randomised map from z_k to (y, z_{k−1}) (Blackwell 1951): answer y and keep z_{k−1} for what comes next. Whatever
    runs in all is then made from independent draws of dominating pairs. ∎  (Vadhan & Zhang 2023 prove the general theorem.)

So k choices cost no more than blocks of up to 64 choices, composed as privacy loss distributions. One block of k would be exact,
and several are a little above it. Blocks of one choice would be far above: their losses have a third more variance than those of
any choices.
"""

from __future__ import annotations

import functools
import math

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from dperm._types import Array

LARGEST_RANGE = 500.0  # e^ε must be a double, with room to spare
_LEAST_RANGE = 1e-9  # less is taken for as much
_LONGEST_BLOCK = 64
_NODES = 1024  # of a block's profile at x > 0
_COARSEST = 1 / 8  # distance of nodes
_ROUNDING = 1e-10  # relative, of each step of the recursion, whose terms are all positive: far above what rounding does


def choice_delta(epsilon: float, at: float) -> float:
    """δ(`at`) of one mechanism of range `epsilon`, 0 ≤ at ≤ `epsilon`: beyond, it is 0."""
    return math.expm1((at - epsilon) / 2) ** 2 / -math.expm1(-epsilon)


def choice_epsilon(epsilon: float, delta: float) -> float:
    """The least ε ≥ 0 at which one mechanism of range `epsilon` has this `delta` < 1."""
    return max(0.0, epsilon + 2 * math.log1p(-math.sqrt(delta * -math.expm1(-epsilon))))


def blocks(epsilon: float, count: int) -> dict[int, int]:
    """Sizes of nearly equal blocks that `count` choices of this range are accounted for in, and how many there are of each."""
    longest = max(1, min(_LONGEST_BLOCK, int(_NODES * _COARSEST / epsilon)))
    number = -(-count // longest)
    size, larger = divmod(count, number)
    return {size + extra: many for extra, many in ((1, larger), (0, number - larger)) if many}


@functools.lru_cache(maxsize=256)
def loss_atoms(epsilon: float, count: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Privacy losses and their P-masses of a pair whose profile is at least that of `count` choices.

    `epsilon` ≤ LARGEST_RANGE; `count` ≤ 64, or the grid is coarse. The pair is its own mirror image.
    """
    epsilon = max(epsilon, _LEAST_RANGE)
    cells = max(1, _NODES // count)
    losses = epsilon / cells * np.arange(cells * count + 1)
    values = _profile(epsilon, count, cells)
    # The jumps of the slope in α are the Q-masses (Zhu, Dong, Wang 2022, Theorem 13), e^loss times as much the P-masses.
    places = np.exp(losses)
    slopes = np.diff(values) / (places[:-1] * math.expm1(epsilon / cells))
    q = np.maximum(np.diff(slopes, append=0.0), 0.0)
    p = q * places[1:]
    middle = max(0.0, 1.0 - float(p.sum()) - float(q.sum()))
    kept = p > 0
    losses, p, q = losses[1:][kept], p[kept], q[kept]
    return (*(-losses[::-1]).tolist(), 0.0, *losses.tolist()), (*q[::-1].tolist(), middle, *p.tolist())


def _profile(epsilon: float, count: int, cells: int) -> Array:
    """(count·cells + 1,): V_count, or a little more, at the losses x = 0, ε/cells, 2ε/cells, ….

    Between nodes its chords in α stand for it: they are above it. Below 0 it is its own mirror image, V(α) = 1 − α + α·V(1/α):
    swapping neighbours gives the same mechanisms. While t = first + τ runs through one cell, what is to be maximised is
    c − (E·e^τ + F·e^(−τ))·e^first/(A − 1) with E, F ≥ 0: largest at e^(2τ) = F/E.
    """
    h = epsilon / cells
    losses = h * np.arange(count * cells + 1)
    values = np.square(np.expm1((losses - epsilon) / 2)) / -math.expm1(-epsilon)  # V_1
    values[cells:] = 0.0
    mirrored = slice(cells, 0, -1)
    cell = np.arange(cells)
    first = h * cell[:, None]  # the least t of each cell
    width = -math.expm1(-h)
    for _ in range(count - 1):
        below = -np.expm1(-losses[mirrored]) + np.exp(-losses[mirrored]) * values[mirrored]
        at = sliding_window_view(np.concatenate([below, values, np.zeros(cells)]), len(losses))
        # V at both ends of the cell that x − t is in, and of the one that x − t + ε is in
        right, left = at[cells - cell], at[cells - cell - 1]
        far_right, far_left = at[2 * cells - cell], at[2 * cells - cell - 1]
        fall, far_fall = left - right, far_left - far_right
        e = left - far_left + (1 / width - 1) * (fall - far_fall)
        f_minus_e = (fall * np.expm1(epsilon - first) - far_fall * np.expm1(-first)) / width - (right - far_right)
        with np.errstate(divide="ignore", invalid="ignore"):
            into = np.log1p(f_minus_e / e) / 2
        into = np.clip(np.where(np.isfinite(into), into, 0.0), 0.0, h)  # where V is linear any t is as good
        share = np.expm1(h - into) / math.expm1(h)  # of the cell's right end
        p = -np.expm1(first + into - epsilon) / -math.expm1(-epsilon)
        values = (p * (left - share * fall) + (1 - p) * (far_left - share * far_fall)).max(axis=0) * (1 + _ROUNDING)
    return values
