"""Budgets stated as what an attacker may achieve instead of ε, and bounds on what every attacker achieves (Kulynych, Gomez,
Kaissis, Calmon, Troncoso 2024: noise that is calibrated to attacks directly is smaller than noise calibrated by way of ε).

The attacker knows all other records, and tells two neighbouring data sets apart. With δ(ε) the event's profile, its advantage is
at most δ(0); its true-positive rate at a false-positive rate a at most inf over ε of e^ε·a + δ(ε) and 1 − e^{−ε}(1 − δ(ε) − a)
(Dong, Roth, Su 2022, Proposition 2.12); and where it believes with probability π ≤ 1/2 that the record is there, it is right
with probability at most 1 − π + π·δ(ln((1 − π)/π)): the hockey stick is what its best guess gains.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dperm import _validate as check
from dperm.privacy.accountants import root_finding
from dperm.privacy.accountants.accounting import delta as event_delta
from dperm.privacy.accountants.pld import TOLERANCE
from dperm.privacy.events import Event, claims_of

_COARSE, _FINER = 1e-2, 1e-3  # relative grid errors of profiles in searches; what is found is certified on the fine grid
_FARTHEST = 30.0  # ε beyond which no line of a trade-off curve is looked for
_NEAR = 1e-2  # in ln x: how near a coarse search comes
_ASTRAY = 0.3  # how far the line that tells most is from that of a similar event


@dataclass(frozen=True)
class Risk:
    """The most that any attacker may reach; one of three, to be used where an ε is asked for:

    - `advantage`: true-positive minus false-positive rate of any test of whether a record is there;
    - `true_positive_rate` at `false_positive_rate`: of such a test that accuses so few wrongly;
    - `posterior`, with `prior`: how often the attacker's best guess is right, when before it looks it believes with probability
      `prior` that the record is there. (How sure it may be of single cases is another matter, which δ > 0 leaves open.)

    ValueError for limits that hold whatever is released, and for those that nothing reaches.
    """

    advantage: float | None = None
    true_positive_rate: float | None = None
    false_positive_rate: float | None = None
    prior: float | None = None
    posterior: float | None = None

    def __post_init__(self) -> None:
        check.plain_numbers(self, list(vars(self)))
        stated = {name for name, value in vars(self).items() if value is not None}
        for name in stated:
            check.fraction(name, getattr(self, name))
        if stated == {"advantage"}:
            return
        if stated == {"true_positive_rate", "false_positive_rate"}:
            if not self.true_positive_rate > self.false_positive_rate:  # type: ignore[operator]
                raise ValueError(
                    f"Expected true_positive_rate above false_positive_rate = {self.false_positive_rate:g}, which guessing "
                    f"reaches, got {self.true_positive_rate:g}."
                )
            return
        if stated == {"prior", "posterior"}:
            if not self.posterior > self._blind:  # type: ignore[operator]
                raise ValueError(
                    f"Expected posterior above {self._blind:g}, which guessing by the prior reaches, got {self.posterior:g}."
                )
            return
        raise ValueError(
            "Expected advantage, or true_positive_rate with false_positive_rate, or prior with posterior, got "
            f"{', '.join(sorted(stated)) or 'none of them'}."
        )

    @property
    def limit(self) -> float:
        """The number that must not be exceeded."""
        limits = (self.advantage, self.true_positive_rate, self.posterior)
        return next(limit for limit in limits if limit is not None)

    def of(self, event: Event) -> float:
        """The least bound on what the attacker reaches that is known for `event`. ValueError for one that is only claimed."""
        return self._at(event, self._line(event))

    def admits(self, event: Event) -> bool:
        return self.of(event) <= self.limit

    def epsilon_for(self, make_event: Callable[[float], Event], *, start: float = 1.0) -> float:
        """The largest ε, to about 1e-4, for which `make_event(ε)` keeps the limit; `make_event` maps a budget to what is run with
        it, and more ε must mean more risk. ValueError where no ε from 1e-6 to 1e3 will do, or each does."""
        return self._largest(make_event, math.log(max(start, 1e-6)), math.log(1e-6), math.log(1e3), 1e-4, "epsilon")

    def noise_for(self, make_event: Callable[[float], Event], *, start: float = 1.0) -> float:
        """The least noise, to about 1e-6 of the limit, for which `make_event(noise)` keeps it. ValueError as for ε."""
        far = math.log(1e9)
        return 1 / self._largest(lambda inverse: make_event(1 / inverse), -math.log(start), -far, far, 1e-9, "noise")

    def __str__(self) -> str:
        if self.advantage is not None:
            return f"an attacker's advantage of at most {self.advantage:g}"
        if self.true_positive_rate is not None:
            return f"at most {self.true_positive_rate:g} true positives at {self.false_positive_rate:g} false ones"
        return f"right guesses of at most {self.posterior:g}, from a prior of {self.prior:g}"

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready; `Risk(**data)` inverts it."""
        return {name: value for name, value in vars(self).items() if value is not None}

    # Parts

    @property
    def _blind(self) -> float:
        """What is right without looking."""
        assert self.prior is not None
        return max(self.prior, 1 - self.prior)

    def _at(self, event: Event, line: float, tolerance: float = TOLERANCE) -> float:
        """The bound that the profile at |line| gives."""
        return min(1.0, self._above(event, line, tolerance))

    def _above(self, event: Event, line: float, tolerance: float) -> float:
        """The same, also where it says nothing."""
        delta = event_delta(event, abs(line), tolerance)
        if self.advantage is not None:
            return delta
        if self.prior is not None:
            return self._blind + (1 - self._blind) * delta
        rate = self.false_positive_rate
        assert rate is not None
        # a trade-off curve lies below lines of slope e^ε and, mirrored, of slope e^{−ε}
        return math.exp(line) * rate + delta if line >= 0 else 1 - math.exp(line) * (1 - delta - rate)

    def _line(self, event: Event, near: float | None = None) -> float:
        """The ε at which the profile tells most, negative for the mirrored lines; looked for around `near`, or everywhere."""
        if claims := claims_of(event):
            raise ValueError(f"Expected an event that can be accounted for: {claims[0]}")
        if self.advantage is not None:
            return 0.0
        if self.prior is not None:
            return math.log(self._blind / (1 - self._blind))
        assert self.false_positive_rate is not None
        if near is None:
            farthest = min(_FARTHEST, -math.log(self.false_positive_rate))  # further out a line of slope e^ε is above 1
            sides = [self._best(event, (-_FARTHEST, 0.0), _COARSE), self._best(event, (0.0, farthest), _COARSE)]
            near = min(sides, key=lambda line: self._at(event, line, _COARSE))
        return self._best(event, (near - _ASTRAY, near + _ASTRAY), _FINER)

    def _best(self, event: Event, between: tuple[float, float], tolerance: float) -> float:
        return root_finding.least(lambda line: self._above(event, line, tolerance), *between, xtol=1e-5)[0]

    def _largest(
        self, make_event: Callable[[float], Event], at: float, low: float, high: float, precision: float, name: str
    ) -> float:
        """The largest x with ln x from `low` to `high`, to `precision`, for which make_event(x) keeps the limit."""
        event = functools.cache(lambda log_x: make_event(math.exp(log_x)))
        line: float | None = None

        @functools.cache
        def excess(log_x: float, tolerance: float) -> float:
            nonlocal line
            line = self._line(event(log_x), line)
            return self._at(event(log_x), line, tolerance) - self.limit

        coarse, fine = functools.partial(excess, tolerance=_COARSE), functools.partial(excess, tolerance=TOLERANCE)
        step, floor, ceiling = 0.1, at, at
        while coarse(floor) > 0:
            if floor == low:
                raise ValueError(f"Expected a limit that some {name} keeps: other parts of what is run exceed it by themselves.")
            floor, ceiling, step = max(floor - step, low), floor, 2 * step
        while floor == ceiling or coarse(ceiling) <= 0:
            if ceiling == high:
                raise ValueError(f"Expected a limit that {name} matters to: each keeps it.")
            floor, ceiling, step = ceiling, min(ceiling + step, high), 2 * step
        found = root_finding.root(coarse, floor, ceiling, xtol=_NEAR)
        floor, ceiling = found - _NEAR, found + _NEAR
        while fine(floor) > 0:
            floor -= _NEAR
        while fine(ceiling) <= 0 and ceiling < high:
            ceiling += _NEAR
        if fine(ceiling) > 0:
            found = root_finding.root(fine, floor, ceiling, xtol=precision)
            while self.of(event(found)) > self.limit:  # as anybody else finds it, who knows no line to look around
                found, precision = found - precision, 2 * precision
        return math.exp(found)


