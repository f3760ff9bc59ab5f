"""Accuracy first: one minimiser, released with less and less noise until it is good enough, for the ε that this took.

Release k is the minimiser with Gaussian noise of its own, and what is used is the mean of the first k, weighted by their
precisions: a Brownian path in 1/time, of which earlier points cost nothing beside later ones (Whitehouse, Wu, Ramdas, Rogers
2022, after Ligett, Neel, Roth, Waggoner, Wu 2017). With δ = 0 the noise is that of pure output perturbation, and falls the same
way. The whole path is charged before the first release. What was spent when it stopped is stated beside it, ex post:
`dperm.privacy.adaptive.ex_post`.
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import issparse

from dperm import _validate as check
from dperm._column import column
from dperm._family import is_third_party
from dperm._types import Array
from dperm.mechanisms.base import Budget, Mechanism, Stage
from dperm.mechanisms.extremes import Extreme, steep
from dperm.mechanisms.method import Method
from dperm.mechanisms.minimiser import chosen_tolerance, solve
from dperm.mechanisms.tuning import output_strong_convexity
from dperm.objectives import LinearObjective, PublicFacts, Records
from dperm.objectives.targets import Signs
from dperm.objectives.weighted import weights_apart
from dperm.privacy import AboveThreshold, Assumption, Certificate, Event, ExPost, PureDP, Relation, stopping_path
from dperm.privacy.certificates import assumptions as statements
from dperm.release import Channel, FallingNoise, GaussianNoise
from dperm.release.grid import Grid, admit_noise
from dperm.release.threshold import ThresholdTest

Goal = Literal["accuracy", "loss"]

_CUT = 5.0  # a loss of the records that are asked counts for at most so many targets
_CHECK_SHARE = 0.1  # of ε, for asking the records themselves whether it is enough
_MOST_PARTS = 2**19  # of which the noise between the scales of a pure path is made, on average; 350,000 took up to 7 seconds


@dataclass(frozen=True, kw_only=True)
class Stopping(ABC):
    """When what was released is good enough: an accuracy of at least `target`, or a mean loss of at most that.

    Where `cut` is finite, each loss counts for at most so many times the target, so that one record can move little.
    """

    goal: Goal
    target: float
    cut: ClassVar[float] = _CUT

    def __post_init__(self) -> None:
        check.choice("goal", self.goal, get_args(Goal))
        (check.fraction if self.goal == "accuracy" else check.positive)("target", self.target)

    def sensitivity(self, relation: Relation) -> float:
        """How far one record moves the excess at most."""
        if self.goal == "loss":
            return self.target * (max(1.0, self.cut - 1) if relation is Relation.ADD_OR_REMOVE_ONE else self.cut)
        return max(self.target, 1 - self.target) if relation is Relation.ADD_OR_REMOVE_ONE else 1.0

    def excess(self, objective: LinearObjective, records: Records, theta: Array) -> float:
        """Σ of weight times (a record's score − target), losses with the other sign: not negative where the target is reached."""
        scores: list[float] = []  # of batches, each rounded once
        for batch in records.batches():
            predictions = objective.predict(theta, batch)
            targets, counts = weights_apart(batch.targets)
            if self.goal == "accuracy":
                scores.append(math.fsum(counts[(predictions > 0) == (targets > 0)]))
            else:
                losses = objective.loss.plain.value(predictions, targets)
                losses = np.where(np.isfinite(losses), losses, np.inf)  # of a stranger's loss: as bad as can be
                scores.append(-math.fsum(counts * np.clip(losses, 0.0, self.cut * self.target)))
        wanted = self.target * math.fsum(weights_apart(records.targets)[1])
        return math.fsum(scores) + (wanted if self.goal == "loss" else -wanted)

    @abstractmethod
    def test(
        self, objective: LinearObjective, records: Records, channel: Channel, question: AboveThreshold | None
    ) -> Callable[[Array], bool]:
        """Whether θ is enough, to be asked of one release after another, until it is. The channel was charged for `question`, of
        ε = `cost()`, unless it costs nothing."""

    def cost(self) -> float:
        """The ε of asking, however often; 0 where it costs nothing."""
        return 0.0

    def assumptions(self) -> Sequence[Assumption]:
        """What the decision's privacy rests on."""
        return ()

    def admit(self, objective: LinearObjective) -> None:
        """ValueError where this objective's predictions have no such score."""
        if objective.outputs > 1 or (self.goal == "accuracy" and not isinstance(objective.loss.targets, Signs)):
            raise ValueError(f"Expected a linear model of one output, and classes for an accuracy, got {objective.loss.name}.")


@dataclass(frozen=True, kw_only=True, eq=False)
class LookAtOthers(Stopping):
    """By public records that the model is not trained on: rows (h, d) and targets (h,), ±1 for classes. That costs nothing, and
    losses count as they are."""

    cut = math.inf
    rows: Any = field(repr=False)
    targets: Any = field(repr=False)

    def assumptions(self) -> Sequence[Assumption]:
        return (statements.PUBLIC_HELD_OUT,)

    def admit(self, objective: LinearObjective) -> None:
        super().admit(objective)
        targets = column("held-out targets", self.targets)
        if not self.rows.shape[0] or self.rows.shape != (len(targets), objective.features):
            raise ValueError(
                f"Expected held-out rows of {objective.features} features with a target each, got {self.rows.shape} and "
                f"{len(targets)} targets."
            )
        if not np.isfinite(targets.astype(np.float64)).all():
            raise ValueError("Expected held-out targets that are finite.")
        if self.goal == "accuracy" and len(np.unique(targets)) < 2:
            raise ValueError("Expected held-out records of both classes, got one class only: its share is no accuracy.")
        self._others(objective)  # what cannot be used is refused here, before the charge

    def test(
        self, objective: LinearObjective, records: Records, channel: Channel, question: AboveThreshold | None
    ) -> Callable[[Array], bool]:
        others = self._others(objective)
        return lambda theta: self.excess(objective, others, theta) >= 0

    def _others(self, objective: LinearObjective) -> Records:
        targets = column("held-out targets", self.targets, self.rows.shape[0]).astype(np.float64)
        return objective.records(self.rows, objective.loss.admit(targets))


@dataclass(frozen=True, kw_only=True)
class AskRecords(Stopping):
    """By the records that are trained on, by AboveThreshold, which costs `epsilon` of the budget whenever it stops."""

    epsilon: float

    def cost(self) -> float:
        return check.positive("epsilon", self.epsilon)

    def test(
        self, objective: LinearObjective, records: Records, channel: Channel, question: AboveThreshold | None
    ) -> Callable[[Array], bool]:
        assert question is not None
        test = ThresholdTest(channel, question, self.sensitivity(objective.relation))
        return lambda theta: test.above(self.excess(objective, records, theta))


@dataclass(frozen=True, kw_only=True)
class GradualRelease(Mechanism):
    """θ̃ + noise of multiplier 1/signals[0], then less, down to 1/signals[−1]; it ends at the first that `stopping` finds enough.

    Gaussian noise, or where the budget's δ is 0 of density ∝ exp(−signal·‖b‖/sensitivity).
    θ̃ as of `OutputPerturbation`. `budget` is that of the whole path; `levels[k]` what a stop there costs ex post.
    """

    strong_convexity: check.Scale
    signals: tuple[float, ...]
    levels: tuple[float, ...]
    stopping: Stopping

    def __post_init__(self) -> None:
        super().__post_init__()
        self.statement(1)

    def statement(self, stop: int) -> ExPost:
        """What a stop after so many releases costs."""
        return ExPost(self.signals, self.levels, self.budget.delta, stop, self.stopping.cost())

    @property
    def name(self) -> str:
        return f"accuracy first ({len(self.signals)} stops)"

    @property
    def paper(self) -> str:
        return "Whitehouse, Wu, Ramdas, Rogers 2022; Ligett, Neel, Roth, Waggoner, Wu 2017"

    def sensitivity(self, facts: PublicFacts) -> float:
        """As of output perturbation."""
        moved = facts.lipschitz * (1 if facts.relation is Relation.ADD_OR_REMOVE_ONE else 2)
        return (moved + 2 * self.residual(facts)) / self.strong_convexity

    def residual(self, facts: PublicFacts) -> float:
        return chosen_tolerance(None, facts, self.strong_convexity)

    def event(self, facts: PublicFacts) -> Event:
        check.positive("lipschitz", facts.lipschitz)
        if not facts.smoothness < math.inf:
            raise ValueError("Expected a smooth loss for accuracy first, which finds a minimiser.")
        self.residual(facts)  # refused here, before any charge
        if not self.budget.delta:
            admit_noise(PureDP(self.signals[0], facts.relation), facts.dimension)
            self._admit_path(facts.dimension)
        statement = self.statement(1)
        if question := statement.question(facts.relation):
            moved = self.stopping.sensitivity(facts.relation)
            Grid.of(moved, moved / question.rate, 1)  # refused here, too, where no grid holds what is asked
        statement.verify()  # also levels of somebody else's making
        return statement.event(facts.relation)

    def _admit_path(self, dimension: int) -> None:
        """ValueError where the noise between two scales of a pure path takes too long to draw.

        It is made of a negative binomial number of parts, (dimension + 1)/2·((high/low)² − 1) on average.
        """
        ratios = [after / before for before, after in itertools.pairwise(self.signals)]
        expected = (dimension + 1) / 2 * math.fsum(ratio**2 - 1 for ratio in ratios)
        if not expected <= _MOST_PARTS:
            raise ValueError(
                f"Expected more stops or a smaller span: between {len(self.signals)} noise levels at δ = 0 noise is made of "
                f"{expected:.2g} parts, and at most {_MOST_PARTS} are drawn."
            )

    def refuse(self, objective: LinearObjective, records: int) -> None:
        self.stopping.admit(objective)
        super().refuse(objective, records)

    def train(self, objective: LinearObjective, records: Records, channel: Channel) -> tuple[Array, dict[str, Any]]:
        enough = self.stopping.test(objective, records, channel, self.statement(1).question(objective.relation))
        objective = objective.with_strong_convexity(self.strong_convexity)
        solution = solve(objective, records, 0.0, self.residual(objective.facts))
        sensitivity = self.sensitivity(objective.facts)
        theta, reached, stop = np.zeros(objective.dimension), False, 0
        for theta in self._releases(solution.theta, sensitivity, channel):
            stop += 1
            if reached := enough(theta):
                break
        return theta, {
            "stopped_after": stop,
            "reached": reached,
            "noise_std" if self.budget.delta else "noise_scale": sensitivity / self.signals[stop - 1],
        }

    def _releases(self, theta: Array, sensitivity: float, channel: Channel) -> Iterator[Array]:
        """θ with less and less noise."""
        if not self.budget.delta:
            yield from channel.release(theta, FallingNoise(sensitivity, self.signals, what="minimiser"))
            return
        total = np.zeros(len(theta))
        for signal, multiplier in zip(self.signals, self.statement(1).multipliers, strict=True):
            total += channel.release(theta, GaussianNoise(sensitivity, float(multiplier), what="minimiser")) / multiplier**2
            yield total / signal**2

    def closed(self, certificate: Certificate, trace: Mapping[str, Any]) -> Certificate:
        return certificate.stopped(self.statement(trace["stopped_after"]))

    def assumptions(self, facts: PublicFacts) -> Sequence[Assumption]:
        return (statements.solver(self.residual(facts), facts.size_limit), *self.stopping.assumptions())

    def strangers(self) -> list[Assumption]:
        assumed = "decides by releases and public records alone, or by what it pays for"
        own = [statements.stranger("stopping rule", self.stopping, assumed)] if is_third_party(self.stopping) else []
        return [*super().strangers(), *own]

    def stages(self, objective: LinearObjective, records: Records, released: Sequence[Array], first: int = 0) -> list[Stage]:
        first += self.stopping.cost() > 0  # after the noisy threshold
        return [Stage(self, objective.with_strong_convexity(self.strong_convexity), records, first)]

    def extremes(self, objective: LinearObjective) -> list[Extreme]:
        return steep(objective, self.strong_convexity)

    @property
    def released_kinds(self) -> frozenset[str]:
        return frozenset({"minimiser"} | ({"threshold question"} if self.stopping.cost() else set()))

    minimiser = 0

    def most_records(self, facts: PublicFacts) -> int | None:
        return facts.size_limit

    def settings(self) -> Mapping[str, Any]:
        return {
            "strong_convexity": self.strong_convexity,
            "stops": len(self.signals),
            "goal": self.stopping.goal,
            "target": self.stopping.target,
            "least_epsilon": self.levels[0],
        }


@dataclass(frozen=True, kw_only=True, repr=False)
class AccuracyFirst(Method):
    """The least ε, up to the estimator's, at which output perturbation reaches an `accuracy`, or a mean `loss`.

    It is measured on `held_out` public records (rows, labels): labels are those that the estimator is fitted with. None: on the
    records that are trained on, by AboveThreshold, for `check_share` of ε; a record's loss then counts for at most five times the
    target, and the answer is noisy. The ε is certified, not the accuracy. For two classes or a regression, with `public_size` or
    `strong_convexity` known. The path has `stops` noise levels, the first of them
    `span` times as large as the last. `strong_convexity` as of `Output`: one for the whole path, by default what suits its
    middle.

    The estimator's ε is the most that a stop costs ex post. Its certificate states what the whole path costs, which is less, and
    where it stopped.
    """

    accuracy: check.Share | None = None
    loss: check.Positive | None = None
    held_out: tuple[Any, Any] | None = None
    check_share: check.Share = _CHECK_SHARE
    stops: check.Count = 40
    span: check.Positive = 64.0
    strong_convexity: check.Positive | None = None

    key = "accuracy_first"
    pure = True
    title = "Accuracy first"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.span > 1:
            raise ValueError(f"Expected span above 1, got {self.span!r}.")
        check.integer("stops", self.stops, minimum=2)
        if self.accuracy is not None and self.loss is not None:
            raise ValueError("Expected accuracy or loss, got both.")
        if self.held_out is not None and not (isinstance(self.held_out, tuple) and len(self.held_out) == 2):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError("Expected held_out as (rows, labels).")

    @property
    def needs_size(self) -> bool:
        return self.strong_convexity is None

    def told(self, labels: NDArray[Any] | None, rows: Callable[[Any], Any]) -> Method:
        if self.held_out is None:
            return self
        try:
            admitted = rows(self.held_out[0])
            given = column("labels" if labels is not None else "targets", self.held_out[1], admitted.shape[0])
        except ValueError as error:
            raise ValueError(f"Of the held-out records: {error}") from None
        if labels is None:
            return replace(self, held_out=(admitted, given))
        # also numbers beside texts: what is not among the labels cannot be compared with them
        unknown = [each for each in np.unique(given).tolist() if each not in labels.tolist()]
        if unknown:
            raise ValueError(f"Expected held-out labels among {labels.tolist()}, got {unknown[0]!r}.")
        return replace(self, held_out=(admitted, np.where(given == labels[-1], 1.0, -1.0)))

    def calibrated(self, facts: PublicFacts, budget: Budget, models: int) -> Mechanism:
        if models > 1:
            raise ValueError("Expected two classes, or a regression, for accuracy first: it stops one model.")
        epsilon = check.positive("epsilon", budget.epsilon)
        stopping = self._stopping(epsilon)
        asked = stopping.cost()
        signals, levels = stopping_path(epsilon - asked, budget.delta, self.stops, self.span)
        middle = 1 / math.sqrt(signals[0] * signals[-1])
        middle *= 1 if budget.delta else facts.dimension
        modulus = self.strong_convexity or output_strong_convexity(facts, middle)
        return GradualRelease(
            budget=budget,
            strong_convexity=modulus,
            signals=signals,
            levels=tuple(level + asked for level in levels),
            stopping=stopping,
        )

    def _stopping(self, epsilon: float) -> Stopping:
        if self.accuracy is None and self.loss is None:
            raise ValueError("Expected AccuracyFirst(accuracy=...) or AccuracyFirst(loss=...): it stops where that is reached.")
        goal: Goal = "accuracy" if self.loss is None else "loss"
        target = float(self.accuracy or self.loss or 0.0)
        if self.held_out is None:
            return AskRecords(goal=goal, target=target, epsilon=self.check_share * epsilon)
        rows, targets = self.held_out
        rows = rows if issparse(rows) else np.asarray(rows, dtype=np.float64)
        return LookAtOthers(goal=goal, target=target, rows=rows, targets=targets)

    def to_dict(self) -> dict[str, Any]:
        """Without the held-out records."""
        return {**super().to_dict(), "held_out": None}
