"""Non-private minimisers; those of one output certify how close they came."""

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
