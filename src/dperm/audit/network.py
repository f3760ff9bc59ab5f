"""The audit of a fitted network classifier: what its settings do to made-up records."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from sklearn.base import clone

from dperm.audit.outputs import unlogged
from dperm.audit.pairs import Data, Pair, network_pairs, of_persons
from dperm.audit.replay import RUNS, replay
from dperm.audit.result import AuditResult
from dperm.audit.training import Training
from dperm.audit.white_box import white_box
from dperm.privacy import Event, Relation
from dperm.release import Source

#: made-up ones: what a step does to a record does not depend on how many others there are
RECORDS = 200
_RUNS = 4  # with canaries and without, each a trial for each of 500 canaries


def event_of_network(model: Any) -> Event:
    """What a training by a fitted network classifier's settings costs, accounted for anew: what its certificate must state."""
    size = model.trace_["public_size"] if model.relation == "replace_one" else model.public_size
    trainer = _trainer(model, size)
    if size is not None:
        return trainer.planned().event
    with _unheard():  # the number of records is released first: the rest costs the same, whatever it was
        return trainer.fit(_pairs(model)[0].first).certificate.event


def expected_seconds(model: Any) -> float:
    """About how long `attack_network` takes on this machine, by one training."""
    trainer, pairs = _trainer(model, _stated(model)), _pairs(model)
    start = time.perf_counter()
    with _unheard():
        trainer.fit(pairs[0].first)
    return (2 * RUNS * len(pairs) + 2 * _RUNS) * (time.perf_counter() - start)


def attack_network(model: Any, progress: Callable[[str, int, int], None] | None = None) -> list[AuditResult]:
    """Replay the training of a fitted network classifier on worst-case neighbours, and watch canaries in one from within.

    Both train networks like it, by its own settings, on `RECORDS` made-up records; where a number of records is stated, that is
    theirs, and the number of steps goes by it. Canaries are left out for persons of several rows.
    `progress(name, done, total)` is called now and then.
    """
    import torch

    from dperm.torch import TorchRecords

    def told(name: str) -> Callable[[int, int], None]:
        return lambda done, total: None if progress is None else progress(name, done, total)

    pairs, stated = _pairs(model), _stated(model)
    with _unheard(), torch.random.fork_rng(devices=[]):  # from which masks of known seeds come
        training = Training.of_trainer(lambda source: _trainer(model, stated, source), pairs[0].first, pairs)
        results = [replay(training, progress=told("replay"))]
        if model.max_rows_per_unit is None:
            ran = _trainer(model, stated)
            ran.fit(pairs[0].first)
            records = TorchRecords(pairs[0].first)
            assert ran.plan is not None
            results.append(white_box(ran.plan, ran.objective, records, delta=model.delta, runs=_RUNS, progress=told("white box")))
    return results


@contextmanager
def _unheard() -> Iterator[None]:
    """Trainings of made-up records are not charged, and warnings that there are few of them say nothing."""
    with unlogged(), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield


def _stated(model: Any) -> int | None:
    """The number of made-up records, where those of the model were stated."""
    return RECORDS if model.public_size is not None or model.relation == "replace_one" else None


def _trainer(model: Any, public_size: int | None, source: Source | None = None) -> Any:
    """A new trainer by the model's settings, from the same weights each time: they do not depend on records."""
    import torch

    settings = {"public_size": public_size, "random_state": source, "label": "audit"}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return clone(model).set_params(**settings).trainer_for(model.n_features_in_, len(model.classes_))


def _pairs(model: Any) -> list[Pair]:
    """Neighbours of rows (n, d) in the unit ball, where those of a schema are, and labels (n,); of persons of as many rows as are
    used of one."""
    rng, classes = np.random.default_rng(0), len(model.classes_)
    rows = rng.normal(size=(RECORDS, model.n_features_in_)).astype(np.float32)
    data: Data = rows / np.linalg.norm(rows, axis=1, keepdims=True), np.arange(RECORDS) % classes
    pairs = network_pairs(data, Relation(model.relation), classes)
    return pairs if model.max_rows_per_unit is None else [of_persons(pair, model.unit.max_rows, alike=True) for pair in pairs]
