"""Item 7: who may charge on a server can append what fits into a budget, and do nothing else."""

from __future__ import annotations

import hashlib
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from dperm.privacy import Event, Gaussian, PureDP, SelfComposed
from dperm.privacy.accountants.privacy_filters import BudgetExceeded, Price
from dperm.release import SpendLog
from dperm.release.ledger import Budget, GdpFilter, Plan, RenyiFilter, clocks
from dperm.release.ledger.entries import append, canonical
from dperm.release.ledger.roles import make_roles
from dperm.release.ledger.settlements import digest_of_key, new_key
from helpers import postgres
from helpers.commands import dperm

psycopg = pytest.importorskip("psycopg")

DELTA = 1e-6
EVENT = Gaussian(20.0)


class Ledger:
    """A database with roles; Olga may make budgets, Alice may charge."""

    def __init__(self, server: str) -> None:
        self.admin = postgres.database(server, "spend")
        make_roles(SpendLog(self.admin).database)
        with psycopg.connect(self.admin, autocommit=True) as connection:
            for name, role in (("alice", "spend_charger"), ("olga", "spend_owner")):
                if not connection.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", (name,)).fetchall():
                    connection.execute(f"CREATE ROLE {name} LOGIN")
                connection.execute(f"GRANT {role} TO {name}")
        self.alice, self.olga = (self.admin.replace("tester@", f"{name}@") for name in ("alice", "olga"))

    def body(self, of: Event | None = EVENT, /, **changes: Any) -> str:
        """An entry as Alice's client writes it, but for these changes; None takes something out."""
        with psycopg.connect(self.alice) as connection:
            ((last,),) = connection.execute("SELECT time FROM dperm_head").fetchall()
        now = max(last, clocks.text_of(time.time()))
        digest = None if of is None else hashlib.sha256(canonical(of.to_dict()).encode()).hexdigest()
        made = {
            "kind": "charge", "charge": "c" * 32, "id": "c" * 32, "label": "stays", "time": now, "event": digest, "private": True,
            "mechanism": "test",
            "costs": {"divergence": 0.01, "mass": 0.0},
        }  # fmt: skip
        said = {name: value for name, value in {**made, **changes}.items() if value is not None or name == "event"}
        return canonical(said)

    def append(self, body: str, event: Event | str | None = EVENT, settings: str = "") -> None:
        """The function, called as Alice by hand."""
        text = canonical(event.to_dict()) if isinstance(event, Event) else event
        with psycopg.connect(self.alice) as connection:
            if settings:
                connection.execute(settings)
            connection.execute("SELECT dperm_append(%s, %s)", (body, text))


@pytest.fixture
def ledger(server: str) -> Ledger:
    return Ledger(server)


@pytest.fixture
def stays(ledger: Ledger) -> Ledger:
    SpendLog(ledger.olga).create_budget(Budget("stays", RenyiFilter.of(2.0, DELTA), alert=1.0))
    return ledger


def charge(log: SpendLog, event: Event = EVENT, label: str = "stays", **settings: Any) -> str:
    return log.charge(event, mechanism="test", label=label, **settings)


@pytest.mark.filterwarnings("ignore:The budget of")
@pytest.mark.parametrize(
    "rule",
    [RenyiFilter.of(1.5, DELTA), GdpFilter.of(1.5, DELTA), Plan.of(2.0, DELTA, [(Gaussian(20.0), 7), (PureDP(0.1), 1)])],
    ids=lambda rule: type(rule).__name__,
)
def test_what_a_charger_charges_is_what_anybody_charges(ledger: Ledger, rule: Any) -> None:
    """The server's sums are those of this package, to the last bit."""
    olga, alice = SpendLog(ledger.olga), SpendLog(ledger.alice)
    event = EVENT if isinstance(rule, Plan) else Gaussian(8.0)  # of which few fit
    olga.create_budget(Budget("stays", rule, alert=1.0))
    here = SpendLog(database_in_memory())
    here.create_budget(Budget("stays", rule, alert=1.0))
    for log in (alice, here):
        charge(log, PureDP(0.1))
        with pytest.raises(BudgetExceeded):
            for _ in range(1000):
                charge(log, event)
    (theirs,), (ours,) = alice.accounts_held(), here.accounts_held()
    assert theirs.spent == ours.spent
    assert len(alice.charges()) == len(here.charges()) > 3
    assert alice.verify() == olga.verify() == len(here.charges()) + 1


