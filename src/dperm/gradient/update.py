"""Updates: from a noisy gradient to the next parameters. They see released values only, so they cost no privacy."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from array_api_compat import array_namespace

from dperm import _validate as check
from dperm._family import states
from dperm.gradient.correlation.workload import Workload

#: moved(vector, new): a vector (p,) of the parameters that were trained as one of those that are, with the numbers of `new` (q,)
#: for parameters that were not
Moved = Callable[[Any, Any], Any]


@dataclass(frozen=True)
class Update(ABC):
    """θ and gradients are flat (p,) vectors of one backend; `state` is whatever `init` returned, changed in place."""

    #: whether each number of θ moves by the same number of gradients alone
    coordinatewise = False
    #: whether it must be `told_noise` before each step
    needs_noise = False
    #: What takes its steps and is written neither by dperm nor by the library of its tensors; None: nothing is.
    steps_with: ClassVar[object | None] = None
    #: Whether it takes steps of its own, beside what it does with another's.
    takes_steps: ClassVar[bool] = True

    @abstractmethod
    def init(self, theta: Any) -> Any: ...

    def told_noise(self, deviation: float | None, state: Any) -> None:
        """Called before each step of an update that `needs_noise`. `deviation` is the standard deviation of the noise in each
        number of the step's gradient: public. None where it is not known."""
        return

    def workload(self, steps: int, share: float = 1.0) -> Workload:
        """What the gradients' noise does to the parameters in a run of so many steps, each of this share of the records, where
        scales that follow the gradients (Adam's) are taken for constant: what a strategy for correlated noise is made for."""
        return Workload()

    @abstractmethod
    def step(self, theta: Any, gradient: Any, state: Any) -> Any:
        """The next θ."""

    def result(self, theta: Any, state: Any) -> Any:
        """What the run hands back, given its last θ."""
        return theta

    def resized(self, state: Any, moved: Moved, theta: Any) -> Any:
        """The state of a run that goes on with other trained parameters, at θ: vectors in it keep the numbers of parameters that
        stay, and are zero for new ones."""
        if isinstance(state, dict):
            named: dict[str, Any] = state
            return {name: self.resized(value, moved, theta) for name, value in named.items()}
        return moved(state, theta * 0.0) if getattr(state, "ndim", 0) == 1 else state

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

    def workload(self, steps: int, share: float = 1.0) -> Workload:
        return Workload(momentum=self.momentum)

    def step(self, theta: Any, gradient: Any, state: dict[str, Any]) -> Any:
        if not self.momentum:
            return theta - self.learning_rate * gradient
        velocity = state["velocity"]
        velocity *= self.momentum
        velocity += gradient
        return theta - self.learning_rate * velocity


@dataclass(frozen=True)
class Adam(Update):
    """Kingma & Ba 2015; with `weight_decay`, AdamW (Loshchilov & Hutter 2019): θ ← (1 − learning_rate·weight_decay)·θ beside the
    step."""

    learning_rate: float
    beta1: float = 0.9
    beta2: float = 0.999
    stabiliser: float = 1e-8
    weight_decay: float = 0.0

    coordinatewise = True

    def __post_init__(self) -> None:
        check.positive("learning_rate", self.learning_rate)
        check.fraction("beta1", self.beta1, zero=True)
        check.fraction("beta2", self.beta2, zero=True)
        check.positive("stabiliser", self.stabiliser)
        check.non_negative("weight_decay", self.weight_decay)

    def init(self, theta: Any) -> dict[str, Any]:
        return {"first": theta * 0.0, "second": theta * 0.0, "steps": 0}

    def workload(self, steps: int, share: float = 1.0) -> Workload:
        return Workload(momentum=self.beta1, weight_decay=self.learning_rate * self.weight_decay)

    def step(self, theta: Any, gradient: Any, state: dict[str, Any]) -> Any:
        state["steps"] += 1
        first, second, steps = state["first"], state["second"], state["steps"]
        first *= self.beta1
        first += (1 - self.beta1) * gradient
        second *= self.beta2
        second += (1 - self.beta2) * gradient * gradient
        scale = self.learning_rate / (1 - self.beta1**steps)
        kept = 1 - self.learning_rate * self.weight_decay
        return kept * theta - scale * first / self._lengths(second / (1 - self.beta2**steps), state)

    def _lengths(self, squares: Any, state: dict[str, Any]) -> Any:
        """(p,) what each number's step is divided by, given its mean square."""
        return array_namespace(squares).sqrt(squares) + self.stabiliser


