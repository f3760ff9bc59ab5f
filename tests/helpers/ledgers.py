"""Spend logs that something happened to."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from dperm.release import SpendLog
from dperm.release.ledger.entries import about, append_all

__all__ = ["edited", "without_parts"]


def edited(path: str | Path, *statements: str) -> None:
    """Run statements on a log's file, as anybody can who may write it."""
    with closing(sqlite3.connect(path)) as connection:
        for statement in statements:
            connection.execute(statement)
        connection.commit()


def without_parts(log: SpendLog) -> None:
    """Make the log anew with its charges alone: as it was before there was anything else, or as its owner repaired it."""
    charges = log.charges()
    with log.database.reading() as rows:
        assert rows is not None
        bodies = [about(rows, charge.id)[0] for charge in charges]
    edited(log.where, "DELETE FROM dperm_entries", "UPDATE dperm_head SET count = 0, chain = '', time = ''")
    with log.database.writing() as rows:
        kept = ({name: value for name, value in body.items() if name != "event"} for _, body in bodies)
        append_all(rows, [("charge", charge.id, body, charge.event) for charge, body in zip(charges, kept, strict=True)])
    log.verify(remember_it=True)
