"""The spend log and the budgets in it."""

from dperm.release.ledger.budgets import Account, Budget
from dperm.release.ledger.log import Charge, SpendLog, only_claimed, spend_log, thrown_away
from dperm.release.ledger.rules import GdpFilter, Plan, RenyiFilter, Rule

__all__ = [
    "Account",
    "Budget",
    "Charge",
    "GdpFilter",
    "Plan",
    "RenyiFilter",
    "Rule",
    "SpendLog",
    "only_claimed",
    "spend_log",
    "thrown_away",
]