def database_in_memory() -> Any:
    from dperm.release.ledger.databases import Memory

    return Memory()


def test_a_charger_s_runs_go_on(stays: Ledger) -> None:
    alice = SpendLog(stays.alice)
    run = charge(alice, keeps_reservations=True, keeps_parts=True)
    assert [alice.reserve(run, 5, 12) for _ in range(4)] == [(0, 5), (5, 10), (10, 12), (12, 12)]
    assert alice.add_part(run, Gaussian(9.0), Price("x", 1.0, 1.5), spent=0.0, note={}) == 1.0
    assert alice.add_part(run, Gaussian(9.0), Price("x", 1.0, 1.5), spent=0.0, note={}) is None
    assert alice.parts(run) == [(Gaussian(9.0), {}, None)]
    assert alice.verify() == 6


def test_what_expired_is_noted_by_a_charger(ledger: Ledger) -> None:
    SpendLog(ledger.olga).create_budget(Budget.of("stays", 2.0, DELTA, expires="2020-01-01"))
    with psycopg.connect(ledger.admin) as connection:  # the log is of an earlier day
        connection.execute("UPDATE dperm_head SET time = '2019-01-01T00:00:00Z'")
        connection.execute("UPDATE dperm_entries SET body = regexp_replace(body, '\"time\":\"[^\"]*\"', %s)",
                           ('"time":"2019-01-01T00:00:00Z"',))  # fmt: skip
        ((body,),) = connection.execute("SELECT body FROM dperm_entries").fetchall()
        chain = hashlib.sha256(body.encode()).hexdigest()
        connection.execute("UPDATE dperm_entries SET chain = %s", (chain,))
        connection.execute("UPDATE dperm_head SET chain = %s", (chain,))
    alice = SpendLog(ledger.alice)
    alice.verify(remember_it=True)
    for _ in range(2):
        with pytest.raises(BudgetExceeded, match="expired"):
            charge(alice)
    assert [entry["kind"] for entry in alice.entries(None, ("budget", "refusal"))] == ["budget", "refusal"]
    with pytest.raises(psycopg.Error, match="has expired"):
        ledger.append(ledger.body())
    assert alice.verify() == 2


FORBIDDEN = [
    "UPDATE dperm_budgets SET spent = '{}'",
    "UPDATE dperm_budgets SET body = replace(body, '2.0', '9.0')",
    "DELETE FROM dperm_budgets",
    "INSERT INTO dperm_budgets VALUES ('others', '{}', '{}')",
    "UPDATE dperm_limits SET amount = 1e9",
    "INSERT INTO dperm_limits VALUES ('stays', 'more', 1e9)",
    "UPDATE dperm_entries SET body = ''",
    "DELETE FROM dperm_entries",
    "INSERT INTO dperm_entries SELECT 99, kind, charge, label, event, persons, private, claimed, body, chain FROM dperm_entries",
    "TRUNCATE dperm_entries",
    "UPDATE dperm_head SET count = 0, chain = ''",
    "DELETE FROM dperm_head",
    "UPDATE dperm_events SET body = ''",
    "INSERT INTO dperm_events VALUES ('x', '{}')",
    "UPDATE dperm_version SET number = 0",
    "DROP TABLE dperm_entries",
    "ALTER TABLE dperm_budgets ADD COLUMN x INTEGER",
    "CREATE TRIGGER t AFTER UPDATE ON dperm_budgets EXECUTE FUNCTION suppress_redundant_updates_trigger()",
    "CREATE TABLE public.mine (x INTEGER)",
    "CREATE FUNCTION public.mine() RETURNS INTEGER LANGUAGE sql AS 'SELECT 1'",
    "CREATE SCHEMA mine",
    "DROP FUNCTION dperm_append(text, text)",
    "ALTER FUNCTION dperm_append(text, text) SECURITY INVOKER",
    "GRANT spend_owner TO alice",
    "SET ROLE spend_owner",
    "SET ROLE tester",
    "SET session_replication_role = replica",
    "SELECT count FROM dperm_head FOR UPDATE",
    "LOCK TABLE dperm_head IN EXCLUSIVE MODE",
]


