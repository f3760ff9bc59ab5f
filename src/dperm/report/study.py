"""A study: private models of one data set, by several mechanisms over a range of ε, repeated on paired random splits."""

from __future__ import annotations

import hashlib
import json
import math
import os
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.metadata import version
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import issparse

from dperm import _validate as check
from dperm._types import Array
from dperm.audit.statistics import area_under_curve
from dperm.data import Dataset
from dperm.mechanisms import Budget, Mechanism, Objective
from dperm.objectives import RECORD, LinearObjective, Logistic, Records, RegularisedSum, Squared, Task
from dperm.privacy import Certificate, Provenance, Relation
from dperm.privacy import epsilon as event_epsilon
from dperm.privacy.certificates.assumptions import EXACT_NOISE
from dperm.privacy.certificates.signing import digest_of
from dperm.release import Channel
from dperm.report.candidates import CANDIDATES, USUAL
from dperm.report.kept import KeptResults, append_record
from dperm.report.workers import in_processes
from dperm.solvers import SolverError, minimise, minimise_softmax
from dperm.utility import EpsilonCurve, UtilityCurve, UtilityPath

#: Λ of the non-private reference, in sum form: enough to make it unique. On nearly separable records it still costs
#: some hundredths of training loss, so that a private model can undercut the reference slightly.
_DRAWS = 20  # of the noise, for utility along ε
_REFERENCE_CONVEXITY = 1e-2

#: Of the ball ‖θ‖ ≤ radius/data_norm that regressions are held in.
_REGRESSION_RADIUS = 5.0

_FALSE_POSITIVES = 0.01  # of the membership attack
_HASHED = 1 << 12  # rows at once


@dataclass(frozen=True)
class Study:
    """What is compared. The test share is held out at random, anew each repeat; nothing is tuned on it."""

    epsilons: tuple[float, ...] = (0.1, 0.3, 1.0, 3.0, 10.0)
    delta: float = 1e-5
    mechanisms: tuple[str, ...] = USUAL
    repeats: int = 10
    test_share: float = 0.2
    data_norm: float = 1.0
    intercept_scale: float = 0.5
    relation: str = "add_or_remove_one"
    seed: int | None = None

    def __post_init__(self) -> None:
        for epsilon in self.epsilons:
            check.positive("epsilon", epsilon)
        if not self.epsilons:
            raise ValueError("Expected at least one epsilon.")
        check.fraction("delta", self.delta)
        check.integer("repeats", self.repeats)
        check.fraction("test_share", self.test_share)
        check.positive("data_norm", self.data_norm)
        for key in self.mechanisms:
            check.choice("mechanism", key, CANDIDATES)


@dataclass(frozen=True)
class Cell:
    """All repeats of one mechanism at one ε (None: the non-private reference). Arrays are (repeats,).

    `attack_auc` and `attack_tpr` are of membership inference by loss, training against held-out records: the area under its
    curve, and the share of members found while 1 % of others are accused.
    """

    mechanism: str
    epsilon: float | None
    scores: Array
    excess: Array
    attack_auc: Array
    attack_tpr: Array
    noise: dict[str, Any] = field(default_factory=dict[str, Any])
    certificate: Certificate | None = None
    test_share: float = 0.0  # of the records, in each repeat's split; 0: repeats share no records

    @property
    def mean(self) -> float:
        return float(self.scores.mean())

    @property
    def spread(self) -> float:
        """Half-width of the 95 % interval of the mean: for other splits, not only for these."""
        return _half_width(self.scores, self.test_share)

    def paired(self, other: Cell) -> tuple[float, float]:
        """Mean difference of scores over the same splits, and its 95 % half-width."""
        difference = self.scores - other.scores
        return float(difference.mean()), _half_width(difference, self.test_share)


def _half_width(values: Array, test_share: float) -> float:
    """Student's, with the variance of a mean over splits that share records: (1/J + n_test/n_train)·s² (Nadeau and Bengio 2003,
    Inference for the generalization error, section 3)."""
    if len(values) < 2:
        return float("nan")
    from scipy.special import stdtrit

    return float(stdtrit(len(values) - 1, 0.975) * values.std(ddof=1) * np.sqrt(1 / len(values) + test_share / (1 - test_share)))


