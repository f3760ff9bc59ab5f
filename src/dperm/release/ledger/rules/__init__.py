"""By what rule a budget adds up: one file a rule."""

from dperm.release.ledger.rules.gdp import GdpFilter
from dperm.release.ledger.rules.plan import Plan
from dperm.release.ledger.rules.renyi import RenyiFilter
from dperm.release.ledger.rules.rule import Amounts, Rule, added, rule_from_dict

__all__ = ["Amounts", "GdpFilter", "Plan", "RenyiFilter", "Rule", "added", "rule_from_dict"]
