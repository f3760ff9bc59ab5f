"""Losses that dperm did not write: whether what they state contradicts what they do."""

from __future__ import annotations

import math

import numpy as np

from dperm._family import ours
from dperm._types import Array
from dperm.objectives.losses import Loss

_FAR = 1e4  # predictions, where no ball bounds them
_POINTS = 2001
_ROUNDING = 1e-6
_WEIGHTS = np.array([-1e6, 0.0, 0.5, 1.0, 1e6])
_BETWEEN = 21  # targets from one extreme to the other
_BEYOND = np.array([-1e6, -1e3, -10.0, -1.0, -0.5, 0.0, 0.5, 1.0, 10.0, 1e3, 1e6])
_APART = 1e-9  # relative difference within which a record's numbers are the same, whoever else is asked about


def foreign(loss: Loss) -> bool:
    """Whether the loss is a stranger's: also one derived from ours, of which nothing is proved, and one of ours around it."""
    return not (ours(type(loss)) and ours(type(loss.plain)))


def refuse_contradictions(loss: Loss, row_norm: float, radius: float | None) -> None:
    """ValueError where, at some prediction that a row of norm `row_norm` can have and some target, the loss is steeper or bends
    more than `lipschitz` and `smoothness` state, lies further above its least value at 0 than `at_zero` states, is not convex,
    has another slope or curvature than its values show, states more rounding than minimisers allow for, or answers otherwise
    beside other records than alone.

    Predictions up to 10⁴ are looked at where no ball bounds them. Targets: the extremes, some between them, and what `admit`
    takes, or makes, of numbers up to ±10⁶; where the loss weighs, also with weights, those that it makes of ±10⁶.
    """
    if loss.outputs > 1:
        raise ValueError(f"The loss {loss.name} has {loss.outputs} outputs: of a stranger's, one is what can be checked.")
    far = _FAR if radius is None else radius * row_norm
    near = np.linspace(-min(far, 10.0), min(far, 10.0), _POINTS)
    wide = np.geomspace(1e-3, 1.0, _POINTS // 2) * far
    t = np.unique(np.concatenate([near, wide, -wide]))
    steepest, most = loss.lipschitz(row_norm) / row_norm, loss.smoothness(row_norm) / row_norm**2
    for largest in (0.0, min(1.0, far), far):
        room = 2.0**-51 * most * (1 + loss.at_zero() + largest) + 24 * 2.0**-53 * steepest
        if not (stated := loss.slope_error(largest, steepest, most)) <= room * (1 + _ROUNDING):
            raise ValueError(
                f"The loss {loss.name} states slopes that are wrong by {stated:.3g} (`slope_error`) at predictions up to "
                f"{largest:g}: a minimiser's tolerance has room for {room:.3g}."
            )
    targets = _targets(loss)
    seen = [_seen(loss, t, np.repeat(target[None], len(t), axis=0), far) for target in targets]
    for target, (value, slope, curvature) in zip(targets, seen, strict=True):
        where = _said(target)
        worst = int(np.argmax(np.abs(slope)))
        if abs(slope[worst]) > steepest * (1 + _ROUNDING):
            raise ValueError(
                f"The loss {loss.name} states a slope of at most {steepest:g}, but has {slope[worst]:g} at the prediction "
                f"{t[worst]:g} and the target {where}"
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
        above = value[np.argmin(np.abs(t))] - value.min()
        if above > loss.at_zero() + _ROUNDING * (1 + abs(above)):
            raise ValueError(
                f"The loss {loss.name} states that it lies at most {loss.at_zero():g} above its least value at the prediction 0 "
                f"(`at_zero`), but it lies {above:g} above it at the target {where}."
            )
    for kind in {target.shape for target in targets}:  # without weights, and with them
        of_kind = [place for place, target in enumerate(targets) if target.shape == kind]
        _refuse_company(loss, t, np.array([targets[place] for place in of_kind]), np.array([seen[place] for place in of_kind]))


def _targets(loss: Loss) -> list[Array]:
    """Targets as the loss admits them, numbers and, where it weighs, with a weight (2,). ValueError where it makes another of one
    that stands among others."""
    low, high = sorted(loss.targets.extremes)
    numbers = _admitted(loss, np.unique([*np.linspace(low, high, _BETWEEN), *_BEYOND]))
    targets = list(dict.fromkeys([*loss.targets.extremes, *map(float, numbers)]))
    if loss.weighs:
        weights = np.tile(_WEIGHTS, len(targets))
        targets += _admitted(loss, np.column_stack([np.repeat(targets, len(_WEIGHTS)), weights]))
    return [np.asarray(target, dtype=np.float64) for target in targets]


def _admitted(loss: Loss, tried: Array) -> list[Array]:
    """What the loss makes of those of these targets that it takes. ValueError where that depends on the others."""
    taken, alone = list[Array](), list[Array]()
    for one in tried:
        try:
            made = np.asarray(loss.admit(one[None].copy()), dtype=np.float64)
        except ValueError:
            continue  # no target of this loss
        taken.append(one)
        alone.append(made[0])
    if taken and not np.array_equal(np.asarray(loss.admit(np.array(taken))), np.array(alone)):
        raise ValueError(f"The loss {loss.name} admits a target beside others as another than the same target alone.")
    return alone


def _seen(loss: Loss, t: Array, y: Array, far: float) -> tuple[Array, Array, Array]:
    """Values, slopes and curvatures. ValueError where they are not finite, or not double precision."""
    with np.errstate(over="ignore", invalid="ignore"):
        raw = [np.asarray(of(t.copy(), y.copy())) for of in (loss.value, loss.slope, loss.curvature)]
    if any(values.shape != t.shape for values in raw):
        shapes = ", ".join(str(values.shape) for values in raw)
        raise ValueError(
            f"Expected the loss {loss.name} to give one value, slope and curvature a record, shape {t.shape}, got {shapes}."
        )
    if any(values.dtype != np.float64 for values in raw):
        types = ", ".join(str(values.dtype) for values in raw)
        raise ValueError(f"Expected the loss {loss.name} to compute in double precision, got {types}.")
    if not np.isfinite(raw).all():
        raise ValueError(f"The loss {loss.name} is not finite at a prediction within ±{far:g} and the target {_said(y[0])}.")
    value, slope, curvature = raw
    return value, slope, curvature


def _refuse_company(loss: Loss, t: Array, targets: Array, seen: Array) -> None:
    """ValueError where a record's numbers depend on who else is asked about, at predictions t (k,) and targets (m, …) of which
    all alike gave `seen` (m, 3, k)."""
    which, at = np.divmod(np.random.default_rng(0).permutation(len(t) * len(targets))[: len(t)], len(t))
    for place, of in enumerate((loss.value, loss.slope, loss.curvature)):
        for some in (slice(None), slice(1, None, 3), slice(0, 1)):
            together = np.asarray(of(t[at[some]], targets[which[some]]))
            if not np.allclose(together, seen[which[some], place, at[some]], rtol=_APART, atol=_APART):
                name = ("value", "slope", "curvature")[place]
                raise ValueError(f"The loss {loss.name} has another {name} for a record beside others than by itself.")


def _said(target: Array) -> str:
    return ", weight ".join(f"{number:g}" for number in np.atleast_1d(target))
