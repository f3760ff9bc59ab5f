"""Item 13: names, labels and entries that others wrote reach the terminal as text: they steer nothing, and end no line."""

from __future__ import annotations

import ast
import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from dperm.cli import printing
from dperm.cli.printing import complain, progress, say, say_json, say_lines, warn
from dperm.data import Dataset, Schema, read_table
from dperm.release import SpendLog
from dperm.report.influence import influences
from dperm.report.summary import influence_table
from helpers.commands import Done, dperm

SOURCE = Path(printing.__file__).parents[1]
#: clears the screen; sets the window's title; turns writing round; a line of its own; markup of tables; C1; no formula of figures
HOSTILE = "a\x1b[2J\x1b]0;owned\x07\u202eb\rc\nerror: all is well\u2028 [/red] [bold]\x9b31m\x7f$u_{$"


def only_text(done: Done | str) -> bool:
    said = done if isinstance(done, str) else done.stdout + done.stderr
    return all(sign.isprintable() or sign == "\n" for sign in said)


def test_a_line_stays_one_and_steers_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    say(f"name: {HOSTILE}")
    warn(HOSTILE)
    complain(f"{HOSTILE}\ud800")
    with progress(HOSTILE, shown=True) as step:
        step(1, 2)
    out, err = capsys.readouterr()
    assert only_text(out + err)
    assert (len(out.splitlines()), len(err.splitlines())) == (1, 3)
    assert r"\x1b[2J" in out and "all is well  [/red]" in out
    say_lines("one\n\x1btwo\x85three\n")
    assert capsys.readouterr().out == "one\n\\x1btwo three\n\n"
    complain("x" * 10**6)
    assert len(capsys.readouterr().err) < 5_000


def test_json_stays_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    value = {HOSTILE: [HOSTILE, "\U000e0041\U0001f600é", 1.5, None]}
    for ascii_only in (True, False):
        for indent in (None, 2):
            say_json(json.dumps(value, ensure_ascii=ascii_only, indent=indent))
            said = capsys.readouterr().out
            assert only_text(said) and json.loads(said) == value


def test_commands_print_through_one_door() -> None:
    """No command writes to a stream itself, nor by another library, and tables are made of texts that are no markup."""
    found: list[str] = []
    for path in [*SOURCE.glob("cli/**/*.py"), *SOURCE.glob("report/*.py")]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            name = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            printed = name in ("print", "typer.echo", "typer.secho", "click.echo") or name.endswith((".write", ".writelines"))
            if (printed and "sys." in name) or name in ("print", "typer.echo", "typer.secho", "click.echo"):
                found.append(f"{path.relative_to(SOURCE)}: {ast.unparse(node)[:60]}")
            if isinstance(node, ast.Call) and name.endswith(("console.print", "table.add_row")):
                texts = [argument for argument in node.args if isinstance(argument, ast.Constant | ast.JoinedStr)]
                found += [f"{path.relative_to(SOURCE)}: {ast.unparse(node)[:60]}" for _ in texts]
    allowed = ("cli/printing.py", "cli/__init__.py")
    assert [each for each in found if not each.startswith(allowed)] == []
    assert {each.partition(":")[0] for each in found} == set(allowed)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            f"n{HOSTILE}": rng.integers(0, 90, 80),
            f"c{HOSTILE}": rng.choice([f"=u{HOSTILE}", f"v{HOSTILE}"], 80),
            f"y{HOSTILE}": rng.choice([f"no{HOSTILE}", f"yes{HOSTILE}"], 80),
        }
    )
    path = tmp_path / "t\x1b[2J[red].csv"
    frame.to_csv(path, index=False)
    return path


def test_names_of_others_reach_no_terminal(table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPERM_USER", HOSTILE)
    target = f"y{HOSTILE}"
    schema, model, out = tmp_path / "s.json", tmp_path / "m.json", tmp_path / "o"
    assert only_text(dperm("data", "propose", table, "--target", target, "-o", schema))
    draft = json.loads(schema.read_text())
    draft["format"] = {"line_breaks": True}
    schema.write_text(json.dumps(draft))
    commands = [
        ("data", "confirm", schema, "--yes"),
        ("data", "show", schema),
        ("data", "check", table, "--schema", schema),
        ("train", table, "--schema", schema, "--mechanism", "output", "--dry-run"),
        ("train", table, "--schema", schema, "--mechanism", "output", "-o", model),
        ("predict", model, table, "-o", out),
        ("evaluate", model, table, "--test-data", "private", "--by", f"c{HOSTILE}"),
        ("effects", model, "-o", out),
        ("effects", model, "--row", f"{table}:1", "-o", out),
        ("influence", table, "--schema", schema, "-o", out),
        ("card", model, "-o", out),
        ("card", model, "-o", out, "--json"),
        ("account", "--log"),
        ("budget", "create", HOSTILE, "--epsilon", "2", "--owner", HOSTILE),
        ("budget", "show"),
        ("budget", "history"),
        ("budget", "history", "-o", out),
        ("budget", "history", "--json"),
    ]
    pages = 0
    for command in commands:
        done = dperm(*command)
        assert only_text(done), command
        if command[-1] == out and (page := out.read_text()).startswith("<!doctype html>"):  # which somebody may print, too
            assert only_text(page), command
            pages += 1
        assert not any(line.startswith("error: all") for line in (done.stdout + done.stderr).splitlines()), command
    assert pages == 5
    for wrong in (
        ("train", table, "--schema", schema, "--target", HOSTILE),
        ("predict", model, table, "--keep", HOSTILE),
        ("budget", "show", f"x{HOSTILE}"),
        ("account", "--event", tmp_path / "no\x1b[2J"),
    ):
        done = dperm(*wrong, expect=1)
        assert only_text(done) and len(done.stderr.splitlines()) == 1
    for misused in (("train", "a", f"b{HOSTILE}"), (f"x{HOSTILE}",), ("train", "a", f"--no{HOSTILE}")):
        assert only_text(dperm(*misused, expect=2))
    assert any(HOSTILE in str(entry) or "\\x1b" in repr(entry) for entry in SpendLog.current().entries())


def test_tables_read_no_markup(table: Path) -> None:
    """A name such as [/red] ended `compare` after its charges."""
    frame = read_table(table, written={"line_breaks": True}).frame
    y, x = frame.columns[2], frame.columns[0]
    columns = [{"name": x, "type": "number", "range": [0, 90]}, {"name": y, "type": "label"}]
    classes = sorted(frame[y].unique())
    schema = Schema.from_dict({"name": HOSTILE, "target": y, "columns": columns, "classes": classes, "title": f"[/x] {HOSTILE}"})
    found = influences(Dataset.of(frame, schema), "logistic")
    buffer = io.StringIO()
    influence_table(replace(found), 5, Console(file=buffer, width=200))
    assert only_text(buffer.getvalue())
    assert "[/x]" in buffer.getvalue()
    assert "[/red]" in buffer.getvalue()
