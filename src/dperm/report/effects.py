"""What an additive model says of each column, as pictures and as a page. Made from the model alone, for free."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dperm.data import Schema
from dperm.mechanisms.without_records import WithoutRecords
from dperm.report.effect_figures import Picture, Scale, effects_figure, picture
from dperm.report.effect_values import CHANCE, Effect, deviations_for, effects, noise_of, ranked
from dperm.report.effect_words import heights_of
from dperm.report.level_noise import LevelNoise
from dperm.report.page import rendered
from dperm.report.refits import Refits

__all__ = ["Effect", "effects", "effects_page", "plot_effects"]

_MOST_DRAWN = 100  # columns: each takes its time, and nobody looks at thousands


def plot_effects(
    model: Any, schema: Schema, label: Any = None, refits: Refits | None = None, *, noise: LevelNoise | None = None
) -> str:
    """Draw all effects as one SVG picture; with `refits` NOT PRIVATE, see `effects`."""
    noise = noise_of(model, schema, label, refits, noise)
    found = effects(model, schema, label, noise=noise)
    scale = Scale.of(found, heights_of(model, schema, label), deviations_for(found, noise))
    return effects_figure(found, scale, private=noise is not None and noise.private)


def effects_page(
    model: Any,
    schema: Schema,
    label: Any = None,
    refits: Refits | None = None,
    *,
    constant: str | None = None,
    noise: LevelNoise | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> str:
    """Write all effects as a page, those first that do most beyond noise; with `refits` NOT PRIVATE, see `effects`.

    Where the noise of the levels is not known nothing is ranked, and columns stand in the schema's order. `progress(done, count)`
    is called after each picture.
    """
    noise = noise_of(model, schema, label, refits, noise)
    found = effects(model, schema, label, constant=constant, noise=noise)
    order = ranked(found, noise)
    heights = heights_of(model, schema, label)
    private = noise is not None and noise.private
    first, rest = order or ([], found)
    scale = Scale.of(found, heights, deviations_for(found, noise))
    drawn: list[Picture] = []
    chosen = [*first, *rest][:_MOST_DRAWN]
    for effect in chosen:
        drawn.append(picture(effect, scale, private=private))
        if progress is not None:
            progress(len(drawn), len(chosen))
    return rendered(
        "effects.html",
        title=schema.title or schema.name,
        heights=heights,
        groups=_groups(drawn, first, is_ranked=order is not None),
        drawn=len(drawn),
        found=[*first, *rest],
        scale=scale,
        meaning=None if noise is None else noise.meaning,
        private=private,
        compared=LevelNoise.compared if noise is None else noise.compared,
        weighted=noise is not None and noise.weighted,
        # intervals are not released of more than two classes
        lawful=WithoutRecords.of(model.trace_) is not None and len(getattr(model, "classes_", ())) <= 2,
        massed=any(effect.mass is not None for effect in found),
        one_in=round(1 / CHANCE),
        certificate=model.certificate_,
        curves=schema.curves,
        held=any(level.held for effect in found for level in effect.may_be_empty),
        empty=[level for effect in found for level in effect.may_be_empty],
        surfaces=any(effect.sides is not None for effect in found),
    )


def _groups(drawn: Sequence[Picture], first: Sequence[Effect], *, is_ranked: bool) -> list[tuple[str, Sequence[Picture]]]:
    """The pictures under headings: those of columns that do more than noise does, and the others."""
    if not is_ranked:
        return [("The columns, in the order of the schema", drawn)]
    count = min(len(first), len(drawn))
    groups = [("More than noise", drawn[:count]), ("Within noise", drawn[count:])]
    return [(heading, pictures) for heading, pictures in groups if pictures]
