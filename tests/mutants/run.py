"""`make mutants`: plants each mutant in turn, and runs the fast tests that reach it until one fails.

    python tests/mutants/run.py [--files GLOB ...] [--shard 1/4] [--jobs 2] [--out out/mutants]

Which tests reach which statement is found once, and again only for test files that changed or whose modules did. Tests run in
processes forked from this one, which has the libraries loaded. First come mutants of constants and of functions that run while
modules are imported: their processes import dperm, with the mutant in it. For all others dperm is imported once, and a process
gives one function other code: that costs less than a second. A test that fails there without a mutant is noticed, and kills
nothing. Programs that a test starts run without the mutant.

Results are lines of JSON, kept from one run to the next: a mutant that was killed is not tried again before its module or the
test that killed it changes. Ends with 1 where a mutant survives that `equivalent.toml` does not list, and where that file lists
what is not there.
"""

from __future__ import annotations

import argparse
import ast
import gc
import hashlib
import importlib
import json
import os
import subprocess
import sys
import time
import tomllib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from functools import cached_property, partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
for threads in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(threads, "1")  # processes are forked from this one: it may have no threads

from mutants.child import Child, Report, start  # noqa: E402
from mutants.places import Mutant, functions_of, in_scope, mutants_of, mutated  # noqa: E402
from mutants.planted import Loaded, plant, reached_by_importing, watch  # noqa: E402
from mutants.usage import statements_using  # noqa: E402

#: Loaded before anything is forked; a library that is not here is loaded by the tests themselves.
LIBRARIES = (
    "numpy",
    "scipy.optimize",
    "scipy.stats",
    "scipy.special",
    "scipy.sparse",
    "pandas",
    "pyarrow",
    "sklearn.linear_model",
    "sklearn.datasets",
    "sklearn.model_selection",
    "matplotlib.pyplot",
    "mpmath",
    "torch",
    "torch.func",
    "dp_accounting",
    "opacus",
    "hypothesis",
    "hypothesis.strategies",
    "pytest",
    "typer.testing",
    "rich.console",
    "jinja2",
    "pooch",
    "cryptography.hazmat.primitives.hashes",
    "array_api_compat",
    "charset_normalizer",
)

SURVIVED, UNREACHED, KILLED, EQUIVALENT, ERROR = "survived", "unreached", "killed", "equivalent", "error"
_STAGE_FILES, _STAGE_SECONDS = 4, 6.0  # tests that are run in one go: those most likely to notice come first


@dataclass(frozen=True)
class Project:
    """Where things are: a checkout's root, its package and its tests."""

    root: Path
    package: Path
    tests: Path
    wanted: Callable[[str], bool] = in_scope
    _extents: dict[str, list[tuple[int, int]]] = field(default_factory=dict, compare=False)

    def modules(self) -> list[str]:
        """Files of the package that are mutated, relative to it."""
        files = (path.relative_to(self.package).as_posix() for path in sorted(self.package.rglob("*.py")))
        return [file for file in files if self.wanted(file)]

    def test_files(self) -> list[str]:
        """Files of tests, relative to the root."""
        own = HERE if HERE.is_relative_to(self.tests) else None
        found = [path for path in sorted(self.tests.rglob("test_*.py")) if own is None or not path.is_relative_to(own)]
        return [path.relative_to(self.root).as_posix() for path in found]

    def extent(self, mutant: Mutant) -> tuple[int, int]:
        """First and last line of the function that it stands in."""
        if mutant.file not in self._extents:
            tree = ast.parse(self.source(mutant.file))
            self._extents[mutant.file] = [(node.lineno, node.end_lineno or 0) for _, node in functions_of(tree)]
        return next((first, last) for first, last in self._extents[mutant.file] if first <= mutant.statement <= last)

    def source(self, module: str) -> str:
        return (self.package / module).read_text(encoding="utf-8")

    def own(self, test_file: str) -> str:
        """A digest of a file of tests and of what it is made with: helpers that it imports, and configuration."""
        folders = [self.root / test_file, *(self.root / test_file).parents]
        shared = [folder / "conftest.py" for folder in folders if folder.is_relative_to(self.tests)]
        used = imported_by(self.root / test_file, self.tests) | {path for path in shared if path.is_file()}
        return digest((self.root / test_file).read_bytes(), *(path.read_bytes() for path in sorted(used)))

    @cached_property
    def all_tests(self) -> str:
        """A digest of all tests."""
        return digest(*(self.own(file).encode() for file in self.test_files()))


