"""Item 21: files that somebody else wrote, at the command line: one line says what is wrong, before anything is computed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dperm.privacy import Certificate, Gaussian
from dperm.privacy.certificates.signing import digest_of
from helpers.commands import dperm

GAUSSIAN = {"type": "Gaussian", "noise_multiplier": 2.0, "relation": "add_or_remove_one"}
BOMB = {"type": "RowsSampled", "rate": 0.1, "rows": 10**13, "event": GAUSSIAN}


def certificate(**changes: Any) -> str:
    table = json.loads(Certificate.issue(mechanism="m", event=Gaussian(2.0), delta=1e-5).to_json()) | changes
    del table["digest"]
    return json.dumps({**table, "digest": digest_of(table)})


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ('"noise_multiplier": 1, "noise_multiplier": 9', "once"),
        (f'"noise_multiplier": {"9" * 4000}', "number"),
        (f'"noise_multiplier": {"9" * 5000}', ""),
        ('"noise_multiplier": NaN', "finite"),
    ],
)
def test_an_event_says_one_thing(tmp_path: Path, fields: str, match: str) -> None:
    path = tmp_path / "given.json"
    path.write_text('{"type": "Gaussian", ' + fields + ', "relation": "add_or_remove_one"}')
    done = dperm("account", "--event", path, expect=1)
    assert len(done.stderr.strip().splitlines()) == 1 and match in done.stderr


@pytest.mark.parametrize(
    ("text", "match"),
    [
        (json.dumps(BOMB), "as much work"),
        (certificate(event=BOMB), "as much work"),
        (certificate(mechanism="two\nlines"), "one line"),
        (certificate(target_epsilon=0.1), "its own target"),
        ('{"event": ' * 3000 + "1" + "}" * 3000, "nest too deep"),
        ('{"type": "Gaussian", "noise_multiplier": [1], "relation": "add_or_remove_one"}', "number"),
    ],
)
def test_hostile_files_are_one_line(tmp_path: Path, text: str, match: str) -> None:
    path = tmp_path / "given.json"
    path.write_text(text)
    for command in (("account", "--event", path), ("budget", "create", "a", "--epsilon", "2", "--plan", path)):
        done = dperm(*command, expect=1)
        assert len(done.stderr.strip().splitlines()) == 1
        if command[0] == "account":
            assert match in done.stderr


EVENT = '{"type": "Gaussian", "noise_multiplier": 9.0, "relation": "add_or_remove_one"}'


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ('[{"times": 1, "times": 9, "event": ' + EVENT + "}]", "each name once"),
        ('[{"times": 1, "event": ' + EVENT.replace("9.0", '9.0, "noise_multiplier": 1.0') + "}]", "each name once"),
        ('[{"times": NaN, "event": ' + EVENT + "}]", "finite"),
        ("[" + ('{"event": ' + EVENT + "}, ") * 20_000 + "1]", "names and values"),
        ("[" * 3000 + "]" * 3000, "at most 256 deep"),
        ("[" * 200_000, "at most 256 deep"),
    ],
)
def test_a_plan_is_read_within_limits(tmp_path: Path, text: str, match: str) -> None:
    """A plan that said a number of releases twice was taken at its last word."""
    path = tmp_path / "plan.json"
    path.write_text(text)
    done = dperm("budget", "create", "a", "--epsilon", "20", "--plan", path, expect=1)
    assert len(done.stderr.strip().splitlines()) == 1 and match in done.stderr
    path.write_text('[{"times": 9, "event": ' + EVENT + "}]")
    assert "plan of 9 releases" in dperm("budget", "create", "a", "--epsilon", "20", "--plan", path).stdout
