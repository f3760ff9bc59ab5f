"""Network classifiers audited by their settings: sound ones pass, each with its own event, and planted defects are found."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from dperm.audit import network, network_pairs, overall
from dperm.audit.network import attack_network, event_of_network
from dperm.estimators import DPMLPClassifier, model_from_json, model_to_json
from dperm.gradient import Clip
from dperm.mechanisms import Gradient
from dperm.release import SpendLog
from dperm.torch.ranks.tensor_noise import TorchSource
from helpers.asked import weaker
from helpers.commands import dperm

SIZE = 60
X = np.random.default_rng(0).normal(size=(SIZE, 3)).astype(np.float32)
Y = np.array(["a", "b", "c"])[np.arange(SIZE) % 3]


def fitted(groups: Any = None, **settings: Any) -> Any:
    usual: dict[str, Any] = {
        "hidden_layer_sizes": (4,),
        "classes": ["a", "b", "c"],
        "epsilon": 2.0,
        "delta": 1e-4,
        "mechanism": Gradient(epochs=2),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return DPMLPClassifier(**(usual | settings)).fit(X, Y, groups)


def test_a_sound_network_passes_at_its_own_event(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "network_pairs", lambda *given: network_pairs(*given)[:2])  # the others take as long each
    passes_at_its_own_event(fitted(public_size=SIZE), {"replay", "white box"})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "groups"),
    [
        ({"public_size": SIZE}, None),
        ({"max_rows_per_unit": 2, "public_size": SIZE // 2}, np.arange(SIZE) // 2),
        *(
            (settings, None)
            for settings in (
                {},  # the number of records is released, and calibrated for in each neighbour
                {"relation": "replace_one"},
                {"public_size": SIZE, "mechanism": Gradient(epochs=2, sampling="importance")},
                {"public_size": SIZE, "mechanism": Gradient(epochs=3, sampling="full")},
                {"public_size": SIZE, "mechanism": Gradient(epochs=3, sampling="balls_and_bins")},
            )
        ),
    ],
)
def test_sound_networks_pass_at_their_own_event(settings: dict[str, Any], groups: Any) -> None:
    passes_at_its_own_event(fitted(groups, **settings), {"replay", "white box"} if groups is None else {"replay"})


def passes_at_its_own_event(model: Any, attacks: set[str]) -> None:
    again, _ = model_from_json(model_to_json(model))
    charges, state = len(SpendLog.current().charges()), torch.random.get_rng_state()
    assert event_of_network(again) == model.certificate_.event
    names: list[str] = []
    results = attack_network(again, lambda name, done, total: names.append(name))
    assert overall(results) == "consistent", "\n".join(map(str, results))
    assert results[0].details["largest_movement"] > 0.2
    assert set(names) == attacks and len(results) == len(set(names))
    assert len(SpendLog.current().charges()) == charges and torch.equal(torch.random.get_rng_state(), state)


@pytest.mark.slow
def test_weak_clipping_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    model, sound = fitted(public_size=SIZE), Clip.factors
    monkeypatch.setattr(Clip, "factors", lambda self, norms: 1.5 * sound(self, norms))
    replayed, watched = attack_network(model)
    assert watched.refuted and replayed.details["largest_movement"] <= 1  # a network's sums are cut at the bound besides


@pytest.mark.slow
def test_weak_noise_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    model, sound = fitted(public_size=SIZE), TorchSource.noisy
    monkeypatch.setattr(TorchSource, "noisy", lambda self, query, noise: sound(self, query, weaker(noise, 0.5)))
    assert attack_network(model)[1].refuted


@pytest.mark.slow
def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "network_pairs", lambda *given: network_pairs(*given)[:1])  # the others take as long each
    table, model, found = tmp_path / "t.csv", tmp_path / "m.json", tmp_path / "a.json"
    pd.DataFrame({"u": X[:, 0], "v": X[:, 1], "w": Y}).to_csv(table, index=False)
    schema = tmp_path / "s.json"
    dperm("data", "propose", table, "--target", "w", "-o", schema)
    dperm("data", "confirm", schema)
    dperm("train", table, "--schema", schema, "--model", "mlp", "--hidden", "4", "--epsilon", "2", "-o", model)
    done = dperm("audit", model, "-o", found)
    assert "made-up records" in done.stdout
    assert "Not refuted" in done.stdout
    assert "Watching canaries" in done.stderr
    assert "(2, 1e-05)" in dperm("card", model, "--audit", found, "-o", tmp_path / "c.html").stdout
    assert "no --trials with a network" in dperm("audit", model, "--trials", "20", expect=1).stderr
    fitted, extra = model_from_json(model.read_text())
    fitted.fitted_params_["epsilon"] = 1.0
    model.write_text(model_to_json(fitted, extra))
    assert "states another event" in dperm("audit", model, "-o", found, expect=1).stderr
