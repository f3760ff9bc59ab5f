"""`dperm audit`: attack a model's mechanism, or one named by its settings."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dperm.cli.files import read, reserved, search_of
from dperm.cli.options import SOURCE, JsonFlag, VerifyKey
from dperm.cli.printing import progress, say, say_json, say_lines
from dperm.cli.tables import dataset_of

if TYPE_CHECKING:
    from dperm.audit import AuditResult, Training
    from dperm.privacy import Certificate, Event

_REFUTED = 3  # exit code
_STAGES = {
    "replay": "Replaying on worst-case neighbours",
    "pilot": "Looking for the easiest pair",
    "game": "Playing the game",
    "white box": "Watching canaries from within",
}


@dataclass(frozen=True, kw_only=True)
class AuditOptions:
    model: Annotated[Path | None, typer.Argument(help="A model written by `dperm train`; without one, the options below.")] = None
    members: Annotated[
        str | None, typer.Option(help=f"Records that the model was trained on, to try membership inference, too: {SOURCE}.")
    ] = None
    others: Annotated[str | None, typer.Option(help="With --members: records of the same kind that it has not seen.")] = None
    epsilon: Annotated[float | None, typer.Option(help="Privacy budget ε [default: 1].")] = None
    delta: Annotated[float | None, typer.Option(help="The δ of the guarantee [default: 1e-5].")] = None
    kind: Annotated[str | None, typer.Option("--model", help="logistic, svm or ridge [default: logistic].")] = None
    mechanism: Annotated[str | None, typer.Option(help="A method: auto, objective, output, gradient … [default: auto].")] = None
    relation: Annotated[str | None, typer.Option(help="add_or_remove_one or replace_one [default: add_or_remove_one].")] = None
    features: Annotated[int | None, typer.Option(help="Number of features [default: 5].")] = None
    classes: Annotated[int | None, typer.Option(help="Number of classes [default: 2].")] = None
    public_size: Annotated[int | None, typer.Option(help="Publicly known number of records, if it is public.")] = None
    trials: Annotated[int | None, typer.Option(help="Trainings in each world [default: what fits into --minutes].")] = None
    minutes: Annotated[float, typer.Option(help="About how long it may take; a network takes what it says first.")] = 3.0
    output: Annotated[Path, typer.Option("--output", "-o", help="Results to write, as JSON.")] = Path("audit.json")
    verify_key: VerifyKey = None
    as_json: JsonFlag = False


def audit(asked: AuditOptions) -> None:
    """Try to refute a certificate: replay the mechanism on worst-case neighbours, play distinguishing games, infer members.

    Costs no privacy: everything but --members is trained on made-up records. Exit code 3: refuted.

    \b
    Examples:
      dperm audit model.json
      dperm audit model.json --members train.csv --others test.csv
      dperm audit --mechanism gradient --epsilon 4 --features 20 --public-size 10000
    """
    from dataclasses import replace

    from dperm import _validate as check
    from dperm.audit import attack, overall, planned_attack, results_to_json

    if (asked.members is None) != (asked.others is None):
        raise ValueError("Expected --members and --others together: members are told from others.")
    if asked.members is not None and asked.model is None:
        raise ValueError("Expected a model whose members are inferred.")
    target = _named(asked) if asked.model is None else _saved(asked, asked.model)
    results_file = reserved(asked.output, private=asked.members is not None)
    if asked.trials is not None:
        check.integer("--trials", asked.trials, minimum=20)
    seconds = 60 * check.positive("--minutes", asked.minutes)
    with progress("Attacking", not asked.as_json) as step:
        say_step = None if step is None else lambda name, done, total: step(done, total, _STAGES[name])
        if target.training is None:
            results = _attacked_network(target, say_step, shown=not asked.as_json)
        else:
            plan = planned_attack(target.training, asked.trials, seconds)
            if not asked.as_json:
                say_lines(f"{plan}\n")
            results = attack(target.training, trials=plan, progress=say_step)
    if target.certificate is not None:  # what was attacked is a part of it, or its settings with fewer records: so is it
        results = [replace(result, claimed_epsilon=target.certificate.epsilon) for result in results]
    results += target.inferred
    results_file.write(results_to_json(results))
    if asked.as_json:
        say_json(results_to_json(results))
    else:
        _tell(target, results)
        say(f"Results written to {asked.output}.")
    if overall(results) == "refuted":
        raise typer.Exit(_REFUTED)


@dataclass(frozen=True)
class _Target:
    """The training that is attacked, or None for a network. A saved model comes with itself and its certificate."""

    training: Training | None
    model: Any = None
    certificate: Certificate | None = None
    search: Event | None = None
    inferred: list[AuditResult] = field(default_factory=list["AuditResult"])


def _named(asked: AuditOptions) -> _Target:
    """The target that the options describe, without a saved model."""
    from dperm import _validate as check

    names = ("epsilon", "delta", "relation", "mechanism", "public_size")
    settings = {name: value for name in names if (value := getattr(asked, name)) is not None}
    ridge = asked.kind == "ridge"
    count = 0 if ridge else check.integer("--classes", 2 if asked.classes is None else asked.classes, minimum=2)
    width = check.integer("--features", 5 if asked.features is None else asked.features)
    return _Target(_training(_estimator(asked.kind or "logistic", settings), width, count, None))


def _saved(asked: AuditOptions, path: Path) -> _Target:
    """The target of a saved model. ValueError for options that state its settings again."""
    names = ("epsilon", "delta", "relation", "mechanism", "public_size", "kind", "features", "classes")
    given = [name.replace("kind", "model").replace("_", "-") for name in names if getattr(asked, name) is not None]
    if given:
        raise ValueError(f"Expected no {', '.join('--' + name for name in given)} with a model: its own settings are audited.")
    fitted, extra, certificate = _loaded(path, asked.verify_key)
    inferred: list[AuditResult] = []
    if asked.members is not None and asked.others is not None:
        inferred.append(_membership(fitted, extra, certificate, asked.members, asked.others))
    network, search = not hasattr(fitted, "mechanism_for"), search_of(extra)
    if network and asked.trials is not None:
        raise ValueError("Expected no --trials with a network: its training is watched from within.")
    shape = fitted.n_features_in_, len(getattr(fitted, "classes_", ()))
    training = None if network else _training(fitted, *shape, certificate, search)
    return _Target(training, fitted, certificate, search, inferred)


def _tell(target: _Target, results: list[AuditResult]) -> None:
    from dperm.audit import learned, overall

    verdict, certificate = overall(results), target.certificate
    say_lines(f"{'gradient perturbation of a network' if target.training is None else target.training.name}\n")
    for result in results:
        say(f"{result.attack[:1].upper()}{result.attack[1:]}")
        for sentence in result.sentences():
            say(f"  {sentence}")
        say()
    claimed = certificate is not None and certificate.epsilon is None
    if certificate is not None and claimed:
        say(f"The model's certificate is only claimed: {certificate.claim}. What was attacked is its mechanism alone.")
    if verdict == "refuted":
        say("REFUTED: the certificate states less than this mechanism costs. Do not rely on it.")
    elif claimed:
        say("Not refuted, and not proven either: nothing here certifies this model.")
    elif any(result.unseen for result in results):
        say("Not refuted, within the limits named above. The proof is the theorem that the certificate names.")
    else:
        say("Not refuted. That is not a proof: the proof is the theorem that the certificate names.")
    say(learned(results))


def _estimator(kind: str, settings: dict[str, Any]) -> Any:
    from dperm._validate import choice
    from dperm.estimators import DPLinearSVC, DPLogisticRegression, DPRidge

    kinds = {"logistic": DPLogisticRegression, "svm": DPLinearSVC, "ridge": DPRidge}
    choice("--model", kind, kinds)
    return kinds[kind](**settings)


def _loaded(path: Path, verify_key: Path | None) -> tuple[Any, dict[str, Any], Certificate]:
    from dperm.estimators import model_from_json

    loaded: tuple[Any, dict[str, Any]] = model_from_json(read(path), verify_key=verify_key)  # of any kind
    fitted, extra = loaded
    return fitted, extra, fitted.certificate_


def _training(
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


def _attacked_network(target: _Target, step: Any, *, shown: bool) -> list[AuditResult]:
    """What `attack_network` finds, once the settings cost what the certificate states."""
    from dperm.audit.network import RECORDS, attack_network, event_of_network, expected_seconds

    assert target.certificate is not None
    _same(target.certificate, event_of_network(target.model), target.search)
    if shown:
        seconds = expected_seconds(target.model)
        say_lines(f"Expected to take about {seconds:.0f} seconds: networks like it are trained on {RECORDS} made-up records.\n")
    return attack_network(target.model, step)


def _same(certificate: Certificate, event: Event, found: Event | None) -> None:
    """ValueError where the certificate states another event than the training's, and what was `found` before."""
    from dperm.privacy import Composed

    certificate.verify()
    if (event if found is None else Composed((found, event))) != certificate.event:
        raise ValueError(
            "The certificate states another event than a training with the model's settings costs in this version: "
            f"{certificate.event} against {event}. Audit it with dperm {certificate.versions.get('dperm', '?')}."
        )


def _membership(fitted: Any, extra: dict[str, Any], certificate: Certificate, members: str, others: str) -> AuditResult:
    from dperm.audit import membership

    claim = certificate if certificate.epsilon is not None else None
    inside, outside = (_records(extra, source) for source in (members, others))
    return membership(fitted, inside, outside, claim=claim)


def _records(extra: dict[str, Any], source: str) -> tuple[Any, Any]:
    """Rows and targets of a table as the model was trained on them."""
    from dperm import data

    schema = extra.get("schema")
    if schema is None or (not Path(source).exists() and source in data.named()):
        dataset, _ = dataset_of(source, None, None)
    else:
        dataset, _ = data.read_dataset(source, None, data.Schema.from_dict(schema))
    dataset.refuse_persons("membership inference")
    targets = dataset.targets
    if extra.get("target_range"):
        targets = data.TargetRange(*extra["target_range"]).scaled(targets)
    return dataset.features, targets
