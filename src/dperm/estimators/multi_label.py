"""Several labels of the same records: a private model for each, one charge and one certificate for all."""

from __future__ import annotations

import math
import warnings
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, MetaEstimatorMixin, clone
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from dperm import _validate as check
from dperm._column import column
from dperm._types import Array
from dperm.distributed.table import of_dask
from dperm.estimators.base import PrivateLinearModel, all_or_nothing
from dperm.estimators.classifiers import PrivateLinearClassifier
from dperm.estimators.records import same_rows
from dperm.privacy import Certificate, Composed, Event, Gaussian, Relation, Risk, SelfComposed, calibrate
from dperm.privacy import epsilon as best_epsilon
from dperm.privacy.accountants.gaussian import gaussian_epsilon
from dperm.release import Channel, SpendLog
from dperm.release.foreseen import foreseen_charge
from dperm.release.selection import set_aside

_MOST_LABELS = 1000
_ROUNDS, _LEFT = 20, 0.02  # of looking for a share, and what it may leave of the budget


def _has_probabilities(meta: Any) -> bool:
    return hasattr(meta.estimator, "predict_proba")


class DPMultiLabel(MetaEstimatorMixin, BaseEstimator):
    """A model for each of several labels of the same records, such as diagnoses that one patient may have several of.

    All models see all records, so that what they cost adds up: the budget of the `estimator` is that of all of them together, and
    each is trained with the share at which their composition costs no more. It is charged once, before the first is trained.

    Parameters
    ----------
    estimator : PrivateLinearClassifier
        A linear classifier of `dperm.estimators` with the budget of all labels, and `classes`, the two values that every label
        may have, such as [0, 1]: public.

    Attributes
    ----------
    models_ : list
        The fitted estimator of each label, in the order of the columns of Y.
    certificate_ : Certificate
        That of all models together; each of them bears it.
    classes_ : array (2,)
        The values of a label.
    n_features_in_ : int

    Examples
    --------
    >>> import numpy as np
    >>> from dperm.estimators import DPLogisticRegression, DPMultiLabel
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-1, 1, (3000, 2)) / 2
    >>> Y = (X + rng.normal(0, 0.1, X.shape) > 0).astype(int)
    >>> model = DPMultiLabel(DPLogisticRegression(epsilon=2.0, classes=[0, 1])).fit(X, Y)
    >>> model.predict(X).shape, model.certificate_.epsilon <= 2.0
    ((3000, 2), True)
    """

    def __init__(self, estimator: Any) -> None:
        self.estimator = estimator

    def fit(self, X: Any, Y: Any, groups: Any = None, *, absent: int = 0) -> Self:
        """Train on rows X (n, d) and labels Y (n, L), one column each; other arguments as of the estimator's `fit`.

        Raises ValueError for unusable input before anything is charged. Whatever fails later, the charge stands.
        """
        self._checked()
        if of_dask(X) or of_dask(Y):
            raise ValueError("Expected rows and labels in memory for several labels, got a collection of Dask.")
        same_rows(X, Y, "Y")
        with all_or_nothing(self):
            self._fit(X, _columns_of(Y), {"groups": groups, "absent": absent})
        return self

    def _checked(self) -> None:
        """TypeError or ValueError for an estimator that cannot be trained on several labels, before any data are seen."""
        one = self.estimator
        if not isinstance(one, PrivateLinearClassifier):
            raise TypeError(f"Expected a linear classifier of dperm.estimators, got {type(one).__name__}.")
        if isinstance(one.epsilon, Risk):
            raise TypeError("Expected epsilon as a number: several labels keep no Risk.")
        check.positive("epsilon", one.epsilon)
        check.fraction("delta", one.delta)
        if one.classes is None or len(np.unique(np.asarray(one.classes))) != 2:
            raise ValueError(f"Expected classes=, the two public values of every label, such as [0, 1], got {one.classes!r}.")

    def _fit(self, X: Any, labels: list[NDArray[Any]], given: dict[str, Any]) -> None:
        share = self._share(X, len(labels))
        shifts = self._seeds(len(labels))
        trials = [clone(self.estimator).set_params(**share, random_state=shift) for shift in shifts]
        planned: list[Event] = []
        for number, (trial, label) in enumerate(zip(trials, labels, strict=True)):
            try:
                planned.append(foreseen_charge(lambda trial=trial, label=label: clone(trial).fit(X, label, **given)).event)
            except (ValueError, TypeError) as error:
                raise type(error)(f"Of label {number}: {error}") from error
        if any(each != planned[0] for each in planned):
            raise ValueError("Expected one event for every label, got others: their models would not cost the same.")
        private = Channel.open(self.estimator.random_state).private
        SpendLog.current().charge(
            Composed(tuple(planned)),
            mechanism=f"{len(labels)} labels of the same records",
            label=self.estimator.label,
            private=private,
            persons=given["groups"] is not None,
        )
        with set_aside(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # said of each label before the charge
            models = [trial.fit(X, label, **given) for trial, label in zip(trials, labels, strict=True)]
        if any(model.certificate_.event != planned[0] for model in models):
            raise ValueError("A label's model spent something else than what it was charged for.")
        self.models_, self.n_features_in_, self.classes_ = models, models[0].n_features_in_, models[0].classes_
        certificates = [model.certificate_ for model in models]
        self.certificate_ = Certificate.of_all(certificates, self.estimator.delta, float(self.estimator.epsilon))

    def _share(self, X: Any, labels: int) -> dict[str, float]:
        """(ε, δ) of one label's model, whose composition costs no more than the budget, and up to a fiftieth less where rules do
        not jump between two shares."""
        one: PrivateLinearModel = self.estimator
        epsilon, delta = float(one.epsilon), float(one.delta)  # pyright: ignore[reportArgumentType]
        if labels == 1:
            return {"epsilon": epsilon, "delta": delta}
        relation = Relation(one.relation)
        noise = calibrate(lambda noise: SelfComposed(Gaussian(noise, relation), labels), epsilon, delta)
        size = np.shape(X)[0] if relation is Relation.REPLACE_ONE else None

        def spent(each: float) -> float:
            trial = clone(one).set_params(epsilon=each, delta=delta / labels)
            mechanism, objective = trial.mechanism_for(np.shape(X)[1], 2, trial.public_size or size)
            return best_epsilon(SelfComposed(mechanism.event(objective.facts), labels), delta)

        best, above, each = 0.0, math.inf, gaussian_epsilon(noise, delta / labels)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for _ in range(_ROUNDS):
                cost = spent(each)
                best, above = (max(best, each), above) if cost <= epsilon else (best, min(above, each))
                if epsilon * (1 - _LEFT) <= cost <= epsilon or above <= best * (1 + _LEFT / 4):
                    break
                each *= min(epsilon / cost, 4.0) * (1 - _LEFT / 20)
                if not best < each < above:  # what a share costs may jump
                    each = (best + above) / 2 if math.isfinite(above) else 2 * best
        if not best:
            raise ValueError(f"Found no share for each of {labels} labels that keeps all within epsilon = {epsilon:g}.")
        return {"epsilon": best, "delta": delta / labels}

    def _seeds(self, labels: int) -> list[Any]:
        """The source of each model's randomness: the system's, or apart from each other for a test."""
        given = self.estimator.random_state
        if given is None:
            return [None] * labels
        if isinstance(given, bool) or not isinstance(given, int | np.integer):
            raise TypeError(f"Expected random_state=None or a whole number for several labels, got {given!r}.")
        return [int(given) * _MOST_LABELS + number for number in range(labels)]

    @property
    def certificate_(self) -> Certificate:
        return self._certificate

    @certificate_.setter
    def certificate_(self, certificate: Certificate) -> None:
        """Each model bears it: by itself it may not say less than all of them cost."""
        self._certificate = certificate
        for model in self.models_:
            model.certificate_ = certificate

    def predict(self, X: Any) -> NDArray[Any]:
        """Labels, shape (n, L)."""
        check_is_fitted(self, "models_")
        return np.column_stack([model.predict(X) for model in self.models_])

    @available_if(_has_probabilities)  # pyright: ignore[reportUntypedFunctionDecorator]
    def predict_proba(self, X: Any) -> Array:
        """Probabilities (n, L) of the second class of each label."""
        check_is_fitted(self, "models_")
        return np.column_stack([model.predict_proba(X)[:, 1] for model in self.models_])

    def score(self, X: Any, Y: Any) -> float:
        """The share of labels that are right, over all columns."""
        labels = _columns_of(Y)
        if len(labels) != len(self.models_):
            raise ValueError(f"Expected {len(self.models_)} columns of labels, got {len(labels)}.")
        return float(np.mean([model.score(X, label) for model, label in zip(self.models_, labels, strict=True)]))


def _columns_of(Y: Any) -> list[NDArray[Any]]:
    """The labels of each column of Y (n, L). ValueError for other shapes."""
    if len(np.shape(Y)) != 2 or not 1 <= np.shape(Y)[1] <= _MOST_LABELS:
        raise ValueError(f"Expected labels Y of shape (n, L), one column a label, up to {_MOST_LABELS:,}, got {np.shape(Y)}.")
    take = Y.iloc.__getitem__ if hasattr(Y, "iloc") else np.asarray(Y).__getitem__
    return [column("labels", take((slice(None), place))) for place in range(np.shape(Y)[1])]
