"""Replay: run a training on D, then on a neighbour with D's releases and draws fed back, and compare every query.

Fast, and as good as deterministic. Free-running neighbours drift apart and would refute falsely; teacher-forced ones see
the same θ before every query, so that any difference is the neighbour's (cf. Re:cord-play, 2026).
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import scipy.sparse as sp
from array_api_compat import is_torch_array
from numpy.typing import NDArray

from dperm.audit.distinguish import same_relation
from dperm.audit.inclusions import DrawsTested
from dperm.audit.minimisers import GRADIENT, LOG_DETERMINANT, SOLVER, minimiser_findings
from dperm.audit.movement import (
    ROUNDING,
    in_several_parts,
    moved_together,
    moved_undrawn,
    movements,
    overspent,
    raise_to,
    used_more_often,
)
from dperm.audit.noise import Finding, NoiseSeen, noise_findings, visible_noise
from dperm.audit.outputs import leaving, unlogged
from dperm.audit.paid import charged_at_doors, unpaid
from dperm.audit.pairs import Pair
from dperm.audit.recording import DrawRecord, Forced, Recorder, Recording
from dperm.audit.result import HALF, REPLAY, AuditResult, finite
from dperm.audit.training import Training
from dperm.privacy import Composed
from dperm.privacy.events import (
    leaves,
)
from dperm.release import SpendLog, UnpaidReleaseError
from dperm.release.alignment import aligned

#: trainings for one direction of one pair, at most: two that are recorded, and two for each of two patterns of draws
RUNS = 6

_AGAIN = 3  # times that a run is repeated on both neighbours before a failure, or a difference in what leaves, is held against it
_RANDOM = (
    "The training is random beyond its source: the same records, noise and draws gave another {}. Fix its initial weights, let "
    "models and data sets draw by torch's own generators (an augmentation also by NumPy's global one), and let nothing leave "
    "that differs in each run (a time, an identifier, rows made by a generator of their own)."
)


#: a run of forced releases: its source, what left it, and its warnings after the charge
_Run = tuple[Forced, list[Any], set[str]]


class _OtherRandomnessError(ValueError):
    """Runs on the same records, fed the same noise and draws, differ."""


@dataclass(frozen=True)
class ReplayedPair:
    """`movement` is by kind of release the largest ‖q(D) − q(D')‖ ÷ sensitivity; `noise` and `draws` are
    those of two runs on D by themselves, in which `tossed` coins were tossed on records that had been drawn.

    Kinds are those that `Channel.release` is told, and of objective perturbation, which has no query before its noise: "gradient
    of the objective" and "log-determinant", each ÷ what its event assumes of a record, and "error of the solver", ÷ γ.
    """

    movement: Mapping[str, float]
    findings: tuple[Finding, ...]
    noise: tuple[NoiseSeen, ...] = ()
    draws: tuple[tuple[DrawRecord, ...], ...] = ()
    tossed: int = 0


def replay(
    training: Training,
    pairs: Sequence[Pair] | None = None,
    *,
    both_ways: bool = True,
    progress: Callable[[int, int], None] | None = None,
) -> AuditResult:
    """Replay `training` over neighbours (None: the worst cases it brings along).

    Each is replayed in both directions, unless `both_ways` is false.

    Refutes a query that moves by more than its sensitivity; sensitivities or noise levels that depend on records; outputs
    that depend on records though all releases were equal; runs that fail, or warn, after the charge on one of two neighbours; a
    charge or releases that the certificate's event does not state; noise smaller than stated, or used twice; draws that were not
    made as charged (at the rate, of each record by itself, anew each time), and releases of other records than those of their
    draw; minimisers further from the minimum than assumed. It says of kinds of release that no pair moved by half of their
    sensitivity, of noise that could not be seen, and of draws that were too few: `AuditResult.limits`. Raises ValueError without
    neighbours, for neighbours of another relation than the certificate's, and for a training that is random beyond its source
    (initial weights, generators that are not torch's, times and identifiers that leave). What happens once is not held against a
    training: failures, warnings and outputs are looked at again.
    """
    pairs = list(training.replay_pairs if pairs is None else pairs)
    if not pairs:
        raise ValueError("Expected at least one pair of neighbouring data sets to replay: pass pairs.")
    for pair in pairs:
        same_relation(training.event, pair.relation)
    _refuse_other_randomness(training, pairs[0])
    both = [side for pair in pairs for side in ((pair, pair.reversed()) if both_ways else (pair,))]
    played = _Played()
    for number, pair in enumerate(both):
        replayed = _replayed(training, pair, number)
        if replayed is None:
            played.refused.append(pair.name)
            continue
        played.add(pair, replayed)
        if progress is not None:
            progress(number + 1, len(both))
    if len(played.refused) == len(both):
        raise ValueError(f"The training refuses every pair before it is charged: {', '.join(dict.fromkeys(played.refused))}.")
    details = played.details(pairs)
    return AuditResult(
        attack=REPLAY,
        mechanism=training.name,
        verdict="refuted" if played.findings else "consistent",
        delta=training.certificate.delta,
        claimed_epsilon=training.certificate.epsilon,
        trials=len(both) - len(played.refused),
        findings=tuple(
            texts[0] + (f" (and on {len(texts) - 1} other pairs)" if len(texts) > 1 else "") for texts in played.findings.values()
        ),
        details={**details, "leaves": list(training.leaves), "kinds": list(played.findings)},
    )


@dataclass
class _Played:
    """All that the pairs showed so far: movements and findings by kind, noise, draws and coins, and who was refused."""

    movement: dict[str, float] = field(default_factory=dict[str, float])
    findings: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    noise: list[NoiseSeen] = field(default_factory=list[NoiseSeen])
    draws: list[tuple[DrawRecord, ...]] = field(default_factory=list[tuple[DrawRecord, ...]])
    tossed: int = 0
    refused: list[str] = field(default_factory=list[str])

    def add(self, pair: Pair, replayed: ReplayedPair) -> None:
        """One direction of a pair."""
        raise_to(self.movement, replayed.movement)
        self.noise += replayed.noise
        self.draws += replayed.draws
        self.tossed += replayed.tossed
        for finding in replayed.findings:
            self.findings.setdefault(finding.kind, []).append(f"on {pair.name}, {finding.text}")

    def details(self, pairs: Sequence[Pair]) -> dict[str, Any]:
        """The details of a result, beside its verdict. Findings about the noise and the draws of all pairs together are added."""
        tested = DrawsTested.of(self.draws)
        for finding in (*noise_findings(self.noise), *tested.findings):
            self.findings.setdefault(finding.kind, []).append(finding.text)
        sets = [data for pair in pairs for data in (pair.first, pair.second)]
        unseen = {kind: most for kind, most in self.movement.items() if most <= HALF * (1 + ROUNDING)}
        return {
            "movement": {kind: finite(most) for kind, most in self.movement.items()},
            "largest_movement": finite(max(self.movement.values(), default=0.0)),
            "pairs": [pair.name for pair in pairs],
            "records": [choose(len(data[1]) for data in sets) for choose in (min, max)],
            "storage": list(dict.fromkeys(_stored(data[0]) for data in sets)),
            "refused": list(dict.fromkeys(self.refused)),
            "unseen": {kind: most for kind, most in unseen.items() if kind != SOLVER},  # each residual is compared with γ itself
            "noise": visible_noise(self.noise),
            "hidden": _added_up(run.hidden for run in self.noise),
            "compared": _added_up(run.compared for run in self.noise),
            "rates": tested.rates,
            "unlike": list(tested.unlike),
            "tossed": self.tossed,
        }


def _replayed(training: Training, pair: Pair, number: int) -> ReplayedPair | None:
    """One direction of a pair, tried again where it fails; None where the training refuses it before it is charged."""
    try:
        return replay_pair(training, pair, number)
    except _OtherRandomnessError:
        raise
    except Exception as error:
        if any(_refused_unpaid(training, data) for data in (pair.first, pair.second)):
            return None
        failing = _fails_on_the_first(training, pair, number) or _once_more(training, pair, number)
        if failing is None and isinstance(error, ValueError | TypeError | ArithmeticError):
            raise ValueError(f"The training failed on {pair.name}: {error}") from error
        if failing is None:
            raise
        return failing


def _stored(rows: Any) -> str:
    """Names the way in which records are stored, in words for a reader."""
    if sp.issparse(rows):
        return "sparse matrices"
    if isinstance(rows, np.ndarray):
        return "dense arrays"
    return "tensors" if is_torch_array(rows) else type(rows).__name__


def _added_up(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for each in counts:
        total.update(each)
    return dict(total)


def _refused_unpaid(training: Training, data: Any) -> bool:
    """Whether the training refuses these records before it is charged: an error that speaks to the data holder only."""
    with unlogged() as log:
        try:
            _run(training, data, Recorder())
        except Exception as error:
            return not log.charges() and isinstance(error, ValueError | TypeError)
    return False


def _fails_on_the_first(training: Training, pair: Pair, turn: int) -> ReplayedPair | None:
    """The pair the other way round, where that shows that the training fails on the first data set and not on the second, of
    equal releases; None where it fails for another reason."""
    try:
        replayed = replay_pair(training, pair.reversed(), turn)
    except Exception:  # it fails on both: whoever asks raises what it met
        return None
    return replayed if any(finding.kind == "failure" for finding in replayed.findings) else None


def _once_more(training: Training, pair: Pair, turn: int) -> ReplayedPair | None:
    """The pair replayed again: what fails once, and not again, may be chance (a full disk, a timeout)."""
    try:
        return replay_pair(training, pair, turn)
    except _OtherRandomnessError:
        raise
    except Exception:  # whoever asks raises what it met
        return None


def _run(training: Training, data: Any, source: Recorder | Forced) -> Any:
    """What leaves a training whose models and data sets draw for each record what they drew for it in the run that it is compared
    with."""
    with aligned(source.names, lambda: len(source.recording.releases)):
        return training.run(data, source)


def _refuse_other_randomness(training: Training, pair: Pair) -> None:
    """The same records, releases and draws must give the same queries: otherwise nothing can be compared."""
    with unlogged():
        recorder = Recorder()
        try:
            left = leaving(_run(training, pair.first, recorder))
        except Exception:
            return  # met again, and reported or raised, where the pair is replayed
        reference = recorder.recording
        if not reference.releases:
            raise ValueError(
                "The training made no release through the source that it was given: nothing can be replayed. "
                "Open its channel by Channel.open(source)."
            )
        again = Forced(reference, np.arange(len(pair.first[1]), dtype=np.intp), np.array([], dtype=np.intp))
        try:
            left_again = leaving(_run(training, pair.first, again))
            same = len(reference.releases) == len(again.recording.releases)
        except UnpaidReleaseError:  # more releases than before
            same, left_again = False, left
        except Exception:
            return
    for a, b in zip(reference.releases, again.recording.releases, strict=False):
        # sums may come in another order (threads, devices): as far apart as their rounding
        close = 1e-9 * a.sensitivity + 16 * a.precision * float(np.linalg.norm(a.query))
        same = same and a.query.shape == b.query.shape and float(np.linalg.norm(a.query - b.query)) <= close
    if not same:
        raise _OtherRandomnessError(_RANDOM.format("query"))
    if not _equal(left, left_again, rounding=True):
        raise _OtherRandomnessError(_RANDOM.format("output"))


def replay_pair(training: Training, pair: Pair, turn: int = 0) -> ReplayedPair:
    """One direction of one pair. `turn` numbers the patterns of draws by which the records in question take part, where there are
    several: `Draw.takes_part` and `Draw.takes_part_at_times`."""
    findings: list[Finding] = []
    with unlogged() as log:
        try:
            recorder = Recorder()
            _run(training, pair.first, recorder)
            charged = Composed(tuple(charge.event for charge in log.charges()))
            again = Recorder()
            _run(training, pair.first, again)
        except UnpaidReleaseError as error:
            return ReplayedPair({}, (Finding("unpaid", f"a release was not paid for ({error})"),))
    if leaves(charged) != leaves(training.event):
        findings.append(Finding("charge", f"it charged {charged}, the certificate states {training.event}"))
    made = recorder.recording
    findings += unpaid(made, training.event)
    moved: dict[str, float] = {}
    for number, there in enumerate(_patterns(made, turn)):
        ratios, more = _compared(training, pair, made, there, minimisers=number == 0)
        raise_to(moved, ratios)
        known = {finding.kind for finding in findings} if number else set()
        findings += [finding for finding in more if finding.kind not in known]
    noise = tuple(NoiseSeen.of(run.recording) for run in (recorder, again))
    draws = tuple(tuple(run.recording.drawn) for run in (recorder, again))
    tossed = sum(len(run.recording.thinned) for run in (recorder, again))
    return ReplayedPair(moved, tuple(findings), noise, draws, tossed)


def _patterns(made: Recording, turn: int) -> list[list[bool]]:
    """In which draws the records in which data sets differ are put: as often as they may be, which is the worst case; and, where
    releases are charged as sampled, in some draws only. From those that a record is not in, it must not leave."""
    often = [item.draw.takes_part(item.step, turn) for item in made.drawn]
    if all(owner is None for owner in made.draws_of_releases()[0]):
        return [often]
    if len(made.drawn) == 1 and made.drawn[0].draw.period == 1:
        return [often, [False]]
    return [often, [item.draw.takes_part_at_times(item.step, number, turn) for number, item in enumerate(made.drawn)]]


def _compared(
    training: Training, pair: Pair, made: Recording, there: list[bool], *, minimisers: bool
) -> tuple[dict[str, float], list[Finding]]:
    """Compare the queries of the two data sets, whose differing records are in those draws that `there` selects."""
    differ = np.union1d(np.flatnonzero(pair.index_map < 0), pair.changed).astype(np.intp)
    drawn = [
        replace(item, included=item.draw.forced(item.included, differ, inside, spare=len(pair.extra)))
        for item, inside in zip(made.drawn, there, strict=True)
    ]
    reference = replace(made, drawn=drawn)
    everyone = np.arange(len(pair.first[1]), dtype=np.intp)
    nobody = np.array([], dtype=np.intp)

    def run(log: SpendLog, data: Any, index_map: NDArray[np.intp], extra: NDArray[np.intp]) -> _Run:
        source = Forced(reference, index_map, extra, differ, there)
        with _warnings_after_charge(log) as warned:
            left = leaving(_run(training, data, source))
        return source, left, warned

    def both_again() -> list[_Run]:
        again = [on_first(), on_second()]
        for each in again:
            if isinstance(each, Exception):
                raise each
        return [each for each in again if not isinstance(each, Exception)]

    def on_first() -> _Run:
        with unlogged() as log:
            return run(log, pair.first, everyone, nobody)

    def on_second() -> _Run | Exception:
        """The run, or its failure after the charge: an error before it speaks to the data holder alone."""
        with unlogged() as log:
            try:
                return run(log, pair.second, pair.index_map, pair.extra)
            except UnpaidReleaseError:
                raise
            except Exception as error:
                if not log.charges():
                    raise
                return error

    try:
        first, second = on_first(), on_second()
        for _ in range(_AGAIN):  # what fails once may be chance
            if isinstance(second, Exception):
                first, second = on_first(), on_second()
    except UnpaidReleaseError as error:
        return {}, [Finding("releases", f"the neighbour makes other releases ({error})")]
    if isinstance(second, Exception):
        text = "the run fails after the charge on one of two neighbours, though all releases are the same"
        return {}, [Finding("failure", f"{text} ({type(second).__name__}: {second})")]
    return _differences(training, pair, made, there, (first, second), both_again, minimisers=minimisers)


def _differences(
    training: Training,
    pair: Pair,
    made: Recording,
    there: list[bool],
    runs: tuple[_Run, _Run],
    both_again: Callable[[], list[_Run]],
    *,
    minimisers: bool,
) -> tuple[dict[str, float], list[Finding]]:
    """The differences between two runs with the same releases, as movements by kind and as findings.

    They are looked for in the queries, in what the runs return, and in their warnings.
    """
    findings: list[Finding] = []
    (same, one, mine_warned), (forced, other, theirs_warned) = runs
    named = training.minimisations if minimisers else None
    mine, theirs = (
        [] if named is None else named(data, run.recording) for data, run in ((pair.first, same), (pair.second, forced))
    )
    solved = {item.first_release + 1 for item in mine if item.mechanism.minimiser == 1}
    together: dict[str, float] = {}
    joint: set[int] = set()
    for door, event in charged_at_doors(made, training.event):
        ratios, more, numbers = moved_together(same.recording.at(door), forced.recording.at(door), event)
        raise_to(together, ratios)
        findings += more
        joint |= {same.recording.places(door)[number] for number in numbers}
    moved, more = movements(same.recording, forced.recording, solved, joint)
    raise_to(moved, together)
    findings += more
    for door, event in charged_at_doors(made, training.event):
        findings += overspent(same.recording.at(door), forced.recording.at(door), event)
        findings += used_more_often(same.recording.at(door), forced.recording.at(door), event)
    findings += in_several_parts(same.recording, forced.recording, training.event)
    findings += moved_undrawn(same.recording, forced.recording, there)
    if _leaks(one, other, lambda: [left for _, left, _ in both_again()]):
        text = "what leaves differs though all releases are the same: it depends on records without noise"
        findings.append(Finding("leak", text))
    if mine_warned != theirs_warned and [warned for *_, warned in both_again()] == [mine_warned, theirs_warned]:
        # not of a library that warns once a process
        text = "the run warns after the charge on one of two neighbours, though all releases are the same"
        findings.append(Finding("warning", f"{text} ({min(mine_warned ^ theirs_warned)})"))
    for a, b in zip(mine, theirs, strict=True):
        ratios, more = minimiser_findings(a, b, same.recording, forced.recording)
        findings += more
        raise_to(moved, ratios)
        for kind in (GRADIENT, LOG_DETERMINANT):
            if ratios.get(kind, 0.0) > 1 + ROUNDING:
                findings.append(Finding("movement", f"the {kind} moved by {ratios[kind]:.6g} times what is charged"))
    return moved, findings


def _leaks(one: list[Any], other: list[Any], both_again: Callable[[], list[list[Any]]]) -> bool:
    """Whether what leaves on two neighbours differs, each time alike. ValueError for what differs on equal data, too."""
    if _equal(one, other):
        return False
    digits = _equal(one, other, rounding=True)  # the last ones alone
    for _ in range(_AGAIN):
        for before, again in zip((one, other), both_again(), strict=True):
            if _equal(before, again, rounding=not digits):
                continue
            if digits:  # sums of several threads may come in another order
                return False
            raise _OtherRandomnessError(_RANDOM.format("output"))
    return True


@contextmanager
def _warnings_after_charge(log: SpendLog) -> Iterator[set[str]]:
    """The warnings of a run after its charge, which are an output; those before it speak to the data holder alone. All of them
    are shown as they would have been."""
    after: set[str] = set()
    shown: list[tuple[Warning, type[Warning], str, int]] = []

    def note(message: Warning, category: type[Warning], filename: str, line: int, *rest: Any) -> None:
        shown.append((message, category, filename, line))
        if log.charges():
            after.add(f"{category.__name__}: {message}")

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = note  # pyright: ignore[reportAttributeAccessIssue] - it is told a Warning
        yield after
    for each in shown:
        warnings.warn_explicit(*each)


def _equal(first: list[Any], second: list[Any], *, rounding: bool = False) -> bool:
    """Whether two runs gave the same, to the last digit, or up to `rounding`."""

    def same(a: Any, b: Any) -> bool:
        if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
            if rounding:
                return a.shape == b.shape and np.allclose(a, b, rtol=1e-9, atol=1e-12, equal_nan=True)
            return np.array_equal(a, b, equal_nan=True)
        return type(a) is type(b) and a == b

    return len(first) == len(second) and all(same(a, b) for a, b in zip(first, second, strict=True))
