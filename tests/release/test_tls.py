"""A ledger over TLS: the certificate of the example's server is checked, and one of another authority or host is refused."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dperm.privacy import Gaussian
from dperm.release import SpendLog
from helpers import postgres

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "cluster" / "certificates.py"


def certificates(folder: Path, host: str) -> Path:
    for name in ("keys", "trust"):
        (folder / name).mkdir(parents=True)
    for _ in range(2):  # the second writes nothing
        subprocess.run([sys.executable, SCRIPT, folder / "keys", folder / "trust", host], check=True)
    assert (folder / "keys" / "server.key").stat().st_mode & 0o777 == 0o600
    return folder / "trust" / "ca.crt"


@pytest.fixture
def authority(tmp_path: Path) -> Path:
    return certificates(tmp_path / "one", "localhost")


@pytest.fixture
def url(authority: Path) -> Iterator[str]:
    with postgres.server(authority.parents[1] / "keys") as found:
        yield found.replace("127.0.0.1", "localhost")


def test_a_ledger_over_tls_is_reached_only_where_its_certificate_is_right(url: str, authority: Path, tmp_path: Path) -> None:
    other = certificates(tmp_path / "two", "localhost")
    SpendLog(f"{url}?sslmode=verify-full&sslrootcert={authority}").charge(Gaussian(1.0), mechanism="test")
    for wrong in (
        f"{url}?sslmode=verify-full&sslrootcert={other}",
        f"{url.replace('localhost', '127.0.0.1')}?sslmode=verify-full&sslrootcert={authority}",
    ):
        with pytest.raises(OSError, match="nothing was released") as refused:
            SpendLog(wrong).charge(Gaussian(1.0), mechanism="test")
        assert "certificate" in str(refused.value)
    assert len(SpendLog(f"{url}?sslmode=verify-full&sslrootcert={authority}").charges()) == 1
