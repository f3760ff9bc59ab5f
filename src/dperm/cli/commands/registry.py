"""A model's entry in the public registry of deployments."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from dperm.cli.files import reserved
from dperm.cli.printing import say
from dperm.jobs.files import certificate_at, refuse_same
from dperm.jobs.options import VerifyKey


@dataclass(frozen=True, kw_only=True)
class RegistryOptions:
    model: Annotated[Path, typer.Argument(help="A model or certificate file.")]
    name: Annotated[str, "What the deployment is called."]
    curator: Annotated[list[str], "Who holds the data; several times for several."]
    intended_use: Annotated[str, "What the model is for."]
    region: Annotated[str, "Where it is used."]
    description: Annotated[str, "One sentence on the model."] = ""
    sector: Annotated[str, "Sector, such as Health."] = ""
    publication_date: Annotated[str | None, "YYYY-MM-DD; by default the certificate's date."] = None
    sources: Annotated[str, "Where one can read more."] = ""
    author: Annotated[list[str] | None, "Who wrote the entry; by default the curators."] = None
    justification: Annotated[str, "Why these parameters; by default the certificate's assumptions."] = ""
    preparation: Annotated[str, "How data were prepared and settings chosen."] = ""
    output: Annotated[Path, "File to write."] = Path("deployment.yaml")
    verify_key: VerifyKey = None


def registry(asked: RegistryOptions) -> None:
    """Write an entry for the public registry of deployments: JSON, which its YAML readers read.

    \b
    Examples:
      dperm registry model.json --name "Income model" --curator "Statistics Office" --intended-use research --region Europe
    """
    from dperm.report.deployment_registry import Deployment, registry_entry

    refuse_same(asked.model, asked.output)
    entry = reserved(asked.output)
    certificate = certificate_at(asked.model, asked.verify_key)
    if certificate is None:
        raise ValueError(f"Expected {asked.model} to hold a model or a certificate.")
    names = ("name", "intended_use", "region", "description", "sector", "publication_date")
    names += ("sources", "justification", "preparation")
    stated = {name: getattr(asked, name) for name in names}
    deployment = Deployment(curators=tuple(asked.curator), authors=tuple(asked.author or ()), **stated)
    entry.write(registry_entry(certificate, deployment))
    say(f"Entry written to {asked.output}. Read it before you publish it: it holds every public fact of the certificate.")
