"""Influence: what each record does to a model, and what its leaving or arriving would do.

Everything here looks at records: nothing of it is private, and nothing of it may leave.
"""

from dperm.influence.linear import LinearInfluence

__all__ = ["LinearInfluence"]
