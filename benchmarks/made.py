"""Made tables whose truth is additive, for rules that are to know no real data set."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["made_table"]


def made_table(
    records: int, numbers: int, categories: int, seed: int, *, knots: int = 8, strength: float = 1.0, shift: float = 0.0
) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
    """Rows (records, d), encoded as curves are, and labels ±1.

    Numbers are even, skewed, rounded, or 0 for most, and partly correlated; two fifths of them say nothing. The others say a
    line, a step, a bump or a wave. Categories have 2 to 15 values of unequal shares. `shift` moves the log-odds: below 0 the
    second class is rare.
    """
    rng = np.random.default_rng([19, seed])
    score, common, blocks = np.zeros(records), rng.normal(size=records), list[NDArray[np.float32]]()
    for _ in range(numbers):
        even = 1 / (1 + np.exp(-1.7 * (0.8 * rng.normal(size=records) + 0.6 * common * rng.choice([-1, 0, 1]))))
        laws = (even, even**3, np.round(even * 10) / 10, np.where(rng.random(records) < 0.7, 0.0, even**2))
        values = laws[rng.integers(4)]
        says = (
            2 * values - 1,
            np.where(values > np.quantile(values, 0.6), 1.0, -1.0),
            2 * np.exp(-(((values - 0.5) / 0.15) ** 2)),
            np.sin(4 * values),
        )[rng.integers(4)]
        weight = 0.0 if rng.random() < 0.4 else strength * rng.normal()
        score += weight * (says - says.mean())
        blocks.append(_hats(values, knots))
    for _ in range(categories):
        count = int(rng.integers(2, 16))
        shares = 1 / np.arange(1, count + 1)
        codes = rng.choice(count, size=records, p=shares / shares.sum())
        effects = 0.7 * strength * rng.normal(size=count) * (rng.random() < 0.7)
        score += effects[codes] - effects[codes].mean()
        blocks.append(np.eye(count, dtype=np.float32)[codes])
    labels = np.where(rng.random(records) < 1 / (1 + np.exp(-(2 * score + shift))), 1.0, -1.0)
    return np.concatenate(blocks, axis=1) / np.float32(np.sqrt(numbers + categories) * (1 + 2.0**-20)), labels


def _hats(values: NDArray[np.float64], knots: int) -> NDArray[np.float32]:
    at = values * (knots - 1)
    return np.maximum(0.0, 1 - np.abs(at[:, None] - np.arange(knots))).astype(np.float32)