@dataclass(frozen=True)
class AdamBC(Adam):
    """Adam, or AdamW, without what noise adds to the second moment (DP-AdamBC: Tang, Shpilevskiy, Lécuyer 2024).

    Noise of variance s² makes the mean of g² about s² larger, so that where noise is most of a gradient Adam is SGD. Here the
    mean of s² is subtracted: that of the noise which the update sees, as correlated noise has it. What is left is at least
    `floor` standard errors of that mean.
    """

    floor: float = 1.0

    needs_noise = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check.positive("floor", self.floor)

    def init(self, theta: Any) -> dict[str, Any]:
        return {**super().init(theta), "noise": 0.0, "told": 0}

    def told_noise(self, deviation: float | None, state: dict[str, Any]) -> None:
        state["noise"] = noise_after(state["noise"], deviation, self.beta2)
        state["told"] += 1

    def _lengths(self, squares: Any, state: dict[str, Any]) -> Any:
        if state["told"] != state["steps"]:
            raise ValueError("Expected told_noise before every step of AdamBC.")
        mean, error = noise_estimated(state["noise"], self.beta2, state["steps"])
        return array_namespace(squares).sqrt((squares - mean).clip(self.floor * error, None)) + self.stabiliser


def noise_after(sum: float, deviation: float | None, decay: float) -> float:
    """The sum of the noise's variances in the gradients so far, weighed as Adam weighs squares, after one more step. ValueError
    where the standard deviation is not known."""
    if deviation is None:
        raise ValueError("Expected gradients whose noise is known, for an update that subtracts its variance.")
    return decay * sum + (1 - decay) * deviation * deviation


def noise_estimated(sum: float, decay: float, steps: int) -> tuple[float, float]:
    """The mean of that sum, and the standard error of the same mean of as many independent squares of noise: of weights w_k, each
    with a variance of twice its mean squared, √(2·Σw²)/Σw."""
    left = decay**steps
    mean = sum / (1 - left)
    return mean, mean * math.sqrt(2 * (1 - decay) * (1 + left) / ((1 + decay) * (1 - left)))


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

    @property
    def needs_noise(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.update.needs_noise

    def init(self, theta: Any) -> dict[str, Any]:
        return {"inner": self.update.init(theta), "sum": theta * 0.0, "steps": 0}

    def told_noise(self, deviation: float | None, state: dict[str, Any]) -> None:
        self.update.told_noise(deviation, state["inner"])

    def workload(self, steps: int, share: float = 1.0) -> Workload:
        return replace(self.update.workload(steps, share), of="mean", mean_from=min(self.skip, steps - 1) / steps)

    def step(self, theta: Any, gradient: Any, state: dict[str, Any]) -> Any:
        theta = self.update.step(theta, gradient, state["inner"])
        state["steps"] += 1
        if state["steps"] > self.skip:
            state["sum"] += theta
        return theta

    def result(self, theta: Any, state: dict[str, Any]) -> Any:
        count = state["steps"] - self.skip
        return state["sum"] / count if count > 0 else theta

    def resized(self, state: dict[str, Any], moved: Moved, theta: Any) -> dict[str, Any]:
        """A new parameter counts as if it had been where it begins."""
        count = max(0, state["steps"] - self.skip)
        inner = self.update.resized(state["inner"], moved, theta)
        return {**state, "inner": inner, "sum": moved(state["sum"], theta * count)}


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

    @property
    def needs_noise(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.update.needs_noise

    def init(self, theta: Any) -> dict[str, Any]:
        return {"inner": self.update.init(theta), "average": theta + theta * 0.0, "steps": 0}

    def told_noise(self, deviation: float | None, state: dict[str, Any]) -> None:
        self.update.told_noise(deviation, state["inner"])

    def workload(self, steps: int, share: float = 1.0) -> Workload:
        averaged = min(steps, 1 / (1 - self.decay))  # about so many of the last iterates
        return replace(self.update.workload(steps, share), of="mean", mean_from=1 - averaged / steps)

    def step(self, theta: Any, gradient: Any, state: dict[str, Any]) -> Any:
        theta = self.update.step(theta, gradient, state["inner"])
        state["steps"] += 1
        kept = min(self.decay, (1 + state["steps"]) / (10 + state["steps"]))
        state["average"] *= kept
        state["average"] += (1 - kept) * theta
        return theta

    def result(self, theta: Any, state: dict[str, Any]) -> Any:
        return state["average"]

    def resized(self, state: dict[str, Any], moved: Moved, theta: Any) -> dict[str, Any]:
        """A new parameter counts as if it had been where it begins."""
        inner = self.update.resized(state["inner"], moved, theta)
        return {**state, "inner": inner, "average": moved(state["average"], theta)}
