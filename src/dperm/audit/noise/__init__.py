"""Statistical tests of the noise of recorded runs: its size, its shape, its resolution and its independence.

Each family of tests returns one p-value: the probability, or a proved upper bound on the probability, that sound noise
deviates at least as far as the noise that was seen. Sound noise consists of independent normals on the recorded grid, of
gamma-norm vectors for pure mechanisms, of paths of such vectors, and of exponential-mechanism choices. A family is refuted where
its p-value is below `FALSE_ALARM`, so that by the union bound sound noise is refuted with probability at most
len(FAMILIES) · FALSE_ALARM.

Families of shape and of dependence look at standard normals. Gaussian noise is that already. A pure vector has a uniform
direction and a norm that is Gamma(d), and is stretched to the norm of normals with the same quantile. A step of a path keeps its
direction, and is given an independent norm of normals.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dperm.audit.noise.dependence import correlations, pairs_of_releases, ranks, repeats
from dperm.audit.noise.family import FALSE_ALARM, Finding, NoiseTest
from dperm.audit.noise.shape import distribution, grain, lengths, tails
from dperm.audit.noise.size import choices, coordinate_sizes, path_sizes, pure_sizes, release_sizes, visible_noise
from dperm.audit.noise.summary import NoiseSeen, PathSeen, ReleaseSeen

__all__ = [
    "FALSE_ALARM",
    "FAMILIES",
    "Finding",
    "NoiseSeen",
    "NoiseTest",
    "PathSeen",
    "ReleaseSeen",
    "noise_findings",
    "noise_tests",
    "visible_noise",
]

#: The families, in the order in which a kind of defect is reported.
FAMILIES: tuple[Callable[[Sequence[NoiseSeen]], NoiseTest | None], ...] = (
    release_sizes,
    coordinate_sizes,
    pure_sizes,
    path_sizes,
    choices,
    tails,
    distribution,
    lengths,
    repeats,
    pairs_of_releases,
    ranks,
    grain,
    correlations,
)


def noise_tests(seen: Sequence[NoiseSeen]) -> list[NoiseTest]:
    """One result for each family that applies to these independent runs."""
    return [test for family in FAMILIES if (test := family(seen)) is not None]


def noise_findings(seen: Sequence[NoiseSeen]) -> list[Finding]:
    """The refuted families: the first of each kind of defect. Repeated noise explains coarse and correlated noise."""
    refuted: dict[str, str] = {}
    for test in noise_tests(seen):
        if test.p_value < FALSE_ALARM:
            refuted.setdefault(test.kind, test.text)
    if "repeated noise" in refuted:
        refuted.pop("coarse noise", None)
        refuted.pop("correlated noise", None)
    return [Finding(kind, text) for kind, text in refuted.items()]
