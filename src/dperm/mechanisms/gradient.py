"""Gradient perturbation: a policy, run by one loop; also with individual accounting, or with smoothed gradients (DP-LSSGD)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

import numpy as np

from dperm import _validate as check
from dperm._family import states
from dperm._types import Array
from dperm.gradient import FullBatch, ImportancePlan, IndividualPlan, LaplacianSmoothing, Plan, Policy, Sampler, descend_by
from dperm.gradient.importance import admit_batch
from dperm.gradient.policy import runs_by_parts
from dperm.gradient.sampling import samplings
from dperm.gradient.third_party_parts import third_party_assumptions
from dperm.mechanisms.base import Budget, Mechanism
from dperm.mechanisms.extremes import Extreme, beside_others_alike, every_place, some_places
from dperm.mechanisms.method import NoisyMethod, one_for_each
from dperm.mechanisms.noisy_size import NoisySize
from dperm.mechanisms.tuning import gradient_plan, gradient_rule, importance_plan
from dperm.objectives import LinearObjective, PublicFacts, Records, Task
from dperm.privacy import Assumption, Event, FilteredRdp, calibrate, epsilon, rdp_budget
from dperm.privacy.certificates import assumptions as statements
from dperm.release import Channel


@dataclass(frozen=True, kw_only=True)
class GradientPerturbation(Mechanism):
    """Noisy descent from θ = 0 by `plan`; the last iterate or an average is released, all iterates are charged."""

    plan: Policy

    def __post_init__(self) -> None:
        if not isinstance(self.plan, Policy):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"Expected a plan, got {self.plan!r}: call the recipe with its settings.")
        if self.plan.budgeted is not None and self.budget.epsilon is not None:
            spent = epsilon(self.plan.budgeted, self.budget.delta)
            if spent > self.budget.epsilon * (1 + 1e-9):
                raise ValueError(f"The plan may spend epsilon = {spent:.6g}, its budget is {self.budget.epsilon:g}.")

    @classmethod
    def calibrate(
        cls, make_plan: Callable[[float], Policy], facts: PublicFacts, epsilon: float, delta: float
    ) -> GradientPerturbation:
        """The least noise for a recipe: `make_plan` maps a noise multiplier to a plan."""
        if make_plan(1.0).budgeted is not None:
            raise TypeError(
                "Expected make_plan to return a plan of this noise; one with a budget of its own goes to GradientPerturbation "
                "itself."
            )
        noise = calibrate(lambda noise: make_plan(noise).event(facts.relation), epsilon, delta)
        return cls(budget=Budget(delta, epsilon), plan=make_plan(noise))

    @property
    def name(self) -> str:
        return f"gradient perturbation ({self.plan.kind})"

    @property
    def paper(self) -> str:
        return self.plan.paper

    def event(self, facts: PublicFacts) -> Event:
        event = self.plan.event(facts.relation)
        self.plan.refuse_uncharged_claim(event)
        return event

    def train(self, objective: LinearObjective, records: Records, channel: Channel) -> tuple[Array, dict[str, Any]]:
        start = np.zeros(objective.dimension if channel.source.trials is None else (channel.source.trials, objective.dimension))
        plan = self.plan.sized(channel, len(records))
        gradients = plan.gradients(objective, records, channel)
        theta = descend_by(plan, gradients, objective, start)
        if private := gradients.private():
            channel.confided.append(private)
        return theta, {"steps": plan.steps, **gradients.summary()}

    def places(self, records: int) -> Sequence[int]:
        if self.plan.ordered:
            return every_place(records)
        declared = states(type(self.plan), "ordered") and states(type(self), "ordered")
        return (records - 1,) if declared else some_places(records)

    def extremes(self, objective: LinearObjective) -> list[Extreme]:
        return beside_others_alike(objective) if self.plan.anchored else []

    def refuse(self, objective: LinearObjective, records: int) -> None:
        self.plan.refuse_update()
        self.plan.refuse(objective)
        self.plan.refuse_size(records)

    curved = False

    @property
    def released_kinds(self) -> frozenset[str]:
        return self.plan.released_kinds

    @property
    def by_parts(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return runs_by_parts(self.plan)

    @property
    def averages(self) -> bool:
        return not self.plan.by_rows

    @property
    def trains_on_rows(self) -> bool:
        return self.plan.trains_on_rows

    def refuse_groups(self, facts: PublicFacts) -> None:
        if facts.unit.several_rows and not self.plan.grouped:
            raise ValueError(
                f"Expected one row a person for {self.name}: it has no proof for persons of several rows. Use one row of "
                "each (max_rows_per_unit=1), or Poisson sampling or full batches."
            )

    def vectorises(self, objective: LinearObjective) -> bool:
        return self.plan.vectorises

    def assumptions(self, facts: PublicFacts) -> Sequence[Assumption]:
        if self.plan.public_size in (facts.public_size, None):
            return ()
        return (statements.known_size(self.plan.public_size, "The plan's"),)

    def strangers(self) -> list[Assumption]:
        return [*super().strangers(), *third_party_assumptions(self.plan)]

    def settings(self) -> Mapping[str, Any]:
        return self.plan.describe()


#: Words for `sampling=`, and how plans call each.
SAMPLINGS = {
    "importance": ImportancePlan.kind,
    "full": FullBatch.words,
    **{word: kind.words for word, kind in samplings().items()},
}


@dataclass(frozen=True, kw_only=True, repr=False)
class Gradient(NoisyMethod):
    """Gradient perturbation by `sampling` "poisson" (DP-SGD), "importance" (DPIS: add/remove only) or "full" batches; also by
    "balls_and_bins" (each record once an epoch: add/remove only), "truncated_poisson" or "fixed_size" (replace-one only); of
    persons with several rows also by "rows", each by itself (add/remove only).

    `strong_convexity` is Λ of (Λ/2)‖θ‖², added after the noise; settings left open are those of `GradientSettings`. With full
    batches, `epochs` are steps.
    """

    sampling: str = "poisson"
    expected_batch_size: check.Positive | None = None
    epochs: check.Positive | None = None
    clipping_norm: check.Positive | None = None
    learning_rate: check.Positive | None = None
    strong_convexity: check.Positive | None = None

    key = "gradient"
    joint = True
    unbounded = True
    as_the_rules: ClassVar[bool] = True  # whether what runs is what the rules give; otherwise its rule is what it is

    def __post_init__(self) -> None:
        super().__post_init__()
        check.choice("sampling", self.sampling, SAMPLINGS)
        if self.sampling == "full" and self.expected_batch_size is not None:
            raise ValueError("Expected no expected_batch_size with sampling='full', whose batches are all records.")
        if self.sampling != "poisson" and self.epochs is not None:
            check.integer("epochs", self.epochs)

    @property
    def rule(self) -> str:
        return gradient_rule(self.sampling) if self.as_the_rules else super().rule

    def _settings(self) -> dict[str, Any]:
        """What the rules take: not what a method that builds on this one adds."""
        return {field.name: getattr(self, field.name) for field in fields(Gradient) if field.name != "sampling"}

    def shaped(self, plan: Policy) -> Policy:
        """What runs where the rules give this plan: the hook of methods that build on this one, which are not `as_the_rules`."""
        return plan

    @property
    def _sampler(self) -> type[Sampler]:
        return samplings().get(self.sampling, FullBatch)  # importance sampling draws by a policy of its own

    @property
    def words(self) -> str:
        """How it trains, as plans call it."""
        return SAMPLINGS[self.sampling]

    def objective(self, task: Task, budget: Budget | None = None) -> LinearObjective:
        return task.objective(joint=True, strong_convexity=self.strong_convexity or 0.0)

    def at(self, facts: PublicFacts, budget: Budget, models: int, noise_multiplier: float) -> Mechanism:
        """With this noise, whatever it costs. To the rules the models of all classes are one."""
        if self._sampler.by_rows and not facts.unit.several_rows:
            raise ValueError(
                "Expected persons of several rows with sampling='rows' (groups and max_rows_per_unit, or a schema's unit)."
            )
        whole = replace(facts, dimension=models * facts.dimension)
        epsilon = check.positive("epsilon", budget.epsilon)
        plan = gradient_plan(whole, epsilon, budget.delta, sampling=self.sampling, **self._settings())(noise_multiplier)
        return one_for_each(GradientPerturbation(budget=budget, plan=self.shaped(plan)), models)

    def within(self, facts: PublicFacts, budget: Budget, filter: FilteredRdp | None = None) -> GradientPerturbation:
        """By importance sampling within the budget, or within what is left of a filter that was charged before."""
        epsilon = check.positive("epsilon", budget.epsilon)
        plan = importance_plan(facts, epsilon, budget.delta, filter=filter, **self._settings())
        return GradientPerturbation(budget=budget, plan=self.shaped(plan))

    def calibrated(self, facts: PublicFacts, budget: Budget, models: int) -> Mechanism:
        if self.sampling == "importance":
            self._one_model(models)
            if self.expected_batch_size and facts.public_size:
                admit_batch(self.expected_batch_size, facts.public_size)
            return self.within(facts, budget)
        return super().calibrated(facts, budget, models)

    def size_released(self, facts: PublicFacts, budget: Budget, models: int) -> Mechanism:
        label = f"gradient perturbation ({self.words})"
        self._sampler.refuse_private_size()
        if self.sampling == "importance":
            self._one_model(models)
            filter = rdp_budget(check.positive("epsilon", budget.epsilon), budget.delta)
            return NoisySize.filtered(lambda facts: self.within(facts, budget, filter), facts, filter, budget, label=label)
        return NoisySize.below(
            lambda facts, noise: self._for_noisy(facts).at(facts, budget, models, noise),
            facts,
            budget,
            label=label,
        )

    def _for_noisy(self, facts: PublicFacts) -> Gradient:
        """With batches that a noisy number of records allows: it is paid for, and refuses nobody any more."""
        size, batch = facts.public_size, self.expected_batch_size
        if batch is None or size is None:
            return self
        most = self._sampler.largest_batch(size, facts.unit)
        return replace(self, expected_batch_size=most) if batch > most else self

    def _one_model(self, models: int) -> None:
        if models > 1:
            raise ValueError(
                f"Expected a loss of one model for {models} classes with sampling='importance', whose budget is not divided; "
                "use 'poisson' or 'full'."
            )


@dataclass(frozen=True, kw_only=True, repr=False)
class IndividualGradient(Gradient):
    """Full batches at the price of `full_share` of their steps: a record is silent once its own gradients have spent that
    (Koskela, Tobaben, Honkela 2023). With 1 nobody ever is, and it is Gradient(sampling="full")."""

    sampling: str = "full"
    full_share: check.ShareOrOne = 0.5

    key = "individual"
    title = "Individual accounting"
    as_the_rules = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sampling != "full":
            raise ValueError(f"Expected sampling='full' with individual accounting, got {self.sampling!r}.")

    @property
    def words(self) -> str:
        return IndividualPlan.kind

    def shaped(self, plan: Policy) -> Policy:
        assert isinstance(plan, Plan)
        noise = plan.noise.levels(plan.steps)[0][0]
        return IndividualPlan(
            plan.bounding.bound, noise, plan.steps, self.full_share * plan.steps, plan.update, plan.public_size, plan.post
        )


@dataclass(frozen=True, kw_only=True, repr=False)
class SmoothedGradient(Gradient):
    """`Gradient` with Laplacian smoothing of this `strength` after the noise (DP-LSSGD): it costs the same."""

    strength: check.NonNegative = 1.0

    key = "lssgd"
    title = "DP-LSSGD"
    as_the_rules = False

    def shaped(self, plan: Policy) -> Policy:
        smoothed: Any = plan  # whatever the sampling, its plan has a slot for what is done after the noise
        return replace(smoothed, post=LaplacianSmoothing(self.strength))
