"""Figures as inline SVG that takes its text colour from the page, so that it reads in light, dark and print."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import numpy as np

from dperm._extras import needed
from dperm._rounding import upward
from dperm.audit import AuditResult
from dperm.audit.figures import draw_curve
from dperm.privacy import Certificate
from dperm.privacy.events import released_leaves
from dperm.report.candidates import CANDIDATES, DEFAULT, REFERENCES
from dperm.report.figure_style import COLOURS as _COLOURS
from dperm.report.figure_style import INK as _INK
from dperm.report.figure_style import STYLE as _STYLE
from dperm.report.figure_style import as_svg as _svg
from dperm.report.figure_style import words as _words
from dperm.report.study import Cell, StudyResult
from dperm.utility import ChosenEpsilon, MeasuredExcess, UtilityCurve
from dperm.utility.choose import Metric

with needed("matplotlib", "A figure"):
    import matplotlib
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.path import Path
    from matplotlib.ticker import NullFormatter

_MARKERS = ("s", "v", "o", "D", "^", "P", "X", "*", "<", ">", "h", "d")


def _look(key: str) -> dict[str, Any]:
    """How a mechanism is drawn, everywhere the same: what is only claimed, dashed and hollow."""
    place, claimed = list(CANDIDATES).index(key), CANDIDATES[key].claimed
    return {
        "color": _COLOURS[place % len(_COLOURS)],
        "marker": _MARKERS[place % len(_MARKERS)],
        "markersize": 5,
        "linewidth": 3.0 if key == DEFAULT else 1.5,
        "linestyle": "--" if claimed else "-",
        "markerfacecolor": "none" if claimed else None,
        "label": CANDIDATES[key].title,
    }


_ROUND = tuple(digit * 10.0**power for power in range(-4, 4) for digit in (1, 3))  # ticks along ε
_DOTS = 5_000  # at most, in one picture


@contextmanager
def _axes(width: float = 6.6, height: float = 3.9) -> Iterator[tuple[Figure, Any]]:
    with matplotlib.rc_context(cast(Any, _STYLE)):
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure, figure.subplots()


def _epsilon_axis(axes: Any, epsilons: tuple[float, ...]) -> None:
    axes.set_xscale("log")
    axes.set_xticks(epsilons, [f"{value:g}" for value in epsilons])
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("ε (smaller is more private)")


def _known(values: Any) -> Any:
    """The values that are numbers; one that is none where no value is."""
    known = values[~np.isnan(values)]
    return known if len(known) else np.array([math.nan])


def _band(axes: Any, result: StudyResult, key: str, values: str) -> None:
    cells = [result.cell(key, epsilon) for epsilon in result.study.epsilons]
    arrays = [_known(getattr(cell, values)) for cell in cells]
    mean = np.array([np.mean(array) for array in arrays])
    low, high = (np.array([np.quantile(array, q) for array in arrays]) for q in (0.1, 0.9))
    look = _look(key)
    if key == DEFAULT or values != "scores" or DEFAULT not in result.keys:
        axes.fill_between(result.study.epsilons, low, high, color=look["color"], alpha=0.16, linewidth=0)
    axes.plot(result.study.epsilons, mean, **look)


#: how models without privacy are drawn
_REFERENCE_LOOKS = {
    "non-private": {"linestyle": "--", "linewidth": 1.2},
    "boosting": {"linestyle": "-.", "linewidth": 1.2},
    "constant": {"linestyle": ":", "linewidth": 1.0},
}


def score_figure(result: StudyResult) -> str:
    """The score that ranks, on held-out records, against ε: mean, and the band of the middle 80 % of repeats; models without
    privacy as level lines."""
    with _axes(7.4, 4.2) as (figure, axes):
        for key in result.keys:
            _band(axes, result, key, "scores")
        levels = [cell for cell in result.references if math.isfinite(cell.mean)]
        for cell in levels:
            look, level = _REFERENCE_LOOKS[cell.mechanism], result.baseline if cell.mechanism == "constant" else cell.mean
            axes.axhline(level, color=_INK, label=REFERENCES[cell.mechanism].short, **look)
        _epsilon_axis(axes, result.study.epsilons)
        axes.set_ylabel(f"{result.metric} on held-out records")
        # far below a constant answer there is nothing to see
        seen = [result.baseline, *(max(cell.mean, result.baseline - 0.1) for cell in result.cells if math.isfinite(cell.mean))]
        room = 0.06 * (max(seen) - min(seen)) + 0.01
        axes.set_ylim(min(seen) - room, max(seen) + room)
        axes.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
        return _svg(figure, f"{result.metric} against epsilon on {result.title}")


def excess_figure(result: StudyResult) -> str:
    """Training loss above the non-private model's against ε, on logarithmic axes."""
    with _axes() as (figure, axes):
        for key in result.keys:
            _band(axes, result, key, "excess")
        _epsilon_axis(axes, result.study.epsilons)
        axes.set(yscale="log", ylabel="excess risk (mean training loss)")
        means = [float(cell.excess.mean()) for cell in result.cells if cell.epsilon is not None]
        if not result.task.classes:
            axes.set_ylim(top=1.02)
        axes.set_ylim(bottom=max(min(means), 1e-6) / 3)  # a band may touch zero; the axis need not follow
        axes.legend(fontsize=9, loc="lower left")
        return _svg(figure, f"excess risk against epsilon on {result.title}")


