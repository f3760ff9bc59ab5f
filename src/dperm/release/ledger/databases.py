"""Where a spend log lies: an SQLite file, or a PostgreSQL database. Each hands out rows within one transaction."""

from __future__ import annotations

import contextlib
import functools
import os
import random
import sqlite3
import string
import threading
import time
import unicodedata
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from dperm.release.ledger.servers import Server
from dperm.release.ledger.sqlite_forks import in_use

VARIABLE = "DPERM_SPEND_LOG"
#: Endings of the names of new spend logs.
FILE_ENDINGS = (".db", ".sqlite", ".sqlite3")
#: Signs of connection strings, misspelt URLs and variables that no shell replaced, which a new file's path must not have.
_NOT_IN_PATHS = {"'='": "=", "':'": ":", "'$'": "$", "a blank": string.whitespace}
_POSTGRES = ("postgresql://", "postgres://")
_WAIT = 60.0  # seconds, for others who write
_TICK = 5.0  # seconds: file systems tell times of files more coarsely than that of day
_START = b"SQLite format 3\0"  # of every SQLite file
_SMALLEST = 512  # bytes of an SQLite file that holds anything
_MARK = 0x64_70_65_72  # "dper": marks an SQLite file as a spend log
LOCK = 0x6470_6572_6D6C_6F67  # of writers in PostgreSQL, within one database
_seen: set[tuple[int, int]] = set()  # files, by device and number, that are databases or were empty
_looking = threading.Lock()

#: One version after another: what brings a log from the version before to this one.
MIGRATIONS: Sequence[Sequence[str]] = (
    (
        "CREATE TABLE dperm_events (digest TEXT PRIMARY KEY, body TEXT NOT NULL)",
        "CREATE TABLE dperm_entries (number BIGINT PRIMARY KEY, kind TEXT NOT NULL, charge TEXT NOT NULL, label TEXT NOT NULL, "
        "event TEXT, persons INTEGER NOT NULL, private INTEGER NOT NULL, claimed INTEGER NOT NULL, body TEXT NOT NULL, "
        "chain TEXT NOT NULL)",
        "CREATE INDEX dperm_entries_of_charges ON dperm_entries (charge)",
        "CREATE INDEX dperm_entries_of_labels ON dperm_entries (label)",
        "CREATE TABLE dperm_head (count BIGINT NOT NULL, chain TEXT NOT NULL, time TEXT NOT NULL)",
        "INSERT INTO dperm_head VALUES (0, '', '')",
        "CREATE TABLE dperm_budgets (label TEXT PRIMARY KEY, body TEXT NOT NULL, rdp DOUBLE PRECISION NOT NULL, "
        "mass DOUBLE PRECISION NOT NULL)",
    ),
    (  # rules other than Rényi filters; a hair more, since numbers become texts of 15 digits
        "ALTER TABLE dperm_budgets RENAME TO dperm_budgets_before",
        "CREATE TABLE dperm_budgets (label TEXT PRIMARY KEY, body TEXT NOT NULL, spent TEXT NOT NULL)",
        "INSERT INTO dperm_budgets SELECT label, body, '{\"divergence\":' || (rdp * 1.00000000000001) || "
        "',\"mass\":' || (mass * 1.00000000000001) || '}' FROM dperm_budgets_before",
        "DROP TABLE dperm_budgets_before",
    ),
    (  # entries that are signed, which earlier versions would not look at; and what PostgreSQL's function holds chargers to
        "CREATE TABLE dperm_limits (label TEXT NOT NULL, kind TEXT NOT NULL, amount DOUBLE PRECISION NOT NULL, "
        "PRIMARY KEY (label, kind))",
    ),
    (  # settlements, which earlier versions would take for changed budgets; of each charge there is at most one
        "CREATE UNIQUE INDEX dperm_settlements ON dperm_entries (charge) WHERE kind = 'settlement'",
    ),
)


