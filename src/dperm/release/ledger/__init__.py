"""The spend log, in SQLite or PostgreSQL, and the budgets of data sets that are kept in it.

Entries are appended and hash-chained, never changed. The rules of budgets are in `rules`. Users reach it by
`dperm.release.spend_log` and the commands `dperm account` and `dperm budget`.
"""

from dperm.release.ledger.budgets import Account, Budget
from dperm.release.ledger.log import Charge, Part, SpendLog, only_claimed, spend_log, thrown_away
from dperm.release.ledger.rules import GdpFilter, Plan, RenyiFilter, Rule
from dperm.release.ledger.settlements import Settlement

__all__ = [
    "Account",
    "Budget",
    "Charge",
    "GdpFilter",
    "Part",
    "Plan",
    "RenyiFilter",
    "Rule",
    "Settlement",
    "SpendLog",
    "only_claimed",
    "spend_log",
    "thrown_away",
]
