"""Pictures of effects: a curve, bars or a map for each column, all on one scale."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dperm._extras import needed
from dperm._json import on_one_line
from dperm.data.schema.level_contrasts import MISSING
from dperm.report.effect_values import Effect, MayBeEmpty
from dperm.report.effect_words import Heights, plain
from dperm.report.figure_style import COLOURS, INK, STYLE, as_svg, words

with needed("matplotlib", "A figure"):
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter

_LINE, _BAR, _APART, _STANDS_OUT = COLOURS[5], COLOURS[1], COLOURS[6], COLOURS[4]
_MOST_BARS = 12  # of categories that the schema names; the others are in the table of all numbers
_CELL = 12  # letters of a name beside a map
_MOST_CELLS = 150  # of a map, beyond which its numbers are not shown where one points
_WIDTH = 4.6  # inches of a picture, which a page scales
_ACROSS = 3  # pictures, where one figure has all
_TITLE, _TITLE_LINES = 48, 4  # letters in a line of a title within a figure, and lines
_NAME, _NAME_LINES = 22, 2  # the same of a category
_SMALL = 8.0  # points
_ROOM = 0.06  # of the heights' span, that is left free above and below
_LETTER = 0.07  # inches that a letter of a number beside a bar takes
_INSIDE = 0.08  # of the heights' span, between the scale's end and the marker of a level beyond it
_MASS = 0.2  # of the axis, that the most records take below a curve
_LABELS = 0.22  # of the span, beside bars, for their numbers


@dataclass(frozen=True)
class Scale:
    """What the pictures of one model share: the lowest and the highest height that is drawn, the heights' unit, and how many
    standard deviations a band has."""

    low: float
    high: float
    heights: Heights
    deviations: float

    @classmethod
    def of(cls, found: Sequence[Effect], heights: Heights, deviations: float) -> Scale:
        """From the heights of levels that some record is taken to have, and their bands. Bands reach beyond these heights by as
        much as their span at most, and levels that maybe nobody has do not count: noise does not decide what can be seen."""
        known = [0.0]
        for effect in found:
            known += effect.heights[effect.kept].tolist()
            known += [level.height for level in effect.may_be_empty if level.counts]
        low, high = min(known), max(known)
        bands = [0.0]
        for effect in found:
            if effect.noise is not None:
                sides = (effect.heights - deviations * effect.noise, effect.heights + deviations * effect.noise)
                bands += [float(side[effect.kept].min(initial=0.0)) for side in sides]
                bands += [float(side[effect.kept].max(initial=0.0)) for side in sides]
        span = (high - low) or 1.0
        low, high = max(low - span, min(low, *bands)), min(high + span, max(high, *bands))
        room = _ROOM * ((high - low) or 1.0)
        return cls(low - room, high + room, heights, deviations)

    def within(self, height: float) -> float:
        """The height that is drawn: one beyond the scale ends where this does."""
        return min(max(height, self.low), self.high)

    def cuts(self, height: float) -> bool:
        """Whether the height is beyond the scale."""
        return not self.low <= height <= self.high


@dataclass(frozen=True)
class Mark:
    """A place on a picture, in % of its width and height from the upper left corner, and the numbers of what is there."""

    left: float
    top: float
    text: str


@dataclass(frozen=True)
class Picture:
    """One effect as inline SVG, with the places where its numbers are shown."""

    effect: Effect
    svg: str
    marks: tuple[Mark, ...]
    #: what the picture leaves out, as a sentence, or nothing
    remark: str = ""


def picture(effect: Effect, scale: Scale, *, private: bool = False) -> Picture:
    """Draw one effect, without its title. `private`: it says so in itself."""
    style: dict[Any, Any] = {**STYLE, "font.size": 9}
    with matplotlib.rc_context(style):
        figure = Figure(figsize=(_WIDTH, _height(effect)), layout="constrained")
        if private:
            figure.suptitle("PRIVATE: for the data holder alone", fontsize=_SMALL, x=0.99, ha="right")
        places = draw_effect(figure.add_subplot(), effect, scale)
        svg = as_svg(figure, f"effect of {effect.column}")  # which finds out where the axes are
        marks = [_mark(figure, axes, across, up, text) for axes, across, up, text in places]
    left_out = int(effect.kept.sum()) - _MOST_BARS
    drawn_partly = not effect.is_curve and effect.sides is None and left_out > 0
    remark = f"The {_MOST_BARS // 2} lowest and the {_MOST_BARS // 2} highest of {_MOST_BARS + left_out}." if drawn_partly else ""
    return Picture(effect, svg, tuple(marks), remark)


def effects_figure(found: Sequence[Effect], scale: Scale, *, private: bool = False) -> str:
    """One SVG with a small picture of each effect. `private`: it says so in itself."""
    across = max(1, min(_ACROSS, len(found)))
    rows = [found[start : start + across] for start in range(0, len(found), across)]
    tall = [max(_height(effect) + 0.15 * title_of(effect).count("\n") for effect in row) + 0.25 for row in rows]
    style: dict[Any, Any] = {**STYLE, "font.size": 9}
    with matplotlib.rc_context(style):
        figure = Figure(figsize=(_WIDTH * across, sum(tall)), layout="constrained")
        if private:
            figure.suptitle("PRIVATE: for the data holder alone", fontsize=9, x=0.99, ha="right")
        boxes = np.reshape(figure.subfigures(len(rows), across, height_ratios=tall, squeeze=False), -1)
        for box, effect in zip(boxes, found, strict=False):
            box.suptitle(title_of(effect), fontsize=10, x=0.02, ha="left")
            draw_effect(box.add_subplot(), effect, scale)
        return as_svg(figure, f"effects of {len(found)} columns")


def title_of(effect: Effect, width: int = _TITLE) -> str:
    """The column's name on a few lines of so many letters; what does not fit is cut."""
    return _wrapped(effect.column, width, _TITLE_LINES)


