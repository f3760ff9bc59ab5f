"""Post-processing of a released gradient. A function of released values alone, so it costs nothing."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

__all__ = ["Identity", "Post"]


@dataclass(frozen=True)
class Post(ABC):
    @abstractmethod
    def apply(self, gradient: Any) -> Any:
        """The gradient handed to the update, (p,)."""


@dataclass(frozen=True)
class Identity(Post):
    def apply(self, gradient: Any) -> Any:
        return gradient
