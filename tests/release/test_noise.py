"""Noise on grids: the law of the sampler, and the published attacks on low bits, against it and against what was there before."""

from __future__ import annotations

import itertools
import math
import os
from typing import Any

import mpmath
import numpy as np
import pytest
from scipy import stats
from scipy.special import ndtr

from dperm import _random
from dperm._exact import Digits, failures, normals, rounded
from dperm._random import NORMAL_ERROR, NoiseStream, Randomness, _Block, _Keystream, _Part
from dperm.audit import Training, low_bits
from dperm.audit.low_bits import inversion, normal_pairs, precision
from dperm.audit.recording import Forced, Recorder
from dperm.mechanisms import NoisySize
from dperm.privacy import Gaussian, PureDP
from dperm.release import Channel, GaussianNoise, PureNoise, SystemSource
from dperm.release.grid import Grid
from helpers.catalogue import MODULES, entries_of

SURE = 1e-9


def stream(seed: int = 0) -> NoiseStream:
    return NoiseStream(bytes([seed]) * 32)


def fair(right: int, trials: int) -> bool:
    """Within a 99.9 % binomial interval of chance."""
    reach = 3.29 * math.sqrt(trials) / 2
    return abs(right - trials / 2) <= reach + 0.5


def in_doubles(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a platform whose widest numbers are doubles."""
    monkeypatch.setattr(_random, "_WIDEST", np.float64)


# The sampler


@pytest.mark.parametrize("scale", [0.3, 2.0, 1000.3, 2.0**40])
def test_whole_numbers_have_the_law_of_rounded_normals(scale: float) -> None:
    drawn = stream(1).rounded_normal(scale, 60_000)
    assert np.array_equal(drawn, np.rint(drawn))
    if scale < 10:
        values = np.arange(-math.ceil(4 * scale), math.ceil(4 * scale) + 1)
        chances = np.diff(ndtr((np.append(values, values[-1] + 1) - 0.5) / scale))
        counts = np.array([(drawn == value).sum() for value in values])
        kept = chances * len(drawn) > 5
        rest = [len(drawn) - counts[kept].sum()], [len(drawn) * (1 - chances[kept].sum())]
        expected = np.append(chances[kept] * len(drawn), rest[1])
        assert stats.chisquare(np.append(counts[kept], rest[0]), expected * len(drawn) / expected.sum()).pvalue > SURE
    else:
        assert stats.kstest((drawn + np.random.default_rng(0).uniform(-0.5, 0.5, len(drawn))) / scale, "norm").pvalue > SURE


@pytest.mark.parametrize("wide", [True, False], ids=["the platform's widest", "doubles"])
def test_numbers_are_within_their_error_of_sixty_digits(wide: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both normals of each pair against Box and Muller's transform of the same uniform numbers, which 64 digits leave 2⁻⁶⁴ of."""
    if not wide:
        in_doubles(monkeypatch)
    block = _Block(200).refill(_Keystream(bytes(32)))
    with mpmath.workdps(60):
        for place in range(2 * len(block)):
            first, second = (item.number for item in block.digits(place % len(block), lambda bits: 0))
            radius = mpmath.sqrt(-2 * mpmath.log((first + mpmath.mpf(0.5)) / 2**64))
            angle = 2 * mpmath.pi * (second + mpmath.mpf(0.5)) / 2**64
            real = radius * (mpmath.cos(angle) if place < len(block) else mpmath.sin(angle))
            value, error = (item[0] for item in block.found(np.array([place])))
            whole = mpmath.mpf(float(value)) + mpmath.mpf(float(value - float(value)))
            assert abs(real - whole) <= float(error) < NORMAL_ERROR
            assert math.isnan(block.normals[place]) or abs(real - float(block.normals[place])) <= 2.0**-43


def test_a_number_in_doubt_is_settled_by_further_digits() -> None:
    """At a scale of 2⁹⁰ the first 64 digits never tell the nearest integer: more are drawn, and say what 60 digits say."""
    asked: list[int] = []

    def more(bits: int) -> int:
        asked.append(bits)
        return 0

    number, angle = Digits(3 << 61, 64, more), Digits(5 << 58, 64, more)
    found = rounded(lambda real: normals(number, angle, real), [number, angle], 2.0**90)
    assert asked
    with mpmath.workdps(80):
        radius = mpmath.sqrt(-2 * mpmath.log(mpmath.mpf(3 << 61) / 2**64))
        turn = 2 * mpmath.pi * mpmath.mpf(5 << 58) / 2**64
        for mine, real in zip(found, (radius * mpmath.cos(turn), radius * mpmath.sin(turn)), strict=True):
            assert mine == int(mpmath.nint(real * 2**90))


class Shortened(np.longdouble):
    """The platform's widest numbers, in a program that told the processor to compute as doubles do."""

    def __add__(self, other: Any) -> Any:
        return np.longdouble(float(self) + float(other))


def shortened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_random, "_WIDEST", Shortened)
    monkeypatch.setattr(np, "finfo", lambda kind, usual=np.finfo: usual(np.longdouble if kind is Shortened else kind))


