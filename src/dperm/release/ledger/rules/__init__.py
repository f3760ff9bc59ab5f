"""Budget rules: how the charges to one budget add up, one file for each rule.

A rule states the cost of an event and the total that (ε, δ) allows. All modules are imported, so that a budget that is read
from a log finds its rule. A rule's name is stored in logs and must not change.
"""

import pkgutil
from importlib import import_module

from dperm.release.ledger.rules.gdp import GdpFilter
from dperm.release.ledger.rules.plan import Plan
from dperm.release.ledger.rules.renyi import RenyiFilter
from dperm.release.ledger.rules.rule import Amounts, Rule, added, lessened, rule_from_dict

for _module in pkgutil.iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")

__all__ = ["Amounts", "GdpFilter", "Plan", "RenyiFilter", "Rule", "added", "lessened", "rule_from_dict"]
