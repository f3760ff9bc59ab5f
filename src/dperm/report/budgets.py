"""What data sets' budgets are, and how they were spent over time and by whom, as a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property

from dperm.release import SpendLog
from dperm.release.ledger import Account
from dperm.release.ledger.entries import costs_of
from dperm.release.ledger.rules import Amounts, added
from dperm.release.ledger.settlements import SETTLEMENT
from dperm.report.figures import budget_figure
from dperm.report.page import rendered

EARLIER = "before it was made"
_UNSAID = "not said"  # by earlier versions
_POINTS = 500  # of a figure


@dataclass(frozen=True)
class Spending:
    """One data set's budget, and the share of it that was spent, by whom, at each of `times`: when it was made, at each of its
    `charges` since then, of very many at some, and now."""

    account: Account
    times: tuple[datetime, ...]
    by: Mapping[str, tuple[float, ...]]
    charges: int

    @classmethod
    def of(cls, log: SpendLog, account: Account) -> Spending:
        """In the order of the log. What was charged before the budget was made is nobody's."""
        rule, spent = account.budget.rule, account.spent
        charged = False  # before it was made
        made, seen, names = datetime.now(UTC), _Seen(), dict[str, str]()
        since: Amounts = {}
        for entry in log.entries(account.budget.label):
            if entry["kind"] == "budget":  # in place of those before, if there are any
                made, charged = _time(entry["time"]), charged or seen.count > 0
                seen, since, names = _Seen(), {}, {}
            elif entry["kind"] == SETTLEMENT:
                if name := names.get(entry["charge"]):  # else it is of a charge before it was made
                    since = added(since, entry["given_back"], -1)
                    seen.add(_time(entry["time"]), name, -rule.share(entry["given_back"], spent), charges=0)
            elif "costs" in entry or "rdp" in entry:
                costs = costs_of(entry)
                since = added(since, costs)
                names[entry["id"]] = name = str(entry.get("by") or _UNSAID)
                seen.add(_time(entry["time"]), name, rule.share(costs, spent))
            else:
                charged = True
        start = {EARLIER: rule.share(_less(spent, since), spent)} if charged else {}
        points = [(made, {}), *seen.points, *seen.last, (datetime.now(UTC), seen.held)]
        rows = [{**start, **held} for _, held in points]
        times = tuple(moment for moment, _ in points)
        return cls(account, times, {name: tuple(row.get(name, 0.0) for row in rows) for name in rows[-1]}, seen.charges)

    @cached_property
    def shares(self) -> dict[str, float]:
        """By whom, the share of the budget that they have spent until now: the largest first."""
        return dict(sorted(((name, row[-1]) for name, row in self.by.items()), key=lambda item: -item[1]))


def budgets_page(log: SpendLog, labels: Sequence[str] | None = None) -> str:
    """Of all data sets with a budget, or of these. ValueError where there is none."""
    accounts = [account for account in log.accounts_held() if labels is None or account.budget.label in labels]
    if not accounts:
        raise ValueError(f"Expected budgets in the spend log {log.where}, got none: `dperm budget create` makes one.")
    found = [Spending.of(log, account) for account in accounts]
    who = sorted({name for each in found for name in each.by}, key=lambda name: (name != EARLIER, name))
    drawn = [(each, budget_figure(each, who)) for each in found]
    return rendered("budgets.html", drawn=drawn, log=log.where, head=log.head())


class _Seen:
    """What names have spent, after every so many charges, at most `_POINTS` times, and after the last."""

    def __init__(self) -> None:
        self.count, self.every, self.charges = 0, 1, 0
        self.held: dict[str, float] = {}
        self.points: list[tuple[datetime, dict[str, float]]] = []
        self._moment: datetime | None = None

    def add(self, moment: datetime, name: str, share: float, charges: int = 1) -> None:
        self.count += 1
        self.charges += charges
        self._moment = moment
        self.held[name] = self.held.get(name, 0.0) + share
        if self.count % self.every == 0:
            self.points.append((moment, dict(self.held)))
        if len(self.points) > _POINTS:
            self.points, self.every = self.points[1::2], 2 * self.every

    @property
    def last(self) -> list[tuple[datetime, dict[str, float]]]:
        """After the last charge, where that is none of the points."""
        if self._moment is None or self.count % self.every == 0:
            return []
        return [(self._moment, self.held)]


def _less(spent: Amounts, part: Amounts) -> Amounts:
    return {kind: max(0.0, amount) for kind, amount in added(spent, part, -1).items()}


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)
