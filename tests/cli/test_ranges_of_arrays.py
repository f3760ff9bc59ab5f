"""No range of a target that is in a model was read off the records, unless somebody accepts that by name: array files, too."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from dperm.data import Dataset, Schema, propose, read_dataset
from dperm.estimators import DPByPart, DPRidge, model_from_json
from dperm.release import SpendLog
from helpers.commands import dperm
from helpers.said import flat

RNG = np.random.default_rng(0)
X = RNG.uniform(-0.5, 0.5, (300, 2))
Y = 50 + 30 * X[:, 0] + RNG.normal(0, 1, 300)


@pytest.fixture
def arrays(tmp_path: Path) -> Path:
    np.savez(tmp_path / "a.npz", X=X, y=Y)
    return tmp_path / "a.npz"


def test_a_range_is_stated_or_accepted_by_name(arrays: Path) -> None:
    model, charges = arrays.with_name("m.json"), len(SpendLog.current().charges())
    train = ("train", arrays, "--model", "ridge", "-o", model)
    refused = dperm(*train, expect=1).stderr
    assert "--target-range LOW,HIGH" in refused and "--accept-proposed" in refused
    assert not model.exists() and len(SpendLog.current().charges()) == charges
    told = dperm(*train, "--accept-proposed").stdout
    assert "claimed" in told and "(1, 1e-05)-differentially private" not in flat(told)
    assert model_from_json(model.read_text())[0].certificate_.epsilon is None


def test_what_is_stated_is_all_that_the_model_holds(arrays: Path) -> None:
    model = arrays.with_name("m.json")
    dperm("train", arrays, "--model", "ridge", "--target-range", "0,100", "-o", model)
    fitted, extra = model_from_json(model.read_text())
    assert extra["target_range"] == [0.0, 100.0] and extra["target_range_stated"] is True
    texts = [item.text for item in fitted.certificate_.assumptions]
    assert "The range of the target was known without the records." in texts and "Targets lie in [0, 100]." in texts
    assert fitted.certificate_.epsilon is not None
    assert not any(f"{end:.6g}"[:6] in model.read_text() for end in (Y.min(), Y.max()))
    test = ("evaluate", model, arrays, "--test-data", "released", "--epsilon", "8", "-o", arrays.with_name("s.json"))
    assert "R²" in dperm(*test).stdout


def test_the_same_files_with_and_without_one_record_have_one_range(tmp_path: Path) -> None:
    for name, rows in (("a", slice(None)), ("b", slice(1, None))):
        np.savez(tmp_path / f"{name}.npz", X=X[rows], y=np.append(1e9, Y[1:])[rows])
    one, other = (read_dataset(tmp_path / f"{name}.npz", target_range=(0, 100))[0] for name in "ab")
    assert one.target_range == other.target_range == (0, 100)
    assert one.read_off == other.read_off == ""
    assert "Targets outside [0, 100], clipped to it: 1" in one.stands_out()[0] and not other.stands_out()


def test_a_stated_range_makes_few_values_numbers(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", X=X, y=np.arange(300) % 4)
    assert read_dataset(tmp_path / "a.npz")[0].classes == ("0", "1", "2", "3")
    stated = read_dataset(tmp_path / "a.npz", target_range=(0, 10))[0]
    assert stated.classes == () and stated.target_range == (0, 10)
    np.savez(tmp_path / "t.npz", X=X, y=np.array(["a", "b"] * 150))
    with pytest.raises(ValueError, match="Expected numbers as targets"):
        read_dataset(tmp_path / "t.npz", target_range=(0, 10))


@pytest.mark.parametrize("given", ["5", "10,5", "a,b", "0,inf", "1,2,3", "0,nan", ""])
def test_what_is_no_range_is_refused(arrays: Path, given: str) -> None:
    assert "LOW,HIGH" in dperm("train", arrays, "--model", "ridge", "--target-range", given, expect=1).stderr


def test_tables_state_theirs_in_the_schema(tmp_path: Path) -> None:
    assert "named set" in dperm("train", "iris", "--target-range", "0,1", expect=1).stderr
    (tmp_path / "t.csv").write_text("a,b\n" + "\n".join(f"{row},{row * 2.5}" for row in range(200)))
    table = ("train", tmp_path / "t.csv", "--target", "b", "--accept-proposed")
    assert "its target's row" in dperm(*table, "--target-range", "0,1", expect=1).stderr


def test_the_certificate_of_amounts_has_the_schema_s_range() -> None:
    import pandas as pd

    frame = pd.DataFrame({"u": X[:, 0].round(3), "ward": np.where(X[:, 1] > 0, "a", "b"), "pay": Y.round(2)})
    schema = propose(frame, "pay", "stays", task="regression")
    schema = Schema.from_dict(json.loads(schema.to_json()) | {"proposed": False})
    assert schema.target_range is not None
    low, high = schema.target_range
    dataset = Dataset.of(frame, schema)
    whole = dataset.fit(DPRidge(label="stays"))
    assert [item.text for item in whole.certificate_.assumptions if item.key == "targets"] == [
        f"Targets lie in [{low:g}, {high:g}]."
    ]
    parts = dataset.fit(DPByPart(DPRidge(label="stays"), schema.columns_of("ward")))
    for certificate in (parts.certificate_, *(model.certificate_ for model in parts.models_.values())):
        assert f"Targets lie in [{low:g}, {high:g}]." in [item.text for item in certificate.assumptions]
