"""The picture of an attack: how many it finds against how many it accuses wrongly, and what the claim allows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from dperm._extras import needed

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from dperm.audit.result import AuditResult

_ATTACK, _CLAIM = "#0072B2", "#D55E00"


def curve_figure(result: AuditResult) -> Figure:
    """A figure of its own; ValueError for an attack that kept no curve."""
    with needed("matplotlib", "A figure"):
        from matplotlib.figure import Figure

    if not result.curve:
        raise ValueError(f"The attack {result.attack!r} kept no curve.")
    figure = Figure(figsize=(5.2, 4.0), layout="constrained")
    draw_curve(figure.add_subplot(), result)
    return figure


def draw_curve(axes: Any, result: AuditResult) -> None:
    """True against false positives on logarithmic axes; the shaded region is what the claimed profile rules out."""
    points = np.asarray(result.curve)
    floor = 10.0 ** np.floor(np.log10(1.0 / max(result.trials, 100)))
    if allowed := result.details.get("allowed"):
        limit = np.asarray(allowed)
        axes.fill_between(limit[:, 0], limit[:, 1], 1.0, color=_CLAIM, alpha=0.12, lw=0)
        axes.plot(limit[:, 0], limit[:, 1], color=_CLAIM, lw=1.2, label="the claim rules out more")
    points = np.maximum(points, floor)
    axes.step(points[:, 0], points[:, 1], where="post", color=_ATTACK, lw=1.8, label="this attack")
    diagonal = np.logspace(np.log10(floor), 0, 50)
    axes.plot(diagonal, diagonal, color=axes.xaxis.label.get_color(), alpha=0.6, lw=1, ls="--", label="guessing")
    axes.set(xscale="log", yscale="log", xlim=(floor, 1), ylim=(floor, 1))
    axes.set_xlabel("accused wrongly (false-positive rate)")
    axes.set_ylabel("found (true-positive rate)")
    axes.legend(frameon=False, loc="lower right", fontsize=9)
