"""Methods: how to train, in public settings alone. With a task and a budget a method is built into a mechanism."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, ClassVar, TypeVar

from numpy.typing import NDArray

from dperm import _validate as check
from dperm._family import by_word
from dperm.mechanisms.base import Budget, Mechanism
from dperm.mechanisms.noisy_size import NoisySize
from dperm.mechanisms.one_vs_rest import OneVsRest
from dperm.objectives import LinearObjective, PublicFacts, Task
from dperm.privacy import Event, Gaussian, Relation, Risk, calibrate
from dperm.privacy import epsilon as best_epsilon

M = TypeVar("M", bound=Mechanism)

#: how a saved model shows a method that dperm did not write, and so cannot make again
FOREIGN = "not dperm's: "


@dataclass(frozen=True, kw_only=True, repr=False)
class Method(ABC):
    """A kind of mechanism with what is said of it. What is left open, None, follows from task and budget by public rules.

    A new method stands beside its mechanism: a frozen dataclass with its `key`, and `calibrated`. Estimators and the command line
    know it by its key from then on.
    """

    key: ClassVar[str] = ""  # `mechanism=` of estimators; one of your own needs none
    joint: ClassVar[bool] = False  # whether more than two classes are one model, where the loss has a form for that
    pure: ClassVar[bool] = False  # whether delta = 0 will do
    title: ClassVar[str] = ""  # in reports; empty: its key
    unbounded: ClassVar[bool] = False  # whether it trains losses whose slope has no bound: it clips
    claimed: ClassVar[bool] = False  # whether what it makes is not private at the ε that its authors state

    #: Whether what is chosen depends on the number of records.
    needs_size: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check.fields(self)

    @property
    def rule(self) -> str:
        """How what is left open follows from public facts, for reports; by default what the method is."""
        return (type(self).__doc__ or "").split("\n")[0]

    def __repr__(self) -> str:
        """As it would be written."""
        said = [field for field in fields(self) if getattr(self, field.name) != field.default]
        return f"{type(self).__name__}({', '.join(f'{field.name}={getattr(self, field.name)!r}' for field in said)})"

    @abstractmethod
    def calibrated(self, facts: PublicFacts, budget: Budget, models: int) -> Mechanism:
        """The mechanism that spends the budget: on one model, or `one_for_each` of so many classes. facts.public_size is known
        where `needs_size`. ValueError where facts or budget rule it out."""

    def size_released(self, facts: PublicFacts, budget: Budget, models: int) -> Mechanism:
        """The mechanism where the number of records is needed and private."""
        raise ValueError(f"Expected public_size with mechanism={self.key!r}: it does not release the number of records.")

    def objective(self, task: Task, budget: Budget | None = None) -> LinearObjective:
        """What is minimised: it may follow the budget by a public rule. None: without what follows from a budget."""
        return task.objective(joint=self.joint)

    def chosen(self, task: Task, budget: Budget) -> Method:
        """Itself; another one, where it is a rule that chooses."""
        return self

    def told(self, labels: NDArray[Any] | None, rows: Callable[[Any], Any]) -> Method:
        """The method once the classes' labels are known, in their order (None: a regression), and how `rows` of its own are
        read: for one that holds labelled records of its own."""
        return self

    def budget(self, task: Task, delta: float, epsilon: float | Risk) -> Budget:
        """(ε, δ) as they are, or with the ε at which what is built keeps a risk, whatever its profile is."""
        if not isinstance(epsilon, Risk):
            return Budget(delta, epsilon)

        def event(target: float) -> Event:
            mechanism, objective = self.build(task, Budget(delta, target))
            return mechanism.event(objective.facts)

        noise = epsilon.noise_for(Gaussian)  # near what most mechanisms need
        return Budget(delta, epsilon.epsilon_for(event, start=best_epsilon(Gaussian(noise), delta or 1e-6)))

    def build(self, task: Task, budget: Budget) -> tuple[Mechanism, LinearObjective]:
        """The mechanism that spends the budget on this task, and what it minimises. ValueError where there is none."""
        return self.chosen(task, budget)._built(task, budget)

    def _built(self, task: Task, budget: Budget) -> tuple[Mechanism, LinearObjective]:
        if budget.delta == 0 and not self.pure:
            pure = ", ".join(repr(key) for key, kind in known_methods().items() if kind.pure)
            raise ValueError(f"Expected delta in (0, 1) for mechanism={self.key!r}, got 0; a pure form have {pure}.")
        objective = self.objective(task, budget)
        facts = objective.facts
        sizes = self.needs_size and facts.public_size is None
        if sizes and facts.relation is Relation.REPLACE_ONE:
            raise ValueError("Expected public_size under replace_one, where the number of records is public.")
        mechanism = (self.size_released if sizes else self.calibrated)(facts, budget, task.models(objective))
        if not isinstance(mechanism, Mechanism):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"Expected a mechanism from {self!r}, got {mechanism!r}.")
        mechanism.refuse_groups(facts)
        return mechanism, objective

    def made(self, kind: type[M], budget: Budget, **by_rule: Any) -> M:
        """A mechanism whose fields are this method's settings of the same names; `by_rule` has those that were left open, None,
        and those that are no settings."""
        names = {field.name for field in fields(kind)}
        stated = {field.name: getattr(self, field.name) for field in fields(self) if field.name in names}
        return kind(budget=budget, **by_rule | {name: value for name, value in stated.items() if value is not None})

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready; see `method_from_dict`."""
        return {"method": self.key, **{field.name: getattr(self, field.name) for field in fields(self)}}


