"""What the linear estimators share: parameters, the task that they set, fitting, and prediction on scaled rows."""

from __future__ import annotations

import copy
import dataclasses
import functools
import json
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.utils.validation import check_array, check_is_fitted, validate_data

from dperm import _validate as check
from dperm._column import column
from dperm._remind import (
    remind_of_budget,
    remind_of_clipped_weights,
    remind_of_delta,
    remind_of_persons,
    remind_of_scaling,
    remind_of_size,
)
from dperm._types import Array
from dperm.distributed import PartedTable, parted_table
from dperm.distributed.table import refuse_dask
from dperm.estimators.exporting import ExportsToSklearn
from dperm.estimators.records import (
    DEFAULT_WEIGHT_BOUND,
    admit_class_weight,
    admit_records,
    admit_weights,
    bounded,
    explained,
    refuse_no_weight,
    same_rows,
    weight_assumptions,
    weights_by_class,
)
from dperm.estimators.shown import ShowsGuarantee
from dperm.estimators.unsupported_wrappers import (
    preparation,
    refuse_what_resamples,
    remind_of_what_looks,
    third_party_assumption,
)
from dperm.mechanisms import Mechanism, Method, Release, method_of
from dperm.objectives import RECORD, LinearObjective, Loss, PartedRecords, PrivacyUnit, Records, Task, Weighted
from dperm.objectives.grouped import numbered
from dperm.privacy import Assumption, Relation, Risk
from dperm.privacy.events import claims_of
from dperm.release import Channel


