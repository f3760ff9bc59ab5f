"""A certificate as an entry of the public registry of deployments (Nanayakkara, Ghazi, Vadhan 2025, arXiv 2509.13509).

What follows from the certificate is filled in; what it cannot know is asked for. JSON, which the registry's YAML readers read.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import date
from typing import Any

from dperm._rounding import upward
from dperm.privacy import Certificate, Relation

_UNIT = {
    Relation.ADD_OR_REMOVE_ONE: "One record, added or removed: of a person, where each contributes at most one.",
    Relation.REPLACE_ONE: "One record, replaced by any other: of a person, where each contributes at most one.",
}
_UNIT_OF_PERSONS = {
    Relation.ADD_OR_REMOVE_ONE: "One person with all their rows, added or removed.",
    Relation.REPLACE_ONE: "One person with all their rows, replaced by any other.",
}
_DISTANCE = {Relation.ADD_OR_REMOVE_ONE: "symmetric distance", Relation.REPLACE_ONE: "change-one distance"}


@dataclass(frozen=True, kw_only=True)
class Deployment:
    """What only those who deploy a model know. `publication_date` as YYYY-MM-DD; None: when the certificate was issued."""

    name: str
    curators: tuple[str, ...]
    intended_use: str
    region: str
    description: str = ""
    sector: str = ""
    publication_date: str | None = None
    sources: str = ""
    authors: tuple[str, ...] = ()
    justification: str = ""
    preparation: str = ""

    def __post_init__(self) -> None:
        for name in ("name", "intended_use", "region"):
            if not str(getattr(self, name)).strip():
                raise ValueError(f"Expected {name}: the registry asks for it.")
        if not self.curators or not all(curator.strip() for curator in self.curators):
            raise ValueError("Expected at least one data curator.")
        if self.publication_date is not None:
            try:
                valid = date.fromisoformat(self.publication_date).isoformat() == self.publication_date
            except ValueError:
                valid = False
            if not valid:
                raise ValueError(f"Expected publication_date as YYYY-MM-DD, got {self.publication_date!r}.")


def registry_entry(certificate: Certificate, deployment: Deployment) -> str:
    """The entry. ValueError for a certificate without a proved ε, and for one of a run that was not private."""
    if certificate.epsilon is None or certificate.status != "certified":
        raise ValueError(f"Expected a certified model, got one that is {certificate.status}.")
    product = {
        "name": deployment.name,
        "data_curators": list(deployment.curators),
        "intended_use": deployment.intended_use,
        "data_product_type": "Machine learning model",
        "data_product_region": deployment.region,
        "description": deployment.description or f"A model trained by {certificate.mechanism}.",
        "publication_date": deployment.publication_date or certificate.created[:10],
        **({"data_product_sector": deployment.sector} if deployment.sector else {}),
    }
    entry: dict[str, Any] = {
        "url_slug": re.sub(r"[^a-z0-9]+", "-", f"{deployment.name} {deployment.curators[0]}".lower()).strip("-"),
        "status": "Draft",
        "deployment": {
            "product": product,
            "dp_flavor": _flavour(certificate, certificate.epsilon),
            "privacy_loss": _privacy_loss(certificate),
            "model": {
                "model_name": "Central",
                "release_type": "One release",
                "data_source_type": "Static",
                "access_type": "Non-interactive",
            },
            "accounting": {
                "post_processing": "What is made of the model costs nothing more.",
                "composition": json.dumps(certificate.event.to_dict(), ensure_ascii=False),
            },
            "implementation": {
                "pre_processing_eda_hyperparameter_tuning": deployment.preparation
                or "Not charged: " + "; ".join(certificate.not_charged),
                "mechanisms": f"{certificate.mechanism} ({certificate.paper}), by dperm {certificate.versions.get('dperm', '')}",
                "justification": deployment.justification
                or " ".join(f"{item.text} [{item.checked}]" for item in certificate.assumptions),
            },
            "resources": {
                "sources": deployment.sources or f"Certificate with sha256 {certificate.digest}",
                "registry_authors": list(deployment.authors or deployment.curators),
            },
        },
    }
    return json.dumps(entry, indent=2, ensure_ascii=False, allow_nan=False)


def _flavour(certificate: Certificate, epsilon: float) -> dict[str, str]:
    """Which definition of privacy holds, between which inputs, and by how much."""
    pure = certificate.delta == 0
    price = "" if pure else f", δ = {upward(certificate.delta, 6)}"
    return {
        "name": "Pure DP" if pure else "Approximate DP",
        "input_metric": _DISTANCE[certificate.relation] + (" between sets of persons" if certificate.of_persons else ""),
        "bound_on_input_distance": "1",
        "output_measure": "max divergence" if pure else "hockey-stick divergence",
        "bound_on_output_distance": f"ε = {upward(epsilon, 6)}{price}",
        "unprotected_quantities": "; ".join(
            f"{key}: {value}" for key, value in certificate.public_facts.items() if value is not None
        ),
    }


def _privacy_loss(certificate: Certificate) -> dict[str, Any]:
    """The unit, the parameters, and what they keep from an attacker."""
    parameters = {"epsilon": certificate.epsilon} | ({} if certificate.delta == 0 else {"delta": certificate.delta})
    view = certificate.attack_view((0.01,))
    views = [
        f"The best attack finds at most {upward(100 * view.true_positive_rates[0], 3)} of 100 where it accuses 1 of 100 wrongly; "
        f"its advantage is at most {upward(100 * view.advantage, 3)} points."
    ]
    stop = [str(certificate.ex_post)] if certificate.ex_post else []
    return {
        "privacy_unit": "user-level" if certificate.of_persons else "record-level",
        "privacy_unit_description": (_UNIT_OF_PERSONS if certificate.of_persons else _UNIT)[certificate.relation],
        "privacy_parameters": parameters,
        "privacy_parameters_description": " ".join([f"Accountant: {certificate.accountant}.", *stop, *views]),
    }