@dataclass(frozen=True)
class StudyResult:
    """Cells of one data set, in order, and what a reader needs to judge them."""

    dataset: str
    title: str
    study: Study
    task: Task
    records: int
    notes: tuple[str, ...]
    metric: str
    baseline: float
    cells: tuple[Cell, ...]
    seconds: float
    rows: int = 0  # of the table: more than records, where these are persons
    curve: UtilityCurve | None = None  # of sharp objective perturbation on one split, for two classes

    @property
    def counted(self) -> str:
        """How much there is, in words."""
        if self.task.unit == RECORD:
            return f"{self.records:,} records"
        return f"{self.records:,} persons with {self.rows:,} rows, at most {self.task.unit.max_rows:,} of each in training"

    def cell(self, mechanism: str, epsilon: float | None) -> Cell:
        return next(cell for cell in self.cells if (cell.mechanism, cell.epsilon) == (mechanism, epsilon))

    def best(self, epsilon: float) -> str | None:
        """The best mechanism at this ε, where its lead over the next is beyond the interval of their difference; what is only
        claimed does not compete."""
        here = [cell for cell in self.cells if cell.epsilon == epsilon and not CANDIDATES[cell.mechanism].claimed]
        ranked = sorted(here, key=lambda cell: -cell.mean)
        if len(ranked) < 2:
            return None
        lead, width = ranked[0].paired(ranked[1])
        return ranked[0].mechanism if lead > width > 0 else None


class _Fit(NamedTuple):
    """One model of one repeat."""

    mechanism: str
    epsilon: float | None
    repeat: int
    score: float
    excess: float
    attack: tuple[float, float]
    trace: dict[str, Any]


@dataclass(frozen=True)
class _Job:
    """One repeat of one mechanism, at those ε (None: without privacy) that there is no result for."""

    mechanism: str
    repeat: int
    epsilons: tuple[float | None, ...]


@dataclass(frozen=True)
class _Done:
    """The results of a job. `problem` is why the last of them could not be kept, with which the job stopped."""

    fits: list[_Fit]
    problem: str = ""


#: What runs and what it minimises, by method and ε.
_Built = dict[tuple[str, float], tuple[Mechanism, LinearObjective]]


@dataclass(frozen=True)
class _Shared:
    """A study as all workers have it; `key` tells it from others in a file of results."""

    dataset: Dataset
    study: Study
    task: Task
    mechanisms: _Built
    entropy: int
    key: str

    def record(self, fit: _Fit) -> dict[str, Any]:
        """A result as a file of results has it."""
        text = json.dumps({"study": self.key, "event": self.event(fit.mechanism, fit.epsilon), **fit._asdict()}, default=_plain)
        return json.loads(text)

    def event(self, mechanism: str, epsilon: float | None) -> str:
        """A digest of what a result cost: by it one of another version, or of other settings, is told apart."""
        if epsilon is None:
            return ""
        made, objective = self.mechanisms[mechanism, epsilon]
        return digest_of(made.event(objective.facts).to_dict())


_worker: _Shared
_results: int | None = None  # the descriptor of the file that results are kept in
_problem = ""  # why it took one no more


def _plain(value: Any) -> Any:
    return np.asarray(value).tolist()


def _start_worker(shared: _Shared, results: int | None) -> None:
    global _worker, _results, _problem
    _worker, _results, _problem = shared, results, ""


def _run_job(job: _Job) -> _Done:
    """Each result is kept before the next is paid for; where one cannot be, nothing more is."""
    if _problem:
        return _Done([], _problem)
    dataset, study = _worker.dataset, _worker.study
    split = _split(dataset, study, _worker.entropy, job.repeat)
    fits: list[_Fit] = []
    with dataset.charging():
        for fit in _repeat(dataset, study, _worker.task, _worker.mechanisms, job, split):
            record = _worker.record(fit)
            fits.append(_fit_of(record))
            if not _kept(partial(append_record, record=record)):
                break
        else:
            _kept(os.fsync)
    return _Done(fits, _problem)


