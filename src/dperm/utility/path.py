"""The minimisers of objective perturbation at every ε of a range, for little more than one training.

With the direction u of the noise drawn once, θ(ε) = argmin Σℓ + (Λ(ε)/2)‖θ‖² + σ(ε)uᵀθ is smooth in ln ε. It is solved at
Chebyshev points and interpolated between. Points come in rounds, each between those of before: their first guess is the
interpolant of the last round, and how far that was off says when to stop. All points of a round share their passes over the
records, and Hessians, which change slowly along ε, are interpolated from three.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.linalg as la
from numpy.polynomial import chebyshev
from numpy.typing import ArrayLike
from scipy.sparse.linalg import LinearOperator, cg

from dperm import _validate as check
from dperm._progress import watching
from dperm._types import Array
from dperm.objectives import LinearObjective, Records, RegularisedSum
from dperm.solvers import SolverError, minimise
from dperm.utility.curve import EpsilonCurve
from dperm.utility.first_order import admit_directions, refuse_rough

_DEGREES = (2, 4, 8, 16, 32, 64, 128, 256)  # of the rounds: the points of one are among those of the next
_SMOOTH, _KINKED = 1e-6, 1e-4  # of losses: how near, where the curvature is continuous, and where it jumps
_SAMPLE = 8192  # records that first guesses are made on
_ROUGH = 1e-3  # of the noise: how well
_STEPS = 8  # Newton steps of a round, before its points are solved one by one
_CONTRACTION = 0.3  # where a step leaves more of the gradient than this, Hessians are made again
_MARGIN = 0.1  # of the tolerance: what Newton's method may leave of it
_DENSE = 2000  # parameters; above, a Hessian costs more than its products
_FORCING = 1e-3  # of conjugate gradients
_TELLING = 1e-10  # of lengths: products below are rounding
_AT_ONCE = 1 << 22  # predictions held at once


@dataclass(frozen=True)
class _Line:
    """Values (m, N + 1, …) at the Chebyshev points of [0, 1] of degree N, as one polynomial."""

    values: Array

    def weights(self, at: Array) -> Array:
        """(k, N + 1): what the value at each point counts at `at` (k,); the barycentric formula (Berrut, Trefethen 2004)."""
        return _barycentric(_points(self.values.shape[1] - 1), at)

    def __call__(self, at: Array) -> Array:
        """(m, k, …)."""
        return np.moveaxis(np.tensordot(self.weights(at), self.values, axes=(1, 1)), 0, 1)


def _points(degree: int) -> Array:
    """(degree + 1,) Chebyshev points of the second kind on [0, 1], rising."""
    return (1 + chebyshev.chebpts2(degree + 1)) / 2


def _barycentric(nodes: Array, at: Array) -> Array:
    signs = np.where(np.arange(len(nodes)) % 2, -1.0, 1.0)
    signs[[0, -1]] /= 2
    apart = at[:, None] - nodes
    on = apart == 0
    parts = signs / np.where(on, 1.0, apart)
    return np.where(on.any(axis=1, keepdims=True), on.astype(float), parts / parts.sum(axis=1, keepdims=True))


class UtilityPath:
    """θ(ε) on a curve, for `draws` directions of the noise; see the module.

    `tolerance` is what mean losses may be off, relative to themselves: None for 1e-6, and 1e-4 for losses whose curvature jumps
    (Huber), along which θ has kinks. `directions` (m, p) instead of `draws`: these ones.
    Nothing of it is private: it shows what training would give, and no noise hides the records.

    ValueError for an objective on a ball, whose minimiser is not smooth in ε, and for a loss that is not smooth. SolverError
    where the tolerance is not reached with 257 points.
    """

    def __init__(
        self,
        objective: LinearObjective,
        records: Records,
        curve: EpsilonCurve,
        *,
        draws: int = 1,
        directions: ArrayLike | None = None,
        random_state: int | np.random.Generator | None = None,
        tolerance: float | None = None,
    ) -> None:
        refuse_rough(objective)
        self._kinked = not objective.loss.bend(objective.row_norm) < math.inf
        if tolerance is None:
            tolerance = _KINKED if self._kinked else _SMOOTH
        self.tolerance = check.positive("tolerance", tolerance)
        least = float(curve.modulus([curve.low, curve.high]).min())
        self.curve, self.objective = curve, objective.with_strong_convexity(least)
        self.records = records.relabelled(objective.loss.admit(records.targets))
        self.directions = admit_directions(objective, draws, directions, random_state)
        chosen = np.sort(np.random.default_rng(0).permutation(len(records))[:_SAMPLE])
        self._sample, self._share = self.records.subset(chosen), max(1, len(chosen)) / max(1, len(records))
        self._curvature, self._ratio = _Curvature(self.objective, self.records), 1.0
        with watching("Following epsilon") as going_on:  # how many steps it takes follows from the records
            self._going_on: Callable[..., None] | None = going_on
            self._thetas, self._losses = self._followed()
        self._going_on = None

    # What it tells

    @property
    def nodes(self) -> Array:
        """(N + 1,) the values of ε at which it was solved."""
        return self._epsilon_at(_points(self._thetas.values.shape[1] - 1))

    def theta(self, epsilons: ArrayLike) -> Array:
        """(m, k, p): the minimisers."""
        return self._thetas(self._place(epsilons))

    def training_loss(self, epsilons: ArrayLike) -> Array:
        """(m, k): mean loss over the records, without the regulariser."""
        return self._losses(self._place(epsilons))

    def scores(self, epsilons: ArrayLike, rows: Any, score: Callable[[Array], Array]) -> Array:
        """(m, k, …): scores of predictions on other rows. `score` maps predictions (n, k) of k models to k numbers, or k rows.

        Predictions are made at the nodes and interpolated, however many ε are asked for.
        """
        weights = self._thetas.weights(self._place(epsilons))
        held_out = self.objective.records(rows, np.full(rows.shape[0], self.objective.loss.targets.extremes[0]))
        step = max(1, _AT_ONCE // max(1, rows.shape[0]))
        found: list[Array] = []
        for theta in self._thetas.values:
            nodes = np.concatenate([self.objective.predict(theta, batch) for batch in held_out.batches()], axis=1)
            parts = [weights[start : start + step] for start in range(0, len(weights), step)]
            found.append(np.concatenate([score(nodes.T @ part.T) for part in parts]))
        return np.stack(found)

    # How it is found

    def _epsilon_at(self, places: Array) -> Array:
        low, high = np.log([self.curve.low, self.curve.high])
        return np.clip(np.exp(low + places * (high - low)), self.curve.low, self.curve.high)

    def _place(self, epsilons: ArrayLike) -> Array:
        low, high = np.log([self.curve.low, self.curve.high])
        return np.clip((np.log(self.curve.admit(epsilons)) - low) / (high - low), 0.0, 1.0)

    def _followed(self) -> tuple[_Line, _Line]:
        places = _points(_DEGREES[0])
        guess = self._first_guess(places)
        self._curvature.renew(guess.mean(axis=0), self._sample, self._share)
        thetas, losses, _ = self._solved(guess, places)
        before: float | None = None
        for degree in _DEGREES[1:]:
            fresh = _points(degree)[1::2]
            solved, values, astray = self._solved(_Line(thetas)(fresh), fresh)
            thetas, losses = _woven(thetas, solved), _woven(losses, values)
            # with twice as many points it is off by less, and by at least the factor of the last time
            if astray * min(1.0, astray / (before or astray)) <= self.tolerance / 2:
                return _Line(thetas), _Line(losses)
            before = astray
        raise SolverError(
            f"The path is not as smooth as tolerance={self.tolerance:g} asks for: {before:.2g} off between "
            f"{_DEGREES[-1] // 2 + 1} points. Raise tolerance, or ask for a smaller range of epsilon."
        )

    def _problems(self, places: Array) -> tuple[Array, Array]:
        """Λ (k,) and linear terms (m, k, p)."""
        epsilons = self._epsilon_at(places)
        return self.curve.modulus(epsilons), self.directions[:, None, :] * self.curve.noise_std(epsilons)[:, None]

    def _first_guess(self, places: Array) -> Array:
        """(m, k, p): the minimisers on a sample of the records that counts as all of them."""
        sample, share = self._sample, self._share
        moduli, linear = self._problems(places)
        found = np.zeros((len(self.directions), len(places), self.objective.dimension))
        for draw, number in np.ndindex(found.shape[:2]):
            start = found[draw, number - 1] if number else found[max(0, draw - 1), 0]
            found[draw, number] = self._alone(sample, share * float(moduli[number]), share * linear[draw, number], start, _ROUGH)
        return found

    def _solved(self, guess: Array, places: Array) -> tuple[Array, Array, float]:
        """Minimisers (m, k, p) and mean losses (m, k) at these places; and by what share losses were off at the guess."""
        moduli, linear = self._problems(places)
        thetas, size = guess, max(1, len(self.records))
        before, renewed, last = math.inf, False, math.nan
        guessed = np.zeros(0)
        pairs: list[tuple[Array, Array]] = []
        moves = was = np.zeros(0)
        for step in range(_STEPS):
            if self._going_on is not None:
                self._going_on()
            values, slopes = self._evaluate(thetas)
            guessed = guessed if step else values
            gradients = slopes + moduli[:, None] * self.objective.penalty_gradient(thetas) + linear
            left = float(np.linalg.norm(gradients, axis=-1).max())
            if step:
                pairs.append((moves, gradients - was))
            if left > _CONTRACTION * before and not renewed:
                renewed = True
                self._curvature.renew(thetas.mean(axis=0) if len(places) == 3 else None)
                pairs.clear()
            kept, before, was = left / before, left, gradients
            solve = functools.partial(self._curvature.solve, thetas=thetas, places=places, moduli=moduli)
            moves = -_corrected(solve, pairs, gradients)
            # how far losses go, to second order: Hv = −gradient − Λ(I + R)v
            tilts = (slopes * moves).sum(axis=-1)
            penalties = moduli[:, None] * self.objective.penalty_gradient(moves)
            bends = -(moves * (gradients + penalties)).sum(axis=-1) / 2
            astray = _largest_share(np.abs(tilts) + np.abs(bends), values)
            thetas = thetas + moves
            # what losses say of a step may be small by chance: gradients have a say, too
            ratio = 1.0 if self._kinked else min(1.0, max(astray / last, kept)) if step else self._ratio
            if step == 1:
                self._ratio = ratio  # what a first step may leave, in the next round too
            last = astray
            if astray * ratio <= _MARGIN * self.tolerance:
                values = values + tilts + bends
                return thetas, values / size, _largest_share(values - guessed, values)
        for draw, number in np.ndindex(thetas.shape[:2]):  # Newton's steps need a line search here
            place = draw, number
            thetas[place] = self._alone(self.records, float(moduli[number]), linear[place], thetas[place], _ROUGH**2)
        values, _ = self._evaluate(thetas)
        return thetas, values / size, _largest_share(values - guessed, values)

    def _alone(self, records: Records, modulus: float, linear: Array, start: Array, tolerance: float) -> Array:
        """The minimiser (p,) of one problem, to a gradient of `tolerance` times the noise."""
        problem = RegularisedSum(self.objective.with_strong_convexity(modulus), records, linear)
        return minimise(problem, tolerance * float(np.linalg.norm(linear)), start=start).theta

    def _evaluate(self, thetas: Array) -> tuple[Array, Array]:
        """Σℓ (m, k) and its gradients (m, k, p), in one pass over the records."""
        values, gradients, _ = self.objective.evaluate(thetas.reshape(-1, thetas.shape[-1]), self.records)
        return np.reshape(values, thetas.shape[:2]), gradients.reshape(thetas.shape)


class _Curvature:
    """∇²Σℓ along a path: made at both ends and in the middle, of the mean θ over draws, and quadratic between. Products with it
    instead where it would be large."""

    def __init__(self, objective: LinearObjective, records: Records) -> None:
        self._objective, self._records = objective, records
        self._anchors = self._matrices = np.zeros((0, 0))
        self._dense = objective.dimension <= _DENSE

    def renew(self, anchors: Array | None, sample: Records | None = None, share: float = 1.0) -> None:
        """At these θ (3, p), or at those of the last time; of a sample that is such a share of the records, or of all."""
        if self._dense:
            self._anchors = self._anchors if anchors is None else anchors
            made = [self._objective.hessian(theta, sample or self._records) for theta in self._anchors]
            self._matrices = np.stack(made) / share

    def solve(self, gradients: Array, thetas: Array, places: Array, moduli: Array) -> Array:
        """(∇²Σℓ + Λ(I + R))⁻¹·gradient (m, k, p), nearly."""
        found = np.empty_like(gradients)
        for number, modulus in enumerate(moduli):
            if not self._dense:
                for draw in range(len(gradients)):
                    found[draw, number] = self._by_products(thetas[draw, number], float(modulus), gradients[draw, number])
                continue
            factor = self._factor(places[number], modulus)
            found[:, number] = la.cho_solve(factor, gradients[:, number].T, check_finite=False).T
        return found

    def _factor(self, place: float, modulus: float) -> Any:
        anchors = _points(2)
        quadratic = np.tensordot(_barycentric(anchors, np.array([place]))[0], self._matrices, axes=1)
        nearest = self._matrices[int(np.argmin(np.abs(anchors - place)))]
        lift = modulus * self._objective.penalty_hessian()
        try:
            return la.cho_factor(quadratic + lift, lower=True, check_finite=False)
        except la.LinAlgError:  # which positive matrices between three others need not be
            return la.cho_factor(nearest + lift, lower=True, check_finite=False)

    def _by_products(self, theta: Array, modulus: float, gradient: Array) -> Array:
        def product(vector: Array) -> Array:
            penalty = modulus * self._objective.penalty_gradient(np.ravel(vector))
            return self._objective.hessian_product(theta, self._records, np.ravel(vector)) + penalty

        return cg(LinearOperator((len(theta), len(theta)), matvec=product, dtype=np.float64), gradient, rtol=_FORCING)[0]


def _corrected(solve: Callable[[Array], Array], pairs: list[tuple[Array, Array]], gradients: Array) -> Array:
    """What `solve` makes of gradients (m, k, p), corrected by how they changed with each column's moves (BFGS, by two loops)."""
    result, shares = gradients, list[Array]()
    for moved, turned in reversed(pairs):
        share = (moved * result).sum(axis=-1, keepdims=True) / _products(moved, turned)
        shares.append(share)
        result = result - share * turned
    result = solve(result)
    for (moved, turned), share in zip(pairs, reversed(shares), strict=True):
        result = result + (share - (turned * result).sum(axis=-1, keepdims=True) / _products(moved, turned)) * moved
    return result


def _products(moved: Array, turned: Array) -> Array:
    """Inner products; infinite, so that they count nothing, for moves that tell nothing of the curvature any more."""
    products = (moved * turned).sum(axis=-1, keepdims=True)
    lengths = np.linalg.norm(moved, axis=-1, keepdims=True) * np.linalg.norm(turned, axis=-1, keepdims=True)
    return np.where(products > _TELLING * lengths, products, np.inf)


def _largest_share(parts: Array, values: Array) -> float:
    return float((np.abs(parts) / np.maximum(values, 1e-300)).max())


def _woven(old: Array, new: Array) -> Array:
    """(m, k + l, …): the values of two rounds in the order of their places, the new ones between the old ones."""
    woven = np.empty((old.shape[0], old.shape[1] + new.shape[1], *old.shape[2:]))
    woven[:, ::2], woven[:, 1::2] = old, new
    return woven
