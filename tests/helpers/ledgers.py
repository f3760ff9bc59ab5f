"""Spend logs that something happened to."""

from __future__ import annotations

import sqlite3

from dperm.release import SpendLog

__all__ = ["without_parts"]


def without_parts(log: SpendLog) -> None:
    """Take out everything but charges: as of a log that was written before there was anything else, or that was repaired."""
    connection = sqlite3.connect(log.where)
    connection.execute("DELETE FROM dperm_entries WHERE kind <> 'charge'")
    connection.commit()
    connection.close()
