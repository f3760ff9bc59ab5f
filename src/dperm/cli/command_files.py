"""A file of `cli/commands/` is a command, or a group of several: its public functions, each of one dataclass of options; and the
options that several of them spell alike."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import MISSING, Field, fields, is_dataclass
from types import ModuleType
from typing import Annotated, Any, get_type_hints

import typer

from dperm.cli.files import RESERVED
from dperm.jobs.options import SOURCE

Source = Annotated[str, typer.Argument(help=f"Records: {SOURCE}.")]
JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
OnError = Annotated[str, "Rows that do not fit the schema: fail, or skip, which leaves them out and says why."]


def add_commands(app: typer.Typer, module: ModuleType) -> None:
    """Add the command that a file has under its own name; or else a group of that name, with all public functions of the file.
    TypeError, in a sentence that begins with the file, for a file that has neither."""
    name = module.__name__.rpartition(".")[2]
    file = f"cli/commands/{name}.py"
    if not module.__doc__:
        raise TypeError(f"{file}: expected a module docstring, which describes the command.")
    public = [run for run in vars(module).values() if inspect.isfunction(run) and run.__module__ == module.__name__]
    found = {run.__name__: run for run in public if not run.__name__.startswith("_")}
    if name in found and len(found) > 1:
        others = ", ".join(other for other in found if other != name)
        raise TypeError(f"{file}: expected one public function, {name}, got {others}, too: begin the names of helpers with _.")
    if name not in found and len(found) < 2:
        raise TypeError(f"{file}: expected a function {name}, the command, got {', '.join(found) or 'no public function'}.")
    group = app
    if name not in found:
        group = typer.Typer(no_args_is_help=True, help=module.__doc__, rich_markup_mode=None)
        app.add_typer(group, name=name.replace("_", "-"))
    for run in found.values():
        group.command(run.__name__.strip("_").replace("_", "-"))(_with_options(run, file))


def options_of(run: Callable[..., None], file: str) -> Any:
    """The dataclass of a command's options; None for one that has none. TypeError for a function that takes anything else."""
    taken = inspect.signature(run).parameters
    if not taken:
        return None
    options = _hints(run, file).get(next(iter(taken))) if len(taken) == 1 else None
    if not is_dataclass(options):
        raise TypeError(
            f"{file}: expected {run.__name__} to take one parameter, annotated with a frozen dataclass of its options, got "
            f"{run.__name__}({', '.join(map(str, taken.values()))})."
        )
    return options


def _hints(annotated: Any, file: str) -> dict[str, Any]:
    try:
        return get_type_hints(annotated, include_extras=True)
    except NameError as error:
        raise TypeError(f"{file}: expected annotations of {annotated.__name__} that are there when it runs: {error}.") from None


def _with_options(run: Callable[..., None], file: str) -> Callable[..., None]:
    """The function as the framework has it: the fields of its options are keywords, and its docstring is its help."""
    options = options_of(run, file)
    if options is None:
        return run
    hints = _hints(options, file)

    @functools.wraps(run)
    def with_options(**given: Any) -> None:
        with RESERVED:
            run(options(**given))

    parameters = [
        inspect.Parameter(each.name, inspect.Parameter.KEYWORD_ONLY, default=_default(each), annotation=_shown(each, hints))
        for each in fields(options)
    ]
    vars(with_options)["__signature__"] = inspect.Signature(parameters)
    return with_options


def _shown(each: Field[Any], hints: dict[str, Any]) -> Any:
    """A field's annotation as the framework has it: words alone are the help of an option, as options of jobs are explained."""
    hint = hints[each.name]
    words = [text for text in getattr(hint, "__metadata__", ()) if isinstance(text, str)]
    flags = [f"--{each.name.replace('_', '-')}"] if each.name == "output" or each.default is False else []
    short = ["-o"] if each.name == "output" else []
    return Annotated[hint.__origin__, typer.Option(*flags, *short, help=words[0])] if words else hint


def _default(each: Field[Any]) -> Any:
    return inspect.Parameter.empty if each.default is MISSING else each.default
