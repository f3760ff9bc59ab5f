"""How much of a private model is chance: of its noise, and of who happened to be among its records."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit, logit
from scipy.stats import norm
from sklearn.utils.validation import check_is_fitted

from dperm import _validate as check
from dperm._column import column
from dperm._progress import told
from dperm._types import Array
from dperm.audit.outputs import unlogged
from dperm.data import Dataset

_UNCHARGED = "it was trained again for the data holder alone, uncharged, on records of which some stand for several"
_LEAST = 1e-12  # of a probability, which has no log-odds at 0


@dataclass(frozen=True)
class Refits:
    """A fitted linear estimator, and as many like it as one likes: each trained by the same mechanism, with noise of its own, on
    as many persons, drawn from the same ones with replacement (the bootstrap; Efron, 1979).

    How they differ is how an estimator of other records of the same kind would differ, whatever its mechanism: the spread is that
    of the noise and that of the records. Intervals are those of what the same training would give on average: a penalty, a ball
    or a clipped gradient moves that average, and no interval says by how much.

    NOT PRIVATE, and nothing is charged: what is said by them is for the data holder alone.
    """

    model: Any
    models: tuple[Any, ...]

    @classmethod
    def of(
        cls,
        model: Any,
        records: Dataset,
        count: int = 100,
        *,
        sample_weight: ArrayLike | None = None,
        random_state: int | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> Refits:
        """Refits of a fitted estimator to the `records` that it was trained on, with their weights where it has some;
        `progress(done, count)` is called after each.

        ValueError for records of other features or labels, fewer than two refits, and what the estimator refuses.
        """
        check_is_fitted(model)
        if not hasattr(model, "coef_"):
            raise ValueError(f"Expected a linear model, got {type(model).__name__}.")
        check.integer("count", count, minimum=2)
        features, known = model.n_features_in_, getattr(model, "classes_", None)
        if records.features.shape[1] != features:
            raise ValueError(
                f"Expected the records that the model was trained on, of {features} features, got {records.features.shape}."
            )
        targets = records.targets if records.target_range is None else records.target_range.scaled(records.targets)
        settings = dict(model.fitted_params_)
        if known is not None:
            if (strange := np.setdiff1d(targets, known)).size:
                raise ValueError(f"Expected records with the model's labels {known[:8].tolist()}, got {strange[:8].tolist()}.")
            settings["classes"] = known.tolist()  # a draw may have no record of a rare one
        weights = None if sample_weight is None else column("weights", sample_weight, len(records)).astype(np.float64)
        rng = np.random.default_rng(random_state)
        models: list[Any] = []
        with told(progress, "Training again") as step:
            for done in range(count):
                drawn, groups = _persons(records, rng)
                seed = {} if random_state is None else {"random_state": random_state + done}
                given = {} if weights is None else {"sample_weight": weights[drawn]}
                again = type(model)(**settings, **seed)
                with unlogged(), warnings.catch_warnings():  # this fit alone: what `progress` does is charged as anywhere
                    warnings.simplefilter("ignore", UserWarning)  # the model's own fit has given them
                    again.fit(records.features[drawn], targets[drawn], groups, absent=records.absent, **given)
                again.certificate_ = again.certificate_.only_claimed(_UNCHARGED)
                models.append(again)
                step(done + 1, count)
        return cls(model, tuple(models))

    def root(self, row: int = 0) -> Array:
        """A root N (d, count) of the covariance NNᵀ of the coefficients of one row of `coef_`."""
        table = np.stack([np.atleast_2d(each.coef_)[row] for each in self.models], axis=1)
        return (table - table.mean(axis=1, keepdims=True)) / np.sqrt(len(self.models) - 1)

    def coefficients(self, level: float = 0.95) -> tuple[Array, Array]:
        """Lowest and highest, each of the shape of `coef_`: the model's own, and as many standard deviations of the refits' to
        both sides as a normal law has at this level."""
        far = _deviations(level) * np.stack([each.coef_ for each in self.models]).std(axis=0, ddof=1)
        return self.model.coef_ - far, self.model.coef_ + far

    def predictions(self, X: Any, level: float = 0.95) -> tuple[Array, Array]:
        """Lowest and highest for rows X (n, d): of the probabilities (n, K) where the model has some, by their log-odds, of the
        expected target (n,) of a regression, by its logarithm where targets are counts. Where a new record will fall varies more.

        ValueError for a model that gives labels alone.
        """
        if hasattr(self.model, "predict_proba"):
            told, turn, back = "predict_proba", _log_odds, expit
        elif hasattr(self.model, "classes_"):
            raise ValueError(
                f"Expected a model with probabilities or a regression: {type(self.model).__name__} gives labels alone."
            )
        elif min(self.model.objective_.loss.targets.extremes) >= 0:  # counts: none is below 0
            told, turn, back = "predict", _logs, np.exp
        else:
            told, turn, back = "predict", np.asarray, np.asarray
        middle = turn(getattr(self.model, told)(X))
        # a sum and a sum of squares about the model's own: predictions of many rows are not kept for each refit
        total, squares = np.zeros(np.shape(middle)), np.zeros(np.shape(middle))
        for each in self.models:
            apart = turn(getattr(each, told)(X)) - middle
            total += apart
            squares += apart**2
        count = len(self.models)
        far = _deviations(level) * np.sqrt(np.maximum(squares - total**2 / count, 0.0) / (count - 1))
        return back(middle - far), back(middle + far)


def _persons(records: Dataset, rng: np.random.Generator) -> tuple[NDArray[np.intp], NDArray[np.intp] | None]:
    """Rows of as many persons as there are, drawn with replacement, and whose they are: each draw is a person of its own."""
    if records.groups is None:
        return rng.integers(0, len(records), len(records)), None
    order = np.argsort(records.groups, kind="stable")
    _, starts, sizes = np.unique(records.groups[order], return_index=True, return_counts=True)
    chosen = rng.integers(0, len(starts), len(starts))
    rows = [order[starts[person] : starts[person] + sizes[person]] for person in chosen]
    return np.concatenate(rows), np.repeat(np.arange(len(chosen)), sizes[chosen])


def _log_odds(probabilities: Array) -> Array:
    return logit(np.clip(probabilities, _LEAST, 1 - _LEAST))


def _logs(expected: Array) -> Array:
    return np.log(np.maximum(expected, _LEAST))


def _deviations(level: float) -> float:
    check.fraction("level", level)
    return float(norm.isf((1 - level) / 2))
