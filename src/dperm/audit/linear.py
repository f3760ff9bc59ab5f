"""What an audit knows about mechanisms on linear models: how to run many at once, what they minimise, their likelihoods."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dperm.audit.outputs import Progress
from dperm.audit.pairs import Data, Pair
from dperm.audit.trials import Trials
from dperm.mechanisms import (
    GradientPerturbation,
    Mechanism,
    NoisySize,
    ObjectivePerturbation,
    OneVsRest,
    OutputPerturbation,
)
from dperm.objectives import LinearObjective
from dperm.privacy import Recording, Source

__all__ = ["Minimisation", "classes_of", "likelihood_ratio_of", "minimisations_of", "trained_at_once", "vectorises"]

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


def classes_of(mechanism: Mechanism) -> int:
    """Number of classes where targets are class numbers though the loss is binary."""
    return mechanism.classes if isinstance(mechanism, (OneVsRest, NoisySize)) else 0


def vectorises(mechanism: Mechanism, objective: LinearObjective) -> bool:
    if isinstance(mechanism, OneVsRest):
        return vectorises(mechanism.mechanism, objective)
    if isinstance(mechanism, GradientPerturbation):
        return mechanism.plan.vectorises
    if isinstance(mechanism, ObjectivePerturbation):
        return objective.radius is None
    return isinstance(mechanism, OutputPerturbation)


def trained_at_once(
    train: Callable[[Data, Source], tuple[Array, Any]], objective: LinearObjective, *, curved: bool
) -> Callable[[Data, int, Progress | None], Array]:
    """`curved`: whether the mechanism looks at Hessians, p × p for each training."""

    def outputs(data: Data, trials: int, progress: Progress | None = None) -> Array:
        widest = max(len(data[1]) * objective.outputs, objective.dimension**2 if curved else objective.dimension, 1)
        at_once = max(1, min(trials, _AT_ONCE // widest))
        parts: list[Array] = []
        for start in range(0, trials, at_once):
            parts.append(train(data, Trials(min(at_once, trials - start)))[0])
            if progress is not None:
                progress(min(start + at_once, trials), trials)
        return np.concatenate(parts).reshape(trials, -1)

    return outputs


def minimisations_of(mechanism: Mechanism, objective: LinearObjective, data: Data, recording: Recording) -> list[Minimisation]:
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


def likelihood_ratio_of(mechanism: Mechanism, objective: LinearObjective, pair: Pair) -> Callable[[Array], Array] | None:
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
