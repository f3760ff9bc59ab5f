"""What an audit attacks: a training with an event, run as often as wanted on data of the auditor's choice."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from array_api_compat import is_array_api_obj, is_torch_array, to_device
from numpy.typing import NDArray

from dperm.audit.pairs import Data, Pair, extreme_pairs, game_pairs
from dperm.audit.trials import Trials
from dperm.gradient import AdaptiveClip, Plan, descend
from dperm.gradient.loop import BatchSource
from dperm.mechanisms import (
    GradientPerturbation,
    Mechanism,
    NoisySize,
    ObjectivePerturbation,
    OneVsRest,
    OutputPerturbation,
)
from dperm.objectives import LinearObjective
from dperm.privacy import Certificate, Channel, Event, Recording, Relation, Source, SpendLog, spend_log

__all__ = ["Minimisation", "Training", "leaving", "one_at_a_time"]

Array = NDArray[np.float64]

_AT_ONCE = 1 << 17  # numbers in the largest array of trainings run at once: it is to stay in cache


@dataclass(frozen=True)
class Minimisation:
    """One minimiser that a mechanism computed in a recorded run: what it minimised, from which release on."""

    mechanism: ObjectivePerturbation | OutputPerturbation
    objective: LinearObjective
    records: Any
    first_release: int

    @property
    def solved(self) -> int | None:
        """The release of the minimiser of a perturbed objective, after that of its linear term; None for output perturbation."""
        return self.first_release + 1 if isinstance(self.mechanism, ObjectivePerturbation) else None


@dataclass(frozen=True)
class Training:
    """A private training as an auditor sees it.

    `run(data, source)` trains on (rows, targets) with all noise and draws from `source` and returns everything that leaves:
    arrays, numbers, or nested dicts and sequences of them. `certificate` is what is claimed. `many(data, m)`, where there
    is one, makes m outputs at once. `minimisations(data, recording)` names the minimisers behind a recording, for the
    checks that only those allow.
    """

    name: str
    certificate: Certificate
    run: Callable[[Data, Source], Any]
    many: Callable[[Data, int], Array] | None = None
    minimisations: Callable[[Data, Recording], list[Minimisation]] | None = None
    replay_pairs: Sequence[Pair] = field(default=(), repr=False)
    candidate_pairs: Sequence[Pair] = field(default=(), repr=False)
    likelihood_ratio: Callable[[Pair], Callable[[Array], Array] | None] | None = None

    @property
    def event(self) -> Event:
        return self.certificate.event

    @property
    def relation(self) -> Relation:
        return self.certificate.relation

    def outputs(self, data: Data, trials: int) -> Array:
        """Outputs (trials, k) of independent runs with fresh noise; their charges go to a log that is thrown away."""
        with unlogged():
            if self.many is not None:
                return self.many(data, trials)
            return np.stack([flat(leaving(self.run(data, _OwnNoise()))) for _ in range(trials)])

    @classmethod
    def of_mechanism(cls, mechanism: Mechanism, objective: LinearObjective) -> Training:
        """A mechanism on a linear objective, with worst-case neighbours for both."""
        classes = _classes(mechanism)
        certificate = mechanism.certificate(objective.facts, policy="an audit's: NOT PRIVATE", private=False)

        def train(data: Data, source: Source) -> tuple[Array, dict[str, Any]]:
            # `Mechanism.release` without its certificate, which is the same every time
            channel = Channel.open(source)
            records = mechanism.admit(objective, objective.records(*data))
            channel.charge(certificate.event, mechanism.name)
            return mechanism.train(objective, records, channel)

        return cls(
            name=f"{mechanism.name}, {objective.loss.name} loss, {objective.relation.value}",
            certificate=certificate,
            run=train,
            many=_many(train, objective, curved=not isinstance(mechanism, GradientPerturbation))
            if _vectorises(mechanism, objective)
            else None,
            minimisations=lambda data, recording: _minimisations(mechanism, objective, data, recording),
            replay_pairs=extreme_pairs(objective, classes=classes),
            candidate_pairs=game_pairs(objective, classes=classes),
            likelihood_ratio=lambda pair: _likelihood_ratio(mechanism, objective, pair),
        )

    @classmethod
    def of_plan(
        cls, plan: Plan, objective: Any, make_records: Callable[[Data], BatchSource], *, delta: float, pairs: Sequence[Pair] = ()
    ) -> Training:
        """A plan on any objective, a network's `ModuleObjective` for example, from its parameters as they are now.

        `make_records(data)` gives what the descent loop reads: `TorchRecords`.
        """
        _refuse_dropout(getattr(objective, "model", None))
        relation = objective.facts.relation
        event = plan.event(relation)
        theta = getattr(objective, "theta", None)
        start = np.zeros(objective.facts.dimension) if theta is None else theta.detach().clone()

        def run(data: Data, source: Source) -> Any:
            channel = open_for(start, source)
            channel.charge(event, "audit")
            final = descend(plan, objective, make_records(data), channel, start + 0.0)
            return final + 0.0

        return cls(
            name=f"gradient perturbation, {relation.value}",
            certificate=Certificate.issue(
                mechanism="gradient perturbation", event=event, delta=delta, public_facts=plan.describe(), private=False
            ),
            run=run,
            replay_pairs=pairs,
            candidate_pairs=pairs,
        )

    @classmethod
    def of_trainer(cls, make: Callable[[Source], Any], data: Data, pairs: Sequence[Pair] = ()) -> Training:
        """A `PrivateTrainer` through its front door: `make(random_state)` makes a new one, on a new model, for each run.

        `data` is fitted once, for the certificate. Initial weights must be the same in every run.
        """

        def run(records: Data, source: Source) -> Any:
            trainer = make(source)
            _refuse_dropout(trainer.model)
            trainer.fit(records)
            weights = {name: tensor.detach() for name, tensor in trainer.model.state_dict().items()}
            return {"weights": weights, "history": trainer.history, "facts": dict(trainer.certificate.public_facts)}

        with unlogged():
            certificate = make(_OwnNoise()).fit(data).certificate
        return cls("PrivateTrainer", certificate, run, replay_pairs=pairs, candidate_pairs=pairs)

    @classmethod
    def of_estimator(cls, estimator: Any, data: Data, pairs: Sequence[Pair] = ()) -> Training:
        """An estimator of `dperm.estimators`, trained through its front door with its own settings.

        `data` is fitted once, for the certificate.
        """
        from sklearn.base import clone

        def fitted(records: Data, source: Source) -> Any:
            model = clone(estimator).set_params(random_state=source)
            return model.fit(*records)

        def run(records: Data, source: Source) -> Any:
            model = fitted(records, source)
            facts = dict(model.certificate_.public_facts)
            if hasattr(model, "module_"):
                _refuse_dropout(model.module_, asleep=True)
                weights = {name: tensor.detach() for name, tensor in model.module_.state_dict().items()}
                return {"weights": weights, "history": model.history_, "facts": facts}
            return {"coef": model.coef_, "intercept": model.intercept_, "trace": dict(model.trace_), "facts": facts}

        with unlogged():
            model = fitted(data, _OwnNoise())
        certificate = model.certificate_
        named: Callable[[Data, Recording], list[Minimisation]] | None = None
        if hasattr(model, "mechanism_for"):
            labels = getattr(model, "classes_", None)
            size = len(data[1]) if certificate.relation is Relation.REPLACE_ONE else None
            mechanism, objective = model.mechanism_for(model.n_features_in_, 0 if labels is None else len(labels), size)

            def minimisations(records: Data, recording: Recording) -> list[Minimisation]:
                rows, targets = records
                if labels is not None:
                    index = np.searchsorted(labels, targets)
                    targets = 2.0 * index - 1 if len(labels) == 2 else index * 1.0
                return _minimisations(mechanism, objective, (np.asarray(rows, dtype=np.float64), targets), recording)

            named = minimisations
        return cls(type(estimator).__name__, certificate, run, minimisations=named, replay_pairs=pairs, candidate_pairs=pairs)


def _refuse_dropout(model: Any, *, asleep: bool = False) -> None:
    """ValueError for a network whose dropout is awake, or would be in training: its masks depend on the batch's shape, so
    that neighbours see others."""
    if model is None or not hasattr(model, "modules"):
        return
    from dperm.torch.verify import DROPOUTS

    if any(isinstance(module, DROPOUTS) and module.p and (asleep or module.training) for module in model.modules()):
        raise ValueError(
            "Dropout draws at random, and differently for neighbours: what it does cannot be told from what a record does. "
            "Audit the model with dropout off (p = 0, or those layers in eval mode)."
        )


def open_for(theta: Any, source: Source) -> Channel:
    if is_torch_array(theta):
        from dperm.torch.noise import open_channel

        return open_channel(source, theta.device)
    return Channel.open(source)


class _OwnNoise(Source):
    """Stands for "the run's own source", with the run marked as an audit's."""

    def over(self, own: Source) -> Source:
        return own

    def gaussian(self, query: Any, sensitivity: float, std: float) -> Any:
        raise NotImplementedError

    def pure(self, query: Any, sensitivity: float, epsilon: float) -> Any:
        raise NotImplementedError

    def poisson(self, records: int, rate: float, steps: int) -> Iterator[Any]:
        raise NotImplementedError


