"""Replay: run a training on D, then on a neighbour with D's releases and draws fed back, and compare every query.

Fast, and as good as deterministic. Free-running neighbours drift apart and would refute falsely; teacher-forced ones see
the same θ before every query, so that any difference is the neighbour's (cf. Re:cord-play, 2026).
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dperm.audit.distinguish import same_relation
from dperm.audit.noise import Finding, NoiseSeen, noise_findings, visible_noise
from dperm.audit.outputs import leaving, unlogged
from dperm.audit.pairs import Pair
from dperm.audit.recording import DrawRecord, Forced, Recorder, Recording, ReleaseRecord
from dperm.audit.result import HALF, REPLAY, AuditResult, finite
from dperm.audit.training import Training
from dperm.mechanisms import Stage
from dperm.objectives import RegularisedSum
from dperm.privacy import Composed, Event, Relation, SelfComposed
from dperm.privacy.events import (
    Disjoint,
    HiddenIterates,
    IndividualGaussian,
    Paid,
    RandomStop,
    chosen_on_the_way,
    leaves,
    relation_of,
)
from dperm.privacy.filters import BudgetExceeded, filter_of
from dperm.release import SpendLog, UnpaidReleaseError
from dperm.release.alignment import aligned
from dperm.release.draws import Draw

__all__ = ["ReplayedPair", "replay", "replay_pair"]

Array = NDArray[np.float64]

#: trainings for one direction of one pair, at most: two that are recorded, and two for each of two patterns of draws
RUNS = 6
_ROUNDING = 1e-7  # relative: queries are sums in floating point
#: kinds of movement of objective perturbation
_GRADIENT, _LOG_DETERMINANT, _SOLVER = "gradient of the objective", "log-determinant", "error of the solver"


@dataclass(frozen=True)
class ReplayedPair:
    """`movement` is by kind of release the largest ‖q(D) − q(D')‖ ÷ sensitivity; `noise` is that of two runs on D by themselves.

    Kinds are those that `Channel.release` is told, and of objective perturbation, which has no query before its noise: "gradient
    of the objective" and "log-determinant", each ÷ what its event assumes of a record, and "error of the solver", ÷ γ.
    """

    movement: Mapping[str, float]
    findings: tuple[Finding, ...]
    noise: tuple[NoiseSeen, ...] = ()


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
    made at the rate charged, and releases of other records than those of their draw; minimisers further from the minimum than
    assumed. It says of kinds of release that no pair moved by half of their sensitivity, and of noise that could not be seen:
    `AuditResult.limits`. Raises ValueError without neighbours, for neighbours of another relation than the certificate's, and for
    a training that is random beyond its source (initial weights, generators that are not torch's).
    """
    pairs = list(training.replay_pairs if pairs is None else pairs)
    if not pairs:
        raise ValueError("Expected at least one pair of neighbouring data sets to replay: pass pairs.")
    for pair in pairs:
        same_relation(training.event, pair.relation)
    _refuse_other_randomness(training, pairs[0])
    both = [side for pair in pairs for side in ((pair, pair.reversed()) if both_ways else (pair,))]
    movement: dict[str, float] = {}
    findings: dict[str, list[str]] = {}
    seen: list[NoiseSeen] = []
    refused: list[str] = []
    for number, pair in enumerate(both):
        try:
            replayed = replay_pair(training, pair, number)
        except Exception as error:
            if any(_refused_unpaid(training, data) for data in (pair.first, pair.second)):
                refused.append(pair.name)
                continue
            failing = _fails_on_the_first(training, pair, number)
            if failing is None and isinstance(error, ValueError | TypeError | ArithmeticError):
                raise ValueError(f"The training failed on {pair.name}: {error}") from error
            if failing is None:
                raise
            replayed = failing
        _raise_to(movement, replayed.movement)
        seen += replayed.noise
        for finding in replayed.findings:
            findings.setdefault(finding.kind, []).append(f"on {pair.name}, {finding.text}")
        if progress is not None:
            progress(number + 1, len(both))
    if len(refused) == len(both):
        raise ValueError(f"The training refuses every pair before it is charged: {', '.join(dict.fromkeys(refused))}.")
    for finding in noise_findings(seen):
        findings.setdefault(finding.kind, []).append(finding.text)
    return AuditResult(
        attack=REPLAY,
        mechanism=training.name,
        verdict="refuted" if findings else "consistent",
        delta=training.certificate.delta,
        claimed_epsilon=training.certificate.epsilon,
        trials=len(both) - len(refused),
        findings=tuple(
            texts[0] + (f" (and on {len(texts) - 1} other pairs)" if len(texts) > 1 else "") for texts in findings.values()
        ),
        details={
            "movement": {kind: finite(most) for kind, most in movement.items()},
            "largest_movement": finite(max(movement.values(), default=0.0)),
            "pairs": [pair.name for pair in pairs],
            "kinds": list(findings),
            "refused": list(dict.fromkeys(refused)),
            # each residual is compared with γ itself
            "unseen": {kind: most for kind, most in movement.items() if most <= HALF * (1 + _ROUNDING) and kind != _SOLVER},
            "noise": visible_noise(seen),
            "hidden": _added_up(run.hidden for run in seen),
        },
    )


def _added_up(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for each in counts:
        total.update(each)
    return dict(total)


def _raise_to(largest: dict[str, float], others: Mapping[str, float]) -> None:
    """Bring `largest` up to the larger of both, kind by kind."""
    for kind, value in others.items():
        largest[kind] = max(largest.get(kind, 0.0), value)


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


def _run(training: Training, data: Any, source: Recorder | Forced) -> Any:
    """What leaves a training whose models and data sets draw for each record what they drew for it in the run that it is compared
    with."""
    with aligned(source.names):
        return training.run(data, source)


def _refuse_other_randomness(training: Training, pair: Pair) -> None:
    """The same records, releases and draws must give the same queries: otherwise nothing can be compared."""
    with unlogged():
        recorder = Recorder()
        try:
            _run(training, pair.first, recorder)
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
            _run(training, pair.first, again)
            same = len(reference.releases) == len(again.recording.releases)
        except UnpaidReleaseError:  # more releases than before
            same = False
    for a, b in zip(reference.releases, again.recording.releases, strict=False):
        # sums may come in another order (threads, devices): as far apart as their rounding
        close = 1e-9 * a.sensitivity + 16 * a.precision * float(np.linalg.norm(a.query))
        same = same and a.query.shape == b.query.shape and float(np.linalg.norm(a.query - b.query)) <= close
    if not same:
        raise ValueError(
            "The training is random beyond its source: the same records, noise and draws gave another query. Fix its initial "
            "weights, and let models and data sets draw by torch's own generators (an augmentation also by NumPy's global one)."
        )


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
    findings += _unpaid(made, training.event)
    moved: dict[str, float] = {}
    for number, there in enumerate(_patterns(made, turn)):
        ratios, more = _compared(training, pair, made, there, minimisers=number == 0)
        _raise_to(moved, ratios)
        known = {finding.kind for finding in findings} if number else set()
        findings += [finding for finding in more if finding.kind not in known]
    noise = tuple(NoiseSeen.of(run.recording) for run in (recorder, again))
    return ReplayedPair(moved, tuple(findings), noise)


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
    findings: list[Finding] = []
    differ = np.union1d(np.flatnonzero(pair.index_map < 0), pair.changed).astype(np.intp)
    drawn = [
        replace(item, included=item.draw.forced(item.included, differ, inside, spare=len(pair.extra)))
        for item, inside in zip(made.drawn, there, strict=True)
    ]
    reference = replace(made, drawn=drawn)
    everyone = np.arange(len(pair.first[1]), dtype=np.intp)
    nobody = np.array([], dtype=np.intp)

    def run(log: SpendLog, data: Any, index_map: NDArray[np.intp], extra: NDArray[np.intp]) -> tuple[Forced, list[Any], set[str]]:
        source = Forced(reference, index_map, extra, differ, there)
        with _warnings_after_charge(log) as warned:
            left = leaving(_run(training, data, source))
        return source, left, warned

    def both_again() -> list[tuple[Forced, list[Any], set[str]]]:
        with unlogged() as log:
            first = run(log, pair.first, everyone, nobody)
        with unlogged() as log:
            return [first, run(log, pair.second, pair.index_map, pair.extra)]

    try:
        with unlogged() as log:
            same, one, mine_warned = run(log, pair.first, everyone, nobody)
        with unlogged() as log:
            try:
                forced, other, theirs_warned = run(log, pair.second, pair.index_map, pair.extra)
            except UnpaidReleaseError:
                raise
            except Exception as error:
                if not log.charges():
                    raise  # an error before the charge speaks to the data holder alone
                text = "the run fails after the charge on one of two neighbours, though all releases are the same"
                return {}, [Finding("failure", f"{text} ({type(error).__name__}: {error})")]
    except UnpaidReleaseError as error:
        return {}, [Finding("releases", f"the neighbour makes other releases ({error})")]
    named = training.minimisations if minimisers else None
    mine, theirs = (
        [] if named is None else named(data, run.recording) for data, run in ((pair.first, same), (pair.second, forced))
    )
    solved = {item.first_release + 1 for item in mine if item.mechanism.minimiser == 1}
    moved, more = _movements(same.recording, forced.recording, solved)
    findings += more
    for door, event in _doors(made, training.event):
        findings += _overspent(same.recording.at(door), forced.recording.at(door), event)
        findings += _used_more_often(same.recording.at(door), forced.recording.at(door), event)
    findings += _in_several_parts(same.recording, forced.recording, training.event)
    findings += _moved_undrawn(same.recording, forced.recording, there)
    leaks = not _equal(one, other)
    if leaks and _equal(one, other, rounding=True):
        # the last digits alone: sums of several threads may come in another order, but then they do so on the same data, too
        (_, one_again, _), (_, other_again, _) = both_again()
        leaks = _equal(one, one_again) and _equal(other, other_again)
    if leaks:
        text = "what leaves differs though all releases are the same: it depends on records without noise"
        findings.append(Finding("leak", text))
    if mine_warned != theirs_warned and [warned for *_, warned in both_again()] == [mine_warned, theirs_warned]:
        # not of a library that warns once a process
        text = "the run warns after the charge on one of two neighbours, though all releases are the same"
        findings.append(Finding("warning", f"{text} ({min(mine_warned ^ theirs_warned)})"))
    for a, b in zip(mine, theirs, strict=True):
        ratios, more = _minimiser_findings(a, b, same.recording, forced.recording)
        findings += more
        _raise_to(moved, ratios)
        for kind in (_GRADIENT, _LOG_DETERMINANT):
            if ratios.get(kind, 0.0) > 1 + _ROUNDING:
                findings.append(Finding("movement", f"the {kind} moved by {ratios[kind]:.6g} times what is charged"))
    return moved, findings


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


def _moved_undrawn(first: Recording, second: Recording, there: Sequence[bool]) -> list[Finding]:
    """Releases that are charged for the records of one draw, and that a record moves which is not in it."""
    owners, _ = first.draws_of_releases()
    for number, (a, b, owner) in enumerate(zip(first.releases, second.releases, owners, strict=False)):
        if owner is None or there[owner] or a.query.shape != b.query.shape:
            continue
        movement, rounding = _movement(a, b)
        grid = np.sqrt(a.query.size) * a.step / a.sensitivity  # sums in another order may be rounded to its next multiple
        if not movement <= rounding + grid:
            text = f"release {number + 1} is charged for the records of one draw, and one that is not in it moved it"
            return [Finding("draws", f"{text} by {movement:.3g} times its sensitivity")]
    return []


def _movements(first: Recording, second: Recording, solved: set[int]) -> tuple[dict[str, float], list[Finding]]:
    """The largest movement of each kind, but for the releases in `solved`: minimisers of a perturbed objective move with its
    linear term held, and are checked by `_minimiser_findings`."""
    if len(first.releases) != len(second.releases):
        return {}, [Finding("releases", f"{len(first.releases)} releases became {len(second.releases)}")]
    findings: list[Finding] = []
    moved: dict[str, float] = {}
    largest = 1.0
    if any(item.kind == "objective" for item in first.releases) and not solved:
        raise ValueError("Objective perturbation is replayed with its mechanism: Training.of_mechanism, or of_estimator.")
    for number, (a, b) in enumerate(zip(first.releases, second.releases, strict=True)):
        if a.query.shape != b.query.shape:
            findings.append(Finding("releases", f"release {number + 1} has another length"))
            continue
        if max(abs(a.sensitivity - b.sensitivity) / a.sensitivity, abs(a.noise - b.noise) / a.noise) > 1e-9:
            text = (
                f"the sensitivity or noise of release {number + 1} depends on records ({a.sensitivity:.6g}, {a.noise:.6g} "
                f"became {b.sensitivity:.6g}, {b.noise:.6g})"
            )
            findings.append(Finding("sensitivity", text))
        if len(a.epsilons) != len(b.epsilons) or not np.allclose(a.epsilons, b.epsilons, rtol=1e-9, atol=0.0):
            text = f"the noise on the way of release {number + 1} depends on records"
            findings.append(Finding("sensitivity", text))
        if number in solved or a.kind == "objective":
            continue
        movement, rounding = _movement(a, b)
        if movement > 1 + rounding and movement > largest:
            largest = movement
            findings = [finding for finding in findings if finding.kind != "movement"]
            findings.append(Finding("movement", f"a query moved by {movement:.6g} times its sensitivity ({a.what})"))
        _raise_to(moved, {a.what: movement})
    return moved, findings


def _movement(a: ReleaseRecord, b: ReleaseRecord) -> tuple[float, float]:
    """The distance of two queries of one shape, in sensitivities, and the part of it that may be rounding."""
    sensitivity = min(a.sensitivity, b.sensitivity)
    # scores of a choice move one by one, vectors as a whole
    movement = float(np.linalg.norm(a.query - b.query, ord=np.inf if a.kind == "choice" else None)) / sensitivity
    movement = movement if np.isfinite(movement) else np.inf  # a query that is no number on one side, or on both
    # sums in floating point differ by their rounding, which the certificate leaves out: it grows with the sum
    return movement, _ROUNDING + 4 * a.precision * float(np.linalg.norm(np.nan_to_num(a.query))) / sensitivity


def _overspent(first: Recording, second: Recording, event: Event) -> list[Finding]:
    """Records that moved releases further in all than an individual filter lets them."""
    pairs = list(zip(first.releases, second.releases, strict=False))
    findings: list[Finding] = []
    for leaf, count in leaves(event).items():
        if not isinstance(leaf, IndividualGaussian):
            continue
        mine = [
            (a, b) for a, b in pairs if a.kind == "gaussian" and abs(a.noise / a.sensitivity / leaf.noise_multiplier - 1) <= 1e-9
        ]
        moved = sum(float(np.sum(np.square(a.query - b.query))) / a.sensitivity**2 for a, b in mine)
        if not moved <= count * leaf.full_steps * (1 + _ROUNDING) + _ROUNDING:
            text = f"queries moved by {moved:.6g} squared sensitivities in all, a record may spend {count * leaf.full_steps:.6g}"
            findings.append(Finding("individual budget", text))
    return findings


def _used_more_often(first: Recording, second: Recording, event: Event) -> list[Finding]:
    """Records that move more hidden steps than one in each pass, or another one than in the pass before."""
    hidden = [leaf for leaf in leaves(event) if isinstance(leaf, HiddenIterates | RandomStop)]
    moved: list[bool] = []
    for a, b in zip(first.releases, second.releases, strict=False):
        noise = a.noise / a.sensitivity
        if a.kind == "hidden" or any(abs(noise / leaf.noise_multiplier - 1) <= 1e-9 for leaf in hidden):
            moved.append(float(np.linalg.norm(a.query - b.query)) > _ROUNDING * a.sensitivity)
    if not hidden or not moved:
        return []
    leaf = hidden[0]
    if isinstance(leaf, RandomStop):
        allowed = leaves(event)[leaf]
        return (
            [Finding("hidden steps", f"a record moved {sum(moved)} steps, {allowed} are charged")] if sum(moved) > allowed else []
        )
    passes = [moved[start : start + leaf.batches] for start in range(0, len(moved), leaf.batches)]
    if any(sum(each) > 1 for each in passes):
        return [Finding("hidden steps", f"a record moved {max(map(sum, passes))} steps of a pass, one is charged")]
    runs = [passes[start : start + leaf.passes] for start in range(0, len(passes), leaf.passes)]
    if any(len({each.index(True) for each in run if any(each)}) > 1 for run in runs):
        return [
            Finding(
                "hidden steps", "a record moved one step of a pass, and another one of the next: the order is charged as fixed"
            )
        ]
    return []


def _in_several_parts(first: Recording, second: Recording, event: Event) -> list[Finding]:
    """Records that move releases of more parts of a split than a record may lie in: one, or two where it is replaced."""
    allowed = 2 if relation_of(event) is Relation.REPLACE_ONE else 1
    pairs = zip(first.releases, second.releases, strict=False)
    moved = {
        a.door
        for a, b in pairs
        if a.query.shape != b.query.shape or not np.linalg.norm(a.query - b.query) <= _ROUNDING * a.sensitivity
    }
    for split in _splits(first, event):
        several = sum(door in moved for door, _ in split)
        if several > allowed:
            return [Finding("parts", f"a record moved releases of {several} parts, and may lie in {allowed} of them")]
    return []


def _doors(recording: Recording, event: Event) -> list[tuple[int, Event]]:
    """What is charged for each door of a run: for all records, and for each part."""
    whole = [SelfComposed(leaf, count) for leaf, count in leaves(event).items() if not isinstance(leaf, Disjoint)]
    return [(0, Composed(tuple(whole))), *(door for split in _splits(recording, event) for door in split)]


def _splits(recording: Recording, event: Event) -> list[list[tuple[int, Event]]]:
    """The doors of each split of a run, in their order, and what is charged for each. Where parts of several unlike splits were
    charged, those that pay for what their doors let through."""
    taken = Composed((event, *(part for door, part in recording.parts if door == 0)))
    charged = {leaf: count for leaf, count in leaves(taken).items() if isinstance(leaf, Disjoint)}

    def from_door(first: int, left: Mapping[Disjoint, int]) -> list[list[tuple[int, Event]]] | None:
        if first > recording.doors:
            return []
        for leaf, count in left.items():
            split: list[tuple[int, Event]] = [*enumerate(leaf.parts, first)]
            if not count or (len(left) > 1 and any(_unpaid_at(recording.at(door), part) for door, part in split)):
                continue
            rest = from_door(first + len(split), {**left, leaf: count - 1})
            if rest is not None:
                return [split, *rest]
        return None

    return from_door(1, charged) or []


def _equal(first: list[Any], second: list[Any], *, rounding: bool = False) -> bool:
    """Whether two runs gave the same, to the last digit, or up to `rounding`."""

    def same(a: Any, b: Any) -> bool:
        if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
            if rounding:
                return a.shape == b.shape and np.allclose(a, b, rtol=1e-9, atol=1e-12, equal_nan=True)
            return np.array_equal(a, b, equal_nan=True)
        return type(a) is type(b) and a == b

    return len(first) == len(second) and all(same(a, b) for a, b in zip(first, second, strict=True))


def _unpaid(recording: Recording, event: Event) -> list[Finding]:
    """Releases that the certificate's event does not hold: of each door what is charged for it."""
    doors = _doors(recording, event)
    known = {door for door, _ in doors}
    if any(release.door not in known for release in recording.releases):
        return [Finding("unpaid", "a part of the records released what is not in the event that was charged for it")]
    return [finding for door, part in doors for finding in _unpaid_at(recording.at(door), part)]


def _unpaid_at(recording: Recording, event: Event) -> list[Finding]:
    """The same of what one door let through."""
    parts = tuple(part for _, part in recording.parts)
    if not chosen_on_the_way(event):
        return _beyond(recording, event)
    # what a filter was charged for: the parts that it took, which another filter of the same charge must take, too
    held = filter_of(event)
    assert held is not None
    try:
        for part in parts:
            held.charge(part)
    except BudgetExceeded as error:
        return [Finding("unpaid", f"the filter that was charged does not hold what was released: {error}")]
    return _beyond(recording, Composed(parts))


def _beyond(recording: Recording, event: Event) -> list[Finding]:
    """Releases and draws that `event`, whose parts are known, does not pay for."""
    left: Counter[Paid] = Counter()
    for leaf, count in leaves(event).items():
        if leaf.pays_for is not None:
            left[leaf.pays_for] += count * leaf.releases
    owners, unused = recording.draws_of_releases()
    for number, (item, owner) in enumerate(zip(recording.releases, owners, strict=True)):
        kind, noise = item.kind, item.noise if item.kind in ("pure", "threshold", "choice") else item.noise / item.sensitivity
        kinds = (kind, "hidden") if kind == "gaussian" else (kind,)  # of hidden steps the last is released like any other
        alike = [key for key, count in left.items() if count and key.kind in kinds and abs(noise - key.noise) <= 1e-9 * key.noise]
        drawn = None if owner is None else recording.drawn[owner].draw
        paid = next((key for key in alike if _drawn_as(key, drawn, item.sampling_rate)), None)
        if paid is None and alike:
            text = f"release {number + 1} was charged as sampled ({alike[0].draw}, at {alike[0].rate:g})"
            how = (
                "no draw was made for it"
                if drawn is None
                else f"its records were drawn otherwise ({drawn.key}, at {drawn.rate:g})"
            )
            return [Finding("draws", f"{text}, but {how}")]
        if paid is None:
            text = f"a release with noise {noise:.6g} times its sensitivity is not in the event that was charged"
            return [Finding("unpaid", text)]
        left[paid] -= 1
    return [*_unused_draws(recording, unused), *_drawn_twice(recording)]


def _drawn_as(paid: Paid, draw: Draw | None, rate: float) -> bool:
    """Whether a release that claims a rate, of the records of a draw (None: of all), is what was paid for."""
    if paid.rate >= 1 or rate >= 1 or draw is None:
        return paid.rate >= 1 and rate >= 1
    return draw.key == paid.draw and abs(draw.rate - paid.rate) <= 1e-9 * paid.rate


def _unused_draws(recording: Recording, unused: Sequence[int]) -> list[Finding]:
    """Calls for draws side by side, which made more of them than there are releases: a release may have seen several. One call
    alone may have been left early."""
    calls: dict[tuple[int, float], set[int]] = {}
    sampled = {(release.door, release.sampling_rate) for release in recording.releases}
    for item in map(recording.drawn.__getitem__, unused):
        calls.setdefault((item.door, item.draw.rate), set()).add(item.call)
    for (door, rate), several in calls.items():
        if len(several) > 1 and (door, rate) in sampled:
            drawn = sum((item.door, item.draw.rate) == (door, rate) for item in recording.drawn)
            made = sum((item.door, item.sampling_rate) == (door, rate) for item in recording.releases)
            return [
                Finding(
                    "draws", f"records were drawn {drawn} times at {rate:g} for {made} releases: one draw is charged for each"
                )
            ]
    return []


def _drawn_twice(recording: Recording) -> list[Finding]:
    """Records that are in several of the steps that are drawn, and charged, as one period."""
    periods: dict[tuple[int, int], list[DrawRecord]] = {}
    for item in recording.drawn:
        if item.draw.period > 1:
            periods.setdefault((item.call, item.step // item.draw.period), []).append(item)
    for period in periods.values():
        drawn = np.concatenate([item.included for item in period])
        if len(np.unique(drawn)) < len(drawn):
            text = f"a record was drawn twice in {period[0].draw.period} steps, which are charged for one"
            return [Finding("draws", text)]
    return []


# Minimisers


def _minimiser_findings(
    mine: Stage, theirs: Stage, first: Recording, second: Recording
) -> tuple[dict[str, float], list[Finding]]:
    """What is assumed of minimisers, at those that were found.

    Both must be within the tolerance. For objective perturbation there is no query before the noise: the objectives'
    gradients at the released θ may differ by what b charges for, and their log-determinants by ln(1 + β/Λ).
    """
    mechanism, objective = mine.mechanism, mine.objective
    perturbs = mechanism.minimiser == 1  # after the release of a linear term
    findings: list[Finding] = []
    ratios: dict[str, float] = {}
    place = mine.first_release + (mechanism.minimiser or 0)
    if not place < min(len(first.releases), len(second.releases)):
        return ratios, [Finding("releases", "a minimiser that is charged for was not released")]
    for item, recording in ((mine, first), (theirs, second)):
        linear = recording.releases[mine.first_release].released if perturbs else 0.0
        theta = recording.releases[place].query
        problem = RegularisedSum(item.objective, item.records, linear)
        # what was found was rounded to a grid since
        moved = recording.releases[place].step * np.sqrt(len(theta))
        gradient = problem.evaluate(theta, False)[1]
        residual = _outside_the_cone(gradient, theta, objective.radius, moved)
        rounded = (problem.curvature_bound + 2 * float(np.linalg.norm(gradient)) / (objective.radius or np.inf)) * moved
        limit = mechanism.residual(item.objective.facts)
        if perturbs:
            _raise_to(ratios, {_SOLVER: residual / limit})
        if residual > limit * (1 + 1e-6) + rounded:
            text = f"its solver stopped at a gradient norm of {residual:.3g}, {limit:.3g} is what noise was made for"
            findings.append(Finding("solver", text))
    theta = first.releases[place].query
    # with their regularisers: one that follows the records shows
    sides = [RegularisedSum(item.objective, item.records).evaluate(theta, hessian=True) for item in (mine, theirs)]
    for side in sides:
        curvatures = np.linalg.eigvalsh(np.asarray(side[2]))
        if curvatures[0] < objective.strong_convexity * (1 - 1e-5) - 1e-6 * curvatures[-1]:  # it may be of single precision
            text = f"what it minimises is curved by {curvatures[0]:.3g}, and {objective.strong_convexity:.3g} is charged for"
            findings.append(Finding("curvature", text))
    if not perturbs:
        return ratios, findings
    moves = 1 if objective.relation is Relation.ADD_OR_REMOVE_ONE else 2
    charged = first.releases[mine.first_release].sensitivity * moves
    _raise_to(ratios, {_GRADIENT: float(np.linalg.norm(sides[0][1] - sides[1][1])) / charged})
    logdets = [float(np.linalg.slogdet(np.asarray(side[2]))[1]) for side in sides]
    rank = objective.facts.person_rows or 1  # of a person's Hessian, whose trace is as bounded as a record's
    allowed = rank * float(np.log1p(objective.facts.smoothness / (rank * objective.strong_convexity)))
    # the Hessian may be of single precision
    _raise_to(ratios, {_LOG_DETERMINANT: abs(logdets[0] - logdets[1]) / (allowed * (1 + 1e-5) + 1e-6)})
    return ratios, findings


def _outside_the_cone(gradient: Array, theta: Array, radius: float | None, moved: float) -> float:
    """‖∇J + ν‖ for the best ν of the normal cone at θ: the gradient norm within a ball, its tangential part on the sphere. θ may
    have been `moved` so far since it was found."""
    norm = float(np.linalg.norm(theta))
    if radius is not None and norm >= radius * (1 - 1e-9) - moved:
        direction = theta / norm
        gradient = gradient - min(0.0, float(gradient @ direction)) * direction
    return float(np.linalg.norm(gradient))
