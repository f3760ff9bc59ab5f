"""Where a module's constant is used: the statements of functions that read it, also by way of another constant or module."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from mutants.places import functions_of

__all__ = ["statements_using"]


def statements_using(package: Path, modules: Sequence[str], file: str, constant: str) -> list[tuple[str, int]]:
    """(module, line) of the statements to be reached for a change of `constant` in `file`."""
    found: set[tuple[str, int]] = set()
    for module in modules:
        other = _tree(package / module)
        if module == file or _imports(other, file, constant):
            names = _names_that_follow(other, constant)
            for _, node in functions_of(other):
                for statement in ast.walk(node):
                    if isinstance(statement, ast.stmt) and _reads(statement, names):
                        found.add((module, statement.lineno))
    return sorted(found)


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _imports(tree: ast.Module, file: str, name: str) -> bool:
    module = "dperm." + file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    return any(
        isinstance(node, ast.ImportFrom) and node.module == module and any(alias.name == name for alias in node.names)
        for node in ast.walk(tree)
    )


def _names_that_follow(tree: ast.Module, name: str) -> set[str]:
    """The name, and constants of the module and of its classes that are made from it."""
    names = {name}
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    for node in [*tree.body, *(inner for each in classes for inner in each.body)]:
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None and _reads_expression(node.value, names):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {target.id for target in targets if isinstance(target, ast.Name)}
    return names


def _reads(statement: ast.stmt, names: set[str]) -> bool:
    """Whether the statement itself reads one, not only those within it."""
    own = [child for child in ast.iter_child_nodes(statement) if not isinstance(child, ast.stmt)]
    return any(_reads_expression(child, names) for child in own)


def _reads_expression(node: ast.AST, names: set[str]) -> bool:
    return any(getattr(inner, "id", getattr(inner, "attr", None)) in names for inner in ast.walk(node))
