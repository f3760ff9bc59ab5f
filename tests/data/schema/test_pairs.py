"""Pairs of columns: products that stay within the row's bound, drawn as what they add."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from dperm.data import Column, Dataset, Schema, SchemaError
from dperm.data.schema.encoder import SchemaEncoder
from dperm.estimators import DPLogisticRegression
from dperm.report.effects import effects, effects_page, plot_effects
from dperm.report.refits import Refits

COLUMNS = (
    Column("age", "number", (0, 100)),
    Column("hour", "number", (0, 24), scale="cyclic"),
    Column("job", "category", categories=("clerk", "nurse"), other=True),
    Column("ill", "label"),
)
PAIRS = (("age", "job"), ("hour", "age"))
SCHEMA = Schema("people", "ill", COLUMNS, ("no", "yes"), missing="separate", curves=6, pairs=PAIRS)


def people(count: int, seed: int = 0) -> pd.DataFrame:
    """Whoever is old and a nurse, or young and none, is ill: no sum of columns says so."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame({"age": rng.uniform(0, 100, count), "hour": rng.uniform(0, 24, count)})
    frame["job"] = rng.choice(["clerk", "nurse", "pilot"], count)
    frame["ill"] = np.where((frame["age"] > 50) == (frame["job"] == "nurse"), "yes", "no")
    frame.loc[::10, "age"], frame.loc[::7, "job"] = np.nan, None
    return frame


def test_they_are_products_of_their_columns_features() -> None:
    frame = people(300)
    features, _ = SchemaEncoder(SCHEMA, frame).encode()
    names = SCHEMA.features
    assert features.shape == (300, len(names)) == (300, SCHEMA.dimension) and len(set(names)) == len(names)
    alone = replace(SCHEMA, pairs=(), curves=5)
    columns, _ = SchemaEncoder(alone, frame).encode()
    table = dict(zip(alone.features, columns.T * alone.divisor, strict=True))
    for name, values in zip(names, features.T * SCHEMA.divisor, strict=True):
        if " × " in name:
            one, other = name.split(" × ")
            assert values == pytest.approx(table[one] * table[other], abs=1e-6)
    lengths = np.linalg.norm(features.astype(float), axis=1)
    assert lengths.max() <= 1
    whole = np.square(features[:, : -(6 * 4 + 6 * 6)] * SCHEMA.divisor)
    assert whole.sum(axis=1).max() <= 3 * (1 + 1e-6)  # the columns', as without pairs


def test_they_are_there_with_curves_alone_and_kept_in_files(tmp_path: Any) -> None:
    assert SCHEMA.with_curves(0).dimension == replace(SCHEMA, pairs=(), curves=0).dimension
    (tmp_path / "s.json").write_text(SCHEMA.to_json())
    assert Schema.load(tmp_path / "s.json") == SCHEMA
    assert '"pairs"' not in replace(SCHEMA, pairs=()).to_json()


def test_neighbours_lie_along_either_column() -> None:
    pairs = {tuple(sorted((SCHEMA.features[i], SCHEMA.features[j]))) for i, j in SCHEMA.neighbours}
    assert ("age≈0 × job=nurse", "age≈25 × job=nurse") in pairs
    assert ("hour≈0 × age≈25", "hour≈19.2 × age≈25") in pairs  # the day ends where it starts
    assert not any("job=clerk" in one and "job=nurse" in other for one, other in pairs)
    assert len(SCHEMA.neighbours) == 5 + 6 + 4 * 4 + (5 * 6 + 4 * 6)


@pytest.mark.parametrize(
    "wrong",
    [("age",), (("age", "age"),), (("age", "ill"),), (("age", "shoe"),), (("age", "job"), ("job", "age")), "age", (("age", 3),)],
)
def test_what_is_no_pair_is_refused(wrong: Any) -> None:
    with pytest.raises(SchemaError, match="pair"):
        replace(SCHEMA, pairs=wrong)


def test_pairs_that_are_too_wide_are_refused() -> None:
    many = Column("town", "category", categories=tuple(map(str, range(700))))
    with pytest.raises(SchemaError, match=r"at most 2,500 features, got 3,\d+"):
        Schema("t", "ill", (*COLUMNS, many), ("no", "yes"), curves=6, pairs=(("town", "age"),))


def test_they_learn_what_no_sum_of_columns_says() -> None:
    scores = {}
    for pairs in ((), PAIRS):
        schema = replace(SCHEMA, pairs=pairs)
        train, test = (Dataset.of(people(4000, seed), schema) for seed in (1, 2))
        model = DPLogisticRegression(epsilon=4.0, classes=["no", "yes"], neighbours=schema.neighbours, public_size=4000)
        scores[pairs] = model.fit(train.features, train.targets).score(test.features, test.targets)
    assert scores[PAIRS] > 0.85 > scores[()] + 0.15


def test_effects_add_up_and_are_drawn() -> None:
    frame = people(2000)
    data = Dataset.of(frame, SCHEMA)
    model = DPLogisticRegression(epsilon=8.0, classes=["no", "yes"]).fit(data.features, data.targets)
    found = effects(model, SCHEMA, refits=Refits.of(model, data, 3))
    assert [effect.column for effect in found] == ["age", "hour", "job", "age × job", "hour × age"]
    job = found[3]
    assert job.sides is not None and job.heights[job.kept].mean() == pytest.approx(0, abs=1e-9)
    assert job.noise is not None and job.noise.shape == job.heights.shape
    surface = dict(zip(job.places, job.heights, strict=True))
    assert surface["age≈100 × job=nurse"] > surface["age≈0 × job=nurse"]
    assert "<svg" in plot_effects(model, SCHEMA) and "the first column upwards" in effects_page(model, SCHEMA)


def test_no_record_left_is_said_with_its_reason() -> None:
    frame = people(20)
    with pytest.raises(SchemaError, match="none has one of the labels"):
        Dataset.of(frame.assign(ill=None), SCHEMA)
    with pytest.raises(SchemaError, match="column 'age' has most missing"):
        Dataset.of(frame.assign(age=np.nan), replace(SCHEMA, missing="drop"))
