"""Private linear classifiers in scikit-learn's style."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import ClassifierMixin, clone

from dperm import _validate as check
from dperm._types import Array
from dperm.distributed.sums import PartSums
from dperm.distributed.table import by_part, of_dask, refuse_dask
from dperm.estimators.base import WithMechanism
from dperm.estimators.exporting import MarginLogOdds, with_coefficients
from dperm.estimators.records import HeldOut, admit_labels, admit_records, beside
from dperm.estimators.scores import accuracy_of_parts
from dperm.mechanisms import Auto, Coordinate, Method, Objective
from dperm.objectives import Hinge, Huber, Logistic, Loss
from dperm.objectives.probabilities import class_probabilities
from dperm.objectives.targets import Logit
from dperm.privacy import Assumption

if TYPE_CHECKING:
    from dperm.utility import UtilityCurve

_L1_SHARES = {"l1": 1.0, "l2": 0.0, "elasticnet": 0.5}  # of penalties


@dataclass(kw_only=True, eq=False, repr=False)
class PrivateLinearClassifier(ClassifierMixin, WithMechanism):
    """Base of the classifiers: labels, one-vs-rest or softmax, and decisions."""

    classes: ArrayLike | None = None
    class_weight: Mapping[Any, float] | None = None
    neighbours: Sequence[tuple[int, int]] | None = None

    def _class_weight(self) -> Mapping[Any, float] | None:
        return self.class_weight

    def _neighbours(self) -> Sequence[tuple[int, int]]:
        return () if self.neighbours is None else self.neighbours

    _numeric = False

    def _targets(self, y: Any) -> tuple[NDArray[Any], int, list[Assumption]]:
        self.classes_, index, labels = admit_labels(y, self.classes)
        return index, len(self.classes_), [labels]

    def epsilon_path(
        self,
        X: Any,
        y: Any,
        *,
        low: float = 0.1,
        high: float = 10.0,
        draws: int = 20,
        held_out: float | tuple[Any, Any] = 0.2,
        tolerance: float | None = None,
        random_state: int | None = None,
    ) -> UtilityCurve:
        """What objective perturbation would give at every ε from `low` to `high`, for so many draws of the noise.

        Trained on X (n, d) and y (n,) of two classes, short of a random share `held_out` that it is measured on; or measured on
        other rows and labels. `epsilon_for` of what is returned finds the ε that a target asks for. The mechanism is "objective"
        (or "auto") or an `Objective`, with the penalty on roughness that it states: what the rule has by ε is left out. This
        estimator's ε is not used, and it is not fitted. `tolerance` as of `UtilityPath`.

        NOT PRIVATE, and nothing is charged: it looks at the records. ValueError for other mechanisms and more than two classes.
        """
        from dperm.utility import EpsilonCurve, UtilityCurve, UtilityPath

        self._check_parameters()
        refuse_dask(X=X, y=y)
        if self._weighs:
            raise ValueError("Expected no class_weight and no max_sample_weight: the path of weighted records is not followed.")
        method = self._method()
        if isinstance(method, Auto):
            method = Objective()
        if not isinstance(method, Objective):
            raise ValueError(f"Expected mechanism='objective', whose minimiser can be followed along epsilon, got {method!r}.")
        looks = clone(self)
        X, y = admit_records(looks, X, y, numeric=False, least=2)
        known, index, _ = admit_labels(y, self.classes)
        if len(known) != 2:
            raise ValueError(f"Expected two classes, got {len(known)}: look at one against the rest.")
        if isinstance(held_out, tuple):
            others = HeldOut.of(looks, held_out, numeric=False)
            rows, labels = looks._rows_alike(others.rows), admit_labels(others.targets, known)[1]
        else:
            check.fraction("held_out", held_out)
            from sklearn.model_selection import train_test_split

            X, rows, index, labels = train_test_split(X, index, test_size=held_out, random_state=random_state)
        task = self.task(X.shape[1], 2)
        objective = method.objective(task)
        curve = EpsilonCurve(objective.facts, self.delta, low, high, method.calibration, method.strong_convexity)
        records = objective.records(X, task.targets(index))
        path = UtilityPath(objective, records, curve, draws=draws, tolerance=tolerance, random_state=random_state)
        return UtilityCurve.of(path, rows, task.targets(labels))

    def _plain_steps(self, target_range: tuple[float, float] | None) -> list[tuple[str, Any]]:
        from sklearn.svm import LinearSVC

        return [("model", with_coefficients(LinearSVC(), self.coef_, self.intercept_, self.classes_))]

    def _classes(self, classes: int) -> int:
        return check.integer("classes", classes, minimum=2)

    @by_part
    def decision_function(self, X: Any) -> Array:
        """Scores: (n,) for two classes (positive: the second), otherwise (n, K)."""
        return self._scores(X)

    @by_part
    def predict(self, X: Any) -> NDArray[Any]:
        """Labels, shape (n,)."""
        scores = self._scores(X)  # which refuses a model that is not fitted
        return self.classes_[self.objective_.loss.link.answer(scores)]

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Accuracy."""
        if of_dask(X):
            return accuracy_of_parts(self.predict, PartSums(X, y, sample_weight))
        truth, weights = beside(answers := self.predict(X), y, sample_weight)
        return self._metric(truth, answers, weights)

    def _metric(self, truth: NDArray[Any], answers: NDArray[Any], weights: Array | None) -> float:
        from sklearn.metrics import accuracy_score

        return float(accuracy_score(truth, answers, sample_weight=weights))


