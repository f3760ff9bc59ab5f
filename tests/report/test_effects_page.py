"""The effects page: names of others, long titles, words for heights, and what a reader without a script still sees."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from sklearn.pipeline import make_pipeline

from dperm.data import Column, Schema
from dperm.estimators import DPLinearSVC, DPLogisticRegression, DPOrdinalClassifier, DPPoissonRegressor, DPRidge
from dperm.mechanisms import Objective, Output
from dperm.report.effect_figures import Scale, draw_effect, picture
from dperm.report.effect_values import Effect, MayBeEmpty, effects
from dperm.report.effect_words import heights_of, plain, signed
from dperm.report.effects import effects_page, plot_effects

LONG = "Thinking of the last twelve months, how many evenings a week did you usually work longer than planned, and was that paid?"
QUESTIONS = tuple(Column(f"{LONG} ({number})", "number", (0, 7)) for number in range(7))
PRICE = Column("price", "label", (0, 500_000))


def _fitted(schema: Schema, model: Any, targets: Any, rows: int = 60) -> Any:
    features = np.random.default_rng(0).random((rows, schema.dimension)) / schema.dimension
    return model.fit(features, np.resize(targets, rows))


def _homes(curves: int = 5) -> tuple[Schema, Any]:
    columns = (Column("year", "number", (1900, 2020)), Column("town", "category", categories=("A", "B"), other=True), PRICE)
    schema = Schema("homes", "price", columns, missing="separate", curves=curves)
    return schema, _fitted(schema, DPRidge(epsilon=4.0, mechanism=Output(), public_size=60, random_state=0), [-1.0, 1.0])


def test_long_titles_leave_every_picture_its_width() -> None:
    """Survey questions: a page wraps their titles, and one figure wraps and cuts them. A warning would fail this test where
    axes have no room left."""
    schema = Schema("survey", "left", (*QUESTIONS, Column("left", "label")), ("no", "yes"), curves=5)
    model = _fitted(schema, DPLogisticRegression(epsilon=4.0, classes=["no", "yes"], random_state=0), ["no", "yes"])
    steps: list[tuple[int, int]] = []
    page = effects_page(model, schema, progress=lambda done, count: steps.append((done, count)))
    assert steps == [(number, 7) for number in range(1, 8)]
    assert page.count("<svg") == page.count('<figure class="effect">') == 7
    assert all(f"<h3>{column.name}</h3>" in page for column in QUESTIONS)
    lines = re.findall(r">([^<>]+)</t(?:ext|span)>", plot_effects(model, schema))
    cut = [line for line in lines if "twelve months" in line]
    assert len(cut) == 7
    assert max(map(len, lines)) <= 50


def test_bars_and_curves_keep_half_of_a_picture() -> None:
    schema, model = _homes()
    wide = replace(schema, columns=(schema.columns[0], Column("town", "category", categories=(LONG, "B"), other=True), PRICE))
    found = effects(model, wide)
    scale = Scale.of(found, heights_of(model, wide), 2.0)
    for effect in found:
        marks = picture(effect, scale).marks
        assert len(marks) == len(effect.heights[effect.kept]) + len(effect.may_be_empty)
        assert all(0 <= mark.left <= 100 and 0 <= mark.top <= 100 for mark in marks)
        across = [mark.left for mark in marks]
        assert max(across) > 40
    curve = picture(found[0], scale).marks
    assert curve[4].left - curve[0].left > 50  # of the picture's width, beside what is missing


def test_names_of_others_are_text() -> None:
    bad = 'x</h3><script>alert(1)</script>"\x1b[31m$\\alpha$'
    columns = (Column(bad, "category", categories=('"><i onmouseover=1>', "$b$"), other=True), Column("y", "label"))
    schema = Schema(bad, "y", columns, ("no", "<u>yes</u>"))
    model = _fitted(schema, DPLogisticRegression(epsilon=4.0, classes=["no", "<u>yes</u>"], random_state=0), ["no", "<u>yes</u>"])
    page = effects_page(model, schema)
    assert page.count("<script>") == 1
    assert "alert(1)</script>" not in page
    assert "<u>" not in page
    assert "\x1b" not in page
    assert "onmouseover=1>" not in page


def test_numbers_are_there_without_a_script() -> None:
    schema, model = _homes()
    page = effects_page(model, schema)
    before = page.split("<script>")[0]
    year, _ = effects(model, schema)
    said = heights_of(model, schema).said
    for place, height in zip(year.places, year.heights, strict=True):
        assert f'title="{plain(float(place), 4)}: {said(height)}, ± ' in before
    assert 'type="search"' in before
    assert re.search(r"\.search \{ display: none;", before)  # shown by the script, which it needs
    assert "http" not in re.sub(r'xmlns[:a-z]*="[^"]*"', "", page)  # nothing is fetched


def test_bands_say_what_they_are_not() -> None:
    schema, model = _homes()
    page = effects_page(model, schema)
    assert "not the choice of records (no sampling error)" in page
    assert "raises price" in page
    assert "speaks for" not in page
    assert "1 of 20 trainings" in page
    three = replace(schema, missing="error", columns=(Column("year", "number", (0, 1)), PRICE), curves=5)
    lone = _fitted(three, DPRidge(epsilon=4.0, random_state=0), [-1.0, 1.0])
    page = effects_page(lone, three)
    assert "maybe nobody" not in page.lower()
    assert "nothing is ranked" in page


def test_words_for_heights() -> None:
    schema = Schema("t", "ill", (Column("x", "number", (0, 1)), Column("ill", "label")), ("no", "yes"))
    labels = ["no", "yes"]
    plain_odds = _fitted(schema, DPLogisticRegression(classes=labels, mechanism=Objective(margin=0.0), random_state=0), labels)
    words = heights_of(plain_odds, schema)
    assert "points of log-odds: one point more multiplies the odds of ill = yes by 2.72" in words.explained
    assert words.said(0.5) == "+0.50"
    first = heights_of(plain_odds, schema, "no")
    assert first.up == "makes ill = no likelier"
    with_margin = _fitted(schema, DPLogisticRegression(classes=labels, random_state=0), labels)
    chance = float(with_margin.objective_.loss.plain.link.inverse(np.array([1.0]))[0])
    assert f"one point more makes {100 * chance:.0f} %" in heights_of(with_margin, schema).explained
    machine = _fitted(schema, DPLinearSVC(classes=labels, random_state=0), labels)
    assert "it answers ill = yes where they add up to more than 0" in heights_of(machine, schema).explained
    order = replace(schema.measured_as("ordinal"), classes=("bad", "fair", "good"))
    ordered = _fitted(order, DPOrdinalClassifier(classes=["bad", "fair", "good"], random_state=0), ["bad", "fair", "good"])
    page = effects_page(ordered, order)
    assert "above 0 a value <strong>makes higher answers likelier</strong>, below 0 it makes lower answers likelier" in page
    assert "dperm intervals" not in page
    assert heights_of(ordered, order, "bad").up == "makes lower answers likelier"
    odds = ordered.predict_proba(np.array([[0.2], [0.8]])) @ np.tril(np.ones((3, 3)))[:, 1:]  # of more than bad, of good
    step = float(ordered.coef_[0, 0]) * 0.6
    assert np.log(odds / (1 - odds))[1] - np.log(odds / (1 - odds))[0] == pytest.approx([step, step], rel=1e-3)
    assert "one point more multiplies the odds of higher answers than any given one by 2.72" in page
    visits = Schema("t", "visits", (Column("x", "number", (0, 1)), Column("visits", "label", (0, 9), measure="count")))
    counted = heights_of(_fitted(visits, DPPoissonRegressor(target_bound=9.0, random_state=0), [0.0, 3.0]), visits)
    assert counted.said(np.log(2)) == "×2"
    assert counted.tick(np.log(0.5)) == "×0.5"
    assert counted.up == "raises visits"


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0"), (1234.5, "1234"), (-0.0123456, "-0.01235"), (1999.6, "2000"), (123456, "123,500"), (3.0, "3"), (1e20, "1e+20")],
)
def test_places_have_four_digits(number: float, text: str) -> None:
    assert plain(number, 4) == text


def test_amounts_have_signs_and_commas() -> None:
    assert [signed(amount) for amount in (1234.5, -12345, 0.5, 0, 1e-15)] == ["+1,230", "-12,300", "+0.5", "0", "+1e-15"]


def test_noise_does_not_decide_what_can_be_seen() -> None:
    """A level without records at many times all others' height is cut off, at the scale's end."""
    level = MayBeEmpty("(other)", 1e6, 0.0, reach=2e6)
    effect = Effect(
        "x", ("a", "b", "(other)"), np.array([-1.0, 1.0, 1e6]), may_be_empty=(level,), counted=np.array([True, True, False])
    )
    words = heights_of(*reversed(_homes()))
    scale = Scale.of([effect], words, 2.0)
    assert -1.5 < scale.low < scale.high < 1.5
    assert picture(effect, scale).svg
    loud = replace(effect, noise=np.array([50.0, 50.0, 1.0]))
    assert Scale.of([loud], words, 2.0).high < 4


def test_a_training_that_diverged_says_nothing() -> None:
    schema, model = _homes()
    model.coef_ = np.full_like(model.coef_, np.nan)
    with pytest.raises(ValueError, match="this training diverged"):
        effects(model, schema)


def test_cells_of_a_map_are_shown_with_their_names() -> None:
    columns = (
        Column("town", "category", categories=("$a$", "a very long name of a town")),
        Column("age", "number", (0, 9)),
        PRICE,
    )
    schema = Schema("t", "price", columns, curves=4, pairs=(("town", "age"),))
    model = _fitted(schema, DPRidge(epsilon=4.0, random_state=0), [-1.0, 1.0])
    found = effects(model, schema)
    cells = picture(found[2], Scale.of(found, heights_of(model, schema), 2.0)).marks
    assert len(cells) == 2 * 4
    assert {mark.text.split(",")[0] for mark in cells} == {"$a$", "a very long name of a town"}


def test_a_private_picture_says_so_in_itself() -> None:
    schema, model = _homes()
    found = effects(model, schema)
    scale = Scale.of(found, heights_of(model, schema), 2.0)
    assert "PRIVATE" in picture(found[0], scale, private=True).svg
    assert "PRIVATE" not in picture(found[0], scale).svg


def test_the_lowest_and_the_highest_of_many_categories_are_drawn() -> None:
    towns = tuple(f"town {number}" for number in range(30))
    schema = Schema("t", "y", (Column("town", "category", categories=towns), Column("y", "label", (0, 1))))
    model = _fitted(schema, DPRidge(epsilon=4.0, random_state=0), [-1.0, 1.0])
    (effect,) = effects(model, schema)
    drawn = picture(effect, Scale.of([effect], heights_of(model, schema), 2.0))
    assert drawn.remark == "The 6 lowest and the 6 highest of 30."
    order = np.argsort(effect.heights)
    assert [mark.text.split(":")[0] for mark in drawn.marks] == [towns[place] for place in (*order[:6], *order[-6:])]


@pytest.mark.parametrize("bars", [True, False])
def test_what_goes_on_beyond_a_picture_has_an_arrow(bars: bool) -> None:
    """A strip that ended with the scale would be read as how far noise reaches."""
    places = ("A", "B") if bars else (0.0, 1.0)

    def drawn(height: float, reach: float) -> tuple[set[tuple[str, float]], list[str]]:
        effect = Effect("x", places, np.array([-1.0, 1.0]), may_be_empty=(MayBeEmpty("missing", height, 0.0, reach),))
        axes = Figure().add_subplot()
        _, model = _homes()
        scale = Scale.of([effect], heights_of(model, _homes()[0]), 0.0)
        draw_effect(axes, effect, scale)
        beside = [*axes.lines, *(line for inner in axes.child_axes for line in inner.lines)]
        ends = {"low": scale.low, "high": scale.high}
        heads = {(str(line.get_marker()), tuple(line.get_xdata() if bars else line.get_ydata())) for line in beside}
        found = {(head, name) for head, (at, *_) in heads for name, end in ends.items() if at == end and head in "<>v^"}
        texts = [text.get_text() for each in (axes, *axes.child_axes) for text in each.texts]
        return found, texts

    assert drawn(0.5, 0.9)[0] == set()
    both, texts = drawn(2.81, 3.0)
    assert both == ({("<", "low"), (">", "high")} if bars else {("v", "low"), ("^", "high")})
    assert any("2.81" in text for text in texts)
    assert len(drawn(0.5, 0.9)[1]) == (3 if bars else 0)


def test_models_of_other_schemas_are_told_where_their_schema_is() -> None:
    schema, model = _homes()
    with pytest.raises(ValueError, match=r"got a pipeline: give its last step, .* effects\(pipeline\[-1\], pipeline"):
        effects(make_pipeline(model), schema)
    with pytest.raises(ValueError, match=r"features, got one of \d+\. The schema of a fitted TableEncoder, curves included"):
        effects(model, replace(schema, curves=0))
