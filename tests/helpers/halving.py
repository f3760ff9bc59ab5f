"""Every place of the library that releases through a channel, found by walking, and runs with the sensitivity halved there.

`channel.release(query, noise)` is where a computed sensitivity turns into noise: half of it there is what half of it, or a
forgotten factor of 2 or √2, is anywhere before.
"""

from __future__ import annotations

import ast
import functools
import itertools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dperm
from dperm._random import Randomness
from dperm.audit import Training
from dperm.audit.outputs import unlogged
from dperm.audit.recording import Recorder
from dperm.audit.replay import replay_pair
from dperm.release import Channel, Noise
from helpers.asked import smaller

__all__ = ["Place", "asked", "fixed_noise", "halved", "is_found", "places", "places_in", "places_of"]

_ROOT = Path(dperm.__file__).parent


@dataclass(frozen=True, order=True)
class Place:
    """A call of a channel's `release`. `function` is where it stands, and its number where several stand there."""

    module: str
    function: str
    lines: range

    def __str__(self) -> str:
        return f"{self.module}, {self.function}"

    def __hash__(self) -> int:
        return hash((self.module, self.function))


class _Walk(ast.NodeVisitor):
    """All calls `….channel.release(…)` of one module, whatever object holds the channel."""

    def __init__(self) -> None:
        self.within: list[str] = []
        self.found: list[tuple[str, range]] = []

    def _inside(self, node: Any) -> None:
        self.within.append(node.name)
        self.generic_visit(node)
        self.within.pop()

    visit_ClassDef = visit_FunctionDef = _inside

    def visit_Call(self, node: ast.Call) -> None:
        if isinstance(node.func, ast.Attribute) and node.func.attr == "release":
            holder = ast.unparse(node.func.value).rpartition(".")[2]
            if holder.endswith("channel"):
                last = node.end_lineno or node.lineno
                self.found.append((".".join(self.within), range(node.lineno, last + 1)))
        self.generic_visit(node)


@functools.cache
def places() -> tuple[Place, ...]:
    """All of the library's, in order."""
    found: list[Place] = []
    for path in sorted(_ROOT.rglob("*.py")):
        walk = _Walk()
        walk.visit(ast.parse(path.read_text()))
        for number, (function, lines) in enumerate(walk.found):
            alike = [place for place, each in enumerate(walk.found) if each[0] == function]
            nth = f" ({alike.index(number) + 1})" if len(alike) > 1 else ""
            found.append(Place(path.relative_to(_ROOT).as_posix(), function + nth, lines))
    return tuple(found)


def places_in(module: str) -> list[Place]:
    """Those of one module. LookupError where it has none."""
    found = [place for place in places() if place.module == module]
    if not found:
        raise LookupError(f"{module} releases nothing")
    return found


def _place(frame: Any) -> Place:
    """Where a channel's `release` was called. LookupError for a call that the walk did not find."""
    path, line = Path(frame.f_code.co_filename), frame.f_lineno
    module = path.relative_to(_ROOT).as_posix() if path.is_relative_to(_ROOT) else str(path)
    for place in places():
        if place.module == module and line in place.lines:
            return place
    raise LookupError(f"{module}:{line} calls a channel's release, and the walk does not know it")


@contextmanager
def _watched(see: Callable[[Place, Any, Any], bool]) -> Iterator[None]:
    """Each release is shown to `see`, with its query and sensitivity; where it answers yes, half of the sensitivity goes on."""
    right = Channel.release

    def watched(self: Channel, query: Any, noise: Noise) -> Any:
        if see(_place(sys._getframe(1)), query, noise.sensitivity):
            noise = smaller(noise, 1 / 2)
        return right(self, query, noise)

    Channel.release = watched
    try:
        yield
    finally:
        Channel.release = right


@contextmanager
def halved(place: Place) -> Iterator[None]:
    """The sensitivity that `place` passes on is half of what the library computes, and so is the noise made for it."""
    with _watched(lambda here, query, sensitivity: here == place):
        yield


def asked(run: Callable[[], Any]) -> list[tuple[Place, Any, Any]]:
    """The releases of a run, in order: where, the query, and the sensitivity."""
    found: list[tuple[Place, Any, Any]] = []

    def see(place: Place, query: Any, sensitivity: Any) -> bool:
        found.append((place, query, sensitivity))
        return False

    with _watched(see):
        run()
    return found


def places_of(training: Training) -> list[Place]:
    """Where a training releases."""
    with unlogged():
        found = asked(lambda: training.run(training.replay_pairs[0].first, Recorder()))
    return list(dict.fromkeys(place for place, _, _ in found))


def is_found(training: Training, place: Place) -> bool:
    """Whether replay finds the sensitivity halved at `place`, on one of the training's pairs. As it is, it must pass there. By
    the same noise every time: whether it is found hangs on no luck."""
    for pair in itertools.chain(training.replay_pairs, (pair.reversed() for pair in training.replay_pairs)):
        with fixed_noise(), halved(place):
            try:
                wrong = replay_pair(training, pair).findings
            except ValueError:
                continue  # these records are refused
        if any(finding.kind == "movement" for finding in wrong):
            with fixed_noise():
                assert not replay_pair(training, pair).findings, (training.name, pair.name)
            return True
    return False


@contextmanager
def fixed_noise() -> Iterator[None]:
    """Each source is a new one of its own seed: the first, the second and so on of a block are those of any other."""
    right = vars(Randomness)["from_system"]
    number = itertools.count()
    Randomness.from_system = classmethod(lambda cls: cls.fixed(next(number)))
    try:
        yield
    finally:
        Randomness.from_system = right
