"""A saved model on test records: exact scores for their holder, or noisy ones that are charged, of all records and by group."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dperm._progress import told
from dperm.data import Dataset, Schema, TargetRange
from dperm.privacy import Assumption
from dperm.report.judging import Judgement, judge_classes, judge_numbers
from dperm.report.released import release_class_scores, release_number_scores

_MOST_GROUPS = 50
_SHOWN = 500  # answers, after which progress is told again
_FRESH = Assumption("No test record was trained on.", "caller", "stated", "test records")


@dataclass(frozen=True)
class Evaluation:
    """A fitted model beside test records, and by which column these are told apart, if by any.

    Attributes
    ----------
    model : estimator
        Fitted, of any kind.
    dataset : Dataset
        The test records.
    schema : Schema or None
        The model's; None for one of arrays.
    target_range : TargetRange or None
        Of a numeric target, by which answers are in its units.
    by, groups : str or None, (n,) texts
        A column, and what each record holds there.
    trained_on : bool
        Whether the table is known to be the one that the model was trained on.
    range_is_public : bool
        Whether that range was stated without a look at the data.
    model_sha256 : str
        The SHA-256 of the model's file, by which a card knows that scores are of its model.
    """

    model: Any
    dataset: Dataset
    schema: Schema | None
    target_range: TargetRange | None
    by: str | None = None
    groups: NDArray[Any] | None = None
    model_sha256: str = ""
    range_is_public: bool = False
    trained_on: bool = False

    def judged(self) -> tuple[Judgement, dict[str, Judgement]]:
        """Exact scores, of all records and of each group. ValueError for too many groups, and for labels that the model does not
        know."""
        whole, parts = self._judged(slice(None)), dict[str, Judgement]()
        if self.groups is not None:
            names = sorted(set(self.groups))
            if len(names) > _MOST_GROUPS:
                raise ValueError(f"Expected --by a column of at most {_MOST_GROUPS} values, got {len(names)} in {self.by!r}.")
            parts = {name: self._judged(self.groups == name) for name in names}
        return whole, parts

    def released(
        self, epsilon: float, delta: float, relation: str, progress: Callable[[int, int], None] | None = None
    ) -> dict[str, Any]:
        """Noisy scores within (ε, δ), charged; JSON-ready, with their certificate. `progress(answers, all)` is told of the
        answers, which the model gives one by one. ValueError, before the charge, for a schema
        that is not public and for groups that are not."""
        if self.schema is not None and self.schema.proposed:
            raise ValueError(
                "Expected a model by a confirmed schema with released scores: its classes and ranges were read off the data."
            )
        dataset, model = self.dataset, self.model
        given: dict[str, Any] = {"epsilon": epsilon, "delta": delta, "relation": relation, "label": dataset.name}
        given["persons"] = dataset.groups
        answers = _one_by_one(model.predict, dataset.features, progress)
        if not hasattr(model, "classes_"):
            if self.target_range is None or not self.range_is_public:
                raise ValueError(
                    "Expected a model whose target's range is public, by a schema or by dperm train --target-range: it bounds "
                    "the errors."
                )
            if self.by is not None:
                names, groups = self._public_groups(self.by)
                given |= {"groups": groups, "group_names": names}
            truth, bounds = np.asarray(dataset.targets, dtype=np.float64), self.target_range
            found = release_number_scores(truth, bounds.restored(answers), bounds, **given)
        else:
            classes = [str(label) for label in model.classes_]
            number = {label: place for place, label in enumerate(classes)}
            truth = [number.get(str(label), -1) for label in dataset.targets]
            if -1 in truth:
                raise ValueError(f"Expected the model's labels {classes[:8]}, got {str(dataset.targets[truth.index(-1)])!r}.")
            if self.by is not None:
                names, groups = self._public_groups(self.by)
                given |= {"groups": groups, "group_names": names}
            likely = None
            if hasattr(model, "predict_proba") and len(classes) == 2:
                likely = _one_by_one(model.predict_proba, dataset.features, progress)[:, 1]
            places = np.array([number[str(label)] for label in answers])
            given["ordered"] = self._ordered
            found = release_class_scores(np.array(truth), places, likely, classes, **given)
        scores: dict[str, Any] = {"test_data": "released", **found.whole.to_dict()}
        scores["half_widths"] = _shown(found.widths)
        scores["of"] = "records" if dataset.groups is None else "persons"
        scores["model_sha256"] = self.model_sha256
        scores["trained_on"] = self.trained_on
        if found.parts:
            scores["by"] = {
                name: {**part.to_dict(), "half_widths": _shown(found.part_widths[name])} for name, part in found.parts.items()
            }
        certificate = found.certificate if self.trained_on else found.certificate.with_assumptions(_FRESH)
        return scores | {"certificate": json.loads(certificate.to_json())}

    @property
    def _ordered(self) -> bool:
        """Whether the model's classes stand from the least to the greatest."""
        return (
            self.schema is not None
            and self.schema.ordered
            and [str(label) for label in self.model.classes_] == [*self.schema.classes]
        )

    def _public_groups(self, by: str) -> tuple[list[str], NDArray[np.intp]]:
        """The values of a column that the schema states, others and missing ones as one each, and which each record has."""
        columns = [] if self.schema is None else [column for column in self.schema.columns if column.type == "category"]
        column = next((column for column in columns if column.name == by), None)
        if column is None or self.groups is None:
            known = [column.name for column in columns]
            raise ValueError(f"Expected --by one of the schema's categories {known}, whose values are public, got {by!r}.")
        names = [*column.categories, "(other or missing)"]
        place = {name: number for number, name in enumerate(column.categories)}
        return names, np.array([place.get(value, len(column.categories)) for value in self.groups])

    def _judged(self, rows: Any) -> Judgement:
        features, targets = self.dataset.features[rows], np.asarray(self.dataset.targets)[rows]
        answers = self.model.predict(features)
        if not hasattr(self.model, "classes_"):
            if self.target_range is not None:
                answers = self.target_range.restored(answers)
            each = getattr(self.model, "estimator", self.model)  # of models by part one of them
            return judge_numbers(targets.astype(np.float64), answers, quantile=getattr(each, "quantile", None))
        classes = list(self.model.classes_)
        if strange := sorted(set(np.unique(targets)) - set(classes))[:5]:
            raise ValueError(f"Expected the model's labels {list(map(str, classes))[:8]}, got {list(map(str, strange))}.")
        probabilities = self.model.predict_proba(features) if hasattr(self.model, "predict_proba") else None
        weighted = getattr(self.model, "class_weight", None) is not None
        return judge_classes(targets, answers, probabilities, classes, weighted=weighted, ordered=self._ordered)


def _shown(widths: dict[str, float]) -> dict[str, float | None]:
    """JSON-ready."""
    return {name: width if math.isfinite(width) else None for name, width in widths.items()}


def _one_by_one(answer: Any, rows: Any, progress: Callable[[int, int], None] | None) -> Any:
    """Answers to rows, each computed by itself: of many at once, last bits may depend on how many there are."""
    answers: list[Any] = []
    with told(progress, "Answering") as step:
        for place in range(rows.shape[0]):
            answers.append(answer(rows[place : place + 1]))
            if not (place + 1) % _SHOWN:
                step(place + 1, rows.shape[0])
    return np.concatenate(answers)
