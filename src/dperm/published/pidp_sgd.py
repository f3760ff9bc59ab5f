"""PIDP-SGD as published (Kang, Li, Liu, Wang, "Data heterogeneity differential privacy: from theory to algorithm", Algorithm 1):
steps on single records, without noise where a record contributes little. Not private at the ε that it states."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from array_api_compat import to_device
from numpy.typing import NDArray
from scipy.sparse.linalg import LinearOperator, minres

from dperm.gradient import SGD, Clip, Gradients, PerExampleGradient, Policy, Update
from dperm.gradient.recipes import budgeted_recipe
from dperm.mechanisms import Budget, GradientPerturbation, Mechanism, Method, one_for_each
from dperm.objectives import LinearObjective, PublicFacts, Task
from dperm.privacy import Composed, Event, Gaussian, Relation, SelfComposed, Unsupported
from dperm.release import GaussianNoise

Array = NDArray[np.float64]

_CLAIM = (
    "PIDP-SGD takes a step without noise where a record's influence passes a noisy test: such a step gives that record's "
    "gradient away; and its noise follows a formula for batches of one record outside the range where that formula holds."
)
_TOLERANCE, _ITERATIONS = 1e-6, 10_000  # of MINRES, relative to what a single-precision network allows
_OF_CONTRIBUTIONS = 2 * math.sqrt(2)  # the paper's c', spelt out in its proof


class _InverseHessian:
    """H⁻¹ by rows, each solved for when it is first asked for: the test of a step seldom sees more than two. By MINRES (Paige,
    Saunders 1975), since a network's H need not be positive."""

    def __init__(self, product: Callable[[Array], Array], size: int) -> None:
        self._matrix = LinearOperator((size, size), matvec=lambda vector: product(np.ravel(vector)), dtype=np.float64)
        self._rows: dict[int, Array] = {}

    def row(self, number: int) -> Array:
        if number not in self._rows:
            unit = np.zeros(self._matrix.shape[0])
            unit[number] = 1.0
            found, left = minres(self._matrix, unit, rtol=_TOLERANCE, maxiter=_ITERATIONS)
            if left or not np.isfinite(found).all():
                raise ArithmeticError(f"MINRES did not come to a row of H⁻¹ in {_ITERATIONS} iterations: raise modulus.")
            self._rows[number] = found
        return self._rows[number]


class _Gradients(Gradients["PidpPlan"]):
    def start(self) -> None:
        plan = self.policy
        self._draws = self.channel.source.generator
        count = len(self.records)
        order = self._draws.integers(max(1, count), size=(plan.steps - self.step, 1))
        self._singles = self.records.stream(list(order[:, : min(1, count)]))  # of nobody, where there is nobody
        self._lipschitz = plan.constants(self.objective)
        self._clip = Clip(self._lipschitz[0])
        self._inverse: _InverseHessian | None = None
        self._global: Any = None  # θ at the last refresh
        self.noiseless: list[int] = []

    def __call__(self, theta: Any) -> Any:
        plan, theta = self.policy, theta + 0.0  # a network's is moved to the last refresh and back
        if self._inverse is None or self.step % plan.steps_per_refresh == 0:
            self._refresh(theta)
        batches = list(next(self._singles))
        number = self.step
        self.step += 1
        noiseless = self._passes(batches)
        gradient = self._gradient(theta, batches)
        if noiseless:
            self.noiseless.append(number)
            return self.regularised(gradient, theta)
        sensitivity, multiplier = self._clip.sensitivity(self.relation), plan.noise_multiplier(self.relation)
        noise = GaussianNoise(sensitivity, multiplier, what=PerExampleGradient.what)
        return self.regularised(self.channel.release(gradient, noise), theta)

    def _gradient(self, theta: Any, batches: list[Any]) -> Any:
        """Of one record; 0 where there is none at all."""
        parts = [self._clip.query(PerExampleGradient().at(self.objective, theta, batch), {}) for batch in batches]
        return parts[0] if parts else self._clip.empty(theta)

    def _refresh(self, theta: Any) -> None:
        """H⁻¹ at θ, of the mean loss with the regulariser, and ζ added to the diagonal (Remark 5)."""
        objective: Any = self.objective
        size, shift = self.policy.public_size, self._shrink + self.policy.modulus

        def product(vector: Array) -> Array:
            return objective.hessian_product(theta, self.records, vector) / size + shift * vector

        self._inverse, self._global = _InverseHessian(product, len(theta)), theta

    def _passes(self, batches: list[Any]) -> bool:
        """Lines 8 to 11. E is added to magnitudes: to signed numbers, as printed, it would make negative ones smaller.

        All coordinates must pass: after the first that does not, the others need not be known.
        """
        assert self._inverse is not None
        plan, limit = self.policy, self.policy.limit
        gradient = np.asarray(to_device(self._gradient(self._global, batches), "cpu"), dtype=np.float64)
        error, spread = plan.error(*self._lipschitz), plan.contribution_noise(self._lipschitz[0])
        for row, noise in enumerate(spread * self._draws.standard_normal(len(gradient))):
            contribution = float(self._inverse.row(row) @ gradient) / plan.public_size
            tested = abs(2 * (contribution + math.copysign(error, contribution)) + float(noise))
            if not (tested < limit and math.log(limit / (limit - tested)) <= 2 * plan.epsilon_steps):
                return False
        return True

    def private(self) -> dict[str, Any]:
        return {"noiseless_steps": np.array(self.noiseless, dtype=np.int64)}

    def restore(self, public: Mapping[str, Any], private: Mapping[str, Any]) -> None:
        self.noiseless = [int(number) for number in private["noiseless_steps"]]

    def summary(self) -> dict[str, Any]:
        return {"noise_levels": [(self.policy.noise_multiplier(self.relation), self.policy.steps)]}


