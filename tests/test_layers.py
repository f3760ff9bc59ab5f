"""Imports only go downwards (docs/design.md); dperm and the accounting commands start without heavy libraries."""

from __future__ import annotations

import ast
import functools
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[1] / "src" / "dperm"

#: Higher numbers may import lower ones.
LEVELS = {
    "_column": 0,
    "_extras": 0,
    "_progress": 0,
    "_remind": 0,
    "_validate": 0,
    "_rounding": 0,
    "_exact": 0,
    "_family": 0,
    "_json": 0,
    "_types": 0,
    "_memory": 0,
    "_files": 1,
    "_random": 1,
    "privacy": 2,
    "release": 3,
    "objectives": 4,
    "gradient": 5,
    "solvers": 5,
    "mechanisms": 6,
    "torch": 6,
    "data": 6,
    "distributed": 5,
    "federated": 6,
    "flower": 7,
    "published": 7,
    "utility": 7,
    "influence": 7,
    "inference": 7,
    "audit": 8,
    "report": 9,
    "estimators": 9,
    "jobs": 10,
    "cli": 11,
    "__init__": 11,
    "__main__": 12,
}


@functools.cache
def import_statements(path: Path) -> tuple[ast.Import | ast.ImportFrom, ...]:
    """Those of a file, which several tests read, wherever they stand."""
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    return tuple(node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom))


def imports(path: Path) -> set[str]:
    """First components below `dperm` that a file imports, wherever the import stands."""
    found: set[str] = set()
    for node in import_statements(path):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            assert node.level == 0, f"{path}: relative import"
            names = [node.module or ""] if node.module != "dperm" else [f"dperm.{alias.name}" for alias in node.names]
        found |= {name.split(".")[1] for name in names if name.startswith("dperm.")}
    return found


def component(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


#: The rooms of packages that are divided, from the bottom: docs/design.md says what is in each.
ROOMS = {
    "privacy": ("events", "accountants", "adaptive", "certificates"),
    "data": (
        "untrusted_files",
        "schema",
        "survey",
        "dataset",
        "decoding",
        "file_reader",
        "columnar",
        "readers",
        "streaming",
        "schema_search",
        "read",
        "sets",
    ),
    "torch": (
        "tensors",
        "ranks",
        "parameters",
        "data",
        "engine",
        "independence",
        "module_objective",
        "training",
        "language",
        "integrations",
        "features",
    ),
}


@pytest.mark.parametrize("package", sorted(ROOMS))
def test_rooms_import_those_below(package: str) -> None:
    rooms, folder = ROOMS[package], SOURCE / package
    there = {path.stem for path in folder.iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()}
    assert there - {"__init__"} == set(rooms)
    exported = importlib.import_module(f"dperm.{package}").__all__
    assert set(exported) & set(rooms) == set()  # a function of that name would stand in the place of the room
    upwards: list[str] = []
    for path in folder.rglob("*.py"):
        here = path.relative_to(folder).parts[0].removesuffix(".py")
        for name in module_imports(path) if here != "__init__" else ():
            first, _, rest = name.removeprefix("dperm.").partition(".")
            room = rest.partition(".")[0]
            if first == package and rooms.index(room) > rooms.index(here):
                upwards.append(f"{path.relative_to(SOURCE)} imports {name}")
    assert upwards == []


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_go_downwards(path: Path) -> None:
    here = component(path)
    for there in imports(path):
        allowed = there == here or LEVELS[there] < LEVELS[here]
        assert allowed, f"{path.name} ({here}) imports dperm.{there}"


def test_a_planted_upward_import_is_seen(tmp_path: Path) -> None:
    bad = tmp_path / "bad.py"
    bad.write_text("def f():\n    from dperm.mechanisms import base\n")
    assert imports(bad) == {"mechanisms"}
    assert LEVELS["mechanisms"] > LEVELS["privacy"]


def module_imports(path: Path) -> set[str]:
    """The modules of dperm that a file imports, wherever the import stands; packages by what is taken from them."""
    found: set[str] = set()
    for node in import_statements(path):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("dperm"):
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                found.add(inner if file_of(inner) else str(node.module))
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name.startswith("dperm")}
    return found


def file_of(module: str) -> Path | None:
    stem = SOURCE.joinpath(*module.split(".")[1:])
    return next((path for path in (stem.with_suffix(".py"), stem / "__init__.py") if path.is_file()), None)


