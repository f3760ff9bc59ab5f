"""Named data sets, each with a public schema: bundled with scikit-learn, from a local folder, or from their publisher.

`DPERM_DATA` names a folder that holds files as the schemas list them; otherwise they are fetched from the original
publisher. Either way the checksum decides.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from importlib import resources
from typing import Any

import numpy as np

from dperm.data.dataset import Dataset
from dperm.data.read import read_table
from dperm.data.schema.entries import ReadTable
from dperm.data.schema.schema import Schema
from dperm.data.sets.downloads import fetch
from dperm.data.untrusted_files import DataError


@cache
def _descriptions() -> dict[str, dict[str, Any]]:
    folder = resources.files("dperm.data") / "schemas"
    entries = [json.loads(item.read_text(encoding="utf-8")) for item in folder.iterdir() if item.name.endswith(".json")]
    return {entry["name"]: entry for entry in sorted(entries, key=lambda entry: entry["name"])}


def named() -> list[str]:
    """Names that `load` knows."""
    return list(_descriptions())


def _description(name: str) -> dict[str, Any]:
    if name not in _descriptions():
        raise DataError(f"Expected a data set named one of {', '.join(named())}, got {name!r}.")
    return _descriptions()[name]


def schema_of(name: str) -> Schema:
    return Schema.from_dict(_description(name))


def load(name: str, schema: Schema | None = None) -> Dataset:
    """A named data set, encoded by its schema, or by another one. DataError where its files are neither local nor to be had."""
    import pandas as pd

    entry, schema = _description(name), schema or schema_of(name)
    if loader := entry.get("bundled"):
        frame = _bundled(loader, schema)
    elif entry.get("files"):
        frame = pd.concat([_read(item, entry, schema).frame for item in entry["files"]], ignore_index=True)
    elif "openml" in entry:
        frame = _openml(entry["openml"], name)
    else:
        raise DataError(f"The schema of {name} names no rows: give it files (with url and sha256), bundled, or openml.")
    return Dataset.of(frame, schema)


def _bundled(loader: str, schema: Schema) -> Any:
    import pandas as pd
    import sklearn.datasets

    bunch = getattr(sklearn.datasets, loader)()
    frame = pd.DataFrame(bunch.data, columns=[column.name for column in schema.columns[:-1]])
    frame[schema.target] = np.asarray(bunch.target_names).astype(str)[bunch.target]
    return frame


def _read(item: dict[str, Any], entry: dict[str, Any], schema: Schema) -> ReadTable:
    path = fetch(item, entry["name"])
    usual = {"separator": ",", "encoding": "utf-8", "decimal": "."}
    options = {**usual, **schema.extra, "skip_lines": item.get("skip_lines", 0)}
    return read_table(path, replace(schema, extra=options))


def _openml(number: int, name: str) -> Any:
    from sklearn.datasets import fetch_openml

    try:
        return fetch_openml(data_id=number, as_frame=True, parser="auto").frame
    except Exception as error:  # URL errors, timeouts, checksum errors: all mean "not to be had now"
        raise DataError(f"Cannot download {name!r} from OpenML (data set {number}, {type(error).__name__}).") from error