def _kept(write: Callable[[int], None]) -> bool:
    """Whether the file of results took what was to be written to it."""
    global _problem
    if _results is not None:
        try:
            write(_results)
        except OSError as error:
            _problem = error.strerror or str(error)
    return not _problem


def _fit_of(record: dict[str, Any]) -> _Fit:
    """The result that a record holds. KeyError, TypeError or ValueError for another record."""
    fit = _Fit(**{name: record[name] for name in _Fit._fields})
    first, second = fit.attack
    return fit._replace(score=float(fit.score), excess=float(fit.excess), attack=(float(first), float(second)))


def _key_of(dataset: Dataset, study: Study) -> str:
    """A digest of what a result depends on, beside its mechanism, ε and repeat: the records, the settings, the version."""
    rows = dataset.features.tocsr() if issparse(dataset.features) else dataset.features
    held: list[Any] = [rows.data, rows.indices, rows.indptr] if issparse(rows) else [rows]
    digest = hashlib.sha256()
    for array in map(np.asarray, [*held, dataset.targets, () if dataset.groups is None else dataset.groups]):
        values = array.astype(str) if array.dtype == object else array
        digest.update(f"{values.dtype} {values.shape} ".encode())
        for start in range(0, len(values), _HASHED):
            digest.update(values[start : start + _HASHED].tobytes())
    public = (
        dataset.name,
        dataset.classes,
        dataset.target_range,
        dataset.unit.max_rows,
        dataset.neighbours,
        dataset.read_off,
    )
    settings = replace(study, epsilons=(1.0,), mechanisms=(), repeats=1)  # of these, results are told apart one by one
    digest.update(repr((version("dperm"), public, settings)).encode())
    return digest.hexdigest()


def _trained_on(dataset: Dataset, study: Study) -> int:
    """The number of records, or persons, that is stated as public."""
    count = _count(dataset)
    return min(count - 1, max(1, round((1 - study.test_share) * count)))


def _count(dataset: Dataset) -> int:
    """The number of records: of persons, where one may have several rows."""
    return len(dataset) if dataset.groups is None else len(np.unique(dataset.groups))


