"""Which values a proposal publishes, counted by persons, and what it makes of entries that are no plain numbers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from dperm.data import Column, Dataset, Schema, SchemaError, confirmed, find, propose, read_table
from dperm.data.schema.columns import Encoding
from helpers.commands import dperm

N = 300
LABELS = np.where(np.arange(N) % 3 == 0, "yes", "no")


def proposed(values: Any, name: str = "x", **options: Any) -> list[Column]:
    """The columns that a table's column becomes, beside a number and a target."""
    frame = pd.DataFrame({name: np.resize(np.asarray(values, dtype=object), N), "beside": np.arange(N) % 90, "y": LABELS})
    if "unit" in options:
        frame["who"] = options["unit"]
        options["unit"] = "who"
    return [column for column in propose(frame, "y", **options).columns if column.source == name]


# Values


def test_categories_are_counted_by_persons() -> None:
    """One person with many rows publishes nothing, and many persons with one row each do."""
    rows = np.array(["rare"] * 100 + ["common"] * 100 + ["few"] * 100, dtype=object)
    who = np.r_[np.zeros(100), np.arange(1, 101), np.resize(np.arange(101, 110), 100)].astype(int)  # 1, 100 and 9 persons
    (column,) = proposed(rows, unit=who)
    assert column.categories == ("common",) and column.other
    assert "2 that less than 10 persons hold" in column.note
    (column,) = proposed(rows, unit=who, least_units=9)
    assert column.categories == ("common", "few")
    (column,) = proposed(rows)  # each row is a person
    assert column.categories == ("common", "few", "rare") and not column.other


@pytest.mark.parametrize("least", [1, 5, 10, 15])
@pytest.mark.parametrize("persons", [False, True])
def test_what_fewer_hold_is_nowhere_in_what_is_published(least: int, persons: bool) -> None:
    rng = np.random.default_rng(0)
    words = np.array([f"value{number}" for number in range(30)], dtype=object)
    values = words[np.minimum(rng.geometric(0.15, N) - 1, 29)]
    who = rng.integers(0, 80, N) if persons else np.arange(N)
    frame = pd.DataFrame({"x": values, "z": np.arange(N) % 7, "y": values, "who": who})
    frame["y"] = [value if value in words[:3] or value == words[4] else words[0] for value in values]
    schema = confirmed(propose(frame, "y", unit="who" if persons else "", least_units=least), answered=True)
    published = {*schema.columns[0].categories, *schema.classes, *schema.columns[0].read, *schema.columns[2].read}
    for name in ("x", "y"):
        holders = frame.groupby(name)["who"].nunique()
        shown = set(schema.columns[0].categories if name == "x" else schema.classes)
        assert shown == set(holders[holders >= least].index)
    assert published <= set(words)
    rare = [word for word in words if frame.groupby("x")["who"].nunique().get(word, 0) < least]
    text = schema.to_json()
    assert not [word for word in rare if f'"{word}"' in text and word not in schema.classes]


def test_labels_that_few_hold_are_left_out_and_named() -> None:
    labels = np.resize(["a", "b"], N).astype(object)
    labels[:4] = "Mrs Miller"
    frame = pd.DataFrame({"x": np.arange(N) % 90, "y": labels})
    draft = propose(frame, "y")
    assert draft.classes == ("a", "b") and draft.label.unknown == "ignore"
    assert "less than 10 rows hold 'Mrs Miller' (4): are these labels?" in draft.label.note
    assert len(Dataset.of(frame, draft)) == N - 4 and "Miller" not in confirmed(draft, answered=True).to_json()
    assert propose(frame, "y", least_units=4).classes == ("Mrs Miller", "a", "b")
    with pytest.raises(SchemaError, match=r"at least two labels in 'y' that 200 rows or more hold, got 0 of 3.*least_units=1"):
        propose(frame, "y", least_units=200)


def test_yes_and_no_are_known_to_all() -> None:
    labels = np.where(np.arange(N) < 3, "yes", "no")
    assert propose(pd.DataFrame({"x": np.arange(N) % 90, "y": labels}), "y").classes == ("no", "yes")
    (column,) = proposed(labels)
    assert column.categories == ("no", "yes")
    assert propose(pd.DataFrame({"x": np.arange(N) % 90, "y": (labels == "yes").astype(float)}), "y").classes == ("0", "1")