def imported_by(file: Path, tests: Path) -> set[Path]:
    """Files among the tests that one imports, also by way of others. A package that is imported counts with all that is in it."""
    found: set[Path] = set()
    waiting = [file]
    while waiting:
        for node in ast.walk(ast.parse(waiting.pop().read_bytes())):
            names: list[str] = []
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            for name in names:
                path = tests.joinpath(*name.split("."))
                inside = set(path.rglob("*.py")) if (path / "__init__.py").is_file() and path.name != "helpers" else set[Path]()
                new = ({path.with_suffix(".py")} if path.with_suffix(".py").is_file() else set[Path]()) | inside
                waiting += new - found
                found |= new
    return found


def digest(*parts: bytes) -> str:
    """Sixteen hexadecimal digits that follow from these bytes."""
    whole = hashlib.sha256()
    for part in parts:
        whole.update(hashlib.sha256(part).digest())
    return whole.hexdigest()[:16]


class Pool:
    """At most `jobs` children at a time."""

    def __init__(self, jobs: int) -> None:
        self._jobs, self._running = jobs, dict[int, tuple[Child, Callable[[Report], None]]]()

    def add(self, begin: Callable[[], Child], done: Callable[[Report], None]) -> None:
        """Start one once there is room; `done` is handed its report."""
        while len(self._running) >= self._jobs:
            self.wait()
        child = begin()
        self._running[child.pid] = child, done

    def wait(self) -> None:
        """Until one has ended."""
        pid, status, used = os.wait4(-1, 0)
        if pid in self._running:
            child, done = self._running.pop(pid)
            done(child.report(status, used))

    def finish(self) -> None:
        while self._running:
            self.wait()


# Which tests reach what


@dataclass
class Map:
    """For each test, how long it takes and which statements it reaches."""

    seconds: dict[str, float] = field(default_factory=dict)
    by_statement: dict[tuple[str, int], set[str]] = field(default_factory=lambda: defaultdict(set))

    def add(self, tests: Mapping[str, Mapping[str, Any]]) -> None:
        """What a file of tests reaches. Tests that are skipped or fail without a mutant tell nothing."""
        for name, test in tests.items():
            if test["passed"]:
                self.seconds[name] = test["seconds"]
                for lines in (test["lines"], test["collection"]):
                    for file, numbers in lines.items():
                        for line in numbers:
                            self.by_statement[file, line].add(name)


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s"


def map_tests(project: Project, out: Path, pool: Pool, only: Sequence[str], quiet: bool = False) -> Map:
    """The map of the project's tests, from what is kept where it still holds."""
    found, folder = Map(), out / "map"
    folder.mkdir(parents=True, exist_ok=True)
    now = {module: digest(project.source(module).encode()) for module in project.modules()}
    stale: list[tuple[str, Path]] = []
    finished: list[str] = []
    began = time.time()
    for file in project.test_files():
        kept = folder / f"{file.replace('/', '.')}.json"
        if any(fnmatch(file, pattern) for pattern in only) or not only:
            entry = json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else None
            if entry and entry["own"] == project.own(file) and all(now.get(m) == was for m, was in entry["modules"].items()):
                found.add(entry["tests"])
            else:
                stale.append((file, kept))

    def done(file: str, kept: Path, report: Report) -> None:
        tests = {
            name: {key: test[key] for key in ("passed", "seconds", "lines", "collection")} for name, test in report.tests.items()
        }
        first = next(iter(tests.values()), None)  # what collecting reached was noted with the first test, and concerns all
        reached = {module for test in tests.values() for module in (*test["lines"], *test["collection"])}
        for test in tests.values():
            if first is not None and test is not first:
                test["collection"] = first["collection"]
        entry = {"own": project.own(file), "modules": {module: now[module] for module in sorted(reached)}, "tests": tests}
        if not report.error:
            kept.write_text(json.dumps(entry), encoding="utf-8")
        found.add(tests)
        bad = [name for name, test in tests.items() if not test["passed"]]
        finished.append(file)
        if not quiet:
            took = time.time() - began
            left = took / len(finished) * (len(stale) - len(finished))
            print(
                f"  {len(finished)}/{len(stale)} {file}: {len(tests)} tests, {report.seconds:.0f} s"
                f"{f', {len(bad)} not passed' if bad else ''}; {_minutes(took)} so far, about {_minutes(left)} left",
                flush=True,
            )
        if report.error or (report.failed and not tests):
            print(f"  {file}: {report.error or 'could not be collected'}", flush=True)

    if stale and not quiet:
        print(
            f"{len(stale)} files of tests are watched once, before the first mutant; --tests PATTERN watches fewer:", flush=True
        )
    for file, kept in stale:
        begin = partial(start, project.root, [file], None, partial(watch, project.package, project.wanted), out / "logs")
        pool.add(begin, partial(done, file, kept))
    pool.finish()
    return found


