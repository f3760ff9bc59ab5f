"""Local training of each record of a batch by itself: steps on that record's own rows, from the parameters that all start at."""

from __future__ import annotations

import contextvars
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from dperm.objectives import LocalSteps
from dperm.release import alignment
from dperm.torch.engine.branches import Branch
from dperm.torch.engine.gradient_pass import Part
from dperm.torch.engine.isolated import Evaluation, IsolatedEngine
from dperm.torch.engine.record_batch import Batch
from dperm.torch.engine.record_gradients import add_dense
from dperm.torch.tensors.nested import map_tensors


class LocalUpdates:
    """Makes the parts of an evaluation whose vectors are θ − θ' of each record, where θ is where the model is when it begins.

    Records run one after the other. Before each local step all that the model and the loss keep is put back, and before each
    record so are the parameters; what a record draws follows from a secret seed of its own. So nothing passes from one record to
    another. In a charged run a record whose training fails contributes zero, and so does one that ends where numbers are not
    finite.

    several_rows : whether a record has an axis of rows, with weights that are 0 for rows that only fill it up.
    """

    def __init__(self, engine: IsolatedEngine, local: LocalSteps, several_rows: bool) -> None:
        self._engine, self._local, self._several_rows = engine, local, several_rows
        self._start = engine.flat.buffer.clone()

    def __call__(self, evaluation: Evaluation, batch: Batch) -> None:
        """Add a part for each record of the batch."""
        for place in range(batch.size):
            evaluation.parts.append(self._part(evaluation, batch.of(torch.tensor([place]))))

    def _part(self, evaluation: Evaluation, record: Batch) -> Part:
        engine, flat = self._engine, self._engine.flat
        loss = torch.zeros(1, dtype=flat.dtype, device=flat.device)
        moved: list[Tensor | None] = [None] * len(flat.leaves)
        try:
            loss, end = contextvars.copy_context().run(self._trained, evaluation, record)
            moved = list(flat.parts(self._start - end))
        except Exception:
            if not engine.charged:
                raise
        finally:
            evaluation.put_back()  # first the model's own parameters, which a client may have replaced
            flat.put(self._start)
        tape = evaluation.tape(1)
        with torch.no_grad():
            add_dense(tape, moved)
            return Part(record.records, tape.collected(loss.detach()))

    def _trained(self, evaluation: Evaluation, record: Batch) -> tuple[Tensor, Tensor]:
        """The loss (1,) of the first local step, and the parameters (p,) after the last."""
        draws, flat = self._engine.draws, self._engine.flat
        secret = draws.seed() if record.names is None else draws.seed_of_record(record.names[0])
        batches = self._batches(record, secret)
        losses: list[Tensor] = []

        def gradient_at(step: int, theta: Tensor) -> Tensor:
            evaluation.begin()
            flat.put(theta)
            draws.start(alignment.seed_of(secret, "local step", step))
            loss, found = evaluation.slopes_alone(evaluation.tape(1), next(batches), Branch(torch.arange(1)))
            losses.append(loss)
            return torch.cat(
                [
                    (torch.zeros_like(leaf) if slope is None else slope).detach().reshape(-1)
                    for leaf, slope in zip(flat.leaves, found, strict=True)
                ]
            )

        end = self._local.descend(self._start, gradient_at)
        return losses[0], end

    def _batches(self, record: Batch, secret: int) -> Iterator[Batch]:
        """The record with the rows of each local step, over and over."""
        if not self._several_rows:
            while True:
                yield record
        weights = record.targets[1]
        rows = torch.nonzero(weights[0] > 0)[:, 0].cpu()
        size = len(rows) if self._local.batch_size is None else min(len(rows), self._local.batch_size)
        generator = torch.Generator().manual_seed(alignment.seed_of(secret, "rows"))
        while True:
            order = rows if size == len(rows) else rows[torch.randperm(len(rows), generator=generator)]
            for start in range(0, len(rows), size):
                yield _with_rows(record, order[start : start + size])


def _with_rows(record: Batch, rows: Tensor) -> Batch:
    """A record of several rows with some of them, which weigh the same."""
    width = record.targets[1].shape[1]

    def chosen(item: Tensor) -> Tensor:
        return item[:, rows.to(item.device)] if item.dim() > 1 and item.shape[1] == width else item

    values, weights = record.targets
    even: Any = weights.new_full((1, len(rows)), 1 / len(rows))
    return replace(record, inputs=map_tensors(chosen, record.inputs), targets=(map_tensors(chosen, values), even))
