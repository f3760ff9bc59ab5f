"""Items 9 and 11: what a PostgreSQL URL says, what of it is printed, and servers whose defaults are unusual."""

from __future__ import annotations

import sys
import traceback
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import quote

import pytest

from dperm.privacy import Gaussian
from dperm.release import SpendLog
from dperm.release.ledger import Budget
from dperm.release.ledger.servers import Server
from helpers import postgres
from helpers.commands import dperm

psycopg = pytest.importorskip("psycopg")

SECRET = "geh3im"


def shown(error: BaseException) -> str:
    """All that a person may see of an error, its causes and their messages among them."""
    return "".join(traceback.format_exception(error))


@pytest.mark.parametrize("sign", [*"%@/?#[]: =&+;'\"\\$é\n\x00", "%zz", "@x:1/", "/p@h/", "?a=b&", "://", "%00"])
@pytest.mark.parametrize(
    "form",
    [
        "postgresql://me:{}@127.0.0.1:9/none",
        "postgres://127.0.0.1:9/none?user=me&password={}",
        "postgresql://{}@127.0.0.1:9/none",
    ],
)
def test_no_part_of_a_password_is_printed(form: str, sign: str) -> None:
    """Whatever sign it has, at its beginning, within it or at its end, and whatever a parser makes of that."""
    for password in (f"{SECRET}{sign}{SECRET}", f"{sign}{SECRET}", f"{SECRET}{sign}"):
        url = form.format(password)
        try:
            log = SpendLog(url)
        except ValueError as refused:
            assert SECRET not in shown(refused)
            assert "%-codes" in str(refused) and "%40 for @" in str(refused)
            continue
        assert SECRET not in log.where
        assert SECRET not in str(log.database.place)
        with pytest.raises(OSError, match="nothing was released") as failed:
            log.charge(Gaussian(1.0), mechanism="test")
        assert SECRET not in shown(failed.value).replace(url, "")  # a line of this test's own may be shown


def test_an_encoded_password_is_taken(server: str) -> None:
    url = postgres.database(server, "spend")
    with_password = url.replace("tester@", f"tester:{quote('p%@/ ?ß', safe='')}@")
    log = SpendLog(with_password)
    log.charge(Gaussian(1.0), mechanism="test")
    assert log.where == url.replace("tester@", "")


def test_a_message_of_the_driver_that_quotes_the_password_is_not_told() -> None:
    server = Server.of(f"postgresql://me:{SECRET}@host/base?sslmode=verify-full")
    assert server.without_secrets(f'could not use "{SECRET}"') == "the driver's message quotes a secret"
    assert server.without_secrets("connection refused") == "connection refused"
    short = Server.of("postgresql://me:c@host/base?sslmode=verify-full")
    assert short.without_secrets("connection refused") == "connection refused"
    assert short.without_secrets("me:c@host") == "the driver's message quotes a secret"


