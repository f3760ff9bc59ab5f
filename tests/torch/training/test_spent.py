"""A budget shared with earlier releases from the same records."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dperm.gradient.recipes import dp_sgd, dpis
from dperm.privacy import Certificate, Composed, Gaussian, Provenance, Unsupported, epsilon
from dperm.release import SpendLog
from dperm.torch import PrivateTrainer, private_channel_statistics
from helpers.oracle import cross_entropy

N = 400


def images() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(N, 3, 4, 4, generator=generator)
    return x, (x[:, 0].mean((1, 2)) > 0.5).long()


def trainer(**changes: Any) -> PrivateTrainer:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(48, 2))
    settings: dict[str, Any] = {
        "epsilon": 2.0, "delta": 1e-4, "epochs": 3, "expected_batch_size": 40, "clipping_norm": 1.0, "public_size": N,
    }  # fmt: skip
    return PrivateTrainer(model, cross_entropy, torch.optim.SGD(model.parameters(), lr=0.5), **(settings | changes))


@pytest.mark.parametrize("recipe", [dp_sgd, dpis])
def test_normalisation_and_training_keep_within_one_budget(recipe: Any) -> None:
    x, y = images()
    statistics = private_channel_statistics(x, noise_multiplier=4.0, delta=1e-4, scale=0.6, public_size=N)
    run = trainer(plan=recipe, spent=[statistics.certificate]).fit((statistics.normalise(x), y))
    total = run.total_certificate
    assert 1.99 < total.epsilon <= 2.0 and total.target_epsilon == 2.0
    assert run.certificate.epsilon < 1.99 and run.certificate.target_epsilon is None
    assert total.event == Composed((statistics.certificate.event, run.certificate.event))
    assert total.mechanism.startswith("normalisation of channels, then gradient perturbation of a network")
    assert set(total.assumptions) >= set(run.certificate.assumptions) | set(statistics.certificate.assumptions)
    assert Certificate.from_json(total.to_json()) == total
    # the log has both charges, and adds them up to the same
    assert sum(SpendLog.current().total(1e-4).values()) == pytest.approx(total.epsilon, rel=1e-6)


def test_a_private_number_of_records_shares_a_budget_too() -> None:
    run = trainer(spent=[issued(Gaussian(4.0))], public_size=None).fit(images())
    assert 1.9 < run.total_certificate.epsilon <= 2.0
    assert run.epsilon_spent == run.certificate.epsilon  # the steps were chosen by the size: nothing less can be stated


def test_nothing_spent_before_is_the_runs_own_certificate() -> None:
    run = trainer().fit(images())
    assert run.total_certificate is run.certificate
    with pytest.raises(ValueError, match="nothing is charged yet"):
        _ = trainer().total_certificate


def issued(event: Any, **changes: Any) -> Certificate:
    return Certificate.issue(mechanism="m", event=event, delta=1e-5, **changes)


def test_of_all_is_as_strong_as_its_weakest_part() -> None:
    both = Certificate.of_all([issued(Gaussian(5.0)), issued(Gaussian(5.0))])
    assert both.epsilon == pytest.approx(epsilon(Gaussian(5.0 / 2**0.5), 1e-5))
    assert (
        Certificate.of_all([issued(Gaussian(5.0)), issued(Gaussian(5.0), provenance=Provenance.audit())]).status == "not private"
    )
    claimed = Certificate.of_all([issued(Gaussian(5.0)), issued(Unsupported("so they say"))])
    assert claimed.epsilon is None and "so they say" in claimed.claim
    doubted = Certificate.of_all([issued(Gaussian(5.0)).only_claimed("it rained"), issued(Gaussian(5.0))])
    assert doubted.epsilon is None and "it rained" in doubted.claim
    doubted.verify()
    with pytest.raises(ValueError, match="at least one"):
        Certificate.of_all([])


def test_what_is_paid_for_again_is_added_without_a_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings: dict[str, Any] = {"spent": [issued(Gaussian(4.0))], "checkpoint": tmp_path / "run"}
    run = trainer(**settings)
    for step in run.steps(images()):
        run.optimizer.step()
        if step.number == 4:
            run.save()
            break
    monkeypatch.setenv("DPERM_SPEND_LOG", str(tmp_path / "another.db"))
    with pytest.warns(UserWarning, match="paid for again"):
        again = trainer(**settings).fit(images(), resume=True)
    total = again.total_certificate
    assert total.epsilon > 2.0 and total.target_epsilon is None
    assert total.epsilon > again.certificate.epsilon > run.certificate.epsilon


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"noise_multiplier": 1.0, "epsilon": None}, "Expected epsilon where spent"),
        ({"public_size": None, "epsilon": 0.3}, "target that noise can reach"),
        ({"plan": functools.partial(dpis), "epsilon": 0.3}, "released earlier takes epsilon = "),
        ({"epsilon": 0.3}, "target that noise can reach"),
    ],
)
def test_what_cannot_be_shared_is_refused_before_anything_is_charged(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        trainer(spent=[issued(Gaussian(4.0))], **changes).fit(images())
    assert SpendLog.current().charges() == []