def one_at_a_time(train: Callable[[Any], Any], progress: Callable[[int, int], None] | None = None) -> Callable[[Any, int], Array]:
    """`train(data) -> output` of any library, as a function (data, m) → outputs (m, k) for `distinguish`."""

    def outputs(data: Any, trials: int) -> Array:
        found: list[Array] = []
        with unlogged():
            for done in range(trials):
                found.append(flat(leaving(train(data))))
                if progress is not None:
                    progress(done + 1, trials)
        return np.stack(found)

    return outputs


@contextmanager
def unlogged() -> Iterator[SpendLog]:
    """Charges of audits go to a spend log that is thrown away: nothing that they train is released."""
    with tempfile.TemporaryDirectory() as folder, spend_log(Path(folder) / "audit.jsonl") as log:
        yield log


def leaving(output: Any) -> list[Any]:
    """Everything in what a training gave, in a fixed order: arrays (float64), and texts and the keys of dicts as they are.

    TypeError for an object that it cannot look into: what cannot be compared cannot be audited.
    """
    if output is None or isinstance(output, str):
        return [output]
    if isinstance(output, dict):
        return [item for name in sorted(output, key=str) for item in (str(name), *leaving(output[name]))]
    if isinstance(output, (list, tuple)):
        return [item for part in output for item in leaving(part)]
    if isinstance(output, (bool, int, float, np.number, np.bool_)):
        return [np.atleast_1d(np.float64(output))]
    if sp.issparse(output):
        return [np.asarray(output.toarray(), dtype=np.float64)]
    if is_array_api_obj(output):
        plain = output if isinstance(output, np.ndarray) else np.asarray(to_device(output, "cpu"))
        return [np.asarray(plain, dtype=np.float64)] if plain.dtype.kind in "fiub" else [str(plain.tolist())]
    raise TypeError(f"Expected a training to return arrays, numbers, texts, or dicts and sequences of them, got {output!r}.")


