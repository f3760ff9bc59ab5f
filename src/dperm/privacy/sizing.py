"""Budgets for runs that first release the number of records, with noise, and choose the rest by what was released.

The rest is held to a privacy profile that was fixed before: composition is then as exact as for events that are known, whatever
size was released (`dperm.privacy.filters`, `ProfileFilter`). The profile is the largest of those of runs for a few sizes, each of
which alone would spend the budget, so that runs for other sizes need hardly more noise than if nothing held them to it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dperm.privacy.accounting import best_epsilon
from dperm.privacy.calibration import calibrate
from dperm.privacy.events import Composed, Event, Gaussian, PrivacyProfile, PureDP, Relation
from dperm.privacy.filters import privacy_profile
from dperm.privacy.gaussian import gaussian_epsilon

__all__ = ["NOMINAL_SIZES", "SIZE_SHARE", "count_and_profile", "noisy_count"]

SIZE_SHARE = 0.05  # of ε, for the number of records

#: Sizes whose runs a profile is made of. Between and beyond them runs need at most 4 % more noise, most of them below 1 %.
NOMINAL_SIZES = (1_000, 100_000)

_UNSEEN = 1e-3  # of δ: what a run may give away beyond the last point of its profile
_ROUNDS = 8
_REMEMBERED = 64
_found: dict[tuple[object, ...], PrivacyProfile] = {}


def noisy_count(epsilon: float, relation: Relation, share: float | None = None) -> PureDP:
    """What the release of the number of records costs, of ε in all."""
    return PureDP((SIZE_SHARE if share is None else share) * epsilon, relation)


def count_and_profile(
    count: PureDP, epsilon: float, delta: float, planned: Sequence[Callable[[float], Event]], earlier: Sequence[Event] = ()
) -> Composed:
    """`count` and the profile for what follows it: with what was released `earlier`, (`epsilon`, `delta`)-private.

    `planned` are runs for `NOMINAL_SIZES`: from a noise multiplier to what the run costs. ValueError where nothing is left for
    them.
    """
    # runs that cost the same at two noise levels are the same runs: what was found for them is found again
    alike = tuple(run(noise) for run in planned for noise in (1.0, 3.0))
    key = (count, epsilon, delta, alike, tuple(earlier))
    if key not in _found:
        while len(_found) >= _REMEMBERED:
            _found.pop(next(iter(_found)), None)
        _found[key] = _profile(count, epsilon, delta, planned, earlier)
    return Composed((count, _found[key]))


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