def test_a_charger_writes_nothing_by_hand(stays: Ledger) -> None:
    charge(SpendLog(stays.alice))
    for statement in FORBIDDEN:
        with psycopg.connect(stays.alice) as connection, pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute(statement)
            pytest.fail(f"{statement} was done")
        assert SpendLog(stays.alice).verify() == 2, statement


def test_a_charger_makes_no_budget_and_sets_no_time(stays: Ledger) -> None:
    alice = SpendLog(stays.alice)
    for label, epsilon in (("stays", 9.0), ("others", 1.0)):
        with pytest.raises(ValueError, match="Only an owner may do that"):
            alice.create_budget(Budget.of(label, epsilon, DELTA))
    with pytest.raises(ValueError, match="Only an owner may do that"):
        alice.correct_time()
    with pytest.raises(ValueError, match="none for 'others'"):
        charge(alice, label="others")


FORGED: dict[str, dict[str, Any]] = {
    "kind": {"kind": "budget"},
    "kind of a correction": {"kind": "time"},
    "kind missing": {"kind": None},
    "kind no text": {"kind": 3},
    "another id": {"id": "d" * 32},
    "a short id": {"id": "c", "charge": "c"},
    "no id": {"id": None},
    "no charge": {"charge": None},
    "label no text": {"label": 3},
    "label of no budget": {"label": "others"},
    "no label": {"label": None},
    "no time": {"time": None},
    "time a number": {"time": 20260101},
    "time no time": {"time": "soon"},
    "time with more": {"time": "2026-01-01T00:00:00Z\n"},
    "time before the last": {"time": "2020-01-01T00:00:00Z"},
    "time ahead": {"time": "2099-01-01T00:00:00Z"},
    "no event": {"event": None},
    "another event": {"event": "0" * 64},
    "no mechanism": {"mechanism": None},
    "mechanism no text": {"mechanism": 3},
    "seeded": {"private": False},
    "not said whether seeded": {"private": None},
    "private a text": {"private": "false"},
    "claimed": {"claimed": "by a paper"},
    "claimed a number": {"claimed": 1},
    "of persons": {"persons": True},
    "persons a number": {"persons": 0},
    "no costs": {"costs": None},
    "empty costs": {"costs": {}},
    "costs a list": {"costs": [0.0]},
    "costs a text": {"costs": {"divergence": "0", "mass": "0"}},
    "costs not a number": {"costs": {"divergence": "NaN", "mass": 0.0}},
    "costs nothing": {"costs": {"divergence": None, "mass": 0.0}},
    "costs negative": {"costs": {"divergence": -1.0, "mass": 0.0}},
    "costs hardly negative": {"costs": {"divergence": 0.0, "mass": -1e-300}},
    "costs of another kind": {"costs": {"divergence": 0.0, "mass": 0.0, "mu_squared": 0.0}},
    "costs too much": {"costs": {"divergence": 99.0, "mass": 0.0}},
    "costs too much mass": {"costs": {"divergence": 0.0, "mass": 1e-6}},
    "costs more than numbers hold": {"costs": {"divergence": 10**400, "mass": 0.0}},
    "steps of no charge": {"kind": "steps", "start": 0, "stop": 1, "limit": 2},
    "refusal of what has not expired": {"kind": "refusal"},
    "a name of its own": {"owner_key": "a" * 64},
    "a user that is none": {"by": {}},
    "a process that is none": {"pid": []},
}
#: Texts that PostgreSQL reads as JSON, and Python does not.
UNREAD = {"a long number": "1" * 5000, "many tables": '{"x":' * 3000 + "1" + "}" * 3000, "many lists": "[" * 3000 + "]" * 3000}