@pytest.mark.parametrize("least", [0, -1, 2.5, "3"])
def test_least_units_is_a_whole_number(least: Any) -> None:
    with pytest.raises((ValueError, TypeError), match="least_units"):
        proposed(["a", "b"], least_units=least)


def test_a_unit_that_is_missing_is_refused_before_anything_is_counted() -> None:
    with pytest.raises(SchemaError, match="told whose each row is, but 'who' is missing in 1 of 300"):
        proposed(["a", "b"], unit=[None, *range(N - 1)])


NAMES = ["name", "host_name", "Last Name", "patientName", "surname", "Nachname", "prénom", "names", "name.1", "Name 1"]
NAMES += ["full_name_1", "names of host", "Full name (legal)", "Patientenname", "PATIENTNAME", "Kundenname", "Vorname (2)"]


@pytest.mark.parametrize("name", NAMES)
def test_names_of_people_are_asked_about_and_left_out(name: str) -> None:
    (column,) = proposed([f"Person {number % 5}" for number in range(N)], name)
    assert column.type == "ignore" and "5 names: of people?" in column.note
    assert "Person" not in column.note
    with pytest.raises(SchemaError, match="of people"):
        confirmed(propose(pd.DataFrame({name: ["Ann", "Bo"] * 150, "x": np.arange(N) % 90, "y": LABELS}), "y"))


@pytest.mark.parametrize("name", ["patient", "doctor", "Employee", "Doctor.1"])
def test_persons_by_what_they_are_are_asked_about_unless_codes_stand_for_them(name: str) -> None:
    (column,) = proposed(["Ann Lee", "Bo Cox", "Cy Day"], name)
    assert column.type == "ignore" and "3 names: of people?" in column.note
    assert proposed(["P1", "P2", "P3"], name)[0].type == "category"
    assert proposed(["yes", "no"], name)[0].type == "category"


@pytest.mark.parametrize("name", ["rename", "nameplate", "column_1", "tournament", "patients seen", "doctor type", "unnamed"])
def test_other_columns_are_not(name: str) -> None:
    assert proposed(["Ann", "Bo"], name)[0].type == "category"


def test_others_are_a_level_only_where_there_are_some() -> None:
    (column,) = proposed(["a", "b", "c"])
    assert not column.other and column.unknown == "ignore"
    unseen = column.encode(pd.Series(["a", "later"]), Encoding())
    assert unseen.tolist() == [[1, 0, 0], [0, 0, 0]]
    (column,) = proposed([*"ab" * 149, "c", "c"])
    assert column.other and column.categories == ("a", "b")


def test_a_private_search_has_others_whatever_the_rows_hold() -> None:
    """That a table has no rare value is a fact about its rows."""
    frame = pd.DataFrame({"x": np.resize(["a", "b"], 4000), "z": np.arange(4000) % 90, "y": np.resize(["no", "yes", "no"], 4000)})
    assert find(frame, "y", 5.0).columns[0].categories == ("a", "b") and find(frame, "y", 5.0).columns[0].other


# Entries that are no plain numbers


def test_a_top_category_among_counts_is_read() -> None:
    (column,) = proposed([0, 1, 2, 0, 1, 2, 0, 1, 2, "3+"])
    assert (column.type, column.range, column.also_reads) == ("number", (0.0, 3.0), ("bounds",))
    assert "30 entries are bounds, read as the number in them: '3+' (30)" in column.note and column.unknown == "error"


def test_each_bound_may_be_of_one_row_and_none_is_published() -> None:
    values = [f"< 0.{number}" if number % 3 == 0 else f"{number / 10}" for number in range(10, 10 + N)]
    (column,) = proposed(values)
    assert column.also_reads == ("bounds",) and not column.read
    assert column.range[1] >= 30


def test_other_decimal_marks_are_read() -> None:
    (column,) = proposed(["1.5", "2.5", "0.5", "12", "1,5"])
    assert column.also_reads == ("decimals",)
    assert "60 entries are of the other decimal mark, and read as well: '1,5' (60)" in column.note
    assert column.encode(pd.Series(["1,5", "1.5"]), Encoding())[:, 0].tolist() == pytest.approx([1.5 / 12] * 2)


def test_what_is_dropped_is_named_with_its_count() -> None:
    (column,) = proposed(["1", "2", "3", "4", "5", "6", "7", "8", "9", "ask"])
    assert "30 entries are none, and count as missing: 'ask' (30)" in column.note and column.unknown == "ignore"
    (column,) = proposed(["1", "2", "3", "4", "5", "6", "7", "8", "9" * 60 + "x", "9"])
    assert f"'{'9' * 40}'…" in column.note


