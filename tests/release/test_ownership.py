"""Item 7: a budget that its owner signed is changed only with the owner's key, and so is the time of a log that it expires by."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from dperm.privacy import Gaussian
from dperm.privacy.accountants.privacy_filters import BudgetExceeded
from dperm.privacy.certificates.signing import SigningKey, make_key, public_key
from dperm.release import SpendLog
from dperm.release.ledger import Budget, clocks
from dperm.release.ledger.entries import append, canonical
from helpers.commands import dperm

Keys = dict[str, SigningKey]


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    for name in ("ada", "eve"):
        make_key(tmp_path / name)
    return {name: SigningKey(tmp_path / name) for name in ("ada", "eve")}


@pytest.fixture
def log(tmp_path: Path) -> SpendLog:
    return SpendLog(tmp_path / "spend.db")


def budget(epsilon: float, **settings: Any) -> Budget:
    return Budget.of("stays", epsilon, 1e-5, **settings)


def charge(log: SpendLog, label: str = "stays") -> str:
    return log.charge(Gaussian(50.0), mechanism="test", label=label)


def written_by_hand(log: SpendLog, kind: str, body: dict[str, Any]) -> None:
    """An entry that fits the chain, and a budget's row with it, by somebody who may write the file and knows how."""
    with log.database.writing() as rows:
        append(rows, kind, "", body)
        if kind == "budget":
            rows("UPDATE dperm_budgets SET body = ?, spent = ?", canonical(body["budget"]), canonical(body["spent"]))


def test_a_public_key_is_the_same_from_both_files(tmp_path: Path, keys: Keys) -> None:
    assert public_key(tmp_path / "ada.pub") == keys["ada"].public != keys["eve"].public
    assert len(bytes.fromhex(keys["ada"].public)) == 32


def test_a_signed_budget_is_raised_only_with_its_key(log: SpendLog, keys: Keys) -> None:
    log.create_budget(budget(1.0), key=keys["ada"])
    charge(log)
    for key in (None, keys["eve"]):
        for epsilon in (100.0, 0.9):
            with pytest.raises(
                ValueError, match=f"only with the key {keys['ada'].public[:16]}… of its owner: expected its --sign"
            ):
                log.create_budget(budget(epsilon), key=key)
    account = log.account("stays")
    assert account is not None and account.budget.epsilon == 1.0
    log.create_budget(Budget.of("others", 100.0, 1e-5))  # another's own
    assert log.create_budget(budget(2.0), key=keys["ada"]).spent == budget(2.0).cost(Gaussian(50.0))
    charge(log)
    assert log.verify() == 5


def test_whoever_writes_the_file_cannot_raise_it_either(log: SpendLog, keys: Keys) -> None:
    """Not without a key, not with another, and not by an entry that the owner signed for another place of the log."""
    log.create_budget(budget(100.0), key=keys["ada"])
    (once,) = log.history()
    log.create_budget(budget(1.0), key=keys["ada"])
    charge(log)
    whole = Path(log.where).read_bytes()
    raised = {"label": "stays", "budget": budget(100.0).to_dict(), "spent": {}}
    forged = keys["eve"].sign("0" * 64)
    bodies = {
        "unsigned": raised,
        "another key": {**raised, "owner_key": keys["eve"].public, "signature": forged},
        "another signature": {**raised, "owner_key": keys["ada"].public, "signature": forged},
        "no text": {**raised, "owner_key": keys["ada"].public, "signature": None},
        "no number": {**raised, "owner_key": keys["ada"].public, "signature": "xyz"},
        "again": {name: once[name] for name in ("label", "budget", "spent", "owner_key", "signature")},
    }
    for name, body in bodies.items():
        Path(log.where).write_bytes(whole)
        written_by_hand(log, "budget", body)
        for use in (lambda: charge(log), log.verify):
            with pytest.raises(ValueError, match="changed only with the key"):
                use()
            assert name
    Path(log.where).write_bytes(whole)
    assert log.verify() == 3


def test_a_budget_goes_over_to_another_key(log: SpendLog, keys: Keys) -> None:
    """Rotation: the old key names the new one."""
    log.create_budget(budget(1.0))  # anybody's, and then hers
    log.create_budget(budget(1.0), key=keys["ada"])
    log.create_budget(budget(1.0), key=keys["ada"], owner_key=keys["eve"].public)
    with pytest.raises(ValueError, match=keys["eve"].public[:16]):
        log.create_budget(budget(2.0), key=keys["ada"])
    log.create_budget(budget(2.0), key=keys["eve"])
    assert log.verify() == 4
    with pytest.raises(ValueError, match="Expected --sign-key with --owner-key"):
        log.create_budget(Budget.of("others", 1.0, 1e-5), owner_key=keys["eve"].public)


