"""What the linear estimators share: parameters, the choice of a mechanism, fitting, and prediction on scaled rows."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted, validate_data

from dperm import _validate as check
from dperm._remind import remind_of_budget, remind_of_delta, remind_of_size
from dperm.gradient.importance import admit_batch
from dperm.mechanisms import (
    Budget,
    GradientPerturbation,
    Mechanism,
    NoisySize,
    ObjectivePerturbation,
    OneVsRest,
    OutputPerturbation,
    Release,
)
from dperm.mechanisms.rules import gradient_plan
from dperm.objectives import LinearObjective, Loss, PublicFacts, Softmax
from dperm.privacy import Assumption, Channel, Relation, rdp_budget, statements

__all__ = ["PrivateLinearModel", "plain"]

Array = NDArray[np.float64]

_SAMPLINGS = {"poisson": "Poisson", "importance": "importance sampling", "full": "full batch"}  # as plans call them


class PrivateLinearModel(BaseEstimator):
    """Base of the private linear models; see a subclass for the parameters.

    Fitted attributes: `coef_`, `intercept_`, `certificate_`, `trace_` (public numbers of the run), `n_features_in_`, and
    `fitted_params_`, the parameters that the fit had.
    Coefficients apply to rows scaled to norm ≤ data_norm, as `predict` does.
    """

    #: Mechanisms this estimator offers, the default first.
    _mechanisms: tuple[str, ...] = ("auto", "objective", "output", "gradient")

    epsilon: float
    delta: float
    mechanism: str
    calibration: str
    sampling: str
    data_norm: float
    relation: str
    public_size: int | None
    fit_intercept: bool
    intercept_scale: float | None
    strong_convexity: float | None
    expected_batch_size: float | None
    epochs: float | None
    clipping_norm: float | None
    learning_rate: float | None
    label: str
    random_state: Any

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def _check_parameters(self) -> None:
        """Everything that can be refused without looking at data."""
        check.plain_numbers(self, self.get_params(deep=False))
        remind_of_budget(check.positive("epsilon", self.epsilon), check.fraction("delta", self.delta, zero=True), stacklevel=3)
        check.positive("data_norm", self.data_norm)
        if not 1e-50 < self.data_norm < 1e50:
            raise ValueError(f"Expected data_norm between 1e-50 and 1e50, got {self.data_norm!r}.")
        if type(self.label) is not str:
            raise TypeError(f"Expected label to be text, got {self.label!r}.")
        check.choice("mechanism", self.mechanism, self._mechanisms)
        check.choice("sampling", self.sampling, ("poisson", "importance", "full"))
        check.choice("calibration", self.calibration, ("sharp", "generic", "kifer"))
        check.choice("relation", self.relation, [relation.value for relation in Relation])
        if self.delta == 0 and self.mechanism not in ("output", "auto"):
            raise ValueError(f"Expected delta in (0, 1) for mechanism={self.mechanism!r}, got 0; only 'output' has a pure form.")
        for name in (
            "strong_convexity",
            "expected_batch_size",
            "epochs",
            "clipping_norm",
            "learning_rate",
            "intercept_scale",
        ):
            value = getattr(self, name)
            if value is not None:
                check.positive(name, value)
        if self.public_size is not None:
            check.integer("public_size", self.public_size)

    def _validated(self, X: Any, y: Any, *, y_numeric: bool) -> tuple[Any, Any]:
        """Finite rows and targets of matching length: refused here, before anything is charged."""
        return validate_data(
            self, X, y, accept_sparse="csr", dtype=[np.float64, np.float32], y_numeric=y_numeric, ensure_min_samples=1
        )

    def _fit(self, X: Any, targets: Array, classes: int, assumptions: list[Assumption], absent: int) -> Release:
        """Choose and calibrate the mechanism from public facts, then release. `classes` = 0 for regression; `absent` records
        hold nothing, and are records."""
        relation = Relation(self.relation)
        present = None
        if check.integer("absent", absent, minimum=0):
            present = np.arange(X.shape[0] + absent) < X.shape[0]
            X = _with_empty_rows(X, absent)
            targets = np.append(targets, np.full(absent, targets[0]))
        # Under replace-one the number of records is public by definition.
        size = X.shape[0] if relation is Relation.REPLACE_ONE else self.public_size
        if size is not None:
            remind_of_delta(self.delta, size, stacklevel=3)
        mechanism, objective = self._problem(X.shape[1], classes, size)
        if size is not None and self._needs_size():
            remind_of_size(size, X.shape[0], "what was chosen by it suits other data.", stacklevel=3)
        scale = objective.intercept_scale
        channel = Channel.open(self.random_state, label=self.label)
        release = mechanism.release(objective, objective.records(X, targets, present=present), channel)
        self.objective_ = objective
        self.fitted_params_ = {name: value for name, value in self.get_params().items() if name != "random_state"}
        self.certificate_ = release.certificate.with_assumptions(*assumptions)
        self.trace_ = plain(dict(release.trace))
        table = release.theta
        if objective.outputs > 1:
            table = table.reshape(-1, objective.outputs).T
        table = np.atleast_2d(table)
        self.coef_ = table[:, : X.shape[1]].copy()
        self.intercept_ = scale * table[:, -1] if scale else np.zeros(len(table))
        return release

    @abstractmethod
    def _loss(self) -> Loss:
        """The loss of one model, by this estimator's parameters."""

    @abstractmethod
    def mechanism_for(self, features: int, classes: int = 2, public_size: int | None = None) -> tuple[Mechanism, LinearObjective]:
        """What a fit on rows of so many features would run: known before any data, for previews and audits.

        `public_size` stands for the number of records where that is public; None: as set. Raises ValueError as `fit` does.
        """

    def _problem(self, features: int, classes: int, size: int | None) -> tuple[Mechanism, LinearObjective]:
        self._chosen = self._choice(classes)
        if self.sampling == "importance" and self._chosen != "gradient":
            raise ValueError(f"Expected mechanism='gradient' with sampling='importance', got {self._chosen} perturbation.")
        objective = self.objective_for(features, classes, size)
        return self._calibrated(objective.facts, classes), objective

    def objective_for(self, features: int, classes: int, public_size: int | None = None) -> LinearObjective:
        """What a fit minimises, by this estimator's parameters; `classes` = 0 for regression."""
        self._chosen = self._choice(classes)
        loss = Softmax(classes) if classes > 2 and self._chosen == "gradient" else self._loss()
        return LinearObjective(
            loss,
            features=features,
            data_norm=self.data_norm,
            intercept_scale=(self.intercept_scale or 0.5 * self.data_norm) if self.fit_intercept else 0.0,
            strong_convexity=(self.strong_convexity or 0.0) if self._chosen == "gradient" else 0.0,
            radius=loss.ball,
            relation=Relation(self.relation),
            public_size=public_size,
        )

    def _choice(self, classes: int) -> str:
        """What "auto" means: one model by objective perturbation, K > 2 classes jointly by gradient perturbation."""
        if self.mechanism != "auto":
            return self.mechanism
        if self.delta == 0:
            return "output"
        return "gradient" if classes > 2 else "objective"

    def _needs_size(self) -> bool:
        """Whether what is chosen depends on the number of records."""
        return self._chosen == "gradient" or (self._chosen == "output" and self.strong_convexity is None)

    def _calibrated(self, facts: PublicFacts, classes: int) -> Mechanism:
        make = self._maker(classes)
        if self._needs_size() and facts.public_size is None:
            return self._with_noisy_size(make, facts, classes)
        if self._chosen == "gradient" and self.sampling == "importance" and self.expected_batch_size and facts.public_size:
            admit_batch(self.expected_batch_size, facts.public_size)
        return make(facts, self.epsilon)

    def _with_noisy_size(self, make: Callable[..., Mechanism], facts: PublicFacts, classes: int) -> Mechanism:
        budget = Budget(self.delta, self.epsilon)
        label = f"{self._chosen} perturbation"
        if self._chosen == "output":
            named: dict[str, Any] = {"label": label, "classes": classes if classes > 2 else 0}
            rests_on = (statements.solver(None, facts.size_limit),)
            return NoisySize.known(
                lambda facts, count: make(facts, self.epsilon, beside=count), facts, budget, rests_on=rests_on, **named
            )
        label += f" ({_SAMPLINGS[self.sampling]})"
        if self.sampling == "importance":
            filter = rdp_budget(self.epsilon, self.delta)
            return NoisySize.filtered(lambda facts: make(facts, self.epsilon, filter=filter), filter, budget, label=label)

        settings = {"sampling": self.sampling, **self._steps_settings()}
        return NoisySize.below(
            lambda facts: gradient_plan(facts, self.epsilon, self.delta, **settings), facts, budget, label=label
        )

    def _steps_settings(self) -> dict[str, Any]:
        """What is said of gradient perturbation; None: the rule's."""
        names = ("expected_batch_size", "epochs", "clipping_norm", "learning_rate", "strong_convexity")
        return {name: getattr(self, name) for name in names}

    def _maker(self, classes: int) -> Callable[..., Mechanism]:
        """(facts, ε, **how it is held) → calibrated mechanism, for this estimator's settings."""
        copies = classes if classes > 2 and self._chosen != "gradient" else 1
        modulus = self.strong_convexity

        def make(facts: PublicFacts, epsilon: float, **held: Any) -> Mechanism:
            if self._chosen == "gradient":
                return GradientPerturbation.by_rule(
                    facts,
                    epsilon,
                    self.delta,
                    sampling=self.sampling,
                    **self._steps_settings(),
                    **held,
                )
            if self._chosen == "output":
                part: Mechanism = OutputPerturbation.calibrate(
                    facts, epsilon, self.delta, strong_convexity=modulus, copies=copies, **held
                )
            else:
                part = ObjectivePerturbation.calibrate(
                    facts,
                    epsilon,
                    self.delta,
                    calibration=self.calibration,  # type: ignore[arg-type]
                    strong_convexity=modulus,
                    copies=copies,
                )
            return OneVsRest.of(part, classes) if copies > 1 else part

        return make

    def _scores(self, X: Any) -> Array:
        """Predictions x̂ᵀw + intercept for rows scaled to norm ≤ data_norm: (n,) or (n, K)."""
        check_is_fitted(self)
        X = validate_data(self, X, accept_sparse="csr", dtype=[np.float64, np.float32], reset=False)
        records = self.objective_.records(X, np.zeros(X.shape[0]), keep=False)
        parts = [(batch.rows @ np.atleast_2d(self.coef_).T) * batch.units[:, None] for batch in records.batches()]
        scores = np.concatenate(parts) + self.intercept_
        return np.ascontiguousarray(scores[:, 0]) if scores.shape[1] == 1 else scores


def plain(value: Any) -> Any:
    """As JSON has it: arrays and tuples are lists, NumPy's numbers are numbers."""
    return json.loads(json.dumps(value, default=lambda other: np.asarray(other).tolist(), allow_nan=False))


def _with_empty_rows(rows: Any, count: int) -> Any:
    if sp.issparse(rows):
        return sp.vstack([rows, sp.csr_matrix((count, rows.shape[1]), dtype=rows.dtype)], format="csr")
    return np.concatenate([rows, np.zeros((count, rows.shape[1]), dtype=rows.dtype)])
