"""What an audit attacks: a training with an event, run as often as wanted on data of the auditor's choice."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import scipy.sparse as sp
from array_api_compat import is_torch_array

from dperm._types import Array
from dperm.audit.linear import (
    likelihood_ratio_of,
    minimisations_of,
    trained_at_once,
)
from dperm.audit.outputs import Progress, one_at_a_time, unlogged
from dperm.audit.pairs import Data, Pair, admits, extreme_pairs, game_pairs, records_for, worst_pairs
from dperm.audit.recording import Recording
from dperm.gradient import Policy, descend
from dperm.gradient.policy import BatchSource
from dperm.mechanisms import (
    Mechanism,
    Stage,
)
from dperm.objectives import LinearObjective
from dperm.objectives.grouped import flattened
from dperm.privacy import Certificate, Event, Provenance, Relation
from dperm.release import Channel, Noise, Source
from dperm.release.draws import Draw

_FACTS = "the certificate's public facts"


@dataclass(frozen=True)
class Training:
    """A private training as an auditor sees it.

    `run(data, source)` trains on (rows, targets) with all noise and draws from `source` and returns everything that leaves:
    arrays, numbers, or nested dicts and sequences of them. `certificate` is what is claimed. `many(data, m)`, where there
    is one, makes m outputs at once. `minimisations(data, recording)` names the minimisers behind a recording, for the
    checks that only those allow. `leaves` says in words what of a training `run` returns, and replay so compares; nothing where
    that is everything.
    """

    name: str
    certificate: Certificate
    run: Callable[[Data, Source], Any]
    many: Callable[[Data, int, Progress | None], Array] | None = None
    minimisations: Callable[[Data, Recording], list[Stage]] | None = None
    replay_pairs: Sequence[Pair] = field(default=(), repr=False)
    candidate_pairs: Sequence[Pair] = field(default=(), repr=False)
    likelihood_ratio: Callable[[Pair], Callable[[Array], Array] | None] | None = None
    leaves: Sequence[str] = ()

    @property
    def event(self) -> Event:
        return self.certificate.event

    @property
    def relation(self) -> Relation:
        return self.certificate.relation

    def outputs(self, data: Data, trials: int, progress: Progress | None = None) -> Array:
        """Outputs (trials, k) of independent runs with fresh noise; their charges go to a log that is thrown away.

        `progress(done, trials)` is called now and then.
        """
        if self.many is None:
            return one_at_a_time(lambda records: self.run(records, _OwnNoise()), progress)(data, trials)
        with unlogged():
            return self.many(data, trials, progress)

    @classmethod
    def of_mechanism(cls, mechanism: Mechanism, objective: LinearObjective) -> Training:
        """A mechanism on a linear objective, with worst-case neighbours for both."""
        classes, records = mechanism.target_classes, records_for(mechanism, objective)
        demanded = not admits(mechanism, objective, records - 1)
        certificate = mechanism.certificate(objective.facts, Provenance.audit())

        def train(data: Data, source: Source) -> tuple[Array, dict[str, Any]]:
            # `Mechanism.release` without its certificate, which is the same every time
            channel = Channel.open(source)
            records = mechanism.admit(objective, objective.records(*data))
            channel.charge(certificate.event, mechanism.name)
            return mechanism.train(objective, records, channel)

        return cls(
            name=f"{mechanism.name}, {objective.loss.name} loss, {objective.relation.value}"
            + (f", persons of up to {objective.unit.max_rows} rows" if objective.unit.max_rows else ""),
            certificate=certificate,
            run=train,
            many=trained_at_once(train, objective, curved=mechanism.curved) if mechanism.vectorises(objective) else None,
            minimisations=lambda data, recording: minimisations_of(mechanism, objective, data, recording),
            replay_pairs=[*extreme_pairs(objective, records, classes), *worst_pairs(mechanism, objective, records)],
            candidate_pairs=[
                pair
                for pair in game_pairs(objective, classes, records if demanded else None)
                if admits(mechanism, objective, len(pair.first[1]), len(pair.second[1]))
            ],
            likelihood_ratio=lambda pair: likelihood_ratio_of(mechanism, objective, pair),
            leaves=("theta", "trace"),
        )

    @classmethod
    def of_plan(
        cls,
        plan: Policy,
        objective: Any,
        make_records: Callable[[Data], BatchSource],
        *,
        delta: float,
        pairs: Sequence[Pair] = (),
    ) -> Training:
        """A plan on any objective, a network's `ModuleObjective` for example, from its parameters as they are now.

        `make_records(data)` gives what the descent loop reads: `TorchRecords`.
        """
        relation = objective.facts.relation
        event = plan.event(relation)
        theta = getattr(objective, "theta", None)
        start = np.zeros(objective.facts.dimension) if theta is None else theta.detach().clone()

        def run(data: Data, source: Source) -> Any:
            channel = open_for(start, source)
            channel.charge(event, "audit")
            final = descend(plan, objective, make_records(data), channel, start + 0.0) + 0.0
            if theta is not None:
                theta.copy_(start)  # the caller's model stays as it was
            return final

        return cls(
            name=f"gradient perturbation, {relation.value}",
            certificate=Certificate.issue(
                mechanism="gradient perturbation",
                event=event,
                delta=delta,
                public_facts=plan.describe(),
                provenance=Provenance.audit(),
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
            trainer.fit(records)
            weights = {name: tensor.detach() for name, tensor in trainer.model.state_dict().items()}
            facts = dict(trainer.certificate.public_facts)
            return {"weights": weights, "history": trainer.history, "trace": trainer.trace, "facts": facts}

        with unlogged():
            certificate = make(_OwnNoise()).fit(data).certificate
        leaves = "weights", "history", "trace", _FACTS
        return cls("PrivateTrainer", certificate, run, replay_pairs=pairs, candidate_pairs=pairs, leaves=leaves)

    @classmethod
    def of_estimator(cls, estimator: Any, data: Data, pairs: Sequence[Pair] = ()) -> Training:
        """An estimator of `dperm.estimators`, or its `DPByPart`, trained through its front door with its own settings.

        `data` is fitted once, for the certificate.
        """
        from sklearn.base import clone

        by_part = hasattr(estimator, "fit_by")  # DPByPart: what trains is its estimator
        trains = estimator.estimator if by_part else estimator
        if "random_state" not in trains.get_params() or not hasattr(trains, "epsilon"):
            raise TypeError(
                f"Expected an estimator of dperm.estimators, got {type(estimator).__name__}: for others there is distinguish."
            )

        def fitted(records: Data, source: Source) -> Any:
            model = clone(estimator).set_params(**{"estimator__random_state" if by_part else "random_state": source})
            return model.fit(*records) if np.ndim(records[0]) < 3 else model.fit(*flattened(*records, None))

        def run(records: Data, source: Source) -> Any:
            model = fitted(records, source)
            facts = dict(model.certificate_.public_facts)
            if hasattr(model, "module_"):
                weights = {name: tensor.detach() for name, tensor in model.module_.state_dict().items()}
                return {"weights": weights, "history": model.history_, "trace": dict(model.trace_), "facts": facts}
            if by_part:
                models = list(model.models_.values())
                coef, intercept = (np.stack([getattr(each, name) for each in models]) for name in ("coef_", "intercept_"))
                return {"coef": coef, "intercept": intercept, "trace": [dict(each.trace_) for each in models], "facts": facts}
            return {"coef": model.coef_, "intercept": model.intercept_, "trace": dict(model.trace_), "facts": facts}

        with unlogged():
            model = fitted(data, _OwnNoise())
        certificate = model.certificate_
        named: Callable[[Data, Recording], list[Stage]] | None = None
        if hasattr(model, "mechanism_for"):
            labels = getattr(model, "classes_", None)
            size = len(data[1]) if certificate.relation is Relation.REPLACE_ONE else None
            shape = model.n_features_in_, 0 if labels is None else len(labels), size
            one = model.estimator if by_part else model  # which knows how targets that are numbers are centred and scaled
            task = one.task(*shape)
            mechanism, objective = model.mechanism_for(*shape)

            def minimisations(records: Data, recording: Recording) -> list[Stage]:
                rows, targets = records
                targets = one._learnt_targets(targets, labels, task)
                if not sp.issparse(rows):
                    rows = np.asarray(rows, dtype=np.float64)
                return minimisations_of(mechanism, objective, (rows, targets), recording)

            named = minimisations
        weights = ("module_", "history_") if hasattr(model, "module_") else ("coef_", "intercept_")
        return cls(
            type(estimator).__name__,
            certificate,
            run,
            minimisations=named,
            replay_pairs=pairs,
            candidate_pairs=pairs,
            leaves=(*weights, "trace_", _FACTS),
        )


def open_for(theta: Any, source: Source, shards: Any = None, more: int = 0) -> Channel:
    """A channel for vectors like θ; with `shards`, this rank's numbers and `more` that all ranks add up."""
    if is_torch_array(theta):
        from dperm.torch.ranks import Lengthened
        from dperm.torch.ranks.tensor_noise import open_channel

        return open_channel(source, theta.device, shards=shards and Lengthened(shards, more))
    return Channel.open(source)


class _OwnNoise(Source):
    """Stands for "the run's own source", with the run marked as an audit's; it never draws itself."""

    def over(self, own: Source) -> Source:
        return own

    def noisy(self, query: Any, noise: Noise) -> Any:
        raise NotImplementedError(_STANDS_IN)

    def draw(self, draw: Draw, records: int, steps: int) -> Iterator[Any]:
        raise NotImplementedError(_STANDS_IN)


_STANDS_IN = "Open the channel with Channel.open(source), which puts the run's own source in the place of this one."
