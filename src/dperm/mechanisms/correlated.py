"""Gradient perturbation with noise that later steps partly take back."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from dperm import _validate as check
from dperm.gradient import CyclicPoisson, Plan, Poisson, Policy
from dperm.gradient.correlation import Workload, strategies
from dperm.gradient.correlation.choosing import best_bands
from dperm.mechanisms.base import Budget, Mechanism
from dperm.mechanisms.gradient import Gradient
from dperm.mechanisms.tuning import gradient_plan
from dperm.objectives import PublicFacts
from dperm.privacy import Relation

_SAMPLINGS = ("poisson", "fixed_order", "reshuffled", "full")
_FORGOTTEN = 0.02  # of what a step moved, in each later one: loss functions pull iterates back. Measured, see the benchmark
_OF_A_GROUP = 0.9  # that a batch is at most, where a group would have no more records than batches by the rule


@dataclass(frozen=True, kw_only=True, repr=False)
class CorrelatedGradient(Gradient):
    """`Gradient` with noise that later steps partly take back, over `bands` steps (None: as many as leave the least error).

    With `sampling` "poisson", records take turns in as many groups as there are bands, each drawn at random in its turn; under
    replace-one, and with "fixed_order", each is in one step of every epoch, and nothing is amplified. With "reshuffled" that step
    is another one in each epoch, at least half an epoch after the last one. `correlation` is the kind of strategy: "banded",
    "square_root", and, without groups, "inverse_square_root" or "buffered".
    """

    bands: check.Count | None = None
    correlation: str = "banded"

    key = "correlated"
    title = "Correlated noise"
    as_the_rules = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check.choice("sampling", self.sampling, _SAMPLINGS)
        kind = strategies()[check.choice("correlation", self.correlation, strategies())]
        if self.sampling == "poisson" and not kind.banded:
            raise ValueError(
                f'Expected sampling="fixed_order" or "reshuffled" with correlation={self.correlation!r}: in groups that take '
                "turns, noise is taken back over no more steps than there are groups."
            )

    def at(self, facts: PublicFacts, budget: Budget, models: int, noise_multiplier: float) -> Mechanism:
        mine = self._under(facts.relation)
        if mine.bands is None:
            mine = replace(mine, bands=mine._best_bands(replace(facts, dimension=models * facts.dimension), budget))
        if mine.expected_batch_size is None:
            mine = mine._in_groups(facts)
        return Gradient.at(mine, facts, budget, models, noise_multiplier)

    def _under(self, relation: Relation) -> CorrelatedGradient:
        """Groups that are drawn from are for add/remove alone."""
        fixed = self.sampling == "poisson" and relation is Relation.REPLACE_ONE
        return replace(self, sampling="fixed_order") if fixed else self

    def _for_noisy(self, facts: PublicFacts) -> Gradient:
        mine = Gradient._for_noisy(self._under(facts.relation), facts)
        assert isinstance(mine, CorrelatedGradient)
        return mine._in_groups(facts)

    def _in_groups(self, facts: PublicFacts) -> CorrelatedGradient:
        """With batches that are smaller than a group."""
        if self.sampling != "poisson" or self.bands in (None, 1):
            return self
        # batches do not depend on the budget
        rate = gradient_plan(facts, 1.0, 1e-5, sampling=self.sampling, **self._settings())(1.0).rate
        if rate * self.bands < 1:
            return self
        assert facts.public_size is not None
        return replace(self, expected_batch_size=_OF_A_GROUP * facts.public_size / self.bands)

    def _best_bands(self, facts: PublicFacts, budget: Budget) -> int:
        epsilon = check.positive("epsilon", budget.epsilon)
        plan = gradient_plan(facts, epsilon, budget.delta, sampling=self.sampling, **self._settings())(1.0)
        if self.sampling == "poisson":
            kind = strategies()[self.correlation]
            return best_bands(plan.steps, plan.rate, epsilon, budget.delta, _workload(plan), kind)
        return min(strategies()[self.correlation].widest, plan.sampler.participation.separation)

    def shaped(self, plan: Policy) -> Policy:
        assert isinstance(plan, Plan)
        assert self.bands is not None
        if self.bands == 1:
            return plan
        sampler = plan.sampler
        if isinstance(sampler, Poisson):
            sampler = CyclicPoisson.of_share(plan.rate, self.bands)
        strategy = strategies()[self.correlation].for_run(self.bands, sampler.participation, _workload(plan))
        changed: dict[str, Any] = {"sampler": sampler, "correlation": strategy}
        return replace(plan, **changed)


def _workload(plan: Plan) -> Workload:
    """Noise of all iterates alike, which the loss makes forget what moved them, whatever mean of them is kept: a strategy for the
    mean alone would let single iterates go so far that losses are no parabolas there."""
    return replace(plan.update.workload(plan.steps, plan.sampler.share), of="all", mean_from=0.0, weight_decay=_FORGOTTEN)
