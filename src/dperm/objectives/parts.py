"""Records in parts that live in other processes: what runs on a part there is what would run here, and only sums come back.

An `Engine` runs functions where the parts are; Dask's is `dperm.distributed`. Engines run a function again where a worker was
lost, on a part that is read again. So each part has a digest of its rows in order, each sum names the parts in it, and a sum in
which a part is missing, counted twice or not what it was is refused.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dperm._types import Array
from dperm.objectives.records import RECORD, Batch, Records
from dperm.objectives.sums import RunningSum

if TYPE_CHECKING:
    from dperm.objectives.linear import LinearObjective

T = TypeVar("T")


class Engine(Protocol):
    """What records in parts ask of a cluster: one class for Spark or Ray. Parts are handles, of which nothing else is known.

    Functions are pickled; what they return travels back, so that it should be small. Both methods may run a function more than
    once on a part, and count one result. An exception of a function is raised here.
    """

    def derive(self, function: Callable[[Any, Any], Any], parts: Sequence[Any], given: Sequence[Any]) -> Sequence[Any]:
        """Handles of function(part, given), one a part, which stay where they are made; maybe later, and again where a worker was
        lost."""
        ...

    def total(self, function: Callable[[Any, Any], T], parts: Sequence[Any], given: Sequence[Any], add: Callable[[T, T], T]) -> T:
        """The sum of function(part, given) over one part at least, two at a time by `add`, in any order."""
        ...


class PartsChangedError(RuntimeError):
    """A part of the records is missing, was counted twice, or is not what it was when the run began."""


@dataclass(frozen=True)
class _Part:
    """A part where it lives: its number, records, and a digest of its rows and targets as they came, in order."""

    number: int
    records: Records
    digest: str

    def __sizeof__(self) -> int:
        """In bytes, by which schedulers judge whether to move a part to another worker."""
        return self.records.nbytes


@dataclass(frozen=True)
class _Share:
    """A sum, and the digests of the parts in it."""

    digests: dict[int, str]
    value: Any


@dataclass(frozen=True)
class _About:
    """What is to be known of parts, by number."""

    sizes: dict[int, int]
    weighed: bool
    sparse: bool


class PartedRecords:
    """Records of a linear objective in parts: what of `Records` needs no rows here.

    `tables` are the engine's handles of (rows, targets) or (rows, targets, present), arrays as `Records` takes them. They are
    copied, brought to the objective's units and digested where they live. ValueError for tables that do not fit the objective.
    """

    unit = RECORD

    def __init__(self, objective: LinearObjective, engine: Engine, tables: Sequence[Any]) -> None:
        if objective.unit != RECORD:
            raise ValueError(
                "Expected max_rows_per_unit=None for records in parts: the rows of a person may be in several of them."
            )
        if not tables:
            raise ValueError("Expected one part of the records at least, got none.")
        self.engine = engine
        self.features, self.data_norm, self.constant = objective.features, objective.data_norm, objective.intercept_scale
        self._admit(engine.derive(_alike(functools.partial(_part_of, objective)), tables, range(len(tables))))

    def _admit(self, parts: Sequence[Any]) -> None:
        """Take these parts, all of which can be made, as they are now."""
        share = self.engine.total(_alike(_described), parts, [None] * len(parts), functools.partial(_joined, _about_both))
        if sorted(share.digests) != list(range(len(parts))):
            raise PartsChangedError("Parts of the records are missing. Nothing was released.")
        self._parts, self._digests = list(parts), share.digests
        self.weighed, self.sparse = share.value.weighed, share.value.sparse
        sizes = [share.value.sizes[number] for number in range(len(parts))]
        self._starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.intp)

    def __len__(self) -> int:
        return int(self._starts[-1])

    def admitted(self, admit: Callable[[Array], Array]) -> PartedRecords:
        """The same rows with the targets that `admit` makes of theirs. Raises what it raises of any part."""
        other = self._like()
        other._admit(self._derived(functools.partial(_admitted, admit)))
        if other._digests != self._digests:
            raise _changed(self._digests, other._digests)
        return other

    def one_against_rest(self, number: int) -> PartedRecords:
        """With targets 1 where they were this class number, and −1 elsewhere; weights stay."""
        other = self._like()
        other._parts = list(self._derived(functools.partial(_one_against_rest, number)))
        return other

    def total(self, compute: Callable[[Any], T], add: Callable[[T, T], T]) -> T:
        """Σ compute(part) over the parts, each `Records`."""
        return self._total(functools.partial(_of_records, compute), range(len(self._parts)), [None] * len(self._parts), add)

    def stream(self, draws: Iterable[NDArray[Any] | None]) -> Iterator[Drawn]:
        """The records of each draw (None: all) by number, counted part after part."""
        for indices in draws:
            if indices is not None and indices.ndim != 1:
                raise TypeError("Expected one training at a time on records in parts.")
            yield Drawn(self, indices)

    def of_draw(self, indices: NDArray[Any], compute: Callable[[Any], T], add: Callable[[T, T], T]) -> T | None:
        """Σ compute(batches) over the parts that hold some of these records; None where there are none."""
        ordered = np.sort(indices)
        cuts = np.searchsorted(ordered, self._starts)
        chosen = [number for number in range(len(self._parts)) if cuts[number] < cuts[number + 1]]
        if not chosen:
            return None
        within = [(ordered[cuts[number] : cuts[number + 1]] - self._starts[number]).astype(np.uint32) for number in chosen]
        return self._total(functools.partial(_of_batches, compute), chosen, within, add)

    def _total(self, function: Callable[[Any, Any], Any], numbers: Sequence[int], given: Sequence[Any], add: Any) -> Any:
        share = self.engine.total(
            _alike(function), [self._parts[number] for number in numbers], given, functools.partial(_joined, add)
        )
        expected = {number: self._digests[number] for number in numbers}
        if share.digests != expected:
            raise _changed(expected, share.digests)
        return share.value

    def _derived(self, function: Callable[[Any, Any], Any]) -> Sequence[Any]:
        return self.engine.derive(_alike(function), self._parts, [None] * len(self._parts))

    def _like(self) -> PartedRecords:
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        return other


class Drawn:
    """The records of one draw, in parts: a policy's batches."""

    def __init__(self, records: PartedRecords, indices: NDArray[Any] | None) -> None:
        self._records, self._indices = records, indices

    def total(self, compute: Callable[[Any], T], add: Callable[[T, T], T]) -> T | None:
        """Σ compute(batches) over the parts; None where nobody was drawn."""
        if self._indices is None:
            return self._records.total(functools.partial(_everyone, compute), add)
        return self._records.of_draw(self._indices, compute, add)


