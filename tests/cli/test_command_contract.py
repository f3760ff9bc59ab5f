"""What holds of every command: a new one in `cli/commands/` is found here, and a test says what it lacks."""

from __future__ import annotations

import ast
import contextlib
import importlib
import inspect
import json
import pkgutil
import re
import shlex
import sys
import types
from collections.abc import Iterator
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import pytest
import typer

from dperm.cli import application, commands
from dperm.cli.command_files import add_commands, options_of
from dperm.jobs.options import TABLES
from helpers.commands import dperm

ROOT = Path(__file__).resolve().parents[2]
MODULES = [module.name for module in pkgutil.iter_modules(commands.__path__)]
WORKING = typer.Typer(name="dperm")
WORKING.callback()(lambda: None)
for _module in MODULES:
    with contextlib.suppress(Exception):  # the test of that file says what it was
        add_commands(WORKING, importlib.import_module(f"{commands.__name__}.{_module}"))
#: Examples that need no file of the reader's, and are not run here all the same.
NOT_RUN = {
    "dperm audit --mechanism gradient --epsilon 4 --features 20 --public-size 10000": "takes minutes",
    "dperm compare": "takes minutes",
    "dperm bounds adult -o adult-bounds.html": "downloads a data set",
    "dperm choose-epsilon adult --low 0.05 -o adult-epsilon.html": "downloads a data set",
    "DPERM_SPEND_LOG='postgresql://admin@db.example.org/spend?sslmode=verify-full' dperm budget init": "needs a server",
    "dperm budget correct-time": "needs a log whose last entry is ahead of the clock",
}


#: Parts of examples whose numbers take seconds to find.
LONG = ("--true-positive-rate", "--correlated", "--compare")


def all_commands(group: Any, name: str) -> Iterator[tuple[str, Any]]:
    """The framework's commands, those of groups with the groups' names."""
    inside = getattr(group, "commands", None)
    if inside is None:
        yield name, group
        return
    for inner in inside.values():
        yield from all_commands(inner, f"{name} {inner.name}")


COMMANDS = dict(all_commands(typer.main.get_command(WORKING), "dperm"))


def examples_of(help_text: str | None) -> list[str]:
    """Lines of a help that begin with the name of the program; what stands behind a gap is a remark."""
    lines = [re.split(r"\s{2,}", line.strip())[0] for line in (help_text or "").splitlines() if line.startswith("  ")]
    return [line for line in lines if re.match(r"([A-Z_]+=\S+ )?dperm ", line)]


EXAMPLES = [line for command in COMMANDS.values() for line in examples_of(command.help)]


def needs_a_file(example: str) -> bool:
    return bool(re.search(r"\s[\w-]+\.[a-z][\w.]*", re.sub(r"(-o|--output) \S+", "", example)))


def words_of(example: str) -> list[str]:
    return shlex.split(example[example.index("dperm ") :])


def named(words: list[str]) -> str:
    """The command that an example is of; empty where there is none."""
    return next((name for size in (3, 2) if (name := " ".join(words[:size])) in COMMANDS), "")


@pytest.mark.parametrize("module", MODULES)
def test_every_file_has_a_command_in_functions_of_a_page(module: str) -> None:
    found = importlib.import_module(f"{commands.__name__}.{module}")
    only = typer.Typer()
    add_commands(only, found)
    assert only.registered_commands or only.registered_groups
    for run in vars(found).values():
        if not inspect.isfunction(run) or run.__module__ != found.__name__ or run.__name__.startswith("_"):
            continue
        options = options_of(run, module)
        if options is not None:
            with pytest.raises(FrozenInstanceError):  # else give its dataclass frozen=True
                object.__new__(options).changed = True
    tree = ast.parse(Path(str(found.__file__)).read_text(encoding="utf-8"))
    long = [
        node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and (node.end_lineno or 0) - node.lineno >= 60
    ]
    assert not long, f"Move what {long} compute into the library: a command parses, calls it and prints."


def file_of(code: str, name: str, patch: pytest.MonkeyPatch) -> types.ModuleType:
    """The module that a file `cli/commands/NAME.py` would be."""
    module = types.ModuleType(f"{commands.__name__}.{name}")
    patch.setitem(sys.modules, module.__name__, module)
    exec(compile(code, f"{name}.py", "exec"), vars(module))
    return module


