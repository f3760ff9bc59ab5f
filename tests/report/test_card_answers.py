"""A reader answers from the card alone: who is protected, how strongly, on what assumptions, how good, who signed, checks."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from dperm.privacy import Assumption, Certificate, Composed, Gaussian, Provenance, PureDP, SelfComposed
from dperm.report.card import Card, ModelFile, card_page
from dperm.report.event_words import event_lines
from dperm.report.figures import risk_figure
from dperm.report.model_scores import ModelScores
from helpers.commands import dperm


def issued(noise: float) -> Certificate:
    fresh = Provenance("fresh", "")
    return Certificate.issue(mechanism="test", event=Gaussian(noise), delta=1e-5, provenance=fresh)


def scores(widths: float = 0.05, **given: float | None) -> ModelScores:
    return ModelScores(900, "records", dict(given), issued(9.0), dict.fromkeys(given, widths))


def labelled(right: float, frequent: float) -> dict[str, float | None]:
    return {"accuracy": right, "most frequent class": frequent, "above the most frequent class": right - frequent}


def filled_circles(svg: str) -> float:
    """How many circles are drawn in the colour of those who are found thanks to the model, parts of one counted as parts."""
    areas: dict[str, float] = {}
    for name, path in re.findall(r'<path id="([\w-]+)" d="([^"]+)"', svg):
        points = np.array([pair.split() for pair in re.findall(r"-?[\d.]+ -?[\d.]+(?= *\n|$)", path, re.M)], dtype=float)
        x, y = points.T if len(points) else (np.zeros(1), np.zeros(1))
        areas[name] = float(abs(np.dot(x, np.roll(y, 1)) - np.dot(y, np.roll(x, 1))) / 2)
    uses = [areas[name] for name in re.findall(r'xlink:href="#([\w-]+)"[^>]*fill: #d55e00', svg)]
    whole = max(areas.values())
    return sum(uses) / whole


@pytest.mark.parametrize("found", [1.0, 2.1, 2.5, 4.0, 17.3])
def test_as_many_circles_are_filled_as_are_said_to_be_found(found: float) -> None:
    svg = risk_figure(issued(4.0), found)
    legend = 0.9  # the marker that explains the colour, a little smaller
    assert filled_circles(svg) - legend == pytest.approx(found - 1, abs=0.15)
    assert f"at most {found:.4g} are found" in svg


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"R²": -0.4}, "Worse than always giving the mean of the test records. R² is below 0"),
        ({"R²": 0.01}, "Not told apart from always giving the mean"),
        ({"R²": 0.62}, "It explains about 62 % of the spread (R² = 0.620)"),
        ({"R²": None}, "hidden by the noise"),
        (labelled(0.9, 0.7), "Better than always giving the most"),
        (labelled(0.7, 0.9), "Worse than always giving the most"),
        (labelled(0.91, 0.9), "Not told apart from always giving"),
        ({**labelled(0.9, 0.9), "accuracy": None}, "right is hidden by the noise"),
        ({"AUC": 0.8}, "ranks 80.0 of 100 pairs rightly; guessing ranks 50."),
        ({"AUC": 0.52}, "cannot be told from guessing"),
        ({"AUC": 0.3}, "ranks worse than guessing"),
    ],
)
def test_scores_are_said_in_words_and_noise_is_taken_for_no_difference(given: dict[str, float | None], said: str) -> None:
    (sentence,) = scores(**given).sentences
    assert said in sentence


def test_the_page_has_the_sentences_and_the_table() -> None:
    given = scores(**{"R²": -0.4, "mean absolute error": 3.25})
    page = card_page(Card.of(issued(4.0), "x", scores=given))
    assert page.count(given.sentences[0]) == 2
    assert "<td>-0.400 ± 0.050</td>" in page and "<td>3.250 ± 0.050</td>" in page


def test_widths_are_read_as_what_they_are() -> None:
    given = scores(**{"mean absolute error": 892.544})
    tiny = replace(given, half_widths={"mean absolute error": 0.0002, "records": 69.3})
    wide = replace(given, half_widths={"mean absolute error": 892.544, "records": 69.3}, records=104, trained_on=True)
    assert [text for _, text in tiny.rows] == ["892.5440 ± under 0.001"] and tiny.about == "900 ± 70 test records"
    assert [text for _, text in wide.rows] == ["hidden by the noise"] and wide.about == "104 ± 70 training records"
    assert replace(scores(**{"R²": 0.01}), half_widths={"R²": 0.05}).rows[0][1] == "0.010 ± 0.050"  # which may be below 0


def test_a_width_that_nobody_knows_makes_no_sentence() -> None:
    found = ModelScores(9, "records", {"R²": 0.6}, issued(9.0), {"R²": None})
    assert found.sentences == ["How much of the spread it explains is hidden by the noise."]


def test_what_the_scores_assume_is_stated_by_those_who_sign() -> None:
    own = Assumption("The test records chose nothing.", "caller", "stated", "test")
    given = ModelScores(9, "records", {"R²": 0.6}, issued(9.0).with_assumptions(own), {"R²": 0.1})
    assert own.text in Card.of(issued(4.0), "x", scores=given).states
    assert own.text not in Card.of(issued(4.0), "x").states


@pytest.mark.parametrize(("noise", "word"), [(50.0, "strong"), (2.0, "moderate"), (0.4, "weak")])
def test_strength_is_said_in_a_word(noise: float, word: str) -> None:
    card = Card.of(issued(noise), "x")
    assert card.strength == word
    assert f"is called {word}" in card_page(card)
    assert Card.of(replace(issued(noise), status="not private"), "x").strength == ""


def test_the_file_is_named_with_its_digest_and_what_its_signature_is_worth() -> None:
    digest = "0f" * 32
    plain, verified, carried = (
        card_page(Card.of(issued(4.0), "x", file=ModelFile("m.json", digest, signed, unverified)))
        for signed, unverified in (("", False), ("office.pub", False), ("", True))
    )
    assert plain.count(digest) == 3 and "carries no digital signature" in plain
    assert "signed with the key office.pub" in verified and "was not verified for this card" in carried


def test_no_page_shows_json_and_equal_events_are_counted() -> None:
    event = Composed((Gaussian(2.0), Gaussian(2.0), SelfComposed(PureDP(0.5), 30), Gaussian(1 / 3)))
    lines = event_lines(event)
    assert lines[0] == (0, "Composed")
    assert lines[1] == (1, "2 times: Gaussian (noise multiplier 2, relation add or remove one)")
    assert lines[2] == (1, "Self composed (count 30)")
    assert lines[3][0] == 2 and "Pure DP" in lines[3][1]
    assert "0.333333," in lines[4][1]
    page = card_page(Card.of(Certificate.issue(mechanism="t", event=event, delta=1e-5), "x"))
    assert '{"' not in page and "&#34;" not in page
    assert lines[1][1] in page
    many = event_lines(Composed(tuple(Gaussian(2.0 + each) for each in range(300))))
    assert len(many) < 70 and "and more" in many[-1][1]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("card")
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"age": rng.uniform(0, 100, 600).round(1), "ward": rng.choice(["a", "b"], 600)})
    frame["ill"] = np.where(frame.age + rng.normal(0, 10, 600) > 50, "yes", "no")
    frame.to_csv(folder / "t.csv", index=False)
    schema: dict[str, Any] = {
        "name": "stays", "title": "Stays of 2024", "target": "ill", "classes": ["no", "yes"],
        "columns": [{"name": "age", "type": "number", "range": [0, 100]},
                    {"name": "ward", "type": "category", "categories": ["a", "b"]}, {"name": "ill", "type": "label"}],
    }  # fmt: skip
    (folder / "s.json").write_text(json.dumps(schema))
    dperm("train", folder / "t.csv", "--schema", folder / "s.json", "-o", folder / "m.json")
    dperm("train", folder / "t.csv", "--schema", folder / "s.json", "--epsilon", "2", "-o", folder / "other.json")
    (folder / "test.csv").write_bytes((folder / "t.csv").read_bytes())
    evaluate = ("evaluate", folder / "m.json", folder / "test.csv", "--test-data")
    dperm(*evaluate, "released", "--epsilon", "2", "-o", folder / "scores.json")
    exact = dperm(*evaluate, "private", "--json").stdout
    (folder / "private.json").write_text(exact)
    return folder


def test_the_command_shows_released_scores_a_title_and_the_columns(trained: Path) -> None:
    page = trained / "card.html"
    dperm("card", trained / "m.json", "--scores", trained / "scores.json", "--title", "Who falls ill", "-o", page)
    text = page.read_text()
    assert "<h1>Who falls ill</h1>" in text and "Better than always giving the most frequent answer" in text
    assert "<td>age</td><td>0 to 100</td>" in text and "<td>ward</td><td>a, b</td>" in text
    assert "states that they were known without the data" in text and "Logistic regression, made by" in text
    told = json.loads(dperm("card", trained / "m.json", "--scores", trained / "scores.json", "-o", page, "--json").stdout)
    assert told["title"] == "ill, predicted from Stays of 2024"
    assert told["scores"]["in_words"] and told["file"]["sha256"] in text


def test_scores_of_another_model_and_exact_ones_are_refused(trained: Path) -> None:
    page = ("-o", trained / "no.html")
    other = dperm("card", trained / "other.json", "--scores", trained / "scores.json", *page, expect=1)
    assert "those of another" in other.stderr
    exact = dperm("card", trained / "m.json", "--scores", trained / "private.json", *page, expect=1)
    assert "released evaluation" in exact.stderr
    table = json.loads((trained / "scores.json").read_text())
    table["test_data"] = "private"
    (trained / "relabelled.json").write_text(json.dumps(table))
    assert "without noise" in dperm("card", trained / "m.json", "--scores", trained / "relabelled.json", *page, expect=1).stderr
    assert not (trained / "no.html").exists()
    table |= {"test_data": "released", "scores": table["scores"] | {"accuracy": float("nan")}}
    with pytest.raises(ValueError, match="a score is nan"):
        ModelScores.from_json(json.dumps(table))
    invented = json.loads((trained / "scores.json").read_text())
    model = json.loads((trained / "m.json").read_text())
    for changes in ({"scores": invented["scores"] | {"accuracy": 9.0}}, {"records": -5}, {"certificate": model["certificate"]}):
        (trained / "invented.json").write_text(json.dumps(invented | changes))
        told = dperm("card", trained / "m.json", "--scores", trained / "invented.json", *page, expect=1).stderr
        assert "got others in" in told
    seeded = json.loads((trained / "scores.json").read_text())
    seeded["certificate"]["epsilon"] = 0.1
    with pytest.raises(ValueError, match="released evaluation"):
        ModelScores.from_json(json.dumps(seeded))
