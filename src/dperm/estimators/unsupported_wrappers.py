"""What a private estimator cannot answer for: a class around it, or derived from it, that looks at the records itself."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from sklearn.base import BaseEstimator
from sklearn.utils import get_tags

from dperm._family import ours
from dperm._remind import remind
from dperm.privacy import Assumption
from dperm.privacy.certificates.assumptions import prepared, stranger


class _Refusal(NamedTuple):
    """Why a wrapper is refused, and what to use instead."""

    why: str
    instead: str


_RESAMPLES = _Refusal(
    "it draws n of n records with replacement and counts copies as weights: one record more changes the draws of all others",
    "DPBagging draws each record by a coin of its own, and charges each member",
)
_BOOSTS = _Refusal(
    "the weight of a record follows there from errors on other records",
    "a record's own weight is sample_weight; for effects that are no lines use curves (docs/curves.md), or DPBagging",
)
_STACKS = _Refusal(
    "which records a fold holds follows from the others, and the final estimator is fitted to the records again",
    "DPBagging averages members that are charged each; DPSearch chooses among settings",
)
_TREES = _Refusal("its trees are fitted to the records without noise", "use the private estimator without it")

#: Wrappers of scikit-learn whose own computations on the records, or whose draws of them, no charge covers.
_REFUSED: Mapping[str, _Refusal] = {
    "BaggingClassifier": _RESAMPLES,
    "BaggingRegressor": _RESAMPLES,
    "AdaBoostClassifier": _BOOSTS,
    "AdaBoostRegressor": _BOOSTS,
    "StackingClassifier": _STACKS,
    "StackingRegressor": _STACKS,
    "GradientBoostingClassifier": _TREES,
    "GradientBoostingRegressor": _TREES,
    "CalibratedClassifierCV": _Refusal(
        "it fits its curve to the records' exact scores, without noise",
        "DPLogisticRegression has probabilities (Objective(margin=0): log-odds); with public records calibrate the fitted model, "
        "in a FrozenEstimator",
    ),
    "TunedThresholdClassifierCV": _Refusal(
        "it chooses its threshold by exact scores of the records",
        "state a public one: FixedThresholdClassifier, or dperm predict --threshold",
    ),
    "SelfTrainingClassifier": _Refusal(
        "which records it labels follows from the others", "leave records without a label out, as absent ones"
    ),
    "RANSACRegressor": _Refusal(
        "it draws and keeps records by their errors", "DPQuantileRegressor, whose median is robust, or a narrower target_range"
    ),
    "IterativeImputer": _Refusal(
        "it fills gaps by what it learns from the records without noise",
        '"missing": "middle" or "separate" in a schema, with TableEncoder',
    ),
}
_VOTES = ("VotingClassifier", "VotingRegressor")
_CHAINS = ("ClassifierChain", "RegressorChain")


def third_party_assumption(estimator: Any) -> list[Assumption]:
    """What is assumed of an estimator whose class dperm did not write."""
    assumed = "prepares each record by itself, by settings that do not depend on records"
    return [] if ours(type(estimator)) else [stranger("estimator", estimator, assumed, "stated")]


def refuse_what_resamples() -> None:
    """ValueError, before anything is charged, where an estimator of somebody else that draws records by others, or computes on
    them without noise, is fitting or copying a private one."""
    for caller in _callers():
        name = type(caller).__name__
        refused = next((_REFUSED[kind] for kind in _kinds(caller) if kind in _REFUSED), None)
        parameters = caller.get_params(deep=False)
        if refused is not None and parameters.get("cv") != "prefit":  # of fitted models the last one alone is trained
            raise ValueError(f"Expected no {name} around a private estimator: {refused.why}. Instead: {refused.instead}.")
        if any(kind in _CHAINS for kind in _kinds(caller)) and parameters.get("cv") is not None:
            raise ValueError(
                f"Expected {name} with cv=None around a private estimator: {_STACKS.why.partition(',')[0]}, and each model "
                "learns from what the one before it predicts of held-out records. Instead: DPMultiLabel trains several labels."
            )
        if any(kind in _VOTES for kind in _kinds(caller)):
            others = [type(each).__name__ for _, each in parameters["estimators"] if not _is_private(each)]
            if others:
                raise ValueError(
                    f"Expected a {name} of private estimators alone, got {', '.join(others)} among them, which learn from the "
                    "records without noise."
                )
        for _, step in getattr(caller, "steps", ()):
            if hasattr(step, "fit_resample"):
                raise ValueError(
                    f"Expected no {type(step).__name__} in front of a private estimator: it draws records, or makes them of "
                    "others. Instead: public weights of classes (class_weight)."
                )


def remind_of_what_looks(*, stacklevel: int) -> bool:
    """Warn where a search chooses by held-out records, or a step of a pipeline learns from them: neither is private, neither is
    charged. Returns whether steps of a pipeline learn from records."""
    callers = list(_callers())
    for caller in callers:
        name = type(caller).__name__
        chained = any(kind in _CHAINS for kind in _kinds(caller))  # without held-out records, for others are refused
        if {"estimator", "cv"} <= set(caller.get_params(deep=False)) and not chained:
            remind(
                ("looks", name),
                f"{name} trains on parts of the records, each time at the full price, and chooses by the others: that is neither "
                "private nor charged. DPSearch chooses privately; or use public records.",
                stacklevel=stacklevel + 1,
            )
            break
        if any(kind in _VOTES for kind in _kinds(caller)):
            remind(
                ("votes", name),
                f"{name} is not charged as a whole: each member is, at its full price, and they add up (dperm account --log).",
                stacklevel=stacklevel + 1,
            )
            break
    looking = [name for name, learns in _steps(callers) if learns]
    if looking:
        remind(
            ("steps", *looking),
            f"{', '.join(looking)} in front of a private estimator: what is learnt there from the records is neither private nor "
            "charged. Scale and encode by public ranges and categories: PublicRangeScaler, TableEncoder, or a schema.",
            stacklevel=stacklevel + 1,
        )
    return bool(looking)


def preparation() -> tuple[list[Assumption], list[str]]:
    """What a certificate says of the steps in front of the estimator that is fitted, and what of them is not charged."""
    steps = list(_steps(list(_callers())))
    looking = list(dict.fromkeys(name for name, learns in steps if learns))
    public = list(dict.fromkeys(name for name, learns in steps if not learns))
    uncharged = [f"what the steps in front of the estimator learnt from records ({', '.join(looking)})"] if looking else []
    return prepared(public, looking), uncharged


def _steps(callers: list[BaseEstimator]) -> Iterator[tuple[str, bool]]:
    """(name, whether it learns from records) of the transformers of features, and of targets, around a private estimator."""
    from sklearn.pipeline import Pipeline

    for caller in callers:
        if isinstance(caller, Pipeline):
            yield from _transformers(caller.steps[:-1])
    for caller in callers:
        if hasattr(caller, "regressor"):
            yield from _transformers([("", getattr(caller, "transformer", None))])


def _callers() -> Iterator[BaseEstimator]:
    """Estimators of others whose methods are under way, the innermost first, each once."""
    seen: set[int] = set()
    frame = inspect.currentframe()
    while frame is not None:
        for name in ("self", "ensemble"):  # a worker of scikit-learn's bagging calls the bag so
            owner = frame.f_locals.get(name)
            if isinstance(owner, BaseEstimator) and id(owner) not in seen and not _ours(owner):
                seen.add(id(owner))
                yield owner
        frame = frame.f_back


def _kinds(estimator: BaseEstimator) -> list[str]:
    """Names of the classes of scikit-learn that an estimator is of."""
    return [kind.__name__ for kind in type(estimator).__mro__ if kind.__module__.partition(".")[0] == "sklearn"]


def _is_private(member: Any) -> bool:
    """Whether an estimator is one of dperm's, or somebody's pipeline or search around one; a member that is left out is, too."""
    if isinstance(member, str):
        return True
    if isinstance(member, BaseEstimator) and _ours(member):
        return True
    if hasattr(member, "steps"):
        return _is_private(member.steps[-1][1])
    return hasattr(member, "estimator") and _is_private(member.estimator)


def _transformers(steps: Any) -> Iterator[tuple[str, bool]]:
    """(name, whether it learns from records) of the transformers among (name, transformer, …)."""
    from sklearn.compose import ColumnTransformer
    from sklearn.pipeline import FeatureUnion, Pipeline

    for _, step, *_ in steps:
        if isinstance(step, ColumnTransformer):
            yield from _transformers([*step.transformers, ("remainder", step.remainder)])
        elif isinstance(step, FeatureUnion):
            yield from _transformers(step.transformer_list)
        elif isinstance(step, Pipeline):
            yield from _transformers(step.steps)
        elif isinstance(step, BaseEstimator):
            yield type(step).__name__, not _ours(step) and get_tags(step).requires_fit and not _told(step)
        elif hasattr(step, "fit"):  # of a class that says nothing of itself
            yield type(step).__name__, True


def _told(step: BaseEstimator) -> bool:
    """Whether it is one of those that learn nothing where their parameters say it all, and these do."""
    given, kinds = step.get_params(deep=False), _kinds(step)
    if "SimpleImputer" in kinds:
        return given["strategy"] == "constant" and not given["add_indicator"]
    if "OneHotEncoder" in kinds or "OrdinalEncoder" in kinds:
        counted = given.get("min_frequency") is not None or given.get("max_categories") is not None
        return not isinstance(given["categories"], str) and not counted
    return False


def _ours(estimator: BaseEstimator) -> bool:
    return type(estimator).__module__.partition(".")[0] == "dperm"