def test_no_module_imports_itself_by_others() -> None:
    """Not in annotations nor within functions either: two files that need each other are one idea, or want a third below."""
    graph = {
        path: {file_of(name) for name in module_imports(path)} for path in SOURCE.rglob("*.py") if path.name != "__init__.py"
    }
    circles: list[str] = []
    done: set[Path] = set()

    def walk(path: Path, above: list[Path]) -> None:
        if path in above:
            circles.append(" → ".join(str(item.relative_to(SOURCE)) for item in [*above[above.index(path) :], path]))
            return
        if path not in done:
            for other in graph.get(path, set()) - {None}:
                walk(other, [*above, path])
            done.add(path)

    for path in graph:
        walk(path, [])
    assert circles == []


def test_published_algorithms_use_nothing_that_a_project_elsewhere_could_not() -> None:
    """They are the proof that the public extension points suffice: names that packages export, each documented."""
    for path in SOURCE.joinpath("published").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                assert not [alias.name for alias in node.names if alias.name.startswith("dperm")], path
            own_face = path.name == "__init__.py" and ast.unparse(node).startswith("from dperm.published.")
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("dperm") and not own_face:
                exported = importlib.import_module(str(node.module)).__all__
                assert {alias.name for alias in node.names} <= set(exported), f"{path}: {ast.unparse(node)}"


def loaded(code: str) -> set[str]:
    """The modules that a new interpreter has loaded after this code."""
    told = f"{code}\nimport sys\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


ACCOUNT = """
import sys
from dperm.cli import main
sys.argv = ["dperm", "account", *"{arguments}".split()]
try:
    main()
except SystemExit as ended:
    assert not ended.code
"""


@pytest.mark.parametrize(
    "code",
    [
        "import dperm",
        "import dperm.privacy",
        "import dperm.cli",
        ACCOUNT.format(arguments="--noise 4"),
        ACCOUNT.format(arguments="--noise 1.1 --rate 0.01 --steps 500"),
    ],
)
def test_light_imports(code: str) -> None:
    """Nothing that accounting does not use: a command that answers in a moment must start in one."""
    found = loaded(code) - ({"scipy.optimize"} if "--rate" in code else set[str]())  # which finds least values
    heavy = {
        "torch",
        "pandas",
        "pyarrow",
        "sklearn",
        "matplotlib",
        "scipy.stats",
        "scipy.optimize",
        "mpmath",
        "cryptography",
        "rich",
    }
    assert found & (heavy | {"sqlite3", "dperm.release", "dperm.objectives", "dperm.data"}) == set()


def test_estimators_load_of_scikit_learn_what_its_base_class_needs() -> None:
    """And no more modules of dperm than they had when benchmarks/results/imports.md was measured, by about a tenth."""
    base = loaded("import sklearn.base, sklearn.utils.validation, sklearn.utils.multiclass, sklearn.utils.metaestimators")
    ours = loaded("import dperm.estimators")
    assert {name for name in ours - base if name.startswith("sklearn.")} <= {"sklearn.exceptions"}
    assert not {"torch", "matplotlib", "jinja2", "typer", "mpmath"} & (ours - base)
    assert not {"dperm.data", "dperm.torch", "dperm.audit", "dperm.report", "dperm.cli"} & ours
    assert sum(name.startswith("dperm") for name in ours) <= 205


def test_files_of_tests_have_names_of_their_own() -> None:
    """Pytest imports them by their names alone: of two alike it collects one, and stops."""
    names = [path.name for path in Path(__file__).parent.rglob("test_*.py")]
    assert sorted({name for name in names if names.count(name) > 1}) == []


def test_tests_of_a_room_are_in_a_folder_of_its_name() -> None:
    """Whoever changes a module finds its tests below the same path; some folders of tests are of no package."""
    here = Path(__file__).parent
    own = {"helpers", "defects", "campaigns", "mutants", "papers"}
    folders = {path.parent.relative_to(here) for path in here.rglob("test_*.py")} - {Path()}
    assert sorted(str(each) for each in folders if each.parts[0] not in own and not (SOURCE / each).is_dir()) == []
    tested = {folder.name for folder in folders if folder.parts[0] in ROOMS and len(folder.parts) > 1}
    assert {"events", "accountants", "engine", "training", "readers", "schema"} <= tested
