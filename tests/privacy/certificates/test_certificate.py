from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from dperm.privacy import (
    Assumption,
    Certificate,
    Composed,
    Gaussian,
    PoissonSampled,
    Provenance,
    Relation,
    SelfComposed,
    Unsupported,
    epsilon,
)
from helpers.said import flat, statements

EVENT = SelfComposed(PoissonSampled(0.01, Gaussian(1.1)), 1000)


def certificate(**changes: object) -> Certificate:
    settings: dict[str, object] = {
        "mechanism": "DP-SGD",
        "event": EVENT,
        "delta": 1e-5,
        "target_epsilon": 2.0,
        "assumptions": [Assumption("A stated thing.", "caller", "stated")],
        "public_facts": {"dimension": 10, "relation": "add_or_remove_one"},
        "not_charged": ["hyper-parameters"],
        "provenance": Provenance("fresh", "Noise is exact."),
    }
    return Certificate.issue(**(settings | changes))


def test_json_both_ways_without_loss() -> None:
    issued = certificate()
    assert Certificate.from_json(issued.to_json()) == issued
    assert Certificate.from_json(issued.to_json(indent=None)) == issued
    assert json.loads(issued.to_json())["epsilon"] == epsilon(EVENT, 1e-5)


def test_plain_statement_says_what_counts() -> None:
    text = flat(certificate())
    for part in ("DP-SGD", "(1.516", "1e-05", "added or removed", "Target epsilon 2", "A stated thing.", "hyper-parameters"):
        assert part in text, part


def test_it_is_readable_on_a_terminal() -> None:
    """The guarantee is the first statement, lines are short, further lines are indented, and no word is broken or lost."""
    long = Assumption(" ".join(["A premise of many words, with 1e-05 and (ε, δ)-privacy,"] * 12), "caller", "stated " * 40)
    address = "https://example.org/" + "a" * 200
    issued = certificate(assumptions=[long, Assumption(address, "library", "tested")], not_charged=["preprocessing " * 30])
    for printed in (str(issued), issued.brief()):
        lines = printed.splitlines()
        assert all(len(line) <= 100 or address in line for line in lines)
        assert statements(printed)[0].startswith("DP-SGD is (1.516")
        assert len(lines) > len(statements(printed))
        assert all(line.startswith("    ") or line.split()[0].strip(":") in _FIRST_WORDS for line in lines)
    assert flat(f"Assumes (caller): {long.text} [{long.checked}]") in map(flat, statements(issued))
    assert flat(issued.not_charged[0]) in flat(issued) and address in str(issued)
    assert statements(certificate(mechanism="    Accountant: mine"))[0].startswith("Accountant: mine is (1.516")


_FIRST_WORDS = ("DP-SGD", "Target", "Accountant", "Assumes", "Not")


def test_claimed_mechanisms_have_no_number() -> None:
    claimed = certificate(event=Composed((EVENT, Unsupported("the authors claim epsilon = 1"))))
    assert claimed.status == "claimed"
    assert claimed.epsilon is None
    assert json.loads(claimed.to_json())["epsilon"] is None
    assert "the authors claim epsilon = 1" in flat(claimed)
    assert Certificate.from_json(claimed.to_json()) == claimed
    with pytest.raises(ValueError, match="claimed"):
        claimed.curve()


def test_a_fixed_seed_is_not_private() -> None:
    issued = certificate(provenance=Provenance("fixed", "", private=False))
    assert issued.status == "not private"
    assert not issued.private
    assert str(issued).startswith("NOT PRIVATE")


def test_curve_and_attack_view() -> None:
    issued = certificate()
    epsilons, deltas = issued.curve()
    assert np.all(np.diff(deltas) <= 0)
    at = np.interp(issued.epsilon, epsilons, np.log(deltas))
    assert at == pytest.approx(np.log(1e-5), abs=0.3)
    attack = issued.attack_view((0.01, 0.1))
    assert attack.advantage == deltas[0]
    assert 0.01 < attack.true_positive_rates[0] < attack.true_positive_rates[1] < 1


def test_attack_view_of_a_gaussian_is_its_roc_curve() -> None:
    """G_μ: true-positive rate Φ(Φ⁻¹(FPR) + μ) (Dong, Roth, Su 2022)."""
    from scipy.special import ndtr, ndtri

    issued = certificate(event=Gaussian(1.0), delta=1e-6, target_epsilon=None)
    grid = np.linspace(0, 8, 400)
    from dperm.privacy.accountants.risk import attack_view

    attack = attack_view(*issued.curve(grid), (0.01, 0.1))
    for rate, bound in zip(attack.false_positive_rates, attack.true_positive_rates, strict=True):
        exact = ndtr(ndtri(rate) + 1.0)
        assert exact <= bound <= exact * 1.002
    assert attack.advantage == pytest.approx(2 * ndtr(0.5) - 1)


def test_verify_finds_a_flattering_number() -> None:
    issued = certificate()
    issued.verify()
    with pytest.raises(ValueError, match="its event costs"):
        replace(issued, epsilon=0.5 * issued.epsilon).verify()


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"format": 99}', '{"format": 1, "event": {"type": "Gaussian"}}'])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="Not a dperm certificate"):
        Certificate.from_json(text)


def test_relation_comes_from_the_event() -> None:
    issued = certificate(event=Gaussian(2.0, Relation.REPLACE_ONE))
    assert issued.relation is Relation.REPLACE_ONE
    assert "replaced by any other" in flat(issued)


@pytest.mark.parametrize(
    "change",
    [
        {"relation": Relation.REPLACE_ONE},
        {"epsilon": None},
        {"status": "claimed"},
        {"status": "claimed", "epsilon": None},
        {"claim": "x"},
    ],
)
def test_verify_finds_tampering(change: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="certificate"):
        replace(certificate(), **change).verify()


def test_only_claimed_keeps_the_event_and_drops_the_number() -> None:
    demoted = certificate().only_claimed("the ranges were read off the data")
    demoted.verify()
    assert demoted.epsilon is None
    assert "ranges were read off the data" in flat(demoted)
    assert demoted.only_claimed("again") is demoted
