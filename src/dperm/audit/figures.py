"""The picture of an attack: how many it finds against how many it accuses wrongly, and what the claim allows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dperm.audit.result import AuditResult

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["curve_figure"]

_INK, _SOFT, _ACCENT, _BAD = "#222222", "#8a8a8a", "#1f5fa8", "#b3261e"


def curve_figure(result: AuditResult) -> Figure:
    """True against false positives on logarithmic axes; the shaded region is what the claimed profile rules out."""
    from matplotlib.figure import Figure

    if not result.curve:
        raise ValueError(f"The attack {result.attack!r} kept no curve.")
    figure = Figure(figsize=(5.2, 4.0), layout="constrained")
    axes = figure.add_subplot()
    points = np.asarray(result.curve)
    floor = max(1.0 / max(result.trials, 100), 1e-6)
    allowed = result.details.get("allowed")
    if allowed:
        limit = np.asarray(allowed)
        axes.fill_between(limit[:, 0], limit[:, 1], 1.0, color=_BAD, alpha=0.12, lw=0, label="ruled out by the claim")
        axes.plot(limit[:, 0], limit[:, 1], color=_BAD, lw=1.2)
    axes.plot(np.maximum(points[:, 0], floor), np.maximum(points[:, 1], floor), color=_ACCENT, lw=1.8, label="this attack")
    diagonal = np.logspace(np.log10(floor), 0, 50)
    axes.plot(diagonal, diagonal, color=_SOFT, lw=1, ls="--", label="guessing")
    axes.set(xscale="log", yscale="log", xlim=(floor, 1), ylim=(floor, 1))
    axes.set_xlabel("accused wrongly (false-positive rate)", color=_INK)
    axes.set_ylabel("found (true-positive rate)", color=_INK)
    axes.legend(frameon=False, loc="lower right", fontsize=9)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return figure
