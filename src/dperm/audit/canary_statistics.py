"""What releases say of canaries, and what that says of a claim: the statistics of white-box audits, of any library's steps."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtrc, chdtr, ndtri

from dperm._types import Array
from dperm.audit.distinguish import compare_scores
from dperm.audit.inclusions import DrawsTested
from dperm.audit.recording import DrawRecord
from dperm.audit.result import WHITE_BOX, AuditResult, finite
from dperm.audit.statistics import Estimate
from dperm.privacy import (
    BoundedSquaresGaussian,
    Composed,
    CyclicSampled,
    Event,
    Gaussian,
    PoissonSampled,
    RandomAllocation,
    Relation,
    SampledWithoutReplacement,
    SelfComposed,
    TruncatedPoisson,
    epsilon,
)
from dperm.privacy.events import chosen_on_the_way
from dperm.release.draws import Draw, sampled_log_ratio

_SIGMAS = 6.0  # how far a normal statistic may be from its mean: one false alarm in 10⁹
_HIGH_SIGMAS = 8.0  # the same above the mean for sums of squares of counts, whose upper tail is heavier; the lower is lighter
_SURE = 1e-9  # chance of a false alarm of the tests of the noise's size and of the canaries' rate
_FEWEST = 500  # sums of fewer terms are not normal enough for that
_NOTHING = 1e-9  # of the noise stated: what is left where there is none is rounding
_GAMES = 40  # steps per world below which their rates prove nothing


@dataclass
class Watched:
    """One run's view of its canaries: `values` (steps, canaries) in units of the sensitivity, the noise multipliers
    (steps,) and sampling rates (steps,) claimed, who was drawn (steps, canaries), the indices of all records drawn for each step
    that draws, the noise multipliers of releases that are no steps (counts, sums of norms), the canaries' gradient norms
    (canaries,), None: all are far beyond the bound, and how records were drawn, None: as by Poisson sampling."""

    values: Array
    noise: Array
    drawn: NDArray[np.bool_]
    inclusions: list[NDArray[np.intp]]
    rates: Array
    others: tuple[float, ...] = ()
    lengths: Array | None = None
    draw: Draw | None = None

    @property
    def sampled(self) -> NDArray[np.bool_]:
        """(steps,) whether a step is of records that were drawn, not of all."""
        return self.rates < 1

    @property
    def event(self) -> Event:
        """What was released, as it happened to be chosen."""
        levels, counts = np.unique(np.stack([self.rates, self.noise]), axis=1, return_counts=True)
        steps = [
            SelfComposed(Gaussian(noise) if rate == 1 else PoissonSampled(rate, Gaussian(noise)), count)
            for rate, noise, count in zip(*levels.tolist(), counts.tolist(), strict=True)
        ]
        return Composed((*steps, *map(Gaussian, self.others)))

    def log_ratio(self, relation: Relation) -> Array:
        """(canaries,) ln of the likelihood of the run with the canary over the one without, if the claim is exact."""
        low, high = (0.0, 1.0) if relation is Relation.ADD_OR_REMOVE_ONE else (-0.5, 0.5)
        variance = (self.noise**2)[:, None]
        sides: list[Array] = []
        for shift in (low, high):
            there = (self.values**2 - (self.values - shift) ** 2) / (2 * variance)
            if self.draw is None or self.draw.period == 1:
                sides.append(sampled_log_ratio(there, self.rates))
            else:
                known = np.where(self.drawn, there, 0.0)[~self.sampled].sum(axis=0)
                sides.append(self.draw.log_ratio(there[self.sampled]) + known)
        return sides[1] - sides[0]


def judge(
    absent: list[Watched],
    present: list[Watched],
    *,
    event: Event,
    relation: Relation,
    size: int,
    delta: float,
    confidence: float,
    verdict_confidence: float,
    mechanism: str,
) -> AuditResult:
    """The audit of runs without (or with opposite) and with canaries; `size` counts all records, canaries included.

    `event` is what is claimed. The verdict's confidence is split over single steps and whole runs.
    """
    if not all(np.isfinite(run.values).all() for run in absent + present):
        raise ValueError("Expected finite releases, got some that are not: the training diverged, or a record was not finite.")
    part = 1 - (1 - verdict_confidence) / 2
    findings: list[str] = _length_findings(absent, present, relation)
    first, second = (steps.only(steps.longest) for steps in map(_Steps.of, (absent, present)))
    seen = second.only(second.drawn)
    base = first if relation is Relation.ADD_OR_REMOVE_ONE else first.only(first.drawn)
    ratio, error = _signal_ratio(base, seen)
    adaptive = chosen_on_the_way(event)
    if any(len(run.inclusions) != run.sampled.sum() for run in absent + present if run.sampled.any()):
        findings.append("steps released without drawing their records at the rate that was charged")
    else:
        findings += _weighted_draw_findings(present) if adaptive else _draw_findings(absent + present, size)
    findings += [*_noise_findings(absent + present), *_step_findings(base, seen, relation, delta, part)]
    if 0 < error < np.inf and (beyond := (ratio - 1) / error) > _SIGMAS:
        larger = f"a canary is {ratio:.3g} times as large against the noise as is claimed"
        findings.append(f"{larger} ({beyond:.0f} standard errors more)")
    scores = [np.concatenate([run.log_ratio(relation) for run in world]) for world in (absent, present)]
    whole = compare_scores(*scores, claim=event, delta=delta, confidence=confidence, verdict_confidence=part)
    findings += whole.findings
    return AuditResult(
        attack=WHITE_BOX,
        mechanism=mechanism,
        verdict="refuted" if findings else "consistent",
        delta=delta,
        claimed_epsilon=whole.claimed_epsilon,
        epsilon_lower=whole.epsilon_lower,
        confidence=confidence,
        verdict_confidence=verdict_confidence,
        # of single steps, of which a budget says nothing
        estimate=_estimated(present[0].event if adaptive else event, delta, ratio, error, confidence),
        trials=whole.trials,
        findings=tuple(findings),
        auc=whole.auc,
        curve=whole.curve,
        details={
            "runs": len(present),
            "allowed": whole.details["allowed"],
            "steps_with_canary": len(seen.values),
            "steps_without": len(base.values),
            "signal_to_claimed_signal": finite(ratio),
            "standard_error": finite(error),
        },
    )


def _estimated(event: Event, delta: float, ratio: float, error: float, confidence: float) -> Estimate | None:
    """ε by the signal of a step against its noise, `ratio` of what is claimed; None without noise, or with too few draws to
    tell."""
    if not 0 < error < np.inf:
        return None
    spread = float(ndtri(1 - (1 - confidence) / 2)) * error
    middle, low, high = (_epsilon_at(event, delta, value) for value in (ratio, ratio - spread, ratio + spread))
    return Estimate(middle, low, high, "noise against signal in each step")


# Single steps


class _Steps(NamedTuple):
    """Steps and canaries of several runs, flattened: the canary's value, the noise multiplier claimed, whether it was drawn."""

    values: Array
    noise: Array
    drawn: NDArray[np.bool_]
    longest: NDArray[np.bool_]  # the canary's gradient is far beyond the bound

    @classmethod
    def of(cls, runs: list[Watched]) -> _Steps:
        return cls(
            np.concatenate([run.values.ravel() for run in runs]),
            np.concatenate([np.repeat(run.noise, run.values.shape[1]) for run in runs]),
            np.concatenate([run.drawn.ravel() for run in runs]),
            np.concatenate([np.broadcast_to(_longest(run), run.values.shape).ravel() for run in runs]),
        )

    def only(self, which: NDArray[np.bool_]) -> _Steps:
        return _Steps(self.values[which], self.noise[which], self.drawn[which], self.longest[which])


