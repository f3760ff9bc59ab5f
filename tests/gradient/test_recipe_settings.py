"""What a recipe says of settings that it does not have, wherever they were bound."""

from __future__ import annotations

import inspect
import pickle
from functools import partial
from typing import Any, cast

import pytest

from dperm import _validate as check
from dperm.gradient import Plan
from dperm.gradient.recipes import dp_fedavg, dp_sgd, full_batch_descent
from dperm.gradient.recipes.recipe import kind_of, recipe

ROUNDS: dict[str, Any] = {"rounds": 5, "expected_cohort": 20, "local_steps": 3, "clipping_norm": 0.5}
STATED: dict[str, Any] = {"noise_multiplier": 1.0, "public_size": 200}


@pytest.mark.parametrize(
    ("written", "meant"),
    [("local_lr", "local_learning_rate"), ("learning_rate", "local_learning_rate"), ("local_bs", "local_batch_size"),
     ("cohort", "expected_cohort"), ("num_rounds", "rounds"), ("clip_norm", "clipping_norm")],
)  # fmt: skip
def test_an_unknown_setting_is_answered_by_the_known_ones_and_the_likeliest(written: str, meant: str) -> None:
    known = [name for name in inspect.signature(dp_fedavg).parameters if name not in STATED]
    settings: dict[str, Any] = {name: value for name, value in ROUNDS.items() if name != meant} | {written: 0.1}
    with pytest.raises(TypeError) as called:
        dp_fedavg(**STATED, **settings)
    kind = kind_of(dp_fedavg)
    assert kind is not None
    with pytest.raises(ValueError, match="settings of dp_fedavg") as handed:
        kind.refuse_others(partial(dp_fedavg, **settings), {})
    for error in (called, handed):
        assert f"got {written!r} (did you mean {meant!r}?)" in str(error.value)
        assert all(name in str(error.value) for name in known) and "noise_multiplier" not in str(error.value)


def test_a_name_that_resembles_nothing_gets_no_guess() -> None:
    with pytest.raises(TypeError, match=r"got 'xyz'\. They are expected_batch_size"):
        dp_sgd(**STATED, epochs=1, expected_batch_size=10, clipping_norm=1.0, xyz=1)  # pyright: ignore[reportCallIssue]
    assert check.nearest("", ("a", "bc")) is None


def test_all_missing_settings_are_named_at_once() -> None:
    with pytest.raises(TypeError, match="local_steps, local_learning_rate missing"):
        dp_fedavg(**STATED, rounds=5, expected_cohort=20)  # pyright: ignore[reportCallIssue]


def test_a_recipe_is_the_function_that_it_was() -> None:
    assert dp_fedavg.__name__ == "dp_fedavg" and "rounds" in inspect.signature(dp_fedavg).parameters
    assert pickle.loads(pickle.dumps(dp_fedavg)) is dp_fedavg
    plan = dp_fedavg(**STATED, **ROUNDS, local_learning_rate=0.1)
    assert (plan.steps, plan.expected_batch_size) == (5, 20)


def test_an_error_within_a_recipe_stays_its_own() -> None:
    @recipe
    def odd(*, noise_multiplier: float, public_size: int, steps: int, **more: Any) -> Plan:
        raise TypeError(f"own: {sorted(more)}")

    with pytest.raises(TypeError, match=r"own: \['anything'\]"):
        odd(noise_multiplier=1.0, public_size=5, steps=2, anything=3)
    with pytest.raises(TypeError, match=r"settings of odd.* steps missing"):
        odd(noise_multiplier=1.0, public_size=5, anything=3)  # pyright: ignore[reportCallIssue]
    with pytest.raises(TypeError, match="positional"):
        cast(Any, full_batch_descent)(1.0)
