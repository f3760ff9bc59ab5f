"""Instruments that stand in for a channel's source: one keeps what a run asked and released, one feeds it to another run."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from array_api_compat import array_namespace, device, to_device

from dperm._random import Randomness
from dperm._types import Array
from dperm.privacy.events import Event
from dperm.release import Noise, UnpaidReleaseError
from dperm.release.draws import Coin, Draw, Indices
from dperm.release.noise import Kind
from dperm.release.source import Source, SystemSource

_NOBODY: Indices = np.array([], dtype=np.intp)
_CLAIMED_DRAWS = 0  # a seed: draws that no event counts on are the same in every run that is compared


@dataclass(frozen=True)
class ReleaseRecord:
    """One release: what was asked, at which sensitivity and noise, and what left.

    `query` is what was asked rounded to multiples of `step`, and `sensitivity` that of the rounded query. `noise` is a standard
    deviation, or ε where `kind` is "pure", "choice" (`query` are the scores, `released` is the place that was chosen), and
    "threshold": of a number that is compared and does not leave. "hidden": a step that does not leave. "objective" is the linear
    term of an objective, which is not rounded (step 0). Where less and less noise was added, `released` is what has the
    least, `path` all of it, and `epsilons` the ε of each row of the path.
    `precision` is the machine epsilon of the query's type; `sampling_rate` is the one that it is paid for at; `what` names the
    kind of query; `door` is the channel that it left through: 0 for that of all records, others for parts, in the order in which
    they were opened.
    """

    query: Array
    sensitivity: float
    noise: float
    released: Array
    kind: Kind = "gaussian"
    precision: float = 2.0**-52
    sampling_rate: float = 1.0
    step: float = 0.0
    path: Array | None = None
    what: str = "statistic"
    epsilons: tuple[float, ...] = ()
    door: int = 0

    @classmethod
    def of(cls, query: Array, noise: Noise, answer: Array, precision: float, door: int) -> ReleaseRecord:
        """The release of a rounded query, as a channel asked its source for it, and its answer in double precision."""
        return cls(
            query=query,
            sensitivity=noise.sensitivity,
            noise=noise.level,
            released=np.atleast_1d(answer[-1] if noise.path else answer),
            kind=noise.kind,
            precision=precision,
            sampling_rate=noise.rate,
            step=noise.step,
            path=answer if noise.path else None,
            what=noise.what,
            epsilons=noise.path,
            door=door,
        )


@dataclass(frozen=True)
class DrawRecord:
    """One inclusion draw: who was `included`, how it was made, and as which `step` of those that one `call` asked for; through
    which `door`, as of a release, and after how many `releases` of the run. It was drawn from `records` records: of all, those in
    `members`; None: all."""

    included: Indices
    draw: Draw
    step: int
    call: int
    door: int
    releases: int
    records: int
    members: Indices | None = None

    @property
    def largest(self) -> int:
        """One more than the largest number that can be drawn."""
        last = self.records if self.members is None else int(self.members.max(initial=-1)) + 1
        return last * self.draw.slots

    def pool(self, width: int) -> Array:
        """An array (width,) with 1 for each of the first `width` numbers that can be drawn, and 0 for the others."""
        members = np.arange(self.records, dtype=np.intp) if self.members is None else self.members
        numbers = self.draw.numbers(members)
        pool = np.zeros(width)
        pool[numbers[numbers < width]] = 1
        return pool


@dataclass
class Recording:
    """A run's releases and inclusion draws, in order. `thinned` says for each coin tossed on a draw who stayed; `parts` are those
    that a filter took, with the door that it stands at. `doors` and `calls` count channels of parts, and calls for draws."""

    releases: list[ReleaseRecord] = field(default_factory=list[ReleaseRecord])
    parts: list[tuple[int, Event]] = field(default_factory=list[tuple[int, Event]])
    drawn: list[DrawRecord] = field(default_factory=list[DrawRecord])
    thinned: dict[Coin, Indices] = field(default_factory=dict["Coin", Indices])
    doors: int = 0
    calls: int = 0

    @property
    def inclusions(self) -> list[Indices]:
        """Who was in each draw."""
        return [item.included for item in self.drawn]

    def at(self, door: int) -> Recording:
        """The releases, parts and draws of one channel."""
        places = self.places(door)
        drawn = [replace(item, releases=int(np.searchsorted(places, item.releases))) for item in self.drawn if item.door == door]
        parts = [item for item in self.parts if item[0] == door]
        return Recording([self.releases[place] for place in places], parts, drawn, self.thinned)

    def places(self, door: int) -> list[int]:
        """Which of all releases a door let through."""
        return [number for number, item in enumerate(self.releases) if item.door == door]

    def draws_of_releases(self) -> tuple[list[int | None], list[int]]:
        """For each release the number of the draw whose records it is charged for, None for one that is charged for all records
        or that no draw was made for; and the draws that no release was made of, but for calls that were left early.

        Releases of one door and rate take the draws of that rate in their order: each draw once. Where a call for draws was left
        early, what it had left belongs to no release once the next call begins.
        """
        owners: list[int | None] = []
        waiting: dict[tuple[int, float], list[int]] = {}
        last = {item.call: number for number, item in enumerate(self.drawn)}
        in_use: set[int] = set()
        at = 0
        for number, release in enumerate(self.releases):
            while at < len(self.drawn) and self.drawn[at].releases <= number:
                item = self.drawn[at]
                queue = waiting.setdefault((item.door, item.draw.rate), [])
                if item.step == 0:
                    ended = [each for each in queue if self.drawn[each].call in in_use and last[self.drawn[each].call] < at]
                    queue[:] = [each for each in queue if each not in ended]
                queue.append(at)
                at += 1
            queue = waiting.get((release.door, release.sampling_rate), []) if release.sampling_rate < 1 else []
            owner = queue.pop(0) if queue else None
            if owner is not None:
                in_use.add(self.drawn[owner].call)
            owners.append(owner)
        unused = [number for queue in waiting.values() for number in queue]
        return owners, unused


class Recorder(Source):
    """Passes draws of another source on, and keeps them. For tests and audits: the recording is private.

    Without a `source` it listens to the one that the run would have used: to each of them, where a run opens several.
    """

    def __init__(self, source: Source | None = None) -> None:
        self._listens = source is None
        self.source = source or SystemSource(Randomness.from_system())
        self.recording = Recording()
        self._members: Indices | None = None
        self._door = 0

    def names(self, numbers: Sequence[int]) -> Sequence[int]:
        """Records by their own numbers: see `Alignment`."""
        return numbers

    def within(self, members: Indices) -> Source:
        view = copy.copy(self)  # which shares the recording
        view._members, view.source, view._door = members, self.source.within(members), _next_door(self.recording)
        return view

    def over(self, own: Source) -> Source:
        if self._listens:
            self.source = own
        return self

    def noisy(self, query: Any, noise: Noise) -> Any:
        asked, precision = _rounded(query, noise.step), _precision(query)  # first: noise may be added in the query's memory
        answer = self.source.noisy(query, noise)
        self.recording.releases.append(ReleaseRecord.of(asked, noise, _kept(answer), precision, self._door))
        return answer

    def draw(self, draw: Draw, records: int, steps: int) -> Iterator[Indices]:
        call = _next_call(self.recording)

        def drawn() -> Iterator[Indices]:
            for step, included in enumerate(self.source.draw(draw, records, steps)):
                made = len(self.recording.releases)
                everywhere = _among_all(included, self._members, draw.slots)
                self.recording.drawn.append(DrawRecord(everywhere, draw, step, call, self._door, made, records, self._members))
                yield included

        return drawn()

    def thin(self, indices: Indices, keep: Array, coin: Coin) -> Indices:
        stayed = self.source.thin(indices, keep, coin)
        everywhere = _among_all(stayed, self._members)
        self.recording.thinned[coin] = np.union1d(self.recording.thinned.get(coin, _NOBODY), everywhere)
        return stayed

    @property
    def generator(self) -> np.random.Generator:
        return np.random.default_rng(_CLAIMED_DRAWS)

    def admitted(self, event: Event) -> None:
        self.recording.parts.append((self._door, event))


class Forced(Source):
    """Teacher-forces a run with another run's releases and inclusions, and keeps this run's own queries.

    `index_map[i]` is this data set's index of the recorded data set's record i, or −1 where it is absent;
    `extra` are this data set's records that the recorded one lacks. `there[i]` says whether they are in draw i: by default in
    every step that the way of drawing allows (`Draw.takes_part`), the worst case. Records in `always`, of the recorded data set,
    stay in every thinning too.
    """

    def __init__(
        self,
        recording: Recording,
        index_map: Indices,
        extra: Indices,
        always: Indices | None = None,
        there: Sequence[bool] | None = None,
    ) -> None:
        self.always = _NOBODY if always is None else always
        self.there = [item.draw.takes_part(item.step, 0) for item in recording.drawn] if there is None else there
        self.reference = recording
        self.index_map = index_map
        self.extra = extra
        self.recording = Recording()
        self._members: Indices | None = None
        self._door = 0
        here = {int(mine): number for number, mine in enumerate(index_map) if mine >= 0}
        self._names = here | {int(more): -1 - number for number, more in enumerate(extra)}

    def names(self, numbers: Sequence[int]) -> Sequence[int]:
        """Records by their numbers in the recorded data set; those that it lacks by negative ones: see `Alignment`."""
        return [self._names[number] for number in numbers]

    def within(self, members: Indices) -> Source:
        view = copy.copy(self)  # which shares the recording
        view._members, view._door = members, _next_door(self.recording)
        return view

    def noisy(self, query: Any, noise: Noise) -> Any:
        at = len(self.recording.releases)
        if at >= len(self.reference.releases):
            raise UnpaidReleaseError(f"Release {at + 1} has no counterpart in the recorded run.")
        recorded = self.reference.releases[at]
        if (recorded.kind, len(recorded.epsilons)) != (noise.kind, len(noise.path)):
            raise UnpaidReleaseError(
                f"Release {at + 1} is of another kind ({noise.kind}) than the recorded one ({recorded.kind})."
            )
        answer = (recorded.released if recorded.path is None else recorded.path).copy()
        asked = _rounded(query, noise.step)
        self.recording.releases.append(ReleaseRecord.of(asked, noise, answer, _precision(query), self._door))
        if noise.kind == "choice":
            return int(answer[0])
        return array_namespace(query).asarray(answer, dtype=query.dtype, device=device(query), copy=True)

    def draw(self, draw: Draw, records: int, steps: int) -> Iterator[Indices]:
        call = _next_call(self.recording)

        def drawn() -> Iterator[Indices]:
            recorded = [number for number, item in enumerate(self.reference.drawn) if item.call == call]
            for step, number in enumerate(recorded[:steps]):
                included = self.reference.drawn[number].included
                mapped = self.index_map[included // draw.slots]
                kept = mapped >= 0
                extra = draw.numbers(self.extra if self.there[number] else _NOBODY)
                mine = np.sort(np.concatenate([mapped[kept] * draw.slots + included[kept] % draw.slots, extra]))
                if self._members is not None:
                    mine = mine[np.isin(mine // draw.slots, self._members)]
                made = len(self.recording.releases)
                self.recording.drawn.append(DrawRecord(mine, draw, step, call, self._door, made, records, self._members))
                yield _among_members(mine, self._members, draw.slots)

        return drawn()

    def thin(self, indices: Indices, keep: Array, coin: Coin) -> Indices:
        mapped = self.index_map[np.union1d(self.reference.thinned.get(coin, _NOBODY), self.always)]
        drawn = _among_all(indices, self._members)
        stays = np.isin(drawn, np.concatenate([mapped[mapped >= 0], self.extra]))
        self.recording.thinned[coin] = np.union1d(self.recording.thinned.get(coin, _NOBODY), drawn[stays])
        return indices[stays]

    @property
    def generator(self) -> np.random.Generator:
        return np.random.default_rng(_CLAIMED_DRAWS)

    def admitted(self, event: Event) -> None:
        self.recording.parts.append((self._door, event))


def _next_door(recording: Recording) -> int:
    recording.doors += 1
    return recording.doors


def _next_call(recording: Recording) -> int:
    recording.calls += 1
    return recording.calls - 1


def _among_all(drawn: Indices, members: Indices | None, slots: int = 1) -> Indices:
    """A draw from some of the records, renumbered by their places among all records; a copy. Each person has `slots` numbers."""
    return drawn.copy() if members is None else members[drawn // slots] * slots + drawn % slots


def _among_members(drawn: Indices, members: Indices | None, slots: int) -> Indices:
    """The inverse."""
    return drawn if members is None else np.searchsorted(members, drawn // slots) * slots + drawn % slots


def _precision(values: Any) -> float:
    return float(array_namespace(values).finfo(values.dtype).eps)


def _kept(values: Any) -> Array:
    """A copy in double precision, whatever the backend and device."""
    if isinstance(values, int):  # the place of a choice
        return np.array([float(values)])
    array = values if isinstance(values, np.ndarray) else np.from_dlpack(to_device(values, "cpu"))
    return np.array(array, dtype=np.float64)


def _rounded(query: Any, step: float) -> Array:
    plain = _kept(query)
    return np.rint(plain / step) * step if step else plain
