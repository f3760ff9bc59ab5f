"""The field's formulas: known values, where they are proved, never below what is exact; and the ladder that holds them up."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import pytest

from dperm.cli import main
from dperm.privacy import Relation, epsilon
from dperm.privacy.accountants.closed_forms import (
    advanced_composition,
    basic_composition,
    best_composition,
    classical_gaussian,
    ladder,
    lecture_sgd_noise,
    moments_rule,
    subsampled,
)
from dperm.privacy.accountants.gaussian import gaussian_epsilon
from dperm.privacy.events import ApproximateDP, Gaussian, PoissonSampled, PureDP, SelfComposed

DELTA = 1e-5


def test_known_values() -> None:
    assert classical_gaussian(0.5, DELTA) == pytest.approx(2 * math.sqrt(2 * math.log(125_000)))
    assert basic_composition([(0.1, 1e-6), (0.2, 2e-6)]) == pytest.approx((0.3, 3e-6))
    assert advanced_composition(0.1, 1e-7, 100, 1e-6) == pytest.approx(
        (0.1 * math.sqrt(200 * math.log(1e6)) + 10 * (math.exp(0.1) - 1), 1.1e-5)
    )
    assert subsampled(1.0, DELTA, 0.01) == pytest.approx((0.017037, 1e-7), rel=1e-3)
    assert subsampled(1.0, DELTA, 1.0) == pytest.approx((1.0, DELTA))
    # n = 1,000, T = n², ε = 1: 16·1000·√(ln(2e5)·ln(2.5e8))/1000
    expected = 16 * math.sqrt(math.log(2e5) * math.log(2.5e6 / (1e-5 * 1000)))
    assert lecture_sgd_noise(1000, 1_000_000, 1.0, DELTA) == pytest.approx(expected)
    assert lecture_sgd_noise(1000, 1_000_000, 1.0, DELTA, 3.0) == pytest.approx(3 * expected)


@pytest.mark.parametrize("target", [0.05, 0.3, 0.99])
def test_the_classical_gaussian_is_enough_and_more(target: float) -> None:
    assert 0.3 * target < gaussian_epsilon(classical_gaussian(target, DELTA), DELTA) < target


def test_compositions_are_above_the_best_one() -> None:
    for each, small, count in ((0.1, 1e-8, 50), (0.02, 1e-9, 2000)):
        stated, delta = advanced_composition(each, small, count, DELTA)
        assert stated > epsilon(SelfComposed(ApproximateDP(each, small), count), delta)
    event = SelfComposed(ApproximateDP(0.1, 1e-8), 10)
    assert basic_composition([(0.1, 1e-8)] * 10)[0] >= epsilon(event, 1e-7) * (1 - 1e-9)


def test_amplification_is_above_the_exact_curve() -> None:
    for noise, rate in ((1.0, 0.1), (3.0, 0.5)):
        small = 1e-4
        stated, delta = subsampled(gaussian_epsilon(noise, small), small, rate)
        assert epsilon(PoissonSampled(rate, Gaussian(noise)), delta) <= stated * (1 + 1e-4)


def test_the_lecture_s_noise_is_private_and_how_loose_it_is() -> None:
    """One uniform record a step is no more than Poisson sampling's pair allows at a worst step: here held against composition of
    its own parts, exactly."""
    size, steps = 1000, 1_000_000
    noise = lecture_sgd_noise(size, steps, 1.0, DELTA) / 2  # a record is replaced: gradients move by 2
    small = DELTA / (2 * steps)
    part = subsampled(gaussian_epsilon(noise, small * size), small * size, 1 / size)
    spent = epsilon(SelfComposed(ApproximateDP(*part, Relation.REPLACE_ONE), steps), DELTA)
    assert 0.1 < spent < 1.0


@pytest.mark.parametrize("plan", [(4.0, 0.01, 1000), (1.1, 0.01, 500), (20.0, 1.0, 30), (10.0, 1.0, 1)])
def test_no_rung_is_below_the_exact_one(plan: tuple[float, float, int]) -> None:
    rungs = ladder(*plan, DELTA)
    exact = rungs[-1].epsilon
    assert exact == pytest.approx(epsilon(SelfComposed(PoissonSampled(plan[1], Gaussian(plan[0])), plan[2]), DELTA))
    proved = [rung for rung in rungs if rung.bound and rung.epsilon is not None]
    assert len(proved) >= 4 and all(rung.epsilon >= exact * (1 - 1e-6) for rung in proved)  # type: ignore[operator]
    assert all((rung.epsilon is None) == bool(rung.why) for rung in rungs)
    named = {rung.name: rung.epsilon for rung in rungs}
    best = named["best composition of any such steps"]
    assert best is not None and best <= named["advanced composition of exact Gaussians"] * (1 + 1e-3)  # type: ignore[operator]


@pytest.mark.slow
def test_replace_one_has_no_amplification_by_poisson_sampling() -> None:
    rungs = ladder(4.0, 0.01, 10, DELTA, Relation.REPLACE_ONE)
    assert [rung.epsilon is None for rung in rungs[:4]] == [True] * 4 and "adding or removing" in rungs[0].why
    assert rungs[-1].epsilon is not None
    assert ladder(40.0, 1.0, 10, DELTA, Relation.REPLACE_ONE)[0].epsilon is not None


def test_the_moments_rule_is_about_twice_the_leading_term_and_says_where_it_ends() -> None:
    # many steps at a small rate: ε ≈ 2q√(T ln(1/δ))/σ
    assert moments_rule(4.0, 0.001, 100_000, DELTA) == pytest.approx(2 * 0.001 * math.sqrt(1e5 * math.log(1e5)) / 4, rel=0.1)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: classical_gaussian(1.0, DELTA), "below 1"),
        (lambda: classical_gaussian(0.5, 0.0), "delta"),
        (lambda: basic_composition([]), "at least one"),
        (lambda: basic_composition([(-1.0, 0.0)]), "epsilon of at least 0"),
        (lambda: advanced_composition(0.1, 2.0, 10, DELTA), "delta between"),
        (lambda: advanced_composition(0.1, 0.0, 10, 0.0), "slack"),
        (lambda: advanced_composition(0.1, 0.0, 0, DELTA), "count"),
        (lambda: subsampled(1.0, DELTA, 1.5), "rate"),
        (lambda: lecture_sgd_noise(1000, 1_000_000, 1.5, DELTA), "at most 1"),
        (lambda: lecture_sgd_noise(1000, 1000, 1.0, DELTA), "more steps"),
        (lambda: moments_rule(0.5, 0.001, 10, DELTA), "noise of at least 1"),
        (lambda: moments_rule(2.0, 0.1, 10, DELTA), "rate below"),
    ],
)
def test_side_conditions_are_checked(call: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()  # type: ignore[operator]


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["dperm", "account", *arguments])
        with pytest.raises(SystemExit) as stopped:
            main()
        shown = capsys.readouterr()
        return int(stopped.value.code or 0), shown.out, shown.err

    page = tmp_path / "ladder.html"
    code, out, _ = run("--noise", "50", "--steps", "8", "--compare", "-o", str(page))
    assert code == 0
    assert "advanced composition" in out
    assert "÷ exact" in out
    assert "<svg" in page.read_text(encoding="utf-8") and "8 releases of noise 50" in page.read_text(encoding="utf-8")
    code, out, _ = run("--noise", "50", "--steps", "40", "--compare", "--json")
    rungs = json.loads(out)["rungs"]
    assert rungs[-1]["name"] == "privacy loss distribution" and rungs[0]["epsilon"] > rungs[-1]["epsilon"]
    for arguments in (("--log", "--compare"), ("--noise", "1", "-o", str(page))):
        code, _, err = run(*arguments)
        assert code != 0 and "Expected" in err


@pytest.mark.parametrize(("each", "small", "count"), [(0.1, 1e-7, 12), (0.5, 0.0, 30), (1.5, 1e-6, 3), (0.01, 1e-8, 400)])
def test_the_best_composition_is_the_exact_one(each: float, small: float, count: int) -> None:
    part = ApproximateDP(each, small) if small else PureDP(each)
    exact = epsilon(SelfComposed(part, count), DELTA)
    found = best_composition(each, small, count, DELTA)
    assert found <= exact * (1 + 1e-6) and found == pytest.approx(exact, rel=2e-3)


def test_the_best_composition_by_hand() -> None:
    """Two parts of randomised response: δ(ε') = (e^{2ε} − e^{ε'})/(1 + e^ε)² for ε' between 0 and 2ε, both orders being equal."""
    each, delta = 0.7, 0.05
    by_hand = math.log(math.exp(2 * each) - delta * (1 + math.exp(each)) ** 2)
    assert best_composition(each, 0.0, 2, delta) == pytest.approx(by_hand, rel=1e-8)
    assert best_composition(each, 0.1, 2, 0.15) == math.inf
    assert best_composition(0.01, 0.0, 2, 0.5) == 0.0
