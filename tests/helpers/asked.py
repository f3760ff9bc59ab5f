"""A source that adds no noise and writes down what it was asked: how far neighbours move each release is then seen as it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dperm._random import Randomness
from dperm.release import SystemSource

__all__ = ["Asked", "Question", "moves"]


@dataclass(frozen=True)
class Question:
    """One release: the query before noise, the sensitivity that it was released with, and the noise in units of that: the
    standard deviation of a Gaussian, 1/ε of the others."""

    kind: str
    query: Any
    sensitivity: float
    noise: float


@dataclass
class Asked(SystemSource):
    """Answers each question by its query, or by what `answers` holds, such as the answers of another run."""

    answers: Sequence[Any] = ()
    questions: list[Question] = field(default_factory=list)
    given: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(Randomness.of(0))

    def _answer(self, kind: str, query: Any, sensitivity: float, noise: float, answer: Any = None) -> Any:
        self.questions.append(Question(kind, np.array(query, dtype=np.float64), sensitivity, noise))
        place = len(self.given)
        if place < len(self.answers):
            answer = self.answers[place]
        elif answer is None:
            answer = np.array(query, dtype=np.float64)
        self.given.append(answer)
        return np.copy(answer) if isinstance(answer, np.ndarray) else answer

    def gaussian(self, query: Any, sensitivity: float, std: float, step: float) -> Any:
        return self._answer("gaussian", query, sensitivity, std / sensitivity)

    def pure(self, query: Any, sensitivity: float, epsilon: float, step: float) -> Any:
        return self._answer("pure", query, sensitivity, 1 / epsilon)

    def hidden(self, query: Any, sensitivity: float, std: float) -> Any:
        return self._answer("hidden", query, sensitivity, std / sensitivity)

    def falling(self, query: Any, sensitivity: float, epsilons: Sequence[float], step: float) -> Any:
        return self._answer("falling", query, sensitivity, 1 / epsilons[-1], np.tile(query, (len(epsilons), 1)))

    def undisclosed(self, query: Any, sensitivity: float, epsilon: float, step: float) -> Any:
        return self._answer("undisclosed", query, sensitivity, 1 / epsilon)

    def choose(self, scores: Any, sensitivity: float, epsilon: float, step: float) -> int:
        return self._answer("choice", scores, sensitivity, 1 / epsilon, int(np.argmax(scores)))


def moves(run: Callable[[Asked], Any], other: Callable[[Asked], Any]) -> list[tuple[Question, float]]:
    """Each question of a run, with the distance that its query has to the other run's, which is given the same answers, in units
    of the sensitivity. Of scores to choose by, the distance is that of the one that is furthest off."""
    first = Asked()
    run(first)
    second = Asked(answers=first.given)
    other(second)
    pairs = zip(first.questions, second.questions, strict=True)
    orders = {"choice": np.inf}
    return [(one, float(np.linalg.norm(one.query - two.query, orders.get(one.kind, 2))) / one.sensitivity) for one, two in pairs]
