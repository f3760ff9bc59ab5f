"""Planted defects of noise and draws, each found by replay or by the white-box audit; and sound runs: none is refuted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from dperm._random import Randomness
from dperm.audit import Training, replay, white_box
from dperm.audit.noise import NoiseSeen, noise_findings
from dperm.audit.recording import Recording, ReleaseRecord
from dperm.gradient import SGD, Clip, Constant, FullBatch, Plan, Poisson
from dperm.mechanisms import Budget, GradientPerturbation
from dperm.objectives import LinearObjective, Logistic
from dperm.release import SystemSource
from dperm.release.draws import Draw

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

    def gaussian(self: SystemSource, query: Any, sensitivity: float, std: float, step: float) -> Any:
        noise = spoil(rng.normal(size=len(query)), before, rng)
        before.append(noise.copy())
        return np.rint(query / step) * step + std * noise

    monkeypatch.setattr(SystemSource, "gaussian", gaussian)
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


@pytest.mark.parametrize(("releases", "size"), [(1, 1), (3, 2), (40, 1), (20, 5), (12, 50), (6, 2000)])
def test_no_sound_noise_is_refuted(releases: int, size: int) -> None:
    rng = np.random.default_rng(releases * size)
    for _ in range(170):  # 1,020 in all
        assert noise_findings([runs(rng, releases, size) for _ in range(2)]) == []


def test_sound_runs_of_the_sources_own_are_not_refuted() -> None:
    for seed in range(3):
        assert kinds() == set(), seed
    assert Randomness.from_system().private