def _wrapped(name: str, width: int, lines: int) -> str:
    """A name of others on a few lines; what does not fit is cut."""
    parts = textwrap.wrap(on_one_line(name), width, max_lines=lines, placeholder=" …", break_on_hyphens=False)
    return "\n".join(map(words, parts))


def _height(effect: Effect) -> float:
    """Inches that the picture takes."""
    if effect.sides is not None:
        return 3.2
    if effect.is_curve:
        return 2.5
    rows = min(int(effect.kept.sum()), _MOST_BARS) + 1.3 * len(effect.may_be_empty)
    return 0.75 + 0.27 * rows


def draw_effect(axes: Any, effect: Effect, scale: Scale) -> list[tuple[Any, float, float, str]]:
    """Draw one effect on axes of matplotlib's, without its title. A missing value of a number gets axes beside these.

    Returns
    -------
    list of (axes, float, float, str)
        The axes, the two coordinates and the numbers of each place that a reader may point at.
    """
    if effect.sides is not None:
        return _draw_surface(axes, effect, scale)
    return _draw_curve(axes, effect, scale) if effect.is_curve else _draw_bars(axes, effect, scale)


def _mark(figure: Figure, axes: Any, across: float, up: float, text: str) -> Mark:
    left, bottom = axes.transData.transform((across, up))
    box = figure.bbox
    return Mark(round(float(100 * left / box.width), 2), round(float(100 - 100 * bottom / box.height), 2), text)


def _described(scale: Scale, place: str, height: float, noise: float | None) -> str:
    """A level's numbers, for a reader who points at it."""
    band = "" if noise is None else f", ± {scale.heights.size(scale.deviations * noise)} of noise"
    return f"{place}: {scale.heights.said(height)}{band}"


