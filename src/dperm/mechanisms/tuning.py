"""Public rules for what privacy leaves open, from public facts and the budget alone: the regulariser, gradient methods' settings,
the margin of the logistic loss (docs/margin.md), and the penalty on roughness (docs/curves.md).

Privacy fixes the noise once the regulariser is chosen; the regulariser itself trades the noise's effect
against bias. Each rule below minimises (an estimate of) the excess risk, with one constant: the typical length
of a good parameter vector, TYPICAL_NORM ÷ data_norm. Derivation and measured regret: docs/tuning.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from dperm import _validate as check
from dperm.gradient import SGD, FullBatch, ImportancePlan, Plan, Update
from dperm.gradient.importance import LARGEST_RATE
from dperm.gradient.recipes import dp_sgd, dpis, full_batch_descent
from dperm.gradient.sampling import samplings
from dperm.mechanisms.base import Budget
from dperm.objectives import LinearObjective, Logistic, PublicFacts, Roughness, Task
from dperm.privacy import FilteredRdp
from dperm.privacy.accountants.gaussian import gaussian_mu

TYPICAL_NORM = 40.0
_PER_TARGET = 4.0  # of a regression's, in place of it, for each unit of the bound on targets
_OUTPUT_SIGNAL = 400  # of output perturbation: n over which curvature outweighs what a record may do
_MOMENTUM = 0.9
_AVERAGED = 0.5  # of the steps, the later ones: the problems are convex
_TRAVEL, _TRAVEL_POWER = 30, 1.4  # clipped gradients, and the power of S
_CLIP = 0.3  # of the bound on rows
_EPOCHS, _BATCH = 60.0, 512.0
_FEWEST_STEPS, _MOST_FULL_STEPS = 30, 1000  # of full batches
_OF_SQUARED_LOSS = (5, 100)  # likewise
_NORM_FLOOR = 0.01  # of importance sampling
_MOST_STEPS = 100_000  # of 60 epochs: a number of records released with much noise may come out a thousand times too large


def objective_strong_convexity(facts: PublicFacts, noise_at: Callable[[float], float], least: float) -> float:
    """Λ that minimises σ(Λ)²·d/Λ + Λ·T², T = TYPICAL_NORM/B (4Y/B of targets in ±Y): what bᵀθ can add to the risk against what
    Λ‖θ‖²/2 does. Of a regression at least β/4, so that what hides the solver's error stays small beside targets.

    `noise_at` maps Λ to the noise σ(Λ) that the budget then needs (inf where none suffices): it falls to the Gaussian
    mechanism's as Λ grows past B²/(2ε), so the rule leaves that region only where it pays. `least` starts the search.
    """
    typical = (TYPICAL_NORM if facts.target_bound is None else _PER_TARGET * facts.target_bound) / facts.data_norm
    floor = noise_at(1e6 * least)

    def risk(modulus: float) -> float:
        noise = noise_at(modulus)
        # Near the edge of what is feasible noise explodes: stay where it is at most half more than the floor.
        return noise**2 * facts.dimension / modulus + modulus * typical**2 if noise <= 1.5 * floor else math.inf

    # With constant noise the minimum is at floor·√d/T; ties to the curve on a grid of factor √2 around it.
    centre = max(least, floor * math.sqrt(facts.dimension) / typical)
    best, best_risk = centre, risk(centre)
    for direction in (math.sqrt(2), 1 / math.sqrt(2)):
        candidate = best * direction
        while (value := risk(candidate)) < best_risk or (best_risk == math.inf and direction > 1):
            best, best_risk = candidate, value
            candidate *= direction
    return best if facts.target_bound is None else max(best, facts.smoothness / 4)


def output_strong_convexity(facts: PublicFacts, noise_multiplier: float) -> float:
    """(σ²n/400)^⅓·B²: the risk added by noise of length σL/Λ in curvature ∝ n against Λ‖θ‖²/2."""
    if facts.public_size is None:
        raise ValueError("Output perturbation's rule for the regulariser needs public_size; state it or pass strong_convexity.")
    return facts.data_norm**2 * (noise_multiplier**2 * facts.public_size / _OUTPUT_SIGNAL) ** (1 / 3)


def signal_to_noise(facts: PublicFacts, epsilon: float, delta: float) -> float:
    """n·μ/√d: the length of a sum of n aligned unit gradients, in units of the noise a single release would need."""
    if facts.public_size is None:
        raise ValueError("A gradient plan needs public_size: rates and denominators are public constants.")
    return facts.public_size * gaussian_mu(epsilon, delta) / math.sqrt(facts.dimension)


@dataclass(frozen=True)
class GradientSettings:
    """What gradient perturbation runs with: every setting left open filled by a rule of the public facts.

    With S the signal-to-noise ratio of the whole budget, iterates may travel 30·S^1.4 clipped gradients: noise adds
    travel/S to them whatever the number of steps. Sampling spreads that over 60 epochs of batches of 512 (or n/4; more where
    there would be more than 100,000 steps), full batches over S steps (30 to 1,000; each costs a pass over the data). Squared
    loss: S/2 steps near 1/β.
    """

    public_size: int
    expected_batch_size: float
    epochs: float
    steps: int
    clipping_norm: float
    update: Update

    @classmethod
    def by_rule(
        cls,
        facts: PublicFacts,
        epsilon: float,
        delta: float,
        *,
        sampling: str = "poisson",
        expected_batch_size: float | None = None,
        epochs: float | None = None,
        clipping_norm: float | None = None,
        learning_rate: float | None = None,
        strong_convexity: float | None = None,
    ) -> GradientSettings:
        signal = signal_to_noise(facts, epsilon, delta)
        assert facts.public_size is not None
        sampler = samplings().get(sampling, FullBatch)
        size = sampler.drawn_from(facts.public_size, facts.unit)
        # importance sampling draws more often than b/n: smaller batches leave it room
        usual = max(_BATCH, (epochs or _EPOCHS) * size / _MOST_STEPS)
        batch = expected_batch_size or min(usual, size / (16 if sampling == "importance" else 4))
        if sampler.whole_batches and expected_batch_size is None:
            batch = max(1, round(batch))
        squared = facts.target_bound is not None
        if sampling == "full":
            low, high = _OF_SQUARED_LOSS if squared else (_FEWEST_STEPS, _MOST_FULL_STEPS)
            steps = max(1, round(epochs or min(max(signal / 2 if squared else signal, low), high)))
        else:
            steps = math.ceil((epochs or _EPOCHS) * size / batch)
        if facts.target_bound is not None:
            # the largest gradient at θ = 0, if not everywhere
            bound = clipping_norm or min(facts.data_norm * facts.target_bound, facts.lipschitz)
            step_size = 2.0 / facts.smoothness
        else:
            bound = clipping_norm or _CLIP * facts.data_norm
            travel = _TRAVEL * signal**_TRAVEL_POWER * (1 - _MOMENTUM)
            step_size = min(travel / steps, 8.0) / (facts.data_norm * bound)
        if strong_convexity:
            step_size = min(step_size, size / strong_convexity)  # the regulariser's own steps, Λ/n·θ, must not overshoot
        return cls(facts.public_size, batch, epochs or _EPOCHS, steps, bound, SGD(learning_rate or step_size, momentum=_MOMENTUM))


def gradient_plan(
    facts: PublicFacts, epsilon: float, delta: float, *, sampling: str = "poisson", **settings: Any
) -> Callable[[float], Plan]:
    """Noise multiplier → DP-SGD or, with `sampling` = "full", full-batch plan; settings left open by `GradientSettings`."""
    chosen = GradientSettings.by_rule(facts, epsilon, delta, sampling=sampling, **settings)
    common: dict[str, Any] = {
        "public_size": chosen.public_size,
        "clipping_norm": chosen.clipping_norm,
        "update": chosen.update,
        "average_from": _AVERAGED,
    }

    def make(noise_multiplier: float) -> Plan:
        if sampling == "full":
            return full_batch_descent(noise_multiplier=noise_multiplier, steps=chosen.steps, **common)
        return dp_sgd(
            noise_multiplier=noise_multiplier,
            expected_batch_size=chosen.expected_batch_size,
            epochs=chosen.epochs,
            sampling=sampling,
            max_rows_per_unit=facts.unit.max_rows,
            **common,
        )

    return make


def importance_plan(
    facts: PublicFacts, epsilon: float, delta: float, filter: FilteredRdp | None = None, **settings: Any
) -> ImportancePlan:
    """DPIS within (ε, δ), or within what is left of a `filter` that was charged before, with the settings that DP-SGD would have.

    k is as large as the norm floor lets it matter: a linear model's gradients cost no more than their norms, and its updates
    stay unbiased however fast norms grow.
    """
    chosen = GradientSettings.by_rule(facts, epsilon, delta, sampling="importance", **settings)
    return dpis(
        epsilon=epsilon,
        delta=delta,
        filter=filter,
        public_size=chosen.public_size,
        expected_batch_size=min(chosen.expected_batch_size, LARGEST_RATE * chosen.public_size),  # as DP-SGD's rate ends at 1
        epochs=chosen.epochs,  # refused where it is not whole
        clipping_norm=chosen.clipping_norm,
        norm_floor=_NORM_FLOOR,
        proposal_factor=1 / _NORM_FLOOR,
        update=chosen.update,
        average_from=_AVERAGED,
    )


# The rules in words, for reports: made of the numbers above, so that a page says what runs

OUTPUT_RULE = f"Λ = B²·(σ²n/{_OUTPUT_SIGNAL})^⅓, σ the noise multiplier"
OBJECTIVE_RULE = f"Λ minimises σ(Λ)²d/Λ + Λ({TYPICAL_NORM:g}/B)², with σ(Λ) the noise that the budget needs at Λ"


def gradient_rule(sampling: str) -> str:
    """What `GradientSettings` leave no choice about, in words."""
    if sampling == "full":
        spread = f"S steps, between {_FEWEST_STEPS} and {_MOST_FULL_STEPS:,}"
    else:
        spread = f"{_EPOCHS:g} epochs of batches of min({_BATCH:g}, n/{16 if sampling == 'importance' else 4})"
    return (
        f"{spread}; momentum {_MOMENTUM:g}, C = {_CLIP:g}·B, the last {100 * (1 - _AVERAGED):g} % of the iterates averaged, "
        f"step size for a travel of {_TRAVEL}·S^{_TRAVEL_POWER:g} clipped gradients, S = nμ/√d "
        "(squared loss: C = B·bound, step size 2/β, full batches S/2 steps)"
    )


#: where none is asked for: near the best from 300 records to 10,000 and beyond, see docs/margin.md
USUAL_MARGIN = 2.0


def with_margin(objective: LinearObjective, asked: float | None, usual: float) -> LinearObjective:
    """The objective with the margin that was asked for; where none was, with the `usual` one, unless its loss has one already.
    Other losses have none: ValueError where one was asked for."""
    loss = objective.loss.plain
    if type(loss) is not Logistic or objective.facts.foreign_loss:  # of a stranger's, derived from it, nothing is known
        if asked is not None:
            raise ValueError(f"Expected no margin with the {loss.name} loss: the logistic loss has one.")
        return objective
    margin = (loss.margin or usual) if asked is None else asked
    return replace(objective, loss=objective.loss.with_settings(margin=margin))


#: where the signal S = nμ/√d is below the first number, or not known: chosen on made tables, see docs/curves.md
_WEAK, _USUAL = 120.0, 0.3


def with_roughness(objective: LinearObjective, task: Task, budget: Budget | None, asked: float | None) -> LinearObjective:
    """The objective with a penalty on roughness of the weight that was asked for, where features of the task are neighbours.

    None: 0.3 where the signal is weak, or the number of records private, otherwise 0. What the budget is must be known for that.
    """
    if not task.neighbours:
        if asked:
            raise ValueError("Expected neighbours, pairs of features on a curve, with a penalty on roughness.")
        return objective
    weight = usual_weight(objective, task, budget) if asked is None else asked
    return replace(objective, roughness=Roughness(task.neighbours, weight)) if weight else objective


def usual_weight(objective: LinearObjective, task: Task, budget: Budget | None) -> float:
    """The weight by rule."""
    if budget is None or budget.epsilon is None:
        return 0.0
    if task.public_size is None:
        return _USUAL
    epsilon = check.positive("epsilon", budget.epsilon)
    strength = task.public_size * (gaussian_mu(epsilon, budget.delta) if budget.delta else epsilon)
    return _USUAL if strength < _WEAK * math.sqrt(objective.dimension * task.models(objective)) else 0.0
