"""Attacks on a saved model's mechanism, or on one named by its settings, from options to the file of results."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from dperm._files import Reserved, replace_own
from dperm.jobs.files import SavedModel, dataset_of, refuse_same, search_of
from dperm.jobs.models import KINDS
from dperm.jobs.options import SOURCE, JobOptions, VerifyKey

if TYPE_CHECKING:
    from dperm.audit import AttackPlan, AuditResult, Training
    from dperm.privacy import Certificate, Event


@dataclass(frozen=True, kw_only=True)
class AuditingOptions(JobOptions):
    """A saved model whose certificate is to be refuted, or settings of one, and how long that may take."""

    model: Annotated[Path | None, "A model written by `dperm train`; without one, the settings below."] = None
    members: Annotated[str | None, f"Records that the model was trained on, to try membership inference, too: {SOURCE}."] = None
    others: Annotated[str | None, "With --members: records of the same kind that it has not seen."] = None
    epsilon: Annotated[float | None, "Privacy budget ε [default: 1]."] = None
    delta: Annotated[float | None, "The δ of the guarantee [default: 1e-5]."] = None
    kind: Annotated[str | None, "logistic, svm or ridge [default: logistic]."] = None
    mechanism: Annotated[str | None, "A method: auto, objective, output, gradient … [default: auto]."] = None
    relation: Annotated[str | None, "add_or_remove_one or replace_one [default: add_or_remove_one]."] = None
    features: Annotated[int | None, "Number of features [default: 5]."] = None
    classes: Annotated[int | None, "Number of classes [default: 2]."] = None
    public_size: Annotated[int | None, "Publicly known number of records, if it is public."] = None
    trials: Annotated[int | None, "Trainings in each world [default: what fits into --minutes]."] = None
    minutes: Annotated[float, "About how long it may take; a network takes what it says first."] = 3.0
    output: Annotated[Path, "Results to write, as JSON."] = Path("audit.json")
    verify_key: VerifyKey = None


def audit(asked: AuditingOptions) -> list[AuditResult]:
    """Try to refute a certificate; returns what each attack found, and writes it. Costs no privacy: all but `members` is trained
    on made-up records. ValueError for what cannot be attacked."""
    with prepared_audit(asked) as job:
        return job.run()


@dataclass(frozen=True)
class Audit:
    """What is attacked: a `training`, or None for a network, which is then the `model`. A saved model comes with its certificate,
    with what `search` for its schema cost, and with what was `inferred` of its members."""

    training: Training | None
    model: Any = None
    certificate: Certificate | None = None
    search: Event | None = None
    inferred: list[AuditResult] = field(default_factory=list["AuditResult"])
    trials: int | None = None
    seconds: float = 180.0
    file: Reserved | None = None

    @property
    def name(self) -> str:
        return "gradient perturbation of a network" if self.training is None else self.training.name

    @cached_property
    def _plan(self) -> AttackPlan | None:
        from dperm.audit import planned_attack

        return None if self.training is None else planned_attack(self.training, self.trials, self.seconds)

    @property
    def expected(self) -> str:
        """What will be run, and about how long it takes on this machine, in a sentence."""
        from dperm.audit.network import RECORDS, expected_seconds

        if self._plan is not None:
            return str(self._plan)
        long = expected_seconds(self.model)
        return f"Expected to take about {long:.0f} seconds: networks like it are trained on {RECORDS} made-up records."

    def run(self, progress: Callable[[str, int, int], None] | None = None) -> list[AuditResult]:
        """Attack, and write what is found."""
        from dperm.audit import attack, results_to_json
        from dperm.audit.network import attack_network

        if self.training is None:
            results = attack_network(self.model, progress)
        else:
            results = attack(self.training, trials=self._plan, progress=progress)
        if self.certificate is not None:  # what was attacked is a part of it, or its settings with fewer records: so is it
            results = [replace(result, claimed_epsilon=self.certificate.epsilon) for result in results]
        results += self.inferred
        if self.file is not None:
            self.file.write(results_to_json(results))
        return results


@contextmanager
def prepared_audit(asked: AuditingOptions) -> Iterator[Audit]:
    """Read the model, infer its members, and reserve the file of an audit, which is then to be `run`."""
    from dperm import _validate as check

    if (asked.members is None) != (asked.others is None):
        raise ValueError("Expected --members and --others together: members are told from others.")
    if asked.members is not None and asked.model is None:
        raise ValueError("Expected a model whose members are inferred.")
    for source in (asked.model, asked.members, asked.others, asked.verify_key):
        refuse_same(source, asked.output)
    target = _named(asked) if asked.model is None else _saved(asked, asked.model)
    with replace_own(asked.output, private=asked.members is not None) as file:
        if asked.trials is not None:
            check.integer("--trials", asked.trials, minimum=20)
        yield replace(target, trials=asked.trials, seconds=60 * check.positive("--minutes", asked.minutes), file=file)


def _named(asked: AuditingOptions) -> Audit:
    """The target that the options describe, without a saved model."""
    from dperm import _validate as check

    names = ("epsilon", "delta", "relation", "mechanism", "public_size")
    settings = {name: value for name in names if (value := getattr(asked, name)) is not None}
    count = 0 if asked.kind == "ridge" else check.integer("--classes", 2 if asked.classes is None else asked.classes, minimum=2)
    width = check.integer("--features", 5 if asked.features is None else asked.features)
    kind = KINDS[check.choice("--model", asked.kind or "logistic", ("logistic", "svm", "ridge"))]
    return Audit(training_of(kind.make(**settings), width, count, None))


def _saved(asked: AuditingOptions, path: Path) -> Audit:
    """The target of a saved model. ValueError for options that state its settings again, and for a certificate of another
    training."""
    from dperm.audit import membership
    from dperm.audit.network import event_of_network

    names = ("epsilon", "delta", "relation", "mechanism", "public_size", "kind", "features", "classes")
    given = [name.replace("kind", "model").replace("_", "-") for name in names if getattr(asked, name) is not None]
    if given:
        raise ValueError(f"Expected no {', '.join('--' + name for name in given)} with a model: its own settings are audited.")
    saved = SavedModel.at(path, asked.verify_key)
    fitted = saved.fitted
    certificate: Certificate = fitted.certificate_
    inferred: list[AuditResult] = []
    if asked.members is not None and asked.others is not None:
        claim = certificate if certificate.epsilon is not None else None
        inside, outside = (_records(saved, source) for source in (asked.members, asked.others))
        inferred.append(membership(fitted, inside, outside, claim=claim))
    search = search_of(saved.extra)
    if hasattr(fitted, "mechanism_for"):
        training = training_of(fitted, fitted.n_features_in_, len(getattr(fitted, "classes_", ())), certificate, search)
        return Audit(training, fitted, certificate, search, inferred)
    if asked.trials is not None:
        raise ValueError("Expected no --trials with a network: its training is watched from within.")
    _same(certificate, event_of_network(fitted), search)
    return Audit(None, fitted, certificate, search, inferred)


def training_of(
    estimator: Any, features: int, classes: int, certificate: Certificate | None, found: Event | None = None
) -> Training:
    """The training that the settings name; that of a model must cost what its certificate states, and what was `found` first."""
    from dperm.audit import Training

    facts = {} if certificate is None else certificate.public_facts
    if found is not None:  # of two parts, the training is the last
        facts = list(facts.values())[-1] if facts else None
        if not isinstance(facts, dict):
            raise ValueError("The certificate leaves out what finding the model's schema cost: train by `dperm train`.")
    size = facts.get("public_size")
    if certificate is None and estimator.relation == "replace_one" and estimator.public_size is None:
        raise ValueError("Expected --public-size under replace_one, where the number of records is public.")
    if (sizes := facts.get("sizes_of_parts")) is not None:  # one of the models by part, which the certificate is of together
        estimator, size = _of_all_parts(estimator, sizes, facts.get("columns_of_parts")), None
    training = Training.of_mechanism(*estimator.mechanism_for(features, classes, size))
    if certificate is not None:
        _same(certificate, training.event, found)
    return training


def _of_all_parts(estimator: Any, sizes: Any, columns: Any) -> Any:
    """What trains the models of all parts, of which this is one, as the certificate's public facts name them."""
    from sklearn.base import clone

    from dperm.estimators import DPByPart

    if not (isinstance(sizes, list) and isinstance(columns, list) and len(sizes) == len(columns)):
        raise ValueError("The certificate leaves out which parts there are, and how many records they have.")
    known = None if None in sizes else dict(enumerate(sizes))
    return DPByPart(clone(estimator).set_params(public_size=None), dict(enumerate(columns)), public_sizes=known)


def _same(certificate: Certificate, event: Event, found: Event | None) -> None:
    """ValueError where the certificate states another event than the training's, and what was `found` before."""
    from dperm.privacy import Composed

    certificate.verify()
    if (event if found is None else Composed((found, event))) != certificate.event:
        raise ValueError(
            "The certificate states another event than a training with the model's settings costs in this version: "
            f"{certificate.event} against {event}. Audit it with dperm {certificate.versions.get('dperm', '?')}."
        )


def _records(saved: SavedModel, source: str) -> tuple[Any, Any]:
    """Rows and targets of a table as the model was trained on them."""
    how = saved.as_read if saved.schema is None else {}
    dataset, _ = dataset_of(source, None, saved.schema, **how)
    dataset.refuse_persons("membership inference")
    span = saved.target_range
    return dataset.features, dataset.targets if span is None else span.scaled(dataset.targets)
