"""What the heights of effects are measured in, in words for people who have never seen a log-odds."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from dperm.data import Schema
from dperm.objectives import Logistic, QuantileLoss
from dperm.objectives.targets import Log

_DIGITS = 3  # of an amount


@dataclass(frozen=True)
class Heights:
    """The unit of heights, and how a number of them is said.

    Attributes
    ----------
    axis : str
        The unit, for an axis.
    up, down : str
        What a height above 0 does, and one below.
    explained : str
        A sentence that says how large a height is.
    kind : str
        "points" of a score, "amount" of the target, or "factor" of expected counts.
    label : str
        What is predicted: the target, or the label that points are for, as "target = label".
    """

    axis: str
    up: str
    down: str
    explained: str
    kind: str
    label: str = ""

    @property
    def none(self) -> str:
        """The height that changes nothing."""
        return "×1" if self.kind == "factor" else "0"

    def said(self, height: float) -> str:
        """A height as a number with its sign, or as a factor."""
        if self.kind == "factor":
            return f"×{math.exp(min(height, 700.0)):.{_DIGITS}g}"
        if self.kind == "points":
            return f"{round(height, 2) + 0.0:+.2f}"  # 0 has no minus
        return signed(height)

    def level(self, total: float) -> str:
        """A sum of heights and the constant: points, or a number in the target's units."""
        if self.kind == "points":
            return f"{total:.2f}"
        return plain(math.exp(min(total, 700.0)) if self.kind == "factor" else total, 4, least=1000)

    def size(self, height: float) -> str:
        """How far apart two heights are, without a sign."""
        if self.kind == "factor":
            return f"a factor of {math.exp(min(height, 700.0)):.{_DIGITS}g}"
        return f"{height:.2f}" if self.kind == "points" else plain(abs(height), least=1000)

    def tick(self, height: float) -> str:
        """A height beside an axis."""
        if self.kind == "factor":
            return f"×{math.exp(min(height, 700.0)):.3g}"
        return plain(height, 4, least=1000)


def signed(amount: float) -> str:
    """An amount with its sign, to three digits."""
    return ("+" if amount > 0 else "") + plain(amount, least=1000)


def plain(number: float, digits: int = _DIGITS, least: float = 10_000) -> str:
    """A number to so many digits, with commas between thousands from `least` on: below 10,000 a place may be a year."""
    if not number:
        return "0"
    decimals = digits - 1 - math.floor(math.log10(abs(number)))
    rounded = round(number, decimals)
    if abs(rounded) >= 1e15 or decimals >= 12:
        return f"{rounded:.{digits}g}"
    text = f"{rounded:{',' if abs(rounded) >= least else ''}.{max(decimals, 0)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def heights_of(model: Any, schema: Schema, label: Any = None) -> Heights:
    """The unit of a model's effects: see `dperm.report.effect_values.effects`, which knows the label."""
    loss, classes = model.objective_.loss, list(getattr(model, "classes_", ()))
    if not classes:
        return _of_numbers(loss, schema)
    shown = classes[-1] if label is None else label
    meant = f"{schema.target} = {shown}"
    up, down = f"makes {meant} likelier", f"makes {meant} less likely"
    if loss.targets.ranked:
        rising, falling = ("higher", "lower") if shown == classes[-1] else ("lower", "higher")
        explained = (
            f"Heights are points on one scale from {classes[0]} to {classes[-1]}: one point more multiplies the odds of {rising} "
            f"answers than any given one by 2.72."
        )
        up, down = f"makes {rising} answers likelier", f"makes {falling} answers likelier"
        return Heights(f"points towards {shown}", up, down, explained, "points", meant)
    if loss.outputs > 1 or (isinstance(loss.plain, Logistic) and not loss.plain.margin):
        rest = " where it says nothing of the others" if loss.outputs > 1 else ""
        explained = (
            f"Heights are points of log-odds: one point more multiplies the odds of {meant} by 2.72{rest}, which takes a chance "
            "of 50 % to 73 %."
        )
        return Heights(f"points (log-odds) for {shown}", up, down, explained, "points", meant)
    if isinstance(loss.plain, Logistic):
        chances = loss.plain.link.inverse(np.array([1.0, 3.0]))
        one, three = (f"{100 * chance:.0f} %" for chance in chances)
        explained = (
            f"Heights are points of the model's score, which is above 0 where {meant} is the likelier answer. From an even "
            f"chance (50 %) one point more makes {one} and three make {three}. They are no log-odds, because the model was "
            "trained with a margin."
        )
    else:
        explained = f"Heights are points of the model's score: it answers {meant} where they add up to more than 0."
    return Heights(f"points for {shown}", up, down, explained, "points", meant)


def _of_numbers(loss: Any, schema: Schema) -> Heights:
    target = schema.target
    if isinstance(loss.plain, QuantileLoss):
        target = f"the {loss.plain.quantile:g} quantile of {target}"
    if isinstance(loss.plain.link, Log):
        explained = f"Heights are factors: ×2 doubles the expected {target}, ×0.5 halves it."
        return Heights(f"{target}, times", f"raises {target}", f"lowers {target}", explained, "factor", f"expected {target}")
    explained = f"Heights are amounts of {schema.target}, in its own units"
    if (known := schema.target_range) is not None:
        explained += f", where it lies between {plain(known.low, 6)} and {plain(known.high, 6)}"
    return Heights(schema.target, f"raises {target}", f"lowers {target}", f"{explained}.", "amount", target)
