"""A source that adds no noise and writes down what it was asked: how far neighbours move each release is then seen as it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from dperm._random import Randomness
from dperm.release import Noise, SystemSource

__all__ = ["Asked", "Question", "moves", "smaller", "weaker"]


def weaker(noise: Any, share: float) -> Any:
    """Gaussian noise with a share of what it was asked for."""
    return replace(noise, noise_multiplier=share * noise.noise_multiplier)


def smaller(noise: Any, share: float) -> Any:
    """Noise for a share of the sensitivity that it was asked for."""
    return replace(noise, sensitivity=share * noise.sensitivity)


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

    def noisy(self, query: Any, noise: Noise) -> Any:
        if noise.kind == "objective":  # which asks nothing of the records
            return super().noisy(query, noise)
        level = noise.level / noise.sensitivity if noise.kind in ("gaussian", "hidden") else 1 / noise.level
        kind, answer = ("falling", np.tile(query, (len(noise.path), 1))) if noise.path else (noise.kind, None)
        return self._answer(kind, query, noise.sensitivity, level, int(np.argmax(query)) if kind == "choice" else answer)


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
