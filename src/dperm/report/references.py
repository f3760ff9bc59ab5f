"""Models without privacy beside which a study puts private ones: a linear one, gradient boosting, and a constant answer."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import issparse

from dperm._types import Array
from dperm.data import Dataset
from dperm.objectives import LinearObjective, Records, RegularisedSum, Task
from dperm.solvers import minimise, minimise_softmax

if TYPE_CHECKING:
    from dperm.report.study_settings import Study

#: Λ of the linear reference, in sum form: enough to make it unique. On nearly separable records it still costs some hundredths of
#: training loss, so that a private model can undercut the reference slightly.
_CONVEXITY = 1e-2

#: Gradient boosting takes dense tables of at most so many numbers, and is trained on the first splits alone, fewer where each
#: class has trees of its own: it takes longer than all others together.
_MOST_NUMBERS = 50_000_000
_BOOSTED_SPLITS, _WITH_MORE_CLASSES = 5, 3


def linear_reference(objective: LinearObjective, records: Records, task: Task) -> Array:
    """Minimiser of the (nearly) unregularised objective; one row a class for one-vs-rest."""
    objective = objective.with_strong_convexity(_CONVEXITY)
    if objective.outputs > 1:
        return minimise_softmax(objective, records)
    if task.classes > 2:
        rows = [
            minimise(RegularisedSum(objective, records.one_against_rest(number)), 1e-6).theta for number in range(task.classes)
        ]
        return np.stack(rows)
    return minimise(RegularisedSum(objective, records), 1e-6, objective.radius).theta


def constant_answers(targets: NDArray[Any], classes: int, count: int) -> Array:
    """The training records' share of each class as probabilities (count, K), or their mean (count,)."""
    if not classes:
        return np.full(count, float(np.mean(targets)))
    shares = np.bincount(targets.astype(np.intp), minlength=classes) / len(targets)
    return np.tile(shares, (count, 1))


def boosted_splits(dataset: Dataset, study: Study) -> int:
    """On how many splits of a study gradient boosting is trained: none where the table is too large for it."""
    if not study.boosting or dataset.features.shape[0] * dataset.features.shape[1] > _MOST_NUMBERS:
        return 0
    return min(study.repeats, _WITH_MORE_CLASSES if len(dataset.classes) > 2 else _BOOSTED_SPLITS)


def boosted_answers(
    dataset: Dataset, targets: NDArray[Any], split: tuple[NDArray[np.intp], NDArray[np.intp]], random_state: int
) -> Array:
    """Probabilities (n, K), or predictions (n,), of held-out records by scikit-learn's histogram gradient boosting with its own
    settings."""
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

    train, test = split
    rows = straightened(dataset)
    if not dataset.classes:
        return HistGradientBoostingRegressor(random_state=random_state).fit(rows[train], targets[train]).predict(rows[test])
    model = HistGradientBoostingClassifier(random_state=random_state).fit(rows[train], targets[train])
    chances = np.zeros((len(test), len(dataset.classes)))
    chances[:, model.classes_.astype(np.intp)] = model.predict_proba(rows[test])
    return chances


def straightened(dataset: Dataset) -> Array:
    """The features (n, d'), with each curve of several features as the one number that it was made of, in units of its knots.

    A curve's features are hats over its knots, of which two are not 0: their places, weighed by their heights, rise with the
    number. Trees then cut the number itself, as they would without curves.
    """
    rows = dataset.features.toarray() if issparse(dataset.features) else np.asarray(dataset.features)
    before, after = (Counter(pair[side] for pair in dataset.neighbours) for side in (1, 0))
    following = {first: second for first, second in dataset.neighbours if after[first] == before[second] == 1}  # no surfaces
    inner = set(following.values())
    columns: list[Array] = []
    for feature in range(rows.shape[1]):
        if feature in inner:
            continue
        chain = [feature]
        while chain[-1] in following:
            chain.append(following[chain[-1]])
        places = np.arange(1, len(chain) + 1, dtype=np.float64)
        columns.append(rows[:, chain] @ places)
    return np.column_stack(columns)
