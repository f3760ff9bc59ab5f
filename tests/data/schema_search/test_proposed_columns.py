"""How proposed schemas understand columns, and the questions that are answered before they are public."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from dperm.data import Dataset, SchemaError, confirmed
from dperm.data.schema.columns import Column
from dperm.data.schema_search.proposing import propose


def understood(values: Any, name: str = "x") -> Column:
    values = list(values)
    labels = ["yes", "no"] * (len(values) // 2)
    return propose(pd.DataFrame({name: values, "other": labels, "y": labels}), "y").columns[0]


def test_texts_of_few_rows_are_no_categories() -> None:
    column = understood(["north"] * 700 + ["south"] * 295 + ["10115"] * 3 + ["10117"] * 2)
    assert column.categories == ("north", "south") and column.other
    assert "2 that less than 10 rows hold are no category of their own" in column.note
    assert understood([f"zip{number // 3}" for number in range(3000)]).type == "ignore"
    assert understood(["a", "b"] * 10).categories == ("a", "b")
    assert understood(["a"] * 11 + ["b"] * 9).categories == ("a",)  # of small tables, too


def test_codes_within_the_range_are_asked_about() -> None:
    amounts = np.random.default_rng(0).uniform(200, 3000, 940).round(2).tolist()
    assert "does 999 stand for a missing value?" in understood([*amounts, *[999] * 60]).note
    assert "999" not in understood([*amounts, *[999] * 2, *[1200] * 58]).note
    assert "does 9 stand for a missing value?" in understood([0, 1] * 90 + [9] * 20).note
    assert "stand for" not in understood(list(range(10)) * 20).note


def test_times_of_day_are_hours() -> None:
    for times in (["09:30", "23:59", "00:00", "12:15"] * 50, ["09:30:10", "23:59:00", "01:00:00", "12:15:09"] * 50):
        column = understood(times)
        assert (column.type, column.parts, column.note) == ("date", ("hour",), "times of day")
    frame = pd.DataFrame({"at": ["06:00", "18:00"] * 100, "y": ["a", "b"] * 100})
    features = Dataset.of(frame, propose(frame, "y")).features
    assert len(features) == 200
    assert np.isfinite(features).all()
    assert np.ptp(features, axis=0).max() >= 0.5


def test_what_a_proposal_asks_is_answered_before_it_is_public() -> None:
    frame = pd.DataFrame({"case_id": np.repeat(np.arange(100) + 7000, 3), "dose": [1, 2, 999] * 100, "y": ["a", "b", "a"] * 100})
    draft = propose(frame, "y")
    for question in ("does it tell persons apart?", "does 999 stand for a missing value?"):
        with pytest.raises(SchemaError, match=question.replace("?", r"\?")):
            confirmed(draft)
    assert not confirmed(draft, answered=True).proposed
    labels = pd.DataFrame({"x": np.arange(300) % 7, "y": ["yes", "no"] * 148 + ["Q", "Q", "?", "?"]})
    assert "is 'Q', in few rows, a label of its own?" in propose(labels, "y").columns[1].note
