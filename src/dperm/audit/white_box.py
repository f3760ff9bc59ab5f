"""White-box audits of noisy gradient descent: canaries in gradient space, watched at every release.

The attacker sees every iterate, knows all other records and controls one record's gradient: what the accountant assumes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from dperm import _validate as check
from dperm._types import Array
from dperm.audit.canaries import CanaryObjective, with_canaries
from dperm.audit.canary_statistics import Watched, judge
from dperm.audit.one_run import guess, guesses_for
from dperm.audit.outputs import unlogged
from dperm.audit.result import VERDICT_CONFIDENCE, AuditResult
from dperm.audit.training import open_for
from dperm.gradient import Policy, descend
from dperm.gradient.policy import BatchSource, runs_by_parts
from dperm.objectives.per_example import Objective
from dperm.privacy import Relation, epsilon
from dperm.release import Channel, Noise, Source
from dperm.release.draws import Draw

_SHORTEST, _LONGEST = 0.5, 1e6  # of a bound: canaries' gradient norms


def white_box(
    plan: Policy,
    objective: Objective,
    records: BatchSource,
    theta: Any = None,
    *,
    delta: float,
    runs: int = 1,
    canaries: int = 500,
    confidence: float = 0.95,
    verdict_confidence: float = VERDICT_CONFIDENCE,
    progress: Callable[[int, int], None] | None = None,
) -> AuditResult:
    """Run `plan` with and without canaries, `runs` times each, and watch each canary's coordinate in every release.

    Under add/remove the canaries are there or not; under replace-one they point one way or the other. Each has noise and
    draws of its own — independent, by the definition of the event that is tested —, so that each is a trial of its own.
    From single steps: how large a canary is against the noise, which gives the estimate (the ε of the plan, were its
    noise multiplier what it seems to be); refuted six standard errors beyond the claim, where a step has less noise than
    stated, and by a game per noise level. From the draws: whether canaries are seen as often, and records as independently,
    as the event says. From whole runs: a proven bound on ε, by each canary's likelihood ratio; k trials can prove about
    ε = ln k. `theta` is the start; None: zeros, or the model's parameters.
    """
    check.integer("runs", runs)
    check.integer("canaries", canaries, minimum=20)
    _refuse_rows(plan)
    delta = check.fraction("delta", delta)
    relation = objective.facts.relation
    absent = 0.0 if relation is Relation.ADD_OR_REMOVE_ONE else -1.0
    worlds: list[list[Watched]] = [[], []]
    for number in range(runs):
        for world, sign in enumerate((absent, 1.0)):
            worlds[world].append(_watched(plan, objective, records, theta, np.full(canaries, sign)))
            if progress is not None:
                progress(2 * number + world + 1, 2 * runs)
    return judge(
        *worlds,
        event=plan.event(relation),
        relation=relation,
        size=len(records) + canaries,
        delta=delta,
        confidence=confidence,
        verdict_confidence=verdict_confidence,
        mechanism="gradient perturbation",
    )


def one_run_gradients(
    plan: Policy,
    objective: Objective,
    records: BatchSource,
    theta: Any = None,
    *,
    delta: float,
    canaries: int = 1000,
    guesses: int | None = None,
    confidence: float = 0.95,
    verdict_confidence: float = VERDICT_CONFIDENCE,
    random_state: Any = None,
) -> AuditResult:
    """One run of `plan` with `canaries` in gradient space, each included by a fair coin, then guessed (Steinke et al. 2023).

    Under replace-one each canary points one way or the other. `guesses`: how many of the canaries are guessed, fixed
    before the run; None: the number that proves most if the certificate is tight. `random_state` is of the coins.
    """
    check.integer("canaries", canaries, minimum=10)
    _refuse_rows(plan)
    relation = objective.facts.relation
    event = plan.event(relation)
    coins = np.random.default_rng(random_state).random(canaries) < 0.5
    absent = 0.0 if relation is Relation.ADD_OR_REMOVE_ONE else -1.0
    watched = _watched(plan, objective, records, theta, np.where(coins, 1.0, absent))
    return guess(
        watched.log_ratio(relation),
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
class _Watcher(Source):
    """Lets the run's own source work, and keeps what its releases say of the canaries."""

    objective: CanaryObjective
    own: Source | None = None
    values: list[Array] = field(default_factory=list[Array])
    noise: list[float] = field(default_factory=list[float])
    inclusions: list[NDArray[np.intp]] = field(default_factory=list[NDArray[np.intp]])
    rates: list[float] = field(default_factory=list[float])  # as claimed
    others: list[float] = field(default_factory=list[float])
    drawn: Draw | None = None

    def over(self, own: Source) -> Source:
        self.own = own
        return self

    def noisy(self, query: Any, noise: Noise) -> Any:
        assert self.own is not None
        if noise.kind != "gaussian":
            raise NotImplementedError("White-box audits are of Gaussian releases.")
        released = self.own.noisy(query, noise)
        if released.shape[-1] < len(self.objective.signs):  # a count, or a sum of norms: no step
            self.others.append(noise.amount)
            return released
        self.rates.append(noise.rate)
        self.values.append(self.objective.observed(released) / noise.sensitivity)
        self.noise.append(noise.amount)
        return released

    def draw(self, draw: Draw, records: int, steps: int) -> Iterator[NDArray[np.intp]]:
        assert self.own is not None
        self.drawn = draw
        for included in self.own.draw(draw, records, steps):
            self.inclusions.append(included.copy())
            yield included

    def thin(self, indices: NDArray[np.intp], keep: Array, coin: tuple[int, int]) -> NDArray[np.intp]:
        assert self.own is not None
        stayed = self.own.thin(indices, keep, coin)
        self.inclusions[coin[0]] = np.setdiff1d(self.inclusions[coin[0]], np.setdiff1d(indices, stayed))
        return stayed


