"""The average of several private models, each of which counts each record by a coin of its own: bagging, charged as a whole."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import MetaEstimatorMixin, clone, is_classifier
from sklearn.utils import get_tags
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from dperm import _validate as check
from dperm._column import column
from dperm._progress import watched
from dperm._random import Randomness
from dperm._remind import remind_of_budget, remind_of_clipped_weights, remind_of_delta
from dperm._types import Array
from dperm.distributed import parted_table
from dperm.estimators.base import PrivateLinearModel, all_or_nothing, plain, with_weights
from dperm.estimators.ordinal import DPOrdinalClassifier
from dperm.estimators.records import beside
from dperm.estimators.shown import ShowsGuarantee
from dperm.estimators.unsupported_wrappers import (
    preparation,
    refuse_what_resamples,
    remind_of_what_looks,
    third_party_assumption,
)
from dperm.mechanisms import Mechanism
from dperm.objectives import LinearObjective, Records, Task
from dperm.privacy import Assumption, Certificate, Risk, calibrate
from dperm.privacy.accountants.accounting import epsilon as event_epsilon
from dperm.privacy.accountants.gaussian import gaussian_epsilon
from dperm.privacy.certificates.assumptions import coins_of_members
from dperm.privacy.events import Event, Gaussian, SelfComposed
from dperm.release import Channel, SpendLog
from dperm.release.selection import set_aside

_MOST_MEMBERS = 1000
_ROUNDS, _LEFT = 30, 0.02  # of bisection; the share of ε that may be left


@dataclass(frozen=True)
class _Planned:
    """What each member runs, and what it minimises; the event is that of all members."""

    task: Task
    mechanism: Mechanism
    objective: LinearObjective
    event: Event


class DPBagging(MetaEstimatorMixin, ShowsGuarantee):
    """The average of several private models, each of them trained on records that it draws by coins: a private bag.

    Each member counts each record with its own weight, of at most 1, or not at all, by a coin of this member and this record
    alone (Poisson sampling). No record is drawn twice and no draw depends on another record, so that one record more or less
    moves its own terms alone: whatever the coins are, each member is as private as by itself, and all of them together cost the
    composition of as many. Nothing is charged less because of the coins (docs/scikit-learn.md).

    One model with the whole budget is mostly better: members share it, and their noise is only partly averaged away. A bag shows
    how far models of the same budget differ.

    Parameters
    ----------
    estimator : a linear estimator of dperm.estimators, without a random_state and max_rows_per_unit. Its own epsilon and delta
        are not used.
    members : how many models there are.
    rate : the probability with which a member counts a record.
    epsilon, delta : the budget of all members together.
    label : names the data set in the spend log.
    random_state : None for real noise. A fixed seed is for tests: the certificate then says "not private".

    Attributes
    ----------
    estimators_ : the fitted members
    certificate_ : that of all members together; each of them bears it
    classes_, n_features_in_ : as of the estimator

    Examples
    --------
    >>> import numpy as np
    >>> from dperm.estimators import DPBagging, DPRidge
    >>> X = np.random.default_rng(0).random((500, 2)) / 2
    >>> bag = DPBagging(DPRidge(public_size=500), members=3, epsilon=3.0).fit(X, X[:, 0])
    >>> len(bag.estimators_), bag.certificate_.epsilon <= 3.0
    (3, True)
    """

    def __init__(
        self,
        estimator: Any,
        members: int = 5,
        *,
        rate: float = 0.5,
        epsilon: float = 1.0,
        delta: float = 1e-5,
        label: str = "",
        random_state: Any = None,
    ) -> None:
        self.estimator = estimator
        self.members = members
        self.rate = rate
        self.epsilon = epsilon
        self.delta = delta
        self.label = label
        self.random_state = random_state

    def __sklearn_tags__(self) -> Any:
        tags, of_members = super().__sklearn_tags__(), get_tags(self.estimator)
        tags.estimator_type, tags.target_tags = of_members.estimator_type, of_members.target_tags
        tags.classifier_tags, tags.regressor_tags = of_members.classifier_tags, of_members.regressor_tags
        tags.input_tags.sparse = of_members.input_tags.sparse
        return tags

    def fit(self, X: Any, y: Any, *, sample_weight: Any = None) -> Self:
        """Train on rows X (n, d) and targets y (n,), with a weight of each record where there are some.

        Charged to the spend log once, before the first member is trained. ValueError for unusable input before that.
        """
        refuse_what_resamples()
        if parted_table(X, y, sample_weight) is not None:
            raise ValueError("Expected rows in memory for a bag, got rows in parts of a cluster.")
        with all_or_nothing(self):
            self._fit(X, y, sample_weight)
        return self

    def _fit(self, X: Any, y: Any, sample_weight: Any) -> None:
        self._check_parameters()
        model: Any = clone(self.estimator).set_params(epsilon=self.epsilon, delta=self.delta)
        model._check_parameters()
        rows, given = model._validated(X, y, None, sample_weight)
        targets, classes, said = model._targets(given)
        if classes and model.classes is None:
            raise ValueError("Expected the estimator to state its classes: all members have the same.")
        weights, said_of_weights = model._weights(rows.shape[0], targets if classes else None, sample_weight)
        model._remind_of_targets(given, stacklevel=3)
        if sample_weight is not None:
            remind_of_clipped_weights(column("weights", sample_weight), model._weight_bound(True), stacklevel=3)
        remind_of_what_looks(stacklevel=3)
        planned = self._planned(model, rows.shape, classes)
        numbers = with_weights(planned.task, targets, np.ones(rows.shape[0]) if weights is None else weights)
        records = planned.objective.records(rows, numbers)
        planned.mechanism.admit(planned.objective, records)  # what it refuses is not charged
        prepared, uncharged = preparation()
        assumptions = [*said, *said_of_weights, *prepared, *third_party_assumption(self.estimator)]
        certificate = self._certificate(planned, assumptions).not_charging(*uncharged)
        coins = self._coins(rows.shape[0])
        SpendLog.current().charge(
            planned.event, mechanism=certificate.mechanism, label=self.label, private=Channel.open(self.random_state).private
        )
        with set_aside():
            drawn = enumerate(watched(coins, "Training members", len(coins)))
            self.estimators_ = [self._member(model, planned, records, numbers, mine, number) for number, mine in drawn]
        for member in self.estimators_:
            member.certificate_ = certificate
        self.certificate_ = certificate
        self.n_features_in_ = model.n_features_in_
        for name in ("feature_names_in_", "classes_"):
            if hasattr(model, name):
                setattr(self, name, getattr(model, name))

    def _check_parameters(self) -> None:
        """Everything that can be refused without looking at data."""
        if not isinstance(self.estimator, PrivateLinearModel):
            raise TypeError(f"Expected a linear estimator of dperm.estimators, got {type(self.estimator).__name__}.")
        if isinstance(self.epsilon, Risk):
            raise TypeError("Expected epsilon as a number: a bag keeps no Risk.")
        check.plain_numbers(self, ("epsilon", "delta", "rate", "members"))
        check.fraction("delta", self.delta, zero=True)
        remind_of_budget(check.positive("epsilon", self.epsilon), self.delta, stacklevel=4)
        check.fraction("rate", self.rate, one=True)
        if check.integer("members", self.members) > _MOST_MEMBERS:
            raise ValueError(f"Expected at most {_MOST_MEMBERS:,} members, got {self.members:,}.")
        if type(self.label) is not str:
            raise TypeError(f"Expected label to be text, got {self.label!r}.")
        if self.estimator.get_params(deep=False).get("max_rows_per_unit") is not None:
            raise ValueError("Expected an estimator without max_rows_per_unit: the coins of a bag are of single records.")
        if isinstance(self.estimator, DPOrdinalClassifier):
            raise ValueError("Expected an estimator without an order of classes: its answers are medians, which have no mean.")
        if self.estimator.label:
            raise ValueError("Expected an estimator without label: give it to the bag, which is charged.")
        if self.estimator.random_state is not None:
            raise ValueError("Expected an estimator without random_state: give it to the bag.")

    def _coins(self, records: int) -> NDArray[np.bool_]:
        """(members, records) whether each member counts each record: coins that depend on nothing."""
        return Randomness.of(self.random_state).sampling.random((self.members, records)) < self.rate

    def _planned(self, model: Any, shape: tuple[int, int], classes: int) -> _Planned:
        """The mechanism of a member, calibrated so that as many of them stay within the budget."""
        size = shape[0] if model.relation == "replace_one" else None
        if size is not None and model.public_size not in (None, size):
            raise ValueError(f"Expected public_size={size}, the number of records, under replace-one, got {model.public_size}.")
        if (known := size or model.public_size) is not None:
            remind_of_delta(self.delta, known, stacklevel=5)
        delta = self.delta / self.members

        def planned(each: float) -> _Planned:
            share = clone(model).set_params(epsilon=each, delta=delta)
            task = share.task(shape[1], classes, size, weighed=True)
            _, mechanism, objective = share._built(task, getattr(model, "classes_", None), model._rows_alike)
            return _Planned(task, mechanism, objective, SelfComposed(mechanism.event(objective.facts), self.members))

        start = self.epsilon / self.members
        if self.delta > 0:
            noise = calibrate(lambda x: SelfComposed(Gaussian(x), self.members), self.epsilon, self.delta)
            start = gaussian_epsilon(noise, delta)
        return self._most_within(start, planned)

    def _most_within(self, start: float, planned: Callable[[float], _Planned]) -> _Planned:
        """`planned` with the largest ε of a member, found by bisection, for which all members cost at most `epsilon`. A rule of
        the method may change its settings with ε, so that what they cost jumps there."""
        low, high, each = 0.0, math.inf, start
        best: _Planned | None = None
        for _ in range(_ROUNDS):
            found = planned(each)
            spent = event_epsilon(found.event, self.delta)
            if spent <= self.epsilon:
                low, best = each, found
                if spent >= self.epsilon * (1 - _LEFT):
                    break
            else:
                high = each
            scaled = each * min(self.epsilon / spent, 4.0) * (1 - _LEFT / 20)
            each = scaled if low < scaled < high else (low + min(high, 2 * self.epsilon)) / 2
            if best is not None and high - low < _LEFT * low:
                break
        if best is None:
            raise ValueError(f"Found no budget for {self.members} members within epsilon = {self.epsilon:g}: have fewer.")
        return best

    def _member(
        self, model: Any, planned: _Planned, records: Records, numbers: Array, drawn: NDArray[np.bool_], number: int
    ) -> Any:
        """A fitted member, which counts the records that its coins have `drawn` (n,). What fails here was paid for."""
        counted = np.column_stack([numbers[:, 0], np.where(drawn, numbers[:, 1], 0.0)])
        state = self.random_state
        seed = f"{state!r}, member {number}" if isinstance(state, int | np.integer) else state
        channel = Channel.open(seed)
        release = planned.mechanism.release(planned.objective, records.relabelled(counted), channel)
        member = clone(model).set_params(epsilon=planned.mechanism.budget.epsilon, delta=planned.mechanism.budget.delta)
        for name in ("n_features_in_", "feature_names_in_", "classes_"):
            if hasattr(model, name):
                setattr(member, name, getattr(model, name))
        member._hold(release.theta, planned.objective)
        member.trace_ = plain(dict(release.trace))
        return member

    def _certificate(self, planned: _Planned, said: list[Assumption]) -> Certificate:
        provenance = Channel.open(self.random_state).provenance
        one = planned.mechanism.certificate(planned.objective.facts, provenance)
        certificate = Certificate.issue(
            mechanism=f"a bag of {self.members} models by {one.mechanism}",
            event=planned.event,
            delta=self.delta,
            target_epsilon=self.epsilon,
            paper="; ".join(filter(None, ["Breiman 1996 (bagging)", one.paper])),
            assumptions=[
                *said,
                coins_of_members(self.members, self.rate),
                *(item for item in one.assumptions if item.key != "arithmetic"),
            ],
            public_facts={**one.public_facts, "members": self.members, "rate_of_members": self.rate},
            not_charged=one.not_charged,
            provenance=provenance,
        )
        return certificate.only_claimed(one.claim) if one.claim else certificate

    # Answers

    def _mean(self, X: Any, method: str) -> Array:
        check_is_fitted(self, "estimators_")
        return np.mean([getattr(member, method)(X) for member in self.estimators_], axis=0)

    def predict(self, X: Any) -> NDArray[Any]:
        """The mean of the members' answers, (n,); of labels the one with the largest mean probability, or decision."""
        if not is_classifier(self.estimator):
            return self._mean(X, "predict")
        scores = self._mean(X, "predict_proba" if hasattr(self.estimator, "predict_proba") else "decision_function")
        return self.classes_[(scores > 0).astype(np.intp) if scores.ndim == 1 else scores.argmax(axis=1)]

    @available_if(lambda self: hasattr(self.estimator, "decision_function"))  # pyright: ignore[reportUntypedFunctionDecorator]
    def decision_function(self, X: Any) -> Array:
        """The mean of the members' scores."""
        return self._mean(X, "decision_function")

    @available_if(lambda self: hasattr(self.estimator, "predict_proba"))  # pyright: ignore[reportUntypedFunctionDecorator]
    def predict_proba(self, X: Any) -> Array:
        """The mean of the members' probabilities, (n, K)."""
        return self._mean(X, "predict_proba")

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """What the estimator's `score` measures."""
        truth, weights = beside(answers := self.predict(X), y, sample_weight)
        return self.estimators_[0]._metric(truth, answers, weights)