def total_of(batches: Any, compute: Callable[[Any], T], add: Callable[[T, T], T]) -> T | None:
    """What `compute` makes of the batches: here, or added up where they are."""
    return batches.total(compute, add) if isinstance(batches, Drawn) else compute(batches)


def exact_total(records: Any, of_batch: Callable[[Batch], Array]) -> RunningSum:
    """Σ of_batch(batch) over all records, in memory or in parts."""
    return records.total(functools.partial(_running, of_batch), RunningSum.joined)


def _running(of_batch: Callable[[Batch], Array], records: Records) -> RunningSum:
    total = RunningSum()
    for batch in records.in_turn():
        total.add(of_batch(batch))
    return total


def _changed(expected: dict[int, str], found: dict[int, str]) -> PartsChangedError:
    wrong = [number for number in expected if found.get(number) != expected[number]] or sorted(found.keys() - expected.keys())
    return PartsChangedError(
        f"Part {wrong[0]} of the records is not what it was when the run began, or is missing: what was read again differs. "
        "Nothing more was released. Keep the source as it is while a run lasts, or persist the collection."
    )


@functools.cache
def _versions() -> str:
    return ", ".join(f"{name} {metadata.version(name)}" for name in ("dperm", "numpy", "scipy"))


def _alike(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """For workers that have the versions that this process has: others may round otherwise."""
    return functools.partial(_run, _versions(), function)


# What runs where a part lives


def _run(versions: str, function: Callable[[Any, Any], Any], part: Any, given: Any) -> Any:
    if versions != _versions():
        raise RuntimeError(f"Expected {versions} on all workers, as here, got a worker with {_versions()}.")
    return function(part, given)


def _part_of(objective: LinearObjective, table: Any, number: int) -> _Part:
    """From a copy, so that what was digested is what is used, whatever happens to the table."""
    rows, targets, *present = table
    rows, targets = rows.copy() if sp.issparse(rows) else np.array(rows), np.array(targets, dtype=np.float64)
    there = np.array(present[0], dtype=np.bool_) if present else None
    digest = _digest(rows, targets, *([] if there is None else [there]))
    records = objective.records(rows, targets, present=there)
    records.forget_table()
    return _Part(number, records, digest)


def _digest(*values: Any) -> str:
    found = hashlib.sha256()  # which processors have in hardware
    for value in values:
        for array in [value.data, value.indices, value.indptr] if sp.issparse(value) else [value]:
            found.update(f"{array.dtype.str}{array.shape}".encode())
            found.update(np.ascontiguousarray(array).data)
    return found.hexdigest()


def _described(part: _Part, given: None) -> _Share:
    records = part.records
    about = _About({part.number: len(records)}, records.weighed, records.sparse)
    return _Share({part.number: part.digest}, about)


def _about_both(first: _About, second: _About) -> _About:
    if (first.weighed, first.sparse) != (second.weighed, second.sparse):
        raise ValueError("Expected parts alike, all dense or all sparse and with weights or without, got both.")
    return _About({**first.sizes, **second.sizes}, first.weighed, first.sparse)


def _joined(add: Callable[[Any, Any], Any], first: _Share, second: _Share) -> _Share:
    if twice := first.digests.keys() & second.digests.keys():
        raise PartsChangedError(f"Part {min(twice)} of the records was counted twice. Nothing more was released.")
    return _Share({**first.digests, **second.digests}, add(first.value, second.value))


def _admitted(admit: Callable[[Array], Array], part: _Part, given: None) -> _Part:
    return _Part(part.number, part.records.admitted(admit), part.digest)


def _one_against_rest(number: int, part: _Part, given: None) -> _Part:
    return _Part(part.number, part.records.one_against_rest(number), part.digest)


def _of_records(compute: Callable[[Any], Any], part: _Part, given: None) -> _Share:
    return _Share({part.number: part.digest}, compute(part.records))


def _everyone(compute: Callable[[Any], Any], records: Records) -> Any:
    return compute(records.in_turn())


def _of_batches(compute: Callable[[Any], Any], part: _Part, indices: NDArray[Any]) -> _Share:
    return _Share({part.number: part.digest}, compute(next(part.records.stream([indices.astype(np.intp)]))))
