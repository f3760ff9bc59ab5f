"""A PostgreSQL server of the tests' own, from the system's package; skips with a reason where there is none."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

__all__ = ["database", "server"]


def _programs() -> Path:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb")) or [Path(name) for name in [shutil.which("initdb")] if name]
    if not found:
        pytest.skip("PostgreSQL is not installed: install the system's package postgresql")
    return found[-1].parent


def _as_user() -> list[str]:
    """The server refuses to run as root."""
    if os.geteuid():
        return []
    try:
        pwd.getpwnam("postgres")
    except KeyError:
        pytest.skip("PostgreSQL refuses to run as root, and there is no user postgres")
    return ["runuser", "-u", "postgres", "--"]


@contextmanager
def server(keys: Path | None = None) -> Iterator[str]:
    """A running server; its URL, of the database postgres. `keys`: a folder with server.key and server.crt, for TLS."""
    pytest.importorskip("psycopg")
    programs, user = _programs(), _as_user()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="dperm-pg-", ignore_cleanup_errors=True) as folder:
        if user:
            shutil.chown(folder, "postgres")
        data = f"{folder}/data"
        run = {"check": True, "capture_output": True, "cwd": folder}
        subprocess.run([*user, programs / "initdb", "-D", data, "-A", "trust", "-U", "tester"], **run)
        options = f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={folder}"
        for name in ("server.key", "server.crt") if keys is not None else ():
            shutil.copy(keys / name, f"{data}/{name}")
            if user:
                shutil.chown(f"{data}/{name}", "postgres")
        if keys is not None:
            options += " -c ssl=on"
        control = [*user, programs / "pg_ctl", "-D", data, "-w"]
        subprocess.run(
            [*control, "-o", options, "-l", f"{folder}/log", "start"], check=True, cwd=folder, stdout=subprocess.DEVNULL
        )
        try:
            yield f"postgresql://tester@127.0.0.1:{port}/postgres"
        finally:
            subprocess.run([*control, "-m", "immediate", "stop"], check=False, cwd=folder, stdout=subprocess.DEVNULL)


def database(url: str, name: str) -> str:
    """An empty database on a server; its URL."""
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
        connection.execute(f"CREATE DATABASE {name}")
    return url.rpartition("/")[0] + "/" + name
