"""Private ordinal regression: classes with an order, and no distances between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dperm import _validate as check
from dperm._types import Array
from dperm.distributed.table import by_part
from dperm.estimators.classifiers import PrivateLinearClassifier
from dperm.estimators.records import admit_labels
from dperm.objectives import Loss, OrdinalLogistic, Task, Weighted
from dperm.objectives.ordinal import CumulativeLogits, thresholds_of
from dperm.privacy import Assumption

if TYPE_CHECKING:
    pass

_MOST_CLASSES = 100


@dataclass(kw_only=True, eq=False, repr=False)
class DPOrdinalClassifier(PrivateLinearClassifier):
    """Differentially private ordinal regression by cumulative logits (proportional odds; McCullagh 1980): one score for each row,
    cut by public thresholds into classes that have an order.

    `predict` answers the median class, whose expected distance in ranks is least. A model of K classes costs what one of two
    costs: it has one weight for each feature, whatever K is, and a record's gradient is no longer than `data_norm`
    (`dperm.objectives.OrdinalLogistic` has the proof).

    Parameters
    ----------
    classes : sequence
        All possible labels in their order, from the least to the greatest: public. None takes those that are present, which must
        then be numbers, in the order of numbers, and records "label set taken as public".
    shares : sequence of float or None
        The publicly known share of each class, in their order: at a score of 0 the classes are met as often. None: all alike.
        Only how far thresholds lie from each other matters, for scale and origin are learnt.
    mechanism : str or Method
        "auto" (default) is objective perturbation, by the bound that holds for any loss of bounded slope and curvature; "output"
        and "gradient" are others.

    Other parameters as for `DPLogisticRegression`.

    Attributes
    ----------
    classes_ : array (K,)
        The labels, in their order.
    thresholds_ : array (K − 1,)
        Between the classes, for scores: public.
    coef_, intercept_ : arrays (1, d) and (1,)
        Of the score.

    Examples
    --------
    >>> import numpy as np
    >>> from dperm.estimators import DPOrdinalClassifier
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-1, 1, (5000, 2)) / 2
    >>> y = np.array(["bad", "fair", "good"])[np.digitize(X[:, 0] + rng.normal(0, 0.1, 5000), [-0.15, 0.15])]
    >>> model = DPOrdinalClassifier(epsilon=2.0, classes=["bad", "fair", "good"]).fit(X, y)
    >>> model.predict_proba(X).shape
    (5000, 3)
    >>> bool(model.score(X, y) > 0.6)
    True
    """

    shares: Sequence[float] | None = None

    def _cuts(self, classes: int) -> tuple[float, ...]:
        """The thresholds of so many classes. ValueError for shares that are none."""
        if not 2 <= classes <= _MOST_CLASSES:
            raise ValueError(f"Expected 2 to {_MOST_CLASSES} ordered classes, got {classes}: use a regression for more.")
        if self.shares is None:
            return thresholds_of(np.ones(classes))
        given = [check.positive("shares", share) for share in self.shares]
        if len(given) != classes or not abs(sum(given) - 1) <= 0.01:
            raise ValueError(f"Expected shares of the {classes} classes, which add up to 1, got {given!r:.80}.")
        return thresholds_of(np.array(given))

    def _count(self, classes: int = 0) -> int:
        """The number of classes: as stated, as told, or as last seen."""
        if self.classes is not None:
            return len(np.asarray(self.classes))
        return classes or len(getattr(self, "classes_", (0, 1)))

    def make_loss(self) -> Loss:
        return OrdinalLogistic(self._cuts(self._count()))

    def task(self, features: int, classes: int = 0, public_size: int | None = None, *, weighed: bool = False) -> Task:
        """One model, whatever the number of classes; arguments as of `PrivateLinearModel.task`."""
        loss = OrdinalLogistic(self._cuts(self._count(classes)))
        return replace(super().task(features, 0, public_size), loss=Weighted(loss) if weighed or self._weighs else loss)

    def _targets(self, y: Any) -> tuple[NDArray[Any], int, list[Assumption]]:
        """Centred ranks. ValueError for labels outside the stated ones, for stated ones that are not distinct, and for labels
        without a stated order that are no numbers."""
        known, index, said = admit_labels(y, self.classes)
        if self.classes is None and not all(isinstance(label, Real | np.bool_) for label in known):
            raise ValueError(
                "Expected classes= with all labels in their order, from the least to the greatest, such as "
                f"classes={_shown(known)}: labels that are no numbers would be taken in the order of the alphabet."
            )
        self.classes_ = known if self.classes is None else np.asarray(self.classes)
        if len(known) < len(self.classes_):
            raise ValueError(f"Expected distinct classes, got {self.classes!r:.80}.")
        return _ranks(index, self.classes_), len(known), [said]

    def _learnt_targets(self, y: Any, labels: NDArray[Any] | None, task: Task) -> NDArray[Any]:
        """Centred ranks (n,) of labels y (n,)."""
        assert labels is not None
        return _ranks(np.searchsorted(np.sort(labels), y), labels)

    def _weights(self, size: int, index: NDArray[Any] | None, sample_weight: Any) -> tuple[Array | None, list[Assumption]]:
        """Of classes by their places, which centred ranks have."""
        places = None if index is None else np.rint(index + (self._count() - 1) / 2).astype(np.intp)
        return super()._weights(size, places, sample_weight)

    def scores_of(self, classes: int) -> int:
        return 1

    @property
    def thresholds_(self) -> Array:
        """(K − 1,) between the classes."""
        link = self.objective_.loss.link
        assert isinstance(link, CumulativeLogits)
        return np.array(link.thresholds)

    @by_part
    def predict(self, X: Any) -> NDArray[Any]:
        """The median class of each row, shape (n,)."""
        scores = self._scores(X)  # which refuses a model that is not fitted
        return self.classes_[self.objective_.loss.link.answer(scores)]

    @by_part
    def predict_proba(self, X: Any) -> Array:
        """Probabilities (n, K) of the classes, in their order."""
        scores = self._scores(X)
        return self.objective_.loss.link.inverse(scores)

    def epsilon_path(self, *_: Any, **__: Any) -> Any:
        """ValueError: utility along ε is known for two classes and squared loss."""
        raise ValueError("Expected two classes without an order for a path along epsilon: DPLogisticRegression has one.")

    def _plain_steps(self, target_range: tuple[float, float] | None) -> list[tuple[str, Any]]:
        """ValueError: scikit-learn has no model of ordered classes."""
        raise ValueError(
            "Expected a model that scikit-learn has, which knows none of ordered classes: coef_, intercept_, thresholds_ and "
            "classes_ are all of this one."
        )


def _shown(labels: NDArray[Any]) -> str:
    """Labels as a list to copy, of which long ones are cut."""
    return f"{labels.tolist()!r:.80}"


def _ranks(index: NDArray[np.integer], labels: NDArray[Any]) -> NDArray[Any]:
    """Centred ranks (n,) of records whose labels stand at these places (n,) of the sorted labels; `labels` has their order."""
    places = np.argsort(labels, kind="stable")  # of each sorted label among them
    return places[index] - (len(labels) - 1) / 2
