"""The mechanisms that a study compares, each tuned by its public rule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dperm.mechanisms import GradientPerturbation, Mechanism, ObjectivePerturbation, OneVsRest, OutputPerturbation
from dperm.objectives import LinearObjective, Logistic, Softmax, Squared

__all__ = ["CANDIDATES", "Candidate", "Problem"]


@dataclass(frozen=True)
class Problem:
    """The public side of a learning task: `classes` = 0 is regression on targets scaled to [−1, 1]."""

    features: int
    classes: int
    public_size: int
    data_norm: float
    intercept_scale: float
    relation: str = "add_or_remove_one"

    def objective(self, *, joint: bool) -> LinearObjective:
        """The objective, with a softmax loss for K > 2 classes where the mechanism trains them jointly."""
        if self.classes == 0:
            loss, radius = Squared(target_bound=1.0, radius=5.0 / self.data_norm), 5.0 / self.data_norm
        else:
            loss, radius = (Softmax(self.classes) if joint and self.classes > 2 else Logistic()), None
        return LinearObjective(
            loss,
            features=self.features,
            data_norm=self.data_norm,
            intercept_scale=self.intercept_scale,
            radius=radius,
            relation=self.relation,  # type: ignore[arg-type]
            public_size=self.public_size,
        )


@dataclass(frozen=True)
class Candidate:
    """A mechanism as a study names it. `build` calibrates it for a problem, ε and δ."""

    key: str
    title: str
    short: str
    rule: str
    joint: bool
    build: Callable[[Problem, float, float], Mechanism]
    regression: bool = True


def _copies(problem: Problem) -> int:
    return problem.classes if problem.classes > 2 else 1


def _wrapped(part: Mechanism, problem: Problem) -> Mechanism:
    return OneVsRest.of(part, problem.classes) if problem.classes > 2 else part


def _output(problem: Problem, epsilon: float, delta: float) -> Mechanism:
    facts = problem.objective(joint=False).facts
    return _wrapped(OutputPerturbation.calibrate(facts, epsilon, delta, copies=_copies(problem)), problem)


def _objective(calibration: str) -> Callable[[Problem, float, float], Mechanism]:
    def build(problem: Problem, epsilon: float, delta: float) -> Mechanism:
        facts = problem.objective(joint=False).facts
        part = ObjectivePerturbation.calibrate(
            facts,
            epsilon,
            delta,
            calibration=calibration,  # type: ignore[arg-type]
            copies=_copies(problem),
        )
        return _wrapped(part, problem)

    return build


def _gradient(sampling: str) -> Callable[[Problem, float, float], Mechanism]:
    def build(problem: Problem, epsilon: float, delta: float) -> Mechanism:
        facts = problem.objective(joint=True).facts
        return GradientPerturbation.by_rule(facts, epsilon, delta, sampling=sampling)

    return build


_LAMBDA = "Λ minimises σ(Λ)²d/Λ + Λ(40/B)², with σ(Λ) the noise that the budget needs at Λ"
_STEPS = (
    "momentum 0.9, C = 0.3·B, the second half of the iterates averaged, "
    "step size for a travel of 30·S^1.4 clipped gradients, S = nμ/√d "
    "(squared loss: C = B·bound, step size 2/β, full batches S/2 steps)"
)

CANDIDATES = {
    candidate.key: candidate
    for candidate in (
        Candidate("output", "Output perturbation", "Output", "Λ = B²·(σ²n/400)^⅓, σ the noise multiplier", False, _output),
        Candidate(
            "objective-kifer",
            "Objective perturbation, Kifer",
            "Objective, Kifer",
            _LAMBDA,
            False,
            _objective("kifer"),
            regression=False,
        ),
        Candidate(
            "objective-sharp",
            "Objective perturbation, sharp",
            "Objective, sharp",
            _LAMBDA,
            False,
            _objective("sharp"),
            regression=False,
        ),
        Candidate(
            "gradient-full",
            "Gradient descent, full batch",
            "Full-batch descent",
            f"S steps, between 30 and 1,000; {_STEPS}",
            True,
            _gradient("full"),
        ),
        Candidate(
            "gradient-poisson",
            "DP-SGD, Poisson",
            "DP-SGD",
            f"60 epochs of batches of min(512, n/4); {_STEPS}",
            True,
            _gradient("poisson"),
        ),
    )
}