@dataclass(kw_only=True, eq=False, repr=False)
class DPLogisticRegression(PrivateLinearClassifier):
    """Differentially private logistic regression.

    Parameters
    ----------
    epsilon, delta : the budget. `delta` = 0 asks for pure privacy (mechanism "output"). `epsilon` may be a `Risk`, what an
        attacker may achieve at most: `Risk(advantage=0.1)`.
    mechanism : "objective", "output" or "gradient", by public rules, or a method of `dperm.mechanisms` with settings:
        `Gradient(sampling="importance", epochs=20)`, `Objective(calibration="kifer")`, `Output(strong_convexity=10.0)`.
        "auto" (default): objective perturbation for two classes, with a margin (docs/margin.md): `Objective(margin=0)` for scores
        that are log-odds. Gradient perturbation of a softmax model for more classes, pure output perturbation for `delta` = 0.
    penalty, alpha : "l1", "l2" or "elasticnet" (half of each): alpha times the penalty beside the *mean* loss, by coordinate
        descent. None: what the mechanism has by its public rule.
    data_norm : public bound on a row's L2 norm; longer rows are scaled down to it. Never learned.
    relation : "add_or_remove_one" (n is private) or "replace_one" (n is public).
    classes : all possible labels. None takes those present and records "label set taken as public".
    class_weight : public weights by label, {"no": 1, "yes": 4}, for two classes: errors on a rare label count for more.
        "balanced" would count the labels, and is refused. Probabilities are then those of records so weighted.
    max_sample_weight : with `sample_weight` in `fit`, the most that a row may count; public. Weights are relative to it, and each
        above it is clipped to it by itself. None: 1. A weight must be a function of its own record alone: divide none by their
        sum, mean or maximum.
    public_size : publicly known number of records, or of persons. None under add/remove: released with noise and charged where
        a formula needs it (`Gradient`, and `Output` without `strong_convexity`).
    max_rows_per_unit : with `groups` in `fit`, the most rows that are used of a person; public. Neighbours then differ in all
        rows of one person.
    neighbours : pairs (i, j) of columns that are next to each other on a curve, such as `Schema.neighbours`: where the number of
        records is public and the signal weak, objective perturbation draws their weights together (`Objective.roughness`).
    fit_intercept, intercept_scale : a constant feature of this value (default data_norm/2), regularised like the others.
    label : names the data set in the spend log.
    random_state : None for real noise. A fixed seed is for tests: the certificate then says "not private".

    Attributes
    ----------
    certificate_ : what the fit cost and on what assumptions. classes_, coef_, intercept_, trace_, n_features_in_.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from dperm.estimators import DPLogisticRegression
    >>> X, y = load_iris(return_X_y=True)
    >>> model = DPLogisticRegression(epsilon=2.0, data_norm=10.0, classes=[0, 1, 2]).fit(X, y)
    >>> model.certificate_.epsilon <= 2.0
    True
    """

    penalty: str | None = None
    alpha: float = 1e-3

    def make_loss(self) -> Loss:
        return Logistic()

    def _method(self) -> Method:
        alpha, given = check.non_negative("alpha", self.alpha), super()._method()
        if self.penalty is None:
            return given
        share = _L1_SHARES[check.choice("penalty", self.penalty, _L1_SHARES)]
        if not isinstance(given, Auto):
            raise ValueError(f"Expected mechanism='auto' with penalty={self.penalty!r}, or the penalty as the mechanism's own.")
        return Coordinate(l1=alpha * share, l2=alpha * (1 - share))

    def _plain_steps(self, target_range: tuple[float, float] | None) -> list[tuple[str, Any]]:
        """Softmax, two classes, or a model for each class; with a margin these take log-odds as they are."""
        from sklearn.linear_model import LogisticRegression
        from sklearn.multiclass import OneVsRestClassifier

        steps: list[tuple[str, Any]] = []
        coef, intercept, link = self.coef_, self.intercept_, self.objective_.loss.link
        if isinstance(link, Logit) and link.margin:
            odds = MarginLogOdds(coef, intercept, link.margin)
            odds.n_features_in_ = coef.shape[1]
            steps, coef, intercept = [("log-odds", odds)], np.eye(len(coef)), np.zeros(len(coef))
        if self.objective_.outputs > 1 or len(coef) == 1:
            return [*steps, ("model", with_coefficients(LogisticRegression(), coef, intercept, self.classes_))]
        # what knows the labels it makes when it is fitted: here to rows of zeros
        each = OneVsRestClassifier(LogisticRegression()).fit(np.zeros((len(coef), coef.shape[1])), self.classes_)
        each.estimators_ = [
            with_coefficients(LogisticRegression(), row[None], [b], [0, 1]) for row, b in zip(coef, intercept, strict=True)
        ]
        return [*steps, ("model", each)]

    @by_part
    def predict_proba(self, X: Any) -> Array:
        """Probabilities (n, K): what the loss makes of a score for two classes, normalised one-vs-rest or softmax otherwise."""
        scores = self._scores(X)
        return class_probabilities(self.objective_, scores)


@dataclass(kw_only=True, eq=False, repr=False)
class DPLinearSVC(PrivateLinearClassifier):
    """Differentially private linear support vector machine with the Huber hinge of `half_width`, or with 0 the plain hinge; more
    than two classes have a model each.

    Other parameters as for `DPLogisticRegression`. The curvature of this loss is 1/(2·half_width): a smaller width is
    closer to the hinge and needs more regularisation. The plain hinge has none: it is for gradient perturbation.
    """

    half_width: float = 0.5

    def make_loss(self) -> Loss:
        return Huber(self.half_width) if check.non_negative("half_width", self.half_width) else Hinge()