# Mutants


def all_mutants(project: Project, extra: Iterable[Mapping[str, str]]) -> list[Mutant]:
    """Those found by rule, and those written down."""
    found = [mutant for module in project.modules() for mutant in mutants_of(project.source(module), module)]
    return [*found, *(_written(project, **each) for each in extra)]


def _written(project: Project, file: str, before: str, after: str) -> Mutant:
    source = project.source(file)
    if source.count(before) != 1:
        raise SystemExit(f"extra.toml: {file} holds {before!r} {source.count(before)} times, expected once.")
    line = source[: source.index(before)].count("\n") + 1
    for name, function in functions_of(ast.parse(source)):
        within = [
            node for node in ast.walk(function) if isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or 0)
        ]
        if within:
            statement = max(node.lineno for node in within)
            return Mutant(
                file, name, "written", before.strip(), after.strip(), line, statement, source.splitlines()[line - 1].strip()
            )
    raise SystemExit(f"extra.toml: expected {before!r} in a function of {file}.")


def change_of(mutant: Mutant) -> Callable[[str, str], Any]:
    """What the import hook makes of the mutant's module."""
    if mutant.operator == "written":
        return lambda source, file: ast.parse(_rewritten(source, mutant))
    return lambda source, file: mutated(source, file, mutant.key)


def _rewritten(source: str, mutant: Mutant) -> str:
    lines = source.splitlines(keepends=True)
    start = sum(map(len, lines[: mutant.line - 1]))
    return source[:start] + source[start:].replace(mutant.before, mutant.after, 1)