class Rows:
    """One transaction: runs a statement, with ? for each of the values, and returns its rows.

    `clocks` reads the clocks of servers, which this machine's is held against: seconds since 1970, by the name of each.
    `only_appends`: it may write no table, only append entries by the server's function (see `dperm.release.ledger.roles`).
    """

    def __init__(
        self,
        run: Callable[[str, Sequence[Any]], list[tuple[Any, ...]]],
        clocks: Callable[[], dict[str, float]],
        *,
        only_appends: bool = False,
    ) -> None:
        self._run = run
        self.clocks = clocks
        self.only_appends = only_appends

    def __call__(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        return self._run(statement, values)


class Database(ABC):
    """`where`: how a person would name it; `address`: how `database_at` finds it, with a password if there is one; `place`: what
    tells it from others, wherever it is used from, or None where nobody else can reach it."""

    where: str
    address: str
    place: str | None

    @abstractmethod
    def writing(self) -> contextlib.AbstractContextManager[Rows]:
        """A transaction that no other writer is beside: all of it is on disk when the block ends, or nothing. OSError where that
        fails."""

    @abstractmethod
    def reading(self) -> contextlib.AbstractContextManager[Rows | None]:
        """A view of one moment; None where there is no log yet. OSError where it cannot be read."""

    @contextlib.contextmanager
    def _in_this_form(self) -> Iterator[Rows | None]:
        """A view of a log of an earlier version, once it has been brought to this one."""
        with self.writing():
            pass
        with self.reading() as rows:
            yield rows

    def connected(self) -> contextlib.AbstractContextManager[None]:
        """Uses within the block, of this thread, share what it takes to reach the log. OSError where it cannot be reached."""
        return contextlib.nullcontext()


class Sqlite(Database):
    """One file, which is made where there is none; each use opens it anew, so that processes and threads share nothing."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.where = self.address = str(self.path)
        self.place = str(self.path.absolute())  # links as they are: one that leads elsewhere now must show

    @contextlib.contextmanager
    def writing(self) -> Iterator[Rows]:
        with in_use(), self._written() as rows:
            yield rows

    @contextlib.contextmanager
    def _written(self) -> Iterator[Rows]:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)  # as the file: whoever writes it replaces the log
            self._refuse_no_database(make=True)
            connection = self._connected(f"{self.path.absolute().as_uri()}?mode=rw")
            try:
                connection.execute("PRAGMA synchronous = EXTRA")  # a commit survives the power, too
                _patiently(connection, "BEGIN IMMEDIATE")
                self._refuse_others(connection)
                rows = _rows(connection, self._clocks)
                version = int(rows("PRAGMA user_version")[0][0])
                for number in range(version, len(MIGRATIONS)):
                    for statement in MIGRATIONS[number]:
                        rows(statement)
                    rows(f"PRAGMA user_version = {number + 1}")
                    rows(f"PRAGMA application_id = {_MARK}")
                yield rows
                connection.execute("COMMIT")
            except BaseException:
                with contextlib.suppress(sqlite3.Error):
                    connection.execute("ROLLBACK")
                raise
            finally:
                connection.close()
        except (sqlite3.Error, OSError) as error:
            raise _unusable("write", self.where, _first_line(error)) from error

    @contextlib.contextmanager
    def reading(self) -> Iterator[Rows | None]:
        with in_use(), self._read() as rows:
            yield rows

    @contextlib.contextmanager
    def _read(self) -> Iterator[Rows | None]:
        if not self.path.exists() or not self.path.stat().st_size:
            yield None
            return
        try:
            self._refuse_no_database()
            # not read-only: what a killed writer left half done must be taken back first
            connection = self._connected(f"{self.path.absolute().as_uri()}?mode=rw")
            try:
                connection.execute("BEGIN")
                _patiently(connection, "SELECT 1 FROM sqlite_master")  # from here on nobody can write what is read
                self._refuse_others(connection)
                rows = _rows(connection, self._clocks)
                version = int(rows("PRAGMA user_version")[0][0])
                if version in (0, len(MIGRATIONS)):
                    yield rows if version else None
                    return
            finally:
                connection.close()
        except (sqlite3.Error, OSError) as error:
            raise _unusable("read", self.where, _first_line(error)) from error
        with self._in_this_form() as rows:
            yield rows

    def _refuse_no_database(self, *, make: bool = False) -> None:
        """OSError for a file that is something else: SQLite itself would take a short one for an empty database.

        A process loses its locks on a file when any of its threads closes that file: a log that this process may be using is
        not opened again beside SQLite.
        """
        with _looking:
            if make and not self.path.exists():
                os.close(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600))
            found = self.path.stat()
            file_of = (found.st_dev, found.st_ino)
            if file_of in _seen and not 0 < found.st_size < _SMALLEST:
                return
            with self.path.open("rb") as file:
                start = file.read(len(_START))
            if start and start != _START:
                how = "; `dperm budget import` reads a log of lines into a database" if start.startswith(b"{") else ""
                raise OSError(f"it holds something else, no database{how}")
            _seen.add(file_of)

    def _clocks(self) -> dict[str, float]:
        """That of the file's server, which tells its own time when the file is touched."""
        clocks: dict[str, float] = {}
        with contextlib.suppress(OSError):  # who may not touch it learns no time from it
            os.utime(self.path)
            ahead = self.path.stat().st_mtime - time.time()
            if abs(ahead) > _TICK:  # else it is this machine's own clock, or one that agrees with it
                clocks["that of the file's server"] = time.time() + ahead
        return clocks

    @staticmethod
    def _connected(uri: str) -> sqlite3.Connection:
        return sqlite3.connect(uri, uri=True, timeout=_WAIT, isolation_level=None)

    def _refuse_others(self, connection: sqlite3.Connection) -> None:
        """OSError for a database that is something else, or in which statements would do something else than they say."""
        mark = int(connection.execute("PRAGMA application_id").fetchone()[0])
        version = int(connection.execute("PRAGMA user_version").fetchone()[0])
        kinds = [kind for (kind,) in connection.execute("SELECT type FROM sqlite_master")]
        if mark != _MARK and kinds:
            raise OSError("it holds something else: another program's tables")
        if strange := sorted({*kinds} - {"table", "index"}):
            raise OSError(f"somebody added a {strange[0]} to it")
        _refuse_wrong(version, bool(kinds))


def _patiently(connection: sqlite3.Connection, statement: str) -> None:
    """Run a statement that takes a lock once others have let go of theirs. SQLite itself asks ten times a second: among many who
    write one after another, one that has waited may then never find the moment between two of them."""
    until = time.monotonic() + _WAIT
    connection.execute("PRAGMA busy_timeout = 0")
    while True:
        try:
            connection.execute(statement)
            break
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > until:
                raise
        time.sleep(random.uniform(0.0005, 0.004))  # each at another moment
    connection.execute(f"PRAGMA busy_timeout = {int(1000 * _WAIT)}")


def _rows(connection: sqlite3.Connection, clocks: Callable[[], dict[str, float]] = dict) -> Rows:
    def run(statement: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        return connection.execute(statement, values).fetchall()

    return Rows(run, clocks)


def _in_memory() -> sqlite3.Connection:
    return sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)


class _Empty(threading.local):
    """A log of this version without entries, to be copied; each thread has its own."""

    @functools.cached_property
    def log(self) -> sqlite3.Connection:
        made = _in_memory()
        for statements in MIGRATIONS:
            for statement in statements:
                made.execute(statement)
        return made


_empty = _Empty()


class Memory(Database):
    """A log that nobody else sees, gone with the object: for charges that are thrown away."""

    where, address, place = "memory", "", None

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._connection = _in_memory()
        _empty.log.backup(self._connection)  # many times faster than making the tables: audits throw away one log a training

    @contextlib.contextmanager
    def writing(self) -> Iterator[Rows]:
        with self._lock:
            self._connection.execute("BEGIN")
            try:
                yield _rows(self._connection)
            except BaseException:
                self._connection.execute("ROLLBACK")
                raise
            self._connection.execute("COMMIT")

    @contextlib.contextmanager
    def reading(self) -> Iterator[Rows]:
        with self._lock:
            yield _rows(self._connection)


class Postgres(Database):
    """A PostgreSQL database, by a URL such as ``postgresql://user@host/name?sslmode=verify-full``.

    Raises
    ------
    ValueError
        For a URL that PostgreSQL's own parser refuses, or reads otherwise than it was meant: where a user's name or password has
        characters that must be percent-encoded, a part of it would be taken for a host or a database, and be printed.
    ModuleNotFoundError
        Where the driver is not installed.
    """

    def __init__(self, url: str) -> None:
        self.address = url
        self._server = Server.of(url)
        self.where = self.place = self._server.name
        self._held = threading.local()

    @contextlib.contextmanager
    def writing(self) -> Iterator[Rows]:
        with self._or_unusable("write"), self._transaction() as connection:
            rows = self._rows(connection)
            # Each statement sees what was committed before it. A server may be set to show all of them the moment of the first,
            # which is when this writer begins to wait for the others: what they write would be missed, or fail to serialise.
            rows("SET TRANSACTION ISOLATION LEVEL read committed")
            rows("SELECT pg_advisory_xact_lock(?)", LOCK)
            version = self._version(rows)
            for number in range(version, len(MIGRATIONS)):
                if not number:
                    rows("CREATE TABLE dperm_version (number INTEGER NOT NULL)")
                    rows("INSERT INTO dperm_version VALUES (0)")
                for statement in MIGRATIONS[number]:
                    rows(statement)
                rows("UPDATE dperm_version SET number = ?", number + 1)
            rows.only_appends = not rows("SELECT has_table_privilege('dperm_head', 'UPDATE')")[0][0]
            yield rows

    @contextlib.contextmanager
    def reading(self) -> Iterator[Rows | None]:
        with self._or_unusable("read"), self._transaction() as connection:
            rows = self._rows(connection)
            rows("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            version = self._version(rows)
            if version in (0, len(MIGRATIONS)):
                yield rows if version else None
                return
        with self._in_this_form() as rows:
            yield rows

    @contextlib.contextmanager
    def connected(self) -> Iterator[None]:
        with self._or_unusable("reach"):
            self._held.connection = self._connect()
        try:
            yield
        finally:
            self._held.connection.close()
            del self._held.connection

    @contextlib.contextmanager
    def _or_unusable(self, what: str) -> Iterator[None]:
        """Errors of the driver within the block are told as OSError. They are not kept as its cause: they may quote the URL."""
        import psycopg

        try:
            yield
        except (psycopg.Error, OSError) as error:
            raise _unusable(what, self.where, self._server.without_secrets(_first_line(error))) from None

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[Any]:
        """A connection, whose transaction is committed at the end of the block, or rolled back."""
        held = getattr(self._held, "connection", None)
        if held is None:
            with self._connect() as connection:
                yield connection
            return
        try:
            yield held
            held.commit()
        except BaseException:
            if not held.closed:
                held.rollback()
            raise

    def _connect(self) -> Any:
        import psycopg

        _warn_of_no_tls(self._server)
        wait = int(_WAIT * 1000)
        limits = {"lock_timeout": wait, "statement_timeout": 2 * wait, "idle_in_transaction_session_timeout": wait // 2}
        # the last: a writer whose network is gone must not keep the others out
        options = " ".join(f"-c {name}={value}" for name, value in {**limits, "synchronous_commit": "on"}.items())
        return psycopg.connect(self.address, connect_timeout=10, options=options)

    @staticmethod
    def _rows(connection: Any) -> Rows:
        def run(statement: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
            cursor = connection.execute(statement.replace("?", "%s"), values or None)
            return cursor.fetchall() if cursor.description else []

        def clocks() -> dict[str, float]:
            told = run("SELECT extract(epoch FROM clock_timestamp())", ())[0][0]
            return {"that of the database's server": float(told)}

        return Rows(run, clocks)

    @staticmethod
    def _version(rows: Rows) -> int:
        ((told, entries),) = rows("SELECT to_regclass('dperm_version') IS NOT NULL, to_regclass('dperm_entries') IS NOT NULL")
        found = rows("SELECT number FROM dperm_version") if told else []
        version = int(found[0][0]) if len(found) == 1 else 0
        _refuse_wrong(version, told or entries)
        return version


@functools.cache
def _warn_of_no_tls(server: Server) -> None:
    """Once in a process."""
    if not server.is_sure:
        warnings.warn(
            f"The connection to the spend log {server.name} may be read, or answered by somebody else: add ?sslmode=verify-full "
            "to its URL.",
            UserWarning,
            stacklevel=2,
        )


def database_at(where: str | os.PathLike[str], folder: Path | None = None) -> Database:
    """The database at a path or at a PostgreSQL URL.

    Parameters
    ----------
    where : str or path
        A URL ``postgresql://user@host/name?sslmode=verify-full``, or a path: of a file that exists, or of a new file whose name
        ends in one of `FILE_ENDINGS`. A new file's path has no ``=``, no ``:``, no ``$`` and no blank, and no ``~`` at its
        beginning.
    folder : Path, optional
        The folder to which a relative path refers, instead of the working directory.

    Raises
    ------
    ValueError
        For a URL that is wrong, and for any other text: a misspelt URL or connection string would otherwise open a new, empty
        log beside the budget. The message does not repeat the text, which may hold a password.
    OSError
        For a URL where the driver of PostgreSQL is not installed.
    """
    text = os.fspath(where)
    if text.startswith(_POSTGRES):
        return Postgres(text)
    path = Path(text) if folder is None else folder / text
    if path.is_file():
        return Sqlite(path)
    scheme, is_url, _ = text.partition("://")
    if is_url and scheme.isalpha():
        got = f"a URL of {scheme!r}"
    elif strange := _strange(text):
        got = f"a text with {' and '.join(strange)}"
    elif not text:
        got = f"nothing; without {VARIABLE} it is a file of your own"
    elif path.suffix not in FILE_ENDINGS:
        got = f"a name that ends in {path.suffix!r}" if path.suffix else "a name without an ending"
        got += " and no file that exists"
    else:
        return Sqlite(path)
    endings = " or ".join(FILE_ENDINGS)
    raise ValueError(
        f"Expected the spend log as the path of a file that exists or ends in {endings}, or as postgresql://user@host/name; "
        f"got {got}."
    )


def _strange(text: str) -> list[str]:
    """What a new file's path must not have, as it was meant: input methods also write other forms of these signs."""
    rest = os.path.splitdrive(unicodedata.normalize("NFKC", text))[1]
    found = [name for name, signs in _NOT_IN_PATHS.items() if any(sign in rest for sign in signs)]
    return [*found, *["'~' at its beginning"][: rest.startswith("~")]]


def database_of(address: str) -> Database:
    """The database with this `Database.address`, which was checked when that one was made."""
    return Postgres(address) if address.startswith(_POSTGRES) else Sqlite(address)


def _refuse_wrong(version: int, has_tables: bool) -> None:
    """OSError for tables of a newer dperm, or of a version that there is not: they would look as if nothing were in them."""
    if version > len(MIGRATIONS):
        raise OSError(f"it was written by a newer dperm, in version {version} of its tables")
    if (version < 1) if has_tables else version:
        raise OSError(f"its version was changed, to {version}")


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


def _unusable(what: str, where: str, why: str) -> OSError:
    return OSError(
        f"Cannot {what} the spend log {where} ({why}); nothing was released. Set {VARIABLE} to a file that can be written, or to "
        "a database."
    )
