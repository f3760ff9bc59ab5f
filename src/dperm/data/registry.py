"""Named data sets, each with a public schema: bundled with scikit-learn, from a local folder, or from their publisher.

`DPERM_DATA` names a folder that holds files as the schemas list them; otherwise they are fetched from the original
publisher. Either way the checksum decides.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
from dataclasses import replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from dperm.data.read import DataError, Dataset, read_frame
from dperm.data.schema import Schema

__all__ = ["load", "named", "schema_of"]


@cache
def _descriptions() -> dict[str, dict[str, Any]]:
    folder = resources.files("dperm.data") / "schemas"
    found = [json.loads(item.read_text(encoding="utf-8")) for item in folder.iterdir() if item.name.endswith(".json")]
    return {entry["name"]: entry for entry in sorted(found, key=lambda entry: entry["name"])}


def named() -> list[str]:
    """Names that `load` knows."""
    return list(_descriptions())


def _description(name: str) -> dict[str, Any]:
    if name not in _descriptions():
        raise DataError(f"Expected a data set named one of {', '.join(named())}, got {name!r}.")
    return _descriptions()[name]


def schema_of(name: str) -> Schema:
    return Schema.from_dict(_description(name))


def load(name: str) -> Dataset:
    """A named data set, encoded by its schema. DataError where its files are neither local nor to be had."""
    import pandas as pd

    entry, schema = _description(name), schema_of(name)
    if loader := entry.get("bundled"):
        frame = _bundled(loader, schema)
    elif entry["files"]:
        frame = pd.concat([_read(item, entry, schema) for item in entry["files"]], ignore_index=True)
    else:
        frame = _openml(entry["openml"], name)
    return Dataset.of(frame, schema)


def _bundled(loader: str, schema: Schema) -> Any:
    import pandas as pd
    import sklearn.datasets

    bunch = getattr(sklearn.datasets, loader)()
    frame = pd.DataFrame(bunch.data, columns=[column.name for column in schema.columns[:-1]])
    frame[schema.target] = np.asarray(bunch.target_names).astype(str)[bunch.target]
    return frame


def _read(item: dict[str, Any], entry: dict[str, Any], schema: Schema) -> Any:
    path = _local(item, entry["name"]) or _download(item, entry["name"])
    options = {**schema.extra, "skip_lines": item.get("skip_lines", 0)}
    # Plain copies of CSV files go by many endings: hand the reader a name it knows.
    return read_frame(_as_csv(path), replace(schema, extra=options))


def _as_csv(path: Path) -> Path:
    ending = ".csv.gz" if path.suffix == ".gz" else ".csv"
    if path.name.endswith(ending):
        return path
    link = _cache() / (path.name.removesuffix(".gz") + ending)
    link.parent.mkdir(parents=True, exist_ok=True)
    temporary = link.with_name(f"{link.name}.{os.getpid()}")
    temporary.symlink_to(path.absolute())
    temporary.replace(link)
    return link


def _cache() -> Path:
    import pooch

    return Path(pooch.os_cache("dperm"))


def _local(item: dict[str, Any], name: str) -> Path | None:
    folder = os.environ.get("DPERM_DATA")
    if not folder:
        return None
    path = Path(folder) / item["path"]
    if not path.is_file():
        return None
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found not in (item["sha256"], item.get("raw_sha256")):
        raise DataError(f"{path} is not the file that {name!r} needs: its sha256 is {found[:12]}…, not {item['sha256'][:12]}….")
    return path


def _download(item: dict[str, Any], name: str) -> Path:
    import pooch

    hint = f"Put it at {item['path']} in a folder and set DPERM_DATA to that folder."
    if "url" not in item:
        raise DataError(f"The data set {name!r} cannot be downloaded. {hint}")
    processor = pooch.Unzip(members=[item["member"]]) if "member" in item else None
    known = None if processor else item["raw_sha256"]
    try:
        got = pooch.retrieve(item["url"], known_hash=known, path=_cache(), processor=processor, progressbar=False)
    except Exception as error:  # pooch passes on whatever requests, sockets and archives raise
        raise DataError(f"Cannot download {name!r} from {item['url']} ({type(error).__name__}). {hint}") from error
    path = Path(got[0] if isinstance(got, list) else got)
    data = path.read_bytes()
    found = {hashlib.sha256(data).hexdigest()} | (
        {hashlib.sha256(gzip.decompress(data)).hexdigest()} if path.suffix == ".gz" else set()
    )
    if item["raw_sha256"] not in found:
        raise DataError(f"The file from {item['url']} is not the published one (its sha256 differs). {hint}")
    return path


def _openml(number: int, name: str) -> Any:
    from sklearn.datasets import fetch_openml

    try:
        return fetch_openml(data_id=number, as_frame=True, parser="auto").frame
    except Exception as error:  # URL errors, timeouts, checksum errors: all mean "not to be had now"
        raise DataError(f"Cannot download {name!r} from OpenML (data set {number}, {type(error).__name__}).") from error
