"""Planted defects of noise and draws, each found by replay or by the white-box audit; and sound runs: none is refuted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from dperm._random import NoiseStream, Randomness
from dperm.audit import Training, replay, white_box
from dperm.audit.noise import NoiseSeen, noise_findings
from dperm.audit.recording import Recording, ReleaseRecord
from dperm.gradient import SGD, Clip, Constant, FullBatch, Plan, Poisson
from dperm.mechanisms import Budget, GradientPerturbation
from dperm.objectives import LinearObjective, Logistic
from dperm.release import FallingNoise, Noise, SystemSource
from dperm.release.draws import Draw
from helpers.catalogue import accuracy_first

OBJECTIVE = LinearObjective(Logistic(), 300, data_norm=1.0, public_size=60)


def plan(**changes: Any) -> Plan:
    parts: dict[str, Any] = {
        "sampler": FullBatch(), "bounding": Clip(0.5), "noise": Constant(3.0), "update": SGD(0.1), "steps": 40, "public_size": 60,
    }  # fmt: skip
    return Plan(**(parts | changes))


def kinds(**changes: Any) -> set[str]:
    mechanism = GradientPerturbation(budget=Budget(1e-5), plan=plan(**changes))
    training = Training.of_mechanism(mechanism, OBJECTIVE)
    return set(replay(training, training.replay_pairs[:2]).details["kinds"])


Spoil = Callable[[np.ndarray, list[np.ndarray], np.random.Generator], np.ndarray]


def halves(noise: np.ndarray, before: list[np.ndarray], rng: np.random.Generator) -> np.ndarray:
    half = len(noise) // 2
    noise[half : 2 * half] = noise[:half]
    return noise


def flipped(noise: np.ndarray, before: list[np.ndarray], rng: np.random.Generator) -> np.ndarray:
    return -before[-3] if len(before) % 40 == 20 else noise


def sums(noise: np.ndarray, before: list[np.ndarray], rng: np.random.Generator) -> np.ndarray:
    return sum(before[-8:]) / np.sqrt(8) if len(before) % 9 == 8 else noise


def anticorrelated(noise: np.ndarray, before: list[np.ndarray], rng: np.random.Generator) -> np.ndarray:
    return noise if not before else -0.3 * before[-1] + np.sqrt(1 - 0.09) * noise


def cut(noise: np.ndarray, before: list[np.ndarray], rng: np.random.Generator) -> np.ndarray:
    while (far := np.abs(noise) > 3).any():
        noise[far] = rng.normal(size=int(far.sum()))
    return noise


def coarse(noise: np.ndarray, before: list[np.ndarray], rng: np.random.Generator) -> np.ndarray:
    return np.rint(noise * 1024) / 1024


def bfloat16(noise: np.ndarray, before: list[np.ndarray], rng: np.random.Generator) -> np.ndarray:
    mantissa, exponent = np.frexp(noise)
    return np.ldexp(np.rint(mantissa * 256) / 256, exponent)


def uniform(noise: np.ndarray, before: list[np.ndarray], rng: np.random.Generator) -> np.ndarray:
    return rng.uniform(-np.sqrt(3), np.sqrt(3), len(noise))


@pytest.mark.parametrize(
    ("spoil", "kind"),
    [
        (halves, "correlated noise"),
        (flipped, "repeated noise"),
        (sums, "repeated noise"),
        (anticorrelated, "repeated noise"),
        (cut, "noise shape"),
        (uniform, "noise shape"),
        (coarse, "coarse noise"),
        (bfloat16, "coarse noise"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_noise_that_is_not_as_stated_is_found(spoil: Spoil, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before: list[np.ndarray] = []
    rng = np.random.default_rng(0)

    def noisy(self: SystemSource, query: Any, noise: Noise) -> Any:
        spoilt = spoil(rng.normal(size=len(query)), before, rng)
        before.append(spoilt.copy())
        return np.rint(query / noise.step) * noise.step + noise.level * spoilt

    monkeypatch.setattr(SystemSource, "noisy", noisy)
    found = kinds()
    assert found & {kind, "repeated noise", "correlated noise"} if "correlated" in kind or "repeated" in kind else kind in found


def test_a_record_in_every_batch_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = SystemSource.draw

    def always(self: SystemSource, draw: Draw, records: int, steps: int) -> Iterator[Any]:
        for included in honest(self, draw, records, steps):
            yield np.union1d(included, [7])

    rng = np.random.default_rng(0)
    records = OBJECTIVE.records(rng.normal(size=(60, 300)), np.where(rng.random(60) < 0.5, 1.0, -1.0))
    settings = {"sampler": Poisson(0.1), "steps": 60}
    assert white_box(plan(**settings), OBJECTIVE, records, delta=1e-5, canaries=60).verdict == "consistent"
    monkeypatch.setattr(SystemSource, "draw", always)
    found = white_box(plan(**settings), OBJECTIVE, records, delta=1e-5, canaries=60)
    assert found.refuted and "a record was drawn in" in " ".join(found.findings)


@dataclass(frozen=True)
class Loose(Clip):
    """Norms between 20 and 200 times the bound are cut at 1.5 times it."""

    def factors(self, norms: Any) -> Any:
        found = super().factors(norms)
        between = (norms > 20 * self.clipping_norm) & (norms < 200 * self.clipping_norm)
        return np.where(between, 1.5 * found, found)


def test_norms_that_are_cut_too_far_out_are_found() -> None:
    """Seen only by canaries of such norms, where the sum itself holds no bound: a network's, or a stranger's."""
    rng = np.random.default_rng(0)
    records = OBJECTIVE.records(rng.normal(size=(60, 300)), np.where(rng.random(60) < 0.5, 1.0, -1.0))
    sound = white_box(plan(noise=Constant(1.0), steps=160), OBJECTIVE, records, delta=1e-5, canaries=400)
    assert sound.verdict == "consistent", str(sound)
    found = white_box(plan(bounding=Loose(0.5), noise=Constant(1.0), steps=160), OBJECTIVE, records, delta=1e-5, canaries=400)
    assert found.refuted and "times the bound add more than it" in " ".join(found.findings)


def runs(rng: np.random.Generator, releases: int, size: int) -> NoiseSeen:
    """What is kept of a run whose noise is sound, on a grid as fine as dperm's."""
    step = 2.0**-20
    made = [np.rint(rng.normal(size=size) / step) * step for _ in range(releases)]
    query = np.zeros(size)
    return NoiseSeen.of(Recording([ReleaseRecord(query, 1.0, 1.0, released, step=step) for released in made]))


