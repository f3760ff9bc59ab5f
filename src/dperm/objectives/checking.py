"""Losses that dperm did not write: whether their stated constants contradict what they do."""

from __future__ import annotations

import math

import numpy as np

from dperm._family import ours
from dperm.objectives.losses import Loss

__all__ = ["foreign", "refuse_contradictions"]

_FAR = 1e4  # predictions, where no ball bounds them
_POINTS = 2001
_ROUNDING = 1e-6
_WEIGHTS = np.array([-1e6, 0.0, 0.5, 1.0, 1e6])


def foreign(loss: Loss) -> bool:
    """Whether the loss is a stranger's: also one derived from ours, of which nothing is proved, and one of ours around it."""
    return not (ours(type(loss)) and ours(type(loss.plain)))


def refuse_contradictions(loss: Loss, row_norm: float, radius: float | None) -> None:
    """ValueError where, at some prediction that a row of norm `row_norm` can have and some target, the loss is steeper or bends
    more than `lipschitz` and `smoothness` state, is not convex, or has another slope or curvature than its values show.

    Predictions up to 10⁴ are looked at where no ball bounds them. Targets: ±1, or those that `admit` makes of ±10⁶; where the
    loss weighs, also with weights, those that it makes of ±10⁶.
    """
    if loss.outputs > 1:
        raise ValueError(f"The loss {loss.name} has {loss.outputs} outputs: of a stranger's, one is what can be checked.")
    far = _FAR if radius is None else radius * row_norm
    near = np.linspace(-min(far, 10.0), min(far, 10.0), _POINTS)
    wide = np.geomspace(1e-3, 1.0, _POINTS // 2) * far
    t = np.unique(np.concatenate([near, wide, -wide]))
    steepest, most = loss.lipschitz(row_norm) / row_norm, loss.smoothness(row_norm) / row_norm**2
    extremes = np.array(loss.extremes if loss.classification else [*loss.extremes, *loss.admit(np.array([-1e6, 0.0, 1e6]))])
    looked_at = [np.full(len(t), float(target)) for target in extremes]
    if loss.weighs:
        for target in extremes:
            weighed = loss.admit(np.column_stack([np.full(len(_WEIGHTS), float(target)), _WEIGHTS]))
            looked_at += [np.tile(each, (len(t), 1)) for each in weighed]
    for y in looked_at:
        target = ", weight ".join(f"{number:g}" for number in np.atleast_1d(y[0]))
        with np.errstate(over="ignore", invalid="ignore"):
            raw = [np.asarray(of(t.copy(), y.copy())) for of in (loss.value, loss.slope, loss.curvature)]
        if any(values.dtype != np.float64 for values in raw):
            types = ", ".join(str(values.dtype) for values in raw)
            raise ValueError(f"Expected the loss {loss.name} to compute in double precision, got {types}.")
        arrays = [np.asarray(values, dtype=float) for values in raw]
        value, slope, curvature = arrays
        if not np.isfinite(arrays).all():
            raise ValueError(f"The loss {loss.name} is not finite at a prediction within ±{far:g} and the target {target}.")
        worst = int(np.argmax(np.abs(slope)))
        if abs(slope[worst]) > steepest * (1 + _ROUNDING):
            raise ValueError(
                f"The loss {loss.name} states a slope of at most {steepest:g}, but has {slope[worst]:g} at the prediction "
                f"{t[worst]:g} and the target {target}"
                + (": state the ball that its constants hold in." if radius is None else ".")
            )
        if curvature.min() < 0 or curvature.max() > most * (1 + _ROUNDING):
            raise ValueError(
                f"The loss {loss.name} states a curvature between 0 and {most:g}, but has {curvature.min():g} to "
                f"{curvature.max():g}."
            )
        step, rounding = np.diff(t), _ROUNDING * (1 + np.abs(value).max())
        rise, turn = np.diff(value), np.diff(slope)
        low, high = np.minimum(slope[:-1], slope[1:]), np.maximum(slope[:-1], slope[1:])
        if (rise < low * step - rounding).any() or (rise > high * step + rounding).any():
            raise ValueError(f"The loss {loss.name} has another slope than its values show, or is not convex.")
        slack = _ROUNDING * (1 + steepest if math.isfinite(steepest) else 1 + np.abs(slope).max())
        if (turn < -slack).any() or (turn > most * step + slack).any():
            raise ValueError(f"The loss {loss.name} has a slope that does not rise, or bends more than the {most:g} stated.")
