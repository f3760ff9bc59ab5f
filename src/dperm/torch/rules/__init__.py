"""How each kind of layer turns its input and output gradient into per-example gradients: one short file each.

A rule runs the module with detached parameters and taps its output. It is registered for the class whose `forward` it
stands for; a subclass with a `forward` of its own is another layer and gets the fallback. Every module here is imported: a
new rule is one file.
"""

import importlib
import pkgutil

from dperm.torch.rules.fallback import fallback, record_by_record
from dperm.torch.rules.registry import Rule, reason_to_refuse, rule_of, weight_by_hook

__all__ = ["Rule", "fallback", "reason_to_refuse", "record_by_record", "rule_of", "weight_by_hook"]

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
