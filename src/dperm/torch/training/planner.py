"""A budget, and the plan that is made from it, from what a caller states, and from the number of records."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from dperm import _validate as check
from dperm.gradient import Policy, Update
from dperm.gradient.recipes import dp_sgd
from dperm.gradient.recipes.recipe import kind_of
from dperm.privacy import Composed, Event, Relation, Risk, calibrate
from dperm.release.sizing import NOMINAL_SIZES

_EPOCHS, _BATCH, _CLIPPING_NORM = 20.0, 256.0, 1.0

#: (noise_multiplier, public_size) → plan
MakePlan = Callable[[float, int], Policy]

#: a function of keywords, marked by `dperm.gradient.recipes.recipe` or `budgeted_recipe`
Recipe = Callable[..., Policy]


@dataclass(frozen=True)
class Budget:
    """What a run may cost: ε, or an attacker's risk, at δ, together with `earlier` releases from the same records; or the noise
    itself."""

    epsilon: float | Risk | None
    delta: float
    noise_multiplier: float | None = None
    earlier: tuple[Event, ...] = ()

    def __post_init__(self) -> None:
        if self.epsilon is not None and not isinstance(self.epsilon, Risk):
            object.__setattr__(self, "epsilon", check.positive("epsilon", self.epsilon))
        object.__setattr__(self, "delta", check.fraction("delta", self.delta))
        if self.noise_multiplier is not None:
            object.__setattr__(self, "noise_multiplier", check.positive("noise_multiplier", self.noise_multiplier))
        if self.earlier and self.epsilon is None:
            raise ValueError("Expected epsilon where spent is given: it is what both are to keep within.")

    @property
    def target(self) -> float | None:
        """What the run alone is to keep within; None where it shares ε with earlier releases, or keeps a risk."""
        return None if self.earlier or isinstance(self.epsilon, Risk) else self.epsilon

    def epsilon_for(self, event_at: Callable[[float], Event]) -> float | None:
        """ε as a number: of a risk, the most whose event keeps it, together with the earlier ones."""
        if isinstance(self.epsilon, Risk):
            return self.epsilon.epsilon_for(lambda epsilon: Composed((*self.earlier, event_at(epsilon))))
        return self.epsilon


class Planner:
    """Makes the plan of a run once its size is known. ValueError where settings are missing, unknown or stated twice.

    `fixed` is the caller's own plan, if it came with its noise; `adaptive` says that noise is chosen on the way: a plan is then
    made from a budget, also before the number of records is known. `stated_size` is the number of records that the caller
    states, by itself or within a plan; `binds_update` says that the recipe brings an update that is no average.
    """

    def __init__(
        self,
        plan: Policy | MakePlan | Recipe | None,
        budget: Budget,
        *,
        public_size: int | None = None,
        epochs: float | None = None,
        expected_batch_size: float | None = None,
        clipping_norm: float | None = None,
    ) -> None:
        simple = {"epochs": epochs, "expected_batch_size": expected_batch_size, "clipping_norm": clipping_norm}
        self._settings = {name: check.positive(name, value) for name, value in simple.items() if value is not None}
        self.budget, self.stated_size = budget, None if public_size is None else check.integer("public_size", public_size)
        self.fixed: Policy | None = None
        self.adaptive = self.binds_update = False
        self._recipe: Recipe = dp_sgd
        self._update: Update | None = None
        self._make: Callable[[float, int, Update | None], Policy]
        if isinstance(plan, Policy):
            self._take_fixed(plan)
            return
        if plan is not None and (isinstance(plan, type) or not callable(plan)):
            raise TypeError(f"Expected a plan or a recipe such as dperm.gradient.recipes.dpis, got {plan!r}.")
        self._refuse_bound(getattr(plan, "keywords", {}))
        if (budget.epsilon is None) == (budget.noise_multiplier is None):
            raise ValueError("Expected exactly one of epsilon and noise_multiplier.")
        if plan is None or kind_of(plan) is not None:
            self._take_recipe(cast("Recipe | None", plan))
        else:
            self._take_function(cast(MakePlan, plan))

    def _take_fixed(self, plan: Policy) -> None:
        if self.budget.epsilon is not None or self.budget.noise_multiplier is not None:
            raise ValueError("A plan has its noise already: pass a recipe, or a function (noise_multiplier, public_size) → Plan.")
        self._refuse_settings()
        self.fixed, self.adaptive = plan, plan.budgeted is not None
        self.stated_size = self.stated_size or plan.public_size
        self._make = lambda noise, size, update: plan

    def _take_function(self, plan: MakePlan) -> None:
        self._refuse_settings()
        try:
            inspect.signature(plan).bind(1.0, 1)
        except TypeError as error:
            raise ValueError(
                f"Expected a function (noise_multiplier, public_size) → Plan: {error}. A function of keywords is marked by "
                "dperm.gradient.recipes.recipe."
            ) from None
        self._make = lambda noise, size, update: _not_budgeted(plan(noise, size))

    def _take_recipe(self, stated: Recipe | None) -> None:
        recipe = self._recipe = stated or dp_sgd
        kind = kind_of(recipe)
        assert kind is not None

        def settings(size: int) -> dict[str, Any]:
            return self._settings if stated else _usual(size) | self._settings

        kind.refuse_others(recipe, settings(1))
        self.adaptive = kind.budgeted
        if self.adaptive and self.budget.noise_multiplier is not None:
            raise ValueError("Expected epsilon, not noise_multiplier: this recipe chooses its noise on the way, within a budget.")

        def made(noise: float, size: int, update: Update | None) -> Policy:
            target = None if self.budget.target is None else (self.budget.target, self.budget.delta)
            handed = kind.handed(noise_multiplier=noise, public_size=size, target=target)
            return _not_budgeted(recipe(**(handed | settings(size) | _update_for(recipe, update))))

        self._make = made

    def _refuse_settings(self) -> None:
        if self._settings:
            raise ValueError(f"Expected {', '.join(self._settings)} inside the plan, not beside it.")

    def _refuse_bound(self, bound: Mapping[str, Any]) -> None:
        update = bound.get("update")
        self.binds_update = isinstance(update, Update) and update.takes_steps
        own = {"epsilon", "delta", "noise_multiplier", "public_size", "earlier", "target", *self._settings}
        if twice := sorted(own & set(bound)):
            advice = " Earlier releases go to spent=[certificate]." if "earlier" in twice else ""
            raise ValueError(f"Expected {', '.join(twice)} beside the recipe, not bound in it: the trainer sets them.{advice}")

    @property
    def trains_on_rows(self) -> bool:
        """Whether local models are trained on the rows of each unit. Known of the caller's own plan, and of a recipe where the
        number of units is stated."""
        if self.fixed is not None:
            return self.fixed.trains_on_rows
        return not self.adaptive and self.stated_size is not None and self.at(1.0, self.stated_size).trains_on_rows

    def for_update(self, update: Update | None) -> Planner:
        """The same, for this update in the place of a recipe's own."""
        other = copy.copy(self)
        other._update = update
        return other

    def noise_within(self, size: int, relation: Relation) -> float | None:
        """The noise multiplier of the plan for this size within the budget. An adaptive plan has none."""
        if self.adaptive:
            return None
        if self.budget.epsilon is None:
            return self.budget.noise_multiplier or 0.0  # a Plan that has its noise ignores it
        return calibrate(lambda x: self._event(x, size, relation), self.budget.epsilon, self.budget.delta)

    def at(self, noise: float, size: int) -> Policy:
        """The plan for this size with this noise multiplier."""
        return self._make(noise, size, self._update)

    def least_size(self) -> int:
        """The least number of records that a plan can be made for, up to the largest nominal one: one that was released may be
        any. ValueError where there is none for that."""
        few, enough = 0, NOMINAL_SIZES[-1]
        self.at(1.0, enough)
        size = 1  # which is mostly enough
        while enough - few > 1:
            try:
                self.at(1.0, size)
                enough = size
            except ValueError:
                few = size
            size = (few + enough) // 2
        return enough

    def _event(self, noise: float, size: int, relation: Relation) -> Event:
        return Composed((*self.budget.earlier, self.at(noise, size).event(relation)))

    def within_budget(self, size: int | None, relation: Relation) -> Policy:
        """An adaptive plan for the whole budget, also for a size that it releases itself."""
        if self.fixed is not None:
            return self.fixed
        return self._budgeted(self.budget.epsilon_for(lambda e: self._budgeted(e, size).event(relation)), size)

    def _budgeted(self, epsilon: float | None, size: int | None) -> Policy:
        settings = self._settings | ({"earlier": Composed(self.budget.earlier)} if self.budget.earlier else {})
        plan: Any = self._recipe(epsilon=epsilon, delta=self.budget.delta, public_size=size, **settings)
        if not isinstance(plan, Policy) or (plan.budgeted is None and plan.claim is None):
            raise ValueError(
                f"Expected a budgeted recipe to return a policy with a budget of its own, got {type(plan).__name__}."
            )
        return plan

    def again(self, noise: float | None, size: int, relation: Relation) -> Policy:
        """The plan of an interrupted run, whose size the caller states or the run released."""
        if not self.adaptive:
            return self.at(noise or 0.0, size)
        return self.within_budget(None if self.stated_size is None else size, relation).with_released_size(size)


def _update_for(recipe: Recipe, update: Update | None) -> dict[str, Any]:
    """The update as a keyword of a recipe that takes one: within an average that is bound in it."""
    if update is None or "update" not in inspect.signature(recipe).parameters:
        return {}
    bound = getattr(recipe, "keywords", {}).get("update")
    return {"update": update if bound is None else bound.around(update)}


def _usual(size: int) -> dict[str, Any]:
    """Of DP-SGD where nothing is stated: by the number of records alone."""
    return {"epochs": _EPOCHS, "expected_batch_size": min(_BATCH, size / 4), "clipping_norm": _CLIPPING_NORM}


def _not_budgeted(plan: Any) -> Policy:
    """What a function or a recipe of the caller's made for a noise multiplier and a number of records."""
    if not isinstance(plan, Policy) or plan.budgeted is not None:
        raise ValueError(
            f"Expected a function (noise_multiplier, public_size) → Plan, got {type(plan).__name__}: pass a recipe, such as "
            "functools.partial(dpis, ...), marked by dperm.gradient.recipes.budgeted_recipe where it plans its noise on the way."
        )
    return plan
