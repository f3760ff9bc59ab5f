"""What people get wrong: over a hundred bad inputs, each refused in one clear line, before anything is charged."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

from dperm import data
from dperm.data import DataError, TargetRange, load_images
from dperm.estimators import (
    DPLogisticRegression,
    DPMLPClassifier,
    DPPoissonRegressor,
    DPQuantileRegressor,
    DPRidge,
    PublicRangeScaler,
    TableEncoder,
    model_from_json,
)
from dperm.mechanisms import Gradient
from dperm.privacy import Gaussian, PoissonSampled, Risk, calibrate, epsilon
from dperm.release import SpendLog
from helpers.commands import dperm

N = 80
RNG = np.random.default_rng(0)
FRAME = pd.DataFrame(
    {
        "age": RNG.integers(18, 90, N),
        "sex": RNG.choice(["f", "m"], N),
        "dose": RNG.uniform(0, 5, N).round(2),
    }
).assign(ill=lambda frame: np.where(frame.age > 50, "yes", "no"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Good files and bad ones, beside a schema and a model."""
    place = tmp_path_factory.mktemp("bad")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        patch.setenv("DPERM_SPEND_LOG", str(place / "spend.db"))
        FRAME.to_csv("t.csv", index=False)
        dperm("data", "propose", "t.csv", "--target", "ill", "-o", "s.json")
        dperm("data", "confirm", "s.json")
        dperm("train", "t.csv", "--schema", "s.json", "--epsilon", "2", "-o", "m.json")
    tables = {
        "no-age": FRAME.drop(columns="age"),
        "texts": FRAME.assign(age=FRAME.age.astype(str) + " y"),
        "one-label": FRAME.assign(ill="no"),
        "twice": FRAME.rename(columns={"dose": "age"}),
        "infinite": FRAME.assign(dose=np.inf),
        "strange": FRAME.assign(ill="perhaps"),
    }
    for name, table in tables.items():
        table.to_csv(place / f"{name}.csv", index=False)
    written = {
        "empty.csv": "",
        "header.csv": "age,sex,dose,ill\n",
        "comments.csv": "# of 2020\n# by me\nage,sex,dose,ill\n30,f,1.0,yes\n31,m,2.0,no\n",
        "title.csv": "Ward A;;\nage;sex;ill\n30;f;yes\n31;m;no\n33;m;no\n",
        "ragged.csv": "age,sex,dose,ill\n30,f,1.0,yes\n31,m,2.0\n",
        "quotes.csv": 'age,sex,dose,ill\n30,"f,1.0,yes\n31,m,2.0,no\n',
        "broken.json": "{",
        "list.json": "[1]",
        "other.json": '{"a": 1}',
    }
    for name, text in written.items():
        (place / name).write_text(text)
    (place / "binary.csv").write_bytes(bytes(range(256)) * 40)
    schema = json.loads((place / "s.json").read_text())

    def changed(name: str, column: str | None = None, **changes: Any) -> None:
        other = json.loads(json.dumps(schema))
        part = other if column is None else next(each for each in other["columns"] if each["name"] == column)
        part.update(changes)
        (place / name).write_text(json.dumps(other))

    changed("target.json", target="sick")
    changed("entry.json", purpos="x")
    changed("range.json", "age", range=[90, 18])
    changed("nan.json", "age", range=[0, float("nan")])
    changed("type.json", "age", type="integer")
    changed("categories.json", "sex", categories=["f", "f"])
    model = json.loads((place / "m.json").read_text())
    (place / "tampered.json").write_text(json.dumps(model | {"intercept": [1.0]}))
    return place