def _longest(run: Watched) -> NDArray[np.bool_]:
    if run.lengths is None:
        return np.full(run.values.shape[1], True)
    return run.lengths >= run.lengths.max() * (1 - 1e-9)


def _length_findings(absent: list[Watched], present: list[Watched], relation: Relation) -> list[str]:
    """Canaries of one norm, by norms: none may be larger against the noise than is claimed."""
    lengths = present[0].lengths
    if lengths is None:
        return []
    bins = np.unique(np.floor(2 * np.log10(lengths)))
    for place in bins:
        which = np.floor(2 * np.log10(lengths)) == place
        sides: list[tuple[float, float]] = []
        for runs, drawn_only in ((absent, relation is not Relation.ADD_OR_REMOVE_ONE), (present, True)):
            values = np.concatenate([(run.values / run.noise[:, None] ** 2)[:, which].ravel() for run in runs])
            weights = np.concatenate([np.repeat(1 / run.noise**2, int(which.sum())) for run in runs])
            drawn = np.concatenate([run.drawn[:, which].ravel() for run in runs]) | (not drawn_only)
            sides.append((float(values[drawn].sum()), float(weights[drawn].sum())))
        (low, few), (high, many) = sides
        if min(few, many) == 0:
            continue
        beyond = (high / many - low / few - 1) / np.sqrt(1 / few + 1 / many)
        if beyond > _SIGMAS:
            typical = float(np.median(lengths[which]) / lengths.max() * 1e6)
            return [
                f"canaries with gradients of about {typical:.3g} times the bound add more than it ({beyond:.0f} standard errors "
                "more)"
            ]
    return []