class Trials:
    """Tries mutants, and keeps what came out."""

    def __init__(self, project: Project, tests: Map, pool: Pool, out: Path, seconds: float) -> None:
        self._project, self._tests, self._pool, self._out, self._seconds = project, tests, pool, out, seconds
        self._kills: Counter[tuple[str, str]] = Counter()  # (function or file, test)
        self._loaded: Loaded | None = None
        self._sound: dict[
            str, bool
        ] = {}  # whether a test passes without a mutant, of those that killed one in the loaded package
        self._commit = _commit(project.root)
        self.results: dict[str, dict[str, Any]] = {}

    def load(self) -> None:
        """From now on, mutants are planted in the package as it is imported now."""
        self._loaded = Loaded(self._project.package)

    def run(self, mutants: Sequence[Mutant], began: float) -> None:
        """Try them all."""
        number = alive = 0

        def tell(result: Mapping[str, Any]) -> None:
            nonlocal number, alive
            number, alive = number + 1, alive + (result["verdict"] != KILLED)
            if number % 50 == 0:
                print(f"  {number} tried, {alive} not killed, {time.time() - began:.0f} s", flush=True)

        at_import = reached_by_importing(self._project.package, self._project.wanted) if mutants else {}
        early = [mutant for mutant in mutants if self.early(mutant, at_import)]
        planted = {mutant.key for mutant in early}
        for mutant in early:
            self.add(mutant, tell)
        self._pool.finish()
        if len(early) < len(mutants):
            self.load()
            for mutant in mutants:
                if mutant.key not in planted:
                    self.add(mutant, tell)
            self._pool.finish()

    def early(self, mutant: Mutant, at_import: Mapping[str, list[int]]) -> bool:
        """Whether it must be planted before the package is imported."""
        closure = "super()" in mutant.before and "super()" not in mutant.after
        if not mutant.statement or closure:
            return True
        first, last = self._project.extent(mutant)
        return any(first <= line <= last for line in at_import.get(mutant.file, []))

    @property
    def _kept(self) -> Path:
        return self._out / "results.jsonl"

    def kept(self, mutants: Iterable[Mutant]) -> None:
        """Take over what still holds: kills whose module and test are as they were, and all else where no test has changed."""
        named = {mutant.key: mutant for mutant in mutants}
        if self._kept.exists():
            for line in self._kept.read_text(encoding="utf-8").splitlines():
                result = json.loads(line)
                mutant = named.get(result["key"])
                if mutant is not None and result["holds"] == self._holds(mutant, result["test"]):
                    self._note(mutant, result)

    def _holds(self, mutant: Mutant, test: str | None) -> str:
        """A digest of what a result rests on."""
        file = test.partition("::")[0] if test else ""
        known = (self._project.root / file).is_file() and file
        own = self._project.own(file) if known else self._project.all_tests
        return digest(self._project.source(mutant.file).encode(), own.encode(), b"" if known else str(self._seconds).encode())

    def _note(self, mutant: Mutant, result: dict[str, Any]) -> None:
        self.results[mutant.key] = result
        if result["verdict"] == KILLED and result["test"]:
            self._kills[f"{mutant.file}::{mutant.function}", result["test"]] += 1
            self._kills[mutant.file, result["test"]] += 1

    def reaching(self, mutant: Mutant) -> list[str]:
        """Tests that reach it: first those that noticed others of its function or file, then the quickest."""
        places = [(mutant.file, mutant.statement)]
        if not mutant.statement:
            places = statements_using(self._project.package, self._project.modules(), mutant.file, mutant.function)
        names = set[str]().union(*(self._tests.by_statement.get(place, set()) for place in places))
        near, file = f"{mutant.file}::{mutant.function}", mutant.file
        stem = Path(file).stem  # a test that is named after the module may be three times as slow

        def order(name: str) -> tuple[float, ...]:
            return (
                -min(3, self._kills[near, name]),
                -min(3, self._kills[file, name]),
                self._tests.seconds[name] * (1 if stem in name else 3),
            )

        return sorted(names, key=order)

    def add(self, mutant: Mutant, done: Callable[[dict[str, Any]], None]) -> None:
        """Try it."""
        names = self.reaching(mutant)
        if not names:
            self._end(mutant, UNREACHED, None, 0.0, 0, 0, done)
            return
        within: list[str] = []
        total = 0.0
        for name in names:
            total += self._tests.seconds[name]
            if within and total > self._seconds:
                break
            within.append(name)
        self._stage(mutant, list(_stages(within, self._tests.seconds)), 0.0, len(names), len(names) - len(within), done)

    def _stage(
        self,
        mutant: Mutant,
        stages: list[list[str]],
        used: float,
        reaching: int,
        left_out: int,
        done: Callable[[dict[str, Any]], None],
    ) -> None:
        chosen, *rest = stages

        def after(report: Report) -> None:
            seconds = used + report.seconds
            if report.failed and not self._is_sound(report.failed):
                others = [[name for name in stage if name != report.failed] for stage in stages]
                kept = [stage for stage in others if stage]
                if kept:
                    self._stage(mutant, kept, seconds, reaching, left_out + 1, done)
                else:
                    self._end(mutant, SURVIVED, None, seconds, reaching, left_out + 1, done)
            elif report.failed:
                self._end(mutant, KILLED, report.failed, seconds, reaching, left_out, done, timed_out=report.timed_out)
            elif report.error:
                self._end(mutant, ERROR, report.error, seconds, reaching, left_out, done)
            elif rest:
                self._stage(mutant, rest, seconds, reaching, left_out, done)
            else:
                self._end(mutant, SURVIVED, None, seconds, reaching, left_out, done)

        files = list(dict.fromkeys(name.partition("::")[0] for name in chosen))
        change = change_of(mutant)
        if self._loaded is None:
            prepare = partial(plant, self._project.package, mutant.file, change)
        else:
            prepare = partial(self._loaded.swap, mutant.file, change)
        limits = {name: self._tests.seconds[name] for name in chosen}
        self._pool.add(partial(start, self._project.root, files, limits, prepare, self._out / "logs"), after)

    def _is_sound(self, test: str) -> bool:
        """Whether a test that failed passes where there is no mutant."""
        if self._loaded is None or test not in self._tests.seconds:
            return True
        if test not in self._sound:
            limits, file = {test: self._tests.seconds[test]}, test.partition("::")[0]
            child = start(self._project.root, [file], limits, lambda: None, self._out / "logs")
            _, status, used = os.wait4(child.pid, 0)
            report = child.report(status, used)
            self._sound[test] = report.failed is None and report.error is None
            if not self._sound[test]:
                print(f"  {test} fails beside the loaded package without a mutant: it kills nothing.", flush=True)
        return self._sound[test]

    def _end(
        self,
        mutant: Mutant,
        verdict: str,
        test: str | None,
        seconds: float,
        reaching: int,
        left_out: int,
        done: Callable[[dict[str, Any]], None],
        timed_out: bool = False,
    ) -> None:
        shown = {
            name: getattr(mutant, name) for name in ("key", "file", "function", "operator", "line", "text", "before", "after")
        }
        result = {
            **shown, "verdict": verdict, "test": test, "timed_out": timed_out, "tests": reaching, "left_out": left_out,
            "seconds": round(seconds, 2), "commit": self._commit, "holds": self._holds(mutant, test),
        }  # fmt: skip
        self._note(mutant, result)
        with self._kept.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(result, ensure_ascii=False) + "\n")
        done(result)


