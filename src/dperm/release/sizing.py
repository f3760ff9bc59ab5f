"""Runs that first release the number of records, with noise, and choose the rest by what was released.

Where nothing else holds the rest, it is held to a privacy profile that was fixed before: composition is then as exact as for
events that are known, whatever size was released (`ProfileFilter` of `dperm.privacy.accountants.privacy_filters`). The profile
is the largest of those of runs for a few sizes, each of which alone would spend the budget, so that runs for other sizes need
hardly more noise than if nothing held them to it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dperm.privacy.accountants.accounting import best_epsilon
from dperm.privacy.accountants.calibration import calibrate, calibrate_below
from dperm.privacy.accountants.gaussian import gaussian_epsilon
from dperm.privacy.accountants.privacy_filters import privacy_profile
from dperm.privacy.events import Composed, Event, FilteredRdp, Gaussian, PrivacyProfile, PureDP, Relation, chosen_on_the_way
from dperm.release.channel import Channel
from dperm.release.noise import PureNoise

_SIZE_SHARE = 0.05  # of ε, for the number of records

#: Sizes whose runs a profile is made of. Between and beyond them runs need at most 4 % more noise, most of them below 1 %.
NOMINAL_SIZES = (1_000, 100_000)

_UNSEEN = 1e-3  # of δ: what a run may give away beyond the last point of its profile
_ROUNDS = 8
_REMEMBERED = 64
_found: dict[tuple[object, ...], PrivacyProfile] = {}


@dataclass(frozen=True)
class CountFirst:
    """A release of the number of records with Laplace noise, and what is charged for it and all that follows, before either.

    What follows depends on the number, so `charged` holds every choice: the event that follows, where no number changes it
    (`known`), or else a privacy profile (`profiled`) or a Rényi filter (`within`).
    """

    count: PureDP
    charged: Event

    @classmethod
    def known(cls, epsilon: float, relation: Relation, rest: Callable[[PureDP], Event]) -> CountFirst:
        """`rest(count)` follows, whatever the number."""
        count = _noisy_count(epsilon, relation)
        return cls(count, Composed((count, rest(count))))

    @classmethod
    def within(cls, filter: FilteredRdp, epsilon: float) -> CountFirst:
        """`filter`, of `epsilon` in all, holds the count and what follows, which spends what is left by itself."""
        return cls(_noisy_count(epsilon, filter.relation), filter)

    @classmethod
    def profiled(
        cls,
        epsilon: float,
        delta: float,
        relation: Relation,
        planned: Sequence[Callable[[float], Event]],
        *,
        earlier: Sequence[Event] = (),
    ) -> CountFirst:
        """A profile holds what follows: with what was released `earlier`, all is (`epsilon`, `delta`)-private.

        `planned` are runs for `NOMINAL_SIZES`: from a noise multiplier to what the run costs. ValueError where nothing is left
        for what follows.
        """
        count = _noisy_count(epsilon, relation)
        # runs that cost the same at two noise levels are the same runs: what was found for them is found again
        alike = tuple(run(noise) for run in planned for noise in (1.0, 3.0))
        key = (count, epsilon, delta, alike, tuple(earlier))
        if key not in _found:
            while len(_found) >= _REMEMBERED:
                _found.pop(next(iter(_found)), None)
            _found[key] = _profile(count, epsilon, delta, planned, earlier)
        return cls(count, Composed((count, _found[key])))

    def noise_below(self, run: Callable[[float], Event]) -> float:
        """The least noise multiplier of a run that stays below the profile."""
        assert isinstance(self.charged, Composed)
        profile = self.charged.events[-1]
        assert isinstance(profile, PrivacyProfile)
        return calibrate_below(run, profile)

    def release(self, channel: Channel, records: int) -> int:
        """The number as released, at least 1. The channel was charged."""
        if chosen_on_the_way(self.charged):
            channel.allow(self.count)
        noise = PureNoise(1.0, self.count.epsilon, what="number of records")
        return self.released(channel.release(np.array([float(records)]), noise))

    def released(self, noisy: NDArray[np.float64]) -> int:
        """The number that this release gave."""
        return max(1, round(float(noisy[0])))

    def admit(self, channel: Channel, rest: Event) -> None:
        """Let the steps that follow out, now that they are known; what is chosen on the way lets out its own."""
        if chosen_on_the_way(self.charged) and not chosen_on_the_way(rest):
            channel.allow(rest, first=0)


def _noisy_count(epsilon: float, relation: Relation) -> PureDP:
    """What the release of the number of records costs, of ε in all."""
    return PureDP(_SIZE_SHARE * epsilon, relation)


def _profile(
    count: PureDP, epsilon: float, delta: float, planned: Sequence[Callable[[float], Event]], earlier: Sequence[Event]
) -> PrivacyProfile:
    beside = (*earlier, count)
    noise = calibrate(lambda x: Composed((*beside, Gaussian(x, count.relation))), epsilon, delta)
    rest = gaussian_epsilon(noise, delta)
    levels = [1.0] * len(planned)
    for _ in range(_ROUNDS):
        # drafts: what is charged is the profile, and checked
        levels = [calibrate(run, rest, delta, start=x, draft=True) for run, x in zip(planned, levels, strict=True)]
        runs = [run(x) for run, x in zip(planned, levels, strict=True)]
        profile = privacy_profile(*runs, smallest_delta=_UNSEEN * delta)
        spent = best_epsilon(Composed((*beside, profile)), delta)[0]
        if spent <= epsilon:
            return profile
        rest *= epsilon / spent * (1 - 1e-4)
        if rest == 0:
            break
    raise ValueError(
        f"Expected public_size, or a smaller epsilon: no privacy profile holds a run of any size within epsilon={epsilon:g} at "
        f"delta={delta:g}."
    )
