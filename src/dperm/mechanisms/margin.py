"""The margin of the logistic loss, for methods whose noise hides its steepest slope (docs/margin.md)."""

from __future__ import annotations

from dataclasses import replace

from dperm.objectives import LinearObjective, Logistic

#: where none is asked for: near the best from 300 records to 10,000 and beyond, see docs/margin.md
USUAL_MARGIN = 2.0


def with_margin(objective: LinearObjective, asked: float | None, usual: float) -> LinearObjective:
    """The objective with the margin that was asked for; where none was, with the `usual` one, unless its loss has one already.
    Other losses have none: ValueError where one was asked for."""
    loss = objective.loss.plain
    if type(loss) is not Logistic or objective.facts.foreign_loss:  # of a stranger's, derived from it, nothing is known
        if asked is not None:
            raise ValueError(f"Expected no margin with the {loss.name} loss: the logistic loss has one.")
        return objective
    margin = (loss.margin or usual) if asked is None else asked
    return replace(objective, loss=objective.loss.with_settings(margin=margin))
