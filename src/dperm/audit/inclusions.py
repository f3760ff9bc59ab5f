"""Whether records are drawn as their rule states: as often, independently of each other, and anew each time.

Each test bets on coins. Before a draw, and given all draws before it, a record that may be in it is in it with a known
probability p: the rate; for balls and bins 1 ÷ (bins left), of records that were in none before; with cyclic sampling the chance
that such a record is of the group whose turn it is, times the rate. So, for any s and any choice of
records that depends only on what came before, Π exp(s·x)/(1 + p·(e^s − 1)) over their inclusions x has mean 1, wherever the run
stops. An average of such products, with weights fixed in advance, is 10⁹ with a chance of at most 10⁻⁹ (Ville 1939).

The number of some records in a draw of fixed size is hypergeometric, and its exponential moments are at most binomial ones
(Hoeffding 1963, Theorem 4). Truncated Poisson draws are part of Poisson draws, which bounds the products for s > 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtr, logsumexp

from dperm._types import Array
from dperm.audit.noise import FALSE_ALARM, Finding
from dperm.audit.recording import DrawRecord
from dperm.gradient.sampling import FixedSize, PoissonUpTo

Table = NDArray[np.float64]  # of zeros and ones

#: s: what is bet on each inclusion; the largest see a few draws that are all the same, the smallest many that are nearly right
_TILTS = np.array([sign * 2.0**power for sign in (1, -1) for power in range(-6, 5)])
_COMPARED = 400  # draws of a run that are compared with each other
_WIDE = 4096  # numbers of records that are looked at one by one
_OFTEN = 1.645  # standard deviations: 19 of 20 normals are above minus this
_FACTORS = np.geomspace(1.02, 1000.0, 300)

_COUNT, _SIZES, _NUMBERS, _NEIGHBOURS, _STEPS, _RUNS = range(6)
_SAYS = (
    "records were not drawn at the rate that is charged: {hits} times, where {mean:.4g} are expected",
    "draws vary in size otherwise than draws of independent records ({hits} are near the mean, {mean:.4g} are expected)",
    "a record is drawn {hits} times, where {mean:.4g} are expected",
    "records with neighbouring numbers are not drawn independently: {hits} times together, where {mean:.4g} are expected",
    "draws of a run repeat or exclude each other: {hits} records are drawn again, where {mean:.4g} are expected",
    "draws of two runs repeat or exclude each other: {hits} records are drawn again, where {mean:.4g} are expected",
)


@dataclass
class _Tests:
    """Tests of draws of one rule: ln of each product so far, (tests, tilts), and how many inclusions were seen and expected."""

    logs: list[Array]
    weights: list[Array]
    hits: list[Array]
    means: list[Array]
    coins: Counter[float] = field(default_factory=Counter[float])
    again: Counter[float] = field(default_factory=Counter[float])
    upward: bool = False

    @classmethod
    def of(cls, width: int, upward: bool) -> _Tests:
        lags = np.arange(1.0, _COMPARED)
        one = np.ones(1)
        # weights that are known before any draw, and add up to 1 at most
        weights = [one, one, np.full(width, 1 / width), one, 1 / (lags * (lags + 1)), one]
        return cls(
            [np.zeros((len(each), len(_TILTS))) for each in weights],
            [each / len(weights) for each in weights],
            [np.zeros(len(each)) for each in weights],
            [np.zeros(len(each)) for each in weights],
            upward=upward,
        )

    def bet(self, test: int, hits: Array, trials: Array, chances: Array, at: int | slice = slice(None)) -> None:
        """`hits` (…, T) of so many `trials` in T draws, whose inclusions have these chances (T,)."""
        with np.errstate(divide="ignore"):
            paid = np.log1p(chances[:, None] * np.expm1(_TILTS))
        self.logs[test][at] += hits.sum(axis=-1)[..., None] * _TILTS - trials @ paid
        self.hits[test][at] += hits.sum(axis=-1)
        self.means[test][at] += trials @ chances

    def result(self) -> tuple[float, str]:
        """ln of the average of all products, and what the largest says."""
        tilts = _TILTS > 0 if self.upward else np.full(len(_TILTS), True)
        each = [
            logsumexp(logs[:, tilts], axis=1) - np.log(tilts.sum()) + np.log(weights)
            for logs, weights in zip(self.logs, self.weights, strict=True)
        ]
        test = int(np.argmax([most.max() for most in each]))
        place = int(np.argmax(each[test]))
        text = _SAYS[test].format(hits=int(self.hits[test][place]), mean=self.means[test][place])
        return float(logsumexp(np.concatenate(each))), text

    def visible(self, rules: int) -> tuple[float | None, bool]:
        """From which multiple of the rate on 19 of 20 audits see it, None if from none; and whether they see runs whose draws are
        all the same."""
        need = np.log(len(_TILTS) * len(self.weights) * rules / FALSE_ALARM)
        bets = _TILTS[_TILTS > 0]

        def gain(coins: Counter[float], factor: float) -> float:
            chances, trials = np.array(list(coins)), np.array(list(coins.values()), dtype=np.float64)
            raised = np.minimum(1.0, factor * chances)
            usual = trials @ raised - _OFTEN * np.sqrt(trials @ (raised * (1 - raised)))
            return float((bets * usual - trials @ np.log1p(chances[:, None] * np.expm1(bets))).max(initial=0.0))

        if not self.coins:
            return None, False
        factor = next((float(factor) for factor in _FACTORS if gain(self.coins, factor) >= need), None)
        return factor, bool(self.again) and gain(self.again, np.inf) >= need


@dataclass(frozen=True)
class DrawsTested:
    """The result of testing the draws of independent runs, by rule (`Draw.key`).

    Attributes
    ----------
    evidence : float
        ln of the average of all products: above ln 10⁹ with a chance of at most 10⁻⁹ where draws are made by their rules.
        Infinite where a draw is one that its rule cannot make.
    findings : tuple of Finding
        Draws that their rule does not make, but for a chance of `FALSE_ALARM`.
    rates : dict of str to float, or None
        From which multiple of the charged rate on draws would have been refuted in 19 of 20 audits; None where from none.
    unlike : tuple of str
        The rules whose draws were too few to tell runs of the same draws from runs of their own.
    """

    evidence: float
    findings: tuple[Finding, ...]
    rates: dict[str, float | None]
    unlike: tuple[str, ...]

    @classmethod
    def of(cls, runs: Sequence[Sequence[DrawRecord]]) -> DrawsTested:
        """Test the draws of these runs, each made by itself, in their order."""
        every = [item for run in runs for item in run]
        widths: dict[str, int] = {}
        for item in every:
            widths[item.draw.key] = min(_WIDE, max(widths.get(item.draw.key, 1), item.largest))
        tests = {
            item.draw.key: _Tests.of(widths[item.draw.key], isinstance(item.draw, PoissonUpTo)) for item in every if _known(item)
        }
        doors = [drawn for run in runs for drawn in _by_door(run)]
        if certain := [text for drawn in doors for text in _impossible(drawn)]:
            return cls(np.inf, (Finding("draws", certain[0]),), {}, ())
        before: dict[tuple[str, int], Table] = {}
        for drawn in doors:
            key, door = drawn[0].draw.key, drawn[0].door
            before[key, door] = _bet_on(tests[key], drawn, widths[key], before.get((key, door)))
        results = [each.result() for each in tests.values()]
        evidence = float(logsumexp([log for log, _ in results]) - np.log(len(results))) if results else 0.0
        refuted = evidence > -np.log(FALSE_ALARM)
        findings = (Finding("draws", max(results)[1]),) if refuted else ()
        seen = {key: each.visible(len(tests)) for key, each in tests.items()}
        rates = {key: factor for key, (factor, _) in seen.items()} | {key: None for key in widths if key not in tests}
        unlike = tuple(key for key in widths if not seen.get(key, (None, False))[1])
        return cls(evidence, findings, rates, unlike)


def _known(item: DrawRecord) -> bool:
    """Whether the law of its draws is one that is tested."""
    return item.records > 0 and (item.draw.independent_records or isinstance(item.draw, FixedSize | PoissonUpTo))


def _by_door(run: Sequence[DrawRecord]) -> Iterator[list[DrawRecord]]:
    """A run's draws by rule and by the records that they are drawn from, in their order."""
    groups: dict[tuple[str, int], list[DrawRecord]] = {}
    for item in run:
        if _known(item):
            groups.setdefault((item.draw.key, item.door), []).append(item)
    yield from groups.values()