def flat(items: list[Any]) -> Array:
    """All numbers among `leaving`'s items, one after the other."""
    arrays = [item for item in items if isinstance(item, np.ndarray)]
    if not arrays:
        raise TypeError("Expected a training to return numbers, got none.")
    return np.concatenate([array.ravel() for array in arrays])


# Linear mechanisms


def _classes(mechanism: Mechanism) -> int:
    """Number of classes where targets are class numbers though the loss is binary."""
    return mechanism.classes if isinstance(mechanism, (OneVsRest, NoisySize)) else 0


def _vectorises(mechanism: Mechanism, objective: LinearObjective) -> bool:
    if isinstance(mechanism, OneVsRest):
        return _vectorises(mechanism.mechanism, objective)
    if isinstance(mechanism, GradientPerturbation):
        return not isinstance(mechanism.plan.bounding, AdaptiveClip)
    if isinstance(mechanism, ObjectivePerturbation):
        return objective.radius is None
    return isinstance(mechanism, OutputPerturbation)


def _many(
    train: Callable[[Data, Source], tuple[Array, Any]], objective: LinearObjective, *, curved: bool
) -> Callable[[Data, int], Array]:
    """`curved`: whether the mechanism looks at Hessians, p × p for each training."""

    def outputs(data: Data, trials: int) -> Array:
        widest = max(len(data[1]) * objective.outputs, objective.dimension**2 if curved else objective.dimension, 1)
        at_once = max(1, min(trials, _AT_ONCE // widest))
        parts = [train(data, Trials(min(at_once, trials - start)))[0] for start in range(0, trials, at_once)]
        return np.concatenate(parts).reshape(trials, -1)

    return outputs


def _minimisations(mechanism: Mechanism, objective: LinearObjective, data: Data, recording: Recording) -> list[Minimisation]:
    """In the order of the releases; a noisy size is read from the recording."""
    records = mechanism.admit(objective, objective.records(*data))
    first = 0
    if isinstance(mechanism, NoisySize):
        size = max(1, round(float(recording.releases[0].released[0])))
        objective = replace(objective, public_size=size)
        mechanism, first = mechanism.made_for(objective.facts), 1
    if isinstance(mechanism, OneVsRest) and isinstance(mechanism.mechanism, (ObjectivePerturbation, OutputPerturbation)):
        step = 2 if isinstance(mechanism.mechanism, ObjectivePerturbation) else 1
        return [
            Minimisation(
                mechanism.mechanism,
                objective,
                records.relabelled(np.where(records.targets == number, 1.0, -1.0)),
                first + number * step,
            )
            for number in range(mechanism.classes)
        ]
    if isinstance(mechanism, (ObjectivePerturbation, OutputPerturbation)):
        return [Minimisation(mechanism, objective, records, first)]
    return []


def _likelihood_ratio(mechanism: Mechanism, objective: LinearObjective, pair: Pair) -> Callable[[Array], Array] | None:
    """ln of the density of the second world over the first's at outputs (m, p), where it is known.

    Objective perturbation without a ball: θ solves b = −∇J(θ), so its density is that of b times |det ∇²J(θ)| (the
    second, tiny noise is left out).
    """
    if not isinstance(mechanism, ObjectivePerturbation) or objective.radius is not None:
        return None
    regularised = objective.with_strong_convexity(mechanism.strong_convexity)
    sides = [mechanism.admit(objective, objective.records(*data)) for data in (pair.first, pair.second)]

    def log_density(theta: Array, records: Any) -> Array:
        _, gradient, hessian = regularised.evaluate(theta, records, hessian=True)
        gradient = gradient + mechanism.strong_convexity * theta
        eye = mechanism.strong_convexity * np.eye(theta.shape[1])
        return np.linalg.slogdet(np.asarray(hessian) + eye)[1] - (gradient**2).sum(axis=1) / (2 * mechanism.noise_std**2)

    return lambda outputs: log_density(outputs, sides[1]) - log_density(outputs, sides[0])
