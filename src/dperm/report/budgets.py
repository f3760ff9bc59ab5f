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
from dperm.report.figures import budget_figure
from dperm.report.page import environment, machine

__all__ = ["EARLIER", "Spending", "budgets_page"]

EARLIER = "before it was made"
_UNSAID = "not said"  # by earlier versions


@dataclass(frozen=True)
class Spending:
    """One data set's budget, and the share of it that was spent, by whom, at each of `times`: when it was made, at each of its
    charges since then, and now."""

    account: Account
    times: tuple[datetime, ...]
    by: Mapping[str, tuple[float, ...]]

    @classmethod
    def of(cls, log: SpendLog, account: Account) -> Spending:
        """In the order of the log. What was charged before the budget was made is nobody's."""
        entries = log.history(account.budget.label)
        made = max(place for place, entry in enumerate(entries) if entry["kind"] == "budget")
        rule, spent = account.budget.rule, account.spent
        since = [(_time(entry["time"]), str(entry.get("by") or _UNSAID), costs_of(entry)) for entry in entries[made + 1 :]]
        earlier = _less(spent, [costs for _, _, costs in since])
        names = list(dict.fromkeys(name for _, name, _ in since))
        held = dict.fromkeys(names, 0.0)
        start = {EARLIER: rule.share(earlier, spent)} if any(entry["kind"] == "charge" for entry in entries[:made]) else {}
        rows = [{**start, **held}]
        for _, name, costs in since:
            held[name] += rule.share(costs, spent)
            rows.append({**start, **held})
        times = [_time(entries[made]["time"]), *(moment for moment, _, _ in since), datetime.now(UTC)]
        by = {name: tuple(row[name] for row in [*rows, rows[-1]]) for name in rows[-1]}
        return cls(account, tuple(times), by)

    @property
    def charges(self) -> int:
        """Since it was made."""
        return len(self.times) - 2

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
    return environment().get_template("budgets.html").render(drawn=drawn, log=log.where, head=log.head(), machine=machine())


def _less(spent: Amounts, parts: Sequence[Amounts]) -> Amounts:
    for part in parts:
        spent = added(spent, part, -1)
    return {kind: max(0.0, amount) for kind, amount in spent.items()}


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)
