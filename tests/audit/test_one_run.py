"""One training, many canaries, guesses fixed beforehand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dperm.audit import AuditResult, member_scores, membership, one_run, record_losses
from dperm.audit.one_run import guess, guesses_for
from dperm.estimators import DPLogisticRegression, DPRidge
from dperm.mechanisms import Objective
from dperm.privacy import Gaussian, PureDP, Relation
from dperm.privacy.accountants.gaussian import gaussian_mu

RNG = np.random.default_rng(0)
D, CANARIES = 400, 300
ROWS, LABELS = RNG.normal(size=(50, D)) / np.sqrt(D), RNG.integers(0, 2, 50)
#: orthogonal rows at the norm bound, with labels by coin
CANARY_ROWS, CANARY_LABELS = np.eye(D)[:CANARIES], RNG.integers(0, 2, CANARIES)


class Memorising:
    """A model that knows what it saw."""

    classes_ = np.array([0, 1])

    def __init__(self, data: Any) -> None:
        self._seen = {row.tobytes() for row in data[0]}

    def predict_proba(self, rows: np.ndarray) -> np.ndarray:
        return np.array([[0.5, 0.5] if row.tobytes() in self._seen else [1e-3, 1e-3] for row in rows])


def audited(train: Any, **settings: Any) -> AuditResult:
    return one_run(train, (ROWS, LABELS), (CANARY_ROWS, CANARY_LABELS), member_scores, random_state=1, **settings)


def test_a_model_that_memorises_is_refuted() -> None:
    result = audited(Memorising, claim=PureDP(2.0), delta=0.0, guesses=200)
    assert result.refuted and result.details["correct"] == 200
    assert result.epsilon_lower > 4.0 and result.auc == 1.0


def test_a_private_model_is_not() -> None:
    model = DPLogisticRegression(
        epsilon=4.0, delta=1e-5, classes=[0, 1], public_size=200, mechanism=Objective(strong_convexity=1.0)
    )
    certificate = model.fit(ROWS, LABELS).certificate_
    result = audited(lambda data: model.fit(*data), claim=certificate)
    assert result.verdict == "consistent" and result.epsilon_lower <= 4.0
    assert 0.4 < result.auc < 0.8  # about 0.6, with a standard error of 0.03


def test_swapped_twins_under_replace_one() -> None:
    sizes: list[int] = []

    def train(data: Any) -> Any:
        sizes.append(len(data[1]))
        return Memorising(data)

    twins = (-CANARY_ROWS, CANARY_LABELS)
    result = audited(train, alternatives=twins, claim=PureDP(0.3, Relation.REPLACE_ONE), delta=0.0)
    with pytest.raises(ValueError, match="about neighbours under"):
        audited(train, alternatives=twins, claim=PureDP(2.0), delta=0.0)
    assert result.refuted and sizes == [50 + CANARIES]


def test_what_is_wrong_is_said() -> None:
    with pytest.raises(ValueError, match="an alternative for each"):
        audited(Memorising, alternatives=(CANARY_ROWS[:3], CANARY_LABELS[:3]), delta=0.0)
    with pytest.raises(ValueError, match="300 scores of canaries, one a row"):
        one_run(Memorising, (ROWS, LABELS), (CANARY_ROWS, CANARY_LABELS), lambda model, data: np.zeros(3), delta=0.0)
    with pytest.raises(ValueError, match="canaries"):
        one_run(Memorising, (ROWS, LABELS), (CANARY_ROWS[:4], CANARY_LABELS[:4]), member_scores, delta=0.0)


def test_no_sound_mechanism_is_refuted_by_guesses() -> None:
    """Gaussian scores of a thousand canaries, two hundred audits, the default number of guesses."""
    rng = np.random.default_rng(2)
    mu = gaussian_mu(4.0, 1e-5)
    number = guesses_for(1000, 4.0, 1e-5, 0.95)
    proven = []
    for _ in range(200):
        coins = rng.random(1000) < 0.5
        result = guess(rng.normal(size=1000) + mu * coins, coins, claim=Gaussian(1 / mu), delta=1e-5, guesses=number)
        assert not result.refuted and result.epsilon_lower <= 4.0
        proven.append(result.epsilon_lower)
    assert np.median(proven) >= 1.0


def test_guesses_that_are_too_good_are_refuted() -> None:
    rng = np.random.default_rng(3)
    coins = rng.random(1000) < 0.5
    claim = Gaussian(1 / gaussian_mu(1.0, 1e-5))
    result = guess(rng.normal(size=1000) + 4.0 * coins, coins, claim=claim, delta=1e-5, guesses=300)
    assert result.refuted and "guesses were right" in result.findings[0]


# Membership inference


def test_membership_of_a_model_that_memorises() -> None:
    others = (RNG.normal(size=(2000, D)), RNG.integers(0, 2, 2000))
    result = membership(Memorising((ROWS, LABELS)), (ROWS, LABELS), others)
    assert result.auc == 1.0 and result.verdict == "not tested"
    assert [rate for rate, *_ in result.rates] == [0.001, 0.01, 0.1]
    assert all(found == 1.0 == bound for _, found, bound in result.rates)
    assert "names the member 100.0 times in 100" in str(result)


def test_membership_of_a_private_model_is_near_guessing() -> None:
    rng = np.random.default_rng(4)
    rows = rng.normal(size=(4000, 5)) / 3
    labels = (rows[:, 0] + rng.normal(size=4000) / 3 > 0).astype(int)
    model = DPLogisticRegression(epsilon=1.0, classes=[0, 1]).fit(rows[:2000], labels[:2000])
    result = membership(model, (rows[:2000], labels[:2000]), (rows[2000:], labels[2000:]), claim=model.certificate_)
    assert abs(result.auc - 0.5) < 5 * result.details["auc_standard_error"]
    assert set(result.details["claim_allows"]) == {"0.001", "0.01", "0.1"}
    for rate, found, bound in result.rates:
        assert found <= bound and abs(found - rate) < 0.03
    assert AuditResult.from_json(result.to_json()) == result


def test_references_take_out_what_makes_records_easy() -> None:
    """Easy records have small losses everywhere: only the difference to other models says anything."""
    rng = np.random.default_rng(5)
    hard = rng.exponential(size=(3000, 1)) * 5
    member = np.arange(3000) < 1500
    losses = {"target": hard[:, 0] - 0.5 * member, "reference": hard[:, 0]}

    def look_up(model: str, data: Any) -> np.ndarray:
        return losses[model][data[1]] + rng.normal(size=len(data[1])) * 0.1

    sides = [(hard[index], index) for index in (np.flatnonzero(member), np.flatnonzero(~member))]
    plain = membership("target", *sides, losses=look_up)
    compared = membership("target", *sides, losses=look_up, references=["reference"])
    assert plain.auc < 0.6 < 0.95 < compared.auc


def test_losses_of_each_kind_of_model() -> None:
    rows, targets = RNG.random((30, 3)), RNG.random(30)
    ridge = DPRidge(epsilon=5.0, random_state=0, public_size=30).fit(rows, targets)
    assert np.allclose(record_losses(ridge, (rows, targets)), (ridge.predict(rows) - targets) ** 2)
    model = DPLogisticRegression(random_state=0, classes=[0, 1, 2], public_size=30).fit(rows, np.arange(30) % 3)
    losses = record_losses(model, (rows, np.arange(30) % 3))
    assert np.allclose(np.exp(-losses), model.predict_proba(rows)[np.arange(30), np.arange(30) % 3])
    with pytest.raises(ValueError, match="among the model's classes"):
        record_losses(model, (rows, np.full(30, 7)))
    with pytest.raises(TypeError, match="pass losses"):
        record_losses(object(), (rows, targets))
    with pytest.raises(ValueError, match="at least two"):
        membership(ridge, (rows[:1], targets[:1]), (rows, targets))
