"""A study: private models of one data set, by several mechanisms over a range of ε, repeated on paired random splits."""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from dperm._types import Array
from dperm.data import Dataset
from dperm.mechanisms import Budget, Objective
from dperm.objectives import RECORD, Logistic, Squared, Task
from dperm.privacy import Certificate, Provenance, Relation
from dperm.privacy import epsilon as event_epsilon
from dperm.privacy.certificates.assumptions import EXACT_NOISE
from dperm.report.candidates import CANDIDATES, DEFAULT, REFERENCES
from dperm.report.kept import KeptResults
from dperm.report.references import boosted_splits
from dperm.report.study_fits import Built, Fit, Shared, all_fits, mechanism_of
from dperm.report.study_scores import Measure, constant_score, measures_of
from dperm.report.study_settings import Study, key_of
from dperm.report.study_splits import count_of, numbers_of_copies, trained_on
from dperm.solvers import SolverError
from dperm.utility import EpsilonCurve, UtilityCurve, UtilityPath

_DRAWS = 20  # of the noise, for utility along ε

#: Of the ball ‖θ‖ ≤ radius/data_norm that regressions are held in.
_REGRESSION_RADIUS = 5.0

#: what `dperm train` fits by default, on these records at this ε
MakeDefault = Callable[[Dataset, float], Any]


