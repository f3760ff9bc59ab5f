"""Influence: what each record does to a model, and what its leaving or arriving would do.

Everything here looks at records: nothing of it is private, and nothing of it may leave.
"""

from typing import TYPE_CHECKING, Any

from dperm.influence.linear import LinearInfluence

if TYPE_CHECKING:
    from dperm.influence.network import NetworkInfluence

__all__ = ["LinearInfluence", "NetworkInfluence"]


def __getattr__(name: str) -> Any:
    """Networks need PyTorch, which linear models do without."""
    if name == "NetworkInfluence":
        from dperm.influence.network import NetworkInfluence

        return NetworkInfluence
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