def ahead(monkeypatch: pytest.MonkeyPatch, *, by: float) -> None:
    """This machine's clock, in a process that was started with it."""
    moment = time.time() + by
    monkeypatch.setattr(time, "gmtime", lambda *_: time.strptime(clocks.text_of(moment), "%Y-%m-%dT%H:%M:%SZ"))
    monkeypatch.setattr(clocks, "time_by_process", lambda: moment)


@pytest.fixture
def expired(log: SpendLog, keys: Keys, monkeypatch: pytest.MonkeyPatch) -> SpendLog:
    """By one entry of a clock that was decades ahead. Ada owns one budget that expires, Eve another."""
    log.create_budget(budget(1.0, expires="2080-01-01"), key=keys["ada"])
    log.create_budget(Budget.of("hers", 1.0, 1e-5, expires="2080-01-01"), key=keys["eve"])
    log.create_budget(Budget.of("ever", 1.0, 1e-5), key=SigningKey(_third(log)))
    with monkeypatch.context() as patch:
        ahead(patch, by=70 * 365 * 86400.0)
        charge(log, "ever")
    return log


def _third(log: SpendLog) -> Path:
    path = Path(log.where).with_name("third")
    make_key(path)
    return path


def test_owners_correct_a_wrong_time_by_a_signed_entry(expired: SpendLog, keys: Keys) -> None:
    with pytest.raises(BudgetExceeded, match=r"expired on 2080-01-01: nothing was charged. .* correct-time"):
        charge(expired)
    for given, missing in (([], "ada"), ([keys["eve"]], "ada"), ([keys["ada"]], "eve")):
        with pytest.raises(ValueError, match=f"expected the --sign-key {keys[missing].public[:16]}"):
            expired.correct_time(given)
    expired.correct_time(list(keys.values()))
    charge(expired)
    charge(expired, "hers")
    times = [entry["time"] for entry in expired.entries(None, ("budget", "charge", "time"))]
    assert times[3] > "2090" and sorted([*times[:3], *times[4:]]) == [*times[:3], *times[4:]] < ["2080"]
    assert expired.verify() == 7
    with pytest.raises(ValueError, match="The last entry of the spend log"):
        expired.correct_time(list(keys.values()))


def test_a_forged_correction_is_refused(expired: SpendLog, keys: Keys) -> None:
    for signatures in ({}, {keys["ada"].public: keys["ada"].sign("0" * 64)}, None):
        whole = Path(expired.where).read_bytes()
        written_by_hand(expired, "time", {"time": "2026-01-01T00:00:00Z", "signatures": signatures})
        for use in (lambda: charge(expired), expired.verify):
            with pytest.raises(ValueError, match="corrected only by the owners"):
                use()
        Path(expired.where).write_bytes(whole)
    with expired.database.writing() as rows:  # an entry of another kind that goes back
        rows("UPDATE dperm_head SET time = '2026-01-01T00:00:00Z'")
        append(rows, "charge", "a" * 32, {"id": "a" * 32, "label": "ever", "costs": {}}, event=Gaussian(50.0))
    with pytest.raises(ValueError, match=r"Entry 5 .* was changed"):
        charge(expired)


def test_the_commands_sign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    dperm("keygen", "ada")
    dperm("keygen", "eve")
    create = ("budget", "create", "stays", "--expires", "2080-01-01", "--epsilon")
    dperm(*create, "1", "--sign-key", "ada")
    for given in ((), ("--sign-key", "eve"), ("--sign-key", "eve", "--owner-key", "eve.pub")):
        assert "expected its --sign-key" in dperm(*create, "9", *given, expect=1).stderr
    dperm(*create, "2", "--sign-key", "ada", "--owner-key", "eve.pub")
    dperm(*create, "3", "--sign-key", "eve")
    with monkeypatch.context() as patch:
        ahead(patch, by=70 * 365 * 86400.0)
        dperm("budget", "create", "others", "--epsilon", "1")
    assert "--sign-key" in dperm("budget", "correct-time", expect=1).stderr
    dperm("budget", "correct-time", "--sign-key", "eve")
    told = dperm("budget", "history").stdout
    assert f"budget ε = 3, signed by {public_key('eve.pub')[:16]}…" in told
    assert "time corrected from 20" in told
    charge(SpendLog.current())
    assert "all 6 entries" in dperm("budget", "verify").stdout
    assert json.loads(dperm("budget", "show", "stays", "--json").stdout)["budgets"][0]["epsilon"] == 3.0
