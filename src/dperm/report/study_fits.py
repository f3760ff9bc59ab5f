"""Train the models of a study in worker processes: each is trained on one split, scored on the rest, and its result is kept."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dperm._progress import told
from dperm._types import Array
from dperm.audit.statistics import area_under_curve
from dperm.data import Dataset
from dperm.mechanisms import Mechanism
from dperm.objectives import RECORD, LinearObjective, Records, Squared, Task
from dperm.objectives.probabilities import class_probabilities
from dperm.privacy import Relation
from dperm.privacy.certificates.signing import digest_of
from dperm.release import Channel
from dperm.report.candidates import DEFAULT, REFERENCES
from dperm.report.kept import KeptResults, append_record
from dperm.report.references import boosted_answers, boosted_splits, constant_answers, linear_reference
from dperm.report.study_scores import (
    FEWEST,
    RANKS,
    WITHOUT_COPIES,
    Answers,
    measures_of,
    median_class,
    score_classes,
    score_numbers,
    score_ranks,
    score_without_copies,
)
from dperm.report.study_splits import split
from dperm.report.workers import in_processes

if TYPE_CHECKING:
    from dperm.report.study_settings import Study

_FALSE_POSITIVES = 0.01  # of the membership attack

#: What runs and what it minimises, by method and ε.
Built = dict[tuple[str, float], tuple[Mechanism, LinearObjective]]


class Fit(NamedTuple):
    """One model of one repeat: `score` is the one that ranks, `scores` are all of them."""

    mechanism: str
    epsilon: float | None
    repeat: int
    score: float
    scores: dict[str, float]
    excess: float
    attack: tuple[float, float]
    trace: dict[str, Any]


@dataclass(frozen=True)
class Job:
    """One repeat of one mechanism, at those ε (None: without privacy) that there is no result for."""

    mechanism: str
    repeat: int
    epsilons: tuple[float | None, ...]


@dataclass(frozen=True)
class Done:
    """The results of a job. `problem` is why the last of them could not be kept, with which the job stopped."""

    fits: list[Fit]
    problem: str = ""


def mechanism_of(estimator: Any, task: Task) -> tuple[Mechanism, LinearObjective]:
    """Return the mechanism and the objective of an estimator for a task. Under replace-one the number of records is public."""
    size = task.public_size if task.relation is Relation.REPLACE_ONE else None
    return estimator.mechanism_for(task.features, task.classes, size)


@dataclass(frozen=True)
class Shared:
    """A study as all workers have it; `key` tells it from others in a file of results, and rows with the same number in `copies`
    are alike."""

    dataset: Dataset
    study: Study
    task: Task
    mechanisms: Built
    entropy: int
    key: str
    rarer: int
    copies: NDArray[np.intp] | None
    usual: dict[float, Any]  # by ε: the estimator whose mechanism the default is

    def __getstate__(self) -> dict[str, Any]:
        """For another process, which makes the default's mechanism anew: it may hold functions that no process can hand on."""
        kept = {both: made for both, made in self.mechanisms.items() if both[0] != DEFAULT}
        return {**{each.name: getattr(self, each.name) for each in fields(self)}, "mechanisms": kept}

    def made(self, mechanism: str, epsilon: float) -> tuple[Mechanism, LinearObjective]:
        """Return the mechanism and its objective."""
        if (mechanism, epsilon) not in self.mechanisms:
            self.mechanisms[mechanism, epsilon] = mechanism_of(self.usual[epsilon], self.task)
        return self.mechanisms[mechanism, epsilon]

    @cached_property
    def targets(self) -> NDArray[Any]:
        """(n,) class numbers, or numbers in the target's units."""
        if not self.task.classes:
            return np.asarray(self.dataset.targets, dtype=np.float64)
        return np.searchsorted(np.array(sorted(self.dataset.classes)), self.dataset.targets)

    @cached_property
    def learnt(self) -> Array:
        """(n,) targets as objectives take them."""
        if self.task.classes:
            return self.task.targets(self.targets)
        assert self.dataset.target_range is not None
        return self.dataset.target_range.centred.scaled(self.targets)

    @cached_property
    def places(self) -> NDArray[np.intp]:
        """(K,) where each class, of the sorted ones, stands in the data set's order."""
        return np.argsort(np.array(self.dataset.classes), kind="stable")

    def learnt_by(self, objective: LinearObjective) -> Array:
        """(n,) targets as this objective takes them: centred ranks, where its loss is of such."""
        if not objective.loss.targets.ranked:
            return self.learnt
        return (self.places[self.targets] - (self.task.classes - 1) / 2).astype(np.float64)

    def record(self, fit: Fit) -> dict[str, Any]:
        """A result as a file of results has it."""
        text = json.dumps({"study": self.key, "event": self.event(fit.mechanism, fit.epsilon), **fit._asdict()}, default=_plain)
        return json.loads(text)

    def event(self, mechanism: str, epsilon: float | None) -> str:
        """Return a digest of the event of a result, which tells results of other versions and settings apart."""
        if epsilon is None:
            return ""
        made, objective = self.made(mechanism, epsilon)
        return digest_of(made.event(objective.facts).to_dict())

    @cached_property
    def _references(self) -> dict[Any, Array]:
        return {}

    def reference(self, objective: LinearObjective, records: Records, repeat: int) -> Array:
        """The linear model without privacy that minimises an objective on a split: many mechanisms share one."""
        what = repeat, replace(objective, public_size=None, strong_convexity=0.0)
        if what not in self._references:
            task = replace(self.task, classes=0) if objective.loss.targets.ranked else self.task
            self._references[what] = linear_reference(objective, records, task)
        return self._references[what]

    def split(self, repeat: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Train and test indices."""
        return split(self.dataset, self.study.test_share, self.study.relation, self.entropy, repeat)

    def alone(self, train: NDArray[np.intp], test: NDArray[np.intp]) -> NDArray[np.bool_]:
        """Return a mask (n_test,) of the held-out rows that have no copy among the training rows."""
        if self.copies is None:
            return np.ones(len(test), dtype=np.bool_)
        return ~np.isin(self.copies[test], self.copies[train])

    def answered(self, made: Array) -> Answers:
        """What a model without a link, such as gradient boosting, answers by its probabilities (n, K), or predictions (n,): the
        median class where classes have an order, as ordinal models do, and otherwise the likeliest."""
        if not self.task.classes:
            return Answers(made)
        if not self.task.ordered:
            return Answers(made.argmax(axis=1), made)
        sorted_numbers = np.argsort(self.places)
        return Answers(sorted_numbers[median_class(made[:, sorted_numbers])], made)

    def scores(self, answers: Answers, train: NDArray[np.intp], test: NDArray[np.intp]) -> dict[str, float]:
        """All scores of answers to n_test records."""
        truth = self.targets[test]
        if self.task.classes:
            threshold = float(np.mean(self.targets[train] == self.rarer))
            found = score_classes(truth, answers, self.rarer, threshold)
            if self.task.ordered:
                found |= score_ranks(self.places[truth], self.places[answers.predicted])
        else:
            found = score_numbers(truth, answers.predicted)
        alone = self.alone(train, test)
        if alone.all():
            return found
        if self.task.ordered:
            if alone.sum() < FEWEST:
                return found
            ranked = score_ranks(self.places[truth[alone]], self.places[answers.predicted[alone]])
            return found | {WITHOUT_COPIES: ranked[RANKS.name]}
        return found | score_without_copies(truth, answers, alone)


_worker: Shared
_results: int | None = None  # the descriptor of the file that results are kept in
_problem = ""  # why it took one no more


def _plain(value: Any) -> Any:
    return np.asarray(value).tolist()


def _start_worker(shared: Shared, results: int | None) -> None:
    global _worker, _results, _problem
    _worker, _results, _problem = shared, results, ""


def _run_job(job: Job) -> Done:
    """Keep each result before the next one is charged, and stop if a result cannot be kept."""
    if _problem:
        return Done([], _problem)
    fits: list[Fit] = []
    made = _reference(_worker, job) if job.mechanism in REFERENCES else _private(_worker, job)
    with _worker.dataset.charging():
        for fit in made:
            record = _worker.record(fit)
            fits.append(_fit_of(record))
            if not _kept(partial(append_record, record=record)):
                break
        else:
            _kept(os.fsync)
    return Done(fits, _problem)


def _kept(write: Callable[[int], None]) -> bool:
    """Write to the file of results, and return whether that succeeded."""
    global _problem
    if _results is not None:
        try:
            write(_results)
        except OSError as error:
            _problem = error.strerror or str(error)
    return not _problem


def _fit_of(record: dict[str, Any]) -> Fit:
    """The result that a record holds. KeyError, TypeError or ValueError for another record."""
    fit = Fit(**{name: record[name] for name in Fit._fields})
    first, second = fit.attack
    scores = {str(name): float(value) for name, value in dict(fit.scores).items()}
    return fit._replace(score=float(fit.score), scores=scores, excess=float(fit.excess), attack=(float(first), float(second)))


class _Held(NamedTuple):
    """A split's records as an objective takes them: training rows, those judged by, and training rows as they are fitted."""

    members: Records
    others: Records
    fitted: Records


def _held(shared: Shared, objective: LinearObjective, train: NDArray[np.intp], test: NDArray[np.intp]) -> _Held:
    features, groups, targets = shared.dataset.features, shared.dataset.groups, shared.learnt_by(objective)
    rows = replace(objective, unit=RECORD)  # answers are judged by themselves, whosever they are
    members = rows.records(features[train], targets[train])
    others = rows.records(features[test], targets[test])
    fitted = members if groups is None else objective.records(members.rows, targets[train], groups=groups[train])
    return _Held(members, others, fitted)


def _reference(shared: Shared, job: Job) -> Iterator[Fit]:
    """A model without privacy."""
    train, test = shared.split(job.repeat)
    classes, attack = shared.task.classes, (math.nan, math.nan)
    if job.mechanism == "constant":
        answers = shared.answered(constant_answers(shared.targets[train], classes, len(test)))
    elif job.mechanism == "boosting":
        seed = (shared.entropy + job.repeat) % 2**32
        answers = shared.answered(boosted_answers(shared.dataset, shared.targets, (train, test), seed))
    else:
        objective = _unbounded(shared.task).objective(joint=True)
        held = _held(shared, objective, train, test)
        best = shared.reference(objective, held.fitted, job.repeat)
        answers = answers_of(shared, objective, held.others, best)
        attack = _attack(objective, held.members, held.others, best, shared.task)
    yield _fit(shared, job, None, answers, (train, test), attack=attack)


def _unbounded(task: Task) -> Task:
    """The task without a bound on parameters: without privacy least squares need none."""
    if not isinstance(task.loss, Squared):
        return task
    return replace(task, loss=replace(task.loss, radius=math.inf))


def _private(shared: Shared, job: Job) -> Iterator[Fit]:
    """Models by a mechanism, at each ε of the job."""
    study, task = shared.study, shared.task
    train, test = shared.split(job.repeat)
    first = next(epsilon for epsilon in job.epsilons if epsilon is not None)
    objective = shared.made(job.mechanism, first)[1]
    held = _held(shared, objective, train, test)
    if objective.outputs == 1:  # the reference has no margin and no penalty on roughness, which depend on ε
        same = not task.classes or objective.loss.targets.ranked
        objective = replace(objective, loss=objective.loss if same else task.loss, roughness=None)
    least = _risk(objective, held.members, shared.reference(objective, held.fitted, job.repeat), task)
    for epsilon in job.epsilons:
        assert epsilon is not None
        seed = None if study.seed is None else f"{study.seed}/{job.mechanism}/{epsilon}/{job.repeat}"
        channel = Channel.open(seed, label=f"compare {shared.dataset.name}")
        mechanism, objective = shared.made(job.mechanism, epsilon)
        release = mechanism.release(objective, held.fitted, channel)
        answers = answers_of(shared, objective, held.others, release.theta)
        risk = _risk(objective, held.members, release.theta, task)
        attack = _attack(objective, held.members, held.others, release.theta, task)
        yield _fit(shared, job, epsilon, answers, (train, test), risk - least, attack, dict(release.trace))


def _fit(
    shared: Shared,
    job: Job,
    epsilon: float | None,
    answers: Answers,
    parts: tuple[NDArray[np.intp], NDArray[np.intp]],
    excess: float = 0.0,
    attack: tuple[float, float] = (0.5, 0.0),
    trace: dict[str, Any] | None = None,
) -> Fit:
    scores = shared.scores(answers, *parts)
    ranking = scores[measures_of(shared.task.classes, shared.task.ordered)[0].name]
    return Fit(job.mechanism, epsilon, job.repeat, ranking, scores, excess, attack, trace or {})


def answers_of(shared: Shared, objective: LinearObjective, records: Records, theta: Array) -> Answers:
    """What an estimator with these parameters predicts. Parameters that are not finite count as 0."""
    scores = np.nan_to_num(_predictions(objective, records, theta))
    if shared.task.classes:
        chances = class_probabilities(objective, scores)
        answers = objective.loss.link.answer(scores)
        if objective.loss.targets.ranked:
            return Answers(np.argsort(shared.places)[answers], chances[:, shared.places])
        return Answers(answers, chances)
    assert shared.dataset.target_range is not None
    return Answers(shared.dataset.target_range.centred.restored(scores))


def _predictions(objective: LinearObjective, records: Records, theta: Array) -> Array:
    """(n,) or (n, K) predictions."""
    if theta.ndim == 2:
        return np.stack([_predictions(objective, records, row) for row in theta], axis=1)
    return np.concatenate([objective.predict(theta, batch) for batch in records.batches()])


def _risk(objective: LinearObjective, records: Records, theta: Array, task: Task) -> float:
    """Mean training loss, without the regulariser (one-vs-rest: the mean over classes)."""
    return float(_losses(objective, records, theta, task).mean())


def _losses(objective: LinearObjective, records: Records, theta: Array, task: Task) -> Array:
    """(n,) losses; one-vs-rest: the mean over classes."""
    t, y = _predictions(objective, records, theta), records.targets
    if t.ndim == 2 and objective.outputs == 1:
        separate = [objective.loss.judged(t[:, k], records.one_against_rest(k).targets) for k in range(task.classes)]
        return np.mean(separate, axis=0)
    return objective.loss.judged(t, y)


def _attack(objective: LinearObjective, members: Records, others: Records, theta: Array, task: Task) -> tuple[float, float]:
    """Membership inference by loss: the area under its curve, and the share of members found at 1 % false positives."""
    inside, outside = (-_losses(objective, records, theta, task) for records in (members, others))
    allowed = int(_FALSE_POSITIVES * len(outside))
    cut = np.sort(outside)[len(outside) - allowed - 1]  # with fewer than 100 others: nobody may be accused wrongly
    return area_under_curve(outside, inside)[0], float((inside > cut).mean())


def all_fits(
    shared: Shared,
    keys: Sequence[str],
    jobs: int,
    progress: Callable[[int, int], None] | None,
    kept: KeptResults | None,
) -> list[Fit]:
    """All results of a study: those that were kept, and those that are missing, from several processes."""
    study, rows = shared.study, [] if kept is None else _already(shared, kept)
    there = {(row.mechanism, row.epsilon, row.repeat) for row in rows}
    work: list[Job] = []
    for repeat in range(study.repeats):
        for key in (*REFERENCES, *keys):
            wanted = _wanted(shared, key, repeat)
            if missing := tuple(epsilon for epsilon in wanted if (key, epsilon, repeat) not in there):
                work.append(Job(key, repeat, missing))
    problem = ""
    results = in_processes(
        work, _run_job, _start_worker, shared, jobs,
        descriptor=None if kept is None else kept.descriptor, last=lambda done: bool(done.problem),
    )  # fmt: skip
    with told(progress, "Comparing") as step:
        for number, done in enumerate(results, start=1):
            rows += done.fits
            problem = problem or done.problem
            step(number, len(work))
    if problem and kept is not None:
        raise kept.not_kept(problem, map(shared.record, rows))
    if kept is not None:
        kept.taken(map(shared.record, rows))
    return rows


def _wanted(shared: Shared, key: str, repeat: int) -> tuple[float | None, ...]:
    """The ε that a mechanism is to have results at, of this repeat."""
    if key not in REFERENCES:
        return shared.study.epsilons
    return (None,) if key != "boosting" or repeat < boosted_splits(shared.dataset, shared.study) else ()


def _already(shared: Shared, kept: KeptResults) -> list[Fit]:
    """The results of this study that are kept already, one of each."""
    found: dict[tuple[str, float | None, int], Fit] = {}
    known = {*REFERENCES, *(key for key, _ in shared.mechanisms)}
    for record in kept.results(shared.key):
        try:
            fit = _fit_of(record)
            mine = fit.mechanism in known and fit.repeat in range(shared.study.repeats)
            mine = mine and fit.epsilon in _wanted(shared, fit.mechanism, fit.repeat)
        except (KeyError, TypeError, ValueError):  # changed by hand, or of a mechanism that is not asked for
            continue
        if mine and record["event"] == shared.event(fit.mechanism, fit.epsilon):
            found.setdefault((fit.mechanism, fit.epsilon, fit.repeat), fit)
    return list(found.values())