def test_forged_entries_are_refused(stays: Ledger) -> None:
    alice = SpendLog(stays.alice)
    charge(alice)
    before = alice.head(), alice.account("stays")
    for name, changes in FORGED.items():
        event = None if changes.get("kind") in ("steps", "refusal") or changes.get("event", "") is None else EVENT
        with pytest.raises(psycopg.Error):
            stays.append(stays.body(event, **changes), event)
            pytest.fail(f"{name} was taken")
    for text in ("", "[]", "3", '"x"', "null", "{", '{"kind":"charge"}', "{}"):
        with pytest.raises(psycopg.Error):
            stays.append(text)
    for event in ("", "[]", "{}", '{"type":3}', "x"):
        digest = hashlib.sha256(event.encode()).hexdigest()
        with pytest.raises(psycopg.Error):
            stays.append(stays.body(None).replace('"event":null', f'"event":"{digest}"'), event)  # fmt: skip
    assert (alice.head(), alice.account("stays")) == before
    stays.append(stays.body())  # without a change it is taken
    with pytest.raises(psycopg.Error, match="new id"):
        stays.append(stays.body())
    assert alice.verify() == 3


@pytest.mark.fast_cases("pid-a long number", "note-many tables", "costs-many tables", "event-many lists")
@pytest.mark.parametrize("name", UNREAD)
@pytest.mark.parametrize("place", ["pid", "note", "costs", "event"])
def test_no_charger_stops_the_others(stays: Ledger, name: str, place: str) -> None:
    """Everybody follows the log, and could no more: no charge, no budget, by anybody."""
    alice, olga = SpendLog(stays.alice), SpendLog(stays.olga)
    charge(alice)
    event = canonical(EVENT.to_dict())
    if place == "event":
        event = f'{event[:-1]},"x":{UNREAD[name]}}}'
    digest = hashlib.sha256(event.encode()).hexdigest()
    body = stays.body(None, event=digest)
    if place == "costs":
        body = body.replace('"mass":0.0', f'"mass":{UNREAD[name]}')
    elif place != "event":
        body = f'{body[:-1]},"{place}":{UNREAD[name]}}}'
    with pytest.raises(psycopg.Error):
        stays.append(body, event)
    charge(alice)
    olga.create_budget(Budget("stays", RenyiFilter.of(3.0, DELTA)))
    assert alice.verify() == olga.verify() == 4


def test_an_event_that_nobody_reads_stops_its_own_budget_alone(stays: Ledger) -> None:
    olga = SpendLog(stays.olga)
    event = '{"type":"Unknown"}'
    stays.append(stays.body(None, event=hashlib.sha256(event.encode()).hexdigest()), event)
    olga.create_budget(Budget("others", RenyiFilter.of(3.0, DELTA)))
    charge(SpendLog(stays.alice))
    with pytest.raises(ValueError, match="Expected an event"):
        olga.create_budget(Budget("stays", RenyiFilter.of(3.0, DELTA)))


def test_a_last_day_in_another_form_lets_no_charger_through(stays: Ledger) -> None:
    """A budget of an earlier version of dperm may state one: as texts, 20991231 comes after all of 2099."""
    day = clocks.text_of(time.time())[:4] + "0101"
    with psycopg.connect(stays.admin) as connection:
        connection.execute('UPDATE dperm_budgets SET body = replace(body, \'"expires":""\', %s)', (f'"expires":"{day}"',))
    with pytest.raises(psycopg.Error, match="has expired"):
        stays.append(stays.body())


