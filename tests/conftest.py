"""Every test writes its charges to a log of its own; tests on real data find them beside the checkout or by DPERM_DATA."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

# The tests run one process per core: threads on top of that would wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")

_BESIDE = Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.fixture(autouse=True)
def _own_spend_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPERM_SPEND_LOG", str(tmp_path / "spend.jsonl"))


@pytest.fixture
def data_folder(monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of real data sets; skips where there is none."""
    folder = Path(os.environ.get("DPERM_DATA", _BESIDE))
    if not folder.is_dir():
        pytest.skip("real data sets are not here; set DPERM_DATA to their folder")
    monkeypatch.setenv("DPERM_DATA", str(folder))
    return folder
