"""DP-SVRG: a policy with a run of its own, in one file; the query's slot; what a stranger's policy is told to assume."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dperm._random import Randomness
from dperm.audit import Training, replay, white_box
from dperm.audit.recording import Recorder
from dperm.gradient import SGD, Clip, Constant, FullBatch, GradientDifference, Plan, SvrgPlan
from dperm.gradient.policy import Gradients
from dperm.gradient.svrg import SvrgGradients
from dperm.mechanisms import Budget, GradientPerturbation
from dperm.objectives import LinearObjective, Logistic, Softmax, Squared
from dperm.privacy import Relation, calibrate, epsilon
from dperm.privacy.events import leaves
from dperm.release import Channel, GaussianNoise, SpendLog, SystemSource, UnpaidReleaseError

N = 60
PLAN = SvrgPlan(0.2, 3, 6, 0.5, 4.0, 2.0, SGD(0.5), N)


def objective(relation: str = "add_or_remove_one", loss: Any = None, **settings: Any) -> LinearObjective:
    return LinearObjective(loss or Logistic(), 4, public_size=N, relation=relation, **settings)


def mechanism(plan: Any = PLAN) -> GradientPerturbation:
    return GradientPerturbation(budget=Budget(1e-5), plan=plan)


@pytest.mark.fast_cases("squared in a ball-add_or_remove_one")
@pytest.mark.fast_cases(
    "logistic-add_or_remove_one", "regularised-replace_one", "softmax-replace_one", "squared in a ball-add_or_remove_one"
)
@pytest.mark.parametrize("relation", ["add_or_remove_one", "replace_one"])
@pytest.mark.parametrize(
    "settings",
    [{}, {"strong_convexity": 3.0}, {"loss": Softmax(3)}, {"loss": Squared(1.0, 2.0), "radius": 2.0}],
    ids=["logistic", "regularised", "softmax", "squared in a ball"],
)
def test_no_query_moves_by_more_than_is_charged(relation: str, settings: dict[str, Any]) -> None:
    found = replay(Training.of_mechanism(mechanism(), objective(relation, **settings)))
    assert found.verdict == "consistent", str(found)
    assert found.details["largest_movement"] > 0.5


def _one_draw_for_two(self: SvrgGradients, theta: Any) -> Any:
    """Planted: every second step takes the draw of the one before."""
    if self.step % 2 == 0:
        self.kept = list(next(self._batches))
    self._batches = itertools.chain([self.kept], self._batches)
    return SvrgGradients.__call__(self, theta)


def test_the_white_box_audit_finds_a_draw_used_twice_and_nothing_else() -> None:
    rng = np.random.default_rng(0)
    problem = objective()
    records = problem.records(rng.normal(size=(N, 4)), np.where(rng.random(N) < 0.5, 1.0, -1.0))
    found = white_box(PLAN, problem, records, delta=1e-5, canaries=40)
    assert found.verdict == "consistent", str(found)
    twice = type("Twice", (SvrgGradients,), {"__call__": _one_draw_for_two})
    found = white_box(type("Drawn", (SvrgPlan,), {"run": twice})(**vars(PLAN)), problem, records, delta=1e-5, canaries=40)
    assert found.refuted and "without drawing" in str(found.findings)


def test_what_it_costs() -> None:
    for relation in Relation:
        counts = leaves(PLAN.event(relation))
        assert sorted(counts.values()) == [3, 18]
        parts = [leaves(PLAN.event(relation, *step)) for step in ((0, 7), (7, 12), (12, 18))]
        assert [sum(part.values()) for part in parts] == [2 + 7, 1 + 5, 1 + 6]  # a part pays for the snapshot that its steps need
    noise = calibrate(lambda x: replace(PLAN, snapshot_noise=2 * x, noise_multiplier=x).event(Relation.REPLACE_ONE), 1.0, 1e-5)
    assert epsilon(replace(PLAN, snapshot_noise=2 * noise, noise_multiplier=noise).event(Relation.REPLACE_ONE), 1e-5) <= 1.0


class Loose(Clip):
    """Planted: differences may be three times as long as stated."""

    def query(self, at_theta: Any, state: dict[str, float]) -> Any:
        return at_theta.weighted_sum(3 * self.factors(at_theta.norms), None)


def test_planted_defects_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as run:
        run.setattr("dperm.gradient.svrg.Clip", Loose)
        assert replay(Training.of_mechanism(mechanism(), objective())).refuted
    unpaid = type("Unpaid", (SvrgPlan,), {"event": lambda self, *of: replace(PLAN, epochs=1).event(*of)})
    problem = objective()
    with pytest.raises(UnpaidReleaseError, match="not paid for"):  # two snapshots
        mechanism(unpaid(**vars(PLAN))).release(problem, problem.records(np.ones((N, 4)), np.ones(N)), Channel.open(0))


def test_against_plain_code_with_the_same_draws() -> None:
    """Snapshots of everybody, and between them sums of differences, clipped at min(2C, β‖θ − θ̃‖): each at the noise charged."""
    rng = np.random.default_rng(3)
    rows, signs = rng.normal(size=(N, 4)), np.where(rng.random(N) < 0.5, 1.0, -1.0)
    rows /= np.maximum(np.linalg.norm(rows, axis=1), 1.0)[:, None]
    problem = objective(strong_convexity=3.0)
    recorder = Recorder(SystemSource(Randomness.fixed(2)))
    channel = Channel(recorder)
    plan = replace(PLAN, clipping_norm=0.2)
    channel.charge(plan.event(problem.relation), "test")
    run = plan.gradients(problem, problem.records(rows, signs), channel)
    thetas = [rng.normal(size=4) * scale for scale in (1, 1, 0.3, 3, 30, 1, 0.2, 0.1, 0.4, 5, 0.3, 1, 0.1, 0.1, 2, 0.3, 0.2, 0.2)]
    thetas[1] = thetas[0]  # where differences are all 0

    def gradients(theta: Any) -> Any:
        return rows * (-signs / (1 + np.exp(signs * (rows @ theta))))[:, None]

    def cut(vectors: Any, norm: float) -> Any:
        return vectors * np.minimum(1, norm / np.maximum(np.linalg.norm(vectors, axis=1), 1e-300))[:, None]

    seen, releases = [], iter(recorder.recording.releases)
    for step, theta in enumerate(thetas):
        given = theta.copy()
        found = run(given)
        given[:] = 7.0  # an optimiser moves its parameters in place
        if step % 6 == 0:
            anchor, release = theta, next(releases)
            assert np.allclose(release.query, cut(gradients(theta), 0.2).sum(0), atol=1e-3)
            assert (release.sensitivity, release.noise) == pytest.approx((0.2, 0.2 * 4.0), rel=1e-5)
            assert release.sampling_rate == 1.0
            mean = release.released / N
        release, moved = next(releases), np.linalg.norm(theta - anchor)
        near = max(min(0.4, 0.25 * moved), 2e-7)
        drawn = recorder.recording.inclusions[step]
        assert np.allclose(release.query, cut(gradients(theta) - gradients(anchor), near)[drawn].sum(0), atol=2e-3 * near)
        assert (release.sensitivity, release.noise) == pytest.approx((near, near * 2.0), rel=1e-5)
        assert release.sampling_rate == 0.2
        assert found == pytest.approx(release.released / (0.2 * N) + mean + 3.0 / N * theta)
        seen.append(near)
    assert next(releases, None) is None
    assert {2e-7, 0.4} < set(seen) and sum(2e-7 < near < 0.4 for near in seen) > 4
    assert (plan.rate, plan.expected_batch_size, run.step) == (0.2, 12.0, 18)


def test_it_trains() -> None:
    rng = np.random.default_rng(1)
    rows = rng.normal(size=(2000, 4))
    labels = np.where(rows @ [1.0, -1.0, 0.5, 0.0] > 0, 1.0, -1.0)
    problem = LinearObjective(Logistic(), 4, data_norm=3.0, public_size=2000)
    plan = SvrgPlan(0.1, 5, 20, 3.0, 4.0, 1.0, SGD(0.3), 2000)
    release = mechanism(plan).release(problem, problem.records(rows, labels), Channel.open(0))
    assert np.mean(np.sign(rows @ release.theta[:4]) == labels) > 0.9


def test_the_query_is_a_slot_of_every_plan() -> None:
    """Differences from θ = 0 at θ = 0 are nothing; elsewhere they are the gradient's change."""
    rng = np.random.default_rng(2)
    problem = objective()
    records = problem.records(rng.normal(size=(N, 4)), np.where(rng.random(N) < 0.5, 1.0, -1.0))
    theta, anchor = rng.normal(size=4), rng.normal(size=4)
    for batch in records.batches():
        change = GradientDifference(anchor).at(problem, theta, batch)
        ones = np.ones(len(batch.targets))
        expected = sum(sign * problem.per_example(at, batch).weighted_sum(ones) for sign, at in ((1, theta), (-1, anchor)))
        np.testing.assert_allclose(change.weighted_sum(ones), expected, atol=1e-12)
        assert np.all(change.norms <= problem.facts.smoothness * np.linalg.norm(theta - anchor) * (1 + 1e-9))
    plan = Plan(FullBatch(), Clip(0.5), Constant(2.0), SGD(0.1), 5, N, query=GradientDifference(anchor))
    assert plan.describe()["query"].startswith("GradientDifference")
    assert replay(Training.of_mechanism(mechanism(plan), problem)).verdict == "consistent"