def test_roles_of_a_long_name_are_two(server: str) -> None:
    """PostgreSQL cuts names off after 63 bytes: chargers were owners."""
    for letters, held in ((55, True), (56, False), (62, False)):
        log = SpendLog(postgres.database(server, "d" * letters))
        if held:
            assert make_roles(log.database).charger == "d" * letters + "_charger"
        else:
            with pytest.raises(ValueError, match="a shorter name"):
                make_roles(log.database)
            with psycopg.connect(log.database.address) as connection:
                assert not connection.execute("SELECT 1 FROM pg_roles WHERE rolname LIKE %s", (f"{'d' * 56}%",)).fetchall()


STEPS: dict[str, dict[str, Any]] = {
    "again": {"start": 0, "stop": 5},
    "some again": {"start": 4, "stop": 6},
    "none": {"start": 5, "stop": 5},
    "backwards": {"start": 7, "stop": 6},
    "beyond": {"start": 5, "stop": 13},
    "of another limit": {"start": 5, "stop": 6, "limit": 13},
    "of no number": {"start": 5, "stop": "6"},
    "of a fraction": {"start": 5, "stop": 5.5},
    "negative": {"start": -1, "stop": 6},
    "missing": {"start": 5},
    "of another run": {"start": 5, "stop": 6, "charge": "d" * 32},
}


def test_steps_are_handed_out_once(stays: Ledger) -> None:
    alice = SpendLog(stays.alice)
    run = charge(alice, keeps_reservations=True)
    assert alice.reserve(run, 5, 12) == (0, 5)
    for name, changes in STEPS.items():
        body = {"kind": "steps", "charge": run, "limit": 12, "id": None, "costs": None, "private": None, **changes}
        with pytest.raises(psycopg.Error):
            stays.append(stays.body(None, **body), None)
            pytest.fail(f"{name} was taken")
    for part in ({"account": "x", "cost": -1.0}, {"account": "x", "cost": "1"}, {"account": 3, "cost": 1.0}, {"cost": 1.0}):
        with pytest.raises(psycopg.Error):
            stays.append(stays.body(kind="part", charge=run, id=None, costs=None, **part))
    assert alice.reserve(run, 5, 12) == (5, 10)
    assert alice.verify() == 4


SETTINGS = {
    "few digits": "SET extra_float_digits = -15",
    "repeatable read": "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ",
    "serializable": "SET TRANSACTION ISOLATION LEVEL SERIALIZABLE",
    "strings with escapes": "SET standard_conforming_strings = off",
    "nulls": "SET transform_null_equals = on",
    "another time zone": "SET timezone = 'Pacific/Kiritimati'",
    "other dates": "SET datestyle = 'German, DMY'",
    "tables of its own": """
        CREATE TEMPORARY TABLE dperm_budgets AS SELECT label, body, '{}'::text AS spent FROM public.dperm_budgets;
        CREATE TEMPORARY TABLE dperm_limits AS SELECT label, kind, 1e9::float8 AS amount FROM public.dperm_limits;
        SET search_path = pg_temp, public
    """,
    "functions of its own": """
        CREATE FUNCTION pg_temp.sha256(bytea) RETURNS bytea LANGUAGE sql AS 'SELECT $1';
        CREATE FUNCTION pg_temp.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS 'SELECT ''1999-01-01''::timestamptz';
        SET search_path = pg_temp, pg_catalog, public
    """,
}


@pytest.mark.parametrize("name", SETTINGS)
def test_no_setting_of_a_session_moves_a_limit(stays: Ledger, name: str) -> None:
    alice = SpendLog(stays.alice)
    limit = RenyiFilter.of(2.0, DELTA).limits["divergence"]
    cost = 0.3 * limit + 1e-9 / 3

    def append(number: str) -> None:
        body = stays.body(charge=number * 32, id=number * 32, costs={"divergence": cost, "mass": 1e-9 / 3})
        stays.append(body, settings=SETTINGS[name])

    for number in "abc":
        append(number)
    with pytest.raises(psycopg.Error, match="too little left"):
        append("d")
    account = alice.account("stays")
    assert account is not None and account.spent == {"divergence": cost + cost + cost, "mass": 1e-9 / 3 + 1e-9 / 3 + 1e-9 / 3}
    with pytest.raises(psycopg.Error, match="ahead of the server"):
        stays.append(stays.body(time="2099-01-01T00:00:00Z"), settings=SETTINGS[name])
    assert alice.verify() == 4


