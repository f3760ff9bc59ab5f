"""Canaries in gradient space: tight where the claim is tight, and never beyond it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from dperm.audit import AuditResult, one_run_gradients, white_box
from dperm.audit.canaries import with_canaries
from dperm.gradient import (
    SGD,
    AdaptiveClip,
    Bounding,
    Clip,
    Constant,
    ExponentialDecay,
    FullBatch,
    Normalise,
    PerLayer,
    Plan,
    Poisson,
)
from dperm.objectives import Softmax
from dperm.privacy import Relation, calibrate, epsilon
from dperm.release import Noise, SystemSource
from dperm.release.draws import Draw
from helpers.asked import weaker
from helpers.catalogue.common import ADD, DELTA, REPLACE, SIZE, objective, plan

RNG = np.random.default_rng(0)
ROWS, SIGNS = RNG.normal(size=(SIZE, 3)), np.where(RNG.random(SIZE) < 0.5, 1.0, -1.0)

PLANS: dict[str, dict[str, Any]] = {
    "Poisson": {},
    "full batch": {"sampler": FullBatch()},
    "normalised": {"bounding": Normalise(0.01)},
    "per layer": {"bounding": PerLayer(0.5)},
    "adaptive": {"bounding": AdaptiveClip(0.5)},
    "decay": {"noise": "decay"},
}


def calibrated(target: float, relation: Relation = ADD, **changes: Any) -> Plan:
    def make(noise: float) -> Plan:
        schedule = ExponentialDecay(noise, 0.05, 20) if changes.get("noise") == "decay" else Constant(noise)
        return plan(noise, **({"steps": 60, "update": SGD(0.1)} | changes | {"noise": schedule}))

    return make(calibrate(lambda noise: make(noise).event(relation), target, DELTA))


def audited(mine: Plan, relation: Relation = ADD, **settings: Any) -> AuditResult:
    problem = objective(relation=relation)
    return white_box(mine, problem, problem.records(ROWS, SIGNS), delta=DELTA, **settings)


@pytest.mark.fast_cases(
    "Poisson-replace_one",
    "normalised-add_or_remove_one",
    "full batch-add_or_remove_one",
    "per layer-add_or_remove_one",
    "decay-replace_one",
    "adaptive-replace_one",
)
@pytest.mark.parametrize("relation", [ADD, REPLACE])
@pytest.mark.parametrize("name", PLANS)
def test_the_estimate_is_the_certified_epsilon(name: str, relation: Relation) -> None:
    mine = calibrated(4.0, relation, **PLANS[name])
    result = audited(mine, relation, canaries=1000, runs=2)
    assert result.verdict == "consistent", str(result)
    assert 0.85 * 4 < result.estimate.epsilon < 1.15 * 4
    assert result.estimate.low <= 4.0 * 1.05  # beyond its confidence now and then, never by much
    assert result.epsilon_lower <= 4.0
    assert result.claimed_epsilon == pytest.approx(epsilon(mine.event(relation), DELTA))


@pytest.mark.fast_cases("replace_one")
@pytest.mark.parametrize("relation", [ADD, REPLACE])
def test_one_run_in_gradient_space_proves_one_of_four(relation: Relation) -> None:
    problem = objective(relation=relation)
    found = [
        one_run_gradients(
            calibrated(4.0, relation), problem, problem.records(ROWS, SIGNS), delta=DELTA, canaries=1000, random_state=seed
        )
        for seed in range(15)
    ]
    assert np.median([result.epsilon_lower for result in found]) >= 1.0
    assert max(result.epsilon_lower for result in found) <= 4.0
    assert all(result.verdict == "consistent" for result in found)
    assert found[0].details["guesses"] == found[1].details["guesses"]  # fixed beforehand


def test_softmax_and_its_wider_parameters() -> None:
    problem = objective(Softmax(3))
    result = white_box(calibrated(2.0), problem, problem.records(ROWS, np.arange(SIZE) % 3.0), delta=DELTA, canaries=300)
    assert result.verdict == "consistent"


@dataclass(frozen=True)
class Twice(Clip):
    """Lets through twice what it charges for."""

    def factors(self, norms: Any) -> Any:
        return 2 * super().factors(norms)


def seen_more_often(self: SystemSource, draw: Draw, records: int, steps: int) -> Iterator[Any]:
    for _ in range(steps):
        yield np.flatnonzero(self.randomness.sampling.random(records) < 1.3 * draw.rate)


def fixed_size(self: SystemSource, draw: Draw, records: int, steps: int) -> Iterator[Any]:
    for _ in range(steps):
        yield np.sort(self.randomness.sampling.choice(records, round(records * draw.rate), replace=False))


def the_same_again(self: SystemSource, draw: Draw, records: int, steps: int) -> Iterator[Any]:
    for step in range(steps):
        if step % 5 == 0:
            batch = np.flatnonzero(self.randomness.sampling.random(records) < draw.rate)
        yield batch


def test_a_bounding_that_lets_too_much_through_is_refuted() -> None:
    mine: Bounding = Twice(0.5)
    result = audited(replace(calibrated(4.0), bounding=mine))
    assert result.refuted and any("as large against the noise" in text for text in result.findings)
    assert result.estimate.epsilon > 6


@pytest.mark.parametrize(
    ("draw", "text"),
    [(seen_more_often, "a share of"), (fixed_size, "hardly vary in size"), (the_same_again, "not independent of each other")],
)
def test_draws_that_are_not_poisson_s_are_refuted(monkeypatch: pytest.MonkeyPatch, draw: Any, text: str) -> None:
    monkeypatch.setattr(SystemSource, "draw", draw)
    result = audited(calibrated(4.0))
    assert result.refuted and any(text in finding for finding in result.findings)


@pytest.mark.slow
def test_sound_draws_are_never_refuted() -> None:
    mine = calibrated(4.0, sampler=Poisson(0.05))
    assert not any(audited(mine, canaries=60).refuted for _ in range(60))


def test_canaries_touch_nobody_else() -> None:
    problem = objective()
    records = problem.records(ROWS, SIGNS)
    signs = np.array([1.0, 0.0, -1.0])
    wide, more = with_canaries(problem, records, signs)
    theta = wide.start(RNG.normal(size=problem.dimension))
    draw = np.array([0, 5, SIZE, SIZE + 1, SIZE + 2])
    (batches,) = more.stream([draw])
    total = sum(Clip(0.5).query(wide.per_example(theta, batch), {}) for batch in batches)
    plain = problem.per_example(theta[: problem.dimension], records.take(draw[:2]))
    assert np.allclose(total[: problem.dimension], Clip(0.5).query(plain, {}))
    assert np.allclose(total[problem.dimension :], 0.5 * signs)
    assert np.allclose(wide.observed(total), 0.5 * signs)
    assert len(more) == SIZE + 3


# Networks


@pytest.fixture(scope="module")
def network() -> Any:
    import torch

    from dperm.torch import ModuleObjective, TorchRecords

    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(1, 8, 3), torch.nn.ReLU(), torch.nn.MaxPool2d(2), torch.nn.Flatten(), torch.nn.Linear(8 * 9, 4)
    )
    records = TorchRecords((torch.randn(200, 1, 8, 8), torch.randint(0, 4, (200,))))
    return ModuleObjective(model, torch.nn.CrossEntropyLoss(reduction="none")), records


@pytest.mark.fast_cases("4.0")
@pytest.mark.parametrize("target", [1.0, 4.0])
def test_white_box_audit_of_a_cnn(network: Any, target: float) -> None:
    module, records = network
    before = module.theta.clone()
    mine = calibrated(target, public_size=200, sampler=Poisson(0.2))
    result = white_box(mine, module, records, delta=DELTA, canaries=1000, runs=2)
    assert result.verdict == "consistent", str(result)
    assert result.estimate.epsilon >= 0.8 * target
    assert result.estimate.low <= target * 1.1
    assert bool((module.theta == before).all())


def test_one_run_audit_of_a_cnn(network: Any) -> None:
    module, records = network
    mine = calibrated(4.0, public_size=200, bounding=PerLayer(0.5))
    result = one_run_gradients(mine, module, records, delta=DELTA, canaries=1000, random_state=3)
    assert result.verdict == "consistent" and 0.1 < result.epsilon_lower <= 4.0


def test_nonsense_is_refused() -> None:
    with pytest.raises(ValueError, match="canaries"):
        audited(calibrated(4.0), canaries=3)
    with pytest.raises(ValueError, match="delta"):
        problem = objective()
        white_box(calibrated(4.0), problem, problem.records(ROWS, SIGNS), delta=0.0)


def test_a_few_steps_without_noise_are_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = SystemSource.noisy
    calls = iter(range(10_000))

    def late(self: SystemSource, query: Any, noise: Noise) -> Any:
        return plain(self, query, weaker(noise, 0.05 if next(calls) % 60 > 56 else 1.0))

    monkeypatch.setattr(SystemSource, "noisy", late)
    result = audited(calibrated(4.0))
    assert result.refuted and any("steps have less noise" in text for text in result.findings)


def test_no_noise_at_all_and_too_few_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    few = audited(calibrated(4.0, sampler=Poisson(1e-5), steps=3), canaries=20)
    assert few.estimate is None and few.verdict == "consistent"
    assert AuditResult.from_json(few.to_json()) == few
    monkeypatch.setattr(SystemSource, "noisy", lambda self, query, noise: query + 0.0)
    bare = audited(calibrated(4.0))
    assert bare.refuted and bare.estimate is None


def test_releases_that_are_not_finite_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SystemSource, "noisy", lambda self, query, noise: query * np.nan)
    with pytest.raises(ValueError, match="Expected finite releases"):
        audited(calibrated(4.0))


@dataclass(frozen=True)
class Liar(Poisson):
    """Draws every record in every step, and asks for draws at the rate that it states but never looks at them."""

    asks: bool = True

    def draws(self, channel: Any, records: int, steps: int) -> Iterator[Any]:
        if self.asks:
            iter(channel.draw(Poisson(self.sampling_rate), records, steps))
        else:
            channel._allowance.draws(Poisson(self.sampling_rate))
        for _ in range(steps):
            yield np.arange(records)


@pytest.mark.parametrize("asks", [True, False])
def test_draws_that_are_asked_for_and_never_used_are_seen(asks: bool) -> None:
    mine = replace(calibrated(4.0), sampler=Liar(0.3, asks))
    result = audited(mine, canaries=200)
    assert result.verdict == "refuted"