def _impossible(drawn: Sequence[DrawRecord]) -> list[str]:
    """Findings about draws that the rule can never make."""
    for item in drawn:
        size, draw = len(item.included), item.draw
        if isinstance(draw, FixedSize) and size != draw.size:
            return [f"{size} records were drawn, where each draw has {draw.size}"]
        if isinstance(draw, PoissonUpTo) and size > draw.capacity:
            return [f"{size} records were drawn, where no draw has more than {draw.capacity}"]
        if len(np.unique(item.included)) < size:
            return ["a record was drawn twice by one draw"]
    for epoch in _epochs(drawn):
        sizes, period = sum(len(item.included) for item in epoch), epoch[0].draw.period
        different = len(np.unique(np.concatenate([item.included for item in epoch])))
        everyone = len(epoch) == period and epoch[0].draw.draws_all
        if different < sizes or (everyone and different < epoch[0].records * epoch[0].draw.slots):
            return [f"records were not drawn once in {period} steps"]
    return []


def _epochs(drawn: Sequence[DrawRecord]) -> Iterator[list[DrawRecord]]:
    """The draws that are made together."""
    epochs: dict[tuple[int, int], list[DrawRecord]] = {}
    for item in drawn:
        epochs.setdefault((item.call, item.step // item.draw.period), []).append(item)
    yield from epochs.values()


def _bet_on(tests: _Tests, drawn: Sequence[DrawRecord], width: int, before: Table | None) -> Table:
    """Add a run's draws of one rule, from the same records; return the first of them as a table (draws, numbers), which the next
    run's are compared with: `before` is that of the run before."""
    rule = drawn[0].draw
    drawn = [item for item in drawn if item.draw.chance_of_unseen(item.step) > 0]
    kept = len(drawn[:_COMPARED])
    may, there = np.zeros((kept, width)), np.zeros((kept, width))
    chances, left, sizes = np.zeros(len(drawn)), np.zeros(len(drawn)), np.zeros(len(drawn))
    open_epochs: dict[tuple[int, int], tuple[int, Table]] = {}
    seen: dict[tuple[int, int], NDArray[np.intp]] = {}  # where records keep their places
    for place, item in enumerate(drawn):
        epoch = item.call, 0 if item.draw.keeps_places else item.step // item.draw.period
        gone, free = open_epochs.get(epoch, (0, item.pool(width)))
        left[place] = item.records * item.draw.slots - gone
        chances[place] = item.draw.chance_of_unseen(item.step)
        unseen = item.included if epoch not in seen else np.setdiff1d(item.included, seen[epoch])
        sizes[place] = len(unseen)
        included = unseen[unseen < width]
        if place < kept:
            may[place] = free
            there[place, included] = 1
        if item.draw.period > 1:
            free = free.copy()
            free[included] = 0
            open_epochs[epoch] = gone + len(unseen), free
            if item.draw.keeps_places:
                seen[epoch] = np.union1d(seen.get(epoch, unseen), unseen)
    for chance, trials in zip(chances.tolist(), left.tolist(), strict=True):
        tests.coins[chance] += int(trials)
    tests.bet(_COUNT, sizes, left, chances, 0)
    first = chances[:kept]
    tests.bet(_NUMBERS, there.T, may.T, first)
    if rule.independent_records:
        middle = np.rint(left * chances)
        spread = np.floor(0.7 * np.sqrt(left * chances * (1 - chances)))
        count = left.astype(np.intp)
        below = bdtr(np.maximum(middle - spread - 1, 0), count, chances)
        near = bdtr(np.minimum(middle + spread, left), count, chances) - np.where(middle > spread, below, 0.0)
        hits = (np.abs(sizes - middle) <= spread).astype(np.float64)
        for share in np.unique(near):  # one coin a draw, of a chance of its own
            these = near == share
            tests.bet(_SIZES, hits[these], np.ones(int(these.sum())), near[these], 0)
        bets = may[:, 1:] * there[:, :-1]
        tests.bet(_NEIGHBOURS, (there[:, 1:] * bets).sum(axis=1), bets.sum(axis=1), first, 0)
    trials, hits = may @ there.T, (may * there) @ there.T
    for lag in range(1, kept):
        tests.bet(_STEPS, np.diagonal(hits, -lag), np.diagonal(trials, -lag), first[lag:], lag - 1)
    if before is not None:
        both = min(kept, len(before))
        bets = may[:both] * before[:both]
        counts = bets.sum(axis=1)
        tests.bet(_RUNS, (there[:both] * bets).sum(axis=1), counts, first[:both], 0)
        for chance, count in zip(first[:both].tolist(), counts.tolist(), strict=True):
            tests.again[chance] += int(count)
    return there
