"""Search over settings of an estimator, charged as a whole."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self, cast, get_args

import numpy as np
from sklearn.base import MetaEstimatorMixin, clone, is_classifier
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from dperm import _validate as check
from dperm._progress import watched
from dperm._remind import remind_of_budget
from dperm.distributed import parted_table
from dperm.estimators.base import PrivateLinearModel, all_or_nothing
from dperm.estimators.records import HeldOut
from dperm.estimators.shown import ShowsGuarantee
from dperm.estimators.unsupported_wrappers import preparation, refuse_what_resamples, third_party_assumption
from dperm.mechanisms import Mechanism
from dperm.objectives import LinearObjective
from dperm.privacy import Assumption, Certificate, Composed, Event, Provenance, PureDP, Relation, Risk, calibrate
from dperm.privacy.accountants.gaussian import gaussian_epsilon, gaussian_mu
from dperm.privacy.adaptive.private_selection import BestOfTries, Law, budget_of_a_try, share_within
from dperm.privacy.events import Gaussian, SelfComposed
from dperm.release import Channel, PureNoise, SpendLog, best_of_tries, spend_log
from dperm.release.selection import certificate_of_search, set_aside

How = Literal["auto", "each once", "geometric", "logarithmic", "poisson"]

_TRIES_EACH = 2.0
_SCORE_SHARE = 0.1  # of ε of a try, for its score on private records


@dataclass(frozen=True)
class _Planned:
    """What a search is to spend: in each try (ε, δ) for the training, and ε for a private score; and the event of all of it."""

    epsilon: float
    score_epsilon: float
    delta: float
    event: Event
    built: tuple[tuple[Mechanism, LinearObjective], ...]


def _has_probabilities(search: DPSearch) -> bool:
    return hasattr(search.estimator, "predict_proba")


def _said(candidate: Any, targets: Any) -> list[Assumption]:
    """What a fit of this estimator to validated targets (n,) would say of them and of weights. ValueError for what it would
    refuse when the search is paid for."""
    if candidate.max_sample_weight is not None:
        raise ValueError("Expected no max_sample_weight: a search passes no weights of records on.")
    learnt, classes, said = candidate._targets(targets)
    _, weighed = candidate._weights(len(learnt), learnt if classes else None, None)
    return [*said, *weighed]


class DPSearch(MetaEstimatorMixin, ShowsGuarantee):
    """The best of an estimator's settings, with one certificate for the search and the model.

    A random number of tries, each of settings drawn evenly, and the best is kept: as long as the number and the other tries stay
    secret this costs little more than one try (Liu & Talwar 2019; Papernot & Steinke 2022; the bound is our own: docs/search.md).
    So there is no `cv_results_` here, no progress and no history. Where it is cheaper each setting is tried once, and all is
    shown: `how_` says which it was.

    Parameters
    ----------
    estimator : a linear estimator of `dperm.estimators`, without a `random_state`. Its own epsilon and delta are not used.
    candidates : settings to choose from: a dict of lists, all of whose combinations are meant, or a list of such dicts.
    epsilon, delta : the budget of all of it.
    tries : mean number of tries; None: twice the number of candidates. Of a geometric number with that mean, a third miss the
        best candidate.
    how : "auto"; or "each once"; or by a random number, "geometric", "logarithmic" or "poisson".
    scoring : callable (estimator, X, y) → number, the more the better, on public held-out records. None: the estimator's own.
    label : names the data set in the spend log.
    random_state : None for real noise. A fixed seed is for tests: the certificate then says "not private".

    Attributes
    ----------
    best_estimator_, best_params_, certificate_, how_ ("each once", or the law of the number of tries); best_score_ (with private
    held-out records the noisy number of those that it gets right);
    results_ (settings and scores, in order, where each was tried once).
    """

    def __init__(
        self,
        estimator: PrivateLinearModel,
        candidates: Mapping[str, Sequence[Any]] | Sequence[Mapping[str, Sequence[Any]]],
        epsilon: float = 1.0,
        delta: float = 1e-5,
        *,
        tries: float | None = None,
        how: How = "auto",
        scoring: Callable[[Any, Any, Any], float] | None = None,
        label: str = "",
        random_state: Any = None,
    ) -> None:
        self.estimator = estimator
        self.candidates = candidates
        self.epsilon = epsilon
        self.delta = delta
        self.tries = tries
        self.how = how
        self.scoring = scoring
        self.label = label
        self.random_state = random_state

    def fit(self, X: Any, y: Any, *, held_out: tuple[Any, Any], held_out_private: bool = False) -> Self:
        """Search on rows X (n, d) and targets y (n,); tries are scored on the `held_out` rows and targets.

        `held_out_private`: these records are protected as well, and each score is released with noise, charged; classifiers
        only, by their accuracy. Otherwise they are public. ValueError for unusable input before anything is charged.
        """
        if parted_table(X, y) is not None:
            raise ValueError("Expected rows in memory for a search, got rows in parts.")
        with all_or_nothing(self):
            self._fit(X, y, held_out, held_out_private)
        return self

    def _fit(self, X: Any, y: Any, given: tuple[Any, Any], private_scores: bool) -> None:
        refuse_what_resamples()
        settings = self._checked(private_scores)
        trial: Any = clone(self.estimator)
        rows, targets = trial._validated(X, y)
        features, classes, size, held_out = self._known(trial, rows, targets, given)
        said = [_said(clone(self.estimator).set_params(**setting), targets) for setting in settings]
        trial._remind_of_targets(targets, stacklevel=3)
        how, planned = self._planned(settings, features, classes, size, private_scores)
        prepared, uncharged = preparation()
        # before the first try: its date tells of none
        certificate = self._certificate(planned, how, [[*each, *prepared] for each in said]).not_charging(*uncharged)
        log = SpendLog.current()
        shift = 0 if self.random_state is None else int(np.random.default_rng(self.random_state).integers(1 << 31))

        def run(number: int, seed: int | None) -> tuple[float, Any]:
            tried = clone(self.estimator).set_params(
                **settings[number], epsilon=planned.epsilon, delta=planned.delta, random_state=seed
            )
            tried.fit(X, y)
            mechanism, objective = planned.built[number]
            if tried.certificate_.event != mechanism.event(objective.facts):
                raise ValueError("A try spent something else than what it was charged for.")
            return self._score(tried, held_out, planned.score_epsilon, seed, log), (number, tried)

        seeds = [None if self.random_state is None else shift + number for number in range(len(settings))]
        runs = [lambda number=number, seed=seed: run(number, seed) for number, seed in enumerate(seeds)]
        if isinstance(planned.event, BestOfTries):
            self.best_score_, (number, best) = best_of_tries(
                planned.event, runs, label=self.label, random_state=self.random_state
            )
            self.results_ = None
        else:
            private = Channel.open(self.random_state).private
            SpendLog.current().charge(planned.event, mechanism="each of several settings once", label=self.label, private=private)
            with set_aside():
                found = [each() for each in watched(runs, "Searching", len(runs))]
            self.results_ = [{**settings[place], "score": score} for score, (place, _) in found]
            self.best_score_, (number, best) = max(found, key=lambda pair: pair[0])
        self.how_ = how
        self.best_params_ = settings[number]
        self.best_estimator_ = best
        self.certificate_ = best.certificate_ = certificate

    # Before the charge

    def _checked(self, private_scores: bool) -> list[dict[str, Any]]:
        if not isinstance(self.estimator, PrivateLinearModel):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(
                f"Expected a linear estimator of dperm.estimators, got {type(self.estimator).__name__}: other runs are searched "
                "by dperm.release.best_of_tries."
            )
        if isinstance(self.epsilon, Risk):
            raise TypeError("Expected epsilon as a number: a search keeps no Risk.")
        check.plain_numbers(self, ("epsilon", "delta", "tries"))
        remind_of_budget(check.positive("epsilon", self.epsilon), check.fraction("delta", self.delta), stacklevel=4)
        check.choice("how", self.how, get_args(How))
        if self.estimator.get_params(deep=False).get("max_rows_per_unit") is not None:
            raise ValueError(
                "Expected an estimator without max_rows_per_unit: a search has no proof for persons of several rows."
            )
        if self.estimator.random_state is not None:
            raise ValueError("Expected an estimator without random_state: give it to the search.")
        if private_scores and (self.scoring is not None or not is_classifier(self.estimator)):
            raise ValueError("Expected a classifier and no scoring for private held-out records: accuracies are released.")
        from sklearn.model_selection import ParameterGrid

        settings = [dict(each) for each in ParameterGrid(self.candidates)]
        if own := {
            "epsilon",
            "delta",
            "random_state",
            "label",
            "relation",
            "classes",
            "public_size",
            "max_rows_per_unit",
        } & set().union(*settings):
            raise ValueError(f"Expected candidates without {', '.join(sorted(own))}: the search sets them, or they are facts.")
        if len(settings) < 2:
            raise ValueError(f"Expected at least two candidates, got {len(settings)}.")
        if self.tries is not None and not check.positive("tries", self.tries) > 1:
            raise ValueError(f"Expected a mean of more than one try, got {self.tries!r}.")
        return settings

    def _known(self, trial: Any, X: Any, y: Any, given: tuple[Any, Any]) -> tuple[int, int, int | None, HeldOut]:
        """Number of features, of classes (0: regression), and of records where it is public; and what tries are scored on. The
        estimator `trial` has validated rows X (n, d) and targets y (n,). ValueError for unusable tables."""
        classifies = is_classifier(trial)
        trial._targets(y)  # what a fit would refuse of them it refuses now
        held_out = HeldOut.of(trial, given, numeric=not classifies)
        targets, size = held_out.targets, None if trial.relation != "replace_one" else len(y)
        if not classifies:
            return X.shape[1], 0, size, held_out
        known: Any = getattr(trial, "classes", None)
        if known is None:
            raise ValueError("Expected the estimator to state its classes: which are present must not differ between tries.")
        stated = np.asarray(known).tolist()
        unknown = [each for each in [*np.unique(y).tolist(), *np.unique(targets).tolist()] if each not in stated]
        if unknown:
            raise ValueError(f"Expected labels among classes = {stated}, got {unknown[0]!r}.")
        if len(np.unique(targets)) < 2:
            raise ValueError("Expected held-out records of more than one class.")
        return X.shape[1], len(known), size, held_out

    def _planned(
        self, settings: list[dict[str, Any]], features: int, classes: int, size: int | None, private_scores: bool
    ) -> tuple[str, _Planned]:
        """The way of searching, and what it spends."""
        count = len(settings)
        mean = float(self.tries or _TRIES_EACH * count)
        relation = Relation(self.estimator.relation)
        ways: dict[str, tuple[float, float]] = {}  # (ε, δ) of a try, by the way
        for way in ("each once", "geometric") if self.how == "auto" else (self.how,):
            if way == "each once":
                noise = calibrate(lambda x: SelfComposed(Gaussian(x, relation), count), self.epsilon, self.delta)
                ways[way] = gaussian_epsilon(noise, self.delta / count), self.delta / count
            else:
                ways[way] = budget_of_a_try(self.epsilon, self.delta, mean, cast(Law, way), relation)
        how = max(ways, key=lambda way: gaussian_mu(*ways[way]))  # the one that needs less noise
        each, small = ways[how]

        def planned(each: float) -> _Planned:
            share = _SCORE_SHARE if private_scores else 0.0
            built = [self._built(given, each * (1 - share), small, features, classes, size) for given in settings]
            score = (PureDP(each * share, relation),) if share else ()
            tries = tuple(Composed((mechanism.event(objective.facts), *score)) for mechanism, objective in built)
            event = Composed(tries) if how == "each once" else BestOfTries(tries, mean, cast(Law, how))
            return _Planned(each * (1 - share), each * share, small, event, tuple(built))

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return how, share_within(self.epsilon, self.delta, each, planned, lambda found: found.event)

    def _built(
        self, given: dict[str, Any], epsilon: float, delta: float, features: int, classes: int, size: int | None
    ) -> tuple[Mechanism, LinearObjective]:
        tried = clone(self.estimator).set_params(**given, epsilon=epsilon, delta=delta)
        try:
            return tried.mechanism_for(features, classes or 2, size)
        except ValueError as error:
            each = f"epsilon={epsilon:.4g}, delta={delta:.2g}"
            raise ValueError(f"The candidate {given} cannot be tried at {each}, a try's share: {error}") from error

    # Scores and the certificate

    def _score(self, tried: Any, held_out: HeldOut, score_epsilon: float, seed: int | None, log: SpendLog) -> float:
        if not score_epsilon:
            rows, targets = held_out.rows, held_out.targets
            with spend_log(log, workers=False):  # what a stranger's scoring trains was not charged with the tries
                return float(self.scoring(tried, rows, targets) if self.scoring else tried.score(rows, targets))
        right = float(held_out.right(tried))
        channel = Channel.open(seed)
        channel.charge(PureDP(score_epsilon, Relation(self.estimator.relation)), "score of a try")
        return float(channel.release(np.array([right]), PureNoise(1.0, score_epsilon))[0])

    def _certificate(self, planned: _Planned, how: str, said: Sequence[Sequence[Assumption]]) -> Certificate:
        provenance: Provenance = Channel.open(self.random_state).provenance
        strangers = third_party_assumption(self.estimator)
        parts = [
            mechanism.certificate(objective.facts, provenance).with_assumptions(*own, *strangers)
            for (mechanism, objective), own in zip(planned.built, said, strict=True)
        ]
        return certificate_of_search(
            planned.event, parts, how, len(parts), delta=self.delta, epsilon=self.epsilon,
            held_out_private=bool(planned.score_epsilon), provenance=provenance,
            facts={"settings": len(parts), "epsilon_of_a_try": planned.epsilon, "delta_of_a_try": planned.delta},
        )  # fmt: skip

    # Of the best

    def predict(self, X: Any) -> Any:
        """By the best estimator."""
        check_is_fitted(self, "best_estimator_")
        return self.best_estimator_.predict(X)

    @available_if(_has_probabilities)  # pyright: ignore[reportUntypedFunctionDecorator]
    def predict_proba(self, X: Any) -> Any:
        """By the best estimator."""
        check_is_fitted(self, "best_estimator_")
        return self.best_estimator_.predict_proba(X)

    def score(self, X: Any, y: Any) -> float:
        """The best estimator's score."""
        check_is_fitted(self, "best_estimator_")
        return float(self.best_estimator_.score(X, y))
