"""One published file: from the folder that DPERM_DATA names, or from its publisher. Either way the checksum decides."""

from __future__ import annotations

import gzip
import hashlib
import os
from pathlib import Path
from typing import Any

from dperm._extras import needed
from dperm.data.untrusted_files import DataError


def fetch(item: dict[str, Any], name: str) -> Path:
    """A local path of the file that `item` describes (path, sha256, raw_sha256, url). DataError where it is not to be had."""
    return _local(item, name) or _download(item, name)


def cache_folder() -> Path:
    with needed("pooch", "A folder for data sets"):
        import pooch

    return Path(pooch.os_cache("dperm"))


def _local(item: dict[str, Any], name: str) -> Path | None:
    folder = os.environ.get("DPERM_DATA")
    if not folder:
        return None
    path = Path(folder) / item["path"]
    if not path.is_file():
        return None
    checksum = hashlib.sha256(path.read_bytes()).hexdigest()
    if checksum not in (item["sha256"], item.get("raw_sha256")):
        raise DataError(
            f"{path} is not the file that {name!r} needs: its sha256 is {checksum[:12]}…, not {item['sha256'][:12]}…."
        )
    return path


def _download(item: dict[str, Any], name: str) -> Path:
    with needed("pooch", "Fetching a data set from its publisher"):
        import pooch

    hint = f"Put it at {item['path']} in a folder and set DPERM_DATA to that folder."
    if "url" not in item:
        raise DataError(f"The data set {name!r} cannot be downloaded. {hint}")
    processor = pooch.Unzip(members=[item["member"]]) if "member" in item else None
    known = None if processor else item["raw_sha256"]
    try:
        got = pooch.retrieve(item["url"], known_hash=known, path=cache_folder(), processor=processor, progressbar=False)
    except Exception as error:  # pooch passes on whatever requests, sockets and archives raise
        raise DataError(f"Cannot download {name!r} from {item['url']} ({type(error).__name__}). {hint}") from error
    path = Path(got[0] if isinstance(got, list) else got)
    data = path.read_bytes()
    checksums = {hashlib.sha256(data).hexdigest()} | (
        {hashlib.sha256(gzip.decompress(data)).hexdigest()} if path.suffix == ".gz" else set()
    )
    if item["raw_sha256"] not in checksums:
        raise DataError(f"The file from {item['url']} is not the published one (its sha256 differs). {hint}")
    return path