@pytest.mark.fast_cases("12-50", "40-1")
@pytest.mark.parametrize(("releases", "size"), [(1, 1), (3, 2), (40, 1), (20, 5), (12, 50), (6, 2000)])
def test_no_sound_noise_is_refuted(releases: int, size: int) -> None:
    rng = np.random.default_rng(releases * size)
    for _ in range(170):  # 1,020 in all
        assert noise_findings([runs(rng, releases, size) for _ in range(2)]) == []


def test_sound_runs_of_the_sources_own_are_not_refuted() -> None:
    for seed in range(3):
        assert kinds() == set(), seed
    assert Randomness.from_system().private


# Defects that only a kind of release, a path, a direction or a distance between releases shows: recordings made here.

Made = Callable[[np.random.Generator], list[ReleaseRecord]]


def normals(noise: Any, what: str = "statistic") -> ReleaseRecord:
    return ReleaseRecord(np.zeros(len(noise)), 1.0, 1.0, np.array(noise), step=2.0**-30, what=what)


def ball(rng: np.random.Generator, size: int) -> np.ndarray:
    direction = rng.normal(size=size)
    return direction / np.linalg.norm(direction) * rng.gamma(size)


def pure(noise: Any, what: str = "minimiser") -> ReleaseRecord:
    kind = "threshold" if what == "threshold question" else "pure"
    return ReleaseRecord(np.zeros(len(noise)), 1.0, 1.0, np.array(noise), kind, step=2.0**-30, what=what)