@dataclass(frozen=True)
class PidpPlan(Policy):
    """`steps` steps on one uniform record each, H refreshed `refreshes` times, at a stated (ε, δ). Of linear models with one
    output and of networks.

    ε₁ = 3ε₂ = 3ε/4 and δ₁ = δ₂ = δ/2, as the paper has it. Noise of steps: σ = c·G√(T·ln(1/δ₁))/(nε₁), `constant` c, which the
    paper leaves open; of contributions: 2√2·G·R√(ln(1.25R/δ₂))/(nζε₂). `modulus` is ζ, `space` the radius r of its test.
    `lipschitz` are the constants (G, L, C) of a record's loss, its gradient and its Hessian; None: those of the loss, which a
    network does not have. Gradients are cut at G.
    """

    epsilon: float
    delta: float
    steps: int
    update: Update
    public_size: int
    refreshes: int = 1
    modulus: float = 0.01
    space: float = 10.0
    constant: float = 2.0
    lipschitz: tuple[float, float, float] | None = None

    run = _Gradients
    kind = "PIDP-SGD as published"
    paper = "Kang, Li, Liu, Wang (PIDP-SGD), Algorithm 1 and Theorem 5"
    claim = _CLAIM
    made_anew = "the inverse of the Hessian"

    def refuse(self, objective: Any) -> None:
        if not all(map(math.isfinite, self.constants(objective))):
            raise ValueError("Expected a loss with constants that are finite for PIDP-SGD, which inverts its Hessian.")

    def constants(self, objective: Any) -> tuple[float, float, float]:
        """G, L and C of Theorem 4. ValueError where they are needed and not stated."""
        loss = getattr(objective, "loss", None)
        if loss is not None and objective.outputs > 1:
            raise ValueError("Expected a loss with one output for PIDP-SGD on linear models.")
        if self.lipschitz is not None:
            return self.lipschitz
        if loss is None:
            raise ValueError("Expected lipschitz=(G, L, C) of PIDP-SGD for a network: its loss has no constants of its own.")
        return objective.facts.lipschitz, objective.facts.smoothness, loss.bend(objective.row_norm)

    def __post_init__(self) -> None:
        if self.lipschitz is not None:
            for value in (*self.lipschitz, *[math.nan] * (len(self.lipschitz) != 3)):
                _refuse_other_than_positive("each of lipschitz=(G, L, C)", value)
        for name in ("delta", "epsilon", "modulus", "space", "constant", "steps", "public_size", "refreshes"):
            _refuse_other_than_positive(name, getattr(self, name))
        if self.delta >= 1:
            raise ValueError(f"Expected delta below 1, got {self.delta}.")
        for name in ("steps", "public_size", "refreshes"):
            object.__setattr__(self, name, operator.index(getattr(self, name)))

    @property
    def rate(self) -> float:
        return 1 / self.public_size

    @property
    def expected_batch_size(self) -> float:
        return 1.0

    @property
    def steps_per_refresh(self) -> int:
        return -(-self.steps // self.refreshes)

    @property
    def epsilon_steps(self) -> float:
        """ε₁."""
        return 0.75 * self.epsilon

    @property
    def limit(self) -> float:
        """2re^{ε₁}δ₁/(e^{ε₁} − 1): coordinates of a contribution beyond it mean noise."""
        return 2 * self.space * (self.delta / 2) / -math.expm1(-self.epsilon_steps)

    def noise_multiplier(self, relation: Relation) -> float:
        """Noise of a step in units of what replacing (or adding) the record moves."""
        std = self.constant * math.sqrt(self.steps * math.log(2 / self.delta)) / (self.public_size * self.epsilon_steps)
        return std / Clip(1.0).sensitivity(relation)

    def contribution_noise(self, steep: float) -> float:
        """σ_(c); `steep` is G."""
        root = math.sqrt(math.log(1.25 * self.refreshes / (self.delta / 2)))
        return _OF_CONTRIBUTIONS * steep * self.refreshes * root / (self.public_size * self.modulus * self.epsilon / 4)

    def error(self, steep: float, smoothness: float, bend: float) -> float:
        """E of Theorem 4."""
        zeta = self.modulus
        return (2 * smoothness * steep + bend * steep**2 / zeta) / (zeta * self.public_size) ** 2

    def event(self, relation: Relation, start: int = 0, stop: int | None = None) -> Event:
        steps = (self.steps if stop is None else stop) - start
        if steps <= 0:
            return Composed(())
        noisy = SelfComposed(Gaussian(self.noise_multiplier(relation), relation), steps)
        return Composed((noisy, Unsupported(_CLAIM, relation)))


@budgeted_recipe
def pidp_sgd(
    *,
    epsilon: float,
    delta: float,
    public_size: int | None,
    steps: int | None = None,
    refreshes: int = 1,
    modulus: float = 0.01,
    space: float = 10.0,
    constant: float = 2.0,
    lipschitz: tuple[float, float, float] | None = None,
    update: Update | None = None,
) -> PidpPlan:
    """`steps` (None: public_size) steps on single records; see `PidpPlan`. Networks need `lipschitz`."""
    if public_size is None:
        raise ValueError("Expected public_size for PIDP-SGD, whose noise is made for a known number of records.")
    count = public_size if steps is None else steps
    return PidpPlan(epsilon, delta, count, update or SGD(0.1), public_size, refreshes, modulus, space, constant, lipschitz)


@dataclass(frozen=True, kw_only=True, repr=False)
class PublishedPidp(Method):
    """PIDP-SGD as published, `epochs` times as many steps as records. It is not private at the ε it states, and only claimed.

    `strong_convexity` is Λ of (Λ/2)‖θ‖², the others those of `PidpPlan`.
    """

    epochs: float = 1.0
    learning_rate: float = 0.1
    refreshes: int = 1
    modulus: float = 0.01
    space: float = 10.0
    strong_convexity: float | None = None

    key = "pidp-sgd-published"
    title = "PIDP-SGD as published"
    claimed = True
    needs_size = True

    def __post_init__(self) -> None:
        super().__post_init__()
        for field in fields(self):
            if getattr(self, field.name) is not None:
                _refuse_other_than_positive(field.name, getattr(self, field.name))

    def objective(self, task: Task, budget: Budget | None = None) -> LinearObjective:
        return task.objective(strong_convexity=self.strong_convexity or 0.0)

    def calibrated(self, facts: PublicFacts, budget: Budget, models: int) -> Mechanism:
        assert facts.public_size is not None
        if budget.epsilon is None:
            raise ValueError("Expected a budget that states epsilon for PIDP-SGD.")
        plan = pidp_sgd(
            epsilon=budget.epsilon / models,
            delta=budget.delta / models,
            public_size=facts.public_size,
            steps=max(1, round(self.epochs * facts.public_size)),
            refreshes=self.refreshes,
            modulus=self.modulus,
            space=self.space,
            update=SGD(self.learning_rate),
        )
        return one_for_each(GradientPerturbation(budget=budget, plan=plan), models)


def _refuse_other_than_positive(name: str, value: Any) -> None:
    if isinstance(value, bool | str) or not (0 < value < math.inf):
        raise ValueError(f"Expected {name} to be a positive number, got {value!r}.")
