"""Item 44: files that depend on rows without noise are their owner's alone; what is public at its ε has the user's own modes."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from helpers.commands import dperm

PRIVATE, PUBLIC = 0o600, 0o644


@pytest.fixture
def usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.usefixtures("usual_umask")
def test_what_depends_on_rows_is_its_owners(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    table, schema, model = (tmp_path / name for name in ("t.csv", "s.json", "m.json"))
    pd.DataFrame({"x": rng.integers(0, 90, 120), "z": rng.normal(size=120), "y": rng.choice(["no", "yes"], 120)}).to_csv(
        table, index=False
    )
    commands = [
        (("data", "propose", table, "--target", "y", "-o"), schema, PRIVATE),
        (("train", table, "--schema", schema, "--accept-proposed", "--mechanism", "output", "-o"), model, PUBLIC),
        (("predict", model, table, "-o"), tmp_path / "p.csv", PRIVATE),
        (("effects", model, "-o"), tmp_path / "e.html", PUBLIC),
        (("effects", model, "--records", table, "--refits", 3, "-o"), tmp_path / "pe.html", PRIVATE),
        (("effects", model, "--row", f"{table}:2", "-o"), tmp_path / "x.html", PRIVATE),
        (("influence", table, "--schema", schema, "-o"), tmp_path / "i.html", PRIVATE),
        (("card", model, "-o"), tmp_path / "c.html", PUBLIC),
        (("audit", model, "--trials", 20, "-o"), tmp_path / "a.json", PUBLIC),
        (("compare", table, "--schema", schema, "--epsilons", 1, "--mechanisms", "output", "--repeats", 2, "--jobs", 1, "-o"),
         tmp_path / "r.html", PRIVATE),
        (("keygen",), tmp_path / "key.pem", PRIVATE),
    ]  # fmt: skip
    for command, output, expected in commands:
        if expected == PRIVATE and command[0] != "keygen":  # a file that others could read is not kept so
            output.write_text("older")
            output.chmod(0o666)
        dperm(*command, output)
        assert mode(output) == expected, command
    assert mode(tmp_path / "key.pem.pub") == PUBLIC
    known = {"t.csv", "schema-format.json", "key.pem.pub"} | {output.name for _, output, _ in commands}
    older = {path.name for path in tmp_path.iterdir()} - known
    assert older <= {"s.1.json", "r.1.html"}  # what may have been paid for is kept beside