def path(rng: np.random.Generator, spoil: Callable[[np.ndarray], np.ndarray] = lambda rows: rows) -> ReleaseRecord:
    """Eight rows of four numbers of the source's own, from eight times the last one's scale down."""
    epsilons = tuple(np.geomspace(1 / 8, 1.0, 8).tolist())
    source = SystemSource(Randomness.fixed(int(rng.integers(2**62))))
    rows = spoil(source.noisy(np.zeros(4), FallingNoise(1.0, epsilons, step=2.0**-24)))
    return ReleaseRecord(np.zeros(4), 1.0, 1.0, rows[-1], "pure", step=2.0**-24, path=rows, epsilons=epsilons)


def quiet_count(rng: np.random.Generator) -> list[ReleaseRecord]:
    return [normals(rng.normal(size=1000), "gradient"), normals(0.2 * rng.normal(size=1), "count")]


def quiet_count_somewhere(rng: np.random.Generator) -> list[ReleaseRecord]:
    """Of the same length as other releases, and not at one place."""
    others = [normals(rng.normal(size=1), "sum") for _ in range(30)]
    return [*others[: (place := int(rng.integers(31)))], normals(0.1 * rng.normal(size=1), "count"), *others[place:]]


def quiet_minimiser_somewhere(rng: np.random.Generator) -> list[ReleaseRecord]:
    others = [pure(ball(rng, 1), "threshold question") for _ in range(30)]
    return [*others[: (place := int(rng.integers(31)))], pure(0.1 * ball(rng, 1)), *others[place:]]


def quiet_questions(rng: np.random.Generator) -> list[ReleaseRecord]:
    return [pure(ball(rng, 200)), *(pure(0.3 * ball(rng, 1), "threshold question") for _ in range(3))]


def quiet_minimiser(rng: np.random.Generator) -> list[ReleaseRecord]:
    return [pure(0.5 * ball(rng, 6)), *(pure(ball(rng, 1), "threshold question") for _ in range(40))]


def one_axis(rng: np.random.Generator) -> list[ReleaseRecord]:
    return [pure(np.eye(4)[0] * rng.gamma(4) * rng.choice([-1.0, 1.0])) for _ in range(3)]


def positive(rng: np.random.Generator) -> list[ReleaseRecord]:
    return [pure(np.abs(ball(rng, 1)), "threshold question") for _ in range(3)]


def one_length(rng: np.random.Generator) -> list[ReleaseRecord]:
    return [pure(4 * (noise := ball(rng, 4)) / np.linalg.norm(noise)) for _ in range(3)]


def one_gaussian_length(rng: np.random.Generator) -> list[ReleaseRecord]:
    return [normals(2 * (noise := ball(rng, 4)) / np.linalg.norm(noise)) for _ in range(3)]


def half_a_path(rng: np.random.Generator) -> list[ReleaseRecord]:
    return [path(rng, lambda rows: rows / 2)]


def a_flat_path(rng: np.random.Generator) -> list[ReleaseRecord]:
    return [path(rng, lambda rows: np.tile(rows[-1], (8, 1)))]


def a_short_step(rng: np.random.Generator) -> list[ReleaseRecord]:
    """Rows 1 to 3 bear the noise of row 4."""
    return [path(rng, lambda rows: rows[[3, 3, 3, 3, 4, 5, 6, 7]])]


def a_straight_path(rng: np.random.Generator) -> list[ReleaseRecord]:
    return [path(rng, lambda rows: np.outer(np.geomspace(8, 1, 8), rows[-1]))]


def a_path_of_fresh_noise(rng: np.random.Generator) -> list[ReleaseRecord]:
    return [path(rng, lambda rows: np.array([scale * ball(rng, 4) for scale in np.geomspace(8, 1, 8)]))]


def taken_back(lag: int, size: int) -> Made:
    def made(rng: np.random.Generator) -> list[ReleaseRecord]:
        fresh = rng.normal(size=(40 + lag, size))
        return [normals(noise) for noise in (fresh[lag:] - fresh[:-lag]) / np.sqrt(2)]

    return made


def negated_numbers(rng: np.random.Generator) -> list[ReleaseRecord]:
    half = rng.normal(size=(20, 1))
    return [normals(noise) for noise in (*half, *-half)]


def numbers_of_a_pass(rng: np.random.Generator) -> list[ReleaseRecord]:
    """0.99 of the noise of seven releases before."""
    noise = rng.normal(size=7).tolist()
    for _ in range(33):
        noise.append(0.99 * noise[-7] + np.sqrt(1 - 0.99**2) * rng.normal())
    return [normals([number]) for number in noise]


