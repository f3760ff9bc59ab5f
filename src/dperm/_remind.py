"""Warnings about what is allowed and is seldom meant. They are for the data holder: they look at the data."""

from __future__ import annotations

import warnings

__all__ = ["remind_of_delta", "remind_of_size"]


def remind_of_delta(delta: float, size: int, *, stacklevel: int) -> None:
    if delta >= 1 / size:
        warnings.warn(
            f"delta = {delta:g} >= 1/n = {1 / size:.3g}: a mechanism that publishes one whole record would pass. "
            "Choose a smaller delta.",
            UserWarning,
            stacklevel=stacklevel + 1,
        )


def remind_of_size(public_size: int, records: int, consequence: str, *, stacklevel: int) -> None:
    """`consequence` of a number that is stated and is far from the number of records."""
    if not records / 2 <= public_size <= 2 * records:
        warnings.warn(
            f"public_size = {public_size}, but there are {records} records: {consequence}", UserWarning, stacklevel=stacklevel + 1
        )