def test_many_chargers_at_once_stay_within_the_limit(stays: Ledger) -> None:
    cost = RenyiFilter.of(2.0, DELTA).limits["divergence"] / 20.5

    def spend(worker: int) -> int:
        held = 0
        for number in range(10):
            ident = f"{worker:016x}{number:016x}"
            try:
                stays.append(stays.body(charge=ident, id=ident, costs={"divergence": cost, "mass": 0.0}))
                held += 1
            except psycopg.Error as error:  # a second may pass between a look at the clock and the turn
                assert "too little left" in str(error) or "last entry" in str(error)
        return held

    with ThreadPoolExecutor(4) as pool:
        held = sum(pool.map(spend, range(4)))
    alice = SpendLog(stays.alice)
    assert held == len(alice.charges()) <= 20
    assert alice.verify() == held + 1


def test_an_owner_makes_budgets_and_changes_no_entry(stays: Ledger) -> None:
    olga = SpendLog(stays.olga)
    charge(olga)
    olga.create_budget(Budget.of("stays", 3.0, DELTA))
    charge(SpendLog(stays.alice))
    for statement in (
        "UPDATE dperm_entries SET body = ''",
        "DELETE FROM dperm_entries",
        "TRUNCATE dperm_events",
        "DROP TABLE dperm_head",
    ):
        with psycopg.connect(stays.olga) as connection, pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute(statement)
    assert olga.verify() == 4


def test_an_owner_corrects_the_time_of_a_server_s_log(ledger: Ledger) -> None:
    """That a server's own clock let it write, or an earlier version."""
    olga, alice = SpendLog(ledger.olga), SpendLog(ledger.alice)
    olga.create_budget(Budget.of("stays", 2.0, DELTA, expires="2090-01-01"))
    with SpendLog(ledger.admin).database.writing() as rows:
        append(rows, "steps", "a" * 32, {"start": 0, "stop": 1, "limit": 1, "time": "2099-01-01T00:00:00Z"})
    with pytest.raises(BudgetExceeded, match=r"expired on 2090-01-01: nothing was charged.*correct-time"):
        charge(alice)
    with pytest.raises(psycopg.Error, match="has expired"):
        ledger.append(ledger.body())
    olga.correct_time()
    charge(alice)
    assert alice.verify() == 4