class TakesMethod(ShowsGuarantee):
    """Base of the estimators whose parameter `mechanism` is a method or its name; what a fit tells the data holder alone,
    `private_trace_`, stays behind where the estimator is copied or saved."""

    mechanism: str | Method

    def __getstate__(self) -> Any:
        state = super().__getstate__()  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
        return {name: value for name, value in state.items() if name != "private_trace_"}  # pyright: ignore[reportUnknownVariableType]

    def __sklearn_clone__(self) -> Any:
        """A copy, also for other estimators, which fit it in other processes: those that draw records by others get none."""
        refuse_what_resamples()
        return super().__sklearn_clone__()

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Parameters; with `deep` also the settings of a method, as `mechanism__epochs`."""
        params = super().get_params(deep=False)
        method = params.get("mechanism")  # none where it follows from other parameters
        if deep and isinstance(method, Method):
            params |= {f"mechanism__{field.name}": getattr(method, field.name) for field in dataclasses.fields(method)}
        return params

    def set_params(self, **params: Any) -> Self:
        """Methods are values: a setting of one makes another. A mechanism that is given by its name has all settings by rule."""
        settings = {name: value for name, value in params.items() if name.startswith("mechanism__")}
        super().set_params(**{name: value for name, value in params.items() if name not in settings})
        if settings:
            known = {field.name for field in dataclasses.fields(method_of(self.mechanism))}
            given = {name.removeprefix("mechanism__"): value for name, value in settings.items()}
            if wrong := sorted(set(given) - known):
                raise ValueError(
                    f"Expected settings of {self.mechanism!r} among {', '.join(sorted(known))}, got {', '.join(wrong)}."
                )
            self.mechanism = dataclasses.replace(method_of(self.mechanism), **given)
        return self


@dataclass(kw_only=True, eq=False, repr=False)
class PrivateLinearModel(TakesMethod, ExportsToSklearn, ABC):
    """Base of the private linear models, which has the parameters that all of them share; `DPLogisticRegression` explains them.

    A model is a dataclass whose fields are its parameters, all by keyword. It derives from `PrivateLinearClassifier` or
    `PrivateLinearRegressor`, and states its loss by `make_loss`.

    Fitted attributes: `coef_`, `intercept_`, `certificate_`, `trace_` (public numbers of the run), `n_features_in_`,
    `fitted_params_`, the parameters that the fit had, and `private_trace_`, what some mechanisms tell the data holder alone (one
    entry a model; it is in no copy of the estimator, nor in what is saved).
    Coefficients apply to rows scaled to norm ≤ data_norm, as `predict` does. Answers for a collection of Dask are a lazy array of
    Dask, cut as it is; scores of one are sums over its parts (docs/dask.md).
    """

    epsilon: float | Risk = 1.0
    delta: float = 1e-5
    data_norm: float = 1.0
    relation: str = "add_or_remove_one"
    public_size: int | None = None
    max_sample_weight: float | None = None
    fit_intercept: bool = True
    intercept_scale: float | None = None
    label: str = ""
    random_state: Any = None

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def _check_parameters(self) -> None:
        """Everything that can be refused without looking at data."""
        check.plain_numbers(self, self.get_params(deep=False))
        check.fraction("delta", self.delta, zero=True)
        if not isinstance(self.epsilon, Risk):
            remind_of_budget(check.positive("epsilon", self.epsilon), self.delta, stacklevel=3)
        check.positive("data_norm", self.data_norm)
        if not 1e-50 < self.data_norm < 1e50:
            raise ValueError(f"Expected data_norm between 1e-50 and 1e50, got {self.data_norm!r}.")
        if type(self.label) is not str:
            raise TypeError(f"Expected label to be text, got {self.label!r}.")
        self._method()
        check.choice("relation", self.relation, [relation.value for relation in Relation])
        if self.intercept_scale is not None:
            check.positive("intercept_scale", self.intercept_scale)
        if self.public_size is not None:
            check.integer("public_size", self.public_size)
        self._unit()
        admit_class_weight(self._class_weight())
        bounded(self.max_sample_weight)
        self.make_loss()

    def fit(self, X: Any, y: Any, groups: Any = None, *, sample_weight: Any = None, absent: int = 0) -> Self:
        """Train privately on rows X (n, d), dense or CSR, and targets y (n,): labels, or numbers.

        `groups` (n,) tells whose each row is, by any value. A person's loss is then the mean of that person's rows', of which at
        most `max_rows_per_unit` are used, spread evenly; what is said of a record, such as `public_size`, is said of a person.
        `sample_weight` (n,): how much each row counts, as private as the rows. Each one above the public bound,
        `max_sample_weight` or 1, is clipped to it by itself; weights must not be divided by their sum, mean or maximum.
        `absent` further records have no usable row or target: they contribute nothing and are counted, which matters where the
        number of records is public.
        Raises ValueError for unusable input before anything is charged. Whatever fails later, the charge stands.
        """
        self._check_parameters()
        with all_or_nothing(self):
            self._fit(X, y, groups, absent, sample_weight)
        return self

    def _unit(self) -> PrivacyUnit:
        """What neighbouring data sets differ in: of models without `max_rows_per_unit` one row."""
        return RECORD

    def _neighbours(self) -> Any:
        """Which features are next to each other on a curve: of models without that parameter none."""
        return ()

    def _class_weight(self) -> Mapping[Any, float] | None:
        """Public weights of labels: of models without that parameter none."""
        return None

    #: whether targets are numbers, not labels
    _numeric: ClassVar[bool] = True

    @abstractmethod
    def _targets(self, y: Any) -> tuple[NDArray[Any], int, list[Assumption]]:
        """What is learnt of validated y (n,): class numbers, or numbers within their bound; the number of classes, 0 for a
        regression; and what a certificate says of them."""

    def _learnt_targets(self, y: Any, labels: NDArray[Any] | None, task: Task) -> NDArray[Any]:
        """What a fit minimises over, (n,), of validated targets y (n,), for audits: `labels` are all there are, in the order of
        `classes_`, or None of numbers."""
        return self._targets(y)[0] if labels is None else task.targets(np.searchsorted(labels, y))

    def _remind_of_targets(self, y: Any, *, stacklevel: int) -> None:
        """Warn the data holder of validated targets y (n,) that hardly were meant, before a charge. Labels are all meant."""

    def _remind_of_targets_in(self, table: PartedTable, *, stacklevel: int) -> None:
        """The same of targets in parts elsewhere, which are not validated yet."""

    def _validated(self, X: Any, y: Any, groups: Any = None, sample_weight: Any = None) -> tuple[Any, Any]:
        """Finite rows and targets of matching length: refused here, before anything is charged."""
        refuse_no_weight(sample_weight)
        for name, given in (("groups", groups), ("sample_weight", sample_weight)):
            same_rows(X, given, name)
        return admit_records(self, X, y, numeric=self._numeric)

    def _fit(self, X: Any, y: Any, groups: Any, absent: int, sample_weight: Any) -> Release:
        """Validate, choose and calibrate the mechanism from public facts, then release. `absent` records hold nothing, and are
        records."""
        refuse_what_resamples()
        table = parted_table(X, y, sample_weight)
        if table is not None:
            return self._fit_parts(table, groups, absent)
        X, y = self._validated(X, y, groups, sample_weight)
        targets, classes, said = self._targets(y)
        weights, said_of_weights = self._weights(X.shape[0], targets if classes else None, sample_weight)
        present = None
        if groups is not None and "max_rows_per_unit" not in self.get_params(deep=False):
            raise ValueError(f"Expected no groups for {type(self).__name__}: it has no proof for persons of several rows.")
        number, records = admit_groups(groups, X.shape[0], self._unit())
        records += absent
        if check.integer("absent", absent, minimum=0):
            present = np.arange(X.shape[0] + absent) < X.shape[0]
            X = _with_empty_rows(X, absent)
            targets = np.append(targets, np.full(absent, targets[0]))
            number = None if number is None else np.append(number, number.max() + 1 + np.arange(absent))
            weights = None if weights is None else np.append(weights, np.zeros(absent))
        self._remind_of_targets(y, stacklevel=3)
        if sample_weight is not None:
            remind_of_clipped_weights(column("weights", sample_weight), self._weight_bound(True), stacklevel=3)
        if not remind_of_what_looks(stacklevel=3):
            remind_of_scaling(X if present is None else X[:-absent], stacklevel=3)

        def made(task: Task, objective: LinearObjective) -> Records:
            return objective.records(X, with_weights(task, targets, weights), groups=number, present=present)

        whom = "records" if groups is None else "persons"
        return self._released(
            made,
            (X.shape[1], classes, records),
            [*said, *said_of_weights],
            whom=whom,
            gaps=absent > 0,
            weighed=sample_weight is not None,
        )

    def _fit_parts(self, table: PartedTable, groups: Any, absent: int) -> Release:
        """The same on rows that live in parts elsewhere, where they are validated."""
        if groups is not None or self._unit() != RECORD:
            raise ValueError("Expected no groups with rows in parts: the rows of a person may be in several of them.")
        if absent:
            raise ValueError(f"Expected absent=0 with rows in parts, got {absent}.")
        classes = getattr(self, "classes", None)
        if not self._numeric and classes is None:
            raise ValueError("Expected classes= with rows in parts: all possible labels, as publicly known.")
        if (size := len(table)) < 1:
            raise ValueError("Expected at least one row, got a table without any.")
        self._validated(table.example(), np.zeros(1))
        _, count, said = self._targets(np.zeros(1) if self._numeric else np.asarray(classes))
        _, said_of_weights = self._weights(
            1, np.zeros(1, dtype=np.intp) if count else None, np.ones(1) if table.weighed else None
        )

        self._remind_of_targets_in(table, stacklevel=3)

        def made(task: Task, objective: LinearObjective) -> PartedRecords:
            worker, names = clone(self), getattr(self, "feature_names_in_", None)
            records = PartedRecords(objective, table.engine, table.derive(functools.partial(worker._block, names, task)))
            if len(records) != size:
                raise ValueError(f"Expected {size} rows, as the collection says of itself, got {len(records)}.")
            return records

        sizes = len(table.columns), count, size
        return self._released(made, sizes, [*said, *said_of_weights], weighed=table.weighed)

    def _block(self, names: Any, task: Task, block: Any, given: None) -> tuple[Any, Array]:
        """A block of a table in parts as rows and targets, validated where it lives, by a clone."""
        X, y, weight = block
        if X.shape[0] == 0:
            empty = np.zeros((0, task.features))
            return (sp.csr_array(empty) if sp.issparse(X) else empty), np.zeros((0, 2) if task.loss.weighs else 0)
        X, y = self._validated(X, y, None, weight)
        if not np.array_equal(getattr(self, "feature_names_in_", names), names):
            raise ValueError("Expected the same columns in all parts, got others in one of them.")
        targets, classes, _ = self._targets(y)
        weights, _ = self._weights(X.shape[0], targets if classes else None, weight)
        return X, with_weights(task, targets, weights)

    def _released(
        self,
        made: Callable[[Task, LinearObjective], Any],
        sizes: tuple[int, int, int],
        assumptions: list[Assumption],
        *,
        whom: str = "records",
        gaps: bool = False,
        weighed: bool = False,
    ) -> Release:
        """Choose and calibrate the mechanism for these numbers of features, classes and records, and release from what is `made`
        for its task and objective. With `gaps` some records hold nothing; `weighed` says that weights of records were given."""
        features, classes, records = sizes
        relation = Relation(self.relation)
        # Under replace-one the number of records is public by definition.
        if relation is Relation.REPLACE_ONE and self.public_size not in (None, records):
            raise ValueError(f"Expected public_size={records}, the number of {whom}, under replace-one, got {self.public_size}.")
        size = records if relation is Relation.REPLACE_ONE else self.public_size
        if size is not None:
            remind_of_delta(self.delta, size, stacklevel=4)
        task = self.task(features, classes, size, weighed=weighed)
        method, mechanism, objective = self._built(task, getattr(self, "classes_", None), self._rows_alike)
        if gaps and any(part.ordered for part in (mechanism, *mechanism.inner())):
            raise ValueError(
                f"Expected no records left out with mechanism={method.key!r}: where they stand, others move to other batches. "
                "Fill gaps in by a public rule."
            )
        if method.claimed:
            warnings.warn(
                f"mechanism={method.key!r} is run as it was published and is not private at the epsilon that it states: the "
                "certificate claims, and has no epsilon.",
                stacklevel=5,
            )
        if size is not None and method.needs_size and self._split is None:  # otherwise it is that of a part
            remind_of_size(size, records, "what was chosen by it suits other data.", stacklevel=4, whom=whom)
        given = {name: value for name, value in self.get_params(deep=False).items() if name != "random_state"}
        if "max_sample_weight" in given:
            given["max_sample_weight"] = self._weight_bound(weighed)  # a saved model is then of the loss that was minimised
        kept = copy.deepcopy(given)  # lists may change; and what cannot be copied fails now
        prepared, uncharged = preparation()
        channel = Channel.open(self.random_state, label=self.label)
        if self._split is not None:
            mechanism, objective = self._split(mechanism, objective, classes)
        release = mechanism.release(objective, made(task, objective), channel)
        if not np.isfinite(release.theta).all():
            warnings.warn("Training diverged: parameters are not finite. It is paid for; lower the learning rate.", stacklevel=5)
        self.fitted_params_ = kept
        certificate = release.certificate.with_assumptions(*assumptions, *prepared, *third_party_assumption(self))
        certificate = certificate.not_charging(*uncharged)
        self.certificate_ = certificate.asked_for(self.epsilon) if isinstance(self.epsilon, Risk) else certificate
        self.trace_ = plain(dict(release.trace))
        self.private_trace_ = release.private
        if self._split is None:
            self._hold(release.theta, objective)
        else:
            self._of_parts = (mechanism, release.theta)
        return release

    #: what makes a mechanism for each of several parts of the records of one for all, and the objective that they share; its
    #: parameters are those of several models
    _split: Callable[[Mechanism, LinearObjective, int], tuple[Mechanism, LinearObjective]] | None = dataclasses.field(
        default=None, init=False
    )

    def _hold(self, theta: Array, objective: LinearObjective) -> None:
        """Keep the parameters of one model, or one for each class, as coefficients."""
        self.objective_ = objective
        scale = objective.intercept_scale
        table = theta
        if objective.outputs > 1:
            table = table.reshape(-1, objective.outputs).T
        table = np.atleast_2d(table)
        self.coef_ = table[:, : objective.features].copy()
        self.intercept_ = scale * table[:, -1] if scale else np.zeros(len(table))

    def _method(self) -> Method:
        """How to train, by this estimator's parameters."""
        return method_of(self.mechanism)

    @property
    def _weighs(self) -> bool:
        """Whether records count for more or less by the parameters alone, before a fit is given any weights."""
        return self._class_weight() is not None or self.max_sample_weight is not None

    def _weight_bound(self, weighed: bool) -> float | None:
        """The public bound on weights of records: as stated, or by default where weights are given; otherwise None."""
        stated = bounded(self.max_sample_weight)
        return DEFAULT_WEIGHT_BOUND if weighed and stated is None else stated

    def _weights(self, size: int, index: NDArray[Any] | None, sample_weight: Any) -> tuple[Array | None, list[Assumption]]:
        """(size,) weights in [0, 1] of records, of the classes `index` (size,) where there are some, and what a certificate says
        of them; None where all count alike."""
        by_class, most = admit_class_weight(self._class_weight()), self._weight_bound(sample_weight is not None)
        if by_class is None and most is None and sample_weight is None:
            return None, []
        weights = admit_weights(size, sample_weight, most)
        if by_class is not None and index is not None:
            weights = weights * weights_by_class(by_class, index, self.classes_)  # pyright: ignore[reportAttributeAccessIssue]
        return weights, weight_assumptions(by_class, most)

    @abstractmethod
    def make_loss(self) -> Loss:
        """The loss of one model, by this estimator's parameters. ValueError for parameters that it cannot be made of."""

    def task(self, features: int, classes: int = 0, public_size: int | None = None, *, weighed: bool = False) -> Task:
        """What a fit on rows of so many features learns; `classes` = 0 for regression. `public_size` stands for the number of
        records where that is public; None: as set. `weighed`: the fit is given weights of records."""
        loss = self.make_loss()
        return Task(
            loss=Weighted(loss) if weighed or self._weighs else loss,
            features=features,
            classes=classes,
            data_norm=self.data_norm,
            intercept_scale=(self.intercept_scale or 0.5 * self.data_norm) if self.fit_intercept else 0.0,
            relation=Relation(self.relation),
            public_size=public_size or self.public_size,
            unit=self._unit(),
            neighbours=self._neighbours(),
        )

    def mechanism_for(self, features: int, classes: int = 2, public_size: int | None = None) -> tuple[Mechanism, LinearObjective]:
        """What a fit would run, and what it minimises: known before any data, for previews and audits; arguments as of `task`.

        Raises ValueError as `fit` does.
        """
        self._check_parameters()
        task = self.task(features, self._classes(classes), public_size)
        _, mechanism, objective = self._built(task, getattr(self, "classes", None), _read)
        return mechanism, objective

    def scores_of(self, classes: int) -> int:
        """How many scores a row has in a model of so many classes."""
        return 1 if classes <= 2 else classes

    @abstractmethod
    def _classes(self, classes: int) -> int:
        """The number of classes of a task, of which so many were asked for."""

    def _rows_alike(self, X: Any) -> Any:
        """Rows of the columns that were fitted."""
        refuse_dask(X=X)
        with explained(X):
            return validate_data(self, X, accept_sparse="csr", dtype=[np.float64, np.float32], reset=False)

    def _built(self, task: Task, labels: Any, rows: Callable[[Any], Any]) -> tuple[Method, Mechanism, LinearObjective]:
        """The method that fits, and what it makes. ValueError where a method, maybe a stranger's, would spend something else
        than what was asked for; TypeError where it is only claimed and would be certified."""
        given = self._method()
        if not task.classes or labels is not None:
            given = given.told(np.unique(np.asarray(labels)) if task.classes else None, rows)
        budget = given.budget(task, self.delta, self.epsilon)
        method = given.chosen(task, budget)
        mechanism, objective = method.build(task, budget)
        if isinstance(self.epsilon, Risk):
            kept = self.epsilon.admits(mechanism.event(objective.facts))
        else:
            kept = mechanism.budget.epsilon == self.epsilon
        if not kept or mechanism.budget != budget or budget.delta != self.delta:
            raise ValueError(f"Expected a mechanism for {budget} (epsilon={self.epsilon}), got one for {mechanism.budget}.")
        if method.claimed and not claims_of(mechanism.event(objective.facts)):
            raise TypeError(
                f"{type(method).__name__} says that what it makes is only claimed, but not in its event, which would be "
                "certified: add an Unsupported part to it."
            )
        return method, mechanism, objective

    def records_of(
        self, X: Any, y: Any, groups: Any = None, *, sample_weight: Any = None, unclipped: bool = False
    ) -> tuple[LinearObjective, Records, list[Assumption]]:
        """What this fitted model minimised, records as it saw them, and what is assumed of these: for releases at its parameters.

        Rows X (n, d) and targets y (n,), `groups` and `sample_weight` as of `fit`, for the settings that the fit had. ValueError
        for other columns or labels than were fitted, for more than two classes, and with `unclipped` for a row longer than
        data_norm or a target outside its range: an exact look at records, for their holder alone.
        """
        check_is_fitted(self)
        refuse_dask(X=X, y=y)
        worker = type(self)(**self.fitted_params_)
        known: Any = getattr(self, "classes_", None)
        if known is not None:
            if len(known) > 2:
                raise ValueError(f"Expected a model of two classes, or of numbers, got one of {len(known)} classes.")
            worker.set_params(classes=known.tolist())
        X, y = worker._validated(X, y, groups, sample_weight)
        names: Any = getattr(self, "feature_names_in_", None)
        if X.shape[1] != self.n_features_in_ or not np.array_equal(getattr(worker, "feature_names_in_", names), names):
            raise ValueError(f"Expected the {self.n_features_in_} columns that the model was fitted on, got others.")
        if unclipped:
            worker._refuse_clipped(X, y)
        targets, classes, said = worker._targets(y)
        weights, said_of_weights = worker._weights(X.shape[0], targets if classes else None, sample_weight)
        number, size = admit_groups(groups, X.shape[0], worker._unit())
        objective = self.objective_
        if objective.relation is Relation.REPLACE_ONE and objective.public_size not in (None, size):
            raise ValueError(f"Expected the {objective.public_size:,} records that the model was trained on, got {size:,}.")
        task = worker.task(X.shape[1], classes)
        records = objective.records(X, with_weights(task, targets, weights), groups=number)
        return objective, records, [*said, *said_of_weights]

    def _refuse_clipped(self, X: Any, y: Any) -> None:
        """ValueError where a row of validated X (n, d) is longer than data_norm, so that it is scaled down."""
        lengths = np.sqrt(X.multiply(X).sum(axis=1)) if sp.issparse(X) else np.linalg.norm(X, axis=1)
        if (longer := int(np.count_nonzero(lengths > self.data_norm * (1 + 1e-6)))) > 0:
            raise ValueError(
                f"Expected no row longer than data_norm = {self.data_norm:g}, got {longer:,} that are scaled down: coefficients "
                'are not those of the records as they are. State a larger data_norm, or clipped="named".'
            )

    def parameters(self) -> Array:
        """θ (p,) of a fitted model of two classes or of numbers, as its objective has it: of targets in their range's units, the
        intercept's last."""
        check_is_fitted(self)
        scale = self.objective_.intercept_scale
        weights, intercept = np.atleast_2d(self.coef_), np.ravel(self.intercept_)
        if len(weights) > 1:
            raise ValueError(f"Expected a model of two classes, or of numbers, got one of {len(weights)} classes.")
        return np.append(weights[0], intercept / scale) if scale else weights[0].copy()

    @abstractmethod
    def _metric(self, truth: NDArray[Any], answers: NDArray[Any], weights: Array | None) -> float:
        """The metric of `score` for targets (n,), answers of `predict` (n,), and weights (n,), of rows in memory."""

    def _scores(self, X: Any) -> Array:
        """Predictions x̂ᵀw + intercept for rows scaled to norm ≤ data_norm: (n,) or (n, K)."""
        check_is_fitted(self)
        X = self._rows_alike(X)
        rows = replace(self.objective_, unit=RECORD)  # each answered by itself
        records = rows.records(X, np.zeros(X.shape[0]), keep=False)
        parts = [(batch.rows @ np.atleast_2d(self.coef_).T) * batch.units[:, None] for batch in records.batches()]
        scores = np.concatenate(parts) + self.intercept_
        return np.ascontiguousarray(scores[:, 0]) if scores.shape[1] == 1 else scores