@dataclass(frozen=True)
class AttackView:
    """Bounds on every attack that tells two neighbouring data sets apart, knowing all other records."""

    advantage: float
    """Largest true-positive minus false-positive rate: δ(0)."""
    false_positive_rates: tuple[float, ...]
    true_positive_rates: tuple[float, ...]


def attack_view(
    epsilons: NDArray[np.float64],
    deltas: NDArray[np.float64],
    false_positive_rates: Sequence[float] = (0.001, 0.01, 0.1),
) -> AttackView:
    """From a profile on a grid of ε ≥ 0 (a coarser grid gives weaker, still valid bounds).

    For every ε ≥ 0, any test with false-positive rate a has true-positive rate at most min(e^ε·a + δ(ε),
    1 − e^{−ε}(1 − δ(ε) − a)) (Wasserman & Zhou 2010; Dong, Roth, Su 2022, Proposition 2.12).
    """
    rates = np.asarray(false_positive_rates, dtype=float)[:, None]
    bounds = np.minimum(np.exp(epsilons) * rates + deltas, 1 - np.exp(-epsilons) * (1 - deltas - rates))
    best = np.clip(bounds.min(axis=1), rates[:, 0], 1.0)
    # advantage: max over a of min over ε; at ε = 0 the bound is a + δ(0), and it is attained
    return AttackView(float(deltas[0]), tuple(false_positive_rates), tuple(float(rate) for rate in best))