def _signal_ratio(base: _Steps, seen: _Steps) -> tuple[float, float]:
    """The canary's size over the noise's, relative to what is claimed, and its standard error: 1 where the claim is exact."""
    if len(seen.values) < 2 or len(base.values) < 2:
        return np.nan, np.inf
    means = [float((part.values / part.noise**2).sum() / (1 / part.noise**2).sum()) for part in (base, seen)]
    residuals = np.concatenate([(part.values - mean) / part.noise for part, mean in zip((base, seen), means, strict=True)])
    scale = float(np.sqrt((residuals**2).sum() / (len(residuals) - 2)))
    if scale < _NOTHING:
        return np.inf, 0.0
    error = np.sqrt(sum(1 / (1 / part.noise**2).sum() for part in (base, seen)))
    ratio = (means[1] - means[0]) / scale
    # the scale's own error is that of a chi distribution
    return ratio, float(np.hypot(error, ratio / np.sqrt(2 * len(residuals))))


def _noise_findings(runs: list[Watched]) -> list[str]:
    """Steps whose noise is smaller than claimed: a few such steps drown in the mean.

    Within a step all canaries that were drawn say the same, but for the noise; those that were not say nothing else.
    """
    chances: list[float] = []
    for run in runs:
        scaled = run.values / run.noise[:, None]
        count = run.drawn.sum(axis=1)
        mean = np.where(run.drawn, scaled, 0.0).sum(axis=1) / np.maximum(count, 1)
        squares = ((scaled - np.where(run.drawn, mean[:, None], 0.0)) ** 2).sum(axis=1)
        freedom = run.drawn.shape[1] - (count > 0)
        chances += [float(chance) for chance in chdtr(freedom, squares)]
    short = sum(chance < _SURE / len(chances) for chance in chances)
    return [f"{short} of {len(chances)} steps have less noise than is claimed"] if short else []


def _step_findings(base: _Steps, seen: _Steps, relation: Relation, delta: float, confidence: float) -> list[str]:
    """A game per noise level: steps that drew the canary against steps without it. Each step is a Gaussian release."""
    levels = [level for level in np.unique(seen.noise) if min((seen.noise == level).sum(), (base.noise == level).sum()) >= _GAMES]
    findings: list[str] = []
    for level in levels:
        result = compare_scores(
            base.values[base.noise == level],
            seen.values[seen.noise == level],
            claim=Gaussian(float(level), relation),
            delta=delta,
            verdict_confidence=1 - (1 - confidence) / len(levels),
        )
        findings += [f"at noise multiplier {level:.4g}, in single steps, {text}" for text in result.findings]
    return findings


def _epsilon_at(event: Event, delta: float, ratio: float) -> float:
    """ε of the event with every noise multiplier divided by `ratio`."""
    return epsilon(_with_noise(event, ratio), delta) if ratio > 1e-6 else 0.0


