"""Which records matter: the numbers, the table and the page."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pandas as pd
import pytest

from dperm.data import Dataset, propose
from dperm.report.influence import influence_page, influences


def table(labels: tuple[str, ...] = ("high", "low")) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"age": rng.integers(18, 80, 200), "hours": rng.random(200) * 60})
    noisy = (frame["age"] < 50).astype(int) + rng.integers(0, len(labels) - 1, 200)
    frame["income"] = np.asarray(labels)[np.minimum(noisy, len(labels) - 1)]
    frame.loc[41, "income"] = "high" if frame.loc[41, "income"] == "low" else "low"  # an age that says otherwise
    frame.loc[41, "age"] = 79 if frame.loc[41, "income"] == "low" else 18
    return frame


def dataset(frame: pd.DataFrame, target: str = "income", **changes: Any) -> Dataset:
    schema = propose(frame, target)
    return Dataset.of(frame, dataclasses.replace(schema, **changes))


def test_the_record_that_was_planted_matters_most() -> None:
    found = influences(dataset(table()))
    assert found.most(1)[0]["row"] == 42  # counted from 1
    assert len(found.change) == len(found.losses) == 200 and (found.change > 0).all()
    assert 0 < found.share_of(2) < found.share_of(20) < found.share_of(200) == pytest.approx(1)


def test_rows_are_those_of_the_table_also_where_some_are_left_out() -> None:
    frame = table().astype({"hours": object})
    frame.loc[[3, 10, 30], "hours"] = None
    found = influences(dataset(frame, missing="drop"))
    assert len(found.change) == 197 and found.most(1)[0]["row"] == 42
    assert 4 not in found.rows and 5 in found.rows
    with pytest.raises(ValueError, match="Row 4 was left out"):
        influences(dataset(frame, missing="drop"), row=4)
    with pytest.raises(ValueError, match="Expected a row among those used, 1 to 200"):
        influences(dataset(frame, missing="drop"), row=201)


def test_on_one_prediction_its_own_record_pulls_towards_itself() -> None:
    found = influences(dataset(table()), row=42)
    record = next(record for record in found.most(200) if record["row"] == 42)
    sign = 1 if record["target"] == "low" else -1  # the second class in order is the one that scores above 0
    assert record["change"] * sign < 0 and abs(record["change"]) == max(abs(found.change))


@pytest.mark.parametrize("model", ["logistic", "svm", "ridge"])
def test_every_model(model: str) -> None:
    data = dataset(table(), "hours") if model == "ridge" else dataset(table())
    found = influences(data, model)
    page = influence_page(found, 5)
    assert "PRIVATE: for the data holder only" in page
    assert page.count("<tr>") == 6
    assert "<svg" in page
    assert "http://" not in page.replace("http://www.w3.org", "")


def test_several_classes() -> None:
    data = dataset(table(("high", "low", "middle")))
    assert influences(data).change.shape == influences(data, row=1).change.shape == (200,)
    with pytest.raises(ValueError, match="two classes"):
        influences(data, "svm")
    with pytest.raises(ValueError, match="Expected numbers as target"):
        influences(data, "ridge")
    with pytest.raises(ValueError, match="Expected labels"):
        influences(dataset(table(), "hours"))
