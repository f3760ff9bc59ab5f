"""The settings of a study."""

from __future__ import annotations

from dataclasses import dataclass

from dperm import _validate as check
from dperm.report.candidates import CANDIDATES, USUAL


@dataclass(frozen=True)
class Study:
    """What is compared. The test share is held out at random, anew each repeat; nothing is tuned on it. `boosting`: whether
    gradient boosting without privacy stands beside, which takes longer than the others."""

    epsilons: tuple[float, ...] = (0.1, 0.3, 1.0, 3.0, 10.0)
    delta: float = 1e-5
    mechanisms: tuple[str, ...] = USUAL
    repeats: int = 10
    test_share: float = 0.2
    data_norm: float = 1.0
    intercept_scale: float = 0.5
    relation: str = "add_or_remove_one"
    seed: int | None = None
    boosting: bool = True

    def __post_init__(self) -> None:
        for epsilon in self.epsilons:
            check.positive("epsilon", epsilon)
        if not self.epsilons:
            raise ValueError("Expected at least one epsilon.")
        check.fraction("delta", self.delta)
        check.integer("repeats", self.repeats)
        check.fraction("test_share", self.test_share)
        check.positive("data_norm", self.data_norm)
        for key in self.mechanisms:
            check.choice("mechanism", key, CANDIDATES)
