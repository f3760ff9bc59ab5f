"""What data sets' budgets are and how they were spent over time, as a page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from dperm.release import SpendLog
from dperm.release.ledger import Account, Cost
from dperm.report.figures import budgets_figure
from dperm.report.page import environment, machine

__all__ = ["Spending", "budgets_page"]


@dataclass(frozen=True)
class Spending:
    """One data set's budget, and ε spent of it after each of its charges since it was made."""

    account: Account
    times: tuple[datetime, ...]
    epsilons: tuple[float, ...]

    @classmethod
    def of(cls, log: SpendLog, account: Account) -> Spending:
        """In the order of the log. What was charged before the budget was made is where it starts."""
        entries = log.history(account.budget.label)
        made = max(place for place, entry in enumerate(entries) if entry["kind"] == "budget")
        since = entries[made + 1 :]
        spent = Cost()
        if any(entry["kind"] == "charge" for entry in entries[:made]):
            later = (sum(entry[name] for entry in since) for name in ("rdp", "mass"))
            spent = Cost(*(whole - part for whole, part in zip((account.spent.rdp, account.spent.mass), later, strict=True)))
        times, epsilons = [_time(entries[made]["time"])], [account.budget.epsilon_of(spent)]
        for entry in since:
            spent += Cost(entry["rdp"], entry["mass"])
            times.append(_time(entry["time"]))
            epsilons.append(account.budget.epsilon_of(spent))
        return cls(account, tuple(times), tuple(epsilons))

    @property
    def charges(self) -> int:
        """Since it was made."""
        return len(self.times) - 1


def budgets_page(log: SpendLog, labels: Sequence[str] | None = None) -> str:
    """Of all data sets with a budget, or of these. ValueError where there is none."""
    accounts = [account for account in log.accounts_held() if labels is None or account.budget.label in labels]
    if not accounts:
        raise ValueError(f"Expected budgets in the spend log {log.where}, got none: `dperm budget create` makes one.")
    found = [Spending.of(log, account) for account in accounts]
    return (
        environment()
        .get_template("budgets.html")
        .render(found=found, figure=budgets_figure(found), log=log.where, head=log.head(), machine=machine())
    )


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)