def described_empty(level: MayBeEmpty, scale: Scale) -> str:
    """Say what is known of a level that maybe no record has, for a reader who points at it."""
    said = _described(scale, level.name, level.height, level.noise)
    if level.reach is None and level.noise is not None:
        return f"{said}; maybe no record has it"
    if level.reach is None:
        return f"{said}; maybe no record has it, and how far noise alone brings it is not known"
    far = f"{scale.heights.size(level.reach)} from {scale.heights.said(level.without)}"
    if level.held:
        return f"{said}; some record has it, for its noise is less than that of a level that nobody has"
    if level.stands_out:
        return f"{said}; more than noise does to a level that nobody has ({far})"
    return f"{said}; noise alone may do that to a level that nobody has ({far})"


def _format_heights(axis: Any, scale: Scale) -> None:
    axis.set_major_locator(MaxNLocator(5))
    axis.set_major_formatter(FuncFormatter(lambda height, _: scale.heights.tick(height)))


def _unit_label(scale: Scale) -> str:
    return _wrapped(scale.heights.axis, 30, 2)


def _draw_curve(axes: Any, effect: Effect, scale: Scale) -> list[tuple[Any, float, float, str]]:
    places, heights = np.array(effect.places, dtype=np.float64), effect.heights
    if effect.noise is not None:
        band = scale.deviations * effect.noise
        axes.fill_between(places, heights - band, heights + band, color=_LINE, alpha=0.2, linewidth=0)
    if effect.mass is not None and effect.mass.any():
        tall = _MASS * (scale.high - scale.low) * effect.mass / effect.mass.max()
        axes.fill_between(places, scale.low, scale.low + tall, color=_APART, alpha=0.35, linewidth=0)
    axes.plot(places, heights, color=_LINE, linewidth=1.6)
    axes.axhline(0.0, color=INK, linewidth=0.6, alpha=0.5)
    axes.set_xlim(places[0], places[-1])
    if effect.log:
        _log_axis(axes, places)
    else:
        axes.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda place, _: plain(place, 6)))
    axes.set_ylim(scale.low, scale.high)
    axes.set_ylabel(_unit_label(scale), fontsize=_SMALL)
    _format_heights(axes.yaxis, scale)
    axes.tick_params(labelsize=_SMALL)
    noise = [None] * len(places) if effect.noise is None else effect.noise.tolist()
    named = zip(places, heights, noise, strict=True)
    marked = [(axes, at, scale.within(up), _described(scale, plain(at, 4), up, each)) for at, up, each in named]
    for level in effect.may_be_empty:
        marked.append(_draw_beside(axes, level, scale))
    return marked


def _draw_beside(axes: Any, level: MayBeEmpty, scale: Scale) -> tuple[Any, float, float, str]:
    """Draw a missing value on narrow axes beside those of its column's curve."""
    beside = axes.inset_axes((1.07, 0.0, 0.15, 1.0), sharey=axes)
    beside.tick_params(labelleft=False, length=0, labelsize=_SMALL)
    beside.set_xlim(-0.5, 0.5)
    beside.set_xticks([0.0], [level.name])
    beside.grid(visible=False, axis="x")
    _threshold(beside, level, scale, upright=True)
    inside = _INSIDE * (scale.high - scale.low)
    shown = min(max(level.height, scale.low + inside), scale.high - inside)
    beside.plot([0.0], [shown], **_look_apart(level, scale))
    if scale.cuts(level.height):
        below = level.height > 0
        beside.annotate(
            scale.heights.said(level.height),
            (0.0, shown),
            xytext=(0, -6 if below else 6),
            textcoords="offset points",
            ha="center",
            va="top" if below else "bottom",
            fontsize=_SMALL - 1.5,
        )
    if level.judged and level.noise is not None:
        ends = [level.height + side * scale.deviations * level.noise for side in (-1, 1)]
        beside.plot([0.0, 0.0], [scale.within(end) for end in ends], color=INK, linewidth=0.8)
        _mark_cuts(beside, ends, scale, upright=True)
    return beside, 0.0, shown, described_empty(level, scale)