def _watched(plan: Policy, objective: Objective, records: BatchSource, theta: Any, signs: Array) -> Watched:
    if not hasattr(records, "stream"):
        raise TypeError(
            f"Expected records that the objective reads (objective.records(...) or TorchRecords), got {type(records).__name__}."
        )
    share = _share_of(records)
    if share is not None and not runs_by_parts(plan) and not share.mine(np.arange(share.total)).all():
        raise ValueError(f"Expected one process for the white box of {plan.kind}: whom a rank keeps, no other knows.")
    lengths = _lengths(plan, len(signs))
    watched_objective, watched_records = with_canaries(objective, records, signs, lengths)
    watcher = _Watcher(watched_objective)
    start, channel = _start(objective, theta, watcher)
    before = start + 0.0
    with unlogged(), _dealt(records, share if runs_by_parts(plan) else None):
        channel.charge(plan.event(objective.facts.relation), "audit")
        descend(_free(plan), watched_objective, watched_records, channel, watched_objective.start(start))
    network: Any = objective
    if getattr(network, "theta", None) is not None:
        network.theta = before
    return channel.source.first(lambda: _seen(watcher, len(records), lengths))


def _share_of(records: Any) -> Any:
    """This rank's share of the records, as far as they can have several; where nobody said whose they are, all ranks have all."""
    share = getattr(records, "share", None)
    if share is not None and share.every == 1 and not share.ends:
        from dperm.torch.ranks import Ranks, share_of

        share = share_of(records, Ranks.here(), sharded=False)
    return share


@contextlib.contextmanager
def _dealt(records: Any, share: Any) -> Iterator[None]:
    """Among ranks, draws are divided as in a run of its own."""
    if share is None:
        yield
        return
    before, records.share = records.share, share.dealt_out()
    try:
        yield
    finally:
        records.share = before


def _seen(watcher: _Watcher, size: int, lengths: Array | None) -> Watched:
    count = len(watcher.objective.signs)
    rates, others = np.array(watcher.rates), tuple(watcher.others)
    drawn = np.ones((len(watcher.values), count), dtype=bool)  # in releases of all records
    # where all are charged as if it were known who was drawn, each release has a draw, or there are none
    steps = np.flatnonzero(rates < 1) if np.any(rates < 1) else np.arange(len(rates))
    for step, included in zip(steps, watcher.inclusions, strict=False):
        drawn[step] = np.isin(np.arange(size, size + count), included)
    values = np.stack(watcher.values)
    return Watched(values, np.array(watcher.noise), drawn, watcher.inclusions, rates, others, lengths, watcher.drawn)


def _lengths(plan: Policy, count: int) -> Array | None:
    """Gradient norms for canaries: three in four far beyond the bound, the others spread over six decades from half of it up,
    where a bounding may be wrong. None where a bounding or a sampler goes by norms that it is given: all are far beyond then."""
    if plan.longest is None:
        return None
    spread = plan.longest * np.geomspace(_SHORTEST, _LONGEST, max(2, count // 4))
    return np.concatenate([spread, np.full(count - len(spread), _LONGEST * plan.longest)])


def _start(objective: Objective, theta: Any, watcher: _Watcher) -> tuple[Any, Channel]:
    own = getattr(objective, "theta", None)
    if theta is None:
        theta = np.zeros(objective.facts.dimension) if own is None else own.detach().clone()
    canaries = len(watcher.objective.signs) * watcher.objective.groups
    return theta, open_for(theta, watcher, getattr(objective, "shards", None), canaries)


def _free(plan: Policy) -> Policy:
    """The plan with an update that works on flat parameters: what updates do with a release costs nothing."""
    from dperm.gradient import SGD

    return plan if not hasattr(plan.update, "optimizer") else replace(cast(Any, plan), update=SGD(0.05))


def _refuse_rows(plan: Policy) -> None:
    if plan.by_rows:
        raise TypeError(
            "Expected a plan that draws records: canaries are records of one row, not persons' rows. Replay takes it."
        )
