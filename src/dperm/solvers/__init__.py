"""Minimisers without privacy, used inside mechanisms, audits and comparisons.

`approach` and `descend` never fail on any data set and are the ones that mechanisms may use; `minimise` raises `SolverError` if
its tolerance is not reached, so it is for audits, influence and comparisons. `minimise_many` solves many small problems at
once, for audits, and `minimise_softmax` certifies nothing.
"""

from dperm.solvers.descent import descend, most_steps
from dperm.solvers.many import minimise_many
from dperm.solvers.newton import MOST_EVALUATIONS, Solution, SolverError, StronglyConvex, approach, minimise
from dperm.solvers.softmax import minimise_softmax

__all__ = [
    "MOST_EVALUATIONS",
    "Solution",
    "SolverError",
    "StronglyConvex",
    "approach",
    "descend",
    "minimise",
    "minimise_many",
    "minimise_softmax",
    "most_steps",
]
