"""One private model for each part of the records, split by a public column, for the price of the dearest."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Self

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from sklearn.base import MetaEstimatorMixin, clone, is_classifier
from sklearn.utils import get_tags
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from dperm import _validate as check
from dperm.distributed import parted_table
from dperm.estimators.base import PrivateLinearModel, all_or_nothing
from dperm.estimators.records import beside
from dperm.estimators.shown import ShowsGuarantee
from dperm.mechanisms import ByPart, Mechanism
from dperm.objectives import RECORD, LinearObjective
from dperm.privacy import Certificate


class DPByPart(MetaEstimatorMixin, ShowsGuarantee):
    """A model for each part of the records: parallel composition, charged as one.

    Each record, or person, is in one part at most, by its own entries, so that each meets one model: all of them together cost
    what the dearest costs by itself. Parts without any record have a model too. See `dperm.mechanisms.ByPart`.

    Parameters
    ----------
    estimator : a linear estimator of dperm.estimators, with the budget of each part's model, under add/remove and without
        public_size; a fixed random_state makes the run not private.
    fit_by : which feature, counted from 0, stands for each part: {"north": 3, "south": 4}, the one-hot features of a category, as
        `Schema.columns_of("ward")` has them. A record is in the part of its largest positive one, and in none without one. The
        parts are public: state all that there may be, whether or not somebody is in them.
    public_sizes : the publicly known number of records of each part, or one number for all; None: not known.

    Attributes
    ----------
    models_ : the fitted estimator of each part, by its name
    certificate_ : that of all models together; each of them bears it
    classes_, n_features_in_ : as of the estimator
    """

    def __init__(self, estimator: Any, fit_by: Mapping[Any, int], *, public_sizes: Mapping[Any, int] | int | None = None) -> None:
        self.estimator = estimator
        self.fit_by = fit_by
        self.public_sizes = public_sizes

    def __sklearn_tags__(self) -> Any:
        tags, of_parts = super().__sklearn_tags__(), get_tags(self.estimator)
        tags.estimator_type, tags.target_tags = of_parts.estimator_type, of_parts.target_tags
        tags.classifier_tags, tags.regressor_tags = of_parts.classifier_tags, of_parts.regressor_tags
        tags.input_tags.sparse = of_parts.input_tags.sparse
        return tags

    def fit(self, X: Any, y: Any, groups: Any = None, *, sample_weight: Any = None, absent: int = 0) -> Self:
        """Train on rows X (n, d) and targets y (n,); other arguments as of the estimator's `fit`.

        Charged to the spend log once, before the first part is trained. ValueError for unusable input before that.
        """
        sizes = self._checked()
        if parted_table(X, y, sample_weight) is not None:
            raise ValueError("Expected rows in memory for models by part, got rows in parts of a cluster.")
        with all_or_nothing(self):
            whole = self._unfitted()
            stated = [size for size in sizes if size is not None]
            whole.set_params(public_size=max(stated) if len(stated) == len(sizes) else None)
            whole._split = self._split(whole, sizes)
            whole.fit(X, y, groups, sample_weight=sample_weight, absent=absent)
            self._hold(whole, sizes)
        return self

    def _unfitted(self) -> Any:
        """A clone of the estimator, with the same source of randomness: an audit listens to the one that it handed over."""
        settings = self.estimator.get_params(deep=False)
        source = settings.pop("random_state")
        return type(self.estimator)(**{name: clone(value, safe=False) for name, value in settings.items()}, random_state=source)

    def _checked(self) -> list[int | None]:
        """The public size of each part. ValueError for what cannot be, before any data are seen."""
        if not isinstance(self.estimator, PrivateLinearModel):
            raise TypeError(f"Expected a linear estimator of dperm.estimators, got {type(self.estimator).__name__}.")
        if not isinstance(self.fit_by, Mapping) or len(self.fit_by) < 1:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f'Expected fit_by as a feature for each part, {{"north": 3, "south": 4}}, got {self.fit_by!r}.')
        for name, feature in self.fit_by.items():
            if isinstance(feature, str):
                raise TypeError(
                    f"Expected fit_by to number features from 0, as Schema.columns_of does, got {feature!r} for {name!r}."
                )
            check.integer(f"fit_by[{name!r}]", feature, minimum=0)
        if len(set(self.fit_by.values())) < len(self.fit_by):
            raise ValueError(f"Expected fit_by with different features for different parts, got {dict(self.fit_by)}.")
        if self.estimator.relation != "add_or_remove_one":
            raise ValueError(
                "Expected relation='add_or_remove_one' for models by part: under replace_one the number of records of each part "
                "would be public, and a record that moves to another part changes it."
            )
        if self.estimator.public_size is not None:
            raise ValueError("Expected an estimator without public_size: state the parts' own by public_sizes.")
        if self.public_sizes is None:
            return [None] * len(self.fit_by)
        if not isinstance(self.public_sizes, Mapping):
            return [check.integer("public_sizes", self.public_sizes)] * len(self.fit_by)
        if self.public_sizes.keys() != self.fit_by.keys():
            raise ValueError(f"Expected public_sizes of {list(self.fit_by)}, got {list(self.public_sizes)}.")
        return [check.integer("public_sizes", self.public_sizes[name]) for name in self.fit_by]

    def _refuse_others(self, features: int) -> None:
        """ValueError for parts by features that rows do not have."""
        if beyond := {name: feature for name, feature in self.fit_by.items() if feature >= features}:
            raise ValueError(f"Expected fit_by to number some of {features} features, counted from 0, got {beyond}.")

    def _split(
        self, whole: Any, sizes: list[int | None]
    ) -> Callable[[Mechanism, LinearObjective, int], tuple[Mechanism, LinearObjective]]:
        def split(mechanism: Mechanism, objective: LinearObjective, classes: int) -> tuple[Mechanism, LinearObjective]:
            self._refuse_others(objective.features)
            made: dict[int | None, tuple[Mechanism, LinearObjective]] = {whole.public_size: (mechanism, objective)}
            for size in sizes:
                if size not in made:
                    task = whole.task(objective.features, classes, size, weighed=objective.loss.weighs)
                    made[size] = whole._built(task, getattr(whole, "classes_", None), whole._rows_alike)[1:]
            parts = ByPart.of([made[size] for size in sizes], list(self.fit_by.values()))
            return parts, replace(objective, public_size=None, size_limit=None)

        return split

    def mechanism_for(self, features: int, classes: int = 2, public_size: int | None = None) -> tuple[ByPart, LinearObjective]:
        """What a fit would run on rows of so many features, and the objective that its records are made by: known before any
        data. `public_size` is not used: parts have their own. ValueError as `fit`."""
        sizes = self._checked()
        self._refuse_others(features)
        whole = self._unfitted()
        built = [whole.set_params(public_size=size).mechanism_for(features, classes) for size in sizes]
        return ByPart.of(built, list(self.fit_by.values())), replace(built[0][1], public_size=None, size_limit=None)

    def _hold(self, whole: Any, sizes: list[int | None]) -> None:
        """Make a fitted model of each part's parameters."""
        mechanism, thetas = whole._of_parts
        self.objective_, self.n_features_in_ = mechanism.objectives[0], whole.n_features_in_
        self.models_: dict[Any, Any] = {}
        for number, (name, size) in enumerate(zip(self.fit_by, sizes, strict=True)):
            model = self._unfitted().set_params(public_size=size)
            for kept in ("n_features_in_", "feature_names_in_", "classes_"):
                if hasattr(whole, kept):
                    setattr(model, kept, getattr(whole, kept))
            model._hold(thetas[number], mechanism.objectives[number])
            model.fitted_params_ = {**whole.fitted_params_, "public_size": size}
            model.trace_ = whole.trace_["parts"][number]
            model.private_trace_ = ()
            self.models_[name] = model
        if is_classifier(whole):
            self.classes_ = whole.classes_
        self.certificate_ = whole.certificate_

    @property
    def certificate_(self) -> Certificate:
        return self._certificate

    @certificate_.setter
    def certificate_(self, certificate: Certificate) -> None:
        """Each model bears it: by itself it may not say less than all of them cost."""
        self._certificate = certificate
        for model in self.models_.values():
            model.certificate_ = certificate

    # Answers

    def places(self, X: Any) -> NDArray[Any]:
        """(n,) the name of the part of each row, None where it is in none."""
        check_is_fitted(self, "models_")
        model: Any = next(iter(self.models_.values()))
        rows = model._rows_alike(X)
        plain = replace(self.objective_, unit=RECORD)
        place = plain.records(rows, np.zeros(rows.shape[0]), keep=False).places(list(self.fit_by.values()))
        names = np.empty(len(self.fit_by) + 1, dtype=object)
        names[:] = [*self.fit_by, None]
        return names[place]

    def predict(self, X: Any) -> NDArray[Any]:
        """By each row's own model. ValueError for rows that are in no part."""
        return self._answered(X, "predict")

    @available_if(lambda self: hasattr(self.estimator, "decision_function"))  # pyright: ignore[reportUntypedFunctionDecorator]
    def decision_function(self, X: Any) -> NDArray[Any]:
        """By each row's own model. ValueError for rows that are in no part."""
        return self._answered(X, "decision_function")

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """What the estimator's `score` measures, of all rows, each answered by its own model. ValueError for rows that are in no
        part."""
        truth, weights = beside(answers := self.predict(X), y, sample_weight)
        model: Any = next(iter(self.models_.values()))
        return model._metric(truth, answers, weights)

    @available_if(lambda self: hasattr(self.estimator, "predict_proba"))  # pyright: ignore[reportUntypedFunctionDecorator]
    def predict_proba(self, X: Any) -> NDArray[Any]:
        """By each row's own model. ValueError for rows that are in no part."""
        return self._answered(X, "predict_proba")

    def _answered(self, X: Any, method: str) -> NDArray[Any]:
        names = self.places(X)
        if (lost := sum(name is None for name in names)) > 0:
            raise ValueError(f"Expected rows of the parts {list(self.fit_by)}, got {lost} in none of them.")
        answers: Any = None
        for name, model in self.models_.items():
            mine = np.flatnonzero(names == name)
            if len(mine):
                found = getattr(model, method)(_rows(X, mine))
                answers = np.empty((len(names), *found.shape[1:]), dtype=found.dtype) if answers is None else answers
                answers[mine] = found
        return answers


def _rows(X: Any, numbers: NDArray[np.intp]) -> Any:
    """The rows of these numbers, of a frame, a sparse matrix, an array or a list of rows."""
    if hasattr(X, "iloc"):
        return X.iloc[numbers]
    if sp.issparse(X):
        return X.tocsr()[numbers]  # other formats have no rows to take
    return X[numbers] if hasattr(X, "shape") else [X[number] for number in numbers]
