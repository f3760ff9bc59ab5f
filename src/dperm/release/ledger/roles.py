"""Roles on a PostgreSQL server: who may make budgets, and who may only append charges that fit into them.

A charger has no right to write any table. It calls one function, which belongs to whoever ran `make_roles` and does what this
package does otherwise: it takes the lock of writers, looks whether an entry has the form that it should have, chains it to the
last one, and adds what a charge costs to what was spent of its budget, or refuses what exceeds a limit; a settlement takes what
it gives back from there, where it states the key of its charge. That a charge states its costs honestly, that what was charged is
what runs, and that what was given back was not released, no server can know.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dperm.release.ledger.clocks import SLACK
from dperm.release.ledger.databases import LOCK, Database, Postgres, Rows
from dperm.release.ledger.entries import account_of, set_limits

_TABLES = ("dperm_version", "dperm_events", "dperm_entries", "dperm_head", "dperm_budgets", "dperm_limits")
_OF_OWNERS = {
    "dperm_events": "INSERT",
    "dperm_entries": "INSERT",
    "dperm_head": "UPDATE",
    "dperm_budgets": "INSERT, UPDATE, DELETE",
    "dperm_limits": "INSERT, DELETE",
}

#: What an entry of a charger's may state.
_NAMES = (
    "account", "by", "charge", "charged", "claimed", "cost", "costs", "event", "given_back", "id", "keeps_parts",
    "keeps_reservations", "kind", "label", "limit", "mechanism", "note", "persons", "pid", "private", "settlement_digest",
    "settlement_key", "start", "stop", "time", "unreleased", "why",
)  # fmt: skip
_LONGEST = 63  # bytes of a role's name: PostgreSQL cuts off the rest, and both roles would be one

# No entry that the function takes stops those who follow the log: whatever JSON takes, they can read. Python reads no whole
# number of thousands of digits, and no tables nested by the thousand.
#
# No setting of a session changes what it does: names are found in the system's schema first and in the session's temporary one
# last; numbers are written with all their digits; times are compared sign by sign; no text holds a backslash. `(…) IS NOT TRUE`
# also holds for what is missing.
_APPEND = """
CREATE OR REPLACE FUNCTION {schema}.dperm_append(_body text, _event text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, {schema}, pg_temp SET extra_float_digits = 1 AS $dperm$
DECLARE
    _said jsonb := _body::jsonb;
    _flat text[] := ARRAY['string', 'number', 'boolean'];
    _kind text := _said->>'kind';
    _charge text := _said->>'charge';
    _label text := coalesce(_said->>'label', '');
    _time text := _said->>'time';
    _digest text := encode(sha256(convert_to(_event, 'UTF8')), 'hex');
    _clock timestamp := clock_timestamp() AT TIME ZONE 'UTC';
    _count bigint;
    _chain text;
    _last text;
    _wrong text;
    _budget jsonb;
    _spent jsonb;
    _charged jsonb;
    _name text;
    _cost jsonb;
    _amount float8;
    _total float8;
    _most float8;
    _stop bigint;
    _limit bigint;
BEGIN
    PERFORM pg_advisory_xact_lock({lock});
    SELECT count, chain, time INTO STRICT _count, _chain, _last FROM dperm_head;
    _wrong := CASE
        WHEN (jsonb_typeof(_said) = 'object') IS NOT TRUE THEN 'an object'
        WHEN concat(_body, _event) ~ '[0-9]{{250}}' THEN 'numbers of fewer than 250 digits'
        WHEN jsonb_path_exists(jsonb_build_array(_said, _event::jsonb), 'strict $.**{{101}}')
            THEN 'at most 100 tables in one another'
        WHEN EXISTS (SELECT FROM jsonb_each(_said) WHERE NOT (key = ANY (ARRAY[{names}]) AND CASE key
            WHEN 'costs' THEN jsonb_typeof(value) = 'object'
            WHEN 'given_back' THEN jsonb_typeof(value) = 'object'
            WHEN 'note' THEN jsonb_typeof(value) = 'object'
            WHEN 'event' THEN jsonb_typeof(value) IN ('string', 'null')
            WHEN 'by' THEN jsonb_typeof(value) = 'string'
            WHEN 'why' THEN jsonb_typeof(value) = 'string'
            ELSE jsonb_typeof(value) = ANY (_flat)
        END)) THEN 'what entries state, each in its form'
        WHEN (_kind IN ('charge', 'steps', 'part', 'refusal', 'settlement')) IS NOT TRUE
            THEN 'a kind of entry that chargers append'
        WHEN (jsonb_typeof(_said->'charge') = 'string') IS NOT TRUE THEN 'the id of a charge'
        WHEN (coalesce(jsonb_typeof(_said->'label'), 'string') = 'string') IS NOT TRUE THEN 'a label'
        WHEN (jsonb_typeof(_said->'time') = 'string' AND length(_time) = 20
            AND _time ~ '^[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}T[0-9]{{2}}:[0-9]{{2}}:[0-9]{{2}}Z$') IS NOT TRUE THEN 'a time'
        WHEN (_time COLLATE "C" >= _last COLLATE "C") IS NOT TRUE THEN 'a time that is not before that of the last entry'
        WHEN (_time COLLATE "C" <= greatest(
            _last COLLATE "C", to_char(_clock + interval '{slack} seconds', 'YYYY-MM-DD"T"HH24:MI:SS"Z"') COLLATE "C"
        )) IS NOT TRUE THEN 'a time that is not ahead of the server''s clock'
        WHEN (coalesce(jsonb_typeof(_said->'persons'), 'boolean') = 'boolean') IS NOT TRUE THEN 'persons to be true or false'
        WHEN (coalesce(jsonb_typeof(_said->'private'), 'boolean') = 'boolean') IS NOT TRUE THEN 'private to be true or false'
        WHEN (coalesce(jsonb_typeof(_said->'claimed'), 'string') = 'string') IS NOT TRUE THEN 'claimed to be a text'
        WHEN ((_event IS NOT NULL) = (_kind IN ('charge', 'part', 'settlement'))) IS NOT TRUE
            THEN 'an event of a charge, a part or a settlement alone'
        WHEN (_said->>'event' IS NOT DISTINCT FROM _digest) IS NOT TRUE THEN 'the event''s digest'
        WHEN (_event IS NULL OR jsonb_typeof(_event::jsonb->'type') = 'string') IS NOT TRUE THEN 'an event'
    END;
    IF _wrong IS NOT NULL THEN
        RAISE EXCEPTION 'Expected %.', _wrong;
    END IF;

    IF _kind = 'charge' THEN
        IF (jsonb_typeof(_said->'mechanism') = 'string' AND jsonb_typeof(_said->'private') = 'boolean') IS NOT TRUE THEN
            RAISE EXCEPTION 'Expected a mechanism, and whether it is private.';
        END IF;
        IF (_said->>'id' = _charge AND _charge ~ '^[0-9a-f]{{32}}$') IS NOT TRUE
            OR EXISTS (SELECT FROM dperm_entries WHERE charge = _charge) THEN
            RAISE EXCEPTION 'Expected a new id of a charge.';
        END IF;
        SELECT body::jsonb, spent::jsonb INTO _budget, _spent FROM dperm_budgets WHERE label = _label;
        IF _budget IS NULL THEN
            IF EXISTS (SELECT FROM dperm_budgets) THEN
                RAISE EXCEPTION 'There is no budget for %.', quote_literal(_label);
            END IF;
        ELSE
            IF (_budget->>'expires' = '' OR _budget->>'expires' ~ '^[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}$'
                AND to_char(_clock, 'YYYY-MM-DD') COLLATE "C" <= (_budget->>'expires') COLLATE "C"
                AND left(_time, 10) COLLATE "C" <= (_budget->>'expires') COLLATE "C") IS NOT TRUE THEN
                RAISE EXCEPTION 'The budget of % has expired.', quote_literal(_label);
            END IF;
            IF coalesce(_said->>'claimed', '') <> '' OR coalesce((_said->>'private')::boolean, true) IS NOT TRUE
                OR coalesce((_said->>'persons')::boolean, false) IS DISTINCT FROM (_budget->>'persons')::boolean THEN
                RAISE EXCEPTION 'The budget of % takes no such release.', quote_literal(_label);
            END IF;
            IF (jsonb_typeof(_said->'costs') = 'object' AND _said->'costs' <> jsonb_build_object()) IS NOT TRUE THEN
                RAISE EXCEPTION 'Expected the costs of a charge.';
            END IF;
            FOR _name, _cost IN SELECT key, value FROM jsonb_each(_said->'costs') LOOP
                SELECT amount INTO _most FROM dperm_limits WHERE label = _label AND kind = _name;
                _amount := CASE WHEN jsonb_typeof(_cost) = 'number' THEN (_cost #>> ARRAY[]::text[])::float8 END;
                _total := coalesce((_spent->>_name)::float8, 0) + _amount;
                IF (_amount >= 0 AND _total <= _most) IS NOT TRUE THEN
                    RAISE EXCEPTION 'The budget of % has too little left.', quote_literal(_label);
                END IF;
                _spent := _spent || jsonb_build_object(_name, _total);
            END LOOP;
            UPDATE dperm_budgets SET spent = _spent::text WHERE label = _label;
        END IF;
    ELSIF _kind = 'refusal' THEN
        IF NOT EXISTS (SELECT FROM dperm_budgets WHERE label = _label
            AND body::jsonb->>'expires' <> '' AND (body::jsonb->>'expires') COLLATE "C" < left(_time, 10) COLLATE "C") THEN
            RAISE EXCEPTION 'Expected a budget that has expired.';
        END IF;
    ELSE
        IF NOT EXISTS (SELECT FROM dperm_entries WHERE charge = _charge AND kind = 'charge') THEN
            RAISE EXCEPTION 'Expected the id of a charge of this log.';
        END IF;
        IF EXISTS (SELECT FROM dperm_entries WHERE charge = _charge AND kind = 'settlement') THEN
            RAISE EXCEPTION 'Expected a charge that was not settled.';
        END IF;
        IF _kind = 'settlement' THEN
            SELECT body::jsonb INTO STRICT _charged FROM dperm_entries WHERE charge = _charge AND kind = 'charge';
            SELECT body::jsonb, spent::jsonb INTO _budget, _spent FROM dperm_budgets WHERE label = _label;
            IF (_charged->>'label' = _label AND jsonb_typeof(_said->'settlement_key') = 'string'
                AND encode(sha256(convert_to(_said->>'settlement_key', 'UTF8')), 'hex') = _charged->>'settlement_digest')
                IS NOT TRUE THEN
                RAISE EXCEPTION 'Expected the key of the charge that is settled.';
            END IF;
            IF (_budget->'rule'->>'type' IN ('RenyiFilter', 'GdpFilter')) IS NOT TRUE OR EXISTS (
                SELECT FROM dperm_entries WHERE kind = 'budget' AND label = _label
                AND body::jsonb->'budget'->'rule' IS DISTINCT FROM _budget->'rule'
            ) OR EXISTS (
                SELECT FROM dperm_entries WHERE kind = 'charge' AND label = _label
                AND number < (SELECT min(number) FROM dperm_entries WHERE kind = 'budget' AND label = _label)
            ) THEN
                RAISE EXCEPTION 'Expected a filter that was fixed before the first charge.';
            END IF;
            IF (jsonb_typeof(_said->'given_back') = 'object' AND _said->'given_back' <> jsonb_build_object()) IS NOT TRUE THEN
                RAISE EXCEPTION 'Expected what a settlement gives back.';
            END IF;
            FOR _name, _cost IN SELECT key, value FROM jsonb_each(_said->'given_back') LOOP
                _amount := CASE WHEN jsonb_typeof(_cost) = 'number' THEN (_cost #>> ARRAY[]::text[])::float8 END;
                _most := (_charged->'costs'->>_name)::float8;
                IF (_amount >= 0 AND _amount <= _most) IS NOT TRUE THEN
                    RAISE EXCEPTION 'A settlement gives back no more than its charge cost.';
                END IF;
                _total := greatest(0, coalesce((_spent->>_name)::float8, 0) - _amount);
                _spent := _spent || jsonb_build_object(_name, _total);
            END LOOP;
            UPDATE dperm_budgets SET spent = _spent::text WHERE label = _label;
        ELSIF _kind = 'part' THEN
            IF (jsonb_typeof(_said->'account') = 'string' AND jsonb_typeof(_said->'cost') = 'number'
                AND (_said->>'cost')::float8 >= 0) IS NOT TRUE THEN
                RAISE EXCEPTION 'Expected the account and the cost of a part.';
            END IF;
            IF _said->'start' IS NOT NULL
                AND (_said->>'start' ~ '^-?[0-9]{{1,15}}$' AND jsonb_typeof(_said->'start') = 'number') IS NOT TRUE THEN
                RAISE EXCEPTION 'Expected the number of the first step of a part.';
            END IF;
        ELSE
            SELECT max((body::jsonb->>'stop')::bigint), max((body::jsonb->>'limit')::bigint) INTO _stop, _limit
                FROM dperm_entries WHERE charge = _charge AND kind = 'steps';
            IF (_said->>'start' ~ '^[0-9]{{1,15}}$' AND _said->>'stop' ~ '^[0-9]{{1,15}}$'
                AND _said->>'limit' ~ '^[0-9]{{1,15}}$'
                AND jsonb_typeof(_said->'start') = 'number' AND jsonb_typeof(_said->'stop') = 'number'
                AND jsonb_typeof(_said->'limit') = 'number') IS NOT TRUE
                OR ((_said->>'start')::bigint >= coalesce(_stop, 0) AND (_said->>'start')::bigint < (_said->>'stop')::bigint
                AND (_said->>'stop')::bigint <= (_said->>'limit')::bigint
                AND (_said->>'limit')::bigint = coalesce(_limit, (_said->>'limit')::bigint)) IS NOT TRUE THEN
                RAISE EXCEPTION 'Expected steps that were not handed out.';
            END IF;
        END IF;
    END IF;

    IF _event IS NOT NULL THEN
        INSERT INTO dperm_events VALUES (_digest, _event) ON CONFLICT (digest) DO NOTHING;
    END IF;
    _chain := encode(sha256(convert_to(_chain || _body, 'UTF8')), 'hex');
    INSERT INTO dperm_entries VALUES (
        _count + 1, _kind, _charge, _label, _said->>'event', coalesce((_said->>'persons')::boolean, false)::int,
        coalesce((_said->>'private')::boolean, true)::int, (coalesce(_said->>'claimed', '') <> '')::int, _body, _chain
    );
    UPDATE dperm_head SET count = _count + 1, chain = _chain, time = _time;
END
$dperm$
"""


@dataclass(frozen=True)
class Roles:
    """The names of a database's roles, and of who administers its tables."""

    owner: str
    charger: str
    administrator: str


def make_roles(database: Database) -> Roles:
    """Make the roles ``NAME_owner`` and ``NAME_charger`` of the database NAME, with their rights, or bring them up to date.

    Who runs this administers the log from then on: the tables and the function are theirs.

    Raises
    ------
    ValueError
        For a log that is no PostgreSQL database, and for one whose name is too long to name roles by.
    OSError
        Where the server refuses: it takes the right to make roles.
    """
    if not isinstance(database, Postgres):
        raise ValueError(
            f"Expected a spend log in PostgreSQL, got {database.where}: on a file, an owner signs budgets (`dperm budget create "
            "--sign-key`)."
        )
    with database.writing() as rows:
        ((name, schema, administrator),) = rows("SELECT current_database(), current_schema(), current_user")
        roles = Roles(f"{name}_owner", f"{name}_charger", administrator)
        if too_long := [role for role in (roles.owner, roles.charger) if len(role.encode()) > _LONGEST]:
            raise ValueError(f"Expected a database with a shorter name: {too_long[0]!r} is longer than {_LONGEST} bytes.")
        _make(rows, roles, _quoted(schema))
    return roles


def _make(rows: Rows, roles: Roles, schema: str) -> None:
    owner, charger = _quoted(roles.owner), _quoted(roles.charger)
    for role in (roles.owner, roles.charger):
        if not rows("SELECT 1 FROM pg_roles WHERE rolname = ?", role):
            rows(f"CREATE ROLE {_quoted(role)} NOLOGIN")
    rows(f"REVOKE CREATE ON SCHEMA {schema} FROM PUBLIC")
    rows(f"GRANT USAGE ON SCHEMA {schema} TO {owner}, {charger}")
    for table in _TABLES:
        rows(f"ALTER TABLE {schema}.{table} OWNER TO CURRENT_USER")
        rows(f"REVOKE ALL ON {schema}.{table} FROM PUBLIC, {owner}, {charger}")
        rows(f"GRANT SELECT ON {schema}.{table} TO {owner}, {charger}")
    for table, rights in _OF_OWNERS.items():
        rows(f"GRANT {rights} ON {schema}.{table} TO {owner}")
    for (label,) in rows("SELECT label FROM dperm_budgets"):
        account = account_of(rows, label)
        assert account is not None
        set_limits(rows, account.budget)
    names = ", ".join(f"'{name}'" for name in _NAMES)
    rows(_APPEND.format(schema=schema, lock=LOCK, slack=int(SLACK), names=names))
    function = f"{schema}.dperm_append(text, text)"
    rows(f"REVOKE ALL ON FUNCTION {function} FROM PUBLIC")
    rows(f"GRANT EXECUTE ON FUNCTION {function} TO {owner}, {charger}")


def _quoted(name: Any) -> str:
    escaped = str(name).replace('"', '""')
    return f'"{escaped}"'
