"""What a private estimator cannot answer for: a class around it, or derived from it, that looks at the records itself."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterator
from typing import Any

from sklearn.base import BaseEstimator
from sklearn.utils import get_tags

from dperm._family import ours
from dperm.privacy import Assumption
from dperm.privacy.certificates.assumptions import stranger


def third_party_assumption(estimator: Any) -> list[Assumption]:
    """What is assumed of an estimator whose class dperm did not write."""
    assumed = "prepares each record by itself, by settings that do not depend on records"
    return [] if ours(type(estimator)) else [stranger("estimator", estimator, assumed, "stated")]


def remind_of_what_looks(*, stacklevel: int) -> bool:
    """Warn where a search chooses by held-out records, or a step of a pipeline learns from them: neither is private, neither is
    charged. Returns whether a pipeline's steps were warned of."""
    if not (callers := list(_callers())):
        return False
    from sklearn.pipeline import Pipeline

    for caller in callers:
        if {"estimator", "cv"} <= set(caller.get_params(deep=False)):
            warnings.warn(
                f"{type(caller).__name__} trains on parts of the records, each time at the full price, and goes by the others: "
                "what it chooses or learns from these is neither private nor charged. DPSearch chooses privately; or use public "
                "records.",
                UserWarning,
                stacklevel=stacklevel + 1,
            )
            break
        if "final_estimator" in caller.get_params(deep=False):
            warnings.warn(
                f"{type(caller).__name__} trains on parts of the records, each at the full price, and its final estimator on "
                "what these predict of the others: where that one is not private, neither is the whole.",
                UserWarning,
                stacklevel=stacklevel + 1,
            )
            break
    looking = [name for caller in callers if isinstance(caller, Pipeline) for name in _looking(caller.steps[:-1])]
    targets = [("", getattr(caller, "transformer", None)) for caller in callers if hasattr(caller, "regressor")]
    looking += _looking(targets)
    if looking:
        warnings.warn(
            f"{', '.join(looking)} in front of a private estimator: what is learnt there from the records is neither private nor "
            "charged. Scale and encode by public ranges and categories: PublicRangeScaler, TableEncoder, or a schema.",
            UserWarning,
            stacklevel=stacklevel + 1,
        )
    return bool(looking)


def _callers() -> Iterator[BaseEstimator]:
    """Estimators of others whose methods are under way, the innermost first, each once."""
    seen: set[int] = set()
    frame = inspect.currentframe()
    while frame is not None:
        owner = frame.f_locals.get("self")
        if isinstance(owner, BaseEstimator) and id(owner) not in seen and not _ours(owner):
            seen.add(id(owner))
            yield owner
        frame = frame.f_back


def _looking(steps: Any) -> Iterator[str]:
    """Names of the transformers among (name, transformer, …) that learn from records."""
    from sklearn.compose import ColumnTransformer
    from sklearn.pipeline import FeatureUnion, Pipeline

    for _, step, *_ in steps:
        if isinstance(step, ColumnTransformer):
            yield from _looking(step.transformers)
        elif isinstance(step, FeatureUnion):
            yield from _looking(step.transformer_list)
        elif isinstance(step, Pipeline):
            yield from _looking(step.steps)
        elif isinstance(step, BaseEstimator) and not _ours(step) and get_tags(step).requires_fit and not _told(step):
            yield type(step).__name__


def _told(step: BaseEstimator) -> bool:
    """Whether its parameters say what others of its kind would learn."""
    given = step.get_params(deep=False)
    return given.get("strategy") == "constant" or not isinstance(given.get("categories", "auto"), str)


def _ours(estimator: BaseEstimator) -> bool:
    return type(estimator).__module__.partition(".")[0] == "dperm"
