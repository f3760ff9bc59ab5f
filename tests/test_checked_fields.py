"""Fields of dataclasses are checked by their types."""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from dperm import _validate as check
from dperm._family import members
from dperm.mechanisms import Mechanism, known_methods

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class Settings:
    rate: check.Positive = 1.0
    steps: check.Count = 3
    share: check.Share | None = None
    bound: check.ScaleOrZero = 0.0
    word: str = "none"

    def __post_init__(self) -> None:
        check.fields(self)


def test_numbers_of_any_type_become_python_s_own() -> None:
    given: dict[str, Any] = {"rate": np.float32(0.5), "steps": np.int64(4), "share": Decimal("0.25"), "bound": np.array(2.0)}
    made = Settings(**given)
    assert made == Settings(0.5, 4, 0.25, 2.0)
    assert [type(value) for value in vars(made).values()] == [float, int, float, float, str]
    whole: Any = 5.0
    assert type(Settings(steps=whole).steps) is int


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"rate": 0.0}, "rate > 0, got 0.0"),
        ({"rate": math.nan}, "rate to be a number, got nan"),
        ({"rate": None}, "rate to be a number, got None"),
        ({"rate": True}, "rate to be a number, got True"),
        ({"steps": 2.5}, "steps to be an integer, got 2.5"),
        ({"steps": 0}, "steps >= 1, got 0"),
        ({"share": 1.0}, r"share in \(0, 1\), got 1.0"),
        ({"bound": 1e-200}, "bound between 1e-100 and 1e100"),
        ({"bound": -1.0}, "bound >= 0, got -1.0"),
    ],
)
def test_a_value_that_its_type_does_not_admit_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises((ValueError, TypeError), match=said):
        Settings(**given)


@dataclass(frozen=True)
class OfAStranger(Settings):
    """Its names are known to type checkers alone: its own fields are its own affair, and inherited ones are checked."""

    of: Sequence[int] = ()
    rate: check.Positive = 2.0


def test_a_stranger_s_names_for_type_checkers_do_no_harm() -> None:
    assert OfAStranger(of=[1]).rate == 2.0
    with pytest.raises(ValueError, match="steps >= 1"):
        OfAStranger(steps=0)


def test_every_number_that_a_mechanism_or_method_is_made_with_says_which_it_may_be() -> None:
    """Otherwise it would go unchecked. Some are checked with others, where the class says so."""
    together = {"OutputPerturbation.noise_multiplier", "OutputPerturbation.pure_epsilon", "Objective.margin"}
    together |= {f"BoltOnPerturbation.{name}" for name in ("noise_multiplier", "pure_epsilon")}
    bare = {
        f"{kind.__name__}.{name}"
        for kind in [*members(Mechanism), *known_methods().values()]
        if kind.__module__.startswith("dperm.mechanisms")
        for name, hint in kind.__annotations__.items()
        if hint.removesuffix(" | None") in ("int", "float")
    }
    assert bare == together