@dataclass(frozen=True)
class Cell:
    """All repeats of one mechanism at one ε (None: a model without privacy). Arrays are (repeats,).

    `measures` are all scores by name; `scores` is the one that ranks. Those that a split does not define, such as the AUC of
    held-out records of one class, are not numbers, and left out of means. `attack_auc` and `attack_tpr` are of membership
    inference by loss, training against held-out records: the area under its curve, and the share of members found while 1 % of
    others are accused.
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
    measures: dict[str, Array] = field(default_factory=dict[str, Array])

    @property
    def mean(self) -> float:
        return _mean(self.scores)

    @property
    def spread(self) -> float:
        """Half-width of the 95 % interval of the mean: for other splits, not only for these."""
        return _half_width(self.scores, self.test_share)

    def measured(self, name: str) -> float:
        """The mean of a score; not a number where no split defines it."""
        return _mean(self.measures[name]) if name in self.measures else math.nan

    def paired(self, other: Cell, comparisons: int = 1) -> tuple[float, float]:
        """Mean difference of scores over the splits that both have, and its 95 % half-width; of so many `comparisons` at once
        (Bonferroni's)."""
        count = min(len(self.scores), len(other.scores))
        difference = self.scores[:count] - other.scores[:count]
        return _mean(difference), _half_width(difference, self.test_share, comparisons)


def _mean(values: Array) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else math.nan


def _half_width(values: Array, test_share: float, comparisons: int = 1) -> float:
    """Student's, with the variance of a mean over splits that share records: (1/J + n_test/n_train)·s² (Nadeau and Bengio 2003,
    Inference for the generalization error, section 3)."""
    values = values[~np.isnan(values)]
    if len(values) < 2:
        return float("nan")
    from scipy.special import stdtrit

    level = 1 - 0.025 / comparisons
    return float(stdtrit(len(values) - 1, level) * values.std(ddof=1) * np.sqrt(1 / len(values) + test_share / (1 - test_share)))


@dataclass(frozen=True)
class StudyResult:
    """Cells of one data set, in order, and what a reader needs to judge them.

    `metric` is the score that ranks. `target` is the name of what is predicted, "" where it is not known, `rarer` the rarer label
    of two. `copied` is the mean share of held-out records that have a copy among the training records.
    """

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
    target: str = ""
    rarer: str = ""
    share: float = math.nan  # of the rarer label of two
    copied: float = 0.0
    mechanisms: Built = field(default_factory=dict, repr=False)  # what ran and what it minimised, by key and ε

    @property
    def counted(self) -> str:
        """How much there is, in words."""
        if self.task.unit == RECORD:
            return f"{self.records:,} records"
        return f"{self.records:,} persons with {self.rows:,} rows, at most {self.task.unit.max_rows:,} of each in training"

    @property
    def measure(self) -> Measure:
        """The score that ranks."""
        return next(each for each in measures_of(self.task.classes, self.task.ordered) if each.name == self.metric)

    @property
    def keys(self) -> list[str]:
        """The private mechanisms, in order."""
        return list(dict.fromkeys(cell.mechanism for cell in self.cells if cell.epsilon is not None))

    @property
    def references(self) -> list[Cell]:
        """What stands without privacy, in order."""
        return [cell for cell in self.cells if cell.epsilon is None]

    def cell(self, mechanism: str, epsilon: float | None) -> Cell:
        return next(cell for cell in self.cells if (cell.mechanism, cell.epsilon) == (mechanism, epsilon))

    def judged_by(self, name: str) -> StudyResult:
        """The same with another score as the one that ranks."""
        cells = tuple(replace(cell, scores=cell.measures[name]) for cell in self.cells)
        return replace(self, metric=name, cells=cells, baseline=self.cell("constant", None).measured(name))

    #: what a notebook shows of a comparison: `dperm.report.notebook`, which reads them, puts it here
    as_html: ClassVar[Callable[[StudyResult], str] | None] = None

    def _repr_html_(self) -> str | None:
        """For a notebook of the data holder: the advice, the leaderboard, and folded below them what they rest on."""
        shown = type(self).as_html
        return None if shown is None else shown(self)

    def best(self, epsilon: float) -> str | None:
        """The best mechanism at this ε, where its lead over the next is beyond the interval of their difference; what is only
        claimed does not compete."""
        here = [cell for cell in self.cells if cell.epsilon == epsilon and not CANDIDATES[cell.mechanism].claimed]
        ranked = sorted(here, key=lambda cell: -cell.mean)
        if len(ranked) < 2:
            return None
        lead, width = ranked[0].paired(ranked[1])
        return ranked[0].mechanism if lead > width > 0 else None


def run_study(
    dataset: Dataset,
    study: Study,
    jobs: int = 1,
    progress: Callable[[int, int], None] | None = None,
    kept: KeptResults | None = None,
    *,
    default: MakeDefault | None = None,
    target: str = "",
) -> StudyResult:
    """Run every mechanism × ε × repeat on `jobs` processes. `progress(done, total)` is called as tasks finish.

    kept : a file that has each result as soon as it is there. What it holds already of this study, or of one with other ε,
        mechanisms or repeats on the same records, is taken from there and not paid for again.
    default : the estimator that the mechanism "auto" stands for, of records and ε: what trains where nothing is chosen.
    target : the name of what is predicted.

    Calibration happens once, from public facts. Raises ValueError before anything is charged where the data or
    the settings are unusable, and ResultsNotKeptError where a result was paid for and `kept` did not take it.
    """
    started = time.perf_counter()
    _refuse_unusable(dataset, study, default)
    entropy = secrets.randbits(64) if study.seed is None else study.seed
    task = _task(dataset, study)
    usual = {} if default is None else {epsilon: default(dataset, epsilon) for epsilon in study.epsilons}
    mechanisms, left_out = _built(study, task, usual)
    keys = [key for key in study.mechanisms if key not in left_out]
    if not keys:
        reasons = " ".join(dict.fromkeys(left_out.values()))
        raise ValueError(f"None of {', '.join(study.mechanisms)} can train on {dataset.name}. {reasons}")
    rarer, share = _rarer(dataset)
    key = "" if kept is None else key_of(dataset, study)
    entropy = entropy if kept is None else kept.begin(key, entropy)
    shared = Shared(dataset, study, task, mechanisms, entropy, key, rarer, numbers_of_copies(dataset), usual)
    rows = all_fits(shared, keys, jobs, progress, kept)
    cells = [_cell(key, None, rows, study, None) for key in REFERENCES if key in {row.mechanism for row in rows}]
    for (key, epsilon), (mechanism, objective) in mechanisms.items():
        certificate = mechanism.certificate(objective.facts, _provenance(study))
        certificate = dataset.certified(certificate if key == DEFAULT else _with_size_read_off(certificate))
        cells.append(_cell(key, epsilon, rows, study, certificate))
    curve, said = _along_epsilon(shared)
    return StudyResult(
        dataset=dataset.name,
        title=dataset.title or dataset.name,
        study=study,
        task=task,
        records=count_of(dataset),
        rows=len(dataset),
        notes=(*_notes(dataset, study, left_out), *said),
        metric=measures_of(task.classes, task.ordered)[0].name,
        baseline=constant_score(task, next(cell.mean for cell in cells if cell.mechanism == "constant")),
        cells=tuple(cells),
        seconds=time.perf_counter() - started,
        curve=curve,
        target=target,
        rarer=sorted(dataset.classes)[rarer] if task.classes == 2 else "",
        share=share,
        copied=_copied(shared),
        mechanisms=mechanisms,
    )


def _refuse_unusable(dataset: Dataset, study: Study, default: MakeDefault | None) -> None:
    """ValueError for data, or settings for them, that no mechanism could be compared on."""
    if count_of(dataset) < 5:
        raise ValueError(f"Expected at least 5 records to split, got {count_of(dataset)}.")
    if DEFAULT in study.mechanisms and default is None:
        raise ValueError(f"Expected default= for the mechanism {DEFAULT!r}: the estimator that trains where nothing is chosen.")
    if dataset.found is not None and dataset.found.relation != study.relation:
        raise ValueError(f"Expected relation {dataset.found.relation.value!r}, under which this schema was found.")
    if dataset.found is not None and not math.isfinite(event_epsilon(dataset.found.event, study.delta)):
        raise ValueError(f"Expected a larger delta than {study.delta:g}: finding the schema took as much.")
    if dataset.classes and len(np.unique(dataset.targets)) < 2:
        raise ValueError(f"Expected at least two classes among the records, got only {dataset.targets[0]!r}.")
    if not dataset.classes and len(np.unique(dataset.targets)) < 2:
        raise ValueError(f"Expected targets that differ, got {float(dataset.targets[0]):g} in every record.")


def _task(dataset: Dataset, study: Study) -> Task:
    """Classes by the logistic loss, numbers by the squared one."""
    classes = len(dataset.classes)
    return Task(
        loss=Logistic() if classes else Squared(target_bound=1.0, radius=_REGRESSION_RADIUS / study.data_norm),
        features=dataset.features.shape[1],
        classes=classes,
        ordered=dataset.ordered,
        data_norm=study.data_norm,
        intercept_scale=study.intercept_scale,
        relation=Relation(study.relation),
        public_size=trained_on(dataset, study.test_share),
        unit=dataset.unit,
        neighbours=dataset.neighbours,
    )


def _built(study: Study, task: Task, usual: dict[float, Any]) -> tuple[Built, dict[str, str]]:
    """What runs; and why methods that refuse this task, or one of the budgets, are left out, or are what the default runs."""
    mechanisms: Built = {}
    left_out: dict[str, str] = {}
    for key in study.mechanisms:
        try:
            for epsilon in study.epsilons:
                if key == DEFAULT:
                    mechanism, objective = mechanism_of(usual[epsilon], task)
                else:
                    mechanism, objective = CANDIDATES[key].method.build(task, Budget(study.delta, epsilon))
                mechanism.event(objective.facts)
                mechanisms[key, epsilon] = mechanism, objective
        except ValueError as error:
            left_out[key] = str(error)
    for key in study.mechanisms:
        both = [(mechanisms.get((key, epsilon)), mechanisms.get((DEFAULT, epsilon))) for epsilon in study.epsilons]
        if key != DEFAULT and all(_alike(one, other) for one, other in both):
            left_out[key] = "It is what the default runs here."
    return {both: made for both, made in mechanisms.items() if both[0] not in left_out}, left_out


def _notes(dataset: Dataset, study: Study, left_out: dict[str, str]) -> list[str]:
    """What a reader must know of the records and of what is left out."""
    notes = [*dataset.notes, *(f"{CANDIDATES[key].title} is left out. {reason}" for key, reason in left_out.items())]
    boosted = boosted_splits(dataset, study)
    if study.boosting and not boosted:
        notes.append(f"{REFERENCES['boosting'].title} is left out. The table is too large to train it in the time of the others.")
    elif 0 < boosted < study.repeats:
        notes.append(f"{REFERENCES['boosting'].title}: on the first {boosted} splits, for it takes long.")
    return notes


def _alike(one: Any, other: Any) -> bool:
    """Whether two mechanisms with their objectives are the same, but that the number of records is public for one of them."""
    if one is None or other is None:
        return False
    sizes = {"public_size": one[1].public_size, "size_limit": one[1].size_limit}
    return one[0] == other[0] and one[1] == replace(other[1], **sizes)


def _rarer(dataset: Dataset) -> tuple[int, float]:
    """The number of the rarer of two labels, and its share; of other targets 0, and not a number."""
    if len(dataset.classes) != 2:
        return 0, math.nan
    second = float(np.mean(np.asarray(dataset.targets) == max(dataset.classes)))
    return (1, second) if second <= 0.5 else (0, 1 - second)


def _copied(shared: Shared) -> float:
    """The mean share of held-out records that have a copy among the training records."""
    if shared.copies is None:
        return 0.0
    return float(np.mean([1 - shared.alone(*shared.split(repeat)).mean() for repeat in range(shared.study.repeats)]))


def _along_epsilon(shared: Shared) -> tuple[UtilityCurve | None, tuple[str, ...]]:
    """Utility at every ε of the study's range, on the first split, by objective perturbation of two classes; and what is to be
    said of it. None where that is not compared, where there is one ε, or where one class is held out."""
    dataset, study, task = shared.dataset, shared.study, shared.task
    objectives = [made for (key, _), (_, made) in shared.mechanisms.items() if key in ("objective-sharp", DEFAULT)]
    if not objectives or task.classes != 2 or task.unit.several_rows:
        return None, ()
    low, high = min(study.epsilons), max(study.epsilons)
    train, test = shared.split(0)
    if low == high or len(np.unique(dataset.targets[test])) < 2:
        return None, ()
    targets, objective = shared.learnt, Objective().objective(task)
    try:
        path = UtilityPath(
            objective,
            objective.records(dataset.features[train], targets[train]),
            EpsilonCurve(objective.facts, study.delta, low, high),
            draws=_DRAWS,
            random_state=np.random.default_rng([shared.entropy, 1]),
        )
        curve = UtilityCurve.of(path, dataset.features[test], targets[test])
    except SolverError as error:  # nothing else is lost by it
        return None, (f"Utility along ε is left out: {error}",)
    if any(made.roughness for made in objectives):
        return curve, ("Utility along ε is without the penalty on roughness, which the mechanism has where ε is small.",)
    return curve, ()


def _with_size_read_off(certificate: Certificate) -> Certificate:
    """Nobody stated the number of records to a study: it was counted, and the certificate must say so."""
    return certificate.checked_otherwise("public size", "not stated: counted by the comparison and treated as public")


def _provenance(study: Study) -> Provenance:
    if study.seed is None:
        return Provenance("fresh from the operating system for every repeat", EXACT_NOISE)
    return Provenance("fixed by the caller: NOT PRIVATE", EXACT_NOISE, private=False)


def _cell(
    key: str,
    epsilon: float | None,
    rows: Sequence[Fit],
    study: Study,
    certificate: Certificate | None,
) -> Cell:
    mine = sorted((row for row in rows if (row.mechanism, row.epsilon) == (key, epsilon)), key=lambda row: row.repeat)
    assert len(mine) == study.repeats or key == "boosting"
    names = list(dict.fromkeys(name for row in mine for name in row.scores))
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
        measures={name: np.array([row.scores.get(name, math.nan) for row in mine]) for name in names},
    )