TOP = "from dataclasses import dataclass\n@dataclass(frozen=True)\nclass Asked:\n    size: int = 3\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("def trial(asked: Asked): ...", "expected a module docstring"),
        ("'''Tries.'''\n_trial = 1", "expected a function trial, the command, got no public function"),
        ("'''Tries.'''\ndef trail(asked: Asked): ...", "expected a function trial, the command, got trail"),
        ("'''Tries.'''\ndef trial(asked: Asked): ...\ndef register(app): ...", "got register, too: begin the names of helpers"),
        (
            "'''Tries.'''\ndef trial(asked): ...",
            "one parameter, annotated with a frozen dataclass of its options, got trial.asked.",
        ),
        ("'''Tries.'''\ndef trial(size: int): ...", "annotated with a frozen dataclass"),
        ("'''Tries.'''\ndef trial(asked: Asked, size: int): ...", "expected trial to take one parameter"),
        ("'''Tries.'''\ndef trial(asked: 'Other'): ...", "annotations of trial that are there when it runs: name 'Other'"),
        ("'''Tries.'''\n@dataclass\nclass Odd:\n    size: 'Int' = 3\ndef trial(asked: Odd): ...", "annotations of Odd"),
    ],
)
def test_a_file_without_a_command_is_one_sentence_that_names_it(text: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    doc, _, code = text.rpartition("'''\n")
    module = file_of(f"{doc}'''\n{TOP}{code}" if doc else TOP + code, "trial", monkeypatch)
    with pytest.raises(TypeError, match=said) as refused:
        add_commands(typer.Typer(), module)
    assert str(refused.value).startswith("cli/commands/trial.py: ") and len(str(refused.value).splitlines()) == 1

    monkeypatch.setattr("dperm.cli.add_commands", lambda app, _: add_commands(app, module))
    application.cache_clear()
    try:
        assert dperm("account", "--log", expect=1).stderr == f"error: {refused.value}\n"
    finally:
        application.cache_clear()


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_says_what_it_does_and_what_each_option_means(name: str) -> None:
    command = COMMANDS[name]
    assert (command.help or "").split("\n\n")[0].strip().endswith((".", "?")), f"Begin the docstring of `{name}` with a sentence."
    silent = [option.name for option in command.params if option.name != "help" and not getattr(option, "help", None)]
    assert not silent, f"Say in help= what {silent} of `{name}` mean."
    helps = [str(getattr(option, "help", "")) for option in command.params]
    vague = [text for text in helps if re.match(r"Records|Test records|A table", text) and ", ".join(TABLES) not in text]
    assert not vague, f"Say which files are read by SOURCE, KINDS or TABLES of jobs/options.py, in place of {vague}."
    told = "".join(path.read_text(encoding="utf-8") for path in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
    assert name in told, f"Mention `{name}` in README.md or docs/."


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_examples_that_it_takes(name: str) -> None:
    examples = examples_of(COMMANDS[name].help)
    assert any(named(words_of(line)) == name for line in examples), f"Show `{name}` in an example in its docstring."
    for line in examples:
        words = words_of(line)
        assert named(words), f"`{line}` is no command."
        COMMANDS[named(words)].make_context("dperm", words[named(words).count(" ") + 1 :])


def test_the_examples_of_the_whole_are_lines_that_commands_take() -> None:
    examples = examples_of(typer.main.get_command(application()).help)
    assert len(examples) > 5
    for words in map(words_of, examples):
        COMMANDS[named(words)].make_context("dperm", words[named(words).count(" ") + 1 :])


@pytest.mark.parametrize(
    "line",
    [
        pytest.param(line, marks=[pytest.mark.slow] * any(part in line for part in LONG))
        for line in EXAMPLES
        if not needs_a_file(line) and line not in NOT_RUN
    ],
)
def test_examples_that_need_no_file_run(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DPERM_SPEND_LOG", str(tmp_path / "spend.db"))
    monkeypatch.setattr("dperm.cli.application", lambda *_: WORKING)
    words = words_of(line)[1:]
    dperm("budget", "create", "stays", "--epsilon", "4")
    assert dperm(*words).stdout
    if "--json" in [flag for option in COMMANDS[named(["dperm", *words])].params for flag in option.opts]:
        json.loads(dperm(*words, *([] if "--json" in words else ["--json"])).stdout)


def test_what_is_not_run_is_an_example_that_would_be() -> None:
    assert all(line in EXAMPLES and not needs_a_file(line) for line in NOT_RUN)


def test_the_command_that_is_shown_to_contributors_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("\n## A command\n")[2]
    app = typer.Typer()
    app.callback()(lambda: None)
    add_commands(app, file_of(text.partition("```python\n")[2].partition("```")[0], "release", monkeypatch))
    monkeypatch.setattr("dperm.cli.application", lambda *_: app)
    for line in examples_of(typer.main.get_group(app).commands["release"].help):
        words = words_of(line)[1:]
        assert "ε = " in dperm(*words).stdout
        assert json.loads(dperm(*words, "--json").stdout)["epsilon"] > 0