def noise_figure(result: StudyResult) -> str:
    """Noise multipliers against ε: what each mechanism adds, in units of its own sensitivity."""
    with _axes() as (figure, axes):
        for key in result.keys:
            cells = [result.cell(key, epsilon) for epsilon in result.study.epsilons]
            axes.plot(result.study.epsilons, [noise_multiplier(cell) for cell in cells], **_look(key))
        _epsilon_axis(axes, result.study.epsilons)
        axes.set(yscale="log", ylabel="noise ÷ sensitivity, per release")
        axes.legend(fontsize=9)
        return _svg(figure, f"noise multipliers against epsilon on {result.title}")


def noise_multiplier(cell: Cell) -> float:
    """Noise ÷ sensitivity of a release of the kind that a run makes most often, the first of these: a standard deviation, or the
    scale of a pure release or a choice. As charged; of what is only claimed, as it ran; not a number where neither is known."""
    if "noise_levels" in cell.noise:
        return float(cell.noise["noise_levels"][0][0])
    assert cell.certificate is not None
    charged = [(count * leaf.releases, leaf.pays_for) for leaf, count in released_leaves(cell.certificate.event).items()]
    releases = [(count, paid) for count, paid in charged if paid is not None]
    if not releases:
        return math.nan
    paid = max(releases, key=lambda each: each[0])[1]
    return {"pure": 1 / paid.noise, "choice": 2 / paid.noise}.get(paid.kind, paid.noise)


def influence_figure(change: Any, losses: Any, named: Sequence[int], rows: Any, what: str) -> str:
    """Each record's influence against its loss; the `named` rows are written beside theirs."""
    shown = np.argsort(-np.abs(change), kind="stable")[:_DOTS]  # a page with more would not open
    with _axes(7.2, 4.2) as (figure, axes):
        axes.scatter(losses[shown], change[shown], s=9, color=_COLOURS[5], alpha=0.35, linewidths=0, rasterized=True)
        for row in named:
            place = int(np.flatnonzero(rows == row)[0])
            axes.annotate(
                str(row), (losses[place], change[place]), textcoords="offset points", xytext=(5, 3), fontsize=9, color=_INK
            )
        axes.axhline(0.0, color=_INK, linewidth=0.8)
        axes.set(xlabel="loss of the record", ylabel=_words(f"change of {what} without it"))
        return _svg(figure, "influence of each record against its loss")


def spending_figure(epsilons: Any, most: float | None) -> str:
    """How many records have which ε of their own."""
    with _axes(6.6, 3.4) as (figure, axes):
        axes.hist(epsilons, bins=40, color=_COLOURS[5], alpha=0.8)
        if most is not None:
            axes.axvline(most, color=_INK, linewidth=1.2, linestyle="--", label="certified for everybody")
            axes.legend(fontsize=9)
        axes.set(xlabel="a record's own ε", ylabel="records")
        axes.set_yscale("symlog", linthresh=10)
        return _svg(figure, "records by their own epsilon")


def profile_figure(certificate: Certificate) -> str:
    """δ against ε for one certificate."""
    epsilons, deltas = certificate.curve()
    with _axes(5.6, 3.2) as (figure, axes):
        axes.plot(epsilons, np.maximum(deltas, 1e-16), color="#009E73", linewidth=1.8)
        assert certificate.epsilon is not None
        axes.plot([certificate.epsilon], [certificate.delta], marker="o", color="#D55E00")
        axes.annotate(
            f"ε = {upward(certificate.epsilon, 3)}, δ = {upward(certificate.delta, 2)}",
            (certificate.epsilon, certificate.delta),
            textcoords="offset points",
            xytext=(-8, -14),
            ha="right",
        )
        axes.set(yscale="log", xlabel="ε", ylabel="δ(ε), upper bound")
        return _svg(figure, "privacy profile")


