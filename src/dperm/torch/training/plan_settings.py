"""What a caller states about a plan, as a function of the budget and of the number of records."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, cast

from dperm import _validate as check
from dperm.gradient import Policy, Update
from dperm.gradient.recipes import dp_sgd
from dperm.gradient.recipes.recipe import kind_of
from dperm.privacy import Composed, Event, Relation, Risk, calibrate

_EPOCHS, _BATCH, _CLIPPING_NORM = 20.0, 256.0, 1.0

#: (noise_multiplier, public_size) → plan
MakePlan = Callable[[float, int], Policy]

#: a function of keywords, marked by `dperm.gradient.recipes.recipe` or `budgeted_recipe`
Recipe = Callable[..., Policy]


class Planner:
    """Makes the plan of a run once its size is known. ValueError where settings are missing, unknown or stated twice.

    `earlier` events are of the same records and to be kept within the same budget.
    `fixed` is the caller's own plan, if it came with its noise; `adaptive` says that noise is chosen on the way: a plan is then
    made from a budget, also before the number of records is known. `stated_size` is the number of records that the caller
    states, by itself or within a plan; `binds_update` says that the recipe brings an update that is
    no average.
    """

    def __init__(
        self,
        plan: Policy | MakePlan | Recipe | None,
        *,
        epsilon: float | Risk | None,
        delta: float,
        noise_multiplier: float | None,
        public_size: int | None,
        epochs: float | None,
        expected_batch_size: float | None,
        clipping_norm: float | None,
        earlier: tuple[Event, ...] = (),
    ) -> None:
        simple = {"epochs": epochs, "expected_batch_size": expected_batch_size, "clipping_norm": clipping_norm}
        settings: dict[str, Any] = {name: check.positive(name, value) for name, value in simple.items() if value is not None}
        self.epsilon, self.delta, self.noise_multiplier = epsilon, delta, noise_multiplier
        self.stated_size = public_size
        self.earlier = earlier
        if earlier and epsilon is None:
            raise ValueError("Expected epsilon where spent is given: it is what both are to keep within.")
        self.fixed: Policy | None = None
        self.adaptive = False
        self.binds_update = False
        self._make: Callable[[float, int], Policy]
        self._recipe: Recipe = dp_sgd
        self._settings = settings
        if isinstance(plan, Policy):
            if epsilon is not None or noise_multiplier is not None:
                raise ValueError(
                    "A plan has its noise already: pass a recipe, or a function (noise_multiplier, public_size) → Plan."
                )
            if settings:
                raise ValueError(f"Expected {', '.join(settings)} inside the plan, not beside it.")
            self.fixed = plan
            self.stated_size = public_size or plan.public_size
            self.adaptive = plan.budgeted is not None
            self._make = lambda noise, size: plan
            return
        if plan is not None and (isinstance(plan, type) or not callable(plan)):
            raise TypeError(f"Expected a plan or a recipe such as dperm.gradient.recipes.dpis, got {plan!r}.")
        bound = getattr(plan, "keywords", {})
        update = bound.get("update")
        self.binds_update = isinstance(update, Update) and update.takes_steps
        own = {"epsilon", "delta", "noise_multiplier", "public_size", "earlier", *settings}
        if twice := sorted(own & set(bound)):
            advice = " Earlier releases go to spent=[certificate]." if "earlier" in twice else ""
            raise ValueError(f"Expected {', '.join(twice)} beside the recipe, not bound in it: the trainer sets them.{advice}")
        if (epsilon is None) == (noise_multiplier is None):
            raise ValueError("Expected exactly one of epsilon and noise_multiplier.")
        usual = plan is None
        plan = dp_sgd if plan is None else plan
        kind = kind_of(plan)
        if kind is None:
            if settings:
                raise ValueError(f"Expected {', '.join(settings)} inside the plan, not beside it.")
            try:
                inspect.signature(plan).bind(1.0, 1)
            except TypeError as error:
                raise ValueError(
                    f"Expected a function (noise_multiplier, public_size) → Plan: {error}. A function of keywords is marked by "
                    "dperm.gradient.recipes.recipe."
                ) from None
            self._make = functools.partial(_planned, cast(MakePlan, plan))
            return
        recipe = cast(Recipe, plan)
        kind.refuse_others(recipe, _usual(1) | settings if usual else settings)
        self.adaptive = kind.budgeted
        if self.adaptive and noise_multiplier is not None:
            raise ValueError("Expected epsilon, not noise_multiplier: this recipe chooses its noise on the way, within a budget.")
        self._recipe = recipe

        def made(noise: float, size: int) -> Policy:
            given = _usual(size) | settings if usual else settings
            return recipe(noise_multiplier=noise, public_size=size, **given)

        self._make = functools.partial(_planned, made)

    def noise_within(self, epsilon: float | Risk | None, delta: float, size: int, relation: Relation) -> float | None:
        """The noise multiplier of the plan for this size within a part of the budget, or all of it. An adaptive plan has none,
        and always the whole budget."""
        if self.adaptive:
            return None
        if epsilon is None:
            return self.noise_multiplier or 0.0  # a Plan that has its noise ignores it
        return calibrate(lambda x: self._event(x, size, relation), epsilon, delta)

    def at(self, noise: float, size: int) -> Policy:
        """The plan for this size with this noise multiplier."""
        return self._make(noise, size)

    def _event(self, noise: float, size: int, relation: Relation) -> Event:
        return Composed((*self.earlier, self._make(noise, size).event(relation)))

    def within_budget(self, size: int | None, relation: Relation) -> Policy:
        """An adaptive plan for the whole budget, also for a size that it releases itself."""
        if self.fixed is not None:
            return self.fixed
        epsilon = self.epsilon
        if isinstance(epsilon, Risk):
            epsilon = epsilon.epsilon_for(lambda e: Composed((*self.earlier, self._budgeted(e, size).event(relation))))
        return self._budgeted(epsilon, size)

    def _budgeted(self, epsilon: float | None, size: int | None) -> Policy:
        settings = self._settings | ({"earlier": Composed(self.earlier)} if self.earlier else {})
        plan: Any = self._recipe(epsilon=epsilon, delta=self.delta, public_size=size, **settings)
        if not isinstance(plan, Policy) or (plan.budgeted is None and plan.claim is None):
            raise ValueError(
                f"Expected a budgeted recipe to return a policy with a budget of its own, got {type(plan).__name__}."
            )
        return plan

    def again(self, noise: float | None, size: int, relation: Relation) -> Policy:
        """The plan of an interrupted run, whose size the caller states or the run released."""
        if not self.adaptive:
            return self._make(noise or 0.0, size)
        return self.within_budget(None if self.stated_size is None else size, relation).with_released_size(size)


def _usual(size: int) -> dict[str, Any]:
    """Of DP-SGD where nothing is stated: by the number of records alone."""
    return {"epochs": _EPOCHS, "expected_batch_size": min(_BATCH, size / 4), "clipping_norm": _CLIPPING_NORM}


def _planned(make: MakePlan, noise: float, size: int) -> Policy:
    """A caller's own (noise_multiplier, public_size) → plan."""
    plan: Any = make(noise, size)
    if not isinstance(plan, Policy) or plan.budgeted is not None:
        raise ValueError(
            f"Expected a function (noise_multiplier, public_size) → Plan, got {type(plan).__name__}: pass a recipe, such as "
            "functools.partial(dpis, ...), marked by dperm.gradient.recipes.budgeted_recipe where it plans its noise on the way."
        )
    return plan
