"""Whether records are drawn as their rule states: as often, independently of each other, and anew each time.

Each test bets on coins. Before a draw, and given all draws before it, a record is in it with a known probability p, which its
rule states by where the record was drawn last (`Draw.chances`): the rate; for balls and bins 1 ÷ (bins left) where it was in none
of the epoch, and 0 elsewhere; with cyclic sampling the rate in turns of its group, once it was seen, and before that the chance
that the turn is its group's, times the rate. So, for any s and any choice of records that depends only on what came before,
Π exp(s·x)/(1 + p·(e^s − 1)) over their inclusions x has mean 1, wherever the run stops. An average of such products, with weights
fixed in advance, is 10⁹ with a chance of at most 10⁻⁹ (Ville 1939). A record that is drawn with p = 0, or left out with p = 1, is
no matter of chance.

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
from dperm.release.draws import Draw

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
        before: dict[tuple[str, int], Table] = {}
        for drawn in (drawn for run in runs for drawn in _by_door(run)):
            key, door = drawn[0].draw.key, drawn[0].door
            coins = _Coins(widths[key], [])
            if text := next(filter(None, map(coins.toss, drawn)), None):
                return cls(np.inf, (Finding("draws", text),), {}, ())
            before[key, door] = _bet_on(tests[key], coins, drawn[0].draw, before.get((key, door)))
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


@dataclass
class _Coins:
    """The coins of a run's draws of one rule, from the same records.

    For each draw that is open, and each chance that records have in it: the `chance`, the number of records that have it, and how
    many of these were drawn. Of the first draws also `tables`, by number: who was drawn, and each one's chance (0: it cannot be).
    """

    width: int
    coins: list[tuple[float, int, int]]
    tables: list[tuple[Table, Table]] = field(default_factory=list[tuple[Table, Table]])
    _last: dict[int, NDArray[np.intp]] = field(default_factory=dict[int, NDArray[np.intp]])  # by call: the step, −1: none
    _counts: dict[int, NDArray[np.intp]] = field(default_factory=dict[int, NDArray[np.intp]])  # of each last step, −1 first

    def toss(self, item: DrawRecord) -> str:
        """Add the next draw; returns what about it no rule of this kind does, or nothing."""
        draw, included, step = item.draw, item.included, item.step
        if len(np.unique(included)) < len(included):
            return "a record was drawn twice by one draw"
        if isinstance(draw, FixedSize) and len(included) != draw.size:
            return f"{len(included)} records were drawn, where each draw has {draw.size}"
        if isinstance(draw, PoissonUpTo) and len(included) > draw.capacity:
            return f"{len(included)} records were drawn, where no draw has more than {draw.capacity}"
        last = self._last.setdefault(item.call, np.full(item.largest, -1))
        before = self._counts.get(item.call, np.array([item.records * draw.slots]))
        counts = np.pad(before, (0, step + 1 - len(before)))
        chances = draw.chances(step, np.arange(-1, step))
        drawn = np.bincount(last[included] + 1, minlength=step + 1)
        if np.any(drawn[chances <= 0]):
            return "a record was drawn in a step that the steps before, in which it was drawn, rule out"
        if np.any((drawn < counts)[chances >= 1]):
            return "a record was left out of a step that it must be in by those before"
        for chance in np.unique(chances[(chances > 0) & (chances < 1) & (counts > 0)]).tolist():
            alike = chances == chance
            self.coins.append((chance, int(counts[alike].sum()), int(drawn[alike].sum())))
        if len(self.tables) < _COMPARED:
            each, there = np.zeros(self.width), np.zeros(self.width)
            each[: len(last)] = chances[last[: self.width] + 1]
            there[included[included < self.width]] = 1
            self.tables.append((there, np.where(each < 1, each, 0.0) * item.pool(self.width)))
        last[included] = step
        self._last[item.call], self._counts[item.call] = last, np.append(counts - drawn, len(included))
        return ""


def _bet_on(tests: _Tests, coins: _Coins, rule: Draw, before: Table | None) -> Table:
    """Bet on a run's coins; return its first draws as a table (draws, numbers), which the next run's are compared with: `before`
    is that of the run before."""
    chances, left, sizes = np.array(coins.coins).reshape(-1, 3).T
    for chance, trials in zip(chances.tolist(), left.tolist(), strict=True):
        tests.coins[chance] += int(trials)
    tests.bet(_COUNT, sizes, left, chances, 0)
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
    there, each = (np.array(tables) for tables in zip(*coins.tables, strict=True))
    for may, chance in _by_chance(each):
        hits = may * there
        tests.bet(_NUMBERS, hits.T, may.T, chance)
        if rule.independent_records:
            bets = may[:, 1:] * there[:, :-1]
            tests.bet(_NEIGHBOURS, (there[:, 1:] * bets).sum(axis=1), bets.sum(axis=1), chance, 0)
        trials, again = may @ there.T, hits @ there.T
        for lag in range(1, len(there)):
            tests.bet(_STEPS, np.diagonal(again, -lag), np.diagonal(trials, -lag), chance[lag:], lag - 1)
        if before is not None:
            both = min(len(there), len(before))
            bets = may[:both] * before[:both]
            tests.bet(_RUNS, (there[:both] * bets).sum(axis=1), bets.sum(axis=1), chance[:both], 0)
            for one, count in zip(chance[:both].tolist(), bets.sum(axis=1).tolist(), strict=True):
                tests.again[one] += int(count)
            del tests.again[0.0]  # a draw without such records
    return there


def _by_chance(each: Table) -> Iterator[tuple[Table, Array]]:
    """Takes a table of chances (draws, numbers) apart: yields, for each draw, one of the chances that occur in it (draws,) and
    the numbers that have this chance (draws, numbers), until every chance was yielded. A rule has one or two chances in a draw
    beside 0 and 1."""
    left = each.copy()
    while left.any():
        chance = left.max(axis=1)
        may = (left > 0) & (left == chance[:, None])
        left[may] = 0
        yield may.astype(np.float64), chance
