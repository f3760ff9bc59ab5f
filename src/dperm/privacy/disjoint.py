"""The largest profile of parallel composition, as one pair of losses.

For two mechanisms of a composition that is split otherwise each time, or too often to go through every way: a pair whose profile
is the largest of all parts', at each ε by itself, dominates whichever part it was, and pairs compose (Zhu, Dong, Wang 2022,
Theorem 10). The largest of convex functions of e^ε is convex: there is such a pair.
"""

from __future__ import annotations

import functools

from dperm.privacy.events import LARGEST_LOSS, Composed, Disjoint, PrivacyProfile, SelfComposed
from dperm.privacy.filters import privacy_profile
from dperm.privacy.pairs import Directions, loss_pairs
from dperm.privacy.pld import PrivacyLossDistribution

_COARSE = 1e-3  # relative grid error
_KEPT = 1e-13  # δ where the profile ends, or a hair above what stays at any ε


@loss_pairs.register
def _(event: Disjoint) -> Directions:
    return loss_pairs(largest_profile(event))


@functools.lru_cache(maxsize=64)
def largest_profile(event: Disjoint) -> PrivacyProfile:
    """Upper bounds on the largest of the profiles of what a unit may have met, both directions."""
    options = [Composed(tuple(SelfComposed(leaf, count) for leaf, count in option.items())) for option in event.options if option]
    stays = max(PrivacyLossDistribution(option, _COARSE).delta(LARGEST_LOSS) for option in options)
    smallest = max(_KEPT, 1.001 * stays)
    if smallest >= 1:
        return PrivacyProfile((0.0,), (1.0,), event.relation)
    return privacy_profile(*options, smallest_delta=smallest)
