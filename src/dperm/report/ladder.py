"""The field's ways of accounting, drawn over the number of steps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dperm.privacy import Relation
from dperm.privacy.accountants.closed_forms import Rung, ladder
from dperm.report.figures import ladder_figure
from dperm.report.page import rendered

_POINTS = 7


def ladder_page(noise: float, rate: float, steps: int, delta: float, relation: Relation, rungs: Sequence[Rung]) -> str:
    """ε by each formula for this plan, and for shorter ones."""
    at = sorted({*(round(float(value)) for value in np.geomspace(1, steps, _POINTS)), steps})
    found = [list(rungs) if count == steps else ladder(noise, rate, count, delta, relation) for count in at]
    lines = {rung.name: [row[place].epsilon for row in found] for place, rung in enumerate(rungs)}
    return rendered(
        "ladder.html",
        noise=noise,
        rate=rate,
        steps=steps,
        delta=delta,
        rungs=rungs,
        exact=rungs[-1].epsilon,
        figure=ladder_figure(at, lines),
    )