@pytest.mark.parametrize("short", [in_doubles, shortened])
def test_whole_numbers_do_not_depend_on_how_wide_the_platform_computes(short: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """At 2⁴⁰ one in eight is in doubt in doubles. Numbers that a program made shorter are found out, and not used."""
    usual = stream(3).rounded_normal(2.0**40, 3000)
    short(monkeypatch)
    assert _random._wide()[0] is np.float64
    assert np.array_equal(stream(3).rounded_normal(2.0**40, 3000), usual)


def test_tails_do_not_end() -> None:
    """Uniform numbers with hundreds of leading zeros give normals beyond 8.57 standard deviations, of the right size."""
    for zeros in (60, 128, 400):
        shifts = iter([0] * (zeros // 64) + [1 << (63 - zeros % 64)])
        tiny = Digits(0, 64, lambda bits, shifts=shifts: next(shifts, 12345))
        angle = Digits(1, 64, lambda bits: 0)  # nearly 0: the cosine is nearly 1
        found = rounded(lambda real, tiny=tiny, angle=angle: normals(tiny, angle, real), [tiny, angle], 1000.0)[0]
        assert abs(found - 1000 * math.sqrt(2 * (zeros + 65) * math.log(2))) < 150
        assert found > 8570


@pytest.mark.parametrize("scale", [3.0, 2.0**47])
def test_signs_are_kept_where_doubles_say_nothing(scale: float) -> None:
    """At 2⁴⁷ every number is rounded from more digits than 64, at 3 hardly one: of the same digits."""
    drawn, usual = stream(8).rounded_normal(scale, 300), stream(8).standard_normal(300)
    assert np.abs(drawn / scale - usual).max() < 0.5 / scale + 2.0**-40
    balls = stream(9).rounded_ball(scale / 8, 3, 100)
    assert stats.binomtest(int((balls < 0).sum()), int((balls != 0).sum())).pvalue > SURE
    assert rounded(lambda real: [real.mpf(-5), real.mpf(7) / -2 - 1], [Digits(1, 64, lambda bits: 1)], 1.0) == [-5, -4]


def test_zero_has_no_sign() -> None:
    """−0 would tell that a query was rounded to zero from below, wherever noise was, too."""
    for drawn in (
        stream(10).rounded_normal(0.3, 999),
        stream(10).rounded_ball(0.2, 3, 300),
        stream(10).rounded_balls([0.3, 0.2], 99),
    ):
        assert (drawn == 0).any() and not np.signbit(drawn[drawn == 0]).any()
    for query in (-0.3, 0.3):
        released = SystemSource(Randomness.from_system()).noisy(np.full(999, query), GaussianNoise(1.0, 1.0, step=1.0))
        assert (released == 0).any() and not np.signbit(released[released == 0]).any()


@pytest.mark.parametrize("size", [1, 2, 7])
def test_vectors_of_the_norm_mechanism_have_gamma_lengths_and_uniform_directions(size: int) -> None:
    drawn = stream(3).rounded_ball(1e6, size, 3000) / 1e6
    lengths = np.linalg.norm(drawn, axis=1)
    assert stats.kstest(lengths, "gamma", args=(size,)).pvalue > SURE
    assert stats.binomtest(int((drawn[:, 0] > 0).sum()), len(drawn)).pvalue > SURE


SCALES = [2.0**30 * scale for scale in (8, 4, 3.5, 1, 0.25)]


@pytest.mark.fast_cases("1")
@pytest.mark.parametrize("size", [1, 2, 7])
def test_noise_that_falls_has_its_law_at_every_scale_and_steps_that_are_independent(size: int) -> None:
    noise = stream(5)
    drawn = np.array([noise.rounded_balls(SCALES, size) for _ in range(600)])
    for row, scale in enumerate(SCALES):
        lengths = np.linalg.norm(drawn[:, row] / scale, axis=1)
        assert stats.kstest(lengths, "gamma", args=(size,)).pvalue > SURE
        assert stats.binomtest(int((drawn[:, row, 0] > 0).sum()), len(drawn)).pvalue > SURE
    for row, (high, low) in enumerate(itertools.pairwise(SCALES)):
        step, after = drawn[:, row] - drawn[:, row + 1], drawn[:, row + 1]
        stays = (low / high) ** (size + 1)  # no failure before (size + 1)/2 successes
        assert stats.binomtest(int((~step.any(axis=1)).sum()), len(drawn), stays).pvalue > SURE
        # the characteristic functions' quotient, at one place
        at = np.zeros(size)
        at[0] = 1 / high
        wanted = ((1 + (low / high) ** 2) / 2) ** ((size + 1) / 2)
        found = np.cos(step @ at)
        assert abs(found.mean() - wanted) < 6 * found.std() / math.sqrt(len(found))
        lengths = stats.spearmanr(np.linalg.norm(step, axis=1), np.linalg.norm(after, axis=1)).pvalue
        assert lengths > SURE and stats.spearmanr(step[:, 0], after[:, 0]).pvalue > SURE


def test_noise_that_falls_is_rounded_from_all_the_digits_that_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where doubles say nothing, intervals give the same integers from the same digits."""
    expected = stream(6).rounded_balls(SCALES, 3)
    usual = _Part.__init__
    monkeypatch.setattr(_Part, "__init__", lambda self, values, doubt, *rest: usual(self, values, doubt + np.inf, *rest))
    assert np.array_equal(stream(6).rounded_balls(SCALES, 3), expected)


def test_scales_that_are_the_same_give_the_same_noise() -> None:
    drawn = stream(7).rounded_balls([5e5, 5e5, 1e5], 3)
    assert np.array_equal(drawn[0], drawn[1]) and not np.array_equal(drawn[1], drawn[2])


def test_failures_are_negative_binomial() -> None:
    rng, more = np.random.default_rng(0), lambda bits: 1
    uniforms = [Digits(int(word), 64, more) for word in rng.integers(2**64, size=3000, dtype=np.uint64)]
    drawn = np.bincount([failures(digits, 5, 0.8, 1.0) for digits in uniforms], minlength=12)[:12]
    chances = stats.nbinom.pmf(np.arange(12), 2.5, 0.64)
    assert stats.chisquare([*drawn, 3000 - drawn.sum()], 3000 * np.append(chances, 1 - chances.sum())).pvalue > SURE
    edge = 0.5**2  # successes = 2: P(none) is a quarter, where digits begin that say neither yes nor no
    for further, count in ((0, 1), (2**63, 1)):
        digits = Digits(int(edge * 2**64), 64, lambda bits, further=further: further)
        assert failures(digits, 2, 0.5, 1.0) == count
    assert failures(Digits(int(edge * 2**64) - 1, 64, more), 2, 0.5, 1.0) == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_a_forked_process_draws_nothing() -> None:
    noise = stream(4)
    child = os.fork()
    if child == 0:
        try:
            noise.rounded_normal(5.0, 3)
        except RuntimeError:
            os._exit(0)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize("sensitivity", [1e-100, 0.37, 1e90])
@pytest.mark.parametrize("size", [1, 50, 10**6])
@pytest.mark.parametrize("multiplier", [0.3, 4.0, 1e6])
def test_a_grid_is_fine_and_says_what_rounding_adds(sensitivity: float, size: int, multiplier: float) -> None:
    grid = Grid.of(sensitivity, multiplier * sensitivity, size)
    assert math.frexp(grid.step)[0] == 0.5
    assert sensitivity + 2 * grid.step * math.sqrt(size) <= grid.sensitivity * (1 + 1e-15)
    assert grid.sensitivity <= sensitivity * (1 + 2.0**-12)


# The published attacks


class Before:
    """The noise that dperm had: Box and Muller's normals of 53-bit uniforms, logarithms of them, added as doubles."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def uniforms(self, count: int) -> np.ndarray:
        return (self.rng.integers(0, 2**53, count) + 1.0) * 2.0**-53

    def normals(self, size: int) -> np.ndarray:
        half = (size + 1) // 2
        radius, angle = np.sqrt(-2.0 * np.log(self.uniforms(half))), 2.0 * np.pi * self.uniforms(half)
        return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:size]

    def laplace(self, scale: float) -> np.ndarray:
        first, second = np.log(self.uniforms(2))
        return np.array([scale * (first - second)])

    def inverted(self, scale: float) -> np.ndarray:
        return np.array([scale * np.log(self.uniforms(1)[0]) * self.rng.choice([-1.0, 1.0])])


def worlds(add: Any, queries: Any, trials: int) -> list[Any]:
    return [(add(queries[0]), add(queries[1])) for _ in range(trials)]


def test_both_normals_of_a_pair_gave_the_data_away() -> None:
    """One vector of 6,000 numbers at ε = 0.1 told which of two data sets it was of."""
    noise, size, std = Before(0), 6_000, 30.0
    queries = np.zeros(size), np.full(size, 1 / math.sqrt(size))
    releases = worlds(lambda query: query + std * noise.normals(size), queries, 200)
    found = low_bits(releases, queries, std, claim=Gaussian(std), delta=1e-5, scores=[normal_pairs])[0]
    assert found.verdict == "refuted", str(found)


def test_inverted_laplace_noise_gave_the_data_away() -> None:
    noise, scale = Before(1), 1.0
    queries = np.zeros(40), np.full(40, 0.5)
    releases = worlds(lambda query: query + np.concatenate([noise.inverted(scale) for _ in query]), queries, 400)
    results = low_bits(releases, queries, scale, claim=PureDP(0.1), delta=0.0, scores=[precision, inversion])
    assert [found.verdict for found in results] == ["refuted", "refuted"]


def test_one_laplace_number_excluded_the_neighbour_with_certainty() -> None:
    noise, scale = Before(2), 1.0
    queries = np.zeros(1), np.ones(1)
    releases = worlds(lambda query: query + noise.laplace(scale), queries, 3000)
    sure = sum(precision(pair[0], queries[1], scale) == 0.0 for pair in releases) / len(releases)
    assert 0.15 < sure < 0.4
    assert low_bits(releases, queries, scale, claim=PureDP(1.0), delta=0.0, scores=[precision])[0].verdict == "refuted"


def by_channel(event: Any, queries: Any, trials: int) -> list[Any]:
    def add(query: np.ndarray) -> np.ndarray:
        channel = Channel.open()
        channel.charge(event, "test")
        if isinstance(event, PureDP):
            return channel.release(query, PureNoise(1.0, event.epsilon))
        return channel.release(query, GaussianNoise(1.0, event.noise_multiplier))

    return worlds(add, queries, trials)


@pytest.mark.fast_cases("500-pure", "2-gaussian")
@pytest.mark.parametrize("event", [Gaussian(30.0), PureDP(0.1)], ids=["gaussian", "pure"])
@pytest.mark.parametrize("size", [1, 2, 500])
def test_the_same_attacks_are_at_chance_now(event: Any, size: int) -> None:
    queries = np.zeros(size), np.full(size, 1 / math.sqrt(size))
    releases = by_channel(event, queries, 200 if size < 10 else 25)
    scale = 30.0 if isinstance(event, Gaussian) else 10.0
    coins = np.random.default_rng(0)
    for score in (precision, inversion, normal_pairs):
        right = 0
        for pair in releases:
            for world in (0, 1):
                gain = score(pair[world], queries[1], scale) - score(pair[world], queries[0], scale)
                right += int((gain > 0) == bool(world)) if gain else int(coins.integers(2))
        assert fair(right, 2 * len(releases)), score.__name__


@pytest.mark.slow
@pytest.mark.parametrize("share", range(4))
@pytest.mark.parametrize("module", MODULES)
def test_low_bits_of_every_mechanism_are_at_chance(module: str, share: int) -> None:
    for name, mechanism, objective in entries_of(module)[share::4]:
        if "recipe" not in name and "frank-wolfe" not in name:  # choices have no digits
            low_bits_are_at_chance(name, mechanism, objective)


def low_bits_are_at_chance(name: str, mechanism: Any, objective: Any) -> None:
    """1,000 releases each: the digits of what left, given the queries of both neighbours."""
    training = Training.of_mechanism(mechanism, objective)
    pair = training.replay_pairs[0]
    directions, trials = np.random.default_rng(0), 0
    guesses: dict[str, list[bool]] = {score.__name__: [] for score in (precision, inversion, normal_pairs)}
    while trials < 1000:
        recorder = Recorder(SystemSource(Randomness.from_system()))
        training.run(pair.first, recorder)
        forced = Forced(recorder.recording, pair.index_map, pair.extra)
        if not isinstance(mechanism, NoisySize):
            training.run(pair.second, forced)
        other = forced.recording.releases or recorder.recording.releases
        hidden = any(mine.kind == "objective" for mine in recorder.recording.releases)
        for mine, theirs in zip(recorder.recording.releases, other, strict=True):
            if mine.kind in ("objective", "hidden", "choice"):
                continue  # the linear term, and the step, stay inside; a place has no digits
            query = theirs.query
            if hidden:  # by the linear term that explains the same release, the neighbour's solution is as near as is charged
                away = directions.normal(size=np.shape(mine.query))
                query = mine.query + mine.sensitivity * away / np.linalg.norm(away)
            scale = mine.noise if mine.kind == "gaussian" else mine.sensitivity / mine.noise
            trials += 1
            for score in (precision, inversion, normal_pairs):
                gain = score(mine.released, mine.query, scale) - score(mine.released, query, scale)
                if gain:  # a tie says nothing
                    guesses[score.__name__].append(gain > 0)
    for name_of_score, seen in guesses.items():
        assert not seen or stats.binomtest(sum(seen), len(seen)).pvalue > 1e-6, (name_of_score, sum(seen), len(seen))
