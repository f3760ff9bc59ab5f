"""Canaries in gradient space: records whose whole gradient lies in coordinates that nobody else uses.

The worst case of a bounded sum: a canary contributes a vector of the largest length allowed, and whoever sees a release reads its
own coordinates free of everything but noise (the Dirac canaries of Nasr et al. 2023, without the others' gradients).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, cast

import numpy as np
from array_api_compat import array_namespace, device, is_torch_array

from dperm._types import Array
from dperm.gradient.policy import BatchSource
from dperm.objectives import LocallyTrained, LocalSteps, PublicFacts
from dperm.objectives.per_example import Objective, Pass

_LONG = 1e6  # length of a canary's gradient: far beyond any clipping norm


class CanaryRecords:
    """The records, and after them `canaries` more. A batch is either the inner records' or a list of canaries."""

    def __init__(self, records: BatchSource, canaries: int) -> None:
        self._records = records
        self._canaries = canaries

    def __len__(self) -> int:
        return len(self._records) + self._canaries

    def stream(self, draws: Iterable[Any]) -> Iterator[Iterable[tuple[Any, Any]]]:
        size, share = len(self._records), getattr(self._records, "share", None)
        mine = np.arange(self._canaries) % (share.every if share else 1) == (share.first if share else 0)
        chosen: list[Any] = []  # canaries of the draws that the inner stream has taken and not yet given back

        def inner() -> Iterator[Any]:
            for draw in draws:
                whole = draw is None
                own = np.arange(self._canaries) if whole else draw[draw >= size] - size
                chosen.append(own[mine[own]])
                yield None if whole else draw[draw < size]

        for batches in self._records.stream(inner()):
            yield self._marked(batches, chosen)

    @staticmethod
    def _marked(batches: Iterable[Any], chosen: list[Any]) -> Iterator[tuple[Any, Any]]:
        which = chosen.pop(0)
        for batch in batches:
            yield batch, None
        if len(which):
            yield None, which


class CanaryObjective:
    """An objective with `len(signs)` canaries; θ has G more parameters for each, G the objective's groups.

    Canary i contributes signs[i] times a vector of the largest length: 1 or −1, or 0 for one that is absent. `lengths` are those
    of its gradient before bounding; None: far beyond any clipping norm.
    """

    strong_convexity = 0.0  # the regulariser's step is not released: it has nothing to do with what is audited
    radius: float | None = None

    def __init__(self, objective: Objective, signs: Array, lengths: Array | None = None) -> None:
        self._objective = objective
        self.signs = signs
        self.lengths = np.full(len(signs), _LONG) if lengths is None else lengths
        self.groups = len(getattr(objective, "groups", "1"))

    @property
    def facts(self) -> PublicFacts:
        facts = self._objective.facts
        return replace(facts, dimension=facts.dimension + self.groups * len(self.signs))

    def start(self, theta: Any) -> Any:
        """θ with the canaries' coordinates at zero."""
        xp = array_namespace(theta)
        zeros = xp.zeros(self.groups * len(self.signs), dtype=theta.dtype, device=device(theta))
        return xp.concat([theta, zeros])

    def per_example(self, theta: Any, batch: tuple[Any, Any], *, norms_only: bool = False, anchor: Any = None) -> Pass:
        """A canary's vector is the same with an anchor: whatever a query bounds, it must bound that."""

        def of_records(own: Any, inner: Any) -> Pass:
            there = None if anchor is None else anchor[: len(own)]
            return self._objective.per_example(own, inner, norms_only=norms_only, anchor=there)

        return self._pass(theta, batch, of_records)

    def local_updates(self, theta: Any, batch: tuple[Any, Any], local: LocalSteps) -> Pass:
        """A canary's local update is its gradient: a client may reply with anything."""
        return self._pass(theta, batch, lambda own, inner: cast(LocallyTrained, self._objective).local_updates(own, inner, local))

    def refuse_local(self, local: LocalSteps) -> None:
        cast(LocallyTrained, self._objective).refuse_local(local)

    def _pass(self, theta: Any, batch: tuple[Any, Any], of_records: Callable[[Any, Any], Pass]) -> Pass:
        inner, which = batch
        own = theta[: len(theta) - self.groups * len(self.signs)]
        if inner is not None:
            return _InnerPass(of_records(own, inner), theta, len(own))
        return _CanaryPass(theta, len(own), self.groups, np.asarray(which), self.signs, self.lengths)

    def observed(self, released: Any) -> Array:
        """(canaries,) what a release says of each, in the units of its sum."""
        tail = _plain(released)[: self._length(released)][-self.groups * len(self.signs) :]
        return tail.reshape(len(self.signs), self.groups).sum(axis=1) / np.sqrt(self.groups)

    def _length(self, released: Any) -> int:
        """An adaptive clipping's release has a count after θ."""
        return min(len(released), self.facts.dimension)


class _InnerPass(Pass):
    """The records' pass, in the longer θ."""

    __slots__ = ("_at", "_own", "_theta")

    def __init__(self, at: Pass, theta: Any, own: int) -> None:
        self._at, self._theta, self._own = at, theta, own

    @property
    def losses(self) -> Any:
        return self._at.losses

    @property
    def norms(self) -> Any:
        return self._at.norms

    @property
    def group_norms(self) -> Any:
        return self._at.group_norms

    def weighted_sum(self, factors: Any, bound: float | None = None) -> Any:
        total = self._at.weighted_sum(factors, bound)
        xp = array_namespace(total)
        return xp.concat([total, xp.astype(self._theta[self._own :], total.dtype) * 0.0])


class _CanaryPass(Pass):
    """Canaries' gradients: `lengths` times a unit vector in their own coordinates."""

    __slots__ = ("_groups", "_lengths", "_own", "_signs", "_theta", "_which")

    def __init__(self, theta: Any, own: int, groups: int, which: Any, signs: Array, lengths: Array) -> None:
        self._theta, self._own, self._groups, self._which = theta, own, groups, which
        self._signs, self._lengths = signs[which], lengths[which]

    def _like_theta(self, values: Array) -> Any:
        xp = array_namespace(self._theta)
        return xp.asarray(values, dtype=self._theta.dtype, device=device(self._theta))

    @property
    def losses(self) -> Any:
        return self._like_theta(np.zeros(len(self._which)))

    @property
    def norms(self) -> Any:
        return self._like_theta(self._lengths * np.abs(self._signs))

    @property
    def group_norms(self) -> Any:
        parts = self._lengths / np.sqrt(self._groups) * np.abs(self._signs)
        return self._like_theta(np.repeat(parts[:, None], self._groups, axis=1))

    def weighted_sum(self, factors: Any, bound: float | None = None) -> Any:
        weights = _plain(factors).reshape(len(self._which), -1) * (self._signs * self._lengths / np.sqrt(self._groups))[:, None]
        total = np.zeros(len(self._theta))
        places = self._own + self._which[:, None] * self._groups + np.arange(self._groups)
        total[places] = weights
        return self._like_theta(total)


def with_canaries(
    objective: Objective, records: BatchSource, signs: Array, lengths: Array | None = None
) -> tuple[CanaryObjective, CanaryRecords]:
    """The objective and records with canaries, to be trained by any plan."""
    return CanaryObjective(objective, np.asarray(signs, dtype=float), lengths), CanaryRecords(records, len(signs))


def _plain(values: Any) -> Array:
    if is_torch_array(values):
        values = values.detach().cpu().numpy()
    return np.asarray(values, dtype=np.float64)