def _log_axis(axes: Any, places: Any) -> None:
    axes.set_xscale("symlog" if places[0] == 0 else "log", **({"linthresh": 1.0} if places[0] == 0 else {}))
    lowest = 0 if places[0] == 0 else math.ceil(math.log10(places[0]))
    powers = range(lowest, math.floor(math.log10(places[-1])) + 1)
    ticks = [10.0**power for power in powers[:: 1 + len(powers) // 4]]
    axes.set_xticks([0.0, *ticks] if places[0] == 0 else ticks)
    axes.xaxis.set_minor_formatter(NullFormatter())


def _look_apart(level: MayBeEmpty, scale: Scale) -> dict[str, Any]:
    """A level that maybe nobody has as a marker: grey and hollow unless it stands out; beyond the scale an arrow's head."""
    beyond = "^" if level.height > scale.high else "v" if level.height < scale.low else "s"
    colour = _STANDS_OUT if level.counts else _APART
    return {"marker": beyond, "markersize": 6, "color": colour, "markerfacecolor": colour if level.counts else "none"}


def _threshold(axes: Any, level: MayBeEmpty, scale: Scale, *, upright: bool, at: float = 0.0) -> None:
    """How far noise alone brings a level without records, within the scale."""
    if level.reach is None:
        return
    reached = [level.without - level.reach, level.without + level.reach]
    ends = [scale.within(end) for end in reached]
    _mark_cuts(axes, reached, scale, upright=upright, at=at)
    sizes = {"color": INK, "alpha": 0.1, "linewidth": 0}
    if upright:
        axes.fill_between([at - 0.4, at + 0.4], ends[0], ends[1], **sizes)
    else:
        axes.fill_betweenx([at - 0.4, at + 0.4], ends[0], ends[1], **sizes)


def _mark_cuts(axes: Any, ends: Sequence[float], scale: Scale, *, upright: bool, at: float = 0.0) -> None:
    """An arrow's head at each end of the scale beyond which one of these heights is: what ends there goes on."""
    for end in ends:
        if scale.cuts(end):
            place, head = scale.within(end), ("v^" if upright else "<>")[end > scale.high]
            where = ([at], [place]) if upright else ([place], [at])
            axes.plot(*where, marker=head, markersize=5, color=_APART, markeredgewidth=0, clip_on=False, zorder=3)


def _draw_bars(axes: Any, effect: Effect, scale: Scale) -> list[tuple[Any, float, float, str]]:
    """Levels that the schema names, the highest on top, and apart below them those that maybe nobody has."""
    order = [place for place in np.argsort(effect.heights) if effect.kept[place]]
    if len(order) > _MOST_BARS:  # the ends tell
        order = [*order[: _MOST_BARS // 2], *order[-_MOST_BARS // 2 :]]
    heights = [float(effect.heights[place]) for place in order]
    noise = [None if effect.noise is None else float(effect.noise[place]) for place in order]
    names = [str(effect.places[place]) for place in order]
    error = None if effect.noise is None else [scale.deviations * (each or 0.0) for each in noise]
    axes.barh(range(len(order)), heights, xerr=error, color=_BAR, ecolor=INK, error_kw={"linewidth": 0.8})
    marked: list[tuple[Any, float, float, str]] = []
    for place, (name, height, each) in enumerate(zip(names, heights, noise, strict=True)):
        marked.append((axes, scale.within(height), place, _described(scale, name, height, each)))
        if each is None:
            _number(axes, height, place, scale.heights.said(height), scale)
    rows = list(range(len(order)))
    for place, level in enumerate(effect.may_be_empty):
        at = -1.3 * (place + 1)
        _threshold(axes, level, scale, upright=False, at=at)
        colour = _STANDS_OUT if level.counts else _APART
        axes.barh([at], [scale.within(level.height)], height=0.6, color=colour, alpha=1.0 if level.counts else 0.45)
        if level.judged and level.noise is not None:
            ends = [level.height + side * scale.deviations * level.noise for side in (-1, 1)]
            axes.plot([scale.within(end) for end in ends], [at, at], color=INK, linewidth=0.8)
            _mark_cuts(axes, ends, scale, upright=False, at=at)
        if not (level.judged and level.noise is not None):  # a band stands there
            said = "" if level.judged else ", within noise" if level.reach is not None else ", maybe noise"
            ends = _bar_limits(scale) if level.reach is None else (scale.low, scale.high)  # where a strip may have arrows
            _number(axes, level.height, at, scale.heights.said(level.height) + said, scale, ends)
        marked.append((axes, scale.within(level.height), at, described_empty(level, scale)))
        rows, names = [at, *rows], [level.name, *names]
    axes.set_yticks(rows, [_wrapped(name, _NAME, _NAME_LINES) or " " for name in names], fontsize=_SMALL)
    axes.grid(visible=False, axis="y")
    axes.axvline(0.0, color=INK, linewidth=0.6, alpha=0.5)
    axes.set_xlim(*_bar_limits(scale))
    axes.set_xlabel(_unit_label(scale), fontsize=_SMALL)
    _format_heights(axes.xaxis, scale)
    axes.tick_params(axis="x", labelsize=_SMALL)
    return marked


def _number(axes: Any, height: float, at: float, text: str, scale: Scale, ends: tuple[float, float] | None = None) -> None:
    """The number of a bar: at its end, on the other side of 0 or within the bar, at the first of these where there is room
    between `ends`, by default those of the axis."""
    right, shown = height >= 0, scale.within(height)
    limits = _bar_limits(scale)
    low, high = ends or limits
    rooms = [high - shown, 0.0 - low, shown] if right else [shown - low, high, -shown]
    letter = _LETTER * (limits[1] - limits[0]) * axes.figure.dpi / axes.bbox.width
    if letter * len(text) > max(rooms):
        text = text.replace(", ", ",\n")
    needed_room = letter * max(map(len, text.split("\n")))
    place = next((number for number, room in enumerate(rooms) if room >= needed_room), int(np.argmax(rooms)))
    leftwards = right if place else not right
    gap = 8 if scale.cuts(height) and place != 1 else 3  # an arrow's head stands there
    axes.annotate(
        text,
        (0.0 if place == 1 else shown, at),
        xytext=(-gap if leftwards else gap, 0),
        textcoords="offset points",
        va="center",
        ha="right" if leftwards else "left",
        fontsize=_SMALL - 1,
    )


def _bar_limits(scale: Scale) -> tuple[float, float]:
    """The ends of an axis with bars, with room for their numbers."""
    room = _LABELS * (scale.high - scale.low)
    return scale.low - room, scale.high + room


def _draw_surface(axes: Any, effect: Effect, scale: Scale) -> list[tuple[Any, float, float, str]]:
    """The first column upwards, the second across; violet is above the average, orange below. What maybe nobody has is pale."""
    assert effect.sides is not None
    first, second = ([_short(name) for name in side] for side in effect.sides)
    shown = [[words(name[:_CELL]) for name in side] for side in (first, second)]
    heights = effect.heights.reshape(len(first), len(second))
    most = max(-scale.low, scale.high)
    pale = np.where(effect.kept.reshape(heights.shape), 1.0, 0.25)
    drawn = axes.imshow(heights, cmap="PuOr", vmin=-most, vmax=most, aspect="auto", origin="lower", alpha=pale)
    rows, columns = (range(0, len(side), 1 + (len(side) - 1) // 8) for side in (first, second))
    axes.set_yticks(rows, [shown[0][place] for place in rows], fontsize=7)
    axes.set_xticks(columns, [shown[1][place] for place in columns], fontsize=7, rotation=45, ha="right")
    axes.grid(visible=False)
    bar = axes.figure.colorbar(drawn, ax=axes, shrink=0.85, format=FuncFormatter(lambda height, _: scale.heights.tick(height)))
    bar.ax.tick_params(labelsize=7)
    if heights.size > _MOST_CELLS:
        return []
    return [
        (axes, column, row, f"{first[row]}, {second[column]}: {scale.heights.said(float(heights[row, column]))}")
        for row in range(len(first))
        for column in range(len(second))
    ]


def _short(feature: str) -> str:
    """What a feature's name says beside its column's."""
    return MISSING if feature.endswith(f" {MISSING}") else feature.split("≈")[-1].split("=")[-1]
