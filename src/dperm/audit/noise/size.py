"""Whether noise is as large as stated."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
from scipy.special import chdtr, gammainc, gammaincc, gammainccinv, gammaincinv, ndtri

from dperm._types import Array
from dperm.audit.noise.family import FALSE_ALARM, NoiseTest, first_or_least, of_the_least
from dperm.audit.noise.summary import SHARES, NoiseSeen, PathSeen, ReleaseSeen

_OFTEN = 0.95  # of audits see noise that is as small as `visible_noise` says
_CUTS = 4096  # equal parts of a chi-squared law
_DEPTHS = (0.25, 1.0, 4.0, 16.0)  # exponents, at the stated size of a path's step, by which short steps are weighted


def _groups(seen: Sequence[NoiseSeen], law: str) -> dict[str, list[ReleaseSeen]]:
    """The releases of this law: all of them, and those of each kind, each length, and each place in the run. Groups of the same
    releases are one group, under the name that comes first here."""
    every = [release for run in seen for release in run.releases if release.law == law]
    groups: dict[str, list[ReleaseSeen]] = {"": every} if every else {}
    names: tuple[Callable[[ReleaseSeen], str], ...] = (
        lambda release: f" of each {release.what}",
        lambda release: f" of releases of {release.size} numbers",
        lambda release: f" in release {release.place}",
    )
    for name in names:
        for release in every:
            groups.setdefault(name(release), []).append(release)
    first: dict[tuple[int, ...], str] = {}
    for name, releases in groups.items():
        first.setdefault(tuple(map(id, releases)), name)
    return {name: groups[name] for name in first.values()}


def release_sizes(seen: Sequence[NoiseSeen]) -> NoiseTest | None:
    """Sums of squares of Gaussian noise, of all and of each group: chi-squared."""
    groups = _groups(seen, "gaussian")
    if not groups:
        return None
    squares = np.array([sum(release.length**2 for release in releases) for releases in groups.values()])
    sizes = np.array([sum(release.size for release in releases) for releases in groups.values()], dtype=float)
    p_values = chdtr(sizes, squares)
    named, p_value = first_or_least(p_values)
    ratio = np.sqrt(squares[named] / sizes[named])
    text = f"its noise{list(groups)[named]} has {ratio:.3g} of the standard deviation stated ({int(sizes[named])} numbers)"
    return NoiseTest("noise", p_value, text)


def coordinate_sizes(seen: Sequence[NoiseSeen]) -> NoiseTest | None:
    """Sums of squares of each coordinate over all releases of one length: chi-squared."""
    p_values: list[Array] = []
    for size in sorted({size for run in seen for size in run.coordinates}):
        parts = [run.coordinates[size] for run in seen if size in run.coordinates]
        squares, count = sum(square for square, _ in parts), sum(number for _, number in parts)
        p_values.append(chdtr(np.full(size, float(count)), squares))
    if not p_values:
        return None
    least, p_value = of_the_least(np.concatenate(p_values))
    for each in p_values:
        if least < len(each):
            return NoiseTest("noise", p_value, f"coordinate {least + 1} of {len(each)} has less noise than stated")
        least -= len(each)
    raise AssertionError


def visible_noise(seen: Sequence[NoiseSeen]) -> dict[str, float]:
    """How small noise must be for the tests of its size to see it.

    Parameters
    ----------
    seen : sequence of NoiseSeen
        Independent runs.

    Returns
    -------
    dict of str to float
        For each kind of release with noise that can be seen, the largest r < 1 such that noise of r times the stated size is
        refuted in 19 of 20 audits, by the sum of squares (of pure noise: of norms) of this kind alone. For choices, the largest
        of `SHARES`, where r is the stated ε over that of the choices; 0 where none of them would be refuted. For the steps of
        paths, whose sum is taken to be normal there, as that of choices is.
    """
    shares: dict[str, float] = {}
    for law, parts, power in (("gaussian", 0.5, 0.5), ("pure", 1.0, 1.0)):
        level = FALSE_ALARM / max(1, len(_groups(seen, law)))
        numbers: dict[str, int] = {}
        for release in (release for run in seen for release in run.releases if release.law == law):
            numbers[release.what] = numbers.get(release.what, 0) + release.size
        for what, count in numbers.items():
            # half a chi-squared sum is Gamma(count/2), a sum of norms is Gamma(count)
            refuted, usual = (float(gammaincinv(parts * count, share)) for share in (level, _OFTEN))
            shares[what] = min((refuted / usual) ** power, shares.get(what, 1.0))
    for others in (_visible_choices(seen), _visible_steps(seen)):
        for what, share in others.items():
            shares[what] = min(share, shares.get(what, 1.0))
    return shares


def _visible_choices(seen: Sequence[NoiseSeen]) -> dict[str, float]:
    """The least visible share of noise of each kind of choice, tested by `choices`. All other kinds are taken to be as stated:
    their −ln U has mean and variance 1."""
    every = [choice for run in seen for choice in run.choices]
    shares: dict[str, float] = {}
    for what in dict.fromkeys(choice.what for choice in every):
        these = [choice for choice in every if choice.what == what]
        others = len(every) - len(these)
        means = others + sum(choice.means for choice in these)
        variances = others + sum(choice.variances for choice in these)
        usual = means - float(ndtri(_OFTEN)) * np.sqrt(variances)
        refuted = SHARES[usual >= gammainccinv(len(every), FALSE_ALARM)]
        shares[what] = float(refuted.max(initial=0.0))
    return shares


def _visible_steps(seen: Sequence[NoiseSeen]) -> dict[str, float]:
    """The least visible share of noise of each kind of path, tested by `path_sizes` at all places of a path together."""
    paths = [path for run in seen for path in run.paths]
    steps = {what: [step for path in paths if path.what == what for step in _steps(path)] for what in {p.what for p in paths}}
    places = max((len(path.scales) - 1 for path in paths), default=0)
    level = np.log(FALSE_ALARM / (len(_DEPTHS) * (1 + places)))
    every = [step for each in steps.values() for step in each]

    def often(these: Sequence[tuple[int, float, float]]) -> float:
        """The 95th percentile of the sum of squared norms, each in units of its mean."""
        spread = np.sqrt(sum(relative_variance(*step) for step in these))
        return len(these) + float(ndtri(_OFTEN) * spread)

    shares: dict[str, float] = {}
    for what, these in steps.items():
        if not these:
            continue
        others = often([step for other, each in steps.items() if other != what for step in each])
        sums = [(level - sum(log_mean(*step, depth) for step in every)) / depth for depth in _DEPTHS]
        shares[f"steps of the {what}"] = min(1.0, np.sqrt(max(0.0, max(sums) - others) / often(these)))
    return shares


def _steps(path: PathSeen) -> list[tuple[int, float, float]]:
    """The size, and the two scales, of each step of a path that has noise in it."""
    return [(path.size, high, low) for high, low in itertools.pairwise(path.scales.tolist()) if high > low]


def relative_variance(size: int, high: float, low: float) -> float:
    """The variance of the squared norm of what is between two pure vectors of these scales, in units of its squared mean.

    The wide vector b is the narrow one, a, and this, v, independent of it and with directions of their own: E‖b‖⁴ =
    E‖a‖⁴ + E‖v‖⁴ + (2 + 4/d)·E‖a‖²·E‖v‖², and pure vectors have E‖b‖⁴ = scale⁴·d(d + 1)(d + 2)(d + 3).
    """
    mean = stated_square(size, high, low)
    fourth = size * (size + 1) * (size + 2) * (size + 3) * (high**2 + low**2) * (high - low) * (high + low)
    return (fourth - (2 + 4 / size) * size * (size + 1) * low**2 * mean) / mean**2 - 1


def pure_sizes(seen: Sequence[NoiseSeen]) -> NoiseTest | None:
    """Norms of noise with density ∝ exp(−ε‖b‖/Δ) in d dimensions, of all and of each group: their sum is Gamma(Σd)."""
    groups = _groups(seen, "pure")
    if not groups:
        return None
    lengths = np.array([sum(release.length for release in releases) for releases in groups.values()])
    sizes = np.array([sum(release.size for release in releases) for releases in groups.values()], dtype=float)
    named, p_value = first_or_least(gammainc(sizes, lengths))
    name, releases = list(groups.items())[named]
    text = f"its noise{name} has {lengths[named] / sizes[named]:.3g} of the length stated ({len(releases)} releases)"
    return NoiseTest("noise", p_value, text)


def path_sizes(seen: Sequence[NoiseSeen]) -> NoiseTest | None:
    """Squared norms of the steps of paths, of all and of each place in a path: Markov's inequality for Π exp(−rate·‖step‖²/2)."""
    groups: dict[str, list[tuple[int, float, float, float]]] = {}
    for path in (path for run in seen for path in run.paths):
        pairs = itertools.pairwise(path.scales.tolist())
        for place, ((high, low), length) in enumerate(zip(pairs, path.lengths.tolist(), strict=True), start=1):
            if high > low:  # otherwise there is no noise in between
                for name in ("", f" between rows {place} and {place + 1}"):
                    groups.setdefault(name, []).append((path.size, high, low, length))
    if not groups:
        return None
    logs = np.zeros((len(groups), len(_DEPTHS)))
    ratios: list[float] = []
    for row, steps in enumerate(groups.values()):
        squares = [length**2 / stated_square(size, high, low) for size, high, low, length in steps]
        ratios.append(float(np.sqrt(np.mean(squares))))
        for column, depth in enumerate(_DEPTHS):
            means = sum(log_mean(size, high, low, depth) for size, high, low, _ in steps)
            logs[row, column] = means + depth * sum(squares)
    p_values = np.exp(np.minimum(logs, 0.0)).min(axis=1)
    named, p_value = first_or_least(p_values)
    text = f"its noise that falls has {ratios[named]:.3g} of the length stated{list(groups)[named]}"
    return NoiseTest("noise", min(1.0, len(_DEPTHS) * p_value), text)


