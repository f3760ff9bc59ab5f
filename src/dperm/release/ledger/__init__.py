"""The spend log and the budgets in it."""

from dperm.release.ledger.budgets import Account, Budget, Cost
from dperm.release.ledger.log import Charge, SpendLog, only_claimed, spend_log, thrown_away

__all__ = ["Account", "Budget", "Charge", "Cost", "SpendLog", "only_claimed", "spend_log", "thrown_away"]
