"""What holds of every estimator, found by walking: its certificate, its file, and replay through its front door."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import scipy.sparse as sp
from sklearn.base import is_classifier

from dperm.audit import Pair, Training, replay
from dperm.estimators import model_from_json, model_to_json
from dperm.mechanisms import Gradient
from dperm.privacy import Relation
from dperm.release import SpendLog
from helpers.estimators import all_estimators, learnable, linear_estimators, made, network_estimators, parameters
from helpers.halving import is_found, places_of

ALL = all_estimators()
RELATIONS = list(Relation)
COUNT = 40


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of a δ that is large for so few records
        yield


def model(kind: type, relation: Relation, **settings: Any) -> Any:
    classes = [0, 1] if is_classifier(made(kind)) else None
    given = {"epsilon": 4.0, "relation": relation.value, "public_size": COUNT, "classes": classes, "radius": 0.3}
    if kind in network_estimators():
        given["mechanism"] = Gradient(sampling="full", epochs=3)  # without a search for its noise
    return made(kind, **(given | settings))


def training(kind: type, relation: Relation, monkeypatch: pytest.MonkeyPatch) -> Training:
    """Through the front door, with records far beyond the bound and of both ends of the targets."""
    if kind in network_estimators():
        _from_the_same_weights(kind, monkeypatch)
    rows, targets = learnable(kind, COUNT)
    rows[-1], targets[-1] = [-100.0, 0.0, 0.0], 0
    far = np.array([100.0, 0.0, 0.0])
    ends = (0, 1) if is_classifier(made(kind)) else (0.0, 100.0)
    pairs = [Pair.neighbour(relation, f"target {target:g}", (rows, targets), far, target) for target in ends]
    return Training.of_estimator(model(kind, relation), (rows, targets), pairs)


def _from_the_same_weights(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Initial weights do not depend on records; replay needs them the same in all its runs."""
    import torch

    plain = kind.module_of

    def seeded(self: Any, features: int, classes: int) -> Any:
        torch.manual_seed(0)
        return plain(self, features, classes)

    monkeypatch.setattr(kind, "module_of", seeded)


def test_walking_finds_them() -> None:
    assert len(ALL) >= 9
    assert {*linear_estimators(), *network_estimators()} == set(ALL)
    assert {kind.__name__ for kind in ALL} >= {"DPLogisticRegression", "DPRidge", "DPTorchClassifier"}


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("kind", ALL)
def test_every_estimator_is_certified_within_its_budget_and_kept_whole(kind: type, relation: Relation) -> None:
    rows, targets = learnable(kind, COUNT)
    fitted = model(kind, relation).fit(rows, targets)
    certificate = fitted.certificate_
    certificate.verify()
    assert certificate.status == "certified"
    assert certificate.relation is relation
    assert 0 < certificate.epsilon <= 4.0
    (charge,) = SpendLog.current().charges()
    assert charge.event == certificate.event
    if "module" in parameters(kind):  # which no text says how to build
        with pytest.raises(TypeError, match="save the weights by torch"):
            model_to_json(fitted)
    else:
        again, _ = model_from_json(model_to_json(fitted))
        assert again.certificate_ == certificate
        assert np.array_equal(again.predict(rows), fitted.predict(rows))
    assert model(kind, relation, random_state=0).fit(rows, targets).certificate_.status == "not private"


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("kind", ALL)
def test_every_front_door_is_replayed(kind: type, relation: Relation, monkeypatch: pytest.MonkeyPatch) -> None:
    audited = training(kind, relation, monkeypatch)
    found = replay(audited, audited.replay_pairs[:1], both_ways=False)
    assert found.verdict == "consistent", found


@pytest.mark.parametrize("kind", ALL)
def test_half_of_the_sensitivity_is_refuted_through_every_front_door(kind: type, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somewhere on its way: the other places, and replace-one, are those of its mechanism, which the catalogue has."""
    audited = training(kind, Relation.ADD_OR_REMOVE_ONE, monkeypatch)
    assert any(is_found(audited, place) for place in places_of(audited))


def _no_numbers(values: np.ndarray[Any, Any]) -> dict[str, Any]:
    """Entries that NumPy makes numbers of, other ones than they mean, in each form that rows or targets come in."""
    dates = (1e6 * values).astype("datetime64[s]")
    entries = np.empty(values.shape, dtype=object)
    for place, date in np.ndenumerate(dates):
        entries[place] = date
    found: dict[str, Any] = {
        "complex": values + 1j,
        "complex, of no imaginary part": values.astype(np.complex64),
        "dates": dates,
        "days": (1e3 * values).astype("datetime64[D]"),
        "durations": (1e6 * values).astype("timedelta64[ms]"),
        "structured": np.zeros(values.shape, dtype=[("a", float)]),
        "objects": entries,
    }
    frame = pd.DataFrame(dates) if values.ndim == 2 else pd.Series(dates)
    found |= {"a frame of dates": frame, "a list of dates": list(dates)}
    if values.ndim == 2:
        found["a frame with a column of dates"] = pd.DataFrame(values).assign(date=dates[:, 0])
        found["a frame with complex entries"] = pd.DataFrame(values).astype(object).assign(part=list(values[:, 0] + 1j))
        found["dates in polars"] = pl.DataFrame(dict(zip("abc", dates.astype("datetime64[ms]").T, strict=True)))
        found["sparse complex"] = sp.csr_array(values + 1j)
    return found


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
def test_what_is_no_real_number_is_refused_before_the_charge(kind: type) -> None:
    rows, targets = learnable(kind, COUNT)
    fit = model(kind, Relation.ADD_OR_REMOVE_ONE).fit
    for name, given in _no_numbers(rows).items():
        with pytest.raises((ValueError, TypeError)):
            fit(given, targets)
            pytest.fail(f"rows: {name}")
    for name, given in _no_numbers(targets.astype(float)).items() if not is_classifier(made(kind)) else ():
        with pytest.raises((ValueError, TypeError)):
            fit(rows, given)
            pytest.fail(f"targets: {name}")
    if "max_sample_weight" in parameters(kind):
        weighted = model(kind, Relation.ADD_OR_REMOVE_ONE, max_sample_weight=2.0)
        for name, given in _no_numbers(np.ones(COUNT)).items():
            with pytest.raises((ValueError, TypeError)):
                weighted.fit(rows, targets, sample_weight=given)
                pytest.fail(f"weights: {name}")
    assert SpendLog.current().charges() == []
