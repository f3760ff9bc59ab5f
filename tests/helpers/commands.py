"""The commands, run as a person would."""

from __future__ import annotations

import io
import sys
import warnings
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass

import pytest

from dperm.cli import main

__all__ = ["Done", "dperm"]


@dataclass(frozen=True)
class Done:
    stdout: str
    stderr: str


def dperm(*arguments: object, expect: int = 0) -> Done:
    """A command in this process: importing everything anew takes longer than most commands. What it lets out fails the test."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    with warnings.catch_warnings(), redirect_stdout(out), redirect_stderr(err), pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter("default")
        patch.setattr(sys, "argv", ["dperm", *map(str, arguments)])
        try:
            main()
        except SystemExit as stop:
            code = stop.code or 0
    assert code == expect, out.getvalue() + err.getvalue()
    return Done(out.getvalue(), err.getvalue())