def _with_noise(event: Event, ratio: float) -> Event:
    if isinstance(event, (Gaussian, BoundedSquaresGaussian)):
        return replace(event, noise_multiplier=event.noise_multiplier / ratio)
    sampled = (PoissonSampled, CyclicSampled, TruncatedPoisson, RandomAllocation, SampledWithoutReplacement)
    if isinstance(event, (SelfComposed, *sampled)):
        return replace(event, event=cast(Any, _with_noise(event.event, ratio)))
    if isinstance(event, Composed):
        return Composed(tuple(_with_noise(part, ratio) for part in event.events))
    raise TypeError(f"Expected Gaussian releases, got {event}.")


# Draws


def _weighted_draw_findings(runs: list[Watched]) -> list[str]:
    """Whether canaries, of the largest importance there is, are included no more often than the rates that are charged."""
    count = sum(int(run.drawn[run.sampled].sum()) for run in runs)
    expected = sum(float(run.rates[run.sampled].sum()) * run.drawn.shape[1] for run in runs)
    # Chernoff's bound for a sum of independent coins of different probabilities
    chance = np.exp(-(count * np.log(count / expected) - count + expected)) if count > expected > 0 else 1.0
    return [f"canaries were drawn {count} times, {expected:.0f} are expected at the rates charged"] if chance < _SURE else []


def _draw_findings(runs: list[Watched], size: int) -> list[str]:
    """Whether the canary is drawn no more often, and records no less independently, than sampling says."""
    draw = runs[0].draw
    if draw is not None and draw.period > 1:
        return _dependent_findings(runs, size, draw)
    rates = {float(rate) for run in runs for rate in run.rates[run.sampled]}
    if len(rates) != 1:
        return _weighted_draw_findings(runs)
    (rate,) = rates
    findings: list[str] = []
    drawn = np.concatenate([run.drawn[run.sampled].ravel() for run in runs])
    count = int(drawn.sum())
    if count and bdtrc(count - 1, len(drawn), rate) < _SURE:
        findings.append(f"canaries were drawn {count} times in {len(drawn)}, a share of {rate:g} is charged")
    totals = sum(np.bincount(np.concatenate([*run.inclusions, np.array([], dtype=np.intp)]), minlength=size) for run in runs)
    steps = sum(len(run.inclusions) for run in runs)
    most = int(np.max(totals))
    if steps and bdtrc(most - 1, steps, rate) < _SURE / size:
        findings.append(f"a record was drawn in {most} of {steps} steps, a share of {rate:g} is charged")
    batches = np.concatenate([[len(included) for included in run.inclusions] for run in runs])
    if (draw is None or draw.independent_records) and _deviation(batches, size, rate) < -_SIGMAS:
        findings.append("batches hardly vary in size: records are not drawn independently of each other")
    window = max(2, round(1 / rate))
    counts: list[NDArray[np.intp]] = []
    for run in runs:
        for start in range(0, len(run.inclusions) - window + 1, window):
            together = np.concatenate(run.inclusions[start : start + window])
            counts.append(np.bincount(together, minlength=size))
    enough = bool(counts) and len(counts) * size >= _FEWEST
    if enough and not -_SIGMAS <= _deviation(np.concatenate(counts), window, rate) <= _HIGH_SIGMAS:
        findings.append(f"draws of the same record in {window} steps are not independent of each other")
    return findings


def _dependent_findings(runs: list[Watched], size: int, draw: Draw) -> list[str]:
    """The same where draws depend on those before: whether all records, and canaries by themselves, are drawn by their law."""
    canaries = runs[0].drawn.shape[1]
    findings: list[str] = []
    for first in (0, size - canaries):  # canaries come last
        drawn = [
            [
                DrawRecord(included[included >= first] - first, draw, step, 0, 0, step, size - first)
                for step, included in enumerate(run.inclusions)
            ]
            for run in runs
        ]
        findings += [finding.text for finding in DrawsTested.of(drawn).findings]
    return list(dict.fromkeys(findings))


def _deviation(counts: NDArray[np.intp], trials: int, rate: float) -> float:
    """How far the spread of binomial counts is from what it should be, in standard deviations."""
    variance = trials * rate * (1 - rate)
    squares = ((counts - trials * rate) ** 2).sum()
    fourth = variance * (1 + (2 * trials - 6) * rate * (1 - rate))  # variance of one square
    return float((squares - len(counts) * variance) / np.sqrt(len(counts) * fourth))
