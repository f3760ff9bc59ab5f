"""White-box audits of noisy gradient descent: canaries in gradient space, watched at every release.

The attacker sees every iterate, knows all other records and controls one record's gradient: what the accountant assumes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtrc, ndtri

from dperm import _validate as check
from dperm.audit.canaries import CanaryObjective, with_canaries
from dperm.audit.distinguish import compare_scores
from dperm.audit.one_run import guess, guesses_for
from dperm.audit.result import AuditResult
from dperm.audit.statistics import Estimate
from dperm.audit.training import open_for, unlogged
from dperm.gradient import Plan, Poisson, descend
from dperm.gradient.loop import BatchSource
from dperm.objectives.per_example import Objective
from dperm.privacy import Channel, Composed, Event, Gaussian, PoissonSampled, Relation, SelfComposed, Source, epsilon

__all__ = ["one_run_gradients", "white_box"]

Array = NDArray[np.float64]

_SIGMAS = 6.0  # how far a sum of draws may be from its mean: one false alarm in 10⁹ for a normal
_FEWEST = 500  # sums of fewer terms are not normal enough for that
_GAMES = 40  # steps per world below which their rates prove nothing


def white_box(
    plan: Plan,
    objective: Objective,
    records: BatchSource,
    theta: Any = None,
    *,
    delta: float,
    runs: int = 1,
    canaries: int = 500,
    confidence: float = 0.95,
    verdict_confidence: float = 0.999,
    progress: Callable[[int, int], None] | None = None,
) -> AuditResult:
    """Run `plan` with and without canaries, `runs` times each, and watch each canary's coordinate in every release.

    Under add/remove the canaries are there or not; under replace-one they point one way or the other. Each has noise and
    draws of its own — independent, by the definition of the event that is tested —, so that each is a trial of its own.
    From single steps: how large a canary is against the noise, which gives the estimate (the ε of the plan, were its
    noise multiplier what it seems to be), and a game per noise level that can refute. From the draws: whether canaries are
    seen as often, and records as independently, as the event says. From whole runs: a proven bound on ε, by each canary's
    likelihood ratio; k trials can prove about ε = ln k. `theta` is the start; None: zeros, or the model's parameters.
    """
    check.integer("runs", runs)
    check.integer("canaries", canaries, minimum=20)
    delta = check.fraction("delta", delta)
    relation = objective.facts.relation
    event = plan.event(relation)
    absent = 0.0 if relation is Relation.ADD_OR_REMOVE_ONE else -1.0
    worlds: list[list[_Watched]] = [[], []]
    for number in range(runs):
        for world, sign in enumerate((absent, 1.0)):
            worlds[world].append(_watched(plan, objective, records, theta, np.full(canaries, sign)))
            if progress is not None:
                progress(2 * number + world + 1, 2 * runs)
    first, second = (_Steps.of(world) for world in worlds)
    seen = second.only(second.drawn)
    base = first if relation is Relation.ADD_OR_REMOVE_ONE else first.only(first.drawn)
    ratio, error = _signal_ratio(base, seen, relation)
    findings = _draw_findings(plan, worlds[0] + worlds[1], len(records) + canaries, verdict_confidence)
    findings += _step_findings(base, seen, relation, delta, verdict_confidence)
    spread = float(ndtri(1 - (1 - confidence) / 2)) * error
    claimed = epsilon(event, delta)
    middle, low, high = (_epsilon_at(event, delta, value) for value in (ratio, ratio - spread, ratio + spread))
    scores = [np.concatenate([run.log_ratio(plan, relation) for run in world]) for world in worlds]
    whole = compare_scores(*scores, claim=event, delta=delta, confidence=confidence, verdict_confidence=verdict_confidence)
    findings += whole.findings
    return AuditResult(
        attack="the white-box audit",
        mechanism="gradient perturbation",
        verdict="refuted" if findings else "consistent",
        delta=delta,
        claimed_epsilon=claimed,
        epsilon_lower=whole.epsilon_lower,
        confidence=confidence,
        verdict_confidence=verdict_confidence,
        estimate=Estimate(middle, low, high, "noise against signal in each step"),
        trials=whole.trials,
        findings=tuple(findings),
        auc=whole.auc,
        curve=whole.curve,
        details={
            "runs": runs,
            "allowed": whole.details["allowed"],
            "steps_with_canary": len(seen.values),
            "steps_without": len(base.values),
            "signal_to_claimed_signal": ratio,
            "standard_error": error,
        },
    )


def one_run_gradients(
    plan: Plan,
    objective: Objective,
    records: BatchSource,
    theta: Any = None,
    *,
    delta: float,
    canaries: int = 1000,
    guesses: int | None = None,
    confidence: float = 0.95,
    verdict_confidence: float = 0.999,
    random_state: Any = None,
) -> AuditResult:
    """One run of `plan` with `canaries` in gradient space, each included by a fair coin, then guessed (Steinke et al. 2023).

    Under replace-one each canary points one way or the other. `guesses`: how many of the canaries are guessed, fixed
    before the run; None: the number that proves most if the certificate is tight. `random_state` is of the coins.
    """
    check.integer("canaries", canaries, minimum=10)
    relation = objective.facts.relation
    event = plan.event(relation)
    coins = np.random.default_rng(random_state).random(canaries) < 0.5
    absent = 0.0 if relation is Relation.ADD_OR_REMOVE_ONE else -1.0
    watched = _watched(plan, objective, records, theta, np.where(coins, 1.0, absent))
    return guess(
        watched.log_ratio(plan, relation),
        coins,
        claim=event,
        delta=delta,
        guesses=guesses or guesses_for(canaries, epsilon(event, delta), delta, confidence),
        confidence=confidence,
        verdict_confidence=verdict_confidence,
        mechanism="gradient perturbation",
    )


# Watching


@dataclass
class _Watched:
    """One run's view of its canaries: `values` (steps, canaries) in units of the sensitivity, the noise multipliers
    (steps,) claimed, and who was drawn (steps, canaries)."""

    values: Array
    noise: Array
    drawn: NDArray[np.bool_]
    inclusions: list[NDArray[np.intp]]

    def log_ratio(self, plan: Plan, relation: Relation) -> Array:
        """(canaries,) ln of the likelihood of the run with the canary over the one without, if the claim is exact."""
        low, high = (0.0, 1.0) if relation is Relation.ADD_OR_REMOVE_ONE else (-0.5, 0.5)
        variance = (self.noise**2)[:, None]
        nothing = -(self.values**2) / (2 * variance)
        sides: list[Array] = []
        for shift in (low, high):
            there = -((self.values - shift) ** 2) / (2 * variance)
            rate = plan.sampler.rate
            sides.append(there if rate == 1 else np.logaddexp(np.log1p(-rate) + nothing, np.log(rate) + there))
        return (sides[1] - sides[0]).sum(axis=0)


@dataclass
class _Watcher(Source):
    """Lets the run's own source work, and keeps what its releases say of the canaries."""

    objective: CanaryObjective
    own: Source | None = None
    values: list[Array] = field(default_factory=list[Array])
    noise: list[float] = field(default_factory=list[float])
    inclusions: list[NDArray[np.intp]] = field(default_factory=list[NDArray[np.intp]])

    def over(self, own: Source) -> Source:
        self.own = own
        return self

    def gaussian(self, query: Any, sensitivity: float, std: float) -> Any:
        assert self.own is not None
        released = self.own.gaussian(query, sensitivity, std)
        self.values.append(self.objective.observed(released) / sensitivity)
        self.noise.append(std / sensitivity)
        return released

    def pure(self, query: Any, sensitivity: float, epsilon: float) -> Any:
        raise NotImplementedError("White-box audits are of Gaussian releases.")

    def poisson(self, records: int, rate: float, steps: int) -> Iterator[NDArray[np.intp]]:
        assert self.own is not None
        for included in self.own.poisson(records, rate, steps):
            self.inclusions.append(included.copy())
            yield included


