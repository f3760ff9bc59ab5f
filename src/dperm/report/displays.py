"""Pictures in scikit-learn's form: a display keeps what it draws, and `plot` draws it on axes of matplotlib's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self, get_args

import numpy as np

from dperm import _validate as check
from dperm._extras import needed
from dperm._types import Array
from dperm.report.candidates import DEFAULT
from dperm.report.effects import Effect, effects
from dperm.report.study import StudyResult
from dperm.utility import UtilityCurve
from dperm.utility.choose import Metric

if TYPE_CHECKING:
    from dperm.data import Schema
    from dperm.report.refits import Refits

_ACROSS, _WIDTH, _HEIGHT = 3, 3.6, 2.8
_MOST_BARS = 12
_COLOUR, _OTHER = "#0072B2", "#8c8c8c"


class EffectsDisplay:
    """What a linear model says of each column of a table.

    Parameters
    ----------
    effects : one `Effect` for each column that is drawn.
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

    def __init__(self, effects: Sequence[Effect], *, private: bool = False) -> None:
        if not effects:
            raise ValueError("Expected at least one effect, got none.")
        self.effects = tuple(effects)
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
        ax: Any = None,
    ) -> Self:
        """Draw the effects of a fitted linear estimator on rows that `schema` encoded.

        `columns` names those that are drawn (None: all); `label` and `refits` as of `effects`, with refits NOT PRIVATE.
        ValueError for columns that the schema does not have.
        """
        found = effects(model, schema, label, refits)
        known = {each.column: each for each in found}
        if unknown := [name for name in columns or () if name not in known]:
            raise ValueError(f"Expected columns among {list(known)[:20]}, got {unknown[0]!r}.")
        chosen = found if columns is None else [known[name] for name in columns]
        return cls(chosen, private=refits is not None).plot(ax)

    @classmethod
    def from_effects(cls, effects: Sequence[Effect], *, private: bool = False, ax: Any = None) -> Self:
        """Draw effects that were computed already."""
        return cls(effects, private=private).plot(ax)

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
            _draw(axes, effect)
        if ax is None or count > 1:
            _on_one_scale(drawn, self.effects)
        self.ax_, self.figure_ = np.array(drawn, dtype=object), drawn[0].figure
        return self


def _draw(axes: Any, effect: Effect) -> None:
    axes.set_title(effect.column, loc="left", fontsize=10, wrap=True)
    band = None if effect.noise is None else 2 * effect.noise
    if effect.sides is not None:
        rows, columns = effect.sides
        most = float(np.abs(effect.heights).max()) or 1.0
        table = effect.heights.reshape(len(rows), len(columns))
        shown = axes.imshow(table, cmap="PuOr", vmin=-most, vmax=most, aspect="auto", origin="lower")
        axes.set_yticks(range(len(rows)), [name[:14] for name in rows], fontsize=7)
        axes.set_xticks(range(len(columns)), [name[:14] for name in columns], fontsize=7, rotation=45, ha="right")
        axes.figure.colorbar(shown, ax=axes)
    elif effect.is_curve:
        places = np.array(effect.places, dtype=np.float64)
        if band is not None:
            axes.fill_between(places, effect.heights - band, effect.heights + band, color=_COLOUR, alpha=0.2, linewidth=0)
        axes.plot(places, effect.heights, color=_COLOUR)
        axes.axhline(0.0, color=_OTHER, linewidth=0.7)
        if effect.missing is not None:
            axes.axhline(effect.missing, color="#D55E00", linestyle=":", label="missing")
            axes.legend(frameon=False, fontsize=8)
        if effect.log:
            axes.set_xscale("symlog" if places[0] <= 0 else "log")
    else:
        _bars(axes, effect, band)


def _bars(axes: Any, effect: Effect, band: Array | None) -> None:
    """Categories from the lowest to the highest; of very many those at both ends."""
    order = np.argsort(effect.heights)
    if len(order) > _MOST_BARS:
        order = np.concatenate([order[: _MOST_BARS // 2], order[-_MOST_BARS // 2 :]])
    names = [str(effect.places[place])[:24] for place in order]
    heights = list(effect.heights[order])
    errors = None if band is None else list(band[order])
    if effect.missing is not None:
        names, heights = ["missing", *names], [effect.missing, *heights]
        errors = None if errors is None else [0.0, *errors]
    axes.barh(range(len(names)), heights, xerr=errors, color=_COLOUR, ecolor=_OTHER, height=0.7)
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.axvline(0.0, color=_OTHER, linewidth=0.7)


def _on_one_scale(drawn: Any, found: Sequence[Effect]) -> None:
    """Heights of all columns on the same scale, so that a look compares them."""
    pairs = [(axes, effect) for axes, effect in zip(drawn, found, strict=True) if effect.sides is None]
    if not pairs:
        return
    ends = [axes.get_ylim() if effect.is_curve else axes.get_xlim() for axes, effect in pairs]
    low, high = min(end[0] for end in ends), max(end[1] for end in ends)
    for axes, effect in pairs:
        (axes.set_ylim if effect.is_curve else axes.set_xlim)(low, high)


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