def _stages(names: Sequence[str], seconds: Mapping[str, float]) -> Iterator[list[str]]:
    """Tests in their order, in goes of few files and few seconds; each go takes longer than the last."""
    stage, files, used, most, longest = list[str](), set[str](), 0.0, _STAGE_FILES, _STAGE_SECONDS
    for name in names:
        file = name.partition("::")[0]
        if stage and ((file not in files and len(files) >= most) or used > longest):
            yield stage
            stage, files, used, most, longest = [], set(), 0.0, 4 * most, 4 * longest
        stage.append(name)
        files.add(file)
        used += seconds[name]
    if stage:
        yield stage


def _commit(root: Path) -> str:
    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=False).stdout.strip()

    return git("rev-parse", "--short", "HEAD") + ("+" if git("status", "--porcelain", "-uno") else "")


# Lists


def read_equivalents(file: Path) -> dict[str, str]:
    """The listed mutants, each with its reason. SystemExit for one that is listed twice, or without a reason."""
    listed: dict[str, str] = {}
    for entry in _read(file).get("equivalent", []):
        for key in entry["mutants"]:
            if key in listed or not entry["reason"].strip():
                raise SystemExit(f"{file.name}: expected each mutant once and with a reason, got {key!r}.")
            listed[key] = entry["reason"]
    return listed


def _read(file: Path) -> dict[str, Any]:
    return tomllib.loads(file.read_text(encoding="utf-8")) if file.exists() else {}


def read_extra(file: Path) -> list[dict[str, str]]:
    """Mutants that no rule makes, written down as texts."""
    return _read(file).get("mutant", [])


def reasons_of(listed: Mapping[str, str], mutants: Iterable[Mutant]) -> tuple[dict[str, str], list[str]]:
    """The reason of each listed mutant, and names that no mutant has. A name that ends with "::*" is of all that begin so."""
    keys = [mutant.key for mutant in mutants]
    found: dict[str, str] = {}
    stale: list[str] = []
    for name, reason in listed.items():
        start = name.removesuffix("*") if name.endswith("::*") else None
        named = [key for key in keys if (key == name if start is None else key.startswith(start))]
        found |= dict.fromkeys(named, reason)
        stale += [] if named else [name]
    return found, stale


