"""Strategies for correlated noise, which later steps partly take back (matrix mechanisms, DP-FTRL); one file for each.

A strategy is a lower-triangular matrix C over the steps of a run. What is released is C·G + Z, with the steps' sums G and
independent noise Z, and what the update sees is Ĝ = C⁻¹(C·G + Z) = G + C⁻¹Z: the same sums, with noise that is correlated from
step to step. `participation` says how far one record moves C·G, `workload` how much of C⁻¹Z is left in a trained model.

To add a strategy, derive from `Strategy` or `Toeplitz` in a file here; all modules are imported.
"""

import pkgutil
from importlib import import_module

from dperm.gradient.correlation.participation import Apart, Once, Participation, Periodic, squared_sensitivity
from dperm.gradient.correlation.strategy import (
    LARGEST_KEPT,
    BestFor,
    Independent,
    Memory,
    Strategy,
    Toeplitz,
    predicted_error,
    strategies,
)
from dperm.gradient.correlation.workload import Workload

for _module in pkgutil.iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")

__all__ = [
    "LARGEST_KEPT",
    "Apart",
    "BestFor",
    "Independent",
    "Memory",
    "Once",
    "Participation",
    "Periodic",
    "Strategy",
    "Toeplitz",
    "Workload",
    "predicted_error",
    "squared_sensitivity",
    "strategies",
]
