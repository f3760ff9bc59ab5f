"""The laws of the auditor's noise tests: sound noise is not refuted at any length of release, and p-values are what they say."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest
from scipy.special import erfcx
from scipy.stats import binom, laplace, norm

from dperm._random import Randomness
from dperm.audit import Training, attack
from dperm.audit.noise import FALSE_ALARM, FAMILIES, NoiseSeen, noise_findings, noise_tests
from dperm.audit.noise.size import log_mean, stated_square
from dperm.audit.recording import Recorder, Recording, ReleaseRecord
from dperm.estimators import DPRidge
from dperm.release import FallingNoise, GaussianNoise, PureNoise, SystemSource, ThresholdNoise

#: Lengths at which the tests treat a release otherwise: parts of one number, rows of a block of ranks, thirds that are kept.
CUT_OFFS = (1, 2, 3, 8, 256, 512, 768, 1024, 1600)
AROUND = sorted({length + offset for length in CUT_OFFS for offset in range(-3, 4) if length + offset >= 1})
RANDOM = [int(length) for length in np.random.default_rng(42).integers(1, 1200, 200)]
STEP = 2.0**-20  # as fine as dperm's own grids

#: Families whose p-value is that of an exact law, or nearly: the others' are upper bounds.
EXACT = {"_release_sizes", "_coordinate_sizes", "_pure_sizes", "_choices"}


def sound_run(rng: np.random.Generator, releases: int, length: int) -> NoiseSeen:
    """A run of Gaussian releases of one length, some Laplace-like ones, a gradual one, and choices among five."""
    made: list[ReleaseRecord] = []
    for release in range(releases):
        noise = np.rint(rng.normal(size=length) / STEP) * STEP
        made.append(ReleaseRecord(np.zeros(length), 1.0, 1.0, noise, step=STEP))
        direction = rng.normal(size=length)
        pure = direction / np.linalg.norm(direction) * rng.gamma(length)
        made.append(ReleaseRecord(np.zeros(length), 1.0, 1.0, pure, kind="pure", step=STEP))
        if release == 0:
            made.append(gradual(rng, pure, (1 / 9, 1 / 3, 1.0)))
        scores = rng.normal(size=5)
        chances = np.exp(scores / 2) / np.exp(scores / 2).sum()
        made.append(ReleaseRecord(scores, 1.0, 1.0, np.array([float(rng.choice(5, p=chances))]), kind="choice"))
    return NoiseSeen.of(Recording(made))


def gradual(rng: np.random.Generator, last: np.ndarray, epsilons: tuple[float, ...]) -> ReleaseRecord:
    """A path that ends in a fresh copy of a pure vector's law. Steps are normals of a variance that is gamma of a negative
    binomial number: the quotient of the characteristic functions (1 + s²t²)^{−(d + 1)/2} of two rows."""
    size = len(last)
    direction = rng.normal(size=size)
    rows = [direction / np.linalg.norm(direction) * rng.gamma(size) / epsilons[-1]]
    for before, after in zip(epsilons[-2::-1], epsilons[:0:-1], strict=True):
        number = rng.negative_binomial((size + 1) / 2, (before / after) ** 2)
        spread = np.sqrt(2 * rng.gamma(number)) / after if number else 0.0
        rows.append(rows[-1] + spread * rng.normal(size=size))
    path = np.rint(np.array(rows[::-1]) / STEP) * STEP
    return ReleaseRecord(np.zeros(size), 1.0, epsilons[-1], path[-1], "pure", step=STEP, path=path, epsilons=epsilons)


def varied_run(randomness: Randomness, rng: np.random.Generator) -> NoiseSeen:
    """A run of dperm's own source: releases of unlike lengths, laws and kinds in an order of chance."""
    recorder = Recorder(SystemSource(randomness))
    for _ in range(12):
        size = int(rng.choice([0, 1, 1, 2, 3, 7, 60, 800]))
        query, law = rng.normal(size=size), int(rng.integers(4))
        if law == 0 or not size:
            recorder.noisy(query, GaussianNoise(1.0, 2.0, what=str(rng.choice(["count", "gradient"])), step=STEP))
        elif law == 1:
            recorder.noisy(query, PureNoise(0.5, 0.1, what="minimiser", step=STEP))
        elif law == 2:
            recorder.noisy(query[:1], ThresholdNoise(1.0, 0.3, step=STEP))
        else:
            recorder.noisy(query[:7], FallingNoise(1.0, (0.05, 0.1, 0.11, 0.5), what="path", step=STEP))
    return NoiseSeen.of(recorder.recording)


def p_values(lengths: Sequence[int], runs: int, releases: int) -> Iterator[dict[str, float]]:
    """The families' p-values for pairs of sound runs of each length, by the families' names; none may refute."""
    rng = np.random.default_rng(runs)
    for length in lengths:
        for _ in range(runs):
            seen = [sound_run(rng, releases, length) for _ in range(2)]
            assert noise_findings(seen) == [], length
            yield {family.__name__: test.p_value for family in FAMILIES if (test := family(seen)) is not None}


