"""The card of a saved model or certificate, from options to the page for whoever signs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from dperm._files import replace_own
from dperm.jobs.files import certificate_at, json_table, read, refuse_same, sha256_of
from dperm.jobs.models import KINDS
from dperm.jobs.options import JobOptions, VerifyKey

if TYPE_CHECKING:
    from dperm.data import Schema
    from dperm.report.card import Card
    from dperm.report.model_scores import ModelScores


@dataclass(frozen=True, kw_only=True)
class CardOptions(JobOptions):
    """A model or certificate, and what is to be said beside it."""

    model: Annotated[Path, "A model or certificate file."]
    audit_file: Annotated[Path | None, "What `dperm audit` found, to show beside it."] = None
    scores: Annotated[
        Path | None, "Released scores of this model, as `dperm evaluate --test-data released` writes them: how good it is."
    ] = None
    title: Annotated[str, "The card's title [default: what it predicts, and of which data set]."] = ""
    data_set: Annotated[str, "What the data are, and whose [default: as the model's schema says]."] = ""
    purpose: Annotated[str, "What the model is for [default: a line to write on]."] = ""
    budget: Annotated[float | None, "The ε that may be spent on this data set: how much of it is left."] = None
    output: Annotated[Path, "Page to write."] = Path("card.html")
    verify_key: VerifyKey = None


def card(asked: CardOptions) -> Card:
    """Write the page, with what the spend log of this machine says was spent; returns what stands on it. ValueError for an audit
    of another claim, and for a budget of which it is not known what was spent."""
    from dperm._validate import positive
    from dperm.audit import results_from_json
    from dperm.data import Schema
    from dperm.release import SpendLog
    from dperm.report.card import Card, ModelFile, Release, Spent, card_page

    refuse_same(asked.model, asked.audit_file, asked.scores, asked.output)
    with replace_own(asked.output) as page:
        certificate = certificate_at(asked.model, asked.verify_key)
        if certificate is None:
            raise ValueError(f"Expected {asked.model} to hold a model or a certificate.")
        attacks = [] if asked.audit_file is None else results_from_json(read(asked.audit_file))
        claim = certificate.epsilon, certificate.delta
        if any(item.claimed_epsilon is not None and (item.claimed_epsilon, item.delta) != claim for item in attacks):
            raise ValueError(f"{asked.audit_file} is about another claim than {asked.model}.")
        if asked.budget is not None:
            positive("--budget", asked.budget)
        saved, sha256 = json_table(asked.model), sha256_of(read(asked.model))
        extra, settings = saved.get("extra"), saved.get("settings")
        given = extra.get("schema") if isinstance(extra, dict) else None
        schema = Schema.from_dict(given) if isinstance(given, dict) else None
        label = settings.get("label", "") if isinstance(settings, dict) else ""
        spent = Spent.of(SpendLog.current(), label, certificate, asked.budget) if label else None
        if asked.budget is not None and spent is None:
            raise ValueError(
                "Expected a model whose charge is in the spend log (DPERM_SPEND_LOG) with --budget: what is spent is not known."
            )
        signed = "" if asked.verify_key is None else asked.verify_key.name
        found = Card.of(
            certificate,
            asked.title.strip() or _usual_title(asked.model, schema),
            schema,
            data_set=asked.data_set,
            purpose=asked.purpose,
            spent=spent,
            kind=_kind(saved.get("kind")),
            scores=None if asked.scores is None else _scores(asked.scores, sha256, asked.model),
            file=ModelFile(asked.model.name, sha256, signed, unverified=not signed and "signature" in saved),
            audits=attacks,
            releases=Release.all_of(extra.get("releases")) if isinstance(extra, dict) else (),
        )
        page.write(card_page(found))
    return found


def _usual_title(model: Path, schema: Schema | None) -> str:
    """A title where nobody states one."""
    return model.stem if schema is None else f"{schema.target}, predicted from {schema.title or schema.name}"


def _kind(estimator: Any) -> str:
    """What sort of model a file holds, in words; "" for a certificate."""
    if not isinstance(estimator, str):
        return ""
    words = next((kind.title for kind in KINDS.values() if kind.estimator_name == estimator), estimator)
    return words[:1].upper() + words[1:]


def _scores(file: Path, sha256: str, model: Path) -> ModelScores:
    """Released scores of the model with this SHA-256. ValueError for scores of another, and for what is no file of such."""
    from dperm.report.model_scores import SHARES, ModelScores

    found = ModelScores.from_json(read(file))
    if found.model_sha256 != sha256:
        raise ValueError(
            f"Expected scores of the model {model}, got those of another in {file}: evaluate this one by `dperm evaluate {model} "
            "… --test-data released`."
        )
    shares = [value for name, value in found.scores.items() if name in SHARES or name.startswith("recall of ")]
    invented = found.records < 0 or not found.certificate.mechanism.startswith("scores of a model")
    if invented or any(value is not None and not 0 <= value <= 1 for value in shares):
        raise ValueError(f"Expected scores as `dperm evaluate --test-data released` writes them, got others in {file}.")
    return found
