"""Pictures in scikit-learn's form: a display keeps what it draws, and `plot` draws it on axes of matplotlib's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self, get_args

import numpy as np

from dperm import _validate as check
from dperm._extras import needed
from dperm._types import Array
from dperm.report.candidates import DEFAULT
from dperm.report.effect_figures import Scale, draw_effect, title_of
from dperm.report.effect_values import Effect, deviations_for, effects, noise_of
from dperm.report.effect_words import heights_of
from dperm.report.level_noise import LevelNoise
from dperm.report.study import StudyResult
from dperm.utility import UtilityCurve
from dperm.utility.choose import Metric

if TYPE_CHECKING:
    from dperm.data import Schema
    from dperm.report.refits import Refits

_ACROSS, _WIDTH, _HEIGHT = 3, 3.6, 2.8
_TITLE = 34  # letters in a line of a title
_COLOUR, _OTHER = "#0072B2", "#8c8c8c"


class EffectsDisplay:
    """What a linear model says of each column of a table, drawn as on the page of `dperm effects`.

    Parameters
    ----------
    effects : one `Effect` for each column that is drawn.
    scale : what the pictures share: the heights' unit and range, and the width of bands.
    private : whether they were made with refits to the records: the picture is then for the data holder alone, and says so.

    Attributes
    ----------
    ax_ : (k,) array of the axes that the last `plot` drew on, one for each column
    figure_ : the figure that holds them

    Examples
    --------
    >>> from dperm.data import Column, Schema
    >>> from dperm.estimators import DPRidge
    >>> from dperm.report import EffectsDisplay
    >>> schema = Schema("rooms", "price", (Column("size", "number", (0, 100)), Column("price", "label")), target_range=(0, 1))
    >>> model = DPRidge(public_size=2, delta=1e-3).fit([[0.1], [0.9]], [0.1, 0.9])
    >>> EffectsDisplay.from_estimator(model, schema).ax_.shape
    (1,)
    """

    def __init__(self, effects: Sequence[Effect], scale: Scale, *, private: bool = False) -> None:
        if not effects:
            raise ValueError("Expected at least one effect, got none.")
        self.effects = tuple(effects)
        self.scale = scale
        self.private = private

    @classmethod
    def from_estimator(
        cls,
        model: Any,
        schema: Schema,
        *,
        columns: Sequence[str] | None = None,
        label: Any = None,
        refits: Refits | None = None,
        noise: LevelNoise | None = None,
        ax: Any = None,
    ) -> Self:
        """Draw the effects of a fitted linear estimator on rows that `schema` encoded.

        `columns` names those that are drawn (None: all); `label`, `refits` and `noise` as of `effects`, with refits NOT PRIVATE.
        ValueError for columns that the schema does not have.
        """
        noise = noise_of(model, schema, label, refits, noise)
        found = effects(model, schema, label, noise=noise)
        known = {each.column: each for each in found}
        if unknown := [name for name in columns or () if name not in known]:
            raise ValueError(f"Expected columns among {list(known)[:20]}, got {unknown[0]!r}.")
        chosen = found if columns is None else [known[name] for name in columns]
        scale = Scale.of(found, heights_of(model, schema, label), deviations_for(found, noise))
        return cls(chosen, scale, private=noise is not None and noise.private).plot(ax)

    def plot(self, ax: Any = None) -> Self:
        """Draw on `ax`, as many axes as effects, or on a new figure of pyplot's. ValueError for another number of axes."""
        with needed("matplotlib", "A picture"):
            from matplotlib import pyplot

        count = len(self.effects)
        if ax is None:
            across = min(_ACROSS, count)
            down = -(-count // across)
            size = _WIDTH * across, _HEIGHT * down
            figure, grid = pyplot.subplots(down, across, figsize=size, layout="constrained", squeeze=False)
            for spare in grid.flat[count:]:
                spare.remove()
            drawn = grid.flat[:count]
            if self.private:
                figure.suptitle("PRIVATE: for the data holder alone", fontsize=9)
        else:
            drawn = np.atleast_1d(np.asarray(ax, dtype=object)).ravel()
        if len(drawn) != count:
            raise ValueError(f"Expected {count} axes, one for each effect, got {len(drawn)}.")
        for axes, effect in zip(drawn, self.effects, strict=True):
            axes.set_title(title_of(effect, _TITLE), loc="left", fontsize=10)
            draw_effect(axes, effect, self.scale)
        self.ax_, self.figure_ = np.array(drawn, dtype=object), drawn[0].figure
        return self


class EpsilonCurveDisplay:
    """What each ε buys: a score along ε, with a band. It follows from the records: for the data holder alone.

    Parameters
    ----------
    epsilons, mean, low, high : (k,) each, the score's mean and the ends of its band.
    name : of the score.
    target : a score to reach, drawn as a line; None: none.

    Attributes
    ----------
    ax_, figure_ : the axes and the figure that the last `plot` drew on
    line_ : the line of the mean
    """

    def __init__(self, epsilons: Array, mean: Array, low: Array, high: Array, *, name: str, target: float | None = None) -> None:
        self.epsilons, self.mean, self.low, self.high = epsilons, mean, low, high
        self.name = name
        self.target = target

    @classmethod
    def from_curve(cls, curve: UtilityCurve, metric: Metric = "accuracy", *, target: float | None = None, ax: Any = None) -> Self:
        """Draw what `epsilon_path` of an estimator, or `dperm choose-epsilon`, found: the middle 80 % of draws of the noise."""
        check.choice("metric", metric, get_args(Metric))
        return cls(curve.epsilons, *curve.band(metric), name=metric.replace("_", " "), target=target).plot(ax)

    @classmethod
    def from_study(cls, study: StudyResult, mechanism: str | None = None, *, target: float | None = None, ax: Any = None) -> Self:
        """Draw the score that ranks in a comparison, of one mechanism (None: the default, or the first), with its interval.
        ValueError for one that was not compared."""
        key = mechanism or (DEFAULT if DEFAULT in study.keys else study.keys[0])
        check.choice("mechanism", key, study.keys)
        cells = [study.cell(key, epsilon) for epsilon in study.study.epsilons]
        mean, spread = np.array([cell.mean for cell in cells]), np.nan_to_num([cell.spread for cell in cells])
        epsilons = np.array(study.study.epsilons, dtype=np.float64)
        return cls(epsilons, mean, mean - spread, mean + spread, name=study.metric, target=target).plot(ax)

    def plot(self, ax: Any = None) -> Self:
        """Draw on `ax`, or on a new figure of pyplot's."""
        with needed("matplotlib", "A picture"):
            from matplotlib import pyplot
            from matplotlib.ticker import FuncFormatter

        axes = pyplot.subplots(layout="constrained")[1] if ax is None else ax
        axes.fill_between(self.epsilons, self.low, self.high, color=_COLOUR, alpha=0.2, linewidth=0)
        (self.line_,) = axes.plot(self.epsilons, self.mean, color=_COLOUR, label=self.name)
        if self.target is not None:
            axes.axhline(self.target, color=_OTHER, linestyle=":", label="target")
            axes.legend(frameon=False)
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.set_xlabel("ε")
        axes.set_ylabel(f"{self.name} on held-out records (not private)")
        self.ax_, self.figure_ = axes, axes.figure
        return self
