"""Repeat a run of records once their clipping factors are known, and sum gradients that the first run did not keep
(`dperm.torch.engine.clipped_sums`)."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol

import torch
from torch import Tensor

from dperm.torch.engine.branches import Branch
from dperm.torch.engine.clipped_sums import ClippedSum
from dperm.torch.engine.layer_taps import Partial
from dperm.torch.engine.randomness import Draws
from dperm.torch.engine.record_batch import Batch
from dperm.torch.parameters.flat_parameters import FlatParameters
from dperm.torch.tensors.buffers import Pool


class Runs(Protocol):
    """The part of an `Evaluation` that runs records again."""

    def in_step(
        self, branch: Branch, batch: Batch, physical_size: int, seed: int, total: ClippedSum | None = None
    ) -> Partial: ...


class Engine(Protocol):
    """The part of an `IsolatedEngine` that a second run uses."""

    flat: FlatParameters
    pool: Pool
    draws: Draws
    charged: bool

    def evaluating(self, norms_only: bool, step: int | None = None) -> AbstractContextManager[Runs]: ...


class SecondRun:
    """The second run of a batch. Its records draw and read the same values as in the first run, from the same model state.

    RuntimeError where the parameters have changed since: the sum would be of other gradients.
    """

    def __init__(self, engine: Engine, branch: Branch, batch: Batch, physical_size: int, seed: int, first: Partial) -> None:
        self._engine, self._branch, self._batch, self._first = engine, branch, batch, first
        self._physical_size, self._seed, self._step = physical_size, seed, engine.draws.of_this_step
        self._theta = _sketch(engine.flat.stored())

    def __call__(self, factors: Tensor) -> Tensor | None:
        """Σ_i factors_i·g_i (p,) over the run's records, for factors (k,) or (k, groups); None where it is zero. No record adds
        more than its factors times the norms of the first run."""
        if _sketch(self._engine.flat.stored()) != self._theta:
            raise RuntimeError(
                "The parameters have changed since this pass was made, and a model with checkpointed parts computes gradients "
                "anew for each sum: ask for the sum before the parameters change."
            )
        with self._engine.evaluating(False, self._step) as evaluation:
            return self._sum(evaluation, self._branch, torch.arange(self._batch.size), factors)

    def _sum(self, evaluation: Runs, branch: Branch, places: Tensor, factors: Tensor) -> Tensor | None:
        """The same for the records at these places of the run. Once the run is charged, a record that fails this time contributes
        zero and changes nothing for the others: it is found by halves, and what a failed run has added is thrown away."""
        engine, whole = self._engine, len(places) == self._batch.size
        rows = slice(None) if whole else places.to(factors.device)
        limits = {leaf: squares[rows] for leaf, squares in self._first.by_parameter.items()}
        total = ClippedSum(engine.flat, limits, self._first.bad[rows], factors[rows], engine.pool)
        try:
            mine = self._batch if whole else self._batch.of(places)
            evaluation.in_step(branch, mine, self._physical_size, self._seed, total)
        except Exception:
            if not engine.charged:
                raise
        else:
            return total.total
        if len(places) == 1:
            return None
        del total
        sums = [self._sum(evaluation, *half, factors) for half in zip(branch.halves(), places.chunk(2), strict=True)]
        there = [each for each in sums if each is not None]
        return sum(there[1:], there[0]) if there else None


def _sketch(parameters: Sequence[Tensor]) -> list[str]:
    """Return the sums and lengths of the parameters, as text, because NaN is not equal to itself."""
    sums = torch.stack([part.sum(dtype=torch.float64) for part in parameters])
    lengths = torch.stack([torch.linalg.vector_norm(part, dtype=torch.float64) for part in parameters])
    return [repr(number) for number in torch.cat([sums, lengths]).tolist()]