def _split(dataset: Dataset, study: Study, entropy: int, repeat: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Train and test indices, the same for every mechanism of a repeat.

    Each record is held out by a draw of its own, so that a record more or less moves no other record between the parts.
    """
    count = _count(dataset)
    draws = np.random.default_rng([entropy, repeat]).random(count)
    held_out = draws < study.test_share
    if Relation(study.relation) is Relation.REPLACE_ONE:  # how many are trained on is public, and is what was stated
        held_out = np.argsort(np.argsort(draws)) < count - _trained_on(dataset, study)
    held_out[np.argmin(draws)] = True  # never an empty part
    held_out[np.argmax(draws)] = False
    if dataset.groups is not None:  # persons with all their rows
        held_out = held_out[np.unique(dataset.groups, return_inverse=True)[1].reshape(-1)]
    return np.flatnonzero(~held_out), np.flatnonzero(held_out)


def _targets(dataset: Dataset, task: Task) -> Array:
    if task.classes == 0:
        assert dataset.target_range is not None
        return dataset.target_range.centred.scaled(dataset.targets)
    return task.targets(np.searchsorted(np.array(sorted(dataset.classes)), dataset.targets))


def _repeat(
    dataset: Dataset,
    study: Study,
    task: Task,
    mechanisms: _Built,
    job: _Job,
    split: tuple[NDArray[np.intp], NDArray[np.intp]],
) -> Iterator[_Fit]:
    train, test = split
    targets = _targets(dataset, task)
    private = job.mechanism != "non-private"
    objective = CANDIDATES[job.mechanism].method.objective(task) if private else task.objective(joint=True)  # whatever ε is
    rows = replace(objective, unit=RECORD)  # answers are judged by themselves, whosever they are
    members = rows.records(dataset.features[train], targets[train])
    held_out = rows.records(dataset.features[test], targets[test])
    groups = dataset.groups
    fit = members if groups is None else objective.records(members.rows, targets[train], groups=groups[train])
    plain = objective if objective.outputs > 1 else replace(objective, loss=task.loss, roughness=None)  # without a margin
    best = _non_private(plain, fit, task)
    least = _risk(plain, members, best, task)
    if not private:
        attack = _attack(objective, members, held_out, best, task)
        yield _Fit(job.mechanism, None, job.repeat, _score(objective, held_out, best, task), 0.0, attack, {})
        return
    for epsilon in job.epsilons:
        assert epsilon is not None
        seed = None if study.seed is None else f"{study.seed}/{job.mechanism}/{epsilon}/{job.repeat}"
        channel = Channel.open(seed, label=f"compare {dataset.name}")
        mechanism, objective = mechanisms[job.mechanism, epsilon]
        release = mechanism.release(objective, fit, channel)
        score = _score(objective, held_out, release.theta, task)
        risk = _risk(objective, members, release.theta, task)
        attack = _attack(objective, members, held_out, release.theta, task)
        yield _Fit(job.mechanism, epsilon, job.repeat, score, risk - least, attack, dict(release.trace))


def _non_private(objective: LinearObjective, records: Records, task: Task) -> Array:
    """Minimiser of the (nearly) unregularised objective; one row a class for one-vs-rest."""
    objective = objective.with_strong_convexity(_REFERENCE_CONVEXITY)
    if objective.outputs > 1:
        return minimise_softmax(objective, records)
    if task.classes > 2:
        rows = [
            minimise(RegularisedSum(objective, records.one_against_rest(number)), 1e-6).theta for number in range(task.classes)
        ]
        return np.stack(rows)
    return minimise(RegularisedSum(objective, records), 1e-6, objective.radius).theta


def _predictions(objective: LinearObjective, records: Records, theta: Array) -> Array:
    """(n,) or (n, K) predictions."""
    if theta.ndim == 2:
        return np.stack([_predictions(objective, records, row) for row in theta], axis=1)
    return np.concatenate([objective.predict(theta, batch) for batch in records.batches()])


def _score(objective: LinearObjective, records: Records, theta: Array, task: Task) -> float:
    """Accuracy, or R² for regression."""
    t, y = _predictions(objective, records, theta), records.targets
    if task.classes == 0:
        return 1.0 - float(np.square(t - y).sum() / max(np.square(y - y.mean()).sum(), 1e-300))
    if task.classes == 2:
        return float(np.mean((t > 0) == (y > 0)))
    return float(np.mean(t.argmax(axis=1) == y))


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


def run_study(
    dataset: Dataset,
    study: Study,
    jobs: int = 1,
    progress: Callable[[int, int], None] | None = None,
    kept: KeptResults | None = None,
) -> StudyResult:
    """Run every mechanism × ε × repeat on `jobs` processes. `progress(done, total)` is called as tasks finish.

    kept : a file that has each result as soon as it is there. What it holds already of this study, or of one with other ε,
        mechanisms or repeats on the same records, is taken from there and not paid for again.

    Calibration happens once, from public facts. Raises ValueError before anything is charged where the data or
    the settings are unusable, and ResultsNotKeptError where a result was paid for and `kept` did not take it.
    """
    started = time.perf_counter()
    _refuse_unusable(dataset, study)
    classes = len(dataset.classes)
    entropy = secrets.randbits(64) if study.seed is None else study.seed
    task = _task(dataset, study)
    mechanisms, left_out = _built(study, task)
    keys = [key for key in study.mechanisms if key not in left_out]
    if not keys:
        reasons = dict.fromkeys(left_out.values())
        raise ValueError(f"None of {', '.join(study.mechanisms)} can train on {dataset.name}. {' '.join(reasons)}")
    shared = _Shared(dataset, study, task, mechanisms, entropy, "" if kept is None else _key_of(dataset, study))
    if kept is not None:
        shared = replace(shared, entropy=kept.begin(shared.key, entropy))
        entropy = shared.entropy
    rows = _fits(shared, keys, jobs, progress, kept)
    cells = [_cell("non-private", None, rows, study, None)]
    for (key, epsilon), (mechanism, objective) in mechanisms.items():
        certificate = mechanism.certificate(objective.facts, _provenance(study))
        certificate = dataset.certified(_with_size_read_off(certificate))
        cells.append(_cell(key, epsilon, rows, study, certificate))
    notes = (*dataset.notes, *(f"{CANDIDATES[key].title} is left out. {reason}" for key, reason in left_out.items()))
    curve = None
    if "objective-sharp" in keys and classes == 2 and not task.unit.several_rows:
        try:
            curve = _curve(dataset, study, task, entropy)
            if any(made.roughness for (key, _), (_, made) in mechanisms.items() if key == "objective-sharp"):
                notes = (*notes, "Utility along ε is without the penalty on roughness, which the mechanism has where ε is small.")
        except SolverError as error:  # nothing else is lost by it
            notes = (*notes, f"Utility along ε is left out: {error}")
    return StudyResult(
        dataset=dataset.name,
        title=dataset.title or dataset.name,
        study=study,
        task=task,
        records=_count(dataset),
        rows=len(dataset),
        notes=notes,
        metric="accuracy" if classes else "R²",
        baseline=_baseline(dataset, classes),
        cells=tuple(cells),
        seconds=time.perf_counter() - started,
        curve=curve,
    )


def _refuse_unusable(dataset: Dataset, study: Study) -> None:
    """ValueError for data, or settings for them, that no mechanism could be compared on."""
    if _count(dataset) < 5:
        raise ValueError(f"Expected at least 5 records to split, got {_count(dataset)}.")
    if dataset.found is not None and dataset.found.relation != study.relation:
        raise ValueError(f"Expected relation {dataset.found.relation.value!r}, under which this schema was found.")
    if dataset.found is not None and not math.isfinite(event_epsilon(dataset.found.event, study.delta)):
        raise ValueError(f"Expected a larger delta than {study.delta:g}: finding the schema took as much.")
    if dataset.classes and len(np.unique(dataset.targets)) < 2:
        raise ValueError(f"Expected at least two classes among the records, got only {dataset.targets[0]!r}.")


def _task(dataset: Dataset, study: Study) -> Task:
    """Classes by the logistic loss, numbers by the squared one."""
    classes = len(dataset.classes)
    return Task(
        loss=Logistic() if classes else Squared(target_bound=1.0, radius=_REGRESSION_RADIUS / study.data_norm),
        features=dataset.features.shape[1],
        classes=classes,
        data_norm=study.data_norm,
        intercept_scale=study.intercept_scale,
        relation=Relation(study.relation),
        public_size=_trained_on(dataset, study),
        unit=dataset.unit,
        neighbours=dataset.neighbours,
    )


def _fits(
    shared: _Shared,
    keys: Sequence[str],
    jobs: int,
    progress: Callable[[int, int], None] | None,
    kept: KeptResults | None,
) -> list[_Fit]:
    """All results of a study: those that were kept, and those that are missing, from several processes."""
    study, rows = shared.study, [] if kept is None else _already(shared, kept)
    there = {(row.mechanism, row.epsilon, row.repeat) for row in rows}
    work: list[_Job] = []
    for repeat in range(study.repeats):
        for key in ("non-private", *keys):
            wanted = (None,) if key == "non-private" else study.epsilons
            if missing := tuple(epsilon for epsilon in wanted if (key, epsilon, repeat) not in there):
                work.append(_Job(key, repeat, missing))
    problem = ""
    results = in_processes(
        work, _run_job, _start_worker, shared, jobs,
        descriptor=None if kept is None else kept.descriptor, last=lambda done: bool(done.problem),
    )  # fmt: skip
    for number, done in enumerate(results, start=1):
        rows += done.fits
        problem = problem or done.problem
        if progress is not None:
            progress(number, len(work))
    if problem and kept is not None:
        raise kept.not_kept(problem, map(shared.record, rows))
    if kept is not None:
        kept.taken(map(shared.record, rows))
    return rows


def _already(shared: _Shared, kept: KeptResults) -> list[_Fit]:
    """The results of this study that are kept already, one of each."""
    found: dict[tuple[str, float | None, int], _Fit] = {}
    wanted = {"non-private": [None]} | {key: list(shared.study.epsilons) for key, _ in shared.mechanisms}
    for record in kept.results(shared.key):
        try:
            fit = _fit_of(record)
            mine = fit.epsilon in wanted[fit.mechanism] and fit.repeat in range(shared.study.repeats)
        except (KeyError, TypeError, ValueError):  # changed by hand, or of a mechanism that is not asked for
            continue
        if mine and record["event"] == shared.event(fit.mechanism, fit.epsilon):
            found.setdefault((fit.mechanism, fit.epsilon, fit.repeat), fit)
    return list(found.values())


def _built(study: Study, task: Task) -> tuple[_Built, dict[str, str]]:
    """What runs; and why methods that refuse this task, or one of the budgets, are left out."""
    mechanisms: _Built = {}
    left_out: dict[str, str] = {}
    for key in study.mechanisms:
        try:
            for epsilon in study.epsilons:
                mechanism, objective = CANDIDATES[key].method.build(task, Budget(study.delta, epsilon))
                mechanism.event(objective.facts)
                mechanisms[key, epsilon] = mechanism, objective
        except ValueError as error:
            left_out[key] = str(error)
    return {both: made for both, made in mechanisms.items() if both[0] not in left_out}, left_out


def _curve(dataset: Dataset, study: Study, task: Task, entropy: int) -> UtilityCurve | None:
    """Utility at every ε of the study's range, on the first split; None where it has one ε, or one class is held out."""
    low, high = min(study.epsilons), max(study.epsilons)
    train, test = _split(dataset, study, entropy, 0)
    if low == high or len(np.unique(dataset.targets[test])) < 2:
        return None
    targets, objective = _targets(dataset, task), Objective().objective(task)
    path = UtilityPath(
        objective,
        objective.records(dataset.features[train], targets[train]),
        EpsilonCurve(objective.facts, study.delta, low, high),
        draws=_DRAWS,
        random_state=np.random.default_rng([entropy, 1]),
    )
    return UtilityCurve.of(path, dataset.features[test], targets[test])


def _with_size_read_off(certificate: Certificate) -> Certificate:
    """Nobody stated the number of records to a study: it was counted, and the certificate must say so."""
    return certificate.checked_otherwise("public size", "not stated: counted by the comparison and treated as public")


def _provenance(study: Study) -> Provenance:
    if study.seed is None:
        return Provenance("fresh from the operating system for every repeat", EXACT_NOISE)
    return Provenance("fixed by the caller: NOT PRIVATE", EXACT_NOISE, private=False)


def _baseline(dataset: Dataset, classes: int) -> float:
    """Score of always answering the most frequent class (or the mean)."""
    if not classes:
        return 0.0
    return float(np.unique(dataset.targets, return_counts=True)[1].max() / len(dataset))


def _cell(
    key: str,
    epsilon: float | None,
    rows: Sequence[_Fit],
    study: Study,
    certificate: Certificate | None,
) -> Cell:
    mine = sorted((row for row in rows if (row.mechanism, row.epsilon) == (key, epsilon)), key=lambda row: row.repeat)
    assert len(mine) == study.repeats
    return Cell(
        key,
        epsilon,
        scores=np.array([row.score for row in mine]),
        excess=np.array([row.excess for row in mine]),
        attack_auc=np.array([row.attack[0] for row in mine]),
        attack_tpr=np.array([row.attack[1] for row in mine]),
        noise=mine[0].trace,
        certificate=certificate,
        test_share=study.test_share,
    )
