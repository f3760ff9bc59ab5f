"""Jobs, as a program without a terminal calls them."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
import threading
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import pandas as pd
import pytest

from dperm import jobs
from dperm.audit import results_from_json
from dperm.estimators import model_from_json
from dperm.jobs.accounting import totals
from dperm.jobs.training import prepared_training
from dperm.privacy import BudgetExceeded
from dperm.release import SpendLog
from helpers.commands import dperm

RNG = np.random.default_rng(0)
PEOPLE = pd.DataFrame({"age": RNG.integers(18, 80, 300), "ward": RNG.choice(["a", "b"], 300)})
PEOPLE["ill"] = np.where(PEOPLE["age"] > 50, "yes", "no")


@pytest.fixture
def options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> jobs.TrainingOptions:
    """A training of a table by a confirmed schema, with a spend log of its own."""
    monkeypatch.setenv("DPERM_SPEND_LOG", str(tmp_path / "spend.db"))
    table, schema = tmp_path / "people.csv", tmp_path / "people.schema.json"
    PEOPLE.to_csv(table, index=False)
    dperm("data", "propose", table, "--target", "ill")
    dperm("data", "confirm", schema)
    return jobs.TrainingOptions(source=str(table), schema=schema, epsilon=2.0, output=tmp_path / "model.json")


def left_behind(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name.startswith(".people") or ".writing" in path.name)


def test_a_program_trains_in_any_thread_and_reads_no_printed_text(
    options: jobs.TrainingOptions, capfd: pytest.CaptureFixture[str]
) -> None:
    capfd.readouterr()
    found: list[jobs.Trained] = []
    worker = threading.Thread(target=lambda: found.append(jobs.train(options)))
    worker.start()
    worker.join()
    (trained,) = found
    assert capfd.readouterr() == ("", "")
    assert trained.files == {options.output: None} and not trained.answers_alike
    fitted, extra = model_from_json(options.output.read_text())
    assert fitted.certificate_ == trained.certificate and 1.99 < (trained.certificate.epsilon or 0.0) <= 2.0
    assert extra["schema"]["target"] == "ill"
    (charge,) = SpendLog.current().charges()
    assert charge.event == trained.certificate.event
    jobs.train(options)
    assert sorted(path.name for path in options.output.parent.glob("model*.json")) == ["model.1.json", "model.json"]
    assert left_behind(options.output.parent) == []


def test_what_is_refused_charges_nothing_and_leaves_nothing(options: jobs.TrainingOptions) -> None:
    for refused in ({"fit_by": "age"}, {"private_report": options.output.with_name("r.html")}, {"model": "forest"}):
        with pytest.raises(ValueError, match="Expected"):
            jobs.train(jobs.TrainingOptions(**{**vars(options), **refused}))
    assert SpendLog.current().charges() == []
    assert not options.output.exists() and left_behind(options.output.parent) == []


def test_what_a_training_would_charge_is_foreseen_and_not_charged(options: jobs.TrainingOptions) -> None:
    with prepared_training(options) as job:
        charge, log = job.foreseen()
        assert log.charges() == [] and charge.label == "people"
        assert len(job.dataset) == 300 and job.schema is not None
        assert job.run().certificate.event == charge.event


def test_a_model_that_no_file_takes_is_in_the_programs_hands(
    options: jobs.TrainingOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr("dperm._files.Reserved.write", full)
    monkeypatch.setattr("dperm.jobs.files.rescue", lambda *_: None)
    with pytest.raises(jobs.ModelNotWrittenError, match="No space left on device") as lost:
        jobs.train(options)
    (charge,) = SpendLog.current().charges()
    assert lost.value.model.certificate_.event == charge.event
    assert len(lost.value.model.predict(np.zeros((2, lost.value.model.n_features_in_)))) == 2
    assert not options.output.exists() and left_behind(tmp_path) == []


def test_a_budget_a_card_an_audit_and_what_was_spent(options: jobs.TrainingOptions, tmp_path: Path) -> None:
    account = jobs.create_budget(jobs.BudgetingOptions(label="people", epsilon=5.0, owner="Office"))
    assert account.budget.owner == "Office" and account.left == 1.0
    certificate = jobs.train(options).certificate
    results = jobs.audit(jobs.AuditingOptions(model=options.output, trials=20, output=tmp_path / "audit.json"))
    assert results_from_json((tmp_path / "audit.json").read_text()) == results
    card = jobs.card(jobs.CardOptions(model=options.output, audit_file=tmp_path / "audit.json", output=tmp_path / "card.html"))
    assert card.certificate == certificate
    assert card.spent is not None and card.spent.charges == 1
    assert card.audits == results and "Office" in (tmp_path / "card.html").read_text()
    (total,) = totals(SpendLog.current(), certificate.delta)
    assert total.charges == total.certified == 1
    assert total.epsilon == certificate.epsilon
    jobs.create_budget(jobs.BudgetingOptions(label="people", epsilon=2.5))
    with pytest.raises(BudgetExceeded):
        jobs.train(options)


def test_an_audit_leaves_the_model_that_it_reads(options: jobs.TrainingOptions) -> None:
    """Its results took the place of the model, which was paid for."""
    jobs.train(options)
    text = options.output.read_text()
    with pytest.raises(ValueError, match="different files"):
        jobs.audit(jobs.AuditingOptions(model=options.output, trials=20, output=options.output))
    assert options.output.read_text() == text


def test_a_rule_that_no_budget_has_is_refused() -> None:
    """A terminal offers two; from a program any other was the first."""
    rule: Any = "GDP"
    with pytest.raises(ValueError, match="'renyi', 'gdp'"):
        jobs.create_budget(jobs.BudgetingOptions(label="people", epsilon=1.0, rule=rule))


def test_what_a_file_states_is_accounted_for(tmp_path: Path) -> None:
    stated = jobs.account(jobs.AccountingOptions(noise=4.0, delta=1e-5))
    event = tmp_path / "event.json"
    event.write_text(json.dumps({"type": "Gaussian", "noise_multiplier": 4.0, "relation": "add_or_remove_one"}))
    read = jobs.account(jobs.AccountingOptions(event=event, delta=1e-5))
    assert read == stated and stated.epsilon == pytest.approx(0.926342, abs=1e-6)
    with pytest.raises(ValueError, match="--rate"):
        jobs.AccountingOptions(noise=1.0, rate=2.0)


def test_a_comparison_keeps_nothing_beside_its_report(tmp_path: Path) -> None:
    output = tmp_path / "report.html"
    asked = jobs.ComparisonOptions(sources=["breast_cancer"], epsilons="1", mechanisms="output", repeats=2, jobs=1, output=output)
    (result,) = jobs.compare(asked)
    assert result.dataset == "breast_cancer" and result.cell("output", 1.0).scores.shape == (2,)
    assert output.exists() and [path.name for path in tmp_path.iterdir()] == ["report.html"]


@pytest.mark.parametrize(
    ("kind", "given", "message"),
    [
        (jobs.TrainingOptions, {"source": "a.csv", "accept_proposed": "no"}, "accept_proposed as True or False, got 'no'"),
        (jobs.TrainingOptions, {"source": "a.csv", "public_size": "400"}, "public_size as a whole number or None"),
        (jobs.TrainingOptions, {"source": "a.csv", "epsilon": True}, "epsilon as a number or None"),
        (jobs.BudgetingOptions, {"label": "people", "epsilon": 1.0, "persons": "no"}, "persons as True or False"),
        (jobs.ComparisonOptions, {"sources": "people.csv"}, "sources as a list"),
        (jobs.AccountingOptions, {"noise": "3"}, "noise as a number"),
    ],
)
def test_a_value_of_another_type_is_refused(kind: Any, given: dict[str, Any], message: str) -> None:
    """Not read letter by letter, nor taken for true."""
    with pytest.raises(ValueError, match=message):
        kind(**given)


def test_a_path_may_be_a_text() -> None:
    assert jobs.CardOptions(model="m.json").model == Path("m.json")


def test_a_script_without_a_guard_is_charged_once(tmp_path: Path) -> None:
    """Each worker of the comparison ran it again, and trained once more."""
    script = tmp_path / "script.py"
    script.write_text(
        "from multiprocessing import get_context\n"
        "from dperm.privacy import Gaussian\n"
        "from dperm.release import Channel, SpendLog\n"
        f"Channel.open(log=SpendLog({str(tmp_path / 'log.db')!r})).charge(Gaussian(9.0), 'test')\n"
        "if __name__ == '__main__':\n"
        "    worker = get_context('spawn').Process(target=print)\n"
        "    worker.start()\n"
        "    worker.join()\n"
    )
    ran = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0 and "RuntimeError: Nothing was charged" in ran.stderr
    assert len(SpendLog(tmp_path / "log.db").charges()) == 1


@pytest.mark.parametrize("name", [name for name in jobs.__all__ if name.endswith("Options")])
def test_each_option_is_explained_beside_its_type(name: str) -> None:
    options = getattr(jobs, name)
    assert is_dataclass(options) and options.__doc__
    hints = get_type_hints(options, include_extras=True)
    for each in fields(options):
        assert [text for text in getattr(hints[each.name], "__metadata__", ()) if isinstance(text, str)], each.name


def test_each_job_takes_one_value_of_options() -> None:
    for name in ("account", "audit", "card", "compare", "create_budget", "train"):
        taken = inspect.signature(getattr(jobs, name)).parameters
        assert list(taken) == ["asked"], name