def _watched(plan: Plan, objective: Objective, records: BatchSource, theta: Any, signs: Array) -> _Watched:
    watched_objective, watched_records = with_canaries(objective, records, signs)
    watcher = _Watcher(watched_objective)
    start, channel = _start(objective, theta, watcher)
    before = start + 0.0
    with unlogged():
        channel.charge(plan.event(objective.facts.relation), "audit")
        descend(_free(plan), watched_objective, watched_records, channel, watched_objective.start(start))
    if getattr(objective, "theta", None) is not None:
        objective.theta.copy_(before)  # type: ignore[attr-defined]
    size, count = len(records), len(signs)
    drawn = np.ones((len(watcher.values), count), dtype=bool)
    for step, included in enumerate(watcher.inclusions):
        drawn[step] = np.isin(np.arange(size, size + count), included)
    return _Watched(np.stack(watcher.values), np.array(watcher.noise), drawn, watcher.inclusions)


def _start(objective: Objective, theta: Any, watcher: _Watcher) -> tuple[Any, Channel]:
    own = getattr(objective, "theta", None)
    if theta is None:
        theta = np.zeros(objective.facts.dimension) if own is None else own.detach().clone()
    return theta, open_for(theta, watcher)


def _free(plan: Plan) -> Plan:
    """The plan with an update that works on flat parameters: what updates do with a release costs nothing."""
    from dperm.gradient import SGD

    return plan if not hasattr(plan.update, "optimizer") else replace(plan, update=SGD(0.05))


