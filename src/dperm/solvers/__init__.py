"""Non-private minimisers; those of one output certify how close they came."""

from dperm.solvers.many import minimise_many
from dperm.solvers.newton import Solution, SolverError, StronglyConvex, minimise
from dperm.solvers.softmax import minimise_softmax

__all__ = ["Solution", "SolverError", "StronglyConvex", "minimise", "minimise_many", "minimise_softmax"]
