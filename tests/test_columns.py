"""Issue 42, item 1: what is given for each record means the same in every shape that is taken, and no other shape is taken.

A column (n, 1) beside a vector (n,) is broadcast to a table (n, n): counts over it move by up to 2n, and should move by 1. The
front doors are found by walking over the packages: one that takes labels, targets, groups, weights or masks and is not tried here
fails the first test.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import pkgutil
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.base import is_classifier
from sklearn.exceptions import DataConversionWarning
from torch import nn

import dperm
import dperm.estimators
from dperm._column import agreement, column
from dperm.audit import member_scores, membership, one_run, record_losses
from dperm.audit.one_run import guess
from dperm.data import Column, Dataset, Schema
from dperm.estimators import (
    DPBagging,
    DPByPart,
    DPLogisticRegression,
    DPMLPClassifier,
    DPMultiLabel,
    DPOrdinalClassifier,
    DPRidge,
    DPSearch,
)
from dperm.estimators.base import PrivateLinearModel
from dperm.estimators.records import HeldOut
from dperm.gradient import SGD, Bounding, Constant, FullBatch, Plan
from dperm.gradient.recipes import full_batch_descent
from dperm.inference import release_derivatives
from dperm.influence import LinearInfluence, NetworkInfluence
from dperm.mechanisms import AccuracyFirst, Gradient, LookAtOthers, Output
from dperm.objectives import GroupedRecords, LinearObjective, Logistic, Loss, PrivacyUnit, Records
from dperm.objectives.grouped import numbered
from dperm.release import SpendLog
from dperm.report.judging import judge_classes, judge_numbers
from dperm.report.refits import Refits
from dperm.report.released import release_class_scores, release_number_scores
from dperm.torch import PrivateTrainer
from dperm.utility import EpsilonCurve, UtilityCurve, UtilityPath

N = 12
RNG = np.random.default_rng(0)
X = RNG.uniform(-0.5, 0.5, (N, 2))
LABELS = (X[:, 0] > 0).astype(np.int64)
SIGNS = 2.0 * LABELS - 1
NUMBERS = np.round(np.abs(X[:, 1]), 3)
GROUPS = np.repeat(np.arange(N // 2), 2)
WEIGHTS = np.linspace(0.25, 1.0, N)
THERE = np.arange(N) != 3
LIKELY = np.linspace(0.05, 0.95, N)

INPUTS, KNOWN = torch.from_numpy(X).float(), torch.from_numpy(LABELS)

Answer = Callable[[Any], Any]

#: What arguments that hold one value a record are called
NAMES = {
    *("y", "targets", "truth", "answers", "likely", "probabilities", "groups", "persons", "places"),
    *("sample_weight", "held_out", "present", "coins", "members", "others", "canaries", "validation"),
}

SHAPES: dict[str, Callable[[Any], Any]] = {
    "list": lambda v: v.tolist(),
    "column": lambda v: v[:, None],
    "column of lists": lambda v: v[:, None].tolist(),
    "series": pd.Series,
    "frame of one column": lambda v: pd.DataFrame({"a": v}),
    "polars series": pl.Series,
    "objects": lambda v: v.astype(object),
    "masked, nothing hidden": np.ma.masked_array,
    "tensor": torch.from_numpy,
    "row": lambda v: v[None],
    "row of a list": lambda v: [v.tolist()],
    "table": lambda v: np.tile(v, (len(v), 1)),
    "two columns": lambda v: np.stack([v, v], axis=1),
    "frame of two columns": lambda v: pd.DataFrame({"a": v, "b": v}),
    "cube": lambda v: v[:, None, None],
    "0-d": lambda v: np.array(v[0]),
    "number": lambda v: v[0].item(),
    "one": lambda v: v[:1],
    "shorter": lambda v: v[:-1],
    "longer": lambda v: np.append(v, v[:1]),
    "objects that are lists": lambda v: _objects([[each] for each in v]),
    "objects that are arrays": lambda v: _objects([v for _ in v]),
    "ragged": lambda v: [v[:1].tolist(), *v[1:].tolist()],
    "masked": lambda v: np.ma.masked_array(v, mask=np.arange(len(v)) == 1),
    "masked column": lambda v: np.ma.masked_array(v[:, None], mask=(np.arange(len(v)) == 1)[:, None]),
    "column of a tensor": lambda v: torch.from_numpy(v)[:, None],
    "tensor with a gradient": lambda v: torch.from_numpy(v.astype(np.float64)).requires_grad_(),
    "sparse": lambda v: sp.csr_array(v[:, None].astype(np.float64)),
    "text": lambda v: "".join(map(str, v)),
    "dict": lambda v: dict(enumerate(v)),
}
#: These say the same as the vector, so that every door has to take them
TAKEN = {"list", "column", "column of lists", "series", "frame of one column", "polars series", "objects", "tensor"}


TENSORS = frozenset({"tensor"})  # of a data set of tensors
ENTRIES = frozenset(TAKEN - {"column of lists"})  # where entries stay what they are: a list is none
WITH_WEIGHTS = frozenset({"two columns", "frame of two columns"})  # (n, 2): targets, and a weight each


def _objects(entries: list[Any]) -> Any:
    made = np.empty(len(entries), dtype=object)
    for place, entry in enumerate(entries):
        made[place] = entry
    return made


@dataclass(frozen=True)
class Door:
    """What comes of `values`, or of the same in another shape, where they enter; a door has to take the shapes `takes`."""

    values: Any
    answer: Answer
    takes: frozenset[str] = frozenset(TAKEN)
    means: frozenset[str] = frozenset()  # shapes that say something else, and are taken for that


def linear(kind: type[Any], **given: Any) -> Any:
    settings: dict[str, Any] = {"epsilon": 2.0, "random_state": 0, "public_size": N, **given}
    if is_classifier(kind()):
        settings["classes"] = [0, 1]
    return kind(**settings)


@functools.cache
def fitted(kind: type[Any]) -> Any:
    if kind is DPSearch:
        made, given = search(False)
        return made.fit(X, LABELS, held_out=(X, LABELS), **given)
    if not issubclass(kind, PrivateLinearModel):
        return network(kind).fit(X, LABELS)
    return linear(kind).fit(X, LABELS if is_classifier(kind()) else NUMBERS)


def network(kind: type[Any], **given: Any) -> Any:
    settings: dict[str, Any] = {"mechanism": Gradient(sampling="full", epochs=1), "public_size": N, **given}
    first: Any = (2,) if kind is DPMLPClassifier else nn.Linear
    return kind(first, classes=[0, 1], random_state=0, **settings)


def weights_of(model: Any) -> Any:
    if hasattr(model, "coef_"):
        return np.append(np.ravel(model.coef_), np.ravel(model.intercept_))
    return torch.cat([parameter.detach().flatten() for parameter in model.module_.parameters()]).numpy()


def of_linear(kind: type[Any]) -> Iterator[tuple[str, Door]]:
    y = LABELS if is_classifier(kind()) else NUMBERS
    has = set(inspect.signature(kind).parameters)
    yield "fit: y", Door(y, lambda v: weights_of(linear(kind).fit(X, v)))
    if "max_rows_per_unit" in has:
        grouped = {"max_rows_per_unit": 2, "public_size": N // 2}
        mechanism = {} if kind in (DPLogisticRegression, DPRidge) else {"mechanism": Gradient(sampling="full", epochs=2)}
        yield "fit: groups", Door(GROUPS, lambda v: weights_of(linear(kind, **grouped, **mechanism).fit(X, y, v)), ENTRIES)
    if "max_sample_weight" in has:
        yield (
            "fit: sample_weight",
            Door(WEIGHTS, lambda v: weights_of(linear(kind, max_sample_weight=1.0).fit(X, y, sample_weight=v))),
        )
    yield "score: y", Door(y, lambda v: fitted(kind).score(X, v))
    yield "score: sample_weight", Door(WEIGHTS, lambda v: fitted(kind).score(X, y, v))
    if hasattr(kind, "epsilon_path") and kind is not DPOrdinalClassifier:  # which refuses it
        path = {"draws": 1, "low": 1.0, "high": 2.0, "tolerance": 1e-2}
        unseeded = linear(kind, random_state=None)
        yield "epsilon_path: y", Door(y, lambda v: unseeded.epsilon_path(X, v, held_out=(X, y), random_state=0, **path).accuracy)
        yield (
            "epsilon_path: held_out",
            Door(y, lambda v: unseeded.epsilon_path(X, y, held_out=(X, v), random_state=0, **path).accuracy),
        )


def of_network(kind: type[Any]) -> Iterator[tuple[str, Door]]:
    yield "fit: y", Door(LABELS, lambda v: weights_of(network(kind).fit(X, v)))
    yield (
        "fit: groups",
        Door(GROUPS, lambda v: weights_of(network(kind, max_rows_per_unit=2, public_size=N // 2).fit(X, LABELS, v)), ENTRIES),
    )
    yield "score: y", Door(LABELS, lambda v: fitted(kind).score(X, v))
    yield "score: sample_weight", Door(WEIGHTS, lambda v: fitted(kind).score(X, LABELS, v))


def search(private: bool) -> Any:
    estimator = DPLogisticRegression(classes=[0, 1], fit_intercept=False)
    candidates = {"mechanism": [Output(strong_convexity=each) for each in (1.0, 10.0)]}
    return DPSearch(estimator, candidates, epsilon=2.0, how="each once", random_state=0), {"held_out_private": private}


def searched(y: Any, held_out: Any, private: bool) -> Any:
    made, given = search(private)
    return made.fit(X, y, held_out=(X, held_out), **given).best_score_


OBJECTIVE = LinearObjective(Logistic(), features=2, strong_convexity=1.0, public_size=N)
PERSONS = LinearObjective(Logistic(), features=2, public_size=N // 2, unit=PrivacyUnit(2))


def table(records: Records) -> Any:
    return np.concatenate([np.column_stack([batch.targets, batch.norms]) for batch in records.batches()])


def looked_at(targets: Any) -> Any:
    """What a stopping rule by public records finds, once it was admitted."""
    rule = LookAtOthers(goal="accuracy", target=0.9, rows=X, targets=targets)
    rule.admit(OBJECTIVE)
    enough = rule.test(OBJECTIVE, OBJECTIVE.records(X, SIGNS), None, None)  # type: ignore[arg-type]  # which it has no use for
    return [enough(np.array(theta)) for theta in ([1.0, 0.0], [-1.0, 0.0])]


def stopped(labels: Any) -> Any:
    method = AccuracyFirst(accuracy=0.6, held_out=(X, labels), stops=3, strong_convexity=1.0)
    return weights_of(linear(DPLogisticRegression, mechanism=method).fit(X, LABELS))


def classes_released(**given: Any) -> Any:
    told: dict[str, Any] = {"truth": LABELS, "answers": 1 - LABELS, "likely": LIKELY, **given}
    found = release_class_scores(**told, classes=("no", "yes"), epsilon=1.0, random_state=0)
    return [*found.whole.scores.values(), *found.whole.recalls.values()]


def numbers_released(**given: Any) -> Any:
    told: dict[str, Any] = {"truth": NUMBERS, "answers": NUMBERS[::-1], **given}
    return [*release_number_scores(**told, target_range=(0.0, 1.0), epsilon=1.0, random_state=0).whole.scores.values()]


@functools.cache
def model_of(argument: str) -> Any:
    settings: dict[str, Any] = {"epsilon": 4.0, "classes": [0, 1], "random_state": 0, "public_size": N}
    bounds = {"groups": {"max_rows_per_unit": 2}, "sample_weight": {"max_sample_weight": 1.0}}
    fitting = {"groups": {"groups": GROUPS}, "sample_weight": {"sample_weight": WEIGHTS}}
    return DPLogisticRegression(**settings, **bounds.get(argument, {})).fit(X, LABELS, **fitting.get(argument, {}))


def several_labels(groups: Any) -> Any:
    each = DPLogisticRegression(epsilon=4.0, classes=[0, 1], random_state=0, max_rows_per_unit=2)
    fitted = DPMultiLabel(each).fit(X, np.column_stack([LABELS, 1 - LABELS]), groups)
    return [model.coef_ for model in fitted.models_]


def derivatives_released(**given: Any) -> Any:
    model = model_of(*given)
    told: dict[str, Any] = {"y": LABELS, "spread": "noise", **given}
    return release_derivatives(model, X, **told, epsilon=4.0, random_state=0).hessian


def judged(*given: Any) -> Any:
    both = np.column_stack([1 - LIKELY, LIKELY])
    return [*judge_classes(*given, both, [0, 1]).scores.values()]


def plotted(targets: Any) -> Any:
    curve = EpsilonCurve(OBJECTIVE.facts, 1e-5, 1.0, 2.0, strong_convexity=5.0)
    directions = np.ones((1, 2))
    path = UtilityPath(OBJECTIVE, OBJECTIVE.records(X, SIGNS), curve, directions=directions, tolerance=1e-2)
    return UtilityCurve.of(path, X, targets, [1.5]).accuracy


def influenced(method: str, targets: Any) -> Any:
    influence = LinearInfluence.at_minimiser(OBJECTIVE, OBJECTIVE.records(X, SIGNS))
    return getattr(influence, method)(X, targets)


def network_influenced(method: str, targets: Any, known: Any = KNOWN) -> Any:
    torch.manual_seed(0)
    influence = NetworkInfluence(nn.Linear(2, 2), nn.CrossEntropyLoss(reduction="none"), (INPUTS, known), damping=1.0)
    return np.asarray(getattr(influence, method)(INPUTS, torch.from_numpy(targets) if type(targets) is np.ndarray else targets))


def trained(data: Any, groups: Any = None, validation: Any = None, *, rows: int | None = None) -> Any:
    torch.manual_seed(0)
    model, loss = nn.Linear(2, 2), nn.CrossEntropyLoss(reduction="none")
    trainer = PrivateTrainer(
        model, loss, None, lambda noise_multiplier, public_size: full_batch_descent(
            noise_multiplier=noise_multiplier, public_size=public_size, steps=2, clipping_norm=1.0
        ), epsilon=2.0, delta=1e-5, public_size=N // (rows or 1), max_rows_per_unit=rows, random_state=0,
    )  # fmt: skip
    trainer.fit(data, validation, groups=groups, progress=False)
    scores = [value for entry in trainer.history for name, value in entry.items() if name.startswith("validation")]
    return [*model.weight.detach().flatten().tolist(), *scores]


def guessed(scores: Any, coins: Any) -> Any:
    result = guess(scores, coins, claim=None, delta=1e-5, guesses=6)
    return [result.details["correct"], result.auc]


@functools.cache
def weighed() -> Any:
    return linear(DPLogisticRegression, max_sample_weight=1.0).fit(X, LABELS, sample_weight=WEIGHTS)


def refitted(weights: Any) -> Any:
    records = Dataset("made", X, LABELS, ("a", "b"), ("0", "1"), None)
    return weights_of(Refits.of(weighed(), records, 2, sample_weight=weights, random_state=0).models[0])


@functools.cache
def by_part() -> Any:
    return DPByPart(linear(DPLogisticRegression, public_size=None, mechanism="output"), {"a": 0, "b": 1}).fit(X, LABELS)


@functools.cache
def of_a_bag() -> Any:
    return DPBagging(linear(DPLogisticRegression, random_state=None, mechanism="output"), 2, random_state=0).fit(X, LABELS)


def bag(y: Any = LABELS, **given: Any) -> Any:
    bag = DPBagging(linear(DPLogisticRegression, random_state=None, mechanism="output"), 2, random_state=0)
    return np.concatenate([weights_of(model) for model in bag.fit(X, y, **given).estimators_])


def split(y: Any = LABELS, groups: Any = None, **given: Any) -> Any:
    settings: dict[str, Any] = {"public_size": None, "mechanism": "output", **({"max_sample_weight": 1.0} if given else {})}
    settings |= {} if groups is None else {"max_rows_per_unit": 2}
    made = DPByPart(linear(DPLogisticRegression, **settings), {"a": 0, "b": 1}).fit(X, y, groups, **given)
    return np.concatenate([weights_of(model) for model in made.models_.values()])


def kept_in_a_dataset(**given: Any) -> Any:
    told: dict[str, Any] = {"targets": LABELS, "groups": GROUPS, "places": np.arange(N), **given}
    made = Dataset("made", X, feature_names=("a", "b"), classes=("0", "1"), target_range=None, **told)
    assert all(each is not None and each.shape == (N,) for each in (made.targets, made.groups, made.places))
    return [made.targets, made.groups, made.places]


def encoded(**given: Any) -> Any:
    schema = Schema("made", "c", (Column("a", "number", (0, 1)), Column("b", "number", (0, 1)), Column("c", "label")), ("0", "1"))
    told: dict[str, Any] = {"targets": LABELS, "persons": GROUPS, **given}
    made = Dataset.encoded(schema, X, usable=np.ones(N, dtype=np.bool_), **told)
    return [made.targets, made.groups]


def audited(canaries: Any) -> Any:
    if isinstance(canaries, torch.Tensor):
        canaries = canaries.detach()  # NumPy, which adds them to the data, takes no others
    result = one_run(
        lambda data: linear(DPLogisticRegression).fit(*data), (X, LABELS), (X, canaries), member_scores,
        delta=1e-5, random_state=0,
    )  # fmt: skip
    return [result.details["correct"], result.auc]


def doors() -> dict[str, Door]:
    """By package, name and argument."""
    found: dict[str, Door] = {}
    for name in dperm.estimators.__all__:
        kind = getattr(dperm.estimators, name)
        if inspect.isabstract(kind):
            continue  # the bases of models
        if isinstance(kind, type) and hasattr(kind, "score") and kind not in (DPSearch, DPByPart, DPBagging, DPMultiLabel):
            of = of_linear if issubclass(kind, PrivateLinearModel) else of_network
            found |= {f"{name}.{where}": door for where, door in of(kind)}
    return found | {
        "DPBagging.fit: y": Door(LABELS, bag),
        "DPBagging.fit: sample_weight": Door(WEIGHTS, lambda v: bag(sample_weight=v)),
        "DPBagging.score: y": Door(LABELS, lambda v: of_a_bag().score(X, v)),
        "DPBagging.score: sample_weight": Door(WEIGHTS, lambda v: of_a_bag().score(X, LABELS, v)),
        "DPByPart.fit: y": Door(LABELS, split),
        "DPByPart.fit: groups": Door(GROUPS, lambda v: split(groups=v), ENTRIES),
        "DPByPart.fit: sample_weight": Door(WEIGHTS, lambda v: split(sample_weight=v)),
        "DPByPart.score: y": Door(LABELS, lambda v: by_part().score(np.abs(X), v)),
        "DPByPart.score: sample_weight": Door(WEIGHTS, lambda v: by_part().score(np.abs(X), LABELS, v)),
        "DPMultiLabel.fit: groups": Door(GROUPS, several_labels, ENTRIES),
        "DPSearch.fit: y": Door(LABELS, lambda v: searched(v, LABELS, False)),
        "DPSearch.fit: held_out": Door(LABELS, lambda v: searched(LABELS, v, False)),
        "DPSearch.fit: held_out, private": Door(LABELS, lambda v: searched(LABELS, v, True)),
        "DPSearch.score: y": Door(LABELS, lambda v: fitted(DPSearch).score(X, v)),
        "Records.__init__: targets": Door(SIGNS, lambda v: table(Records(X, v, 1.0)), means=WITH_WEIGHTS),
        "Records.__init__: present": Door(THERE, lambda v: table(Records(X, SIGNS, 1.0, present=v))),
        "GroupedRecords.__init__: targets": Door(
            SIGNS,
            lambda v: table(GroupedRecords(X, v, 1.0, 0.0, starts=np.arange(0, N + 1, 2), most=2)),
            means=WITH_WEIGHTS,
        ),
        "LinearObjective.records: targets": Door(SIGNS, lambda v: table(OBJECTIVE.records(X, v))),
        "LinearObjective.records: groups": Door(GROUPS, lambda v: table(PERSONS.records(X, SIGNS, groups=v)), ENTRIES),
        "LinearObjective.records: present": Door(THERE, lambda v: table(OBJECTIVE.records(X, SIGNS, present=v))),
        "LinearObjective.records: present, persons": Door(
            THERE, lambda v: table(PERSONS.records(X, SIGNS, groups=GROUPS, present=v))
        ),
        "Records.relabelled: targets": Door(SIGNS, lambda v: table(OBJECTIVE.records(X, -SIGNS).relabelled(v)), frozenset(TAKEN)),
        "LookAtOthers.__init__: targets": Door(SIGNS, looked_at),
        "AccuracyFirst.__init__: held_out": Door(LABELS, stopped),
        "LinearInfluence.on_loss: targets": Door(SIGNS, lambda v: influenced("on_loss", v)),
        "LinearInfluence.with_more: targets": Door(SIGNS, lambda v: influenced("with_more", v)),
        "NetworkInfluence.__init__: data": Door(
            LABELS, lambda v: network_influenced("on_loss", torch.from_numpy(LABELS), v), TENSORS
        ),
        "NetworkInfluence.on_loss: targets": Door(LABELS, lambda v: network_influenced("on_loss", v), TENSORS),
        "NetworkInfluence.with_more: targets": Door(LABELS, lambda v: network_influenced("with_more", v), TENSORS),
        "UtilityCurve.of: targets": Door(SIGNS, plotted),
        "PrivateTrainer.fit: dataset": Door(LABELS, lambda v: trained((INPUTS, v)), TENSORS),
        "PrivateTrainer.fit: validation": Door(
            LABELS, lambda v: trained((INPUTS, torch.from_numpy(LABELS)), validation=(INPUTS, v)), TENSORS
        ),
        "PrivateTrainer.fit: groups": Door(GROUPS, lambda v: trained((INPUTS, torch.from_numpy(LABELS)), v, rows=2), ENTRIES),
        "release_derivatives: y": Door(LABELS, lambda v: derivatives_released(y=v)),
        "release_derivatives: groups": Door(GROUPS, lambda v: derivatives_released(groups=v), ENTRIES),
        "release_derivatives: sample_weight": Door(WEIGHTS, lambda v: derivatives_released(sample_weight=v)),
        "release_class_scores: truth": Door(LABELS, lambda v: classes_released(truth=v)),
        "release_class_scores: answers": Door(LABELS, lambda v: classes_released(answers=v)),
        "release_class_scores: likely": Door(LIKELY, lambda v: classes_released(likely=v)),
        "release_class_scores: groups": Door(LABELS, lambda v: classes_released(groups=v, group_names=("a", "b"))),
        "release_class_scores: persons": Door(GROUPS, lambda v: classes_released(persons=v), ENTRIES),
        "release_number_scores: truth": Door(NUMBERS, lambda v: numbers_released(truth=v)),
        "release_number_scores: answers": Door(NUMBERS, lambda v: numbers_released(answers=v)),
        "release_number_scores: groups": Door(LABELS, lambda v: numbers_released(groups=v, group_names=("a", "b"))),
        "release_number_scores: persons": Door(GROUPS, lambda v: numbers_released(persons=v), ENTRIES),
        "judge_classes: truth": Door(LABELS, lambda v: judged(v, 1 - LABELS)),
        "judge_classes: answers": Door(1 - LABELS, lambda v: judged(LABELS, v)),
        "judge_numbers: truth": Door(NUMBERS, lambda v: [*judge_numbers(v, NUMBERS[::-1]).scores.values()]),
        "judge_numbers: answers": Door(NUMBERS, lambda v: [*judge_numbers(NUMBERS[::-1], v).scores.values()]),
        "Refits.of: sample_weight": Door(WEIGHTS, refitted),
        "Dataset.__init__: targets": Door(LABELS, lambda v: kept_in_a_dataset(targets=v)),
        "Dataset.__init__: groups": Door(GROUPS, lambda v: kept_in_a_dataset(groups=v), ENTRIES),
        "Dataset.__init__: places": Door(np.arange(N), lambda v: kept_in_a_dataset(places=v)),
        "Dataset.encoded: targets": Door(LABELS, lambda v: encoded(targets=v)),
        "Dataset.encoded: persons": Door(GROUPS, lambda v: encoded(persons=v)),
        "membership: members": Door(LABELS, lambda v: [membership(fitted(DPLogisticRegression), (X, v), (X, LABELS)).auc]),
        "membership: others": Door(LABELS, lambda v: [membership(fitted(DPLogisticRegression), (X, LABELS), (X, v)).auc]),
        "record_losses: data": Door(LABELS, lambda v: record_losses(fitted(DPLogisticRegression), (X, v))),
        "record_losses: data, numbers": Door(NUMBERS, lambda v: record_losses(fitted(DPRidge), (X, v))),
        "member_scores: data": Door(LABELS, lambda v: member_scores(fitted(DPLogisticRegression), (X, v))),
        "one_run: canaries": Door(LABELS, audited, frozenset({"series", "objects"})),
        "one_run: data": Door(LABELS, audited, frozenset({"series", "objects"})),
        "guess: scores": Door(LIKELY, lambda v: guessed(v, THERE)),
        "guess: coins": Door(THERE, lambda v: guessed(LIKELY, v)),
    }


# Walking


def public() -> Iterator[tuple[str, Any]]:
    """Functions and methods that a package exports, or a module of reports. Losses are left out: functions of single numbers."""
    modules = [module for module in pkgutil.walk_packages(dperm.__path__, "dperm.") if "__main__" not in module.name]
    for package in (module.name for module in modules if module.ispkg or module.name.startswith("dperm.report.")):
        module = importlib.import_module(package)
        own = [name for name, item in vars(module).items() if getattr(item, "__module__", None) == package and name[0] != "_"]
        for name in getattr(module, "__all__", own):
            item = getattr(module, name)
            if inspect.isfunction(item):
                yield name, item
            elif (
                isinstance(item, type)
                and not issubclass(item, Loss)
                and name not in ("PrivateLinearClassifier", "PrivateLinearRegressor")
            ):
                for each, member in inspect.getmembers(item, callable):
                    method = inspect.unwrap(member)
                    ours = str(getattr(method, "__module__", "")).startswith("dperm.")
                    if ours and (each == "__init__" or each[0] != "_"):
                        yield f"{name}.{each}", method


#: What is no front door, and why: parts of names
NO_DOORS = {
    "ContrastNoise.": "of parameters, not of records",
    ".records_of": "handed what `release_derivatives` was given",
    "GroupedRecords.relabelled": "that of Records",
    "ModuleObjective.": "a network's targets have any shape: its losses are what is (n,), and is looked at in each pass",
    "PrivateTrainer.steps": "starts as `fit` does",
    "DPElasticNet.fit: groups": "refused, whatever they are",
    "DPLasso.fit: groups": "refused, whatever they are",
    "Effect.": "places on a curve",
    "TorchRecords.fingerprints": "numbers of records",
    "Channel.split: members": "places of records, which a mechanism hands over",
    ".within: members": "places of records, which a channel hands over",
    ".next_places: places": "steps of an epoch, which a sampler drew",
    ".admit_targets": "handed the targets of records, which are vectors",
    ".admit: targets": "likewise",
    "Evaluation.": "a data set's, which were read as vectors",
    ".told": "the labels of classes, not of records",
    "TargetRange.": "entry by entry: what comes out has the shape of what went in, and nothing is compared or counted",
    "parted_table": "collections of Dask alone; their blocks enter by `fit`, where they live",
    "AuditingOptions.": "names of files, whose records are read as vectors",
    "BudgetingOptions.": "whether persons are protected",
    "judge_classes: probabilities": "a table of one column a class, whose shape is compared",
    "score_": "a study's own answers and held-out records, which were read as vectors",
    "Shared.scores": "likewise",
    "Answers.__init__": "likewise",
    "median_class: probabilities": "likewise",
    "_answers: targets": "likewise",
    "MarginLogOdds.fit": "y is not looked at",
    "PublicRangeScaler.fit": "y is not looked at",
    "RowNormScaler.fit": "y is not looked at",
    "TableEncoder.fit": "y is not looked at",
}


def test_every_front_door_for_columns_is_tried_here() -> None:
    tried = {name.partition(",")[0] for name in doors()}
    found = {
        f"{name}: {argument}"
        for name, function in public()
        for argument, parameter in inspect.signature(function).parameters.items()
        if argument in NAMES and parameter.annotation not in ("bool", "int")  # whether, and how many
        if not any(each in f"{name}: {argument}" for each in NO_DOORS)
    }
    assert found - tried == set()
    assert len(found) > 60


#: These derive from others that are always tried, and take what they are given by the same code
_ALIKE = ("DPElasticNet", "DPLasso", "DPLinearSVC", "DPPoissonRegressor", "DPQuantileRegressor", "DPTorchClassifier")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name.startswith(_ALIKE) else []) for name in doors()]
)
def test_a_shape_means_the_same_or_is_refused(name: str) -> None:
    door = doors()[name]
    log = SpendLog.current()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataConversionWarning)
        warnings.simplefilter("ignore", UserWarning)
        expected = door.answer(door.values)
        for shape, made in SHAPES.items():
            if shape in door.means:
                continue
            given, before = made(door.values), len(log.charges())
            try:
                found = door.answer(given)
            except (ValueError, TypeError) as error:
                assert shape not in door.takes, f"{shape}: {error}"
                assert len(log.charges()) == before, f"{shape}: refused after the charge: {error}"
                continue
            np.testing.assert_allclose(np.asarray(found, dtype=float), np.asarray(expected, dtype=float), err_msg=shape)


# What hides behind these doors


def test_a_record_moves_a_private_score_by_one() -> None:
    model = fitted(DPLogisticRegression)
    more, labels = np.append(X, X[:1], axis=0), np.append(LABELS, LABELS[:1])[:, None]
    with pytest.warns(DataConversionWarning):
        moved = HeldOut.of(model, (more, labels), numeric=False).right(model) - HeldOut.of(
            model, (X, LABELS[:, None]), numeric=False
        ).right(model)
    assert 0 <= moved <= 1


class _AnswersInAColumn(DPLogisticRegression):
    def predict(self, X: Any) -> Any:
        return super().predict(X)[:, None]


class _AnswersInATable(DPLogisticRegression):
    def predict(self, X: Any) -> Any:
        return np.tile(super().predict(X), (len(X), 1))


def test_a_third_partys_answers_are_counted_once_each() -> None:
    plain = fitted(DPLogisticRegression)
    held_out = HeldOut.of(plain, (X, LABELS), numeric=False)
    assert held_out.right(linear(_AnswersInAColumn).fit(X, LABELS)) == held_out.right(plain)
    with pytest.raises(ValueError, match=rf"Expected {N} predictions, one a row, got shape \({N}, {N}\)"):
        held_out.right(linear(_AnswersInATable).fit(X, LABELS))


@pytest.mark.parametrize("made", [torch.tensor, lambda v: [torch.tensor(each) for each in v], lambda v: np.array(v)[:, None]])
def test_persons_are_told_apart_by_value(made: Answer) -> None:
    number, persons = numbered(made([7, 7, 3, 3, 7]), 5)
    assert (number.tolist(), persons) == ([0, 0, 1, 1, 0], 2)


def test_entries_keep_their_types_where_they_tell_persons_apart() -> None:
    assert numbered([1, "1", (1, 2), (1, 2), 1.0], 5)[0].tolist() == [0, 1, 2, 2, 0]
    with pytest.raises(ValueError, match="3 groups, one a row, got"):
        numbered({"a": 0, "b": 0, "c": 1}, 3)


@dataclass(frozen=True)
class _Columns(Bounding):
    """Factors (b, 1): a sum of b sums."""

    @property
    def bound(self) -> float:
        return 1.0

    def factors(self, norms: Any) -> Any:
        return (1.0 / (norms + 1.0))[:, None]


def test_a_column_of_factors_is_refused() -> None:
    plan = Plan(FullBatch(), _Columns(), Constant(5.0), SGD(0.1), steps=1, public_size=N)
    batch = next(OBJECTIVE.records(X, SIGNS).batches())
    with pytest.raises(ValueError, match=rf"one factor a record, shape \({N},\), got \({N}, 1\)"):
        plan.bounding.query(OBJECTIVE.per_example(np.zeros(2), batch), {})


@dataclass(frozen=True)
class _ColumnLoss(Logistic):
    """Answers in a column."""

    def slope(self, t: Any, y: Any) -> Any:
        return super().slope(t, y)[:, None]


def test_a_loss_that_answers_in_a_column_is_refused() -> None:
    with pytest.raises(ValueError, match=r"one value, slope and curvature a record, shape \(\d+,\), got .*, 1\)"):
        LinearObjective(_ColumnLoss(), features=2)


def test_weights_beside_targets_are_for_losses_that_weigh() -> None:
    with pytest.raises(ValueError, match="logistic loss has none"):
        OBJECTIVE.records(X, np.stack([SIGNS, WEIGHTS], axis=1))


def test_a_metric_that_broadcasts_is_refused_before_the_charge() -> None:
    model, loss = nn.Linear(2, 1), nn.BCEWithLogitsLoss(reduction="none")
    trainer = PrivateTrainer(
        model, lambda outputs, targets: loss(outputs[:, 0], targets), None,
        partial(full_batch_descent, steps=1, clipping_norm=1.0), epsilon=2.0, delta=1e-5, public_size=N,
    )  # fmt: skip
    data = INPUTS, KNOWN.float()
    with pytest.raises(ValueError, match="'right' to be of each record by itself"):
        trainer.fit(data, data, metrics={"right": lambda outputs, targets: ((outputs > 0) == targets.bool()).float().mean(1)})
    assert not SpendLog.current().charges()


@given(st.lists(st.sampled_from(["a", "b", 1, 2.5, None]), min_size=1, max_size=6), st.data())
def test_agreement_counts_each_record_once(entries: list[Any], data: st.DataObject) -> None:
    others = data.draw(st.permutations(entries))
    first, second = (column("entries", each, len(entries), as_given=True) for each in (entries, others))
    assert agreement(first, second).tolist() == [bool(a == b) for a, b in zip(entries, others, strict=True)]
    for wrong in (first[:, None], first[None], first[:-1], np.tile(first, (len(first), 1))):
        with pytest.raises(ValueError, match="two vectors of one length"):
            agreement(wrong, second)
