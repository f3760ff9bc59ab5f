"""The command line as a person uses it: processes, files, exit codes, one line where something is wrong."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from dperm import data
from dperm.cli.printing import printed_instead
from dperm.estimators import model_from_json, model_to_json
from dperm.mechanisms.gradient import SAMPLINGS
from dperm.privacy import ApproximateDP, Certificate
from dperm.privacy.certificates.signing import SigningKey, digest_of, make_key
from dperm.release import SpendLog
from dperm.report.candidates import CANDIDATES
from helpers.commands import Done, dperm
from helpers.said import flat

RNG = np.random.default_rng(0)
PEOPLE = pd.DataFrame(
    {"age": RNG.integers(18, 80, 300), "job": RNG.choice(["nurse", "baker"], 300), "hours": RNG.random(300) * 60}
)
PEOPLE["income"] = np.where(PEOPLE["age"] + 20 * (PEOPLE["job"] == "nurse") + RNG.normal(size=300) * 5 > 58, "high", "low")


def apart(*arguments: object, expect: int = 0) -> Done:
    """A command in a process of its own."""
    done = subprocess.run([sys.executable, "-m", "dperm", *map(str, arguments)], capture_output=True, text=True, check=False)
    assert done.returncode == expect, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return Done(done.stdout, done.stderr)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "people.csv"
    PEOPLE.to_csv(path, index=False)
    return path


@pytest.fixture
def schema(table: Path) -> Path:
    dperm("data", "propose", table, "--target", "income")
    path = table.with_name("people.schema.json")
    path.write_text(path.read_text().replace('"proposed": true', '"proposed": false'))
    return path


def test_help_shows_examples() -> None:
    text = apart("--help").stdout
    assert "dperm compare people.csv --target income" in text
    for command in ("train", "predict", "compare", "account", "calibrate", "card"):
        assert "dperm " + command in dperm(command, "--help").stdout


def test_from_table_to_card(table: Path, schema: Path, tmp_path: Path) -> None:
    model, answers, page = tmp_path / "m.json", tmp_path / "a.csv", tmp_path / "c.html"
    done = apart("train", table, "--schema", schema, "--epsilon", 5, "-o", model)
    assert "(5, 1e-05)-differentially private" in flat(done.stdout)
    assert "read off the data" not in flat(done.stdout)
    without_target = tmp_path / "new.csv"
    PEOPLE.drop(columns="income").to_csv(without_target, index=False)
    dperm("predict", model, without_target, "-o", answers)
    found = pd.read_csv(answers)
    assert list(found.columns) == ["prediction", "probability of high", "probability of low"]
    assert np.mean(found["prediction"] == PEOPLE["income"]) > 0.7
    dperm("card", model, "-o", page)
    assert "What an attacker could do" in page.read_text()
    certificate = Certificate.from_json(json.dumps(json.loads(dperm("card", model, "-o", page, "--json").stdout)["certificate"]))
    assert certificate.epsilon <= 5
    again = (
        json.loads(dperm("account", "--event", model.with_name("c.json"), "--json").stdout)
        if _write_certificate(certificate, model)
        else {}
    )
    assert again["epsilon"] == certificate.epsilon
    assert len(SpendLog.current().charges("people")) == 1


def _write_certificate(certificate: Certificate, model: Path) -> bool:
    model.with_name("c.json").write_text(certificate.to_json())
    return True


def test_a_proposed_schema_is_not_public(table: Path, tmp_path: Path) -> None:
    done = dperm("train", table, "--target", "income", "-o", tmp_path / "m.json", expect=1)
    assert "No public schema" in done.stderr
    assert SpendLog.current().charges() == []
    done = dperm("train", table, "--target", "income", "--accept-proposed", "-o", tmp_path / "m.json")
    assert "claimed, not certified" in flat(done.stdout)
    assert "read off the data" in flat(done.stdout)


@pytest.mark.slow
def test_ridge_and_svm(tmp_path: Path, table: Path) -> None:
    dperm("train", table, "--target", "hours", "--model", "ridge", "--accept-proposed", "-o", tmp_path / "m.json")
    dperm("predict", tmp_path / "m.json", table, "-o", tmp_path / "a.csv")
    assert pd.read_csv(tmp_path / "a.csv")["prediction"].between(-60, 120).all()
    dperm("train", "iris", "--model", "svm", "--epsilon", 20, "-o", tmp_path / "m.json")
    dperm(
        "train", table, "--target", "income", "--accept-proposed", "--mechanism", "gradient", "--sampling", "importance",
        "--public-size", 300, "-o", tmp_path / "m.json",
    )  # fmt: skip
    assert "importance sampling" in json.loads((tmp_path / "m.json").read_text())["certificate"]["mechanism"]
    done = dperm("train", "iris", "--model", "ridge", "-o", tmp_path / "m.json", expect=1)
    assert "Expected numbers as target" in done.stderr


def test_compare_a_table(table: Path, tmp_path: Path) -> None:
    report = tmp_path / "out" / "report.html"
    settings = ["--target", "income", "--epsilons", "5", "--repeats", 2, "--mechanisms", "output,gradient-poisson"]
    done = dperm("compare", table, *settings, "--jobs", 1, "-o", report)
    assert "read off the data" in done.stderr
    assert "DP-SGD" in done.stdout
    assert report.stat().st_size > 50_000
    again = ("compare", table, *settings[:-1], "output", "--jobs", 1, "-o", report)  # which is cheap to attack
    told = dperm(*again, "--audit").stdout
    assert "output: consistent" in told
    assert "What attacks on the mechanisms found" in report.read_text()
    found = json.loads(dperm(*again, "--json").stdout)
    (study,) = found["studies"]
    assert [cell["mechanism"] for cell in study["cells"]] == ["non-private", "boosting", "constant", "output"]
    assert study["metric"] == "AUC"
    assert study["advice"]["sentence"] and study["cells"][3]["measures"]["log loss"]


def test_compare_begins_with_what_train_would_run(table: Path, tmp_path: Path) -> None:
    report = tmp_path / "report.html"
    done = dperm(
        "compare", table, "--target", "income", "--epsilons", "5", "--repeats", 3, "--mechanisms", "output,auto", "--no-boosting",
        "--jobs", 1, "-o", report,
    )  # fmt: skip
    assert done.stdout.index(" Default ") < done.stdout.index(" Output ")
    assert "Use what `dperm train` runs by itself, at ε = 5: expect AUC" in " ".join(done.stdout.split())
    assert "predictions of 'income'" not in done.stdout and "Boosting" not in done.stdout
    assert {charge.label for charge in SpendLog.current().charges()} == {"compare people"}


def test_account_and_calibrate() -> None:
    found = json.loads(dperm("account", "--noise", 1.1, "--rate", 0.01, "--steps", 1000, "--json").stdout)
    assert found["epsilon"] == pytest.approx(1.515, abs=1e-3)
    noise = json.loads(dperm("calibrate", "--epsilon", 1, "--rate", 0.01, "--steps", 20, "--json").stdout)
    assert noise["epsilon"] <= 1
    steps = json.loads(dperm("calibrate", "--epsilon", 1, "--rate", 0.01, "--noise", noise["noise_multiplier"], "--json").stdout)
    assert steps["steps"] == 20
    risk = ("--true-positive-rate", 0.05, "--false-positive-rate", 0.01)
    once = json.loads(dperm("calibrate", "--epsilon", 1, "--json").stdout)
    straight = json.loads(dperm("calibrate", *risk, "--json").stdout)
    assert straight["noise_multiplier"] < once["noise_multiplier"] and straight["risk"]["true_positive_rate"] == 0.05
    assert "Keeps an attacker's advantage of at most 0.1" in dperm("calibrate", "--advantage", 0.1, "--noise", 40).stdout
    assert "0 charges" in dperm("account", "--log").stdout


def test_data_commands(table: Path, schema: Path) -> None:
    assert "adult" in dperm("data", "list").stdout
    assert json.loads(dperm("data", "list", "--json").stdout)[0]["name"] == "adult"
    assert json.loads(dperm("data", "show", "adult").stdout)["target"] == "income"
    assert "300 records" in dperm("data", "check", table, "--schema", schema).stdout


def test_a_mistake_in_a_process_of_its_own() -> None:
    assert apart("account", "--noise", 0, expect=1).stderr.startswith("error: ")


def test_wrong_target_lists_the_columns(table: Path) -> None:
    done = dperm("compare", table, "--target", "wage", expect=1)
    assert "'income'" in done.stderr
    assert "got 'wage'" in done.stderr


def test_predictions_stay_in_line_with_their_records(table: Path, schema: Path, tmp_path: Path) -> None:
    schema.write_text(schema.read_text().replace('"missing": "error"', '"missing": "drop"'))
    dperm("train", table, "--schema", schema, "-o", tmp_path / "m.json")
    holes = PEOPLE.assign(age=[None, *PEOPLE["age"][1:]], income="unknown")
    holes.to_csv(tmp_path / "new.csv", index=False)
    done = dperm("predict", tmp_path / "m.json", tmp_path / "new.csv", "-o", tmp_path / "a.csv")
    assert "299 predictions" in done.stdout
    assert "Left blank: 1. Row 1: column 'age' is missing" in done.stdout
    found = pd.read_csv(tmp_path / "a.csv")
    assert len(found) == 300
    assert found["prediction"].isna().tolist() == [True] + [False] * 299


@pytest.mark.skipif(os.name != "posix", reason="links and devices")
def test_links_are_followed_and_other_files_refused(tmp_path: Path) -> None:
    (tmp_path / "real.json").write_text("old")
    (tmp_path / "link.json").symlink_to(tmp_path / "real.json")
    dperm("train", "iris", "-o", tmp_path / "link.json")
    assert (tmp_path / "link.json").is_symlink()
    assert "coef" in (tmp_path / "real.json").read_text()
    os.mkfifo(tmp_path / "pipe")
    done = dperm("train", "iris", "-o", tmp_path / "pipe", expect=1)
    assert "not a regular file" in done.stderr
    assert len(SpendLog.current().charges()) == 1


def test_all_sources_load_before_any_charge(tmp_path: Path) -> None:
    dperm("compare", "iris", "nowhere.csv", "--target", "x", "-o", tmp_path / "r.html", expect=1)
    assert SpendLog.current().charges() == []


def test_the_log_says_why_there_is_no_finite_epsilon(tmp_path: Path) -> None:
    for _ in range(2):
        SpendLog.current().charge(ApproximateDP(0.9, 1e-5), mechanism="another library's", label="", private=True)
    assert "larger --delta" in dperm("account", "--log").stdout
    assert json.loads(dperm("account", "--log", "--json").stdout)["epsilon"] == {"add_or_remove_one": None}
    assert "ε = " in dperm("account", "--log", "--delta", "1e-4").stdout


def test_tampered_models_get_one_line(tmp_path: Path) -> None:
    path = tmp_path / "m.json"
    dperm("train", "iris", "--curves", 0, "-o", path)
    good = json.loads(path.read_text())
    for change in ({"classes": None}, {"intercept": [1.0]}, {"extra": []}, {"coef": [[9.0] * 4] * 3}):
        path.write_text(json.dumps({**good, **change}))
        for command in (("predict", path, "iris", "-o", tmp_path / "a.csv"), ("card", path), ("audit", path)):
            assert "it was changed after it was saved" in dperm(*command, expect=1).stderr
        path.write_text(json.dumps(sealed({**good, **change})))
        error = dperm("predict", path, "iris", "-o", tmp_path / "a.csv", expect=change.keys() != {"coef"}).stderr
        assert "Not a dperm model" in error or "coef" in change
    for change, text in (
        ({"assumptions": []}, "it was changed after it was issued"),
        ({"relation": "replace_one"}, "it was changed after it was issued"),
        ({"epsilon": 0.01, "target_epsilon": 0.01}, "it was changed after it was issued"),
    ):
        path.write_text(json.dumps(sealed({**good, "certificate": {**good["certificate"], **change}})))
        assert text in dperm("card", path, "-o", tmp_path / "c.html", expect=1).stderr
    lies = sealed({**good["certificate"], "epsilon": 0.01, "target_epsilon": 0.01})  # a digest alone stops no liar: ε does
    path.write_text(json.dumps(sealed({**good, "certificate": lies})))
    assert "but its event costs" in dperm("card", path, "-o", tmp_path / "c.html", expect=1).stderr
    path.write_text(json.dumps(good))
    assert "ε = " in dperm("account", "--event", path).stdout
    assert dperm("--version").stdout.strip() == "0.1.0"


def sealed(stated: dict[str, Any]) -> dict[str, Any]:
    """With a digest that fits again, as whoever changed it could make it."""
    rest = {name: value for name, value in stated.items() if name not in ("digest", "signature")}
    return stated | {"digest": digest_of(rest)}


def test_a_signature_says_who_vouches_for_a_model(tmp_path: Path) -> None:
    model, key, other = tmp_path / "m.json", tmp_path / "signer.pem", tmp_path / "other.pem"
    assert "keep it to yourself" in dperm("keygen", key).stdout
    assert key.stat().st_mode & 0o077 == 0
    assert "exists already" in dperm("keygen", key, expect=1).stderr
    dperm("keygen", other)
    dperm("train", "iris", "-o", model, "--sign-key", key)
    for command in (("card", model, "-o", tmp_path / "c.html"), ("predict", model, "iris", "-o", tmp_path / "a.csv")):
        dperm(*command, "--verify-key", f"{key}.pub")
        assert "signed by somebody else" in dperm(*command, "--verify-key", f"{other}.pub", expect=1).stderr
    changed = json.loads(model.read_text())
    changed["coef"][0][0] += 1.0
    model.write_text(json.dumps(sealed(changed)))
    assert "signed by somebody else" in dperm("card", model, "--verify-key", f"{key}.pub", expect=1).stderr
    dperm("train", "iris", "-o", model)
    assert "not signed" in dperm("card", model, "--verify-key", f"{key}.pub", expect=1).stderr
    charged = len(SpendLog.current().charges())
    assert "no private key" in dperm("train", "iris", "-o", model, "--sign-key", f"{key}.pub", expect=1).stderr
    assert len(SpendLog.current().charges()) == charged


def test_a_key_is_read_once_before_the_charge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key, model = tmp_path / "signer.pem", tmp_path / "m.json"
    public = make_key(key)
    after_the_charge(monkeypatch, key.unlink)
    dperm("train", "iris", "-o", model, "--sign-key", key)
    assert model_from_json(model.read_text(), verify_key=public)
    assert "Cannot read the private key" in dperm("train", "iris", "-o", model, "--sign-key", key, expect=1).stderr
    assert len(SpendLog.current().charges()) == 1


def test_a_signature_that_fails_keeps_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every signature, of each part's model: the models are there without one, and the error says so."""

    class Broken:
        def sign(self, data: bytes) -> bytes:
            raise RuntimeError("the token was pulled out")

    key, model = tmp_path / "signer.pem", tmp_path / "m.json"
    make_key(key)
    read = SigningKey.__init__

    def broken(self: SigningKey, path: Any) -> None:
        read(self, path)
        monkeypatch.setattr(self, "_key", Broken())

    monkeypatch.setattr(SigningKey, "__init__", broken)
    done = dperm("train", "iris", "-o", model, "--sign-key", key, expect=1)
    assert "Cannot sign: the token was pulled out" in done.stderr and "without a signature" in done.stderr
    assert model_from_json(model.read_text())[0].certificate_.epsilon <= 1.0
    assert "signature" not in json.loads(model.read_text())


