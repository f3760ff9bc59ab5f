"""Non-private minimisers that certify how close they came."""

from dperm.solvers.many import minimise_many
from dperm.solvers.newton import Solution, SolverError, StronglyConvex, minimise

__all__ = ["Solution", "SolverError", "StronglyConvex", "minimise", "minimise_many"]
