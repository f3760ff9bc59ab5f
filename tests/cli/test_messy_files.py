"""Ten files as people bring them, from the file to predictions and the card, by commands alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from dperm.estimators import model_from_json
from helpers.commands import dperm

N = 1500
#: writes a table and new rows, and gives the target and further options of `propose`
Writer = Callable[[np.random.Generator, Path, Path], tuple[str, list[str]]]


def _people(rng: np.random.Generator, size: int) -> pd.DataFrame:
    age, pay = rng.integers(18, 90, size), rng.lognormal(8, 0.6, size)
    sick = np.where((age - 55) / 15 + rng.logistic(size=size) > 0, "yes", "no")
    return pd.DataFrame({"age": age, "pay": pay.round(2), "job": rng.choice(["clerk", "smith", "nurse"], size), "sick": sick})


def _with_commas(values: pd.Series) -> list[str]:
    return [f"{value:,.2f}".translate(str.maketrans(",.", ".,")) for value in values]


def german_excel(rng: np.random.Generator, path: Path, new: Path) -> tuple[str, list[str]]:
    for size, to in ((N, path.with_suffix(".xlsx")), (300, new.with_suffix(".xlsx"))):
        frame = _people(rng, size)
        frame["Größe"] = rng.normal(170, 10, size).round(1)
        frame["since"] = pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 900, size), unit="D")
        frame.to_excel(to, index=False)
    return "sick", []


def german_csv(rng: np.random.Generator, path: Path, new: Path) -> tuple[str, list[str]]:
    for size, to in ((N, path), (300, new)):
        frame = _people(rng, size)
        frame["pay"], frame["job"] = _with_commas(frame["pay"]), frame["job"].replace("smith", "Müller")
        frame.to_csv(to, sep=";", index=False, encoding="cp1252", lineterminator="\r\n")
    return "sick", []


def utf_16(rng: np.random.Generator, path: Path, new: Path) -> tuple[str, list[str]]:
    for size, to in ((N, path), (300, new)):
        _people(rng, size).to_csv(to, sep="\t", index=False, encoding="utf-16")
    return "sick", []


def wide_ids(rng: np.random.Generator, path: Path, new: Path) -> tuple[str, list[str]]:
    for size, to in ((N, path), (300, new)):
        frame = _people(rng, size)
        frame.insert(0, "record_key", [f"{int(value):032x}" for value in rng.integers(0, 2**62, size)])
        frame.insert(1, "account", rng.permutation(size) + 10**15)
        frame.to_csv(to, index=False)
    return "sick", []


def rare_positives(rng: np.random.Generator, path: Path, new: Path) -> tuple[str, list[str]]:
    for size, to in ((4 * N, path), (100, new)):
        frame = _people(rng, size)
        frame["sick"] = np.where(frame["age"] + 20 * rng.normal(size=size) > 120, "1", "0")
        frame.loc[:1, "sick"] = ["0", "1"]
        frame.to_csv(to, index=False)
    return "sick", []


def gaps(rng: np.random.Generator, path: Path, new: Path) -> tuple[str, list[str]]:
    for size, to in ((N, path), (300, new)):
        frame = _people(rng, size).astype(object)
        for column in ("age", "pay", "job"):
            frame.loc[rng.random(size) < 0.4, column] = rng.choice(["", "n/a", "unknown" if column == "job" else "NULL"])
        frame.to_csv(to, index=False)
    return "sick", []


def dates(rng: np.random.Generator, path: Path, new: Path) -> tuple[str, list[str]]:
    for size, to in ((N, path), (300, new)):
        frame = _people(rng, size)
        days = pd.Timestamp("2019-05-05") + pd.to_timedelta(rng.integers(0, 1500 * 24, size), unit="h")
        frame["came"], frame["born"] = days.strftime("%m/%d/%Y %H:%M"), days.strftime("%Y-%m-%d")
        frame.to_csv(to, index=False)
    return "sick", []


def several_rows_of_a_person(rng: np.random.Generator, path: Path, new: Path) -> tuple[str, list[str]]:
    for size, to in ((N, path), (300, new)):
        frame = _people(rng, size // 5).loc[lambda table: np.repeat(table.index, 5)].reset_index(drop=True)
        frame.insert(0, "patient_id", np.repeat(rng.permutation(size // 5) + 5000, 5))
        frame["pay"] = rng.normal(size=size).round(3)
        frame.to_csv(to, index=False)
    return "sick", ["--unit", "patient_id"]


def thousands_of_categories(rng: np.random.Generator, path: Path, new: Path) -> tuple[str, list[str]]:
    for size, to in ((3 * N, path), (300, new)):
        frame = _people(rng, size)
        frame["code"] = [f"{'ABCDEFGHIJ'[int(value) % 10]}{int(value) // 10:03d}" for value in rng.zipf(1.3, size) % 4000]
        frame.to_csv(to, index=False)
    return "sick", []


def slips_in_the_target(rng: np.random.Generator, path: Path, new: Path) -> tuple[str, list[str]]:
    for size, to in ((N, path), (300, new)):
        frame = _people(rng, size)
        if size == N:
            frame.loc[:5, "sick"] = ["Yes", "YES ", "No", "yess", "?", "no"]
        frame.to_csv(to, index=False)
    return "sick", []


WRITERS: list[Writer] = [
    german_excel, german_csv, utf_16, wide_ids, rare_positives, gaps, dates, several_rows_of_a_person, thousands_of_categories,
    slips_in_the_target,
]  # fmt: skip


@pytest.mark.fast_cases("german_excel")
@pytest.mark.parametrize("write", WRITERS, ids=lambda write: write.__name__)
def test_from_the_file_to_the_card(write: Writer, tmp_path: Path) -> None:
    target, options = write(np.random.default_rng(1), tmp_path / "t.csv", tmp_path / "new.csv")
    source, new = (next(tmp_path.glob(f"{name}.*")) for name in ("t", "new"))
    schema, model, answers = (tmp_path / name for name in ("t.schema.json", "m.json", "answers.csv"))
    said = dperm("data", "propose", source, "--target", target, *options).stdout
    edited = json.loads(schema.read_text())
    if write is slips_in_the_target:
        assert "'yess' for 'yes'?" in said and "'YES' is read as 'yes'" in said
        assert "'yess' for 'yes'?" in dperm("data", "confirm", schema, expect=1).stderr
        edited["columns"][-1]["read"] |= {"yess": "yes", "?": None}
        del edited["columns"][-1]["note"]
        edited |= {"classes": ["no", "yes"], "missing": "middle"}
        schema.write_text(json.dumps(edited))
    dperm("data", "confirm", schema)
    told = dperm("train", source, "--schema", schema, "--epsilon", 8, "-o", model).stdout
    assert "For the data holder alone:" in told and "differentially private" in told
    fitted, extra = model_from_json(model.read_text())
    kinds = {column["name"]: column["type"] for column in extra["schema"]["columns"]}
    assert (kinds["age"], kinds["pay"], kinds["job"]) == ("number", "number", "category")
    assert {"record_key", "account", "patient_id"} & set(kinds) <= {name for name, kind in kinds.items() if kind == "ignore"}
    assert fitted.certificate_.epsilon <= 8 and list(fitted.classes_) == (
        ["0", "1"] if write is rare_positives else ["no", "yes"]
    )
    scores = json.loads(dperm("evaluate", model, new, "--test-data", "private", "--json").stdout)["scores"]
    assert scores["AUC"] > 0.6 or write is rare_positives  # one positive or two
    frame = pd.read_excel(new) if new.suffix == ".xlsx" else None
    dperm("predict", model, new, "--on-error", "skip", "-o", answers)
    found = pd.read_csv(answers)
    assert set(found["prediction"].astype(str)) <= {str(label) for label in fitted.classes_} | {"nan"}
    assert frame is None or len(found) == len(frame)
    dperm("card", model, "-o", tmp_path / "card.html")
    assert (tmp_path / "card.html").read_text().count("<svg") >= 1
