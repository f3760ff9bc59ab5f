"""How each function of torch turns its input and output gradient into per-example gradients: one short file each.

A rule runs the function with detached parameters and taps its output. It sees all records at once, first along the first
axis, and what it computes for one of them depends on that one alone: each rule's docstring says why. Every module here is
imported: a new rule is one file.
"""

import importlib
import pkgutil

from dperm.torch.engine.tracing import rule_for

__all__ = ["rule_for"]

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
