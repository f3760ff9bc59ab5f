"""At users' own settings: half of a sensitivity is refuted, or the result says that it could not have been seen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dperm.audit import AuditResult, Training, replay, worst_pairs
from dperm.audit.noise import NoiseSeen, noise_findings, summary, visible_noise
from dperm.audit.pairs import _influence, influential_pair
from dperm.audit.recording import Recording, ReleaseRecord
from dperm.audit.result import learned
from dperm.estimators import DPLogisticRegression, DPPoissonRegressor, DPRidge
from dperm.mechanisms import AccuracyFirst, Gradient
from helpers.halving import fixed_noise, halved, places_of

FEW = {"public_size": 40, "relation": "replace_one"}
STATED = {"public_size": 1000, "relation": "replace_one"}
MANY = {"public_size": 1000}
LABELS = {"classes": [0, 1]}
#: (estimator, number of features) → the kinds of which half could not be seen
SETTINGS: dict[str, tuple[Callable[[], Any], int, set[str]]] = {
    "output, one feature": (lambda: DPLogisticRegression(**LABELS, mechanism="output", **MANY), 1, set()),
    "ridge by output, one feature": (lambda: DPRidge(mechanism="output", **MANY), 1, set()),
    "ridge by output, pure": (lambda: DPRidge(mechanism="output", delta=0, **MANY), 5, set()),
    "ridge by output, replace-one": (lambda: DPRidge(mechanism="output", **FEW), 5, {"minimiser"}),
    "Poisson by output": (lambda: DPPoissonRegressor(mechanism="output", **MANY), 2, set()),
    "accuracy first": (lambda: DPLogisticRegression(**LABELS, mechanism=AccuracyFirst(accuracy=0.9), **MANY), 2, set()),
    "bolt-on": (lambda: DPLogisticRegression(**LABELS, mechanism="bolt-on", **FEW), 5, set()),
    "last iterate, one feature": (lambda: DPLogisticRegression(**LABELS, mechanism="last-iterate", **STATED), 1, set()),
    "greedy coordinates": (lambda: DPLogisticRegression(**LABELS, mechanism="greedy-coordinate", **FEW), 5, set()),
}


def replayed(mechanism: Any, objective: Any) -> AuditResult:
    training = Training.of_mechanism(mechanism, objective)
    return replay(training, worst_pairs(mechanism, objective), both_ways=False)


@pytest.mark.fast_cases(
    "output, one feature",
    "ridge by output, one feature",
    "ridge by output, pure",
    "ridge by output, replace-one",
    "Poisson by output",
    "bolt-on",
    "greedy coordinates",
)
@pytest.mark.parametrize("name", SETTINGS)
def test_half_of_a_sensitivity_at_users_settings_is_refuted_or_said_to_be_unseen(name: str) -> None:
    make, features, unseen = SETTINGS[name]
    mechanism, objective = make().mechanism_for(features)
    sound = replayed(mechanism, objective)
    assert sound.verdict == "consistent", str(sound)
    assert set(sound.unseen) == unseen
    for place in places_of(Training.of_mechanism(mechanism, objective)):
        with fixed_noise(), halved(place):  # a coordinate whose slope moves all that is charged may by chance never be chosen
            assert replayed(mechanism, objective).refuted == (not unseen), place


def test_what_could_not_be_seen_is_in_words_and_in_json() -> None:
    mechanism, objective = SETTINGS["ridge by output, replace-one"][0]().mechanism_for(1)
    result = replayed(mechanism, objective)
    told = str(result)
    assert "did not refute ε = 1 at δ = 1e-05, within the limits below." in told
    assert "could not have seen half of the sensitivity" in told and "minimiser (0.1" in told
    assert "moved more than half of what is charged for minimiser" in learned([result])
    again = AuditResult.from_json(result.to_json())
    assert again == result and again.limits() == result.limits() != []
    with pytest.raises(ValueError, match="unseen"):
        AuditResult.from_dict(result.to_dict() | {"details": {"unseen": {"minimiser": "much"}}})


@pytest.mark.parametrize(("kind", "size"), [("gaussian", 5), ("gaussian", 60), ("pure", 20)])
def test_noise_as_small_as_is_said_to_be_visible_is_refuted(kind: Any, size: int) -> None:
    """In at least 17 of 20 audits, by binomial bounds; and noise at half of the way to what is stated is seldom."""
    draws = np.random.default_rng(0)

    def audited(share: float) -> bool:
        runs: list[NoiseSeen] = []
        for _ in range(4):
            vector = draws.normal(size=size)
            if kind == "pure":
                vector *= draws.gamma(size) / np.linalg.norm(vector)
            runs.append(NoiseSeen.of(Recording([ReleaseRecord(np.zeros(size), 1.0, 1.0, share * vector, kind)])))
        found = {finding.kind for finding in noise_findings(runs)}
        visible.update(visible_noise(runs))
        return "noise" in found

    visible: dict[str, float] = {}
    assert not audited(1.0)
    (share,) = visible.values()
    assert sum(audited(share) for _ in range(100)) > 87
    assert sum(audited((1 + share) / 2) for _ in range(100)) < 50


def test_noise_that_no_test_sees_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    mechanism, objective = SETTINGS["output, one feature"][0]().mechanism_for(1)
    faint = replayed(mechanism, objective)
    assert any("Too little noise" in line and "minimiser (0." in line for line in faint.limits())
    monkeypatch.setattr(summary, "COARSEST", 0.0)  # every grid is too wide
    hidden = replayed(mechanism, objective)
    assert hidden.details["hidden"] == {"minimiser": 2 * hidden.trials}
    assert any("too wide to see it: minimiser" in line for line in hidden.limits())


@pytest.mark.parametrize("method", ["last-iterate", Gradient(sampling="fixed_size", epochs=2)])
def test_pairs_have_as_many_records_as_a_mechanism_demands(method: Any) -> None:
    mechanism, objective = DPLogisticRegression(**LABELS, mechanism=method, **STATED).mechanism_for(2)
    training = Training.of_mechanism(mechanism, objective)
    pairs = [*training.replay_pairs, *training.candidate_pairs]
    assert {len(targets) for pair in pairs for _, targets in (pair.first, pair.second)} == {1000}
    assert training.candidate_pairs  # the game is played, too
    result = replay(training, worst_pairs(mechanism, objective)[:2], both_ways=False)
    assert result.verdict == "consistent" and result.details["refused"] == []


@pytest.mark.parametrize("norm", [3e-30, 1e-12, 1e9, 1e29])
@pytest.mark.parametrize(
    ("make", "method"), [(DPRidge, "output"), (DPRidge, "m-ngp-published"), (DPPoissonRegressor, "preconditioned")]
)
def test_b3_records_of_any_norm_have_an_influential_pair(make: Any, method: str, norm: float) -> None:
    _, objective = make(mechanism=method, data_norm=norm, **MANY).mechanism_for(3)
    pair = influential_pair(objective)
    assert pair.name.startswith("the most influential")
    assert len(pair.extra) == 1
    regularised = _influence(objective, *pair.first)
    assert objective.radius is not None
    assert np.linalg.norm(regularised.theta) < objective.radius
