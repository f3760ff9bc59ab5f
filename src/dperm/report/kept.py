"""Results of comparisons, on disk as they come: an interrupted one goes on where it stopped, and pays for no result twice."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from dperm._files import HeldError, Lock, open_to_append, replace_own, this_process


class ResultsNotKeptError(OSError):
    """A result could not be written. `text` has all of the file's lines, and those of the results that it lacks."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(reason)
        self.text = text


class KeptResults:
    """The file of results at `path`, for this process and its workers, until `close`.

    Each line is a JSON object: one for each comparison that began, and one for each result of it. Lines are only added, each by
    one write at the end of the file; a line that its writer did not finish is passed over by readers. No kill takes a line that
    was written; a power cut may take those of the repeat that was in progress. Only its owner may read the file: it holds scores
    without noise.

    Raises ValueError, before anything is charged, where another process has the file and where it holds results of an earlier
    version, and OSError where it cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._lock = Lock(path.with_name(f".{path.name}.lock"), this_process())
        except HeldError as error:
            raise ValueError(
                f"Another comparison keeps its results in {path}: {error} Wait for it, or choose another -o."
            ) from None
        try:
            self.descriptor = open_to_append(path)
        except OSError as error:
            self._lock.release()
            raise OSError(f"Cannot write {path}: {error.strerror or error}.") from None
        self._records = self._now()
        if any("attack" in record and "scores" not in record for record in self._records):
            self.close()
            raise ValueError(
                f"Expected results of this version in {path}: those there are of an earlier one, which noted one score of each "
                "model, and a report now needs more. They cannot be used, and what they cost stays in the spend log. Move the "
                "file away, or choose another -o, and run the command again: it pays for its models anew."
            )
        self._taken: set[str] = set()

    def begin(self, study: str, entropy: int) -> int:
        """Begin a comparison, or go on with it: returns the number that its splits are drawn by, `entropy` where it is new."""
        for record in self._records:
            if record.get("study") == study and isinstance(record.get("entropy"), int):
                return int(record["entropy"])
        try:
            append_record(self.descriptor, {"study": study, "entropy": entropy})
        except OSError as error:
            raise OSError(
                f"Cannot write {self.path}: {error.strerror or error}. Nothing was charged for this data set."
            ) from None
        return entropy

    def results(self, study: str) -> list[dict[str, Any]]:
        """The results of a comparison that were there when the file was opened."""
        return [record for record in self._records if record.get("study") == study and "score" in record]

    @property
    def count(self) -> int:
        """How many results of all comparisons are in the file now."""
        return sum("score" in record for record in self._now())

    def _now(self) -> list[dict[str, Any]]:
        return _records_in(self.path.read_text(encoding="utf-8", errors="replace"))

    def not_kept(self, reason: str, records: Iterable[Mapping[str, Any]]) -> ResultsNotKeptError:
        """The error for results that the file did not take."""
        there = self.path.read_text(encoding="utf-8", errors="replace")
        known = {json.dumps(record) for record in _records_in(there)}
        lines = [line for line in map(json.dumps, records) if line not in known]
        return ResultsNotKeptError(f"Cannot write {self.path}: {reason}.", "\n".join([there.rstrip("\n"), *lines, ""]))

    def taken(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Note that the caller has these results, which `remove` then removes."""
        self._taken |= {json.dumps(record) for record in records}

    def remove(self) -> None:
        """Once all results that were `taken` are written elsewhere: remove them. With the last result the file goes."""
        now = self._now()
        left = [record for record in now if "score" in record and json.dumps(record) not in self._taken]
        if not left:
            self.path.unlink(missing_ok=True)
            return
        studies = {record["study"] for record in left}
        begun = [record for record in now if "score" not in record and record.get("study") in studies]
        with replace_own(self.path, private=True) as file:
            file.write("".join(f"{json.dumps(record)}\n" for record in [*begun, *left]))

    def close(self) -> None:
        """Let go of the file. One without a result is removed."""
        if self.path.exists() and not self.count:
            self.path.unlink()
        os.close(self.descriptor)
        self._lock.release()


def append_record(descriptor: int, record: Mapping[str, Any]) -> None:
    """Add a record to the open file. OSError where that fails; a part of it may be there then."""
    line = f"\n{json.dumps(record)}\n".encode()  # begins anew after what another writer did not finish
    while (taken := os.write(descriptor, line)) < len(line):
        os.write(descriptor, line[taken:])  # says why it took no more; else the line is written again, in one piece


def _records_in(text: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for line in text.splitlines():
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):  # blank, or not finished
            continue
        if isinstance(record, dict):
            found.append(record)
    return found
