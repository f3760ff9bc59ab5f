"""Where spend logs lie: each test of a log runs on a file and on a server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers import postgres


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with postgres.server() as url:
        yield url


@pytest.fixture(params=["sqlite", "postgres"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return str(tmp_path / "spend.db")
    return postgres.database(request.getfixturevalue("server"), "spend")