def test_no_epsilon_is_printed_for_what_is_only_claimed(table: Path, tmp_path: Path) -> None:
    model = tmp_path / "m.json"
    dperm("train", table, "--target", "income", "--accept-proposed", "-o", model)
    shown = dperm("account", "--event", model).stdout
    assert shown.startswith("No ε: claimed, not certified.") and "ε = " not in shown
    assert json.loads(dperm("account", "--event", model, "--json").stdout)["epsilon"] is None


def after_the_charge(monkeypatch: pytest.MonkeyPatch, happens: Callable[[], object]) -> None:
    """Let something happen as soon as a training is over, before anything is written."""
    fit = data.Dataset.fit

    def fitted(*args: Any, **kwargs: Any) -> Any:
        model = fit(*args, **kwargs)
        happens()
        return model

    monkeypatch.setattr(data.Dataset, "fit", fitted)


def test_a_model_whose_folder_is_gone_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model goes elsewhere, for its owner alone, and the message says where."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    after_the_charge(monkeypatch, lambda: shutil.rmtree(tmp_path / "out"))
    error = dperm("train", "breast_cancer", "-o", tmp_path / "out" / "m.json", expect=1).stderr
    assert "Cannot write" in error and "paid for" in error
    saved = Path(error.split("it is in ")[1].strip().removesuffix("."))
    assert model_from_json(saved.read_text())[0].certificate_.epsilon <= 1.0
    assert saved.stat().st_mode & 0o077 == 0


