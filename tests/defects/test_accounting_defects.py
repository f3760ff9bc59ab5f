"""Confirmed defects of the channel, the log, certificates and accountants, each by its number."""

from __future__ import annotations

import json
import math
import os
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dperm._random import Randomness
from dperm.audit.recording import Recorder
from dperm.privacy import (
    Assumption,
    Certificate,
    Composed,
    Gaussian,
    ObjectivePerturbationEvent,
    PoissonSampled,
    PureDP,
    SelfComposed,
    calibrate,
)
from dperm.privacy.accountants import dominating_pairs as pairs
from dperm.privacy.accountants import pld
from dperm.privacy.accountants.accounting import best_epsilon, delta, epsilon
from dperm.privacy.accountants.objective_perturbation import loss_bound
from dperm.privacy.accountants.rdp import rdp_epsilon
from dperm.release import Channel, GaussianNoise, Noise, SpendLog, SystemSource, UnpaidReleaseError, spend_log
from dperm.release.source import Source

# 5: a channel is as private as its source


class Silent(SystemSource):
    """A stranger's: it adds nothing."""

    def noisy(self, query: np.ndarray, noise: Noise) -> np.ndarray:
        return query


@pytest.mark.parametrize(
    ("source", "private"),
    [
        (SystemSource(Randomness.from_system()), True),
        (SystemSource(Randomness.fixed(1)), False),
        (Silent(Randomness.from_system()), False),
        (Recorder(SystemSource(Randomness.from_system())), False),
    ],
    ids=["system", "seed", "stranger", "recorder"],
)
def test_a_channel_is_as_private_as_its_source(source: Source, private: bool) -> None:
    channel = Channel(source)
    assert channel.private is private
    channel.charge(Gaussian(1.0), "test")
    issued = Certificate.issue(mechanism="test", event=Gaussian(1.0), delta=1e-5, provenance=channel.provenance)
    assert issued.status == ("certified" if private else "not private")
    assert SpendLog.current().charges()[-1].private is private


# 8: the smallest δ


@pytest.mark.parametrize("small", [1e-30, 1e-300, 5e-324])
def test_a_small_delta_is_honoured_in_two_ways(small: float) -> None:
    """The exact formula, and the definition: δ(ε) of what is returned is no larger."""
    found = epsilon(Gaussian(2.0), small)
    assert delta(Gaussian(2.0), found) <= small
    assert found > epsilon(Gaussian(2.0), 1e-20)


# 9: log


def test_a_log_of_another_thread_takes_no_charge(tmp_path: Path) -> None:
    """Eight of twelve charges went to the log of an audit in another thread."""
    mine, other = SpendLog(tmp_path / "mine.db"), tmp_path / "audit.db"
    inside, done = threading.Event(), threading.Event()

    def audit() -> None:
        with spend_log(other) as log:
            log.charge(Gaussian(1.0), mechanism="audit")
            inside.set()
            done.wait(30)

    thread = threading.Thread(target=audit)
    with spend_log(mine.where):
        thread.start()
        assert inside.wait(30)
        for _ in range(12):
            SpendLog.current().charge(Gaussian(1.0), mechanism="fit")
        done.set()
        thread.join()
    assert len(mine.charges()) == 12 and len(SpendLog(other).charges()) == 1


def test_a_relative_log_does_not_follow_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPERM_SPEND_LOG", "spend.db")
    before = SpendLog.current().where
    monkeypatch.chdir(tmp_path)
    assert SpendLog.current().where == before and Path(before).is_absolute()


# 9: channel


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*use of fork")
def test_a_forked_channel_releases_nothing() -> None:
    channel = Channel.open()
    channel.charge(Gaussian(1.0), "test")
    child = os.fork()
    if child == 0:
        try:
            channel.release(np.zeros(2), GaussianNoise(1.0, 1.0))
        except UnpaidReleaseError:
            os._exit(0)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert channel.release(np.zeros(2), GaussianNoise(1.0, 1.0)).shape == (2,)


# 9: certificates


def certificate() -> Certificate:
    said = [Assumption("The ranges are public.", "caller", "stated")]
    provenance = Channel.open().provenance
    return Certificate.issue(mechanism="test", event=Gaussian(2.0), delta=1e-5, assumptions=said, provenance=provenance)


@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0, 0.0])
def test_verify_does_not_pass_what_is_no_number(value: float) -> None:
    with pytest.raises(ValueError):
        replace(certificate(), epsilon=value).verify()
    with pytest.raises(ValueError):
        replace(certificate(), delta=value).verify()


def test_a_stripped_assumption_is_seen_on_every_load() -> None:
    stated = json.loads(certificate().to_json())
    assert stated["assumptions"]
    with pytest.raises(ValueError, match="changed after it was issued"):
        Certificate.from_json(json.dumps(stated | {"assumptions": stated["assumptions"][1:]}))


# 9: accountants


def test_gaussians_with_little_noise_compose() -> None:
    """Where a loss lies above 600, and beside anything else."""
    loud = Gaussian(0.02)
    assert best_epsilon(Composed((loud, Gaussian(1.0))), 1e-5)[0] == pytest.approx(epsilon(loud, 1e-5), rel=0.01)
    for beside in (
        PureDP(1.0),
        PoissonSampled(0.1, Gaussian(1.0)),
        ObjectivePerturbationEvent(0.01, 1.0, 0.25, 0.1, loss="logistic"),
    ):
        value = best_epsilon(Composed((loud, beside)), 1e-5)[0]
        alone = max(epsilon(loud, 1e-5), epsilon(beside, 1e-5))
        assert alone <= value < math.inf


def test_very_many_steps_cost_no_more_than_by_renyi() -> None:
    """At 10¹³ steps the grid of the privacy-loss distribution was 37 times too coarse: 72.5 for 1.97."""
    event = SelfComposed(PoissonSampled(1e-7, Gaussian(1.0)), 10**13)
    assert epsilon(event, 1e-6) < min(2.0, rdp_epsilon(event, 1e-6))


# 11: what objective events cost together


def test_ten_classes_cost_less_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """What cost 1.00 costs 0.94."""

    def event(noise: float) -> SelfComposed:
        return SelfComposed(ObjectivePerturbationEvent(noise, 1.0, 0.25, 5.0, loss="logistic"), 10)

    found = event(calibrate(event, 1.0, 1e-5))
    assert epsilon(found, 1e-5) <= 1.0
    monkeypatch.setattr(pairs, "_symmetrised", lambda event: loss_bound(event))
    assert pld.PrivacyLossDistribution(found).epsilon(1e-5) > 1.05
