"""Runs of any policy without noise, whose draws are known: what each step asks, gives and shows is written down."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dperm.gradient import Policy
from dperm.objectives import RECORD, LinearObjective, Logistic, PrivacyUnit
from dperm.privacy import Relation
from dperm.release import Channel, Noise
from dperm.release.draws import Draw
from helpers.asked import Asked, Question
from helpers.policies import PERSON, SIZE, STEPS

__all__ = ["FEATURES", "POINTS", "ROWS", "SIGNS", "Path", "Seen", "Steady", "moving", "problem_of", "ran", "records_of"]

FEATURES = 3
RNG = np.random.default_rng(0)
ROWS = RNG.normal(size=(SIZE * PERSON, FEATURES)) / 2
SIGNS = np.where(RNG.random(SIZE * PERSON) < 0.5, 1.0, -1.0)
POINTS = RNG.normal(size=(2, STEPS, FEATURES))  # where gradients are asked for, of two runs

Path = Callable[[int], Any]


class Alike(np.random.Generator):
    """Numbers for so many steps that are those of the last steps of a longer run. Records are chosen among the first `among`."""

    among: int | None = None

    def integers(self, low: Any, high: Any = None, size: Any = None, **_: Any) -> Any:
        steps, *others = size
        return np.random.default_rng(1).integers(min(low, self.among or low), high, (2 * STEPS, *others))[-steps:]

    def standard_normal(self, size: Any = None, **_: Any) -> Any:
        return np.zeros(size)


class Steady(Asked):
    """No noise; the draws and coins of a step are the same, wherever a run begins. In `trials` runs at once, if asked for, and
    of a θ of which this process has a part, if `whole` is more than that. Records are drawn `among` the first so many; each in
    every step, if `all_drawn`; and others for another `seed`."""

    def __init__(
        self,
        trials: int | None = None,
        whole: int | None = None,
        *,
        among: int | None = None,
        all_drawn: bool = False,
        seed: int = 0,
        answers: Sequence[Any] = (),
    ) -> None:
        super().__init__(answers)
        self.trials, self._whole = trials, whole
        self._among, self._all_drawn, self._seed = among, all_drawn, seed
        self.kinds: set[str] = set()

    def noisy(self, query: Any, noise: Noise) -> Any:
        self.kinds.add(noise.what)
        return super().noisy(query, noise)

    def length(self, query: Any) -> int:
        return self._whole or super().length(query)

    def draw(self, draw: Draw, records: int, steps: int) -> Iterator[Any]:
        everyone = np.arange(records * draw.slots)
        for drawn in list(draw.indices(np.random.default_rng(2 + self._seed), self._among or records, 2 * STEPS))[-steps:]:
            there = np.isin(everyone, drawn)
            found = everyone if self._all_drawn else drawn
            yield found if self.trials is None else np.tile(there, (self.trials, 1))

    def thin(self, indices: Any, keep: Any, coin: Any) -> Any:
        return indices[np.random.default_rng(3 + self._seed + coin[1]).random(SIZE)[indices] < keep]

    @property
    def generator(self) -> np.random.Generator:
        made = Alike(np.random.PCG64(0))
        made.among = self._among
        return made


@dataclass
class Seen:
    """What a step asked and gave, what a checkpoint after it would hold, and what it shows to anyone but for its charge's id."""

    questions: list[Question]
    gave: Any
    public: Mapping[str, Any]
    private: Mapping[str, Any]
    shows: str = ""
    cuts_at: float = 0.0

    def like(self, other: Seen, *, more: bool) -> bool:
        """Whether another run of the step asked the same and gave the same; `more`: it may have asked something before."""
        theirs = other.questions[len(other.questions) - len(self.questions) :] if more else other.questions
        return (
            len(theirs) == len(self.questions)
            and all(map(same_question, self.questions, theirs))
            and np.allclose(self.gave, other.gave, rtol=1e-6, atol=1e-9)
        )

    def keeps(self, other: Seen, *, anew: bool) -> bool:
        """Whether a checkpoint of another run would hold the same; `anew`: but for what is public, such as what that run paid."""
        alike = self.private.keys() == other.private.keys() and (anew or self.public == other.public)
        return alike and all(np.array_equal(values, other.private[name]) for name, values in self.private.items())


def same_question(one: Question, other: Question) -> bool:
    levels = np.allclose([one.sensitivity, one.noise], [other.sensitivity, other.noise])
    return one.kind == other.kind and levels and np.allclose(one.query, other.query, rtol=1e-6, atol=1e-6)


def problem_of(policy: Policy) -> LinearObjective:
    """One that the policy can train, under the first relation that it has an event for."""
    unit = PrivacyUnit(PERSON) if policy.by_rows else RECORD
    try:
        policy.event(relation := Relation.ADD_OR_REMOVE_ONE)
    except ValueError:
        relation = Relation.REPLACE_ONE
    return LinearObjective(Logistic(), FEATURES, public_size=SIZE, relation=relation, strong_convexity=2.0, unit=unit)


def records_of(problem: LinearObjective) -> Any:
    if problem.unit.several_rows:
        return problem.records(ROWS, SIGNS, groups=np.repeat(np.arange(SIZE), PERSON))
    return problem.records(ROWS[:SIZE], SIGNS[:SIZE])


def ran(
    policy: Policy,
    at: Path,
    *,
    first: int = 0,
    kept: Seen | None = None,
    passed: int = 0,
    problem: Any = None,
    records: Any = None,
    source: Steady | None = None,
) -> dict[int, Seen]:
    """The steps of a run, by number; one that goes on at `first` is paid for by what the policy charges for the rest."""
    problem, source = problem or problem_of(policy), source or Steady()
    channel = Channel.open(source)
    relation = problem.facts.relation
    charge_id = channel.charge(policy.event(relation, first) if first else policy.event(relation), "test")
    run = policy.gradients(problem, records_of(problem) if records is None else records, channel, first=first)
    if kept is not None:
        run.restore(json.loads(json.dumps(kept.public)), kept.private)
    run.skip(passed)
    steps: dict[int, Seen] = {}
    while run.step < policy.steps:
        number, before = run.step, len(source.questions)
        gave = np.array(run(at(number)))
        private = {name: np.array(values) for name, values in run.private().items()}
        shows = json.dumps([run.public(), run.trace(), run.summary(), run.clipping_norm]).replace(charge_id, "")
        steps[number] = Seen(source.questions[before:], gave, run.public(), private, shows, run.clipping_norm)
    return steps


def moving(number: int, which: int = 0) -> Any:
    return POINTS[which, number]