def options() -> argparse.ArgumentParser:
    """Of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", nargs="*", default=[], help="patterns of files under src/dperm, or paths of the checkout; all")
    parser.add_argument("--match", default="", help="only mutants whose name holds this text")
    parser.add_argument("--operators", nargs="*", default=[], help="only mutants of these kinds, such as scale, factor or branch")
    parser.add_argument("--shard", default="1/1", help="k/n: the k-th of n parts")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes at a time")
    parser.add_argument("--tests", nargs="*", default=[], help="patterns of files of tests; all")
    parser.add_argument("--seconds", type=float, default=10.0, help="of tests, at most, for one mutant: a survivor may need more")
    parser.add_argument("--out", type=Path, default=Path("out/mutants"), help="folder of the map and the results")
    parser.add_argument("--equivalents", action="store_true", help="try those too that are listed as equivalent")
    parser.add_argument("--again", action="store_true", help="forget kept results")
    parser.add_argument("--list", action="store_true", help="only say which mutants there are")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    given = options().parse_args(arguments)
    root = HERE.parents[1]
    sys.path.insert(0, str(root))
    return tried(Project(root, root / "src" / "dperm", root / "tests"), given, HERE, LIBRARIES)


def tried(project: Project, given: argparse.Namespace, lists: Path, libraries: Sequence[str]) -> int:
    """Try the chosen mutants of a project, whose lists are in the folder `lists`. 1 where something lives that should not."""
    mutants = all_mutants(project, read_extra(lists / "extra.toml"))
    listed, stale = reasons_of(read_equivalents(lists / "equivalent.toml"), mutants)
    if stale:
        print("equivalent.toml lists what is no longer there:", *stale, sep="\n  ")
        return 1
    part, _, parts = given.shard.partition("/")
    chosen = [
        mutant
        for mutant in mutants
        if _wanted(mutant.file, given.files)
        and given.match in mutant.key
        and (not given.operators or mutant.operator in given.operators)
        and int(digest(mutant.key.encode()), 16) % int(parts) == int(part) - 1
    ]
    if given.list:
        print(*(mutant.key for mutant in chosen), sep="\n")
        return 0
    out = given.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    if given.again:
        (out / "results.jsonl").unlink(missing_ok=True)
    sys.path.insert(0, str(project.package.parent))
    for name in libraries:
        try:
            importlib.import_module(name)
        except ImportError as error:
            print(f"Not loaded beforehand: {error}", flush=True)
    gc.freeze()
    began = time.time()
    pool = Pool(given.jobs)
    tests = map_tests(project, out, pool, given.tests)
    trials = Trials(project, tests, pool, out, given.seconds)
    trials.kept(chosen)
    wanted = [mutant for mutant in chosen if given.equivalents or mutant.key not in listed]
    todo = [mutant for mutant in wanted if mutant.key not in trials.results]
    print(f"{len(chosen)} mutants, {len(todo)} to be tried; {len(tests.seconds)} tests.", flush=True)
    trials.run(todo, began)
    return _summary(chosen, trials.results, listed, time.time() - began)


def _wanted(file: str, patterns: Sequence[str]) -> bool:
    plain = [pattern.removeprefix("./").removeprefix("src/dperm/") for pattern in patterns]
    return not plain or any(fnmatch(file, pattern) for pattern in plain)


def _summary(chosen: Sequence[Mutant], results: Mapping[str, Mapping[str, Any]], listed: Mapping[str, str], took: float) -> int:
    """Prints what came out; 1 where a mutant lives that should not."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    alive: list[Mapping[str, Any]] = []
    noticed: list[Mapping[str, Any]] = []
    reasons: Counter[str] = Counter()
    for mutant in chosen:
        result = results.get(mutant.key)
        if mutant.key in listed:
            counts[mutant.file][EQUIVALENT] += 1
            reasons[listed[mutant.key]] += 1
            if result is not None and result["verdict"] == KILLED:
                noticed.append(result)
        elif result is not None:
            counts[mutant.file][result["verdict"]] += 1
            if result["verdict"] != KILLED:
                alive.append(result)
    for reason, number in reasons.most_common():
        print(f"Equivalent ({number}): {reason}")
    for result in noticed:
        print(f"Listed as equivalent, but killed by {result['test']}: {result['key']}")
    for result in sorted(alive, key=lambda result: (result["file"], result["line"])):
        print(f"{result['verdict'].upper()} src/dperm/{result['file']}:{result['line']} {result['function']}: {result['text']}")
        print(f"    {result['operator']}: {result['before']} → {result['after'] or 'left out'}")
    columns = (KILLED, SURVIVED, UNREACHED, EQUIVALENT, ERROR)
    print(f"{'':40}" + "".join(f"{column:>12}" for column in columns))
    for file, row in sorted(counts.items()):
        print(f"{file:40}" + "".join(f"{row[column]:12}" for column in columns))
    whole = sum(counts.values(), Counter[str]())
    print(f"{'all':40}" + "".join(f"{whole[column]:12}" for column in columns) + f"   {took / 60:.0f} minutes")
    return 1 if alive or noticed else 0


if __name__ == "__main__":
    raise SystemExit(main())
