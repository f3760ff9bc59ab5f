"""The command line. Thin: every command parses, calls the library, prints. Heavy imports wait until a command needs them.

Each file of `dperm.cli.commands` is a command, or a group of several, and is found there (`dperm.cli.command_files`).
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import pkgutil
import sys
from functools import cache
from typing import Annotated, Any

from dperm._extras import needed
from dperm._json import on_one_line
from dperm.cli.printing import complain, say, warn

with needed("typer", "The command line"):
    import typer

from dperm.cli import commands
from dperm.cli.command_files import add_commands
from dperm.jobs.files import ENDING

__all__ = ["application", "main"]

_HELP = """Differentially private training with a certificate per model.

\b
Examples:
  dperm compare                                      the bundled data sets, report.html
  dperm compare people.csv --target income           your own table
  dperm data propose people.csv --target income      a schema to confirm
  dperm train people.csv --schema people.schema.json --epsilon 1 -o model.json
  dperm predict model.json new.csv -o answers.csv
  dperm evaluate model.json test.csv --test-data private   how good it is, for your eyes
  dperm audit model.json                             try to refute its certificate
  dperm card model.json --audit audit.json           the page for whoever signs
  dperm account --noise 1.1 --rate 0.01 --steps 5000 --delta 1e-5
  dperm calibrate --epsilon 1 --delta 1e-5 --rate 0.01 --steps 5000
"""


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        say(version("dperm"))
        raise typer.Exit


def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


@cache
def application(only: str | None = None) -> typer.Typer:
    """All commands, with their help, or one of these. TypeError, in a sentence that begins with the file, where a file of a
    command has none."""
    app = typer.Typer(
        name="dperm", no_args_is_help=True, add_completion=True, pretty_exceptions_enable=False, rich_markup_mode=None, help=_HELP
    )
    app.callback()(_main)
    names = [module.name for module in pkgutil.iter_modules(commands.__path__)]
    for name in [only] if only in names else names:
        add_commands(app, importlib.import_module(f"{commands.__name__}.{name}"))
    return app


class _Interrupted(BaseException):
    """Ctrl-C, or another signal that ends a command, as an exception that the command-line framework passes on."""


#: What dperm raises for what it refuses, and the system for what it cannot do.
_REFUSALS = (ValueError, TypeError, OSError, RuntimeError, MemoryError, ImportError)


def main() -> None:
    """Run a command. Exit codes: 0 done, 1 refused or failed with one line saying why, 2 misused, 130 interrupted; 128 and its
    number for another signal."""
    import signal
    import warnings

    def interrupt(number: int, _: object) -> None:
        raise _Interrupted(number)

    # what is to be ignored, such as the end of a terminal by nohup, stays so
    before = {number: signal.getsignal(number) for number in ENDING if signal.getsignal(number) != signal.SIG_IGN}
    for number in before:
        signal.signal(number, interrupt)
    warnings.showwarning = lambda message, *_: warn(str(message))
    if isinstance(sys.stdout, io.TextIOWrapper):  # what a terminal cannot show must not fail a command whose charge is made
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        code = application(*[word.replace("-", "_") for word in sys.argv[1:2]])(standalone_mode=False)
        sys.stdout.flush()
    except _Interrupted as signalled:
        sys.stderr.write("interrupted: nothing half-written was left; what was charged stays charged\n")
        raise SystemExit(128 + signalled.args[0]) from None
    except BrokenPipeError:
        _forget_output()
        raise SystemExit(1) from None
    except Exception as error:
        if hasattr(error, "format_message"):  # misuse, as the command-line framework says it
            raise SystemExit(_tell_misuse(error)) from None
        if os.environ.get("DPERM_TRACEBACK"):
            raise
        complain(_told(error))
        raise SystemExit(1) from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    raise SystemExit(code if isinstance(code, int) else 0)


def _told(error: Exception) -> str:
    """In words. An error that dperm does not raise on purpose is a fault of its own, and says so."""
    if isinstance(error, MemoryError):
        return str(error) or "There is not enough memory."
    if isinstance(error, _REFUSALS):
        return str(error) or type(error).__name__
    return (
        f"{type(error).__name__}: {error}. This is a fault of dperm's own; DPERM_TRACEBACK=1 shows where it is. What was charged "
        "stays charged."
    )


def _tell_misuse(error: Any) -> int:
    """Print what the framework says of wrong arguments, which may be names of files that others chose; returns the exit code."""
    with contextlib.redirect_stderr(io.StringIO()) as said:
        error.show()
    for line in said.getvalue().splitlines():
        sys.stderr.write(f"{on_one_line(line)}\n")
    return int(error.exit_code)


def _forget_output() -> None:
    """Whoever read the output is gone: the interpreter must not fail once more as it closes the stream."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    main()
