"""A hospital's export, from the file to the card that is signed: made data, and every step a command.

    python examples/hospital.py            # in ./hospital, about a minute

The export is as exports are: semicolons, cp1252, decimal commas, several stays a patient, ids, dates, gaps, "< 5" among numbers,
spellings and slips of labels, and a ward in the new stays that training never saw.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd

PATIENTS = 4000


def stays(rng: np.random.Generator, patients: int, first: int) -> pd.DataFrame:
    """One to five stays of each patient."""
    counts = rng.integers(1, 6, patients)
    patient = np.repeat(np.arange(first, first + patients), counts)
    size = len(patient)
    age = np.repeat(rng.integers(18, 95, patients), counts)
    ward = rng.choice(["Chirurgie", "Innere", "Gynäkologie", "Pädiatrie"], size, p=[0.3, 0.4, 0.2, 0.1])
    crp = rng.lognormal(2.2, 1.0, size)
    smoker = rng.choice(["ja", "nein", ""], size, p=[0.3, 0.6, 0.1])
    risk = (age - 75) / 12 + 1.2 * (ward == "Innere") + 0.9 * np.log1p(crp) - 3.2 + 0.6 * (smoker == "ja")
    admitted = pd.Timestamp("2021-01-01") + pd.to_timedelta(rng.integers(0, 1400, size), unit="D")
    return pd.DataFrame(
        {
            "Fall-ID": np.arange(size) + 100 * first,
            "Patient": patient,
            "Aufnahme": admitted.strftime("%d.%m.%Y"),
            "Alter": age,
            "Station": ward,
            "CRP": ["< 5" if value < 5 else f"{value:.1f}".replace(".", ",") for value in crp],
            "Raucher": smoker,
            "Bemerkung": ["Patient klagt über Schmerzen, Tag " + str(day) for day in rng.integers(0, 9999, size)],
            "Verlegt": np.where(rng.logistic(size=size) < risk, "ja", "nein"),
        }
    )


def export(frame: pd.DataFrame, path: Path) -> None:
    frame.to_csv(path, sep=";", index=False, encoding="cp1252", lineterminator="\r\n", errors="replace")


def dperm(*arguments: str) -> None:
    print("\n$ dperm " + " ".join(arguments), flush=True)
    subprocess.run([sys.executable, "-m", "dperm", *arguments], check=True)


def publicly_known(path: Path) -> None:
    """What a person edits: ranges, wards and labels as they are known without the rows."""
    schema = json.loads(path.read_text(encoding="utf-8"))
    ranges = {"Alter": [0, 120], "CRP": [0, 500]}
    for column in schema["columns"]:
        if column["name"] in ranges:
            column["range"] = ranges[column["name"]]
        if column["name"] == "CRP":
            column["scale"] = "log"
        if column["name"] == "Verlegt":
            column["read"] |= {"jaa": "ja"}
            column.pop("note")  # what it asked is answered
    schema["classes"] = ["ja", "nein"]
    schema["max_rows_per_unit"] = 5
    path.write_text(json.dumps(schema, indent=2, ensure_ascii=False), encoding="utf-8")


def main(folder: Path, patients: int = PATIENTS) -> None:
    folder.mkdir(exist_ok=True)
    rng = np.random.default_rng(7)
    train, new = stays(rng, patients, 10_000), stays(rng, patients // 4, 90_000)
    slips = rng.choice(len(train), 6, replace=False)
    train.loc[slips, "Verlegt"] = ["Nein", "Nein", "JA", "jaa", "Ja", "NEIN"]
    export(train, folder / "stays.csv")
    new.loc[:4, "Station"] = "Palliativ"
    export(new, folder / "new.csv")
    stays_csv, new_csv, schema, model = (
        str(folder / name) for name in ("stays.csv", "new.csv", "stays.schema.json", "model.json")
    )
    dperm("data", "propose", stays_csv, "--target", "Verlegt", "--unit", "Patient")
    publicly_known(folder / "stays.schema.json")
    dperm("data", "confirm", schema)
    dperm("train", stays_csv, "--schema", schema, "--epsilon", "1", "--delta", "1e-6", "-o", model)
    dperm("effects", model, "-o", str(folder / "effects.html"))
    dperm("evaluate", model, new_csv, "--test-data", "private", "--by", "Station")
    dperm("predict", model, new_csv, "--on-error", "skip", "-o", str(folder / "answers.csv"))
    dperm("audit", model, "--minutes", "0.5", "-o", str(folder / "audit.json"))
    scores = str(folder / "scores.json")
    released = ("--test-data", "released", "--epsilon", "0.5", "--on-error", "skip", "-o", scores)
    dperm("evaluate", model, new_csv, *released)
    title = ("--title", "Who is transferred to another ward")
    dperm("card", model, "--scores", scores, "--audit", str(folder / "audit.json"), *title, "-o", str(folder / "card.html"))


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "hospital"), int(sys.argv[2]) if len(sys.argv) > 2 else PATIENTS)
