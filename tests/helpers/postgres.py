"""A PostgreSQL server of the tests' own, from the system's package; skips with a reason where there is none."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

__all__ = ["Running", "database", "running", "server"]


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


@dataclass(frozen=True)
class Running:
    """A server at a URL, of the database postgres, which can be stopped at once, as by a crash, and started again."""

    url: str
    start: Callable[[], None]
    crash: Callable[[], None]


@contextmanager
def server(keys: Path | None = None) -> Iterator[str]:
    """The URL of a running server. `keys`: a folder with server.key and server.crt, for TLS."""
    with running(keys) as found:
        yield found.url


@contextmanager
def running(keys: Path | None = None) -> Iterator[Running]:
    """A running server. Argument as of `server`."""
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
        subprocess.run([*user, programs / "initdb", "-D", data, "-A", "trust", "-U", "tester", "--no-sync"], **run)
        options = f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={folder}"
        # What a server has written survives its own crash, which tests look at, and need not survive the machine's.
        options += " -c fsync=off -c full_page_writes=off"
        for name in ("server.key", "server.crt") if keys is not None else ():
            shutil.copy(keys / name, f"{data}/{name}")
            if user:
                shutil.chown(f"{data}/{name}", "postgres")
        if keys is not None:
            options += " -c ssl=on"

        def control(*arguments: str, check: bool) -> None:
            command = [*user, programs / "pg_ctl", "-D", data, "-w", *arguments]
            subprocess.run(command, check=check, cwd=folder, stdout=subprocess.DEVNULL)

        start = partial(control, "-o", options, "-l", f"{folder}/log", "start", check=True)
        crash = partial(control, "-m", "immediate", "stop", check=False)
        start()
        try:
            yield Running(f"postgresql://tester@127.0.0.1:{port}/postgres", start, crash)
        finally:
            crash()


def database(url: str, name: str) -> str:
    """An empty database on a server; its URL."""
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
        connection.execute(f"CREATE DATABASE {name}")
    return url.rpartition("/")[0] + "/" + name
