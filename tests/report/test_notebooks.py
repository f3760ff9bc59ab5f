"""What notebooks show of estimators, certificates and comparisons, and displays in scikit-learn's form."""

from __future__ import annotations

import functools
import re
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import sklearn
from matplotlib import pyplot
from sklearn.pipeline import make_pipeline

from dperm.data import Column, Dataset, Schema
from dperm.estimators import DPBagging, DPByPart, DPLogisticRegression, DPMLPClassifier, DPRidge, DPSearch, TableEncoder
from dperm.privacy import Risk
from dperm.report import EffectsDisplay, EpsilonCurveDisplay, Study, StudyResult, run_study
from dperm.report.effects import effects
from dperm.utility import UtilityCurve

N = 400
RNG = np.random.default_rng(0)
FRAME = pd.DataFrame({"age": RNG.uniform(0, 100, N), "job": RNG.choice(["clerk", "nurse"], N)})
LABELS = np.where(FRAME.age > 50, "yes", "no")
COLUMNS = (
    Column("age", "number", (0, 100)),
    Column("job", "category", categories=("clerk", "nurse")),
    Column("paid", "label"),
)
SCHEMA = Schema("people", "paid", COLUMNS, ("no", "yes"), curves=5)


@functools.cache
def fitted() -> Any:
    model = DPLogisticRegression(epsilon=4.0, classes=["no", "yes"], public_size=N)
    return make_pipeline(TableEncoder(SCHEMA), model).fit(FRAME, LABELS)[-1]


@functools.cache
def study() -> StudyResult:
    dataset = Dataset.of(FRAME.assign(paid=LABELS), SCHEMA)
    return run_study(dataset, Study(epsilons=(1.0, 4.0), mechanisms=("objective-sharp", "output"), repeats=3, boosting=False))


@functools.cache
def curve() -> UtilityCurve:
    dataset = Dataset.of(FRAME.assign(paid=LABELS), SCHEMA)
    return DPLogisticRegression(classes=["no", "yes"]).epsilon_path(dataset.features, LABELS, draws=3, random_state=0)


def test_an_estimator_shows_its_diagram_and_its_guarantee() -> None:
    shown = fitted()._repr_mimebundle_()["text/html"]
    assert "sk-container" in shown  # scikit-learn's own
    assert "(4, 1e-05)-differentially private when one person" in shown
    assert fitted().certificate_.to_html() in shown
    assert fitted().certificate_.to_html().count("<details>") == 3
    assert "(TableEncoder) were known without the rows" in shown
    assert fitted()._repr_html_().endswith(fitted().certificate_.to_html())


