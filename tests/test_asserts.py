"""Tests that fail say which of their conditions did not hold."""

from __future__ import annotations

import ast
from pathlib import Path


def test_no_assert_chains_three_conditions() -> None:
    """Pytest shows the operands of a comparison, of a chain by `and` only that it was false."""
    chained: list[str] = []
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Assert) and isinstance(node.test, ast.BoolOp) and isinstance(node.test.op, ast.And):
                chained += [f"{path.name}:{node.lineno}"] * (len(node.test.values) > 2)
    assert chained == []