def test_the_command_prints_no_password(monkeypatch: pytest.MonkeyPatch) -> None:
    for url in (f"postgresql://me:{SECRET}%@127.0.0.1:9/none", f"postgresql://me:{SECRET}@127.0.0.1:9/none"):
        monkeypatch.setenv("DPERM_SPEND_LOG", url)
        for command in (
            ("budget", "show"),
            ("budget", "verify"),
            ("account", "--log"),
            ("budget", "create", "x", "--epsilon", "1"),
        ):
            done = dperm(*command, expect=1)
            assert SECRET not in done.stdout + done.stderr
            assert done.stderr.startswith("error: ")


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("postgresql://me:pw@host/base", "postgresql://host/base"),
        ("postgres://me@host:5433/base?password=pw&sslmode=require", "postgresql://host:5433/base"),
        ("postgresql://me:pw@one:1,two:2/base", "postgresql://one,two:1,2/base"),
        ("postgresql://[2001:db8::1]:5/base", "postgresql://[2001:db8::1]:5/base"),
        ("postgresql:///base?host=/run/postgresql", "postgresql:///run/postgresql/base"),
        ("postgresql://", "postgresql:///"),
    ],
)
def test_host_and_database_are_printed(url: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("PGHOST", "PGPORT", "PGDATABASE"):
        monkeypatch.delenv(variable, raising=False)
    assert SpendLog(url).where == name


@pytest.mark.parametrize(
    ("url", "sure"),
    [
        ("postgresql://db.example.org/base", False),
        ("postgresql://db.example.org/base?sslmode=require", False),
        ("postgresql://db.example.org/base?sslmode=verify-ca", False),
        ("postgresql://db.example.org/base?sslmode=verify-full", True),
        ("postgresql://localhost/base", True),
        ("postgresql://127.0.0.7/base", True),
        ("postgresql://[::1]/base", True),
        ("postgresql:///base", True),
        ("postgresql:///base?host=/run/postgresql", True),
        ("postgresql://127.0.0.1,db.example.org/base", False),
        ("postgresql://127.example.org/base", False),
        ("postgresql://localhost/base?hostaddr=192.0.2.1", False),
        ("postgresql://db.example.org/base?hostaddr=127.0.0.1", True),
    ],
)
def test_a_connection_that_others_may_read_is_warned_of(url: str, sure: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PGHOST", raising=False)
    monkeypatch.delenv("PGSSLMODE", raising=False)
    assert Server.of(url).is_sure == sure
    monkeypatch.setenv("PGSSLMODE", "verify-full")
    assert Server.of(url).is_sure == ("sslmode" not in url or sure)
    monkeypatch.undo()


def test_a_service_may_lead_anywhere(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its file states host and database, which the URL does not: two services are two logs, neither a sure one."""
    host, _, port = server.partition("@")[2].partition("/")[0].partition(":")
    file = tmp_path / "services.conf"
    lines = [f"[{name}]\nhost={host}\nport={port}\nuser=tester\ndbname={name}\n" for name in ("one", "two")]
    file.write_text("".join(lines))
    monkeypatch.setenv("PGSERVICEFILE", str(file))
    for name in ("one", "two"):
        postgres.database(server, name)
        log = SpendLog(f"postgresql:///?service={name}")
        with pytest.warns(UserWarning, match=rf"\?service={name} may be read"):
            log.charge(Gaussian(1.0), mechanism="test")
        assert log.verify() == 1
    monkeypatch.setenv("PGSERVICE", "two")
    assert (SpendLog("postgresql://").where, SpendLog("postgresql://").verify()) == ("postgresql:///?service=two", 1)
    monkeypatch.setenv("PGSSLMODE", "verify-full")  # which the service's file may undo
    assert not Server.of("postgresql://localhost/").is_sure
    assert Server.of("postgresql:///?service=one&sslmode=verify-full").is_sure
    with pytest.raises(ValueError, match="taken for the service"):
        Server.of("postgresql:///?service=one%1b[2J")


def test_the_warning_of_a_connection_comes_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise psycopg.OperationalError("not asked")

    monkeypatch.setattr(psycopg, "connect", refuse)
    log = SpendLog("postgresql://db.example.org/once")
    with pytest.warns(UserWarning, match="db.example.org/once may be read.*sslmode=verify-full"), pytest.raises(OSError):
        log.charge(Gaussian(1.0), mechanism="test")
    with warnings.catch_warnings(), pytest.raises(OSError, match="not asked"):
        warnings.simplefilter("error")
        log.charge(Gaussian(1.0), mechanism="test")


def test_without_the_driver_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    monkeypatch.setenv("DPERM_SPEND_LOG", "postgresql://me@host/base")
    assert "pip install 'dperm[postgres]'" in dperm("budget", "show", expect=1).stderr


def together(*tasks: Callable[[], None]) -> None:
    """At once; each use of a log has a connection of its own."""
    with ThreadPoolExecutor(len(tasks)) as pool:
        for future in [pool.submit(task) for task in tasks]:
            future.result(120)


def with_default(server: str, level: str) -> str:
    url = postgres.database(server, "spend")
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"ALTER DATABASE spend SET default_transaction_isolation TO '{level}'")
    return url


@pytest.mark.fast_cases("serializable")
@pytest.mark.filterwarnings("ignore:The budget of")
@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_writers_see_each_other_whatever_the_server_s_default_is(server: str, level: str) -> None:
    log = SpendLog(with_default(server, level))
    log.create_budget(Budget.of("stays", 4.0, 1e-5))

    def spend() -> None:
        for _ in range(25):
            log.charge(Gaussian(200.0), mechanism="test", label="stays")

    together(*[spend] * 4)
    assert len(log.charges("stays")) == 100
    assert log.verify() == 101


def test_steps_are_handed_out_once_under_repeatable_read(server: str) -> None:
    log = SpendLog(with_default(server, "repeatable read"))
    run = log.charge(Gaussian(1.0), mechanism="test", keeps_reservations=True)
    parts: list[tuple[int, int] | None] = []

    def reserve() -> None:
        for _ in range(20):
            parts.append(log.reserve(run, 1, 60))

    together(*[reserve] * 3)
    assert sorted(part for part in parts if part is not None) == [(start, start + 1) for start in range(60)]


def test_options_that_would_be_ignored_are_refused() -> None:
    """A schema that a URL names was left out in silence: charges went to another log."""
    with pytest.raises(ValueError, match="without options"):
        Server.of("postgresql://me@host/base?options=-csearch_path%3Dtheirs")