@pytest.mark.skipif(os.name != "posix", reason="limits of processes")
def test_a_model_that_finds_no_room_anywhere_is_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import resource

    path, before = tmp_path / "m.json", resource.getrlimit(resource.RLIMIT_FSIZE)
    path.write_text("old")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    after_the_charge(monkeypatch, lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1])))
    try:
        done = dperm("train", "breast_cancer", "-o", path, expect=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert "File too large" in done.stderr and "it was printed instead" in done.stderr
    assert model_from_json(done.stdout[done.stdout.index("{") : done.stdout.rindex("}") + 1])[0].certificate_.epsilon <= 1.0
    assert [each.name for each in tmp_path.iterdir()] == ["m.json"] and path.read_text() == "old"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_what_no_file_takes_is_said_to_be_printed_only_where_it_is(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with Path("/dev/full").open("w") as full:
        monkeypatch.setattr("sys.stdout", full)
        assert printed_instead('{"of": "a model"}')
        assert capfd.readouterr().err == '{"of": "a model"}\n'
        monkeypatch.setattr("sys.stderr", full)
        assert not printed_instead('{"of": "a model"}')
        with contextlib.suppress(OSError):
            full.close()  # what it holds goes nowhere


def test_a_model_whose_name_is_too_long_is_not_paid_for(tmp_path: Path) -> None:
    """With a name of its own, and none for what stands beside it until it is in its place."""
    name = "n" * (os.pathconf(tmp_path, "PC_NAME_MAX") - 15) + ".json"
    assert "too long" in dperm("train", "breast_cancer", "-o", tmp_path / name, expect=1).stderr
    assert SpendLog.current().charges() == []


def test_a_file_that_never_ends_is_refused(table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "endless.json").symlink_to("/dev/zero")
    monkeypatch.setattr("dperm.jobs.files.free_memory", lambda: 1e9)
    for command in (
        ("predict", tmp_path / "endless.json", table),
        ("data", "show", tmp_path / "endless.json"),
        ("train", table, "--schema", tmp_path / "endless.json"),
    ):
        assert len(dperm(*command, expect=1).stderr.splitlines()) == 1


def test_a_part_that_cannot_be_written_costs_no_other(
    table: Path, schema: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "elsewhere"))
    (tmp_path / "elsewhere").mkdir()
    after_the_charge(monkeypatch, lambda: (tmp_path / "m.baker.json").mkdir())
    error = dperm("train", table, "--schema", schema, "--fit-by", "job", "-o", tmp_path / "m.json", expect=1).stderr
    saved = Path(error.split("it is in ")[1].strip().removesuffix("."))
    found = {model_from_json(path.read_text())[1]["fit_by"]["value"] for path in (saved, tmp_path / "m.nurse.json")}
    assert found == {"baker", "nurse"}


@pytest.mark.skipif(os.name != "posix", reason="modes of files")
def test_what_is_private_is_its_owners_alone(table: Path, tmp_path: Path) -> None:
    model, before = tmp_path / "m.json", os.umask(0o022)
    try:
        dperm("data", "propose", table, "--target", "income")
        schema = tmp_path / "people.schema.json"
        dperm("data", "propose", table, "--target", "income")
        dperm("train", table, "--schema", schema, "--accept-proposed", "-o", model)
        dperm("card", model, "-o", tmp_path / "card.html")
        dperm("effects", model, "-o", tmp_path / "effects.html")
        dperm("effects", model, "--records", table, "--refits", 2, "-o", tmp_path / "private-effects.html")
        dperm("predict", model, table, "-o", tmp_path / "answers.csv")
        dperm("influence", table, "--target", "income", "-o", tmp_path / "influence.html")
    finally:
        os.umask(before)
    private = {path.name for path in tmp_path.iterdir() if path.stat().st_mode & 0o077 == 0}
    proposed = {"people.schema.json", "people.schema.1.json"}  # ranges that were read off the data; what stood there is kept
    assert private == {*proposed, "private-effects.html", "answers.csv", "influence.html"}
    assert {path.name for path in tmp_path.iterdir()} - private == {
        "m.json", "card.html", "effects.html", "people.csv", "schema-format.json"
    }  # fmt: skip


#: Two processes that run a command at once, forks of one, which imports everything once; what each says is in a file.
_TWO_AT_ONCE = """
import os, sys
from dperm import cli, data, estimators
data.load("iris")
said, *arguments = sys.argv[1:]
children = []
for number in range(2):
    if not (child := os.fork()):
        sys.stdout, sys.argv = open(f"{said}/{number}", "w"), ["dperm", *arguments]
        try:
            cli.main()
            sys.exit()
        finally:
            sys.stdout.flush()
    children.append(child)
sys.exit(any([os.waitpid(child, 0)[1] for child in children]))
"""


@pytest.mark.skipif(os.name != "posix", reason="locks")
def test_of_two_trainings_to_one_output_each_keeps_its_model(tmp_path: Path) -> None:
    path = tmp_path / "m.json"
    said = tmp_path / "said"
    said.mkdir()
    subprocess.run([sys.executable, "-c", _TWO_AT_ONCE, said, "train", "iris", "-o", path], timeout=120, check=True)
    told = [each.read_text() for each in said.iterdir()]
    found = {each.name: json.loads(each.read_text())["digest"] for each in tmp_path.glob("*.json")}
    assert found.keys() == {"m.json", "m.1.json"} and len(set(found.values())) == 2
    assert sum("What was there is kept as" in each for each in told) == 1
    assert len(SpendLog.current().charges()) == 2


@pytest.mark.skipif(os.name != "posix", reason="signals")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_what_was_paid_for_is_written_before_a_signal_ends_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    def signalled(*args: Any, **kwargs: Any) -> str:
        os.kill(os.getpid(), number)
        return model_to_json(*args, **kwargs)

    monkeypatch.setattr("dperm.estimators.model_to_json", signalled)
    done = dperm("train", "iris", "-o", tmp_path / "m.json", expect=128 + number)
    assert "interrupted" in done.stderr
    assert model_from_json((tmp_path / "m.json").read_text())
    assert [each.name for each in tmp_path.iterdir()] == ["m.json"]


def test_budgets_that_promise_nothing_are_said_to(tmp_path: Path) -> None:
    for settings in (("--epsilon", 1e3), ("--delta", 0.5)):
        done = dperm("train", "breast_cancer", *settings, "-o", tmp_path / "m.json")
        assert "promises next to nothing" in done.stderr and "WEAK" in done.stdout
    assert "WEAK" not in dperm("train", "breast_cancer", "-o", tmp_path / "m.json").stdout


def test_misuse_exits_with_two() -> None:
    apart("compare", "--no-such-option", expect=2)
    dperm("calibrate", "--steps", "many", expect=2)


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_interrupting_leaves_nothing_half_written(tmp_path: Path) -> None:
    report = tmp_path / "report.html"
    command = [
        sys.executable,
        "-m",
        "dperm",
        "compare",
        "iris",
        "--mechanisms",
        "output",
        "--repeats",
        "3000",
        "--jobs",
        "2",
        "-o",
        str(report),
    ]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True)
    deadline = time.monotonic() + 120
    while len(SpendLog.current().charges()) < 4 and time.monotonic() < deadline:  # of two workers, that have results by then
        time.sleep(0.2)
    charged = len(SpendLog.current().charges())
    assert charged > 0
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted" in errors and "the same command goes on from there" in errors
    assert [path.name for path in tmp_path.iterdir()] == ["report.results.jsonl"]
    assert len(SpendLog.current().charges()) >= charged


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="sessions are listed by /proc")
@pytest.mark.fast_cases("SIGKILL")
@pytest.mark.parametrize("name", ["SIGKILL", "SIGTERM", "SIGHUP"])
def test_a_comparison_that_ends_leaves_no_table_and_no_worker(tmp_path: Path, name: str) -> None:
    """Whatever ends the first process, also where it can do nothing about it, the others end, and no file is left."""
    scratch, temporary = tmp_path / "scratch", tmp_path / "temporary"
    scratch.mkdir()
    temporary.mkdir()
    settings = ["--mechanisms", "output", "--repeats", "500", "--jobs", "2", "-o", tmp_path / "report.html"]
    command = [sys.executable, "-m", "dperm", "compare", "digits", *settings]
    environment = {**os.environ, "DPERM_SCRATCH": str(scratch), "TMPDIR": str(temporary)}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
    deadline = time.monotonic() + 120
    while len(SpendLog.current().charges()) < 3 and time.monotonic() < deadline:  # work is under way
        time.sleep(0.1)
    assert len(_session(process.pid)) >= 3
    assert [*scratch.iterdir(), *temporary.iterdir()] == []  # nor while it runs
    process.send_signal(signal.Signals[name])
    process.communicate(timeout=60)
    while (left := _session(process.pid)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert left == []
    assert [*scratch.iterdir(), *temporary.iterdir()] == []


def _session(leader: int) -> list[int]:
    """The living processes that descend from the leader of a session."""
    found: list[int] = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, session = stat.read_text().rpartition(")")[2].split()[:4]
        except OSError:  # ended in the meantime
            continue
        if int(session) == leader and state != "Z":
            found.append(int(stat.parent.name))
    return found


def test_audit_a_model(table: Path, schema: Path, tmp_path: Path) -> None:
    model, found, page = tmp_path / "m.json", tmp_path / "audit.json", tmp_path / "c.html"
    dperm("train", table, "--schema", schema, "--epsilon", 2, "-o", model)
    charged = len(SpendLog(os.environ["DPERM_SPEND_LOG"]).charges())
    done = dperm("audit", model, "--members", table, "--others", table, "--trials", 200, "-o", found)
    assert "did not refute ε = 2" in done.stdout and "It proves" in done.stdout
    assert "names the member 50.0 times in 100" in done.stdout
    assert "Not refuted. That is not a proof" in done.stdout
    assert len(SpendLog(os.environ["DPERM_SPEND_LOG"]).charges()) == charged
    assert [item["attack"] for item in json.loads(found.read_text())] == [
        "replay", "the distinguishing game", "membership inference",
    ]  # fmt: skip
    dperm("card", model, "--audit", found, "-o", page)
    assert "What attacks found" in page.read_text() and "What attacks found" not in _card(model, tmp_path)
    dperm("train", table, "--schema", schema, "--epsilon", 3, "-o", model)
    assert "about another claim" in dperm("card", model, "--audit", found, "-o", page, expect=1).stderr


def _card(model: Path, folder: Path) -> str:
    dperm("card", model, "-o", folder / "plain.html")
    return (folder / "plain.html").read_text()


@pytest.mark.slow
def test_audit_settings_without_a_model(tmp_path: Path) -> None:
    out = tmp_path / "a.json"
    done = dperm("audit", "--mechanism", "output", "--delta", 0, "--features", 3, "--trials", 400, "-o", out, "--json")
    assert json.loads(done.stdout) == json.loads(out.read_text())
    assert "Expected --members and --others together" in dperm("audit", "--members", "x.csv", expect=1).stderr
    assert "Expected --public-size" in dperm("audit", "--relation", "replace_one", expect=1).stderr


def test_a_refuted_certificate_exits_with_three(table: Path, schema: Path, tmp_path: Path) -> None:
    """Half of the noise in the event, with the ε that this half would not have: found before any attack."""
    model = tmp_path / "m.json"
    dperm("train", table, "--schema", schema, "--epsilon", 2, "-o", model)
    data = json.loads(model.read_text())
    data["certificate"]["event"]["events"][0]["noise_std"] *= 2
    data["certificate"] = sealed(data["certificate"])
    model.write_text(json.dumps(sealed(data)))
    assert "states another event" in dperm("audit", model, expect=1).stderr


def test_settings_beside_a_model_and_claimed_models(table: Path, tmp_path: Path) -> None:
    model = tmp_path / "m.json"
    dperm("train", table, "--target", "income", "--accept-proposed", "-o", model)
    assert (
        "Expected no --epsilon, --features with a model"
        in dperm("audit", model, "--epsilon", 3, "--features", 2, expect=1).stderr
    )
    done = dperm("audit", model, "--minutes", "0.05", "-o", tmp_path / "a.json")
    assert done.stdout.startswith("Expected to take about ") and "What was learned: all queries stayed within" in done.stdout
    assert "Playing the game: " in done.stderr  # also where nobody watches
    assert "The model's certificate is only claimed" in done.stdout and "nothing here certifies" in done.stdout
    assert "the proof is the theorem" not in done.stdout
    assert "Expected --features" in dperm("audit", "--features", 0, expect=1).stderr


def test_influence_names_rows_charges_nothing_and_says_that_it_is_private(table: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    done = dperm("influence", table, "--target", "income", "--top", 3, "-o", page)
    assert "PRIVATE, for the data holder only" in done.stdout and "PRIVATE" in page.read_text()
    told = json.loads(dperm("influence", table, "--target", "income", "--row", 7, "--top", 3, "-o", page, "--json").stdout)
    assert told["for_data_holder_only"] is True
    assert told["what"] == "the score of low for row 7"
    assert len(told["most"]) == 3
    assert SpendLog.current().charges() == []
    assert "Expected a row among those used" in dperm("influence", table, "--target", "income", "--row", 999, expect=1).stderr


def test_influence_chooses_the_model_by_the_target_as_train_does(table: Path, tmp_path: Path) -> None:
    out = ("--top", 2, "-o", tmp_path / "page.html")
    assert "Model: logistic regression, by the target" in dperm("influence", table, "--target", "income", *out).stdout
    assert "Model: least squares (ridge), by the target" in dperm("influence", table, "--target", "age", *out).stdout
    told = dperm("influence", table, "--target", "income", "--model", "svm", *out).stdout
    assert "Model: a support vector machine." in told and "by the target" not in told


def test_methods_of_papers_are_compared_where_they_are_named(table: Path, schema: Path, tmp_path: Path) -> None:
    done = dperm(
        "compare", table, "--schema", schema, "--mechanisms", "individual,lssgd,m-ngp,m-ngp-published,pidp-sgd-published,tgp",
        "--epsilons", "1", "--repeats", "2", "--jobs", "1", "-o", tmp_path / "page.html",
    )  # fmt: skip
    assert "m-NGP as published (claimed)" in done.stdout and "Individual accounting" in done.stdout
    page = (tmp_path / "page.html").read_text()
    assert "PIDP-SGD as published (claimed)" in page
    replaced = ("--relation", "replace_one", "--mechanisms", "bolt-on", "--epsilons", "1", "--repeats", "2", "--jobs", "1")
    assert "Bolt-on" in dperm("compare", table, "--schema", schema, *replaced, "-o", tmp_path / "page.html").stdout
    none = dperm("compare", table, "--schema", schema, "--mechanisms", "bolt-on", "-o", tmp_path / "p.html", expect=1)
    assert "relation='replace_one' for Bolt-on" in none.stderr


@pytest.mark.parametrize("mechanism", ["individual", "lssgd", "m-ngp", "tgp"])
def test_methods_of_papers_train_models_that_are_certified(table: Path, schema: Path, tmp_path: Path, mechanism: str) -> None:
    model = tmp_path / "model.json"
    dperm("train", table, "--schema", schema, "--mechanism", mechanism, "--public-size", 300, "-o", model, "--accept-proposed")
    text = model.read_text()
    assert "spent_by_record" not in text and model_from_json(text)[0].certificate_.event is not None


def test_a_private_report_of_what_records_have_spent(table: Path, schema: Path, tmp_path: Path) -> None:
    page = tmp_path / "spent.html"
    arguments = ("train", table, "--schema", schema, "--accept-proposed", "-o", tmp_path / "m.json", "--private-report", page)
    done = dperm(*arguments, "--mechanism", "individual", "--public-size", 300)
    assert f"PRIVATE, for the data holder only: {page}" in done.stdout and "fell silent" in page.read_text()
    charges = len(SpendLog.current().charges())
    assert "Expected --mechanism individual" in dperm(*arguments, "--public-size", 300, expect=1).stderr
    assert len(SpendLog.current().charges()) == charges


def test_claimed_runs_in_the_log_are_told_apart(table: Path, schema: Path, tmp_path: Path) -> None:
    arguments = ("train", table, "--schema", schema, "--accept-proposed", "--public-size", 300, "-o", tmp_path / "m.json")
    dperm(*arguments)
    before = dperm("account", "--log").stdout.split("ε = ")[1]
    assert "not private at the epsilon" in dperm(*arguments, "--mechanism", "m-ngp-published").stderr
    said = dperm("account", "--log").stdout
    assert "1 of the 2 charged under add_or_remove_one are only claimed" in said and said.split("ε = ")[1] == before
    assert json.loads(dperm("account", "--log", "--json").stdout)["epsilon"] == {"add_or_remove_one": None}


def test_no_file_is_written_over_one_that_is_read_or_written(table: Path, schema: Path, tmp_path: Path) -> None:
    one = tmp_path / "one.json"
    train = ("train", table, "--schema", schema, "--accept-proposed", "--mechanism", "individual", "--public-size", 300)
    text = table.read_text()
    for arguments in (
        (*train, "-o", one, "--private-report", one),
        (*train, "-o", table),
        ("influence", table, "--target", "income", "-o", table),
        ("compare", table, "--target", "income", "-o", table),
    ):
        assert "Expected different files" in dperm(*arguments, expect=1).stderr
    assert table.read_text() == text and SpendLog.current().charges() == []


@pytest.mark.fast_cases("add_or_remove_one")
@pytest.mark.parametrize("relation", ["add_or_remove_one", "replace_one"])
def test_every_mechanism_is_compared_to_the_end(table: Path, schema: Path, tmp_path: Path, relation: str) -> None:
    """A page that cannot be drawn once all is charged costs its ε for nothing."""
    keys = sorted(CANDIDATES)
    page = tmp_path / "page.html"
    arguments = ("compare", table, "--schema", schema, "--epsilons", "1", "--repeats", "2", "--jobs", "1", "-o", page)
    done = dperm(*arguments, "--relation", relation, "--mechanisms", ",".join(keys))
    shown = re.sub(r"\s+", " ", page.read_text())
    left_out = {key for key in keys if f"{CANDIDATES[key].title} is left out. Expected" in shown}
    added = {"bolt-on", "last-iterate"}
    replaced = {"objective-kifer"}
    assert left_out == {"accuracy_first", "preconditioned"} | (replaced if relation == "replace_one" else added)
    for key in left_out:
        assert f"{CANDIDATES[key].title} is left out. Expected" in done.stdout
    helped = re.sub(r"\W+", "", dperm("compare", "--help").stdout)
    for key in set(keys) - left_out:
        assert re.sub(r"\W+", "", key) in helped, key
        assert re.search(rf"{re.escape(CANDIDATES[key].title)}.*?0\.\d", shown), key
        assert CANDIDATES[key].title in re.sub(r"\s+", " ", done.stdout) or CANDIDATES[key].short in done.stdout


@pytest.mark.parametrize(
    "sampling", [pytest.param(each, marks=[pytest.mark.slow] * (each in ("importance", "full"))) for each in sorted(SAMPLINGS)]
)
def test_every_sampling_that_help_names_trains(table: Path, schema: Path, tmp_path: Path, sampling: str) -> None:
    relation = "replace_one" if sampling == "fixed_size" else "add_or_remove_one"
    size = 300
    if sampling == "rows":
        size, stated = 100, json.loads(schema.read_text()) | {"unit": "who", "max_rows_per_unit": 3}
        schema, whose = tmp_path / "persons.json", pd.read_csv(table).assign(who=np.arange(300) // 3)
        schema.write_text(json.dumps(stated))
        whose.to_csv(table := tmp_path / "persons.csv", index=False)
    arguments = ("train", table, "--schema", schema, "--accept-proposed", "--mechanism", "gradient", "--public-size", size)
    dperm(*arguments, "--sampling", sampling, "--relation", relation, "-o", tmp_path / "m.json")
    assert model_from_json((tmp_path / "m.json").read_text())[0].certificate_.epsilon <= 1
    assert sampling in re.sub(r"\s+", "", dperm("train", "--help").stdout)


def test_curves_are_trained_drawn_and_predicted_with(table: Path, schema: Path, tmp_path: Path) -> None:
    model, page = tmp_path / "m.json", tmp_path / "effects.html"
    train = ("train", table, "--schema", schema, "--accept-proposed", "--epsilon", "4", "-o", model)
    assert "a curve of 8 knots" in dperm(*train).stdout  # the number of records is private
    fitted, extra = model_from_json(model.read_text())
    assert extra["schema"]["curves"] == 8 and fitted.coef_.shape == (1, 8 + 2 + 8)
    assert len(fitted.neighbours) == 7 + 7 and fitted.objective_.roughness.weight == 0.3
    told = dperm("effects", model, "-o", page).stdout
    assert "age" in told and "<svg" in page.read_text()
    drawn = json.loads(dperm("effects", model, "-o", page, "--json").stdout)
    assert [len(each["heights"]) for each in drawn["columns"]] == [8, 2, 8] and drawn["columns"][0]["noise"] is None
    assert not drawn["private"]
    again = ("--records", table, "--refits", "3")
    charges = len(SpendLog.current().charges())
    assert "PRIVATE" in dperm("effects", model, *again, "-o", page).stdout and "PRIVATE" in page.read_text()
    assert json.loads(dperm("effects", model, *again, "-o", page, "--json").stdout)["private"]
    dperm("predict", model, table, "-o", tmp_path / "p.csv")
    plain = pd.read_csv(tmp_path / "p.csv")
    told = dperm("predict", model, table, *again, "--level", "0.8", "-o", tmp_path / "p.csv")
    assert "meant to cover 80%" in told.stdout and "Training again" in told.stderr
    wide = pd.read_csv(tmp_path / "p.csv")
    assert len(plain) == 300
    assert wide[plain.columns].equals(plain)
    assert len(wide.columns) == len(plain.columns) + 4
    for label in fitted.classes_:
        assert (wide[f"PRIVATE lowest of {label}"] < plain[f"probability of {label}"]).all()
        assert (plain[f"probability of {label}"] < wide[f"PRIVATE highest of {label}"]).all()
    assert len(SpendLog.current().charges()) == charges
    assert "level" in dperm("predict", model, table, *again, "--level", "95", expect=1).stderr
    for given, features in (("0", 4), ("5", 12)):
        dperm(*train, "--curves", given)
        assert model_from_json(model.read_text())[0].coef_.shape == (1, features)
    dperm(*train, "--public-size", 300, "--epsilon", "0.1")
    assert model_from_json(model.read_text())[0].coef_.shape == (1, 4)  # too few for curves
    dperm(*train, "--public-size", 300, "--curves", "6", "--epsilon", "1")
    assert model_from_json(model.read_text())[0].objective_.roughness.weight == 0.3  # few for curves
    charges = len(SpendLog.current().charges())
    assert "3 to 200 knots" in dperm(*train, "--curves", "2", expect=1).stderr
    np.savez(tmp_path / "a.npz", X=np.eye(4), y=np.arange(4) % 2)
    assert "--curves" in dperm("train", tmp_path / "a.npz", "--curves", "5", expect=1).stderr
    assert "--curves" in dperm("compare", tmp_path / "a.npz", "--curves", "5", "-o", tmp_path / "r.html", expect=1).stderr
    assert not (tmp_path / "r.html").exists()
    assert len(SpendLog.current().charges()) == charges


def test_a_mechanism_named_twice_is_compared_once(table: Path, schema: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    compare = ("compare", table, "--schema", schema, "--epsilons", "1", "--repeats", "2", "--jobs", "1", "-o", page)
    (study,) = json.loads(dperm(*compare, "--mechanisms", "tgp,tgp", "--json", "--no-boosting").stdout)["studies"]
    assert [cell["mechanism"] for cell in study["cells"]] == ["non-private", "constant", "tgp"]
    assert "mechanism" in dperm(*compare, "--mechanisms", "", expect=1).stderr


def test_classes_may_weigh_differently(table: Path, schema: Path, tmp_path: Path) -> None:
    model = tmp_path / "m.json"
    train = ("train", table, "--schema", schema, "--accept-proposed", "--epsilon", "8", "-o", model)
    labels = json.loads(schema.read_text())["classes"]
    told = dperm(*train, "--class-weight", f"{labels[0]}=1,{labels[1]}=1000").stdout
    assert "The weights of classes are public" in told and "For the data holder alone: 300 records" in told
    heavy = model_from_json(model.read_text())[0]
    dperm(*train)
    light = model_from_json(model.read_text())[0]
    X = data.read_dataset(table, schema=data.Schema.from_dict(model_from_json(model.read_text())[1]["schema"]))[0].features
    assert np.mean(heavy.predict(X) == labels[1]) > np.mean(light.predict(X) == labels[1])
    charges = len(SpendLog.current().charges())
    for wrong, message in (("balanced", "counts the labels"), ("yes", "such as no=1,yes=4"), (f"{labels[0]}=1", "got those of")):
        assert message in dperm(*train, "--class-weight", wrong, expect=1).stderr
    assert len(SpendLog.current().charges()) == charges


@pytest.mark.parametrize("kind", ["logistic", "mlp"])
def test_a_dry_run_spends_and_writes_nothing(table: Path, schema: Path, tmp_path: Path, kind: str) -> None:
    model, log = tmp_path / "m.json", Path(SpendLog.current().where)
    train = ("train", table, "--schema", schema, "--accept-proposed", "--model", kind, "-o", model)
    told = " ".join(dperm(*train, "--dry-run", "--epsilon", "0.5").stdout.split())
    assert "300 records" in told and "charge at most ε = 0.5 at δ = 1e-05" in told
    assert f'"{table.stem}" in {log}' in told
    assert not model.exists() and not log.exists()
    dperm(*train, "--epsilon", "0.5")
    assert f"would run {SpendLog.current().charges()[0].mechanism}, and" in told
    assert "no certificate" in dperm(*train, "--dry-run", "--json", expect=1).stderr
    assert "--epsilon" in dperm(*train, "--dry-run", "--epsilon", "1", "--advantage", "0.1", expect=1).stderr


ROWS, LABELS = RNG.normal(size=(40, 3)), np.arange(40) % 2


@pytest.mark.parametrize(
    ("X", "y", "message"),
    [
        (ROWS, LABELS[:-1], "Expected 40 targets"),
        (ROWS, np.stack([LABELS, LABELS], axis=1), "targets"),
        (np.where(ROWS > 1, np.nan, ROWS), LABELS, "NaN"),
        (np.where(ROWS > 1, np.inf, ROWS), LABELS, "infinity"),
        (ROWS[:, :0], LABELS, "0 feature"),
        (ROWS[:0], LABELS[:0], ""),
        (ROWS, 0 * LABELS, "one class"),
        (ROWS + 1j, LABELS, "Expected numbers as features in .*got complex128"),
        ((1e6 * ROWS).astype("datetime64[s]"), LABELS, r"Expected numbers as features in .*got datetime64\[s\]"),
        ((1e6 * ROWS).astype("timedelta64[s]"), LABELS, "Expected numbers as features in .*got timedelta64"),
        (ROWS, np.where(LABELS == 1, 1e300, 2e300), r"Expected labels in .*up to 2\^53, .*got 2e\+300"),
        (ROWS, LABELS + 1j, "Expected labels or numbers as targets in .*got complex128"),
        (ROWS, LABELS.astype("datetime64[s]"), "Expected labels or numbers as targets in .*got datetime64"),
    ],
)
def test_a_dry_run_refuses_what_training_refuses(tmp_path: Path, X: Any, y: Any, message: str) -> None:
    """Both refuse in the same words, and neither charges."""
    path = tmp_path / "people.npz"
    np.savez(path, X=X, y=y)
    train = ("train", path, "-o", tmp_path / "m.json")
    trained, tried = (dperm(*train, *more, expect=1).stderr.splitlines()[-1] for more in ((), ("--dry-run",)))
    assert tried == trained and re.search(message, tried)
    assert SpendLog.current().charges() == [] and [each.name for each in tmp_path.iterdir()] == ["people.npz"]


@pytest.mark.parametrize(
    "labels", [np.array([2**63, 2**63 + 1], dtype=np.uint64), np.array([2.0**53, -(2.0**53)]), np.array([-3, 4])]
)
def test_large_labels_stay_what_they_are(tmp_path: Path, labels: Any) -> None:
    path = tmp_path / "people.npz"
    np.savez(path, X=ROWS, y=labels[LABELS])
    assert data.read_dataset(path)[0].classes == tuple(sorted(str(int(label)) for label in labels))


@pytest.mark.parametrize(
    "settings",
    [
        ("--model", "svm"),
        ("--mechanism", "gradient"),
        ("--mechanism", "gradient", "--public-size", 300, "--sampling", "importance"),
        ("--mechanism", "output", "--relation", "replace_one"),
        ("--fit-by", "job"),
        ("--model", "mlp", "--public-size", 300),
    ],
    ids=lambda settings: "-".join(map(str, settings[1:4])),
)
@pytest.mark.fast_cases("gradient", "job")
def test_a_dry_run_foresees_the_charge(table: Path, schema: Path, tmp_path: Path, settings: Any) -> None:
    from dperm.release.foreseen import foreseen_charge

    train = ("train", table, "--schema", schema, "--accept-proposed", "-o", tmp_path / "m.json", *settings)
    with pytest.MonkeyPatch.context() as patch:
        found: list[Any] = []
        patch.setattr("dperm.release.foreseen.foreseen_charge", lambda run: found.append(foreseen_charge(run)) or found[-1])
        dperm(*train, "--dry-run")
    assert SpendLog.current().charges() == []
    dperm(*train)
    (charge,) = SpendLog.current().charges()
    (foreseen,) = found
    assert (foreseen.mechanism, foreseen.label, foreseen.persons) == (charge.mechanism, charge.label, charge.persons)
    assert foreseen.event == charge.event


def test_a_run_without_a_charge_is_none() -> None:
    from dperm.release.foreseen import foreseen_charge

    with pytest.raises(RuntimeError, match="without a charge"):
        foreseen_charge(lambda: None)
    with pytest.raises(ZeroDivisionError):
        foreseen_charge(lambda: 1 / 0)
    SpendLog.current().charge(ApproximateDP(0.1, 1e-5), mechanism="another library's", label="", private=True)  # as before


def test_a_name_that_stands_twice_is_refused(tmp_path: Path) -> None:
    """This holds for a signed model, too: the signature is on what this reader takes, and another may take the other value."""
    key, model, head = tmp_path / "signer.pem", tmp_path / "m.json", tmp_path / "head.json"
    public = make_key(key)
    dperm("train", "iris", "-o", model, "--sign-key", key)
    dperm("budget", "head", "-o", head, "--sign-key", key)
    text = model.read_text()
    for first, again in (
        ('"kind":', '"kind": "DPRidge",'),
        ('"epsilon":', '"epsilon": 0.01,'),
        ('"intercept":', '"intercept": [9],'),
    ):
        assert first in text
        model.write_text(text.replace(first, f"{again} {first}", 1))
        for command in (
            ("predict", model, "iris", "-o", tmp_path / "a.csv", "--verify-key", public),
            ("card", model, "-o", tmp_path / "c.html"),
            ("audit", model),
        ):
            assert "each name once" in dperm(*command, expect=1).stderr
    stated = head.read_text()
    head.write_text(stated.replace("{", '{"count": 0,', 1))
    assert "each name once" in dperm("budget", "verify", head, "--verify-key", public, expect=1).stderr
    path = tmp_path / "s.json"
    path.write_text(data.schema_of("iris").to_json().replace("{", '{"target": "other",', 1))
    with pytest.raises(data.SchemaError, match="each name once"):
        data.Schema.load(path)


def test_a_dry_run_asks_the_budget(table: Path, schema: Path, tmp_path: Path) -> None:
    train = ("train", table, "--schema", schema, "--accept-proposed", "-o", tmp_path / "m.json", "--epsilon", "0.5")
    name = table.stem

    def left() -> float:
        return float(json.loads(dperm("budget", "show", "--json").stdout)["budgets"][0]["left"])

    dperm("budget", "create", "others", "--epsilon", "1")
    for model in ("logistic", "mlp"):
        assert f"none for '{name}'" in dperm(*train, "--model", model, "--dry-run", expect=1).stderr
    SpendLog.current().database.path.unlink()  # pyright: ignore[reportAttributeAccessIssue]
    SpendLog.current().verify(remember_it=True)
    dperm("budget", "create", name, "--epsilon", "1", "--delta", "1e-4")
    foreseen = float(dperm(*train, "--dry-run").stdout.split("would take that: ")[1].split(" %")[0])
    assert left() == 1
    assert float(dperm(*train, "--model", "mlp", "--dry-run").stdout.split("would take that: ")[1].split(" %")[0]) < 90
    dperm(*train)
    assert 100 * left() == pytest.approx(foreseen, abs=0.1) and foreseen < 90
    dperm(*train)
    refused = dperm(*train, "--dry-run", expect=1)
    assert "has too little left" in refused.stderr and "It would run" in refused.stdout


def test_rows_that_do_not_fit_do_not_take_the_file_with_them(table: Path, schema: Path, tmp_path: Path) -> None:
    model, new, out = tmp_path / "m.json", tmp_path / "new.csv", tmp_path / "a.csv"
    schema.write_text(schema.read_text().replace(', "unknown": "ignore"', ""))
    dperm("train", table, "--schema", schema, "--accept-proposed", "-o", model)
    frame = pd.read_csv(table).head(6).astype(object)
    numbers = [column["name"] for column in json.loads(schema.read_text())["columns"] if column["type"] == "number"]
    words = [column["name"] for column in json.loads(schema.read_text())["columns"] if column["type"] == "category"]
    frame.loc[1, numbers[0]], frame.loc[3, words[0]], frame.loc[4, numbers[1]] = "unknown", "nowhere", None
    frame.to_csv(new, index=False)
    refused = dperm("predict", model, new, "-o", out, expect=1).stderr
    assert "3 of 6 rows do not fit the schema. Row 2: column" in refused and "--on-error skip" in refused
    assert not out.exists()
    kept = ("--keep", f"{words[0]},{numbers[1]}")
    told = dperm("predict", model, new, "-o", out, "--on-error", "skip", *kept).stdout
    answers = pd.read_csv(out)
    copied = pd.read_csv(new)[[words[0], numbers[1]]]
    assert answers[list(copied)].equals(copied)
    assert "columns of the table, got ['mood']" in dperm("predict", model, new, "--keep", "mood", expect=1).stderr
    assert "Left blank: 3. Row 2" in told and "Read new.csv: 6 rows of" in told
    assert answers["prediction"].isna().tolist() == [False, True, False, True, True, False]
    reasons = answers["left blank because"].dropna().tolist()
    assert "'unknown', which is no finite number" in reasons[0]
    assert "none of its" in reasons[1]
    assert "is missing" in reasons[2]
    judge = ("evaluate", model, new, "--test-data", "private")
    assert "3 of 6 rows do not fit the schema. Row 2: column" in dperm(*judge, expect=1).stderr
    judged = dperm(*judge, "--on-error", "skip").stdout
    assert "Left out: 3. Row 2: column" in judged and "\n3 records." in judged
    by = json.loads(dperm(*judge, "--on-error", "skip", "--by", words[0], "--json").stdout)["by"]
    assert sum(part["records"] for part in by.values()) == 3 and "nowhere" not in by
    whole = tmp_path / "whole.csv"
    pd.read_csv(table).head(6).to_csv(new, index=False)
    dperm("predict", model, new, "-o", whole)
    good = [0, 2, 5]
    assert pd.read_csv(whole)["prediction"].loc[good].tolist() == answers["prediction"].loc[good].tolist()
    counted = json.loads(dperm("predict", model, new, "-o", whole, "--json").stdout)
    assert counted == {"predictions": 6, "blank": 0, "output": str(whole), "private": False, "quoted": {}}
    assert "'fail', 'skip'" in dperm("predict", model, new, "--on-error", "ignore", expect=1).stderr
    pd.read_csv(new).assign(**{words[0]: "nowhere"}).to_csv(new, index=False)
    assert "No row fits" in dperm("predict", model, new, "--on-error", "skip", expect=1).stderr


def test_models_are_judged_on_test_records(table: Path, schema: Path, tmp_path: Path) -> None:
    model = tmp_path / "m.json"
    dperm("train", table, "--schema", schema, "--accept-proposed", "--epsilon", "5", "-o", model)
    charges = len(SpendLog.current().charges())
    told = dperm("evaluate", model, table, "--test-data", "private").stdout
    assert told.startswith("PRIVATE")
    assert "balanced accuracy" in told
    assert "recall of" in told
    word = next(column["name"] for column in json.loads(schema.read_text())["columns"] if column["type"] == "category")
    found = json.loads(dperm("evaluate", model, table, "--test-data", "public", "--by", word, "--json").stdout)
    assert found["test_data"] == "public" and found["records"] == 300
    assert sum(part["records"] for part in found["by"].values()) == 300
    dperm("predict", model, table, "-o", tmp_path / "a.csv")
    right = pd.read_csv(tmp_path / "a.csv")["prediction"].astype(str) == pd.read_csv(table)["income"].astype(str)
    assert found["scores"]["accuracy"] == pytest.approx(right.mean())
    assert "'public', 'private'" in dperm("evaluate", model, table, "--test-data", "both", expect=1).stderr
    assert "--by one of the columns" in dperm("evaluate", model, table, "--test-data", "public", "--by", "x", expect=1).stderr
    strange = tmp_path / "strange.csv"
    pd.read_csv(table).assign(income="perhaps").to_csv(strange, index=False)
    assert "labels" in dperm("evaluate", model, strange, "--test-data", "public", expect=1).stderr
    assert len(SpendLog.current().charges()) == charges


def test_no_bound_is_printed_below_itself() -> None:
    assert "ε = 16.6758 " in dperm("account", "--noise", "0.33333").stdout