def test_roles_are_made_for_a_log_that_has_budgets(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    url = postgres.database(server, "spend")
    log = SpendLog(url)
    log.create_budget(Budget.of("stays", 2.0, DELTA))
    with psycopg.connect(url) as connection:
        connection.execute("DELETE FROM dperm_limits")  # as from a version that had none
    monkeypatch.setenv("DPERM_SPEND_LOG", url)
    for _ in range(2):  # once more after an update
        told = dperm("budget", "init").stdout
        assert 'GRANT "spend_owner"' in told
        assert 'GRANT "spend_charger"' in told
        assert "logs in as tester may do anything" in told
    stays = Ledger.__new__(Ledger)
    stays.alice = url.replace("tester@", "alice@")
    with psycopg.connect(url, autocommit=True) as connection:
        if not connection.execute("SELECT 1 FROM pg_roles WHERE rolname = 'alice'").fetchall():
            connection.execute("CREATE ROLE alice LOGIN")
        connection.execute("GRANT spend_charger TO alice")
    charge(SpendLog(stays.alice))
    with pytest.raises(psycopg.Error, match="too little left"):
        stays.append(stays.body(costs={"divergence": 99.0, "mass": 0.0}))


def test_a_file_has_no_roles() -> None:
    assert "--sign-key" in dperm("budget", "init", expect=1).stderr


def test_who_may_not_make_roles_is_told_so(ledger: Ledger) -> None:
    with pytest.raises(OSError, match=r"must be owner|permission denied"):
        make_roles(SpendLog(ledger.alice).database)


def test_the_first_charge_of_a_database_without_budgets_is_a_charger_s(ledger: Ledger) -> None:
    alice = SpendLog(ledger.alice)
    charge(alice)
    charge(alice, label="")
    assert alice.verify() == 2


SETTLED: dict[str, dict[str, Any]] = {
    "another key": {"settlement_key": "0" * 64},
    "no key": {"settlement_key": None},
    "a key that is no text": {"settlement_key": 3},
    "more than it cost": {"given_back": {"divergence": 99.0}},
    "less than nothing": {"given_back": {"divergence": -1.0}},
    "no number": {"given_back": {"divergence": "NaN"}},
    "of another kind": {"given_back": {"mu_squared": 0.0}},
    "nothing": {"given_back": {}},
    "no table": {"given_back": 1.0},
    "unsaid": {"given_back": None},
    "of another data set": {"label": "others"},
    "of no data set": {"label": None},
    "of no charge": {"charge": "d" * 32},
    "without an event": {"event": None},
}


def test_a_charger_settles_its_own_charge_once(stays: Ledger) -> None:
    """By the key that its process made up; the server's sum is that of this package, to the last bit."""
    alice, olga = SpendLog(stays.alice), SpendLog(stays.olga)
    event, key = SelfComposed(EVENT, 10), new_key()
    run = charge(alice, event, settlement_digest=digest_of_key(key))
    other = charge(alice, event, settlement_digest=digest_of_key(new_key()))
    rule = RenyiFilter.of(2.0, DELTA)
    before = alice.head(), alice.account("stays")
    entry = {
        "kind": "settlement", "charge": run, "settlement_key": key, "given_back": dict(rule.given_back(EVENT)), "id": None,
        "costs": None, "private": None, "mechanism": None,
    }  # fmt: skip
    for name, changes in {**SETTLED, "of another's charge": {"charge": other}}.items():
        of = None if changes.get("event", "") is None else EVENT
        with pytest.raises(psycopg.Error):
            stays.append(stays.body(of, **{**entry, **changes}), of)
            pytest.fail(f"{name} was taken")
    assert (alice.head(), alice.account("stays")) == before
    settlement = alice.settle(run, key, lambda _: SelfComposed(EVENT, 7))
    assert alice.account("stays") == settlement.account == olga.account("stays")
    assert settlement.account.spent["divergence"] == pytest.approx(rule.cost(SelfComposed(EVENT, 13))["divergence"])
    for later in (
        {**entry},
        {"kind": "steps", "start": 0, "stop": 1, "limit": 10},
        {"kind": "part", "account": "x", "cost": 0.0},
    ):
        of = None if later["kind"] == "steps" else EVENT
        with pytest.raises(psycopg.Error, match="was not settled"):
            stays.append(stays.body(of, **{**entry, **later, "settlement_key": key}), of)
    assert alice.verify() == olga.verify() == 4


@pytest.mark.parametrize("rule", [Plan.of(2.0, DELTA, [(EVENT, 7)]), RenyiFilter.of(2.5, DELTA)], ids=["plan", "changed"])
def test_a_charger_settles_nothing_where_no_filter_was_fixed(stays: Ledger, rule: Any) -> None:
    alice, key = SpendLog(stays.alice), new_key()
    SpendLog(stays.olga).create_budget(Budget("stays", rule, alert=1.0))
    run = charge(alice, settlement_digest=digest_of_key(key))
    with pytest.raises(ValueError, match="rule was changed"):
        alice.settle(run, key, lambda _: EVENT)
    costs = rule.cost(EVENT)
    body = stays.body(
        kind="settlement", charge=run, settlement_key=key, given_back=costs, id=None, costs=None, private=None, mechanism=None
    )
    with pytest.raises(psycopg.Error, match="a filter that was fixed before"):
        stays.append(body)
    assert alice.verify() == 3