def refuse_wrong_laws(observed: Sequence[dict[str, float]], exact: set[str] = EXACT) -> None:
    """Each level is undercut no more often than it says, and by exact laws no less often, but for a chance of 1e-8."""
    for name in {name for each in observed for name in each}:
        values = np.array([each[name] for each in observed if name in each])
        assert np.all(values >= 0), name
        assert np.all(values <= 1), name
        for level in (1e-2, 1e-3):
            below = int((values < level).sum())
            text = f"{name}: {below} of {len(values)} p-values are below {level:g}"
            assert binom.sf(below - 1, len(values), level) > 1e-8, text
            if name in exact:
                # a union of tests of overlapping groups undercuts a level somewhat less often
                assert binom.cdf(below, len(values), level / 2) > 1e-8, text


def test_p_values_of_sound_noise_keep_their_levels() -> None:
    refuse_wrong_laws(list(p_values(AROUND, runs=3, releases=3)))


@pytest.mark.slow
@pytest.mark.parametrize("releases", [1, 4])
def test_no_false_alarm_in_200_runs_at_each_of_250_lengths(releases: int) -> None:
    observed = list(p_values([*AROUND, *RANDOM], runs=200, releases=releases))
    assert len(observed) > 40_000
    refuse_wrong_laws(observed)


def test_p_values_of_runs_of_many_kinds_keep_their_levels() -> None:
    observed: list[dict[str, float]] = []
    for seed in range(15):
        rng = np.random.default_rng(seed)
        seen = [varied_run(Randomness.fixed(2 * seed + turn), rng) for turn in range(2)]
        assert noise_findings(seen) == [], seed
        observed.append({family.__name__: test.p_value for family in FAMILIES if (test := family(seen)) is not None})
    refuse_wrong_laws(observed, exact=set())


def test_the_family_wise_error_is_below_one_in_ten_million() -> None:
    """By the union bound over the families, each of which reports one p-value whatever the run."""
    rng = np.random.default_rng(0)
    assert len(noise_tests([sound_run(rng, 3, 800)])) == len(FAMILIES)
    assert len(FAMILIES) * FALSE_ALARM < 1e-7


@pytest.mark.parametrize("length", [766, 767, 768, 769, 770, 895, 1021, 1022, 1023, 1024, 1025, 5000])
def test_places_kept_of_a_release_differ(length: int) -> None:
    """Places that were kept twice were counted as numbers that repeat: noise of 769 to 1,022 numbers was refuted."""
    release = ReleaseRecord(np.zeros(length), 1.0, 1.0, np.arange(length) * 2.0**-10, step=STEP)
    ((sample, _),) = NoiseSeen.of(Recording([release])).samples
    assert sample.shape == (1, min(length, 768))
    assert len(np.unique(sample)) == sample.size
    assert sample[0, 0] == 0
    assert sample[0, -1] == (length - 1) * 2.0**-10


def test_a_sound_ridge_regression_is_not_refuted() -> None:
    """Its Gram matrix has 990 numbers."""
    training = Training.of_mechanism(*DPRidge(epsilon=1.0, public_size=5000).mechanism_for(features=43))
    few = replace(training, replay_pairs=training.replay_pairs[:2])
    assert [result.verdict for result in attack(few, trials=20)] == ["consistent", "consistent"]


@pytest.mark.parametrize("low", [0.01, 0.5, 0.9, 0.999])
@pytest.mark.parametrize("depth", [0.25, 1.0, 4.0, 16.0])
def test_the_bound_of_a_paths_step_is_above_its_mean_and_near(low: float, depth: float) -> None:
    """In one dimension: two Laplace numbers of scales 1 and `low` differ by 0 with probability low², else by a Laplace number."""
    rate = depth / (2 * (1 - low**2))  # the variance of a Laplace number is 2
    other = np.sqrt(np.pi / (4 * rate)) * erfcx(1 / (2 * np.sqrt(rate)))  # E exp(−rate·L²)
    mean = low**2 + (1 - low**2) * other
    assert 0 <= log_mean(1, 1.0, low, depth) - np.log(mean) < 2e-3


def test_the_stated_square_of_a_paths_step_is_its_mean() -> None:
    rng = np.random.default_rng(3)
    for size in (1, 4, 30):
        rows = [gradual(rng, np.zeros(size), (0.5, 1.0)).path for _ in range(4000)]
        squares = np.array([float(np.sum((path[0] - path[1]) ** 2)) for path in rows if path is not None])
        error = 5 * squares.std() / np.sqrt(len(squares))
        assert abs(squares.mean() - stated_square(size, 2.0, 1.0)) < error


def test_pure_numbers_become_normals_of_the_same_quantile() -> None:
    values = np.array([-20.0, -3.0, -0.5, 1e-3, 0.7, 2.0, 30.0])
    made = [ReleaseRecord(np.zeros(1), 2.0, 0.5, np.array([4 * value]), "pure", step=2.0**-30) for value in values]
    ((sample, _),) = NoiseSeen.of(Recording(made)).samples
    tails = laplace.sf(np.abs(values))
    assert np.allclose(sample.ravel(), np.sign(values) * norm.isf(tails), rtol=1e-10)
