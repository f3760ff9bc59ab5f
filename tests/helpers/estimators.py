"""The library's estimators, found by walking: what is tested of all of them is tested of a new one."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, is_classifier

import dperm.estimators  # imports all of its modules

if TYPE_CHECKING:
    from torch import nn

__all__ = ["TwoLayers", "all_estimators", "learnable", "linear_estimators", "made", "network_estimators", "parameters"]


@dataclass(frozen=True)
class TwoLayers:
    """A function (features, classes) → module whose text has no address in it: names of tests must not change."""

    width: int = 8

    def __call__(self, features: int, classes: int) -> nn.Module:
        from torch import nn

        return nn.Sequential(nn.Linear(features, self.width), nn.Tanh(), nn.Linear(self.width, classes))


def all_estimators() -> list[type]:
    """Public classes that learn a private model of their own, by name: what has an epsilon, but for searches around others."""
    found: set[type] = set()
    waiting: list[type] = [BaseEstimator]
    while waiting:
        kind = waiting.pop()
        waiting += kind.__subclasses__()
        ours = kind.__module__.startswith(dperm.estimators.__name__) and not inspect.isabstract(kind)
        if ours and "epsilon" in parameters(kind) and "estimator" not in parameters(kind):
            found.add(kind)
    return sorted(found, key=lambda kind: kind.__name__)


def linear_estimators() -> list[type]:
    return [kind for kind in all_estimators() if "data_norm" in parameters(kind)]


def network_estimators() -> list[type]:
    return [kind for kind in all_estimators() if kind not in linear_estimators()]


def parameters(kind: type) -> list[str]:
    return list(inspect.signature(kind).parameters)


def made(kind: type, **settings: Any) -> Any:
    """One of a class, by its defaults but for `settings`; those that it does not have are left out."""
    known = parameters(kind)
    given = {"module": TwoLayers()} if "module" in known else {}
    return kind(**given, **{name: value for name, value in settings.items() if name in known})


def learnable(kind: type, records: int, features: int = 3, classes: int = 2) -> tuple[NDArray[np.float64], NDArray[Any]]:
    """Rows and targets that any estimator of this kind can learn from: labels from 0, or numbers in [0, 1]."""
    rng = np.random.default_rng(0)
    rows = rng.uniform(-1, 1, (records, features)) / features**0.5
    score = np.clip(rows[:, 0] + 0.5 + 0.05 * rng.normal(size=records), 0.0, 1.0)
    return rows, np.minimum((score * classes).astype(np.intp), classes - 1) if is_classifier(made(kind)) else score
