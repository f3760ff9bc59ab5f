"""Replay: run a training on D, then on a neighbour with D's releases and draws fed back, and compare every query.

Fast, and as good as deterministic. Free-running neighbours drift apart and would refute falsely; teacher-forced ones see
the same θ before every query, so that any difference is the neighbour's (cf. Re:cord-play, 2026).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import chdtr, gammainc

from dperm.audit.pairs import Pair
from dperm.audit.result import AuditResult, finite
from dperm.audit.training import Minimisation, Training, leaving, unlogged
from dperm.mechanisms import ObjectivePerturbation
from dperm.privacy import (
    Event,
    Forced,
    Gaussian,
    ObjectivePerturbationEvent,
    PoissonSampled,
    PureDP,
    Recorder,
    Recording,
    Relation,
    UnpaidReleaseError,
)
from dperm.privacy.events import ApproximateDP, leaves

__all__ = ["Finding", "ReplayedPair", "replay", "replay_pair"]

Array = NDArray[np.float64]

_ROUNDING = 1e-7  # relative: queries are sums in floating point (a network's in single precision: `_ROUNDING_SINGLE`)
_ROUNDING_SINGLE = 2e-5
_SAME_NOISE = 1e-5  # two noise vectors that agree to this are one
_SURE = 1e-9  # chance of a false alarm of the test of the noise's size


@dataclass(frozen=True)
class Finding:
    """What should not be; `kind` is one word or two, the same for the same defect on all pairs."""

    kind: str
    text: str


@dataclass(frozen=True)
class ReplayedPair:
    """`movement` is the largest ‖q(D) − q(D')‖ ÷ sensitivity of a release."""

    movement: float
    findings: tuple[Finding, ...]
    recordings: tuple[Recording, ...] = ()  # of two independent runs, for what their noise shows


def replay(
    training: Training,
    pairs: Sequence[Pair] | None = None,
    *,
    progress: Callable[[int, int], None] | None = None,
) -> AuditResult:
    """Replay `training` over neighbours (None: the worst cases it brings along), each in both directions.

    Refutes a query that moves by more than its sensitivity; sensitivities or noise levels that depend on records; outputs
    that depend on records though all releases were equal; releases that the certificate's event does not pay for; noise
    smaller than stated, or used twice; draws that were not made at the rate charged; minimisers further from the minimum
    than assumed. Raises ValueError without neighbours.
    """
    pairs = list(training.replay_pairs if pairs is None else pairs)
    if not pairs:
        raise ValueError("Expected at least one pair of neighbouring data sets to replay.")
    both = [side for pair in pairs for side in (pair, pair.reversed())]
    largest = 0.0
    findings: dict[str, list[str]] = {}
    recordings: list[Recording] = []
    for number, pair in enumerate(both):
        found = replay_pair(training, pair)
        largest = max(largest, found.movement)
        recordings += found.recordings
        for finding in found.findings:
            findings.setdefault(finding.kind, []).append(f"on {pair.name}, {finding.text}")
        if progress is not None:
            progress(number + 1, len(both))
    for finding in _noise_findings(recordings):
        findings.setdefault(finding.kind, []).append(finding.text)
    return AuditResult(
        attack="replay",
        mechanism=training.name,
        verdict="refuted" if findings else "consistent",
        delta=training.certificate.delta,
        claimed_epsilon=training.certificate.epsilon,
        trials=len(both),
        findings=tuple(
            texts[0] + (f" (and on {len(texts) - 1} other pairs)" if len(texts) > 1 else "") for texts in findings.values()
        ),
        details={"largest_movement": finite(largest), "pairs": [pair.name for pair in pairs], "kinds": list(findings)},
    )


def replay_pair(training: Training, pair: Pair) -> ReplayedPair:
    """One direction of one pair."""
    findings: list[Finding] = []
    lost = np.flatnonzero(pair.index_map < 0)
    with unlogged():
        try:
            recorder = Recorder()
            training.run(pair.first, recorder)
            again = Recorder()
            training.run(pair.first, again)
        except UnpaidReleaseError as error:
            return ReplayedPair(np.inf, (Finding("unpaid", f"a release was not paid for ({error})"),))
        findings += _unpaid(recorder.recording, training.event)
        # The record that only one data set has is drawn in every step: the worst case, and the same draws for both.
        reference = replace(recorder.recording, inclusions=list(recorder.recording.inclusions))
        for step, included in enumerate(reference.inclusions):
            reference.inclusions[step] = np.union1d(included, lost).astype(np.intp)
        everyone = np.arange(len(pair.first[1]), dtype=np.intp)
        try:
            same = Forced(reference, everyone, np.array([], dtype=np.intp))
            one = training.run(pair.first, same)
            forced = Forced(reference, pair.index_map, pair.extra)
            other = training.run(pair.second, forced)
        except UnpaidReleaseError as error:
            return ReplayedPair(np.inf, (*findings, Finding("releases", f"the neighbour makes other releases ({error})")))
    moved, more = _movements(same.recording, forced.recording)
    findings += more
    if not _equal(leaving(one), leaving(other)):
        text = "what leaves differs though all releases are the same: it depends on records without noise"
        findings.append(Finding("leak", text))
    if training.minimisations is not None:
        mine = training.minimisations(pair.first, same.recording)
        theirs = training.minimisations(pair.second, forced.recording)
        for a, b in zip(mine, theirs, strict=True):
            ratio, more = _minimiser_findings(a, b, same.recording, forced.recording)
            moved = max(moved, ratio)
            findings += more
    if moved > 1 + _tolerance(same.recording):
        findings.append(Finding("movement", f"a query moved by {moved:.4g} times its sensitivity"))
    return ReplayedPair(moved, tuple(findings), (recorder.recording, again.recording))


def _tolerance(recording: Recording) -> float:
    single = any(np.array_equal(item.query, item.query.astype(np.float32)) and item.query.any() for item in recording.releases)
    return _ROUNDING_SINGLE if single else _ROUNDING


def _movements(first: Recording, second: Recording) -> tuple[float, list[Finding]]:
    if len(first.releases) != len(second.releases):
        return np.inf, [Finding("releases", f"{len(first.releases)} releases became {len(second.releases)}")]
    findings: list[Finding] = []
    moved = 0.0
    solved = False  # the release after an objective's linear term is a minimiser: checked by `_minimiser_findings`
    for number, (a, b) in enumerate(zip(first.releases, second.releases, strict=True), 1):
        if a.query.shape != b.query.shape:
            findings.append(Finding("releases", f"release {number} has another length"))
            continue
        if max(abs(a.sensitivity - b.sensitivity) / a.sensitivity, abs(a.noise - b.noise) / a.noise) > 1e-9:
            text = (
                f"the sensitivity or noise of release {number} depends on records ({a.sensitivity:.6g}, {a.noise:.6g} "
                f"became {b.sensitivity:.6g}, {b.noise:.6g})"
            )
            findings.append(Finding("sensitivity", text))
        if not solved:
            moved = max(moved, float(np.linalg.norm(a.query - b.query)) / min(a.sensitivity, b.sensitivity))
        solved = a.kind == "objective"
    return moved, findings


def _equal(first: list[Array], second: list[Array]) -> bool:
    return len(first) == len(second) and all(
        a.shape == b.shape and np.allclose(a, b, rtol=1e-9, atol=1e-12, equal_nan=True)
        for a, b in zip(first, second, strict=True)
    )


def _noise_findings(recordings: Sequence[Recording]) -> list[Finding]:
    """The noise of independent runs: as large as stated, and never the same twice."""
    findings: list[Finding] = []
    releases = [item for recording in recordings for item in recording.releases]
    vectors = [(item.released - item.query).ravel() / item.noise for item in releases if item.kind != "pure"]
    pure = [(item.released - item.query).ravel() * (item.noise / item.sensitivity) for item in releases if item.kind == "pure"]
    if vectors:
        everything = np.concatenate(vectors)
        square = float(everything @ everything)
        # chance of normals this short: tiny only if they are not what was stated
        if chdtr(len(everything), square) < _SURE:
            ratio = np.sqrt(square / len(everything))
            text = f"its noise has {ratio:.3g} of the standard deviation stated ({len(everything)} numbers)"
            findings.append(Finding("noise", text))
    if pure:
        # the length of exp(−ε‖b‖/Δ) noise in d dimensions is Gamma(d)
        dimensions, length = sum(vector.size for vector in pure), sum(float(np.linalg.norm(vector)) for vector in pure)
        if gammainc(dimensions, length) < _SURE:
            text = f"its noise has {length / dimensions:.3g} of the length stated ({len(pure)} releases)"
            findings.append(Finding("noise", text))
    heads = np.array([vector[:3] for vector in (*vectors, *pure) if vector.size >= 3])
    if len(heads) > 1:
        order = np.argsort(heads[:, 0])
        for i, j in itertools.pairwise(order):
            if np.allclose(heads[i], heads[j], rtol=0, atol=_SAME_NOISE):
                findings.append(Finding("repeated noise", "the same noise is used twice"))
                break
    return findings


def _unpaid(recording: Recording, event: Event) -> list[Finding]:
    """Releases that the certificate's event does not hold; an (ε, δ) promise pays for what it names elsewhere."""
    left: dict[tuple[str, float, float | None], int] = {}  # kind, noise and sampling rate → releases paid for
    for leaf, count in leaves(event).items():
        if isinstance(leaf, ApproximateDP):
            return []  # chosen after a release: the channel checks it against the promise
        if isinstance(leaf, PoissonSampled) and isinstance(leaf.event, Gaussian):
            left["noise", leaf.event.noise_multiplier, leaf.rate] = count
        elif isinstance(leaf, Gaussian):
            left["noise", leaf.noise_multiplier, None] = count
        elif isinstance(leaf, ObjectivePerturbationEvent):
            left["noise", leaf.noise_std / leaf.lipschitz, None] = count
        elif isinstance(leaf, PureDP):
            left["pure", leaf.epsilon, None] = count
    sampled: list[float] = []
    for item in recording.releases:
        kind, noise = ("pure", item.noise) if item.kind == "pure" else ("noise", item.noise / item.sensitivity)
        paid = next(
            (key for key, count in left.items() if count and key[0] == kind and abs(noise - key[1]) <= 1e-9 * key[1]), None
        )
        if paid is None:
            # a pure charge may have bought something else within it (`Channel.allow`): its pieces are checked there
            if any(key[0] == "pure" and count for key, count in left.items()):
                return []
            text = f"a release with noise {noise:.6g} times its sensitivity is not in the event that was charged"
            return [Finding("unpaid", text)]
        left[paid] -= 1
        if paid[2] is not None:
            sampled.append(paid[2])
    drawn = recording.rates
    if len(sampled) > len(drawn) or any(abs(a - b) > 1e-9 * a for a, b in zip(sampled, drawn, strict=False)):
        text = f"{len(sampled)} steps were charged as sampled at {max(sampled):g}, but records were drawn {len(drawn)} times"
        return [Finding("draws", text + (f", at {max(drawn):g}" if drawn else ""))]
    return []


# Minimisers


def _minimiser_findings(
    mine: Minimisation, theirs: Minimisation, first: Recording, second: Recording
) -> tuple[float, list[Finding]]:
    """What is assumed of minimisers, at those that were found.

    Both must be within the tolerance. For objective perturbation there is no query before the noise: the objectives'
    gradients at the released θ may differ by what b charges for, and their log-determinants by ln(1 + β/Λ).
    """
    mechanism, objective = mine.mechanism, mine.objective
    perturbs = isinstance(mechanism, ObjectivePerturbation)
    findings: list[Finding] = []
    modulus = mechanism.strong_convexity
    place = mine.first_release + (1 if perturbs else 0)
    for item, recording in ((mine, first), (theirs, second)):
        linear = recording.releases[mine.first_release].released if perturbs else 0.0
        theta = recording.releases[place].query
        _, gradient, _ = item.objective.with_strong_convexity(modulus).evaluate(theta, item.records)
        residual = _outside_the_cone(gradient + modulus * theta + linear, theta, objective.radius)
        if residual > mechanism.tolerance * (1 + 1e-6):
            limit = mechanism.tolerance
            text = f"its solver stopped at a gradient norm of {residual:.3g}, {limit:.3g} is what noise was made for"
            findings.append(Finding("solver", text))
    if not isinstance(mechanism, ObjectivePerturbation):
        return 0.0, findings
    theta = first.releases[place].query
    sides = [item.objective.evaluate(theta, item.records, hessian=True) for item in (mine, theirs)]
    moves = 1 if objective.relation is Relation.ADD_OR_REMOVE_ONE else 2
    charged = first.releases[mine.first_release].sensitivity * moves
    ratio = float(np.linalg.norm(sides[0][1] - sides[1][1])) / charged
    eye: Any = modulus * np.eye(objective.dimension)
    logdets = [float(np.linalg.slogdet(np.asarray(side[2]) + eye)[1]) for side in sides]
    allowed = float(np.log1p(objective.facts.smoothness / modulus))
    # the Hessian may be of single precision
    return max(ratio, abs(logdets[0] - logdets[1]) / (allowed * (1 + 1e-5) + 1e-6)), findings


def _outside_the_cone(gradient: Array, theta: Array, radius: float | None) -> float:
    """‖∇J + ν‖ for the best ν of the normal cone at θ: the gradient norm within a ball, its tangential part on the sphere."""
    norm = float(np.linalg.norm(theta))
    if radius is not None and norm >= radius * (1 - 1e-9):
        direction = theta / norm
        gradient = gradient - min(0.0, float(gradient @ direction)) * direction
    return float(np.linalg.norm(gradient))