def shared_with_a_count(rng: np.random.Generator) -> list[ReleaseRecord]:
    noise = rng.normal(size=(20, 5))
    return [release for each in noise for release in (normals(each, "gradient"), normals(each[:1], "count"))]


def the_same_in_each_run(rng: np.random.Generator) -> list[ReleaseRecord]:
    own = np.random.default_rng(7)
    return [normals(noise) for noise in own.normal(size=(60, 1))]


@pytest.mark.parametrize(
    ("made", "kind"),
    [
        (quiet_count, "noise"),
        (quiet_count_somewhere, "noise"),
        (quiet_minimiser_somewhere, "noise"),
        (quiet_questions, "noise"),
        (quiet_minimiser, "noise"),
        (half_a_path, "noise"),
        (a_flat_path, "noise"),
        (a_short_step, "noise"),
        (a_straight_path, "correlated noise"),
        (a_path_of_fresh_noise, "correlated noise"),
        (one_axis, "noise"),
        (positive, "noise shape"),
        (one_length, "noise shape"),
        (one_gaussian_length, "noise shape"),
        (taken_back(4, 1), "correlated noise"),
        (taken_back(10, 1), "correlated noise"),
        (taken_back(9, 5), "correlated noise"),
        (negated_numbers, "correlated noise"),
        (numbers_of_a_pass, "correlated noise"),
        (shared_with_a_count, "correlated noise"),
        (the_same_in_each_run, "repeated noise"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_findings_a2_noise_of_one_kind_direction_or_distance_is_found(made: Made, kind: str) -> None:
    """Tests pooled all pure noise, and looked at a path's last row and at releases up to three apart: these were consistent."""
    rng = np.random.default_rng(1)
    runs = 60 if made is a_path_of_fresh_noise else 30  # of which one in forty times 30 show nothing
    found = noise_findings([NoiseSeen.of(Recording(made(rng))) for _ in range(runs)])
    kinds = {finding.kind for finding in found}  # repeated noise explains correlated noise
    assert kind in kinds or (kind == "correlated noise" and "repeated noise" in kinds)


def test_findings_a2_accuracy_first_with_half_its_noise_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = FallingNoise.answer

    def half(self: FallingNoise, query: Any, shape: tuple[int, ...], stream: NoiseStream) -> Any:
        return honest(replace(self, sensitivity=self.sensitivity / 2), query, shape, stream)

    monkeypatch.setattr(FallingNoise, "answer", half)
    mechanism, objective = next((entry[1], entry[2]) for entry in accuracy_first.entries() if not entry[1].budget.delta)
    training = Training.of_mechanism(mechanism, objective)
    assert "noise" in replay(training, training.replay_pairs[:4]).details["kinds"]


def test_findings_a2_releases_whose_grid_hides_the_noise_are_counted() -> None:
    coarse = ReleaseRecord(np.zeros(5), 1.0, 1.0, np.zeros(5), step=2.0**-5, what="gradient")
    narrow = ReleaseRecord(np.full(5, 1e6), 1.0, 1.0, np.full(5, 1e6), "pure", precision=2.0**-23, what="minimiser")
    seen = NoiseSeen.of(Recording([coarse, narrow, coarse, normals([0.1])]))
    assert seen.hidden == {"gradient": 2, "minimiser": 1}
    assert [release.what for release in seen.releases] == ["statistic"]


@pytest.mark.parametrize("kind", ["gaussian", "pure", "threshold", "objective", "hidden"])
def test_findings_a1_g_releases_of_no_numbers_have_no_noise(kind: Any) -> None:
    """An empty release ended in "argmin of an empty sequence"."""
    empty = ReleaseRecord(np.zeros(0), 1.0, 1.0, np.zeros(0), kind, step=2.0**-20)
    assert noise_findings([NoiseSeen.of(Recording([empty])) for _ in range(3)]) == []
    seen = NoiseSeen.of(Recording([empty, normals([0.3]), empty]))
    assert [release.place for release in seen.releases] == [2]
    assert seen.hidden == {}
