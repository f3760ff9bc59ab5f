"""Progress is shown to whoever watches, once a work takes longer than two seconds, and to nobody else."""

from __future__ import annotations

import io
import re
import sys
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dperm import _progress as progress
from dperm.audit import Training, attack
from dperm.data import Dataset
from dperm.estimators import DPBagging, DPLogisticRegression, DPRidge, DPSearch
from dperm.mechanisms import Coordinate, FrankWolfe, Gradient, GreedyCoordinate, Output
from dperm.report import Study, run_study
from dperm.report.refits import Refits

N = 200
X = np.random.default_rng(0).uniform(0, 1, (N, 3)) / 2
LABELS = np.where(X[:, 0] > 0.25, "yes", "no")


STUDY = Study(epsilons=(1.0,), mechanisms=("output",), repeats=1, boosting=False)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """A terminal as the error stream, where everything is shown at once."""
    screen = Terminal()
    monkeypatch.setattr(progress, "sys", types.SimpleNamespace(stderr=screen, modules=sys.modules))  # pytest sets its own anew
    monkeypatch.setattr(progress, "_PATIENCE", 0.0)
    monkeypatch.setattr(progress, "_EVERY", 0.0)
    monkeypatch.setenv("TERM", "xterm")
    return screen


def shown(screen: Terminal) -> list[str]:
    return [part for part in re.split(r"\r\x1b\[2K", screen.getvalue()) if part]


def classifier(**settings: Any) -> DPLogisticRegression:
    return DPLogisticRegression(**{"classes": ["no", "yes"], "public_size": N, "delta": 1e-3} | settings)


@pytest.mark.parametrize(
    ("work", "title"),
    [
        (lambda: classifier(mechanism=Gradient(epochs=2)).fit(X, LABELS), "Training: 1 of "),
        (lambda: classifier(mechanism=Coordinate(epochs=3)).fit(X, LABELS), "Training: 1 of 3"),
        (lambda: classifier(mechanism=FrankWolfe(radius=1.0, steps=3)).fit(X, LABELS), "Training: 1 of 3"),
        (lambda: classifier(mechanism=GreedyCoordinate(steps=3)).fit(X, LABELS), "Training: 1 of 3"),
        (lambda: DPRidge(public_size=N, delta=1e-3).fit(X, X[:, 0]), "Training: 1 of "),
        (lambda: classifier(mechanism=Output()).fit(X, LABELS), "Training: 0 s"),
        (lambda: DPBagging(classifier(mechanism="output"), members=2, delta=1e-3).fit(X, LABELS), "Training members: 1 of 2"),
        (lambda: Refits.of(classifier().fit(X, LABELS), dataset(), 2, random_state=0), "Training again: 1 of 2"),
        (
            lambda: run_study(dataset(), Study(epsilons=(1.0,), mechanisms=("output",), repeats=1, boosting=False)),
            "Comparing: 1 of ",
        ),
        (lambda: attack(Training.of_mechanism(*classifier(mechanism="output").mechanism_for(3)), trials=200), "Attacking: "),
        (lambda: classifier().epsilon_path(X, LABELS, draws=1, low=1.0, high=2.0), "Following epsilon: 0 s"),
        (lambda: search("each once"), "Searching: 1 of 2"),
    ],
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_work_is_shown_and_cleared_away(work: Callable[[], Any], title: str, terminal: Terminal) -> None:
    work()
    lines = shown(terminal)
    assert any(line.startswith(title) for line in lines), lines[:5]
    assert terminal.getvalue().endswith("\r\x1b[2K")
    assert not progress._SCREEN.busy


def dataset() -> Dataset:
    return Dataset("made", X, LABELS, ("a", "b", "c"), ("no", "yes"), None)


def search(how: Any) -> DPSearch:
    found = DPSearch(
        classifier(public_size=None, mechanism="output"), {"data_norm": [1.0, 2.0]}, epsilon=8.0, delta=1e-3, how=how
    )
    return found.fit(X, LABELS, held_out=(X, LABELS))


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_number_of_secret_tries_is_not_shown(terminal: Terminal) -> None:
    search("geometric")
    assert terminal.getvalue() == ""


def test_short_works_and_other_streams_show_nothing(monkeypatch: pytest.MonkeyPatch, terminal: Terminal) -> None:
    def work() -> None:
        assert list(progress.watched(range(3), "Work", 3)) == [0, 1, 2]

    work()
    assert shown(terminal)
    for change in (
        lambda patch: patch.setattr(progress, "_PATIENCE", 2.0),
        lambda patch: patch.setattr(progress.sys, "stderr", io.StringIO()),
        lambda patch: patch.setattr(progress.sys, "stderr", None),
        lambda patch: patch.setenv("DPERM_PROGRESS", "0"),
        lambda patch: patch.setenv("TERM", "dumb"),
    ):
        terminal.seek(0)
        terminal.truncate()
        with monkeypatch.context() as patch:
            change(patch)
            work()
            stream = progress.sys.stderr
        assert terminal.getvalue() == ""
        assert stream is None or stream.getvalue() == ""  # pyright: ignore[reportAttributeAccessIssue]


def test_of_works_within_works_the_outermost_is_shown(terminal: Terminal) -> None:
    for _ in progress.watched(range(2), "Outer", 2):
        list(progress.watched(range(2), "Inner", 2))
    assert {line.split(":")[0] for line in shown(terminal)} == {"Outer"}


def test_a_screen_that_is_gone_ends_no_work(terminal: Terminal) -> None:
    with progress.watching("Work") as step:
        terminal.close()
        step(1, 2)
    progress.sys.stderr = Terminal()  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(KeyError), progress.watching("Work"):
        raise KeyError
    assert not progress._SCREEN.busy


def test_a_notebook_shows_one_line_that_goes(monkeypatch: pytest.MonkeyPatch, terminal: Terminal) -> None:
    lines: list[str] = []

    class Handle:
        def update(self, line: str) -> None:
            lines.append(line)

    def display(line: str, display_id: bool) -> Handle:
        assert display_id
        lines.append(line)
        return Handle()

    kernel = types.SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: kernel))
    shows = types.SimpleNamespace(display=display, Pretty=str)
    monkeypatch.setitem(sys.modules, "IPython.display", shows)
    classifier(mechanism=Gradient(epochs=1)).fit(X, LABELS)
    assert lines[0].startswith("Training: 0 of ") and lines[-1] == ""
    assert terminal.getvalue() == ""