@dataclass(frozen=True, kw_only=True, repr=False)
class NoisyMethod(Method):
    """A method whose mechanism has a noise multiplier: it is the least that stays within the budget, once the number of records
    is known, or released for a part of the budget."""

    needs_size = True
    label: ClassVar[str] = ""  # of what runs, where the number of records is released

    @abstractmethod
    def at(self, facts: PublicFacts, budget: Budget, models: int, noise_multiplier: float) -> Mechanism:
        """The mechanism with this noise, whatever it costs."""

    def stated(self, facts: PublicFacts, budget: Budget, models: int, noise_multiplier: float) -> Event:
        """What this noise is said to cost, which is brought within the budget. Of what is certified: the event."""
        return self.at(facts, budget, models, noise_multiplier).event(facts)

    def calibrated(self, facts: PublicFacts, budget: Budget, models: int) -> Mechanism:
        epsilon = check.positive("epsilon", budget.epsilon)
        noise = calibrate(lambda noise: self.stated(facts, budget, models, noise), epsilon, budget.delta)
        return self.at(facts, budget, models, noise)

    def size_released(self, facts: PublicFacts, budget: Budget, models: int) -> Mechanism:
        return NoisySize.below(
            lambda facts, noise: self.at(facts, budget, models, noise), facts, budget, label=self.label or self.title or self.key
        )


def one_for_each(mechanism: Mechanism, models: int) -> Mechanism:
    """`mechanism` for each of so many classes; itself where one model is all."""
    return OneVsRest.of(mechanism, models) if models > 1 else mechanism


def known_methods() -> dict[str, type[Method]]:
    """dperm's methods by key."""
    return by_word(Method, "key")


def method_from_dict(data: dict[str, Any]) -> Method:
    """Inverse of `Method.to_dict`."""
    settings, known = dict(data), known_methods()
    return known[check.choice("method", settings.pop("method", None), known)](**settings)


def method_of(given: Any) -> Method:
    """A method, as it is or by its key. ValueError for anything else."""
    if isinstance(given, Method):
        return given
    known = known_methods()
    if isinstance(given, str) and given.startswith(FOREIGN):
        raise ValueError(
            f"Expected a method that a file can name, got one that is {given}. Put it in its place in Python: "
            "set_params(mechanism=…)."
        )
    if type(given) is not str or given not in known:
        raise ValueError(
            f"Expected mechanism to be one of {', '.join(map(repr, known))}, or a method such as Gradient(epochs=10), "
            f"got {given!r}."
        )
    return known[given]()
