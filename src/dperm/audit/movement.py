"""How far a record moves what a run asks, and where it may move nothing: the queries of two runs compared."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from dperm._types import Array
from dperm.audit.noise import Finding
from dperm.audit.paid import splits
from dperm.audit.recording import Recording, ReleaseRecord
from dperm.privacy import Event, Relation
from dperm.privacy.events import BoundedSquaresGaussian, CyclicSampled, HiddenIterates, RandomStop, leaves, relation_of

ROUNDING = 1e-7  # relative: queries are sums in floating point


def moved_undrawn(first: Recording, second: Recording, there: Sequence[bool]) -> list[Finding]:
    """Releases that are charged for the records of one draw, and that a record moves which is not in it."""
    owners, _ = first.draws_of_releases()
    for number, (a, b, owner) in enumerate(zip(first.releases, second.releases, owners, strict=False)):
        if owner is None or a.query.shape != b.query.shape:
            continue
        drawn = first.drawn[owner]
        if any(there[owner - min(drawn.draw.reach - 1, drawn.step) : owner + 1]):  # of the draws of one call
            continue
        movement, rounding = _movement(a, b)
        grid = np.sqrt(a.query.size) * a.step / a.sensitivity  # sums in another order may be rounded to its next multiple
        if not movement <= rounding + grid:
            text = f"release {number + 1} is charged for the records of a draw, and one that is not in it moved it"
            return [Finding("draws", f"{text} by {movement:.3g} times its sensitivity")]
    return []


def movements(
    first: Recording, second: Recording, solved: set[int], together: set[int]
) -> tuple[dict[str, float], list[Finding]]:
    """The largest movement of each kind, but for the releases in `solved`: minimisers of a perturbed objective move with its
    linear term held, and are checked by `minimiser_findings`. Releases that are charged `together` are refuted here where one by
    itself moves too far, and their movement is that of all of them: see `moved_together`."""
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
        if number not in together:
            raise_to(moved, {a.what: movement})
    return moved, findings


def moved_together(first: Recording, second: Recording, event: Event) -> tuple[dict[str, float], list[Finding], set[int]]:
    """Releases that are charged for what a record moves in several of them, in squares: how far it does, by kind, what is beyond
    the charge, and the numbers of these releases.

    With cyclic sampling the steps from each in which a record's group has its turn until its next turn are charged together;
    nobody says which group it is, in the draws of one call, so that a record moved too much where it did for every one.
    """
    moved: dict[str, float] = {}
    findings: list[Finding] = []
    numbers: set[int] = set()
    for mine, most_of in _charged_together(first, event):
        same = [number for number in mine if first.releases[number].query.shape == second.releases[number].query.shape]
        if not same:
            continue
        numbers.update(same)
        squares = np.array([_square(first.releases[number], second.releases[number]) for number in same])
        most, what = most_of(squares), first.releases[same[0]].what
        raise_to(moved, {what: math.sqrt(most) if most < np.inf else np.inf})
        if not most <= 1 + ROUNDING:
            finding = Finding("movement", f"queries moved by {math.sqrt(most):.6g} times their sensitivity ({what})")
            findings += [] if findings else [finding]
    return moved, findings, numbers


def _charged_together(first: Recording, event: Event) -> Iterator[tuple[list[int], Callable[[Array], float]]]:
    """The numbers of releases that are charged together, run by run, and what their squared movements come to, of 1 that is
    charged."""
    owners, _ = first.draws_of_releases()
    gaussian = [(number, item.noise / item.sensitivity) for number, item in enumerate(first.releases) if item.kind == "gaussian"]
    fixed: dict[float, list[tuple[BoundedSquaresGaussian, int]]] = {}
    for leaf, count in leaves(event).items():
        if isinstance(leaf, CyclicSampled):
            calls: dict[int | None, list[int]] = {}  # each with groups of its own
            for number, noise in gaussian:
                owner = owners[number]
                drawn = None if owner is None else first.drawn[owner]
                if abs(noise / leaf.event.noise_multiplier - 1) <= 1e-9 and (
                    drawn is None or drawn.draw.key == leaf.pays_for.draw
                ):
                    calls.setdefault(None if drawn is None else drawn.call, []).append(number)
            for mine in calls.values():
                yield mine, functools.partial(_most_in_a_round, groups=leaf.groups)
        elif isinstance(leaf, BoundedSquaresGaussian) and leaf.full_steps <= 1:
            fixed.setdefault(leaf.noise_multiplier, []).append((leaf, count))
    for noise, alike in fixed.items():
        mine = [number for number, each in gaussian if abs(each / noise - 1) <= 1e-9]
        leaf, count = alike[0]
        if len(alike) == 1 and len(mine) == count * leaf.steps:  # one run after the other
            for start in range(0, len(mine), leaf.steps):
                yield mine[start : start + leaf.steps], functools.partial(_share, paid=leaf.full_steps)
        else:
            yield mine, functools.partial(_share, paid=sum(leaf.full_steps * count for leaf, count in alike))


def _most_in_a_round(squares: Array, groups: int) -> float:
    """The largest sum from one turn of a group to the next, for the group for which it is least."""
    squares = np.concatenate([np.zeros(groups - 1), squares])
    turns = [squares[turn:] for turn in range(groups)]
    return min(float(np.add.reduceat(steps, np.arange(0, len(steps), groups)).max()) for steps in turns)


def _share(squares: Array, paid: float) -> float:
    return float(squares.sum()) / paid


def _square(a: ReleaseRecord, b: ReleaseRecord) -> float:
    return float(np.sum(np.square(a.query - b.query))) / a.sensitivity**2


def _movement(a: ReleaseRecord, b: ReleaseRecord) -> tuple[float, float]:
    """The distance of two queries of one shape, in sensitivities, and the part of it that may be rounding."""
    sensitivity = min(a.sensitivity, b.sensitivity)
    # scores of a choice move one by one, vectors as a whole
    movement = float(np.linalg.norm(a.query - b.query, ord=np.inf if a.kind == "choice" else None)) / sensitivity
    movement = movement if np.isfinite(movement) else np.inf  # a query that is no number on one side, or on both
    # sums in floating point differ by their rounding, which the certificate leaves out: it grows with the sum
    return movement, ROUNDING + 4 * a.precision * float(np.linalg.norm(np.nan_to_num(a.query))) / sensitivity


def overspent(first: Recording, second: Recording, event: Event) -> list[Finding]:
    """Records that moved releases further in all than an individual filter lets them."""
    pairs = list(zip(first.releases, second.releases, strict=False))
    findings: list[Finding] = []
    for leaf, count in leaves(event).items():
        if not isinstance(leaf, BoundedSquaresGaussian) or leaf.full_steps <= 1:  # see `moved_together`
            continue
        mine = [
            (a, b) for a, b in pairs if a.kind == "gaussian" and abs(a.noise / a.sensitivity / leaf.noise_multiplier - 1) <= 1e-9
        ]
        moved = sum(float(np.sum(np.square(a.query - b.query))) / a.sensitivity**2 for a, b in mine)
        if not moved <= count * leaf.full_steps * (1 + ROUNDING) + ROUNDING:
            text = f"queries moved by {moved:.6g} squared sensitivities in all, a record may spend {count * leaf.full_steps:.6g}"
            findings.append(Finding("individual budget", text))
    return findings


def used_more_often(first: Recording, second: Recording, event: Event) -> list[Finding]:
    """Records that move more hidden steps than one in each pass, or another one than in the pass before."""
    hidden = [leaf for leaf in leaves(event) if isinstance(leaf, HiddenIterates | RandomStop)]
    moved: list[bool] = []
    for a, b in zip(first.releases, second.releases, strict=False):
        noise = a.noise / a.sensitivity
        if a.kind == "hidden" or any(abs(noise / leaf.noise_multiplier - 1) <= 1e-9 for leaf in hidden):
            moved.append(float(np.linalg.norm(a.query - b.query)) > ROUNDING * a.sensitivity)
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


def in_several_parts(first: Recording, second: Recording, event: Event) -> list[Finding]:
    """Records that move releases of more parts of a split than a record may lie in: one, or two where it is replaced."""
    allowed = 2 if relation_of(event) is Relation.REPLACE_ONE else 1
    pairs = zip(first.releases, second.releases, strict=False)
    moved = {
        a.door
        for a, b in pairs
        if a.query.shape != b.query.shape or not np.linalg.norm(a.query - b.query) <= ROUNDING * a.sensitivity
    }
    for split in splits(first, event):
        several = sum(door in moved for door, _ in split)
        if several > allowed:
            return [Finding("parts", f"a record moved releases of {several} parts, and may lie in {allowed} of them")]
    return []


def raise_to(largest: dict[str, float], others: Mapping[str, float]) -> None:
    """Bring `largest` up to the larger of both, kind by kind."""
    for kind, value in others.items():
        largest[kind] = max(largest.get(kind, 0.0), value)