def stated_square(size: int, high: float, low: float) -> float:
    """The mean of the squared norm of what is between two pure vectors of these scales: b has a squared norm of d(d + 1)."""
    return size * (size + 1) * (high - low) * (high + low)


@lru_cache(maxsize=4096)
def log_mean(size: int, high: float, low: float, depth: float) -> float:
    """An upper bound on ln E exp(−depth·‖v‖²/E‖v‖²), where v is what is between two pure vectors of these scales.

    With w of independent normals N(0, rate), exp(−rate·‖v‖²/2) is the mean over w of cos⟨w, v⟩, and v's characteristic function
    is ((1 + low²·‖w‖²)/(1 + high²·‖w‖²))^{(d + 1)/2}, which falls in ‖w‖²: its value at the lower end of each of equally likely
    parts of the law of ‖w‖²/rate, chi-squared, bounds its mean.
    """
    squares = _lower_ends(size) * (2 * depth / stated_square(size, high, low))
    logs = (size + 1) / 2 * (np.log1p(low**2 * squares) - np.log1p(high**2 * squares))
    return float(np.log(np.mean(np.exp(logs))))


@lru_cache(maxsize=64)
def _lower_ends(size: int) -> Array:
    """The lower ends of `_CUTS` equally likely parts of the chi-squared law."""
    return 2 * gammaincinv(size / 2, np.arange(_CUTS) / _CUTS)


def choices(seen: Sequence[NoiseSeen]) -> NoiseTest | None:
    """The randomised probability of something better than the choice is uniform: Fisher's product of them."""
    choices = [choice for run in seen for choice in run.choices]
    if not choices:
        return None
    drawn = np.random.default_rng().uniform(size=len(choices))
    uniform = np.array([choice.better + share * choice.own for choice, share in zip(choices, drawn, strict=True)])
    p_value = float(gammaincc(len(choices), -np.log(np.maximum(uniform, 1e-300)).sum()))
    return NoiseTest("noise", p_value, f"its choices are less random than stated ({len(choices)} of them)")
