"""Plans made within a budget: what they cost together with what was released before, and what recipes are asked for."""

from __future__ import annotations

from typing import Any

import pytest

from dperm.gradient import SGD, Clip, Constant, Plan, Poisson, Policy
from dperm.gradient.recipes import budgeted_recipe, dpis
from dperm.privacy import Composed, Event, FilteredRdp, Gaussian, Relation, Risk, delta, epsilon
from dperm.published import pidp_sgd
from dperm.torch.training.planner import Budget, Planner

ADD, SIZE, DELTA = Relation.ADD_OR_REMOVE_ONE, 500, 1e-5


def planner(plan: Any = None, **changes: Any) -> Planner:
    budget = {name: changes.pop(name, None) for name in ("epsilon", "noise_multiplier")}
    return Planner(plan, Budget(**budget, delta=DELTA, earlier=changes.pop("earlier", ())), **changes)


def steps(noise_multiplier: float, public_size: int) -> Plan:
    return Plan(Poisson(0.1), Clip(1.0), Constant(noise_multiplier), SGD(0.1), 10, public_size)


@pytest.mark.parametrize("earlier", [(), (Gaussian(5.0), Gaussian(9.0))], ids=["alone", "after others"])
@pytest.mark.parametrize("plan", [steps, None], ids=["own", "usual"])
def test_a_plan_and_what_was_released_before_keep_within_the_budget(plan: Any, earlier: tuple[Event, ...]) -> None:
    settings: dict[str, Any] = {} if plan else {"epochs": 2, "expected_batch_size": 50, "clipping_norm": 1.0}
    made = planner(plan, epsilon=2.0, earlier=earlier, **settings)
    noise = made.noise_within(SIZE, ADD)
    assert noise is not None
    assert 1.99 < epsilon(Composed((*earlier, made.at(noise, SIZE).event(ADD))), DELTA) <= 2.0


def test_noise_that_is_stated_is_what_a_plan_gets() -> None:
    assert planner(steps, noise_multiplier=3.5).noise_within(SIZE, ADD) == 3.5
    fixed = steps(1.5, SIZE)
    own = planner(fixed)
    assert own.noise_within(SIZE, ADD) == 0.0  # a plan that has its noise ignores it
    assert own.at(0.0, SIZE) is own.within_budget(SIZE, ADD) is fixed


def asking(asked: list[tuple[Any, ...]], earlier: bool) -> Any:
    """A recipe that notes what it is asked, for a filter of a tenth of ε."""

    def plan(epsilon: float, delta: float, public_size: int | None, before: Event | None = None) -> Policy:
        asked.append((epsilon, delta, public_size, before))
        budget = FilteredRdp(8.0, epsilon / 10)
        settings: dict[str, Any] = {"epochs": 1, "expected_batch_size": 50, "clipping_norm": 1.0, "public_size": public_size}
        return dpis(epsilon=epsilon, delta=delta, filter=budget, **settings)

    if not earlier:

        @budgeted_recipe
        def without(*, epsilon: float, delta: float, public_size: int | None) -> Policy:
            return plan(epsilon, delta, public_size)

        return without

    @budgeted_recipe
    def after(*, epsilon: float, delta: float, public_size: int | None, earlier: Event | None = None) -> Policy:
        return plan(epsilon, delta, public_size, earlier)

    return after


def test_a_plan_that_chooses_its_noise_is_made_for_the_whole_budget() -> None:
    asked: list[tuple[Any, ...]] = []
    made = planner(asking(asked, earlier=False), epsilon=2.0)
    assert made.noise_within(SIZE, ADD) is None
    assert made.within_budget(SIZE, ADD).event(ADD) == FilteredRdp(8.0, 0.2)
    before = (Gaussian(5.0), Gaussian(9.0))
    planner(asking(asked, earlier=True), epsilon=2.0, earlier=before).within_budget(None, ADD)
    assert asked == [(2.0, DELTA, SIZE, None), (2.0, DELTA, None, Composed(before))]


@pytest.mark.parametrize("earlier", [(), (Gaussian(8.0),)], ids=["alone", "after others"])
def test_a_stated_risk_holds_of_the_plan_and_what_was_released_before(earlier: tuple[Event, ...]) -> None:
    """The advantage of any attack is δ at ε = 0."""
    made = planner(asking([], earlier=True), epsilon=Risk(advantage=0.3), earlier=earlier)
    event = Composed((*earlier, made.within_budget(SIZE, ADD).event(ADD)))
    assert 0.28 < delta(event, 0.0) <= 0.3 * (1 + 1e-9)


def test_recipes_with_a_budget_return_policies_with_one() -> None:
    class Claims(Plan):
        claim = "so they say"

    def returning(value: Any) -> Planner:
        @budgeted_recipe
        def made(*, epsilon: float, delta: float, public_size: int | None) -> Any:
            return value

        return planner(made, epsilon=2.0)

    plan = steps(1.5, SIZE)
    for value in (5, None, plan):
        with pytest.raises(ValueError, match="policy with a budget of its own"):
            returning(value).within_budget(SIZE, ADD)
    claimed = Claims(plan.sampler, plan.bounding, plan.noise, plan.update, plan.steps, SIZE)
    published = pidp_sgd(epsilon=1.0, delta=DELTA, public_size=SIZE, lipschitz=(1.0, 1.0, 1.0))
    for value in (claimed, published):
        assert returning(value).within_budget(SIZE, ADD) is value