@pytest.mark.parametrize(
    ("estimator", "said"),
    [
        (DPLogisticRegression(epsilon=0.5), "A fit costs ε = 0.5, δ = 1e-05"),
        (DPLogisticRegression(epsilon=Risk(advantage=0.1)), "A fit keeps"),
        (DPRidge(), "A fit costs ε = 1,"),
        (DPMLPClassifier(), "A fit costs ε = 1,"),
        (DPByPart(DPRidge(epsilon=3.0), {"a": 0}), "A fit costs ε = 3,"),
        (DPBagging(DPRidge(epsilon=3.0), epsilon=2.0), "A fit costs ε = 2,"),
        (DPSearch(DPRidge(), {"radius": [1.0, 2.0]}, epsilon=0.2), "A fit costs ε = 0.2,"),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else "",
)
def test_what_is_not_fitted_says_what_a_fit_costs(estimator: Any, said: str) -> None:
    shown = estimator._repr_mimebundle_()["text/html"]
    assert "Not fitted: nothing is charged yet." in shown and said in shown


def test_texts_are_texts_where_scikit_learn_shows_no_diagrams() -> None:
    with sklearn.config_context(display="text"):
        assert set(fitted()._repr_mimebundle_()) == {"text/plain"}
        assert not hasattr(fitted(), "_repr_html_")


def test_no_text_of_a_certificate_is_html() -> None:
    from dataclasses import replace

    certificate = replace(
        fitted().certificate_, mechanism="<script>alert(1)</script>", not_charged=("<img src=x onerror=alert(2)>", "a & b")
    )
    shown = certificate._repr_html_()
    assert "<script" not in shown and "<img" not in shown
    assert "&lt;script&gt;" in shown and "a &amp; b" in shown
    seeded = DPRidge(random_state=0, public_size=N).fit(FRAME[["age"]] / 100, FRAME.age / 100).certificate_
    assert "NOT PRIVATE" in seeded.to_html()


def test_a_comparison_shows_advice_scores_and_whom_it_is_for() -> None:
    shown = study()._repr_html_()
    assert "NOT PRIVATE: for the data holder alone" in shown
    assert "ε = 1</th>" in shown
    assert "Objective perturbation, sharp" in shown and "Linear model, without privacy" in shown
    assert len(re.findall("<tr>", shown)) == 5
    assert "promises at ε = " in shown and "What you answer for" in shown


def test_effects_are_drawn_in_the_form_of_scikit_learn() -> None:
    display = EffectsDisplay.from_estimator(fitted(), SCHEMA)
    assert display.ax_.shape == (2,)
    assert [axes.get_title(loc="left") for axes in display.ax_] == ["age", "job"]
    heights = effects(fitted(), SCHEMA)[0].heights
    assert any(np.array_equal(line.get_ydata(), heights) for line in display.ax_[0].lines)
    assert display.figure_ is display.ax_[0].figure
    question = "In the last four weeks, how often did you feel exhausted after work? " * 4
    asked = EffectsDisplay([replace(each, column=question) for each in display.effects], display.scale).plot()
    asked.figure_.canvas.draw()
    boxes = [axes.get_tightbbox() for axes in asked.ax_]
    assert boxes[0].x1 < boxes[1].x0, "titles and panels stand beside each other"
    assert boxes[1].x1 < asked.figure_.bbox.width * 1.01
    assert asked.ax_[0].bbox.width == pytest.approx(asked.ax_[1].bbox.width, rel=0.01)
    own, axes = pyplot.subplots()
    again = EffectsDisplay.from_estimator(fitted(), SCHEMA, columns=["job"], ax=axes)
    assert again.ax_[0] is axes and again.figure_ is own
    drawn = EffectsDisplay(effects(fitted(), SCHEMA), display.scale, private=True)
    assert drawn.plot().figure_.get_suptitle() == "PRIVATE: for the data holder alone"
    for refused, message in (
        (lambda: drawn.plot(axes), "Expected 2 axes"),
        (lambda: EffectsDisplay([], display.scale), "at least one effect"),
        (lambda: EffectsDisplay.from_estimator(fitted(), SCHEMA, columns=["height"]), "Expected columns among"),
    ):
        with pytest.raises(ValueError, match=message):
            refused()
    pyplot.close("all")


def test_what_an_epsilon_buys_is_drawn_in_the_form_of_scikit_learn() -> None:
    display = EpsilonCurveDisplay.from_curve(curve(), "auc", target=0.9)
    assert np.array_equal(display.line_.get_ydata(), curve().band("auc")[0])
    assert "auc on held-out records (not private)" in display.ax_.get_ylabel()
    _, axes = pyplot.subplots()
    assert display.plot(axes).ax_ is axes and display.figure_ is axes.figure
    compared = EpsilonCurveDisplay.from_study(study(), "output")
    assert compared.line_.get_ydata().tolist() == [study().cell("output", epsilon).mean for epsilon in (1.0, 4.0)]
    assert EpsilonCurveDisplay.from_study(study()).name == study().metric
    with pytest.raises(ValueError, match="Expected mechanism"):
        EpsilonCurveDisplay.from_study(study(), "lasso")
    with pytest.raises(ValueError, match="Expected metric"):
        EpsilonCurveDisplay.from_curve(curve(), "f1")
    pyplot.close("all")


def test_matplotlib_warns_of_nothing() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        display = EffectsDisplay.from_estimator(fitted(), SCHEMA)
        display.figure_.canvas.draw()
    pyplot.close("all")
