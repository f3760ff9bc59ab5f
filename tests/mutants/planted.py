"""How a mutant gets into a process: a module of dperm is compiled with it when it is imported, or its function gets other code.

Nothing is written to disk, so that any number of processes can run at once, each with a mutant of its own. By the same hook,
modules are imported with a note of every statement that is reached.
"""

from __future__ import annotations

import ast
import gc
import importlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, FunctionType, ModuleType

from mutants.places import in_scope, statements_of

__all__ = ["Loaded", "Reached", "import_all", "plant", "reached_by_importing", "watch"]

Change = Callable[[str, str], ast.Module]  # a module's text, and its file, as a tree


class Reached:
    """Which statements were reached, as (file, line), since it was last emptied."""

    def __init__(self) -> None:
        self._files: list[str] = []
        self._seen: set[tuple[int, int]] = set()

    def taken(self) -> dict[str, list[int]]:
        """What was reached, by file; then forgotten."""
        lines: dict[str, list[int]] = {}
        for file, line in sorted(self._seen):
            lines.setdefault(self._files[file], []).append(line)
        self._seen.clear()
        return lines

    def noting(self, source: str, file: str) -> ast.Module:
        """The module's tree, each statement of a function with a note before it."""
        number = len(self._files)
        self._files.append(file)
        tree = ast.parse(source)
        for block in [block for _, block in statements_of(tree)]:
            noted: list[ast.stmt] = []
            for place, statement in enumerate(block):
                docstring = place == 0 and isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
                if not docstring:
                    note = ast.parse(f"__reached__(({number}, {statement.lineno}))").body[0]
                    noted.append(note)
                noted.append(statement)
            block[:] = noted
        return ast.fix_missing_locations(tree)

    @property
    def note(self) -> Callable[[tuple[int, int]], None]:
        """What the notes call."""
        return self._seen.add


class _Loader(SourceFileLoader):
    def __init__(self, name: str, path: str, change: Change, names: dict[str, object], file: str) -> None:
        super().__init__(name, path)
        self._change, self._names, self._file = change, names, file

    def get_code(self, fullname: str) -> CodeType:
        source = Path(self.path).read_text(encoding="utf-8")
        return compile(self._change(source, self._file), self.path, "exec", dont_inherit=True)

    def exec_module(self, module: ModuleType) -> None:
        vars(module).update(self._names)
        super().exec_module(module)


class _Finder(MetaPathFinder):
    def __init__(self, package: Path, wanted: Callable[[str], bool], change: Change, names: dict[str, object]) -> None:
        self._package, self._wanted, self._change, self._names = package, wanted, change, names

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname.partition(".")[0] != self._package.name:
            return None
        spec = PathFinder.find_spec(fullname, path)
        if spec is None or spec.origin is None or not Path(spec.origin).is_relative_to(self._package):
            return spec
        file = Path(spec.origin).relative_to(self._package).as_posix()
        if self._wanted(file):
            spec.loader = _Loader(fullname, spec.origin, self._change, self._names, file)
        return spec


def plant(package: Path, file: str, change: Change) -> None:
    """From now on, `file` of the package is imported as `change` makes it. Nothing of the package may be imported yet."""
    _hook(_Finder(package, lambda other: other == file, change, {}))


def watch(package: Path, wanted: Callable[[str], bool] = in_scope) -> Reached:
    """From now on, the wanted files of the package note what is reached in them."""
    reached = Reached()
    _hook(_Finder(package, wanted, reached.noting, {"__reached__": reached.note}))
    return reached


def _hook(finder: _Finder) -> None:
    early = [name for name in sys.modules if name.partition(".")[0] == finder._package.name]
    if early:
        raise RuntimeError(f"Expected nothing of the package imported before a mutant is planted, got {early[0]}.")
    sys.meta_path.insert(0, finder)


# In modules that are imported already


def import_all(package: Path) -> None:
    """Import every module of the package, but for those whose libraries are not here."""
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package.parent).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        if not name.endswith("__main__"):
            try:
                importlib.import_module(name)
            except ImportError as error:
                if (error.name or "").partition(".")[0] == package.name:
                    raise


def reached_by_importing(package: Path, wanted: Callable[[str], bool] = in_scope) -> dict[str, list[int]]:
    """Statements of functions that run when modules are imported: other code would come too late there."""
    reading, writing = os.pipe()
    if not (pid := os.fork()):
        status = 1
        try:
            reached = watch(package, wanted)
            import_all(package)
            with os.fdopen(writing, "w") as pipe:
                json.dump(reached.taken(), pipe)
            status = 0
        finally:
            os._exit(status)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        told = pipe.read()
    if os.waitpid(pid, 0)[1]:
        raise RuntimeError("The package could not be imported as a whole.")
    return json.loads(told)


class Loaded:
    """The package, imported as a whole, and its functions by where they stand."""

    def __init__(self, package: Path) -> None:
        import_all(package)
        self._package = package
        self._functions: dict[tuple[str, str, int], list[FunctionType]] = {}
        for thing in gc.get_objects():
            if type(thing) is FunctionType:
                code = thing.__code__
                self._functions.setdefault((code.co_filename, code.co_qualname, code.co_firstlineno), []).append(thing)
        gc.collect()
        gc.freeze()  # else each process looks through all of it again, and copies it by looking

    def swap(self, file: str, change: Change) -> None:
        """Give the functions of `file` the code that they have in the tree that `change` makes of it."""
        path = str(self._package / file)
        changed = compile(change(Path(path).read_text(encoding="utf-8"), file), path, "exec", dont_inherit=True)
        swapped = 0
        for code in _codes(changed):
            for function in self._functions.get((path, code.co_qualname, code.co_firstlineno), []):
                if function.__code__ != code:
                    function.__code__ = code
                    swapped += 1
        if not swapped:
            raise RuntimeError(f"No function of {file} has other code.")


def _codes(code: CodeType) -> Iterator[CodeType]:
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield inner
            yield from _codes(inner)