def pressures(mark: str = "/") -> list[str]:
    """Blood pressures: most pairs are rare, and some stand in several rows."""
    rng = np.random.default_rng(0)
    upper, lower = rng.integers(100, 180, N), rng.integers(60, 100, N)
    upper[:80], lower[:40] = np.arange(100, 180), np.arange(60, 100)
    return [f"{one}{mark}{other}" for one, other in zip(upper, lower, strict=True)]


@pytest.mark.parametrize("mark", ["/", " / ", "|"])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("patient_nr", lambda row: (1000 + row // 3, 20 + row // 3 % 4)),  # rows of a person together
        ("visitor", lambda row: (1000 + row // 3, 20 + row // 3 % 4)),  # under a header that says nothing
        ("visitor", lambda row: (1 + row // 3 % 50, 20 + row // 150)),  # numbered anew each year
        ("visitor", lambda row: (1 + row % 100 % 50, 20 + row % 100 // 50)),  # rows of a person apart
        ("person", lambda row: (1 + row % 100 % 50, 20 + row % 100 // 50 + 9 * (row % 9 == 0))),  # some rows alone
    ],
)
def test_ids_of_two_numbers_are_asked_about_as_the_unit(name: str, value: Any, mark: str) -> None:
    (column,) = proposed([mark.join(map(str, value(row))) for row in range(N)], name)
    assert column.type == "ignore" and column.note.startswith("an id that repeats, up to ")
    assert "does it tell persons apart? Then it is the unit" in column.note
    assert ("split" in column.note) == (name != "patient_nr")


@pytest.mark.parametrize("name", ["case_id", "person"])
def test_ids_of_two_numbers_that_are_all_different(name: str) -> None:
    (column,) = proposed([f"{1000 + row}/{20 + row % 4}" for row in range(N)], name)
    assert column.type == "ignore" and column.note.startswith("an id: different in each row")


@pytest.mark.parametrize("mark", ["/", " / ", "|"])
def test_two_numbers_in_an_entry_are_two_columns(mark: str) -> None:
    values = pressures(mark)
    first, second = proposed(values, "bp")
    assert (first.name, first.range, first.piece, second.name, second.range, second.piece) == (
        "bp 1", (100.0, 179.0), 1, "bp 2", (60.0, 99.0), 2
    )  # fmt: skip
    values[5] = "not taken"
    frame = pd.DataFrame({"bp": values, "y": LABELS})
    draft = propose(frame, "y")
    assert "count as missing: 'not taken' (1)" in draft.columns[0].note and draft.missing == "separate"
    features = Dataset.of(frame, draft).features
    assert features[5].tolist() == [0, 1, 0, 1] and features[4].tolist() == pytest.approx([4 / 79, 0, 4 / 39, 0], abs=0.02)


def test_rounded_pressures_in_many_rows_are_two_columns() -> None:
    """Hardly a pair stands alone, but some are much more frequent than others."""
    rng = np.random.default_rng(1)
    upper, lower = rng.normal(13, 2, 20_000).round(), rng.normal(8, 1.2, 20_000).round()
    entries = [f"{one * 10:.0f}/{other * 10:.0f}" for one, other in zip(upper, lower, strict=True)]
    frame = pd.DataFrame({"bp": entries, "y": np.resize(["yes", "no"], 20_000)})
    assert [column.name for column in propose(frame, "y").columns] == ["bp 1", "bp 2", "y"]


def test_dates_with_some_other_entries_stay_dates() -> None:
    values = [f"{2015 + number % 9}-0{1 + number % 9}-11" for number in range(N)]
    values[3] = values[290] = "soon"
    values[7] = "12"
    (column,) = proposed(values, "admitted")
    assert (column.type, column.unknown, column.parts) == ("date", "ignore", ("year", "month", "weekday"))
    assert "entries that are none count as missing: 'soon' (2), '12' (1)" in column.note and "first?" not in column.note
    values[::5] = ["soon"] * 60
    assert proposed(values, "admitted")[0].type != "date"


def test_parts_of_entries_have_names_of_their_own() -> None:
    frame = pd.DataFrame({"bp": pressures(), "bp 1": np.arange(N) % 90, "y": LABELS})
    assert [column.name for column in propose(frame, "y").columns] == ["bp 1 of both", "bp 2", "bp 1", "y"]


@pytest.mark.parametrize(
    ("values", "form", "parts", "note"),
    [
        ([f"{2015 + number % 9}-Q{1 + number % 4}" for number in range(N)], "%Y-Q%q", ("year", "month"), "quarters, 2015-01-01"),
        ([f"Q{1 + number % 4} {2015 + number % 9}" for number in range(N)], "Q%q %Y", ("year", "month"), "quarters, "),
        ([f"{2015 + number % 9}-{1 + number % 12:02d}" for number in range(N)], "%Y-%m", ("year", "month"), "months, "),
        ([f"{1 + number % 12:02d}/{2015 + number % 9}" for number in range(N)], "%m/%Y", ("year", "month"), "months, "),
    ],
)
def test_quarters_and_months_are_dates(values: list[str], form: str, parts: tuple[str, ...], note: str) -> None:
    (column,) = proposed(values)
    assert (column.type, column.format, column.parts) == ("date", form, parts) and column.note.startswith(note)


def test_quarters_begin_with_their_first_month() -> None:
    from dperm.data.schema.moments import moments

    found = moments(pd.Series(["2019-Q1", "2019-Q3", "2019-Q4", "2019-Q5", "2019-Q0", "2019-Q12", "2019"]), "%Y-Q%q")
    assert found.dt.month.tolist()[:3] == [1, 7, 10] and found.iloc[3:].isna().all()


def test_yes_and_no_as_numbers() -> None:
    for values in (["0.0", "1.0"], [0.0, 1.0], ["0", "1.0", "0.0", "1"], [True, False]):
        (column,) = proposed(values)
        assert column.note == "yes or no" and len(column.categories) == 2
        frame = pd.DataFrame({"x": np.resize(np.asarray(values, dtype=object), N), "y": LABELS})
        assert Dataset.of(frame, propose(frame, "y")).features.sum() == N
    assert proposed(["0.0", "1.0"])[0].categories == ("0", "1")


def test_currencies_and_percents_are_named() -> None:
    assert ", in EUR, which is not read" in proposed([f"{number} EUR" for number in range(90)])[0].note
    assert ", in %, which is not read" in proposed([f"{number} %" for number in range(90)])[0].note
    (column,) = proposed([f"CHF {number}" for number in range(90)])
    assert (column.type, column.range) == ("number", (0.0, 89.0))


@pytest.mark.parametrize(("slip", "asked"), [(1e11, True), (-1e9, True), (300_000.0, False)])
def test_a_target_far_from_all_others_is_asked_about(slip: float, asked: bool) -> None:
    values = np.random.default_rng(0).uniform(20_000, 80_000, N)
    values[7] = slip
    note = propose(pd.DataFrame({"x": np.arange(N) % 90, "y": values}), "y").label.note
    assert ("right, or slips?" in note) == asked and (not asked or f"{slip:.6g}" in note)


def test_skewed_targets_are_not_slips() -> None:
    values = np.random.default_rng(0).lognormal(10, 1, N)
    assert "slips" not in propose(pd.DataFrame({"x": np.arange(N) % 90, "y": values}), "y").label.note


# The command


def test_the_command_says_for_whom_it_speaks(tmp_path: Path) -> None:
    frame = pd.DataFrame({"ward": ["a"] * 290 + ["b"] * 10, "x": np.arange(N) % 90, "y": LABELS})
    frame["who"] = [*range(290), *[1] * 10]
    frame.to_csv(path := tmp_path / "t.csv", index=False)
    said = dperm("data", "propose", path, "--target", "y", "--unit", "who").stdout
    assert "PRIVATE, for the data holder only" in said and "for the data holder alone" in said
    schema = Schema.load(tmp_path / "t.schema.json")
    assert schema.columns[0].categories == ("a",)
    dperm("data", "propose", path, "--target", "y", "--unit", "who", "--least-units", 1)
    assert Schema.load(tmp_path / "t.schema.json").columns[0].categories == ("a", "b")
    done = dperm("data", "propose", path, "--target", "y", "--epsilon", 1, "--least-units", 5, expect=1)
    assert "Expected no --least-units with --epsilon" in done.stderr
    assert read_table(path).frame.shape == (N, 4) and not re.search(r"PRIVATE", (tmp_path / "t.schema.json").read_text())