def test_a_stranger_s_policy_runs_and_is_named() -> None:
    class Run(Gradients["Mine"]):
        def __call__(self, theta: Any) -> Any:
            self.step += 1
            return self.channel.release(theta * 0.0, GaussianNoise(1.0, 3.0))

    class Mine(SvrgPlan):
        run = Run

    plan = Mine(**vars(PLAN))
    certificate = mechanism(plan).certificate(objective().facts, Channel.open().provenance)
    assert any("Mine releases what its event states" in assumption.text for assumption in certificate.assumptions)
    assert plan.budgeted is None
    assert not plan.vectorises
    assert plan.longest is None
    with pytest.raises(TypeError, match="Expected a plan"):
        mechanism(object())


def test_networks_refuse_differences_before_any_charge() -> None:
    """They used to fail at the first one, after the whole charge."""
    import torch

    from dperm.torch import PrivateTrainer

    data = torch.zeros(N, 4), torch.zeros(N, dtype=torch.long)
    anchored = Plan(FullBatch(), Clip(0.5), Constant(2.0), SGD(0.1), 5, N, query=GradientDifference(torch.zeros(10)))
    for plan in (PLAN, anchored):
        trainer = PrivateTrainer(
            torch.nn.Linear(4, 2), torch.nn.CrossEntropyLoss(reduction="none"), plan=plan, delta=1e-3, public_size=N
        )
        with pytest.raises(TypeError, match="for linear models"):
            trainer.fit(data)
    assert SpendLog.current().charges() == []