TRAIN = "train t.csv --schema s.json -o new.json"
COMMANDS = {
    # files
    "train none.csv --schema s.json": "No file none.csv",
    "train empty.csv --schema s.json": "empty.csv is empty",
    "train header.csv --schema s.json": "has no records",
    "train ragged.csv --schema s.json": "line 3 has 3 fields in place of 4",
    "train quotes.csv --schema s.json": "a quote in line 2",
    "train binary.csv --schema s.json": "it is no text",
    "train no-age.csv --schema s.json": "lacks the columns ['age']",
    "train texts.csv --schema s.json": "Expected numbers in column 'age'",
    "train twice.csv --schema s.json": "lacks the columns ['dose'] of the schema. It has ['age', 'sex', 'age.1', 'ill']",
    "train infinite.csv --schema s.json": "Expected finite numbers in column 'dose'",
    "train strange.csv --schema s.json": "perhaps",
    "train one-label.csv --target ill": "is 'no' in all rows",
    "train t.csv": "Expected a target for t.csv",
    "train t.csv --target sick": "one of the columns ['age', 'sex', 'dose', 'ill'], got 'sick'",
    "train t.csv --target ill": "No public schema for t.csv",
    # schemas
    "train t.csv --schema none.json": "Cannot read the schema none.json: No such file or directory",
    "train t.csv --schema broken.json": "Cannot read the schema broken.json",
    "train t.csv --schema list.json": "Expected list.json to hold an object",
    "train t.csv --schema other.json": "Expected only the entries",
    "train t.csv --schema target.json": "Expected exactly the target 'sick' to have type label",
    "train t.csv --schema entry.json": "Is 'proposed' meant?",
    "train t.csv --schema range.json": "low < high for column 'age', got [90, 18]",
    "train t.csv --schema nan.json": "Expected a finite range for column 'age'",
    "train t.csv --schema type.json": "Expected type of column 'age' to be",
    "train t.csv --schema categories.json": "distinct categories for column 'sex'",
    "data propose t.csv --target sick": "got 'sick'",
    "data propose t.csv --target ill --unit nobody": "got 'nobody'",
    "data propose t.csv --target ill --epsilon 0": "epsilon > 0",
    "data propose comments.csv --target ill": "skip_lines=2 (--skip-lines 2)",
    "data propose title.csv --target ill": "Row 1 holds it: is that the header? --skip-lines",
    "data confirm none.json": "No such file or directory",
    "data confirm m.json": "Expected only the entries",
    "data check t.csv": "Expected a target",
    # budgets and settings
    f"{TRAIN} --epsilon 0": "Expected epsilon > 0",
    f"{TRAIN} --epsilon -1": "Expected epsilon > 0, got -1.0",
    f"{TRAIN} --epsilon nan": "epsilon to be a number",
    f"{TRAIN} --epsilon inf": "finite epsilon",
    f"{TRAIN} --delta 1": "delta in [0, 1)",
    f"{TRAIN} --delta 0 --mechanism gradient": "a pure form have",
    f"{TRAIN} --advantage 2": "advantage in (0, 1)",
    f"{TRAIN} --advantage 0.1 --epsilon 1": "Expected --epsilon or --advantage, got both",
    f"{TRAIN} --public-size 0": "public_size >= 1",
    f"{TRAIN} --public-size 79 --relation replace_one": "Expected public_size=80",
    f"{TRAIN} --relation remove": "relation to be one of",
    f"{TRAIN} --mechanism magic": "Expected --mechanism to be one of",
    f"{TRAIN} --mechanism gradient --sampling shuffle": "Expected --sampling to be one of",
    f"{TRAIN} --sampling poisson": "other mechanisms draw no batches",
    f"{TRAIN} --model forest": "Expected --model to be one of",
    f"{TRAIN} --model ridge": "Expected numbers as target for --model ridge",
    f"{TRAIN} --class-weight yes": "such as no=1,yes=4",
    f"{TRAIN} --class-weight balanced": "counts the labels, which is not private",
    f"{TRAIN} --class-weight no=1,yes=-2": "class_weight of 'yes' > 0",
    f"{TRAIN} --class-weight no=1,so=2": "one weight of each of the classes",
    f"{TRAIN} --data-norm 0": "data_norm > 0",
    f"{TRAIN} --data-norm 1e300": "data_norm between",
    f"{TRAIN} --curves -1": "curves of 3 to 200 knots",
    f"{TRAIN} --curves 1": "curves of 3 to 200 knots",
    f"{TRAIN} --hidden 3": "Expected --model mlp with --hidden",
    f"{TRAIN} --model mlp --hidden 0": "Expected --hidden as widths from 1",
    f"{TRAIN} --model mlp --hidden a": "Expected --hidden as widths of layers",
    f"{TRAIN} --model mlp --class-weight no=1,yes=2": "without --class-weight",
    f"{TRAIN} --sign-key none.pem": "Cannot read the private key none.pem",
    f"{TRAIN} --private-report r.html": "Expected --mechanism individual",
    "train t.csv --schema s.json -o s.json": "different files to read and to write",
    "train t.csv --schema s.json -o t.csv": "different files to read and to write",
    "train t.csv --schema s.json -o t.csv/m.json": "Cannot write",
    # models
    "predict none.json t.csv": "Cannot read none.json: No such file or directory",
    "predict broken.json t.csv": "which is no JSON",
    "predict tampered.json t.csv": "it was changed after it was saved",
    "predict s.json t.csv": "Not a dperm model",
    "predict m.json no-age.csv": "lacks the columns ['age']",
    "predict m.json texts.csv": "80 of 80 rows do not fit the schema. Row 1",
    "predict m.json empty.csv": "empty.csv is empty",
    "predict m.json t.csv -o t.csv": "different files to read and to write",
    "predict m.json t.csv --on-error ask": "Expected --on-error to be one of",
    "predict m.json t.csv --records no-age.csv": "lacks the columns ['age']",
    "predict m.json t.csv --records t.csv --refits 1": "--refits >= 2",
    "predict m.json t.csv --records t.csv --level 95": "--level in (0, 1)",
    "evaluate m.json t.csv --test-data secret": "Expected --test-data to be one of",
    "evaluate m.json t.csv --test-data released": "Expected --epsilon with --test-data released",
    "evaluate m.json t.csv --test-data private --by town": "got 'town'",
    "evaluate m.json strange.csv --test-data private": "perhaps",
    "effects m.json --label sick": "one of the labels ['no', 'yes']",
    "effects s.json": "Not a dperm model",
    "influence t.csv --schema s.json --row 1000": "1 to 80, got 1000",
    "audit t.csv": "which is no JSON",
    "audit m.json --members t.csv": "--members and --others together",
    "audit m.json --epsilon 1": "Expected no --epsilon with a model",
    "audit --epsilon -1": "epsilon > 0",
    "card t.csv": "not JSON",
    "card m.json --audit m.json": "different files",
    "card m.json --budget -1": "--budget > 0",
    # accounting
    "account": "one of --noise, --event and --log",
    "account --noise -1": "--noise > 0",
    "account --noise 1 --rate 2": "--rate in (0, 1]",
    "account --noise 1 --steps 0": "--steps >= 1",
    "account --noise 1 --delta 2": "delta in [0, 1)",
    "account --event none.json": "Cannot read none.json: No such file or directory",
    "account --event other.json": "Expected an event named one of",
    "calibrate": "Expected --epsilon, or a risk in its place",
    "calibrate --epsilon 1 --rate 0": "rate in (0, 1]",
    "compare t.csv --schema s.json --mechanisms magic": "Expected mechanism to be one of",
    "compare t.csv --schema s.json --epsilons a": "numbers separated by commas",
    "account --noise 1 --log": "one of --noise, --event and --log",
    "account --noise 1 --label a": "--log with --label",
    "account --noise 1 --relation both": "both",
    "calibrate --epsilon 0": "epsilon > 0",
    "calibrate --epsilon 1 --noise 1 --steps 3": "both",
    "calibrate --epsilon 1 --advantage 0.1": "--advantage, got both",
    "calibrate --prior 0.5": "prior with posterior",
    "calibrate --advantage 0.1 --noise 1": "one step at an attacker's advantage",
    "compare none.csv --target x": "No file none.csv",
    "compare t.csv --schema s.json --epsilons 0": "epsilon > 0",
    "compare t.csv --schema s.json --delta 2": "delta in (0, 1)",
    "compare t.csv --schema s.json --data-norm 0": "data_norm > 0",
    "compare t.csv --schema s.json -o t.csv/page.html": "Cannot write",
    "compare t.csv --schema s.json --repeats 0": "repeats >= 1",
    "audit --trials 1": "--trials >= 20, got 1",
    "card none.json": "Cannot read none.json",
    "data show nothing": "nothing",
}


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_say_what_is_wrong(command: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    said = dperm(*command.split(), expect=1).stderr.strip()
    assert said.startswith("error: ")
    assert "\n" not in said
    assert COMMANDS[command] in said
    assert not SpendLog.current().charges() and not (folder / "new.json").exists()


USAGES = {
    "train": "Missing argument 'source'",
    "train t.csv --epsilon one": "Invalid value for '--epsilon'",
    "train t.csv --separator x": "No such option: --separator",
    "evaluate m.json t.csv": "Missing option '--test-data'",
    "data propose t.csv": "Missing option '--target'",
    "nonsense": "No such command 'nonsense'",
}


@pytest.mark.parametrize("command", USAGES)
def test_commands_say_how_they_are_used(command: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    assert USAGES[command] in dperm(*command.split(), expect=2).stderr.splitlines()[-1]
    assert not SpendLog.current().charges()


X = RNG.normal(size=(40, 3))
Y = np.where(X[:, 0] > 0, "yes", "no")
Z = X[:, 0]


def logistic(X: Any = X, y: Any = Y, groups: Any = None, **settings: Any) -> Any:
    return DPLogisticRegression(**settings).fit(X, y, groups)


CALLS: list[tuple[Callable[[], Any], str]] = [
    (lambda: logistic(epsilon=0), "Expected epsilon > 0, got 0"),
    (lambda: logistic(epsilon="1"), "Expected epsilon to be a number, got '1'"),
    (lambda: logistic(epsilon=True), "Expected epsilon to be a number, got True"),
    (lambda: logistic(epsilon=None), "Expected epsilon to be a number, got None"),
    (lambda: logistic(delta=1), r"Expected delta in \[0, 1\)"),
    (lambda: logistic(mechanism="magic"), "Expected mechanism to be one of"),
    (lambda: logistic(mechanism=3), "Expected mechanism to be one of"),
    (lambda: logistic(relation="x"), "Expected relation to be one of"),
    (lambda: logistic(data_norm=-1), "Expected data_norm > 0"),
    (lambda: logistic(data_norm=np.inf), "Expected a finite data_norm"),
    (lambda: logistic(public_size=3.5), "Expected public_size to be an integer"),
    (lambda: logistic(public_size=True), "Expected public_size to be a number, got True"),
    (lambda: logistic(label=3), "Expected label to be text"),
    (lambda: logistic(mechanism=Gradient(epochs=-1)), "Expected epochs > 0"),
    (lambda: logistic(mechanism=Gradient(expected_batch_size=0)), "Expected expected_batch_size > 0"),
    (lambda: logistic(X[:, 0]), "Expected 2D array, got 1D array"),
    (lambda: logistic(y=Y[:5]), "inconsistent numbers of samples"),
    (lambda: logistic(X * np.nan), "contains NaN"),
    (lambda: logistic(np.where(X > 1, np.inf, X)), "contains infinity"),
    (
        lambda: logistic(np.char.add(X.astype(str), "a")),
        "convert|Unable|numeric|got texts in the columns|as numbers, got the text",
    ),
    (lambda: logistic(X * 1j), "Complex data not supported"),
    (lambda: logistic(X[:0], Y[:0]), r"0 sample\(s\)"),
    (lambda: logistic(X[:, :0]), r"0 feature\(s\)"),
    (lambda: logistic(y=np.full(40, "no")), "Expected at least 2 classes"),
    (lambda: logistic(classes=["a", "b"]), r"Expected labels among classes = \['a', 'b'\]"),
    (lambda: logistic(y=Z), "Unknown label type: continuous"),
    (lambda: logistic(y=[None, *Y[1:]]), "Expected a label for each record, got 1 without one"),
    (lambda: logistic(y=np.array([np.nan, *Y[1:]], dtype=object)), "NaN|got 1 without one"),
    (lambda: logistic(y=pd.Series([pd.NA, *Y[1:]], dtype="string")), "got 1 without one"),
    (lambda: logistic(pd.DataFrame(X), pd.Series(Y, index=range(1, 41))), "Expected y with the index of X"),
    (lambda: logistic(groups=np.arange(40)), "Expected max_rows_per_unit with groups"),
    (lambda: logistic(groups=np.arange(3), max_rows_per_unit=2), "Expected 40 groups, one a row"),
    (lambda: DPLogisticRegression(max_sample_weight=1.0).fit(X, Y), "sample_weight in fit with max_sample_weight=1"),
    (lambda: DPLogisticRegression().predict(X), "not fitted yet"),
    (lambda: DPRidge().fit(X, Y), "convert|Unable|numeric|as numbers, got the text"),
    (lambda: DPRidge().fit(X, np.where(Z > 1, np.nan, Z)), "contains NaN"),
    (lambda: DPRidge(radius=-1).fit(X, Z), "Expected radius > 0"),
    (lambda: DPQuantileRegressor(quantile=1.5).fit(X, Z), r"Expected quantile in \(0, 1\)"),
    (lambda: DPPoissonRegressor().fit(X, -np.abs(Z)), "Expected counts >= 0"),
    (lambda: DPMLPClassifier(hidden_layer_sizes=(0,)).fit(X, Y), "Expected hidden_layer_sizes >= 1"),
    (lambda: DPMLPClassifier(hidden_layer_sizes="a").fit(X, Y), "Expected hidden_layer_sizes as a list"),
    (lambda: DPMLPClassifier().fit(sp.csr_matrix(X), Y), "Sparse data was passed"),
    (lambda: PublicRangeScaler((1, 0)).fit(X), "low < high"),
    (lambda: TableEncoder(3).fit(X), "Expected a schema or the path of one, got int"),
    (lambda: Gaussian(0.0), "Expected noise_multiplier > 0"),
    (lambda: Gaussian("a"), "Expected noise_multiplier to be a number"),
    (lambda: PoissonSampled(0, Gaussian(1.0)), r"Expected rate in \(0, 1\]"),
    (lambda: epsilon(Gaussian(1.0), 2), "Expected delta in"),
    (lambda: calibrate(Gaussian, 0, 1e-5), "Expected epsilon > 0"),
    (lambda: Risk(advantage=2), r"Expected advantage in \(0, 1\)"),
    (lambda: Risk(), "got none of them"),
    (lambda: data.propose("people.csv", "ill"), "got str: read a file by dperm.data.read_table"),
    (lambda: data.propose(X, "ill"), "Expected a table with named columns, of pandas, polars or Arrow, got ndarray"),
    (lambda: data.propose(FRAME, "sick"), "got 'sick'"),
    (lambda: data.Schema.from_dict([1]), "Expected a schema as a table of its entries, got list"),
    (lambda: data.load("nothing"), "Expected a data set named one of"),
    (lambda: data.read_dataset("/none/such.csv"), "No file /none/such.csv"),
    (lambda: model_from_json("{}"), "Not a dperm model"),
    (lambda: model_from_json(None), "Expected a model as text, got NoneType"),
]


@pytest.mark.parametrize(("call", "message"), CALLS, ids=[message for _, message in CALLS])
def test_calls_say_what_is_wrong(call: Callable[[], Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        call()
    assert not SpendLog.current().charges()


def test_settings_and_archives_say_what_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong: Any = ["poisson"]
    with pytest.raises(ValueError, match="Expected sampling to be one of"):
        Gradient(sampling=wrong)
    for given in ({"epochs": 3}, {"method": ["a"]}):
        with pytest.raises(ValueError, match="Expected mechanism to be one of"):
            DPRidge(mechanism=given).fit(RNG.normal(size=(30, 3)), np.arange(30) % 3)
    (tmp_path / "cifar10").mkdir()
    monkeypatch.setenv("DPERM_DATA", str(tmp_path))
    for content in (b"no archive", b"\x1f\x8b\x08\x00 cut short"):
        (tmp_path / "cifar10" / "cifar-10-binary.tar.gz").write_bytes(content)
        with pytest.raises(DataError, match="no archive, or a damaged one"):
            load_images("cifar10")
    assert TargetRange(-1e308, 1e308).scaled([0.0, 1e308]).tolist() == [0.0, 1.0]
