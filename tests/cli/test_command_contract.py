"""What holds of every command: a new one in `cli/commands/` is found here, and a test says what it lacks."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from dperm.cli import app, commands

ROOT = Path(__file__).resolve().parents[2]
MODULES = [module.name for module in pkgutil.iter_modules(commands.__path__)]


def all_commands(group: Any, name: str) -> Iterator[tuple[str, Any]]:
    """The framework's commands, those of groups with the groups' names."""
    inside = getattr(group, "commands", None)
    if inside is None:
        yield name, group
        return
    for inner in inside.values():
        yield from all_commands(inner, f"{name} {inner.name}")


COMMANDS = dict(all_commands(typer.main.get_command(app), "dperm"))


@pytest.mark.parametrize("module", MODULES)
def test_every_module_registers_a_command_in_functions_of_a_page(module: str) -> None:
    found = importlib.import_module(f"{commands.__name__}.{module}")
    assert callable(getattr(found, "register", None)), f"Give cli/commands/{module}.py a function register(app)."
    only = typer.Typer()
    found.register(only)
    assert only.registered_commands or only.registered_groups, f"Let register of cli/commands/{module}.py add its command."
    tree = ast.parse(Path(str(found.__file__)).read_text(encoding="utf-8"))
    long = [node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.end_lineno - node.lineno >= 60]  # type: ignore[operator]
    assert not long, f"Move what {long} compute into the library: a command parses, calls it and prints."


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_says_what_it_does_and_what_each_option_means(name: str) -> None:
    command = COMMANDS[name]
    assert (command.help or "").split("\n\n")[0].strip().endswith((".", "?")), f"Begin the docstring of `{name}` with a sentence."
    silent = [option.name for option in command.params if option.name != "help" and not getattr(option, "help", None)]
    assert not silent, f"Say in help= what {silent} of `{name}` mean."
    told = "".join(path.read_text(encoding="utf-8") for path in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
    assert name in told, f"Mention `{name}` in README.md or docs/."


@pytest.mark.parametrize("name", COMMANDS)
def test_every_example_in_a_docstring_is_a_line_that_the_command_takes(name: str) -> None:
    command = COMMANDS[name]
    lines = [line.strip().partition("dperm ")[2] for line in (command.help or "").splitlines() if " dperm " in f" {line.strip()}"]
    examples = [line for line in lines if f"dperm {line}".startswith(name)]
    if any(option.param_type_name == "argument" and option.required for option in command.params) and name.count(" ") == 1:
        assert examples, f"Show `{name}` in an example in its docstring."
    for line in examples:
        arguments = shlex.split(line)[name.count(" ") :]
        command.make_context(name, arguments, resilient_parsing=False)
