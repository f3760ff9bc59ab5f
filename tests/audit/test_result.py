"""What a person and a program read of an audit."""

from __future__ import annotations

import json

import numpy as np
import pytest

from dperm.audit import (
    AuditResult,
    Pair,
    Training,
    attack,
    compare_scores,
    curve_figure,
    distinguish,
    one_at_a_time,
    overall,
    results_from_json,
    results_to_json,
)
from dperm.mechanisms import OutputPerturbation
from dperm.objectives import LinearObjective, Logistic
from dperm.privacy import Certificate, Gaussian, PureDP, Unsupported
from dperm.release import SpendLog

RNG = np.random.default_rng(0)
SOUND = compare_scores(RNG.normal(size=3000), RNG.normal(size=3000) + 1, claim=Gaussian(1.0), delta=1e-5)
WRONG = compare_scores(RNG.normal(size=3000), RNG.normal(size=3000) + 1, claim=Gaussian(3.0), delta=1e-5)


def test_the_sentences() -> None:
    text = str(SOUND)
    assert text.startswith("The distinguishing game did not refute ε = 4.377 at δ = 1e-05.")
    assert "It proves that no ε below" in text and "Estimated ε, not proven:" in text
    text = str(WRONG)
    assert text.startswith("The claim of ε = 1.271 at δ = 1e-05 is REFUTED by the distinguishing game: a test with ")
    assert "false alarms in 1,500 runs" in text and "misses in 1,500" in text


def test_json_both_ways() -> None:
    for result in (SOUND, WRONG):
        assert AuditResult.from_json(result.to_json()) == result
    assert results_from_json(results_to_json([SOUND, WRONG])) == [SOUND, WRONG]
    data = json.loads(SOUND.to_json())
    for broken in ("[]", "{", json.dumps({**data, "format": 9}), json.dumps({**data, "verdict": "fine"})):
        with pytest.raises(ValueError, match="Not an audit result"):
            AuditResult.from_json(broken)
    with pytest.raises(ValueError, match="expected a list"):
        results_from_json("{}")


def test_overall() -> None:
    assert overall([SOUND, WRONG]) == "refuted"
    assert overall([SOUND]) == "consistent"
    assert overall([compare_scores(RNG.normal(size=40), RNG.normal(size=40), delta=0.1)]) == "not tested" == overall([])
    assert SOUND.corrected(10) == pytest.approx(0.995)


def test_the_figure_shows_attack_claim_and_guessing() -> None:
    (axes,) = curve_figure(SOUND).axes
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["the claim rules out more", "this attack", "guessing"]
    claim, attack_line = axes.lines[0].get_xydata(), axes.lines[1].get_xydata()
    assert 1.1 * np.interp(0.1, claim[:, 0], claim[:, 1]) > np.interp(0.1, attack_line[:, 0], attack_line[:, 1]) > 0.2
    replayed = AuditResult(attack="replay", mechanism="", verdict="consistent", delta=1e-5)
    with pytest.raises(ValueError, match="kept no curve"):
        curve_figure(replayed)


def test_claims_are_certificates_or_events() -> None:
    scores = RNG.normal(size=100), RNG.normal(size=100)
    with pytest.raises(ValueError, match="Expected delta"):
        compare_scores(*scores, claim=PureDP(1.0))
    claimed = Certificate.issue(mechanism="m", event=Unsupported("(1, 0)-private"), delta=1e-5)
    with pytest.raises(ValueError, match="no profile to test"):
        compare_scores(*scores, claim=claimed)
    certificate = Certificate.issue(mechanism="m", event=Gaussian(1.0), delta=1e-5)
    result = compare_scores(*scores, claim=certificate)
    assert (result.claimed_epsilon, result.delta, result.mechanism) == (certificate.epsilon, 1e-5, "m")
    assert compare_scores(*scores, claim=certificate, delta=1e-3).claimed_epsilon < certificate.epsilon