# Single steps


class _Steps(NamedTuple):
    """Steps and canaries of several runs, flattened: the canary's value, the noise multiplier claimed, whether it was drawn."""

    values: Array
    noise: Array
    drawn: NDArray[np.bool_]

    @classmethod
    def of(cls, runs: list[_Watched]) -> _Steps:
        return cls(
            np.concatenate([run.values.ravel() for run in runs]),
            np.concatenate([np.repeat(run.noise, run.values.shape[1]) for run in runs]),
            np.concatenate([run.drawn.ravel() for run in runs]),
        )

    def only(self, which: NDArray[np.bool_]) -> _Steps:
        return _Steps(self.values[which], self.noise[which], self.drawn[which])


def _signal_ratio(base: _Steps, seen: _Steps, relation: Relation) -> tuple[float, float]:
    """The canary's size over the noise's, relative to what is claimed, and its standard error: 1 where the claim is exact."""
    if len(seen.values) < 2 or len(base.values) < 2:
        return 0.0, np.inf
    means = [float((part.values / part.noise**2).sum() / (1 / part.noise**2).sum()) for part in (base, seen)]
    residuals = np.concatenate([(part.values - mean) / part.noise for part, mean in zip((base, seen), means, strict=True)])
    scale = float(np.sqrt((residuals**2).sum() / (len(residuals) - 2)))
    error = np.sqrt(sum(1 / (1 / part.noise**2).sum() for part in (base, seen)))
    ratio = (means[1] - means[0]) / scale
    # the scale's own error is that of a chi distribution
    return ratio, float(np.hypot(error, ratio / np.sqrt(2 * len(residuals))))


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
    if isinstance(event, Gaussian):
        return replace(event, noise_multiplier=event.noise_multiplier / ratio)
    if isinstance(event, (PoissonSampled, SelfComposed)):
        return replace(event, event=_with_noise(event.event, ratio))
    if isinstance(event, Composed):
        return Composed(tuple(_with_noise(part, ratio) for part in event.events))
    raise TypeError(f"Expected Gaussian releases, got {event}.")


# Draws


def _draw_findings(plan: Plan, runs: list[_Watched], size: int, confidence: float) -> list[str]:
    """Whether the canary is drawn no more often, and records no less independently, than Poisson sampling says."""
    if not isinstance(plan.sampler, Poisson) or plan.sampler.rate == 1:
        return []
    rate = plan.sampler.rate
    if any(len(run.inclusions) != len(run.values) for run in runs):
        return ["steps released without drawing their records at the rate that was charged"]
    findings: list[str] = []
    drawn = np.concatenate([run.drawn.ravel() for run in runs])
    count = int(drawn.sum())
    if count and bdtrc(count - 1, len(drawn), rate) < 1 - confidence:
        findings.append(f"canaries were drawn {count} times in {len(drawn)}, a share of {rate:g} is charged")
    batches = np.concatenate([[len(included) for included in run.inclusions] for run in runs])
    if _deviation(batches, size, rate) < -_SIGMAS:
        findings.append("batches hardly vary in size: records are not drawn independently of each other")
    window = max(2, round(1 / rate))
    counts: list[NDArray[np.intp]] = []
    for run in runs:
        for start in range(0, len(run.inclusions) - window + 1, window):
            together = np.concatenate(run.inclusions[start : start + window])
            counts.append(np.bincount(together, minlength=size))
    if counts and len(counts) * size >= _FEWEST and abs(_deviation(np.concatenate(counts), window, rate)) > _SIGMAS:
        findings.append(f"draws of the same record in {window} steps are not independent of each other")
    return findings


def _deviation(counts: NDArray[np.intp], trials: int, rate: float) -> float:
    """How far the spread of binomial counts is from what it should be, in standard deviations."""
    variance = trials * rate * (1 - rate)
    squares = ((counts - trials * rate) ** 2).sum()
    fourth = variance * (1 + (2 * trials - 6) * rate * (1 - rate))  # variance of one square
    return float((squares - len(counts) * variance) / np.sqrt(len(counts) * fourth))
