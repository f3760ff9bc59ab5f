"""Strategies for correlated noise beside each other, as a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dperm.gradient.correlation.choosing import Compared
from dperm.report.figures import strategies_figure
from dperm.report.page import rendered

EPSILONS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)


def strategies_page(asked: Any, epsilon: float, found: Sequence[Compared], over: Mapping[float, Sequence[Compared]]) -> str:
    """Strategies at one ε, of a run that has the numbers of `asked`, with their errors `over` others drawn."""
    lines = {f"{each.name}, {each.sampling}": [row[place].error for row in over.values()] for place, each in enumerate(found)}
    figure = strategies_figure(list(over), lines)
    return rendered("strategies.html", asked=asked, epsilon=epsilon, found=found, figure=figure)
