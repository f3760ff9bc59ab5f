"""The spend log and the budgets in it."""

from dperm.release.ledger.log import Charge, SpendLog, only_claimed, spend_log, thrown_away

__all__ = ["Charge", "SpendLog", "only_claimed", "spend_log", "thrown_away"]
