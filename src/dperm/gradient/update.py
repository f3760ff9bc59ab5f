"""Updates: from a noisy gradient to the next parameters. They see released values only, so they cost no privacy."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from array_api_compat import array_namespace

from dperm import _validate as check
from dperm._family import states


@dataclass(frozen=True)
class Update(ABC):
    """θ and gradients are flat (p,) vectors of one backend; `state` is whatever `init` returned, changed in place."""

    #: whether each number of θ moves by the same number of gradients alone
    coordinatewise = False
    #: What takes its steps and is written neither by dperm nor by the library of its tensors; None: nothing is.
    steps_with: ClassVar[object | None] = None
    #: Whether it takes steps of its own, beside what it does with another's.
    takes_steps: ClassVar[bool] = True

    @abstractmethod
    def init(self, theta: Any) -> Any: ...

    @abstractmethod
    def step(self, theta: Any, gradient: Any, state: Any) -> Any:
        """The next θ."""

    def result(self, theta: Any, state: Any) -> Any:
        """What the run hands back, given its last θ."""
        return theta

    def around(self, update: Update) -> Update:
        """What runs where `update` is to take the steps: an average of its iterates, or `update` in this one's place."""
        return update


@dataclass(frozen=True)
class SGD(Update):
    """v ← momentum·v + g; θ ← θ − learning_rate·v (heavy ball; the field's SGD with momentum)."""

    learning_rate: float
    momentum: float = 0.0

    coordinatewise = True

    def __post_init__(self) -> None:
        check.positive("learning_rate", self.learning_rate)
        check.fraction("momentum", self.momentum, zero=True)

    def init(self, theta: Any) -> dict[str, Any]:
        return {"velocity": theta * 0.0}

    def step(self, theta: Any, gradient: Any, state: dict[str, Any]) -> Any:
        if not self.momentum:
            return theta - self.learning_rate * gradient
        velocity = state["velocity"]
        velocity *= self.momentum
        velocity += gradient
        return theta - self.learning_rate * velocity


@dataclass(frozen=True)
class Adam(Update):
    """Kingma & Ba 2015."""

    learning_rate: float
    beta1: float = 0.9
    beta2: float = 0.999
    stabiliser: float = 1e-8

    coordinatewise = True

    def __post_init__(self) -> None:
        check.positive("learning_rate", self.learning_rate)
        check.fraction("beta1", self.beta1, zero=True)
        check.fraction("beta2", self.beta2, zero=True)
        check.positive("stabiliser", self.stabiliser)

    def init(self, theta: Any) -> dict[str, Any]:
        return {"first": theta * 0.0, "second": theta * 0.0, "steps": 0}

    def step(self, theta: Any, gradient: Any, state: dict[str, Any]) -> Any:
        xp = array_namespace(theta)
        state["steps"] += 1
        first, second, steps = state["first"], state["second"], state["steps"]
        first *= self.beta1
        first += (1 - self.beta1) * gradient
        second *= self.beta2
        second += (1 - self.beta2) * gradient * gradient
        scale = self.learning_rate / (1 - self.beta1**steps)
        return theta - scale * first / (xp.sqrt(second / (1 - self.beta2**steps)) + self.stabiliser)


@dataclass(frozen=True)
class FrankWolfeStep(Update):
    """θ ← (1 − γ)θ − γ·radius·g/‖g‖, γ = 2/(t + 2): towards the best point of an L2 ball, by the gradient's direction alone
    (Frank & Wolfe 1956). From within the ball nothing needs to be projected."""

    radius: float

    def __post_init__(self) -> None:
        check.scale("radius", self.radius)

    def init(self, theta: Any) -> dict[str, Any]:
        return {"steps": 0}

    def step(self, theta: Any, gradient: Any, state: dict[str, Any]) -> Any:
        xp = array_namespace(theta)
        share = 2 / (state["steps"] + 2)
        state["steps"] += 1
        lengths = xp.sqrt(xp.sum(gradient * gradient, axis=-1, keepdims=True))
        direction = gradient / xp.where(lengths > 0, lengths, xp.ones_like(lengths))
        return (1 - share) * theta - share * self.radius * direction


@dataclass(frozen=True)
class Averaged(Update):
    """Another update, whose iterates after the first `skip` steps are averaged (Polyak & Juditsky 1992)."""

    update: Update
    skip: int

    takes_steps = False

    def __post_init__(self) -> None:
        check.integer("skip", self.skip, minimum=0)

    def around(self, update: Update) -> Update:
        return replace(self, update=update)

    @property
    def coordinatewise(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.update.coordinatewise and states(type(self.update), "coordinatewise")

    def init(self, theta: Any) -> dict[str, Any]:
        return {"inner": self.update.init(theta), "sum": theta * 0.0, "steps": 0}

    def step(self, theta: Any, gradient: Any, state: dict[str, Any]) -> Any:
        theta = self.update.step(theta, gradient, state["inner"])
        state["steps"] += 1
        if state["steps"] > self.skip:
            state["sum"] += theta
        return theta

    def result(self, theta: Any, state: dict[str, Any]) -> Any:
        count = state["steps"] - self.skip
        return state["sum"] / count if count > 0 else theta


@dataclass(frozen=True)
class ExponentialAverage(Update):
    """Another update, whose iterates are averaged with weights that fall by `decay` a step.

    The decay starts low and rises as (1 + t)/(10 + t), so that the start is forgotten (De, Berrada, Hayes, Smith, Balle
    2022 use the same average for DP-SGD).
    """

    update: Update
    decay: float = 0.999

    takes_steps = False

    def __post_init__(self) -> None:
        check.fraction("decay", self.decay)

    def around(self, update: Update) -> Update:
        return replace(self, update=update)

    @property
    def coordinatewise(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.update.coordinatewise and states(type(self.update), "coordinatewise")

    def init(self, theta: Any) -> dict[str, Any]:
        return {"inner": self.update.init(theta), "average": theta + theta * 0.0, "steps": 0}

    def step(self, theta: Any, gradient: Any, state: dict[str, Any]) -> Any:
        theta = self.update.step(theta, gradient, state["inner"])
        state["steps"] += 1
        kept = min(self.decay, (1 + state["steps"]) / (10 + state["steps"]))
        state["average"] *= kept
        state["average"] += (1 - kept) * theta
        return theta

    def result(self, theta: Any, state: dict[str, Any]) -> Any:
        return state["average"]