def test_black_boxes_of_any_shape() -> None:
    pair = Pair.adding("one more", (np.zeros((2, 1)), np.zeros(2)), [1.0], 1.0)

    def noisy_sum(data: tuple[np.ndarray, np.ndarray]) -> dict[str, object]:
        return {"sum": data[0].sum() + np.random.default_rng().normal(), "name": "noisy sum", "parts": [0.0, np.ones(2)]}

    result = distinguish(one_at_a_time(noisy_sum), pair, 400, claim=Gaussian(1.0), delta=1e-5)
    assert result.verdict == "consistent" and result.auc > 0.6
    with pytest.raises(TypeError, match="return numbers"):
        distinguish(one_at_a_time(lambda data: "text"), pair, 20, delta=1e-5)
    with pytest.raises(ValueError, match="finite outputs"):
        distinguish(lambda data, m: np.full(m, np.nan), pair, 20, delta=1e-5)
    with pytest.raises(ValueError, match="20 outputs"):
        distinguish(lambda data, m: np.ones(3), pair, 20, delta=1e-5)
    with pytest.raises(ValueError, match="trials"):
        distinguish(lambda data, m: np.ones(m), pair, 3, delta=1e-5)


def test_audits_leave_no_trace_in_the_spend_log() -> None:
    objective = LinearObjective(Logistic(), 3, public_size=20)
    mechanism = OutputPerturbation.calibrate(objective.facts, 1.0, 1e-5)
    seen: list[str] = []
    attack(Training.of_mechanism(mechanism, objective), trials=100, progress=lambda name, done, total: seen.append(name))
    assert SpendLog.current().charges() == []
    assert set(seen) == {"replay", "pilot", "game"}


def test_kinds_that_moved_without_bound_have_a_sentence() -> None:
    moved = {"largest_movement": None, "movement": {"minimiser": None, "statistic": 0.5}}
    result = AuditResult(attack="replay", mechanism="", verdict="refuted", delta=1e-5, findings=("a",), details=moved)
    assert "refuted" in str(result).lower()
    moved["largest_movement"] = 7.0
    assert "By kind: minimiser without bound, statistic 0.5." in str(result)


GIVEN = AuditResult(attack="replay", mechanism="m", verdict="consistent", delta=1e-5, claimed_epsilon=1.0).to_dict()


@pytest.mark.parametrize(
    "change",
    [
        {"attack": 7}, {"mechanism": None}, {"trials": "many"}, {"trials": -1}, {"trials": 1.5}, {"epsilon_lower": "1"},
        {"epsilon_lower": -1.0}, {"confidence": "x"}, {"confidence": 2}, {"findings": [1, 2]}, {"findings": "a"}, {"details": []},
        {"details": {"movement": []}}, {"details": {"largest_movement": "x"}}, {"details": {"movement": {"a": "x"}}},
        {"details": {"guesses": 3}}, {"curve": [[1, 2, 3]]}, {"curve": [[0.5, 2.0]]}, {"rates": [["a", "b", "c"]]},
        {"estimate": {"epsilon": "x", "low": 0, "high": None, "method": "m"}}, {"estimate": {"epsilon": 1}}, {"estimate": 3},
        {"claimed_epsilon": True}, {"delta": "1e-5"}, {"delta": 1.0}, {"verdict": ["refuted"]}, {"auc": "x"}, {"unknown": 1},
        {"mechanism": "m\nThe claim is proved"}, {"findings": ["\x1b[2J"]},
    ],
    ids=str,
)  # fmt: skip
def test_results_of_others_are_read_as_typed_values_of_one_line(change: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"Not an audit result|Not audit results"):
        results_from_json(json.dumps([{**GIVEN, **change}]))
    with pytest.raises(ValueError, match="Not an audit result"):
        AuditResult.from_json(json.dumps({**GIVEN, **change}))


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000 + "]" * 100_000,
        '[{"format":' + "9" * 5000 + "}]",
        '[{"format": 1, "format": 1}]',
        '[{"delta": NaN}]',
        "[1]",
        "{",
    ],
    ids=["deep", "digits", "twice", "nan", "number", "cut"],
)
def test_results_of_others_are_read_within_limits(text: str) -> None:
    with pytest.raises(ValueError, match=r"Not an audit result|Not audit results"):
        results_from_json(text)


def test_texts_of_results_stand_on_one_line() -> None:
    result = AuditResult(attack="a\nb", mechanism="c\td", verdict="refuted", delta=1e-5, findings=("e\nf",))
    assert (result.attack, result.mechanism, result.findings) == ("a b", "c d", ("e f",))
    assert "\n" not in str(result)