@dataclass(kw_only=True, eq=False, repr=False)
class WithMechanism(PrivateLinearModel):
    """Models that are trained by any mechanism that there is, also of persons with several rows."""

    mechanism: str | Method = "auto"
    max_rows_per_unit: int | None = None

    def _unit(self) -> PrivacyUnit:
        return PrivacyUnit(self.max_rows_per_unit)


def admit_groups(groups: Any, rows: int, unit: PrivacyUnit) -> tuple[NDArray[np.intp] | None, int]:
    """Whose each row is (n,), as numbers of persons, and how many persons there are; without groups None, and the number of rows.

    ValueError for groups that are no column of known values, or without `max_rows_per_unit`, and the other way round.
    """
    if groups is None:
        if unit != RECORD:
            raise ValueError("Expected groups with max_rows_per_unit: fit(X, y, groups=ids), whose each row is.")
        return None, rows
    if unit == RECORD:
        raise ValueError("Expected max_rows_per_unit with groups: the most rows used of a person, a public number such as 64.")
    number, persons = numbered(groups, rows)
    if unit.several_rows:
        remind_of_persons(persons, rows, stacklevel=5)
    return number, persons


def _read(X: Any) -> Any:
    """Rows of columns that nothing is known of yet."""
    return check_array(X, accept_sparse="csr", dtype=[np.float64, np.float32])


def plain(value: Any) -> Any:
    """As JSON has it: arrays and tuples are lists, NumPy's numbers are numbers."""
    return json.loads(json.dumps(value, default=lambda other: np.asarray(other).tolist(), allow_nan=False))


def with_weights(task: Task, targets: NDArray[Any], weights: Array | None) -> Array:
    """Targets as the task's loss takes them, with a weight each where rows have some."""
    numbers = task.targets(targets) if task.classes else targets
    return numbers if weights is None else np.column_stack([numbers, weights])


def _with_empty_rows(rows: Any, count: int) -> Any:
    if sp.issparse(rows):
        return sp.vstack([rows, sp.csr_matrix((count, rows.shape[1]), dtype=rows.dtype)], format="csr")
    return np.concatenate([rows, np.zeros((count, rows.shape[1]), dtype=rows.dtype)])


@contextmanager
def all_or_nothing(estimator: object) -> Iterator[None]:
    """Whatever fails within: the estimator is as it was, so that no answer mixes two fits. Attributes are to be replaced, not
    changed in place. What was charged stays charged."""
    before = dict(vars(estimator))
    try:
        yield
    except BaseException:
        vars(estimator).clear()
        vars(estimator).update(before)
        raise
