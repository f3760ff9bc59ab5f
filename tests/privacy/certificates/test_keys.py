"""Keys with a passphrase, and keys that were withdrawn."""

from __future__ import annotations

import getpass
import sys
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from dperm.privacy.certificates.signing import (
    SigningKey,
    asked_passphrase,
    check_signature,
    digest_of,
    make_key,
    public_key,
    sign,
)
from helpers.commands import dperm

DIGEST = digest_of({"a": 1})


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is typed at a terminal, one passphrase after another."""
    answers: list[str] = []
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    monkeypatch.setattr(getpass, "getpass", lambda _: answers.pop(0))
    return answers


def test_a_key_with_a_passphrase_signs_for_who_knows_it(tmp_path: Path, typed: list[str]) -> None:
    public = make_key(tmp_path / "key", b"open sesame")
    typed += ["open sesame"]
    check_signature(DIGEST, sign(DIGEST, tmp_path / "key"), public)
    typed += ["open sesame"]
    assert SigningKey(tmp_path / "key").public == public_key(public)
    typed += ["sesame"]
    with pytest.raises(ValueError, match="no private key with this passphrase"):
        SigningKey(tmp_path / "key")
    typed += [""]
    with pytest.raises(ValueError, match="Expected a passphrase"):
        SigningKey(tmp_path / "key")
    content = (tmp_path / "key").read_bytes()
    with pytest.raises(TypeError):
        load_pem_private_key(content, None)
    assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600


def test_without_a_terminal_a_file_holds_the_passphrase(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdin, "isatty", lambda: False)
    key, secret = tmp_path / "key", tmp_path / "secret"
    for arguments in (("keygen", key, "--passphrase"),):
        assert "DPERM_KEY_PASSPHRASE_FILE" in dperm(*arguments, expect=1).stderr
    assert not key.exists()
    monkeypatch.setenv("DPERM_KEY_PASSPHRASE_FILE", str(secret))
    assert "Cannot read the passphrase" in dperm("keygen", key, "--passphrase", expect=1).stderr
    secret.write_bytes("passe phräse\r\nmore\n".encode())
    dperm("keygen", key, "--passphrase")
    load_pem_private_key(key.read_bytes(), "passe phräse".encode())
    dperm("budget", "create", "stays", "--epsilon", "1", "--sign-key", key)
    monkeypatch.delenv("DPERM_KEY_PASSPHRASE_FILE")
    told = dperm("budget", "create", "stays", "--epsilon", "2", "--sign-key", key, expect=1).stderr
    assert "DPERM_KEY_PASSPHRASE_FILE" in told
    assert "epsilon" not in told


def test_the_question_steers_no_terminal_and_may_stay_unanswered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def ask(question: str) -> str:
        asked.append(question)
        raise EOFError

    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    monkeypatch.setattr("getpass.getpass", ask)
    with pytest.raises(ValueError, match="Expected a passphrase"):
        asked_passphrase(tmp_path / "k\x1b]0;owned\x07")
    assert len(asked) == 1 and asked[0].isprintable()


def test_two_passphrases_that_differ_make_no_key(tmp_path: Path, typed: list[str]) -> None:
    typed += ["one", "two"]
    assert "differ" in dperm("keygen", tmp_path / "key", "--passphrase", expect=1).stderr
    assert not (tmp_path / "key").exists()
    typed += ["one", "one"]
    dperm("keygen", tmp_path / "key", "--passphrase")
    assert not typed


def test_withdrawn_keys_vouch_for_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    withdrawn = tmp_path / "withdrawn"
    withdrawn.mkdir()
    keys = {name: make_key(tmp_path / name) for name in ("old", "new")}
    signatures = {name: sign(DIGEST, tmp_path / name) for name in keys}
    (withdrawn / "any name").write_bytes(keys["old"].read_bytes())
    check_signature(DIGEST, signatures["old"], keys["old"])
    monkeypatch.setenv("DPERM_WITHDRAWN_KEYS", str(withdrawn))
    check_signature(DIGEST, signatures["new"], keys["new"])
    with pytest.raises(ValueError, match="was withdrawn"):
        check_signature(DIGEST, signatures["old"], keys["old"])
    (withdrawn / "garbage").write_text("x")
    with pytest.raises(ValueError, match="garbage is no public key"):  # a list that cannot be read vouches for nobody
        check_signature(DIGEST, signatures["new"], keys["new"])
    monkeypatch.setenv("DPERM_WITHDRAWN_KEYS", str(tmp_path / "nowhere"))
    with pytest.raises(OSError, match="nowhere"):
        check_signature(DIGEST, signatures["new"], keys["new"])
