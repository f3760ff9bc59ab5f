"""Entries for the public registry of deployments."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dperm.estimators import DPLogisticRegression, model_to_json
from dperm.mechanisms import AccuracyFirst
from dperm.privacy import Certificate, PureDP, Relation, Unsupported
from dperm.report.card import Card, card_page
from dperm.report.deployment_registry import Deployment, registry_entry

KNOWN: dict[str, Any] = {
    "name": "Income model",
    "curators": ("Statistics Office",),
    "intended_use": "research",
    "region": "Europe",
}
#: what every entry of the registry has
REQUIRED = {
    "product": {
        "name", "data_curators", "intended_use", "data_product_type", "data_product_region", "description", "publication_date"
    },
    "dp_flavor": {"name"},
    "privacy_loss": {"privacy_unit", "privacy_parameters", "privacy_parameters_description"},
    "model": {"model_name", "release_type", "access_type", "data_source_type"},
    "accounting": {"post_processing", "composition"},
    "implementation": {"pre_processing_eda_hyperparameter_tuning", "mechanisms", "justification"},
    "resources": {"sources", "registry_authors"},
}  # fmt: skip


def test_an_entry_has_what_the_registry_asks_for() -> None:
    model = DPLogisticRegression(epsilon=1.0, classes=[0, 1]).fit(np.random.default_rng(0).normal(size=(200, 3)), [0, 1] * 100)
    entry = json.loads(registry_entry(model.certificate_, Deployment(**KNOWN, authors=("A. Person",))))
    assert entry["url_slug"] == "income-model-statistics-office" and entry["status"] == "Draft"
    for part, names in REQUIRED.items():
        assert names <= set(entry["deployment"][part]), part
        assert all(entry["deployment"][part][name] not in ("", None, [], {}) for name in names)
    assert entry["deployment"]["privacy_loss"]["privacy_parameters"] == {"epsilon": model.certificate_.epsilon, "delta": 1e-5}
    assert entry["deployment"]["dp_flavor"]["name"] == "Approximate DP"
    assert entry["deployment"]["product"]["publication_date"] == model.certificate_.created[:10]
    assert model.certificate_.digest in entry["deployment"]["resources"]["sources"]


def test_pure_privacy_is_called_so_and_claims_are_refused() -> None:
    pure = Certificate.issue(mechanism="output", event=PureDP(0.7, Relation.REPLACE_ONE), delta=0.0)
    entry = json.loads(registry_entry(pure, Deployment(**KNOWN)))["deployment"]
    assert entry["dp_flavor"]["name"] == "Pure DP" and entry["privacy_loss"]["privacy_parameters"] == {"epsilon": 0.7}
    assert entry["dp_flavor"]["input_metric"] == "change-one distance"
    claimed = Certificate.issue(mechanism="published", event=Unsupported("not private"), delta=1e-5)
    seeded = DPLogisticRegression(classes=[0, 1], random_state=0).fit(np.eye(4), [0, 1, 0, 1]).certificate_
    for certificate in (claimed, seeded):
        with pytest.raises(ValueError, match="certified"):
            registry_entry(certificate, Deployment(**KNOWN))


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"name": " "}, "name"), ({"curators": ()}, "curator"), ({"region": ""}, "region"), ({"publication_date": "May"}, "YYYY")],
)
def test_what_only_people_know_is_asked_for(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Deployment(**(KNOWN | changes))


def test_a_stop_on_the_way_is_on_the_card_and_in_the_entry() -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(500, 2))
    labels = (rows[:, 0] > 0).astype(int)
    method = AccuracyFirst(accuracy=0.7, held_out=(rows[:100], labels[:100]), strong_convexity=5.0)
    certificate = DPLogisticRegression(epsilon=8.0, classes=[0, 1], mechanism=method).fit(rows, labels).certificate_
    page = card_page(Card.of(certificate, "Model"))
    assert "ex post" in page and "Stopped at release" in page
    assert (
        "ex post"
        in json.loads(registry_entry(certificate, Deployment(**KNOWN)))["deployment"]["privacy_loss"][
            "privacy_parameters_description"
        ]
    )


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from dperm.cli import main

    model, entry = tmp_path / "model.json", tmp_path / "entry.yaml"
    fitted = DPLogisticRegression(epsilon=1.0, classes=[0, 1]).fit(np.eye(4), [0, 1, 0, 1])
    model.write_text(model_to_json(fitted))
    arguments = [
        "--name",
        "M",
        "--curator",
        "A",
        "--curator",
        "B",
        "--intended-use",
        "tests",
        "--region",
        "Here",
        "-o",
        str(entry),
    ]
    monkeypatch.setattr(sys, "argv", ["dperm", "registry", str(model), *arguments])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert not stopped.value.code and "before you publish" in capsys.readouterr().out
    assert json.loads(entry.read_text())["deployment"]["product"]["data_curators"] == ["A", "B"]