#: of people: accused as by lot, accused thanks to the model, not accused
_PEOPLE: tuple[dict[str, Any], ...] = (
    {"facecolors": "#56B4E9", "edgecolors": _INK, "linewidths": 0.8},
    {"facecolors": "#D55E00", "edgecolors": _INK, "linewidths": 0.8},
    {"facecolors": "none", "edgecolors": _INK, "linewidths": 0.8, "alpha": 0.5},
)


def _as_marker(look: dict[str, Any]) -> dict[str, Any]:
    """The same for a legend."""
    return {
        "marker": "o",
        "markerfacecolor": look["facecolors"],
        "markeredgecolor": look["edgecolors"],
        "markeredgewidth": look["linewidths"],
        "alpha": look.get("alpha", 1.0),
    }


def risk_figure(certificate: Certificate, found: float) -> str:
    """ε and what it means: of 100 people each, whom the best attack accuses, where it accuses 1 in 100 wrongly. `found`: how many
    of 100 it then finds on average, at most; the circle of one who is found in some cases alone is filled by as much."""
    assert certificate.epsilon is not None
    what = "rows were" if certificate.of_persons else "record was"
    more, part = divmod(max(found, 1.0) - 1, 1)
    lottery, better, free = _PEOPLE
    groups = (
        (f"100 people whose {what} not used", ((lottery, 1), (free, 99)), 0.0, "on average 1 is accused, wrongly"),
        (
            f"100 people whose {what} used",
            ((lottery, 1), (better, int(more)), (free, 99 - int(more))),
            part,
            f"on average at most {found:.4g} are found",
        ),
    )
    with matplotlib.rc_context(cast(Any, _STYLE)):
        figure = Figure(figsize=(6.6, 4.5), layout="constrained")
        figure.suptitle(f"ε = {upward(certificate.epsilon, 3)}: the best possible attack", fontsize=12)
        for axes, (title, kinds, filled, said) in zip(figure.subplots(1, 2), groups, strict=True):
            start = 0
            for look, count in kinds:
                places = np.arange(start, start + count)
                axes.scatter(places % 10, -(places // 10), s=70, **look)
                start += count
            if filled > 0:
                place = sum(count for _, count in kinds[:-1])
                axes.scatter([place % 10], [-(place // 10)], s=70, marker=_slice(filled), **{**better, "linewidths": 0})
            axes.set_title(title, fontsize=11)
            axes.set_xlabel(said)
            axes.set(xticks=[], yticks=[], xlim=(-0.7, 9.7), ylim=(-9.7, 0.7), aspect="equal")
            axes.spines[["left", "bottom"]].set_visible(False)
        said_of = ("accused, as a lottery would", "accused thanks to the model", "left alone")
        marks = [Line2D([], [], linestyle="", markersize=8, **_as_marker(look)) for look in _PEOPLE]
        figure.legend(marks, said_of, loc="outside lower center", ncols=3, frameon=False, fontsize=9, handletextpad=0.1)
        return _svg(figure, "what an attacker finds")


def _slice(share: float) -> Path:
    """A marker: as much of a full circle, clockwise from the top."""
    if share >= 1 - 1e-9:
        return Path.circle((0, 0), 0.5)
    arc = Path.wedge(90 - 360 * share, 90)
    return Path(np.asarray(arc.vertices) / 2, arc.codes)


def path_figure(curve: UtilityCurve, metric: Metric, target: float | None, chosen: ChosenEpsilon | None) -> str:
    """A metric along ε: the mean over draws of the noise, and the middle 80 % of them; the target, and the ε that reaches it."""
    mean, low, high = curve.band(metric)
    with _axes(7.2, 4.0) as (figure, axes):
        axes.fill_between(curve.epsilons, low, high, color="#0072B2", alpha=0.18, linewidth=0)
        axes.plot(curve.epsilons, mean, color="#0072B2", linewidth=2)
        if target is not None:
            axes.axhline(target, color=_INK, linewidth=1, linestyle=":")
            axes.annotate("target", (curve.epsilons[0], target), xytext=(2, 4), textcoords="offset points", fontsize=9)
        if chosen is not None:
            axes.plot([chosen.epsilon], [chosen.reached], marker="o", markersize=8, color="#D55E00")
            axes.axvline(chosen.epsilon, color="#D55E00", linewidth=1)
            axes.annotate(
                f"ε = {chosen.epsilon:.3g}",
                (chosen.epsilon, axes.get_ylim()[0]),
                xytext=(6, 6),
                textcoords="offset points",
                color="#D55E00",
            )
        shown = [value for value in _ROUND if curve.epsilons[0] <= value <= curve.epsilons[-1]]
        _epsilon_axis(axes, tuple(shown))
        axes.set_ylabel(f"{metric.replace('_', ' ')}" + ("" if metric == "training_loss" else " on held-out records"))
        return _svg(figure, f"{metric.replace('_', ' ')} along epsilon")


def bounds_figure(measured: MeasuredExcess, along_epsilon: dict[str, Any], along_size: dict[str, Any]) -> str:
    """Excess risk against ε and against the number of records, log-log, with bounds by name."""
    with matplotlib.rc_context(cast(Any, _STYLE)):
        figure = Figure(figsize=(10.5, 5.6), layout="constrained")
        left, right = figure.subplots(1, 2, sharey=True)
        for axes, at, values, bounds in (
            (left, measured.epsilons, measured.excess, along_epsilon),
            (right, measured.sizes, measured.by_size, along_size),
        ):
            for number, (name, line) in enumerate(bounds.items()):
                style = ":" if name.startswith("no method") else "-"
                axes.plot(at, line, style, color=_COLOURS[number % len(_COLOURS)], linewidth=1.3, label=name)
            axes.plot(at, values, color=_INK, linewidth=2.6, marker="o", markersize=4, label="measured")
            axes.set(xscale="log", yscale="log")
            axes.xaxis.set_minor_formatter(NullFormatter())
        _epsilon_axis(left, tuple(value for value in _ROUND if measured.epsilons[0] <= value <= measured.epsilons[-1]))
        right.set_xlabel(f"records, at ε = {measured.problem.epsilon:g}")
        right.set_xticks(measured.sizes, [f"{value:,}" for value in measured.sizes])
        left.set_ylabel("excess empirical risk")
        handles, labels = left.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=8, frameon=False)
        return _svg(figure, "excess risk, measured and bounded")


def ladder_figure(steps: Sequence[int], lines: dict[str, Any]) -> str:
    """ε by each formula against the number of steps, log-log; the last one is the exact one."""
    with _axes(7.4, 4.6) as (figure, axes):
        for number, (name, values) in enumerate(lines.items()):
            at = [(count, value) for count, value in zip(steps, values, strict=True) if value is not None]
            if not at:
                continue
            last = number == len(lines) - 1
            style = {"color": _INK, "linewidth": 2.6} if last else {"color": _COLOURS[number % len(_COLOURS)], "linewidth": 1.4}
            axes.plot(*zip(*at, strict=True), marker="o", markersize=3, label=name, **style)
        axes.set(xscale="log", yscale="log", xlabel="steps", ylabel="ε")
        axes.legend(fontsize=8, frameon=False)
        return _svg(figure, "ε by each formula, over steps")


def strategies_figure(epsilons: Sequence[float], lines: dict[str, Any]) -> str:
    """Predicted error of strategies for correlated noise over ε, in % of DP-SGD's; those in a fixed order are dashed."""
    with _axes(7.4, 4.6) as (figure, axes):
        for number, (name, values) in enumerate(lines.items()):
            dashed = "--" if name.endswith("fixed order") else "-"
            colour = _INK if number == 0 else _COLOURS[(number - 1) % len(_COLOURS)]
            axes.plot(epsilons, 100 * np.array(values), dashed, marker="o", markersize=3, color=colour, label=name)
        axes.set(xscale="log", xlabel="ε", ylabel="error, % of DP-SGD's", ylim=(0, 200))
        axes.set_xticks(epsilons, [f"{epsilon:g}" for epsilon in epsilons])
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.legend(fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
        return _svg(figure, "Predicted error of strategies for correlated noise, over ε")


def budget_figure(each: Any, who: Sequence[str]) -> str:
    """The share of a budget that was spent over time, by whom; see `dperm.report.budgets.Spending`. `who`: everybody on the page,
    so that each has one colour."""
    with _axes(7.4, 2.7) as (figure, axes):
        base, height = np.zeros(len(each.times)), np.zeros(len(each.times))
        for name in (name for name in who if name in each.by):
            height = base + 100 * np.array(each.by[name])
            colour = _COLOURS[who.index(name) % len(_COLOURS)]
            axes.fill_between(each.times, base, height, step="post", color=colour, alpha=0.75, linewidth=0, label=_words(name))
            base = height
        axes.step(each.times, height, where="post", color=_INK, linewidth=1.2)
        axes.axhline(100, color=_INK, linestyle="--", linewidth=1)
        axes.set(ylim=(0, 105), ylabel="% of the budget")
        locator = AutoDateLocator(maxticks=7)
        axes.xaxis.set_major_locator(locator)
        axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))
        if each.by:
            axes.legend(fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0), reverse=True)
        return _svg(figure, f"Spent of the budget of {each.account.budget.label}, over time, by whom")


def curve_figure(result: AuditResult) -> str:
    """An attack's true against false positives."""
    with _axes(5.2, 4.0) as (figure, axes):
        draw_curve(axes, result)
        return _svg(figure, f"{result.attack}: true against false positives")
